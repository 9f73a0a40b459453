"""What `scaling` does to the columns x_k of X (n, d), whatever holds them; m_k mean, s_k standard deviation.

"columns": (x_k - m_k) / s_k, mean 0 and variance 1 each; "global": (x_k - m_k) / s, s^2 the mean variance of columns
that are not constant; "none": x_k - m_k, in the units given. Columns are always centred: it changes no distance, it
saves the digits of data far from 0, and the part of the score that a mean would add says nothing about structure.
Constant columns become 0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dufs_core.backend import Array
from dufs_core.errors import invalid_choice

SCALINGS = ("columns", "global", "none")


class ScaledData(NamedTuple):
    """Scaled data, and which columns hold one value only."""

    X: Any  # (n, d): an array in Fortran order, or a `dufs_core.data.matrix.ScaledMatrix`
    constant: Array  # (d,) bool


def check_scaling(scaling: str) -> None:
    """Raise ValueError unless it is one of the three."""
    if scaling not in SCALINGS:
        raise invalid_choice("scaling", scaling, SCALINGS)


def safe_unit(scaling: str, low: Array, high: Array, largest: float, xp: Any = np) -> Array:
    """What columns are divided by first, so that squares of values as large as 1e300 stay finite; "none" allows none.

    low, high: smallest and largest value of each column. largest: the largest size of any value of X.
    """
    unit = xp.maximum(abs(low), abs(high)) if scaling == "columns" else xp.full(len(low), largest)
    return xp.ones(len(low)) if scaling == "none" else xp.where(unit > 0, unit, 1)


def common_deviation(squares: float, n: int, varying: int) -> float:
    """The s of "global", from the sum of squares about the means of `varying` columns; 1 if there are no squares."""
    return float(np.sqrt(squares / (n * max(1, varying)))) if squares > 0 else 1.0


def check_peaks(peaks: Array, n: int, dtype: Any) -> None:
    """Raise ValueError if data in the units given cannot be squared in the dtype.

    peaks (d,): the largest distance of a value from its column's mean, 0 in constant columns. Sums of d squares, times
    n, must not overflow; and some square must be told from 0: squared distances up to the square root of the smallest
    normal number are taken for 0 (`dufs_core.objective.ops.bandwidth.noise_level`), those of half-closed gates too.
    """
    info, name = np.finfo(dtype), np.dtype(dtype).name
    most, least = np.sqrt(float(info.max) / (4.0 * n * len(peaks))) / 1e3, 1e2 * float(info.tiny) ** 0.25
    if (peaks > most).any():
        column = int((peaks > most).argmax())
        raise ValueError(
            f"Column {column} reaches {float(peaks[column]):.3g} from its mean; squares of values beyond {most:.3g} "
            f"overflow {name}. Use scaling='columns' or 'global', or divide X first."
        )
    if 0 < (largest := float(peaks.max())) < least:
        raise ValueError(
            f"No value is further than {largest:.3g} from the mean of its column (column {int(peaks.argmax())}); "
            f"squares of less than {least:.3g} vanish in {name}. "
            f"Use scaling='columns' or 'global', or multiply X first."
        )
