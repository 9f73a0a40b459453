"""Dependence between pairs of columns: the Hilbert-Schmidt independence criterion (HSIC) of every pair, without gates.

Source: Gretton, Bousquet, Smola and Schoelkopf, "Measuring Statistical Dependence with Hilbert-Schmidt Norms", ALT
2005.

The search with the measure of `dufs_core.significance.pairs` takes 20 of 48 right answers on three tight clusters among
100 columns for noise; decoys with this one lose two moons (bench/evidence/defaults.md, "Two measures of dependence").
"""

from __future__ import annotations

from math import sqrt

import numpy as np

from dufs_core.backend import Array, Backend, random
from dufs_core.backend.threads import lazy
from dufs_core.data.matrix import dense_block
from dufs_core.significance.rows import Rows

SHUFFLES = 19  # a dependence above the strongest of each of them has p <= 1/20
ROWS = 128  # more rows are sampled down to this many
COLUMNS = 400  # the pairs of more columns would take longer than the runs
_BANDWIDTH = 0.3  # in units of a column's variance: resolves rings and arms of moons, chance pairs not much more than 1


class PairwiseHSIC:
    """Dependence of all pairs among the first 400 columns of a ranking.

    Parameters
    ----------
    X : (n, d)
        Scaled data, where the backend computes, or a `dufs_core.data.matrix.ScaledMatrix`.
    ranking : (d',) int, NumPy
        Positions in X, best first.
    table : Rows, optional
        Which rows may be exchanged; default all.
    """

    def __init__(self, bk: Backend, X: Array, ranking: Array, table: Rows | None = None) -> None:
        self.columns = np.sort(ranking[:COLUMNS])
        self._has_all = len(ranking) <= COLUMNS
        table = Rows(X.shape[0]) if table is None else table
        rows, self._group, _ = table.sample(bk, 0, random.Stream.PERMUTATION, 1, ROWS)
        self._bk, self._X = bk, dense_block(bk, X, rows, self.columns)

    @lazy
    def z(self) -> Array:
        """`hsic_z_scores` of the columns."""
        return hsic_z_scores(self._bk, self._X)

    @property
    def strongest(self) -> Array:
        """The columns by their strongest dependence on another one, descending."""
        return self.columns[np.argsort(-self.z.max(axis=1, initial=0.0), kind="stable")]

    def all_dependent(self, selection: Array) -> bool:
        """Whether every selected column is pairwise dependent on another selected one, with p <= 0.05.

        The null is the largest z of all pairs after a permutation of each column, because the runs searched all pairs.
        selection (m,) int, NumPy, positions in X. False for fewer than two columns, and where the 400 columns are a
        choice among more, which the null would have to repeat.
        """
        if len(selection) < 2 or not self._has_all:
            return False
        chosen = np.searchsorted(self.columns, selection)
        weakest = self.z[np.ix_(chosen, chosen)].max(axis=1).min()
        return all(hsic_z_scores(self._bk, self._shuffled(b)).max() < weakest for b in range(SHUFFLES))

    def _shuffled(self, b: int) -> Array:
        """Shuffle number b of the rows, each column on its own."""
        xp = self._bk.xp
        row = xp.arange(len(self._X))[:, None]
        column = xp.asarray(self.columns)[None, :]
        drawn = random.words(self._bk, 0, random.Stream.PERMUTATION, 2, b, row, column)
        if self._group is None:
            return xp.take_along_axis(self._X, xp.argsort(drawn, axis=0), axis=0)

        # the group stands above the random bits, and the sorted rows go where the rows of their group are
        above = xp.asarray(self._group, dtype=xp.uint64) << xp.uint64(48)
        order = xp.argsort((drawn >> xp.uint64(16)) | above[:, None], axis=0)
        out = xp.empty_like(self._X)
        out[xp.argsort(above, kind="stable")] = xp.take_along_axis(self._X, order, axis=0)
        return out


def hsic_z_scores(bk: Backend, X: Array) -> Array:
    """Standardised HSIC of every pair of columns, (d, d) NumPy, symmetric, diagonal 0.      X (n, d).

    z_kl = (H_kl - E) / s with H_kl = <C_k, C_l>, the inner product of the doubly centred kernel matrices of two
    columns, K_k,ij = exp(-(x_ik - x_jk)^2 / b), b = 0.3 times the column's variance. E = tr C_k tr C_l / (n - 1) is its
    mean over all permutations of one of the columns, s = sqrt(2) |C_k| |C_l| / n about its standard deviation. Any kind
    of dependence raises z as n grows. A constant column has z = 0.
    """
    xp = bk.xp
    n, d = X.shape
    spread = X.std(axis=0)
    columns = xp.ascontiguousarray((X / xp.where(spread > 0, spread, 1)).T)  # (d, n)
    C = columns[:, :, None] - columns[:, None, :]  # (d, n, n), the only array of its size
    C *= C
    C *= -1.0 / _BANDWIDTH
    xp.exp(C, out=C)
    C -= C.mean(axis=1, keepdims=True)
    C -= C.mean(axis=2, keepdims=True)
    flat = C.reshape(d, n * n)
    H = bk.to_host(flat @ flat.T).astype(np.float64)
    trace = bk.to_host(flat[:, :: n + 1].sum(axis=1)).astype(np.float64)
    size = np.sqrt(np.diag(H))
    s = sqrt(2) / n * np.outer(size, size)
    z: Array = np.divide(H - np.outer(trace, trace) / (n - 1), s, out=np.zeros((d, d)), where=s > 1e-12 * n)
    np.fill_diagonal(z, 0.0)
    return z
