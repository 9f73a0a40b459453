"""The two losses, minimised: score S and expected number of open gates -> L."""

from __future__ import annotations

from math import nan
from typing import NamedTuple

from dufs_core.backend import Array, Backend
from dufs_core.objective import rules


class Saved(NamedTuple):
    S: Array  # (R,)
    dmean: float
    dsum_p: float


def forward(bk: Backend, S: Array, sum_p: float, n: int, lam: float | None, delta: float) -> tuple[float, Saved]:
    """Regularised: L = -mean(S) / n + lam sum_p.  Parameter-free (lam None): L = -mean(S) / (n sum_p + delta).

    S (R,), one score per draw; sum_p = sum_k P(z_k > 0); n rows; delta > 0 keeps the quotient finite when
    every gate is closed. Source: arXiv 2007.04728, equations (5) and (6). Returns a float.
    """
    value, dmean, dsum_p = rules.loss(float(S.mean()), sum_p, n, nan if lam is None else lam, delta)
    return value, Saved(S, dmean, dsum_p)


def backward(bk: Backend, saved: Saved) -> tuple[Array, float]:
    """Derivatives of L with respect to S (R,) and to sum_p (a float)."""
    return bk.xp.full_like(saved.S, saved.dmean / len(saved.S)), saved.dsum_p
