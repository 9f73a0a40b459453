"""Groups of rows: as users give them, and what is computed within each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dufs_core.backend import Array

_PRIOR = 5  # rows with the column's deviation, added to each group: that of two or three rows says little
_MISSING = ("NAType", "NaTType")  # of pandas


class Told(NamedTuple):
    """What users say of rows beside X, as they give it."""

    groups: Any = None
    covariates: Any = None


NOTHING_TOLD = Told()


class Groups(NamedTuple):
    """The groups of the rows of a table, those without a second row left out."""

    number: Array  # (n',) int: 0, 1, ... in the order in which groups appear
    kept: Array  # (n',) positions of the rows with company


def accept_groups(groups: Any, n: int) -> Groups:
    """The groups (n,) of n rows, given by labels of any kind; equal labels are one group.

    Raises ValueError for another number of labels, missing ones, or if no row has company in its group.
    """
    labels = _as_list(groups)
    if len(labels) != n:
        raise ValueError(f"groups has {len(labels):,} labels, and X {n:,} rows: give one label for each row")
    missing = [i for i, label in enumerate(labels) if _is_missing(label)]
    if missing:
        raise ValueError(
            f"{len(missing):,} of the {n:,} labels in groups are missing, the first that of row {missing[0]}: leave "
            f"these rows out, or give them a label of their own if they are one group"
        )
    first: dict[Any, int] = {}
    try:
        number = np.array([first.setdefault(label, len(first)) for label in labels], dtype=np.intp)
    except TypeError as error:
        raise ValueError(f"groups must hold one label for each row, a text or a number; got {labels[0]!r}") from error
    has_company = np.bincount(number)[number] > 1
    kept = np.flatnonzero(has_company)
    if not len(kept):
        raise ValueError(
            f"Each of the {n:,} rows is a group of its own, so that no rows can be exchanged: groups has a label for "
            f"each batch, donor or plate, and what differs from row to row (an age, a depth) is no group"
        )
    return Groups(np.unique(number[kept], return_inverse=True)[1], kept)


def _as_list(groups: Any) -> Sequence[Any]:
    """One-dimensional labels of Python, from a list, an array, or a column of a frame."""
    if hasattr(groups, "get") and hasattr(groups, "device") and not hasattr(groups, "iloc"):
        groups = groups.get()  # from a GPU
    array = groups if isinstance(groups, (list, tuple)) else np.asarray(groups)
    shape = np.shape(array) if isinstance(array, np.ndarray) else (len(array),)
    if len(shape) != 1:
        raise ValueError(f"groups must be one-dimensional, a label for each row; got shape {shape}")
    return array if isinstance(array, (list, tuple)) else array.tolist()


def _is_missing(label: Any) -> bool:
    if label is None or type(label).__name__ in _MISSING:
        return True
    return isinstance(label, float) and label != label


class Within:
    """Rows by their groups, those of one size together.

    Parameters
    ----------
    xp
        NumPy or CuPy, where the rows are.
    group : (n,) ndarray of int, or None
        The number of the group of each row, NumPy; None: one group.
    n : int
        Rows.
    """

    def __init__(self, xp: Any, group: Array | None, n: int) -> None:
        self.xp = xp
        self.n = n
        self.is_one = group is None
        self.groups: list[Any] = []  # (groups, size) positions of rows
        if group is None:
            return
        size = np.bincount(group)
        order = np.argsort(group, kind="stable")
        first = np.cumsum(size) - size
        for length in np.unique(size[size > 0]):
            start = first[size == length]
            self.groups.append(xp.asarray(order[start[:, None] + np.arange(length)]))

    def each(self, function: Callable[[Array], Array], x: Array) -> Array:
        """A function from (d, groups, size) to that shape, of the rows of x (d, n) in their groups."""
        if self.is_one:
            return function(x[:, None, :])[:, 0, :]
        out = self.xp.empty_like(x)
        for rows in self.groups:
            out[:, rows] = function(x[:, rows])
        return out

    def from_medians(self, x: Array) -> Array:
        """x (d, n) less the median of each group."""
        median = self.xp.median
        return self.each(lambda part: part - median(part, axis=2, keepdims=True).astype(part.dtype), x)

    def constant(self, x: Array) -> Array:
        """Which columns of x (d, n) have one value in each group, bool (d,)."""
        width = self.each(lambda part: part - part.min(axis=2, keepdims=True), x)
        return (width == 0).all(axis=1)

    def levelled(self, x: Array) -> Array:
        """x (d, n) with mean 0 in each group, and the deviation of all groups in each.

        A group of m rows with sum of squares s, about its mean, is divided by ((s / c + 5) / (m + 4))^(1/2), c the
        variance within groups of all rows: as if it had five more rows with that.
        """
        xp = self.xp
        x = self.each(lambda part: part - part.mean(axis=2, keepdims=True), x)
        if self.is_one:
            return x
        common = (x * x).sum(axis=1) / (self.n - sum(len(rows) for rows in self.groups))
        common = xp.where(common > 0, common, 1)[:, None, None]

        def by_deviation(part: Array) -> Array:
            squares = (part * part).sum(axis=2, keepdims=True) / common
            return part / xp.sqrt((squares + _PRIOR) / (part.shape[2] - 1 + _PRIOR))

        return self.each(by_deviation, x)
