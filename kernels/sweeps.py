"""The passes over n x n between the matrix products, fused so that each matrix is read once per pass.

Matrices of several draws are stacked, (R, n, n), and every pass works on a range of their rows, counted through
the stack (row = draw * n + i), or of their tile rows (blocks of TILE rows, counted likewise). Passes release the GIL
and write only what belongs to their range, so that callers split the range over threads without changing a bit of
the result. Equations: dufs_core.ops, in the same order. Symmetric matrices are held in full.

    distances  G -> D, k-th neighbours    bandwidth  -> b         affinity   D -> K, degrees
    symmetrise K -> A (in place)          score  A^t, G -> H      row_terms  T A -> its row and column sums
    backward   everything -> M            finish     the bandwidth's entries and the diagonal of M
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dufs_core.kernels.compile import kernel
from dufs_core.kernels.exponential import exp_nonpositive

# Sums may be reordered (so that they vectorise) and fused; NaN and infinity keep their meaning.
_FLAGS = {"contract", "reassoc", "nsz"}
TILE = 64  # rows and columns of a tile: two float32 tiles stay in the first-level cache


@kernel(_FLAGS)
def distances(G: Any, g: Any, k: int, D: Any, kth: Any, largest: Any, start: int, stop: int) -> None:
    """D_ij = max(g_i + g_j - 2 G_ij, 0), D_ii = 0; kth_i, the k-th smallest D_ij over j != i; largest_i = max_j D_ij.

    g (R, n) holds the diagonals of G; kth, largest (R, n).
    """
    n = G.shape[1]
    zero, two, infinity = G.dtype.type(0), G.dtype.type(2), G.dtype.type(np.inf)
    nearest = np.empty(k, G.dtype)
    for index in range(start, stop):
        draw = index // n
        i = index - draw * n
        row, source, diagonal = D[draw, i], G[draw, i], g[draw]
        gi, top = diagonal[i], zero
        for j in range(n):
            value = max(gi + diagonal[j] - two * source[j], zero)
            row[j] = value
        row[i] = zero
        for j in range(n):
            top = max(top, row[j])
        largest[draw, i] = top
        row[i] = infinity
        for p in range(k):
            nearest[p] = infinity
        last = infinity
        for j in range(n):
            if row[j] < last:
                p = k - 1
                while p > 0 and nearest[p - 1] > row[j]:
                    nearest[p] = nearest[p - 1]
                    p -= 1
                nearest[p] = row[j]
                last = nearest[k - 1]
        kth[draw, i] = last
        row[i] = zero


@kernel()
def bandwidth(
    kth: Any, largest: Any, quantile: float, factor: float, zero_is_one: bool, relative: float, absolute: float,
    b: Any, substituted: Any, rows: Any, weights: Any,
) -> None:  # fmt: skip
    """b (R,), whether a substitute was used (R,), and the rows and weights (R, 2) that b was read from.

    The rules are those of dufs_core.ops.bandwidth; relative and absolute its noise_level.
    """
    R, n = kth.shape
    position = quantile * (n - 1)
    low = int(position)
    high = min(low + 1, n - 1)
    for draw in range(R):
        values = kth[draw]
        top = 0.0
        for i in range(n):  # rank of row i, ties by index
            top = max(top, largest[draw, i])
            rank = 0
            for j in range(n):
                rank += values[j] < values[i] or (values[j] == values[i] and j < i)
            if rank == low:
                rows[draw, 0] = i
            if rank == high:
                rows[draw, 1] = i
        first, second = 1 - (position - low), position - low
        s = values[rows[draw, 0]] * first + values[rows[draw, 1]] * second
        if zero_is_one:
            substituted[draw] = s < 1e-8
            if s < 1e-8:
                s, first, second = 1.0, 0.0, 0.0
        else:
            tiny = max(top * relative, absolute)
            zero = s <= tiny
            substituted[draw] = zero and top > 0
            if zero:
                s, first, second = np.inf, 0.0, 0.0
                for i in range(n):
                    if values[i] > tiny and values[i] < s:
                        s, first = float(values[i]), 1.0
                        rows[draw, 0] = rows[draw, 1] = i
                if s == np.inf:
                    s = tiny if top > 0 else 1.0
        b[draw] = s * factor
        weights[draw, 0], weights[draw, 1] = first * factor, second * factor


@kernel(_FLAGS)
def affinity(D: Any, b: Any, K: Any, deg: Any, start: int, stop: int) -> None:
    """K_ij = exp(-D_ij / b), deg_i = sum_j K_ij (float64).      b (R,), deg (R, n)."""
    n = D.shape[1]
    for index in range(start, stop):
        draw = index // n
        i = index - draw * n
        row, out = D[draw, i], K[draw, i]
        minus_inverse = D.dtype.type(-1.0 / b[draw])
        for j in range(n):
            out[j] = exp_nonpositive(row[j] * minus_inverse)
        total = 0.0
        for j in range(n):
            total += out[j]
        deg[draw, i] = total


@kernel(_FLAGS)
def symmetrise(K: Any, q: Any, start: int, stop: int) -> None:
    """A_ij = q_i K_ij q_j, in place; q (R, n) = deg^(-1/2)."""
    n = K.shape[1]
    for index in range(start, stop):
        draw = index // n
        i = index - draw * n
        row, scale = K[draw, i], q[draw]
        qi = scale[i]
        for j in range(n):
            row[j] *= qi * scale[j]


@kernel(_FLAGS)
def score(At: Any, G: Any, q: Any, r: Any, H: Any, Wq: Any, Wr: Any, start: int, stop: int) -> None:
    """H = G R, and W q, W r with W = A^t G;  R_ij = (r_i q_j + q_i r_j) / 2.      H may be G itself."""
    n = G.shape[1]
    half = G.dtype.type(0.5)
    for index in range(start, stop):
        draw = index // n
        i = index - draw * n
        at, g, h, qs, rs = At[draw, i], G[draw, i], H[draw, i], q[draw], r[draw]
        hq, hr = half * qs[i], half * rs[i]
        sum_q, sum_r = G.dtype.type(0), G.dtype.type(0)
        for j in range(n):
            gij = g[j]
            W = at[j] * gij
            sum_q += W * qs[j]
            sum_r += W * rs[j]
            h[j] = gij * (hr * qs[j] + hq * rs[j])
        Wq[draw, i], Wr[draw, i] = sum_q, sum_r


@kernel(_FLAGS)
def row_terms(T: Any, A: Any, by_row: Any, by_column: Any, start: int, stop: int) -> None:
    """Of C = T A elementwise: by_row (R, n), its row sums, and by_column (tile rows, n), its column sums in each."""
    n = T.shape[1]
    tiles = (n + TILE - 1) // TILE
    for tile in range(start, stop):
        draw = tile // tiles
        first = (tile - draw * tiles) * TILE
        columns = by_column[tile]
        for i in range(first, min(n, first + TILE)):
            t, a = T[draw, i], A[draw, i]
            total = T.dtype.type(0)
            for j in range(n):
                product = t[j] * a[j]
                total += product
                columns[j] += product
            by_row[draw, i] = total


@kernel(_FLAGS)
def backward(
    T: Any, A: Any, D: Any, At: Any, q: Any, r: Any, share: Any, b: Any, M: Any, row_sums: Any, db: Any,
    start: int, stop: int,
) -> None:  # fmt: skip
    """M but for its diagonal and the bandwidth's entries; db (tile rows,) = sum of E D / b over each tile row.

    With dA = T + T', K_ij = A_ij r_i r_j and E = (q_i dA_ij q_j + share_i + share_j) K_ij where D > 0:
    dD = -E / b,  M = A^t R - 2 dD,  row_sums (tile rows, n) = what the tile row adds to the row sums of dD.
    Tiles above the diagonal are computed once and written twice. M may be At.
    """
    n = T.shape[1]
    tiles = (n + TILE - 1) // TILE
    half, zero = T.dtype.type(0.5), T.dtype.type(0)
    turned = np.empty((TILE, TILE), T.dtype)  # the transposed tile, T_ji, then M_ij
    for tile in range(start, stop):
        draw = tile // tiles
        i0 = (tile - draw * tiles) * TILE
        i1 = min(n, i0 + TILE)
        minus_inverse = T.dtype.type(-1.0 / b[draw])
        qs, rs, shares, sums = q[draw], r[draw], share[draw], row_sums[tile]
        total = 0.0
        for j0 in range(i0, n, TILE):
            j1 = min(n, j0 + TILE)
            for j in range(j0, j1):
                for i in range(i0, i1):
                    turned[i - i0, j - j0] = T[draw, j, i]
            for i in range(i0, i1):
                qi, ri, si = qs[i], rs[i], shares[i]
                t, a, d, at, turn = T[draw, i], A[draw, i], D[draw, i], At[draw, i], turned[i - i0]
                sum_i, db_i = zero, zero
                for j in range(j0, j1):
                    E = (qi * (t[j] + turn[j - j0]) * qs[j] + si + shares[j]) * (a[j] * ri * rs[j])
                    E = E if d[j] > zero else zero
                    dD = E * minus_inverse
                    db_i -= dD * d[j]
                    sum_i += dD
                    if j0 > i0:
                        sums[j] += dD
                    turn[j - j0] = at[j] * half * (ri * qs[j] + qi * rs[j]) - dD - dD
                sums[i] += sum_i
                total += db_i if j0 == i0 else db_i + db_i
                for j in range(j0, j1):
                    M[draw, i, j] = turn[j - j0]
            if j0 > i0:
                for j in range(j0, j1):
                    for i in range(i0, i1):
                        M[draw, j, i] = turned[i - i0, j - j0]
        db[tile] = total


@kernel()
def finish(M: Any, D: Any, kth: Any, rows: Any, weights: Any, db: Any, row_sums: Any) -> None:
    """Add the bandwidth's share to the entries of M that b was read from, and 2 row sums of dD to the diagonal.

    rows, weights (R, 2) as `bandwidth` gave them (weights 0: b is a constant); db (R,) = dS/db;
    row_sums (R, n), float64, changed in place.
    """
    R, n = M.shape[0], M.shape[1]
    for draw in range(R):
        for l in range(2):
            weight = weights[draw, l]
            if weight != 0:
                i = rows[draw, l]
                best, j = np.inf, 0
                for c in range(n):  # the neighbour at that distance, not the row itself
                    gap = abs(D[draw, i, c] - kth[draw, i])
                    if c != i and gap < best:
                        best, j = gap, c
                value = 0.5 * db[draw] * weight
                M[draw, i, j] -= 2 * value
                M[draw, j, i] -= 2 * value
                row_sums[draw, i] += value
                row_sums[draw, j] += value
        for i in range(n):
            M[draw, i, i] += 2 * row_sums[draw, i]
