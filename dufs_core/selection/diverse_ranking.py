"""Order columns so that the first few explain the structure in all of them, by greedy column subset selection.

Gates and scores decide column by column, so that copies of one strong column all come first; here the first columns
complement each other.
"""

from __future__ import annotations

from collections.abc import Callable
from math import frexp
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils import gen_batches

from dufs_core.backend import Array, Backend, random
from dufs_core.backend.threads import mapped
from dufs_core.data.matrix import dense_block

ROWS = 1024  # more rows are sampled down to this many: n^2 (n + d') operations, and n d' a column, stay seconds
CANDIDATES = 16384  # of more columns those with the largest mu: 134 MB of float64 with 1,024 rows
NEIGHBOURS = 5  # among many columns distances are nearly equal, and only the nearest rows say something; MCFS takes 5
POWER = 2  # steps of the walk; one was worse on five of five data sets, three no better (bench/evidence/defaults.md)
BEST, AHEAD = 512, 32  # columns that are chosen from, so many steps ahead
_PART = 128  # rows whose products with a column are added up at a time
_SUMMED = 4096  # columns of a part of the Gram matrix
BLOCK = 512  # columns whose products are held at once: beside n x n arrays of 1,024 rows they are small
_LEAST = 0.01  # share of a column that is at least noise (a copy of others has none), and at least structure
_SAME = 1e-12  # squared distances of rows at length 1 up to here are rounding of a Gram matrix
_TIE = 1e-9  # gains, and distances, that differ by less (relatively) are equal: a sum in another order decides nothing


def neighbour_walk(bk: Backend, G: Array) -> Array:
    """P of the random walk to nearest neighbours by angle.      G = X X' (n, n), float64, n >= 2; P (n, n).

    D_ij = 2 - 2 G_ij / sqrt(G_ii G_jj), the squared distance of the rows at length 1, which a common factor (a bright
    picture, a rich sample) leaves as it is. i ~ j where j is among the 5 nearest other rows of i, ties included, or i
    among those of j. K_ij = exp(-D_ij / b) if i ~ j, else 0, with b the median of the squared distances to the fifth
    row (0: the smallest positive distance, or 1), and P_ij = K_ij / sum_j K_ij. A row of zeros is at distance 2 from
    every other.
    """
    xp = bk.xp
    n = len(G)
    length = xp.sqrt(xp.diagonal(G))
    length = xp.where(length > _SAME * length.max(), length, xp.inf)
    D = 2 - 2 * G / length[:, None] / length
    D = xp.where(D > _SAME, D, 0.0)
    D[xp.arange(n), xp.arange(n)] = xp.inf
    k = min(NEIGHBOURS, n - 1)
    furthest = xp.partition(D, k - 1, axis=1)[:, k - 1]
    b = float(xp.median(furthest))
    if b == 0:
        positive = float(xp.where(D > 0, D, xp.inf).min())
        b = positive if positive < np.inf else 1.0
    near = furthest[:, None] * (1 + _TIE) >= D
    K = xp.where(near | near.T, xp.exp(-xp.minimum(D / b, 600.0)), 0.0)  # at most, so that no row is without weight
    return K / K.sum(axis=1, keepdims=True)


def diverse_order(
    bk: Backend, X: Array, mu: Array, count: int, threads: int = 1, read: Callable[[Array], Array] | None = None
) -> Array:
    """The first `count` columns by greedy ridge regression of the smooth part of all columns that take part.

    With the weighted data Xt = X * z, z = clip(mu, 0, 1), centred on the rows that are read, and the walk P of
    `neighbour_walk` on them, s_k = ||P xt_k||^2 / ||xt_k||^2, within 0.01 and 0.99, is the share of a column that is
    structure. A set of columns S explains of the smooth parts Y = P^2 Xt

        R(S) = ||Y||^2 - Tr(Y' A Y),   A = (I + sum over S of xt_k xt_k' / nu_k)^(-1),
        nu_k = ||xt_k||^2 (1 - s_k) / s_k,

    with more ridge for columns with more noise. The next column raises R most, by ||Y' A xt_k||^2 / (nu_k + xt_k' A
    xt_k). Source: Farahat, Ghodsi and Kamel, "An efficient greedy method for unsupervised feature selection", ICDM 2011
    (Y = Xt, no ridge).

    Parameters
    ----------
    X : (n, d)
        Scaled data, where the backend computes, or a `dufs_core.data.matrix.ScaledMatrix`; at most 1,024 rows are read.
    mu : (d,)
        NumPy. Columns with mu > 0 take part; of more than 16,384 those with the largest mu.
    count : int
        At least 1; fewer are returned where fewer columns take part.
    read : callable, optional
        Gives columns of X on the rows that are read, (d', n'); default: as they are, on at most 1,024 rows.

    Returns
    -------
    (min(count, columns that take part),) int, NumPy
        Positions in X; of equal gain in the order of mu, constant columns last. n rows and d' columns take time
        n (n + d') a column, after n^2 (n + d').
    """
    xp = bk.xp
    ranking = np.argsort(-mu, kind="stable")
    candidates = ranking[: min(CANDIDATES, int((mu > 0).sum()))]
    count = min(count, len(candidates))
    n = X.shape[0]
    if not count or n < 2:
        return np.asarray(candidates[:count])
    if read is None:
        rows = random.sample(bk, 0, random.Stream.PERMUTATION, 1, n, ROWS)

        def read(columns: Array) -> Array:
            return dense_block(bk, X, rows, columns).T

    z = bk.to_device(np.clip(mu[candidates], 0, 1).astype(np.float64))
    first = read(candidates[:BLOCK])
    X_o = xp.empty((len(candidates), first.shape[1]), dtype=xp.float64)  # a column in each row
    X_o[:BLOCK] = first * z[:BLOCK, None]
    for start in range(BLOCK, len(candidates), BLOCK):
        block = slice(start, start + BLOCK)
        X_o[block] = read(candidates[block]) * z[block, None]
    varies = X_o.max(axis=1) > X_o.min(axis=1)
    X_o -= X_o.mean(axis=1, keepdims=True)
    # the order does not depend on units; an exact change to others, in which fourth powers neither overflow nor vanish
    X_o /= 2.0 ** frexp(max(float(X_o.max()), -float(X_o.min())))[1]
    W = sum(mapped(bk, lambda block: X_o[block].T @ X_o[block], gen_batches(len(X_o), _SUMMED), threads))
    P = neighbour_walk(bk, W)
    for _ in range(POWER):
        W = P @ W @ P.T  # at last Y Y'
    q = xp.concatenate([(X_o[block] * X_o[block]).sum(axis=1) for block in gen_batches(len(X_o), BLOCK)])
    s, f = (_quadratic_forms(bk, X_o, M, threads) for M in (P.T @ P, W))
    left = varies & (q > 0)
    s = xp.clip(s / xp.where(left, q, 1), _LEAST, 1 - _LEAST)
    chosen = _greedy(bk, X_o, W, _Gains(f, q, q * (1 - s) / s, left), count, threads)
    rest = np.setdiff1d(np.arange(len(candidates)), chosen)[: count - len(chosen)]
    return np.asarray(candidates[np.concatenate([np.array(chosen, dtype=np.intp), rest])])


def _quadratic_forms(bk: Backend, X: Array, M: Array, threads: int) -> Array:
    """x_k' M x_k of every row of X (D, n), M (n, n); (D,) float64.

    x' M x = x' U x with U block by block upper triangular, little more than half of the products.
    """
    U, parts = M + M.T, list(gen_batches(len(M), _PART))
    for J in parts:
        U[J, J] /= 2

    def product(x: Array, J: slice) -> Array:
        y = x[:, : J.stop] @ U[: J.stop, J]
        y *= x[:, J]
        return y.sum(axis=1, dtype=bk.xp.float64)

    def of(block: slice) -> Array:
        return sum(product(X[block], J) for J in parts)

    return bk.xp.concatenate(mapped(bk, of, gen_batches(len(X), 2 * BLOCK), threads))


class _Gains(NamedTuple):
    """What the gain of every column x_k is made of."""

    f: Array  # ||Y' A x_k||^2
    q: Array  # x_k' A x_k
    nu: Array
    left: Array  # bool, whether it can be chosen

    def largest(self, xp: Any) -> tuple[int, Array]:
        """The first column of the largest gain, and the gains of all; -1 of those that are not left."""
        gain = xp.where(self.left, self.f / xp.where(self.left, self.nu + self.q, 1), -1.0)
        return int((gain >= gain.max() * (1 - _TIE)).argmax()), gain

    def after(self, xp: Any, k: int, g: Array, y: Array, r: float) -> _Gains:
        """Those once k is chosen; g, y (d',) and r of `_Steps`."""
        left = self.left.copy()
        left[k] = False
        square = g * g
        f = xp.maximum(self.f - 2 * g * y + r * square, 0)
        return _Gains(f, xp.maximum(self.q - square, 0), self.nu, left)


class _Steps(NamedTuple):
    """Columns chosen one after the other.

    A decreases by v v', for every column x_l thus x_l' A x_l by g_l^2, g_l = v' x_l, and ||Y' A x_l||^2 by
    2 g_l y_l - r g_l^2, y_l = w' x_l.
    """

    columns: list[int]
    v: Array  # (steps, n) A x_k / sqrt(nu_k + x_k' A x_k)
    w: Array  # (steps, n) A Y Y' v
    r: list[float]  # v' Y Y' v


def _steps(xp: Any, X_o: Array, A: Array, W: Array, gains: _Gains, most: int) -> tuple[_Steps, _Gains]:
    """Choose up to `most` of the columns X_o (d', n); also the gains after that."""
    columns, r = list[int](), list[float]()
    V, w = (xp.empty((most, len(A)), dtype=A.dtype) for _ in range(2))
    while len(columns) < most:
        k, _ = gains.largest(xp)
        if not gains.left[k]:
            break
        i, x = len(columns), X_o[k]
        a = A @ x - (V[:i] @ x) @ V[:i]
        V[i] = a / float(gains.nu[k] + x @ a) ** 0.5
        Wv = W @ V[i]
        w[i] = A @ Wv - (V[:i] @ Wv) @ V[:i]
        columns.append(k)
        r.append(float(V[i] @ Wv))
        gains = gains.after(xp, k, X_o @ V[i], X_o @ w[i], r[i])
    return _Steps(columns, V[: len(r)], w[: len(r)], r), gains


def _greedy(bk: Backend, X_o: Array, W: Array, gains: _Gains, count: int, threads: int) -> list[int]:
    """Up to `count` columns of X_o (d', n) in the order in which they are chosen.

    To read all columns for every choice takes the longest where they do not stay in the cache. The 512 of largest gain
    are chosen from, several steps ahead. One product then brings all columns up to date, and the steps up to the first
    at which another column was better hold: the order is that of choosing from all.
    """
    xp, chosen, A = bk.xp, list[int](), bk.xp.eye(len(W), dtype=W.dtype)
    while len(chosen) < count:
        most = min(AHEAD, count - len(chosen))
        if bk.name != "numpy" or len(X_o) <= BEST:
            steps, gains = _steps(xp, X_o, A, W, gains, most)
            columns = steps.columns
        else:
            k, gain = gains.largest(xp)
            gain[k] = np.inf  # of equal ones it may not be among the best
            best = np.sort(np.argsort(-gain, kind="stable")[:BEST])
            steps, _ = _steps(xp, X_o[best], A, W, _Gains(*(part[best] for part in gains)), most)
            columns, gains = _that_hold(bk, X_o, best[steps.columns].tolist(), steps, gains, threads)
        if not columns:
            break
        chosen += columns
        V = steps.v[: len(columns)]
        A -= V.T @ V
    return chosen


def _that_hold(
    bk: Backend, X_o: Array, columns: list[int], steps: _Steps, gains: _Gains, threads: int
) -> tuple[list[int], _Gains]:
    """Of columns chosen from few those up to the first that would not be chosen from all X_o; the gains of all."""
    vectors = bk.xp.stack([steps.v, steps.w])
    products = bk.xp.empty((2, len(columns), len(X_o)), dtype=X_o.dtype)

    def of(block: slice) -> None:
        products[:, :, block] = vectors @ X_o[block].T

    mapped(bk, of, gen_batches(len(X_o), BLOCK), threads)
    for i, k in enumerate(columns):
        if k != gains.largest(bk.xp)[0]:
            return columns[:i], gains
        gains = gains.after(bk.xp, k, products[0, i], products[1, i], steps.r[i])
    return columns, gains
