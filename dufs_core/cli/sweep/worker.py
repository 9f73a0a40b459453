"""The fits themselves, in the process of the sweep or in a worker's."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from dufs_core.backend import Array
from dufs_core.cli.sweep.fit_id import DataSet, Fit
from dufs_core.cli.sweep.job_file import make_moons
from dufs_core.errors import CheckpointError, InterruptedFit, user_stacklevel
from dufs_core.selection.atomic_io import disk_is_full
from dufs_core.selection.checkpoint import Checkpoint

_IDLE = 60.0  # seconds without a task after which a worker elsewhere lets go of the data
_busy = threading.Lock()  # held during a task: the BLAS's threads and caught warnings are those of the whole process


class Task(NamedTuple):
    """Fits of one data set for one worker; several differ in nothing that keeps them from being one population."""

    fits: tuple[Fit, ...]
    checkpoints: tuple[str, ...]  # the path of each fit's checkpoint
    every_seconds: float
    stop: str  # the path of a file: while it is there, workers stop
    parent: int | None  # the process that started the worker; None if it is not this machine's


class Result(NamedTuple):
    """What is kept of a fit."""

    row: dict[str, Any]
    arrays: dict[str, Array]


def load(fit: Fit) -> Any:
    """X (n, d) of a fit; one with batch_size has its data where they are stored, as in dufs-core fit.

    The last one is kept: fits come grouped by data set.

    Raises ValueError if the file cannot be read as a table, or is not the one that the sweep was started with.
    """
    return _load(fit.data, fit.settings["batch_size"] is not None)


@lru_cache(maxsize=1)
def _load(data: DataSet, on_disk: bool) -> Any:
    from dufs_core.data.files.arrays import file_fingerprint, read_table

    if data.path == "two-moons":
        return make_moons(dict(data.reading))
    if file_fingerprint(data.path) != data.sha256:
        raise ValueError(f"{data.path} has changed since the sweep was started")
    return read_table(data.path, **dict(data.reading), on_disk=on_disk).X


class _Forgetting:
    """Lets go of the data once a worker that outlives the sweep has had no task for a while."""

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None

    def later(self, seconds: float) -> None:
        """Unless called again before."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = threading.Timer(seconds, _load.cache_clear)
        self._timer.daemon = True
        self._timer.start()


_forgetting = _Forgetting()


def work(task: Task) -> list[Result]:
    """All of `results`, in a worker."""
    try:
        return list(results(task))
    finally:
        if task.parent is None:
            _forgetting.later(_IDLE)


def results(task: Task, stop: Callable[[], bool] | None = None) -> Iterator[Result]:
    """Compute the fits of a task, each with task.fits' threads for the BLAS too: bits do not depend on who computes.

    As many as possible go together (`dufs_core.cli.sweep.stacking`), one by one where that fails. A fit that fails
    has its
    error in its row. Raises InterruptedFit, with checkpoints written, when asked to stop: by `stop`, or in a worker by
    the file task.stop or the death of task.parent.
    """
    from threadpoolctl import threadpool_limits

    from dufs_core.cli.sweep import stacking as group

    asked = stop or (lambda: _asked(task))
    waiting = list(zip(task.fits, task.checkpoints, strict=True))
    size, note = (1 if len(waiting) == 1 else None), ""
    while waiting:
        with _busy, threadpool_limits(waiting[0][0].threads):
            if asked():
                raise InterruptedFit("The sweep was asked to stop")
            if size is None:
                size, note = group.size(task.fits)
            some = waiting[:size]
            try:
                if len(some) > 1:
                    found = group.together(some, task.every_seconds, asked, note)
                else:
                    found = [_result(*some[0], task.every_seconds, asked, note)]
            except group.GroupError as error:
                size, note = 1, str(error)
                continue
        waiting = waiting[len(some) :]
        yield from found


def start_child(parent: int) -> None:
    """Prepare a child of the sweep's process `parent`: it is told to stop by a file, and does not outlive its parent.

    Signals that reach all processes of a job are for the parent, which tells its children.
    """
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        with _busy:  # what is in hand is saved first: it is asked to stop as well
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _asked(task: Task) -> bool:
    orphan = task.parent is not None and os.getppid() != task.parent
    return orphan or os.path.exists(task.stop)


def _result(fit: Fit, path: str, every_seconds: float, stop: Callable[[], bool], note: str) -> Result:
    began = time.perf_counter()
    found = Result(first_columns(fit), {})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            X = load(fit)
            found = found._replace(row=found.row | {"n_samples": X.shape[0], "n_features": X.shape[1]})
            found = of_fitted(found.row, _fitted(fit, X, path, every_seconds, stop))
        except (InterruptedFit, KeyboardInterrupt):
            raise
        except Exception as error:  # whatever is wrong with this fit, the others can do without it
            if disk_is_full(error):
                raise
            found = Result(found.row | {"status": "failed", "error": one_line(error)}, {})
    row = {"together": 1, "warnings": said(caught, note), "seconds": time.perf_counter() - began}
    return Result(found.row | row, found.arrays)


def first_columns(fit: Fit) -> dict[str, Any]:
    """How the row of a fit begins."""
    return {"id": fit.id, "data": fit.data.name, "seed": fit.seed}


def of_fitted(row: dict[str, Any], selector: Any) -> Result:
    """The row of a fit that is done, after what is known of it. Raises FloatingPointError if it has come to nothing."""
    if not np.isfinite(selector.mu_).all():
        raise FloatingPointError("the fit ended with gate parameters that are not finite")
    return Result(row | _measures(selector) | {"status": "done", "error": None}, _arrays(selector))


def one_line(error: Exception) -> str:
    """An error in a table."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def said(caught: Sequence[warnings.WarningMessage], first: str = "") -> str:
    """What users are warned of, in a table."""
    sentences = (" ".join(str(w.message).split()) for w in caught if issubclass(w.category, UserWarning))
    return " | ".join(dict.fromkeys([*([first] if first else []), *sentences]))


def _fitted(fit: Fit, X: Array, path: str, every_seconds: float, stop: Callable[[], bool]) -> Any:
    """The estimator, gone on with where there is a checkpoint."""
    from dufs_core.selection.dufs import DUFS

    if not os.path.isdir(os.path.dirname(path)):  # a worker on a machine without the sweep's directory
        return DUFS(**fit.settings, random_state=fit.seed, n_jobs=fit.threads).fit(X)
    checkpoint = Checkpoint(path, every_seconds, stop)
    if checkpoint.exists():
        try:
            free = {"n_jobs": fit.threads, "max_memory": fit.settings["max_memory"]}
            return DUFS.resume(path, X, callbacks=[checkpoint], **free)
        except CheckpointError as error:
            warnings.warn(f"{error}; the fit was started anew", stacklevel=user_stacklevel())
            checkpoint.remove()
    return DUFS(**fit.settings, random_state=fit.seed, n_jobs=fit.threads, callbacks=[checkpoint]).fit(X)


def _measures(selector: Any) -> dict[str, Any]:
    names = ("n_iter", "n_runs", "converged", "loss", "bandwidth", "backend", "engine")
    measures = {"n_selected": int(selector.support_.sum())} | {name: getattr(selector, f"{name}_") for name in names}
    if selector.fdr is None:
        return measures | {"excess_score": selector.excess_score_, "p_value": selector.p_value_}
    found = int((selector.q_values_ <= selector.fdr).sum())
    return measures | {"n_found": found, "smallest_fdr": selector.smallest_fdr_, "price": selector.lam_}


def _arrays(selector: Any) -> dict[str, Array]:
    history = {f"history/{name}": column for name, column in selector.history_.items()}
    if selector.fdr is not None:
        history |= {"q_values": selector.q_values_, "evidence": selector.evidence_}
    return {"mu": selector.mu_, "ranking": selector.order_, "support": selector.support_} | history
