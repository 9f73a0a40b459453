"""The Gram form on the CPU: BLAS for the products, fused passes between them (`dufs_core.kernels.sweeps`)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from dufs_core.backend import Array, Backend
from dufs_core.objective import Objective, Scores, Value
from dufs_core.ops import gram, power
from dufs_core.ops.bandwidth import check_n_neighbors, noise_level, quantile_of

_ELEMENTS_TOGETHER = 1 << 19  # entries of the stacked (draws, n, n) matrices: they stay in the last-level cache
_ELEMENTS_PER_THREAD = 1 << 16  # a pass over fewer is done before a second thread has woken up


class DenseEngine:
    """evaluate(bk, objective, mu, eps, X) for one fit, a few draws at a time, in six (draws, n, n) arrays at power 2.

    The passes run in Python threads in code that releases the GIL: there is no compiled threading layer to clash with
    fork, with a second fit or with BLAS, whose own threads work only between the passes. The result does not depend
    on the number of threads. The arrays are kept from step to step: fresh ones cost a page fault every 4 KiB.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads)
        self._kept: dict[str, Array] = {}

    def __call__(self, bk: Backend, objective: Objective, mu: Array, eps: Array, X: Array) -> tuple[Value, Array]:
        return objective.value_and_grad(bk, mu, eps, X, self._scores_and_grad)

    def _scores_and_grad(self, bk: Backend, objective: Objective, X: Array, z: Array, undecided: Array) -> Scores:
        R, n = len(z), X.shape[0]
        together = max(1, _ELEMENTS_TOGETHER // (n * n))
        wanted = undecided if z.ndim == 2 else undecided.any(axis=1)
        dz = np.empty_like(z)
        parts = []
        for start in range(0, R, together):
            draws = range(start, min(start + together, R))
            G = self._work("G", (len(draws), n, n), X.dtype)
            saved = []
            for r in draws:
                G[r - start], saved_r = gram.forward(bk, X, z[r])
                saved.append(saved_r)
            *values, M = self._scores_and_gram_gradients(bk, objective, G)
            parts.append(values)
            for r in draws:
                dz[r] = gram.backward(bk, saved[r - start], M[r - start], wanted[r])
        S, b, substituted, isolated = (np.concatenate(part) for part in zip(*parts, strict=True))
        return Scores(S, b, substituted, isolated, dz)

    def _work(self, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
        """An uninitialised array, the same one as at the last call where that fits."""
        kept = self._kept.get(name)
        if kept is None or kept.shape[1:] != shape[1:] or kept.shape[0] < shape[0] or kept.dtype != dtype:
            self._kept[name] = kept = np.empty(shape, dtype)
        return kept[: shape[0]]

    def _spread(self, count: int, elements: int, kernel: Callable[..., None], *arguments: Any) -> None:
        """kernel(*arguments, start, stop) over ranges that cover 0..count, one per thread."""
        threads = max(1, min(self._threads, count, elements // _ELEMENTS_PER_THREAD))
        if threads == 1:
            kernel(*arguments, 0, count)
            return
        cuts = [count * i // threads for i in range(threads + 1)]
        futures = [self._pool.submit(kernel, *arguments, a, b) for a, b in pairwise(cuts)]
        for future in futures:
            future.result()

    def _scores_and_gram_gradients(
        self, bk: Backend, objective: Objective, G: Array
    ) -> tuple[Array, Array, Array, Array, Array]:
        """S, b, substituted, isolated (R,), and M = dS/dG (R, n, n), symmetric. G is overwritten."""
        from dufs_core.kernels import sweeps

        R, n, _ = G.shape
        dtype = G.dtype
        all_rows, tiles = R * n, R * -(-n // sweeps.TILE)
        by_rows, by_tiles = partial(self._spread, all_rows, G.size), partial(self._spread, tiles, G.size)
        work = partial(self._work, shape=G.shape, dtype=dtype)

        D, kth, largest = work("D"), np.empty((R, n), dtype), np.empty((R, n), dtype)
        rule = objective.bandwidth
        k = objective.n_neighbors if isinstance(rule, str) else 1
        check_n_neighbors(k, n)
        by_rows(sweeps.distances, G, np.diagonal(G, axis1=1, axis2=2).copy(), k, D, kth, largest)
        b, substituted = np.empty(R), np.zeros(R, dtype=bool)
        sources, weights = np.zeros((R, 2), np.int64), np.zeros((R, 2))
        if isinstance(rule, str):
            sweeps.bandwidth(
                kth, largest, quantile_of(rule), float(objective.bandwidth_factor), objective.zero_rule == "one",
                *noise_level(np.finfo(dtype)), b, substituted, sources, weights,
            )  # fmt: skip
            if not objective.bandwidth_gradient:
                weights[:] = 0
        else:
            b[:] = rule

        A, deg = work("A"), np.empty((R, n))
        by_rows(sweeps.affinity, D, b, A, deg)
        isolated = (deg <= 1 + 8 * float(np.finfo(dtype).eps)).mean(axis=1)
        q = (deg**-0.5).astype(dtype)
        r = 1 / q  # not sqrt(deg): the rounding of q then cancels
        by_rows(sweeps.symmetrise, A, q)
        At, saved_power = power.forward(bk, A, objective.power, work("At"))

        Wq, Wr = np.empty((R, n), dtype), np.empty((R, n), dtype)
        H = G
        by_rows(sweeps.score, At, G, q, r, H, Wq, Wr)
        S = (Wr * q).sum(axis=1, dtype=np.float64)
        T = power.backward_half(bk, saved_power, H, work("T"))
        by_row, by_column = np.empty((R, n), dtype), np.zeros((tiles, n), dtype)
        by_tiles(sweeps.row_terms, T, A, by_row, by_column)
        C = by_row + by_column.reshape(R, -1, n).sum(axis=1)
        share = 0.25 * (q * Wq - q**3 * Wr) - 0.5 * C * q * q  # half the derivative through the degrees

        M = At if objective.power > 1 else work("At")  # at power 1 A itself is still read
        row_sums, db = np.zeros((tiles, n)), np.empty(tiles)
        by_tiles(sweeps.backward, T, A, D, At, q, r, share, b, M, row_sums, db)
        db = db.reshape(R, -1).sum(axis=1) / b
        sweeps.finish(M, D, kth, sources, weights, db, row_sums.reshape(R, -1, n).sum(axis=1))
        return S, b, substituted, isolated, M
