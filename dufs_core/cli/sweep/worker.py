"""Compute fits, in the process of the sweep or in a worker.

On a GPU fits that differ in lam and seed advance as one stack, if each keeps the bits that it has alone
(`dufs_core.selection.fit_many.stack_size`).
"""

from __future__ import annotations

import json
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import zip_longest
from typing import Any, NamedTuple

from threadpoolctl import threadpool_limits

from dufs_core.cli.sweep.job_file import MOONS, DataSet, Fit
from dufs_core.cli.sweep.results import Result, error_line, failure, join_warnings, result_of
from dufs_core.data.files import read_table
from dufs_core.data.fingerprint import file_fingerprint
from dufs_core.data.on_disk import is_on_disk
from dufs_core.datasets import two_moons
from dufs_core.errors import CheckpointError, InterruptedFit, user_stacklevel
from dufs_core.objective.engines.choose import needed_bytes
from dufs_core.selection.atomic_io import disk_is_full
from dufs_core.selection.checkpoint import Checkpoint
from dufs_core.selection.decoys.dufs import DUFS
from dufs_core.selection.fit import FitTask
from dufs_core.selection.fit_many import bytes_together, fit_stack, stack_size

LARGEST = 32  # fits of a task: so many are lost with a worker that writes no checkpoints
_MAY_DIFFER = ("lam", "n_features_to_select", "ranking")  # settings of the fits of a stack
orphaned = threading.Event()  # set in a worker whose parent has died
busy = threading.Lock()  # held during a task: the BLAS's threads and caught warnings are those of the whole process


class Task(NamedTuple):
    """Fits of one data set for one worker: one, or a possible stack."""

    fits: tuple[Fit, ...]
    checkpoints: str  # the folder of checkpoints
    every_seconds: float
    stop: str  # the path of a file: while it is there, workers stop


class StackError(Exception):
    """A stack failed: its fits are computed one by one."""


def group_fits(fits: Sequence[Fit]) -> list[list[Fit]]:
    """Group fits that may be a stack on a GPU; all others stay alone, since decoys give every fit its own columns."""
    groups: dict[str, list[Fit]] = {}
    for fit in fits:
        key = fit.id
        if fit.settings["backend"] == "cupy" and fit.settings["fdr"] is None:
            same = {name: value for name, value in fit.settings.items() if name not in _MAY_DIFFER}
            key = json.dumps([fit.data.name, same, fit.threads], sort_keys=True)
        groups.setdefault(key, []).append(fit)
    return [group[i : i + LARGEST] for group in groups.values() for i in range(0, len(group), LARGEST)]


def compute(task: Task, stop: Callable[[], bool]) -> Iterator[Result]:
    """Compute the fits of a task; the BLAS has the threads of the fits, so that bits do not depend on who computes.

    A fit that fails has its error in its row. Raises InterruptedFit, with checkpoints written, once `stop` is true.
    """
    waiting, size, note = task.fits, 0, ""
    while waiting:
        with threadpool_limits(task.fits[0].threads):
            if stop():
                raise InterruptedFit("The sweep was asked to stop")
            size = size or size_of_stack(task.fits)
            some = waiting[:size]
            try:
                found = _fit(task, some, stop, note)
            except StackError as error:
                size, note = 1, str(error)
                continue
        waiting = waiting[len(some) :]
        yield from found


def work(task: Task) -> list[Result]:
    """`compute` in a worker, until the file task.stop exists or its parent has died; the results so far."""

    def stop() -> bool:
        return orphaned.is_set() or os.path.exists(task.stop)

    results: list[Result] = []
    with busy, suppress(InterruptedFit):
        results.extend(compute(task, stop))
    return results


def load(fit: Fit) -> Any:
    """X (n, d) of a fit, cached for the next fit; with batch_size it stays on the disk.

    Raises ValueError if the file is not a table, or has changed since the sweep was started.
    """
    return _load(fit.data, fit.settings["batch_size"] is not None)


@lru_cache(maxsize=1)
def _load(data: DataSet, on_disk: bool) -> Any:
    if data.path == MOONS:
        return two_moons(*dict(data.reading).values()).X
    if file_fingerprint(data.path) != data.sha256:
        raise ValueError(f"{data.path} has changed since the sweep was started")
    return read_table(data.path, **dict(data.reading), on_disk=on_disk).X


def size_of_stack(fits: Sequence[Fit]) -> int:
    """The number of these fits that keep their bits as a stack and have room in memory."""
    if len(fits) == 1:
        return 1
    with warnings.catch_warnings(action="ignore"):
        try:
            return stack_size(_selector(fits[0]), load(fits[0]), len(fits))
        except Exception:  # the first fit reports the error in the data or settings
            return 1


def _selector(fit: Fit, checkpoint: Checkpoint | None = None, alone: bool = True) -> DUFS:
    """The selector of a fit, to go on from its checkpoint."""
    settings = dict(fit.settings)
    if checkpoint is not None and checkpoint.exists():
        try:
            found = checkpoint.read()
            if alone:  # what "auto" came to; in a stack it comes to the same for all
                settings |= {name: found[name] for name in ("backend", "engine")}
        except CheckpointError as error:
            warnings.warn(f"{error}; the fit was started anew", stacklevel=user_stacklevel())
            checkpoint.remove()
    callbacks = () if checkpoint is None else (checkpoint,)
    return DUFS(**settings, random_state=fit.seed, n_jobs=fit.threads, callbacks=callbacks)


def _fit(task: Task, some: Sequence[Fit], stop: Callable[[], bool], note: str) -> list[Result]:
    """Results of one fit of a task, or of several as a stack; `note` goes into their rows.

    Raises InterruptedFit, with checkpoints written, when asked to stop, and StackError if a stack fails.
    """
    began, failed = time.perf_counter(), None
    shape, selectors, warn_each = {}, [], []
    with warnings.catch_warnings(record=True, action="always") as of_all:
        try:
            X = load(some[0])
            shape = {"n_samples": X.shape[0], "n_features": X.shape[1]}
            for fit in some:
                checkpoint = None
                if os.path.isdir(task.checkpoints):  # unless the sweep's directory is on another machine
                    checkpoint = Checkpoint(f"{task.checkpoints}/{fit.id}.ckpt", task.every_seconds, stop)
                selectors.append(_selector(fit, checkpoint, alone=len(some) == 1))
            if len(some) == 1:
                selectors[0].fit(X)
            else:
                warn_each = fit_stack(selectors, X)
        except InterruptedFit:
            raise
        except Exception as error:  # the other fits go on
            if disk_is_full(error):
                raise
            if len(some) > 1:
                why = f"{len(some)} fits together failed ({error_line(error)})"
                raise StackError(f"{why}, so each was computed alone") from error
            failed = error
    seconds = (time.perf_counter() - began) / len(some)
    results = []
    for fit, selector, warn in zip_longest(some, selectors, warn_each):
        with warnings.catch_warnings(record=True, action="always") as of_one:
            if warn is not None:
                warn()
        found = result_of(fit, selector) if failed is None else failure(fit, failed)
        facts = {"together": len(some), "warnings": join_warnings([*of_all, *of_one], note), "seconds": seconds}
        results.append(Result(found.row | shape | facts, found.arrays))
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
            X = load(fit)
            task = FitTask.begin(_selector(fit), X)
            engine = task.engine().name
        memory = bytes_together(task, together) if together > 1 else needed_bytes(engine, *task.memory)
        return {"bytes": int(memory + (0 if is_on_disk(X) else X.nbytes)), "engine": engine}
    except Exception as error:  # the sweep records it as the fit's
        return {"error": error_line(error)}
