"""From what users hold to what the chain computes with: checks, scaling, constant columns, dtype.

The user's array is read in blocks of columns and never written to; what comes out is a new (n, d) array in
Fortran order (the chain gathers columns).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from dufs_core.backend import Array, Backend
from dufs_core.errors import invalid_choice

_BLOCK_ELEMENTS = 1 << 22  # entries of one float64 block: 32 MiB
SCALINGS = ("columns", "global", "none")


class ScaledData(NamedTuple):
    """Scaled data and what was found on the way."""

    X: Array  # (n, d) in Fortran order; constant columns are 0
    constant: Array  # (d,) bool, columns whose smallest and largest value are equal


def _blocks(X: Array, xp: Any) -> Iterator[tuple[slice, Array]]:
    """Slices of columns and a float64 copy of each."""
    n, d = X.shape
    width = max(1, _BLOCK_ELEMENTS // n)
    for start in range(0, d, width):
        columns = slice(start, min(start + width, d))
        yield columns, xp.array(X[:, columns], dtype=np.float64, order="F")


def check_finite(X: Array, xp: Any = np) -> None:
    """Raise ValueError, with their number and the first column, if X (n, d) holds NaN or infinite values."""
    count, _, column = values_not_finite(X, xp)
    if count:
        raise not_finite(count, X.size, column)


def values_not_finite(X: Array, xp: Any = np) -> tuple[int, int, int]:
    """How many values of X (n, d) are NaN or infinite; row and column of the first in the first such column, or -1."""
    count, row, column = 0, -1, -1
    if X.dtype.kind != "f":
        return count, row, column
    with np.errstate(over="ignore", invalid="ignore"):
        if bool(xp.isfinite(xp.sum(X, dtype=np.float64))):  # what is not finite stays so in sums
            return count, row, column
    for columns, block in _blocks(X, xp):
        bad = ~xp.isfinite(block)
        if bad.any():
            if not count:
                first = int(xp.flatnonzero(bad.any(axis=0))[0])
                row, column = int(xp.flatnonzero(bad[:, first])[0]), columns.start + first
            count += int(bad.sum())
    return count, row, column


def check_stored(X: Any) -> None:
    """The same for a sparse matrix (n, d), CSR or CSC."""
    if X.data.dtype.kind != "f" or bool(np.isfinite(X.data).all()):
        return
    bad = np.flatnonzero(~np.isfinite(X.data))
    columns = X.indices[bad] if X.format == "csr" else np.searchsorted(X.indptr, bad, side="right") - 1
    raise not_finite(len(bad), X.shape[0] * X.shape[1], int(columns.min()))


def not_finite(count: int, size: int, first_column: int) -> ValueError:
    """The error for `count` of `size` values that are NaN or infinite."""
    return ValueError(
        f"Input X contains NaN or infinity: {count} of {size} values, the first in column {first_column}. "
        f"Impute them or drop those rows or columns first."
    )


def too_many_dimensions(shape: tuple[int, ...]) -> ValueError:
    """The error, in scikit-learn's words, for an array that is no table."""
    return ValueError(
        f"Found array with dim {len(shape)}, while dim <= 2 is required; its shape is {shape}. X is a table "
        f"(n_samples, n_features): images become rows of pixels by X.reshape(len(X), -1)"
    )


def device_table(bk: Backend, X: Any, least: int = 2) -> Array:
    """X (n, d), an array of any library outside the memory of the CPU, as an array of the backend; not copied.

    Raises ValueError, in scikit-learn's words where it has some, unless it can be computed with.
    """
    if bk.name == "numpy":
        raise ValueError(
            'X lives on a GPU, and the NumPy backend computes on the CPU: use backend="cupy" where CuPy works, or copy '
            "X to the host first (X.get() in CuPy, X.cpu() in PyTorch)"
        )
    X = bk.to_device(X)
    check_table(X, least)
    return X


def check_table(X: Any, least: int = 2) -> None:
    """Raise ValueError, in scikit-learn's words where it has some, unless X is a table of real numbers.

    least: the rows that are needed, 2 for a fit.
    """
    if len(X.shape) > 2:
        raise too_many_dimensions(tuple(X.shape))
    if len(X.shape) != 2:
        raise ValueError(f"Expected 2D array, got {len(X.shape)}D array instead (shape={X.shape})")
    n, d = X.shape
    if n < least or d < 1:
        what = f"{n} sample(s)" if n < least else "0 feature(s)"
        raise ValueError(
            f"Found array with {what} (shape={X.shape}) while a minimum of {least if n < least else 1} is required."
        )
    if X.dtype.kind not in "fiub":
        raise ValueError(f"X must hold real numbers; its dtype is {X.dtype}")


def scale_columns(X: Array, scaling: str, dtype: Any, xp: Any = np) -> ScaledData:
    """Centre and scale the columns of X; find the constant ones.

    Parameters
    ----------
    X : ndarray (n, d)
        Any real dtype; cast to float64 before anything is subtracted. Not written to.
    scaling : "columns", "global" or "none"
        "columns": mean 0 and variance 1 each; "global": centred, one common scale (the mean variance of the
        columns that are not constant is 1); "none": centred, in the units given. Columns are always centred: it
        changes no distance, it saves the digits of data far from 0, and the part of the score that a column's mean
        would add says nothing about structure.
    dtype : float32 or float64
        Of the result.
    xp : module
        That X belongs to, and the result: numpy, or cupy where X lives on a device.

    Returns
    -------
    ScaledData

    Raises
    ------
    ValueError
        If values are not finite, or too large or all too small for `dtype` after scaling.
    """
    if scaling not in SCALINGS:
        raise invalid_choice("scaling", scaling, SCALINGS)
    check_finite(X, xp)
    n, d = X.shape
    out = xp.empty((n, d), dtype=dtype, order="F")
    constant = xp.empty(d, dtype=bool)
    largest = max((float(abs(block).max()) for _, block in _blocks(X, xp)), default=0.0) if scaling == "global" else 0.0
    square_sum, peaks = 0.0, xp.zeros(d)
    for columns, block in _blocks(X, xp):
        low, high = block.min(axis=0), block.max(axis=0)
        constant[columns] = low == high
        if scaling == "columns":  # so that squares of values as large as 1e300 stay finite
            unit = xp.maximum(abs(low), abs(high))
        else:
            unit = xp.full(block.shape[1], largest if scaling == "global" else 1.0)
        block /= xp.where(unit > 0, unit, 1)
        block -= block.mean(axis=0)
        block[:, constant[columns]] = 0
        if scaling == "columns":
            deviation = xp.sqrt(xp.square(block).mean(axis=0))
            block /= xp.where(deviation > 0, deviation, 1)
        elif scaling == "global":
            square_sum += float(xp.square(block).sum())
        else:
            peaks[columns] = abs(block).max(axis=0)
            check_range(peaks[columns], columns.start, n, d, dtype)
        out[:, columns] = block
    if scaling == "global" and square_sum > 0:
        out /= out.dtype.type(np.sqrt(square_sum / (n * max(1, d - int(constant.sum())))))
    if scaling == "none":
        check_underflow(peaks, dtype)
    return ScaledData(out, constant)


def check_range(peak: Array, first_column: int, n: int, d: int, dtype: Any) -> None:
    """Raise ValueError if sums of d squares of values up to peak (columns,), times n, could exceed the dtype."""
    limit = np.sqrt(float(np.finfo(dtype).max) / (4.0 * n * d)) / 1e3
    if (peak > limit).any():
        column = int((peak > limit).argmax())
        raise ValueError(
            f"Column {first_column + column} reaches {float(peak[column]):.3g} from its mean; squares of values beyond "
            f"{limit:.3g} overflow {np.dtype(dtype).name}. Use scaling='columns' or 'global', or divide X first."
        )


def check_underflow(peak: Array, dtype: Any) -> None:
    """Raise ValueError if no value is far enough from its column's mean for its square to be told from 0.

    peak (d,): the largest distance in each column, 0 in constant ones. Squared distances up to the square root of the
    smallest normal number are taken for 0 (`dufs_core.objective.ops.bandwidth.noise_level`), those of half-closed
    gates too.
    """
    limit, largest = 1e2 * float(np.finfo(dtype).tiny) ** 0.25, float(peak.max())
    if 0 < largest < limit:
        raise ValueError(
            f"No value is further than {largest:.3g} from the mean of its column (column {int(peak.argmax())}); "
            f"squares of less than {limit:.3g} vanish in {np.dtype(dtype).name}. "
            f"Use scaling='columns' or 'global', or multiply X first."
        )
