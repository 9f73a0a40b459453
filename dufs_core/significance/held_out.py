"""Columns judged on rows that did not choose them."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple

import numpy as np

from dufs_core.backend import Array, Backend
from dufs_core.significance.permutation_test import shuffled_scores

_QUANTILE = 0.25  # of the p-values of all halves: the share of them that is to see a structure


class MaxTResult(NamedTuple):
    """Selections (one for each price) on rows that did not choose them."""

    z: Array  # (n_lams,)
    p_values: Array  # (n_lams,), adjusted for the choice among them


def max_t_test(bk: Backend, X: Array, selections: Sequence[Array], n_permutations: int, seed: int) -> MaxTResult:
    """How far each selection's score is from that of shuffled columns, on rows X (n, d), scaled.

    With s_0 = score(X_T) of `dufs_core.significance.permutation_test` and s_b, b = 1..B, its values on shuffles, z =
    (s_0 - mean s_b) / std s_b.
    The p-value of selection l is (1 + #{b: max_l' u_b(l') >= u_0(l)}) / (1 + B), u the scores in units of the mean and
    spread of all 1 + B of them (Westfall and Young 1993, single step). A selection of fewer than two columns says
    nothing, and one that no permutation changes neither: z = 0, p-value 1.
    """
    z = np.zeros(len(selections))
    ranked = np.full((1 + n_permutations, len(selections)), -np.inf)  # the observation last
    for i, selection in enumerate(selections):
        if len(selection) < 2:
            continue
        observed, shuffled = shuffled_scores(bk, X, selection, n_permutations, seed)
        spread, together = shuffled.std(), np.append(shuffled, observed)
        if spread > np.finfo(np.float32).eps:  # else no permutation changes them (constant here, or nearly)
            z[i] = (observed - shuffled.mean()) / spread
            # mean and spread of all: the observation and the shuffles are then exchangeable, also in their maximum
            ranked[:, i] = (together - together.mean()) / together.std()
    highest = ranked[:-1].max(axis=1)
    exceeded = (highest[:, None] >= ranked[-1]).sum(axis=0)
    return MaxTResult(z, np.where(np.isfinite(ranked[-1]), (1 + exceeded) / (1 + n_permutations), 1.0))


def agreement(a: Array, b: Array, d: int) -> float:
    """(|A and B| - e) / (sqrt(|A| |B|) - e), e = |A| |B| / d; 0 where there is nothing to agree on (none, or all)."""
    expected = len(a) * len(b) / d
    most = sqrt(len(a) * len(b)) - expected
    return (len(np.intersect1d(a, b)) - expected) / most if most > 1e-12 else 0.0


def aggregate_p_values(p_values: Array) -> Array:
    """min(1, q / gamma), q the gamma-quantile over halves: a p-value however the halves depend on one another.

    gamma = 1/4, or one half where there are fewer than four. Source: Meinshausen, Meier and Buehlmann, JASA 104 (2009).

    p_values (halves, n_lams). Returns (n_lams,).
    """
    gamma = max(_QUANTILE, 1 / len(p_values))
    # the smallest value that a share gamma of the halves does not exceed: one between two values would be larger
    return np.minimum(1.0, np.quantile(p_values, gamma, axis=0, method="inverted_cdf") / gamma)


def smallest_p_value(n_permutations: int, n_halves: int) -> float:
    """What `aggregate_p_values` gives at best."""
    return float(aggregate_p_values(np.full((n_halves, 1), 1 / (1 + n_permutations)))[0])
