"""The times of rows, where a frame has them: a series is evenly spaced, and without gaps."""

from __future__ import annotations

from typing import Any

import numpy as np

from dufs_core.data.groups import accept_groups

_UNEVEN = 1.5  # times the median step; months differ by less


def check_times(X: Any, groups: Any) -> None:
    """Raise ValueError if X is a pandas frame whose index has times that fall, repeat, or leave gaps within a series.

    groups: labels (n,) of the series, or None.
    """
    index = getattr(X, "index", None)
    kind = getattr(getattr(index, "dtype", None), "kind", "")
    is_of_periods = hasattr(index, "to_timestamp")
    if not (kind in "mM" or is_of_periods) or not hasattr(X, "iloc"):
        return
    times = np.asarray(index.astype("int64") if is_of_periods else index).astype("int64")  # type: ignore[union-attr]
    series = np.zeros(len(times), dtype=np.intp)
    rows = np.arange(len(times))
    if groups is not None:
        series, rows = accept_groups(groups, len(times))
    order = np.argsort(series, kind="stable")
    step = np.diff(times[rows[order]])
    inside = np.flatnonzero(np.diff(series[order]) == 0)  # not from one series to the next
    if not len(inside):
        return
    usual = np.median(step[inside])
    wrong = inside[(step[inside] <= 0) | (step[inside] > _UNEVEN * usual) | (_UNEVEN * step[inside] < usual)]
    if not len(wrong):
        return
    row = int(rows[order][wrong[0] + 1])
    if (step[inside] <= 0).any():
        raise ValueError(
            f'rows="series" needs rows in the order of time, and the index of X falls or repeats at row {row}: sort it '
            f"first, X.sort_index(), or give groups where there are several series"
        )
    raise ValueError(
        f'rows="series" needs evenly spaced rows, and {len(wrong):,} of {len(inside):,} steps of the index of X differ '
        f"from the median step by half or more, the first before row {row}: bring rows to one step first, "
        f"X.resample(...).mean(), or give what lies between gaps a label each in groups; where the next row is the "
        f"next one whatever the clock says (trading days), leave the times out, X.reset_index(drop=True)"
    )
