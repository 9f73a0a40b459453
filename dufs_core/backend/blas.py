"""BLAS threads during fits whose steps use none, or use small matrices."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

from dufs_core.backend.threads import fork_safe_lock

_lock = fork_safe_lock()
_users: list[int] = []  # threads inside
_limits: Any = None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Hold BLAS to one thread while any fit is inside; the last one out restores what the first one found.

    Products of some hundred rows gain little from a second thread and wait for it: on two cores with other work the
    waiting made fits 5 to 30 times slower. Idle BLAS threads also keep spinning on the cores that the engine needs.
    The limit belongs to the whole process, so fits in several threads share it.
    """
    global _limits
    from threadpoolctl import threadpool_limits

    with _lock:
        if _limits is None:
            _limits = _in_control(lambda: threadpool_limits(1, user_api="blas"))
        _users.append(get_ident())
    try:
        yield
    finally:
        with _lock:
            _users.remove(get_ident())
            if not _users:
                _in_control(_limits.restore_original_limits)
                _limits = None


def _in_control(change: Callable[[], Any]) -> Any:
    """change() of the number of threads: threadpoolctl 3.8 ignores all but the first thread that makes one.

    Without this, fits in the second thread of a process find as many BLAS threads as ever.
    """
    from threadpoolctl import OpenBLASController

    release = getattr(OpenBLASController, "clear_controlling_thread", lambda force: None)
    release(force=True)
    try:
        return change()
    finally:
        release(force=True)


def _after_fork() -> None:
    """Of the fits inside only the one that forked is in the child; the limit stays until the next one there ends."""
    _users[:] = [user for user in _users if user == get_ident()]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
