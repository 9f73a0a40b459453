"""What an array backend consists of, and where an array lives."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = Any  # numpy.ndarray or cupy.ndarray
_CPU = 1  # DLPack's number of the device type


@dataclass(frozen=True)
class Backend:
    """Array module and the few functions that array modules do not share."""

    name: str
    xp: Any  # the array module; its functions are called as in NumPy
    erf: Callable[[Array], Array]  # elementwise error function
    to_host: Callable[[Array], np.ndarray[Any, Any]]  # a copy as a NumPy array; the identity on the CPU
    to_device: Callable[[Any], Array]  # from NumPy or anything with DLPack; no copy where it lives there already
    synchronize: Callable[[], None]  # wait for queued work, so that a clock measures it and not the launch
    inverse: Callable[[Array], Array]  # of symmetric positive definite matrices (..., n, n)
    device_of: Callable[[Array], AbstractContextManager[Any]]  # make an array's device the current one
    kernels: Any = None  # `dufs_core.kernels.cuda.Kernels`: what would otherwise be many launches


def on_device(X: Any) -> bool:
    """Whether X is an array, of any library with DLPack, outside the memory of the CPU."""
    return not isinstance(X, np.ndarray) and hasattr(X, "__dlpack_device__") and X.__dlpack_device__()[0] != _CPU


def is_sparse_on_device(X: Any) -> bool:
    """Whether X is a matrix of cupyx.scipy.sparse."""
    return type(X).__module__.split(".")[0] == "cupyx"
