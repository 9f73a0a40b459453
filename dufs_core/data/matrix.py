"""Scaled data that are no plain array: what the trainer, the search and the permutation gap ask of them.

`dufs_core.data.sparse.ScaledSparseMatrix` and `dufs_core.data.on_disk.OnDiskMatrix` are tables; the functions here
take arrays as
well.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from dufs_core.backend import Array, Backend


@runtime_checkable
class ScaledMatrix(Protocol):
    """Scaled data (n, d) with the reads that a fit needs."""

    shape: tuple[int, int]
    dtype: Any

    def take_columns(self, columns: Array) -> Any:
        """A table of some of the columns."""

    def take_rows(self, rows: Array) -> Any:
        """Some of the rows, as the engine takes them."""

    def dense(self, rows: Array | slice, columns: Array) -> Array:
        """Rows and columns as an array in Fortran order."""


def take_columns(bk: Backend, X: Any, columns: Array) -> Any:
    """Some of the columns of X; arrays in Fortran order."""
    return X.take_columns(columns) if isinstance(X, ScaledMatrix) else X.T[bk.xp.asarray(columns)].T


def take_rows(X: Any, rows: Array) -> Any:
    """Some of the rows of X; arrays in Fortran order."""
    return X.take_rows(rows) if isinstance(X, ScaledMatrix) else X.T[:, rows].T


def dense(bk: Backend, X: Any, rows: Array | slice, columns: Array) -> Array:
    """Rows (a slice: all of them) and columns of X as an array."""
    if isinstance(X, ScaledMatrix):
        return X.dense(rows, columns)
    columns = bk.xp.asarray(columns)
    return X[:, columns] if isinstance(rows, slice) else X[rows[:, None], columns]
