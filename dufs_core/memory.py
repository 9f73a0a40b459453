"""How much memory a fit will take, said before anything is allocated.

The counts are of arrays as the engines allocate them, in the worst step: every column open. They were compared with
what the engines really took (tests/test_memory.py).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dufs_core.backend import Backend
from dufs_core.errors import MemoryLimitError


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


def _streaming(p: Problem) -> int:
    from dufs_core.engines.streaming import CHUNKS
    from dufs_core.kernels.streaming import BLOCK, GROUP
    from dufs_core.kernels.vector import LANES

    rows, wide, double = -(-p.n // LANES) * LANES, -(-p.d // LANES) * LANES, 8 // p.itemsize
    groups = -(-rows // (GROUP * LANES))
    kept = rows * wide * (2 * p.power + 1 + p.per_sample + 2)  # F_a, B_a, and two as factors
    sums = rows * (min(CHUNKS, groups) * double + 8 * double)
    thread = min(GROUP * LANES, rows) * (2 * BLOCK + 2 * wide * (1 + double) + 3) + BLOCK * LANES
    last = rows * p.d * 4 * double if p.per_sample else 0  # C Xt and dS/dXt in float64
    buffers = (1 << 18) // p.itemsize  # of NumPy, where it sums float32 numbers in float64
    return (
        kept
        + sums
        + buffers
        + min(p.threads, groups) * thread
        + max(last + p.n * p.d * 4 * p.draws * p.per_sample, _noise(p))
    )


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


_ENTRIES: dict[str, Callable[[Problem], int]] = {
    "operations": _operations, "dense": _dense, "streaming": _streaming, "cuda": _cuda,
}  # fmt: skip


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


def step_limit(bk: Backend, problem: Problem, n_rows: int, max_memory: int | None) -> int | None:
    """Bytes that a step may allocate beside the scaled copy of the data; None where that cannot be told."""
    available = available_bytes(bk) if max_memory is None else max_memory
    return None if available is None else available - n_rows * problem.d * problem.itemsize


def check_memory(bk: Backend, engine: str, problem: Problem, n_rows: int, max_memory: int | None) -> None:
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
    """
    data = n_rows * problem.d * problem.itemsize
    limit = step_limit(bk, problem, n_rows, max_memory)
    if limit is None:
        return
    available = limit + data
    needed = data + predicted_bytes(engine, problem)
    if needed <= available:
        return
    whose = "are available" if max_memory is None else "are allowed by max_memory"
    message = (
        f"A step over {problem.n:,} rows and {problem.d:,} columns with {problem.draws} draws would need "
        f"{_size(needed)} (engine {engine!r}, {8 * problem.itemsize}-bit numbers; one n x n array takes "
        f"{_size(problem.n**2 * problem.itemsize)}); {_size(available)} {whose}. "
    )
    streaming = data + predicted_bytes("streaming", problem) if bk.name == "numpy" and engine != "streaming" else needed
    if streaming <= available:
        message += f'engine="streaming" would need {_size(streaming)}. '
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
