"""A sweep from its job file to its table."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

from dufs_core.cli.sweep import stacking as group
from dufs_core.cli.sweep.fit_id import Fit
from dufs_core.cli.sweep.job_file import Job, JobError
from dufs_core.cli.sweep.lock import locked
from dufs_core.cli.sweep.pool import Pool, spread
from dufs_core.cli.sweep.results import Store
from dufs_core.cli.sweep.worker import Result, Task, first_columns, one_line, results
from dufs_core.errors import InterruptedFit
from dufs_core.selection.atomic_io import disk_is_full


@dataclass
class Report:
    """How a sweep ended."""

    done: int
    failed: int
    pending: int
    resumed: int  # of the fits that were over, or begun, before this job
    seconds: float
    interrupted: bool = False
    cause: str | None = None  # of the interruption
    disk_full: str | None = None
    errors: dict[str, str] = field(default_factory=dict)  # of the fits that failed, by identity


class Signals:
    """SIGTERM and SIGINT inside a `with` block: the first is remembered, the second ends the process at once."""

    def __init__(self) -> None:
        self.received: str | None = None

    def __call__(self) -> bool:
        return self.received is not None

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle the signals, where that is possible: in the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGTERM, signal.SIGINT)

        def remember(number: int, _: Any) -> None:
            self.received = signal.Signals(number).name
            for each in numbers:
                signal.signal(each, signal.SIG_DFL)

        before = {number: signal.signal(number, remember) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)


def run(
    job: Job,
    store: Store,
    pool: Pool | None,
    resume: bool,
    on_progress: Callable[[int, int, int], None],
    at_end: Callable[[Report], None] = lambda report: None,
) -> Report:
    """Compute what is missing of a sweep.

    Parameters
    ----------
    pool
        The workers; None: this process.
    resume
        Whether the directory may hold a part of this sweep already. Fits that failed are tried again.
    on_progress
        Called with the numbers of fits that are over, that failed among them, and of all.
    at_end
        Called while the directory is still locked, to make the tables.

    Returns
    -------
    Report
        An interruption, or a full disk, is not an error: what is complete is kept.

    Raises
    ------
    JobError
        If the directory cannot be used for this job.
    """
    began = time.perf_counter()
    store.check(resume)
    try:
        store.directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise JobError(f"{store.directory} cannot be made: {(error.strerror or str(error)).lower()}") from error
    signals = Signals()
    with locked(store.lock), signals.handled():
        report = Report(0, 0, len(job.fits), 0, 0.0)
        try:
            store.open(job)
            _run(job, store, pool, signals, report, on_progress)
            store.log("finished", done=report.done, failed=report.failed)
            store.remove_stops()
        except InterruptedFit as error:
            report.interrupted = True
            report.cause = str(error)
            store.last_words(
                "interrupted", signal=signals.received, cause=report.cause, done=report.done, pending=report.pending
            )
        except OSError as error:
            if not disk_is_full(error):
                raise
            report.disk_full = (error.strerror or str(error)).lower()
            store.last_words("disk full", error=report.disk_full, done=report.done, pending=report.pending)
        finally:
            if pool is None or not pool.left:
                store.stop.unlink(missing_ok=True)
        report.seconds = time.perf_counter() - began
        at_end(report)
    return report


def _run(
    job: Job,
    store: Store,
    pool: Pool | None,
    signals: Signals,
    report: Report,
    on_progress: Callable[[int, int, int], None],
) -> None:
    missing = []
    for fit in job.fits:
        row = store.row(fit)
        if row is not None and row["status"] == "done":
            store.clear_checkpoint(fit)
            report.done, report.pending, report.resumed = report.done + 1, report.pending - 1, report.resumed + 1
        else:
            report.resumed += store.checkpoint(fit).exists()
            missing.append(fit)
    store.log("started", fits=len(job.fits), done=report.done, workers=pool is not None)
    on_progress(report.done, 0, len(job.fits))
    with closing(_computed(_tasks(job, store, missing, pool), store, pool, signals)) as computed:
        for fits, found in computed:
            if isinstance(found, Exception):
                found = [_failure(fit, found) for fit in fits]
            for fit, result in zip(fits, found, strict=True):
                store.save(fit, result.row, result.arrays)
                failed = result.row["status"] != "done"
                report.done, report.failed = report.done + (not failed), report.failed + failed
                report.pending -= 1
                if failed:
                    report.errors[fit.id] = result.row["error"]
                kept = (
                    "n_iter", "n_selected", "n_found", "smallest_fdr", "excess_score", "together", "seconds",
                    "error", "warnings",
                )  # fmt: skip
                facts = {name: result.row[name] for name in kept if result.row.get(name) not in (None, "")}
                store.log(result.row["status"], fit=fit.id, data=fit.data.name, seed=fit.seed, **facts)
                on_progress(report.done + report.failed, report.failed, len(job.fits))


def _tasks(job: Job, store: Store, fits: Sequence[Fit], pool: Pool | None) -> list[Task]:
    """What is given to workers: fits of a data set in turn."""
    parent = None if pool is None else pool.parent
    found = []
    for some in group.tasks(fits, in_this_process=pool is None):
        paths = tuple(str(store.checkpoint(fit)) for fit in some)
        found.append(Task(tuple(some), paths, job.checkpoint_seconds, str(store.stop), parent))
    return found


def _computed(
    tasks: Sequence[Task], store: Store, pool: Pool | None, signals: Signals
) -> Generator[tuple[Sequence[Fit], list[Result] | Exception]]:
    if pool is not None:
        with closing(spread(tasks, pool, signals, store.stop.touch)) as spreading:
            for task, found in spreading:
                yield task.fits, found
        return
    for task in tasks:
        for fit, result in zip(task.fits, results(task, signals), strict=True):
            yield (fit,), [result]


def _failure(fit: Fit, error: Exception) -> Result:
    return Result(first_columns(fit) | {"status": "failed", "error": one_line(error)}, {})
