"""Whole steps on the device: noise, evaluation, update, records and stopping, without the host between them.

Where a step is captured it is one graph launch, and the host reads the records of many steps at once. Fits on the same
data that differ in seed and lam advance together: their draws are one stack of matrices, which is what fills a device
on small problems.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from dufs_core.backend import Array, Backend
from dufs_core.kernels.cuda import RULES, blocks_for
from dufs_core.objective.engines.gpu_dense import Plan, Replay, new_plan
from dufs_core.objective.protocol import DECIDED_MARGIN, RECORD, RunSpec

_ROOM = 64  # captured steps between two looks of the host


class CudaSteps:
    """`dufs_core.objective.protocol.Steps`: the problems differ in seed and lam alone; mu (fits, d).

    A fit that has ended keeps its mu. Once no more than half of the fits in hand still run, the others are left out.
    """

    def __init__(self, bk: Backend, problems: Sequence[RunSpec], mu: Array) -> None:
        self._bk, self._problems = bk, list(problems)
        self._ended: dict[int, Array] = {}
        optimizer, (F, d) = problems[0].optimizer, mu.shape
        first = bk.xp.zeros((F, d), dtype=bk.xp.float64) if optimizer.name == "adam" or optimizer.momentum else None
        width = {"adam": d, "normalized": 1}.get(optimizer.name)
        second = None if width is None else bk.xp.zeros((F, width), dtype=bk.xp.float64)
        self._take(list(range(F)), mu.copy(), first, second)

    def _take(self, fits: list[int], mu: Array, first: Array | None, second: Array | None) -> None:
        """Advance these fits from now on, from these arrays, one row for each."""
        xp, F = self._bk.xp, len(fits)
        self._fits, self._mu, self._first, self._second = fits, mu, first, second
        problems = [self._problems[fit] for fit in fits]
        seeds = np.array([p.seed & 0xFFFFFFFFFFFFFFFF for p in problems], dtype=np.uint64)
        self._seed = xp.asarray(seeds)
        self._columns = xp.ascontiguousarray(xp.asarray(problems[0].columns, dtype=xp.uint64))
        self._clock, self._done = xp.zeros(F, dtype=xp.int64), xp.zeros(F, dtype=xp.int64)
        self._start = xp.zeros(1, dtype=xp.int64)
        self._records = xp.empty((F, _ROOM, len(RECORD)), dtype=xp.float64)
        self._plans: dict[tuple[int, ...], tuple[Plan, Replay]] = {}

    @property
    def mu(self) -> Array:
        """The gate parameters of all fits (fits, d), a fresh array."""
        rows = dict(zip(self._fits, self._mu, strict=True)) | self._ended
        return self._bk.xp.stack([rows[fit] for fit in range(len(self._problems))])

    def advance(self, batch: Array, rows: Array, step: int, count: int) -> list[Array]:
        """Up to `count` steps from number `step` on; every fit ends by itself."""
        found: list[list[Array]] = [[np.empty((0, len(RECORD)))] for _ in self._problems]
        taken = 0
        while taken < count and self._fits:
            plan, replay = self._plan(batch)
            plan.load(batch)
            steps = min(_ROOM if plan.captured else 1, count - taken)
            self._start[...] = step - 1 + taken
            self._clock[...] = step - 1 + taken
            for _ in range(steps):
                replay(partial(self._step, plan))
            clock, done, records = (self._bk.to_host(a) for a in (self._clock, self._done, self._records))
            for fit, now, table in zip(self._fits, clock, records, strict=True):
                found[fit].append(table[: int(now) - (step - 1 + taken)].copy())
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
            problems = [self._problems[fit] for fit in self._fits]
            draws = len(problems) * problems[0].schedule.n_draws
            plan = new_plan(self._bk, [p.objective for p in problems], batch, (draws, batch.shape[1]))
            plan.mu = self._mu  # all plans, one for each size of a batch, move the same gates
            found = self._plans[batch.shape] = plan, Replay(self._bk, plan.captured)
        return found

    def _step(self, plan: Plan) -> None:
        launch, dtype = self._bk.kernels.launch, plan.dtype
        optimizer, schedule = self._problems[0].optimizer, self._problems[0].schedule
        F, R, d, n = plan.fits, plan.per_fit, plan.d, plan.n
        fits, draws, columns = map(np.int64, (F, R, d))
        groups = -(-max(1, R // 2) // 4)
        launch(
            "gate_noise<T>", dtype, blocks_for(F * groups * d), self._columns, self._seed, self._clock, fits, draws,
            columns, plan.eps,
        )  # fmt: skip
        plan.run()
        launch(
            "update<T>", dtype, F, plan.dmu, self._clock, self._done, fits, columns, np.int32(RULES[optimizer.name]),
            np.float64(optimizer.learning_rate), np.float64(optimizer.momentum), self._mu, self._first, self._second,
        )  # fmt: skip
        launch(
            "record<T>", dtype, F, plan.loss, plan.alone, plan.S, plan.b, plan.degenerate, self._mu, self._start, fits,
            draws, columns, *map(np.int64, (n, _ROOM)), np.float64(DECIDED_MARGIN * plan.objective.gate_sigma),
            np.float64(schedule.tol * d), self._clock, self._done, self._records,
        )  # fmt: skip

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
        self._take(list(range(len(self._problems))), mu, first, second)
        self._ended = {}
