"""What is verified: every operation, every chain, every engine, each registered once.

An operation is a `register(Operation(...))` or a line of the table in operations.py, an engine a line in chain.py. The
suite, the command, the tests and the mutation run then cover it; a test fails while one is missing here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
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
    scales: tuple[float, ...] | None = None
    project: Project | None = None
    symmetric: tuple[int, ...] = ()  # inputs whose gradient is promised to be symmetric itself
    analytic: Function | None = None  # the plain formula: same values, takes complex inputs


def layer(
    bk: Backend,
    forward: Function,
    backward: Function,
    formula: Function,
    inputs: Sequence[Any],
    settings: Sequence[Any] = (),
    note: str = "",
    cotangents: Sequence[Any] | None = None,
    **rest: Any,
) -> Example:
    """Make an example from ``forward(bk, *inputs, *settings)``, which gives its values and last what
    ``backward(bk, saved, *cotangents)`` needs, and ``formula(bk, *inputs, *settings)``; host arrays are moved, and
    settings that are arrays have the inputs' precision.
    """
    inputs = tuple(bk.xp.asarray(x) if isinstance(x, np.ndarray) else x for x in inputs)
    w = None if cotangents is None else tuple(bk.xp.asarray(c) for c in cotangents)

    def held(x: Sequence[Any]) -> list[Any]:
        return [bk.xp.asarray(s, dtype=x[0].real.dtype) if isinstance(s, np.ndarray) else s for s in settings]

    def function(*x: Any) -> Any:
        *values, _ = forward(bk, *x, *held(x))
        return values[0] if len(values) == 1 else tuple(values)

    def gradient(*x: Any) -> Any:
        saved = forward(bk, *x[: len(inputs)], *held(x))[-1]
        return backward(bk, saved, *x[len(inputs) :])

    return Example(function, gradient, inputs, note, w, analytic=lambda *x: formula(bk, *x, *held(x)), **rest)


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
    rtol: float = 1e-9
    complex_rtol: float = 1e-12  # for the complex step, and for the value against the plain formula
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

    name: str
    load: Callable[[], Evaluate]
    backends: tuple[str, ...] = ("numpy", "cupy")


_operations: dict[str, Operation] = {}
_engines: dict[str, Engine] = {}


def register(entry: Operation | Engine) -> None:
    """Add an operation, a chain or an engine. Raises ValueError when the name is taken."""
    entries: dict[str, Any] = _engines if isinstance(entry, Engine) else _operations
    if entry.name in entries:
        raise ValueError(f"{entry.name!r} is registered already")
    entries[entry.name] = entry


def operations() -> Sequence[Operation]:
    """Everything registered, in order; this library's own entries are loaded on the first call."""
    import_module("dufs_core.gradcheck.suite.chain")  # which imports operations.py first
    return tuple(_operations.values())


def engines() -> dict[str, Engine]:
    """Every registered engine by name."""
    import_module("dufs_core.gradcheck.suite.chain")
    return dict(_engines)
