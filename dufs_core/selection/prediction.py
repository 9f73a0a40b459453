"""The seconds and the bytes of a default fit on this machine, told before it starts.

Seconds are rates of this machine times counts. The rates are measured in about a second, by the fit's own functions on
small random data; the counts come from the formulas and limits that the fit itself goes by. How often a set of columns
is scored depends on the data: it is taken to hold some twenty columns, and to settle two rounds after the first.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from functools import partial
from math import ceil
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.utils import gen_batches

from dufs_core.backend import Array, get_backend, random
from dufs_core.backend.blas import one_blas_thread
from dufs_core.backend.threads import mapped
from dufs_core.data.accept import accept
from dufs_core.data.scaling import ScaledData
from dufs_core.objective.chain import Objective
from dufs_core.selection import diverse_ranking
from dufs_core.selection.decoys.dufs import DUFS
from dufs_core.selection.memory import Stored, plan_of
from dufs_core.selection.parameters import graph_for, n_threads
from dufs_core.significance import blocks, correlations, diagnosis, pairs, pool, products, structure
from dufs_core.significance.exchange import Exchange
from dufs_core.significance.rows import Rows

_CELLS = 1 << 20  # of the data that rates are measured on, about
_DECOY_CELLS = 1 << 18  # of columns and decoys
_PROBED_ROWS = 512  # of products
_REPEATS = 4  # of which the fastest counts
_ENOUGH = 0.04  # seconds, after which a call is not repeated
_MEMBERS = 20  # columns of a set, or a tenth of all
_FURTHER_ROUNDS = 2  # of a set, beyond the fewest
_PROBED_MEMBERS = 8
_RANKED = 64  # columns that functions are made of
_DIAGNOSED = (16, 96)  # columns

bk = get_backend("numpy")


class Prediction(NamedTuple):
    """What a fit takes."""

    seconds: float
    bytes: int  # at most, beside the data given
    rows: int  # that take part
    threads: int
    parts: dict[str, float]  # the seconds of each part of the fit


def predict(n: int, d: int, density: float | None = None) -> Prediction:
    """What `DUFS().fit(X)` takes on the CPU, X (n, d) float32 in memory.

    density: the share of the entries that sparse X stores, as many in each column; None: X is an array.
    """
    threads = n_threads(None)
    settings = DUFS(backend="numpy")
    with warnings.catch_warnings(action="ignore"):
        settings.fit(_normal(2 * structure.ROWS, 2))  # loads what a first fit loads
    stored = None if density is None else Stored.evenly(n, d, density)
    step, kept = plan_of(settings, settings._procedure(), n, d, threads, stored)
    size = Size(n, d, step.n, threads, density)
    with one_blas_thread(), np.errstate(all="ignore"):
        parts = _seconds(size)
    return Prediction(sum(parts.values()), kept + step.after, size.rows, threads, parts)


class Size:
    """The counts of a fit, by the formulas that it goes by itself."""

    def __init__(self, n: int, d: int, rows: int, threads: int, density: float | None) -> None:
        self.n = n
        self.d = d
        self.rows = rows
        self.threads = threads
        self.density = density
        self.D = pool.pool_size(d)
        self.competing = d * (1 + pool.n_decoys(d))
        self.in_blocks = rows > structure.ROWS
        self.n_blocks = ceil(rows / structure.ROWS)
        self.block = ceil(rows / self.n_blocks)
        self.members = min(_MEMBERS, max(2, d // 10))

        # Functions of columns, and on how many rows they are compared.
        self.functions = pairs.n_functions(self.D, rows)
        self.compared = rows
        if self.in_blocks:
            self.functions, some = pairs.rows_of_functions(self.D, rows)
            self.compared = min(rows, blocks.n_holding(some, rows, self.n_blocks) * self.block)

    @property
    def scored_blocks(self) -> int:
        """Blocks whose graphs give the scores at the end."""
        return min(blocks.SCORED, self.n_blocks)

    @property
    def scorings(self) -> tuple[int, int]:
        """How often all columns are scored while sets settle, and how many members are left out in that, in all."""
        n_graphs = 2 if self.in_blocks and self.functions > 1 else 1
        rounds = len(structure.SHARES) + 1 + _FURTHER_ROUNDS
        of_pair = 2 + _FURTHER_ROUNDS
        first = min(structure.MOST_GATES, self.competing)
        of_graphs = n_graphs * (first + (rounds - 1) * self.members)
        return n_graphs * rounds + of_pair, of_graphs + 2 + (of_pair - 1) * self.members

    @property
    def tile(self) -> int:
        """Columns of a tile of pairs."""
        return min(self.D, pairs.TILE)

    @property
    def sampled(self) -> float:
        """How many tiles the shuffled pairs are that a quantile is read from."""
        return pairs.n_sampled(self.D, self.competing) * self.competing / self.tile**2

    @property
    def tiles(self) -> float:
        """How many tiles of pairs are compared one after the other, where threads take rows of tiles in turn."""
        widths = [part.stop - part.start for part in gen_batches(self.D, self.tile)]
        costs = [width * sum(widths[i:]) / self.tile**2 for i, width in enumerate(widths)]
        return _one_after_the_other(costs, self.threads)


def _one_after_the_other(costs: Iterable[float], threads: int) -> float:
    """When threads that take parts in turn have done all of them, from the costs of the parts."""
    busy = [0.0] * threads
    for cost in costs:
        first = busy.index(min(busy))
        busy[first] += cost
    return max(busy)


def _fastest(function: Callable[[], Any]) -> float:
    """The fewest seconds that a call takes, of several if one is short."""
    seconds: list[float] = []
    while not seconds or (len(seconds) < _REPEATS and sum(seconds) < _ENOUGH):
        start = perf_counter()
        function()
        seconds.append(perf_counter() - start)
    return min(seconds)


def _at_once(function: Callable[[], Any], threads: int) -> float:
    """The seconds of a call while all threads make one."""
    return _fastest(lambda: mapped(bk, lambda _: function(), range(threads), threads))


def _normal(*shape: int) -> Array:
    """Random numbers of a shape."""
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


# --- the parts of a fit


def _seconds(size: Size) -> dict[str, float]:
    """The seconds of each part."""
    X, reading = _reading(size)
    making = _of_blocks(size, X) if size.in_blocks else _of_table(size, X)
    return {
        "scaling": reading,
        "diagnosis": _diagnosis(size, X),
        "decoys": making,
        "correlations": _correlations(size) if size.in_blocks else 0.0,
        "pairs": _pairs(size),
        "products": _products(size),
        "scores": _scores(size),
        "order": _order(size),
    }


def _reading(size: Size) -> tuple[ScaledData, float]:
    """Scaled data of fewer rows or columns, and the seconds of checking and scaling all."""
    rows = min(size.n, _CELLS // 16)
    columns = min(size.d, max(16, _CELLS // rows))
    X: Any = _normal(rows, columns)
    if size.density is not None:
        X = sparse.random_array((rows, columns), density=size.density, format="csr", dtype=np.float32, rng=0)
    found: list[ScaledData] = []

    def read() -> None:
        found[:] = [accept(DUFS(), X, backend=bk.name).scaled("columns", "float32", is_calm=True)]

    seconds = _fastest(read)
    return found[0], seconds * size.n * size.d / (rows * columns)


def _diagnosis(size: Size, data: ScaledData) -> float:
    """Of few columns and of some more; what is beyond them grows evenly."""
    rows = min(data.X.shape[0], random.MOST_ROWS)
    few, more = (min(size.d, count) for count in _DIAGNOSED)
    x = _normal(rows, more)
    seconds = [_fastest(partial(diagnosis.diagnose, x[:, :count], np.arange(rows), 1.0)) for count in (few, more)]
    each = max(0.0, seconds[1] - seconds[0]) / max(1, more - few)
    return seconds[1] + each * (min(size.d, diagnosis.MOST_COLUMNS) - more)


def _of_table(size: Size, data: ScaledData) -> float:
    """Decoys of all columns, on one table of rows."""
    columns = np.arange(min(data.X.shape[1], max(16, _DECOY_CELLS // size.block)))

    def make() -> None:
        exchange = Exchange.of(bk, Rows(data.X.shape[0]), 0, size.threads)
        structure.build_pools(bk, data.X, columns, exchange, True)

    cells: int = pool.pool_size(len(columns)) * min(data.X.shape[0], structure.ROWS)
    return _fastest(make) * size.D * size.block / cells


def _of_blocks(size: Size, data: ScaledData) -> float:
    """Decoys of all columns in every block: for correlations, for functions, and for scores."""
    columns = np.arange(min(data.X.shape[1], max(16, _DECOY_CELLS // (size.block * size.threads))))
    probed = min(data.X.shape[0], size.threads * structure.ROWS)
    some = blocks.Blocks(bk, data.X, Rows(data.X.shape[0]), 0, size.threads, probed)
    limits = _fastest(lambda: blocks.BlockPools(bk, some, columns, True, 0)) / (len(columns) * some.n)
    pools = blocks.BlockPools(bk, some, columns, True, 0)
    pools.first()
    cells = pools.pool.size * some.n
    linear = _fastest(lambda: list(pools.together())) / cells
    scored = _fastest(lambda: list(pools.scored())) / cells
    first = blocks.n_first(size.D, size.n_blocks)
    of_scores = min(size.rows, (first + size.scored_blocks) * size.block)
    order = _fastest(lambda: random.permutation(bk, 0, random.Stream.DECOYS, 1, _CELLS // 16)) * 16 / _CELLS
    of_limits = size.d * first * size.block * limits
    return size.D * ((size.rows + size.compared) * linear + of_scores * scored) + of_limits + size.n * order


def _correlations(size: Size) -> float:
    """Products of all pairs, added up over all rows, and the likely pairs among them."""
    tile = min(size.D, correlations.TILE)
    together = min(size.rows, blocks.TOGETHER * size.block)
    partners = size.tiles * _of_partners(size)
    if size.rows <= size.D:
        each = _of_products(size, pairs.TILE, _PROBED_ROWS, size.threads)
        with_members = size.D * size.members / size.tile**2 / size.threads
        return (size.tiles + size.sampled + with_members * size.scorings[0]) * each + partners
    widths = [part.stop - part.start for part in gen_batches(size.D, correlations.TILE)]
    tiles = [a * b / tile**2 for i, a in enumerate(widths) for b in widths[i:]]
    busy = min(size.threads, len(tiles))
    each = _of_products(size, correlations.TILE, together, busy)
    return each * _one_after_the_other(tiles, size.threads) + partners


def _of_products(size: Size, most: int, rows: int, busy: int) -> float:
    """The seconds of the products of two tiles of columns on all rows, while so many threads have one.

    A lone tile is multiplied by itself, which takes half of the time. rows: that are multiplied at once.
    """
    tile = min(size.D, most)
    rows = min(rows, size.rows)
    Z = _normal(tile, rows)
    other = Z.copy() if most < size.D else Z
    totals = np.zeros((busy, tile, tile), dtype=np.float32)

    def add(total: Array) -> None:
        total += Z @ other.T

    return _fastest(lambda: mapped(bk, add, totals, busy)) * size.rows / rows


def _of_partners(size: Size) -> float:
    """The seconds of a tile of pairs whose dependence is known, while all threads have one."""
    z = _normal(3 * pairs.TILE, pairs.TILE)

    def dependence(I: slice, J: slice) -> Array:
        Q = z[I, : J.stop - J.start]
        return Q * Q - 1

    def find() -> None:
        pairs.strongest_partners(bk, len(z), len(z) - 1, dependence, z.dtype, 1)

    tiles = 6 * (pairs.TILE / size.tile) ** 2  # of three rows, on and above the diagonal
    return _at_once(find, size.threads) / tiles


def _pairs(size: Size) -> float:
    """Functions of all columns, and their correlations."""
    if size.in_blocks and size.functions == 1:
        return 0.0
    rows = min(size.compared, _PROBED_ROWS)
    x = _normal(min(size.D, 2 * size.tile), rows)
    dependence = pairs.compared(bk, x, size.functions)
    first, last = slice(0, size.tile), slice(len(x) - size.tile, len(x))
    each = _at_once(lambda: dependence(first, last), size.threads) * size.compared / rows
    some = x[:_RANKED]
    made = _fastest(lambda: pairs.functions_of(bk, some, size.functions)) * size.D * size.compared / (len(some) * rows)
    return size.tiles * (each + _of_partners(size)) + size.sampled * each + made


def _products(size: Size) -> float:
    """Products of few columns, correlated with all."""
    if size.in_blocks and size.functions == 1:
        return 0.0
    seconds = 0.0
    for factors, rows in products.rows_of_products(size.competing, size.compared).items():
        scored = _normal(min(size.D, size.competing + products.CALIBRATION), rows)
        count = min(products.TOGETHER, size.competing**factors)
        chosen = np.random.default_rng(0).integers(size.competing, size=(factors, count))
        each = _at_once(partial(products.strongest, bk, scored, chosen), size.threads)
        seconds += each * products.n_parts(size.competing, factors) / size.threads
    return seconds


def _scores(size: Size) -> float:
    """Scores of all columns on the graphs of sets, without the column itself."""
    settings = DUFS()
    objective = Objective(**graph_for(settings, size.n).get_params())
    columns = min(size.D, structure.BLOCK)
    x = _normal(columns, size.block)
    table = pool.empty_pool(bk, np.arange(columns), 0)._replace(X=x)

    def scored(count: int) -> float:
        members = np.arange(min(count, columns))
        weights = np.ones(len(members))
        return _fastest(
            lambda: structure.scores(bk, [[table] * size.threads], members, weights, objective, size.threads)
        )

    # The graph with the product of some columns, the product alone, and a member.
    few = scored(2)
    count = min(2 + _PROBED_MEMBERS, columns)
    member = max(0.0, scored(count) - few) / max(1, count - 2)
    P = _normal(size.block, size.block)
    product = _at_once(lambda: x @ P, size.threads)
    graph = max(0.0, few - product - 2 * member)
    all_columns = product * size.D / columns
    times, members = size.scorings
    settling = times * (graph + all_columns / size.threads) + members * member / size.threads
    turns = ceil(size.scored_blocks / size.threads)
    return settling + turns * (graph + objective.power * all_columns + size.members * member)


def _order(size: Size) -> float:
    """The diverse order of the columns found: products of a graph of rows, its entries, and steps of all columns."""
    rows = min(size.n, diverse_ranking.ROWS)
    probed = min(rows, 256)
    G = _normal(probed, probed).astype(np.float64)
    G = G @ G.T
    of_product = _fastest(lambda: G @ G) * (rows / probed) ** 3
    of_entries = _fastest(lambda: diverse_ranking.neighbour_walk(bk, G)) * (rows / probed) ** 2
    of_step = _fastest(lambda: G @ G[0]) * (rows / probed) ** 2
    n_products = 2 * diverse_ranking.POWER + 1
    return n_products * of_product + of_entries + 3 * size.members * of_step
