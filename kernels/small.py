"""Score and gradient of many draws on a small problem, in one compiled call without Python inside.

The passes of `sweeps` over whole matrices, the products of `matmul`: the (n, n) matrices of a draw stay in one
core's cache. The functions release the GIL and keep no state: callers run them in as many threads as they like,
over different draws or different fits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from dufs_core.kernels import sweeps
from dufs_core.kernels.matmul import matmul

_largest, _bandwidth, _neighbour = sweeps.largest, sweeps.bandwidth, sweeps.neighbour
_distances, _affinity, _symmetrise = sweeps.distances, sweeps.affinity, sweeps.symmetrise
_score, _row_terms, _backward, _TILE = sweeps.score, sweeps.row_terms, sweeps.backward, sweeps.TILE


@njit(cache=True, nogil=True, error_model="numpy")
def _power_backward(powers: Any, H: Any, T: Any, scratch: Any) -> None:
    """T such that T + T' = sum over a + b = t - 1 of A^a H A^b; powers[i] = A^(i+1), t = len(powers)."""
    t, n = len(powers), H.shape[0]
    half = H.dtype.type(0.5)
    if t == 2:
        matmul(powers[0], H, T, False)
        return
    for i in range(n):
        for j in range(n):
            T[i, j] = half * H[i, j] if t == 1 else H.dtype.type(0)
    if t == 1:
        return
    for a in range(t // 2, t):
        b = t - 1 - a
        if a < b:
            continue
        matmul(powers[a - 1], H, scratch[0], False)
        if b > 0:
            matmul(scratch[0], powers[b - 1], scratch[1], False)
        source = scratch[1] if b > 0 else scratch[0]
        weight = half if a == b else H.dtype.type(1)
        for i in range(n):
            for j in range(n):
                T[i, j] += weight * source[i, j]


@njit(cache=True, nogil=True, error_model="numpy")
def score_and_gram_gradient(
    G: Any, quantile: float, k: int, factor: float, gradient: bool, zero_is_one: bool, relative: float, absolute: float,
    D: Any, H: Any, T: Any, M: Any, powers: Any, scratch: Any,
) -> Any:  # fmt: skip
    """S, b, substituted, share of isolated rows; M = dS/dG (symmetric) of one Gram matrix.

    A negative `quantile` means a fixed bandwidth, `factor`. D, H, T, M (n, n), powers (t, n, n) and scratch
    (2, n, n) are work space.
    """
    n = G.shape[0]
    vectors = np.empty((7, n), G.dtype)
    g, kth, q, r, share, Wq, Wr = (
        vectors[0], vectors[1], vectors[2], vectors[3], vectors[4], vectors[5], vectors[6]
    )  # fmt: skip
    deg = np.empty(n, np.float64)
    rows, weights = np.zeros(2, np.int64), np.zeros(2, np.float64)
    eps = np.finfo(G.dtype).eps
    for i in range(n):
        g[i] = G[i, i]
    _distances(G, g, k, D, kth, 0, n)
    if quantile < 0:
        b, substituted = factor, False
    else:
        b, substituted = _bandwidth(
            kth, quantile, factor, zero_is_one, float(_largest(D)), relative, absolute, rows, weights
        )
    A = powers[0]
    _affinity(D, b, A, deg, 0, n)
    isolated = 0
    for i in range(n):
        r[i] = np.sqrt(deg[i])
        q[i] = 1 / np.sqrt(deg[i])
        isolated += deg[i] <= 1 + 8 * eps
    _symmetrise(A, q, 0, n)
    t = len(powers)
    for a in range(1, t):
        matmul(powers[a - 1], A, powers[a], True)
    At = powers[t - 1]

    _score(At, G, q, r, H, Wq, Wr, 0, n)
    _power_backward(powers, H, T, scratch)
    by_row, by_column = np.empty(n, G.dtype), np.zeros(n, G.dtype)
    _row_terms(T, A, by_row, by_column, 0, n)
    S = 0.0
    for i in range(n):
        S += np.float64(Wr[i]) * q[i]
        through_deg = 0.5 * (q[i] * Wq[i] - q[i] ** 3 * Wr[i]) - (by_row[i] + by_column[i]) * q[i] * q[i]
        share[i] = 0.5 * through_deg
    row_sums = np.zeros(n, np.float64)
    db = _backward(T, A, D, At, q, r, share, b, M, row_sums, 0, (n + _TILE - 1) // _TILE) / (b * b)
    if gradient and quantile >= 0:
        for l in range(2):
            if weights[l] != 0:
                i, j = rows[l], _neighbour(D, rows[l], kth[rows[l]])
                value = 0.5 * db * weights[l]
                M[i, j] -= 2 * value
                M[j, i] -= 2 * value
                row_sums[i] += value
                row_sums[j] += value
    for i in range(n):
        M[i, i] += 2 * row_sums[i]
    return S, b, substituted, isolated / n


@njit(cache=True, nogil=True, error_model="numpy")
def scores_and_grad(
    X: Any, z: Any, wanted: Any, t: int, quantile: float, k: int, factor: float, gradient: bool, zero_is_one: bool,
    relative: float, absolute: float, S: Any, b: Any, substituted: Any, isolated: Any, dz: Any,
) -> None:  # fmt: skip
    """S, b, substituted, isolated (R,) and dz (R, rows, d) = dS/dz of R draws, 0 where not `wanted`.

    relative, absolute: dufs_core.ops.bandwidth.noise_level. X (d, n), the transposed data; z, wanted, dz
    (R, 1, d) for one gate vector a batch, or (R, n, d) for one a sample.
    """
    R, gate_rows, d = z.shape
    n = X.shape[1]
    gated, rows, product = np.empty((d, n), X.dtype), np.empty((d, n), X.dtype), np.empty((d, n), X.dtype)
    work = np.empty((5, n, n), X.dtype)
    G, D, H, T, M = work[0], work[1], work[2], work[3], work[4]
    powers, scratch = np.empty((t, n, n), X.dtype), np.empty((2, n if t > 2 else 1, n if t > 2 else 1), X.dtype)
    zero = X.dtype.type(0)
    for r in range(R):
        m = 0
        for c in range(d):
            if gate_rows > 1 or z[r, 0, c] != 0:
                for i in range(n):
                    gated[m, i] = X[c, i] * z[r, i if gate_rows > 1 else 0, c]
                m += 1
        matmul(gated[:m].T, gated[:m], G, True)
        S[r], b[r], substituted[r], isolated[r] = score_and_gram_gradient(
            G, quantile, k, factor, gradient, zero_is_one, relative, absolute, D, H, T, M, powers, scratch
        )
        if gate_rows > 1:
            matmul(gated, M, product, False)
            for c in range(d):
                for i in range(n):
                    dz[r, i, c] = 2 * X[c, i] * product[c, i] if wanted[r, i, c] else zero
            continue
        m = 0
        for c in range(d):
            if wanted[r, 0, c]:
                for i in range(n):
                    rows[m, i] = X[c, i]
                m += 1
        matmul(rows[:m], M, product[:m], False)
        m = 0
        for c in range(d):
            total = zero
            if wanted[r, 0, c]:
                for i in range(n):
                    total += product[m, i] * rows[m, i]
                m += 1
            dz[r, 0, c] = 2 * z[r, 0, c] * total
