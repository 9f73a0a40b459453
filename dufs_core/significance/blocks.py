"""More rows than are looked at as one table: blocks of them, the decoys in each, and the scale that all blocks share.

Every block mixes rows of the whole table, and decoys are shuffled within it, as within a group. So a nuisance column
and its decoys are exchangeable in each block, and in whatever is added up over blocks; no step has all rows in hand.

Values are brought within limits that are the same in every block. In n rows one row may say so much to a pair of
columns, and no more: they reach 2 (n / 512)^(1/4) standard deviations, as a column of 512 rows reaches 2. The more rows
there are, the farther out may be what a few of them share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from dufs_core.backend import Array, Backend, random
from dufs_core.backend.threads import mapped
from dufs_core.significance.correlations import Correlations
from dufs_core.significance.diagnosis import FAR as FAR_OUT
from dufs_core.significance.diagnosis import MOST_COLUMNS, Finding, far_rows, one_factor
from dufs_core.significance.exchange import FEWEST_ROWS, Exchange
from dufs_core.significance.pool import Pool, empty_pool, pool_size, with_copies
from dufs_core.significance.rows import Rows, RowSample
from dufs_core.significance.scale import CLIP, spread

TOGETHER = 8  # blocks whose products are added up at once
SCORED_TOGETHER = 4  # blocks whose graphs are made at once
_FIRST = 1 << 25  # columns and decoys of the blocks that limits are taken from, entries
_MOST_FIRST = 4  # of these blocks
_PRODUCTS = 1e13  # multiply-adds that the pairs of all rows may take
_BYTES = 1 << 30  # that their correlations may
SCORED = 128  # blocks at most whose graphs give the scores at the end: 65,536 rows


def reach(n: int) -> float:
    """The most standard deviations that a value of n rows has."""
    return float(CLIP * (max(n, random.MOST_ROWS) / random.MOST_ROWS) ** 0.25)


def most_rows(d: int) -> int:
    """Rows of d columns that take part by default: all, unless their pairs would take long or much memory.

    10^13 multiply-adds, some two minutes of two cores, and 1 GiB.
    """
    D = pool_size(d)
    most = 2 * _PRODUCTS / D**2
    if 4 * D * D > _BYTES:  # the smaller of two matrices: of all pairs, or of all values
        most = min(most, _BYTES / (4 * D))
    return max(random.MOST_ROWS, int(most))


def n_first(D: int, count: int) -> int:
    """Of how many of `count` blocks the limits are taken, of D columns, decoys and calibration columns."""
    return min(int(np.clip(_FIRST // (random.MOST_ROWS * D), 1, _MOST_FIRST)), count)


def n_holding(rows: int, n: int, count: int) -> int:
    """How many of `count` blocks of n rows have so many rows, about; 0 for none."""
    return int(np.clip(-(-rows * count // n), min(rows, 1), count))


class Limits(NamedTuple):
    """Between what the values of columns are left, (d,) each, where the backend computes."""

    low: Array
    high: Array
    far_below: Array  # beyond these a cell is far out
    far_above: Array
    deviation: Array  # of the values between them; above 0


class Blocks:
    """The rows of a fit in blocks.

    Parameters
    ----------
    X : (n, d)
        Scaled data, or a `dufs_core.data.matrix.ScaledMatrix`.
    table : Rows
        What is known of all rows.
    seed, threads : int
    most : int
        Rows that take part, about; of more rows so many are drawn.
    """

    def __init__(self, bk: Backend, X: Any, table: Rows, seed: int, threads: int, most: int) -> None:
        self._bk = bk
        self._table = table
        self._threads = threads
        self._seed = seed
        self.positions, self._ends = table.blocks(seed, random.Stream.DECOYS, 1, most)
        self.n = len(self.positions)
        self.n_given = X.shape[0]
        self._is_arranged = hasattr(X, "in_order")
        self._X = X.in_order(self.positions) if self._is_arranged else X

    def __len__(self) -> int:
        return len(self._ends)

    def in_table(self, positions: Array) -> Array:
        """Positions in the user's table."""
        return positions if self._table.kept is None else self._table.kept[positions]

    def n_rows(self, count: int) -> int:
        """Rows of the first blocks."""
        return int(self._ends[count - 1]) if count else 0

    def holding(self, rows: int) -> int:
        """How many of the first blocks have so many rows, about; 0 for none."""
        return n_holding(rows, self.n, len(self))

    def exchange(self, number: int) -> Exchange:
        """How the rows of a block are read and exchanged."""
        start = int(self._ends[number - 1]) if number else 0
        stop = int(self._ends[number])
        positions = self.positions[start:stop]
        rows = slice(start, stop) if self._is_arranged else self._bk.xp.asarray(positions)
        group = None if self._table.group is None else self._table.group[positions]
        seed = random.derived_seed(self._bk, self._seed, number)
        return Exchange(self._bk, self._table, RowSample(rows, group, positions), seed, words=random.quick_words)

    def read(self, exchange: Exchange, columns: Array) -> Array:
        """Columns (positions, NumPy) on the rows of a block, (d', n'), `Exchange.freed`."""
        return exchange.freed(exchange.read(self._X, columns))

    def mapped(self, function: Callable[[Exchange], Any], numbers: Sequence[int]) -> list[Any]:
        """function(exchange) for the blocks with these numbers."""
        return mapped(self._bk, lambda number: function(self.exchange(number)), numbers, self._threads)


class BlockPools:
    """Columns and decoys in every block, within limits that all blocks share, made when they are asked for.

    Parameters
    ----------
    blocks : Blocks
    columns : (d,) ndarray of int
        Positions of the columns that are not constant. Those that differ from their median in fewer than three of all
        rows are left out.
    one_scale : bool
        Whether columns weigh the same in graphs, whatever their deviation.
    seed : int
        Of the order of equal values.
    """

    def __init__(self, bk: Backend, blocks: Blocks, columns: Array, one_scale: bool, seed: int) -> None:
        self._bk = bk
        self.blocks = blocks

        # The limits, and the columns that vary.
        self._first = range(n_first(pool_size(len(columns)), len(blocks)))
        limits, varies = self._limits(columns)
        columns = columns[varies]
        deviation = bk.to_host(limits.deviation)[varies]
        kept = bk.xp.asarray(varies)
        self._limits_of = Limits(*(values[kept][:, None] for values in limits))

        # They compete under one order of equal values, and with one weight, in all blocks.
        middle = float(np.median(deviation)) if len(columns) else 1.0
        weights = np.ones(len(columns)) if one_scale else deviation.astype(np.float64) / middle
        self.pool = empty_pool(bk, columns, seed)._replace(scale=weights)

        # What is learned on the way.
        self._deviation: Array | None = None  # (D, 1) of values clipped at 2
        self.seed = seed
        self.correlations: Correlations | None = None  # on all rows, once they are made
        self._far = np.zeros(blocks.n_given, dtype=np.int32)  # in how many columns each row is far out

    @property
    def n_scored(self) -> int:
        """Rows whose graphs give the scores."""
        return self.blocks.n_rows(min(SCORED, len(self.blocks)))

    def linear(self, exchange: Exchange) -> Array:
        """Columns, decoys and calibration columns of a block, (D, n'): mean 0, variance about 1 over all blocks."""
        return self._with_decoys(exchange, self.blocks.read(exchange, self.pool.columns))

    def together(self) -> Iterator[Array]:
        """`linear` of all blocks, some at a time, (D, n'); cells that are far out are counted on the way."""
        xp = self._bk.xp
        limits = self._limits_of

        def counted(exchange: Exchange) -> Array:
            x = self.blocks.read(exchange, self.pool.columns)
            is_far = (x < limits.far_below) | (x > limits.far_above)
            self._far[exchange.sampled] = self._bk.to_host(is_far.sum(axis=0))
            return self._with_decoys(exchange, x)

        for start in range(0, len(self.blocks), TOGETHER):
            numbers = range(start, min(start + TOGETHER, len(self.blocks)))
            yield xp.concatenate(self.blocks.mapped(counted, numbers), axis=1)

    def correlate(self, threads: int, poll: Callable[[int], None]) -> Correlations:
        """The correlations of all rows, which `findings` reads, too; poll: is told how many rows are done."""
        self.correlations = Correlations(self._bk, self.together(), self.pool.size, self.blocks.n, threads, poll)
        return self.correlations

    def some(self, rows: int) -> Array:
        """`linear` of as many blocks as have so many rows, about, (D, n')."""
        numbers = range(self.blocks.holding(rows))
        return self._bk.xp.concatenate(self.blocks.mapped(self.linear, numbers), axis=1)

    def first(self) -> Pool:
        """The pool of the first block, clipped for its graph."""
        xp = self._bk.xp
        parts = [self._clipped(part) for part in self.blocks.mapped(self.linear, self._first)]
        squares = sum((part * part).sum(axis=1) for part in parts)
        deviation = xp.sqrt(squares / sum(part.shape[1] for part in parts))[:, None]
        self._deviation = xp.where(deviation > 0, deviation, 1).astype(parts[0].dtype)
        return self.pool._replace(X=parts[0] / self._deviation)

    def scored(self) -> Iterator[list[Pool]]:
        """The pools of at most 128 blocks, clipped for their graphs, some at a time; after `first`."""

        def made(exchange: Exchange) -> Pool:
            return self.pool._replace(X=self._clipped(self.linear(exchange)) / self._deviation)

        count = min(SCORED, len(self.blocks))
        for start in range(0, count, SCORED_TOGETHER):
            yield self.blocks.mapped(made, range(start, min(start + SCORED_TOGETHER, count)))

    def _with_decoys(self, exchange: Exchange, x: Array) -> Array:
        """The columns x (d, n') of a block within their limits, with decoys and calibration columns, (D, n')."""
        limits = self._limits_of
        x = exchange.bounded(x, limits.low, limits.high) / limits.deviation
        return with_copies(self._bk, exchange, x, self.pool, exchange.unbounded)[0]

    def _clipped(self, x: Array) -> Array:
        x = self._bk.xp.clip(x, -CLIP, CLIP)
        return x - x.mean(axis=1, keepdims=True)

    def _limits(self, columns: Array) -> tuple[Limits, Array]:
        """The limits of columns, and which of them differ from their median in three rows, NumPy."""
        bk = self._bk
        xp = bk.xp
        x = xp.concatenate(self.blocks.mapped(lambda e: self.blocks.read(e, columns), self._first), axis=1)
        middle = xp.median(x, axis=1, keepdims=True).astype(x.dtype)
        scale = spread(bk, abs(x - middle))
        reached = reach(self.blocks.n)

        # As far from the median as a scale allows that one cell cannot move, and from the mean as the deviation does.
        lowest = middle - reached * scale
        highest = middle + reached * scale
        x = xp.clip(x, lowest, highest)
        mean = x.mean(axis=1, keepdims=True)
        deviation = x.std(axis=1, keepdims=True)
        low = xp.maximum(lowest, mean - reached * deviation)
        high = xp.minimum(highest, mean + reached * deviation)
        deviation = xp.clip(x, low, high).std(axis=1, keepdims=True)
        far = FAR_OUT * scale
        limits = Limits(*(values[:, 0] for values in (low, high, middle - far, middle + far, deviation)))

        # Columns that say nothing in these blocks are judged by all rows.
        differ = bk.to_host((x != middle).sum(axis=1))
        varies = (differ >= FEWEST_ROWS) & bk.to_host(limits.deviation > 0)
        rare = np.flatnonzero(~varies)
        if len(rare):
            varies[rare] = self._judged_by_all(limits, columns, middle[:, 0], rare)
        return limits, varies

    def _judged_by_all(self, limits: Limits, columns: Array, middle: Array, rare: Array) -> Array:
        """Which of some columns differ from their median in three of all rows; they have no limits from now on."""
        bk = self._bk
        xp = bk.xp
        at = xp.asarray(rare)

        def of(exchange: Exchange) -> tuple[Array, Array]:
            x = self.blocks.read(exchange, columns[rare]) - middle[at, None]
            return (x != 0).sum(axis=1), (x * x).sum(axis=1)

        parts = self.blocks.mapped(of, range(len(self.blocks)))
        counts = bk.to_host(sum(count for count, _ in parts))
        deviation = xp.sqrt(sum(squares for _, squares in parts) / self.blocks.n).astype(limits.deviation.dtype)
        limits.deviation[at] = xp.where(deviation > 0, deviation, 1)
        for below in (limits.low, limits.far_below):
            below[at] = -xp.inf
        for above in (limits.high, limits.far_above):
            above[at] = xp.inf
        return (counts >= FEWEST_ROWS) & bk.to_host(deviation > 0)

    def findings(self, is_broad: bool) -> tuple[Finding, ...]:
        """What all rows say against exchanging them: far rows, and, where most columns are selected, one factor."""
        positions = self.blocks.positions
        found = [far_rows(self._far[positions], len(self.pool.columns), self.blocks.in_table(positions))]
        if is_broad and self.correlations is not None:
            some = np.linspace(0, len(self.pool.columns) - 1, min(len(self.pool.columns), MOST_COLUMNS))
            r = self.correlations.of(some.astype(np.intp))
            found.append(one_factor(r, self.blocks.n, self.seed))
        return tuple(finding for finding in found if finding is not None)
