"""The formulas again, independent and written for reading: no symmetric form, no saved values, one draw at a time.

Each takes what the forward of the same name takes, and complex numbers for the complex step.
"""

from __future__ import annotations

from typing import Any

from dufs_core.backend import Array, Backend
from dufs_core.baselines.concrete_network import SLOPE
from dufs_core.objective.chain import Objective
from dufs_core.objective.ops.bandwidth import quantile_of


def gates(bk: Backend, mu: Array, eps: Array, sigma: float) -> Array:
    """z = min(max(mu + sigma eps, 0), 1), by the real part."""
    u = mu + sigma * eps
    return bk.xp.where(u.real <= 0, 0, bk.xp.where(u.real >= 1, 1, u))


def gram(bk: Backend, X: Array, z: Array) -> Array:
    return (X * z) @ (X * z).T


def distances(bk: Backend, G: Array) -> Array:
    """D_ij = G_ii + G_jj - 2 G_ij, 0 where its real part is negative and on the diagonal."""
    g = bk.xp.diagonal(G, axis1=-2, axis2=-1)
    D = g[..., :, None] + g[..., None, :] - 2 * G
    D = bk.xp.where(D.real > 0, D, 0)
    i = bk.xp.arange(D.shape[-1])
    D[..., i, i] = 0
    return D


def bandwidths(bk: Backend, D: Array, rule: Any, k: int, factor: float, degenerate_rule: str) -> Array:
    """b of every matrix of D (..., n, n); a rule that is a number is that number times the factor."""
    if not isinstance(rule, str):
        return bk.xp.full(D.shape[:-2], rule * factor, dtype=D.dtype)
    values = [bandwidth(bk, M, rule, k, factor, degenerate_rule) for M in D.reshape(-1, *D.shape[-2:])]
    return bk.xp.stack([bk.xp.asarray(b) for b in values]).reshape(D.shape[:-2])


def bandwidth(bk: Backend, D: Array, rule: str, k: int, factor: float, degenerate_rule: str) -> Any:
    """b of one matrix, from the distance to the k-th nearest row of each row."""
    n, real = D.shape[0], bk.to_host(D.real)
    nearest = sorted(sorted((float(real[i, j]), i, j) for j in range(n) if j != i)[k - 1] for i in range(n))
    low, share = divmod(quantile_of(rule) * (n - 1), 1)
    picks = [(nearest[int(low)], 1 - share), (nearest[min(int(low) + 1, n - 1)], share)]
    s = sum(distance * w for (distance, _, _), w in picks)
    tiny = 4 * float(bk.xp.finfo(D.real.dtype).eps) * float(real.max())
    if degenerate_rule == "one" and s < 1e-8:
        return factor
    if degenerate_rule == "data" and s <= tiny:
        positive = [pair for pair in nearest if pair[0] > tiny]
        if not positive:
            return factor * (tiny or 1.0)
        picks = [(positive[0], 1.0)]
    return sum(D[i, j] * (w * factor) for (_, i, j), w in picks if w)


def gaussian(bk: Backend, D: Array, b: Array, self_weight: float) -> Array:
    """exp(-D / b), with a row's own weight on the diagonal."""
    own = bk.xp.eye(D.shape[-1], dtype=bool)
    return bk.xp.where(own, self_weight, bk.xp.exp(-D / b[..., None, None])).astype(D.dtype)


def normalise(bk: Backend, K: Array) -> tuple[Array, Array]:
    deg = K.sum(axis=-1)
    return K / bk.xp.sqrt(deg[..., :, None] * deg[..., None, :]), deg


def power(bk: Backend, A: Array, t: int) -> Array:
    """A A ... A, t times."""
    result = A
    for _ in range(t - 1):
        result = result @ A
    return result


def saturate(bk: Backend, G: Array, nu: float) -> Array:
    """nu G (G + nu I)^(-1)."""
    M = bk.xp.linalg.solve(G + nu * bk.xp.eye(G.shape[-1]), G)
    return nu * M


def score(bk: Backend, At: Array, G: Array, deg: Array) -> Array:
    r = bk.xp.sqrt(deg)
    return (At * G * r[..., None, :] / r[..., :, None]).sum(axis=(-2, -1))


def regulariser(bk: Backend, mu: Array, sigma: float) -> Array:
    """sum of Phi(mu / sigma)."""
    return (0.5 + 0.5 * bk.erf(mu / sigma / 2**0.5)).sum()


def loss(bk: Backend, S: Array, sum_p: Any, n: int, lam: float | None, delta: float) -> Any:
    """-mean(S) / n + lam sum_p, or -mean(S) / (n sum_p + delta)."""
    mean = sum(S) / len(S)
    return -mean / (n * sum_p + delta) if lam is None else -mean / n + lam * sum_p


def chain(bk: Backend, objective: Objective, mu: Array, eps: Array, X: Array) -> Any:
    """The loss of `Objective`, draw by draw, from the random-walk matrix."""
    factor = objective.bandwidth_factor if isinstance(objective.bandwidth, str) else 1.0
    rule = objective.bandwidth, objective.n_neighbors, factor, objective.degenerate_rule
    scores = []
    for z in gates(bk, mu, eps, objective.gate_sigma):
        Xt = X * z
        D = ((Xt[:, None, :] - Xt[None, :, :]) ** 2).sum(axis=-1)
        K = gaussian(bk, D, bandwidths(bk, D, *rule), objective.self_weight)
        P = K / K.sum(axis=1, keepdims=True)
        Y = Xt
        if objective.saturation is not None:  # nu Xt (Xt' Xt + nu I)^(-1)
            nu = objective.saturation * len(X)
            Y = nu * bk.xp.linalg.solve(Xt.T @ Xt + nu * bk.xp.eye(len(mu)), Xt.T).T
        scores.append((Y * (power(bk, P, objective.power) @ Xt)).sum())
    sum_p = regulariser(bk, mu, objective.gate_sigma)
    return loss(bk, scores, sum_p, X.shape[0], objective.lam, objective.delta)


def concrete(bk: Backend, X: Array, logits: Array, gumbel: Array, temperature: float) -> Array:
    """X S' with the softmax S from its definition, shifted by the largest real part of a row."""
    scaled = (logits + gumbel) / temperature
    E = bk.xp.exp(scaled - scaled.real.max(axis=1)[:, None])
    return X @ (E / E.sum(axis=1)[:, None]).T


def leaky_relu(bk: Backend, V: Array) -> Array:
    return V * bk.xp.where(V.real > 0, 1.0, SLOPE).astype(V.real.dtype)


def squared_error(bk: Backend, Xhat: Array, X: Array) -> Any:
    return ((Xhat - X) ** 2).sum() / X.size


def autoencoder(bk: Backend, X: Array, gumbel: Array, temperature: float, logits: Array, *decoder: Array) -> Any:
    """The squared error of X behind the concrete layer and the layers (W, c) of the decoder."""
    H = concrete(bk, X, logits, gumbel, temperature)
    for i in range(0, len(decoder), 2):
        H = (leaky_relu(bk, H) if i else H) @ decoder[i] + decoder[i + 1]
    return squared_error(bk, H, X)
