"""Dense data: checked, then scaled into a new array, a block of columns at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import sparse

from dufs_core.backend import Array
from dufs_core.data.groups import Within
from dufs_core.data.scaling import ScaledData, check_peaks, common_deviation, safe_unit

FILL = (  # what to do about missing values
    "Drop those rows or columns, or fill every such cell with a value of its column that is drawn for it alone: what "
    "means and models fill in makes independent columns look dependent"
)
_FEW_CELLS = 3.0  # sum of squares, in units of the largest
_MOST_DEVIATIONS = 1e4
_BLOCK_ELEMENTS = 1 << 22  # entries of one float64 block: 32 MiB


def scale_columns(
    X: Array, scaling: str, dtype: Any, xp: Any = np, group: Array | None = None, is_calm: bool = False
) -> ScaledData:
    """Centre and scale the columns of X (n, d), as `dufs_core.data.scaling` says; find the constant ones.

    With group (n,), the number of the group of each row, columns are centred within the groups, which have one
    deviation then; constant is what has one value in each. is_calm: bring one or two cells that are farther than 10^4
    others from them to there, where `dtype` would round all others to one value.

    X, of any real dtype, is cast to float64 before anything is subtracted, and never written to; the result, in Fortran
    order (the chain gathers columns), has `dtype`, float32 or float64. xp: numpy, or cupy for X on a device. Raises
    ValueError if values are not finite, or too large or all too small for `dtype` after scaling.
    """
    check_finite(X, xp)
    n, d = X.shape
    out = xp.empty((n, d), dtype=dtype, order="F")
    within = Within(xp, group, n)
    constant, peaks, squares = xp.empty(d, dtype=bool), xp.zeros(d), 0.0
    largest = max((float(abs(block).max()) for _, block in _blocks(X, xp)), default=0.0) if scaling == "global" else 0.0
    for columns, block in _blocks(X, xp):
        low, high = block.min(axis=0), block.max(axis=0)
        constant[columns] = low == high if within.is_one else within.constant(block.T)
        block /= safe_unit(scaling, low, high, largest, xp)
        if is_calm:
            _calm(block, scaling, xp)
        if within.is_one:
            block -= block.mean(axis=0)
        else:
            block = within.levelled(block.T).T
        block[:, constant[columns]] = 0
        if scaling == "columns":
            deviation = xp.sqrt(xp.square(block).mean(axis=0))
            block /= xp.where(deviation > 0, deviation, 1)
        elif scaling == "global":
            squares += float(xp.square(block).sum())
        else:
            peaks[columns] = abs(block).max(axis=0)
        with np.errstate(over="ignore"):  # `check_peaks` refuses what overflows
            out[:, columns] = block
    if scaling == "global":
        out /= out.dtype.type(common_deviation(squares, n, d - int(constant.sum())))
    elif scaling == "none":
        check_peaks(peaks, n, dtype)
    return ScaledData(out, constant)


def _calm(block: Array, scaling: str, xp: Any) -> None:
    """Bring cells of a block (n, c) to 10^4 deviations of the others, where few cells make the whole deviation."""
    size = abs(block - block.mean(axis=0))
    peak = size.max(axis=0)
    size /= xp.where(peak > 0, peak, 1)
    has_few = (size * size).sum(axis=0) < _FEW_CELLS
    first = xp.argsort(~has_few, kind="stable")
    for i in range(int(has_few.sum())):
        k = int(first[i])
        middle = float(xp.median(block[:, k]))
        distance = abs(block[:, k] - middle)
        differs = distance[distance > 0]
        if not len(differs):
            continue
        limit = _MOST_DEVIATIONS * float(xp.median(differs))
        block[:, k] = xp.clip(block[:, k], middle - limit, middle + limit)
        if scaling == "columns":
            block[:, k] /= max(abs(middle) + limit, float(np.finfo(np.float64).tiny))


def block_width(n: int, d: int) -> int:
    """How many of d columns of n rows are scaled at a time."""
    return min(d, max(1, _BLOCK_ELEMENTS // n))


def _blocks(X: Array, xp: Any) -> Iterator[tuple[slice, Array]]:
    """Slices of columns and a float64 copy of each."""
    n, d = X.shape
    width = block_width(n, d)
    for start in range(0, d, width):
        columns = slice(start, min(start + width, d))
        yield columns, xp.array(X[:, columns], dtype=np.float64, order="F")


# --- checks ----------------------------------------------------------------------------------------------------------


def check_finite(X: Any, xp: Any = np) -> None:
    """Raise ValueError, with their number and the first column, if X (n, d) holds NaN or infinite values.

    X: an array of `xp`, or a sparse matrix of numbers in the memory of the host.
    """
    if not sparse.issparse(X):
        count, _, column = values_not_finite(X, xp)
    elif count := int((~np.isfinite(X.data)).sum()):
        column = int(columns_not_finite(X).min())
    if count:
        raise not_finite(count, math.prod(X.shape), column)


def values_not_finite(X: Array, xp: Any = np) -> tuple[int, int, int]:
    """How many values of X (n, d) are NaN or infinite; row and column of the first in the first such column, or -1."""
    count, row, column = 0, -1, -1
    with np.errstate(over="ignore", invalid="ignore"):
        if X.dtype.kind != "f" or xp.isfinite(xp.sum(X, dtype=np.float64)):  # what is not finite stays so in sums
            return count, row, column
    for columns, block in _blocks(X, xp):
        bad, rows = xp.nonzero(~xp.isfinite(block.T))
        if count == 0 and len(bad):
            row, column = int(rows[0]), columns.start + int(bad[0])
        count += len(bad)
    return count, row, column


def columns_not_finite(X: Any) -> Array:
    """The column of every value of X (n, d), an array or a sparse matrix, that is NaN or infinite."""
    if not sparse.issparse(X):
        return np.nonzero(~np.isfinite(X))[1]
    stored = X.tocoo()
    columns: Array = stored.col[~np.isfinite(stored.data)]
    return columns


def not_finite(count: int, size: int, first_column: int) -> ValueError:
    """The error for `count` of `size` values that are NaN or infinite."""
    return ValueError(
        f"Input X contains NaN or infinity: {count} of {size} values, the first in column {first_column}. {FILL}."
    )


def check_table(X: Any, least: int = 2) -> None:
    """Raise ValueError, in scikit-learn's words if it has some, unless X (n, d) has `least` rows of real numbers."""
    for count, minimum, what in zip(X.shape, (least, 1), ("sample", "feature"), strict=False):
        if count < minimum:
            raise ValueError(
                f"Found array with {count} {what}(s) (shape={X.shape}) while a minimum of {minimum} is required."
            )
    if X.dtype.kind not in "fiub":
        raise ValueError(f"X must hold real numbers; its dtype is {X.dtype}")
