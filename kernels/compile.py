"""How kernels are compiled: lazily, without the GIL, cached where a cache can be written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit


def kernel(fastmath: Any = False) -> Callable[[Callable[..., Any]], Any]:
    """njit for code that holds no Python objects. Compiled at the first call for each dtype, never at import.

    Where neither the package's nor the user's cache directory can be written (a read-only installation without a
    home), the kernel is compiled afresh in every process instead of failing.
    """

    def compiled(function: Callable[..., Any]) -> Any:
        options = {"nogil": True, "error_model": "numpy", "fastmath": fastmath}
        try:
            return njit(cache=True, **options)(function)
        except RuntimeError as error:
            if "cannot cache" not in str(error):
                raise
            return njit(**options)(function)

    return compiled
