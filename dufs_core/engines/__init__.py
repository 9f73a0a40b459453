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


def get_engine(name: str, bk: Backend, threads: int, sparse: bool = False) -> tuple[str, Evaluate]:
    """The name and the evaluate function of the engine called `name`, or of the one that "auto" picks.

    "auto" is "dense" on the CPU, "cuda" elsewhere, and "sparse" for sparse data. `threads` is for "dense" and
    "sparse". Raises ValueError for an unknown name, and for an engine of another backend or another kind of data.
    """
    if sparse and name in ("auto", "sparse"):
        from dufs_core.engines.sparse import SparseEngine

        return "sparse", SparseEngine(threads)
    if name == "sparse":
        raise ValueError(
            'engine="sparse" takes sparse X (a SciPy matrix or array); X is dense: use engine="auto", or '
            "scipy.sparse.csr_array(X) if most of it is 0"
        )
    if sparse and name in (*ENGINES, "cuda"):
        raise ValueError(
            f'engine={name!r} cannot take sparse X: use engine="auto" or "sparse", or X.toarray() if it fits in memory'
        )
    if bk.name == "cupy" and name in ("auto", "cuda"):
        from dufs_core.engines.cuda import CudaEngine

        return "cuda", CudaEngine()
    if bk.name == "cupy" and name == "streaming":
        from dufs_core.engines.cuda_streaming import CudaStreamingEngine

        return "cuda_streaming", CudaStreamingEngine()
    if name not in ("auto", *ENGINES, "cuda"):
        known = ", ".join(map(repr, (*ENGINES, "sparse", "cuda")))
        raise ValueError(f'engine must be "auto" or one of {known}; got {name!r}')
    if name not in ("auto", "operations") and (name == "cuda") != (bk.name == "cupy"):
        raise ValueError(
            f'engine={name!r} does not compute with backend="{bk.name}"; engine="auto" picks one that does'
        )
    if name == "auto":
        name = "dense"
    if name == "operations":
        return name, operations
    from dufs_core.engines.dense import DenseEngine

    return name, DenseEngine(threads)
