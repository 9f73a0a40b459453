"""An order of open columns in which the first few already tell what the others say about the structure.

Gates decide one by one, so that copies of one strong column are all open, and all at the front of their order. Whoever
wants fewer columns than are open is better served by columns that complement each other.
"""

from __future__ import annotations

from dataclasses import replace
from math import frexp

import numpy as np

from dufs_core import random
from dufs_core.backend import Array, Backend
from dufs_core.objective import Objective, open_walk
from dufs_core.table import dense

ROWS = 1024  # more rows are sampled down to this many
CANDIDATES = 8192  # of more columns the best by their gates
_ROUGH = 0.01  # at least this share of a column counts as noise: exact copies of smooth columns leave no other
_TIE = 1e-9  # columns whose gains differ by less are equal, and the better by its gate comes first


def representatives(bk: Backend, X: Array, mu: Array, objective: Objective, count: int) -> Array:
    """The first `count` columns of a greedy regression of the smooth part of all open columns.

    With the gated data Xt = X * z, z = clip(mu, 0, 1), centred on the rows that are read, and the random walk P on them
    (one step of it, whatever the objective's power), the smooth part of a column is P xt_k and its noise
    nu_k = max(||xt_k||^2 - ||P xt_k||^2, ||xt_k||^2 / 100). Selected columns S explain of the smooth parts Y = P Xt

        R(S) = ||Y||^2 - Tr(Y' A Y),   A = (I + sum over S of xt_k xt_k' / nu_k)^(-1),

    a ridge regression in which a column that the graph does not explain is trusted less. The next column is the one
    that raises R most: it does so by ||Y' A xt_k||^2 / (nu_k + xt_k' A xt_k).

    Parameters
    ----------
    X : (n, d)
        Scaled data, where the backend computes, or a `dufs_core.table.Table`. At most 1,024 of its rows are read.
    mu : (d,)
        Gate parameters, NumPy. Open columns have mu > 0; of more than 8,192 those with the largest mu take part.
    objective : Objective
        What the gates were learned with: it says what the graph is. n_neighbors is at most the number of other rows
        that are read.
    count : int
        At least 1; fewer are returned where fewer columns are open.

    Returns
    -------
    (min(count, open, 8192),) int, NumPy
        Positions in X. Columns of equal gain come in the order of mu.

    Notes
    -----
    Greedy column subset selection after Farahat, Ghodsi and Kamel (ICDM 2011), with a ridge, and with the data
    smoothed by the graph as its target. For n rows that are read and d' open columns: time n (n + d') a column, after
    n^2 (n + d'); memory 3 n d' + 6 n^2 numbers of float64.
    """
    xp = bk.xp
    ranking = np.argsort(-mu, kind="stable")
    candidates = ranking[: min(CANDIDATES, int((mu > 0).sum()))]
    count = min(count, len(candidates))
    if not count:
        return np.asarray(candidates[:0])
    n = X.shape[0]
    rows = slice(None) if n <= ROWS else random.permutation(bk, 0, random.Stream.PERMUTATION, 1, n)[:ROWS]
    z = bk.to_device(np.clip(mu[candidates], 0, 1).astype(np.float64))
    X_o = xp.ascontiguousarray(dense(bk, X, rows, candidates).astype(xp.float64) * z)
    X_o -= X_o.mean(axis=0)
    objective = replace(objective, n_neighbors=min(objective.n_neighbors, len(X_o) - 1))
    P = open_walk(bk, objective, X_o @ X_o.T)
    # P alone depends on units; an exact change to others, in which fourth powers neither overflow nor vanish
    X_o /= 2.0 ** frexp(max(float(X_o.max()), -float(X_o.min())))[1]
    Y = P @ X_o
    W = Y @ Y.T
    q = (X_o * X_o).sum(axis=0)  # xt_k' A xt_k
    nu = xp.maximum(q - (Y * Y).sum(axis=0), _ROUGH * q)
    Y[...] = W @ X_o
    f = (X_o * Y).sum(axis=0)  # ||Y' A xt_k||^2
    del Y
    A = xp.eye(len(P), dtype=xp.float64)
    left = nu > 0  # a column may be constant on the sampled rows
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
