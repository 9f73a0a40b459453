"""A sweep from its job file to its results."""

from __future__ import annotations

import fcntl
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dufs_core.cli.sweep.job_file import Fit, Job, JobError
from dufs_core.cli.sweep.pool import Pool, in_workers
from dufs_core.cli.sweep.results import Result, Store, failure, id_columns
from dufs_core.cli.sweep.worker import Task, compute, group_fits
from dufs_core.errors import InterruptedFit
from dufs_core.selection.atomic_io import disk_is_full, os_reason


@dataclass
class Report:
    """How a sweep ended."""

    fits: int
    done: int = 0
    failed: int = 0
    pending: int = 0
    resumed: int = 0  # of the fits that were over, or begun, before this job
    seconds: float = 0.0
    interrupted: str | None = None  # by what
    disk_full: str | None = None
    errors: dict[str, str] = field(default_factory=dict)  # of the fits that failed, by identity


class Signals:
    """SIGTERM and SIGINT inside a `with` block: the first is remembered, the second ends the process at once."""

    received: str | None = None

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


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the operating system's lock on a file, which ends with the process; JobError if another job holds it."""
    with ExitStack() as stack:
        try:
            fcntl.flock(stack.enter_context(path.open("ab")), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            advice = "wait for it, or take another directory"
            raise JobError(f"another job is working in {path.parent}: {advice}") from error
        except OSError as error:
            raise JobError(f"{path} cannot be locked: {os_reason(error)}") from error
        yield


def run(
    job: Job,
    store: Store,
    workers: AbstractContextManager[Pool] | None,
    resume: bool,
    on_progress: Callable[[Report], None] = lambda report: None,
) -> Report:
    """Compute the missing fits of a sweep, in the workers of a pool or in this process, and write its table.

    resume: whether the directory may hold a part of this sweep; failed fits are tried again. on_progress is called at
    the start and after each fit. An interruption or a full disk is in the report. Raises JobError if the directory or
    the workers cannot be used, OSError for other failures of files.
    """
    began = time.perf_counter()
    store.check(resume)
    signals, report = Signals(), Report(len(job.fits))
    with locked(store.lock), signals.handled():
        try:
            store.open(job)
            missing = []
            for fit in job.fits:
                result, checkpoint = store.result(fit), store.checkpoint(fit)
                if result is not None and result.row["status"] == "done":
                    checkpoint.remove()  # a job that was killed may have left it
                    report.done += 1
                else:
                    report.resumed += checkpoint.exists()
                    missing.append(fit)
            report.pending = len(missing)
            report.resumed += report.done
            store.log("started", fits=report.fits, done=report.done)
            on_progress(report)
            try:
                with closing(_computed(job, store, missing, workers, signals)) as computed:
                    for fit, result in computed:
                        _keep(fit, result, store, report)
                        on_progress(report)
                if report.pending:
                    raise InterruptedFit("The sweep was asked to stop")
            except InterruptedFit as error:
                report.interrupted = str(error)
            store.write_table(job)
            event = "interrupted" if report.interrupted else "finished"
            store.log(event, cause=report.interrupted, signal=signals.received, done=report.done, failed=report.failed)
            for path in [] if report.interrupted else store.directory.glob("stop.*"):  # of earlier jobs as well
                path.unlink(missing_ok=True)
        except OSError as error:
            if not disk_is_full(error):
                raise
            report.disk_full = os_reason(error)
            with suppress(OSError):
                store.log("disk full", error=report.disk_full, done=report.done)
    report.seconds = time.perf_counter() - began
    return report


def _computed(
    job: Job, store: Store, missing: list[Fit], workers: AbstractContextManager[Pool] | None, signals: Signals
) -> Generator[tuple[Fit, Result]]:
    facts = str(store.checkpoints), job.checkpoint_seconds, str(store.stop)
    tasks = [Task(tuple(group), *facts) for group in group_fits(missing)]
    if workers is None:
        for task in tasks:
            yield from zip(task.fits, compute(task, signals), strict=True)
        return
    with workers as pool, closing(in_workers(tasks, pool, signals, store.stop.touch)) as computed:
        for task, found in computed:
            results = [failure(fit, found) for fit in task.fits] if isinstance(found, BaseException) else found
            yield from zip(task.fits, results, strict=False)  # fewer results than fits: the task was stopped
    store.stop.unlink(missing_ok=True)


def _keep(fit: Fit, result: Result, store: Store, report: Report) -> None:
    store.save(fit, result)
    status, error = result.row["status"], result.row.get("error")
    report.pending -= 1
    if status == "done":
        report.done += 1
    else:
        report.failed += 1
        report.errors[fit.id] = str(error)
    store.log(status, **id_columns(fit), error=error, seconds=result.row.get("seconds"))
