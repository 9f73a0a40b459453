"""Statistical gradients: the average over draws against the derivative of the expectation, in closed form.

For u = mu + sigma eps, eps ~ N(0, 1), z = clip(u, 0, 1), a = -mu / sigma, b = (1 - mu) / sigma, phi and Phi the
normal density and distribution, and p = Phi(b) - Phi(a) = P(0 < u < 1):

    E[z^2] = (mu^2 + sigma^2) p + sigma (mu phi(a) - (mu + 1) phi(b)) + 1 - Phi(b)
    dE[z^2]/dmu = E[2 z 1[0 < u < 1]] = 2 (mu p + sigma (phi(a) - phi(b)))

since z is continuous in mu. The whole chain becomes linear in G = X diag(z^2) X'
where the bandwidth is so large that P = 1/n exactly: S = sum_k z_k^2 (sum_i X_ik)^2 / n.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import ndtr

from dufs_core.backend import Array, Backend
from dufs_core.gradcheck.suite.entries import Samples
from dufs_core.objective.chain import Objective

GROUPS = 40
STANDARD_ERRORS = 6.5  # with 39 degrees of freedom: a false alarm once in about ten million coordinates
_SIGMA = 0.5
_DRAWS = 50  # in each group
_HUGE = 1e14  # bandwidth, in units of X^2: K is 1 within 1e-14


def expected_square(mu: Array, sigma: float) -> tuple[Any, Any]:
    """E[z^2] and dE[z^2]/dmu of the clipped Gaussian gate, elementwise.      mu (d,) on the host."""
    a, b = -mu / sigma, (1 - mu) / sigma
    p = ndtr(b) - ndtr(a)
    inside = (mu**2 + sigma**2) * p + sigma * (mu * _density(a) - (mu + 1) * _density(b))
    return inside + ndtr(-b), 2 * (mu * p + sigma * (_density(a) - _density(b)))


def _density(x: Any) -> Any:
    return np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)


def judge(groups: Any, exact: Any) -> tuple[float, float]:
    """The largest |mean of the groups - exact| in its standard errors, and relative to max |exact|."""
    gap = np.abs(groups.mean(axis=0) - exact)
    error = groups.std(axis=0, ddof=1) / np.sqrt(len(groups))
    largest = float(np.max(np.abs(exact), initial=0.0))
    in_errors = np.maximum(gap - 1e-12 * largest, 0) / np.maximum(error, 1e-300)
    return float(np.max(in_errors)), float(gap.max()) / (largest or 1.0)


def whole_chain(bk: Backend, evaluate: Any, rng: np.random.Generator, lam: float | None) -> Samples:
    """mean of dL/dmu over draws at a huge bandwidth, against -(sum_i X_ik)^2 dE[z_k^2]/dmu / n^2 + lam dp/dmu.

    Without lam the quotient is differentiated: E[S] and dE[S]/dmu are both known, the denominator is not random.
    """
    mu, n = np.append(rng.uniform(-0.8, 1.8, 3), 0.5), 4  # from nearly closed to nearly open
    X = rng.standard_normal((n, len(mu))) + 0.5
    objective = Objective(lam=lam, bandwidth=_HUGE, gate_sigma=_SIGMA)
    groups = []
    for _group in range(GROUPS):
        eps = rng.standard_normal((_DRAWS, len(mu)))
        moved = [bk.xp.asarray(a) for a in (mu, eps, np.asfortranarray(X))]
        groups.append(bk.to_host(evaluate(bk, objective, *moved)[1]))
    weight = X.sum(axis=0) ** 2 / n  # S = sum_k z_k^2 weight_k
    square, slope = expected_square(mu, _SIGMA)
    p, dp = ndtr(mu / _SIGMA), _density(mu / _SIGMA) / _SIGMA
    if lam is not None:
        return np.stack(groups), -weight * slope / n + lam * dp
    denominator = n * p.sum() + objective.delta
    return np.stack(groups), -weight * slope / denominator + (weight @ square) * n * dp / denominator**2
