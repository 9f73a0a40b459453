"""A sweep from its job file to its results."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dufs_core.cli.sweep.job_file import Fit, Job
from dufs_core.cli.sweep.pool import Pool, in_workers
from dufs_core.cli.sweep.results import Result, Store, error_line
from dufs_core.cli.sweep.worker import Task, group_fits
from dufs_core.errors import InterruptedFit
from dufs_core.training.progress import progress_bar


@dataclass
class Report:
    """How a sweep ended."""

    fits: int
    done: int = 0
    failed: int = 0
    seconds: float = 0.0
    interrupted: str | None = None  # by what
    stopped: str | None = None  # by this failure: a full disk, a file that may not be written, ...
    first_error: str | None = None  # of the fits that failed

    @property
    def pending(self) -> int:
        return self.fits - self.done - self.failed


@contextmanager
def until_signal(working: Path) -> Iterator[None]:
    """SIGTERM and SIGINT: the first removes the file, so that all who work save and end, the second ends this process.

    Outside the main thread, which alone has signals, nothing is done.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGTERM, signal.SIGINT)

    def end(*_: Any) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
        working.unlink(missing_ok=True)

    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


def run(
    job: Job,
    store: Store,
    workers: AbstractContextManager[Pool],
    resume: bool,
    shown: bool = False,
) -> Report:
    """Compute the missing fits of a sweep in the workers of a pool, and write its table.

    resume: whether the directory may hold a part of this sweep; failed fits are tried again. shown: a progress
    bar on standard error. What ended it early is in the report. Raises JobError if the directory or the workers cannot
    be used.
    """
    began, report = time.perf_counter(), Report(len(job.fits))
    try:
        with store.locked(resume), until_signal(store.working):
            store.begin(job)
            missing = _missing(job, store, report)
            tasks = [Task(tuple(group), store, job.checkpoint_seconds) for group in group_fits(missing)]
            store.log("started", fits=report.fits, done=report.done)
            try:
                with workers as pool, progress_bar(shown, len(missing), "fit", "sweep") as bar:
                    for fit, result in in_workers(tasks, pool, store.is_to_end):
                        _keep(fit, result, store, report)
                        bar.update(1)
                if report.pending:
                    raise InterruptedFit("The sweep was asked to stop")
            except InterruptedFit as error:
                report.interrupted = str(error)
            store.write_table(job)
            store.log("interrupted" if report.interrupted else "finished", done=report.done, failed=report.failed)
    except (OSError, RuntimeError) as error:  # a full disk, a file without rights; workers that take no more fits
        report.stopped = error_line(error)
        with suppress(OSError):
            store.log("stopped", error=report.stopped, done=report.done)
    report.seconds = time.perf_counter() - began
    return report


def _missing(job: Job, store: Store, report: Report) -> list[Fit]:
    """The fits that are not done; the others are counted."""
    missing = []
    for fit in job.fits:
        if (store.row(fit) or {}).get("status") == "done":
            store.checkpoint(fit).remove()  # a job that was killed may have left it
            report.done += 1
        else:
            missing.append(fit)
    return missing


def _keep(fit: Fit, result: Result, store: Store, report: Report) -> None:
    store.save(fit, result)
    status, error = result.row["status"], result.row.get("error")
    report.done += status == "done"
    report.failed += status == "failed"
    report.first_error = report.first_error or error
    store.log(status, fit=fit.id, error=error)
