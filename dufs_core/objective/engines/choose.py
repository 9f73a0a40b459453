"""Choose the engine of a fit."""

from __future__ import annotations

from dufs_core.backend import Backend
from dufs_core.errors import did_you_mean
from dufs_core.objective.engines.cpu_dense import DenseEngine
from dufs_core.objective.engines.cpu_sparse import SparseEngine
from dufs_core.objective.engines.cpu_streaming import StreamingEngine
from dufs_core.objective.engines.reference import ReferenceEngine
from dufs_core.objective.protocol import Engine, StepSize

ENGINES = ("reference", "dense", "streaming")
NAMES = ("auto", *ENGINES, "sparse", "cuda")  # values of the parameter engine
_PASSES = 200  # what exponentials and passes cost "streaming" beside its products, in multiply-adds a pair of rows
_FEW_COLUMNS = 350, 1 / 25  # the same of "dense" with few columns: for any n, and for each row (memory)
_CALLS = 8e7  # what calls from Python cost "streaming" a draw: 0.6 ms, in multiply-adds
_SATURATING = 8  # what the inverse and the operations cost the Gram form, in multiply-adds a pair for each row
_GPU_COLUMN = 19  # what "streaming" costs a pair of rows on a GPU for each column, at power 2
_GPU_COLUMNS = 256  # fewer cost it as much at most: passes over rows of matrices


def get_engine(
    name: str, bk: Backend, threads: int, size: StepSize | None = None, limit: int | None = None, sparse: bool = False
) -> Engine:
    """The engine called `name`, or the one that "auto" picks.

    "auto" is "sparse" for sparse data and "reference" for one gate per sample. Else it is the Gram form ("dense" on
    the CPU, "cuda" on a GPU), unless "streaming" will be faster at this size of a step or the Gram form would allocate
    more than `limit` bytes. `threads` is for the compiled engines of the CPU.

    Raises ValueError for an unknown name, and for an engine of another backend, kind of data or gate noise.
    """
    if name not in NAMES:
        known = ", ".join(map(repr, NAMES[1:]))
        raise ValueError(f'engine must be "auto" or one of {known}; got {name!r}{did_you_mean(name, NAMES)}')
    if sparse and name not in ("auto", "sparse"):
        raise ValueError(
            f'engine={name!r} cannot take sparse X: use engine="auto" or "sparse", or X.toarray() if it fits in memory'
        )
    if name == "sparse" and not sparse:
        raise ValueError(
            'engine="sparse" takes sparse X (a SciPy matrix or array); X is dense: use engine="auto", or '
            "scipy.sparse.csr_array(X) if most of it is 0"
        )
    on_gpu = bk.name == "cupy"
    if name == ("dense" if on_gpu else "cuda"):
        raise ValueError(
            f'engine={name!r} does not compute with backend="{bk.name}"; engine="auto" picks one that does'
        )
    per_sample = size is not None and size.per_sample
    if per_sample and name not in ("auto", "reference"):
        raise ValueError(
            f'engine={name!r} cannot take gate_noise="sample": one gate per sample is evaluated by engine="reference", '
            f'which engine="auto" picks'
        )
    if sparse:
        name = "sparse"
    elif name == "auto":
        name = "reference" if per_sample else _fastest(size, limit, on_gpu)
    if on_gpu and name in ("sparse", "streaming"):
        name = f"cuda_{name}"
    return new_engine(name, threads)


def new_engine(name: str, threads: int = 1) -> Engine:
    """The engine with this attribute `name`; those of a GPU are imported when they are asked for."""
    if name.startswith("cuda"):
        from dufs_core.objective.engines import gpu_dense, gpu_sparse, gpu_streaming

        on_gpu = (gpu_dense.CudaEngine, gpu_sparse.CudaSparseEngine, gpu_streaming.CudaStreamingEngine)
        return {engine.name: engine for engine in on_gpu}[name]()
    if name == "reference":
        return ReferenceEngine()
    return {"dense": DenseEngine, "streaming": StreamingEngine, "sparse": SparseEngine}[name](threads)


def _fastest(size: StepSize | None, limit: int | None, on_gpu: bool) -> str:
    """The Gram form or "streaming", whichever needs less time in a step with every gate open, and fits in memory."""
    gram, streaming = ("cuda", "cuda_streaming") if on_gpu else ("dense", "streaming")
    if size is None:
        return gram
    needed = predicted_bytes(gram, size)
    if limit is not None and needed > limit and predicted_bytes(streaming, size) < needed:
        return "streaming"
    n, d, t = size.n, size.d, size.power  # costs in multiply-adds a pair of rows
    if on_gpu:  # from times on an H200 (bench/results/gpu.json)
        own, other = 2.0 * ((t - 1) * n + d), _GPU_COLUMN * (t + 1) / 3 * max(d, _GPU_COLUMNS)
    else:
        own, other = (1.5 if t <= 2 else t) * n + 1.5 * d, (4 * t + 1.5) * d + _PASSES + _CALLS / n**2
        if t == 2 and 3 * d < n and not size.saturating:  # the products with few columns of dufs_core.kernels.steps
            own = 5 * d + _FEW_COLUMNS[0] + _FEW_COLUMNS[1] * n
    if size.saturating:
        own, other = own + _SATURATING * n, other + d
    return gram if own <= other else "streaming"


def predicted_bytes(engine: str, size: StepSize) -> int:
    """Bytes that a step of the engine with this name allocates beside the data, in the worst step."""
    return new_engine(engine, size.threads).bytes_needed(size)
