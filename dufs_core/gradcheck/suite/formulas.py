"""The formulas again, written for reading: no symmetric form, no saved values, one draw at a time.

They give independent values, and take complex numbers for the complex step.
"""

from __future__ import annotations

from typing import Any

from dufs_core.backend import Array, Backend
from dufs_core.objective.chain import Objective
from dufs_core.objective.ops.bandwidth import quantile_of


def gates(bk: Backend, mu: Array, eps: Array, sigma: float) -> Array:
    """z = min(max(mu + sigma eps, 0), 1), by the real part."""
    u = mu + sigma * eps
    return bk.xp.where(u.real <= 0, 0, bk.xp.where(u.real >= 1, 1, u))


def gram_distances(bk: Backend, G: Array) -> Array:
    """D_ij = G_ii + G_jj - 2 G_ij, 0 where its real part is negative and on the diagonal."""
    g = bk.xp.diagonal(G, axis1=-2, axis2=-1)
    D = g[..., :, None] + g[..., None, :] - 2 * G
    D = bk.xp.where(D.real > 0, D, 0)
    i = bk.xp.arange(D.shape[-1])
    D[..., i, i] = 0
    return D


def difference_distances(bk: Backend, Xt: Array) -> Array:
    """D_ij = ||x_i - x_j||^2 from the differences.      (n, d) -> (n, n)"""
    return ((Xt[:, None, :] - Xt[None, :, :]) ** 2).sum(axis=-1)


def bandwidth_entries(
    bk: Backend, D: Array, quantile: float, k: int, factor: float, degenerate_rule: str
) -> tuple[list[tuple[int, int, float]], float]:
    """b of one matrix as a list (i, j, weight), b = sum weight D_ij, or else a constant: [] and the number."""
    n = D.shape[0]
    real = bk.to_host(D.real)
    nearest = [sorted((float(real[i, j]), j) for j in range(n) if j != i)[k - 1] for i in range(n)]
    order = sorted(range(n), key=lambda i: nearest[i][0])
    position = quantile * (n - 1)
    low = int(position)
    share = position - low
    picks = [(order[low], 1 - share), (order[min(low + 1, n - 1)], share)]
    s = sum(nearest[i][0] * w for i, w in picks)
    if degenerate_rule == "one":
        if s < 1e-8:
            return [], factor
    else:
        tiny = 4 * float(bk.xp.finfo(D.real.dtype).eps) * float(real.max())
        if s <= tiny:
            positive = [i for i in order if nearest[i][0] > tiny]
            if not positive:
                return [], factor * (tiny or 1.0)
            picks = [(positive[0], 1.0)]
    return [(i, nearest[i][1], w * factor) for i, w in picks if w], 0.0


def power(bk: Backend, A: Array, t: int) -> Array:
    """A A ... A, t times."""
    result = A
    for _ in range(t - 1):
        result = result @ A
    return result


def probability_sum(bk: Backend, mu: Array, sigma: float) -> Array:
    """sum of Phi(mu / sigma)."""
    return (0.5 + 0.5 * bk.erf(mu / sigma / 2**0.5)).sum()


def affinity(bk: Backend, objective: Objective, D: Array, b: Any) -> Array:
    """exp(-D / b), with the objective's own weight of a row on the diagonal."""
    own = bk.xp.eye(len(D), dtype=bool)
    return bk.xp.where(own, objective.self_weight, bk.xp.exp(-D / b)).astype(D.dtype)


def loss(S: Array, sum_p: Any, n: int, lam: float | None, delta: float) -> Any:
    """-mean(S) / n + lam sum_p, or -mean(S) / (n sum_p + delta)."""
    mean = sum(S) / len(S)
    return -mean / (n * sum_p + delta) if lam is None else -mean / n + lam * sum_p


def chain(bk: Backend, objective: Objective, mu: Array, eps: Array, X: Array, fixed: list[float] | None = None) -> Any:
    """The loss of `Objective`, draw by draw, from the random-walk matrix; `fixed`: one bandwidth per draw."""
    scores = []
    for r, z in enumerate(gates(bk, mu, eps, objective.gate_sigma)):
        Xt = X * z
        D = difference_distances(bk, Xt)
        b = _bandwidth(bk, objective, D) if fixed is None else fixed[r]
        K = affinity(bk, objective, D, b)
        P = K / K.sum(axis=1, keepdims=True)
        scores.append((Xt * (power(bk, P, objective.power) @ Xt)).sum())
    sum_p = probability_sum(bk, mu, objective.gate_sigma)
    return loss(scores, sum_p, X.shape[0], objective.lam, objective.delta)


def _bandwidth(bk: Backend, objective: Objective, D: Array) -> Any:
    """b of one matrix."""
    if not isinstance(objective.bandwidth, str):
        return objective.bandwidth
    rule = quantile_of(objective.bandwidth), objective.n_neighbors, objective.bandwidth_factor
    entries, constant = bandwidth_entries(bk, D, *rule, objective.degenerate_rule)
    return sum(D[i, j] * weight for i, j, weight in entries) if entries else constant
