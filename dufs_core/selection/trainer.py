"""Train gates once: one run from its first step, or from where it was saved, to its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from dufs_core.backend import Array, Backend, random
from dufs_core.errors import CheckpointError
from dufs_core.objective.chain import Objective
from dufs_core.objective.optimizers import Optimizer
from dufs_core.objective.protocol import Engine, RunSpec, RunState, Schedule
from dufs_core.objective.rules import RECORD
from dufs_core.significance.permutation import NOT_TESTED, PermutationTest
from dufs_core.training.loop import Callback, Run, StepInfo, TrainingRun, train
from dufs_core.training.progress import progress_bar


class FinishedRun(NamedTuple):
    """A run that is over."""

    run: Run
    columns: Array  # (m,) positions in the data of the columns that had gates; beyond it, of decoys
    test: PermutationTest = NOT_TESTED


class Progress(NamedTuple):
    """How far a fit has come."""

    finished: Sequence[FinishedRun]
    position: RunState | None  # in the run that is not over


class ProgressSaver(Protocol):
    """Saves the progress of a fit, and knows where it starts."""

    start: Progress

    def save(self, progress: Callable[[], Progress]) -> None:
        """Called between steps, about every 0.1 s."""

    def save_now(self, progress: Progress) -> bool:
        """Save in any case, and whether that succeeded: called at the end."""


def go_on() -> None:
    """A poll that ends nothing."""


@dataclass(frozen=True, kw_only=True)
class FitContext:
    """What a procedure computes with."""

    bk: Backend
    objective: Objective
    seed: int
    verbose: int = 0
    poll: Callable[[], None] = go_on  # called between steps, or between other parts of a fit; may raise to end it


@dataclass(frozen=True, kw_only=True)
class GateTrainer(FitContext):
    """The same where gates are trained: what all runs of a fit share."""

    engine: Engine
    optimizer: Optimizer
    schedule: Schedule
    saver: ProgressSaver | None = None
    callbacks: Sequence[Callback] = ()

    def run(self, columns: Array, finished: Sequence[FinishedRun] = ()) -> TrainingRun:
        """The run on these columns that follows those that are over, from where it was saved."""
        run_seed = random.derived_seed(self.bk, self.seed, len(finished))
        spec = RunSpec(self.objective, self.optimizer, self.schedule, run_seed, columns)
        saver = self.saver
        if saver is None:
            return TrainingRun(spec, self.callbacks)
        start = saver.start.position if len(finished) == len(saver.start.finished) else None
        over = list(finished)

        def save(position: Callable[[], RunState]) -> None:
            saver.save(lambda: Progress(over, position()))

        return TrainingRun(spec, self.callbacks, None, start, save)

    def train(self, X: Array, columns: Array, finished: Sequence[FinishedRun] = ()) -> Run:
        """Train the gates of `columns`, whose data are X (n, m), to the end."""
        if not len(columns):  # every column is constant
            nothing = self.bk.xp.zeros(0, dtype=X.dtype)
            return Run(nothing, np.zeros((0, len(RECORD))), converged=True)
        with self._watched(self.run(columns, finished), len(finished) + 1) as run:
            (trained,) = train(self.bk, X, self.engine, [run])
        return trained

    def saved_run(self, number: int, are_those: Callable[[Array], bool]) -> FinishedRun | None:
        """Run `number` (from 0), where an earlier process has finished it.

        Raises CheckpointError unless its columns are those of this fit.
        """
        finished = () if self.saver is None else self.saver.start.finished
        if number >= len(finished):
            return None
        saved = finished[number]
        if not are_those(saved.columns):
            raise CheckpointError(f"The checkpoint is not of this fit: it has other columns in run {number + 1}")
        return saved

    def finish(self, finished: Sequence[FinishedRun]) -> None:
        """Save that the runs are over, where the fit is saved."""
        if self.saver is not None:
            self.saver.save_now(Progress(finished, None))

    @contextmanager
    def _watched(self, run: TrainingRun, number: int) -> Iterator[TrainingRun]:
        """The same run with a progress bar, if one is wanted, and `poll`."""
        with progress_bar(self.verbose, self.schedule.max_iter, "step", f"run {number}") as bar:

            def update(info: StepInfo) -> None:
                self.poll()
                bar.update(info.step - bar.n)
                bar.set_postfix(open=info.open_gates, undecided=info.undecided_gates, refresh=False)

            def within(part: float) -> None:
                bar.set_postfix_str(f"{part:.0%} of a step")

            self.engine.progress = within if self.verbose else None
            yield run._replace(progress=update)
