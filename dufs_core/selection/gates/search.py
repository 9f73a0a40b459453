"""Several runs of the gates on the same data, until one finds structure that shuffled columns do not have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dufs_core.backend import Array, Backend
from dufs_core.data.matrix import take_columns
from dufs_core.data.scaling import ScaledData
from dufs_core.objective.optimizers import get_optimizer
from dufs_core.selection.explanation import training_doubts
from dufs_core.selection.gates.explanation import doubt_of_gates
from dufs_core.selection.memory import gate_test_bytes
from dufs_core.selection.parameters import (
    check_choice,
    check_draws,
    check_regularisation,
    check_saturation,
    check_training,
    check_truth,
    check_whole,
    is_real,
)
from dufs_core.selection.procedure import FitSize, Found, Gates, Training
from dufs_core.selection.settings import Conventions, check_group
from dufs_core.selection.trainer import FinishedRun, GateTrainer
from dufs_core.significance.hsic import SHUFFLES, PairwiseHSIC
from dufs_core.significance.permutation import (
    PermutationTest,
    excess_threshold,
    permutation_test,
)
from dufs_core.significance.rows import Rows
from dufs_core.training.loop import Run

if TYPE_CHECKING:
    from dufs_core.selection.gates.gated_laplacian import GatedLaplacian

RANKINGS = ("gates", "diverse")
_CONVENTIONS = {"gate_noise": ("batch", "sample"), "batches": ("near_equal", "wrap"), "zero_bandwidth": ("data", "one")}
_STRONGEST = 20  # columns of the second run: few enough that gates decide reliably
_FEWEST = 3  # columns of a later one
_BELOW = 2.5  # columns that took no part: this many gate_sigma below every gate that did
_SPREAD = 0.5  # times gate_sigma: the range below the gates in which columns without one keep their order


class Judgement(NamedTuple):
    """What the tests say of the columns with mu > 0; attributes of `dufs_core.GatedLaplacian`."""

    excess_score: float
    p_value: float
    stopped_by_hsic: bool
    n_runs: int


class GateSearch:
    """The procedure of `dufs_core.GatedLaplacian` (`dufs_core.selection.procedure.Procedure`).

    The objective alone cannot tell two columns that happen to agree from two that belong together: it can settle on
    either, depending on the draws. Shuffling can. A run passes with a large excess score, or, if more than one run is
    allowed, when all its columns are pairwise dependent (`dufs_core.significance.hsic`). After a first run that fails,
    the next one looks at the columns with the strongest pairwise dependence, among which gates decide reliably, and
    each later one at fewer of them (20, 14, 10, 7, 5), which leaves chance less room. If none passes, the one with the
    largest excess score is kept.
    """

    scales_groups = True

    def __init__(self, settings: GatedLaplacian) -> None:
        self._settings = settings
        conventions = settings.group("conventions")
        self.training: Training | None = Training(
            settings.optimizer, settings.n_draws, settings.saturation, conventions
        )
        self.rows_in_hand: int | None = settings.batch_size

    def check(self, n: int, d: int, is_sparse: bool) -> None:
        settings = self._settings
        check_choice("ranking", settings.ranking, RANKINGS)
        check_training(settings, n)
        check_regularisation(settings.lam, settings.dtype)
        check_saturation(settings.saturation, settings.dtype)
        check_whole("max_runs", settings.max_runs)
        check_draws(settings.n_draws)
        get_optimizer(settings.optimizer, settings.learning_rate)
        if settings.conventions != "paper":
            check_group("conventions", settings.conventions, Conventions)
        conventions = settings.group("conventions")
        for name, choices in _CONVENTIONS.items():
            check_choice(name, getattr(conventions, name), choices)
        for name in ("noisy_start", "rate_per_column"):
            check_truth(name, getattr(conventions, name))
        delta = conventions.delta
        if not is_real(delta) or not 0 <= delta < float("inf"):
            raise ValueError(f"delta must be a number of at least 0; got {delta!r}")
        if is_sparse and conventions.gate_noise == "sample":
            raise ValueError(
                'gate_noise="sample" cannot take sparse X, because one gate a sample leaves no zeros after centring: '
                'use gate_noise="batch", or X.toarray() if it fits in memory'
            )

    def size(self, n: int, d: int, itemsize: int, threads: int) -> FitSize:
        """Steps on all rows, or on batches of them; gates of all columns."""
        rows = min(n, self._settings.batch_size or n)
        return FitSize(rows, d, gate_test_bytes(n, d, itemsize, self._settings.max_runs > 1))

    def run(self, data: ScaledData, rows: Rows, trainer: GateTrainer, threads: int, first: Run | None) -> Found:
        """The first run that passes, else the one with the largest excess score."""
        bk, X, columns = trainer.bk, data.X, np.flatnonzero(~data.constant)
        finished: list[FinishedRun] = []
        screening: PairwiseHSIC | None = None
        looked_at = columns
        passed = tied = False
        while True:
            # train, or take what an earlier process or a stack has trained
            last = trainer.saved_run(len(finished), lambda saved: self._belongs(saved, columns, not finished))
            if last is None:
                last = self._trained(trainer, X, rows, looked_at, first, finished)
            first = None
            finished.append(last)

            # does it end the search?
            chosen = last.columns[bk.to_host(last.run.mu) > 0]
            passed = last.test.excess >= excess_threshold(len(chosen), X.shape[0])
            if passed or self._settings.max_runs == 1 or not len(columns):
                break
            if screening is None:
                ranking = columns[np.argsort(-bk.to_host(last.run.mu), kind="stable")]
                screening = PairwiseHSIC(bk, X, ranking, rows)
            if screening.all_dependent(chosen):
                passed = tied = True
                break

            # the next one looks at fewer columns
            count = max(_FEWEST, int(_STRONGEST * 0.5 ** (len(finished) / 2 - 0.5)))
            looked_at = np.sort(screening.strongest[:count])
            if len(finished) == self._settings.max_runs or len(looked_at) < 2:
                break
        trainer.finish(finished)
        best = finished[-1] if passed else max(finished, key=lambda run: run.test.excess)
        test = PermutationTest(best.test.excess, 1 / (1 + SHUFFLES)) if tied else best.test
        return self._found(bk, X, data.constant, finished, best, Judgement(*test, tied, len(finished)), passed)

    def _belongs(self, saved: Array, columns: Array, is_first: bool) -> bool:
        """Whether a saved run can be one of this search."""
        return bool(np.array_equal(saved, columns) if is_first else np.isin(saved, columns).all())

    def _trained(
        self, trainer: GateTrainer, X: Any, table: Rows, columns: Array, trained: Run | None,
        finished: list[FinishedRun],
    ) -> FinishedRun:  # fmt: skip
        """A run on some columns, and its test against shuffled ones."""
        part = take_columns(trainer.bk, X, columns) if 0 < len(columns) < X.shape[1] else X
        run = trained if trained is not None else trainer.train(part, columns, finished)
        if not len(columns):  # every column is constant
            return FinishedRun(run, columns)
        is_open = np.flatnonzero(trainer.bk.to_host(run.mu) > 0)
        test = permutation_test(trainer.bk, part, is_open, columns=columns, table=table)
        return FinishedRun(run, columns, test)

    def _found(
        self, bk: Backend, X: Any, constant: Array, finished: list[FinishedRun], best: FinishedRun, judged: Judgement,
        passed: bool,
    ) -> Found:  # fmt: skip
        mu = bk.to_host(best.run.mu)
        order_by = None
        if len(best.columns) < len(constant) - constant.sum():
            order_by = bk.to_host(finished[0].run.mu)
        scores = self._scores(constant, best.columns, mu, order_by)
        return Found(
            gates=Gates(best.run, best.columns, mu),
            scores=scores,
            order_by=scores,
            weights=scores,
            findings=(),
            rows=None,
            support=scores > 0,
            judged=judged,
            doubts=list(training_doubts(self._settings, self._settings.graph, best.run, X.shape[0])),
            doubt=doubt_of_gates(self._settings, best.run, scores, constant, judged, passed, X.shape[0]),
            read=None,
        )

    def _scores(self, constant: Array, columns: Array, mu: Array, order_by: Array | None) -> Array:
        """mu of the columns with a gate; the others below them, in the order of the first run, the constant ones last.

        Without an order of their own they would be selected by column index.
        """
        sigma = self._settings.gate_sigma
        lowest = float(mu.min()) if len(mu) else 0.0
        aside = min(lowest, 0.0) - _BELOW * sigma
        scores = np.full(len(constant), aside, dtype=self._settings.dtype)
        scores[constant] = aside - sigma
        if order_by is not None:
            order = np.argsort(-order_by, kind="stable")
            scores[np.flatnonzero(~constant)[order]] -= _SPREAD * sigma * np.arange(len(order)) / len(order)
        scores[columns] = mu
        return scores
