"""The streaming form in compiled code: blocks of K are formed from the gated data, used at once and forgotten.

The data and what is multiplied with K are held in panels of rows, (panels, features, LANES): panel p holds feature k of
the rows p * LANES to (p + 1) * LANES as one run of LANES numbers. A call works on a group of `count` panels, from
panel `first` on: its rows j are the lanes of

    D_ij = max(g_i + g_j - 2 sum_k F_ki F_kj, 0)        g_i = sum_k F_ki^2

for blocks of BLOCK rows i from `start` to `stop`, and only these blocks, (group, BLOCK, LANES), are ever stored. Each
number written belongs to one group, or to one chunk of groups that are taken in order, so any number of threads gives
the same bits. Sums over more than FLUSH rows are kept in float64.

    neighbours  D -> k-th neighbours    degrees  K -> row sums    apply  K, R -> K R    gradient  everything -> dS/dD
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dufs_core.kernels import panels
from dufs_core.kernels.compile import inner, kernel
from dufs_core.kernels.panels import DEPTH
from dufs_core.kernels.tile import ROWS, tile_add, tile_set
from dufs_core.kernels.vector import (
    LANES,
    below_lane,
    exp_nonpositive,
    get,
    in_lane,
    larger,
    load,
    put,
    small_code,
    smaller,
    spread,
    store,
    total,
    where_positive,
    widen,
)

BLOCK = 128  # rows i at a time: a panel's share of K, 8 KiB in float32, stays in the first-level cache
GROUP = 16  # panels of rows j in hand: a block of rows i is read from memory once for all of them
FLUSH = 1024  # rows whose products are summed in the dtype of the data, before float64 takes over


@inner
def _products(L: Any, R: Any, C: Any, i0: int, depth: int, first: int, count: int, m: int, add: bool) -> None:
    """C_ij (+)= sum over k < m of L_ki R_kj, for `depth` rows i from i0 on and the rows j of `count` panels."""
    small_code()
    stride, c_stride = L.shape[1] * LANES, C.shape[1] * LANES
    for k in range(0, m, DEPTH):
        length = min(DEPTH, m - k)
        for c in range(count):
            right = (first + c) * stride + k * LANES
            for i in range(0, depth, ROWS):
                left = (i0 + i) // LANES * stride + k * LANES + (i0 + i) % LANES
                if add or k > 0:
                    tile_add(L, left, R, right, C, c * c_stride + i * LANES, length)
                else:
                    tile_set(L, left, R, right, C, c * c_stride + i * LANES, length)


@inner
def _weighted(K: Any, R: Any, i0: int, depth: int, count: int, columns: int, add: bool, sums: Any) -> None:
    """sums_fj (+)= sum over a block's rows i of R_if K_ij.      R (panels of columns, rows, LANES)."""
    small_code()
    rows, stride, c_stride = R.shape[1], K.shape[1] * LANES, sums.shape[1] * LANES
    for c in range(count):
        for f in range(0, columns, ROWS):
            left = (f // LANES * rows + i0) * LANES + f % LANES
            if add:
                tile_add(R, left, K, c * stride, sums, c * c_stride + f * LANES, depth)
            else:
                tile_set(R, left, K, c * stride, sums, c * c_stride + f * LANES, depth)


@inner
def _flush(sums: Any, count: int, columns: int, out: Any) -> None:
    """out (float64) += sums."""
    small_code()
    for c in range(count):
        for f in range(columns):
            at = (c * sums.shape[1] + f) * LANES
            store(out, at, load(out, at) + widen(load(sums, at)))


@kernel
def squared_norms(F: Any, m: int, first: int, count: int, block: Any, g: Any) -> None:
    """g_i = sum_k F_ki^2, summed as every D_ij is: the distance of equal rows is exactly 0."""
    for p in range(first, first + count):
        _products(F, F, block, p * LANES, LANES, p, 1, m, False)
        for l in range(block.shape[2]):
            put(g, p * LANES + l, get(block, l * LANES + l))


@kernel
def bandwidth(
    settings: panels.Settings, kth: Any, largest: Any, n: int, scratch: Any, rows: Any, weights: Any
) -> Any:
    """`panels.bandwidth`."""
    return panels.bandwidth(settings, kth, largest, n, scratch, rows, weights)


@inner
def _nearest(G: Any, g: Any, i0: int, depth: int, first: int, count: int, k: int, best: Any) -> None:
    small_code()
    number = G.dtype.type
    two, zero, infinity = spread(number(2)), spread(number(0)), spread(number(np.inf))
    for c in range(count):
        j0, here, there = (first + c) * LANES, c * G.shape[1] * LANES, c * best.shape[1] * LANES
        gj, top = load(g, j0), load(best, there + k * LANES)
        for i in range(depth):
            d = larger(spread(get(g, i0 + i)) + gj - two * load(G, here + i * LANES), zero)
            top = larger(top, d)
            d = in_lane(i0 + i - j0, infinity, d)
            for rank in range(k):
                before = load(best, there + rank * LANES)
                store(best, there + rank * LANES, smaller(before, d))
                d = larger(before, d)
        store(best, there + k * LANES, top)


@kernel
def neighbours(
    F: Any, g: Any, m: int, k: int, first: int, count: int, start: int, stop: int, block: Any, best: Any
) -> None:
    """best (group, k + 1, LANES): the k smallest D_ij over i != j, in order, and the largest; updated."""
    for i0 in range(start, stop, BLOCK):
        depth = min(BLOCK, stop - i0)
        _products(F, F, block, i0, depth, first, count, m, False)
        _nearest(block, g, i0, depth, first, count, k, best)


@inner
def _add_degrees(
    G: Any, g: Any, minus_inverse: float, i0: int, depth: int, first: int, count: int, side: Any, degrees: Any
) -> None:
    small_code()
    number = G.dtype.type
    two, zero, scale = spread(number(2)), spread(number(0)), spread(number(minus_inverse))
    for c in range(count):
        j0, here = (first + c) * LANES, c * G.shape[1] * LANES
        gj, partial = load(g, j0), zero
        for i in range(depth):
            d = larger(spread(get(g, i0 + i)) + gj - two * load(G, here + i * LANES), zero)
            value = exp_nonpositive(d * scale)
            if i0 + i < j0 + LANES:
                value = below_lane(i0 + i - j0, value, zero)
            partial = partial + value
            store(side, i * LANES, value if c == 0 else load(side, i * LANES) + value)
        store(degrees, j0, load(degrees, j0) + widen(partial))
    for i in range(depth):
        put(degrees, i0 + i, get(degrees, i0 + i) + total(widen(load(side, i * LANES))))


@kernel
def degrees(
    F: Any, g: Any, m: int, minus_inverse: float, first: int, count: int, start: int, stop: int, block: Any,
    side: Any, sums: Any,
) -> None:  # fmt: skip
    """sums_i += K_ij and sums_j += K_ij for the pairs i > j: every pair once, for both its rows.

    side (BLOCK, LANES): work. sums (rows,) float64.
    """
    for i0 in range(start, stop, BLOCK):
        depth = min(BLOCK, stop - i0)
        here = min(count, (i0 + depth - 1) // LANES - first + 1)
        _products(F, F, block, i0, depth, first, here, m, False)
        _add_degrees(block, g, minus_inverse, i0, depth, first, here, side, sums)


@inner
def _affinity(
    G: Any, g: Any, minus_inverse: float, own: float, i0: int, depth: int, first: int, count: int
) -> None:  # fmt: skip
    """K_ij in place of G_ij, K_ii = own."""
    small_code()
    number = G.dtype.type
    two, zero, scale, diagonal = (
        spread(number(2)),
        spread(number(0)),
        spread(number(minus_inverse)),
        spread(number(own)),
    )
    for c in range(count):
        j0, here = (first + c) * LANES, c * G.shape[1] * LANES
        gj = load(g, j0)
        for i in range(depth):
            at = here + i * LANES
            d = larger(spread(get(g, i0 + i)) + gj - two * load(G, at), zero)
            store(G, at, in_lane(i0 + i - j0, diagonal, exp_nonpositive(d * scale)))


@kernel
def apply(
    F: Any, g: Any, m: int, minus_inverse: float, own: float, R: Any, columns: int, first: int, count: int, start: int,
    stop: int, block: Any, sums: Any, out: Any,
) -> None:  # fmt: skip
    """out_fj += sum_i R_if K_ij, K_ii = own.

    R (panels of columns, rows, LANES); out (group, columns, LANES) float64.
    """
    for outer in range(start, stop, FLUSH):
        end = min(stop, outer + FLUSH)
        for i0 in range(outer, end, BLOCK):
            depth = min(BLOCK, end - i0)
            _products(F, F, block, i0, depth, first, count, m, False)
            _affinity(block, g, minus_inverse, own, i0, depth, first, count)
            _weighted(block, R, i0, depth, count, columns, i0 > outer, sums)
        _flush(sums, count, columns, out)


@inner
def _slopes(
    G: Any, T: Any, g: Any, rho: Any, n: int, minus_inverse: float, i0: int, depth: int, first: int, count: int,
    half: bool, side: Any, sums: Any, weighted: Any,
) -> None:  # fmt: skip
    """C_ij = -K_ij (T_ij - rho_i - rho_j) / b where D_ij > 0, in place of T_ij."""
    small_code()
    number = G.dtype.type
    two, zero, scale = spread(number(2)), spread(number(0)), spread(number(minus_inverse))
    for c in range(count):
        j0, here = (first + c) * LANES, c * G.shape[1] * LANES
        gj, rho_j = load(g, j0), load(rho, j0)
        partial, with_d = zero, zero
        for i in range(depth):
            at = here + i * LANES
            d = larger(spread(get(g, i0 + i)) + gj - two * load(G, at), zero)
            d = in_lane(i0 + i - j0, zero, d)
            if half and i0 + i < j0 + LANES:
                d = below_lane(i0 + i - j0, d, zero)
            slope = (load(T, at) - (spread(get(rho, i0 + i)) + rho_j)) * exp_nonpositive(d * scale) * scale
            slope = where_positive(d, slope)
            partial = partial + slope
            with_d = with_d + slope * d
            store(T, at, slope)
            if half:
                store(side, i * LANES, slope if c == 0 else load(side, i * LANES) + slope)
        store(sums, j0, load(sums, j0) + widen(partial))
        store(weighted, 0, load(weighted, 0) + below_lane(n - j0, widen(with_d), spread(0.0)))
    if half:
        for i in range(depth):
            put(sums, i0 + i, get(sums, i0 + i) + total(widen(load(side, i * LANES))))


@inner
def _dots(F: Any, first: int, count: int, columns: int, sums: Any, dots: Any) -> None:
    """dots_f += sum_j sums_fj F_fj."""
    small_code()
    for c in range(count):
        for f in range(columns):
            product = load(sums, (c * sums.shape[1] + f) * LANES) * load(F, ((first + c) * F.shape[1] + f) * LANES)
            put(dots, f, get(dots, f) + total(widen(product)))


@kernel
def gradient(
    F: Any, B: Any, g: Any, rho: Any, n: int, m: int, t: int, minus_inverse: float, R: Any, columns: int, half: bool,
    first: int, count: int, start: int, stop: int, block: Any, slopes: Any, side: Any, sums: Any, by_row: Any,
    weighted: Any, dots: Any, out: Any,
) -> None:  # fmt: skip
    """The derivatives C_ij = dS/dD_ij + dS/dD_ji, and their products with the data.

    C_ij = -K_ij (T_ij - rho_i - rho_j) / b,  T_ij = sum over a + b = t - 1 of B_a,i . F_b,j + F_b,i . B_a,j

    F, B (>= t, panels, features, LANES): F_a = P^a Xt and B_a = P^a (Xt / deg); R: the first `columns` columns of Xt,
    as in `apply`. by_row_j += sum_i C_ij, weighted (LANES,) += sum of C_ij D_ij. With `half` only the pairs i > j are
    visited, which also add to by_row_i, and dots_f += sum of Xt_if C_ij Xt_jf; else out_fj += sum_i Xt_if C_ij.
    """
    nothing = spread(block.dtype.type(0))
    for outer in range(start, stop, FLUSH):
        end = min(stop, outer + FLUSH)
        for i0 in range(outer, end, BLOCK):
            depth = min(BLOCK, end - i0)
            here = min(count, (i0 + depth - 1) // LANES - first + 1) if half else count
            _products(F[0], F[0], block, i0, depth, first, here, m, False)
            for a in range(t):
                _products(B[a], F[t - 1 - a], slopes, i0, depth, first, here, m, a > 0)
                _products(F[t - 1 - a], B[a], slopes, i0, depth, first, here, m, True)
            _slopes(
                block, slopes, g, rho, n, minus_inverse, i0, depth, first, here, half, side, by_row, weighted
            )  # fmt: skip
            for row in range(here * BLOCK, count * BLOCK):
                store(slopes, row * LANES, nothing)
            _weighted(slopes, R, i0, depth, count, columns, i0 > outer, sums)
        if half:
            _dots(F[0], first, count, columns, sums, dots)
        else:
            _flush(sums, count, columns, out)
