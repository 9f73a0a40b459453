"""Tasks over worker processes: joblib's loky on this machine, or the workers of a Dask cluster."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from contextlib import contextmanager
from functools import partial
from typing import Any

from dufs_core.cli.sweep.job_file import Fit, JobError
from dufs_core.cli.sweep.results import Result, failure
from dufs_core.cli.sweep.worker import Task, work
from dufs_core.errors import InterruptedFit
from dufs_core.selection.atomic_io import disk_is_full

_PATIENCE = 10  # seconds for a Dask scheduler to answer, and to have a worker
_SAFE_PATH = "PYTHONSAFEPATH"
_DIED = ("TerminatedWorkerError", "BrokenProcessPool", "KilledWorker")  # loky's and Dask's errors
Pool = tuple[Callable[[Task], Future[list[Result]]], int]  # submits a task; most tasks in hand


@contextmanager
def this_process() -> Iterator[Pool]:
    """No other process: a task is computed when it is submitted."""

    def submit(task: Task) -> Future[list[Result]]:
        future = Future[list[Result]]()
        try:
            future.set_result(work(task))
        except Exception as error:
            future.set_exception(error)
        return future

    yield submit, 1


@contextmanager
def processes(count: int) -> Iterator[Pool]:
    """`count` processes on this machine; a new set after one of them died."""
    from joblib.externals.loky import get_reusable_executor

    executor = partial(get_reusable_executor, count, timeout=None, initializer=_start_child, initargs=(os.getpid(),))
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"  # or they would import modules of the working directory, such as a json.py
    try:
        yield lambda task: executor().submit(work, task), count
    finally:
        executor().shutdown(wait=True, kill_workers=True)
        # This process may start others that need its working directory.
        if before is None:
            del os.environ[_SAFE_PATH]
        else:
            os.environ[_SAFE_PATH] = before


def _start_child(parent: int) -> None:
    """Start a worker: it ignores signals, since its parent tells it to stop by a file, and ends with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def cluster(address: str) -> Iterator[Pool]:
    """The workers of the Dask scheduler at `address`. Raises JobError without Dask, a scheduler or workers."""
    try:
        from distributed import Client
    except ImportError as error:
        raise JobError("--scheduler needs Dask: pip install 'dufs-core[cluster]'") from error
    try:
        client: Any = Client(address, timeout=_PATIENCE)
    except (OSError, ValueError) as error:
        raise JobError(f"no Dask scheduler answers at {address}: {error}") from error
    with client:
        threads = sum(client.nthreads().values())
        if not threads:
            raise JobError(f"the Dask scheduler at {address} has no workers")
        executor = client.get_executor(pure=False)
        yield partial(executor.submit, work), 2 * threads


def in_workers(tasks: Sequence[Task], pool: Pool, stop: Callable[[], bool]) -> Iterator[tuple[Fit, Result]]:
    """Compute tasks in workers; yields each fit with its result, as they come.

    When a worker dies, its task is unknown: the fits of all tasks in hand are computed again, one at a time, and a fit
    during which a worker dies again is given up. Once `stop` is true no task is begun, and those in hand are waited
    for: they may have fewer results than fits.
    """
    submit, most = pool
    first, again, in_hand = deque(tasks), deque[Task](), dict[Future[list[Result]], tuple[Task, bool]]()
    while in_hand or ((first or again) and not stop()):
        queue, width = (first, most) if first else (again, 1)
        while queue and len(in_hand) < width and not stop():
            task = queue.popleft()
            in_hand[submit(task)] = task, queue is again
        done, _ = wait(in_hand, return_when=FIRST_COMPLETED)
        for future in done:
            task, alone = in_hand.pop(future)
            error = CancelledError() if future.cancelled() else future.exception()
            if error is None:
                yield from zip(task.fits, future.result(), strict=False)
            elif isinstance(error, (CancelledError, asyncio.CancelledError)):  # by nobody here
                raise InterruptedFit("The Dask scheduler is gone")
            elif disk_is_full(error):
                raise error
            elif type(error).__name__ in _DIED and not alone:
                again.extend(task._replace(fits=(fit,)) for fit in task.fits)
            else:
                yield from ((fit, failure(error)) for fit in task.fits)
