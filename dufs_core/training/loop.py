"""The training loop: batches, draws, steps, the stopping rule, records, callbacks and saving.

Every random number is a function of (seed, step), so the state of a run is (step, mu, optimiser state).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from dufs_core.backend import Array, Backend, random
from dufs_core.data.matrix import take_rows
from dufs_core.errors import CheckpointError, InterruptedFit
from dufs_core.objective.optimizers import State
from dufs_core.objective.protocol import Engine, RunSpec, RunState, Schedule, Steps, undecided
from dufs_core.objective.rules import HISTORY, OPTIMIZERS, RECORD

INITIAL_MU = 0.5
_CALL_SECONDS = 0.1  # several steps per call: long enough to be fast, short enough for the progress bar and Ctrl-C
_NOISE, _NOISE_CUT = 0.01, 2.0  # authors' code: truncated normal, resampled beyond two standard deviations


class StepInfo(NamedTuple):
    """What callbacks receive after every step; arrays belong to the training loop and must not be written to."""

    step: int  # 1, 2, ...
    mu: Array  # (d,)
    loss: float
    open_gates: int  # number of mu > 0
    undecided_gates: int
    columns: Array  # (d,) their positions in the user's data


Callback = Callable[[StepInfo], Any]
SaveState = Callable[[Callable[[], RunState]], None]


class Run(NamedTuple):
    """The result of a run."""

    mu: Array  # (d,)
    records: Array  # (steps, len(RECORD))
    converged: bool

    @property
    def n_iter(self) -> int:
        """Number of steps."""
        return len(self.records)

    @property
    def history(self) -> dict[str, Array]:
        """`history_` of `dufs_core.GatedLaplacian`."""
        table = {"step": np.arange(1, len(self.records) + 1)} | dict(zip(RECORD, self.records.T, strict=True))
        whole = ("open_gates", "undecided_gates")
        return {name: table[name].astype(np.int64) if name in whole else table[name] for name in HISTORY}

    @property
    def isolated(self) -> float:
        """Largest fraction of rows without neighbours in any step."""
        return float(self.records[:, RECORD.index("isolated")].max(initial=0.0))

    @property
    def degenerate(self) -> int:
        """Number of steps in which the bandwidth rule gave 0."""
        return int(self.records[:, RECORD.index("degenerate")].sum())


class TrainingRun(NamedTuple):
    """A run to train, where it starts, and who watches it."""

    spec: RunSpec
    callbacks: Sequence[Callback] = ()  # called after every step; one that returns True ends the run
    progress: Callable[[StepInfo], None] | None = None  # called several times a second
    start: RunState | None = None  # of the same run earlier: it goes on from there to the same end
    save: SaveState | None = None  # called between steps, several times a second, with a function that gives the state

    @property
    def is_over(self) -> bool:
        """Whether the start is an end."""
        return self.start is not None and self.start.is_end(self.spec.schedule, len(self.spec.columns))


def initial_mu(bk: Backend, seed: int, columns: Array, dtype: Any, noisy_start: bool) -> Array:
    """mu = 1/2, in the authors' code plus 0.01 times a standard normal within two standard deviations."""
    mu = bk.xp.full(len(columns), INITIAL_MU, dtype=np.float64)
    if noisy_start:
        noise = bk.xp.full(len(columns), bk.xp.inf)
        attempt = 0
        while (abs(noise) > _NOISE_CUT).any():
            fresh = random.normals(bk, seed, random.Stream.INITIAL_MU, attempt, 1, None, columns, np.float64)[0]
            noise = bk.xp.where(abs(noise) > _NOISE_CUT, fresh, noise)
            attempt += 1
        mu += _NOISE * noise
    return mu.astype(dtype)


def gate_noise(
    bk: Backend, seed: int, step: int, n_draws: int, rows: Array | None, columns: Array, dtype: Any
) -> Array:
    """The draws of one step, (n_draws, d), or (n_draws, rows, d): one draw, or pairs (eps, -eps)."""
    if n_draws == 1:
        return random.normals(bk, seed, random.Stream.GATES, step, 1, rows, columns, dtype)
    half = random.normals(bk, seed, random.Stream.GATES, step, n_draws // 2, rows, columns, dtype)
    return bk.xp.concatenate([half, -half])


def batches(bk: Backend, seed: int, epoch: int, n: int, schedule: Schedule) -> list[Array]:
    """The row indices of every batch of one epoch; a full batch keeps the rows in place."""
    xp = bk.xp
    size = schedule.batch_size
    if size is None or size >= n:
        return [xp.arange(n)]
    count = -(-n // size)
    if schedule.batches == "wrap":
        first = epoch * count * size
        shuffles = range(first // n, (first + count * size - 1) // n + 1)
        order = xp.concatenate([random.permutation(bk, seed, random.Stream.SHUFFLE, i, n) for i in shuffles])
        start = first - shuffles.start * n
        return [order[start + i * size : start + (i + 1) * size] for i in range(count)]
    order = random.permutation(bk, seed, random.Stream.SHUFFLE, epoch, n)
    cuts = [n * i // count for i in range(count + 1)]
    return [order[a:b] for a, b in pairwise(cuts)]


class Stepwise:
    """`Steps` of one run with any engine and backend: noise, evaluation and update one after the other."""

    def __init__(self, bk: Backend, engine: Engine, spec: RunSpec, mu: Array) -> None:
        self._bk, self._engine, self._spec, self._mu, self._state = bk, engine, spec, mu, State()

    @property
    def mu(self) -> Array:
        """The gate parameters (1, d)."""
        return self._mu[None]

    def advance(self, batch: Array, rows: Array, step: int, count: int) -> list[Array]:
        """One step, whatever `count`."""
        objective, optimizer, schedule, seed, columns = self._spec
        noise_rows = rows if schedule.gate_noise == "sample" else None
        eps = gate_noise(self._bk, seed, step, schedule.n_draws, noise_rows, columns, batch.dtype)
        value, dmu = self._engine(self._bk, objective, self._mu, eps, batch)
        self._mu, self._state = optimizer(self._bk, self._mu, dmu, self._state)
        record = {
            "loss": value.loss,
            "score": float(value.score.mean()) / batch.shape[0],
            "bandwidth": float(value.bandwidth.mean()),
            "open_gates": int((self._mu > 0).sum()),
            "undecided_gates": int(undecided(self._mu, objective.gate_sigma).sum()),
            "isolated": value.isolated,
            "degenerate": bool(value.degenerate.any()),
        }
        return [np.array([[record[name] for name in RECORD]])]

    def save(self, run: int) -> dict[str, np.ndarray[Any, Any]]:
        """mu, and the parts of the optimiser's `State` that are in use."""
        parts = {"mu": self._mu, **self._state._asdict()}
        return {name: np.array(self._bk.to_host(part)) for name, part in parts.items() if part is not None}

    def load(self, saved: Sequence[dict[str, np.ndarray[Any, Any]]]) -> None:
        """Go on from what `save` gave."""
        arrays = {name: self._bk.to_device(part) for name, part in saved[0].items() if name != "step"}
        self._mu = arrays.pop("mu")
        self._state = State(int(saved[0]["step"]), **arrays)


def _batches(bk: Backend, seed: int, X: Array, schedule: Schedule, taken: int) -> Iterator[tuple[Array, Array]]:
    """(row indices, data of the batch), without end, after `taken` steps; a full batch is the data themselves."""
    n = X.shape[0]
    full = schedule.batch_size is None or schedule.batch_size >= n
    epoch, done = divmod(taken, 1 if full else -(-n // int(schedule.batch_size or n)))
    while True:
        for rows in batches(bk, seed, epoch, n, schedule)[done:]:
            yield rows, X if full else take_rows(X, rows)
        epoch, done = epoch + 1, 0


def train(bk: Backend, X: Array, engine: Engine, runs: Sequence[TrainingRun]) -> list[Run]:
    """Minimise the objective over mu in each of the runs.

    Several runs, which differ in seed and lam and start at the same step, advance as one stack where the engine can;
    with minibatches or callbacks they are trained in turn. InterruptedFit, raised where one of a stack is saved, ends
    all of them once each has been saved.

    X (n, d): scaled data in Fortran order, or a `dufs_core.data.matrix.ScaledMatrix`.
    Raises ValueError for an odd number of draws above 1, CheckpointError for a start that these runs cannot have had.
    """
    specs = [run.spec for run in runs]
    schedule = specs[0].schedule
    if schedule.n_draws < 1 or (schedule.n_draws > 1 and schedule.n_draws % 2):
        raise ValueError(f"n_draws must be 1 or an even number (draws come in pairs eps, -eps); got {schedule.n_draws}")
    for run in runs:
        if run.start is not None:
            _check_parts(run.start.steps, {"mu": np.empty(len(run.spec.columns), X.dtype)})
    if len(runs) == 1 and runs[0].start is not None and runs[0].is_over:
        return [make_run(bk.to_device(runs[0].start.steps["mu"]), runs[0].start.records, schedule)]
    full = schedule.batch_size is None or schedule.batch_size >= X.shape[0]
    watched = any(run.callbacks for run in runs)
    one_by_one = watched or not full
    steps = _steps(bk, engine, specs, X.dtype) if len(runs) == 1 or not one_by_one else None
    if steps is None:
        return [train(bk, X, engine, [run])[0] for run in runs]

    # Begin, or go on where the runs were saved
    step = 0
    records: list[list[Array]] = [[] for _ in runs]
    starts = [run.start for run in runs if run.start is not None]
    if starts:
        for start in starts:
            _check_parts(start.steps, steps.save(0))
        steps.load([start.steps for start in starts])
        step = starts[0].step
        records = [[start.records] for start in starts]

    # Several steps a call where nobody looks at each: twice as many as in the last one while that was short
    count = 1
    for rows, batch in _batches(bk, specs[0].seed, X, schedule, step):
        began = perf_counter()
        parts = steps.advance(batch, rows, step + 1, min(count, schedule.max_iter - step))
        is_short = perf_counter() - began < _CALL_SECONDS
        if is_short and not one_by_one and len(parts[0]) == count:
            count *= 2
        mu = steps.mu
        going = False
        for i, part in enumerate(parts):
            if len(part):
                records[i].append(part)
                going |= _goes_on(runs[i], step + len(part), mu[i], part[-1])
        step += max(len(part) for part in parts)
        if not going or step == schedule.max_iter:
            break
        _save_all(runs, steps, records)
    return [make_run(mu, np.concatenate(table), schedule) for mu, table in zip(steps.mu, records, strict=True)]


def _check_parts(saved: Mapping[str, Array], own: Mapping[str, Array]) -> None:
    """Raise CheckpointError unless what was saved has the parts of a run's own state, in their shapes and dtypes."""
    for name, part in own.items():
        found = saved.get(name)
        if found is None or (found.shape, found.dtype) != (part.shape, part.dtype):
            what = "missing" if found is None else f"{found.dtype} of shape {found.shape}"
            wanted = f"it must be {part.dtype} of shape {part.shape}"
            raise CheckpointError(f"The checkpoint is not of this fit: its {name} is {what}, and {wanted}")


def _steps(bk: Backend, engine: Engine, specs: Sequence[RunSpec], dtype: Any) -> Steps | None:
    """The steps of the engine, else of the loop; None for several runs that the engine cannot advance together."""
    first = specs[0]
    noisy = first.schedule.noisy_start
    mu = bk.xp.stack([initial_mu(bk, spec.seed, first.columns, dtype, noisy) for spec in specs])
    is_fused = first.schedule.gate_noise == "batch" and first.optimizer.name in OPTIMIZERS  # noise and rule in kernels
    steps = engine.steps(bk, specs, mu) if is_fused else None
    if steps is None and len(specs) == 1:
        return Stepwise(bk, engine, first, mu[0])
    return steps


def _goes_on(run: TrainingRun, step: int, mu: Array, record: Array) -> bool:
    """Tell those who watch the run; whether neither they nor its decided gates end it."""
    last = dict(zip(RECORD, record, strict=True))
    columns = run.spec.columns
    info = StepInfo(step, mu, last["loss"], int(last["open_gates"]), int(last["undecided_gates"]), columns)
    stop = [callback(info) is True for callback in run.callbacks]
    if run.progress is not None:
        run.progress(info)
    return info.undecided_gates > run.spec.schedule.tol * len(columns) and not any(stop)


def _save_all(runs: Sequence[TrainingRun], steps: Steps, records: Sequence[Sequence[Array]]) -> None:
    """Let every run be saved; then raise the InterruptedFit of one that was asked to stop."""
    asked: InterruptedFit | None = None

    def state(i: int) -> RunState:
        table = np.concatenate(records[i])
        return RunState(len(table), steps.save(i), table)

    for i, run in enumerate(runs):
        if run.save is not None:
            try:
                run.save(partial(state, i))
            except InterruptedFit as error:
                asked = error
    if asked is not None:
        raise asked


def make_run(mu: Array, records: Array, schedule: Schedule) -> Run:
    """The result of a run from its records. Raises ValueError if they, or the gates, are not finite numbers."""
    finite = np.isfinite(records[:, RECORD.index("loss")])
    if not (finite.all() and bool((mu - mu == 0).all())):
        step = len(finite) if finite.all() else int(finite.argmin()) + 1
        raise ValueError(
            f"After step {step} of {len(finite)} the loss or a gate is not a finite number: a parameter or the data "
            f"lead beyond the numbers of {mu.dtype}. Use a lam, learning_rate, gate_sigma and bandwidth nearer to 1, "
            f'scaling="columns", or dtype="float64"'
        )
    return Run(mu, records, bool(records[-1][RECORD.index("undecided_gates")] <= schedule.tol * len(mu)))
