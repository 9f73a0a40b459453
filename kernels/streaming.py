"""The streaming form in compiled code: blocks of K are formed from the gated data, used at once and forgotten.

The data and what is multiplied with K are held in panels of rows, (panels, features, LANES): panel p holds feature k of
the rows p * LANES to (p + 1) * LANES as one run of LANES numbers. A call works on a `Span`: a group of `size` panels,
from panel `first` on, whose rows j are the lanes of

    D_ij = max(g_i + g_j - 2 sum_k F_ki F_kj, 0)        g_i = sum_k F_ki^2

for blocks of BLOCK rows i from `start` to `stop`, and only these blocks, (group, BLOCK, LANES), are ever stored. Each
number written belongs to one group, or to one chunk of groups that are taken in order, so any number of threads gives
the same bits. Sums over more than FLUSH rows are kept in float64.

    neighbours  D -> k-th neighbours    degrees  K -> row sums    apply  K, R -> K R    gradient  everything -> dS/dD
"""

from __future__ import annotations

import numpy as np

from dufs_core.kernels import panels
from dufs_core.kernels.arrays import BLOCK, FLUSH, LANES, Gated, Settings, Span, ThreadBlocks
from dufs_core.kernels.compile import inner, kernel
from dufs_core.kernels.panels import DEPTH
from dufs_core.kernels.tile import ROWS, tile
from dufs_core.kernels.vector import (
    affinity_of,
    below_lane,
    constant,
    distance,
    get,
    in_lane,
    larger,
    load,
    put,
    slope_of,
    small_code,
    smaller,
    spread,
    store,
    total,
    where_positive,
    widen,
)


@inner
def _products(L, R, C, i0, depth, first, count, m, add):
    """C_ij (+)= sum over k < m of L_ki R_kj, for `depth` rows i from i0 on and the rows j of `count` panels."""
    small_code()
    stride, c_stride = L.shape[1] * LANES, C.shape[1] * LANES
    for k in range(0, m, DEPTH):
        length = min(DEPTH, m - k)
        for c in range(0, count, 2):
            right = (first + c) * stride + k * LANES
            for i in range(0, depth, ROWS):
                left = (i0 + i) // LANES * stride + k * LANES + (i0 + i) % LANES
                tile(L, left, R, right, C, c * c_stride + i * LANES, length, c + 1 < count, add or k > 0)


@inner
def _weighted(K, R, i0, depth, count, columns, add, sums):
    """sums_fj (+)= sum over a block's rows i of R_if K_ij.      R (panels of columns, rows, LANES)."""
    small_code()
    rows, stride, c_stride = R.shape[1], K.shape[1] * LANES, sums.shape[1] * LANES
    for c in range(0, count, 2):
        for f in range(0, columns, ROWS):
            left = (f // LANES * rows + i0) * LANES + f % LANES
            tile(R, left, K, c * stride, sums, c * c_stride + f * LANES, depth, c + 1 < count, add)


@kernel
def squared_norms(X: Gated, first, count, block):
    """g_i = sum_k F_ki^2, summed as every D_ij is: the distance of equal rows is exactly 0."""
    for p in range(first, first + count):
        _products(X.F[0], X.F[0], block, p * LANES, LANES, p, 1, X.m, False)
        for l in range(block.shape[2]):
            put(X.g, p * LANES + l, get(block, l * LANES + l))


@kernel
def bandwidth(settings: Settings, kth, largest, n, scratch, rows, weights, found):
    """`panels.bandwidth`: found (2,) = b, and 1 where a substitute was used."""
    found[0], found[1] = panels.bandwidth(settings, kth, largest, n, scratch, rows, weights)


@inner
def _nearest(G, g, i0, depth, first, count, k, best):
    small_code()
    infinity = constant(G, np.inf)
    for c in range(count):
        j0, here, there = (first + c) * LANES, c * G.shape[1] * LANES, c * best.shape[1] * LANES
        gj, largest = load(g, j0), load(best, there + k * LANES)
        for i in range(depth):
            d = distance(spread(get(g, i0 + i)), gj, load(G, here + i * LANES))
            largest = larger(largest, d)
            d = in_lane(i0 + i - j0, infinity, d)
            for rank in range(k):
                before = load(best, there + rank * LANES)
                store(best, there + rank * LANES, smaller(before, d))
                d = larger(before, d)
        store(best, there + k * LANES, largest)


@kernel
def neighbours(X: Gated, k, span: Span, work: ThreadBlocks):
    """work.best: the k smallest D_ij over i != j, in order, and the largest; updated."""
    for i0 in range(span.start, span.stop, BLOCK):
        depth = min(BLOCK, span.stop - i0)
        _products(X.F[0], X.F[0], work.block, i0, depth, span.first, span.size, X.m, False)
        _nearest(work.block, X.g, i0, depth, span.first, span.size, k, work.best)


@inner
def _add_degrees(G, g, minus_inverse, i0, depth, first, count, side, degrees):
    small_code()
    zero, scale = constant(G, 0.0), constant(G, minus_inverse)
    for c in range(count):
        j0, here = (first + c) * LANES, c * G.shape[1] * LANES
        gj, partial = load(g, j0), zero
        for i in range(depth):
            value = affinity_of(distance(spread(get(g, i0 + i)), gj, load(G, here + i * LANES)) * scale)
            if i0 + i < j0 + LANES:
                value = below_lane(i0 + i - j0, value, zero)
            partial = partial + value
            store(side, i * LANES, value if c == 0 else load(side, i * LANES) + value)
        store(degrees, j0, load(degrees, j0) + widen(partial))
    for i in range(depth):
        put(degrees, i0 + i, get(degrees, i0 + i) + total(widen(load(side, i * LANES))))


@kernel
def degrees(X: Gated, span: Span, work: ThreadBlocks, sums):
    """sums_i += K_ij and sums_j += K_ij for the pairs i > j: every pair once, for both its rows.

    sums (rows,) float64.
    """
    for i0 in range(span.start, span.stop, BLOCK):
        depth = min(BLOCK, span.stop - i0)
        count = min(span.size, (i0 + depth - 1) // LANES - span.first + 1)
        _products(X.F[0], X.F[0], work.block, i0, depth, span.first, count, X.m, False)
        _add_degrees(work.block, X.g, X.minus_inverse, i0, depth, span.first, count, work.side, sums)


@inner
def _affinity(G, g, minus_inverse, self_weight, i0, depth, first, count):
    """K_ij in place of G_ij."""
    small_code()
    scale, diagonal = constant(G, minus_inverse), constant(G, self_weight)
    for c in range(count):
        j0, here = (first + c) * LANES, c * G.shape[1] * LANES
        gj = load(g, j0)
        for i in range(depth):
            at = here + i * LANES
            d = distance(spread(get(g, i0 + i)), gj, load(G, at))
            store(G, at, in_lane(i0 + i - j0, diagonal, affinity_of(d * scale)))


@kernel
def apply(X: Gated, R, columns, span: Span, work: ThreadBlocks):
    """work.out_fj += sum_i R_if K_ij for the first `columns` columns f of R (panels of columns, rows, LANES)."""
    sums = work.sums
    for outer in range(span.start, span.stop, FLUSH):
        end = min(span.stop, outer + FLUSH)
        for i0 in range(outer, end, BLOCK):
            depth = min(BLOCK, end - i0)
            _products(X.F[0], X.F[0], work.block, i0, depth, span.first, span.size, X.m, False)
            _affinity(work.block, X.g, X.minus_inverse, X.self_weight, i0, depth, span.first, span.size)
            _weighted(work.block, R, i0, depth, span.size, columns, i0 > outer, sums)
        for c in range(span.size):
            for f in range(columns):
                at = (c * sums.shape[1] + f) * LANES
                store(work.out, at, load(work.out, at) + widen(load(sums, at)))


@inner
def _slopes(G, T, g, rho, n, minus_inverse, i0, depth, first, count, side, sums, weighted):
    """C_ij = -K_ij (T_ij - rho_i - rho_j) / b where D_ij > 0 and i > j, in place of T_ij."""
    small_code()
    zero, scale = constant(G, 0.0), constant(G, minus_inverse)
    for c in range(count):
        j0, here = (first + c) * LANES, c * G.shape[1] * LANES
        gj, rho_j = load(g, j0), load(rho, j0)
        partial, with_d = zero, zero
        for i in range(depth):
            at = here + i * LANES
            d = distance(spread(get(g, i0 + i)), gj, load(G, at))
            if i0 + i < j0 + LANES:
                d = below_lane(i0 + i - j0, d, zero)
            slope = (load(T, at) - (spread(get(rho, i0 + i)) + rho_j)) * slope_of(affinity_of(d * scale)) * scale
            slope = where_positive(d, slope)
            partial = partial + slope
            with_d = with_d + slope * d
            store(T, at, slope)
            store(side, i * LANES, slope if c == 0 else load(side, i * LANES) + slope)
        store(sums, j0, load(sums, j0) + widen(partial))
        store(weighted, 0, load(weighted, 0) + below_lane(n - j0, widen(with_d), spread(0.0)))
    for i in range(depth):
        put(sums, i0 + i, get(sums, i0 + i) + total(widen(load(side, i * LANES))))


@inner
def _dots(F, first, count, columns, sums, dots):
    """dots_f += sum_j sums_fj F_fj."""
    small_code()
    for c in range(count):
        for f in range(columns):
            product = load(sums, (c * sums.shape[1] + f) * LANES) * load(F, ((first + c) * F.shape[1] + f) * LANES)
            put(dots, f, get(dots, f) + total(widen(product)))


@kernel
def gradient(X: Gated, rho, R, columns, span: Span, work: ThreadBlocks, by_row, weighted, dots):
    """The derivatives C_ij = dS/dD_ij + dS/dD_ji of the pairs i > j, and their products with the data.

    C_ij = -K_ij (T_ij - rho_i - rho_j) / b,  T_ij = sum over a + b = t - 1 of B_a,i . F_b,j + F_b,i . B_a,j

    R: the first `columns` columns of Xt, as in `apply`. by_row_i and by_row_j += C_ij, weighted (LANES,) += sum of
    C_ij D_ij, dots_f += sum of Xt_if C_ij Xt_jf.
    """
    first, t = span.first, X.B.shape[0]
    for outer in range(span.start, span.stop, FLUSH):
        end = min(span.stop, outer + FLUSH)
        for i0 in range(outer, end, BLOCK):
            depth = min(BLOCK, end - i0)
            count = min(span.size, (i0 + depth - 1) // LANES - first + 1)
            _products(X.F[0], X.F[0], work.block, i0, depth, first, count, X.m, False)
            for a in range(t):
                _products(X.B[a], X.F[t - 1 - a], work.slopes, i0, depth, first, count, X.m, a > 0)
                _products(X.F[t - 1 - a], X.B[a], work.slopes, i0, depth, first, count, X.m, True)
            _slopes(
                work.block, work.slopes, X.g, rho, X.n, X.minus_inverse, i0, depth, first, count, work.side, by_row,
                weighted,
            )  # fmt: skip
            for row in range(count * BLOCK, span.size * BLOCK):
                store(work.slopes, row * LANES, constant(work.slopes, 0.0))
            _weighted(work.slopes, R, i0, depth, span.size, columns, i0 > outer, work.sums)
        _dots(X.F[0], first, span.size, columns, work.sums, dots)
