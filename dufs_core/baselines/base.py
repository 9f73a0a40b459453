"""Shared by the baselines as selectors: input, constant columns, ranking, parameter checks, common documentation."""

from __future__ import annotations

import inspect
import warnings
from abc import ABC, abstractmethod
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np

from dufs_core.backend import Array, get_backend
from dufs_core.backend.blas import one_blas_thread
from dufs_core.backend.memory import check_squares
from dufs_core.data.accept import accept
from dufs_core.data.scaling import check_scaling
from dufs_core.errors import all_constant, user_stacklevel
from dufs_core.objective.ops.bandwidth import check_bandwidth, check_n_neighbors
from dufs_core.selection.base import ColumnSelector
from dufs_core.selection.parameters import check_positive, check_whole, is_whole, n_wanted, seed_of

DEFAULT_CLUSTERS = 5
_SMALL_ROWS = 256  # fits of at most so many rows run on one BLAS thread, as in DUFS
_WHOLE = {"power", "n_neighbors", "max_iter", "n_partitions", "n_subspaces"}
_POSITIVE = {"bandwidth_factor", "learning_rate", "alpha", "beta", "gamma", "tol"}
_PARAMETERS = """n_features_to_select : int, float or None, default None
    An int: exactly that many, best first. A float between 0 and 1: that share of the columns, at least one. None:
    half of the columns (no constant one).
scaling : "columns", "global" or "none", default "columns"
    Mean 0 and variance 1 for each column; centred columns and one common scale; centred only.
random_state : int, RandomState instance or None, default None
    Ignored by LaplacianScore, MCFS and LLCFS, which draw nothing."""
_ATTRIBUTES = """scores_ : ndarray (n_features,)
    The score above, larger is better. Constant columns are below all others.
order_ : ndarray (n_features,) of int
    Column indices, best first; exact ties by column index.
support_ : ndarray (n_features,) of bool
constant_features_ : ndarray of int
n_features_in_, feature_names_in_
    As in scikit-learn."""


def too_large(X: Array, lost: str, instead: str) -> ValueError:
    """The refusal of X (n, d), scaled, whose largest column leaves no digits: what is `lost`, what to do `instead`."""
    peak = np.abs(X).max(axis=0)
    column = int(peak.argmax())
    return ValueError(
        f"Column {column} reaches {peak[column]:.3g} from its mean; {lost}. Use scaling='columns' or 'global', "
        f"{instead}, or divide X first."
    )


@dataclass(kw_only=True, eq=False, repr=False)  # writes __init__ alone
class Baseline(ColumnSelector, ABC):
    """A selector that scores every column once.

    A subclass gives `_score(X, columns, n_selected, seed)`, the scores of the columns that are not constant. Constant
    columns get a score below 0 and below every other, so they rank last; no method sees them. "{parameters}" and
    "{attributes}" in a subclass' docstring stand for those that all share.
    """

    n_features_to_select: int | float | None = None
    scaling: Literal["columns", "global", "none"] = "columns"
    random_state: Any = None

    dtype = "float64"  # a parameter of the one method that can do with less
    _many_products = True  # whether small matrices are multiplied often enough for one BLAS thread to pay

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.__module__.startswith("dufs_core."):
            cls.__module__ = "dufs_core.baselines"  # where users find it, and where pickles look for it
        text = inspect.cleandoc(cls.__doc__ or "")
        cls.__doc__ = text.replace("{parameters}", _PARAMETERS).replace("{attributes}", _ATTRIBUTES)

    def _squares(self) -> int:
        """How many n x n arrays of float64 `_score` holds at once."""
        return 0

    def _check(self, n: int) -> None:
        """Raise ValueError for a parameter that cannot be used with n rows."""
        for name, value in self.get_params(deep=False).items():
            if name in _WHOLE:
                check_whole(name, value)
                if name == "n_neighbors":
                    check_n_neighbors(value, n)
            elif name in _POSITIVE:
                check_positive(name, value)
            elif name == "bandwidth":
                check_bandwidth(value)
        if hasattr(self, "n_clusters"):
            self._clusters(n)

    @abstractmethod
    def _score(self, X: Array, columns: Array, n_selected: int, seed: int) -> Array:
        """Scores of the columns of X (n, m), larger is better; may set further fitted attributes.

        X: in self.dtype, scaled, C order, no constant column, m >= 1. columns (m,): their positions in the user's data.
        n_selected: how many of them will be selected, 1 to m. seed: 64 bits.
        """

    def fit(self, X: Any, y: Any = None) -> Self:
        """Score the columns.

        Parameters
        ----------
        X : array-like (n_samples, n_features)
            Real numbers. Not written to.
        y : ignored

        Raises
        ------
        ValueError, TypeError
            If X or a parameter is not usable; the message gives the numbers and what to do.
        MemoryLimitError
            If the method holds n x n arrays, and more of them than there is memory for.
        """
        accepted = accept(self, X, y, takes_sparse=False)
        n, d = accepted.X.shape
        wanted = max(1, d // 2) if self.n_features_to_select is None else n_wanted(self.n_features_to_select, d)
        check_scaling(self.scaling)
        self._check(n)
        check_squares(get_backend("numpy"), type(self).__name__, n, self._squares())
        seed = seed_of(self.random_state)
        data = accepted.scaled(self.scaling, np.dtype(self.dtype))
        columns = np.flatnonzero(~data.constant)
        m = len(columns)
        scores = np.empty(m)
        if m:
            with one_blas_thread() if self._many_products and n <= _SMALL_ROWS else nullcontext():
                rows = np.ascontiguousarray(data.X if m == d else data.X[:, columns])
                scores = np.asarray(self._score(rows, columns, min(wanted, m), seed))
        else:
            warnings.warn(all_constant(d), stacklevel=user_stacklevel())
        if self.n_features_to_select is None:
            wanted = min(wanted, m)
        self.scores_ = np.full(d, min(0.0, float(scores.min(initial=0.0))) - 1.0)
        self.scores_[columns] = scores
        self.order_ = np.argsort(-self.scores_, kind="stable")
        self.support_ = np.zeros(d, dtype=bool)
        self.support_[self.order_[:wanted]] = True
        self.constant_features_ = np.flatnonzero(data.constant)
        return self

    def _clusters(self, n: int) -> int:
        """n_clusters, or 5 (fewer for very few rows) for None. Raises ValueError unless 1 <= n_clusters <= n - 1."""
        given = self.n_clusters
        if given is None:
            return min(DEFAULT_CLUSTERS, n - 1)
        if not is_whole(given) or not 1 <= given <= n - 1:
            raise ValueError(
                f"n_clusters must be None or a whole number from 1 to the number of rows minus 1, {n - 1}; "
                f"got {given!r}"
            )
        return int(given)
