"""Whole steps in compiled code: noise, gates, scores and gradients of all draws, loss, update, stopping.

A kernel is called by every thread of a fit at once, each with its own `Work`; the threads meet at barriers. If there
are fewer draws than threads, or many rows, all threads share each draw; else every thread has draws of its own.
"""

from __future__ import annotations

import numpy as np

from dufs_core.kernels import panels
from dufs_core.kernels.arrays import CHUNK, GATHERED, LANES, NARROW, Draw, RunArrays, Settings, StepSettings, Work
from dufs_core.kernels.barrier import wait_for_all
from dufs_core.kernels.compile import inner, kernel
from dufs_core.kernels.noise import erf, gate_normals
from dufs_core.kernels.panels import DEPTH, share
from dufs_core.kernels.vector import (
    constant,
    exp_nonpositive,
    get,
    load,
    load_below,
    put,
    small_code,
    spread,
    store,
    total,
)
from dufs_core.objective import rules


@inner
def _listed(z, columns):
    """The open columns (z > 0), the undecided ones (0 < z < 1), each in full panels, and their numbers."""
    n_open = n_undecided = 0
    for k in range(len(z)):  # without branches, which the noise would make mispredicted ones
        columns[0, n_open] = columns[1, n_undecided] = k
        n_open += z[k] > 0
        n_undecided += (z[k] > 0) & (z[k] < 1)
    for i in range(LANES):  # columns that exist
        columns[0, n_open + i] = columns[1, n_undecided + i] = 0
    return n_open, n_undecided


@inner
def _powers_and_derivative(draw: Draw, n, barriers, first, part, parts):
    """powers[m] = A^(m + 1), and dA = sum over a + b = t - 1 of A^a H A^b as pairs (a, b) and (b, a), a >= b."""
    powers, H, dA, N = draw.powers, draw.H, draw.dA, draw.N
    t, A = powers.shape[0], powers[0]
    for m in range(1, t):
        panels.symmetric_product(A, powers[m - 1], powers[m], n, n, False, False, True, part, parts)
        if m < t - 1:
            wait_for_all(barriers, first, parts)
    panels.symmetric_product(H, powers[t - 2], dA, n, n, True, False, t < 3, part, parts)
    for a in range(t - 2, (t - 2) // 2, -1):
        wait_for_all(barriers, first, parts)
        b = t - 1 - a
        panels.product(H, powers[a - 1], N, n, False, part, parts)
        if a == b:
            start, stop = share(N.shape[0], part, parts)
            for i in range(start * N.shape[1], stop * N.shape[1]):
                store(N, i * LANES, load(N, i * LANES) * constant(N, 0.5))
        wait_for_all(barriers, first, parts)
        last = a == (t - 2) // 2 + 1
        panels.symmetric_product(N, powers[b - 1], dA, n, n, True, True, last, part, parts)
    wait_for_all(barriers, first, parts)


@inner
def _gram_by_columns(X, z, n_open, work: Work):
    """G of one draw, from sums that threads form of columns of their own: for few rows and many columns."""
    place, draw, columns, n = work.place, work.draw, work.mine.columns[0], X.shape[1]
    part, parts, partial = place.part, place.parts, draw.partial
    packed = work.mine.packed if parts > 1 else draw.W[0]
    chunks = min(len(partial), (n_open + GATHERED - 1) // GATHERED)
    mine_from, mine_to = share(chunks, part, parts)
    for chunk in range(mine_from, mine_to):
        start, stop = share(n_open, chunk, chunks)
        for at in range(start, stop, DEPTH):  # no more than the first-level cache holds
            count = min(DEPTH, stop - at)
            panels.gather(X, z, columns, at, count, packed, 0, 1)
            panels.symmetric_product(packed, packed, partial[chunk], n, count, False, at > start, False, 0, 1)
    wait_for_all(work.shared.barriers, place.barrier, parts)
    panels.add_up(partial, chunks, draw.G, part, parts)
    wait_for_all(work.shared.barriers, place.barrier, parts)


@inner
def _gram(X, z, n_open, work: Work):
    """G of one draw: every thread has tiles of its own."""
    place, draw, columns, n = work.place, work.draw, work.mine.columns[0], X.shape[1]
    part, parts, barriers = place.part, place.parts, work.shared.barriers
    chunks = max(1, (n_open + GATHERED - 1) // GATHERED)
    for chunk in range(chunks):
        first = chunk * GATHERED
        count = min(GATHERED, n_open - first)
        packed = draw.W[chunk % 2]  # the others may still read the other one
        panels.gather(X, z, columns, first, count, packed, part, parts)
        wait_for_all(barriers, place.barrier, parts)
        adds, last = chunk > 0, chunk == chunks - 1
        panels.symmetric_product(packed, packed, draw.G, n, count, False, adds, last, part, parts)
    wait_for_all(barriers, place.barrier, parts)


@inner
def _graph(settings: Settings, n, with_H, scores, work: Work):
    """From G to A, and H where it is wanted; b, which is among the scores (4,) of the draw."""
    place, draw, mine, barriers = work.place, work.draw, work.mine, work.shared.barriers
    part, parts, first = place.part, place.parts, place.barrier
    if part == 0:
        panels.diagonal(draw.G, n, draw.g)
    wait_for_all(barriers, first, parts)
    b, degenerate = settings.bandwidth_factor, False
    if settings.quantile >= 0:
        panels.neighbours(draw, n, settings.n_neighbors, mine.best, part, parts)
        wait_for_all(barriers, first, parts)
        b, degenerate = panels.bandwidth(settings, draw.kth, draw.largest, n, mine.scratch, mine.rows, mine.weights)
    else:
        mine.weights[0] = mine.weights[1] = 0
    panels.affinity(settings, draw, n, b, part, parts)
    wait_for_all(barriers, first, parts)
    panels.symmetrise(draw, n, with_H, part, parts)
    wait_for_all(barriers, first, parts)
    if part == 0:
        scores[1], scores[2] = b, degenerate
    return b


@inner
def _direct(draw: Draw, n, work: Work):
    """From A and H to dA = H, S and d(degrees), for t = 1."""
    part, parts, barriers, H = work.place.part, work.place.parts, work.shared.barriers, draw.H
    start, stop = share(H.shape[0], part, parts)
    for i in range(start * H.shape[1], stop * H.shape[1]):
        store(draw.dA, i * LANES, load(H, i * LANES))
    wait_for_all(barriers, work.place.barrier, parts)
    panels.row_terms(draw, n, part, parts)
    wait_for_all(barriers, work.place.barrier, parts)


@inner
def _wide(draw: Draw, n, work: Work):
    """From A and H to A^t, dA, S and d(degrees)."""
    part, parts, barriers = work.place.part, work.place.parts, work.shared.barriers
    if draw.powers.shape[0] == 1:
        _direct(draw, n, work)
        return
    _powers_and_derivative(draw, n, barriers, work.place.barrier, part, parts)
    panels.row_terms(draw, n, part, parts)
    wait_for_all(barriers, work.place.barrier, parts)


@inner
def _narrow(X, z, n_open, dz, work: Work):
    """The same for t = 2, from products with the open columns; their direct part of the derivative goes to dz."""
    place, draw, barriers = work.place, work.draw, work.shared.barriers
    part, parts, first = place.part, place.parts, place.barrier
    columns, tile = work.mine.columns[0], work.mine.tile
    packed, Fu, Fv = draw.W[0], draw.W[1], draw.W[2]
    n, E1, E2 = X.shape[1], draw.H, draw.powers[1]
    for start in range(0, max(n_open, 1), GATHERED):
        count = min(GATHERED, n_open - start)
        panels.gather(X, z, columns, start, count, packed, part, parts)
        panels.walked(X, z, columns, start, count, draw, work.mine.W, Fu, Fv, tile[0, 0], dz, part, parts)
        wait_for_all(barriers, first, parts)
        panels.product(Fu, packed, E1, count, start > 0, part, parts)
        panels.product(Fv, packed, E2, count, start > 0, part, parts)
        wait_for_all(barriers, first, parts)
    panels.narrow_terms(draw, E1, E2, n, part, parts)
    wait_for_all(barriers, first, parts)
    panels.add_transpose(draw.dA, tile[0], part, parts)
    wait_for_all(barriers, first, parts)
    panels.narrow_degrees(draw, n, part, parts)
    wait_for_all(barriers, first, parts)


@inner
def _back(n, b, scores, work: Work):
    """From there to M, in place of dA, and the first and the last of the scores."""
    place, draw, barriers = work.place, work.draw, work.shared.barriers
    part, parts, first = place.part, place.parts, place.barrier
    panels.backward(draw, n, b, part, parts)
    wait_for_all(barriers, first, parts)
    S = db = isolated = 0.0
    for p in range(draw.G.shape[0]):
        S += draw.by_panel[0, p]
        db += draw.by_panel[1, p]
        isolated += draw.by_panel[2, p]
    panels.finish(draw, n, work.mine.rows, work.mine.weights, db / b, part, parts)
    wait_for_all(barriers, first, parts)
    if part == 0:
        scores[0], scores[3] = S, isolated / n


@inner
def _either_gram(X, z, n_open, work: Work):
    if len(work.draw.partial) and n_open > GATHERED:
        _gram_by_columns(X, z, n_open, work)
    else:
        _gram(X, z, n_open, work)


@inner
def _first_power(settings: Settings, X, z, n_open, dz, scores, work: Work):
    """One draw's scores and M, for t = 1."""
    n = X.shape[1]
    _either_gram(X, z, n_open, work)
    b = _graph(settings, n, True, scores, work)
    _direct(work.draw, n, work)
    _back(n, b, scores, work)


@inner
def _few_columns(settings: Settings, X, z, n_open, dz, scores, work: Work):
    """One draw's scores, M and a part of dz, for t = 2, by products with its few open columns."""
    n = X.shape[1]
    _gram(X, z, n_open, work)
    b = _graph(settings, n, False, scores, work)
    _narrow(X, z, n_open, dz, work)
    _back(n, b, scores, work)


@inner
def _any_columns(settings: Settings, X, z, n_open, dz, scores, work: Work):
    """The same for any t and any number of columns."""
    n, draw = X.shape[1], work.draw
    if draw.powers.shape[0] == 2 and n_open * NARROW < n:
        _few_columns(settings, X, z, n_open, dz, scores, work)
        return
    _either_gram(X, z, n_open, work)
    b = _graph(settings, n, True, scores, work)
    _wide(draw, n, work)
    _back(n, b, scores, work)


@inner
def _all_draws(settings: Settings, X, work: Work, one_draw):
    """Scores of the draws with gates shared.z and their derivatives: one thread's share."""
    place, shared, draw, mine = work.place, work.shared, work.draw, work.mine
    between = 1 if place.parts > 1 else place.threads
    for i in range(place.team, shared.z.shape[0], between):
        z, dz = shared.z[i], shared.dz[i]
        n_open, n_undecided = _listed(z, mine.columns)
        one_draw(settings, X, z, n_open, dz, shared.scores[:, i], work)
        panels.column_dots(
            X, z, mine.columns[1], n_undecided, draw.dA, mine.W, mine.tile, mine.sums, dz, place.part, place.parts
        )
    wait_for_all(shared.barriers, 0, place.threads)


@kernel
def scores(settings: Settings, X, work: Work):
    """work.shared.scores and dz (cleared before) of the gates in work.shared.z.      X (d, n)."""
    small_code()
    _all_draws(settings, X, work, _any_columns)


@kernel
def from_gram(settings: Settings, n, work: Work):
    """work.shared.scores of one draw from its G, in the work of the one team, where M is left in place of dA."""
    small_code()
    scores = work.shared.scores[:, 0]
    b = _graph(settings, n, True, scores, work)
    _wide(work.draw, n, work)
    _back(n, b, scores, work)


@kernel
def halved(n, work: Work):
    """Halve the tiles on the diagonal of M, in place of dA in the work of the one team, as `from_gram` does."""
    start, stop = share((n + LANES - 1) // LANES, work.place.part, work.place.parts)
    panels.halve_tiles(work.draw.dA, start, stop)


@inner
def _draw_gates(rates: StepSettings, moving: RunArrays, step, z, by_chunk, work, chunk):
    """z = clip(mu + sigma eps, 0, 1) of the draws, in pairs (eps, -eps), and sum p, for one chunk of the columns."""
    draws, d, first, mu = z.shape[0], z.shape[1], chunk * CHUNK, moving.mu
    count = min(CHUNK, d - first)
    half = max(1, draws // 2)
    number, sigma = mu.dtype.type, mu.dtype.type(rates.gate_sigma)
    gate_normals(np.uint64(rates.seed), np.uint64(step), moving.columns, first, count, half, work)
    zero, one = number(0), number(1)
    for draw in range(draws):
        signed = sigma if draw < half else -sigma
        eps, out = draw % half * CHUNK, draw * d + first
        for c in range(count):  # get and put: an index that may be negative would keep LLVM from forming vectors
            u = get(mu, first + c) + signed * number(get(work, eps + c))
            put(z, out + c, min(max(u, zero), one))
    for c in range(count):
        put(work, c, rules.gate_probability(np.float64(get(mu, first + c)), rates.gate_sigma, erf))
    by_chunk[0, chunk] = _sum(work, count)


@inner
def _sum(values, count):
    """The sum of the first `count` numbers, float64."""
    small_code()
    partial = spread(0.0)
    for c in range(0, count, LANES):
        partial = partial + load_below(values, c, count - c)
    return total(partial)


@inner
def _gradient(sigma, mu, dz, dS, dsum_p, dmu, by_chunk, work, chunk):
    """dmu, and the sum of its squares, for one chunk of the columns. Clears dz."""
    d, first, scale = len(mu), chunk * CHUNK, dsum_p * (1 / rules.ROOT_2_PI / sigma)
    count = min(CHUNK, d - first)
    for c in range(count):
        put(work, c, 0.0)
    for draw in range(dz.shape[0]):
        part = draw * d + first
        for c in range(count):
            put(work, c, get(work, c) + get(dz, part + c))
            put(dz, part + c, dz.dtype.type(0))
    for c in range(count):
        density = rules.gate_density(np.float64(get(mu, first + c)), sigma, exp_nonpositive)
        gradient = mu.dtype.type(get(work, c) * dS + scale * density)
        put(dmu, first + c, np.float64(gradient))
        put(work, c, np.float64(gradient * gradient))
    by_chunk[1, chunk] = _sum(work, count)


@inner
def _update(rates: StepSettings, moving: RunArrays, t, mean_square, dmu, by_chunk, chunk):
    """One step of the rule, its memory in float64, for one chunk; counts open and undecided gates."""
    small_code()
    n_open = n_undecided = 0
    mu, first, second = moving.mu, moving.first, moving.second
    scale = 1 / rules.gradient_size(mean_square, t) if rates.rule == rules.NORMALIZED else 1.0
    for k in range(chunk * CHUNK, min(len(mu), (chunk + 1) * CHUNK)):
        gradient = dmu[k] * scale
        if rates.rule == rules.ADAM:
            first[k], second[k], gradient = rules.adam(first[k], second[k], gradient, t)
        mu[k] = mu.dtype.type(mu[k] - rates.learning_rate * gradient)
        n_open += mu[k] > 0
        n_undecided += not rules.is_decided(mu[k], rates.margin)
    by_chunk[2, chunk] = n_open
    by_chunk[3, chunk] = n_undecided


@inner
def _steps(settings: Settings, rates: StepSettings, X, moving: RunArrays, start, work: Work, one_draw):
    """Steps start + 1, start + 2, ...: one thread's share; ends after len(records) steps or when the gates are decided.

    X (d, n); mu and the optimiser's memory are changed.
    """
    shared, mine, thread, threads = work.shared, work.mine.normals, work.place.thread, work.place.threads
    n, d, draws, chunks = X.shape[1], len(moving.mu), shared.z.shape[0], shared.by_chunk.shape[1]
    mine_from, mine_to = share(chunks, thread, threads)
    for step in range(start + 1, start + 1 + moving.records.shape[0]):
        for chunk in range(mine_from, mine_to):
            _draw_gates(rates, moving, step, shared.z, shared.by_chunk, mine, chunk)
        wait_for_all(shared.barriers, 0, threads)
        _all_draws(settings, X, work, one_draw)

        sum_p = mean = 0.0
        for chunk in range(chunks):
            sum_p += shared.by_chunk[0, chunk]
        for draw in range(draws):
            mean += shared.scores[0, draw] / draws
        loss, dS, dsum_p = rules.loss(mean, sum_p, n, rates.lam, rates.delta)
        for chunk in range(mine_from, mine_to):
            _gradient(
                rates.gate_sigma, moving.mu, shared.dz, dS / draws, dsum_p, shared.dmu, shared.by_chunk, mine, chunk
            )  # fmt: skip
        wait_for_all(shared.barriers, 0, threads)

        mean_square = 0.0
        if rates.rule == rules.NORMALIZED:
            for chunk in range(chunks):
                mean_square += shared.by_chunk[1, chunk] / d
            mean_square = rules.mean_square(moving.running[0], mean_square)
        for chunk in range(mine_from, mine_to):
            _update(rates, moving, step, mean_square, shared.dmu, shared.by_chunk, chunk)
        wait_for_all(shared.barriers, 0, threads)
        n_open = n_undecided = 0.0
        for chunk in range(chunks):
            n_open += shared.by_chunk[2, chunk]
            n_undecided += shared.by_chunk[3, chunk]
        decided = n_undecided <= rates.undecided_enough
        if thread == 0:
            moving.running[0] = mean_square
            b = degenerate = isolated = 0.0
            for draw in range(draws):
                b += shared.scores[1, draw] / draws
                degenerate = max(degenerate, shared.scores[2, draw])
                isolated += shared.scores[3, draw] / draws
            record = moving.records[step - start - 1]
            record[0], record[1], record[2], record[3] = loss, mean / n, b, n_open
            record[4], record[5], record[6] = n_undecided, isolated, degenerate
            moving.done[0] = step - start
        if decided:
            return


@kernel
def run(settings: Settings, rates: StepSettings, X, moving: RunArrays, start, work: Work):
    """`_steps` of any problem."""
    small_code()
    _steps(settings, rates, X, moving, start, work, _any_columns)


@kernel
def run_direct(settings: Settings, rates: StepSettings, X, moving: RunArrays, start, work: Work):
    """The same where t = 1, with less code to compile."""
    small_code()
    _steps(settings, rates, X, moving, start, work, _first_power)


@kernel
def run_narrow(settings: Settings, rates: StepSettings, X, moving: RunArrays, start, work: Work):
    """The same where t = 2 and every draw has few columns, with less code to compile."""
    small_code()
    _steps(settings, rates, X, moving, start, work, _few_columns)
