"""Where the arrays live: NumPy or CuPy behind one small object that the whole chain receives explicitly."""

from __future__ import annotations

import importlib.util
import warnings
from contextlib import nullcontext
from functools import cache

import numpy as np

from dufs_core.backend.types import Array, Backend, is_sparse_on_device, on_device
from dufs_core.errors import BackendFallbackWarning, BackendUnavailableError, did_you_mean, user_stacklevel

__all__ = ["NAMES", "Array", "Backend", "get_backend", "is_sparse_on_device", "on_device"]
NAMES = ("auto", "numpy", "cupy")  # values of the parameter backend


def get_backend(name: str = "auto") -> Backend:
    """Return the backend called `name`: "numpy", "cupy" or "auto".

    "auto" is CuPy where CuPy is installed and can compute, else NumPy; where CuPy is installed but cannot compute, it
    says so once with a BackendFallbackWarning. Raises ValueError for an unknown name and BackendUnavailableError,
    with the cause, where the one asked for cannot compute here.
    """
    if name not in NAMES:
        hint = did_you_mean(name, NAMES)
        raise ValueError(f'backend must be "auto", "numpy" or "cupy" (the GPU); got {name!r}{hint}')
    if name == "numpy":
        return _numpy_backend()
    cause = "CuPy is not installed: pip install 'dufs-core[cuda13]' (or cuda12)"
    if importlib.util.find_spec("cupy") is not None:
        from dufs_core.backend.cupy import cupy_backend

        found = cupy_backend()
        if isinstance(found, Backend):
            return found
        cause = found
        if name == "auto":
            _warn_once(cause)
    if name == "cupy":
        raise BackendUnavailableError("cupy", cause)
    return _numpy_backend()


def _numpy_backend() -> Backend:
    from scipy.special import erf

    return Backend("numpy", np, erf, np.asarray, np.asarray, lambda: None, _inverse, lambda array: nullcontext())


def _inverse(A: Array) -> Array:
    """By Cholesky, several times faster than by LU.

    A matrix that rounding has made indefinite is taken with its eigenvalues raised to the rounding of the largest.
    """
    from scipy.linalg import get_lapack_funcs

    factor, invert = get_lapack_funcs(("potrf", "potri"), (A,))
    out = np.empty_like(A)
    for index in np.ndindex(A.shape[:-2]):
        R, failed = factor(A[index])
        if failed:
            values, E = np.linalg.eigh(A[index])
            values = np.maximum(values, np.finfo(A.dtype).eps * values[-1])
            out[index] = (E / values) @ E.T
        else:
            upper, _ = invert(R)
            out[index] = np.triu(upper)
            out[index] += np.triu(upper, 1).T
    return out


@cache
def _warn_once(cause: str) -> None:
    said = f"CuPy cannot be used here, computing with NumPy: {cause}."
    warnings.warn(said, BackendFallbackWarning, stacklevel=user_stacklevel())
