"""The operations of this library with the faults of bench/faults.toml."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any
from zlib import crc32

import numpy as np

from bench.faults import chosen
from bench.gradcheck_contest.problem import RIGHT, Array, Problem, tuple_of
from bench.planting import install, source_of
from dufs_core.backend import get_backend
from dufs_core.gradcheck.suite.registry import Example, Operation, operations

EXAMPLES_FOR_FAULTS = 8
Values = tuple[Array, ...]


@cache
def modules() -> dict[str, tuple[Operation, ...]]:
    """The operations of every module that holds some with faults of their own."""
    own: dict[str, tuple[Operation, ...]] = {}
    for module in sorted({mutant.target for mutant, _ in chosen()}):
        found = tuple(o for o in operations() if not o.is_chain and module.endswith(f".{o.module}"))
        own |= {module: found} if found else {}
    return own


class Operations:
    """The operations of one module."""

    def __init__(self, module: str, examples: int) -> None:
        self.name, self._examples, self._operations = module, examples, {o.name: o for o in modules()[module]}
        mine = [(m, plant) for m, plant in chosen() if m.target == module]
        self._plants = {f"{m.function}: {m.fault}": plant for m, plant in mine}
        self.faults = tuple(self._plants)
        self._active = {label: _active(self._example(label)) for label in self.labels()}

    def labels(self) -> list[str]:
        return [f"{name} {index}" for index in range(self._examples) for name in self._operations]

    def trials(self) -> list[str]:
        return self.labels()[: EXAMPLES_FOR_FAULTS * len(self._operations)]

    @contextmanager
    def planted(self, fault: str) -> Iterator[Callable[[str], Problem]]:
        if fault != RIGHT:
            self._plants[fault]()
        try:
            yield lambda label: _problem(self._example(label), self._active[label])
        finally:
            install(self.name, source_of(self.name))

    def slopes(self, label: str, w: Values, v: Values) -> tuple[float, float]:
        """By a complex step of the suite's plain formula: no difference is taken, but one side stands for both."""
        example, h = self._example(label), 1e-30
        moved = _inside(example, self._active[label], v)
        inputs = [x + 1j * h * moved[i] if i in moved else x for i, x in enumerate(example.inputs)]
        values = _values(example, example.analytic, inputs)
        slope = float(sum(np.sum(np.imag(c * y)) for c, y in zip(w, values, strict=True))) / h
        return slope, slope

    def _example(self, label: str) -> Example:
        """Drawn anew every time, since it holds on to functions that may be replaced."""
        name, _, index = label.rpartition(" ")
        rng = np.random.default_rng([crc32(label.encode()), 0])
        return self._operations[name].example(get_backend("numpy"), None, rng, int(index))


def _values(example: Example, function: Any, inputs: Sequence[Any]) -> Values:
    values = tuple_of(function(*inputs))
    if example.cotangents is not None:  # the backward is stated for these alone
        values = (sum(np.sum(w * y) for w, y in zip(example.cotangents, values, strict=True)),)
    return tuple(np.atleast_1d(y) for y in values)


def _gradients(example: Example, inputs: Sequence[Any], w: Values) -> tuple[Any, ...]:
    values = tuple_of(example.function(*inputs))
    number = example.cotangents is None and len(values) == 1 and np.ndim(values[0]) == 0
    if example.cotangents is None and not number:
        return tuple_of(example.backward(*inputs, *(c.reshape(np.shape(y)) for c, y in zip(w, values, strict=True))))
    gradients = tuple_of(example.backward(*inputs, *(example.cotangents or ())))
    return tuple(None if g is None else g * float(w[0][0]) for g in gradients)


def _active(example: Example) -> list[int]:
    """The inputs with a gradient."""
    w = tuple(np.ones(y.shape) for y in _values(example, example.function, example.inputs))
    return [i for i, g in enumerate(_gradients(example, example.inputs, w)) if g is not None]


def _inside(example: Example, active: list[int], arrays: Sequence[Any]) -> dict[int, Any]:
    """Arrays for the active inputs, projected to the subspace in which the backward is stated, if there is one."""
    project = example.project or {}
    return {i: project[i](a) if i in project else a for i, a in zip(active, arrays, strict=True)}


def _problem(example: Example, active: list[int]) -> Problem:
    """Over the whole space: the function of the projected inputs, whose gradient is projected."""

    def point(xs: Sequence[Any]) -> list[Any]:
        moved = _inside(example, active, xs)
        return [
            (moved[i] if isinstance(x, np.ndarray) else float(moved[i])) if i in moved else x
            for i, x in enumerate(example.inputs)
        ]

    def function(*xs: Array) -> Any:
        return _values(example, example.function, point(xs))

    def backward(*args: Any) -> tuple[Any, ...]:
        gradients = _gradients(example, point(args[: len(active)]), args[len(active) :])
        return tuple(_inside(example, active, [gradients[i] for i in active]).values())

    return Problem(function, backward, tuple(np.array(example.inputs[i], dtype=np.float64) for i in active))
