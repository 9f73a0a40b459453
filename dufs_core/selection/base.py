"""What all selectors of columns have in common once they are fitted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.feature_selection import SelectorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from dufs_core.backend import Array, get_backend
from dufs_core.data.accept import check_values, check_width, kind_of, stored_columns, unwrap
from dufs_core.data.dense import check_finite, check_table


def check_fitted(selector: Any, attribute: str = "support_") -> None:
    """Raise NotFittedError, or TypeError for what never has it, unless a selector has a fitted attribute."""
    if hasattr(selector, attribute):
        return
    name = type(selector).__name__
    if hasattr(selector, "support_"):
        raise TypeError(f"{name} has no {attribute}, which this needs: give a fitted selector of another kind")
    if hasattr(selector, "fit"):
        raise NotFittedError(f"This {name} instance is not fitted yet: call its fit(X) first")
    raise TypeError(f"The first argument must be a fitted selector, and X comes after it; got {name}")


def names_of(selector: Any) -> Array | None:
    """The names of the columns that a selector was fitted on, (d,): of a frame, or of the variables of an AnnData."""
    found: Array | None = getattr(selector, "feature_names_in_", getattr(selector, "var_names_", None))
    return found


class Explanation(NamedTuple):
    """What a fitted selector tells a report."""

    reasons: Sequence[str]  # (d,) why each column was kept or dropped
    notes: Sequence[str]  # sentences about the fit
    numbers: dict[str, Array]  # further columns of the table, (d,), NaN where a column has none
    order: str | None  # how selected columns are ranked, where not by what selects them
    always_by_number: bool  # whether a number of columns is selected even where none is asked for
    ties_by_index: bool  # whether columns are ranked by `scores_`, equal ones by their index


class Drawn(NamedTuple):
    """What pictures show of a fitted selector."""

    values: Array  # (d,)
    label: str  # their name
    has_zero: bool  # whether 0 parts the selected from the others
    aside: dict[str, Array]  # masks (d,) of columns without such a value, by the reason
    decoys: Array | None  # (M, d) the same values of the decoys
    pictures: tuple[str, ...]  # functions of `dufs_core.plotting` for its page, beside those of every selector


class ColumnSelector(SelectorMixin, BaseEstimator):  # type: ignore[misc]
    """A scikit-learn selector whose fit sets support_, and needs no labels."""

    support_: Array
    order_: Array
    scores_: Array
    n_features_to_select: int | float | None

    @property
    def ranking_(self) -> Array:
        """Ranks (n_features,) of int, as in `sklearn.feature_selection.RFE`: column order_[0] has rank 1, the best."""
        ranks = np.empty(len(self.order_), dtype=np.intp)
        ranks[self.order_] = np.arange(1, len(self.order_) + 1)
        return ranks

    def transform(self, X: Any) -> Any:
        """The selected columns of X.

        Parameters
        ----------
        X : array-like (n_samples, n_features)
            At least one row. As in `fit`, and what comes out is of the same kind: an array on a GPU gives a CuPy array
            there, sparse X a sparse matrix, a frame a frame after ``set_output(transform="pandas")`` (or "polars").
            Data on disk are read a chunk of rows at a time.

        Raises
        ------
        ValueError, TypeError
            If X is no table of finite real numbers with the columns of the fit.
        """
        check_is_fitted(self, "support_")
        X = unwrap(X)
        check_width(X, self.n_features_in_, type(self).__name__)
        kind, columns = kind_of(X), np.flatnonzero(self.support_)
        if kind in ("dense host", "sparse host"):
            try:
                return super().transform(X)
            except ValueError as error:
                refusal = error
            check_values(X)  # scikit-learn's sentence has no count and no column
            raise refusal
        bk = get_backend("numpy" if kind == "on disk" else "cupy")
        X = bk.to_device(X) if kind == "dense device" else X
        check_table(X, 1)
        validate_data(self, X, reset=False, skip_check_array=True)
        if kind == "on disk":
            return stored_columns(X, columns)
        with bk.device_of(X.data if kind == "sparse device" else X):
            if kind == "sparse device":
                return X.tocsc()[:, bk.xp.asarray(columns)].asformat(X.format)
            check_finite(X, bk.xp)
            return X[:, bk.xp.asarray(columns)]

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """The names of the selected columns, (m,): of `input_features` (d,), by default those of the fit."""
        if input_features is None and not hasattr(self, "feature_names_in_"):
            input_features = getattr(self, "var_names_", None)
        return super().get_feature_names_out(input_features)

    def _drawn(self) -> Drawn:
        """The fit, for pictures."""
        return Drawn(self.scores_, "score", False, {}, None, ())

    def _facts(self) -> dict[str, Any]:
        """Numbers about the fit as a whole, by their names in tables and JSON."""
        return {}

    def _explanation(self, n: int) -> Explanation:
        """The fit on n rows, for a report."""
        return Explanation([f"score {score:.4g}" for score in self.scores_], [], {}, None, True, True)

    def _get_support_mask(self) -> Array:
        check_is_fitted(self, "support_")
        return self.support_

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = False
        return tags
