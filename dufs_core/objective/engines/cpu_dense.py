"""The Gram form on the CPU in compiled code (`dufs_core.kernels.steps`): single evaluations and whole runs of steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any, NamedTuple

import numpy as np

from dufs_core.backend import Array, Backend
from dufs_core.objective.chain import Objective, Scores, Value
from dufs_core.objective.ops.bandwidth import check_n_neighbors, noise_level, quantile_of
from dufs_core.objective.ops.normalise import lone_degree
from dufs_core.objective.protocol import DECIDED_MARGIN, RECORD, Engine, RunSpec, StepSize

_GROUP = 16  # panels of columns that a thread has in hand for the products with M
_WORTH_A_THREAD = 1 << 22  # multiply-adds (0.1 ms) of all draws, below which another thread costs more than it brings
_OWN_DRAW_ROWS = 1024  # more rows: threads share each draw as efficiently, in the memory of one draw
_LAYOUT: Any = ("C", "A", "W")  # a read-only array would be another type to compile for


class _Work(NamedTuple):
    key: tuple[Any, ...]
    threads: int
    shared: Any
    team: Any
    mine: Any


class DenseEngine(Engine):
    """evaluate(bk, objective, mu, eps, X) for one fit, and `Steps` of a run in compiled code.

    Draws are spread over the threads; fewer draws than threads, and draws of many rows, are computed by all threads
    together. The result does not depend on the number of threads. Work arrays are kept from call to call: fresh ones
    cost a page fault every 4 KiB.
    """

    name = "dense"
    keeps_arrays = True

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads)
        self._compiled = False
        self._work: _Work | None = None

    def __call__(self, bk: Backend, objective: Objective, mu: Array, eps: Array, X: Array) -> tuple[Value, Array]:
        return objective.value_and_grad(bk, mu, eps, X, self._scores_and_grad)

    def _scores_and_grad(self, bk: Backend, objective: Objective, X: Array, z: Array, undecided: Array) -> Scores:
        columns = np.require(X.T, requirements=_LAYOUT)
        d, n = columns.shape
        settings = kernel_settings(objective, X.dtype, n, per_row=z.ndim == 3, only_scores=True)
        work = self.arrays(len(z), d, n, X.dtype, objective, z.ndim == 3)
        work.shared.z[:] = z[:, :, None] if z.ndim == 2 else z.swapaxes(1, 2)
        work.shared.dz[:] = 0
        nothing = np.zeros(0)
        self.together(
            work, settings, columns, np.zeros(0, np.uint64), np.zeros(0, X.dtype), nothing, nothing, nothing, 0,
            np.zeros((1, len(RECORD))), np.zeros(1),
        )  # fmt: skip
        S, b, degenerate, isolated = work.shared.scores[:4].copy()
        dz = work.shared.dz[:, :, 0] if z.ndim == 2 else work.shared.dz.swapaxes(1, 2)
        return Scores(S, b, degenerate > 0, isolated, dz.copy())

    def bytes_needed(self, size: StepSize) -> int:
        """As `Engine.bytes_needed`."""
        outside = size.n * size.d * (4 * size.draws + 1) if size.per_sample else 0  # noise and gates; the data again
        return layout_bytes(size, size.draws, size.d) + outside * size.itemsize

    def steps(self, bk: Backend, specs: Sequence[RunSpec], mu: Array) -> _CompiledSteps | None:
        """Whole steps in compiled code; None for several runs, and with one gate per sample (noise drawn outside)."""
        alone = len(specs) == 1 and specs[0].schedule.gate_noise == "batch"
        return _CompiledSteps(self, specs[0], mu[0]) if alone else None

    def together(self, work: _Work, *problem: Any) -> None:
        """kernels.steps.run in all threads at once; this one is the first.

        problem: its arguments up to `done`. Nobody waits for a thread that fails or never starts.
        """
        from dufs_core.kernels import steps

        arguments: tuple[Any, ...] = (*problem, work.shared, work.team, work.mine)
        if not self._compiled:
            *_, records, _ = problem
            nothing = tuple(records[:0] if argument is records else argument for argument in arguments)
            try:
                steps.run(*nothing, 0, 1)
            except OSError:  # compiled, but the disk is too full for the cache
                steps.run(*nothing, 0, 1)
            self._compiled = True
        self.in_team(work, lambda thread, threads: steps.run(*arguments, thread, threads))

    def in_team(self, work: _Work, member: Callable[[int, int], None]) -> None:
        """member(thread, threads) in all threads at once, with the barriers of `work`."""
        from dufs_core.kernels.team import ABANDONED, SLOTS

        threads, start = work.threads, Event()

        def guarded(thread: int) -> None:
            if thread:
                start.wait()
            try:
                member(thread, threads)
            except BaseException:
                work.shared.barriers[ABANDONED::SLOTS] = 1
                raise

        try:
            others = [self._pool.submit(guarded, thread) for thread in range(1, threads)]
            start.set()
            guarded(0)
            for other in others:
                other.result()
        except BaseException:
            work.shared.barriers[ABANDONED::SLOTS] = 1
            start.set()
            self._work = None
            raise

    def arrays(self, draws: int, d: int, n: int, dtype: Any, objective: Objective, per_row: bool) -> _Work:
        """The work arrays for problems of this size, the same ones as at the last call where that fits."""
        from dufs_core.kernels.vector import LANES

        power, k = objective.power, objective.n_neighbors
        key = (draws, d, n if per_row else -(-n // LANES), np.dtype(dtype), power, k, per_row)
        if self._work is None or self._work.key != key:
            self._work = None  # free the old ones first
            threads, *groups = layout(draws, d, n, dtype, power, k, per_row, self._threads)
            arrays = (type(group)(*(np.zeros(*spec) for spec in group)) for group in groups)
            self._work = _Work(key, threads, *arrays)
        return self._work


def layout(
    draws: int, d: int, n: int, dtype: Any, power: int, k: int, per_row: bool, max_threads: int
) -> tuple[int, Any, Any, Any]:
    """The number of threads that a problem is worth, and (shape, dtype) of every work array (`kernels.steps`)."""
    from dufs_core.kernels import steps
    from dufs_core.kernels.noise import CHUNK
    from dufs_core.kernels.panels import GATHERED
    from dufs_core.kernels.team import SLOTS
    from dufs_core.kernels.tile import ROWS
    from dufs_core.kernels.vector import LANES

    threads = min(max_threads, 1 + draws * n * n * (n + d) // _WORTH_A_THREAD)
    teams = threads if draws >= threads and n <= _OWN_DRAW_ROWS else 1
    P = -(-n // LANES)
    rows = P * LANES
    matrix, gates = (P, rows, LANES), (draws, d, n if per_row else 1)
    parts = steps.PARTS if rows <= steps.FEW_ROWS and d > GATHERED else 0
    double, whole = np.float64, np.int64
    return (
        threads,
        steps.Shared(
            z=(gates, dtype),
            dz=(gates, dtype),
            scores=((4, draws), double),
            by_chunk=((4, -(-d // CHUNK)), double),
            dmu=((d,), double),
            barriers=((1 + teams) * SLOTS, whole),
        ),
        steps.TeamWork(
            G=((teams, *matrix), dtype),
            powers=((teams, power, *matrix), dtype),
            H=((teams, *matrix), dtype),
            dA=((teams, *matrix), dtype),
            N=((teams, P if power > 2 else 0, rows, LANES), dtype),
            W=((max(2 * teams, threads), P, GATHERED, LANES), dtype),
            partial=((teams, parts, *matrix), dtype),
            vectors=((teams, 6, rows), dtype),
            row_sums=((teams, rows), double),
            by_panel=((teams, 3, P), double),
        ),
        steps.ThreadWork(
            active=((threads, 2, d + LANES), whole),
            W=((threads, min(_GROUP, -(-d // LANES)), rows, LANES), dtype),
            tile=((threads, 1, ROWS, LANES), dtype),
            sums=((threads, _GROUP, LANES), double),
            scratch=((threads, rows), dtype),
            best=((threads, k, LANES), dtype),
            normals=((threads, draws + 3, CHUNK), double),
            rows=((threads, 2), whole),
            weights=((threads, 2), double),
        ),
    )


def layout_bytes(size: StepSize, draws: int, d: int) -> int:
    """Bytes of the work arrays for so many draws and columns at once."""
    dtype = np.dtype(f"f{size.itemsize}")
    _, *groups = layout(draws, d, size.n, dtype, size.power, 2, size.per_sample, size.threads)
    arrays = [array for group in groups for array in group]
    return int(sum(np.prod(shape, dtype=np.int64) * np.dtype(kind).itemsize for shape, kind in arrays))


class _CompiledSteps:
    """`dufs_core.training.loop.Steps` without Python between the steps."""

    def __init__(self, engine: DenseEngine, problem: RunSpec, mu: Array) -> None:
        from dufs_core.kernels import steps

        self._mu = mu.copy()
        self._engine, self._problem = engine, problem
        self._columns = np.ascontiguousarray(problem.columns, np.uint64)
        self._first, self._second = np.zeros(len(mu)), np.zeros(len(mu))
        self._mean_square = np.zeros(1)
        self._rule = {"sgd": steps.SGD, "adam": steps.ADAM, "normalized": steps.NORMALIZED}[problem.optimizer.name]

    @property
    def mu(self) -> Array:
        """The gate parameters (1, d)."""
        return self._mu[None]

    def advance(self, batch: Array, rows: Array, step: int, count: int) -> list[Array]:
        """Up to `count` steps from number `step` on."""
        objective, optimizer, schedule, seed, _ = self._problem
        X = np.require(batch.T, requirements=_LAYOUT)
        d, n = X.shape
        self._mu = self._mu.copy()  # callers may have kept the one before
        work = self._engine.arrays(schedule.n_draws, d, n, X.dtype, objective, per_row=False)
        work.shared.dz[:] = 0
        settings = kernel_settings(
            objective, X.dtype, n, per_row=False, only_scores=False, rule=self._rule,
            learning_rate=float(optimizer.learning_rate), momentum=float(optimizer.momentum),
            margin=DECIDED_MARGIN * objective.gate_sigma, undecided_enough=float(schedule.tol * d),
            seed=np.uint64(seed & 0xFFFFFFFFFFFFFFFF),
        )  # fmt: skip
        records, done = np.empty((count, len(RECORD))), np.zeros(1)
        self._engine.together(
            work, settings, X, self._columns, self._mu, self._first, self._second, self._mean_square, step - 1,
            records, done,
        )  # fmt: skip
        return [records[: int(done[0])]]

    def save(self, run: int) -> dict[str, Array]:
        """mu, and the optimiser's memory in float64."""
        parts = {"mu": self._mu, "first": self._first, "second": self._second, "running": self._mean_square}
        return {name: part.copy() for name, part in parts.items()}

    def load(self, saved: Sequence[dict[str, Array]]) -> None:
        """Go on from what `save` gave."""
        (one,) = saved
        self._mu = one["mu"].copy()
        self._first[:], self._second[:], self._mean_square[:] = one["first"], one["second"], one["running"]


def kernel_settings(objective: Objective, dtype: Any, n: int, per_row: bool, only_scores: bool, **step: Any) -> Any:
    """The objective in the kernels' terms; `step` holds what only whole steps need, and `given`."""
    from dufs_core.kernels import steps

    rule = objective.bandwidth
    if isinstance(rule, str):
        quantile, factor = quantile_of(rule), float(objective.bandwidth_factor)
        check_n_neighbors(objective.n_neighbors, n)
    else:
        quantile, factor = -1.0, float(rule)
    if objective.power < 1:
        raise ValueError(f"power must be a whole number of at least 1; got {objective.power}")
    relative, absolute = noise_level(np.finfo(dtype))
    defaults: dict[str, Any] = {
        "rule": steps.SGD, "learning_rate": 0.0, "momentum": 0.0, "margin": 0.0, "undecided_enough": 0.0,
        "seed": np.uint64(0), "given": False,
    }  # fmt: skip
    return steps.Settings(
        lam=float("nan") if objective.lam is None else float(objective.lam),
        delta=float(objective.delta),
        gate_sigma=float(objective.gate_sigma),
        quantile=quantile,
        n_neighbors=int(objective.n_neighbors),
        bandwidth_factor=factor,
        bandwidth_gradient=bool(objective.bandwidth_gradient),
        self_weight=objective.self_weight,
        lone_degree=lone_degree(objective.self_weight, float(np.finfo(dtype).eps)),
        zero_is_one=objective.degenerate_rule == "one",
        relative=relative,
        absolute=absolute,
        per_row=per_row,
        only_scores=only_scores,
        **(defaults | step),
    )
