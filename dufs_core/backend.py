"""Where the arrays live: one small object that the whole chain receives explicitly.

Import direction: errors <- backend <- data, ops <- objective <- trainer <- engines <- search <- estimator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dufs_core.errors import BackendUnavailableError

Array = Any  # numpy.ndarray or cupy.ndarray


@dataclass(frozen=True)
class Backend:
    """Array module and the few functions that array modules do not share.

    ``xp`` is the array module (its functions are called as in NumPy), ``erf`` the elementwise error
    function, ``to_host`` a copy to a NumPy array (the identity on the CPU), ``synchronize`` waits for
    queued work, so that a clock read after it measures the work and not the launch.
    """

    name: str
    xp: Any
    erf: Callable[[Array], Array]
    to_host: Callable[[Array], np.ndarray[Any, Any]]
    synchronize: Callable[[], None]


def _numpy_backend() -> Backend:
    from scipy.special import erf

    return Backend("numpy", np, erf, np.asarray, lambda: None)


def _why_no_cupy() -> str:
    from importlib.util import find_spec

    if find_spec("cupy") is None:
        return "CuPy is not installed"
    return "this version computes with NumPy only; the GPU backend is not part of it yet"


def get_backend(name: str = "auto") -> Backend:
    """Return the backend called `name`: "numpy", "cupy" or "auto".

    "auto" is NumPy in this version. Raises ValueError for an unknown name and BackendUnavailableError,
    with the cause, where the one asked for cannot compute here.
    """
    if name in ("auto", "numpy"):
        return _numpy_backend()
    if name == "cupy":
        raise BackendUnavailableError("cupy", _why_no_cupy())
    raise ValueError(f'backend must be "auto", "numpy" or "cupy"; got {name!r}')
