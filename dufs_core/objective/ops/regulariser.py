"""Expected number of open gates: mu -> sum of P(z > 0)."""

from __future__ import annotations

from typing import NamedTuple

from dufs_core.backend import Array, Backend
from dufs_core.objective import rules


class Saved(NamedTuple):
    mu: Array  # (d,)
    sigma: float


def probabilities(bk: Backend, mu: Array, sigma: float) -> Array:
    """p = P(z > 0) = Phi(mu / sigma) = 1/2 + erf(mu / (sqrt(2) sigma)) / 2.      (d,) in [0, 1]."""
    return rules.gate_probability(mu, sigma, bk.erf)


def forward(bk: Backend, mu: Array, sigma: float) -> tuple[float, Saved]:
    """sum_k Phi(mu_k / sigma).      Source: arXiv 2007.04728, equation (4).

    mu (d,). Returns a float.
    """
    return float(probabilities(bk, mu, sigma).sum(dtype=bk.xp.float64)), Saved(mu, sigma)


def backward(bk: Backend, saved: Saved, dsum: float) -> Array:
    """dmu = dsum exp(-mu^2 / (2 sigma^2)) / (sqrt(2 pi) sigma)."""
    mu, sigma = saved
    return rules.gate_density(mu, sigma, bk.xp.exp) * (dsum / (rules.ROOT_2_PI * sigma))
