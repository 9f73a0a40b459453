"""Independent fits in threads: the first error, or Ctrl-C, ends all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

from dufs_core.errors import InterruptedFit
from dufs_core.objective.protocol import Engine

Result = TypeVar("Result")


Check = Callable[[bool], None]


class Cancelled(Exception):
    """Another fit failed, or the user ended all."""


def run_in_threads(fit: Callable[[int, Engine, Check], Result], count: int, engines: Sequence[Engine]) -> list[Result]:
    """fit(index, engine, check) for every index below `count`, in a thread for each engine.

    check(is_saved) raises Cancelled once all are to end. A fit that is saved goes on where another was asked to save
    and end, because it will be asked as well.
    """
    cause: BaseException | None = None
    idle = list(engines)

    def check(is_saved: bool) -> None:
        if cause is not None and not (is_saved and isinstance(cause, InterruptedFit)):
            raise Cancelled

    def guarded(index: int) -> Result:
        nonlocal cause
        check(False)
        engine = idle.pop()
        try:
            return fit(index, engine, check)
        except BaseException as error:
            cause = cause or error
            raise
        finally:
            idle.append(engine)

    with ThreadPoolExecutor(len(engines)) as pool:
        try:
            futures = [pool.submit(guarded, index) for index in range(count)]
            wait(futures, return_when=FIRST_EXCEPTION)
        except BaseException as error:  # Ctrl-C
            cause = error
    if cause is not None:
        raise cause
    return [future.result() for future in futures]
