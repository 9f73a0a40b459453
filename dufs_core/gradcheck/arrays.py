"""Arrays of the checker, on NumPy or CuPy."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from dufs_core.backend import Array


def array_module(*arrays: Array) -> Any:
    """numpy or cupy, by the arrays; numbers count as NumPy. Raises TypeError if host and device arrays are mixed."""
    arrays = tuple(a for a in arrays if hasattr(a, "dtype") and hasattr(a, "shape") and np.ndim(a) > 0)
    on_device = [hasattr(a, "__cuda_array_interface__") for a in arrays]
    if not any(on_device):
        return np
    if not all(on_device):
        raise TypeError("inputs mix host (NumPy) and device (CuPy) arrays: move all of them to one side first")
    return import_module(type(arrays[0]).__module__.partition(".")[0])


def to_host(array: Array) -> Any:
    return np.asarray(array.get() if hasattr(array, "get") else array)


def as_tuple(values: Any) -> tuple[Any, ...]:
    return tuple(values) if isinstance(values, (tuple, list)) else (values,)


def size_of(x: Any) -> int:
    return int(np.prod(np.shape(x)))


def dot(xp: Any, left: Sequence[Array], right: Sequence[Array]) -> Any:
    """sum over the pairs of sum(left_i right_i), a host number; None on either side counts as 0."""
    return sum((xp.sum(product).item() for product in _products(xp, left, right)), 0.0)


def magnitude(xp: Any, left: Sequence[Array], right: Sequence[Array]) -> float:
    """sqrt(sum of squared products): the size that sum(left right) has under random signs."""
    norm = 0.0
    for product in _products(xp, left, right):
        largest = float(xp.max(xp.abs(product))) if size_of(product) else 0.0
        if largest > 0:  # scaled first, so that huge and tiny gradients do not leave the range of float64
            norm = float(np.hypot(norm, largest * float(xp.sqrt(xp.sum((product / largest) ** 2)))))
    return norm


def _products(xp: Any, left: Sequence[Array], right: Sequence[Array]) -> list[Array]:
    pairs = zip(left, right, strict=True)
    return [xp.asarray(a) * b for a, b in pairs if a is not None and b is not None]


def unit_directions(rng: np.random.Generator, shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    """One random unit vector over all coordinates of all shapes, no entry below 0.1 / sqrt(total) in size.

    The floor keeps every coordinate visible: an error in one of them cannot hide behind a small weight.
    """
    sizes = [int(np.prod(shape)) for shape in shapes]
    total = max(sum(sizes), 1)
    flat = rng.standard_normal(total)
    flat /= max(float(np.linalg.norm(flat)), 1e-300)
    floor = 0.15 / np.sqrt(total)
    flat = np.where(np.abs(flat) < floor, np.copysign(floor, flat), flat)
    flat /= np.linalg.norm(flat)
    pieces = np.split(flat[: sum(sizes)], np.cumsum(sizes)[:-1])
    return [piece.reshape(shape) for piece, shape in zip(pieces, shapes, strict=True)]
