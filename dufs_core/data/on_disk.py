"""Data that stay where they are stored: the rows in hand are read, scaled and put into columns.

Such data are anything two-dimensional with .shape, .dtype and slices of rows: numpy.memmap, an h5py dataset, a zarr
array, the .X of an AnnData object in backed mode (its CSR too: the rows in hand are made dense). Only slices are asked
for, in ascending order: one read of rows that lie close together costs less than a read of each.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import Any, Literal

import numpy as np
from scipy import sparse

from dufs_core.backend import Array, Backend
from dufs_core.data.dense import columns_not_finite, not_finite
from dufs_core.data.scaling import check_peaks, common_deviation
from dufs_core.data.sparse import checked

CHUNK_BYTES = 1 << 24  # of the float64 rows in hand
_GAP_BYTES = 1 << 16  # reading so much for nothing costs about what another read does


def is_on_disk(X: Any) -> bool:
    """Whether X is two-dimensional, outside the memory or read by slices, and neither an array nor a sparse matrix."""
    if isinstance(X, np.memmap):
        return X.ndim == 2
    if sparse.issparse(X) or hasattr(X, "__dlpack__") or hasattr(X, "iloc"):
        return False
    named = all(hasattr(X, name) for name in ("shape", "dtype", "__getitem__"))
    return named and isinstance(X.shape, tuple) and len(X.shape) == 2


class SomeRows:
    """Some of the rows (NumPy positions, increasing) of data on disk."""

    def __init__(self, X: Any, rows: Array) -> None:
        self._X = X
        self._rows = rows
        self.shape = (len(rows), X.shape[1])
        self.dtype = X.dtype

    def __getitem__(self, wanted: slice) -> Any:
        """A slice of the rows, read at once."""
        rows = self._rows[wanted]
        if not len(rows):
            return self._X[0:0]
        return self._X[int(rows[0]) : int(rows[-1]) + 1][rows - rows[0]]


def statistics(X: Any) -> tuple[Array, Array, Array, Array]:
    """Mean, sum of squared differences from it, least and largest value of each column, float64 (d,), in one pass.

    Chunks of rows are joined by mean += delta n_b / n, squares += squares_b + delta^2 n_a n_b / n, which loses no
    digits of data far from 0. Source: Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for
    computing sample variances", 1979. Raises ValueError, with their number and the first column, if values are NaN or
    infinite.
    """
    d = X.shape[1]
    mean, squares = np.zeros(d), np.zeros(d)
    low, high, seen = np.full(d, np.inf), np.full(d, -np.inf), 0
    for rows in finite_blocks(X):
        block = as_array(rows, np.float64)
        low, high = np.minimum(low, block.min(axis=0)), np.maximum(high, block.max(axis=0))
        with np.errstate(over="ignore", invalid="ignore"):  # OnDiskMatrix refuses what overflows, by column
            count, block_mean = len(block), block.mean(axis=0)
            block -= block_mean
            delta = block_mean - mean
            seen += count
            mean += delta * (count / seen)
            squares += np.einsum("ij,ij->j", block, block) + delta**2 * ((seen - count) * count / seen)
    return mean, squares, low, high


class OnDiskMatrix:
    """Data on disk with the scaling of their columns: a `dufs_core.data.matrix.ScaledMatrix` of dense rows.

    Mean and variance differ from those of `dufs_core.data.dense.scale_columns` in rounding. Raises ValueError
    if values are not finite, or their squares overflow or vanish in float64 or, after scaling, in `dtype`.
    """

    def __init__(self, bk: Backend, X: Any, scaling: str, dtype: Any) -> None:
        n, d = X.shape
        mean, squares, low, high = statistics(X)
        self.constant = low == high
        beyond = ~(np.isfinite(squares) & (self.constant | (squares > 0)))
        if beyond.any():
            k = int(beyond.argmax())
            raise ValueError(
                f"Column {k} runs from {low[k]:.3g} to {high[k]:.3g}; squares of such values are beyond float64: "
                f"divide or multiply it by a constant first"
            )
        varying = squares[~self.constant]
        if scaling == "columns":
            scale = np.sqrt(squares / n)
        else:
            scale = np.full(d, common_deviation(varying.sum(), n, len(varying)) if scaling == "global" else 1.0)
        if scaling == "none":
            check_peaks(np.where(self.constant, 0, np.maximum(high - mean, mean - low)), n, dtype)
        scale[self.constant] = np.inf  # to 0
        self._bk, self._X, self._mean, self._scale = bk, X, mean, scale
        self._columns = np.arange(d)
        self.shape: tuple[int, int] = (n, d)
        self.dtype = np.dtype(dtype)

    def take_columns(self, columns: Array) -> OnDiskMatrix:
        part = copy(self)
        part._columns = self._columns[columns]
        part.shape = (self.shape[0], len(columns))
        return part

    def take_rows(self, rows: Array) -> Array:
        return self._read_scaled(self._bk.to_host(rows), self._columns)

    def in_order(self, rows: Array) -> Array:
        """The rows (NumPy positions) as an array in the memory, (n', d) in C order; each chunk is read once."""
        return self._bk.to_device(self._read(rows, self._columns, "C"))

    def dense_block(self, rows: Array | slice, columns: Array) -> Array:
        rows = np.arange(self.shape[0])[rows] if isinstance(rows, slice) else self._bk.to_host(rows)
        return self._read_scaled(rows, self._columns[np.asarray(columns)])

    def _read_scaled(self, rows: Array, columns: Array) -> Array:
        return self._bk.to_device(self._read(rows, columns, "F"))

    def _read(self, rows: Array, columns: Array, layout: Literal["C", "F"]) -> Array:
        order = np.argsort(rows, kind="stable")
        out = np.empty((len(rows), len(columns)), dtype=self.dtype, order=layout)
        done = 0
        for block in blocks(self._X, rows[order]):
            part = as_array(block[:, columns], np.float64)
            part -= self._mean[columns]
            part /= self._scale[columns]
            out[order[done : done + len(part)]] = part
            done += len(part)
        return out


def blocks(X: Any, rows: Array) -> Iterator[Any]:
    """The ascending `rows` of X, a chunk at a time, each an array of its own, or CSR where X gives sparse rows."""
    done = 0
    for start, stop in slices(rows, X.shape[1]):
        last = int(np.searchsorted(rows, stop))
        block = X[start:stop]
        block = checked(block).tocsr() if sparse.issparse(block) else np.asarray(block, order="C")
        yield block[rows[done:last] - start]
        done = last


def finite_blocks(X: Any) -> Iterator[Any]:
    """`blocks` of all rows of X, at least one, up to the first with a NaN or an infinite value.

    Raises ValueError, with their number and the first column, after the last row if there are any.
    """
    n, d = X.shape
    bad, first = 0, d
    for block in blocks(X, np.arange(n)):
        strange = columns_not_finite(block)
        bad += len(strange)
        first = int(strange.min(initial=first))
        if not bad:
            yield block
    if bad:
        raise not_finite(bad, n * d, first)


def slices(rows: Array, d: int) -> Iterator[tuple[int, int]]:
    """Slices that together hold the ascending `rows`, short enough for a chunk, without gaps worth a read."""
    most, gap = max(1, CHUNK_BYTES // (8 * d)), max(1, _GAP_BYTES // (8 * d))
    at = 0
    while at < len(rows):
        start = int(rows[at])
        end = int(np.searchsorted(rows, start + most))
        far = np.flatnonzero(np.diff(rows[at:end]) > gap)
        if len(far):
            end = at + int(far[0]) + 1
        yield start, int(rows[end - 1]) + 1
        at = end


def as_array(block: Any, dtype: Any = None) -> Array:
    """A block of rows as an array, of its own dtype if no other is asked for."""
    return np.asarray(block.toarray() if sparse.issparse(block) else block, dtype)
