"""What is verified: every operation, every chain, every engine, each registered once.

To add an operation: one `register(Operation(...))` in operations.py (layers of the concrete autoencoder: network.py).
To add an engine: one line in chain.py.
The suite, the command, the tests and the mutation run then cover it, and a test fails while something in
dufs_core.objective.ops or dufs_core.objective.engines is missing here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from dufs_core.backend import Array, Backend
from dufs_core.gradcheck.check import Function, Project
from dufs_core.objective.chain import Evaluate

OPS = "ops"  # the engine column of a check of single operations


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


@dataclass(frozen=True)
class Kink:
    """A point where the slope is a choice: what the backward must give there."""

    name: str
    gradient: Callable[[Backend, Evaluate], Any]
    expected: Any


@dataclass(frozen=True)
class Samples:
    """Gradients of many groups of draws, and the derivative of the expectation they estimate."""

    groups: Array  # (groups, ...) each row the mean over that group's draws
    exact: Array  # (...)


@dataclass(frozen=True)
class Operation:
    """A function with a backward, and where to try it.

    example(bk, evaluate, rng, index) gives the index-th example; indices run through the awkward kinds.
    `evaluate` is an engine for chains; operations ignore it.
    """

    name: str
    module: str  # the module of dufs_core.objective.ops, "objective" for a chain, or the path of another module
    example: Callable[[Backend, Evaluate, np.random.Generator, int], Example]
    rtol: float = 1e-9
    complex_rtol: float = 1e-12  # for the complex step, and for the value against the plain formula
    kinks: tuple[Kink, ...] = ()
    expectation: Callable[[Backend, Evaluate, np.random.Generator], Samples] | None = None
    engines: tuple[str, ...] = ()  # of a chain; none: every one

    @property
    def is_chain(self) -> bool:
        return self.module == "objective"

    def runs_on(self, engine: str) -> bool:
        if engine == OPS or not self.is_chain:
            return engine == OPS and not self.is_chain
        return engine in self.engines or not self.engines


@dataclass(frozen=True)
class Engine:
    """A way to evaluate the objective: ``load()`` gives evaluate(bk, objective, mu, eps, X) -> (Value, dmu)."""

    name: str
    load: Callable[[], Evaluate]
    backends: tuple[str, ...] = ("numpy", "cupy")


_operations: dict[str, Operation] = {}
_engines: dict[str, Engine] = {}


def register(operation: Operation) -> None:
    """Add an operation or a chain. Raises ValueError when the name is taken."""
    if operation.name in _operations:
        raise ValueError(f"an operation named {operation.name!r} is registered already")
    _operations[operation.name] = operation


def register_engine(engine: Engine) -> None:
    """Add an engine. Raises ValueError when the name is taken."""
    if engine.name in _engines:
        raise ValueError(f"an engine named {engine.name!r} is registered already")
    _engines[engine.name] = engine


def operations() -> Sequence[Operation]:
    """Everything registered, in order; this library's own entries are loaded on the first call."""
    _load()
    return tuple(_operations.values())


def engines() -> dict[str, Engine]:
    """Every registered engine by name."""
    _load()
    return dict(_engines)


def _load() -> None:
    for module in ("operations", "network", "chain"):
        import_module(f"dufs_core.gradcheck.suite.{module}")
