"""Dependence of all pairs of columns: the strongest of every column, and the likely ones as a graph.

The pairs are computed in square tiles that stay in the cache, and only those of one side of the diagonal: each tile
counts for its rows and for its columns.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log, pi, sqrt
from threading import Lock
from typing import Any

import numpy as np
from scipy import sparse
from scipy.stats import rankdata
from sklearn.utils import gen_batches

from dufs_core.backend import Array, Backend, random
from dufs_core.backend.threads import mapped

MOST_PARTNERS = 64  # strongest dependences of a column that count
TILE = 512  # columns: 1 MiB of float32
_TILE_ON_GPU = 4096  # fewer launches
SAMPLED = 1 << 21  # pairs that the quantile is read from
_FUNCTIONS = 6  # most functions of a column that are correlated with those of another
_LEAST_LEFT = 1e-3  # of the mean square of a function, once it is orthogonal to those before
_PRODUCTS = 3e10  # multiply-adds that the pairs may take before fewer functions are used
_VALUES = 1 << 22  # of a function, on more than 512 rows
_SCATTER = 2654435761  # multiples of it, modulo 2^32, scatter numbers evenly
_LIKELY = 0.7  # a dependence counts that fewer than D^-0.7 of all shuffled pairs reach


def pair_dependence(bk: Backend, X: Array, competing: int, threads: int, count: int) -> tuple[Array, Any]:
    """The strongest dependence of every column, (D,), and the likely ones as a sparse matrix (D, D).

    The dependence of two columns is sum_ab w_a w_b (n r_ab^2 - 1), r_ab the correlation of function a of one with
    function b of the other, w_a = a^(-1/2) (`functions_of`). A ring or two moons need them, monotone
    dependence does not.

    Parameters
    ----------
    X : (D, n)
        Rows of mean 0 and variance 1; those from `competing` on are known to be shuffled.
    count : int
        Functions of a column, `n_functions`.
    """
    return strongest_partners(bk, len(X), competing, compared(bk, X, count), X.dtype, threads)


def compared(bk: Backend, X: Array, count: int) -> Callable[[slice, slice], Array]:
    """The dependence of two blocks of the columns X (D, n), as a matrix, by so many functions of each."""
    functions, exist = functions_of(bk, X, count)
    weight = np.arange(1, count + 1) ** -0.5

    def dependence(I: slice, J: slice) -> Array:
        Q = None
        for a in range(count):
            for b in range(count):
                r = functions[a][I] @ functions[b][J].T
                r *= r
                r -= exist[a][I, None] * exist[b][J] if count > 1 else X.dtype.type(1)
                r *= X.dtype.type(weight[a] * weight[b])
                Q = r if Q is None else Q + r
        return Q

    return dependence


def strongest_partners(
    bk: Backend, D: int, competing: int, dependence: Callable[[slice, slice], Array], dtype: Any, threads: int
) -> tuple[Array, Any]:
    """`pair_dependence` from any dependence of two blocks of columns, as a matrix."""
    xp = bk.xp
    sample = dependence(slice(competing, competing + n_sampled(D, competing)), slice(0, competing))
    tail = D**-_LIKELY / sqrt(pi * max(_LIKELY * log(D), 1.0))
    likely = np.dtype(dtype).type(float(xp.quantile(sample.ravel().astype(np.float32), 1 - tail)))
    tile = TILE if bk.name == "numpy" else _TILE_ON_GPU
    blocks = list(gen_batches(D, tile))
    partners = [_Partners(bk, block, likely) for block in blocks]

    def compare(number: int) -> None:
        I, own = blocks[number], partners[number]
        for J, others in zip(blocks[number:], partners[number:], strict=True):
            Q = dependence(I, J)
            if others is own:
                Q[xp.arange(len(Q)), xp.arange(len(Q))] = -xp.inf
            else:
                others.add(Q, I.start, 1)
            own.add(Q, J.start, 0)

    mapped(bk, compare, range(len(blocks)), threads)
    found = zip(*mapped(bk, _Partners.found, partners, threads), strict=True)
    strongest, column, partner, value = (bk.to_host(xp.concatenate(part)) for part in found)
    return strongest, sparse.csr_array((np.sqrt(value - likely), (column, partner)), shape=(D, D))


def n_sampled(D: int, competing: int) -> int:
    """Of how many calibration columns the pairs with all competing ones give the quantile."""
    return min(D - competing, max(1, SAMPLED // D))


def n_functions(D: int, n: int, products: float = _PRODUCTS) -> int:
    """As many functions of D columns on n rows as so many multiply-adds allow, 6 for small data."""
    return int(np.clip(sqrt(max(products, _PRODUCTS) / (n * D * D)), 1, _FUNCTIONS))


def rows_of_functions(D: int, n: int) -> tuple[int, int]:
    """How many functions of D columns are compared on how many of n rows: 512, or as many more as cost n D^2 / 8.

    They have at most 2^22 values each. One function on 0 rows, where there is time for no more: on all rows it is
    compared anyway.
    """
    products = max(_PRODUCTS, n * D * D / 8)
    count = n_functions(D, random.MOST_ROWS, products)
    if count == 1:
        return count, 0
    most = min(products / (count * D) ** 2, _VALUES / D, n)
    return count, max(random.MOST_ROWS, int(most))


class _Partners:
    """The strongest likely dependences of a block of columns, 64 of each and ties, from tiles in any order.

    Of more than 128, as copies have, ties are left out in an order of the partners that is as good as random.
    """

    def __init__(self, bk: Backend, block: slice, likely: Any) -> None:
        self._xp, self._start, self._lock = bk.xp, block.start, Lock()
        size = block.stop - block.start
        self._least = bk.xp.full(size, np.nextafter(likely, likely.dtype.type(np.inf)))  # that can be among them
        self._strongest = bk.xp.full(size, -np.inf, dtype=likely.dtype)
        self._parts: list[tuple[Array, Array, Array]] = []
        self._count, self._most = 0, MOST_PARTNERS * size

    def add(self, Q: Array, start: int, axis: int) -> None:
        """Take in a tile of dependences, of all columns of the block along `axis` on others, from `start` on."""
        xp = self._xp
        strongest = Q.max(axis=1 - axis)
        with self._lock:
            self._strongest = xp.maximum(self._strongest, strongest)
            at = self._likely(Q, axis)
            if len(at[0]) > self._most:
                self._raise(Q if axis == 0 else xp.ascontiguousarray(Q.T))
                at = self._likely(Q, axis)
            column, partner = at[axis], at[1 - axis]
            self._parts.append((column.astype(np.int16), (partner + start).astype(np.int32), Q[at]))
            self._count += len(column)
            if self._count > self._most:
                self._leave_the_strongest()
                self._most = 2 * self._count + MOST_PARTNERS * len(self._least)

    def found(self) -> tuple[Array, Array, Array, Array]:
        """The strongest dependence of every column, (block,); columns, partners and dependences of the likely ones."""
        self._leave_the_strongest()
        column, partner, value = self._parts[0]
        return self._strongest, column.astype(np.int32) + self._start, partner, value

    def _likely(self, Q: Array, axis: int) -> tuple[Array, Array]:
        at = self._xp.flatnonzero((self._least[:, None] if axis == 0 else self._least) <= Q)
        return at // Q.shape[1], at % Q.shape[1]  # several times faster than `nonzero`

    def _raise(self, values: Array) -> None:
        """The strongest are at least the 64th largest of any values (block, at least 64) of the columns."""
        xp, place = self._xp, values.shape[1] - MOST_PARTNERS
        self._least = xp.maximum(self._least, xp.partition(values, place, axis=1)[:, place])

    def _leave_the_strongest(self) -> None:
        xp = self._xp
        column, partner, value = (xp.concatenate(part) for part in zip(*self._parts, strict=True))
        order = xp.argsort(column, kind="stable")
        count = xp.bincount(column, minlength=len(self._least))
        table = xp.full((len(count), max(int(count.max()), MOST_PARTNERS)), -xp.inf, dtype=value.dtype)
        own = column[order]
        table[own, xp.arange(len(own)) - (xp.cumsum(count) - count)[own]] = value[order]
        self._raise(table)
        keep = self._least[column] <= value
        column, partner, value = column[keep], partner[keep], value[keep]
        if int(xp.bincount(column, minlength=1).max()) > 2 * MOST_PARTNERS:
            column, partner, value = self._with_few_ties(column, partner, value)
        self._parts = [(column, partner, value)]
        self._count = len(column)

    def _with_few_ties(self, column: Array, partner: Array, value: Array) -> tuple[Array, Array, Array]:
        """64 partners of the columns that have more than 128, all of the others."""
        xp = self._xp
        scattered = partner.astype(xp.uint32) * xp.uint32(_SCATTER)
        order = xp.lexsort(xp.stack([scattered.astype(value.dtype), -value, column.astype(value.dtype)]))
        count = xp.bincount(column)
        own = column[order]
        place = xp.arange(len(own)) - (xp.cumsum(count) - count)[own]
        kept = order[(place < MOST_PARTNERS) | (count[own] <= 2 * MOST_PARTNERS)]
        return column[kept], partner[kept], value[kept]


def functions_of(bk: Backend, X: Array, count: int) -> tuple[list[Array], list[Array]]:
    """Functions 1..count of every column, each (D, n), mean 0 and sum of squares sqrt(n); which of them exist, (D,).

    Function 1 is the column itself, function a > 1 cos(pi a u), u the rank / n, made orthogonal to those before it, and
    0 where little is left of it: a column of two values has one function.
    """
    n = X.shape[1]
    size: float = n**-0.25  # a product of two is then sqrt(n) times their correlation
    functions, exist = [X * X.dtype.type(size)], [bk.xp.ones(len(X), dtype=X.dtype)]
    if count == 1:
        return functions, exist
    u = (rankdata(bk.to_host(X), axis=1) - 0.5) / n
    basis = [bk.to_host(X).astype(np.float64) / sqrt(n)]
    for a in range(2, count + 1):
        f = np.cos(pi * a * u)
        f -= f.mean(axis=1, keepdims=True)
        for before in basis + basis:  # once more, for what rounding leaves
            f -= (f * before).sum(axis=1, keepdims=True) * before
        square = (f * f).sum(axis=1, keepdims=True)
        f *= np.where(square > _LEAST_LEFT * n, 1 / np.sqrt(np.maximum(square, _LEAST_LEFT * n)), 0)
        basis.append(f)
        functions.append(bk.xp.asarray((f / size).astype(X.dtype)))
        exist.append(bk.xp.asarray((square[:, 0] > _LEAST_LEFT * n).astype(X.dtype)))
    return functions, exist
