"""Score and gradient of many draws on a small problem, in one compiled call without Python inside.

The equations are those of dufs_core.ops, fused into three sweeps over n x n between the matrix products:
(i) G -> D and k-th neighbours, (ii) D -> K and degrees, (iii) everything backward -> M; the (n, n) matrices
stay in one core's cache. The functions release the GIL and keep no state: callers run them in as many
threads as they like, over different draws or different fits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from dufs_core.kernels.exponential import exp_nonpositive
from dufs_core.kernels.matmul import matmul

# Sums may be reordered (so that they vectorise) and fused; NaN and infinity keep their meaning.
_FLAGS = {"contract", "reassoc", "nsz"}


@njit(cache=True, nogil=True, fastmath=_FLAGS, error_model="numpy")  # type: ignore[untyped-decorator]
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
        for p in range(k):
            nearest[p] = np.inf
        for j in range(n):
            if D[i, j] < nearest[k - 1] and j != i:
                position = k - 1
                while position > 0 and nearest[position - 1] > D[i, j]:
                    nearest[position] = nearest[position - 1]
                    position -= 1
                nearest[position] = D[i, j]
        kth[i] = nearest[k - 1]


@njit(cache=True, nogil=True, fastmath=_FLAGS, error_model="numpy")  # type: ignore[untyped-decorator]
def _bandwidth(D: Any, kth: Any, quantile: float, factor: float, zero_is_one: bool, rows: Any, weights: Any) -> Any:
    """b and the rows and weights it was read from, by the rules of dufs_core.ops.bandwidth."""
    n = len(kth)
    position = quantile * (n - 1)
    low = int(position)
    for i in range(n):  # rank of row i, ties by index
        rank = 0
        for j in range(n):
            rank += kth[j] < kth[i] or (kth[j] == kth[i] and j < i)
        if rank == low:
            rows[0] = i
        if rank == min(low + 1, n - 1):
            rows[1] = i
    weights[0], weights[1] = 1 - (position - low), position - low
    s = kth[rows[0]] * weights[0] + kth[rows[1]] * weights[1]
    if zero_is_one:
        substituted = s < 1e-8
        if substituted:
            s = 1.0
            weights[0] = weights[1] = 0
    else:
        tiny = 0.0
        for i in range(n):
            for j in range(n):
                tiny = max(tiny, D[i, j])
        tiny *= 4 * np.finfo(D.dtype).eps
        substituted = s <= tiny
        if substituted:
            weights[0] = weights[1] = 0
            s = np.inf
            for i in range(n):
                if kth[i] > tiny and kth[i] < s:
                    s = kth[i]
                    rows[0] = rows[1] = i
                    weights[0] = 1
            if s == np.inf:
                s = tiny if tiny > 0 else 1.0
    weights[0] *= factor
    weights[1] *= factor
    return s * factor, substituted


@njit(cache=True, nogil=True, fastmath=_FLAGS, error_model="numpy")  # type: ignore[untyped-decorator]
def _neighbour(D: Any, row: int, distance: float) -> int:
    """The column of `row`, not itself, whose distance is `distance`."""
    best, at = np.inf, 0
    for j in range(D.shape[0]):
        gap = abs(D[row, j] - distance)
        if j != row and gap < best:
            best, at = gap, j
    return at


@njit(cache=True, nogil=True, fastmath=_FLAGS, error_model="numpy")  # type: ignore[untyped-decorator]
def _power_backward(powers: Any, H: Any, t: int) -> Any:
    """dA = sum over a + b = t - 1 of A^a H A^b; powers[i] = A^(i+1)."""
    if t == 1:
        return H
    n = H.shape[0]
    product, term, half = np.empty_like(H), np.empty_like(H), np.empty_like(H)
    for i in range(n):
        for j in range(n):
            half[i, j] = 0
    for a in range((t + 1) // 2, t):
        matmul(powers[a - 1], H, product, False)
        if t - 1 - a > 0:
            matmul(product, powers[t - 2 - a], term, False)
        else:
            term, product = product, term
        for i in range(n):
            for j in range(n):
                half[i, j] += term[i, j]
    for i in range(n):
        for j in range(n):
            product[i, j] = half[i, j] + half[j, i]
    if t % 2:
        middle = powers[t // 2 - 1]
        matmul(middle, H, term, False)
        matmul(term, middle, half, True)
        for i in range(n):
            for j in range(n):
                product[i, j] += half[i, j]
    return product


@njit(cache=True, nogil=True, fastmath=_FLAGS, error_model="numpy")  # type: ignore[untyped-decorator]
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
        matmul(powers[a - 1], A, powers[a], True)
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
    share = np.empty(n, G.dtype)
    for i in range(n):
        share[i] = 0.5 * through_deg[i]
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
    M = np.empty_like(G)
    for i in range(n):
        total = dtype(0)
        for j in range(n):
            total += H[i, j]
            M[i, j] = At[i, j] * half * (r[i] * q[j] + q[i] * r[j]) - 2 * H[i, j]
        M[i, i] += 2 * total
    return S, b, substituted, isolated / n, M


@njit(cache=True, nogil=True, fastmath=_FLAGS, error_model="numpy")  # type: ignore[untyped-decorator]
def scores_and_grad(
    X: Any, z: Any, wanted: Any, t: int, quantile: float, k: int, factor: float, gradient: bool, zero_is_one: bool,
    S: Any, b: Any, substituted: Any, isolated: Any, dz: Any,
) -> None:  # fmt: skip
    """S, b, substituted, isolated (R,) and dz (R, rows, d) = dS/dz of R draws, 0 where not `wanted`.

    X (d, n), the transposed data; z, wanted, dz (R, 1, d) for one gate vector a batch, or (R, n, d) for one a sample.
    """
    R, gate_rows, d = z.shape
    n = X.shape[1]
    gated = np.empty((d, n), X.dtype)
    rows = np.empty((d, n), X.dtype)
    product = np.empty((d, n), X.dtype)
    G = np.empty((n, n), X.dtype)
    for r in range(R):
        m = 0
        for c in range(d):
            if gate_rows == 1:
                if z[r, 0, c] != 0:
                    for i in range(n):
                        gated[m, i] = X[c, i] * z[r, 0, c]
                    m += 1
            else:
                for i in range(n):
                    gated[m, i] = X[c, i] * z[r, i, c]
                m += 1
        matmul(gated[:m].T, gated[:m], G, True)
        S[r], b[r], substituted[r], isolated[r], M = score_and_gram_gradient(
            G, t, quantile, k, factor, gradient, zero_is_one
        )
        if gate_rows == 1:
            m = 0
            for c in range(d):
                if wanted[r, 0, c]:
                    for i in range(n):
                        rows[m, i] = X[c, i]
                    m += 1
            matmul(rows[:m], M, product[:m], False)
            m = 0
            for c in range(d):
                total = X.dtype.type(0)
                if wanted[r, 0, c]:
                    for i in range(n):
                        total += product[m, i] * rows[m, i]
                    m += 1
                dz[r, 0, c] = 2 * z[r, 0, c] * total
        else:
            matmul(gated, M, product, False)
            for c in range(d):
                for i in range(n):
                    dz[r, i, c] = 2 * X[c, i] * product[c, i] if wanted[r, i, c] else X.dtype.type(0)
