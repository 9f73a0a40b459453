"""Tasks over worker processes: joblib's, or those of a Dask cluster."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from dufs_core.durable import disk_is_full
from dufs_core.errors import InterruptedFit
from dufs_core.jobs.job import JobError
from dufs_core.jobs.work import Result, Task, start_child, work, work_as_child

_POLL = 0.2  # seconds between looks at signals
_PATIENCE, _WORKERS_PATIENCE = 10, 60  # seconds for a scheduler to answer, and to have a worker
_DIED = ("TerminatedWorkerError", "BrokenProcessPool", "KilledWorker")  # joblib's and Dask's errors


class Pool:
    """Where tasks are computed: `open` gives an executor and how many tasks it can have in hand."""

    def __init__(self, open_: Callable[[], AbstractContextManager[tuple[Executor, int]]], children: bool) -> None:
        self.open = open_
        self.work = work_as_child if children else work
        self.parent = os.getpid() if children else None  # what Task.parent is


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
) -> Iterator[tuple[Task, list[Result] | Exception]]:
    """Compute tasks in workers; yields each with its results as they come, or with the error that ended it.

    When a worker dies, joblib cannot say which task it had: those in hand are computed again, one at a time, and one
    that is in hand when a worker dies for the second time is given up. When `stop` returns True the workers are told,
    and those that have nothing to save any more are waited for; then InterruptedFit is raised.
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
            suspects.extend(in_hand)
        elif in_hand:
            yield in_hand[0], RuntimeError("the worker process died twice in this fit (killed, or out of memory?)")


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
    stopping = False
    while futures or (queue and not stopping):
        while queue and len(futures) < width and not (stopping or in_hand):
            task = queue.popleft()
            try:
                futures[executor.submit(pool.work, task)] = task
            except RuntimeError as error:  # the pool broke since it was last looked at
                if type(error).__name__ not in _DIED:
                    raise
                in_hand.append(task)
        done, _ = wait(futures, _POLL, FIRST_COMPLETED)
        for future in done:
            task = futures.pop(future)
            if future.cancelled():  # by nobody here: the scheduler is gone
                stopping = True
                continue
            failure = future.exception()
            if failure is None:
                yield task, future.result()
            elif type(failure).__name__ in _DIED:
                in_hand.append(task)
            elif isinstance(failure, InterruptedFit):
                stopping = True
            elif isinstance(failure, Exception) and not disk_is_full(failure):
                yield task, failure
            else:
                raise failure
        if in_hand and not futures:
            return
        if stop() and not stopping:
            stopping = True
            tell_workers()
            for future in list(futures):
                if future.cancel():
                    del futures[future]
    if stopping:
        raise InterruptedFit("The sweep was asked to stop")
