"""The loop: draws, minibatches, steps, stopping, history, callbacks.

Every random number is a function of (seed, step), so the state of a run is (step, mu, optimiser state).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from dufs_core.backend import Array, Backend, random
from dufs_core.data.matrix import take_rows
from dufs_core.objective.chain import Evaluate, Objective
from dufs_core.objective.optimizers import Optimizer, State
from dufs_core.objective.protocol import HISTORY, RECORD, RunSpec, RunState, Schedule, Steps, undecided

INITIAL_MU = 0.5
_SECONDS_TOGETHER = 0.1
_JITTER, _JITTER_CUT = 0.01, 2.0  # authors' code: truncated normal, resampled beyond two standard deviations


class StepInfo(NamedTuple):
    """What callbacks receive after every step; arrays are the trainer's own and must not be written to."""

    step: int  # 1, 2, ...
    mu: Array  # (d,)
    loss: float
    open_gates: int  # number of mu > 0
    undecided_gates: int
    columns: Array  # (d,) their positions in the user's data


Callback = Callable[[StepInfo], Any]


class Run(NamedTuple):
    """The end of a run."""

    mu: Array  # (d,)
    history: dict[str, Array]  # each (steps,)
    n_iter: int
    converged: bool
    isolated: float  # largest share of rows without neighbours in any step
    degenerate: int  # number of steps in which the bandwidth rule gave 0


def initial_mu(bk: Backend, seed: int, columns: Array, dtype: Any, noisy_start: bool) -> Array:
    """mu = 1/2, plus, with `noisy_start`, a normal of standard deviation 0.01 truncated at two of them
    (authors' code)."""
    mu = bk.xp.full(len(columns), INITIAL_MU, dtype=np.float64)
    if noisy_start:
        noise = bk.xp.full(len(columns), bk.xp.inf)
        attempt = 0
        while (abs(noise) > _JITTER_CUT).any():
            fresh = random.normals(bk, seed, random.Stream.INITIAL_MU, attempt, 1, None, columns, np.float64)[0]
            noise = bk.xp.where(abs(noise) > _JITTER_CUT, fresh, noise)
            attempt += 1
        mu += _JITTER * noise
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
    """Steps of any engine: noise, evaluation and update one after the other, on any backend."""

    def __init__(self, bk: Backend, evaluate: Evaluate, problem: RunSpec, mu: Array) -> None:
        self.mu = mu
        self._bk, self._evaluate, self._problem, self._state = bk, evaluate, problem, State()

    def advance(self, batch: Array, rows: Array, step: int, count: int) -> Array:
        """One step, whatever `count`."""
        objective, optimizer, schedule, seed, columns = self._problem
        noise_rows = rows if schedule.gate_noise == "sample" else None
        eps = gate_noise(self._bk, seed, step, schedule.n_draws, noise_rows, columns, batch.dtype)
        value, dmu = self._evaluate(self._bk, objective, self.mu, eps, batch)
        self.mu, self._state = optimizer(self._bk, self.mu, dmu, self._state)
        return np.array(
            [(value.loss, float(value.score.mean()) / batch.shape[0], float(value.bandwidth.mean()),
              int((self.mu > 0).sum()), int(undecided(self.mu, objective.gate_sigma).sum()),
              value.isolated, bool(value.degenerate.any()))]
        )  # fmt: skip

    def save(self) -> dict[str, np.ndarray[Any, Any]]:
        """mu, and the parts of `dufs_core.training.optimizers.State` that are in use."""
        parts = {"mu": self.mu, **self._state._asdict()}
        return {name: np.array(self._bk.to_host(part)) for name, part in parts.items() if part is not None}

    def load(self, saved: dict[str, np.ndarray[Any, Any]]) -> None:
        """Go on from what `save` gave."""
        arrays = {name: self._bk.to_device(part) for name, part in saved.items() if name != "step"}
        self.mu = arrays.pop("mu")
        self._state = State(int(saved["step"]), **arrays)


def _batches(bk: Backend, seed: int, X: Array, schedule: Schedule, taken: int) -> Iterator[tuple[Array, Array]]:
    """(row indices, data of the batch), without end, after `taken` steps; a full batch is the data themselves."""
    n = X.shape[0]
    full = schedule.batch_size is None or schedule.batch_size >= n
    epoch, done = divmod(taken, 1 if full else -(-n // int(schedule.batch_size or n)))
    while True:
        for rows in batches(bk, seed, epoch, n, schedule)[done:]:
            yield rows, X if full else take_rows(X, rows)
        epoch, done = epoch + 1, 0


def train(
    bk: Backend,
    X: Array,
    columns: Array,
    objective: Objective,
    evaluate: Evaluate,
    optimizer: Optimizer,
    schedule: Schedule,
    seed: int,
    noisy_start: bool = False,
    callbacks: Sequence[Callback] = (),
    progress: Callable[[StepInfo], None] | None = None,
    start: RunState | None = None,
    keep: Callable[[Callable[[], RunState]], None] | None = None,
) -> Run:
    """Minimise the objective over mu.

    Parameters
    ----------
    X : (n, d)
        Scaled data in Fortran order, or a `dufs_core.data.matrix.ScaledMatrix`.
    columns : (d,) int
        RunState of each column in the user's data: what its draws are keyed by.
    evaluate
        The engine: evaluate(bk, objective, mu, eps, X) -> (Value, dmu); one with a method `steps(bk, problem, mu)` may
        return its own `Steps` there, or None.
    noisy_start : bool
        Whether mu starts with the authors' code's small noise.
    callbacks
        Called with a StepInfo after every step; one that returns True ends the run.
    start
        Where another run with the same arguments stood; this one goes on from there to the same end.
    keep
        Called between steps with a function that gives the position. Unlike callbacks it leaves the engine to take
        several steps at a time, about 0.1 s of them.
    """
    if schedule.n_draws < 1 or (schedule.n_draws > 1 and schedule.n_draws % 2):
        raise ValueError(f"n_draws must be 1 or an even number (draws come in pairs eps, -eps); got {schedule.n_draws}")
    problem = RunSpec(objective, optimizer, schedule, seed, columns)
    mu = initial_mu(bk, seed, columns, X.dtype, noisy_start)
    own = evaluate.steps(bk, problem, mu) if hasattr(evaluate, "steps") else None
    steps: Steps = own or Stepwise(bk, evaluate, problem, mu)
    enough = schedule.tol * len(mu)
    full = schedule.batch_size is None or schedule.batch_size >= X.shape[0]
    records: list[Array] = []
    step, together = 0, 1
    if start is not None and start.is_end(schedule, len(mu)):
        return finished(bk.to_device(start.steps["mu"]), start.records, schedule)
    if start is not None:
        steps.load(start.steps)
        records, step = [start.records], start.step
    for rows, batch in _batches(bk, seed, X, schedule, step):
        started = perf_counter()
        records.append(steps.advance(batch, rows, step + 1, min(together, schedule.max_iter - step)))
        if full and not callbacks and perf_counter() - started < _SECONDS_TOGETHER:
            together *= 2  # long enough to be fast, short enough for the progress bar and Ctrl-C
        step += len(records[-1])
        last = dict(zip(RECORD, records[-1][-1], strict=True))
        info = StepInfo(step, steps.mu, last["loss"], int(last["open_gates"]), int(last["undecided_gates"]), columns)
        stop = [callback(info) is True for callback in callbacks]
        if progress is not None:
            progress(info)
        if info.undecided_gates <= enough or any(stop) or step == schedule.max_iter:
            break
        if keep is not None:
            keep(lambda: RunState(step, steps.save(), np.concatenate(records)))  # noqa: B023  (called at once)
    return finished(steps.mu, np.concatenate(records), schedule)


def finished(mu: Array, records: Array, schedule: Schedule) -> Run:
    """The end of a run from its records (steps, len(RECORD))."""
    table = dict(zip(RECORD, records.T, strict=True))
    history = {"step": np.arange(1, len(records) + 1)} | {name: table[name] for name in HISTORY[1:]}
    for name in ("open_gates", "undecided_gates"):
        history[name] = history[name].astype(np.int64)
    converged = bool(history["undecided_gates"][-1] <= schedule.tol * len(mu))
    return Run(mu, history, len(records), converged, float(table["isolated"].max()), int(table["degenerate"].sum()))


Train = Callable[..., Run]  # `train`, or what stands for it
