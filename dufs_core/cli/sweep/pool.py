"""Tasks over worker processes: joblib's, or those of a Dask cluster."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, wait
from contextlib import AbstractContextManager, contextmanager
from time import monotonic
from typing import Any

from dufs_core.cli.sweep.job_file import JobError
from dufs_core.cli.sweep.worker import Result, Task, start_child, work
from dufs_core.errors import InterruptedFit
from dufs_core.selection.atomic_io import disk_is_full

_POLL = 0.2  # seconds between looks at signals
_PATIENCE, _WORKERS_PATIENCE = 10, 60  # seconds for a scheduler to answer, and to have a worker
_STOP_PATIENCE = 60.0  # seconds for workers elsewhere to save and say so
_DIED = ("TerminatedWorkerError", "BrokenProcessPool", "KilledWorker")  # joblib's and Dask's errors
_GONE = "The Dask scheduler is gone; fits that were done are kept"


class Pool:
    """Where tasks are computed: `open` gives an executor and how many tasks it can have in hand.

    left: the fits that workers elsewhere still had in hand when `spread` ended. They are told to stop, and may not have
    seen it yet.
    """

    def __init__(self, open_: Callable[[], AbstractContextManager[tuple[Executor, int]]], children: bool) -> None:
        self.open = open_
        self.children = children
        self.parent = os.getpid() if children else None  # what Task.parent is
        self.left = 0


def processes(count: int) -> Pool:
    """`count` processes on this machine, by joblib's loky; a new set after one of them died."""

    @contextmanager
    def opened() -> Iterator[tuple[Executor, int]]:
        from joblib.externals.loky import ProcessPoolExecutor

        executor = ProcessPoolExecutor(count, initializer=start_child, initargs=(os.getpid(),))
        try:
            yield executor, count
        finally:
            executor.shutdown(wait=True, kill_workers=True)

    return Pool(opened, children=True)


def cluster(address: str) -> Pool:
    """The workers of the Dask scheduler at `address`; one that dies has its tasks redone by Dask.

    Raises JobError if Dask is not installed, or nobody answers there.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise JobError("--scheduler needs Dask: pip install 'dufs-core[cluster]'") from error

    @contextmanager
    def opened() -> Iterator[tuple[Executor, int]]:
        try:
            client: Any = Client(address, timeout=_PATIENCE)
        except (OSError, ValueError) as error:
            raise JobError(f"no Dask scheduler answers at {address}: {error}") from error
        try:
            try:
                client.wait_for_workers(1, timeout=_WORKERS_PATIENCE)
            except TimeoutError as error:
                raise JobError(
                    f"the Dask scheduler at {address} had no worker for {_WORKERS_PATIENCE} s; those fits that are "
                    f"done are kept"
                ) from error
            threads = sum(client.nthreads().values())
            yield client.get_executor(pure=False), 2 * threads  # as many again on their way, to keep all busy
        finally:
            client.close()

    return Pool(opened, children=False)


def spread(
    tasks: Sequence[Task], pool: Pool, stop: Callable[[], bool], tell_workers: Callable[[], None]
) -> Generator[tuple[Task, list[Result] | Exception]]:
    """Compute tasks in workers; yields each with its results as they come, or with the error that ended it.

    When a worker dies, joblib cannot say which task it had: the fits of those in hand are computed again, one at a
    time, and one that is in hand when a worker dies for the second time is given up. When `stop` returns True the
    workers are told, and those that have nothing to save any more are waited for; then InterruptedFit is raised.
    Workers that this process cannot end are told, too, when it ends otherwise.
    """
    waiting = deque(tasks)
    suspects: deque[Task] = deque()
    while waiting or suspects:
        alone = not waiting
        queue = suspects if alone else waiting
        in_hand: list[Task] = []
        with pool.open() as (executor, width):
            yield from _until_one_dies(queue, pool, executor, 1 if alone else width, stop, tell_workers, in_hand)
        if not alone:
            suspects.extend(single for task in in_hand for single in _apart(task))
        elif in_hand:
            yield in_hand[0], RuntimeError("the worker process died twice in this fit (killed, or out of memory?)")


def _apart(task: Task) -> list[Task]:
    """A task for each of its fits: one that kills its worker is not to take the others with it."""
    pairs = zip(task.fits, task.checkpoints, strict=True)
    return [task._replace(fits=(fit,), checkpoints=(path,)) for fit, path in pairs]


def _until_one_dies(
    queue: deque[Task],
    pool: Pool,
    executor: Executor,
    width: int,
    stop: Callable[[], bool],
    tell_workers: Callable[[], None],
    in_hand: list[Task],
) -> Iterator[tuple[Task, list[Result] | Exception]]:
    """Work on the queue until it is empty, or a worker dies: the tasks that it may have had are then in `in_hand`."""
    futures: dict[Future[Any], Task] = {}
    stopping = unfinished = False
    told: float | None = None  # when the workers were
    try:
        while futures or (queue and not stopping):
            while queue and len(futures) < width and not (stopping or in_hand):
                task = queue.popleft()
                try:
                    futures[executor.submit(work, task)] = task
                except Exception as error:
                    if type(error).__name__ in _DIED:  # the pool broke since it was last looked at
                        in_hand.append(task)
                    elif pool.children:
                        raise
                    else:
                        raise InterruptedFit(_GONE) from error
            done, _ = wait(futures, _POLL, FIRST_COMPLETED)
            for future in done:
                task = futures.pop(future)
                failure = CancelledError() if future.cancelled() else future.exception()
                if failure is None:
                    yield task, future.result()
                elif type(failure).__name__ in _DIED:
                    in_hand.append(task)
                elif isinstance(failure, InterruptedFit):
                    stopping, unfinished = True, True
                elif isinstance(failure, (CancelledError, asyncio.CancelledError)):  # by nobody here
                    raise InterruptedFit(_GONE) from failure
                elif isinstance(failure, Exception) and not disk_is_full(failure):
                    yield task, failure
                else:
                    raise failure
            if in_hand and not futures and not stopping:
                return
            if stop() and told is None:
                stopping, told = True, monotonic()
                tell_workers()
                cancelled = list(futures) if pool.children else []  # Dask would cancel those that run, and save nothing
                for future in cancelled:
                    if future.cancel():
                        del futures[future]
                        unfinished = True
            if told is not None and futures and not pool.children and monotonic() - told > _STOP_PATIENCE:
                raise InterruptedFit(f"{len(futures)} fits on workers did not end within {_STOP_PATIENCE:g} s")
    finally:
        if futures and not pool.children:
            pool.left = sum(len(task.fits) for task in futures.values())
            if told is None:
                tell_workers()
    if stopping and (unfinished or queue or in_hand):
        raise InterruptedFit("The sweep was asked to stop")
