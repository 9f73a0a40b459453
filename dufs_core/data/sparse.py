"""Sparse data: scaled columns that stay sparse, with the centring kept beside them.

Centring is implicit, because x_k - m_k 1 has no zeros. A column with at most an eighth of its entries stored is called
sparse: its values are kept uncentred, since m_k^2 is at most 1/7 of its variance then, so that subtracting the mean
from sums costs no digits. The others are dense: their stored values are kept centred, and an entry that is not stored
stands for -m_k.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import sparse

from dufs_core.backend import Array, Backend, get_backend
from dufs_core.data.dense import check_stored
from dufs_core.data.scaling import ScaledData, check_peaks, check_scaling, common_deviation, safe_unit

_LAYOUTS = ("csr", "csc", "bsr")  # index arrays called indptr and indices
_BLOCK_ENTRIES = 1 << 19  # stored entries of one float64 block: 4 MiB
_SPARSE = 8  # a sparse column stores at most n / _SPARSE entries


def checked(X: Any) -> Any:
    """X, a sparse matrix of any format, if its index arrays agree with its shape; without spare room behind them.

    Compiled code, SciPy's conversions included, takes them as they are, and would read and write outside its arrays.
    Raises ValueError with the first fault.
    """
    fault = _fault(X)
    if fault is not None:
        raise ValueError(
            f"X is a sparse matrix ({X.format}, shape {X.shape}) with damaged index arrays: {fault}. Make it anew from "
            f"its rows, columns and values"
        )
    if X.format in ("lil", "dok"):
        return checked(X.tocsr() if X.format == "lil" else X.tocoo())
    if X.format in _LAYOUTS and not len(X.data) == len(X.indices) == (stored := int(X.indptr[-1])):
        return type(X)((X.data[:stored], X.indices[:stored], X.indptr), shape=X.shape)
    return X


def _fault(X: Any) -> str | None:
    n, d = X.shape
    if X.format == "coo":
        if not len(X.row) == len(X.col) == len(X.data):
            return f"{len(X.row)} rows and {len(X.col)} columns of {len(X.data)} values"
        return _outside("rows", X.row, n) or _outside("columns", X.col, d)
    if X.format == "lil":
        if len(X.rows) != n or len(X.data) != n:
            return f"{len(X.rows)} lists of columns and {len(X.data)} of values"
        uneven = (i for i, (row, values) in enumerate(zip(X.rows, X.data, strict=True)) if len(row) != len(values))
        return next((f"row {i} has not one column for each value" for i in uneven), None)
    if X.format == "dia":
        if X.data.ndim != 2 or X.offsets.shape != X.data.shape[:1]:
            return f"offsets of shape {X.offsets.shape} for diagonals of shape {X.data.shape}"
        return None if X.offsets.dtype.kind in "iu" else f"the offsets are {X.offsets.dtype}"
    if X.format not in _LAYOUTS:
        return None
    if X.data.ndim != (3 if X.format == "bsr" else 1) or X.indices.ndim != 1 or X.indptr.ndim != 1:
        return f"indptr, indices and data have the shapes {X.indptr.shape}, {X.indices.shape} and {X.data.shape}"
    rows, columns = X.blocksize if X.format == "bsr" else (1, 1)
    if 0 in (rows, columns) or n % rows or d % columns:
        return f"blocks of {rows} x {columns}"
    major, minor = (d, n) if X.format == "csc" else (n // rows, d // columns)
    indptr, stored = X.indptr, min(len(X.indices), len(X.data))
    if indptr.dtype.kind not in "iu" or len(indptr) != major + 1:
        return f"indptr has {len(indptr)} entries ({indptr.dtype}), and must have {major + 1} whole numbers"
    falls = np.flatnonzero(indptr[1:] < indptr[:-1])
    if indptr[0] != 0 or len(falls):
        return f"indptr starts at {indptr[0]}, and " + (f"falls after entry {falls[0]}" if len(falls) else "not at 0")
    if indptr[-1] > stored:
        return f"indptr ends at {indptr[-1]}, beyond the {len(X.indices)} indices and {len(X.data)} values"
    return _outside("indices", X.indices[: int(indptr[-1])], minor)


def _outside(what: str, indices: Array, size: int) -> str | None:
    if indices.ndim != 1 or indices.dtype.kind not in "iu":
        return f"the {what} are {indices.dtype} of shape {indices.shape}"
    if len(indices) and ((low := int(indices.min())) < 0 or (high := int(indices.max())) >= size):
        return f"the {what} must be 0 to {size - 1}, and one is {low if low < 0 else high}"
    return None


def sparse_columns(X: Any) -> Array:
    """Which columns of X (CSR or CSC) are sparse, bool (d,)."""
    n, d = X.shape
    stored: Array = np.diff(X.indptr) if X.format == "csc" else np.bincount(X.indices, minlength=d)
    return stored <= n // _SPARSE


class ScaledSparseMatrix:
    """Scaled sparse data (n, d): a `dufs_core.data.matrix.ScaledMatrix`.

    matrix: CSC, or CSR where rows will be taken, on the host; shift (d,) float64, the means m of the scaled columns;
    sparse_columns (d,) bool; bk: where rows that are asked for come from, and dense blocks go.
    """

    def __init__(self, matrix: Any, shift: Array, sparse_columns: Array, bk: Backend | None = None) -> None:
        self.matrix, self.shift, self.sparse_columns = matrix, shift, sparse_columns
        self.bk = get_backend("numpy") if bk is None else bk
        self.shape: tuple[int, int] = matrix.shape
        self.dtype = matrix.dtype

    def take_columns(self, columns: Array) -> ScaledSparseMatrix:
        return ScaledSparseMatrix(self.matrix[:, columns], self.shift[columns], self.sparse_columns[columns], self.bk)

    def take_rows(self, rows: Array) -> ScaledSparseMatrix:
        """Some of the rows, as columns (CSC)."""
        return ScaledSparseMatrix(self.matrix[self.bk.to_host(rows)].tocsc(), self.shift, self.sparse_columns, self.bk)

    def dense_block(self, rows: Array | slice, columns: Array) -> Array:
        """The rows and columns as an array, centred, in Fortran order."""
        part = self.matrix[:, columns][rows if isinstance(rows, slice) else self.bk.to_host(rows)].tocsc()
        shift, stored = self.shift[columns].astype(self.dtype), np.diff(part.indptr)
        out = np.empty(part.shape, dtype=self.dtype, order="F")
        out[:] = -shift
        uncentred = np.repeat(np.where(self.sparse_columns[columns], shift, 0), stored)
        out.T[np.repeat(np.arange(len(columns)), stored), part.indices] = part.data - uncentred
        return self.bk.to_device(out)


def scale_sparse(X: Any, scaling: str, dtype: Any, by_rows: bool, bk: Backend | None = None) -> ScaledData:
    """Scale sparse data as `dufs_core.data.dense.scale_columns` scales dense ones, to the same numbers within rounding.

    X (n, d), CSR or CSC, of any real dtype, is not written to; duplicates are summed, stored zeros are zeros. by_rows:
    whether rows will be taken (minibatches). bk: of the result; scaling is done on the host. Raises the same errors.
    """
    check_scaling(scaling)
    check_stored(X)
    csc = _canonical_csc(X)
    n, d = csc.shape
    indptr = csc.indptr.astype(np.int64)
    stored, uncentred = np.diff(indptr), sparse_columns(csc)
    values = np.empty(len(csc.data), dtype=dtype)
    shift, constant, peaks, square_sum = np.zeros(d), np.zeros(d, dtype=bool), np.zeros(d), 0.0
    largest = max(float(csc.data.max(initial=0)), -float(csc.data.min(initial=0)))
    for part, entries in _blocks(csc.data, indptr):
        count = stored[part]
        starts = indptr[part] - indptr[part.start]
        low = _reduce(np.minimum, entries, starts, count)
        high = _reduce(np.maximum, entries, starts, count)
        low, high = np.where(count < n, np.minimum(low, 0), low), np.where(count < n, np.maximum(high, 0), high)
        constant[part] = low == high
        entries /= np.repeat(safe_unit(scaling, low, high, largest), count)
        mean = _reduce(np.add, entries, starts, count) / n
        mean[constant[part]] = 0
        entries[np.repeat(constant[part], count)] = 0
        centred = entries - np.repeat(mean, count)
        with np.errstate(over="ignore", invalid="ignore"):  # `check_peaks` refuses what overflows
            squares = _reduce(np.add, centred**2, starts, count) + (n - count) * mean**2
        if scaling == "columns":
            deviation = np.sqrt(squares / n)
            deviation = np.where(deviation > 0, deviation, 1)
            mean /= deviation
            entries /= np.repeat(deviation, count)
            centred /= np.repeat(deviation, count)
        elif scaling == "global":
            square_sum += float(squares.sum())
        else:
            stored_peaks = _reduce(np.maximum, abs(centred), starts, count)
            peaks[part] = np.maximum(stored_peaks, np.where(count < n, abs(mean), 0))
        shift[part] = mean
        with np.errstate(over="ignore"):
            kept = np.where(np.repeat(uncentred[part], count), entries, centred)
            values[indptr[part.start] : indptr[part.stop]] = kept
    if scaling == "global":
        common = common_deviation(square_sum, n, d - int(constant.sum()))
        values /= values.dtype.type(common)
        shift /= common
    elif scaling == "none":
        check_peaks(peaks, n, dtype)
    indices = csc.indices.astype(np.int32, copy=False)
    matrix = sparse.csc_array((values, indices, indptr), shape=(n, d))
    matrix.has_canonical_format = True
    return ScaledData(ScaledSparseMatrix(matrix.tocsr() if by_rows else matrix, shift, uncentred, bk), constant)


def _reduce(ufunc: Any, entries: Array, starts: Array, count: Array) -> Array:
    """Reduce the stored entries of each column; 0 where there are none."""
    out: Array = np.zeros(len(count))
    if len(entries):
        out[count > 0] = ufunc.reduceat(entries, starts[count > 0])
    return out


def _blocks(values: Array, indptr: Array) -> Iterator[tuple[slice, Array]]:
    """Slices of columns and a float64 copy of what each stores."""
    start, d = 0, len(indptr) - 1
    while start < d:
        stop = int(np.searchsorted(indptr, indptr[start] + _BLOCK_ENTRIES, side="right")) - 1
        block = slice(start, min(d, max(stop, start + 1)))
        yield block, values[indptr[block.start] : indptr[block.stop]].astype(np.float64)
        start = block.stop


def _canonical_csc(X: Any) -> Any:
    """X as CSC with sorted rows and no duplicates; shares X's arrays where it is that already."""
    csc = sparse.csc_array(X.tocsc(), copy=False)
    if not csc.has_canonical_format:
        csc = csc.copy()
        csc.sum_duplicates()
    return csc
