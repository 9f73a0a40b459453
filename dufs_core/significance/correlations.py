"""Correlations of all columns, decoys and calibration columns on all rows: what many rows say that 512 do not.

Weak structure is in each pair of columns, and rare structure is in few rows: neither is seen on the graph of a block.
Both are plain in sums over all rows. The correlations are kept whole, as the smaller of two matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from sklearn.utils import gen_batches

from dufs_core.backend import Array, Backend
from dufs_core.backend.threads import mapped
from dufs_core.significance.pairs import strongest_partners

TILE = 1024  # columns: a product of two tiles keeps a core busy


class Correlations:
    """z_kl = n^(1/2) r_kl of all pairs, r the correlation on n rows; N(0, 1) by chance.

    A column whose largest value exceeds n^(1/4) standard deviations is divided by more than its deviation, so that one
    row adds at most 1 to any z.

    Parameters
    ----------
    blocks : iterable of (D, n') arrays
        Values of mean 0 and variance about 1, that together are all n rows.
    D, n, threads : int
    poll : callable
        Is told after each of them how many rows are done.
    """

    def __init__(
        self, bk: Backend, blocks: Iterable[Array], D: int, n: int, threads: int, poll: Callable[[int], None]
    ) -> None:
        xp = bk.xp
        self._bk = bk
        self._threads = threads
        self._is_whole = n > D
        self._matrix: Array = None  # (D, D): z, or (D, n): values whose products are z, if that is the smaller one

        # Sums over the rows, of pairs and of each column.
        squares = xp.zeros(D)
        peak = xp.zeros(D)
        kept: list[Array] = []
        rows = 0
        for Z in blocks:
            squares += xp.einsum("kn,kn->k", Z, Z)
            peak = xp.maximum(peak, xp.maximum(Z.max(axis=1), -Z.min(axis=1)))
            if self._is_whole:
                self._add(Z)
            else:
                kept.append(Z)
            rows += Z.shape[1]
            dtype = Z.dtype
            del Z  # before the next are made
            poll(rows)

        # Every column to its unit.
        unit = xp.maximum(xp.sqrt(squares / n), peak / n**0.25) * n**0.25
        factor = xp.where(unit > 0, 1 / xp.where(unit > 0, unit, 1), 0)
        factor = factor.astype(dtype)
        if self._is_whole:
            self._scale(factor)
        else:
            self._matrix = xp.concatenate(kept, axis=1)
            self._matrix *= factor[:, None]

    def partners(self, competing: int) -> tuple[Array, Any]:
        """The largest z^2 - 1 of every column, (D,), and the likely pairs as a sparse matrix (D, D)."""

        def dependence(I: slice, J: slice) -> Array:
            Q = self._tile(I, J)
            return Q * Q - 1

        D = len(self._matrix)
        return strongest_partners(self._bk, D, competing, dependence, self._matrix.dtype, self._threads)

    def with_members(self, members: Array) -> Array:
        """The sum of z_kj^2 - 1 over the members j other than k, of every column k; (D,) float64, NumPy."""
        xp = self._bk.xp
        at = xp.asarray(members)

        def of(some: slice) -> Array:
            z = self._matrix[some][:, at] if self._is_whole else self._matrix[some] @ self._matrix[at].T
            z = z * z - 1
            z[xp.arange(some.start, some.stop)[:, None] == at[None, :]] = 0
            return self._bk.to_host(z.sum(axis=1, dtype=np.float64))

        return np.concatenate(mapped(self._bk, of, gen_batches(len(self._matrix), TILE), self._threads))

    def of(self, columns: Array) -> Array:
        """The correlations of some of the columns with one another, (m, m) float64, NumPy; 1 with themselves."""
        xp = self._bk.xp
        at = xp.asarray(columns)
        z = self._matrix[at][:, at] if self._is_whole else self._matrix[at] @ self._matrix[at].T
        r = self._bk.to_host(z).astype(np.float64)
        size = np.sqrt(np.diagonal(r))
        return np.asarray(r / np.outer(size, size))

    def _tile(self, I: slice, J: slice) -> Array:
        return self._matrix[I, J] if self._is_whole else self._matrix[I] @ self._matrix[J].T

    def _add(self, Z: Array) -> None:
        """Add the products of all pairs of rows of Z, in tiles on and above the diagonal."""
        D = len(Z)
        if self._matrix is None:
            self._matrix = self._bk.xp.zeros((D, D), dtype=Z.dtype)
        total = self._matrix

        def add(tiles: tuple[slice, slice]) -> None:
            I, J = tiles
            total[I, J] += Z[I] @ Z[J].T

        mapped(self._bk, add, _upper(D), self._threads)

    def _scale(self, factor: Array) -> None:
        """Divide products by the units of both columns, and copy them to below the diagonal."""
        total = self._matrix

        def scale(tiles: tuple[slice, slice]) -> None:
            I, J = tiles
            total[I, J] *= factor[I, None] * factor[J]
            total[J, I] = total[I, J].T

        mapped(self._bk, scale, _upper(len(total)), self._threads)


def _upper(D: int) -> list[tuple[slice, slice]]:
    """Pairs of tiles of D columns, the second not before the first."""
    tiles = list(gen_batches(D, TILE))
    return [(I, J) for i, I in enumerate(tiles) for J in tiles[i:]]
