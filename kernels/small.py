"""Score and gradient of many draws on a small problem: one compiled call, draws in parallel.

One thread evaluates one draw from gates to dz, so no Python runs between the operations and the
(n, n) matrices stay in that core's cache. The equations are those of dufs_core.ops, fused into three
sweeps over n x n between the matrix products:
(i) G -> D and k-th neighbours, (ii) D -> K and degrees, (iii) everything backward -> M.
The products go through SciPy's BLAS, which the caller must hold to one thread.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from dufs_core.kernels.exponential import exp_nonpositive


@njit(cache=True)  # type: ignore[untyped-decorator]
def _distances(G: Any, k: int, D: Any, kth: Any) -> None:
    """D from G, and the squared distance of every row to its k-th nearest other row."""
    n = G.shape[0]
    g = np.empty(n, G.dtype)
    for i in range(n):
        g[i] = G[i, i]
    zero = G.dtype.type(0)
    nearest = np.empty(k, G.dtype)
    for i in range(n):
        gi = g[i]
        for j in range(n):
            D[i, j] = max(gi + g[j] - G[i, j] - G[i, j], zero)
        D[i, i] = zero
        nearest[:] = np.inf
        for j in range(n):
            if D[i, j] < nearest[k - 1] and j != i:
                position = k - 1
                while position > 0 and nearest[position - 1] > D[i, j]:
                    nearest[position] = nearest[position - 1]
                    position -= 1
                nearest[position] = D[i, j]
        kth[i] = nearest[k - 1]


@njit(cache=True)  # type: ignore[untyped-decorator]
def _bandwidth(D: Any, kth: Any, quantile: float, factor: float, zero_is_one: bool, rows: Any, weights: Any) -> Any:
    """b and the rows and weights it was read from, by the rules of dufs_core.ops.bandwidth."""
    n = len(kth)
    order = np.argsort(kth, kind="mergesort")
    position = quantile * (n - 1)
    low = int(position)
    rows[0], rows[1] = order[low], order[min(low + 1, n - 1)]
    weights[0], weights[1] = 1 - (position - low), position - low
    s = kth[rows[0]] * weights[0] + kth[rows[1]] * weights[1]
    if zero_is_one:
        substituted = s < 1e-8
        if substituted:
            s = 1.0
            weights[:] = 0
    else:
        tiny = D.max() * (4 * np.finfo(D.dtype).eps)
        substituted = s <= tiny
        if substituted:
            weights[:] = 0
            s = np.inf
            for i in range(n):
                if kth[i] > tiny and kth[i] < s:
                    s = kth[i]
                    rows[:] = i
                    weights[0] = 1
            if s == np.inf:
                s = tiny if tiny > 0 else 1.0
    weights *= factor
    return s * factor, substituted


@njit(cache=True)  # type: ignore[untyped-decorator]
def _neighbour(D: Any, row: int, distance: float) -> int:
    """The column of `row`, not itself, whose distance is `distance`."""
    best, at = np.inf, 0
    for j in range(D.shape[0]):
        gap = abs(D[row, j] - distance)
        if j != row and gap < best:
            best, at = gap, j
    return at


@njit(cache=True)  # type: ignore[untyped-decorator]
def _power_backward(powers: Any, H: Any, t: int) -> Any:
    """dA = sum over a + b = t - 1 of A^a H A^b; powers[i] = A^(i+1)."""
    if t == 1:
        return H.copy()
    n = H.shape[0]
    half = np.zeros_like(H)
    for a in range((t + 1) // 2, t):
        term = np.dot(powers[a - 1], H)
        if t - 1 - a > 0:
            term = np.dot(term, powers[t - 2 - a])
        half += term
    dA = np.empty_like(H)
    for i in range(n):
        for j in range(n):
            dA[i, j] = half[i, j] + half[j, i]
    if t % 2:
        middle = powers[t // 2 - 1]
        dA += np.dot(np.dot(middle, H), middle)
    return dA


@njit(cache=True)  # type: ignore[untyped-decorator]
def score_and_gram_gradient(
    G: Any, t: int, quantile: float, k: int, factor: float, gradient: bool, zero_is_one: bool
) -> Any:
    """S, b, substituted, share of isolated rows, and M = dS/dG (symmetric) of one Gram matrix.

    A negative `quantile` means a fixed bandwidth, `factor`.
    """
    n = G.shape[0]
    dtype = G.dtype.type
    D = np.empty_like(G)
    kth = np.empty(n, G.dtype)
    rows = np.zeros(2, np.int64)
    weights = np.zeros(2, np.float64)
    _distances(G, k, D, kth)
    if quantile < 0:
        b, substituted = factor, False
    else:
        b, substituted = _bandwidth(D, kth, quantile, factor, zero_is_one, rows, weights)

    K = np.empty_like(G)
    q = np.empty(n, G.dtype)
    r = np.empty(n, G.dtype)
    isolated = 0
    minus_inverse = dtype(-1.0 / b)
    for i in range(n):
        for j in range(n):
            K[i, j] = exp_nonpositive(D[i, j] * minus_inverse)
        deg = 0.0
        for j in range(n):
            deg += K[i, j]
        if deg <= 1 + 8 * np.finfo(G.dtype).eps:
            isolated += 1
        r[i] = np.sqrt(deg)
        q[i] = 1 / np.sqrt(deg)
    powers = np.empty((t, n, n), G.dtype)
    A = powers[0]
    for i in range(n):
        for j in range(n):
            A[i, j] = K[i, j] * q[i] * q[j]
    for a in range(1, t):
        np.dot(powers[a - 1], A, powers[a])
    At = powers[t - 1]

    H = np.empty_like(G)
    through_deg = np.empty(n, np.float64)
    S = 0.0
    half = dtype(0.5)
    for i in range(n):
        Wq, Wr = dtype(0), dtype(0)
        for j in range(n):
            W = At[i, j] * G[i, j]
            Wq += W * q[j]
            Wr += W * r[j]
            H[i, j] = G[i, j] * half * (r[i] * q[j] + q[i] * r[j])
        S += Wr * q[i]
        through_deg[i] = 0.5 * (q[i] * Wq - q[i] * q[i] * q[i] * Wr)
    dA = _power_backward(powers, H, t)
    for i in range(n):
        C = dtype(0)
        for j in range(n):
            C += dA[i, j] * A[i, j]
        through_deg[i] -= C * q[i] * q[i]

    # backward sweep: H is reused for dD, symmetric
    db = 0.0
    share = half * through_deg.astype(G.dtype)
    for i in range(n):
        row_db = dtype(0)
        for j in range(n):
            E = (q[i] * dA[i, j] * q[j] + share[i] + share[j]) * K[i, j]
            row_db += E * D[i, j]
            H[i, j] = E * minus_inverse if D[i, j] > 0 else dtype(0)
        db += row_db
    db /= b * b
    if gradient and quantile >= 0:
        for l in range(2):
            if weights[l] != 0:
                j = _neighbour(D, rows[l], kth[rows[l]])
                value = dtype(0.5 * db * weights[l])
                H[rows[l], j] += value
                H[j, rows[l]] += value
    M = dA
    for i in range(n):
        total = dtype(0)
        for j in range(n):
            total += H[i, j]
            M[i, j] = At[i, j] * half * (r[i] * q[j] + q[i] * r[j]) - 2 * H[i, j]
        M[i, i] += 2 * total
    return S, b, substituted, isolated / n, M


@njit(cache=True, parallel=True)  # type: ignore[untyped-decorator]
def batch_noise(
    X: Any, z: Any, wanted: Any, t: int, quantile: float, k: int, factor: float, gradient: bool, zero_is_one: bool, dz: Any
) -> Any:
    """S, b, substituted, isolated of R draws with one gate vector each; dS/dz goes to dz.

    X (d, n), the transposed data; z, wanted, dz (R, d).
    """
    R, d = z.shape
    n = X.shape[1]
    S, b, isolated = np.empty(R), np.empty(R), np.empty(R)
    substituted = np.empty(R, np.bool_)
    for r in prange(R):
        m = 0
        gated = np.empty((d, n), X.dtype)
        for c in range(d):
            if z[r, c] != 0:
                for i in range(n):
                    gated[m, i] = X[c, i] * z[r, c]
                m += 1
        if m > 0:
            gated = gated[:m]
            G = np.dot(gated.T, gated)
        else:
            G = np.zeros((n, n), X.dtype)
        S[r], b[r], substituted[r], isolated[r], M = score_and_gram_gradient(
            G, t, quantile, k, factor, gradient, zero_is_one
        )
        m = 0
        rows = np.empty((d, n), X.dtype)
        for c in range(d):
            dz[r, c] = 0
            if wanted[r, c]:
                rows[m] = X[c]
                m += 1
        if m > 0:
            rows = rows[:m]
            product = np.dot(rows, M)
            m = 0
            for c in range(d):
                if wanted[r, c]:
                    total = X.dtype.type(0)
                    for i in range(n):
                        total += product[m, i] * rows[m, i]
                    dz[r, c] = 2 * z[r, c] * total
                    m += 1
    return S, b, substituted, isolated
