"""q-values from decoys: every column competes with shuffled copies of itself, which bounds the false discovery rate.

A column is nuisance if it is independent of all other columns. Such a column and its M decoys are exchangeable, as long
as the scores treat columns and decoys alike: each of the 1 + M is the best of its group with the same chance. Groups
that a decoy wins thus count the groups that nuisance wins.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_MANY = 20  # columns, of which one by chance matters no more than the rate says


def q_values(scores: Array, chance: Array | None = None) -> Array:
    """The smallest false discovery rate at which each column is selected.

    With tau_k the best score in the group of column k, and M decoys each, the columns that win their groups with
    tau_k >= t are selected at the rate

        (1 + #{k: a decoy wins, tau_k >= t}) / (M #{k: the column wins, tau_k >= t})

    or less: their expected share of nuisance is at most that, for any number of columns, if the nuisance columns are
    independent of one another, too. For M = 1 this is the knockoff+ filter (Barber and Candes, Annals of Statistics
    43:2055, 2015), for more its extension to simultaneous knockoffs (Gimenez and Zou, AISTATS 2019). Several decoys let
    fewer columns be found, at least 1 / (M rate) of them.

    Where few are found, one by chance weighs much. With `chance` the rate is also at least

        d chance_k / (m min(1, m / 20)^2),    m = #{groups with at least this tau}

    which depends on the tau alone, so that the bound above holds as before.

    Parameters
    ----------
    scores : ndarray (1 + M, d)
        Larger is better; first the columns, then their decoys. One that equals a decoy's does not win.
    chance : ndarray (d,), optional
        Probability that a shuffled column scores above tau_k.

    Returns
    -------
    ndarray (d,)
        At most 1; 1 for columns that do not win.
    """
    M = len(scores) - 1
    wins, tau = scores[0] > scores[1:].max(axis=0), scores.max(axis=0)
    order = np.argsort(-tau, kind="stable")
    found, lost = np.cumsum(wins[order]), np.cumsum(~wins[order])
    # of equal tau, all or none are selected: the counts of the last of them hold for each
    last = np.searchsorted(-tau[order], -tau[order], side="right") - 1
    rate = ((1 + lost) / (M * np.maximum(found, 1)))[last]
    if chance is not None:
        m = last + 1
        rate = np.maximum(rate, len(tau) * chance[order][last] / (m * np.minimum(1.0, m / _MANY) ** 2))
    q = np.ones(len(tau))
    q[order] = np.minimum(1.0, np.minimum.accumulate(rate[::-1])[::-1])
    return np.where(wins, q, 1.0)
