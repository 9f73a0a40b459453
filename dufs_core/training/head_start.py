"""Steps by the reference operations while another process compiles the kernels: nobody waits for a compiler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from dufs_core.backend import Array
from dufs_core.objective.protocol import Steps

MOST_BYTES = 1 << 26  # of a reference step: beside what the plan of the fit allows, little


@runtime_checkable
class CompiledSteps(Steps, Protocol):
    """Steps of an engine that may have to be compiled first."""

    def are_compiled(self, batch: Array) -> bool:
        """Whether steps on such a batch need not wait; if not, they begin to be compiled by another process."""


class HeadStart:
    """`Steps` that are `slow` ones until the `compiled` ones are there, and these from then on.

    The same draws and rules, so that the result is the same within rounding. It is not for runs that are saved, whose
    promise is the same bits: those wait for the compiler.
    """

    def __init__(self, slow: Steps, compiled: CompiledSteps) -> None:
        self._compiled, self._now = compiled, slow

    @property
    def mu(self) -> Array:
        return self._now.mu

    def advance(self, batch: Array, rows: Array, step: int, count: int) -> list[Array]:
        if self._now is not self._compiled and self._compiled.are_compiled(batch):
            unused: dict[str, Any] = dict.fromkeys(("first", "second", "running"), 0.0)
            self.load([unused | self._now.save(0)])
        return self._now.advance(batch, rows, step, count)

    def save(self, run: int) -> dict[str, np.ndarray[Any, Any]]:
        return self._now.save(run)

    def load(self, saved: Sequence[dict[str, np.ndarray[Any, Any]]]) -> None:
        self._now = self._compiled
        self._compiled.load(saved)
