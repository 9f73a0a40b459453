"""Which columns have structure together with one other column: a look at all pairs, without gates."""

from __future__ import annotations

import numpy as np

from dufs_core import random
from dufs_core.backend import Array, Backend
from dufs_core.table import dense

_ROWS = 128  # more rows are sampled down to this many
_COLUMNS = 400  # the pairs of more columns would take longer than the runs
_BANDWIDTH = 1.0  # in units of a column's variance


def strongest_columns(bk: Backend, X: Array, ranking: Array) -> Array:
    """Columns in the order of their best pair; those beyond the first 400 of `ranking` are left out.

    X (n, d) scaled data, where the backend computes, or a `dufs_core.table.Table`; ranking (d',) int, NumPy,
    positions in it, best first.
    """
    columns = np.sort(ranking[:_COLUMNS])
    if len(columns) < 2:
        return columns
    n = X.shape[0]
    rows = slice(None) if n <= _ROWS else random.permutation(bk, 0, random.Stream.PERMUTATION, 1, n)[:_ROWS]
    X = dense(bk, X, rows, columns)
    scale = bk.xp.maximum(X.std(axis=0), bk.xp.finfo(X.dtype).tiny)
    return columns[np.argsort(-pair_gaps(bk, X / scale).max(axis=1), kind="stable")]


def pair_gaps(bk: Backend, X: Array, seed: int = 0) -> Array:
    """How much better every pair of columns scores than shuffled pairs do, (d, d), symmetric, diagonal 0; NumPy.

    score(k, l) = Tr(X_kl' P^2 X_kl) / (2 n), P from K = K_k * K_l (elementwise), K_k,ij = exp(-(x_ik - x_jk)^2 / b),
    b = 1. One bandwidth for all pairs makes the kernel of a pair the product of two kernels of columns. What a pair
    scores without structure depends on the two distributions alone and is estimated by a sum of two terms,
    a_k + a_l, from the same scores of columns shuffled one by one.

    X (n, d), d >= 2, columns of variance 1.
    """
    xp = bk.xp
    n, d = X.shape
    keys = random.words(bk, seed, random.Stream.PERMUTATION, 2, 0, xp.arange(n)[:, None], xp.arange(d)[None, :])
    observed = _pair_scores(bk, X)
    shuffled = _pair_scores(bk, xp.take_along_axis(X, xp.argsort(keys, axis=0), axis=0))
    if d < 3:
        return observed - shuffled
    # Least squares for a_k + a_l over the pairs k != l.
    total = shuffled.sum(axis=0)
    a = (total - total.sum() / (2 * (d - 1))) / (d - 2)
    gaps = observed - (a[:, None] + a[None, :])
    np.fill_diagonal(gaps, 0.0)
    return gaps


def _pair_scores(bk: Backend, X: Array) -> Array:
    """Scores of all pairs of columns, (d, d), NumPy; the diagonal is 0."""
    xp = bk.xp
    n, d = X.shape
    columns = xp.ascontiguousarray(X.T)  # (d, n)
    K = xp.exp((columns[:, :, None] - columns[:, None, :]) ** 2 * (-1.0 / _BANDWIDTH))  # (d, n, n)
    scores = np.zeros((d, d))
    for k in range(d - 1):
        W = K[k] * K[k + 1 :]  # (pairs, n, n)
        x = xp.stack([xp.ones_like(columns[k + 1 :]), xp.broadcast_to(columns[k], (d - k - 1, n)), columns[k + 1 :]], 2)
        Wx = W @ x
        deg = Wx[:, :, :1]
        right = Wx[:, :, 1:] / deg  # P x
        left = W @ (x[:, :, 1:] / deg)  # P' x
        scores[k, k + 1 :] = bk.to_host((left * right).sum(axis=(1, 2))) / (2 * n)
    return scores + scores.T
