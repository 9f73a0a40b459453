"""The prices of a gate from which every column's gate opens to which none does, and a choice among them without labels.

A price is judged on rows that took no part in the choice of columns: the columns that a fit on one half of the rows
selects are compared, on the other half, with the same columns shuffled. Columns that agree by chance on the first
half do not on the second, so that the comparison needs no allowance for the search that found them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import sqrt
from threading import RLock
from typing import Any, NamedTuple, Self

import numpy as np
from sklearn.base import clone
from sklearn.utils.validation import validate_data

from dufs_core import checkpoint, random
from dufs_core.backend import Array, Backend, get_backend, on_device
from dufs_core.callers import users_level
from dufs_core.containers import check_samples, opened
from dufs_core.errors import SelectionWarning, all_constant
from dufs_core.estimator import DUFS
from dufs_core.gap import Gap, permutation_gap, shuffled_scores
from dufs_core.ops import regulariser
from dufs_core.population import fit_population
from dufs_core.selection import ColumnSelector
from dufs_core.table import take_columns, take_rows
from dufs_core.trainer import INITIAL_MU, batches, gate_noise, train
from dufs_core.validation import is_int, n_threads, n_wanted, seed_of

_CATCHING = RLock()  # held while warnings are caught
LOWEST, HIGHEST = 0.1, 3.0  # of the grid, in units of the largest price that a gate is worth at the start
_CHANCE = 0.05  # a p-value up to which a price is better than chance
_START_STEPS = 4  # steps whose draws the prices at the start are averaged over


class LambdaPath(ColumnSelector):
    """DUFS at several prices lam of an open gate, and a choice among them that needs no labels.

    Every price is fitted on all rows, and on both halves of `n_splits` random splits of the rows, all prices of a
    part together (`dufs_core.fit_population`). The columns T that a fit on one half selects are judged on the other
    by the permutation gap in units of its spread,

        z(T) = (score(X_T) - mean_b score(X_T shuffled)) / std_b score(X_T shuffled),

    and the price with the largest mean z over all halves is chosen (of equal ones the highest), among those with a
    p-value of at most 0.05 where there are any.

    Parameters
    ----------
    selector : DUFS or None, default None
        Settings of the fits; lam, random_state and n_features_to_select are set here, and columns are ordered by their
        gates. None: ``DUFS(n_restarts=1)``.
    lams : sequence of float or None, default None
        Prices. None: `n_lams` in geometric progression from 0.1 to 3 times the largest of `start_prices`.
    n_lams : int, default 8
    n_features_to_select : int, float or None, default None
        As in `DUFS`; with a number, that many of the best are selected, and judged, at every price.
    n_splits : int, default 2
    n_permutations : int, default 99
        Shuffles of a held-out half. With fewer than 39 no p-value can be 0.05, and noise is not warned of.
    random_state : int, RandomState instance or None, default None

    Attributes
    ----------
    lams_ : ndarray (n_lams,)
        Increasing.
    mu_ : ndarray (n_lams, n_features)
        Gate parameters of the fits on all rows.
    n_selected_ : ndarray (n_lams,) of int
        Columns selected on all rows.
    gap_ : ndarray (n_lams,)
        Permutation gap of those columns on all rows, the rows that chose them: biased upwards.
    held_out_ : ndarray (n_lams,)
        Mean of z over the halves.
    stability_ : ndarray (n_lams,)
        Mean agreement of the two halves of a split: (|A and B| - e) / (sqrt(|A| |B|) - e), e = |A| |B| / n_features,
        which is 0 on average for selections that have nothing in common but their sizes, and 1 for equal ones.
    p_value_ : ndarray (n_lams,)
        That columns selected at this price have no more structure, on rows that did not select them, than shuffled
        columns: twice the median over the halves, each adjusted for the choice among all prices (see Notes).
    best_ : int
        Position of the chosen price.
    support_ : ndarray (n_features,) of bool
    scores_ : ndarray (n_features,)
        mu_[best_]: larger is better.
    ranking_ : ndarray (n_features,) of int
        Best first; exact ties by column index.
    constant_features_ : ndarray of int
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Notes
    -----
    On a held-out half a shuffle permutes every column alike in all selections. With z_b(l) the score of shuffle b at
    price l, and z_0(l) that of the rows as they are, in units of the mean and spread of all 1 + B of them, the adjusted
    p-value of price l is (1 + #{b: max_l' z_b(l') >= z_0(l)}) / (1 + B), the single-step maximum procedure of Westfall
    and Young (1993), exact for columns that are independent of one another. The smallest p-value is 2 / (1 + B). Twice
    the median of p-values that depend on one another is a p-value (Meinshausen, Meier and Buehlmann, JASA 104, 2009).
    A half whose columns say nothing counts with p = 1: on two moons of 100 rows and 10 columns all of the seeds 0 to 7
    chose exactly the moons, six with p = 0.02 and two with p = 1. Few rows ask for more splits, or for DUFS's p-value.

    What judges on a held-out half is score(X_T) of `dufs_core.gap.permutation_gap`, on a graph of its own with
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
        n_splits: int = 2,
        n_permutations: int = 99,
        random_state: Any = None,
    ) -> None:
        self.selector = selector
        self.lams = lams
        self.n_lams = n_lams
        self.n_features_to_select = n_features_to_select
        self.n_splits = n_splits
        self.n_permutations = n_permutations
        self.random_state = random_state

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
        selector = DUFS(n_restarts=1) if self.selector is None else clone(self.selector)
        checkpoint.refuse(selector, "A path")
        selector.set_params(lam=0.0, n_features_to_select=None)
        X = opened(X)
        check_samples(X, y)
        bk, X_all = selector._accept(X)
        selector.set_params(backend=bk.name)  # a matrix from a GPU is on the host now
        validate_data(self, X, skip_check_array=True)  # names and number of features
        n, d = X_all.shape
        self._check(selector, X_all)
        seed = seed_of(self.random_state)
        with selector._place(bk, X, X_all), one_of_each():
            self.lams_ = self._lams(selector, X_all)
            self.mu_ = self._fits(selector, X_all, seed)
            z, p, agreement = [], [], []
            for split in range(self.n_splits):
                order = random.permutation(get_backend("numpy"), seed, random.Stream.PARTITION, split, n)
                halves = [_rows(bk, X_all, np.sort(part)) for part in (order[: n // 2], order[n // 2 :])]
                mu = [self._fits(selector, half, seed) for half in halves]
                selected = [[self._selection(row) for row in mu_half] for mu_half in mu]
                agreement.append([_agreement(a, b, d) for a, b in zip(*selected, strict=True)])
                for chosen, other in zip(selected, reversed(halves), strict=True):
                    judged = _judge(bk, selector._prepare(bk, other).X, chosen, self.n_permutations, seed)
                    z.append(judged.z)
                    p.append(judged.p_values)
            data, constant = selector._prepare(bk, X_all)
            self.constant_features_ = np.flatnonzero(constant)
            gaps = [permutation_gap(bk, data, self._selection(mu)) for mu in self.mu_]
        self._store(gaps, np.array(z), np.array(p), np.array(agreement), constant)
        return self

    def _check(self, selector: DUFS, X: Any) -> None:
        for name, lowest in (("n_lams", 1), ("n_splits", 1), ("n_permutations", 1)):
            value = getattr(self, name)
            if not is_int(value) or value < lowest:
                raise ValueError(f"{name} must be a whole number of at least {lowest}; got {value!r}")
        n, d = X.shape
        if selector.ranking != "gates" and self.n_features_to_select is not None:
            raise ValueError(
                f"A path takes n_features_to_select={self.n_features_to_select} columns by their gates, and its "
                f'selector has ranking={selector.ranking!r}: set ranking="gates", or leave n_features_to_select=None and fit '
                f"the selector with lam=path.lams_[path.best_] and that many columns afterwards"
            )
        if selector._on_disk(X):
            raise ValueError("A path needs halves of X, which lies on disk: read it into memory first, numpy.array(X)")
        if n // 2 < selector.n_neighbors + 2:
            raise ValueError(
                f"A path splits the rows into halves, and each needs n_neighbors + 2 = {selector.n_neighbors + 2} "
                f"rows; X has {n}. Use DUFS itself on so few."
            )
        if self.n_features_to_select is not None:
            n_wanted(self.n_features_to_select, d)

    def _lams(self, selector: DUFS, X: Any) -> Array:
        if self.lams is None:
            prices = start_prices(selector, X)
            top = float(prices.max())
            if top <= 0 and prices.any():
                raise ValueError(
                    f"No price opens a gate: at the start every gate that opens lowers the score (power="
                    f"{selector.power}, self_loops={selector.self_loops}). Use an even power, self_loops=True or a "
                    f"smaller bandwidth"
                )
            top = max(top, float(np.finfo(np.float32).tiny))
            return np.geomspace(LOWEST * top, HIGHEST * top, self.n_lams)
        try:
            lams = np.asarray(self.lams, dtype=np.float64)
        except (TypeError, ValueError):  # no numbers
            lams = np.empty(0)
        if lams.ndim != 1 or not lams.size or not np.isfinite(lams).all() or lams.min() < 0:
            raise ValueError(f"lams must be None or a sequence of numbers of at least 0; got {self.lams!r}")
        return np.unique(lams)

    def _fits(self, selector: DUFS, X: Any, seed: int) -> Array:
        """mu (n_lams, d) of fits on X."""
        fits = [clone(selector).set_params(lam=float(lam), random_state=seed) for lam in self.lams_]
        return np.stack([fit.mu_ for fit in fit_population(fits, X)])

    def _selection(self, mu: Array) -> Array:
        """The columns selected by one fit, increasing."""
        if self.n_features_to_select is None:
            return np.flatnonzero(mu > 0)
        return np.sort(np.argsort(-mu, kind="stable")[: n_wanted(self.n_features_to_select, len(mu))])

    def _store(self, gaps: Sequence[Gap], z: Array, p: Array, agreement: Array, constant: Array) -> None:
        self.n_selected_ = np.array([len(self._selection(mu)) for mu in self.mu_])
        self.gap_ = np.array([gap.gap for gap in gaps])
        self.held_out_ = z.mean(axis=0)
        self.stability_ = agreement.mean(axis=0)
        self.p_value_ = np.minimum(1.0, 2 * np.median(p, axis=0))
        among = np.where((self.p_value_ <= _CHANCE) | (self.p_value_ > _CHANCE).all(), self.held_out_, -np.inf)
        self.best_ = int(np.flatnonzero(among == among.max())[-1])
        self.scores_ = self.mu_[self.best_].copy()
        self.ranking_ = np.argsort(-self.scores_, kind="stable")
        self.support_ = np.zeros(self.mu_.shape[1], dtype=bool)
        self.support_[self._selection(self.scores_)] = True
        d, n_open = len(self.support_), int(self.n_selected_[self.best_])
        varying = d - int(constant.sum())
        said, p_value = None, self.p_value_[self.best_]
        if constant.all():
            said = str(all_constant(d))
        elif n_open == 0:
            said = (
                f"The fit at the chosen price, lam={self.lams_[self.best_]:.3g}, selected no feature: try smaller "
                f"lams, other settings, or set n_features_to_select to take the best of the ranking."
            )
        elif p_value > _CHANCE >= 2 / (1 + self.n_permutations):
            said = (
                f"At none of {len(self.lams_)} prices do columns chosen on one half of the rows have more structure on "
                f"the other than shuffled columns (p = {p_value:.2f} at the best): treat the {n_open} features "
                f"selected as noise, or look at other settings."
            )
        elif n_open == varying > 1 and self.n_features_to_select is None:
            everything = f"all {varying} features" + " that are not constant" * (varying < d)
            said = (
                f"The fit at the chosen price, lam={self.lams_[self.best_]:.3g}, selected {everything}: try larger "
                f"lams, or set n_features_to_select to take the best of the ranking."
            )
        if said:
            warnings.warn(said, SelectionWarning, stacklevel=users_level())

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = (self.selector or DUFS()).__sklearn_tags__().input_tags.sparse
        return tags


def start_prices(selector: DUFS, X: Any) -> Array:
    """The price at which each gate would stand still in the first step, (d,), NumPy; constant columns have 0.

    lam_k = (1/n dS/dmu_k) / (dp_k/dmu_k) at mu = 1/2, averaged over draws, with S and p as in `DUFS`. The largest
    lies where gates begin to close for good, whatever the bandwidth and the number of columns, which a fixed range of
    prices does not.

    X (n, d) as in `DUFS.fit`.
    """
    selector = clone(selector).set_params(lam=0.0)
    bk, X = selector._accept(X)
    evaluate = selector._engine(bk, X, n_threads(selector.n_jobs))
    data = selector._prepare(bk, X)
    columns = np.flatnonzero(~data.constant)
    prices = np.zeros(X.shape[1])
    if not len(columns):
        return prices
    varying = take_columns(bk, data.X, columns)
    search = selector._search(evaluate, train, X.shape[0], len(columns))
    mu = bk.xp.full(len(columns), INITIAL_MU, dtype=varying.dtype)
    rows = batches(bk, 0, 0, X.shape[0], search.schedule)[0]
    batch = varying if len(rows) == X.shape[0] else take_rows(varying, rows)
    for step in range(_START_STEPS):
        noise_rows = rows if selector.gate_noise == "sample" else None
        eps = gate_noise(bk, 0, step + 1, search.schedule.n_draws, noise_rows, columns, varying.dtype)
        _, dmu = evaluate(bk, search.objective, mu, eps, batch)
        prices[columns] -= bk.to_host(dmu) / _START_STEPS
    _, saved = regulariser.forward(bk, mu, selector.gate_sigma)
    return prices / float(regulariser.backward(bk, saved, 1.0)[0])


class _Judgement(NamedTuple):
    """Selections (one for each price) on rows that did not choose them."""

    z: Array  # (n_lams,)
    p_values: Array  # (n_lams,), adjusted for the choice among them


def _judge(bk: Backend, X: Array, selections: Sequence[Array], n_permutations: int, seed: int) -> _Judgement:
    """X (n, d) scaled. A selection of fewer than two columns has z = 0 and p-value 1: it says nothing."""
    z = np.zeros(len(selections))
    ranked = np.full((1 + n_permutations, len(selections)), -np.inf)  # the observation last
    for i, selection in enumerate(selections):
        if len(selection) < 2:
            continue
        observed, shuffled = shuffled_scores(bk, X, selection, n_permutations, seed)
        spread, together = shuffled.std(), np.append(shuffled, observed)
        if spread > np.finfo(np.float32).eps:  # else no permutation changes them (constant here, or nearly)
            z[i] = (observed - shuffled.mean()) / spread
            # mean and spread of all: the observation and the shuffles are then exchangeable, also in their maximum
            ranked[:, i] = (together - together.mean()) / together.std()
    highest = ranked[:-1].max(axis=1)
    exceeded = (highest[:, None] >= ranked[-1]).sum(axis=0)
    return _Judgement(z, np.where(np.isfinite(ranked[-1]), (1 + exceeded) / (1 + n_permutations), 1.0))


def _agreement(a: Array, b: Array, d: int) -> float:
    """(|A and B| - e) / (sqrt(|A| |B|) - e), e = |A| |B| / d; 0 where there is nothing to agree on (none, or all)."""
    expected = len(a) * len(b) / d
    most = sqrt(len(a) * len(b)) - expected
    return (len(np.intersect1d(a, b)) - expected) / most if most > 1e-12 else 0.0


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
        warnings.warn(warning.message, stacklevel=users_level())
