"""Permutation tests of a set of columns: its score against the same columns, each shuffled on its own.

No labels are needed, and, unlike the score itself, the difference does not reward single columns: the score of one
column, and of independent columns, is the same after any permutation of their rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt
from typing import NamedTuple

import numpy as np
from sklearn.utils import gen_batches

from dufs_core.backend import Array, Backend, random
from dufs_core.data.matrix import dense_block
from dufs_core.objective.chain import Objective, open_score
from dufs_core.significance.rows import Rows

# The 0.9 quantile: the largest neighbour distance hangs on one outlier, the median is too local.
_OBJECTIVE = Objective(bandwidth="q90", n_neighbors=2, bandwidth_factor=5.0)
WORDS = 1 << 17  # random words at a time: temporaries stay in cache
TEST_ROWS = random.MOST_ROWS  # more rows are sampled down to this many: the score is a mean over rows
EXCESS_THRESHOLD = 0.18  # chance pairs among 100 columns reach 0.16, the two moons 0.19 to 0.3
THRESHOLD_SIZE = 10  # beyond this many columns the threshold falls like 1 / sqrt(number), as the chance level does
THRESHOLD_ROWS = 100  # chance pairs of 100 to 200 columns reach 0.46 in 20 rows, 0.37 in 30, 0.10 in 200, 0.05 in 400
_QUANTILE = 0.25  # of the p-values of several halves


class PermutationTest(NamedTuple):
    """Excess score of a set of columns, and its one-sided p-value."""

    excess: float
    p_value: float


NOT_TESTED = PermutationTest(0.0, 1.0)


def permutation_test(
    bk: Backend, X: Array, subset: Array, n_permutations: int = 20, seed: int = 0, columns: Array | None = None,
    table: Rows | None = None,
) -> PermutationTest:  # fmt: skip
    """Excess score(X_T) - mean_b score(X_T with every column permuted on its own), b = 1..B, and its p-value.

    score(X_T) = Tr(X_T' P^2 X_T) / Tr(X_T' X_T) with all gates open, the bandwidth 5 times the 0.9 quantile of the
    squared distances to the second neighbour. The graph has self-loops, whatever the gates were learned on. The p-value
    (1 + #{shuffled >= observed}) / (1 + B) holds for these columns, not for having chosen them on the same rows.

    Parameters
    ----------
    X : (n, d)
        Scaled data, an array or a `dufs_core.data.matrix.ScaledMatrix`, n >= 2 (n = 2 reads the first neighbour).
    subset : (m,) int, NumPy
        The columns T. Fewer than two have excess 0 and p-value 1.
    n_permutations : int
        B.
    columns : (d,) int, NumPy, optional
        Positions that the permutations are keyed by; default 0, 1, ...
    table : Rows, optional
        Which rows may be exchanged; default all.
    """
    if len(subset) < 2:
        return NOT_TESTED
    observed, shuffled = shuffled_scores(bk, X, subset, n_permutations, seed, columns, table)
    p_value = (1 + int((shuffled >= observed).sum())) / (1 + n_permutations)
    return PermutationTest(observed - float(shuffled.mean()), p_value)


def excess_threshold(n_selected: int, n_rows: int) -> float:
    """0.18 min(1, sqrt(10 / m)) r, the excess score that ends a search: m = n_selected, n = n_rows, at most 512.

    r = (100 / n)^(3/4) for n < 100, else sqrt(100 / n).
    """
    size = min(1.0, sqrt(THRESHOLD_SIZE / max(n_selected, 1)))
    ratio = THRESHOLD_ROWS / min(n_rows, TEST_ROWS)
    return float(EXCESS_THRESHOLD * size * ratio ** (0.75 if ratio > 1 else 0.5))


def shuffled_scores(
    bk: Backend, X: Array, subset: Array, n_permutations: int, seed: int = 0, columns: Array | None = None,
    table: Rows | None = None,
) -> tuple[float, Array]:  # fmt: skip
    """score(X_T), and its values (n_permutations,) on shuffles; float64, NumPy. Arguments as in `permutation_test`.

    Shuffle number b permutes a column alike whatever set it is in: the scores of several sets have a joint null.
    """
    xp = bk.xp
    keys = np.asarray(subset if columns is None else columns[subset])
    table = Rows(X.shape[0]) if table is None else table
    rows, group, _ = table.sample(bk, seed, random.Stream.PERMUTATION, 1, TEST_ROWS)
    n = X.shape[0] if isinstance(rows, slice) else len(rows)
    G = [xp.zeros((n, n), dtype=X.dtype) for _ in range(1 + n_permutations)]
    width = max(2, 2 * WORDS // (n * (1 + n_permutations)))
    for block in gen_batches(len(subset), width):
        X_T = dense_block(bk, X, rows, subset[block])
        varies = (X_T[:1] != X_T).any(axis=0)  # a permutation leaves the other columns as they are
        same, X_T = X_T[:, ~varies], X_T[:, varies]
        fixed, X_T = same @ same.T, xp.ascontiguousarray(X_T.T)
        if not len(X_T):
            for G_r in G:
                G_r += fixed
            continue
        G[0] += fixed + X_T.T @ X_T
        varying = xp.asarray(keys[block])[varies]
        orders = random.orders(bk, seed, random.Stream.PERMUTATION, 0, n_permutations, n, varying, group=group)
        for G_r, order in zip(G[1:], orders, strict=True):
            permuted = xp.take_along_axis(X_T, order, axis=1)
            G_r += fixed + permuted.T @ permuted
    objective = replace(_OBJECTIVE, n_neighbors=min(_OBJECTIVE.n_neighbors, n - 1))
    squares = float(xp.diagonal(G[0]).sum(dtype=xp.float64)) or 1.0  # the same for every shuffle; 0: all is constant
    observed, *scores = (open_score(bk, objective, G_r) / squares for G_r in G)
    return observed, np.array(scores)


class MaxTResult(NamedTuple):
    """Test of several selections on rows that chose none of them."""

    z: Array  # (n_selections,)
    p_values: Array  # (n_selections,), adjusted for the choice among them


def max_t_test(
    bk: Backend, X: Array, selections: Sequence[Array], n_permutations: int, seed: int, table: Rows | None = None
) -> MaxTResult:
    """Single-step max-T test of several selections of columns on rows X (n, d), scaled.

    With s_0 the score of selection l and s_b, b = 1..B, its values on shuffles, z_l = (s_0 - mean s_b) / std s_b. The
    adjusted p-value is (1 + #{b: max_l' u_b(l') >= u_0(l)}) / (1 + B), u the scores in units of the mean and standard
    deviation of all 1 + B of them. Selections of fewer than two columns, and those that no permutation changes, have
    z = 0 and p-value 1. Source: Westfall and Young, "Resampling-Based Multiple Testing", 1993.
    """
    z = np.zeros(len(selections))
    ranked = np.full((1 + n_permutations, len(selections)), -np.inf)  # the observation last
    for i, selection in enumerate(selections):
        if len(selection) < 2:
            continue
        observed, shuffled = shuffled_scores(bk, X, selection, n_permutations, seed, table=table)
        spread, together = shuffled.std(), np.append(shuffled, observed)
        if spread > np.finfo(np.float32).eps:  # else no permutation changes them (constant here, or nearly)
            z[i] = (observed - shuffled.mean()) / spread
            # mean and spread of all: the observation and the shuffles are then exchangeable, also in their maximum
            ranked[:, i] = (together - together.mean()) / together.std()
    highest = ranked[:-1].max(axis=1)
    exceeded = (highest[:, None] >= ranked[-1]).sum(axis=0)
    return MaxTResult(z, np.where(np.isfinite(ranked[-1]), (1 + exceeded) / (1 + n_permutations), 1.0))


def aggregate_p_values(p_values: Array) -> Array:
    """min(1, q / gamma), q the gamma-quantile of several p-values: valid however they depend on one another.

    gamma = max(1/4, 1 / number of halves). p_values (halves, m); returns (m,).
    Source: Meinshausen, Meier and Buehlmann, JASA 104, 2009.
    """
    gamma = max(_QUANTILE, 1 / len(p_values))
    # the smallest value that a share gamma of the halves does not exceed: one between two values would be larger
    return np.minimum(1.0, np.quantile(p_values, gamma, axis=0, method="inverted_cdf") / gamma)
