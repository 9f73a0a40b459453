"""Whole steps on the device: noise, evaluation, update, records and stopping, without the host between them.

Where a step is captured it is one graph launch, and the host reads the records of many steps at once. Fits on the same
data that differ in seed and lam advance together: their draws are one stack of matrices, which is what fills a device
on small problems.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from dufs_core.backend import Array, Backend
from dufs_core.backend.random import Stream
from dufs_core.objective.engines.gpu_plan import Plan, Replay, memory_errors
from dufs_core.objective.protocol import RunSpec
from dufs_core.objective.rules import DECIDED_MARGIN, OPTIMIZERS, RECORD

_ROOM = 64  # captured steps between two looks of the host


class CudaSteps:
    """`dufs_core.objective.protocol.Steps`: the specs differ in seed and lam alone; mu (fits, d).

    A fit that has ended keeps its mu. Once no more than half of the fits in hand still run, the others are left out.
    """

    def __init__(self, bk: Backend, specs: Sequence[RunSpec], mu: Array) -> None:
        self._bk, self._specs = bk, list(specs)
        self._ended: dict[int, Array] = {}
        optimizer, (F, d) = specs[0].optimizer, mu.shape
        first = bk.xp.zeros((F, d), dtype=bk.xp.float64) if optimizer.name == "adam" or optimizer.momentum else None
        width = {"adam": d, "normalized": 1}.get(optimizer.name)
        second = None if width is None else bk.xp.zeros((F, width), dtype=bk.xp.float64)
        self._take(list(range(F)), mu.copy(), first, second)

    def _take(self, fits: list[int], mu: Array, first: Array | None, second: Array | None) -> None:
        """Advance these fits from now on, from these arrays, one row for each."""
        xp, F = self._bk.xp, len(fits)
        self._fits, self._mu, self._first, self._second = fits, mu, first, second
        seeds = [self._specs[fit].seed & 0xFFFFFFFFFFFFFFFF for fit in fits]
        self._seed = xp.asarray(np.array(seeds, dtype=np.uint64))
        self._columns = xp.ascontiguousarray(xp.asarray(self._specs[0].columns, dtype=xp.uint64))
        self._clock, self._done = xp.zeros(F, dtype=xp.int64), xp.zeros(F, dtype=xp.int64)
        self._start = xp.zeros(1, dtype=xp.int64)
        self._records = xp.empty((F, _ROOM, len(RECORD)), dtype=xp.float64)
        self._plans: dict[tuple[int, ...], tuple[Plan, Replay]] = {}

    @property
    def mu(self) -> Array:
        rows = dict(zip(self._fits, self._mu, strict=True)) | self._ended
        return self._bk.xp.stack([rows[fit] for fit in range(len(self._specs))])

    def advance(self, batch: Array, rows: Array, step: int, count: int) -> list[Array]:
        found: list[list[Array]] = [[np.empty((0, len(RECORD)))] for _ in self._specs]
        taken = 0
        while taken < count and self._fits:
            plan, replay = self._plan(batch)
            plan.load(batch)
            steps, before = min(_ROOM if plan.captured else 1, count - taken), step - 1 + taken
            self._start[...] = self._clock[...] = before
            for _ in range(steps):
                replay(partial(self._step, plan))
            clock, done, records = (self._bk.to_host(a) for a in (self._clock, self._done, self._records))
            for fit, now, table in zip(self._fits, clock, records, strict=True):
                found[fit].append(table[: int(now) - before].copy())
            taken += steps
            self._leave_out(done != 0)
        return [np.concatenate(tables) for tables in found]

    def _leave_out(self, done: Array) -> None:
        if not done.any() or 2 * int(done.sum()) < len(done):
            return
        for row in np.flatnonzero(done):
            self._ended[self._fits[row]] = self._mu[int(row)].copy()
        kept = np.flatnonzero(~done)
        if not len(kept):
            self._fits, self._mu = [], self._mu[:0]
            return
        rows = self._bk.xp.asarray(kept)
        first, second = (None if a is None else a[rows] for a in (self._first, self._second))
        self._take([self._fits[row] for row in kept], self._mu[rows], first, second)

    def _plan(self, batch: Array) -> tuple[Plan, Replay]:
        found = self._plans.get(batch.shape)
        if found is None:
            specs = [self._specs[fit] for fit in self._fits]
            draws = len(specs) * specs[0].schedule.n_draws
            with memory_errors("steps" if len(specs) == 1 else f"{len(specs):,} fits at once", batch.shape, draws):
                plan = Plan(self._bk, [spec.objective for spec in specs], batch.shape, draws, batch.dtype)
            plan.mu = self._mu  # all plans, one for each size of a batch, move the same gates
            found = self._plans[batch.shape] = plan, Replay(self._bk, plan.captured)
        return found

    def _step(self, plan: Plan) -> None:
        optimizer, schedule = self._specs[0].optimizer, self._specs[0].schedule
        F, R, d, n, mu, clock, done = plan.fits, plan.per_fit, plan.d, plan.n, self._mu, self._clock, self._done
        plan.run((self._columns, self._seed, clock, int(Stream.GATES)))
        rule = (OPTIMIZERS[optimizer.name], float(optimizer.learning_rate), float(optimizer.momentum))
        moved = (mu, self._first, self._second)
        reported = (plan.loss, plan.mean_isolated, plan.S, plan.b, plan.degenerate, self._start)
        limits = (DECIDED_MARGIN * plan.objective.gate_sigma, float(schedule.tol * d))
        state = (clock, done, self._records)
        plan.launch("advance<T>", F, plan.dmu, *rule, *moved, *reported, F, R, d, n, _ROOM, *limits, *state)

    def save(self, fit: int) -> dict[str, Array]:
        """mu and the optimiser's memory of one fit, on the host; of one that was left out, mu."""
        if fit in self._ended:
            return {"mu": self._bk.to_host(self._ended[fit]).copy()}
        arrays, row = {"mu": self._mu, "first": self._first, "second": self._second}, self._fits.index(fit)
        return {name: self._bk.to_host(a[row]).copy() for name, a in arrays.items() if a is not None}

    def load(self, saved: Sequence[dict[str, Array]]) -> None:
        """Go on from what `save` gave, for all fits, none of which has ended."""
        xp, parts = self._bk.xp, ("mu", "first", "second")
        mu, first, second = (
            xp.asarray(np.stack([one[part] for one in saved])) if part in saved[0] else None for part in parts
        )
        self._take(list(range(len(self._specs))), mu, first, second)
        self._ended = {}
