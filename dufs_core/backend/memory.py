"""How much memory a fit will take, said before anything is allocated.

The counts are of arrays as the engines allocate them, in the worst step: every column open. They were compared with
what the engines really took (tests/test_memory.py).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dufs_core.backend.types import Backend
from dufs_core.errors import MemoryLimitError

_PREPARATION = 1 << 25  # bytes of the float64 blocks that data are scaled in


class StepSize(NamedTuple):
    """What the memory of a step depends on."""

    n: int  # rows of a step
    d: int  # columns
    draws: int
    itemsize: int  # bytes of an entry: 4 or 8
    power: int = 2
    fixed_bandwidth: bool = False
    per_sample: bool = False  # one gate a sample: draws of shape (draws, n, d)
    threads: int = 1
    fits: int = 1  # on a GPU: how many share the draws
    gap: int = 0  # bytes of the permutation gap after a run (`permutation_test_bytes`)
    spread: int = 0  # columns of sparse data that are written out for products (`dufs_core.data.sparse`)


def _operations(p: StepSize) -> int:
    from dufs_core.objective.chain import _ELEMENTS_TOGETHER

    together = max(1, min(p.draws, _ELEMENTS_TOGETHER // (p.n * p.n)))
    return together * p.n * p.n * (11 + p.power) + _columns(p)


def _dense(p: StepSize) -> int:
    from dufs_core.objective.engines.cpu_dense import layout

    dtype = np.dtype(f"f{p.itemsize}")
    _, *groups = layout(p.draws, p.d, p.n, dtype, p.power, 2, p.per_sample, p.threads)
    work = sum(np.prod(shape, dtype=np.int64) * np.dtype(kind).itemsize for group in groups for shape, kind in group)
    outside = p.n * p.d * (4 * p.draws + 1) if p.per_sample else 0  # noise and gates; the data once more
    return int(work) // p.itemsize + max(outside, _noise(p))


def _streaming(p: StepSize) -> int:
    from dufs_core.kernels.streaming import BLOCK, GROUP
    from dufs_core.kernels.vector import LANES
    from dufs_core.objective.engines.cpu_streaming import CHUNKS

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


def _noise(p: StepSize) -> int:
    """Entries of the 64-bit words that one gate a sample is drawn from, four draws at once."""
    return -(-max(1, p.draws // 2) // 4) * p.n * p.d * 88 // p.itemsize if p.per_sample else 0


def _columns(p: StepSize) -> int:
    """Entries of the gated data and what is multiplied with them."""
    return p.n * p.d * (4 * p.draws + 2 if p.per_sample else 2)


def _cuda(p: StepSize) -> int:
    from dufs_core.objective.engines.gpu_dense import (
        FUSED_COLUMNS,
        draws_together,
        is_stacked_captured,
        n_matrices,
        parts_of_gram,
    )

    fused = p.fixed_bandwidth and 0 < p.d <= FUSED_COLUMNS
    captured = is_stacked_captured(p.n, p.d, p.draws, p.fits)
    together = p.draws if captured else draws_together(p.n, p.d, p.draws)
    kept = together * (n_matrices(p.power, not fused) * p.n * p.n + (1 + p.per_sample) * p.n * p.d) + p.n * p.d
    if p.per_sample:
        kept += 2 * p.draws * p.n * p.d  # the noise, given and kept
    parts = parts_of_gram(p.n, p.d, p.draws // p.fits) if captured else 1
    if parts > 1:
        kept += parts * together * p.n * p.n
    if not captured:  # the open and the undecided columns, and the copies that a product makes of its operands
        kept += together * (p.n * p.n + p.n * p.d) + p.n * p.d * (2 + (3 * p.draws if p.per_sample else 0))
    return kept


def _sparse(p: StepSize) -> int:
    from dufs_core.objective.engines.cpu_dense import layout

    _, *groups = layout(1, max(1, p.spread), p.n, np.dtype(f"f{p.itemsize}"), p.power, 2, False, p.threads)
    work = sum(np.prod(shape, dtype=np.int64) * np.dtype(kind).itemsize for group in groups for shape, kind in group)
    noise = p.d * (p.draws * (4 * p.itemsize + 2) + -(-p.draws // 8) * 120)  # z, eps and what is kept; random words
    return (int(work) + noise) // p.itemsize


def _cuda_sparse(p: StepSize) -> int:
    from dufs_core.objective.engines.gpu_sparse import COLUMNS

    gates = p.d * p.draws * (4 + 3 * 8 // p.itemsize)  # z, eps and what is kept; the sums, in double
    vectors = p.draws * p.n * (6 + 6 * 8 // p.itemsize)
    return _cuda(p._replace(d=0)) + gates + vectors + 3 * min(p.spread, COLUMNS) * p.n


def _cuda_streaming(p: StepSize) -> int:
    from dufs_core.objective.engines.gpu_streaming import FUSED_COLUMNS, tile_rows

    column = p.n * p.d
    kept = (2 * (p.power + 1) + 2) * column  # the walks, B Xt, and the data once more
    kept += p.n * (4 + 5 * 8 // p.itemsize) + p.draws * p.d * 8 // p.itemsize
    moving = 0
    if p.d > FUSED_COLUMNS:  # two tiles of rows; the operands of their products, and a product
        rows = tile_rows(p.n)
        kept += 2 * rows * p.n
        moving = (2 * p.power + 2) * p.d * rows
    if p.per_sample:  # the noise; the gates of one draw, and whether each is open and undecided
        kept += p.draws * column
        moving = max(moving, 2 * column + 4 * column // p.itemsize)
    return kept + moving


_ENTRIES: dict[str, Callable[[StepSize], int]] = {
    "reference": _operations,
    "dense": _dense,
    "streaming": _streaming,
    "sparse": _sparse,
    "cuda": _cuda,
    "cuda_sparse": _cuda_sparse,
    "cuda_streaming": _cuda_streaming,
}


def predicted_bytes(engine: str, problem: StepSize) -> int:
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


def sparse_problem(problem: StepSize, X: Any) -> tuple[StepSize, int]:
    """The problem of sparse X (CSR or CSC), and the bytes that its scaled copies take beside the steps.

    Kept: stored values and their rows, once more without the columns that take no part. On the way to them, before any
    step: X in columns, its scaled values, and the blocks that they are computed in.
    """
    from dufs_core.data.sparse import is_thin

    problem = problem._replace(spread=int((~is_thin(X)).sum()))
    kept = 2 * X.nnz * (problem.itemsize + 4)
    on_the_way = X.nnz * (X.dtype.itemsize + X.indices.itemsize + problem.itemsize) + _PREPARATION
    return problem, max(kept, on_the_way - predicted_bytes("sparse", problem))


def chunked_bytes(problem: StepSize) -> int:
    """Bytes beside the steps of a fit that reads its batches: the next one and chunks on the way to it."""
    from dufs_core.data.on_disk import CHUNK_BYTES

    return problem.n * problem.d * problem.itemsize + 3 * CHUNK_BYTES // 2


def permutation_test_bytes(n: int, d: int, itemsize: int, screened: bool, representatives: bool) -> int:
    """Bytes that the permutation gap of all columns takes after a run, while the engine keeps its arrays.

    Where another run may follow, the pairs of columns are screened next (`dufs_core.significance.hsic`), and at the
    end they
    may be put into the order of `dufs_core.selection.diverse_ranking`: the largest of the three.
    """
    from dufs_core.significance.permutation_test import TEST_ROWS, WORDS

    rows = min(n, TEST_ROWS)
    at_once = min(WORDS, 11 * rows * d)  # random words, in some ten temporaries
    gap = 35 * rows * rows * itemsize + at_once * 100
    if screened:
        gap = max(gap, hsic_bytes(n, d, itemsize))
    return max(gap, diverse_ranking_bytes(n, d)) if representatives else gap


def hsic_bytes(n: int, d: int, itemsize: int) -> int:
    """Bytes that `dufs_core.significance.hsic.dependence` takes: an array (d', n', n'), and about 7 of float64
    (d', d')."""
    from dufs_core.significance.hsic import _COLUMNS, _ROWS

    rows, columns = min(n, _ROWS), min(d, _COLUMNS)
    return columns * rows * rows * itemsize + 7 * 8 * columns * columns


def diverse_ranking_bytes(n: int, d: int) -> int:
    """Bytes that `dufs_core.selection.diverse_ranking` takes, all of float64: one array (n', d'), some 14 of (d',).

    Beside these about 6 of (n', n') while the walk is formed, or 2 of them and 3 of (n', 512).
    """
    from dufs_core.selection.diverse_ranking import BLOCK, CANDIDATES, ROWS

    rows, columns = min(n, ROWS), min(d, CANDIDATES)
    return 8 * (rows * (columns + max(6 * rows, 2 * rows + 3 * min(columns, BLOCK))) + 14 * columns)


_KEEPS = ("dense", "sparse", "cuda")  # engines that have their arrays still when the permutation gap is computed


def needed_bytes(engine: str, problem: StepSize, data: int) -> int:
    """Bytes that a fit allocates: `data`, and beside them its steps and then the permutation gap."""
    step = predicted_bytes(engine, problem)
    return data + (step + problem.gap if engine in _KEEPS else max(step, problem.gap))


def step_limit(bk: Backend, data: int, max_memory: int | None) -> int | None:
    """Bytes that a step may allocate beside `data`; None where that cannot be told."""
    available = available_bytes(bk) if max_memory is None else max_memory
    return None if available is None else available - data


def check_memory(bk: Backend, engine: str, problem: StepSize, data: int, max_memory: int | None) -> None:
    """Raise MemoryLimitError, with the numbers and what would fit, if a fit would exceed the limit.

    Parameters
    ----------
    engine : str
        The engine that will compute.
    problem : StepSize
        One step; ``problem.n`` is its number of rows.
    data : int
        Bytes that are kept beside the step: a scaled copy of the data.
    max_memory : int or None
        Bytes that the fit may allocate; None: what is available.
    """
    limit = step_limit(bk, data, max_memory)
    if limit is None:
        return
    available, needed = limit + data, needed_bytes(engine, problem, data)
    if needed <= available:
        return
    whose = "are available" if max_memory is None else "are allowed by max_memory"
    message = (
        f"A step over {problem.n:,} rows and {problem.d:,} columns with {problem.draws} draws would need "
        f"{_size(needed)} (engine {engine!r}, {8 * problem.itemsize}-bit numbers; one n x n array takes "
        f"{_size(problem.n**2 * problem.itemsize)}); {_size(available)} {whose}. "
    )
    streaming = needed_bytes("streaming", problem, data) if bk.name == "numpy" and engine != "streaming" else needed
    if streaming <= available:
        message += f'engine="streaming" would need {_size(streaming)}. '
    fits = _largest_batch(engine, problem, data, available)
    if fits >= 3:
        message += f"Set batch_size={fits} or less: steps of so many rows fit."
    else:
        message += f"The data alone take {_size(data)}: use fewer rows, columns or draws."
    raise MemoryLimitError(message)


def check_squares(bk: Backend, method: str, n: int, count: int) -> None:
    """Raise MemoryLimitError, with the numbers, if `count` arrays (n, n) of float64 exceed what is available."""
    available, needed = available_bytes(bk), 8 * count * n * n
    if available is not None and needed > available:
        raise MemoryLimitError(
            f"{method} holds {count} arrays of {n:,} x {n:,} numbers, {_size(needed)}; {_size(available)} are "
            f"available. Use at most {int((available / (8 * count)) ** 0.5):,} rows, or a method that holds none: "
            f"LaplacianScore (variant='laplacian'), SRCFS, or DUFS with batch_size."
        )


def _largest_batch(engine: str, problem: StepSize, data: int, available: int) -> int:
    """The largest number of rows, of two digits, with which a step fits; 0 if none does."""
    low, high = 0, problem.n
    while high - low > 1:
        middle = (low + high) // 2
        if needed_bytes(engine, problem._replace(n=middle), data) <= available:
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
