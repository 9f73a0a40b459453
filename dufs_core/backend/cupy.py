"""The CuPy side of `dufs_core.backend`: loaded when the CuPy backend is first asked for, never at import."""

from __future__ import annotations

import os
from operator import attrgetter
from typing import Any

import numpy as np

from dufs_core.backend.types import Array, Backend, on_device

# By process id. A forked process finds its parent's entry here, and knows by it that CUDA cannot work.
_found: dict[int, Backend | str] = {}


def cupy_backend() -> Backend | str:
    """The backend, or the cause why it cannot compute here. CUDA is started by the first call in a process."""
    pid = os.getpid()
    if pid not in _found:
        if any(isinstance(known, Backend) for known in _found.values()):
            return (
                "CUDA was started before this process was forked, and does not survive that; start processes with the "
                'method "spawn" or "forkserver"'
            )
        found = _try()
        if isinstance(found, str) and "OutOfMemory" in found:
            return found  # may have passed by the next call
        _found[pid] = found
    return _found[pid]


def _try() -> Backend | str:
    # Whatever a broken installation raises (ImportError, OSError, AttributeError, ...) is the answer.
    stage = "importing CuPy failed"
    try:
        import cupy
        from cupyx.scipy.special import erf

        stage = "CuPy finds no driver or device"
        if cupy.cuda.runtime.getDeviceCount() == 0:
            return "there is no CUDA device"
        stage = "a first computation on the device failed"
        ones = cupy.ones((2, 2))
        float(cupy.exp(ones @ ones).sum())  # one elementwise kernel, one library product
    except Exception as raised:
        error = raised.__cause__ or raised  # CuPy's own errors open with general advice
        first_line = (str(error).strip().splitlines() or [""])[0].rstrip(".")
        return f"{stage} ({': '.join(filter(None, (type(error).__name__, first_line)))})"
    return make_backend(cupy, erf)


def make_backend(cupy: Any, erf: Any) -> Backend:
    """The backend over a module that behaves like CuPy, and its error function."""
    from dufs_core.kernels.cuda import Kernels

    def error_function(x: Array) -> Array:
        """CuPy's takes real numbers; complex ones, which only verification by complex steps has, go to the host."""
        if x.dtype.kind != "c":
            return erf(x)
        from scipy.special import erf as of_complex

        return cupy.asarray(of_complex(cupy.asnumpy(x)))

    def to_device(X: Any) -> Array:
        if isinstance(X, cupy.ndarray):
            return X
        return cupy.from_dlpack(X) if on_device(X) else cupy.asarray(np.asarray(X))

    def synchronize() -> None:
        cupy.cuda.get_current_stream().synchronize()

    def inverse(A: Array) -> Array:
        """By LU, one matrix after the other: CuPy's form for stacks is one for small matrices."""
        stack = A.reshape(-1, *A.shape[-2:])
        return cupy.stack([cupy.linalg.inv(one) for one in stack]).reshape(A.shape)

    to_host, device_of = cupy.asnumpy, attrgetter("device")
    return Backend("cupy", cupy, error_function, to_host, to_device, synchronize, inverse, device_of, Kernels(cupy))
