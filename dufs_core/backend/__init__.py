"""Where the arrays live: one small object that the whole chain receives explicitly.

Import direction: errors <- backend <- data, ops <- objective <- trainer <- engines <- search <- estimator.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from dufs_core.callers import user_stacklevel
from dufs_core.choices import nearest
from dufs_core.errors import BackendFallbackWarning, BackendUnavailableError

Array = Any  # numpy.ndarray or cupy.ndarray
NAMES = ("auto", "numpy", "cupy")  # values of the parameter backend
_CPU = 1  # DLPack's number of the device type


@dataclass(frozen=True)
class Backend:
    """Array module and the few functions that array modules do not share.

    ``xp`` is the array module (its functions are called as in NumPy), ``erf`` the elementwise error
    function, ``to_host`` a copy to a NumPy array (the identity on the CPU), ``to_device`` an array of this backend from
    a NumPy array or anything with DLPack, without a copy where it lives there already, ``synchronize`` waits for
    queued work, so that a clock read after it measures the work and not the launch, ``device_of`` makes an array's
    device the current one inside a `with` block, and ``kernels`` holds compiled forms of what would otherwise be many
    launches (`dufs_core.kernels.cuda.Kernels`; None: there are none).
    """

    name: str
    xp: Any
    erf: Callable[[Array], Array]
    to_host: Callable[[Array], np.ndarray[Any, Any]]
    to_device: Callable[[Any], Array]
    synchronize: Callable[[], None]
    device_of: Callable[[Array], AbstractContextManager[Any]]
    kernels: Any = None


def _numpy_backend() -> Backend:
    from scipy.special import erf

    return Backend("numpy", np, erf, np.asarray, np.asarray, lambda: None, lambda array: nullcontext())


def on_device(X: Any) -> bool:
    """Whether X is an array, of any library with DLPack, outside the memory of the CPU."""
    return not isinstance(X, np.ndarray) and hasattr(X, "__dlpack_device__") and X.__dlpack_device__()[0] != _CPU


def is_sparse_on_device(X: Any) -> bool:
    """Whether X is a matrix of cupyx.scipy.sparse."""
    return type(X).__module__.split(".")[0] == "cupyx"


def get_backend(name: str = "auto") -> Backend:
    """Return the backend called `name`: "numpy", "cupy" or "auto".

    "auto" is CuPy where CuPy is installed and can compute, else NumPy; where CuPy is installed but cannot compute, it
    says so once with a BackendFallbackWarning. Raises ValueError for an unknown name and BackendUnavailableError,
    with the cause, where the one asked for cannot compute here.
    """
    if name not in NAMES:
        raise ValueError(f'backend must be "auto", "numpy" or "cupy" (the GPU); got {name!r}{nearest(name, NAMES)}')
    if name == "numpy":
        return _numpy_backend()
    from importlib.util import find_spec

    installed = find_spec("cupy") is not None
    if name == "auto" and not installed:
        return _numpy_backend()
    found: Backend | str = "CuPy is not installed: pip install 'dufs-core[cuda13]' (or cuda12)"
    if installed:
        from dufs_core.backend.cupy import cupy_backend

        found = cupy_backend()
    if isinstance(found, Backend):
        return found
    if name == "cupy":
        raise BackendUnavailableError("cupy", found)
    _say_once(found)
    return _numpy_backend()


@cache
def _say_once(cause: str) -> None:
    warnings.warn(
        f"CuPy cannot be used here, computing with NumPy: {cause}.",
        BackendFallbackWarning,
        stacklevel=user_stacklevel(),
    )
