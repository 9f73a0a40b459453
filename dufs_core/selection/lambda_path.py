"""The prices of a gate from which every column's gate opens to which none does, and a choice among them without labels.

A price is judged on rows that took no part in the choice of columns: the columns that a fit on one half of the rows
selects are compared, on the other half, with the same columns shuffled. Columns that agree by chance on the first
half do not on the second, so that the comparison needs no allowance for the search that found them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import RLock
from typing import Any, Self

import numpy as np
from sklearn.base import clone
from sklearn.utils.validation import validate_data

from dufs_core.backend import Array, Backend, get_backend, on_device, random
from dufs_core.data.accept import check_samples, unwrap
from dufs_core.errors import SelectionWarning, all_constant, user_stacklevel
from dufs_core.selection import checkpoint
from dufs_core.selection.base import ColumnSelector
from dufs_core.selection.dufs import DUFS
from dufs_core.selection.fit_many import fit_many
from dufs_core.selection.graph_rules import graph_rules, order_of
from dufs_core.selection.lambda_grid import geometric_grid, lambda_range, refine_grid
from dufs_core.selection.parameters import is_int, n_wanted, seed_of
from dufs_core.significance.held_out import aggregate_p_values, agreement, max_t_test, smallest_p_value
from dufs_core.significance.permutation_test import PermutationTest, permutation_test
from dufs_core.training.progress import bar_of_fits

_CATCHING = RLock()  # held while warnings are caught
_CHANCE = 0.05  # a p-value up to which a price is better than chance
_TOGETHER = 2  # further prices in one population: each knows of the earlier ones, and shares the machine


class LambdaPath(ColumnSelector):
    """DUFS at several prices lam of an open gate, and a choice among them that needs no labels.

    Every price is fitted on all rows, and on both halves of `n_splits` random splits of the rows, all prices of a
    part together (`dufs_core.fit_many`); prices that select the same columns on all rows are one there, the
    lowest of them. The columns T that a fit on one half selects are judged on the other by the permutation gap in
    units of its spread,

        z(T) = (score(X_T) - mean_b score(X_T shuffled)) / std_b score(X_T shuffled),

    and the price with the largest mean z over all halves is chosen (of equal ones the middle), among those with a
    p-value of at most 0.05 where there are any.

    Parameters
    ----------
    selector : DUFS or None, default None
        Settings of the fits; lam, random_state, n_features_to_select and verbose are set here, and columns are selected
        and ordered by their gates (fdr=None). None: ``DUFS(fdr=None, max_runs=1)``.
    lams : sequence of float or None, default None
        Prices. None: `n_lams` that are found (see Notes).
    n_lams : int, default 8
    n_features_to_select : int, float or None, default None
        As in `DUFS`; with a number, that many of the best are selected, and judged, at every price.
    n_splits : int, default 4
    n_permutations : int, default 199
        Shuffles of a held-out half. With fewer than 79 (39 if n_splits is 1) no p-value can be 0.05, and noise is not
        warned of.
    random_state : int, RandomState instance or None, default None
    verbose : int, default 0
        1: a progress bar on standard error that counts fits.

    Attributes
    ----------
    lams_ : ndarray (n_lams,)
        Increasing.
    mu_ : ndarray (n_lams, n_features)
        Gate parameters of the fits on all rows.
    n_selected_ : ndarray (n_lams,) of int
        Columns selected on all rows.
    excess_score_ : ndarray (n_lams,)
        Permutation gap of those columns on all rows, the rows that chose them: biased upwards.
    held_out_z_ : ndarray (n_lams,)
        Mean of z over the halves. Where all rows select fewer than two columns there is nothing to judge: 0, with
        p-value 1 and stability 0.
    stability_ : ndarray (n_lams,)
        Mean agreement of the two halves of a split: (|A and B| - e) / (sqrt(|A| |B|) - e), e = |A| |B| / n_features,
        which is 0 on average for selections that have nothing in common but their sizes, and 1 for equal ones.
    p_value_ : ndarray (n_lams,)
        That columns selected at this price have no more structure, on rows that did not select them, than shuffled
        columns: four times the lower quartile over the halves, each adjusted for the choice among all prices (see
        Notes).
    best_index_ : int
        Position of the chosen price.
    support_ : ndarray (n_features,) of bool
    scores_ : ndarray (n_features,)
        mu_[best_index_]: larger is better.
    order_ : ndarray (n_features,) of int
        Best first; exact ties by column index.
    constant_features_ : ndarray of int
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Notes
    -----
    **Prices.** Half of them lie in equal ratios between two ends: the largest variance of a scaled column, above which
    no gate can stay open, and a tenth of the median positive price of
    `dufs_core.selection.lambda_grid.stationary_lambdas`,
    or a thousandth
    of the upper end if that is less. The others are put, two at a time, where the number of open gates changes most
    (`dufs_core.selection.lambda_grid.refine_grid`).

    **p-values.** On a held-out half a shuffle permutes every column alike in all selections. With z_b(l) the score of
    shuffle b at price l, and z_0(l) that of the rows as they are, in units of the mean and spread of all 1 + B of them,
    the adjusted p-value of price l is (1 + #{b: max_l' z_b(l') >= z_0(l)}) / (1 + B), the single-step maximum procedure
    of Westfall and Young (1993), exact for columns that are independent of one another. The gamma-quantile of p-values
    divided by gamma is a p-value however they depend on one another (Meinshausen, Meier and Buehlmann, JASA 104, 2009);
    gamma is 1/4, or 1/2 if n_splits is 1. So a structure has to show on a quarter of the halves: a half whose columns
    say nothing counts with p = 1, and with few rows a fit on half of them often takes another pair of columns. The
    smallest p-value is 4 / (1 + B). Measured: docs/defaults.md.

    What judges on a held-out half is score(X_T) of `dufs_core.significance.permutation_test.permutation_test`, on a
    graph of its own with
    self-loops, whatever the selector's bandwidth and self_loops are.

    Examples
    --------
    >>> from dufs_core import LambdaPath
    >>> from dufs_core.datasets import two_moons
    >>> path = LambdaPath(random_state=1).fit(two_moons(n_features=10).X)
    >>> path.get_support(indices=True)
    array([0, 1])
    """

    def __init__(
        self,
        selector: DUFS | None = None,
        *,
        lams: Sequence[float] | None = None,
        n_lams: int = 8,
        n_features_to_select: int | float | None = None,
        n_splits: int = 4,
        n_permutations: int = 199,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.selector = selector
        self.lams = lams
        self.n_lams = n_lams
        self.n_features_to_select = n_features_to_select
        self.n_splits = n_splits
        self.n_permutations = n_permutations
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None) -> Self:
        """Compute the path and choose.

        Parameters
        ----------
        X : array-like (n_samples, n_features)
            As in `DUFS.fit`, except data on disk; every half needs n_neighbors + 2 rows.
        y : ignored

        Raises
        ------
        ValueError
            If X or a parameter is not usable, if lams is None and no gate is worth a price at the start, if the
            selector has a callback that keeps something (its copies are fitted), if it has another ranking than "gates"
            and `n_features_to_select` is set, and as `DUFS.fit`.
        """
        selector = DUFS(fdr=None, max_runs=1) if self.selector is None else clone(self.selector)
        checkpoint.refuse(selector, "A path")
        selector.set_params(lam=0.0, fdr=None, n_features_to_select=None, verbose=0)
        X = unwrap(X)
        check_samples(X, y)
        bk, X_all = selector._accept(X)
        selector.set_params(backend=bk.name)  # a matrix from a GPU is on the host now
        validate_data(self, X, skip_check_array=True)  # names and number of features
        self._check(selector, X_all)
        selector.set_params(ranking="gates")  # another order of all columns would not be used
        seed = seed_of(self.random_state)
        most = (self.n_lams if self.lams is None else len(self._given_lams())) * (1 + 2 * self.n_splits)
        with selector._place(bk, X, X_all), one_of_each(), bar_of_fits(self.verbose, most) as bar:
            fits = _Fits(selector, bar)
            bar.set_postfix_str("all rows")
            self.lams_, self.mu_ = self._on_all_rows(fits, X_all, seed)
            z, p, agreements = self._on_halves(bk, fits, X_all, seed, bar)
            data, constant = selector._prepare(bk, X_all)
            self.constant_features_ = np.flatnonzero(constant)
            tests = [permutation_test(bk, data, self._selection(mu)) for mu in self.mu_]
        self._store(tests, z, p, agreements, constant)
        return self

    def _check(self, selector: DUFS, X: Any) -> None:
        for name, lowest in (("n_lams", 1), ("n_splits", 1), ("n_permutations", 1)):
            value = getattr(self, name)
            if not is_int(value) or value < lowest:
                raise ValueError(f"{name} must be a whole number of at least {lowest}; got {value!r}")
        n, d = X.shape
        if order_of(selector) != "gates" and self.n_features_to_select is not None:
            raise ValueError(
                f"A path takes n_features_to_select={self.n_features_to_select} columns by their gates, and its "
                f'selector has ranking={selector.ranking!r}: set ranking="gates", or leave n_features_to_select=None '
                f"and fit the selector with lam=path.lams_[path.best_index_] and that many columns afterwards"
            )
        if selector._on_disk(X):
            raise ValueError("A path needs halves of X, which lies on disk: read it into memory first, numpy.array(X)")
        neighbors = graph_rules(selector, n).n_neighbors
        if n // 2 < neighbors + 2:
            raise ValueError(
                f"A path splits the rows into halves, and each needs n_neighbors + 2 = {neighbors + 2} "
                f"rows; X has {n}. Use DUFS itself on so few."
            )
        if self.n_features_to_select is not None:
            n_wanted(self.n_features_to_select, d)

    def _given_lams(self) -> Array:
        try:
            lams = np.asarray(self.lams, dtype=np.float64)
        except (TypeError, ValueError):  # no numbers
            lams = np.empty(0)
        if lams.ndim != 1 or not lams.size or not np.isfinite(lams).all() or lams.min() < 0:
            raise ValueError(f"lams must be None or a sequence of numbers of at least 0; got {self.lams!r}")
        return np.unique(lams)

    def _on_all_rows(self, fits: _Fits, X: Any, seed: int) -> tuple[Array, Array]:
        """Prices (n_lams,), increasing, and mu (n_lams, d) of their fits."""
        if self.lams is not None:
            lams = self._given_lams()
            return lams, fits(lams, X, seed)
        low, high = lambda_range(fits.selector, X)
        lams = geometric_grid(low, high, self.n_lams)
        mu = fits(lams, X, seed)
        while len(lams) < self.n_lams:
            new = refine_grid(lams, (mu > 0).sum(axis=1), high, min(_TOGETHER, self.n_lams - len(lams)))
            order = np.argsort(np.append(lams, new))
            lams, mu = np.append(lams, new)[order], np.concatenate([mu, fits(new, X, seed)])[order]
        return lams, mu

    def _on_halves(self, bk: Backend, fits: _Fits, X: Any, seed: int, bar: Any) -> tuple[Array, Array, Array]:
        """z and p-values (2 n_splits, n_lams), and the agreement of halves (n_splits, n_lams)."""
        (n, d), n_lams, host = X.shape, len(self.lams_), get_backend("numpy")
        judged, at = _judged_at([self._selection(mu) for mu in self.mu_])
        z, p, agreements = np.zeros((2 * self.n_splits, n_lams)), np.ones((2 * self.n_splits, n_lams)), []
        bar.total = bar.n + 2 * self.n_splits * len(at)
        for split in range(self.n_splits if len(at) else 0):
            bar.set_postfix_str(f"split {split + 1} of {self.n_splits}")
            order = random.permutation(host, seed, random.Stream.PARTITION, split, n)
            halves = [_rows(bk, X, np.sort(part)) for part in (order[: n // 2], order[n // 2 :])]
            # draws of their own: with the same ones all halves would err alike
            seeds = [random.derived_seed(host, seed, 2 * split + half) >> 32 for half in (1, 2)]
            mu = [fits(self.lams_[at], half, own) for half, own in zip(halves, seeds, strict=True)]
            selected = [[self._selection(row) for row in mu_half] for mu_half in mu]
            for i, (chosen, other, own) in enumerate(zip(selected, reversed(halves), seeds, strict=True)):
                found = max_t_test(bk, fits.selector._prepare(bk, other).X, chosen, self.n_permutations, own)
                z[2 * split + i, judged >= 0] = found.z[judged[judged >= 0]]
                p[2 * split + i, judged >= 0] = found.p_values[judged[judged >= 0]]
            agree = np.array([agreement(a, b, d) for a, b in zip(*selected, strict=True)])
            agreements.append(np.where(judged >= 0, agree[judged], 0.0))
        return z, p, np.array(agreements or [np.zeros(n_lams)])

    def _selection(self, mu: Array) -> Array:
        """The columns selected by one fit, increasing."""
        if self.n_features_to_select is None:
            return np.flatnonzero(mu > 0)
        return np.sort(np.argsort(-mu, kind="stable")[: n_wanted(self.n_features_to_select, len(mu))])

    def _store(self, tests: Sequence[PermutationTest], z: Array, p: Array, agreement: Array, constant: Array) -> None:
        self.n_selected_ = np.array([len(self._selection(mu)) for mu in self.mu_])
        self.excess_score_ = np.array([test.excess for test in tests])
        self.held_out_z_ = z.mean(axis=0)
        self.stability_ = agreement.mean(axis=0)
        self.p_value_ = aggregate_p_values(p)
        among = np.where((self.p_value_ <= _CHANCE) | (self.p_value_ > _CHANCE).all(), self.held_out_z_, -np.inf)
        equal = np.flatnonzero(among == among.max())
        self.best_index_ = int(equal[len(equal) // 2])
        self.scores_ = self.mu_[self.best_index_].copy()
        self.order_ = np.argsort(-self.scores_, kind="stable")
        self.support_ = np.zeros(self.mu_.shape[1], dtype=bool)
        self.support_[self._selection(self.scores_)] = True
        d, n_open = len(self.support_), int(self.n_selected_[self.best_index_])
        varying = d - int(constant.sum())
        said, p_value = None, self.p_value_[self.best_index_]
        if constant.all():
            said = str(all_constant(d))
        elif n_open == 0:
            said = (
                f"The fit at the chosen price, lam={self.lams_[self.best_index_]:.3g}, selected no feature: try "
                "smaller lams, other settings, or set n_features_to_select to take the best of the ranking."
            )
        elif p_value > _CHANCE >= smallest_p_value(self.n_permutations, len(p)):
            said = (
                f"At none of {len(self.lams_)} prices do columns chosen on one half of the rows have more structure on "
                f"the other than shuffled columns (p = {p_value:.2f} at the best): treat the {n_open} features "
                f"selected as noise, or look at other settings."
            )
        elif n_open == varying > 1 and self.n_features_to_select is None:
            everything = f"all {varying} features" + " that are not constant" * (varying < d)
            said = (
                f"The fit at the chosen price, lam={self.lams_[self.best_index_]:.3g}, selected {everything}: try "
                "larger lams, or set n_features_to_select to take the best of the ranking."
            )
        if said:
            warnings.warn(said, SelectionWarning, stacklevel=user_stacklevel())

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = (self.selector or DUFS()).__sklearn_tags__().input_tags.sparse
        return tags


class _Fits:
    """Fits of one selector at several prices, counted by a bar."""

    def __init__(self, selector: DUFS, bar: Any) -> None:
        self.selector, self._bar = selector, bar

    def __call__(self, lams: Array, X: Any, seed: int) -> Array:
        """mu (len(lams), d)."""
        size = self.selector.batch_size
        size = None if size is None or size > X.shape[0] else size  # of a half: it is no mistake there
        settings = {"random_state": seed, "batch_size": size}
        each = [clone(self.selector).set_params(lam=float(lam), **settings) for lam in lams]
        mu = np.stack([fit.mu_ for fit in fit_many(each, X)])
        self._bar.update(len(lams))
        return mu


def _judged_at(selections: Sequence[Array]) -> tuple[Array, Array]:
    """For each price the number of the one whose fits on halves judge it (-1: none), and the prices of these.

    Prices that select the same columns share the lowest of them, since on fewer rows gates close at lower prices. Fewer
    than two columns have nothing to judge.
    """
    alike: dict[bytes, list[int]] = {}
    for i, selection in enumerate(selections):
        if len(selection) > 1:
            alike.setdefault(selection.tobytes(), []).append(i)
    judged = np.full(len(selections), -1)
    for number, members in enumerate(alike.values()):
        judged[members] = number
    return judged, np.array([members[0] for members in alike.values()], dtype=np.int64)


def _rows(bk: Backend, X: Any, rows: Array) -> Any:
    """Some of the rows of what the user gave, on its side."""
    return X[bk.xp.asarray(rows)] if on_device(X) else X[rows]


@contextmanager
def one_of_each() -> Iterator[None]:
    """Warnings of many fits: one of each category; what a price selects or does not is the path's subject.

    Python keeps what it does with warnings once for all threads: paths in several threads are fitted in turn.
    """
    with _CATCHING, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in {w.category: w for w in caught if not issubclass(w.category, SelectionWarning)}.values():
        warnings.warn(warning.message, stacklevel=user_stacklevel())
