"""DUFS, the scikit-learn selector."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.feature_selection import SelectorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from dufs_core import random
from dufs_core.backend import Array, Backend, get_backend
from dufs_core.data import SCALINGS, Prepared, prepare
from dufs_core.engines import get_engine
from dufs_core.errors import DegenerateBandwidthWarning, IsolatedRowsWarning, SelectionWarning
from dufs_core.gap import Gap, permutation_gap
from dufs_core.objective import Objective
from dufs_core.ops import regulariser
from dufs_core.ops.bandwidth import check_n_neighbors, quantile_of
from dufs_core.optim import get_optimizer
from dufs_core.trainer import Callback, Run, Schedule, StepInfo, train

CONVINCING_GAP = 0.2  # a selection with this permutation gap ends the search; chance pairs stay below it
_ISOLATED_SHARE = 0.1  # share of rows without neighbours that is worth a warning
_AUTHORS_DELTA = 1e-6  # the authors' mean(score) / (mean(p) + 1e-6): 1e-6 n d in sums
_SATURATED = 2.5  # constant columns: below any gate that training can leave, in units of sigma below the lowest


class _Outcome(NamedTuple):
    """One run of the search."""

    run: Run
    columns: Array  # positions that took part
    gap: Gap


class DUFS(SelectorMixin, BaseEstimator):  # type: ignore[misc]
    """Differentiable unsupervised feature selection with a gated Laplacian.

    Learns one stochastic gate z_k = clip(mu_k + gate_sigma eps_k, 0, 1), eps_k ~ N(0, 1), per column by
    maximising the score of the gated data Xt = X * z on its own neighbourhood graph:

        S = Tr(Xt' P^t Xt),  P = diag(K 1)^(-1) K,  K_ij = exp(-||xt_i - xt_j||^2 / b)
        lam=None:  minimise  -S / (n sum_k P(z_k > 0))          lam >= 0:  minimise  -S / n + lam sum_k P(z_k > 0)

    Source: Lindenbaum, Shaham, Svirsky, Peterfreund and Kluger, arXiv 2007.04728.

    Parameters
    ----------
    lam : float or None, default None
        Price of an open gate in the regularised loss; None uses the parameter-free loss.
    n_features_to_select : int, float or None, default None
        None: every column whose gate ends open (mu > 0). An int: exactly that many, best first. A float
        between 0 and 1: that share of the columns, at least one.
    power : int, default 2
        t, the power of the random walk.
    bandwidth : "max", "median", "q90" or float, default "max"
        b = bandwidth_factor times the largest, the median or the 0.9 quantile of the squared distances to the
        n_neighbors-th other row, read from the gated data at every step; a number is b itself.
    n_neighbors : int, default 2
        Counts other rows: a row is not its own neighbour.
    bandwidth_factor : float, default 2.0
    bandwidth_gradient : bool, default True
        Whether the gradient flows through the bandwidth. Without it gates hardly move.
    gate_sigma : float, default 0.5
        Standard deviation of the gate noise.
    gate_noise : "batch" or "sample", default "batch"
        One noise vector for all rows (the paper), or one per row (the authors' code).
    n_draws : int, default 16
        Noise draws per step, in antithetic pairs (eps, -eps); 1 or an even number.
    optimizer : "normalized", "sgd" or "adam", default "normalized"
        See `dufs_core.optim`. "normalized" divides the gradient by its running root mean square, so that one
        learning rate serves any number of columns.
    learning_rate : float, default 0.005
        Average movement of a gate per step for "normalized" (gates decide within a distance of about 1).
    momentum : float, default 0.0
    max_iter : int, default 2000
        Most steps of one run.
    tol : float, default 0.01
        A run has converged when at most this share of the gates is undecided, |mu - 1/2| <= 1/2 + 1.2 gate_sigma.
    n_restarts : int, default 8
        Most runs. A run whose selection has a permutation gap (`dufs_core.gap`) of at least 0.2 ends the search;
        otherwise the columns of a selection that failed are held closed and the next run looks at the others,
        with other draws. The run with the largest gap is kept. 1 trains once.
    batch_size : int or None, default None
        Rows per step: near-equal batches of at most this size, every row once an epoch. None, or at least the
        number of rows: all rows.
    scaling : "columns", "global" or "none", default "columns"
        Mean 0 and variance 1 for each column; centred columns and one common scale (images); centred only.
    engine : "auto", "dense" or "small", default "auto"
    backend : "auto" or "numpy", default "auto"
    dtype : "float32" or "float64", default "float32"
    n_jobs : int or None, default None
        Threads over the draws of a step in the "small" engine; None or -1: all cores. Results do not depend on it.
    random_state : int, RandomState instance or None, default None
    verbose : int, default 0
        1: a progress bar on standard error.
    callbacks : sequence of callables, default ()
        Called with a `dufs_core.trainer.StepInfo` after every step; one that returns True ends that run.
    convention : "standard" or "authors_code", default "standard"
        "authors_code" follows the published code where it departs from the paper: learning_rate is per 1/d of the
        regularised loss, mu starts at 0.5 + truncated N(0, 0.01^2), minibatches always have batch_size rows and wrap
        around, a bandwidth statistic below 1e-8 is replaced by 1, and 1e-6 is added to the mean open probability.

    Attributes
    ----------
    mu_ : ndarray (n_features,)
        Gate parameters; columns that took no part (constant, or set aside by an earlier run) are below all others.
    gate_probabilities_ : ndarray (n_features,)
        P(z > 0).
    scores_ : ndarray (n_features,)
        mu_: larger is better.
    ranking_ : ndarray (n_features,) of int
        Column indices, best first; exact ties by column index.
    support_ : ndarray (n_features,) of bool
    bandwidth_, loss_ : float
        Means over the draws of the last step.
    permutation_gap_, p_value_ : float
        How much better than shuffled columns those with mu > 0 are, and the p-value.
    history_ : dict of ndarray (n_iter_,)
        step, loss, score (S / n), bandwidth, open_gates, undecided_gates of the run that was kept.
    n_iter_ : int
    n_runs_ : int
    converged_ : bool
    constant_features_ : ndarray of int
    backend_, engine_ : str
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Examples
    --------
    >>> from dufs_core import DUFS
    >>> from dufs_core.datasets import two_moons
    >>> X = two_moons(n_features=10).X
    >>> DUFS(random_state=0).fit(X).ranking_[:2]
    array([0, 1])
    """

    def __init__(
        self,
        *,
        lam: float | None = None,
        n_features_to_select: int | float | None = None,
        power: int = 2,
        bandwidth: Literal["median", "q90", "max"] | float = "max",
        n_neighbors: int = 2,
        bandwidth_factor: float = 2.0,
        bandwidth_gradient: bool = True,
        gate_sigma: float = 0.5,
        gate_noise: Literal["batch", "sample"] = "batch",
        n_draws: int = 16,
        optimizer: Literal["normalized", "sgd", "adam"] = "normalized",
        learning_rate: float = 0.005,
        momentum: float = 0.0,
        max_iter: int = 2000,
        tol: float = 0.01,
        n_restarts: int = 8,
        batch_size: int | None = None,
        scaling: Literal["columns", "global", "none"] = "columns",
        engine: Literal["auto", "dense", "small"] = "auto",
        backend: Literal["auto", "numpy", "cupy"] = "auto",
        dtype: Literal["float32", "float64"] = "float32",
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
        callbacks: Sequence[Callback] = (),
        convention: Literal["standard", "authors_code"] = "standard",
    ) -> None:
        self.lam = lam
        self.n_features_to_select = n_features_to_select
        self.power = power
        self.bandwidth = bandwidth
        self.n_neighbors = n_neighbors
        self.bandwidth_factor = bandwidth_factor
        self.bandwidth_gradient = bandwidth_gradient
        self.gate_sigma = gate_sigma
        self.gate_noise = gate_noise
        self.n_draws = n_draws
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.max_iter = max_iter
        self.tol = tol
        self.n_restarts = n_restarts
        self.batch_size = batch_size
        self.scaling = scaling
        self.engine = engine
        self.backend = backend
        self.dtype = dtype
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose
        self.callbacks = callbacks
        self.convention = convention

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Self:
        """The settings of the paper, or of the authors' published code, with `changes` on top.

        "paper": one noise vector per batch, one draw, bandwidth 5 times the largest squared distance to the second
        other row, t = 2, plain SGD from mu = 1/2. "authors_code": noise per sample, bandwidth from the median
        distance to the nearest other row (their second neighbour counts the row itself) with factor 1, plain SGD, and
        ``convention="authors_code"``. Both: one run of at most 15,000 steps with learning rate 1 (for the
        regularised loss "paper" needs their rates, 0.3 to 1, divided by the number of columns).

        Raises ValueError for another name.
        """
        common: dict[str, Any] = {
            "power": 2, "n_draws": 1, "optimizer": "sgd", "learning_rate": 1.0, "max_iter": 15_000, "n_restarts": 1,
        }  # fmt: skip
        presets: dict[str, dict[str, Any]] = {
            "paper": {"gate_noise": "batch", "bandwidth": "max", "n_neighbors": 2, "bandwidth_factor": 5.0},
            "authors_code": {
                "gate_noise": "sample", "bandwidth": "median", "n_neighbors": 1, "bandwidth_factor": 1.0,
                "convention": "authors_code",
            },
        }  # fmt: skip
        if name not in presets:
            raise ValueError(f'preset must be "paper" or "authors_code"; got {name!r}')
        return cls(**(common | presets[name] | changes))

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the gates.

        Parameters
        ----------
        X : array-like (n_samples, n_features)
            Real numbers, at least 3 rows (n_neighbors + 1). Not written to.
        y : ignored

        Raises
        ------
        ValueError
            If X or a parameter is not usable; the message gives the numbers and what to do.
        BackendUnavailableError
            If the backend asked for cannot compute here.
        """
        bk = get_backend(self.backend)
        X = validate_data(self, X, dtype="numeric", ensure_all_finite=False, ensure_min_samples=2)
        n, d = X.shape
        self._check_parameters(n, d)
        data = prepare(X, self.scaling, self.dtype)
        seed = int(check_random_state(self.random_state).randint(2**31)) if not _is_int(self.random_state) else int(
            self.random_state
        )
        best, n_runs = self._search(bk, data, seed & 0xFFFFFFFFFFFFFFFF)
        self._store(bk, data, best, n_runs)
        self._warn(best, n)
        return self

    def _search(self, bk: Backend, data: Prepared, seed: int) -> tuple[_Outcome, int]:
        """Runs until one is convincing, or n_restarts of them; the one with the largest gap."""
        columns = np.flatnonzero(~data.constant)
        outcomes: list[_Outcome] = []
        while len(outcomes) < self.n_restarts and (not outcomes or len(columns) > 1):
            outcome = self._run(bk, data.X, columns, random.derived_seed(bk, seed, len(outcomes)), len(outcomes))
            outcomes.append(outcome)
            if outcome.gap.gap >= CONVINCING_GAP:
                break
            selected = columns[outcome.run.mu > 0]
            if len(selected) > 1:  # one column alone says nothing for or against it
                columns = np.setdiff1d(columns, selected)
        return max(outcomes, key=lambda outcome: outcome.gap.gap), len(outcomes)

    def _run(self, bk: Backend, X: Array, columns: Array, seed: int, index: int) -> _Outcome:
        n = X.shape[0]
        authors = self.convention == "authors_code"
        d = len(columns)
        objective = Objective(
            lam=self.lam,
            power=self.power,
            bandwidth=self.bandwidth,
            n_neighbors=self.n_neighbors,
            bandwidth_factor=self.bandwidth_factor,
            bandwidth_gradient=self.bandwidth_gradient,
            gate_sigma=self.gate_sigma,
            delta=_AUTHORS_DELTA * n * d if authors else 1e-6,
            zero_rule="one" if authors else "data",
        )
        rate = self.learning_rate / d if authors and self.lam is not None and d else self.learning_rate
        schedule = Schedule(
            n_draws=self.n_draws,
            max_iter=self.max_iter,
            tol=self.tol,
            batch_size=self.batch_size,
            gate_noise=self.gate_noise,
            batches="wrap" if authors else "near_equal",
        )
        rows = n if self.batch_size is None else min(n, self.batch_size)
        self.engine_, evaluate = get_engine(self.engine, bk, rows, _threads(self.n_jobs))
        if not d:  # nothing to learn
            empty = np.zeros(0)
            names = ("step", "loss", "score", "bandwidth", "open_gates", "undecided_gates")
            run = Run(empty.astype(self.dtype), dict.fromkeys(names, empty), 0, True, 0.0, 0)
            return _Outcome(run, columns, Gap(0.0, 1.0))
        X = X if d == X.shape[1] else X.T[columns].T
        with _Progress(self.verbose, self.max_iter, index) as progress:
            run = train(
                bk, X, columns, objective, evaluate, get_optimizer(self.optimizer, rate, self.momentum), schedule, seed,
                jitter=authors, callbacks=tuple(self.callbacks), progress=progress.update,
            )  # fmt: skip
        return _Outcome(run, columns, permutation_gap(bk, X, np.flatnonzero(run.mu > 0), columns=columns))

    def _store(self, bk: Backend, data: Prepared, best: _Outcome, n_runs: int) -> None:
        run, d = best.run, data.X.shape[1]
        lowest = float(run.mu.min()) if len(run.mu) else 0.0
        aside = min(lowest, 0.0) - _SATURATED * self.gate_sigma
        mu = np.full(d, aside, dtype=self.dtype)
        mu[data.constant] = aside - self.gate_sigma
        mu[best.columns] = bk.to_host(run.mu)
        self.mu_ = mu
        self.gate_probabilities_ = np.asarray(regulariser.probabilities(bk, mu, self.gate_sigma))
        self.scores_ = mu.copy()
        self.ranking_ = np.argsort(-mu, kind="stable")
        self.support_ = mu > 0
        if self.n_features_to_select is not None:
            self.support_ = np.zeros(d, dtype=bool)
            self.support_[self.ranking_[: _wanted(self.n_features_to_select, d)]] = True
        self.history_ = run.history
        self.n_iter_ = run.n_iter
        self.n_runs_ = n_runs
        self.converged_ = run.converged
        self.bandwidth_ = float(run.history["bandwidth"][-1]) if run.n_iter else 1.0
        self.loss_ = float(run.history["loss"][-1]) if run.n_iter else 0.0
        self.permutation_gap_, self.p_value_ = best.gap
        self.constant_features_ = np.flatnonzero(data.constant)
        self.backend_ = bk.name

    def _warn(self, best: _Outcome, n: int) -> None:
        """At most one warning of each kind per fit, each with what to do."""
        d, n_open = len(self.mu_), int((self.mu_ > 0).sum())
        run = best.run
        if run.isolated > _ISOLATED_SHARE:
            warnings.warn(
                f"In some step {run.isolated:.0%} of the rows had no neighbour within the bandwidth (b = "
                f"{self.bandwidth_:.3g} at the end), which turns the score into plain variance. "
                f'Use a larger bandwidth: bandwidth="max" gives every row {self.n_neighbors} neighbours.',
                IsolatedRowsWarning, stacklevel=3,
            )  # fmt: skip
        if run.substituted:
            warnings.warn(
                f"In {run.substituted} of {run.n_iter} steps the bandwidth rule {self.bandwidth!r} gave 0 (duplicate rows or "
                f"closed gates) and the smallest positive neighbour distance was used. A larger n_neighbors "
                f"(now {self.n_neighbors}, at most {n - 1}) looks past the duplicates.",
                DegenerateBandwidthWarning, stacklevel=3,
            )  # fmt: skip
        if self.lam is not None and n_open in (0, d) and self.n_features_to_select is None:
            what, direction = ("no feature", "smaller") if n_open == 0 else (f"all {d} features", "larger")
            warnings.warn(
                f"The fit selected {what} with lam={self.lam}: try a {direction} lam, lam=None, or set "
                f"n_features_to_select to take the best of the ranking.",
                SelectionWarning, stacklevel=3,
            )  # fmt: skip
        elif n_open in (0, d) and self.n_features_to_select is None:
            what = "no feature" if n_open == 0 else f"all {d} features"
            why = "every column is constant" if not len(run.mu) else f"{self.n_iter_} steps of at most {self.max_iter}"
            warnings.warn(
                f"The parameter-free fit selected {what} ({why}): try more steps (max_iter), another random_state, "
                f"or set n_features_to_select to take the best of the ranking.",
                SelectionWarning, stacklevel=3,
            )  # fmt: skip
        elif self.p_value_ > 0.05 and n_open > 1:
            warnings.warn(
                f"The {n_open} selected features have no more structure together than the same columns shuffled "
                f"(permutation gap {self.permutation_gap_:.3f}, p = {self.p_value_:.2f}): treat the selection as noise, "
                f"or look at other bandwidth settings.",
                SelectionWarning, stacklevel=3,
            )  # fmt: skip

    def _check_parameters(self, n: int, d: int) -> None:
        """Raise ValueError for any parameter that cannot be used with n rows and d columns."""
        for name, lowest in (("power", 1), ("n_neighbors", 1), ("n_draws", 1), ("max_iter", 1), ("n_restarts", 1)):
            value = getattr(self, name)
            if not _is_int(value) or value < lowest:
                raise ValueError(f"{name} must be a whole number of at least {lowest}; got {value!r}")
        for name in ("bandwidth_factor", "gate_sigma", "learning_rate"):
            value = getattr(self, name)
            if not isinstance(value, Real) or not 0 < value < float("inf"):
                raise ValueError(f"{name} must be a positive number; got {value!r}")
        if self.lam is not None and (not isinstance(self.lam, Real) or not 0 <= self.lam < float("inf")):
            raise ValueError(f"lam must be None (parameter-free loss) or a number of at least 0; got {self.lam!r}")
        if not isinstance(self.tol, Real) or not 0 <= self.tol < 1:
            raise ValueError(f"tol is a share of the gates and must be at least 0 and below 1; got {self.tol!r}")
        for name, choices in (
            ("gate_noise", ("batch", "sample")), ("dtype", ("float32", "float64")), ("scaling", SCALINGS),
            ("convention", ("standard", "authors_code")),
        ):  # fmt: skip
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}; got {getattr(self, name)!r}")
        if isinstance(self.bandwidth, str):
            quantile_of(self.bandwidth)
        elif not isinstance(self.bandwidth, Real) or not 0 < self.bandwidth < float("inf"):
            raise ValueError(f'bandwidth must be "median", "q90", "max" or a positive number; got {self.bandwidth!r}')
        get_optimizer(self.optimizer, self.learning_rate, self.momentum)
        if self.n_draws > 1 and self.n_draws % 2:
            raise ValueError(f"n_draws must be 1 or an even number (draws come in pairs eps, -eps); got {self.n_draws}")
        check_n_neighbors(self.n_neighbors, n)
        if self.batch_size is not None:
            if not _is_int(self.batch_size) or self.batch_size < self.n_neighbors + 2:
                raise ValueError(
                    f"batch_size must be a whole number of at least n_neighbors + 2 = {self.n_neighbors + 2}; "
                    f"got {self.batch_size!r}"
                )
            if self.batch_size > n:
                warnings.warn(f"batch_size={self.batch_size} exceeds the {n} rows: every step uses all rows.", stacklevel=3)
        if self.n_features_to_select is not None:
            _wanted(self.n_features_to_select, d)

    def _get_support_mask(self) -> Array:
        check_is_fitted(self, "support_")
        return self.support_

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = False
        return tags


def _is_int(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _wanted(requested: Any, d: int) -> int:
    """The number of columns that n_features_to_select asks for. Raises ValueError with both numbers."""
    if _is_int(requested) and 1 <= requested <= d:
        return int(requested)
    if isinstance(requested, Real) and not isinstance(requested, Integral) and 0 < requested < 1:
        return max(1, int(requested * d))
    raise ValueError(
        f"n_features_to_select must be None, a whole number from 1 to the {d} features of X, or a share between 0 and 1; "
        f"got {requested!r}"
    )


def _threads(n_jobs: int | None) -> int:
    if n_jobs is None or n_jobs == -1:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not _is_int(n_jobs) or n_jobs < 1:
        raise ValueError(f"n_jobs must be None, -1 or a whole number of at least 1; got {n_jobs!r}")
    return n_jobs


class _Progress:
    """A bar on standard error, or nothing."""

    def __init__(self, verbose: int, max_iter: int, index: int) -> None:
        self._bar: Any = None
        if verbose:
            from tqdm import tqdm

            self._bar = tqdm(total=max_iter, desc=f"run {index + 1}", unit="step", leave=False, mininterval=0.2)

    def update(self, info: StepInfo) -> None:
        if self._bar is not None:
            self._bar.update()
            self._bar.set_postfix(open=info.open_gates, undecided=info.undecided_gates, refresh=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.close()
