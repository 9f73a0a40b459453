"""BLAS threads during fits whose steps use none, or use small matrices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

_lock = Lock()
_users = 0
_limits: Any = None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Hold BLAS to one thread while any fit is inside; the last one out restores what the first one found.

    Products of some hundred rows gain little from a second thread and wait for it: on two cores with other work the
    waiting made fits 5 to 30 times slower. Idle BLAS threads also keep spinning on the cores that the engine needs.
    The limit belongs to the whole process, so fits in several threads share it.
    """
    global _users, _limits
    from threadpoolctl import threadpool_limits

    with _lock:
        if _users == 0:
            _limits = threadpool_limits(1, user_api="blas")
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _limits.restore_original_limits()
