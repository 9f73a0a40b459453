"""Ways to evaluate the same objective: every engine takes the same arguments and gives the same numbers.

evaluate(bk, objective, mu, eps, X) -> (Value, dmu), as `dufs_core.objective.Objective.value_and_grad`.
"""

from __future__ import annotations

from dufs_core.backend import Array, Backend
from dufs_core.objective import Evaluate, Objective, Value

ENGINES = ("operations", "dense")


def operations(bk: Backend, objective: Objective, mu: Array, eps: Array, X: Array) -> tuple[Value, Array]:
    """The operations of `dufs_core.ops` one after the other, on any backend; what the others are checked against."""
    return objective.value_and_grad(bk, mu, eps, X)


def get_engine(name: str, bk: Backend, threads: int) -> tuple[str, Evaluate]:
    """The name and the evaluate function of the engine called `name`, or of the one that "auto" picks.

    "auto" is "dense" on the CPU, "operations" elsewhere. `threads` is for "dense".
    Raises ValueError for an unknown name.
    """
    if name not in ("auto", *ENGINES):
        raise ValueError(f'engine must be "auto" or one of {", ".join(map(repr, ENGINES))}; got {name!r}')
    if name == "auto":
        name = "dense" if bk.name == "numpy" else "operations"
    if name == "operations":
        return name, operations
    from dufs_core.engines.dense import DenseEngine

    return name, DenseEngine(threads)
