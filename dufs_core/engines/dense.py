"""Large problems on the CPU: BLAS for the products, fused sweeps between them, threads inside each."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from dufs_core.backend import Array, Backend
from dufs_core.objective import Objective, Scores, Value
from dufs_core.ops import gram, power
from dufs_core.ops.bandwidth import check_n_neighbors, noise_level, quantile_of


class DenseEngine:
    """evaluate(bk, objective, mu, eps, X), one draw after the other, with `dufs_core.kernels.sweeps`.

    Five (n, n) arrays at power 2, whatever the number of draws.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def __call__(self, bk: Backend, objective: Objective, mu: Array, eps: Array, X: Array) -> tuple[Value, Array]:
        return objective.value_and_grad(bk, mu, eps, X, self._scores_and_grad)

    def _scores_and_grad(self, bk: Backend, objective: Objective, X: Array, z: Array, undecided: Array) -> Scores:
        R = len(z)
        S, b, isolated = np.empty(R), np.empty(R), np.empty(R)
        substituted = np.empty(R, dtype=bool)
        dz = np.empty_like(z)
        with ThreadPoolExecutor(self.threads) as pool:
            for r in range(R):
                wanted = undecided[r] if z.ndim == 2 else undecided[r].any(axis=0)
                G, saved = gram.forward(bk, X, z[r])
                S[r], b[r], substituted[r], isolated[r], M = _score_and_gram_gradient(
                    bk, objective, G, pool, self.threads
                )
                dz[r] = gram.backward(bk, saved, M, wanted)
        return Scores(S, b, substituted, isolated, dz)


def _score_and_gram_gradient(
    bk: Backend, objective: Objective, G: Array, pool: ThreadPoolExecutor, threads: int
) -> tuple[float, float, bool, float, Array]:
    """S, b, substituted, share of isolated rows and M = dS/dG of one Gram matrix."""
    from dufs_core.kernels import sweeps

    n, dtype = len(G), G.dtype
    eps = float(np.finfo(dtype).eps)

    def rows(kernel: Callable[..., Any], *arguments: Any) -> list[Any]:
        cuts = [n * i // threads for i in range(threads + 1)]
        return list(pool.map(lambda i: kernel(*arguments, cuts[i], cuts[i + 1]), range(threads)))

    D, kth, deg = np.empty_like(G), np.empty(n, dtype), np.empty(n)
    fixed = not isinstance(objective.bandwidth, str)
    k = 1 if fixed else objective.n_neighbors
    check_n_neighbors(k, n)
    rows(sweeps.distances, G, G.diagonal().copy(), k, D, kth)
    sources, weights = np.zeros(2, np.int64), np.zeros(2)
    if isinstance(objective.bandwidth, str):
        quantile, one = quantile_of(objective.bandwidth), objective.zero_rule == "one"
        largest = 0.0 if one else float(D.max())
        b, substituted = sweeps.bandwidth(
            kth, quantile, objective.bandwidth_factor, one, largest, *noise_level(np.finfo(dtype)), sources, weights
        )
    else:
        b, substituted = float(objective.bandwidth), False
    A = np.empty_like(G)
    rows(sweeps.affinity, D, b, A, deg)
    isolated = float((deg <= 1 + 8 * eps).mean())
    r = np.sqrt(deg).astype(dtype)
    q = (1 / np.sqrt(deg)).astype(dtype)
    rows(sweeps.symmetrise, A, q)
    At, saved_power = power.forward(bk, A, objective.power)

    Wq, Wr = np.empty(n, dtype), np.empty(n, dtype)
    H = G  # overwritten: G is not needed again
    rows(sweeps.score, At, G, q, r, H, Wq, Wr)
    S = float(Wr.astype(np.float64) @ q)
    T = power.backward_half(bk, saved_power, H)
    by_row, by_column = np.empty(n, dtype), np.zeros((threads, n), dtype)
    cuts = [n * i // threads for i in range(threads + 1)]
    list(pool.map(lambda i: sweeps.row_terms(T, A, by_row, by_column[i], cuts[i], cuts[i + 1]), range(threads)))
    through_deg = 0.5 * (q * Wq - q**3 * Wr) - (by_row + by_column.sum(axis=0)) * q * q
    share = (0.5 * through_deg).astype(dtype)

    tiles = -(-n // sweeps.TILE)
    M = At if objective.power > 1 else np.empty_like(G)  # A is still read by the sweep
    row_sums = np.zeros((tiles, n))

    def backward(tile: int) -> float:
        result = sweeps.backward(T, A, D, At, q, r, share, b, M, row_sums[tile], tile, tile + 1)
        return float(result)

    db = sum(pool.map(backward, range(tiles))) / b**2
    sums = row_sums.sum(axis=0)
    if objective.bandwidth_gradient and not fixed:
        for i, weight in zip(sources, weights, strict=True):
            if weight:
                j = sweeps.neighbour(D, int(i), kth[i])
                value = 0.5 * db * weight
                M[i, j] -= 2 * value
                M[j, i] -= 2 * value
                sums[i] += value
                sums[j] += value
    M[np.arange(n), np.arange(n)] += (2 * sums).astype(dtype)
    return S, b, substituted, isolated, M
