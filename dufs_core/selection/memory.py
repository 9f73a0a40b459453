"""What a fit allocates, in bytes: one model, asked before anything is allocated, and the sentence that refuses a fit.

Three things are added up: what is kept all along (scaled data), a step (each engine counts its own arrays,
`dufs_core.objective.protocol.Engine.bytes_needed`), and what comes before or after the steps.
"""

from __future__ import annotations

from collections.abc import Callable
from math import comb
from typing import Any, NamedTuple, Self

import numpy as np

from dufs_core.backend import Backend, random
from dufs_core.backend.memory import available_bytes, byte_text
from dufs_core.data import dense
from dufs_core.data.accept import Accepted
from dufs_core.data.on_disk import CHUNK_BYTES
from dufs_core.data.sparse import is_sparse_column, sparse_columns
from dufs_core.errors import MemoryLimitError
from dufs_core.objective.engines.choose import new_engine, predicted_bytes
from dufs_core.objective.protocol import StepSize
from dufs_core.selection import diverse_ranking
from dufs_core.selection.parameters import graph_for, step_draws
from dufs_core.selection.procedure import Procedure
from dufs_core.significance import blocks, diagnosis, hsic, pairs, permutation, pool, products, structure

_FEWEST_ROWS = 3  # of a batch that is worth a word
_WORD = 80  # bytes that a random word of `random.words` takes while it is made into orders
_QUICK_WORD = 48  # of `random.quick_words`
_SCALING_BLOCKS = 3  # of one size
_SCALED = 1 << 25  # the float64 blocks that sparse data are scaled in


# --- the parts of a fit


class Stored(NamedTuple):
    """What sparse data hold."""

    entries: int  # stored ones
    entry_bytes: int  # of a value and its index
    dense_columns: int  # of which more than an eighth is stored

    @classmethod
    def of(cls, X: Any) -> Self:
        """What X (CSR or CSC) holds."""
        entry_bytes = X.dtype.itemsize + X.indices.itemsize
        return cls(X.nnz, entry_bytes, int((~sparse_columns(X)).sum()))

    @classmethod
    def evenly(cls, n: int, d: int, density: float) -> Self:
        """What float32 data (n, d) hold, of which this share is stored, as much in each column."""
        entries = round(density * n * d)
        index_bytes = 4 if entries <= np.iinfo(np.int32).max else 8
        return cls(entries, 4 + index_bytes, 0 if is_sparse_column(round(density * n), n) else d)


def plan(settings: Any, procedure: Procedure, accepted: Accepted, threads: int) -> tuple[StepSize, int]:
    """What the time and the memory of one step depend on, and the bytes kept beside it."""
    n, d = accepted.X.shape
    stored = Stored.of(accepted.X) if accepted.is_sparse else None
    return plan_of(settings, procedure, n, d, threads, stored, accepted.is_on_disk)


def plan_of(
    settings: Any,
    procedure: Procedure,
    n: int,
    d: int,
    threads: int,
    stored: Stored | None = None,
    is_on_disk: bool = False,
) -> tuple[StepSize, int]:
    """`plan` of data that need not be there; stored: of sparse data."""
    graph = graph_for(settings, n)
    itemsize = np.dtype(settings.dtype).itemsize
    size = procedure.size(n, d, itemsize, threads)
    training = procedure.training
    rows = size.rows
    step = StepSize(
        n=rows,
        d=size.gates,
        draws=0 if training is None else step_draws(training.n_draws, rows),
        itemsize=itemsize,
        power=graph.power,
        fixed_bandwidth=not isinstance(graph.bandwidth, str),
        per_sample=training is not None and training.conventions.gate_noise == "sample",
        threads=threads,
        saturating=training is not None and training.saturation is not None,
    )
    after = max(size.around, diagnosis_bytes(n, d, itemsize))
    if settings.ranking == "diverse":
        after = max(after, diverse_order_bytes(n, d))
    is_dense = stored is None and not is_on_disk
    if is_dense and training is None:
        scaling = scaling_bytes(n, d)
        freed = scaling // _SCALING_BLOCKS if rows > structure.ROWS else 0  # which the heaps of threads do not take
        after = max(after + freed, scaling)
    step = step._replace(after=after)
    if stored is not None:
        step, kept = sparse_size(step, stored, rows / n)
    elif is_on_disk:
        kept = chunk_bytes(rows, d, itemsize)
    else:
        kept = n * d * itemsize
    if rows < n:
        kept += rows * step.d * itemsize  # the batch in hand
    return step, kept


def chunk_bytes(rows: int, d: int, itemsize: int) -> int:
    """Of a fit that reads its batches: the next one, and chunks on the way to it."""
    return rows * d * itemsize + 3 * CHUNK_BYTES // 2


def scaling_bytes(n: int, d: int) -> int:
    """The float64 blocks of columns that dense data are scaled in, before anything else."""
    return _SCALING_BLOCKS * 8 * n * dense.block_width(n, d)


def sparse_size(step: StepSize, stored: Stored, share: float) -> tuple[StepSize, int]:
    """The step on sparse data, and what its scaled copies take beside the steps, or what there is instead.

    Kept: stored values and their rows, once more without the columns that take no part, or, where no gates are trained,
    with the share of the rows that takes part. On the way to them, before anything else: X in columns, its scaled
    values, and the blocks that they are computed in.
    """
    step = step._replace(dense_columns=stored.dense_columns)
    copies = 2 if step.draws else 1 + share
    kept = int(copies * stored.entries * (step.itemsize + 4))
    on_the_way = stored.entries * (stored.entry_bytes + step.itemsize) + _SCALED
    beside = predicted_bytes("sparse", step) if step.draws else step.after
    return step, max(kept, on_the_way - beside)


def decoy_bytes(n: int, d: int, itemsize: int, threads: int) -> int:
    """The decoys of d columns, their pairs and their scores, on at most 512 rows."""
    rows = min(n, structure.ROWS)
    D = pool.pool_size(d)
    values = D * rows * itemsize
    count = pairs.n_functions(D, rows)
    competing = d * (1 + pool.n_decoys(d))
    compared = max(
        pair_bytes(D, competing, rows, itemsize, threads, count), product_bytes(competing, rows, itemsize, threads)
    )
    return max(drawn_bytes(rows, d, itemsize, threads), values + compared)


def drawn_bytes(rows: int, d: int, itemsize: int, threads: int, word_bytes: int = _WORD) -> int:
    """The decoys of d columns on some rows: their orders as they are drawn, then all values beside the orders."""
    copies = pool.n_decoys(d) + -(-pool.n_calibration(d) // max(d, 1))
    cells = d * rows
    drawn = min(threads * random.WORDS, cells * -(-copies // 2)) * word_bytes
    orders = 4 * copies * cells
    return max(2 * orders + drawn, orders + 2 * pool.pool_size(d) * rows * itemsize) + 2 * cells * itemsize


def block_bytes(n: int, rows: int, d: int, itemsize: int, threads: int) -> int:
    """What `decoy_bytes` is, where `rows` of n take part in blocks of 512.

    Their random order and the correlations, and beside them the blocks that are in hand, or the pairs and products of
    some of them.
    """
    D = pool.pool_size(d)
    count = -(-rows // structure.ROWS)
    size = -(-rows // count)
    block = D * size * itemsize
    in_hand = min(blocks.TOGETHER, count)
    made = min(threads, count) * drawn_bytes(size, d, itemsize, 1, _QUICK_WORD)
    is_whole = rows > D
    matrix = D * min(D, rows) * itemsize
    adding = 2 * in_hand * block + made if is_whole else max(matrix, in_hand * block + made)

    functions, some = pairs.rows_of_functions(D, rows)
    competing = d * (1 + pool.n_decoys(d))
    compared = tile_bytes(D, competing, itemsize, threads)
    if some:
        held = min(rows, blocks.n_holding(some, rows, count) * size)
        of_products = product_bytes(competing, held, itemsize, threads)
        compared = (
            max(pair_bytes(D, competing, held, itemsize, threads, functions), of_products) + 2 * D * held * itemsize
        )
    compared += made // 2  # which the heaps of threads keep
    scored = (in_hand + 1 + 2 * min(threads, count)) * block + made
    return 24 * n + matrix + max(adding, compared, scored)


def product_bytes(competing: int, n: int, itemsize: int, threads: int) -> int:
    """The products of columns on n rows, some at a time, their correlations, and the positions of all factors."""
    sizes = products.rows_of_products(competing, n)
    factors = 16 * max((size * comb(competing, size) for size in sizes), default=0)
    return factors + threads * products.TOGETHER * (4 * n + 3 * competing) * itemsize if sizes else 0


def pair_bytes(D: int, competing: int, n: int, itemsize: int, threads: int, count: int) -> int:
    """Of D columns on n rows with so many functions each, where few have more than 64 equal partners."""
    made = 8 * (count + 3) * D * n if count > 1 else 0
    return count * D * n * itemsize + max(made, tile_bytes(D, competing, itemsize, threads))


def tile_bytes(D: int, competing: int, itemsize: int, threads: int) -> int:
    """Pairs of D columns, a tile at a time, and the likely ones among them; before, shuffled pairs for a quantile."""
    tile = min(D, pairs.TILE)
    tiles = min(threads, -(-D // tile)) * tile**2 * (3 * itemsize + 20)
    sampled = pairs.n_sampled(D, competing) * competing * (itemsize + 16)
    return max(sampled, tiles + D * min(D, pairs.MOST_PARTNERS) * 40)


def gate_test_bytes(n: int, d: int, itemsize: int, several: bool) -> int:
    """A permutation test of a run: arrays (n', n'), random words; pairs are screened where another run may follow."""
    rows = min(n, permutation.TEST_ROWS)
    test = 35 * rows * rows * itemsize + min(permutation.WORDS, 11 * rows * d) * 100
    return max(test, hsic_bytes(n, d, itemsize) if several else 0)


def hsic_bytes(n: int, d: int, itemsize: int) -> int:
    """HSIC of all pairs: an array (d', n', n'), and about 7 of float64 (d', d')."""
    rows = min(n, hsic.ROWS)
    columns = min(d, hsic.COLUMNS)
    return columns * rows * rows * itemsize + 7 * 8 * columns * columns


def diagnosis_bytes(n: int, d: int, itemsize: int) -> int:
    """The rows that are looked at, and some 12 arrays of float64 of them in at most 1,024 columns."""
    rows = min(n, random.MOST_ROWS)
    asked = rows * min(d, diagnosis.DIAGNOSED // rows) * itemsize
    return asked + 12 * 8 * rows * min(d, diagnosis.MOST_COLUMNS)


def diverse_order_bytes(n: int, d: int) -> int:
    """All of float64: one array (d', n'), some 16 of (d',).

    Beside these about 6 of (n', n') while the walk is formed, or 4 of them, 512 columns and the products of 32 steps.
    """
    rows = min(n, diverse_ranking.ROWS)
    columns = min(d, diverse_ranking.CANDIDATES)
    steps = min(columns, diverse_ranking.BEST) * rows + 2 * diverse_ranking.AHEAD * columns
    return 8 * (rows * columns + max(6 * rows * rows, 4 * rows * rows + steps) + 16 * columns)


# --- the whole


def step_limit(bk: Backend, kept: int, max_memory: int | None) -> int | None:
    """Bytes that a step may allocate beside what is kept; None where that cannot be told."""
    available = available_bytes(bk) if max_memory is None else max_memory
    return None if available is None else available - kept


def needed_bytes(engine: str | None, size: StepSize, kept: int) -> int:
    """Bytes that a fit allocates: what is kept, and beside it its steps, if any, and what is before or after them."""
    if engine is None:
        return kept + size.after
    step = predicted_bytes(engine, size)
    return kept + (step + size.after if new_engine(engine).keeps_arrays else max(step, size.after))


_ADVICE = "Beyond some 1,000 rows it grows with the columns alone: use fewer columns, or allow more memory."


def check_memory_around(bk: Backend, shape: tuple[int, int], size: StepSize, kept: int, max_memory: int | None) -> None:
    """`check_memory` of a fit without steps, of X with this shape."""
    available = available_bytes(bk) if max_memory is None else max_memory
    if available is None or (needed := needed_bytes(None, size, kept)) <= available:
        return
    whose = "are available" if max_memory is None else "are allowed by max_memory"
    raise MemoryLimitError(
        f"A fit of {shape[0]:,} rows and {shape[1]:,} columns would need {byte_text(needed)}, {byte_text(kept)} of it "
        f"for the data; {byte_text(available)} {whose}. {_ADVICE}"
    )


def check_memory(
    bk: Backend,
    engine: str,
    size: StepSize,
    kept: int,
    max_memory: int | None,
    in_batches: Callable[[int], tuple[StepSize, int]],
) -> None:
    """Raise MemoryLimitError, with the numbers and what would fit, if a fit would exceed the limit.

    kept: bytes beside the step, as a scaled copy of the data. max_memory: bytes that the fit may allocate; None: what
    is available. in_batches: step and kept bytes with so many rows a batch.
    """
    available = available_bytes(bk) if max_memory is None else max_memory
    if available is None or (needed := needed_bytes(engine, size, kept)) <= available:
        return
    whose = "are available" if max_memory is None else "are allowed by max_memory"
    around = (
        f"What comes before and after the steps (tests of the result, the order of the columns) would need "
        f"{byte_text(kept + size.after)} with the data"
    )
    if kept + predicted_bytes(engine, size) <= available < kept + size.after:
        raise MemoryLimitError(f"{around}; {byte_text(available)} {whose}. {_ADVICE}")
    message = (
        f"A step over {size.n:,} rows and {size.d:,} columns with {size.draws} draws would need "
        f"{byte_text(needed)} (engine {engine!r}, {8 * size.itemsize}-bit numbers; one n x n array takes "
        f"{byte_text(size.n**2 * size.itemsize)}); {byte_text(available)} {whose}. "
    )
    if kept < available < kept + size.after:  # no batch would help
        raise MemoryLimitError(f"{message}{around}. {_ADVICE}")
    can_stream = bk.name == "numpy" and engine != "streaming" and not size.per_sample
    if can_stream and (streaming := needed_bytes("streaming", size, kept)) <= available:
        message += f'engine="streaming" would need {byte_text(streaming)}. '
    rows = _largest_batch(engine, size.n, available, in_batches)
    if rows >= _FEWEST_ROWS:
        message += f"Set batch_size={rows} or less: steps of so many rows fit."
    else:
        message += f"The data alone take {byte_text(kept)}: use fewer rows or columns."
    raise MemoryLimitError(message)


def _largest_batch(engine: str, n: int, available: int, in_batches: Callable[[int], tuple[StepSize, int]]) -> int:
    """The largest number of rows, of two digits, with which a step fits; 0 if none does."""
    low, high = 0, n
    while high - low > 1:
        middle = (low + high) // 2
        fits = needed_bytes(engine, *in_batches(middle)) <= available
        low, high = (middle, high) if fits else (low, middle)
    unit = int(10 ** max(0, len(str(low)) - 2))
    rows = low // unit * unit
    while rows and needed_bytes(engine, *in_batches(rows)) > available:  # more draws are taken on fewer rows
        rows -= unit
    return rows
