"""The operations of `dufs_core.objective.ops` in order, on any backend; the other engines are checked against them."""

from __future__ import annotations

from dufs_core.backend import Array, Backend
from dufs_core.objective.chain import Objective, Value, draws_together
from dufs_core.objective.protocol import Engine, StepSize


class ReferenceEngine(Engine):
    """The plain chain, `Objective.value_and_grad`; the only engine for one gate per sample."""

    name = "reference"

    def __call__(self, bk: Backend, objective: Objective, mu: Array, eps: Array, X: Array) -> tuple[Value, Array]:
        return objective.value_and_grad(bk, mu, eps, X)

    def bytes_needed(self, size: StepSize) -> int:
        return operations_bytes(size)


def operations_bytes(size: StepSize, threads: int = 1) -> int:
    """Bytes that the operations allocate for a step, each thread for some draws at a time."""
    n, d, draws = size.n, size.d, size.draws
    squares = min(draws, threads * draws_together(n)) * n * n * (11 + size.power + 2 * size.saturating)
    gated = n * d * (4 * draws + 2 if size.per_sample else 2 * min(draws, threads))
    return (squares + gated) * size.itemsize
