"""The two losses, minimised: score S and expected number of open gates -> L.

Chain:  score.py (S), regulariser.py (sum p)  ->  loss.py (L)
"""

from __future__ import annotations

from typing import NamedTuple

from dufs_core.backend import Array, Backend


class Saved(NamedTuple):
    """What forward keeps for backward."""

    S: Array  # (R,)
    sum_p: float
    n: int
    lam: float | None
    delta: float


def forward(bk: Backend, S: Array, sum_p: float, n: int, lam: float | None, delta: float) -> tuple[float, Saved]:
    """Regularised: L = -mean(S) / n + lam sum_p.  Parameter-free (lam None): L = -mean(S) / (n sum_p + delta).

    S (R,), one score per draw; sum_p = sum_k P(z_k > 0); n rows; delta > 0 keeps the quotient finite when
    every gate is closed. Source: arXiv 2007.04728, equations (5) and (6). Returns a float.
    """
    mean = float(S.mean())
    value = -mean / (n * sum_p + delta) if lam is None else -mean / n + lam * sum_p
    return value, Saved(S, sum_p, n, lam, delta)


def backward(bk: Backend, saved: Saved) -> tuple[Array, float]:
    """Derivatives of L with respect to S (R,) and to sum_p (a float)."""
    S, sum_p, n, lam, delta = saved
    mean = float(S.mean())
    if lam is None:
        denominator = n * sum_p + delta
        dS, dsum = -1.0 / denominator, mean * n / denominator**2
    else:
        dS, dsum = -1.0 / n, lam
    return bk.xp.full_like(S, dS / len(S)), dsum
