"""Fit the gates over a grid of lambdas and choose one without labels.

Every lambda is judged on rows that took no part in its selection: the columns that a fit on one half of the rows
selects are tested on the other half. Columns that agree by chance on the first half do not on the second, so that the
test needs no allowance for the search that found them.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from math import sqrt
from threading import RLock
from typing import Any, Self

import numpy as np
from sklearn.base import clone
from sklearn.utils.validation import validate_data

from dufs_core.backend import Array, get_backend, random
from dufs_core.data.groups import Told
from dufs_core.errors import RowsWarning, SelectionWarning, all_constant, user_stacklevel
from dufs_core.selection import checkpoint
from dufs_core.selection.base import ColumnSelector, Drawn, Explanation
from dufs_core.selection.fit import FitTask
from dufs_core.selection.fit_many import fit_many
from dufs_core.selection.gates.gated_laplacian import GatedLaplacian
from dufs_core.selection.gates.lambda_grid import geometric_grid, lambda_range, refine_grid
from dufs_core.selection.parameters import check_whole, graph_for, n_wanted, seed_of
from dufs_core.significance.permutation import aggregate_p_values, max_t_test, permutation_test
from dufs_core.training.progress import progress_bar

_catching = RLock()  # held while warnings are caught
_LEVEL = 0.05  # a p-value up to which a lambda is better than chance
_TOGETHER = 2  # lambdas added to the grid at once: each knows of the earlier ones, and shares the machine


@dataclass(eq=False, repr=False)  # writes __init__ alone
class LambdaPath(ColumnSelector):
    """The gates over a grid of lambdas, and a choice among them that needs no labels.

    Every lambda is fitted on all rows, and on both halves of `n_splits` random splits of the rows. Lambdas that select
    the same columns on all rows share their fits on halves, those of the lowest. The columns T that a fit on one half
    selects are tested on the other by their score in units of the standard deviation of shuffles,

        z(T) = (score(X_T) - mean_b score(X_T shuffled)) / std_b score(X_T shuffled),

    and the lambda with the largest mean z over all halves is chosen (of equal ones the middle), among those with a
    p-value of at most 0.05 where there are any.

    Parameters
    ----------
    selector : GatedLaplacian or None, default None
        Settings of the fits; lam, random_state, n_features_to_select and verbose are set here, and columns are ordered
        by their gates. None: ``GatedLaplacian(max_runs=1)``.
    lams : sequence of float or None, default None
        The grid. None: `n_lams` lambdas found from the data (see Notes).
    n_lams : int, default 8
    n_features_to_select : int, float or None, default None
        As in `GatedLaplacian`; with a number, that many of the best are selected, and tested, at every lambda.
    n_splits : int, default 4
    n_permutations : int, default 199
        Shuffles of a held-out half. With fewer than 79 (39 if n_splits is 1) no p-value can be 0.05, and noise gives no
        warning.
    random_state : int, RandomState instance or None, default None
    verbose : int, default 0
        1: a progress bar on standard error that counts fits.

    Attributes
    ----------
    lams_ : ndarray (n_lams,)
        Increasing.
    mu_ : ndarray (n_lams, n_features)
        Gate parameters of the fits on all rows; NaN for columns without a gate.
    n_selected_ : ndarray (n_lams,) of int
        Columns selected on all rows.
    excess_score_ : ndarray (n_lams,)
        Excess score of those columns on all rows, the rows that chose them: biased upwards.
    held_out_z_ : ndarray (n_lams,)
        Mean of z over the halves; 0, with p-value 1 and stability 0, where all rows select fewer than two columns.
    stability_ : ndarray (n_lams,)
        Mean over the splits of (|A and B| - e) / (sqrt(|A| |B|) - e), e = |A| |B| / n_features, A and B the selections
        of the two halves: 0 on average for independent selections of these sizes, 1 for equal ones.
    p_value_ : ndarray (n_lams,)
        For no more structure, on rows that did not select them, than in shuffled columns; adjusted for the choice among
        all lambdas, and aggregated over the halves (see Notes).
    best_index_ : int
        Position of the chosen lambda.
    diagnosis_ : tuple of dufs_core.significance.diagnosis.Finding
        As in `GatedLaplacian`, of all rows; "one factor" is not asked.
    scores_ : ndarray (n_features,)
        `GatedLaplacian.scores_` at the chosen lambda: larger is better.
    support_, order_, ranking_, constant_features_, n_features_in_, feature_names_in_
        As in `GatedLaplacian`, at the chosen lambda; the order is by `scores_`.

    Notes
    -----
    **Grid.** Half of the lambdas lie in equal ratios between one at which most gates that open stay open and one at
    which none does. The others are added, two at a time, where the number of open gates changes most
    (`dufs_core.selection.gates.lambda_grid`).

    **p-values.** On a held-out half a shuffle permutes every column alike in all selections, for the single-step max-T
    test of Westfall and Young (`dufs_core.significance.permutation.max_t_test`), exact for independent columns.
    The p-values of the halves are aggregated by `dufs_core.significance.permutation.aggregate_p_values`, gamma =
    1/4, or 1/2 if n_splits is 1: a structure has to show on a quarter of the halves, since with few rows a fit on half
    of them often takes other columns. The smallest p-value is min(4, 2 n_splits) / (1 + n_permutations). Measured:
    docs/defaults.md. The score is that of `dufs_core.significance.permutation.permutation_test`, on a graph of its
    own with self-loops.

    Examples
    --------
    >>> from dufs_core import LambdaPath
    >>> from dufs_core.datasets import two_moons
    >>> path = LambdaPath(random_state=1).fit(two_moons(n_features=10).X)
    >>> path.get_support(indices=True)
    array([0, 1])
    """

    selector: GatedLaplacian | None = None
    _: KW_ONLY
    lams: Sequence[float] | None = None
    n_lams: int = 8
    n_features_to_select: int | float | None = None
    n_splits: int = 4
    n_permutations: int = 199
    random_state: Any = None
    verbose: int = 0

    def fit(self, X: Any, y: Any = None, *, groups: Any = None) -> Self:
        """Fit the path and choose a lambda.

        Parameters
        ----------
        X : array-like (n_samples, n_features)
            As in `GatedLaplacian.fit`, except data on disk; every half needs n_neighbors + 2 rows.
        y : ignored
        groups : array-like (n_samples,), optional
            As in `GatedLaplacian.fit`. Halves take whole groups; one with more than a quarter of the rows is halved.

        Raises
        ------
        ValueError
            As `GatedLaplacian.fit`; if lams is None and no lambda opens a gate; if the selector has a callback that
            keeps something (its copies are fitted), or a ranking other than "gates" and `n_features_to_select` is set.
        TypeError
            If the selector is no GatedLaplacian.
        """
        selector = GatedLaplacian(max_runs=1) if self.selector is None else clone(self.selector)
        if not isinstance(selector, GatedLaplacian):
            raise TypeError(f"A path fits GatedLaplacian(...) at several lambdas; got {type(selector).__name__}")
        checkpoint.refuse(selector, "A path")
        selector.set_params(lam=0.0, n_features_to_select=None, verbose=0)
        task = FitTask.begin(selector, X, y, Told(groups))
        task.settings.backend = task.bk.name  # a matrix from a GPU is on the host now
        self._check(task)
        task.settings.ranking = "gates"  # another order of all columns would not be used
        seed = seed_of(self.random_state)
        most = (self.n_lams if self.lams is None else len(self._given_lams())) * (1 + 2 * self.n_splits)
        with task.accepted.device(), one_of_each(), progress_bar(self.verbose, most, "fit") as bar:
            bar.set_postfix_str("all rows")
            lams, mu, scores = self._fit_grid(task, seed, bar)
            selections = [self._selection(row) for row in scores]
            z, p, agreements = self._test_halves(task, lams, selections, seed, bar)
            tests = [permutation_test(task.bk, task.data.X, selection, table=task.rows) for selection in selections]
            findings = task.findings(task.data)

        # nothing of an earlier fit is touched before all of this one is there
        validate_data(self, task.accepted.given, skip_check_array=True)  # names and number of features
        self.lams_, self.mu_ = lams, mu
        self.diagnosis_ = tuple(finding for finding in findings if finding.what != "one factor")
        self.constant_features_ = np.flatnonzero(task.data.constant)
        self.n_selected_ = np.array([len(selection) for selection in selections])
        self.excess_score_ = np.array([test.excess for test in tests])
        self.held_out_z_, self.stability_ = z.mean(axis=0), agreements.mean(axis=0)
        self.p_value_ = aggregate_p_values(p)
        self.best_index_ = best_index(self.held_out_z_, self.p_value_)
        self.scores_ = scores[self.best_index_].copy()
        self.order_ = np.argsort(-self.scores_, kind="stable")
        self.support_ = np.zeros(len(self.scores_), dtype=bool)
        self.support_[selections[self.best_index_]] = True
        self._warn(len(self.scores_) - len(self.constant_features_), len(p))
        for finding in self.diagnosis_:
            warnings.warn(RowsWarning(finding.sentence), stacklevel=user_stacklevel())
        return self

    def _check(self, task: FitTask) -> None:
        for name in ("n_lams", "n_splits", "n_permutations"):
            check_whole(name, getattr(self, name))
        (n, d), selector = task.X.shape, task.settings
        if selector.ranking != "gates" and self.n_features_to_select is not None:
            raise ValueError(
                f"A path takes n_features_to_select={self.n_features_to_select} columns by their gates, and its "
                f'selector has ranking={selector.ranking!r}: set ranking="gates", or leave n_features_to_select=None '
                f"and fit the selector with lam=path.lams_[path.best_index_] and that many columns afterwards"
            )
        if task.accepted.kind == "on disk":
            raise ValueError("A path needs halves of X, which lies on disk: read it into memory first, numpy.array(X)")
        neighbors = graph_for(selector, n).n_neighbors
        if n // 2 < neighbors + 2:
            raise ValueError(
                f"A path splits the rows into halves, and each needs n_neighbors + 2 = {neighbors + 2} "
                f"rows; X has {n}. Use GatedLaplacian itself on so few."
            )
        if self.n_features_to_select is not None:
            n_wanted(self.n_features_to_select, d)

    def _given_lams(self) -> Array:
        try:
            lams = np.asarray(self.lams, dtype=np.float64)
        except (TypeError, ValueError, OverflowError):  # no numbers, or too large ones
            lams = np.empty(0)
        if lams.ndim != 1 or not lams.size or not np.isfinite(lams).all() or lams.min() < 0:
            raise ValueError(f"lams must be None or a sequence of numbers of at least 0; got {self.lams!r}")
        return np.unique(lams)

    def _fit_grid(self, task: FitTask, seed: int, bar: Any) -> tuple[Array, Array, Array]:
        """Lambdas (n_lams,), increasing; mu and scores (n_lams, d) of their fits."""
        if self.lams is not None:
            lams = self._given_lams()
            return lams, *fit_lams(task, lams, seed, bar)
        low, high = lambda_range(task)
        lams = geometric_grid(low, high, self.n_lams)
        mu, scores = fit_lams(task, lams, seed, bar)
        while len(lams) < self.n_lams:
            count = min(_TOGETHER, self.n_lams - len(lams))
            new = refine_grid(lams, (scores > 0).sum(axis=1), high, count)
            more_mu, more_scores = fit_lams(task, new, seed, bar)
            order = np.argsort(np.append(lams, new))
            lams = np.append(lams, new)[order]
            mu = np.concatenate([mu, more_mu])[order]
            scores = np.concatenate([scores, more_scores])[order]
        return lams, mu, scores

    def _test_halves(
        self, task: FitTask, lams: Array, selections: Sequence[Array], seed: int, bar: Any
    ) -> tuple[Array, Array, Array]:
        """z and p-values (2 n_splits, n_lams), and the agreement of halves (n_splits, n_lams)."""
        d = task.X.shape[1]
        n_lams = len(selections)
        host = get_backend("numpy")
        group, lowest = group_equal(selections)
        tested = group >= 0
        z, p = np.zeros((2 * self.n_splits, n_lams)), np.ones((2 * self.n_splits, n_lams))
        agreements = np.zeros((self.n_splits, n_lams))
        bar.total = bar.n + 2 * self.n_splits * len(lowest)
        for split in range(self.n_splits if len(lowest) else 0):
            bar.set_postfix_str(f"split {split + 1} of {self.n_splits}")
            halves = [task.part(half.rows) for half in task.rows.halves(seed, split)]
            # draws of their own: with the same ones all halves would err alike
            seeds = [random.derived_seed(host, seed, 2 * split + half) >> 32 for half in (1, 2)]
            found = []
            for half, own in zip(halves, seeds, strict=True):
                _, scores = fit_lams(half, lams[lowest], own, bar)
                found.append([self._selection(row) for row in scores])
            for i, (chosen, other, own) in enumerate(zip(found, reversed(halves), seeds, strict=True)):
                test = max_t_test(task.bk, other.data.X, chosen, self.n_permutations, own, other.rows)
                z[2 * split + i, tested] = test.z[group[tested]]
                p[2 * split + i, tested] = test.p_values[group[tested]]
            agree = np.array([agreement(a, b, d) for a, b in zip(*found, strict=True)])
            agreements[split, tested] = agree[group[tested]]
        return z, p, agreements

    def _selection(self, scores: Array) -> Array:
        """The columns selected by one fit, increasing."""
        if self.n_features_to_select is None:
            return np.flatnonzero(scores > 0)
        return np.sort(np.argsort(-scores, kind="stable")[: n_wanted(self.n_features_to_select, len(scores))])

    def _warn(self, n_varying: int, n_halves: int) -> None:
        """Say what is wrong with the chosen selection, of columns of which n_varying are not constant."""
        best, d = self.best_index_, len(self.scores_)
        n_selected, p_value = int(self.n_selected_[best]), self.p_value_[best]
        smallest = aggregate_p_values(np.full((n_halves, 1), 1 / (1 + self.n_permutations)))[0]
        chosen = f"The fit at the chosen lambda, lam={self.lams_[best]:.3g}, selected"
        advice = "or set n_features_to_select to take the best of the ranking."
        said = None
        if not n_varying:
            said = str(all_constant(d))
        elif not n_selected:
            said = f"{chosen} no feature: try smaller lams, other settings, {advice}"
        elif p_value > _LEVEL >= smallest:
            said = (
                f"At none of {len(self.lams_)} lambdas do columns chosen on one half of the rows have more structure "
                f"on the other than shuffled columns (p = {p_value:.2f} at the best): treat the {n_selected} features "
                f"selected as noise, or look at other settings."
            )
        elif n_selected == n_varying > 1 and self.n_features_to_select is None:
            everything = f"all {n_varying} features" + " that are not constant" * (n_varying < d)
            said = f"{chosen} {everything}: try larger lams, {advice}"
        if said:
            warnings.warn(said, SelectionWarning, stacklevel=user_stacklevel())

    def _drawn(self) -> Drawn:
        return Drawn(self.scores_, r"gate parameter $\mu$", True, {}, None, ("lambda_path", "path_criterion"))

    def _explanation(self, n: int) -> Explanation:
        reasons = [
            f"gate {'open' if mu > 0 else 'closed'}: mu = {mu:.2f}" + " > 0" * bool(mu > 0) for mu in self.scores_
        ]
        best, p = self.best_index_, self.p_value_[self.best_index_]
        notes = [f"lam = {self.lams_[best]:.3g} is the best of {len(self.lams_)} values."]
        if best == 0 and len(self.lams_) > 1:
            notes.append("It is the lowest of them: lower ones (lams=...) may be better, and keep more features.")
        more = f"{'more' if p <= _LEVEL else 'no more'} structure than the same columns shuffled"
        notes.append(f"On held-out rows its columns have {more} (p = {p:.2g}).")
        notes += [finding.sentence for finding in self.diagnosis_]
        return Explanation(reasons, notes, {}, None, False, True)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = (self.selector or GatedLaplacian()).__sklearn_tags__().input_tags.sparse
        return tags


LambdaPath.__module__ = "dufs_core"  # where users find it, and where pickles look for it


def fit_lams(task: FitTask, lams: Array, seed: int, bar: Any) -> tuple[Array, Array]:
    """mu and scores, each (len(lams), d), of fits at several lambdas."""
    size = task.settings.batch_size
    size = None if size is None or size > task.X.shape[0] else size  # of a half: it is no mistake there
    settings = {"random_state": seed, "batch_size": size}
    selectors = [clone(task.settings).set_params(lam=float(lam), **settings) for lam in lams]
    fits = fit_many(selectors, task.X, groups=task.rows.group)
    bar.update(len(lams))
    return np.stack([fit.mu_ for fit in fits]), np.stack([fit.scores_ for fit in fits])


def group_equal(selections: Sequence[Array]) -> tuple[Array, Array]:
    """The group of equal selections that each belongs to, -1 for fewer than two columns, and each group's first member.

    Lambdas that select the same columns are tested at the lowest of them: on fewer rows gates close at lower lambdas.
    """
    groups: dict[bytes, list[int]] = {}
    for i, selection in enumerate(selections):
        if len(selection) > 1:
            groups.setdefault(selection.tobytes(), []).append(i)
    group = np.full(len(selections), -1)
    for number, members in enumerate(groups.values()):
        group[members] = number
    return group, np.array([members[0] for members in groups.values()], dtype=np.int64)


def best_index(z: Array, p_values: Array) -> int:
    """The largest z, of equal ones the middle, among p-values of at most 0.05 where there are any."""
    among = np.where((p_values <= _LEVEL) | (p_values > _LEVEL).all(), z, -np.inf)
    equal = np.flatnonzero(among == among.max())
    return int(equal[len(equal) // 2])


def agreement(a: Array, b: Array, d: int) -> float:
    """(|A and B| - e) / (sqrt(|A| |B|) - e), e = |A| |B| / d; 0 where there is nothing to agree on (none, or all)."""
    expected = len(a) * len(b) / d
    most = sqrt(len(a) * len(b)) - expected
    return (len(np.intersect1d(a, b)) - expected) / most if most > 1e-12 else 0.0


@contextmanager
def one_of_each() -> Iterator[None]:
    """Warn once for each category of the fits' warnings, and not about what a single lambda selects.

    Python's warning filters belong to all threads: paths in several threads are fitted in turn.
    """
    with _catching, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    kept = [w for w in caught if not issubclass(w.category, (SelectionWarning, RowsWarning))]  # rows of halves mislead
    for warning in {w.category: w for w in kept}.values():
        warnings.warn(warning.message, stacklevel=user_stacklevel())


def _after_fork() -> None:
    """The thread that holds the lock may not be in the child."""
    global _catching
    _catching = RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
