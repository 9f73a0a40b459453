"""Ways to evaluate the same objective: every engine takes the same arguments and gives the same numbers.

evaluate(bk, objective, mu, eps, X) -> (Value, dmu), as `dufs_core.objective.chain.Objective.value_and_grad`.
"""

from __future__ import annotations

from dufs_core.backend import Array, Backend
from dufs_core.backend.memory import StepSize, predicted_bytes
from dufs_core.errors import did_you_mean
from dufs_core.objective.chain import Evaluate, Objective, Value

ENGINES = ("reference", "dense", "streaming")
NAMES = ("auto", *ENGINES, "sparse", "cuda")  # values of the parameter engine
_PASSES = 200  # what exponentials and passes cost "streaming" beside its products, in multiply-adds a pair of rows
_CALLS = 2e7  # what its calls from Python cost a draw: 0.4 ms, in multiply-adds
_FUSED_PAIR = 5400  # what "streaming" costs a pair of rows on a GPU, at few columns
_STREAMED_PAIR = 19  # and a column of a pair, at power 2


def operations(bk: Backend, objective: Objective, mu: Array, eps: Array, X: Array) -> tuple[Value, Array]:
    """The operations of `dufs_core.objective.ops` one after the other, on any backend; what the others are
    checked against."""
    return objective.value_and_grad(bk, mu, eps, X)


def get_engine(
    name: str,
    bk: Backend,
    threads: int,
    problem: StepSize | None = None,
    limit: int | None = None,
    sparse: bool = False,
) -> tuple[str, Evaluate]:
    """The name and the evaluate function of the engine called `name`, or of the one that "auto" picks.

    "auto" is "sparse" for sparse data ("cuda_sparse" on a GPU). Else it is "dense" on the CPU and "cuda" on a GPU,
    unless "streaming" ("cuda_streaming") will be faster at this problem or the other would allocate more than `limit`
    bytes. `threads` is for the compiled engines of the CPU.
    Raises ValueError for an unknown name, and for an engine of another backend or another kind of data.
    """
    if name not in NAMES:
        known = ", ".join(map(repr, NAMES[1:]))
        raise ValueError(f'engine must be "auto" or one of {known}; got {name!r}{did_you_mean(name, NAMES)}')
    if sparse and name not in ("auto", "sparse"):
        raise ValueError(
            f'engine={name!r} cannot take sparse X: use engine="auto" or "sparse", or X.toarray() if it fits in memory'
        )
    if sparse and bk.name == "cupy":
        from dufs_core.objective.engines.gpu_sparse import CudaSparseEngine

        return "cuda_sparse", CudaSparseEngine()
    if sparse:
        from dufs_core.objective.engines.cpu_sparse import SparseEngine

        return "sparse", SparseEngine(threads)
    if name == "sparse":
        raise ValueError(
            'engine="sparse" takes sparse X (a SciPy matrix or array); X is dense: use engine="auto", or '
            "scipy.sparse.csr_array(X) if most of it is 0"
        )
    on_gpu = bk.name == "cupy"
    if (name == "cuda" and not on_gpu) or (name == "dense" and on_gpu):
        raise ValueError(
            f'engine={name!r} does not compute with backend="{bk.name}"; engine="auto" picks one that does'
        )
    if name == "auto":
        name = _chosen(problem, limit, on_gpu)
    if name == "cuda":
        from dufs_core.objective.engines.gpu_dense import CudaEngine

        return name, CudaEngine()
    if name == "streaming" and on_gpu:
        from dufs_core.objective.engines.gpu_streaming import CudaStreamingEngine  # type: ignore[import-not-found,unused-ignore]

        return "cuda_streaming", CudaStreamingEngine()
    if name == "streaming":
        from dufs_core.objective.engines.cpu_streaming import StreamingEngine

        return name, StreamingEngine(threads)
    if name == "dense":
        from dufs_core.objective.engines.cpu_dense import DenseEngine

        return name, DenseEngine(threads)
    return name, operations


def _chosen(problem: StepSize | None, limit: int | None, on_gpu: bool) -> str:
    """The Gram form ("dense", "cuda") or "streaming", whichever needs less time in a step with every column open."""
    gram = "cuda" if on_gpu else "dense"
    if problem is None:
        return gram
    needed = predicted_bytes(gram, problem)
    streaming = "cuda_streaming" if on_gpu else "streaming"
    if limit is not None and needed > limit and predicted_bytes(streaming, problem) < needed:
        return "streaming"
    own, other = (_costs_on_gpu if on_gpu else _costs)(problem)
    return gram if own <= other else "streaming"


def _costs(problem: StepSize) -> tuple[float, float]:
    """Multiply-adds a pair of rows of the Gram form, and of the streaming form."""
    n, d, t = problem.n, problem.d, problem.power
    dense = (1.5 * n + 1.5 * d) if t <= 2 else (t * n + 1.5 * d)
    streaming = (4.5 + 3 * (t - 1) + t) * d + _PASSES + _CALLS / n**2
    if problem.per_sample:
        streaming += (t + 3) * d  # every pair twice in the last pass
    return dense, streaming


def _costs_on_gpu(problem: StepSize) -> tuple[float, float]:
    """The same on a GPU, in multiply-adds of a large product, from times on an H200 (bench/results/gpu.json)."""
    n, d, t = problem.n, problem.d, problem.power
    gram = 2 * (t - 1 if t > 1 else 0) * n + 2 * d
    column = _STREAMED_PAIR * (t + 1) / 3
    if problem.per_sample:  # the share that it adds to a column in `_costs`
        column *= 1 + (t + 3) / (4.5 + 3 * (t - 1) + t)
    return gram, max(_FUSED_PAIR, column * d)
