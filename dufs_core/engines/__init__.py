"""Ways to evaluate the same objective: every engine takes the same arguments and gives the same numbers.

evaluate(bk, objective, mu, eps, X) -> (Value, dmu), as `dufs_core.objective.Objective.value_and_grad`.
"""

from __future__ import annotations

from dufs_core.backend import Array, Backend
from dufs_core.objective import Evaluate, Objective, Value

ENGINES = ("dense", "small")
SMALL_ROWS = 256  # up to this many rows the (n, n) matrices of one draw stay in a core's own cache


def dense(bk: Backend, objective: Objective, mu: Array, eps: Array, X: Array) -> tuple[Value, Array]:
    """The operations one after the other on stacked (n, n) arrays; threads inside BLAS."""
    return objective.value_and_grad(bk, mu, eps, X)


def get_engine(name: str, bk: Backend, n_rows: int, threads: int) -> tuple[str, Evaluate]:
    """The name and the evaluate function of the engine called `name`: "dense", "small" or "auto".

    "auto" is "small" on the CPU up to 256 rows (of a batch), else "dense". `threads` is for "small".
    Raises ValueError for an unknown name.
    """
    if name not in ("auto", *ENGINES):
        raise ValueError(f'engine must be "auto", "dense" or "small"; got {name!r}')
    if name == "auto":
        name = "small" if bk.name == "numpy" and n_rows <= SMALL_ROWS else "dense"
    if name == "dense":
        return name, dense
    from dufs_core.engines.small import SmallEngine

    return name, SmallEngine(threads)
