"""What kernels take: named tuples of numbers and arrays, their shapes, and the sizes that both sides know.

No Numba here: a fit whose kernels are compiled needs no compiler (`dufs_core.kernels.native`).
"""

from __future__ import annotations

from collections import namedtuple
from typing import Any, NamedTuple

import numpy as np

LANES = 16  # numbers of a vector: one AVX-512 register of float32, two AVX2 registers
SLOTS = 16  # int64 numbers of a barrier: two cache lines, so that barriers do not share one
ABANDONED = 2  # the number of a barrier that is not 0 once a thread has failed
CHUNK = 512  # columns of noise at a time: their words and normals stay in the first-level cache
GATHERED = 512  # gated columns that are prepared at a time
NARROW = 3  # times as many rows as open columns: products with the columns cost less than with one another
APART = 8  # rows between panels of these: at 2^k bytes from each other they would fall into the same lines of a cache
PANELS = 16  # panels of columns that a thread has in hand for the products with M
PARTS, FEW_ROWS = 16, 256  # sums over the columns of G that are formed one by one, for this many rows at most
BLOCK = 128  # rows i at a time: a panel's share of K, 8 KiB in float32, stays in the first-level cache
GROUP = 16  # panels of rows j in hand: a block of rows i is read from memory once for all of them
FLUSH = 1024  # rows whose products are summed in the dtype of the data, before float64 takes over


class Settings(NamedTuple):
    """The numbers of a `dufs_core.objective.chain.Objective` that the score depends on."""

    quantile: float  # of the neighbour distances; negative: the bandwidth is bandwidth_factor itself
    n_neighbors: int
    bandwidth_factor: float
    self_weight: float  # K_ii
    isolated_degree: float  # dufs_core.objective.ops.normalise.isolated_degree
    zero_is_one: bool  # degenerate_rule == "one"
    relative: float  # dufs_core.objective.ops.bandwidth.noise_level
    absolute: float


class StepSettings(NamedTuple):
    """What whole steps need beside `Settings`: the loss, an optimiser and a schedule."""

    lam: float  # NaN: parameter-free
    delta: float
    gate_sigma: float
    rule: int  # SGD, ADAM or NORMALIZED of dufs_core.objective.rules
    learning_rate: float
    margin: float  # a gate is decided where |mu - 1/2| > 1/2 + margin
    undecided_enough: float  # stop when no more gates than this are undecided
    seed: Any  # uint64


class RunArrays(NamedTuple):
    """What moves in a run."""

    columns: Any  # (d,) uint64, positions in the data
    mu: Any  # (d,)
    first: Any  # (d,) float64, memory of the optimiser
    second: Any  # (d,) float64
    running: Any  # (1,) running mean of the squared gradient
    records: Any  # (steps, 7) in the order of rules.RECORD
    done: Any  # (1,) number of steps taken


# Work arrays; `layout` has their shapes
Shared = namedtuple("Shared", "z dz scores by_chunk dmu barriers")  # what all threads read and write
ThreadWork = namedtuple("ThreadWork", "columns packed W tile sums scratch best normals rows weights")  # for each thread


class Draw(NamedTuple):
    """What a team has for the draw in hand: matrices (panels, rows, LANES) and vectors (rows,)."""

    G: Any
    powers: Any  # (t, ...): A, A^2 .. A^t
    H: Any  # G R
    dA: Any  # becomes M
    N: Any  # H A^a; empty for t < 3
    W: Any  # (3, panels, columns, LANES): gated columns, and what A makes of them
    partial: Any  # (sums, ...) of G
    g: Any  # diagonal of G
    kth: Any  # squared distance to the k-th neighbour
    largest: Any  # largest squared distance
    q: Any  # deg^(-1/2)
    r: Any  # deg^(1/2)
    half_ddeg: Any
    row_sums: Any  # float64
    by_panel: Any  # (3, panels) float64: S, db, isolated


class Place(NamedTuple):
    """A thread's place: its number, its team, and which part of how many of the team's work is its own."""

    thread: int
    threads: int
    team: int
    part: int
    parts: int
    barrier: int  # of the team


class Work(NamedTuple):
    """What one thread works with."""

    place: Place
    shared: Any  # Shared
    draw: Draw
    mine: Any  # ThreadWork


class Layout(NamedTuple):
    """(shape, dtype) of every work array."""

    shared: Any
    draw: Draw  # for each team
    mine: Any  # for each thread


def layout(threads: int, teams: int, draws: int, d: int, n: int, dtype, power: int, k: int) -> Layout:
    """The work arrays. A team is the set of threads that share one draw: one thread, or all."""
    P = -(-n // LANES)
    rows, double, whole = P * LANES, np.float64, np.int64
    matrix, vector = (P, rows, LANES), ((rows,), dtype)
    parts = PARTS if rows <= FEW_ROWS and d > GATHERED else 0
    gathered = (P, GATHERED + APART, LANES)
    shared = Shared(
        z=((draws, d), dtype),
        dz=((draws, d), dtype),
        scores=((4, draws), double),  # S, b, whether a substitute was used, share of isolated rows
        by_chunk=((4, -(-d // CHUNK)), double),  # sum p, sum of squared gradient, open gates, undecided gates
        dmu=((d,), double),
        barriers=((1 + teams) * SLOTS, whole),
    )
    draw = Draw(
        G=(matrix, dtype),
        powers=((power, *matrix), dtype),
        H=(matrix, dtype),
        dA=(matrix, dtype),
        N=((P if power > 2 else 0, rows, LANES), dtype),
        W=((3, *gathered), dtype),
        partial=((parts, *matrix), dtype),
        g=vector,
        kth=vector,
        largest=vector,
        q=vector,
        r=vector,
        half_ddeg=vector,
        row_sums=((rows,), double),
        by_panel=((3, P), double),
    )
    mine = ThreadWork(
        columns=((2, d + LANES), whole),  # those that are open in a draw, and those that are undecided
        packed=(gathered if parts and threads > teams else (0, 0, LANES), dtype),  # its own gated columns
        W=((max(2, min(PANELS, -(-d // LANES))), rows, LANES), dtype),
        tile=((2, LANES, LANES), dtype),
        sums=((PANELS, LANES), double),
        scratch=vector,
        best=((k, LANES), dtype),
        normals=((draws + 3, CHUNK), double),
        rows=((2,), whole),
        weights=((2,), double),
    )
    return Layout(shared, draw, mine)


class Gated(NamedTuple):
    """The open columns of one draw, and the kernel that they form."""

    F: Any  # (t + 1, panels, columns, LANES): F_a = P^a Xt
    B: Any  # (t, panels, columns, LANES): B_a = P^a (Xt / deg)
    g: Any  # (rows,)
    n: int
    m: int  # open columns
    minus_inverse: float  # -1 / b
    self_weight: float  # K_ii


class Span(NamedTuple):
    """The pairs of a call."""

    first: int  # panel of rows j
    size: int  # panels
    start: int  # row i
    stop: int


class ThreadBlocks(NamedTuple):
    """What every thread of the streaming form has for itself."""

    block: Any  # (group, BLOCK, LANES)
    slopes: Any  # (group, BLOCK, LANES)
    side: Any  # (BLOCK, LANES)
    sums: Any  # (group, 2 columns, LANES)
    out: Any  # (group, 2 columns, LANES) float64
    best: Any  # (group, k + 1, LANES)


class Columns(NamedTuple):
    """Sparse columns (CSC, rows of a column in ascending order)."""

    values: Any  # (nnz,)
    indices: Any  # (nnz,) int32
    indptr: Any  # (d + 1,) int64
    shift: Any  # (d,) float64, m
