"""Independent fits in threads: the first error, or Ctrl-C, ends all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

from dufs_core.errors import InterruptedFit
from dufs_core.objective.protocol import Engine

Result = TypeVar("Result")


class Cancelled(Exception):
    """Another fit failed, or the user ended all."""


class StopFlag:
    """Whether all fits are to end, and why."""

    def __init__(self) -> None:
        self.cause: BaseException | None = None

    def check(self, is_saved: bool) -> None:
        """Raise Cancelled once there is a cause.

        A fit that is saved goes on where another was asked to save and end, because it will be asked as well.
        """
        if self.cause is not None and not (is_saved and isinstance(self.cause, InterruptedFit)):
            raise Cancelled


def run_in_threads(
    fit: Callable[[int, Engine, StopFlag], Result], count: int, engines: Sequence[Engine]
) -> list[Result]:
    """fit(index, engine, flag) for every index below `count`, in a thread for each engine."""
    flag, idle = StopFlag(), list(engines)

    def guarded(index: int) -> Result:
        flag.check(is_saved=False)
        engine = idle.pop()
        try:
            return fit(index, engine, flag)
        except BaseException as error:
            flag.cause = flag.cause or error
            raise
        finally:
            idle.append(engine)

    with ThreadPoolExecutor(len(engines)) as pool:
        try:
            futures = [pool.submit(guarded, index) for index in range(count)]
            wait(futures, return_when=FIRST_EXCEPTION)
        except BaseException as error:  # Ctrl-C
            flag.cause = error
    if flag.cause is not None:
        raise flag.cause
    return [future.result() for future in futures]
