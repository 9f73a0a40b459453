"""The passes over n x n between the matrix products, fused so that each matrix is read once per pass.

Every function works on the rows (or tile rows) from `start` to `stop` and releases the GIL: callers split the
rows over threads. Equations: dufs_core.ops, in the same order. Symmetric matrices are held in full.

    distances  G -> D, k-th neighbour           affinity   D -> K, degrees          symmetrise  K -> A (in place)
    score      A^t, G -> H = G R, (W q), (W r)  row_terms  T, A -> sums over T A    backward    everything -> M
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from dufs_core.kernels.exponential import exp_nonpositive

# Sums may be reordered (so that they vectorise) and fused; NaN and infinity keep their meaning.
FLAGS = {"contract", "reassoc", "nsz"}
TILE = 64  # rows and columns of a tile of `backward`: two float32 tiles of T stay in the first-level cache


@njit(cache=True, nogil=True, fastmath=FLAGS, error_model="numpy")
def distances(G: Any, g: Any, k: int, D: Any, kth: Any, start: int, stop: int) -> None:
    """D_ij = max(g_i + g_j - 2 G_ij, 0), D_ii = 0, and kth_i, the k-th smallest D_ij over j != i.

    g (n,) is the diagonal of G; D may be G itself.
    """
    n = G.shape[0]
    zero, two, infinity = G.dtype.type(0), G.dtype.type(2), G.dtype.type(np.inf)
    nearest = np.empty(k, G.dtype)
    for i in range(start, stop):
        row, gi = D[i], g[i]
        for j in range(n):
            row[j] = max(gi + g[j] - two * G[i, j], zero)
        row[i] = infinity
        for p in range(k):
            nearest[p] = infinity
        if k == 1:
            smallest = infinity
            for j in range(n):
                smallest = min(smallest, row[j])
            kth[i] = smallest
        else:
            last = infinity
            for j in range(n):
                if row[j] < last:
                    p = k - 1
                    while p > 0 and nearest[p - 1] > row[j]:
                        nearest[p] = nearest[p - 1]
                        p -= 1
                    nearest[p] = row[j]
                    last = nearest[k - 1]
            kth[i] = last
        row[i] = zero


@njit(cache=True, nogil=True, fastmath=FLAGS, error_model="numpy")
def largest(D: Any) -> Any:
    """max D."""
    top = D.dtype.type(0)
    for i in range(D.shape[0]):
        for j in range(D.shape[1]):
            top = max(top, D[i, j])
    return top


@njit(cache=True, nogil=True, error_model="numpy")
def bandwidth(
    kth: Any, quantile: float, factor: float, zero_is_one: bool, largest: float, relative: float, absolute: float,
    rows: Any, weights: Any,
) -> Any:  # fmt: skip
    """b, whether a substitute was used, and the rows and weights it was read from (dufs_core.ops.bandwidth)."""
    n = len(kth)
    tiny = max(largest * relative, absolute)
    position = quantile * (n - 1)
    low = int(position)
    high = min(low + 1, n - 1)
    for i in range(n):  # rank of row i, ties by index
        rank = 0
        for j in range(n):
            rank += kth[j] < kth[i] or (kth[j] == kth[i] and j < i)
        if rank == low:
            rows[0] = i
        if rank == high:
            rows[1] = i
    weights[0], weights[1] = 1 - (position - low), position - low
    s = kth[rows[0]] * weights[0] + kth[rows[1]] * weights[1]
    if zero_is_one:
        substituted = s < 1e-8
        if substituted:
            s = 1.0
            weights[0] = weights[1] = 0
    else:
        zero = s <= tiny
        substituted = zero and largest > 0
        if zero:
            weights[0] = weights[1] = 0
            s = np.inf
            for i in range(n):
                if kth[i] > tiny and kth[i] < s:
                    s = kth[i]
                    rows[0] = rows[1] = i
                    weights[0] = 1
            if s == np.inf:
                s = tiny if largest > 0 else 1.0
    weights[0] *= factor
    weights[1] *= factor
    return s * factor, substituted


@njit(cache=True, nogil=True, error_model="numpy")
def neighbour(D: Any, row: int, distance: float) -> int:
    """The column of `row`, not itself, whose distance is `distance`."""
    best, at = np.inf, 0
    for j in range(D.shape[0]):
        gap = abs(D[row, j] - distance)
        if j != row and gap < best:
            best, at = gap, j
    return at


@njit(cache=True, nogil=True, fastmath=FLAGS, error_model="numpy")
def affinity(D: Any, b: float, K: Any, deg: Any, start: int, stop: int) -> None:
    """K_ij = exp(-D_ij / b), deg_i = sum_j K_ij."""
    n = D.shape[0]
    minus_inverse = D.dtype.type(-1.0 / b)
    for i in range(start, stop):
        row, out = D[i], K[i]
        for j in range(n):
            out[j] = exp_nonpositive(row[j] * minus_inverse)
        total = 0.0
        for j in range(n):
            total += out[j]
        deg[i] = total


@njit(cache=True, nogil=True, fastmath=FLAGS, error_model="numpy")
def symmetrise(K: Any, q: Any, start: int, stop: int) -> None:
    """A_ij = q_i K_ij q_j, in place; q = deg^(-1/2)."""
    for i in range(start, stop):
        row, qi = K[i], q[i]
        for j in range(len(q)):
            row[j] *= qi * q[j]


@njit(cache=True, nogil=True, fastmath=FLAGS, error_model="numpy")
def score(At: Any, G: Any, q: Any, r: Any, H: Any, Wq: Any, Wr: Any, start: int, stop: int) -> None:
    """H = G R, and W q, W r with W = A^t G;  R_ij = (r_i q_j + q_i r_j) / 2.      H may be G itself."""
    n = G.shape[0]
    half = G.dtype.type(0.5)
    for i in range(start, stop):
        at, g, h = At[i], G[i], H[i]
        hq, hr = half * q[i], half * r[i]
        sum_q, sum_r = G.dtype.type(0), G.dtype.type(0)
        for j in range(n):
            gij = g[j]
            W = at[j] * gij
            sum_q += W * q[j]
            sum_r += W * r[j]
            h[j] = gij * (hr * q[j] + hq * r[j])
        Wq[i], Wr[i] = sum_q, sum_r


@njit(cache=True, nogil=True, fastmath=FLAGS, error_model="numpy")
def row_terms(T: Any, A: Any, by_row: Any, by_column: Any, start: int, stop: int) -> None:
    """by_row_i = sum_j T_ij A_ij; by_column_j += sum over these rows of T_ij A_ij."""
    n = T.shape[0]
    for i in range(start, stop):
        t, a = T[i], A[i]
        total = T.dtype.type(0)
        for j in range(n):
            product = t[j] * a[j]
            total += product
            by_column[j] += product
        by_row[i] = total


@njit(cache=True, nogil=True, fastmath=FLAGS, error_model="numpy")
def backward(
    T: Any, A: Any, D: Any, At: Any, q: Any, r: Any, share: Any, b: float, M: Any, row_sums: Any, start: int, stop: int
) -> float:
    """M off its diagonal corrections, for the tile rows start..stop; returns sum(E D) over them.

    With dA = T + T', K_ij = A_ij r_i r_j and E = (q_i dA_ij q_j + share_i + share_j) K_ij where D > 0:
    dD = -E / b,  M = A^t R - 2 dD,  row_sums += row sums of dD.
    Tiles above the diagonal are computed once and written twice; row_sums (n,) belongs to these tile rows alone.
    M may be At.
    """
    n = T.shape[0]
    half, zero = T.dtype.type(0.5), T.dtype.type(0)
    minus_inverse = T.dtype.type(-1.0 / b)
    turned = np.empty((TILE, TILE), T.dtype)  # the transposed tile, T_ji
    db = 0.0
    for tile_i in range(start, stop):
        i0, i1 = tile_i * TILE, min(n, tile_i * TILE + TILE)
        for j0 in range(i0, n, TILE):
            j1 = min(n, j0 + TILE)
            for j in range(j0, j1):
                for i in range(i0, i1):
                    turned[i - i0, j - j0] = T[j, i]
            for i in range(i0, i1):
                qi, ri, si = q[i], r[i], share[i]
                sum_i, db_i = zero, zero
                for j in range(j0, j1):
                    K = A[i, j] * ri * r[j]
                    E = (qi * (T[i, j] + turned[i - i0, j - j0]) * q[j] + si + share[j]) * K
                    E = E if D[i, j] > zero else zero
                    db_i += E * D[i, j]
                    dD = E * minus_inverse
                    sum_i += dD
                    if j0 > i0:
                        row_sums[j] += dD
                    value = At[i, j] * half * (ri * q[j] + qi * r[j]) - dD - dD
                    M[i, j] = value
                    turned[i - i0, j - j0] = value
                row_sums[i] += sum_i
                db += db_i if j0 == i0 else db_i + db_i
            if j0 > i0:
                for j in range(j0, j1):
                    for i in range(i0, i1):
                        M[j, i] = turned[i - i0, j - j0]
    return db
