"""The three reads of scaled data (n, d): columns, rows, a dense block."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from dufs_core.backend import Array, Backend


@runtime_checkable
class ScaledMatrix(Protocol):
    """Scaled data that are no plain array: sparse, or on disk."""

    shape: tuple[int, int]
    dtype: Any

    def take_columns(self, columns: Array) -> Any: ...
    def take_rows(self, rows: Array) -> Any: ...
    def dense_block(self, rows: Array | slice, columns: Array) -> Array: ...
    def in_order(self, rows: Array) -> Any: ...


def take_columns(bk: Backend, X: Any, columns: Array) -> Any:
    """Some of the columns of X; arrays in Fortran order."""
    return X.take_columns(columns) if isinstance(X, ScaledMatrix) else X.T[bk.xp.asarray(columns)].T


def take_rows(X: Any, rows: Array) -> Any:
    """Some of the rows of X, as the engine takes them; arrays in Fortran order."""
    return X.take_rows(rows) if isinstance(X, ScaledMatrix) else X.T[:, rows].T


def dense_block(bk: Backend, X: Any, rows: Array | slice, columns: Array) -> Array:
    """Rows and columns of X as an array."""
    if isinstance(X, ScaledMatrix):
        return X.dense_block(rows, columns)
    columns = bk.xp.asarray(columns)
    return X[rows][:, columns] if isinstance(rows, slice) else X[rows[:, None], columns]
