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

    A fit that has ended keeps its mu.
    """

    def __init__(self, bk: Backend, specs: Sequence[RunSpec], mu: Array) -> None:
        xp, (F, d) = bk.xp, mu.shape
        self._bk = bk
        self._specs = specs
        # beside mu the optimiser's memory: means for every gate, or one for all gates of a fit
        widths = {"adam": {"first": d, "second": d}, "normalized": {"second": 1}, "sgd": {}}
        self._state = {"mu": mu.copy()}
        for name, width in widths[specs[0].optimizer.name].items():
            self._state[name] = xp.zeros((F, width), dtype=xp.float64)

        seeds = [spec.seed & 0xFFFFFFFFFFFFFFFF for spec in specs]
        self._seed = xp.asarray(np.array(seeds, dtype=np.uint64))
        self._columns = xp.ascontiguousarray(xp.asarray(specs[0].columns, dtype=xp.uint64))
        self._start = xp.zeros(1, dtype=xp.int64)
        self._clock = xp.zeros(F, dtype=xp.int64)
        self._done = xp.zeros(F, dtype=xp.int64)
        self._records = xp.empty((F, _ROOM, len(RECORD)), dtype=xp.float64)
        self._plans: dict[tuple[int, ...], tuple[Plan, Replay]] = {}  # one for each size of a batch

    @property
    def mu(self) -> Array:
        return self._state["mu"].copy()

    def advance(self, batch: Array, rows: Array, step: int, count: int) -> list[Array]:
        plan, replay = self._plan(batch)
        plan.load(batch)
        found: list[list[Array]] = [[] for _ in self._specs]
        before = step - 1
        last = before + count
        while before < last:
            steps = min(_ROOM if plan.captured else 1, last - before)
            self._start[...] = before
            self._clock[...] = before
            for _ in range(steps):
                replay(partial(self._step, plan))
            clock, done, records = (self._bk.to_host(a) for a in (self._clock, self._done, self._records))
            for tables, now, table in zip(found, clock, records, strict=True):
                tables.append(table[: int(now) - before].copy())
            before = last if done.all() else before + steps
        return [np.concatenate(tables) for tables in found]

    def _plan(self, batch: Array) -> tuple[Plan, Replay]:
        if batch.shape not in self._plans:
            fits = len(self._specs)
            draws = fits * self._specs[0].schedule.n_draws
            with memory_errors("steps" if fits == 1 else f"{fits:,} fits at once", batch.shape, draws):
                plan = Plan(self._bk, [spec.objective for spec in self._specs], batch.shape, draws, batch.dtype)
            plan.arrays.mu = self._state["mu"]  # all plans move the same gates
            self._plans[batch.shape] = plan, Replay(self._bk, plan.captured)
        return self._plans[batch.shape]

    def _step(self, plan: Plan) -> None:
        a, optimizer = plan.arrays, self._specs[0].optimizer
        plan.run((self._columns, self._seed, self._clock, int(Stream.GATES)))
        rule = (OPTIMIZERS[optimizer.name], float(optimizer.learning_rate))
        moved = [self._state.get(name) for name in ("mu", "first", "second")]
        reported = (a.loss, a.mean_isolated, a.S, a.b, a.degenerate, self._start)
        sizes = (plan.fits, plan.per_fit, plan.d, plan.n, _ROOM)
        limits = (DECIDED_MARGIN * plan.objective.gate_sigma, float(self._specs[0].schedule.tol * plan.d))
        ended = (self._clock, self._done, self._records)
        plan.launch("advance<T>", plan.fits, a.dmu, *rule, *moved, *reported, *sizes, *limits, *ended)

    def save(self, fit: int) -> dict[str, Array]:
        """mu and the optimiser's memory of one fit, on the host."""
        return {name: self._bk.to_host(part[fit]).copy() for name, part in self._state.items()}

    def load(self, saved: Sequence[dict[str, Array]]) -> None:
        """Go on from what `save` gave, for all fits, none of which has ended."""
        for name, part in self._state.items():
            part[...] = self._bk.xp.asarray(np.stack([one[name] for one in saved]))
        self._done[...] = 0
