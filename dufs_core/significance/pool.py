"""Columns, their decoys and the calibration columns: what competes, in one order of rows or block after block."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dufs_core.backend import Array, Backend, random
from dufs_core.significance.exchange import Exchange

MOST_DECOYS = 5  # of a column: two columns can then be found at a rate of 0.1
_DECOYS = 8000  # of all columns, about
_CALIBRATION = (400, 1000)  # fewest and most calibration columns


class Pool(NamedTuple):
    """Columns, decoys and calibration columns on at most 512 rows, on one scale (`dufs_core.significance.exchange`).

    Row p of X is column p for p < d, decoy number p // d of column p % d for p < (1 + M) d, else calibration.
    """

    X: Array  # (D, n)
    columns: Array  # (d,) positions in the data, NumPy
    scale: Array  # (d,) weight: standard deviation in the scaled data, its median taken as 1, or 1 each; NumPy
    n_decoys: int  # M
    exchange: Exchange | None  # of the rows
    tiebreak: Array  # (D,) NumPy, random order of equal values: position must not favour columns over decoys

    @property
    def competing(self) -> int:
        """(1 + M) d, the columns that are not for calibration."""
        return len(self.columns) * (1 + self.n_decoys)

    @property
    def size(self) -> int:
        """D."""
        return len(self.tiebreak)

    def best(self, values: Array, count: int | None = None) -> Array:
        """The positions of the largest values."""
        return np.lexsort((self.tiebreak[: len(values)], -values))[:count]

    def scales(self, members: Array) -> Array:
        """`scale` of some of the columns and decoys."""
        return self.scale[members % len(self.columns)]


def n_decoys(d: int) -> int:
    """M, the decoys of each of d columns: 5 of few, 1 of very many."""
    return int(np.clip(round(_DECOYS / max(d, 1)), 1, MOST_DECOYS))


def n_calibration(d: int) -> int:
    """The number of calibration columns beside d columns."""
    return int(np.clip(d, *_CALIBRATION))


def pool_size(d: int) -> int:
    """D, of d columns: these, their decoys and the calibration columns."""
    return d * (1 + n_decoys(d)) + n_calibration(d)


def empty_pool(bk: Backend, columns: Array, seed: int) -> Pool:
    """The pool of columns (positions, NumPy), of one scale, before any row is read."""
    d = len(columns)
    tiebreak = bk.to_host(random.permutation(bk, seed, random.Stream.DECOYS, 2, pool_size(d)))
    return Pool(bk.xp.empty((0, 0)), columns, np.ones(d), n_decoys(d), None, tiebreak)


def with_copies(
    bk: Backend, exchange: Exchange, values: Array, pool: Pool, *finishes: Callable[[Array], Array]
) -> list[Array]:
    """Prepared values (d, n) of the columns of a pool with those of decoys and calibration columns, (D, n).

    One array for each way to finish columns and decoys alike.
    """
    xp = bk.xp
    d = len(pool.columns)
    M = pool.n_decoys
    C = pool.size - pool.competing

    # calibration columns: every column several times, or evenly spread ones once
    number = np.arange(C if d else 0)
    is_few = 0 < d <= C
    at = M + number // d if is_few else np.full(len(number), M)
    source = number % d if is_few else number * d // C
    order = exchange.orders(M + -(-C // d), pool.columns) if d else None

    def finished(finish: Callable[[Array], Array]) -> Array:
        copies = [finish(values)]
        if order is not None:
            copies += [finish(xp.take_along_axis(values, order[m], axis=1)) for m in range(M)]
            shuffled = xp.take_along_axis(values[xp.asarray(source)], order[xp.asarray(at), xp.asarray(source)], axis=1)
            copies.append(finish(shuffled))
        return xp.concatenate(copies)

    return [finished(finish) for finish in finishes]
