"""Order columns so that the first few explain the structure in all of them, by greedy column subset selection.

Gates and scores decide column by column, so that copies of one strong column all come first; here the first columns
complement each other.
"""

from __future__ import annotations

from math import frexp

import numpy as np
from sklearn.utils import gen_batches

from dufs_core.backend import Array, Backend, random
from dufs_core.data.matrix import dense_block

ROWS = 1024  # more rows are sampled down to this many: n^2 (n + d') operations, and n d' a column, stay seconds
CANDIDATES = 16384  # of more columns those with the largest mu: 134 MB of float64 with 1,024 rows
NEIGHBOURS = 5  # among many columns distances are nearly equal, and only the nearest rows say something; MCFS takes 5
POWER = 2  # steps of the walk; one was worse on five of five data sets, three no better (docs/defaults.md)
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


def diverse_order(bk: Backend, X: Array, mu: Array, count: int) -> Array:
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
    rows = random.sample(bk, 0, random.Stream.PERMUTATION, 1, n, ROWS)
    z = bk.to_device(np.clip(mu[candidates], 0, 1).astype(np.float64))
    blocks = list(gen_batches(len(candidates), BLOCK))
    X_o = xp.empty((min(n, ROWS), len(candidates)), dtype=xp.float64)
    for block in blocks:
        X_o[:, block] = dense_block(bk, X, rows, candidates[block]) * z[block]
    varies = X_o.max(axis=0) > X_o.min(axis=0)
    X_o -= X_o.mean(axis=0)
    # the order does not depend on units; an exact change to others, in which fourth powers neither overflow nor vanish
    X_o /= 2.0 ** frexp(max(float(X_o.max()), -float(X_o.min())))[1]
    W = X_o @ X_o.T
    P = neighbour_walk(bk, W)
    for _ in range(POWER):
        W = P @ W @ P.T  # at last Y Y'
    q, s, f = (xp.empty(len(candidates), dtype=xp.float64) for _ in range(3))
    for block in blocks:
        x = X_o[:, block]
        q[block] = (x * x).sum(axis=0)  # xt_k' A xt_k
        f[block] = (x * (W @ x)).sum(axis=0)  # ||Y' A xt_k||^2
        smooth = P @ x
        s[block] = (smooth * smooth).sum(axis=0)
    left = varies & (q > 0)
    s = xp.clip(s / xp.where(left, q, 1), _LEAST, 1 - _LEAST)
    nu = q * (1 - s) / s
    A = xp.eye(len(P), dtype=xp.float64)
    chosen: list[int] = []
    for _ in range(count):
        gain = xp.where(left, f / xp.where(left, nu + q, 1), -1.0)
        k = int((gain >= gain.max() * (1 - _TIE)).argmax())
        if not left[k]:
            break
        chosen.append(k)
        left[k] = False
        x = X_o[:, k]
        a = A @ x
        Wa = W @ a
        # A - a a' / e is the new A, e = nu_k + x' A x; the sums over n of all columns in one product
        e = float(nu[k] + x @ a)
        c, u = xp.stack([a, A @ Wa]) @ X_o
        c /= e
        f = xp.maximum(f - 2 * c * u + float(a @ Wa) * c * c, 0)
        q = xp.maximum(q - e * c * c, 0)
        A -= a[:, None] * (a / e)
    rest = np.setdiff1d(np.arange(len(candidates)), chosen)[: count - len(chosen)]
    return np.asarray(candidates[np.concatenate([np.array(chosen, dtype=np.intp), rest])])


def diverse_ranking_bytes(n: int, d: int) -> int:
    """Bytes that `diverse_order` allocates, all of float64: one array (n', d'), some 14 of (d',).

    Beside these about 6 of (n', n') while the walk is formed, or 2 of them and 3 of (n', 512).
    """
    rows, columns = min(n, ROWS), min(d, CANDIDATES)
    return 8 * (rows * (columns + max(6 * rows, 2 * rows + 3 * min(columns, BLOCK))) + 14 * columns)
