"""The Gram form on the CPU in compiled code (`dufs_core.kernels.steps`): single evaluations and whole runs of steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any, NamedTuple

import numpy as np

from dufs_core.backend import Array, Backend
from dufs_core.kernels import arrays
from dufs_core.kernels.native import Kernel
from dufs_core.objective.chain import Objective, Scores, dense_scores_and_grad
from dufs_core.objective.engines.reference import operations_bytes
from dufs_core.objective.ops.bandwidth import check_n_neighbors, noise_level, quantile_of
from dufs_core.objective.ops.normalise import isolated_degree
from dufs_core.objective.protocol import Engine, RunSpec, StepSize
from dufs_core.objective.rules import DECIDED_MARGIN, OPTIMIZERS, RECORD

_WORTH_A_THREAD = 1 << 22  # multiply-adds (0.1 ms) of all draws, below which another thread costs more than it brings
_OWN_DRAW_ROWS = 1024  # more rows: threads share each draw as efficiently, in the memory of one draw
_scores, _run = Kernel("steps", "scores"), Kernel("steps", "run")
_run_direct, _run_narrow = Kernel("steps", "run_direct"), Kernel("steps", "run_narrow")  # less of it, sooner compiled
_LAYOUT: Any = ("C", "A", "W")  # a read-only array would be another type to compile for


class _Plan(NamedTuple):
    """The work arrays for problems of one size, and how many threads these are worth."""

    key: tuple[Any, ...]
    shared: Any
    works: list[arrays.Work]  # of the threads


class DenseEngine(Engine):
    """The draws are spread over the threads; all threads share a draw where draws are few or have many rows.

    The result does not depend on the number of threads. Work arrays are kept from call to call: fresh ones cost a page
    fault every 4 KiB. With saturation, which LAPACK solves systems for, the operations take the place of the kernels,
    each draw by one thread.
    """

    name = "dense"
    keeps_arrays = True

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads)
        self._plan: _Plan | None = None

    def _scores_and_grad(self, bk: Backend, objective: Objective, X: Array, z: Array, undecided: Array) -> Scores:
        if objective.saturation is not None:
            return dense_scores_and_grad(bk, objective, X, z, undecided, self._pool.map)
        columns = np.require(X.T, requirements=_LAYOUT)
        d, n = columns.shape
        settings = kernel_settings(objective, X.dtype, n)
        plan = self.plan(len(z), d, n, X.dtype, objective)
        shared = plan.shared
        shared.z[:], shared.dz[:] = z, 0
        self.in_threads(plan, lambda work: _scores(settings, columns, work))
        S, b, degenerate, isolated = shared.scores.copy()
        return Scores(S, b, degenerate > 0, isolated, shared.dz.copy())

    def bytes_needed(self, size: StepSize) -> int:
        return operations_bytes(size, size.threads) if size.saturating else layout_bytes(size, size.draws, size.d)

    def steps(self, bk: Backend, specs: Sequence[RunSpec], mu: Array) -> _CompiledSteps | None:
        """Of one run; None for several, and with saturation."""
        is_compiled = len(specs) == 1 and specs[0].objective.saturation is None
        return _CompiledSteps(self, specs[0], mu[0]) if is_compiled else None

    def in_threads(self, plan: _Plan, kernel: Callable[[arrays.Work], None]) -> None:
        """kernel(work) in all threads of the plan at once, with its barriers; this one is the first.

        Nobody waits for a thread that fails or never starts.
        """
        start, barriers, (first, *others) = Event(), plan.shared.barriers, plan.works

        def guarded(work: arrays.Work) -> None:
            if work is not first:
                start.wait()
            try:
                kernel(work)
            except BaseException:
                barriers[arrays.ABANDONED :: arrays.SLOTS] = 1
                raise

        try:
            begun = [self._pool.submit(guarded, work) for work in others]
            start.set()
            guarded(first)
            for one in begun:
                one.result()
        except BaseException:
            barriers[arrays.ABANDONED :: arrays.SLOTS] = 1
            start.set()
            self._plan = None
            raise

    def plan(self, draws: int, d: int, n: int, dtype: Any, objective: Objective) -> _Plan:
        """The plan for problems of this size, the same one as at the last call where that fits."""
        power, k = objective.power, objective.n_neighbors
        key = (draws, d, -(-n // arrays.LANES), np.dtype(dtype), power, k)
        if self._plan is None or self._plan.key != key:
            self._plan = None  # free the old arrays first
            threads, teams, (shared, draw, mine) = _layout(draws, d, n, dtype, power, k, self._threads)
            shared, by_team = _zeros(shared), [_zeros(draw) for _ in range(teams)]
            works = []
            for thread in range(threads):
                place = (thread, 0, 1) if teams > 1 else (0, thread, threads)
                team = by_team[place[0]]
                barrier = (1 + place[0]) * arrays.SLOTS
                works.append(arrays.Work(arrays.Place(thread, threads, *place, barrier), shared, team, _zeros(mine)))
            self._plan = _Plan(key, shared, works)
        return self._plan


def _zeros(group: Any) -> Any:
    """The arrays of a group of the layout."""
    return type(group)(*(np.zeros(*spec) for spec in group))


def _layout(draws: int, d: int, n: int, dtype: Any, power: int, k: int, max_threads: int) -> tuple[int, int, Any]:
    """The numbers of threads and teams that a problem is worth, and the layout of the work arrays."""
    threads = min(max_threads, 1 + draws * n * n * (n + d) // _WORTH_A_THREAD)
    teams = threads if draws >= threads and n <= _OWN_DRAW_ROWS else 1
    return threads, teams, arrays.layout(threads, teams, draws, d, n, dtype, power, k)


def layout_bytes(size: StepSize, draws: int, d: int) -> int:
    """Bytes of the work arrays for so many draws and columns at once."""
    threads, teams, groups = _layout(draws, d, size.n, np.dtype(f"f{size.itemsize}"), size.power, 2, size.threads)
    specs = [(count, *spec) for count, group in zip((1, teams, threads), groups, strict=True) for spec in group]
    return int(sum(n * np.prod(shape, dtype=np.int64) * np.dtype(kind).itemsize for n, shape, kind in specs))


class _CompiledSteps:
    """`dufs_core.objective.protocol.Steps` of one run without Python between the steps."""

    def __init__(self, engine: DenseEngine, spec: RunSpec, mu: Array) -> None:
        self._engine, self._spec, self._mu, d = engine, spec, mu.copy(), len(mu)
        self._columns = np.ascontiguousarray(spec.columns, np.uint64)
        self._memory = {"first": np.zeros(d), "second": np.zeros(d), "running": np.zeros(1)}  # of the optimiser

    @property
    def mu(self) -> Array:
        return self._mu[None]

    def advance(self, batch: Array, rows: Array, step: int, count: int) -> list[Array]:
        plan, moving, call = self._call(batch, step, count)
        d, n = call[2].shape
        is_narrow = arrays.NARROW * d < n
        run = {1: _run_direct, 2: _run_narrow if is_narrow else _run}.get(self._spec.objective.power, _run)
        self._engine.in_threads(plan, lambda work: run(*call, work))
        return [moving.records[: int(moving.done[0])]]

    def _call(self, batch: Array, step: int, count: int) -> tuple[_Plan, arrays.RunArrays, tuple[Any, ...]]:
        """The plan, what moves, and the arguments of the kernel but for the work."""
        objective, optimizer, schedule, seed, _ = self._spec
        X = np.require(batch.T, requirements=_LAYOUT)
        d, n = X.shape
        self._mu = self._mu.copy()  # callers may have kept the one before
        plan = self._engine.plan(schedule.n_draws, d, n, X.dtype, objective)
        plan.shared.dz[:] = 0
        settings = kernel_settings(objective, X.dtype, n)
        rates = arrays.StepSettings(
            lam=float("nan") if objective.lam is None else float(objective.lam),
            delta=float(objective.delta),
            gate_sigma=float(objective.gate_sigma),
            rule=OPTIMIZERS[optimizer.name],
            learning_rate=float(optimizer.learning_rate),
            margin=DECIDED_MARGIN * objective.gate_sigma,
            undecided_enough=float(schedule.tol * d),
            seed=np.uint64(seed & 0xFFFFFFFFFFFFFFFF),
        )
        records, done = np.empty((count, len(RECORD))), np.zeros(1)
        moving = arrays.RunArrays(self._columns, self._mu, **self._memory, records=records, done=done)
        return plan, moving, (settings, rates, X, moving, step - 1)

    def save(self, run: int) -> dict[str, Array]:
        return {name: part.copy() for name, part in ({"mu": self._mu} | self._memory).items()}

    def load(self, saved: Sequence[dict[str, Array]]) -> None:
        (one,) = saved
        self._mu = one["mu"].copy()
        for name, part in self._memory.items():
            part[:] = one[name]


def kernel_settings(objective: Objective, dtype: Any, n: int) -> arrays.Settings:
    """The objective in the kernels' terms. Raises ValueError for what n rows cannot have."""
    rule = objective.bandwidth
    if isinstance(rule, str):
        quantile, factor = quantile_of(rule), float(objective.bandwidth_factor)
        check_n_neighbors(objective.n_neighbors, n)
    else:
        quantile, factor = -1.0, float(rule)
    if objective.power < 1:
        raise ValueError(f"power must be a whole number of at least 1; got {objective.power}")
    relative, absolute = noise_level(np.finfo(dtype))
    return arrays.Settings(
        quantile=quantile,
        n_neighbors=int(objective.n_neighbors),
        bandwidth_factor=factor,
        self_weight=objective.self_weight,
        isolated_degree=isolated_degree(objective.self_weight, float(np.finfo(dtype).eps)),
        zero_is_one=objective.degenerate_rule == "one",
        relative=relative,
        absolute=absolute,
    )
