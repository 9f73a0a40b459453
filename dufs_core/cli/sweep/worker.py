"""Compute fits, in the process of the sweep or in a worker.

On a GPU fits that differ in lam and seed advance as one stack, if each keeps the bits that it has alone
(`dufs_core.selection.fit_many.stack_size`).
"""

from __future__ import annotations

import json
import threading
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, NamedTuple

from threadpoolctl import threadpool_limits

from dufs_core.cli.common import single_line
from dufs_core.cli.sweep.job_file import DataSet, Fit
from dufs_core.cli.sweep.results import Result, Store, error_line, failure, result_of
from dufs_core.cli.sweep.selector import new_selector, same_in_a_stack
from dufs_core.data.groups import Told
from dufs_core.data.on_disk import is_on_disk
from dufs_core.errors import CheckpointError, InterruptedFit, user_stacklevel
from dufs_core.selection import checkpoint
from dufs_core.selection.atomic_io import disk_is_full
from dufs_core.selection.fit import FitTask
from dufs_core.selection.fit_many import bytes_together, fit_results, stack_size
from dufs_core.selection.gated_selector import GatedSelector
from dufs_core.selection.memory import needed_bytes
from dufs_core.selection.trainer import go_on

LARGEST = 32  # fits of a task: so many are lost with a worker that writes no checkpoints
busy = threading.Lock()  # held during a task: the BLAS's threads and caught warnings are those of the whole process


class Task(NamedTuple):
    """Fits of one data set for one worker: one, or a possible stack."""

    fits: tuple[Fit, ...]
    store: Store
    every_seconds: float  # between the states of a fit


def group_fits(fits: Sequence[Fit]) -> list[list[Fit]]:
    """Group fits that may be a stack on a GPU; all others stay alone."""
    groups: dict[str, list[Fit]] = {}
    for fit in fits:
        same = same_in_a_stack(fit.settings)
        key = fit.id if same is None else json.dumps([fit.data.name, same, fit.threads], sort_keys=True)
        groups.setdefault(key, []).append(fit)
    return [group[i : i + LARGEST] for group in groups.values() for i in range(0, len(group), LARGEST)]


def work(task: Task) -> list[Result]:
    """Compute the fits of a task; those so far, with checkpoints of the others, once the job is to end.

    The BLAS has the threads of the fits, so that bits do not depend on who computes. A fit that fails has its error in
    its row.
    """
    results: list[Result] = []
    with busy, threadpool_limits(task.fits[0].threads), suppress(InterruptedFit):
        size = size_of_stack(task.fits)
        for start in range(0, len(task.fits), size):
            results += _fit(task, task.fits[start : start + size])
    return results


def load(fit: Fit) -> tuple[Any, Told]:
    """X (n, d) of a fit, and what is told of its rows, cached for the next fit.

    X stays on the disk where a fit has few rows of it in hand at once.
    """
    return _load(fit.data, new_selector(fit)._procedure().rows_in_hand is not None)


_load = lru_cache(maxsize=1)(DataSet.read)


def size_of_stack(fits: Sequence[Fit]) -> int:
    """The number of these fits that keep their bits as a stack and have room in memory."""
    if len(fits) == 1:
        return 1
    with warnings.catch_warnings(action="ignore"):
        try:
            X, told = load(fits[0])
            return stack_size(new_selector(fits[0]), X, len(fits), told)
        except Exception:  # the first fit reports the error in the data or settings
            return 1


def _unfitted(fit: Fit, task: Task, alone: bool) -> GatedSelector:
    """The selector of a fit, with its checkpoint, to go on from where there is one."""
    selector = new_selector(fit)
    is_elsewhere = not task.store.checkpoints.is_dir()
    if is_elsewhere or selector._procedure().training is None:
        return selector
    saved = task.store.checkpoint(fit, task.every_seconds)
    resolved = {}
    if saved.exists():
        try:
            _, found = saved.read()
            if alone:  # what "auto" came to; in a stack it comes to the same for all
                resolved = {name: found[name] for name in ("backend", "engine")}
        except CheckpointError as error:
            warnings.warn(f"{error}; the fit was started anew", stacklevel=user_stacklevel())
            saved.remove()
    return new_selector(fit, [saved], **resolved)


def _poll(task: Task) -> None:
    """Raise InterruptedFit when the job is to end, of fits that a checkpoint does not end itself."""
    if task.store.is_to_end():
        raise InterruptedFit("The sweep was asked to stop")


def _fit(task: Task, some: Sequence[Fit]) -> list[Result]:
    """Results of one fit of a task, or of several as a stack, one by one if that fails.

    Raises InterruptedFit, with checkpoints written, when the job is to end.
    """
    _poll(task)
    began, shape = time.perf_counter(), {}
    doubts: list[Sequence[Any]] = [()]
    with warnings.catch_warnings(record=True, action="always") as caught:
        try:
            X, told = load(some[0])
            shape = {"n_samples": X.shape[0], "n_features": X.shape[1]}
            selectors = [_unfitted(fit, task, alone=len(some) == 1) for fit in some]
            if len(some) == 1:
                is_saved = bool(checkpoint.callbacks_of(selectors[0]))  # then it is asked to end, and saves itself
                poll = go_on if is_saved else partial(_poll, task)
                found = [FitTask.begin(selectors[0], X, told=told).run(poll=poll)]
            else:
                found = fit_results(selectors, X, told)
            for selector, fitted in zip(selectors, found, strict=True):
                selector._keep(fitted.attributes())
            results = list(map(result_of, selectors))
            doubts = [fitted.doubts for fitted in found]
        except InterruptedFit:
            raise
        except Exception as error:  # the other fits go on
            if disk_is_full(error):
                raise
            if len(some) > 1:
                return [result for fit in some for result in _fit(task, [fit])]
            results = [failure(error)]
    facts = shape | {"together": len(some), "seconds": (time.perf_counter() - began) / len(some)}
    of_all = [w.message for w in caught if issubclass(w.category, UserWarning)]
    for result, own in zip(results, doubts, strict=True):
        said = (single_line(message) for message in [*of_all, *own])
        result.row.update(facts, warnings=" | ".join(dict.fromkeys(said)))
    return results


def predict(fits: Sequence[Fit]) -> dict[str, dict[str, Any]]:
    """By id of the fit: its engine, the number of fits computed together and their bytes, or the error."""
    found = {}
    for group in group_fits(fits):
        size = size_of_stack(group)
        for position, fit in enumerate(group):
            together = min(size, len(group) - position // size * size)
            found[fit.id] = {"together": together} | _predicted(fit, together)
    return found


def _predicted(fit: Fit, together: int) -> dict[str, Any]:
    try:
        with warnings.catch_warnings(action="ignore"):
            X, told = load(fit)
            task = FitTask.begin(new_selector(fit), X, told=told)
            engine = task.engine_name()
        memory = bytes_together(task, engine, together) if together > 1 else needed_bytes(engine, *task.memory)
        return {"bytes": int(memory + (0 if is_on_disk(X) else X.nbytes)), "engine": engine}
    except Exception as error:  # the sweep records it as the fit's
        return {"error": error_line(error)}
