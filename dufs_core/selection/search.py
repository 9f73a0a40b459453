"""Several runs on the same data until one finds structure that shuffled columns do not have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple, Protocol

import numpy as np

from dufs_core.backend import Array, Backend, random
from dufs_core.data.matrix import take_columns
from dufs_core.errors import CheckpointError
from dufs_core.objective.chain import Objective
from dufs_core.objective.optimizers import Optimizer
from dufs_core.objective.protocol import Engine, RunSpec, RunState, Schedule
from dufs_core.objective.rules import RECORD
from dufs_core.significance.hsic import SHUFFLES, PairwiseHSIC
from dufs_core.significance.permutation_test import TEST_ROWS, PermutationTest, permutation_test
from dufs_core.training.loop import Callback, Run, StepInfo, TrainingRun, train
from dufs_core.training.progress import progress_bar

EXCESS_THRESHOLD = 0.18  # chance pairs among 100 columns reach 0.16, the two moons 0.19 to 0.3
THRESHOLD_SIZE = 10  # beyond this many columns the threshold falls like 1 / sqrt(number), as the chance level does
THRESHOLD_ROWS = 100  # chance pairs of 100 to 200 columns reach 0.46 in 20 rows, 0.37 in 30, 0.10 in 200, 0.05 in 400

_STRONGEST = 20  # columns of the second run: few enough that gates decide reliably
_FEWEST = 3  # columns of a later one


class Outcome(NamedTuple):
    """One run of the search."""

    run: Run
    columns: Array  # (d',) positions in the data of the columns that took part
    test: PermutationTest
    passed: bool = False  # this and the next are set by the search at its end
    tied: bool = False  # passed because all columns are pairwise dependent: the p-value is that of HSIC
    order_by: Array | None = None  # (d'') of all columns, larger first: the order of those that took no part in `run`


class SearchState(NamedTuple):
    """How far a search has come."""

    outcomes: list[Outcome]  # of the runs that are over
    position: RunState | None  # in the one that is not


class ProgressSaver(Protocol):
    """Saves the progress of a search, and knows where it starts."""

    start: SearchState

    def save(self, progress: Callable[[], SearchState]) -> None:
        """Called between steps, about every 0.1 s."""

    def save_now(self, progress: SearchState) -> bool:
        """Save in any case, and whether that succeeded: called at the end of the search."""


@dataclass(frozen=True)
class Search:
    """What the runs of a search share. A run looks at some of the columns, with draws of its own."""

    objective: Objective
    engine: Engine
    optimizer: Optimizer
    schedule: Schedule
    max_runs: int
    callbacks: Sequence[Callback] = ()
    verbose: int = 0
    tested: bool = True  # whether runs are compared with shuffled columns
    poll: Callable[[], None] | None = None  # called several times a second; may raise to end the search

    def run(
        self, bk: Backend, X: Array, columns: Array, seed: int, saver: ProgressSaver | None = None,
        first: Run | None = None,
    ) -> tuple[Outcome, int]:  # fmt: skip
        """The first run that passes, else the one with the largest excess score, and the number of runs.

        The objective alone cannot tell two columns that happen to agree from two that belong together: it can settle
        on either, depending on the draws. Shuffling can. A run passes with a large excess score, or, if more than one
        run is allowed, when all its columns are pairwise dependent (`dufs_core.significance.hsic`). After a first run
        that fails, the next one looks at the columns with the strongest pairwise dependence, among which gates decide
        reliably, and each later one at fewer of them (20, 14, 10, 7, 5), which leaves chance less room.

        X (n, d): scaled data, where the backend computes, or a `dufs_core.data.matrix.ScaledMatrix`. columns (d',),
        NumPy: positions that may be selected. first: the first run, if it has been trained already.
        """
        outcomes: list[Outcome] = []
        earlier = iter(saver.start.outcomes if saver else ())
        screening: PairwiseHSIC | None = None
        looked_at = columns
        while True:
            last = next(earlier, None)
            if last is None:
                last = self._outcome(bk, X, self.training_run(bk, looked_at, seed, outcomes, saver), first, outcomes)
            elif not (np.isin(last.columns, columns).all() if outcomes else np.array_equal(last.columns, columns)):
                raise CheckpointError(
                    f"The checkpoint is not of this fit: it has other columns in run {len(outcomes) + 1}"
                )
            first = None
            outcomes.append(last)
            chosen = last.columns[bk.to_host(last.run.mu) > 0]
            if last.test.excess >= excess_threshold(len(chosen), X.shape[0]):
                last = last._replace(passed=True)
                break
            if self.max_runs == 1 or not len(columns):
                break
            if screening is None:
                ranking = columns[np.argsort(-bk.to_host(last.run.mu), kind="stable")]
                screening = PairwiseHSIC(bk, X, ranking)
            if screening.all_dependent(chosen):
                last = last._replace(passed=True, tied=True, test=PermutationTest(last.test.excess, 1 / (1 + SHUFFLES)))
                break
            count = max(_FEWEST, int(_STRONGEST * 0.5 ** (len(outcomes) / 2 - 0.5)))
            looked_at = np.sort(screening.strongest[:count])
            if len(outcomes) == self.max_runs or len(looked_at) < 2:
                break
        if saver is not None:
            saver.save_now(SearchState(outcomes, None))
        best = last if last.passed else max(outcomes, key=lambda outcome: outcome.test.excess)
        if len(best.columns) < len(columns):
            best = best._replace(order_by=outcomes[0].run.mu)
        return best, len(outcomes)

    def training_run(
        self, bk: Backend, columns: Array, seed: int, outcomes: Sequence[Outcome], saver: ProgressSaver | None
    ) -> TrainingRun:
        """The run on these columns that follows `outcomes`, from where it was saved."""
        run_seed = random.derived_seed(bk, seed, len(outcomes))
        spec = RunSpec(self.objective, self.optimizer, self.schedule, run_seed, columns)
        if saver is None:
            return TrainingRun(spec, self.callbacks)
        start = saver.start.position if len(outcomes) == len(saver.start.outcomes) else None
        over = list(outcomes)

        def save(position: Callable[[], RunState]) -> None:
            saver.save(lambda: SearchState(over, position()))

        return TrainingRun(spec, self.callbacks, None, start, save)

    @contextmanager
    def watched(self, run: TrainingRun, number: int) -> Iterator[TrainingRun]:
        """The same run with a progress bar, if one is wanted, and `poll`."""
        with progress_bar(self.verbose, self.schedule.max_iter, "step", f"run {number}") as bar:

            def update(info: StepInfo) -> None:
                if self.poll is not None:
                    self.poll()
                bar.update(info.step - bar.n)
                bar.set_postfix(open=info.open_gates, undecided=info.undecided_gates, refresh=False)

            def within(part: float) -> None:
                bar.set_postfix_str(f"{part:.0%} of a step")

            self.engine.progress = within if self.verbose else None
            yield run._replace(progress=update)

    def _outcome(
        self, bk: Backend, X: Array, run: TrainingRun, trained: Run | None, outcomes: Sequence[Outcome]
    ) -> Outcome:
        columns = run.spec.columns
        if not len(columns):  # every column is constant
            nothing = Run(bk.xp.zeros(0, dtype=X.dtype), np.zeros((0, len(RECORD))), converged=True)
            return Outcome(nothing, columns, PermutationTest(0.0, 1.0))
        if len(columns) < X.shape[1]:
            X = take_columns(bk, X, columns)
        if trained is None:
            with self.watched(run, len(outcomes) + 1) as run:
                (trained,) = train(bk, X, self.engine, [run])
        if not self.tested:
            return Outcome(trained, columns, PermutationTest(0.0, 1.0))
        open_columns = np.flatnonzero(bk.to_host(trained.mu) > 0)
        return Outcome(trained, columns, permutation_test(bk, X, open_columns, columns=columns))


def excess_threshold(n_selected: int, n_rows: int) -> float:
    """0.18 min(1, sqrt(10 / m)) r, the excess score that ends a search: m = n_selected, n = n_rows, at most 512.

    r = (100 / n)^(3/4) for n < 100, else sqrt(100 / n).
    """
    size = min(1.0, sqrt(THRESHOLD_SIZE / max(n_selected, 1)))
    ratio = THRESHOLD_ROWS / min(n_rows, TEST_ROWS)
    return float(EXCESS_THRESHOLD * size * ratio ** (0.75 if ratio > 1 else 0.5))
