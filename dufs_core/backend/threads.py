"""Threads that share work, and locks between threads that a fork leaves usable."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import RLock
from typing import Any, Generic, TypeVar

from dufs_core.backend.types import Backend

Value = TypeVar("Value")


def mapped(bk: Backend, function: Callable[[Any], Any], parts: Iterable[Any], threads: int) -> list[Any]:
    """function(part) for every part, in order; one after the other on a GPU, which shares out the work itself.

    Threads help because NumPy releases the interpreter's lock.
    """
    if threads == 1 or bk.name != "numpy":
        return [function(part) for part in parts]
    with ThreadPoolExecutor(threads) as executor:
        return list(executor.map(function, parts))


def fork_safe_lock() -> Any:
    """A lock for what has to be whole in a child process: forks wait until no other thread holds it.

    In the child a lock held by a thread that is not there would never be free, and what it guards would be in pieces:
    the lists of the C library while libraries are looked up, LLVM while it compiles. With ordinary locks at these two
    places, either kind of child hangs within 20 forks.
    """
    lock = RLock()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
    return lock


class lazy(Generic[Value]):
    """`functools.cached_property` without the lock of Python 3.11, which one class has for all its objects.

    Fits in several threads wait for each other at it, and a child process would for a thread that it has not; from
    Python 3.12 on `cached_property` has no lock.
    """

    def __init__(self, function: Callable[[Any], Value]) -> None:
        self._function = function

    def __get__(self, instance: Any, owner: Any = None) -> Value:
        value = instance.__dict__[self._function.__name__] = self._function(instance)  # found there from now on
        return value
