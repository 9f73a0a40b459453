"""Which columns depend on one other column: a look at all pairs, without gates."""

from __future__ import annotations

from functools import cached_property
from math import sqrt

import numpy as np

from dufs_core.backend import Array, Backend, random
from dufs_core.data.matrix import dense

SHUFFLES = 19  # a tie above the strongest of each of them has p <= 1/20
_ROWS = 128  # more rows are sampled down to this many
_COLUMNS = 400  # the pairs of more columns would take longer than the runs
_BANDWIDTH = 0.3  # in units of a column's variance: resolves rings and arms of moons, chance pairs not much more than 1


class PairwiseHSIC:
    """The dependence of all pairs among the first 400 columns of a ranking.

    Parameters
    ----------
    X : (n, d)
        Scaled data, where the backend computes, or a `dufs_core.data.matrix.ScaledMatrix`.
    ranking : (d',) int, NumPy
        Positions in X, best first.
    """

    def __init__(self, bk: Backend, X: Array, ranking: Array) -> None:
        self.columns = np.sort(ranking[:_COLUMNS])
        self._all = len(ranking) <= _COLUMNS
        n = X.shape[0]
        rows = slice(None) if n <= _ROWS else random.permutation(bk, 0, random.Stream.PERMUTATION, 1, n)[:_ROWS]
        self._bk, self._X = bk, dense(bk, X, rows, self.columns)

    @cached_property
    def z(self) -> Array:
        """`dependence` of the columns."""
        return hsic_z_scores(self._bk, self._X)

    @property
    def strongest(self) -> Array:
        """The columns in the order of their strongest tie to another one."""
        return self.columns[np.argsort(-self.z.max(axis=1, initial=0.0), kind="stable")]

    def all_dependent(self, selection: Array) -> bool:
        """Whether every selected column depends on another selected one beyond what chance offers, p <= 0.05.

        Chance is the strongest tie between any two columns after a permutation of each on its own: the largest of
        all pairs, since the runs looked for it. selection (m,) int, NumPy, positions in X. Fewer than two columns are
        not tied, and none are where a run had to choose the 400 among more: chance would have to allow for that.
        """
        if len(selection) < 2 or not self._all:
            return False
        chosen = np.searchsorted(self.columns, selection)
        weakest = self.z[np.ix_(chosen, chosen)].max(axis=1).min()
        return all(self._strongest_by_chance(b) < weakest for b in range(SHUFFLES))

    def _strongest_by_chance(self, b: int) -> float:
        xp = self._bk.xp
        row, column = xp.arange(len(self._X))[:, None], xp.asarray(self.columns)[None, :]
        keys = random.words(self._bk, 0, random.Stream.PERMUTATION, 2, b, row, column)
        shuffled = xp.take_along_axis(self._X, xp.argsort(keys, axis=0), axis=0)
        return float(hsic_z_scores(self._bk, shuffled).max())


def hsic_z_scores(bk: Backend, X: Array) -> Array:
    """How far every pair of columns is from independence, (d, d), symmetric, diagonal 0; NumPy.

    z(k, l) = (H_kl - E) / s with H_kl = <C_k, C_l>, the inner product of the doubly centred kernel matrices of two
    columns, K_k,ij = exp(-(x_ik - x_jk)^2 / b), b = 0.3 times the column's variance. E = tr C_k tr C_l / (n - 1) is its
    mean over all permutations of one of the columns, s = sqrt(2) |C_k| |C_l| / n about its spread.

    Any kind of dependence raises z as n grows. Source: Gretton, Bousquet, Smola and Schoelkopf, "Measuring statistical
    dependence with Hilbert-Schmidt norms" (ALT 2005). X (n, d); a constant column has z = 0.
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
