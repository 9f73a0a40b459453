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
from dufs_core.objective.chain import Objective, Scores
from dufs_core.objective.ops.bandwidth import check_n_neighbors, noise_level, quantile_of
from dufs_core.objective.ops.normalise import isolated_degree
from dufs_core.objective.protocol import Engine, RunSpec, StepSize
from dufs_core.objective.rules import DECIDED_MARGIN, OPTIMIZERS, RECORD

_WORTH_A_THREAD = 1 << 22  # multiply-adds (0.1 ms) of all draws, below which another thread costs more than it brings
_OWN_DRAW_ROWS = 1024  # more rows: threads share each draw as efficiently, in the memory of one draw
_run, _scores = Kernel("steps", "run"), Kernel("steps", "scores")
_LAYOUT: Any = ("C", "A", "W")  # a read-only array would be another type to compile for


class _Plan(NamedTuple):
    """The work arrays for problems of one size, and how many threads these are worth."""

    key: tuple[Any, ...]
    threads: int
    work: arrays.Work


class DenseEngine(Engine):
    """The draws are spread over the threads; all threads share a draw where draws are few or have many rows.

    The result does not depend on the number of threads. Work arrays are kept from call to call: fresh ones cost a page
    fault every 4 KiB.
    """

    name = "dense"
    keeps_arrays = True

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads)
        self._plan: _Plan | None = None

    def _scores_and_grad(self, bk: Backend, objective: Objective, X: Array, z: Array, undecided: Array) -> Scores:
        columns = np.require(X.T, requirements=_LAYOUT)
        d, n = columns.shape
        settings = kernel_settings(objective, X.dtype, n)
        plan = self.plan(len(z), d, n, X.dtype, objective)
        shared = plan.work.shared
        shared.z[:], shared.dz[:] = z, 0
        self.in_threads(plan, lambda *thread: _scores(settings, columns, plan.work, *thread))
        S, b, degenerate, isolated = shared.scores.copy()
        return Scores(S, b, degenerate > 0, isolated, shared.dz.copy())

    def bytes_needed(self, size: StepSize) -> int:
        return layout_bytes(size, size.draws, size.d)

    def steps(self, bk: Backend, specs: Sequence[RunSpec], mu: Array) -> _CompiledSteps | None:
        """Of one run; None for several."""
        return _CompiledSteps(self, specs[0], mu[0]) if len(specs) == 1 else None

    def in_threads(self, plan: _Plan, kernel: Callable[[int, int], None]) -> None:
        """kernel(thread, threads) in all threads of the plan at once, with its barriers; this one is the first.

        Nobody waits for a thread that fails or never starts.
        """
        threads, start, barriers = plan.threads, Event(), plan.work.shared.barriers

        def guarded(thread: int) -> None:
            if thread:
                start.wait()
            try:
                kernel(thread, threads)
            except BaseException:
                barriers[arrays.ABANDONED :: arrays.SLOTS] = 1
                raise

        try:
            others = [self._pool.submit(guarded, thread) for thread in range(1, threads)]
            start.set()
            guarded(0)
            for other in others:
                other.result()
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
            threads, layout = _layout(draws, d, n, dtype, power, k, self._threads)
            groups = (type(group)(*(np.zeros(*spec) for spec in group)) for group in layout)
            self._plan = _Plan(key, threads, type(layout)(*groups))
        return self._plan


def _layout(draws: int, d: int, n: int, dtype: Any, power: int, k: int, max_threads: int) -> tuple[int, Any]:
    """The number of threads that a problem is worth, and (shape, dtype) of the work arrays (`kernels.steps`)."""
    threads = min(max_threads, 1 + draws * n * n * (n + d) // _WORTH_A_THREAD)
    teams = threads if draws >= threads and n <= _OWN_DRAW_ROWS else 1
    return threads, arrays.layout(threads, teams, draws, d, n, dtype, power, k)


def layout_bytes(size: StepSize, draws: int, d: int) -> int:
    """Bytes of the work arrays for so many draws and columns at once."""
    _, groups = _layout(draws, d, size.n, np.dtype(f"f{size.itemsize}"), size.power, 2, size.threads)
    specs = [spec for group in groups for spec in group]
    return int(sum(np.prod(shape, dtype=np.int64) * np.dtype(kind).itemsize for shape, kind in specs))


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
        self._engine.in_threads(plan, lambda *thread: _run(*call, *thread))
        return [moving.records[: int(moving.done[0])]]

    def are_compiled(self, batch: Array) -> bool:
        plan, _, call = self._call(batch, 1, 1)
        return _run.is_ready(*call, 0, plan.threads)

    def _call(self, batch: Array, step: int, count: int) -> tuple[_Plan, arrays.RunArrays, tuple[Any, ...]]:
        """The plan, what moves, and the arguments of the kernel but for the thread."""
        objective, optimizer, schedule, seed, _ = self._spec
        X = np.require(batch.T, requirements=_LAYOUT)
        d, n = X.shape
        self._mu = self._mu.copy()  # callers may have kept the one before
        plan = self._engine.plan(schedule.n_draws, d, n, X.dtype, objective)
        plan.work.shared.dz[:] = 0
        settings = kernel_settings(objective, X.dtype, n)
        rates = arrays.StepSettings(
            lam=float("nan") if objective.lam is None else float(objective.lam),
            delta=float(objective.delta),
            gate_sigma=float(objective.gate_sigma),
            rule=OPTIMIZERS[optimizer.name],
            learning_rate=float(optimizer.learning_rate),
            momentum=0.0,
            margin=DECIDED_MARGIN * objective.gate_sigma,
            undecided_enough=float(schedule.tol * d),
            seed=np.uint64(seed & 0xFFFFFFFFFFFFFFFF),
        )
        records, done = np.empty((count, len(RECORD))), np.zeros(1)
        moving = arrays.RunArrays(self._columns, self._mu, **self._memory, records=records, done=done)
        return plan, moving, (settings, rates, X, moving, step - 1, plan.work)

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
        bandwidth_gradient=True,
        self_weight=objective.self_weight,
        isolated_degree=isolated_degree(objective.self_weight, float(np.finfo(dtype).eps)),
        zero_is_one=objective.degenerate_rule == "one",
        relative=relative,
        absolute=absolute,
    )
