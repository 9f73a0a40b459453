"""Sparse data: scaled columns that stay sparse, with the centring kept beside them.

Centring is implicit, because x_k - m_k 1 has no zeros. A column with at most an eighth of its entries stored is thin:
its values are kept uncentred, since m_k^2 is at most 1/7 of its variance then, so that subtracting the mean from sums
costs no digits. The others are spread: their stored values are kept centred, and an entry that is not stored stands
for -m_k.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from dufs_core.backend import Array, Backend, get_backend
from dufs_core.data.dense import SCALINGS, check_range, check_stored, check_underflow
from dufs_core.errors import invalid_choice

_BLOCK_ENTRIES = 1 << 19  # stored entries of one float64 block: 4 MiB
_THIN = 8  # a thin column stores at most n / _THIN entries


def is_thin(X: Any) -> Array:
    """Which columns of X (CSR or CSC) are thin, bool (d,)."""
    n, d = X.shape
    stored = np.diff(X.indptr) if X.format == "csc" else np.bincount(X.indices, minlength=d)
    thin: Array = stored <= n // _THIN
    return thin


class ScaledSparseMatrix:
    """Scaled sparse data (n, d), as the trainer and the search take them.

    Attributes
    ----------
    matrix : scipy.sparse.csc_array, or csr_array where rows will be taken
        Stored values in the dtype of the fit.
    shift : ndarray (d,), float64
        m, the means of the scaled columns.
    thin : ndarray (d,) of bool
    bk : Backend
        Where rows that are asked for come from, and dense parts go. The matrix itself stays on the host.
    """

    def __init__(self, matrix: Any, shift: Array, thin: Array, bk: Backend | None = None) -> None:
        self.matrix, self.shift, self.thin = matrix, shift, thin
        self.bk = get_backend("numpy") if bk is None else bk
        self.shape: tuple[int, int] = matrix.shape
        self.dtype = matrix.dtype

    def take_columns(self, columns: Array) -> ScaledSparseMatrix:
        """Some of the columns."""
        return ScaledSparseMatrix(self.matrix[:, columns], self.shift[columns], self.thin[columns], self.bk)

    def take_rows(self, rows: Array) -> ScaledSparseMatrix:
        """Some of the rows, as columns (CSC)."""
        return ScaledSparseMatrix(self.matrix[self.bk.to_host(rows)].tocsc(), self.shift, self.thin, self.bk)

    def dense(self, rows: Array | slice, columns: Array) -> Array:
        """The rows and columns as an array, centred, in Fortran order."""
        part = self.matrix[:, columns][rows if isinstance(rows, slice) else self.bk.to_host(rows)].tocsc()
        shift = self.shift[columns].astype(self.dtype)
        out = np.empty(part.shape, dtype=self.dtype, order="F")
        out[:] = -shift
        thin = np.repeat(np.where(self.thin[columns], shift, 0), np.diff(part.indptr))
        out.T[np.repeat(np.arange(len(columns)), np.diff(part.indptr)), part.indices] = part.data - thin
        dense: Array = self.bk.to_device(out)
        return dense


class PreparedSparse(NamedTuple):
    """As `dufs_core.data.dense.ScaledData`."""

    X: ScaledSparseMatrix
    constant: Array  # (d,) bool


def scale_sparse(X: Any, scaling: str, dtype: Any, by_rows: bool, bk: Backend | None = None) -> PreparedSparse:
    """Scale sparse data as `dufs_core.data.dense.prepare` scales dense ones, to the same numbers within rounding.

    Parameters
    ----------
    X : scipy sparse matrix or array (n, d), CSR or CSC
        Any real dtype and index dtype; duplicates are summed, stored zeros are zeros. Not written to.
    scaling : "columns", "global" or "none"
    dtype : float32 or float64
    by_rows : bool
        Whether rows will be taken (minibatches).
    bk : Backend, optional
        Of the table; NumPy by default. Scaling is done on the host.

    Raises
    ------
    ValueError
        As `dufs_core.data.dense.prepare`.
    """
    if scaling not in SCALINGS:
        raise invalid_choice("scaling", scaling, SCALINGS)
    check_stored(X)
    columns = _canonical_columns(X)
    n, d = columns.shape
    indptr = columns.indptr.astype(np.int64)
    stored = np.diff(indptr)
    thin = is_thin(columns)
    values = np.empty(len(columns.data), dtype=dtype)
    shift, constant = np.zeros(d), np.zeros(d, dtype=bool)
    largest = max(float(columns.data.max(initial=0)), -float(columns.data.min(initial=0)))
    square_sum, peaks = 0.0, np.zeros(d)
    for part, entries in _blocks(columns.data, indptr):
        first, last = indptr[part.start], indptr[part.stop]
        count = stored[part]
        sums = _Sums(indptr[part.start : part.stop + 1] - first, count)
        low, high = sums.reduce(np.minimum, entries), sums.reduce(np.maximum, entries)
        some_zeros = count < n
        low[some_zeros] = np.minimum(low[some_zeros], 0)
        high[some_zeros] = np.maximum(high[some_zeros], 0)
        constant[part] = low == high
        if scaling == "columns":  # as in `prepare`
            unit = np.maximum(-low, high)
        else:
            unit = np.full(len(count), largest if scaling == "global" else 1.0)
        entries /= np.repeat(np.where(unit > 0, unit, 1), count)
        mean = sums.reduce(np.add, entries) / n
        mean[constant[part]] = 0
        entries[np.repeat(constant[part], count)] = 0
        centred = entries - np.repeat(mean, count)
        with np.errstate(over="ignore", invalid="ignore"):  # `check_range` refuses what overflows, by column
            squares = sums.reduce(np.add, centred**2) + (n - count) * mean**2
        if scaling == "columns":
            deviation = np.sqrt(squares / n)
            scale = np.where(deviation > 0, deviation, 1)
            mean /= scale
            entries /= np.repeat(scale, count)
            centred /= np.repeat(scale, count)
        elif scaling == "global":
            square_sum += float(squares.sum())
        else:
            peak = np.maximum(sums.reduce(np.maximum, abs(centred)), np.where(count < n, abs(mean), 0))
            check_range(peak, part.start, n, d, dtype)
            peaks[part] = peak
        shift[part] = mean
        values[first:last] = np.where(np.repeat(thin[part], count), entries, centred)
    if scaling == "global" and square_sum > 0:
        common = np.sqrt(square_sum / (n * max(1, d - int(constant.sum()))))
        values /= values.dtype.type(common)
        shift /= common
    if scaling == "none":
        check_underflow(peaks, dtype)
    indices = columns.indices.astype(np.int32, copy=False)
    matrix = sparse.csc_array((values, indices, indptr), shape=(n, d))
    matrix.has_canonical_format = True
    return PreparedSparse(ScaledSparseMatrix(matrix.tocsr() if by_rows else matrix, shift, thin, bk), constant)


class _Sums:
    """Reductions over the stored entries of each column; 0 for a column that stores nothing."""

    def __init__(self, indptr: Array, count: Array) -> None:
        self._starts, self._some = indptr[:-1][count > 0], count > 0

    def reduce(self, function: Any, entries: Array) -> Array:
        out: Array = np.zeros(len(self._some))
        if len(self._starts):
            out[self._some] = function.reduceat(entries, self._starts)
        return out


def _blocks(values: Array, indptr: Array) -> Iterator[tuple[slice, Array]]:
    """Slices of columns and a float64 copy of what each stores."""
    start, d = 0, len(indptr) - 1
    while start < d:
        stop = int(np.searchsorted(indptr, indptr[start] + _BLOCK_ENTRIES, side="right")) - 1
        block = slice(start, min(d, max(stop, start + 1)))
        yield block, values[indptr[block.start] : indptr[block.stop]].astype(np.float64)
        start = block.stop


def _canonical_columns(X: Any) -> Any:
    """X as CSC with sorted rows and no duplicates; shares X's arrays where it is that already."""
    X = sparse.csc_array(X) if X.format == "csc" else X
    columns = sparse.csc_array(X.tocsc(), copy=False)
    if not columns.has_canonical_format:
        if X.format == "csc":
            columns = columns.copy()
        columns.sum_duplicates()
    return columns
