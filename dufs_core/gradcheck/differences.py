"""The slope at 0 of phi, a real function of a real step with phi(0) = 0, from its values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Phi = Callable[[float], float]


class Precision(NamedTuple):
    """What differences in one floating-point type can tell."""

    eps: float
    rtol: float  # the tolerance that right gradients meet
    step: float  # of the stencil
    resolved: float  # a table whose slope is known no better than this (relative) neither confirms nor refutes
    kink_residual: float  # fourth difference / step, relative to the slope, above which one-sided slopes are compared
    kink_jump: float  # relative jump of the slope that is called a kink


_PRECISIONS = {
    "float64": Precision(2.0**-52, 1e-9, 1e-3, 1e-8, 1e-3, 1e-5),
    "float32": Precision(2.0**-23, 1e-3, 3e-2, 1e-2, 1e-2, 1e-2),
}


def precision_of(dtype: Any) -> Precision:
    """Raises TypeError for a type too narrow for differences."""
    name = np.dtype(dtype).name
    if name not in _PRECISIONS:
        raise TypeError(
            f"differences of {name} numbers hold too few digits: check with dtype float64 or float32 (inputs are "
            f"converted), and compare the {name} gradient with that one in a test of its own"
        )
    return _PRECISIONS[name]


def five_point(phi: Phi, h: float) -> float:
    """(phi(-2h) - 8 phi(-h) + 8 phi(h) - phi(2h)) / 12h = phi'(0) - h^4 phi^(5) / 30 + ..."""
    return (phi(-2 * h) - 8 * phi(-h) + 8 * phi(h) - phi(2 * h)) / (12 * h)


def kink_residual(phi: Phi, h: float) -> float:
    """|fourth difference| / h: about h^3 |phi''''| where phi is smooth, 2 |jump of the slope| at a kink at 0.

    The five points are the stencil's own; a kink between them shows as well, somewhat smaller.
    """
    return abs(phi(-2 * h) - 4 * phi(-h) + 6 * phi(0.0) - 4 * phi(h) + phi(2 * h)) / h


def richardson(phi: Phi, h: float) -> tuple[float, float]:
    """The slope from central differences at h, h/2, ..., extrapolated to step 0 (Ridders 1982), and its error."""
    return _extrapolate([(phi(s) - phi(-s)) / (2 * s) for s in _halved(h)], order=2)


def one_sided(phi: Phi, h: float) -> tuple[float, float]:
    """The slope on the side of h (negative: from the left), extrapolated, and its estimated error."""
    return _extrapolate([(phi(s) - phi(0.0)) / s for s in _halved(h)], order=1)


def _halved(h: float) -> list[float]:
    return [h / 2**i for i in range(6)]


def _extrapolate(rows: list[float], order: int) -> tuple[float, float]:
    """Extrapolate estimates at h, h/2, h/4, ... (Richardson), whose errors have the powers order, 2 order, ... of h.

    Returns the entry that differs least from the two it was made from, and that difference: the estimated error.
    """
    best, error = rows[-1], abs(rows[-1] - rows[-2])
    previous: list[float] = []
    for row in rows:
        current = [row]
        for level, old in enumerate(previous):
            weight = 2.0 ** (order * (level + 1))
            new = (weight * current[level] - old) / (weight - 1)
            change = max(abs(new - current[level]), abs(new - old))
            if change <= error:
                best, error = new, change
            current.append(new)
        previous = current
    return best, error
