"""Gram matrix and quadratic forms of sparse columns; what lies between them is `dufs_core.kernels.steps`.

A column counts as sparse or as dense (`dufs_core.data.sparse`). Sparse columns are scattered: sum_k nnz_k^2 / 2
additions, on the columns as they are, whose centring is a correction of the sums:

    G_c = G - a 1' - 1 a' + c 1 1',   a = sum_k z_k^2 m_k x_k,   c = sum_k z_k^2 m_k^2
    (x - m 1)' M (x - m 1) = x' M x - 2 m x' (M 1) + m^2 1' M 1

Dense columns hold centred values and are written out, -m where nothing is stored, some hundred at a time, for the
products of `dufs_core.kernels.panels`. As there, threads write in places of their own and add up in an order that does
not depend on their number.
"""

from __future__ import annotations

from math import sqrt

from dufs_core.kernels import panels
from dufs_core.kernels.arrays import GATHERED, LANES, SLOTS, Columns, Work
from dufs_core.kernels.barrier import wait_for_all
from dufs_core.kernels.compile import inner, kernel
from dufs_core.kernels.panels import share
from dufs_core.kernels.tile import ROWS
from dufs_core.kernels.vector import constant, get, put, small_code, store


@inner
def _lower_share(count, part, parts):
    """The columns [start, stop) of a lower triangle of `count` columns that hold 1 / parts of it."""
    return count - int(count * sqrt((parts - part) / parts)), count - int(count * sqrt((parts - part - 1) / parts))


@kernel
def gram(X: Columns, z, sparse, dense, n, work: Work):
    """G, in the work of the one team, = sum over the listed columns of z_k^2 x_k x_k', x_k centred.

    z (d,); sparse, dense: positions of columns, int64. The work for row sums and for gathered columns is used.
    """
    small_code()
    G, W, a, barriers = work.draw.G, work.draw.W, work.draw.row_sums, work.shared.barriers
    part, parts = work.place.part, work.place.parts
    P, rows, lanes = G.shape
    number = G.dtype.type
    start, stop = _lower_share(P, part, parts)
    low, high = start * LANES, min(n, stop * LANES)
    for p in range(start, stop):
        for i in range(rows):
            store(G, (p * rows + i) * LANES, constant(G, 0.0))
    for j in range(low, high):
        a[j] = 0.0
    c = 0.0
    for k in sparse:
        gate, last, m = z[k], X.indptr[k + 1], X.shift[k]
        square = float(gate) * float(gate)
        c += square * m * m
        for s in range(X.indptr[k], last):
            j = X.indices[s]
            if j >= high:
                break
            if j >= low:
                value = gate * X.values[s]
                a[j] += square * m * X.values[s]
                column = j // LANES * rows * LANES + j % LANES
                for t in range(s, last):
                    at = column + X.indices[t] * LANES
                    put(G, at, get(G, at) + value * (gate * X.values[t]))
    wait_for_all(barriers, SLOTS, parts)
    for p in range(start, stop):
        for i in range(p * lanes, n):
            for l in range(min(lanes, i - p * lanes + 1)):
                at, j = (p * rows + i) * lanes + l, p * lanes + l
                value = number(get(G, at) - (a[i] + a[j] - c))
                put(G, at, value)
                if i < (p + 1) * lanes:  # products take the panels on the diagonal whole
                    put(G, (p * rows + j) * lanes + i - p * lanes, value)
    wait_for_all(barriers, SLOTS, parts)

    chunks = max(1, (len(dense) + GATHERED - 1) // GATHERED)  # none: what is left to do is to copy the lower panels
    for chunk in range(chunks):
        first = chunk * GATHERED
        count = min(GATHERED, len(dense) - first)
        packed = W[chunk % 2]  # the others may still read the other one
        mine_from, mine_to = share(count, part, parts)
        for r in range(mine_from, mine_to):
            k = dense[first + r]
            _write_out(X, k, z[k], n, packed, r * LANES, W.shape[2] * LANES, LANES, 1)
        wait_for_all(barriers, SLOTS, parts)
        panels.symmetric_product(packed, packed, G, n, count, False, True, chunk == chunks - 1, part, parts)
    wait_for_all(barriers, SLOTS, parts)


@inner
def _write_out(X, k, gate, n, out, first, panel, lanes, lane):
    """gate * x_k into out: row i at first + i // lanes * panel + i % lanes * lane; zeros to the end of its lanes."""
    small_code()
    number = out.dtype.type
    fill = gate * number(-X.shift[k])
    for i in range(n):
        put(out, first + i // lanes * panel + i % lanes * lane, fill)
    for i in range(n, (n + lanes - 1) // lanes * lanes):
        put(out, first + i // lanes * panel + i % lanes * lane, number(0))
    for s in range(X.indptr[k], X.indptr[k + 1]):
        i = X.indices[s]
        put(out, first + i // lanes * panel + i % lanes * lane, gate * X.values[s])


@kernel
def dots(X: Columns, z, sparse, dense, cuts, n, work: Work, dz):
    """dz_k = 2 z_k x_k' M x_k for the listed columns, x_k centred, from M with its tiles on the diagonal halved.

    sparse[cuts[part]:cuts[part + 1]] and a share of `dense` are this thread's.
    """
    small_code()
    M, M1, barriers = work.draw.dA, work.draw.row_sums, work.shared.barriers
    W, tile, sums = work.mine.W, work.mine.tile, work.mine.sums
    part, parts = work.place.part, work.place.parts
    _, rows, lanes = M.shape
    start, stop = share(n, part, parts)
    for j in range(start, stop):
        total = 0.0
        first = j // ROWS * ROWS
        at = j // lanes * rows * lanes + j % lanes
        for i in range(n):
            total += get(M, at + i * lanes)
        for i in range(first, min(n, first + ROWS)):
            total += get(M, at + i * lanes)
        M1[j] = total
    wait_for_all(barriers, SLOTS, parts)
    whole = 0.0
    for j in range(n):
        whole += M1[j]

    for k in sparse[cuts[part] : cuts[part + 1]]:
        begin, end, m = X.indptr[k], X.indptr[k + 1], X.shift[k]
        form = linear = 0.0
        for s in range(begin, end):
            i = X.indices[s]
            limit = (i // ROWS + 1) * ROWS
            row = 0.0
            for t in range(begin, end):
                j = X.indices[t]
                if j >= limit:
                    break
                row += X.values[t] * get(M, (j // lanes * rows + i) * lanes + j % lanes)
            form += X.values[s] * row
            linear += X.values[s] * M1[i]
        dz[k] = 2 * z[k] * (2 * form - 2 * m * linear + m * m * whole)

    start, stop = share((len(dense) + lanes - 1) // lanes, part, parts)
    group = W.shape[0]
    for first in range(start, stop, group):
        count = min(group, stop - first)
        in_hand = min(count * lanes, len(dense) - first * lanes)
        for c in range(in_hand):
            k = dense[first * lanes + c]
            _write_out(X, k, M.dtype.type(1), n, W, c // lanes * rows * lanes + c % lanes, 0, rows, lanes)
        panels.quadratic_forms(M, W, count, n, tile, sums)
        for c in range(in_hand):
            k = dense[first * lanes + c]
            dz[k] = 4 * z[k] * get(sums, c)
