"""A function with a backward at a point, in the one form that every checker of the contest can take."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import numpy as np

Array = Any
OFF = {f"one coordinate off by {by:g}": by for by in (1e-6, 1e-4)}
RIGHT = ""  # the name of no fault


class Problem(NamedTuple):
    """All inputs are float64 arrays with a gradient, all values arrays with at least one axis."""

    function: Callable[..., Any]  # of the inputs: an array, or a tuple of arrays
    backward: Callable[..., tuple[Any, ...]]  # of the inputs and a cotangent for each value: a gradient for each input
    inputs: tuple[Array, ...]


class Contestants(Protocol):
    """Problems around one function (or one module of the library), with faults for their backward."""

    name: str
    faults: tuple[str, ...]

    def labels(self) -> list[str]:
        """The names of the points."""

    def trials(self) -> list[str]:
        """Those where faults are tried."""

    def planted(self, fault: str) -> AbstractContextManager[Callable[[str], Problem]]:
        """The problem at every point, with the fault inside the `with` block."""

    def slopes(self, label: str, w: tuple[Array, ...], v: tuple[Array, ...]) -> tuple[float, float]:
        """The true derivative of sum(w f) along v on the left and on the right, in higher precision or without
        differences.
        """


def tuple_of(values: Any) -> tuple[Any, ...]:
    return tuple(values) if isinstance(values, (tuple, list)) else (values,)


def spoiled(g: Any, by: float) -> Any:
    """One coordinate, not zero, times 1 + by."""
    g = np.array(g)
    places = np.flatnonzero(g)
    if len(places):
        g.reshape(-1)[places[len(places) // 2]] *= 1 + by
    return g
