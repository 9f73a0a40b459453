"""The permutation gap: how much more structure a set of columns has than the same columns shuffled.

No labels are needed, and, unlike the score itself, it does not reward single columns: a column alone scores
the same after any permutation of its rows, and so do independent columns, so that their gap is about 0.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dufs_core import random
from dufs_core.backend import Array, Backend
from dufs_core.objective import Objective, open_score

# The 0.9 quantile: the largest neighbour distance hangs on one outlier, the median is too local.
_NEIGHBORS = 2
_OBJECTIVE = Objective(bandwidth="q90", n_neighbors=_NEIGHBORS, bandwidth_factor=5.0)
_ROWS = 512  # more rows are sampled down to this many: the gap is a mean over rows


class Gap(NamedTuple):
    """gap = score - mean(shuffled), and its one-sided p-value against the shuffles."""

    gap: float
    p_value: float


def permutation_gap(
    bk: Backend, X: Array, subset: Array, n_permutations: int = 20, seed: int = 0, columns: Array | None = None
) -> Gap:
    """gap(T) = score(X_T) - mean over B of score(X_T with every column permuted on its own).

    score(X_T) = Tr(X_T' P^2 X_T) / (n |T|) with all gates open, the bandwidth 5 times the 0.9 quantile of the
    squared distances to the second neighbour. p-value = (1 + #{shuffled >= observed}) / (1 + B).

    Parameters
    ----------
    X : (n, d)
        Scaled data, n >= 2 (two rows: the first neighbour instead of the second).
    subset : (m,) int, NumPy
        The columns T. An empty set, or one column, has gap 0 and p-value 1.
    n_permutations : int
        B.
    columns : (d,) int, NumPy, optional
        Positions that the permutations are keyed by; default 0, 1, ...
    """
    if len(subset) < 2:
        return Gap(0.0, 1.0)
    xp = bk.xp
    keys = xp.asarray(subset if columns is None else columns[subset])
    subset = xp.asarray(subset)
    if X.shape[0] > _ROWS:
        rows = random.permutation(bk, seed, random.Stream.PERMUTATION, 1, X.shape[0])[:_ROWS]
        X_T = X[rows[:, None], subset]
    else:
        X_T = X[:, subset]
    n, m = X_T.shape
    objective = replace(_OBJECTIVE, n_neighbors=min(_NEIGHBORS, n - 1))
    observed = open_score(bk, objective, X_T) / (n * m)
    shuffled = np.empty(n_permutations)
    for draw in range(n_permutations):
        order = xp.argsort(
            random.words(bk, seed, random.Stream.PERMUTATION, 0, draw, xp.arange(n)[:, None], keys[None, :]), axis=0
        )
        shuffled[draw] = open_score(bk, objective, xp.take_along_axis(X_T, order, axis=0)) / (n * m)
    return Gap(observed - float(shuffled.mean()), (1 + int((shuffled >= observed).sum())) / (1 + n_permutations))
