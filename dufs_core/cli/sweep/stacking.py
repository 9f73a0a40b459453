"""Fits of a task as populations: on a GPU those that differ in lam and seed advance as one stack.

Only where a stack gives every fit the bits that it has alone (`dufs_core.selection.fit_many.stack_size`): which fits go
together then changes no result, whatever was computed before a job was stopped, or fails.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dufs_core.backend import Array
from dufs_core.cli.sweep.fit_id import Fit
from dufs_core.cli.sweep.worker import Result, first_columns, load, of_fitted, one_line, said
from dufs_core.errors import CheckpointError, InterruptedFit, user_stacklevel
from dufs_core.selection.atomic_io import disk_is_full
from dufs_core.selection.checkpoint import Checkpoint

LARGEST = 32  # fits of a task: what is lost with a worker that writes no checkpoints, and what others could compute
_MAY_DIFFER = ("lam", "n_features_to_select", "ranking")  # settings of a population's fits


class GroupError(Exception):
    """A population failed: its fits are to be computed one by one."""


def tasks(fits: Sequence[Fit], in_this_process: bool) -> list[list[Fit]]:
    """Fits that may be one population together where a GPU computes, every other one by itself; in order.

    With "auto", what another process will compute with is not known here: there every fit is a task. So it is with
    decoys: each fit has gates of other columns.
    """
    on_gpu = ("cupy", "auto") if in_this_process else ("cupy",)
    groups: dict[str, list[list[Fit]]] = {}
    for fit in fits:
        together = fit.settings["backend"] in on_gpu and fit.settings["fdr"] is None
        alike = groups.setdefault(_key(fit) if together else fit.id, [[]])
        if len(alike[-1]) == LARGEST:
            alike.append([])
        alike[-1].append(fit)
    return [some for alike in groups.values() for some in alike]


def _key(fit: Fit) -> str:
    """The same for fits that may be one population."""
    settings = {name: value for name, value in fit.settings.items() if name not in _MAY_DIFFER}
    return json.dumps([fit.data.name, settings, fit.threads], sort_keys=True)


def size(fits: Sequence[Fit]) -> tuple[int, str]:
    """How many of these fits are computed at once, and what users are warned of on the way to it.

    As many as keep their bits and have room in memory, or 1.
    """
    from dufs_core.selection.fit_many import stack_size

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            count = stack_size(_selector(fits[0], ()), load(fits[0]), len(fits))
        except Exception:  # what is wrong with the data or the settings is said by the first fit
            count = 1
    return count, said(caught)


def together(
    some: Sequence[tuple[Fit, str]], every_seconds: float, stop: Callable[[], bool], note: str
) -> list[Result]:
    """Results of fits, each with the path of its checkpoint, that are one population; `note` is said in their rows.

    One that ends with numbers that are not finite has its error in its row. Raises InterruptedFit, with checkpoints
    written, when asked to stop, and GroupError for anything else.
    """
    from dufs_core.selection.fit_many import fit_stack

    began = time.perf_counter()
    try:
        with warnings.catch_warnings(record=True) as of_all:
            warnings.simplefilter("always")
            X = load(some[0][0])
            selectors = [_selector(fit, _saving(path, every_seconds, stop)) for fit, path in some]
            warn = fit_stack(selectors, X)
    except (InterruptedFit, KeyboardInterrupt):
        raise
    except Exception as error:
        if disk_is_full(error):
            raise
        raise GroupError(f"{len(some)} fits together failed ({one_line(error)}), so each was computed alone") from error
    share = (time.perf_counter() - began) / len(some)
    return [
        _result(fit, selector, X, said([*of_all, *_caught(of_one)], note), len(some), share)
        for (fit, _), selector, of_one in zip(some, selectors, warn, strict=True)
    ]


def _result(fit: Fit, selector: Any, X: Array, warned: str, count: int, seconds: float) -> Result:
    row = first_columns(fit) | {"n_samples": X.shape[0], "n_features": X.shape[1]}
    try:
        found = of_fitted(row, selector)
    except FloatingPointError as error:
        found = Result(row | {"status": "failed", "error": one_line(error)}, {})
    return Result(found.row | {"together": count, "warnings": warned, "seconds": seconds}, found.arrays)


def _selector(fit: Fit, callbacks: Sequence[Checkpoint]) -> Any:
    from dufs_core.selection.dufs import DUFS

    return DUFS(**fit.settings, random_state=fit.seed, n_jobs=fit.threads, callbacks=callbacks)


def _saving(path: str, every_seconds: float, stop: Callable[[], bool]) -> list[Checkpoint]:
    """The checkpoint of a fit, which goes on from what it holds; none where the sweep's directory is not seen."""
    if not Path(path).parent.is_dir():
        return []
    saved = Checkpoint(path, every_seconds, stop)
    if saved.exists():
        try:
            saved.read()
        except CheckpointError as error:
            warnings.warn(f"{error}; the fit was started anew", stacklevel=user_stacklevel())
            saved.remove()
    return [saved]


def _caught(warn: Callable[[], None]) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn()
    return caught
