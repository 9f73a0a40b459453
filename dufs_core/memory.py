"""How much memory a fit will take, said before anything is allocated.

The counts are of arrays as the engines allocate them, in the worst step: every column open. They were compared with
what the engines really took (tests/test_memory.py).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dufs_core.backend import Backend
from dufs_core.errors import MemoryLimitError

_PREPARATION = 1 << 25  # bytes of the float64 blocks that data are scaled in


class Problem(NamedTuple):
    """What the memory of a step depends on."""

    n: int  # rows of a step
    d: int  # columns
    draws: int
    itemsize: int  # bytes of an entry: 4 or 8
    power: int = 2
    fixed_bandwidth: bool = False
    per_sample: bool = False  # one gate a sample: draws of shape (draws, n, d)
    threads: int = 1
    spread: int = 0  # columns of sparse data that are written out for products (`dufs_core.sparse`)


def _operations(p: Problem) -> int:
    from dufs_core.objective import _ELEMENTS_TOGETHER

    together = max(1, min(p.draws, _ELEMENTS_TOGETHER // (p.n * p.n)))
    return together * p.n * p.n * (11 + p.power) + _columns(p)


def _dense(p: Problem) -> int:
    from dufs_core.engines.dense import layout

    dtype = np.dtype(f"f{p.itemsize}")
    _, *groups = layout(p.draws, p.d, p.n, dtype, p.power, 2, p.per_sample, p.threads)
    work = sum(np.prod(shape, dtype=np.int64) * np.dtype(kind).itemsize for group in groups for shape, kind in group)
    outside = p.n * p.d * (4 * p.draws + 1) if p.per_sample else p.n * p.d  # noise and gates; the data once more
    return int(work) // p.itemsize + max(outside, _noise(p))


def _noise(p: Problem) -> int:
    """Entries of the 64-bit words that one gate a sample is drawn from, four draws at once."""
    return -(-max(1, p.draws // 2) // 4) * p.n * p.d * 88 // p.itemsize if p.per_sample else 0


def _columns(p: Problem) -> int:
    """Entries of the gated data and what is multiplied with them."""
    return p.n * p.d * (4 * p.draws + 2 if p.per_sample else 2)


def _cuda(p: Problem) -> int:
    from dufs_core.engines.cuda import FUSED_COLUMNS, draws_together, is_captured, n_matrices

    fused = p.fixed_bandwidth and p.d <= FUSED_COLUMNS
    captured = is_captured(p.n, p.d, p.draws)
    together = p.draws if captured else draws_together(p.n, p.draws)
    kept = together * (n_matrices(p.power, not fused) * p.n * p.n + (1 + p.per_sample) * p.n * p.d) + p.n * p.d
    if p.per_sample:
        kept += 2 * p.draws * p.n * p.d  # the noise, given and kept
    if not captured:  # the open and the undecided columns, and the copies that a product makes of its operands
        kept += together * (p.n * p.n + p.n * p.d) + p.n * p.d * (2 + (3 * p.draws if p.per_sample else 0))
    return kept


def _sparse(p: Problem) -> int:
    from dufs_core.engines.dense import layout

    _, *groups = layout(1, max(1, p.spread), p.n, np.dtype(f"f{p.itemsize}"), p.power, 2, False, p.threads)
    work = sum(np.prod(shape, dtype=np.int64) * np.dtype(kind).itemsize for group in groups for shape, kind in group)
    noise = p.d * (p.draws * (4 * p.itemsize + 2) + -(-p.draws // 8) * 120)  # z, eps and what is kept; random words
    return (int(work) + noise) // p.itemsize


_ENTRIES: dict[str, Callable[[Problem], int]] = {
    "operations": _operations,
    "dense": _dense,
    "sparse": _sparse,
    "cuda": _cuda,
}


def predicted_bytes(engine: str, problem: Problem) -> int:
    """Bytes that a step of `engine` allocates beyond the data; one without a count of its own is taken as "dense"."""
    return _ENTRIES.get(engine, _dense)(problem) * problem.itemsize


def available_bytes(bk: Backend) -> int | None:
    """Bytes that can still be allocated where the backend computes; None where that cannot be told."""
    if bk.name == "cupy":
        free, _ = bk.xp.cuda.runtime.memGetInfo()
        return int(free) + int(bk.xp.get_default_memory_pool().free_bytes())
    limits = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                limits.append(int(line.split()[1]) * 1024)
        group = Path("/sys/fs/cgroup")  # a container's limit
        most = (group / "memory.max").read_text().strip()
        if most != "max":
            limits.append(int(most) - int((group / "memory.current").read_text()))
    except (OSError, ValueError):
        pass
    return min(limits, default=None)


def sparse_problem(problem: Problem, X: Any) -> tuple[Problem, int]:
    """The problem of sparse X (CSR or CSC), and the bytes that its scaled copies take beside the steps.

    Kept: stored values and their rows, once more without the columns that take no part. On the way to them, before any
    step: X in columns, its scaled values, and the blocks that they are computed in.
    """
    from dufs_core.sparse import is_thin

    problem = problem._replace(spread=int((~is_thin(X)).sum()))
    kept = 2 * X.nnz * (problem.itemsize + 4)
    on_the_way = X.nnz * (X.dtype.itemsize + X.indices.itemsize + problem.itemsize) + _PREPARATION
    return problem, max(kept, on_the_way - predicted_bytes("sparse", problem))


def chunked_bytes(problem: Problem) -> int:
    """Bytes beside the steps of a fit that reads its batches: the next one and chunks on the way to it."""
    from dufs_core.source import CHUNK_BYTES

    return problem.n * problem.d * problem.itemsize + 3 * CHUNK_BYTES // 2


def check_memory(
    bk: Backend, engine: str, problem: Problem, n_rows: int, max_memory: int | None, data: int | None = None
) -> None:
    """Raise MemoryLimitError, with the numbers and what would fit, if a fit would exceed the limit.

    Parameters
    ----------
    engine : str
        The engine that will compute.
    problem : Problem
        One step; ``problem.n`` is its number of rows.
    n_rows : int
        Rows of the whole data, of which one scaled copy is kept.
    max_memory : int or None
        Bytes that the fit may allocate; None: what is available.
    data : int or None
        Bytes that are kept beside the step; None: those of one scaled copy.
    """
    available = available_bytes(bk) if max_memory is None else max_memory
    if available is None:
        return
    if data is None:
        data = n_rows * problem.d * problem.itemsize
    needed = data + predicted_bytes(engine, problem)
    if needed <= available:
        return
    whose = "are available" if max_memory is None else "are allowed by max_memory"
    message = (
        f"A step over {problem.n:,} rows and {problem.d:,} columns with {problem.draws} draws would need "
        f"{_size(needed)} (engine {engine!r}, {8 * problem.itemsize}-bit numbers; one n x n array takes "
        f"{_size(problem.n**2 * problem.itemsize)}); {_size(available)} {whose}. "
    )
    fits = _largest_batch(engine, problem, available - data)
    if fits >= 3:
        message += f"Set batch_size={fits} or less: steps of so many rows fit."
    else:
        message += f"The data alone take {_size(data)}: use fewer rows, columns or draws."
    raise MemoryLimitError(message)


def _largest_batch(engine: str, problem: Problem, available: int) -> int:
    """The largest number of rows, of two digits, with which a step fits; 0 if none does."""
    low, high = 0, problem.n
    while high - low > 1:
        middle = (low + high) // 2
        if predicted_bytes(engine, problem._replace(n=middle)) <= available:
            low = middle
        else:
            high = middle
    unit = int(10 ** max(0, len(str(low)) - 2))
    return low // unit * unit


def _size(count: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} TB"
