"""The Gram form of one draw in compiled code: products by tiles, and fused passes over n x n between them.

Matrices are held in panels, (panels, rows, LANES) (`dufs_core.kernels.tile`); rows and lanes beyond n are padding
that no sum over rows ever reads. Every function does one thread's share of the work (`part` of `parts`), writes
nothing that another one writes, and adds up in an order that does not depend on `parts`: any number of threads
gives the same bits. All matrices are symmetric, so a sum over a row is a sum over a column: it runs down a panel, in
LANES columns at once. Equations: `dufs_core.objective.ops`.

    gather, symmetric_product  z, X -> G          neighbours  G -> k-th neighbours    affinity  G -> K, degrees
    symmetrise  K, G -> A, H                      symmetric_product  -> A^t, dA       row_terms -> S, d(degrees)
    backward, finish  everything -> M             column_dots  x_k' M x_k

Of few open columns, t = 2, two products with Xt take the place of A^2 and dA, 4 n^2 a column instead of 1.5 n^3:

    walked  A, z, X -> A R Xt, A Q Xt             product  -> A H               narrow_terms, add_transpose,
    narrow_degrees  A H -> S, dA, d(degrees)
"""

from __future__ import annotations

import numpy as np

from dufs_core.kernels.arrays import LANES, Draw, Settings
from dufs_core.kernels.compile import inner
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
    load_below,
    put,
    slope_of,
    small_code,
    smaller,
    spread,
    store,
    total,
    transpose,
    transpose_tile,
    where_positive,
    widen,
)
from dufs_core.objective import rules

DEPTH = 128  # rows at a time of sums that float64 takes over, and of forms: a panel's share of them is 8 KiB
_RUN = 256  # rows of a factor that a product works on at a time
_BLOCK = 16  # panels of L whose rows stay in the second-level cache while R moves on


@inner
def share(count, part, parts):
    """The range [start, stop) of 0..count that belongs to `part`."""
    return count * part // parts, count * (part + 1) // parts


@inner
def symmetric_product(L, R, C, n, length, twice, add, mirror, part, parts):
    """C (+)= sum over k < length of L_k' R_k, or with `twice` L_k' R_k + R_k' L_k, where that is symmetric.

    L, R (panels, >= length, LANES), C (panels, >= n, LANES). The lower panels are computed; `mirror` copies them to
    the upper ones.
    """
    small_code()
    P, lanes = C.shape[0], C.shape[2]  # LANES, but a constant would be unrolled into pages of machine code
    pairs = (P + 1) // 2
    start, stop = share(pairs * (P - pairs + 1), part, parts)
    l, c = L.shape[1] * LANES, C.shape[1] * LANES
    for k in range(0, max(length, 1), _RUN):  # length 0: C = 0
        depth = min(_RUN, length - k)
        unit = 0
        for block in range(0, P, _BLOCK):
            end = min(P, block + _BLOCK)
            for p in range(0, end, 2):
                for q in range(max(p, block), end):
                    if start <= unit and unit < stop:
                        right, left, here = p * l + k * LANES, q * l + k * LANES, p * c + q * LANES * LANES
                        two = q > p
                        adds = add or k > 0
                        for i in range(0, min(lanes, n - q * LANES), ROWS):
                            tile(L, left + i, R, right, C, here + i * LANES, depth, two, adds)
                            if twice:
                                tile(R, left + i, L, right, C, here + i * LANES, depth, two, True)
                        if mirror and k + depth == length:
                            for first in range(p, p + 1 + two):
                                here, there = first * c + q * LANES * LANES, q * c + first * LANES * LANES
                                for i in range(lanes):
                                    for j in range(lanes):
                                        put(C, there + j * LANES + i, get(C, here + i * LANES + j))
                    unit += 1


@inner
def product(L, R, C, length, add, part, parts):
    """C (+)= sum over k < length of L_k' R_k."""
    small_code()
    P, lanes = C.shape[0], C.shape[2]
    start, stop = share(P, part, parts)
    l, c = L.shape[1] * LANES, C.shape[1] * LANES
    for k in range(0, max(length, 1), _RUN):  # length 0: C = 0
        depth = min(_RUN, length - k)
        for block in range(0, P, _BLOCK):
            for p in range(start, stop, 2):
                for q in range(block, min(P, block + _BLOCK)):
                    right, left, here = p * l + k * LANES, q * l + k * LANES, p * c + q * LANES * LANES
                    adds = add or k > 0
                    for i in range(0, lanes, ROWS):
                        tile(L, left + i, R, right, C, here + i * LANES, depth, p + 1 < stop, adds)


@inner
def gather(X, z, columns, first, count, W, part, parts):
    """W (panels, rows, LANES): row k < count holds z_a x_a of the column a = columns[first + k]; zeros beyond n.

    X (d, n); z (d,).
    """
    small_code()
    n, P, rows = X.shape[1], W.shape[0], W.shape[1]
    start, stop = share(count, part, parts)
    for k in range(start, stop):
        a = get(columns, first + k)
        x, gate = a * n, spread(get(z, a))
        for p in range(P):
            store(W, (p * rows + k) * LANES, load_below(X, x + p * LANES, n - p * LANES) * gate)


@inner
def add_up(partial, count, C, part, parts):
    """C = partial[0] + ... + partial[count - 1], in this order: lower panels are read, both halves of C are written."""
    small_code()
    P, rows, lanes = C.shape
    start, stop = share(P * (P + 1) // 2, part, parts)
    unit = 0
    for p in range(P):
        for q in range(p, P):
            if start <= unit and unit < stop:
                for i in range(q * lanes, (q + 1) * lanes):
                    value = load(partial, (p * rows + i) * LANES)
                    for c in range(1, count):
                        value = value + load(partial, ((c * P + p) * rows + i) * LANES)
                    store(C, (p * rows + i) * LANES, value)
                    for l in range(lanes):
                        put(C, (q * rows + p * lanes + l) * LANES + i - q * lanes, get(C, (p * rows + i) * LANES + l))
            unit += 1


@inner
def diagonal(G, n, g):
    """g_i = G_ii."""
    small_code()
    for i in range(n):
        put(g, i, get(G, (i // LANES * G.shape[1] + i) * LANES + i % LANES))


@inner
def neighbours(draw: Draw, n, k, best, part, parts):
    """kth_j, the k-th smallest D_ij over i != j, and largest_j = max_i D_ij.

    best (k, LANES): work.
    """
    small_code()
    G, g = draw.G, draw.g
    start, stop = share(G.shape[0], part, parts)
    infinity = constant(G, np.inf)
    for p in range(start, stop):
        gj, here = load(g, p * LANES), p * G.shape[1] * LANES
        largest, last = constant(G, 0.0), infinity
        for m in range(k):
            store(best, m * LANES, infinity)
        for i in range(n):
            d = distance(spread(get(g, i)), gj, load(G, here + i * LANES))
            largest = larger(largest, d)
            d = in_lane(i - p * LANES, infinity, d)
            for m in range(k - 1):
                before = load(best, m * LANES)
                store(best, m * LANES, smaller(before, d))
                d = larger(before, d)
            last = smaller(last, d)
        store(draw.kth, p * LANES, last)
        store(draw.largest, p * LANES, largest)


@inner
def _smallest(values, n, rank):
    """The value of rank `rank` (from 0) among get(values, :n), which are put in another order (Hoare's selection)."""
    small_code()
    low, high = 0, n - 1
    while low < high:
        pivot = get(values, (low + high) // 2)
        i, j = low, high
        while i <= j:
            while get(values, i) < pivot:
                i += 1
            while pivot < get(values, j):
                j -= 1
            if i <= j:
                kept = get(values, i)
                put(values, i, get(values, j))
                put(values, j, kept)
                i += 1
                j -= 1
        if rank <= j:
            high = j
        elif rank >= i:
            low = i
        else:
            break
    return get(values, rank)


@inner
def bandwidth(settings: Settings, kth, largest, n, scratch, rows, weights):
    """b, and whether a substitute was used; rows and weights (2,) say where b was read from (ops.bandwidth)."""
    small_code()
    low, high, upper = rules.quantile_ranks(settings.quantile, n)
    weights[0], weights[1] = 1 - upper, upper
    s = top = 0.0
    for source in range(2):
        rank = low if source == 0 else high
        for i in range(n):
            put(scratch, i, get(kth, i))
        value = _smallest(scratch, n, rank)
        equal = rank  # a stable sort puts equal values in the order of their rows
        for i in range(n):
            equal -= get(kth, i) < value
        for i in range(n):
            if get(kth, i) == value:
                if equal == 0:
                    rows[source] = i
                equal -= 1
        s += np.float64(value) * weights[source]
    for i in range(n):
        top = max(top, np.float64(get(largest, i)))
    degenerate = False
    if settings.zero_is_one:
        if s < rules.AUTHORS_ZERO:
            degenerate, s = True, 1.0
            weights[0] = weights[1] = 0
    else:
        tiny = max(top * settings.relative, settings.absolute)
        if s <= tiny:
            degenerate, s = top > 0, np.inf
            weights[0] = weights[1] = 0
            for i in range(n):
                if get(kth, i) > tiny and get(kth, i) < s:
                    s = np.float64(get(kth, i))
                    weights[0] = 1
                    rows[0] = i
            if s == np.inf:
                s = tiny if top > 0 else 1.0
    weights[0] *= settings.bandwidth_factor
    weights[1] *= settings.bandwidth_factor
    return s * settings.bandwidth_factor, degenerate


@inner
def affinity(settings: Settings, draw: Draw, n, b, part, parts):
    """K_ij = exp(-D_ij / b) in place of A, K_ii = self_weight, q_j = deg_j^(-1/2), r_j = 1 / q_j; isolated rows."""
    small_code()
    G, g, K = draw.G, draw.g, draw.powers[0]
    start, stop = share(G.shape[0], part, parts)
    number = G.dtype.type
    diagonal, minus_inverse = constant(G, settings.self_weight), constant(G, _minus_inverse(G, b))
    for p in range(start, stop):
        gj, here, deg = load(g, p * LANES), p * G.shape[1] * LANES, spread(0.0)
        for block in range(0, n, DEPTH):
            partial = constant(G, 0.0)
            for i in range(block, min(n, block + DEPTH)):
                d = distance(spread(get(g, i)), gj, load(G, here + i * LANES))
                value = in_lane(i - p * LANES, diagonal, affinity_of(d * minus_inverse))
                store(K, here + i * LANES, value)
                partial = partial + value
            deg = deg + widen(partial)
        isolated = 0
        for l in range(K.shape[2]):
            j = p * LANES + l
            degree = total(in_lane(l, deg, spread(0.0)))
            scale = number(1 / np.sqrt(degree))
            put(draw.q, j, scale if j < n else number(0))
            put(draw.r, j, number(1) / scale if j < n else number(0))  # not sqrt(deg): the rounding of q then cancels
            isolated += j < n and degree <= settings.isolated_degree
        draw.by_panel[2, p] = isolated


@inner
def _minus_inverse(G, b):
    """-1 / b, as far as it can be represented."""
    return max(-1.0 / b, -np.float64(np.finfo(G.dtype).max))


@inner
def symmetrise(draw: Draw, n, with_H, part, parts):
    """A_ij = q_i K_ij q_j, in place of K, and where it is wanted H = G R;  R_ij = (r_i q_j + q_i r_j) / 2."""
    small_code()
    K, q, r = draw.powers[0], draw.q, draw.r
    start, stop = share(K.shape[0], part, parts)
    half = K.dtype.type(0.5)
    for p in range(start, stop):
        qj, rj, here = load(q, p * LANES), load(r, p * LANES), p * K.shape[1] * LANES
        for i in range(n):
            at = here + i * LANES
            store(K, at, load(K, at) * (spread(get(q, i)) * qj))
            if with_H:
                R = spread(half * get(r, i)) * qj + spread(half * get(q, i)) * rj
                store(draw.H, at, load(draw.G, at) * R)


@inner
def walked(X, z, columns, first, count, draw: Draw, T, Fu, Fv, gates, dz, part, parts):
    """Fu = A R Xt and Fv = A Q Xt for `count` open columns, from columns[first] on, and dz_k = 2 S_k / z_k.

    Q, R = diag(q), diag(r); S_k = fu_k' fv_k is what column k contributes to S. Fu, Fv (panels, k, LANES). `columns`
    goes on with any column to a multiple of LANES. T (panels, rows, LANES) and gates (LANES,): work.
    """
    small_code()
    n, A, P = X.shape[1], draw.powers[0], draw.G.shape[0]
    start, stop = share((count + LANES - 1) // LANES, part, parts)
    group, t, a, f = T.shape[0] // 2, T.shape[1] * LANES, A.shape[1] * LANES, Fu.shape[1] * LANES
    for held in range(start, stop, group):
        in_hand = min(group, stop - held)
        for p in range(in_hand):
            listed, here, there = first + (held + p) * LANES, p * t, (group + p) * t
            for lane in range(T.shape[2]):
                put(gates, lane, get(z, get(columns, listed + lane)))
            for i in range(0, n, LANES):
                transpose(X, columns, listed, i, T, here + i * LANES)
            for i in range(n):
                x = load(T, here + i * LANES) * load(gates, 0)
                store(T, here + i * LANES, x * spread(get(draw.r, i)))
                store(T, there + i * LANES, x * spread(get(draw.q, i)))
        for i in range(0, n, _RUN):
            depth = min(_RUN, n - i)
            for j in range(0, P, 2):
                for p in range(in_hand):
                    for row in range(0, T.shape[2], ROWS):
                        left, right = p * t + i * LANES + row, j * a + i * LANES
                        out = j * f + ((held + p) * LANES + row) * LANES
                        tile(T, left, A, right, Fu, out, depth, j + 1 < P, i > 0)
                        tile(T, left + group * t, A, right, Fv, out, depth, j + 1 < P, i > 0)
        for c in range(held * LANES, min(count, (held + in_hand) * LANES)):
            gate = get(z, get(columns, first + c))
            if gate < 1:
                S = spread(0.0)
                for j in range(P):
                    S = S + widen(load(Fu, j * f + c * LANES) * load(Fv, j * f + c * LANES))
                put(dz, get(columns, first + c), X.dtype.type(2 * total(S) / gate))


@inner
def narrow_terms(draw: Draw, E1, E2, n, part, parts):
    """S, and dA but for its transpose, from E1 = Fu Xt' and E2 = Fv Xt', which are scaled to E1 Q and E2 R here.

    dA = (E1 + E1' + E2 + E2') / 2, and half_ddeg_j begins with q_j^2 sum_i A_ij (E2_ij - E1_ij) / 4. E2, which is in
    the place of A^t, becomes 0: what M takes from it came with dz of `walked`.
    """
    small_code()
    A, dA, q, r = draw.powers[0], draw.dA, draw.q, draw.r
    start, stop = share(A.shape[0], part, parts)
    zero, half = constant(A, 0.0), constant(A, 0.5)
    for p in range(start, stop):
        here, qj, rj = p * A.shape[1] * LANES, load(q, p * LANES), load(r, p * LANES)
        first, second = spread(0.0), spread(0.0)
        for block in range(0, n, DEPTH):
            part_1, part_2 = zero, zero
            for i in range(block, min(n, block + DEPTH)):
                at = here + i * LANES
                one, two, a = load(E1, at) * qj, load(E2, at) * rj, load(A, at)
                part_1 = part_1 + a * one
                part_2 = part_2 + a * two
                store(dA, at, half * (one + two))
                store(E2, at, zero)
            first, second = first + widen(part_1), second + widen(part_2)
        for i in range(n, A.shape[1]):
            store(dA, here + i * LANES, zero)
        draw.by_panel[0, p] = total(below_lane(n - p * LANES, first, spread(0.0)))
        value = spread(0.25) * widen(qj) * widen(qj) * (second - first)
        for l in range(A.shape[2]):
            put(draw.half_ddeg, p * LANES + l, A.dtype.type(total(in_lane(l, value, spread(0.0)))))


@inner
def add_transpose(dA, work, part, parts):
    """dA + dA', in place of dA. work (LANES, LANES)."""
    small_code()
    P, stride = dA.shape[0], dA.shape[1]
    start, stop = share(P * (P + 1) // 2, part, parts)
    unit = 0
    for p in range(P):
        for q in range(p, P):
            if start <= unit and unit < stop:
                here, there = (p * stride + q * LANES) * LANES, (q * stride + p * LANES) * LANES
                transpose_tile(dA, there, work, 0)
                for i in range(0, dA.shape[2] * LANES, LANES):
                    value = load(dA, here + i) + load(work, i)
                    store(work, i, value)
                    store(dA, here + i, value)
                transpose_tile(work, 0, dA, there)
            unit += 1


@inner
def narrow_degrees(draw: Draw, n, part, parts):
    """Subtract q_j^2 sum_i dA_ij A_ij / 2 from half_ddeg_j."""
    small_code()
    A, dA = draw.powers[0], draw.dA
    start, stop = share(A.shape[0], part, parts)
    for p in range(start, stop):
        here, q, C = p * A.shape[1] * LANES, widen(load(draw.q, p * LANES)), spread(0.0)
        for block in range(0, n, DEPTH):
            partial = constant(A, 0.0)
            for i in range(block, min(n, block + DEPTH)):
                partial = partial + load(dA, here + i * LANES) * load(A, here + i * LANES)
            C = C + widen(partial)
        value = spread(0.5) * q * q * C
        for l in range(A.shape[2]):
            j = p * LANES + l
            put(draw.half_ddeg, j, A.dtype.type(get(draw.half_ddeg, j) - total(in_lane(l, value, spread(0.0)))))


@inner
def row_terms(draw: Draw, n, part, parts):
    """Parts of S, and half the derivative through the degrees; W = A^t G elementwise.

    half_ddeg_j = (q_j (W q)_j - q_j^3 (W r)_j) / 4 - q_j^2 sum_i dA_ij A_ij / 2.
    """
    small_code()
    A, At, dA, G, q, r = draw.powers[0], draw.powers[-1], draw.dA, draw.G, draw.q, draw.r
    start, stop = share(A.shape[0], part, parts)
    zero, half, quarter = constant(A, 0.0), spread(0.5), spread(0.25)
    for p in range(start, stop):
        here, wide = p * A.shape[1] * LANES, widen(load(q, p * LANES))
        Wq, Wr, C = spread(0.0), spread(0.0), spread(0.0)
        for block in range(0, n, DEPTH):
            part_q, part_r, part_C = zero, zero, zero
            for i in range(block, min(n, block + DEPTH)):
                at = here + i * LANES
                W = load(At, at) * load(G, at)
                part_q = part_q + W * spread(get(q, i))
                part_r = part_r + W * spread(get(r, i))
                part_C = part_C + load(dA, at) * load(A, at)
            Wq, Wr, C = Wq + widen(part_q), Wr + widen(part_r), C + widen(part_C)
        draw.by_panel[0, p] = total(below_lane(n - p * LANES, Wr * wide, spread(0.0)))
        value = quarter * wide * (Wq - wide * wide * Wr) - half * wide * wide * C
        for l in range(A.shape[2]):
            put(draw.half_ddeg, p * LANES + l, A.dtype.type(total(in_lane(l, value, spread(0.0)))))


@inner
def backward(draw: Draw, n, b, part, parts):
    """M but for its diagonal and the bandwidth's entries, in place of dA, and parts of db, sum of E D / b.

    K_ij = A_ij r_i r_j,  E = (q_i dA_ij q_j + half_ddeg_i + half_ddeg_j) K_ij where D > 0,  dD = -E / b,
    M = A^t R - 2 dD,  row_sums_j (float64) = sum_i dD_ij.
    """
    small_code()
    A, At, dA, G = draw.powers[0], draw.powers[-1], draw.dA, draw.G
    g, q, r, half_ddeg = draw.g, draw.q, draw.r, draw.half_ddeg
    start, stop = share(A.shape[0], part, parts)
    half, two, zero = A.dtype.type(0.5), constant(A, 2.0), constant(A, 0.0)
    minus_inverse = constant(G, _minus_inverse(G, b))
    for p in range(start, stop):
        j0, here = p * LANES, p * A.shape[1] * LANES
        qj, rj, gj, ddeg_j = load(q, j0), load(r, j0), load(g, j0), load(half_ddeg, j0)
        sums, weighted = spread(0.0), spread(0.0)
        for block in range(0, n, DEPTH):
            part_sums, part_weighted = zero, zero
            for i in range(block, min(n, block + DEPTH)):
                at = here + i * LANES
                d = in_lane(i - j0, zero, distance(spread(get(g, i)), gj, load(G, at)))
                K = load(A, at) * (spread(get(r, i)) * rj)
                E = (load(dA, at) * (spread(get(q, i)) * qj) + (spread(get(half_ddeg, i)) + ddeg_j)) * slope_of(K)
                dD = where_positive(d, E * minus_inverse)
                part_sums = part_sums + dD
                part_weighted = part_weighted - dD * d
                R = spread(half * get(r, i)) * qj + spread(half * get(q, i)) * rj
                store(dA, at, load(At, at) * R - two * dD)
            sums, weighted = sums + widen(part_sums), weighted + widen(part_weighted)
        store(draw.row_sums, j0, sums)
        draw.by_panel[1, p] = total(below_lane(n - j0, weighted, spread(0.0)))


@inner
def finish(draw: Draw, n, rows, weights, db, part, parts):
    """Add the bandwidth's share to the entries of M that b was read from, and 2 row sums of dD to the diagonal.

    rows, weights (2,) as `bandwidth` gave them (weights 0: b is a constant); db = dS/db. In the end the tiles on the
    diagonal are multiplied by 1/2: x' M x = 2 x' L x with L the lower tiles.
    """
    small_code()
    M, G, g = draw.dA, draw.G, draw.g
    start, stop = share(M.shape[0], part, parts)
    number, stride = M.dtype.type, M.shape[1]
    two, zero = number(2), number(0)
    for j in range(start * LANES, min(n, stop * LANES)):
        at = (j // LANES * stride + j) * LANES + j % LANES
        put(M, at, number(get(M, at) + 2 * get(draw.row_sums, j)))
    for source in range(2):
        if weights[source] == 0:
            continue
        i = rows[source]
        best, j = np.inf, 0
        for c in range(n):  # the neighbour at that distance, not the row itself
            D = max(get(g, i) + get(g, c) - two * get(G, (c // LANES * stride + i) * LANES + c % LANES), zero)
            gap = abs(np.float64(D) - get(draw.kth, i))
            if c != i and gap < best:
                best, j = gap, c
        value = number(db * weights[source])
        for _ in range(2):
            here = i // LANES * stride * LANES + i % LANES
            if start <= i // LANES and i // LANES < stop:
                entry, on_diagonal = here + j * LANES, here + i * LANES
                put(M, entry, get(M, entry) - value)
                put(M, on_diagonal, get(M, on_diagonal) + value)
            i, j = j, i
    halve_tiles(M, start, stop)


@inner
def halve_tiles(M, start, stop):
    """Multiply the tiles on the diagonal of the panels [start, stop) of M by 1/2."""
    stride, half = M.shape[1], constant(M, 0.5)
    for p in range(start, stop):
        for i in range(M.shape[2]):
            at, first = (p * stride + p * LANES + i) * LANES, i // ROWS * ROWS
            row = load(M, at)
            store(M, at, below_lane(first, row, below_lane(first + ROWS, row * half, row)))


@inner
def quadratic_forms(M, W, count, n, work, sums):
    """sums (panels, LANES) = x' L x for the columns x of the first `count` panels of W, L the halved lower tiles of M.

    W (panels, rows, LANES); work (2, LANES, LANES).
    """
    small_code()
    rows, m = W.shape[1] * LANES, M.shape[1] * LANES
    for p in range(count):
        store(sums, p * LANES, spread(0.0))
    for j in range(0, n, DEPTH):
        for i in range(j, n, ROWS):
            left, height = (i // LANES * m + j * LANES) + i % LANES, min(ROWS, n - i)
            depth = min(DEPTH, min(i + ROWS, n) - j)
            for first in range(0, count, 2):
                stop = min(count, first + 2)
                tile(M, left, W, first * rows + j * LANES, work, 0, depth, first + 1 < stop, False)
                for p in range(first, stop):
                    dots = constant(M, 0.0)
                    for h in range(height):
                        dots = dots + load(work, ((p - first) * work.shape[1] + h) * LANES) * load(
                            W, p * rows + (i + h) * LANES
                        )
                    store(sums, p * LANES, load(sums, p * LANES) + widen(dots))


@inner
def column_dots(X, z, columns, count, M, W, work, sums, dz, part, parts):
    """dz_k += 2 z_k x_k' M x_k for the columns k in columns[:count], from the halved lower tiles of M.

    `columns` goes on with any column to a multiple of LANES. X (d, n); W (panels, rows, LANES) work for the columns in
    hand, LANES of them in a panel; work (2, LANES, LANES) and sums (panels, LANES) are work, too.
    """
    small_code()
    n, group = X.shape[1], W.shape[0]
    start, stop = share((count + LANES - 1) // LANES, part, parts)
    rows = W.shape[1] * LANES
    for first in range(start, stop, group):
        in_hand = min(group, stop - first)
        for p in range(in_hand):
            for i in range(0, n, LANES):
                transpose(X, columns, (first + p) * LANES, i, W, p * rows + i * LANES)
        quadratic_forms(M, W, in_hand, n, work, sums)
        for c in range(min(in_hand * LANES, count - first * LANES)):
            k = get(columns, first * LANES + c)
            put(dz, k, M.dtype.type(get(dz, k) + 4 * get(z, k) * get(sums, c)))
