"""A part of the user's data, in whatever they hold it, as a small dense array: for pictures and correlations."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from dufs_core.backend import Array, get_backend, is_sparse_on_device, on_device
from dufs_core.source import is_source

_CHUNK_ROWS = 4096  # of what is stored outside the memory


def as_host_array(X: Any) -> Any:
    """X as something with .shape and NumPy's slicing: an array, a sparse matrix in CSR, or a source of rows."""
    if is_sparse_on_device(X):
        X = X.get()
    if on_device(X):
        return get_backend("cupy").to_host(get_backend("cupy").to_device(X))
    if sparse.issparse(X):
        return X.tocsr()
    if is_source(X):
        return X
    if hasattr(X, "__dlpack__") and not hasattr(X, "__array__"):
        return np.from_dlpack(X)
    return np.asarray(X)


def some_rows(n: int, most: int) -> Array:
    """All rows, or `most` of them drawn without replacement (always the same), ascending."""
    return np.arange(n) if n <= most else np.sort(np.random.default_rng(0).choice(n, most, replace=False))


def dense_part(X: Any, rows: Array, columns: Array) -> Array:
    """Rows (ascending) and columns of X as a float64 array (len(rows), len(columns))."""
    X = as_host_array(X)
    if sparse.issparse(X):
        return np.asarray(X[rows][:, columns].toarray(), dtype=np.float64)
    if isinstance(X, np.ndarray):
        return np.asarray(X[np.ix_(rows, columns)], dtype=np.float64)
    out = np.empty((len(rows), len(columns)))
    for start in range(0, X.shape[0], _CHUNK_ROWS):
        first, last = np.searchsorted(rows, (start, start + _CHUNK_ROWS))
        if first < last:
            block = X[start : start + _CHUNK_ROWS]
            block = block.toarray() if sparse.issparse(block) else np.asarray(block)
            out[first:last] = block[rows[first:last] - start][:, columns]
    return out
