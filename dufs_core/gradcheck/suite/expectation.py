"""Statistical gradients: the average over draws against the derivative of the expectation, in closed form.

For u = mu + sigma eps, eps ~ N(0, 1), z = clip(u, 0, 1), a = -mu / sigma, b = (1 - mu) / sigma, phi and Phi the
normal density and distribution, and p = Phi(b) - Phi(a) = P(0 < u < 1):

    E[z]   = mu p + sigma (phi(a) - phi(b)) + 1 - Phi(b)                          dE[z]/dmu   = p
    E[z^2] = (mu^2 + sigma^2) p + sigma (mu phi(a) - (mu + 1) phi(b)) + 1 - Phi(b)
                                                             dE[z^2]/dmu = 2 (mu p + sigma (phi(a) - phi(b)))

the derivatives because z is continuous and dz/dmu = 1[0 < u < 1] almost everywhere, so that
dE[f(z)]/dmu = E[f'(z) 1[0 < u < 1]].
With one gate vector per batch G = X diag(z^2) X', so E of anything linear in G has a closed form; with gates per
sample E[G_ij] is sum_k X_ik X_jk E[z_ik] E[z_jk] off the diagonal. The whole chain becomes linear in G where
the bandwidth is so large that P = 1/n exactly: S = sum_k z_k^2 (sum_i X_ik)^2 / n.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dufs_core.backend import Array, Backend
from dufs_core.gradcheck.suite.registry import Samples
from dufs_core.objective.ops import gates, gram, regulariser

GROUPS = 40
STANDARD_ERRORS = 6.5  # with 39 degrees of freedom: a false alarm once in about ten million coordinates
_SIGMA = 0.5
_DRAWS = 400  # in each group
_HUGE = 1e14  # bandwidth, in units of X^2: K is 1 within 1e-14


def expected_gate(mu: Array, sigma: float) -> tuple[Any, Any, Any, Any]:
    """E[z], dE[z]/dmu, E[z^2], dE[z^2]/dmu of the clipped Gaussian gate, elementwise.      mu (d,) on the host."""
    from scipy.stats import norm

    mu = np.asarray(mu, dtype=np.float64)
    a, b = -mu / sigma, (1 - mu) / sigma
    p = norm.cdf(b) - norm.cdf(a)
    above = norm.sf(b)
    first = mu * p + sigma * (norm.pdf(a) - norm.pdf(b))
    second = (mu**2 + sigma**2) * p + sigma * (mu * norm.pdf(a) - (mu + 1) * norm.pdf(b))
    return first + above, p, second + above, 2 * first


def judge(samples: Samples) -> tuple[float, float]:
    """The largest |mean - exact| in standard errors of the mean, and relative to max |exact|."""
    groups, exact = np.asarray(samples.groups), np.asarray(samples.exact)
    gap = np.abs(groups.mean(axis=0) - exact)
    error = groups.std(axis=0, ddof=1) / np.sqrt(len(groups))
    rounding = 1e-12 * float(np.max(np.abs(exact), initial=0.0))
    largest = float(np.max(np.abs(exact), initial=0.0)) or 1.0
    return float(np.max(np.maximum(gap - rounding, 0) / np.maximum(error, 1e-300))), float(gap.max()) / largest


def _mu(rng: np.random.Generator) -> Any:
    """Gates from nearly closed to nearly open."""
    return np.concatenate([rng.uniform(-0.8, 1.8, 3), [0.5]])


def gates_batch(bk: Backend, _: Any, rng: np.random.Generator) -> Samples:
    """mean of dz/dmu, one vector per draw, against dE[z]/dmu = P(0 < u < 1)."""
    mu = _mu(rng)
    groups = []
    for _group in range(GROUPS):
        eps = bk.xp.asarray(rng.standard_normal((_DRAWS, len(mu))))
        z, saved = gates.forward(bk, bk.xp.asarray(mu), eps, _SIGMA)
        groups.append(bk.to_host(gates.backward(bk, saved, bk.xp.ones_like(z))) / _DRAWS)
    return Samples(np.stack(groups), expected_gate(mu, _SIGMA)[1])


def gates_sample(bk: Backend, _: Any, rng: np.random.Generator) -> Samples:
    """mean of d(sum of z_i^2 over n rows)/dmu, gates per sample, against n dE[z^2]/dmu."""
    mu, n = _mu(rng), 3
    groups = []
    for _group in range(GROUPS):
        eps = bk.xp.asarray(rng.standard_normal((_DRAWS, n, len(mu))))
        z, saved = gates.forward(bk, bk.xp.asarray(mu), eps, _SIGMA)
        groups.append(bk.to_host(gates.backward(bk, saved, 2 * z)) / _DRAWS)
    return Samples(np.stack(groups), n * expected_gate(mu, _SIGMA)[3])


def _through_gram(bk: Backend, rng: np.random.Generator, per_sample: bool) -> tuple[Any, Any, Any, Any]:
    """Groups of d<C, G>/dmu for a random symmetric C, with mu, X and C."""
    xp, mu, n = bk.xp, _mu(rng), 4
    X, C = rng.standard_normal((n, len(mu))), rng.standard_normal((n, n))
    C = C + C.T
    on_device = xp.asarray(X), xp.asarray(C)
    draws = _DRAWS // 4
    groups = []
    for _group in range(GROUPS):
        eps = xp.asarray(rng.standard_normal((draws, n, len(mu)) if per_sample else (draws, len(mu))))
        z, saved = gates.forward(bk, xp.asarray(mu), eps, _SIGMA)
        wanted = xp.ones(len(mu), dtype=bool)
        dz = xp.stack([gram.backward(bk, gram.forward(bk, on_device[0], z_r)[1], on_device[1], wanted) for z_r in z])
        groups.append(bk.to_host(gates.backward(bk, saved, dz)) / draws)
    return np.stack(groups), mu, X, C


def gram_batch(bk: Backend, _: Any, rng: np.random.Generator) -> Samples:
    """mean of d<C, G>/dmu against (x_k' C x_k) dE[z_k^2]/dmu."""
    groups, mu, X, C = _through_gram(bk, rng, per_sample=False)
    return Samples(groups, ((C @ X) * X).sum(axis=0) * expected_gate(mu, _SIGMA)[3])


def gram_sample(bk: Backend, _: Any, rng: np.random.Generator) -> Samples:
    """The same with gates per sample: diagonal terms through E[z^2], the others through E[z]^2."""
    groups, mu, X, C = _through_gram(bk, rng, per_sample=True)
    mean, slope, _, second_slope = expected_gate(mu, _SIGMA)
    diagonal = (np.diag(C)[:, None] * X * X).sum(axis=0)
    others = ((C @ X) * X).sum(axis=0) - diagonal
    return Samples(groups, diagonal * second_slope + others * 2 * mean * slope)


def open_gates(bk: Backend, _: Any, rng: np.random.Generator) -> Samples:
    """mean over draws of 1[u > 0], by a likelihood-ratio estimate of its derivative, against d(sum p)/dmu."""
    mu = _mu(rng)
    groups = []
    for _group in range(GROUPS):
        eps = rng.standard_normal((10 * _DRAWS, len(mu)))
        groups.append(((mu + _SIGMA * eps > 0) * eps / _SIGMA).mean(axis=0))
    saved = regulariser.forward(bk, bk.xp.asarray(mu), _SIGMA)[1]
    return Samples(np.stack(groups), bk.to_host(regulariser.backward(bk, saved, 1.0)))


def whole_chain(bk: Backend, evaluate: Any, rng: np.random.Generator, lam: float | None) -> Samples:
    """mean of dL/dmu over draws at a huge bandwidth, against -(sum_i X_ik)^2 dE[z_k^2]/dmu / n^2 + lam dp/dmu.

    Without lam the quotient is differentiated: E[S] and dE[S]/dmu are both known, the denominator is not random.
    """
    from dufs_core.objective.chain import Objective

    xp, mu, n, draws = bk.xp, _mu(rng), 4, _DRAWS // 8
    X = rng.standard_normal((n, len(mu))) + 0.5
    objective = Objective(lam=lam, bandwidth=_HUGE, gate_sigma=_SIGMA)
    moved = xp.asarray(np.asfortranarray(X)), xp.asarray(mu)
    groups = []
    for _group in range(GROUPS):
        eps = xp.asarray(rng.standard_normal((draws, len(mu))))
        groups.append(bk.to_host(evaluate(bk, objective, moved[1], eps, moved[0])[1]))
    weight = X.sum(axis=0) ** 2 / n  # S = sum_k z_k^2 weight_k
    _, _, second, slope = expected_gate(mu, _SIGMA)
    p, dp = _probability(mu)
    if lam is not None:
        return Samples(np.stack(groups), -weight * slope / n + lam * dp)
    denominator = n * p.sum() + objective.delta
    exact = -weight * slope / denominator + (weight @ second) * n * dp / denominator**2
    return Samples(np.stack(groups), exact)


def _probability(mu: Any) -> tuple[Any, Any]:
    from scipy.stats import norm

    return norm.cdf(mu / _SIGMA), norm.pdf(mu / _SIGMA) / _SIGMA
