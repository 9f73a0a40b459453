"""Arrays of the checker, on NumPy or CuPy, real or complex."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

Array = Any  # numpy.ndarray, cupy.ndarray or a number
_FLOATS = ("float", "bfloat")  # ml_dtypes' names begin so, too; NumPy does not know its types as floating-point


def array_module(*arrays: Array) -> Any:
    """numpy or cupy, by the arrays; numbers count as NumPy. Raises TypeError if host and device arrays are mixed."""
    on_device = [a for a in arrays if hasattr(a, "__cuda_array_interface__")]
    if not on_device:
        return np
    if any(hasattr(a, "dtype") and np.ndim(a) > 0 and not hasattr(a, "__cuda_array_interface__") for a in arrays):
        raise TypeError("inputs mix host (NumPy) and device (CuPy) arrays: move all of them to one side first")
    return import_module(type(on_device[0]).__module__.partition(".")[0])


def to_host(array: Array) -> Any:
    return np.asarray(array.get() if hasattr(array, "get") else array)


def in_precision(xp: Any, x: Any, dtype: Any) -> Any:
    """A copy of an input in the precision of the check, complex where it is complex; all else as it is."""
    if not hasattr(x, "dtype"):
        return x
    if is_complex(x):
        return xp.array(x, dtype=np.result_type(dtype, np.complex64))
    return xp.array(x, dtype=dtype if is_float(x) else None)


def is_float(x: Any) -> bool:
    """Whether x is a real floating-point number or array."""
    return x.dtype.name.startswith(_FLOATS) if hasattr(x, "dtype") else isinstance(x, float)


def is_complex(x: Any) -> bool:
    return x.dtype.kind == "c" if hasattr(x, "dtype") else isinstance(x, complex)


def moves(x: Any) -> bool:
    """Whether there can be a derivative."""
    return is_float(x) or is_complex(x)


def copied(xp: Any, x: Any, strided: bool = False) -> Any:
    """Memory of its own, with gaps between the entries if `strided`."""
    if not hasattr(x, "dtype"):
        return x
    if not strided:
        return xp.array(x)
    out = xp.empty((*x.shape, 2), dtype=x.dtype)[..., 0]
    out[...] = x
    return out


def is_strided(x: Any) -> bool:
    return hasattr(x, "flags") and not (x.flags.c_contiguous or x.flags.f_contiguous)


def size_of(x: Any) -> int:
    return int(np.prod(np.shape(x)))


def largest(xp: Any, x: Any) -> float:
    """The largest absolute value of the finite entries; 0 if there is none."""
    if not size_of(x):
        return 0.0
    x = xp.abs(xp.asarray(x))
    return float(xp.max(xp.where(xp.isfinite(x), x, 0)))


def change(old: Array | None, new: Array | None) -> float:
    """The largest difference relative to the largest entry of `old`; None is zero, and inf what cannot be compared."""
    a, b = (to_host(0.0 if x is None else x) for x in (old, new))
    if old is not None and new is not None and a.shape != b.shape:
        return np.inf
    if np.array_equal(a, b, equal_nan=a.dtype.kind in "fc"):
        return 0.0
    gap = np.max(np.abs(np.subtract(b, a, dtype=np.result_type(a, b, np.float32))), initial=0.0)
    return float(gap / (largest(np, a) or 1.0)) if np.isfinite(gap) else np.inf


def dot(xp: Any, left: Sequence[Array], right: Sequence[Array]) -> float:
    """sum over the pairs of Re sum(conj(left_i) right_i); None on either side counts as 0."""
    return sum((float(xp.sum(product)) for product in _products(xp, left, right)), 0.0)


def magnitude(xp: Any, left: Sequence[Array], right: Sequence[Array]) -> float:
    """sqrt(sum of squared products): the size that `dot` has under random signs."""
    norm = 0.0
    for product in _products(xp, left, right):
        top = float(xp.max(xp.abs(product))) if size_of(product) else 0.0
        if top > 0:  # scaled first, so that huge and tiny gradients do not leave the range of float64
            norm = float(np.hypot(norm, top * float(xp.sqrt(xp.sum((product / top) ** 2)))))
    return norm


def _products(xp: Any, left: Sequence[Array], right: Sequence[Array]) -> list[Array]:
    """left_i right_i in double precision; of two complex arrays the products of real and of imaginary parts."""
    products = []
    for a, b in zip(left, right, strict=True):
        if a is not None and b is not None:
            a, b = xp.asarray(a), xp.asarray(b)
            products.append(xp.multiply(a.real, b.real, dtype=xp.float64))
            if is_complex(a) and is_complex(b):
                products.append(xp.multiply(a.imag, b.imag, dtype=xp.float64))
    return products


def generator(*numbers: int) -> np.random.Generator:
    """The checker's own numbers: never those of ``default_rng(seed)``, which the caller may have drawn inputs from."""
    return np.random.default_rng([0x67726164, *numbers])


def unit_vector(rng: np.random.Generator, n: int) -> Any:
    """A random unit vector, no entry below 0.1 / sqrt(n) in size: no error in one entry can hide behind a small weight.

    The density of an entry is bounded, so that errors in several entries seldom cancel (`Report.chance_of_miss`).
    """
    v = rng.standard_normal(n)
    v /= np.linalg.norm(v)
    v += np.copysign(0.15 / np.sqrt(n), v)
    return v / np.linalg.norm(v)
