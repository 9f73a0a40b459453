"""Several runs on the same data until one finds structure that shuffled columns do not have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import sqrt
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from dufs_core.backend import Array, Backend, random
from dufs_core.data.matrix import take_columns
from dufs_core.objective.chain import Objective
from dufs_core.objective.optimizers import Optimizer
from dufs_core.objective.protocol import HISTORY, Engine, RunState, Schedule
from dufs_core.significance.hsic import SHUFFLES, PairwiseHSIC
from dufs_core.significance.permutation_test import TEST_ROWS, PermutationTest, permutation_test
from dufs_core.training.loop import Callback, Run, StepInfo, Train

EXCESS_THRESHOLD = 0.18  # chance pairs among 100 columns reach 0.16, the two moons 0.19 to 0.3
CONVINCING_SIZE = 10  # beyond this many columns the gap needed falls like 1 / sqrt(number), as its chance level does
CONVINCING_ROWS = 100  # chance pairs of 100 to 200 columns reach 0.46 in 20 rows, 0.37 in 30, 0.10 in 200, 0.05 in 400

_STRONGEST = 20  # columns that take part in the second run: few enough that gates decide reliably
_FEWEST = 3  # that take part in a later one


class Outcome(NamedTuple):
    """One run of the search."""

    run: Run
    columns: Array  # (d',) positions in the data of the columns that took part
    test: PermutationTest
    passed: bool = False  # this and the next are set by the search at its end
    tied: bool = False  # convincing by ties in pairs: the p-value is theirs, not the gap's
    first_mu: Array | None = None  # (d'') of the run that looked at every column, where it is another one


class SearchState(NamedTuple):
    """How far a search has come."""

    outcomes: list[Outcome]  # of the runs that are over
    position: RunState | None  # in the one that is not


class ProgressSaver(Protocol):
    """Keeps the progress of a search, and knows where it starts."""

    start: SearchState

    def keep(self, progress: Callable[[], SearchState]) -> None:
        """Called between steps, about every 0.1 s."""

    def finish(self, progress: SearchState) -> None:
        """Called at the end."""


@dataclass(frozen=True)
class Search:
    """What the runs of a search share. A run looks at some of the columns, with draws of its own."""

    objective: Objective
    evaluate: Engine
    optimizer: Optimizer
    schedule: Schedule
    max_runs: int
    noisy_start: bool
    callbacks: Sequence[Callback]
    verbose: int
    train: Train
    judged: bool = True  # whether a run is judged by its permutation gap

    def best(
        self, bk: Backend, X: Array, columns: Array, seed: int, keeper: ProgressSaver | None = None
    ) -> tuple[Outcome, int]:
        """The convincing run, else the one with the largest permutation gap, and the number of runs.

        The objective alone cannot tell two columns that happen to agree from two that belong together: it can
        settle on either, depending on the draws. Shuffling can. A convincing run ends the search, and is the result:
        one with a large gap, or, unless only one run is wanted, one whose columns all depend on another of them
        (`dufs_core.significance.hsic`). After a first run that is not convincing the next one looks at the columns
        with the
        strongest ties in pairs, among which the gates decide reliably, and each later one at fewer of them (20, 14, 10,
        7, 5), which leaves chance less room.

        X (n, d) scaled data, where the backend computes, or a `dufs_core.data.matrix.ScaledMatrix`; columns (d',) the
        positions that may be selected, NumPy.
        """
        outcomes: list[Outcome] = []
        earlier = iter(keeper.start.outcomes if keeper else ())
        screening: PairwiseHSIC | None = None
        taking_part = columns
        while True:
            run_seed = random.derived_seed(bk, seed, len(outcomes))
            last = next(earlier, None) or self._run(bk, X, taking_part, run_seed, outcomes, keeper)
            outcomes.append(last)
            chosen = selected(bk, last)
            if passes(last.test, len(chosen), X.shape[0]):
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
            taking_part = np.sort(
                screening.strongest[: max(_FEWEST, int(_STRONGEST * 0.5 ** (len(outcomes) / 2 - 0.5)))]
            )
            if len(outcomes) == self.max_runs or len(taking_part) < 2:
                break
        if keeper is not None:
            keeper.finish(SearchState(outcomes, None))
        best = last if last.passed else max(outcomes, key=lambda outcome: outcome.test.excess)
        if len(best.columns) < len(columns):
            best = best._replace(first_mu=outcomes[0].run.mu)
        return best, len(outcomes)

    def _run(
        self, bk: Backend, X: Array, columns: Array, seed: int, earlier: list[Outcome], keeper: ProgressSaver | None
    ) -> Outcome:
        if not len(columns):  # every column is constant
            nothing = Run(bk.xp.zeros(0, dtype=X.dtype), {name: np.zeros(0) for name in HISTORY}, 0, True, 0.0, 0)
            return Outcome(nothing, columns, PermutationTest(0.0, 1.0))
        if len(columns) < X.shape[1]:
            X = take_columns(bk, X, columns)
        start = keep = None
        if keeper is not None:
            start = keeper.start.position if len(earlier) == len(keeper.start.outcomes) else None
            keep = _kept(keeper, earlier)
        with _Bar(self.verbose, self.schedule.max_iter, len(earlier)) as bar:
            if self.verbose:
                self.evaluate.progress = bar.inside
            run = self.train(
                bk, X, columns, self.objective, self.evaluate, self.optimizer, self.schedule, seed,
                noisy_start=self.noisy_start, callbacks=self.callbacks, progress=bar.update, start=start, keep=keep,
            )  # fmt: skip
        if not self.judged:
            return Outcome(run, columns, PermutationTest(0.0, 1.0))
        return Outcome(run, columns, permutation_test(bk, X, np.flatnonzero(bk.to_host(run.mu) > 0), columns=columns))

    @contextmanager
    def saying(self, what: str) -> Iterator[Callable[[str], None]]:
        """A line on standard error that says what is done before the first run, or nothing."""
        if not self.verbose:
            yield lambda what: None
            return
        from tqdm import tqdm

        with tqdm(desc=what, total=0, leave=False, bar_format="{desc} {elapsed}") as line:
            yield line.set_description_str


def _kept(keeper: ProgressSaver, earlier: list[Outcome]) -> Callable[[Callable[[], RunState]], None]:
    return lambda position: keeper.keep(lambda: SearchState(list(earlier), position()))


def selected(bk: Backend, outcome: Outcome) -> Array:
    """The columns whose gates ended open, positions in the data."""
    return outcome.columns[bk.to_host(outcome.run.mu) > 0]


def passes(test: PermutationTest, n_selected: int, n_rows: int) -> bool:
    """Whether a run with this gap ends the search."""
    return test.excess >= excess_threshold(n_selected, n_rows)


def excess_threshold(n_selected: int, n_rows: int) -> float:
    """0.18 min(1, sqrt(10 / m)) r, the permutation gap that ends a search: m = n_selected, n = n_rows, at most 512.

    r = (100 / n)^(3/4) for n < 100, else sqrt(100 / n).
    """
    size = min(1.0, sqrt(CONVINCING_SIZE / max(n_selected, 1)))
    ratio = CONVINCING_ROWS / min(n_rows, TEST_ROWS)
    return float(EXCESS_THRESHOLD * size * ratio ** (0.75 if ratio > 1 else 0.5))


class _Bar:
    """A bar on standard error, or nothing."""

    def __init__(self, verbose: int, max_iter: int, index: int) -> None:
        self._bar: Any = None
        if verbose:
            from tqdm import tqdm

            self._bar = tqdm(total=max_iter, desc=f"run {index + 1}", unit="step", leave=False, mininterval=0.2)

    def update(self, info: StepInfo) -> None:
        if self._bar is not None:
            self._bar.update(info.step - self._bar.n)
            self._bar.set_postfix(open=info.open_gates, undecided=info.undecided_gates, refresh=False)

    def inside(self, share: float) -> None:
        """What an engine has done of a long step."""
        if self._bar is not None:
            self._bar.set_postfix_str(f"{share:.0%} of a step")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.close()
