"""The permutation gap: how much more structure a set of columns has than the same columns shuffled.

No labels are needed, and, unlike the score itself, it does not reward single columns: a column alone scores
the same after any permutation of its rows, and so do independent columns, so that their gap is about 0.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dufs_core.backend import Array, Backend, random
from dufs_core.data.matrix import dense
from dufs_core.objective.chain import Objective, open_score

# The 0.9 quantile: the largest neighbour distance hangs on one outlier, the median is too local.
_NEIGHBORS = 2
_OBJECTIVE = Objective(bandwidth="q90", n_neighbors=_NEIGHBORS, bandwidth_factor=5.0)
WORDS = 1 << 17  # random words at a time: temporaries stay in cache
TEST_ROWS = random.MOST_ROWS  # more rows are sampled down to this many: the gap is a mean over rows


class PermutationTest(NamedTuple):
    """gap = score - mean(shuffled), and its one-sided p-value against the shuffles."""

    excess: float
    p_value: float


def permutation_test(
    bk: Backend, X: Array, subset: Array, n_permutations: int = 20, seed: int = 0, columns: Array | None = None
) -> PermutationTest:
    """gap(T) = score(X_T) - mean over B of score(X_T with every column permuted on its own).

    score(X_T) = Tr(X_T' P^2 X_T) / Tr(X_T' X_T) with all gates open, the bandwidth 5 times the 0.9 quantile of the
    squared distances to the second neighbour. The graph has self-loops, whatever the gates were learned on.
    p-value = (1 + #{shuffled >= observed}) / (1 + B): for these columns, not for having chosen them.

    Parameters
    ----------
    X : (n, d)
        Scaled data, an array or a `dufs_core.data.matrix.ScaledMatrix`, n >= 2 (two rows: the first neighbour instead
        of the
        second).
    subset : (m,) int, NumPy
        The columns T. An empty set, or one column, has gap 0 and p-value 1.
    n_permutations : int
        B.
    columns : (d,) int, NumPy, optional
        Positions that the permutations are keyed by; default 0, 1, ...
    """
    if len(subset) < 2:
        return PermutationTest(0.0, 1.0)
    observed, shuffled = shuffled_scores(bk, X, subset, n_permutations, seed, columns)
    return PermutationTest(
        observed - float(shuffled.mean()), (1 + int((shuffled >= observed).sum())) / (1 + n_permutations)
    )


def shuffled_scores(
    bk: Backend, X: Array, subset: Array, n_permutations: int, seed: int = 0, columns: Array | None = None
) -> tuple[float, Array]:
    """score(X_T), and its values (n_permutations,) on shuffles; float64, NumPy. Arguments as in `permutation_test`.

    Shuffle number b permutes a column alike whatever set it is in: the scores of several sets have a joint null.
    """
    xp = bk.xp
    keys = np.asarray(subset if columns is None else columns[subset])
    n, m = min(X.shape[0], TEST_ROWS), len(subset)
    rows = (
        slice(None) if X.shape[0] == n else random.permutation(bk, seed, random.Stream.PERMUTATION, 1, X.shape[0])[:n]
    )
    G = [xp.zeros((n, n), dtype=X.dtype) for _ in range(1 + n_permutations)]
    width = max(2, 2 * WORDS // (n * (1 + n_permutations)))
    for start in range(0, m, width):
        block = slice(start, start + width)
        X_T = dense(bk, X, rows, subset[block])
        varies = (X_T[:1] != X_T).any(axis=0)  # a permutation leaves the other columns as they are
        same, X_T = X_T[:, ~varies], X_T[:, varies]
        fixed, X_T = same @ same.T, xp.ascontiguousarray(X_T.T)
        if not len(X_T):
            for G_r in G:
                G_r += fixed
            continue
        G[0] += fixed + X_T.T @ X_T
        orders = random.orders(
            bk, seed, random.Stream.PERMUTATION, 0, n_permutations, n, xp.asarray(keys[block])[varies]
        )
        for G_r, order in zip(G[1:], orders, strict=True):
            permuted = xp.take_along_axis(X_T, order, axis=1)
            G_r += fixed + permuted.T @ permuted
    objective = replace(_OBJECTIVE, n_neighbors=min(_NEIGHBORS, n - 1))
    squares = float(xp.diagonal(G[0]).sum(dtype=xp.float64)) or 1.0  # the same for every shuffle; 0: all is constant
    observed, *scores = (open_score(bk, objective, G_r) / squares for G_r in G)
    return observed, np.array(scores)
