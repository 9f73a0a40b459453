"""What can be verified: an operation or a chain with the examples at which it is tried, and an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dufs_core.backend import Array, Backend
from dufs_core.gradcheck.problem import Function, Project
from dufs_core.objective.chain import Evaluate

OPS = "ops"  # the engine column of a check of single operations
Samples = tuple[Array, Array]  # (groups, d), the mean gradient of many groups of draws; (d,), what they estimate


@dataclass(frozen=True)
class Example:
    """One point at which a function and its backward are compared; the arguments of `check_gradient`."""

    function: Function
    backward: Function
    inputs: tuple[Any, ...]
    note: str = ""  # what kind of point it is, for the table
    cotangents: tuple[Array, ...] | None = None
    project: Project | None = None
    symmetric: tuple[int, ...] = ()  # inputs whose gradient is promised to be symmetric itself
    analytic: Function | None = None  # the plain formula: same values, takes complex inputs


def layer(
    bk: Backend,
    forward: Function,
    backward: Function,
    formula: Function,
    arguments: Sequence[Any],
    wrt: Sequence[int] = (0,),
    note: str = "",
    cotangents: Sequence[Any] | None = None,
    **rest: Any,
) -> Example:
    """Make an example whose inputs are the arguments in the places `wrt`; the others are held.

    ``forward(bk, *arguments)`` gives its values and last what ``backward(bk, saved, *cotangents)`` needs,
    ``formula(bk, *arguments)`` the values. Host arrays are moved; those that are held have the inputs' precision.
    """
    moved = [bk.xp.asarray(a) if isinstance(a, np.ndarray) else a for a in arguments]
    w = None if cotangents is None else tuple(bk.xp.asarray(c) for c in cotangents)

    def filled(x: Sequence[Any]) -> list[Any]:
        dtype, given = x[0].real.dtype, dict(zip(wrt, x, strict=False))
        held = (a.astype(dtype) if hasattr(a, "dtype") else a for a in moved)
        return [given.get(place, a) for place, a in enumerate(held)]

    def function(*x: Any) -> Any:
        *values, _ = forward(bk, *filled(x))
        return values[0] if len(values) == 1 else tuple(values)

    def gradient(*x: Any) -> Any:
        return backward(bk, forward(bk, *filled(x))[-1], *x[len(wrt) :])

    inputs = tuple(moved[place] for place in wrt)
    return Example(function, gradient, inputs, note, w, analytic=lambda *x: formula(bk, *filled(x)), **rest)


class Kink(NamedTuple):
    """A point where the slope is a choice: what the backward must give there."""

    name: str
    gradient: Callable[[Backend, Evaluate], Any]
    expected: Any


@dataclass(frozen=True)
class Operation:
    """A function with a backward, and where to try it.

    example(bk, evaluate, rng, index) gives the index-th example; indices run through the awkward kinds.
    `evaluate` is an engine for chains; operations ignore it.
    """

    name: str
    module: str  # of dufs_core.objective.ops; "objective" for a chain; another module's path
    example: Callable[[Backend, Evaluate, np.random.Generator, int], Example]
    kinks: tuple[Kink, ...] = ()
    expectation: Callable[[Backend, Evaluate, np.random.Generator], Samples] | None = None  # see expectation.py
    engines: tuple[str, ...] = ()  # of a chain; none: every one

    @property
    def is_chain(self) -> bool:
        return self.module == "objective"

    def runs_on(self, engine: str) -> bool:
        if engine == OPS:
            return not self.is_chain
        return self.is_chain and (not self.engines or engine in self.engines)


class Engine(NamedTuple):
    """A way to evaluate the objective: ``load()`` gives evaluate(bk, objective, mu, eps, X) -> (Value, dmu)."""

    load: Callable[[], Evaluate]
    backends: tuple[str, ...]
