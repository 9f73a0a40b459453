"""Dependence of a column on the product of others: structure that no pair of columns shows.

Of two random signs and their product every two are independent. So is each of a column's partners in a product, in
XOR and in the parity of several: only together do they say what the column is.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import comb
from typing import Any

import numpy as np

from dufs_core.backend import Array, Backend
from dufs_core.backend.threads import mapped

PRODUCTS = 4e10  # multiply-adds that products of one size may take
SIZES = (2, 3)  # columns of a product
CALIBRATION = 120  # calibration columns that the null distribution is read from
_FEWEST_ROWS = 100  # that products are worth asking on, where there are more
TOGETHER = 1024  # products at a time


def rows_of_products(competing: int, n: int) -> dict[int, int]:
    """By the size of products of so many columns: how many of n rows they can be compared with all columns on.

    All, or as many as the multiply-adds allow; sizes for which that would be fewer than 100 are left out.
    """
    found = {}
    for size in SIZES:
        pairs = comb(competing, size) * (competing + CALIBRATION)
        rows = min(n, int(PRODUCTS // max(pairs, 1)))
        if rows >= min(n, _FEWEST_ROWS):
            found[size] = rows
    return found


def product_dependence(bk: Backend, X: Array, competing: int, size: int, rows: int, threads: int) -> Array:
    """The strongest dependence of each column on a product of `size` others.

        max over i < j (< l), all other than k, of |r(x_i x_j (x_l), x_k)| sqrt(n),    r the correlation.

    A product that the column itself is part of says nothing of it. Every product counts alike for columns, decoys and
    calibration columns, which have no products of their own.

    Parameters
    ----------
    X : (D, n)
        Rows of mean 0 and variance 1; those from `competing` on are known to be shuffled.
    size : int
        2 or 3.
    rows : int
        How many of the n rows are looked at, evenly spread.

    Returns
    -------
    ndarray (competing + c,), float64, NumPy
        Of the first columns of X: the competing ones and at most 120 for calibration.
    """
    xp = bk.xp
    n = X.shape[1]
    scored = X[: competing + CALIBRATION]
    if rows < n:
        scored = scored[:, xp.arange(rows) * n // rows]
        scored = scored - scored.mean(axis=1, keepdims=True)
        deviation = xp.sqrt((scored * scored).mean(axis=1, keepdims=True))
        scored /= xp.where(deviation > 0, deviation, 1)

    best = np.zeros(len(scored))
    for part in mapped(bk, partial(strongest, bk, scored), _subsets(competing, size), threads):
        best = np.maximum(best, bk.to_host(part).astype(np.float64))
    return best


def strongest(bk: Backend, scored: Array, chosen: Array) -> Array:
    """The strongest dependence of each of the columns (m, n) on one of some products, by positions (size, k)."""
    xp = bk.xp

    # products, as columns of mean 0 and length 1
    factors = xp.asarray(chosen)
    product = scored[factors[0]]
    for factor in factors[1:]:
        product = product * scored[factor]
    product = product - product.mean(axis=1, keepdims=True)
    length = xp.sqrt((product * product).sum(axis=1, keepdims=True))
    product /= xp.where(length > 0, length, 1)

    # their correlations with all columns but their own factors
    r = abs(scored @ product.T)
    for factor in factors:
        r[factor, xp.arange(len(factor))] = 0
    return r.max(axis=1)


def n_parts(competing: int, size: int) -> int:
    """In how many parts the products of so many columns are compared."""
    if size > 2:
        return sum(-(-comb(competing - first - 1, size - 1) // TOGETHER) for first in range(competing))
    return -(-comb(competing, size) // TOGETHER)


def _subsets(count: int, size: int) -> Iterator[Any]:
    """All subsets of the first whole numbers, as arrays (size, m) of increasing ones, some at a time."""
    firsts = range(count) if size > 2 else [None]
    for first in firsts:
        least = 0 if first is None else first + 1
        pairs = np.stack(np.triu_indices(max(0, count - least), 1)) + least
        for start in range(0, pairs.shape[1], TOGETHER):
            some = pairs[:, start : start + TOGETHER]
            yield some if first is None else np.concatenate([np.full((1, some.shape[1]), first), some])
