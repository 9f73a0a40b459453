"""Sparse data: scaled columns that stay sparse, with the centring kept beside them.

Centring is implicit, because x_k - m_k 1 has no zeros. A column with at most an eighth of its entries stored is called
sparse: its values are kept uncentred, since m_k^2 is at most 1/7 of its variance then, so that subtracting the mean
from sums costs no digits. The others are dense: their stored values are kept centred, and an entry that is not stored
stands for -m_k.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse

from dufs_core.backend import Array, Backend, get_backend
from dufs_core.data.dense import check_finite
from dufs_core.data.scaling import ScaledData, check_peaks, common_deviation, safe_unit

_BLOCK_ENTRIES = 1 << 19  # stored entries of one float64 block: 4 MiB
_SPARSE = 8  # a sparse column stores at most n / _SPARSE entries


def checked(X: Any) -> Any:
    """X, a sparse matrix of any format, made anew from its arrays, which are not copied, if they agree with its shape.

    Compiled code, SciPy's conversions included, takes index arrays as they are, and would read and write outside its
    arrays. Raises ValueError with the first fault.
    """
    try:
        return _made_anew(X)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"X is a sparse matrix ({X.format}, shape {X.shape}) with damaged index arrays: {error}. Make it anew from "
            f"its rows, columns and values"
        ) from error


def _made_anew(X: Any) -> Any:
    """What SciPy makes of the arrays of X, which it compares in doing so; what it lets pass is refused here."""
    if X.format == "lil":
        columns, values = ([len(row) for row in lists] for lists in (X.rows, X.data))
        if len(columns) != X.shape[0] or columns != values:
            raise ValueError(f"{len(columns)} lists of {sum(columns)} columns, {len(values)} of {sum(values)} values")
        X = X.tocsr()
    elif X.format == "dok":
        X = X.tocoo()
    names = {"coo": ("row", "col"), "dia": ("offsets",)}.get(X.format, ("indices", "indptr"))
    indices = [getattr(X, name) for name in names]
    for name, part in zip(names, indices, strict=True):
        if part.dtype.kind not in "iu":
            raise ValueError(f"{name} holds {part.dtype}, not whole numbers")
    if X.format == "coo":
        return type(X)((X.data, indices), shape=X.shape)
    if X.format == "dia":
        made = type(X)((X.data, *indices), shape=X.shape)
        return made.tocoo()  # in NumPy: compiled code loses count of diagonals that lie far outside
    blocks = X.data.shape[1:]
    if any(block == 0 or size % block for size, block in zip(X.shape, blocks, strict=False)):
        raise ValueError(f"blocks of shape {blocks}")
    made = type(X)((X.data, *indices), shape=X.shape)
    made.check_format(full_check=True)
    falls = np.flatnonzero(made.indptr[1:] < made.indptr[:-1])  # SciPy's differences overflow; it skips what is empty
    if len(falls):
        raise ValueError(f"indptr falls after entry {falls[0]}")
    return made


def sparse_columns(X: Any) -> Array:
    """Which columns of X (CSR or CSC) are sparse, bool (d,)."""
    n, d = X.shape
    stored: Array = np.diff(X.indptr) if X.format == "csc" else np.bincount(X.indices, minlength=d)
    return is_sparse_column(stored, n)


def is_sparse_column(stored: Any, n: int) -> Any:
    """Whether a column of n entries is sparse, from how many of them are stored, a number or an array."""
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

    def in_order(self, rows: Array) -> ScaledSparseMatrix:
        """The rows (NumPy positions) in this order, stored by rows (CSR)."""
        return ScaledSparseMatrix(self.matrix[rows].tocsr(), self.shift, self.sparse_columns, self.bk)

    def dense_block(self, rows: Array | slice, columns: Array) -> Array:
        """The rows and columns as an array, centred, in Fortran order."""
        is_slice = isinstance(rows, slice)
        some = rows if is_slice else self.bk.to_host(rows)

        # most columns of columns that are stored one after the other would be a copy of all
        rows_first = self.matrix.format == "csr" or (not is_slice and 2 * len(columns) > self.shape[1])
        part = (self.matrix[some][:, columns] if rows_first else self.matrix[:, columns][some]).tocsc()
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
    check_finite(X)
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
        reduced, spread = partial(_reduce, starts=starts, count=count), partial(np.repeat, repeats=count)
        low, high = reduced(np.minimum, entries), reduced(np.maximum, entries)
        low, high = np.where(count < n, np.minimum(low, 0), low), np.where(count < n, np.maximum(high, 0), high)
        constant[part] = low == high
        entries /= spread(safe_unit(scaling, low, high, largest))
        mean = reduced(np.add, entries) / n
        mean[constant[part]] = 0
        entries[spread(constant[part])] = 0
        centred = entries - spread(mean)
        with np.errstate(over="ignore", invalid="ignore"):  # `check_peaks` refuses what overflows
            squares = reduced(np.add, centred**2) + (n - count) * mean**2
        if scaling == "columns":
            deviation = np.sqrt(squares / n)
            deviation = np.where(deviation > 0, deviation, 1)
            mean /= deviation
            entries /= spread(deviation)
            centred /= spread(deviation)
        elif scaling == "global":
            square_sum += float(squares.sum())
        else:
            peaks[part] = np.maximum(reduced(np.maximum, abs(centred)), np.where(count < n, abs(mean), 0))
        shift[part] = mean
        with np.errstate(over="ignore"):
            values[indptr[part.start] : indptr[part.stop]] = np.where(spread(uncentred[part]), entries, centred)
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
