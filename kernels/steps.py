"""Whole steps in compiled code: noise, gates, scores and gradients of all draws, loss, update, stopping.

`run` is called by every thread of a fit at once, with its own `thread` number; the threads meet at barriers. With a
team for each thread every thread computes draws of its own; with one team all threads share each draw.
"""

from __future__ import annotations

from math import erf, pi, sqrt
from typing import Any, NamedTuple

import numpy as np
from numba import types

from dufs_core.kernels import panels
from dufs_core.kernels.compile import inlined, kernel, returning
from dufs_core.kernels.noise import CHUNK, gate_normals
from dufs_core.kernels.panels import GATHERED, share
from dufs_core.kernels.team import SLOTS, wait_for_all
from dufs_core.kernels.vector import LANES, load, small_code, spread, store

PARTS, FEW_ROWS = 16, 256  # sums over the columns of G that are formed one by one, for this many rows at most
SGD, ADAM, NORMALIZED = 0, 1, 2  # the rules of dufs_core.training.optimizers
_DECAY, _BETA1, _BETA2, _EPSILON = 0.9, 0.9, 0.999, 1e-8
_ROOT_2, _DENSITY = sqrt(2), 1 / sqrt(2 * pi)


class Settings(NamedTuple):
    """The numbers of a `dufs_core.objective.chain.Objective`, an optimiser and a schedule."""

    lam: float  # NaN: parameter-free
    delta: float
    gate_sigma: float
    quantile: float  # of the neighbour distances; negative: the bandwidth is bandwidth_factor itself
    n_neighbors: int
    bandwidth_factor: float
    bandwidth_gradient: bool
    self_weight: float  # K_ii
    lone_degree: float  # dufs_core.objective.ops.normalise.lone_degree
    zero_is_one: bool
    relative: float  # dufs_core.objective.ops.bandwidth.noise_level
    absolute: float
    per_row: bool  # one gate per row and column
    only_scores: bool  # of the gates in Shared.z: one pass, no step
    given: bool  # G of the one draw lies in the work of the one team, and M is left there: X is not read
    rule: int
    learning_rate: float
    momentum: float
    margin: float  # a gate is decided where |mu - 1/2| > 1/2 + margin
    undecided_enough: float  # stop when no more gates than this are undecided
    seed: int


class TeamWork(NamedTuple):
    """Matrices of one draw, in panels; one set for each team."""

    G: Any  # (teams, panels, rows, LANES)
    powers: Any  # (teams, t, ...): A, A^2 .. A^t
    H: Any
    dA: Any  # becomes M
    N: Any  # H A^a; empty for t < 3
    W: Any  # (at least threads and 2 teams, panels, GATHERED, LANES)
    partial: Any  # (teams, PARTS, panels, rows, LANES); none where n > FEW_ROWS
    vectors: Any  # (teams, 6, rows): g, kth, largest, q, r, half_ddeg
    row_sums: Any  # (teams, rows) float64
    by_panel: Any  # (teams, 3, panels) float64: S, db, isolated


class ThreadWork(NamedTuple):
    """What every thread has for itself."""

    active: Any  # (threads, 2, d + LANES): columns with z > 0, and those whose gate is undecided
    W: Any  # (threads, group, rows, LANES)
    tile: Any  # (threads, 1, ROWS, LANES)
    sums: Any  # (threads, group, LANES) float64
    scratch: Any  # (threads, n)
    best: Any  # (threads, n_neighbors, LANES)
    normals: Any  # (threads, draws + 3, CHUNK) float64
    rows: Any  # (threads, 2) int
    weights: Any  # (threads, 2)


class Shared(NamedTuple):
    """What all threads read and write."""

    z: Any  # (draws, d, 1), or (draws, d, n) with one gate per row
    dz: Any  # likewise
    scores: Any  # (4, draws): S, b, whether a substitute was used, share of isolated rows
    by_chunk: Any  # (4, chunks): sum p, sum of squared gradient, open gates, undecided gates
    dmu: Any  # (d,) float64
    barriers: Any  # (1 + teams) * SLOTS int64


@returning(lambda z, active: types.UniTuple(types.int64, 2))
def _listed(z: Any, active: Any) -> Any:
    """The columns with a gate above 0, those with one inside (0, 1), and their numbers."""
    n_active = n_open = 0
    for k in range(z.shape[0]):
        nonzero = inside = False
        for i in range(z.shape[1]):
            value = z[k, i]
            nonzero |= value > 0
            inside |= (value > 0) and (value < 1)
        if nonzero:
            active[0, n_active] = k
            n_active += 1
        if inside:
            active[1, n_open] = k
            n_open += 1
    for i in range(n_open, (n_open + LANES - 1) // LANES * LANES):  # full panels, of columns that exist
        active[1, i] = 0
    return n_active, n_open


@inlined
def _powers_and_derivative(powers: Any, H: Any, dA: Any, N: Any, n: int, barriers: Any, first: int, part: int,
                           parts: int) -> None:  # fmt: skip
    """powers[m] = A^(m + 1), and dA = sum over a + b = t - 1 of A^a H A^b as pairs (a, b) and (b, a), a >= b."""
    t, A = powers.shape[0], powers[0]
    for m in range(1, t):
        panels.symmetric_product(A, powers[m - 1], powers[m], n, n, False, False, True, part, parts)
        if m < t - 1:
            wait_for_all(barriers, first, parts)
    if t == 1:
        start, stop = share(H.shape[0], part, parts)
        for i in range(start * H.shape[1], stop * H.shape[1]):
            store(dA, i * LANES, load(H, i * LANES))
    else:
        panels.symmetric_product(H, powers[t - 2], dA, n, n, True, False, t < 3, part, parts)
        for a in range(t - 2, (t - 2) // 2, -1):
            wait_for_all(barriers, first, parts)
            b = t - 1 - a
            panels.product(H, powers[a - 1], N, n, part, parts)
            if a == b:
                start, stop = share(N.shape[0], part, parts)
                for i in range(start * N.shape[1], stop * N.shape[1]):
                    store(N, i * LANES, load(N, i * LANES) * spread(N.dtype.type(0.5)))
            wait_for_all(barriers, first, parts)
            last = a == (t - 2) // 2 + 1
            panels.symmetric_product(N, powers[b - 1], dA, n, n, True, True, last, part, parts)
    wait_for_all(barriers, first, parts)


@inlined
def _gram(
    settings: Settings, X: Any, z: Any, draw: int, work: TeamWork, active: Any, team: int, thread: int, barriers: Any,
    part: int, parts: int,
) -> Any:  # fmt: skip
    """G of one draw; lists the columns (`_listed`) and returns how many have a gate inside (0, 1)."""
    n, first, G = X.shape[1], (1 + team) * SLOTS, work.G[team]
    n_active, n_open = _listed(z[draw], active)
    if len(work.partial[team]) and n_active > GATHERED:  # few rows, many columns: every member has columns of its own
        partial, packed = work.partial[team], work.W[thread if parts > 1 else 2 * team]
        chunks = min(len(partial), (n_active + GATHERED - 1) // GATHERED)
        mine_from, mine_to = share(chunks, part, parts)
        for chunk in range(mine_from, mine_to):
            start, stop = share(n_active, chunk, chunks)
            for at in range(start, stop, GATHERED):
                count = min(GATHERED, stop - at)
                panels.gather(X, z[draw], settings.per_row, active[0], at, count, packed, 0, 1)
                panels.symmetric_product(packed, packed, partial[chunk], n, count, False, at > start, False, 0, 1)
        wait_for_all(barriers, first, parts)
        panels.add_up(partial, chunks, G, part, parts)
    else:  # every member has tiles of its own
        chunks = max(1, (n_active + GATHERED - 1) // GATHERED)
        for chunk in range(chunks):
            count = min(GATHERED, n_active - chunk * GATHERED)
            packed = work.W[2 * team + chunk % 2]  # the others may still read the other one
            panels.gather(X, z[draw], settings.per_row, active[0], chunk * GATHERED, count, packed, part, parts)
            wait_for_all(barriers, first, parts)
            panels.symmetric_product(
                packed, packed, G, n, count, False, chunk > 0, chunk == chunks - 1, part, parts
            )  # fmt: skip
    wait_for_all(barriers, first, parts)
    return n_open


@inlined
def _draw(
    settings: Settings, X: Any, z: Any, dz: Any, scores: Any, draw: int, work: TeamWork, mine: ThreadWork, team: int,
    thread: int, barriers: Any, part: int, parts: int,
) -> None:  # fmt: skip
    """Score of one draw and its derivative: one member's share."""
    n, first = X.shape[1], (1 + team) * SLOTS
    G, H, dA, powers = work.G[team], work.H[team], work.dA[team], work.powers[team]
    g, kth, largest, q, r, half_ddeg = (
        work.vectors[team, 0], work.vectors[team, 1], work.vectors[team, 2], work.vectors[team, 3],
        work.vectors[team, 4], work.vectors[team, 5],
    )  # fmt: skip
    row_sums, by_panel, rows, weights = (
        work.row_sums[team],
        work.by_panel[team],
        mine.rows[thread],
        mine.weights[thread],
    )
    A, At, active = powers[0], powers[powers.shape[0] - 1], mine.active[thread]

    n_open = 0
    if not settings.given:
        n_open = _gram(settings, X, z, draw, work, active, team, thread, barriers, part, parts)

    if part == 0:
        panels.diagonal(G, n, g)
    wait_for_all(barriers, first, parts)
    if settings.quantile >= 0:
        panels.neighbours(G, g, n, settings.n_neighbors, kth, largest, mine.best[thread], part, parts)
        wait_for_all(barriers, first, parts)
        b, degenerate = panels.bandwidth(
            kth, largest, n, settings.quantile, settings.bandwidth_factor, settings.zero_is_one, settings.relative,
            settings.absolute, mine.scratch[thread], rows, weights,
        )  # fmt: skip
    else:
        b, degenerate = settings.bandwidth_factor, False
    if settings.quantile < 0 or not settings.bandwidth_gradient:
        weights[0] = weights[1] = 0
    panels.affinity(
        G, g, n, b, settings.self_weight, settings.lone_degree, A, q, r, by_panel[2], part, parts
    )  # fmt: skip
    wait_for_all(barriers, first, parts)
    panels.symmetrise(A, G, n, q, r, H, part, parts)
    wait_for_all(barriers, first, parts)
    _powers_and_derivative(powers, H, dA, work.N[team], n, barriers, first, part, parts)
    panels.row_terms(A, At, dA, G, n, q, r, by_panel[0], half_ddeg, part, parts)
    wait_for_all(barriers, first, parts)
    panels.backward(A, At, dA, G, g, n, q, r, half_ddeg, b, row_sums, by_panel[1], part, parts)
    wait_for_all(barriers, first, parts)
    S = db = isolated = 0.0
    for p in range(G.shape[0]):
        S += by_panel[0, p]
        db += by_panel[1, p]
        isolated += by_panel[2, p]
    panels.finish(
        dA, G, g, n, kth, rows, weights, db / b, row_sums, not settings.per_row, part, parts
    )  # fmt: skip
    wait_for_all(barriers, first, parts)
    if not settings.given:
        panels.column_dots(
            X, z[draw], active[1], n_open, dA, settings.per_row, mine.W[thread], mine.tile[thread], mine.sums[thread],
            dz[draw], part, parts,
        )  # fmt: skip
    if part == 0:
        scores[0, draw], scores[1, draw], scores[2, draw], scores[3, draw] = S, b, degenerate, isolated / n


@inlined
def _open_gates(
    settings: Settings, step: int, columns: Any, mu: Any, z: Any, by_chunk: Any, normals: Any, chunk: int
) -> None:
    """z = clip(mu + sigma eps, 0, 1) of the draws, in pairs (eps, -eps), and sum p, for one chunk of the columns."""
    draws, first = z.shape[0], chunk * CHUNK
    count = min(CHUNK, len(mu) - first)
    half = max(1, draws // 2)
    number, sigma = mu.dtype.type, mu.dtype.type(settings.gate_sigma)
    gate_normals(np.uint64(settings.seed), np.uint64(step), columns, first, count, half, normals)
    zero, one = number(0), number(1)
    for draw in range(draws):
        sign = number(1) if draw < half else number(-1)
        eps = normals[draw % half]
        for c in range(count):
            u = mu[first + c] + sigma * (sign * number(eps[c]))
            z[draw, first + c, 0] = min(max(u, zero), one)
    total = 0.0
    for c in range(count):
        total += 0.5 + 0.5 * erf(mu[first + c] / (_ROOT_2 * settings.gate_sigma))
    by_chunk[0, chunk] = total


@inlined
def _gradient(settings: Settings, mu: Any, dz: Any, dS: float, dsum_p: float, dmu: Any, by_chunk: Any,
              chunk: int) -> None:  # fmt: skip
    """dmu, and the sum of its squares, for one chunk of the columns. Clears dz."""
    total = 0.0
    sigma = settings.gate_sigma
    for k in range(chunk * CHUNK, min(len(mu), (chunk + 1) * CHUNK)):
        value = 0.0
        for draw in range(dz.shape[0]):
            value += dz[draw, k, 0]
            dz[draw, k, 0] = 0
        m = np.float64(mu[k])
        value = value * dS + dsum_p * np.exp(m * m / (-2 * sigma * sigma)) * (_DENSITY / sigma)
        dmu[k] = mu.dtype.type(value)
        total += dmu[k] * dmu[k]
    by_chunk[1, chunk] = total


@inlined
def _update(settings: Settings, t: int, mu: Any, first: Any, second: Any, mean_square: float, dmu: Any, by_chunk: Any,
            chunk: int) -> None:  # fmt: skip
    """One step of the rule (dufs_core.training.optimizers), its memory in float64, for one chunk; counts open
    and undecided gates."""
    n_open = n_undecided = 0
    rate, number = settings.learning_rate, mu.dtype.type
    scale = 1.0
    if settings.rule == NORMALIZED:
        corrected = mean_square / (1 - _DECAY**t)
        scale = 1 / np.sqrt(corrected) if corrected > 0 else 1.0
    for k in range(chunk * CHUNK, min(len(mu), (chunk + 1) * CHUNK)):
        gradient = dmu[k] * scale
        if settings.rule == ADAM:
            first[k] = _BETA1 * first[k] + (1 - _BETA1) * gradient
            second[k] = _BETA2 * second[k] + (1 - _BETA2) * gradient * gradient
            gradient = (first[k] / (1 - _BETA1**t)) / (np.sqrt(second[k] / (1 - _BETA2**t)) + _EPSILON)
        elif settings.momentum > 0:
            gradient = settings.momentum * first[k] + gradient
            first[k] = gradient
        mu[k] = number(mu[k] - rate * gradient)
        n_open += mu[k] > 0
        n_undecided += not (abs(mu[k] - 0.5) > 0.5 + settings.margin)  # NaN decides nothing
    by_chunk[2, chunk] = n_open
    by_chunk[3, chunk] = n_undecided


@kernel
def run(
    settings: Settings, X: Any, columns: Any, mu: Any, first: Any, second: Any, running: Any, start: int, records: Any,
    done: Any, shared: Shared, work: TeamWork, mine: ThreadWork, thread: int, threads: int,
) -> None:  # fmt: skip
    """Steps start + 1, start + 2, ...: one thread's share; ends after len(records) steps or when the gates are decided.

    X (d, n); columns (d,) uint64; mu (d,) and the optimiser's memory, first, second (d,) float64 and running (1,), are
    changed. records (steps, 7): loss, S / n, b, open gates, undecided gates, isolated, degenerate; done (1,): the
    number of steps taken.
    """
    small_code()
    d, n, draws, chunks = len(mu), X.shape[1], shared.z.shape[0], shared.by_chunk.shape[1]
    c0, c1 = share(chunks, thread, threads)
    together = work.G.shape[0] < threads  # all threads at one draw, or every thread at its own
    team, part, parts = (0, thread, threads) if together else (thread, 0, 1)
    for step in range(start + 1, start + 1 + records.shape[0]):
        if not settings.only_scores:
            for chunk in range(c0, c1):
                _open_gates(settings, step, columns, mu, shared.z, shared.by_chunk, mine.normals[thread], chunk)
            wait_for_all(shared.barriers, 0, threads)
        for draw in range(team, draws, 1 if together else threads):
            _draw(
                settings, X, shared.z, shared.dz, shared.scores, draw, work, mine, team, thread, shared.barriers, part,
                parts,
            )  # fmt: skip
        wait_for_all(shared.barriers, 0, threads)
        if settings.only_scores:
            return

        sum_p = mean = 0.0
        for chunk in range(chunks):
            sum_p += shared.by_chunk[0, chunk]
        for draw in range(draws):
            mean += shared.scores[0, draw] / draws
        denominator = n * sum_p + settings.delta
        if np.isnan(settings.lam):
            loss, dS, dsum_p = -mean / denominator, -1 / denominator, mean * n / denominator**2
        else:
            loss, dS, dsum_p = -mean / n + settings.lam * sum_p, -1.0 / n, settings.lam
        for chunk in range(c0, c1):
            _gradient(settings, mu, shared.dz, dS / draws, dsum_p, shared.dmu, shared.by_chunk, chunk)
        wait_for_all(shared.barriers, 0, threads)

        mean_square = 0.0
        if settings.rule == NORMALIZED:
            for chunk in range(chunks):
                mean_square += shared.by_chunk[1, chunk] / d
            mean_square = (1 - _DECAY) * mean_square + _DECAY * running[0]
        for chunk in range(c0, c1):
            _update(settings, step, mu, first, second, mean_square, shared.dmu, shared.by_chunk, chunk)
        wait_for_all(shared.barriers, 0, threads)
        n_open = n_undecided = 0.0
        for chunk in range(chunks):
            n_open += shared.by_chunk[2, chunk]
            n_undecided += shared.by_chunk[3, chunk]
        decided = n_undecided <= settings.undecided_enough
        if thread == 0:
            running[0] = mean_square
            b = degenerate = isolated = 0.0
            for draw in range(draws):
                b += shared.scores[1, draw] / draws
                degenerate = max(degenerate, shared.scores[2, draw])
                isolated += shared.scores[3, draw] / draws
            record = records[step - start - 1]
            record[0], record[1], record[2], record[3] = loss, mean / n, b, n_open
            record[4], record[5], record[6] = n_undecided, isolated, degenerate
            done[0] = step - start
        if decided:
            return
