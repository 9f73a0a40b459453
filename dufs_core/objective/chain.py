"""The chain, and the only file that knows its order.

    mu, eps -> gates z -> Gram G -> distances D -> bandwidth b -> kernel K -> normalised A -> power A^t
            -> score S (of G, or of the saturated V) -> loss L (with the regulariser sum p)

and the gradient flows back through the same list. Several draws (rows of eps) are evaluated together:
their matrices are stacked, as many as stay in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Literal, NamedTuple

from dufs_core.backend import Array, Backend
from dufs_core.objective.ops import (
    bandwidth,
    distances,
    gates,
    gaussian,
    gram,
    loss,
    normalise,
    power,
    regulariser,
    saturate,
    score,
)

_ELEMENTS_TOGETHER = 1 << 15  # entries of the stacked (draws, n, n) matrices: temporaries stay in cache


class Value(NamedTuple):
    """What one evaluation gives beside its gradient."""

    loss: float
    score: Array  # (R,) S of every draw, float64, host or device as the backend
    bandwidth: Array  # (R,) b of every draw
    degenerate: Array  # (R,) bool, the bandwidth rule gave 0 and its substitute was used
    isolated: float  # share of rows without any neighbour in the kernel (`ops.normalise.isolated_degree`)


class Scores(NamedTuple):
    """What an engine computes, from gates to scores, with the derivative."""

    S: Array  # (R,) float64
    b: Array  # (R,)
    degenerate: Array  # (R,) bool
    isolated: Array  # (R,) share of rows without any neighbour
    dz: Array  # dS_r/dz of each draw, in the shape of z; nonzero only where 0 < mu + sigma eps < 1


@dataclass(frozen=True)
class Objective:
    """The gated Laplacian loss of arXiv 2007.04728 and its gradient, in the Gram form.

    L(mu) = mean over draws of -S / n + lam sum p, or with ``lam=None`` of -S / (n sum p + delta), where
    S = Tr(Xt' P^t Xt), Xt = X * z, z = clip(mu + gate_sigma eps, 0, 1), P = diag(K 1)^(-1) K,
    K_ij = exp(-||xt_i - xt_j||^2 / b), p = Phi(mu / gate_sigma); without self_loops K_ii is (as good as) 0.
    With saturation S = nu Tr(P^t G (G + nu I)^(-1)), G = Xt Xt', nu = n saturation.

    Parameters
    ----------
    lam : float or None
        Regularisation strength: the cost of an open gate in units of one feature's score, which for a column of
        variance 1 is at most 1. None: the parameter-free quotient.
    power : int
        t, at least 1.
    bandwidth : "median", "q90", "max" or float
        Rule for b (see `dufs_core.objective.ops.bandwidth`), or the number b itself.
    n_neighbors : int
        k of the rule, counting OTHER rows.
    bandwidth_factor : float
        C of the rule; a bandwidth given as a number is used as it is.
    self_loops : bool
        Whether a row is its own neighbour.
    gate_sigma : float
        Standard deviation of the gate noise.
    delta : float
        Added to n sum p in the parameter-free quotient.
    degenerate_rule : "data" or "one"
        Substitute for a bandwidth of zero (see `dufs_core.objective.ops.bandwidth`).
    saturation : float or None
        Most that a direction of the rows adds to S / n, however many columns carry it. None: no limit, the trace.
    """

    lam: float | None = None
    power: int = 2
    bandwidth: bandwidth.Rule = "max"
    n_neighbors: int = 2
    bandwidth_factor: float = 5.0
    self_loops: bool = True
    gate_sigma: float = 0.5
    delta: float = 1e-6
    degenerate_rule: Literal["data", "one"] = "data"
    saturation: float | None = None

    @property
    def self_weight(self) -> float:
        """K_ii."""
        return 1.0 if self.self_loops else normalise.SELF_WEIGHT

    def nu(self, n: int) -> float:
        """The most that a direction of n rows adds to S; infinite without saturation."""
        return inf if self.saturation is None else self.saturation * n

    def value_and_grad(
        self, bk: Backend, mu: Array, eps: Array, X: Array, scores_and_grad: ScoresAndGrad | None = None
    ) -> tuple[Value, Array]:
        """The loss and its derivative with respect to mu.

        Parameters
        ----------
        mu : (d,)
        eps : (R, d) or (R, n, d)
            R draws of the gate noise, one vector for the batch or one per sample; N(0, 1).
        X : (n, d)
            Scaled data, fastest in Fortran order. mu, eps and X have one dtype, which is computed in.
        scores_and_grad
            Another engine's way from gates to scores and dS/dz; None: the operations in this file's order.

        Returns
        -------
        Value, dmu (d,)
        """
        if scores_and_grad is not None and eps.ndim != 2:
            raise ValueError('this engine takes draws of shape (R, d): one gate per sample needs engine="reference"')
        z, saved_gates = gates.forward(bk, mu, eps, self.gate_sigma)
        scores = (scores_and_grad or dense_scores_and_grad)(bk, self, X, z, saved_gates.undecided)
        S, dz = scores.S, scores.dz

        sum_p, saved_p = regulariser.forward(bk, mu, self.gate_sigma)
        L, saved_loss = loss.forward(bk, S, sum_p, X.shape[0], self.lam, self.delta)
        dS, dsum_p = loss.backward(bk, saved_loss)
        dz = dz * dS.astype(dz.dtype).reshape(-1, *(1,) * (dz.ndim - 1))
        dmu = gates.backward(bk, saved_gates, dz) + regulariser.backward(bk, saved_p, dsum_p)
        return Value(L, S, scores.b, scores.degenerate, float(scores.isolated.mean())), dmu.astype(mu.dtype)


ScoresAndGrad = Callable[[Backend, Objective, Array, Array, Array], Scores]
Evaluate = Callable[[Backend, Objective, Array, Array, Array], tuple[Value, Array]]


def draws_together(n: int) -> int:
    """How many (n, n) matrices are stacked."""
    return max(1, _ELEMENTS_TOGETHER // (n * n))


def dense_scores_and_grad(
    bk: Backend, objective: Objective, X: Array, z: Array, undecided: Array, mapped: Callable[..., Any] = map
) -> Scores:
    """Scores of all draws and dS/dz through the operations, a few draws at a time.

    mapped: as `map`; that of a pool computes these parts at once.
    """
    together = draws_together(X.shape[0])

    def part(start: int) -> Scores:
        draws = slice(start, start + together)
        return _stacked_scores_and_grad(bk, objective, X, z[draws], undecided[draws])

    parts = list(mapped(part, range(0, len(z), together)))
    return parts[0] if len(parts) == 1 else Scores(*(bk.xp.concatenate(p) for p in zip(*parts, strict=True)))


class _Forward(NamedTuple):
    """The chain from gates to scores: values, and what each operation keeps for its backward."""

    S: Array  # (R,)
    b: Array  # (R,)
    degenerate: Array  # (R,)
    deg: Array  # (R, n)
    saved_D: distances.Saved
    saved_b: bandwidth.Saved
    saved_K: gaussian.Saved
    saved_A: normalise.Saved
    saved_At: power.Saved
    saved_V: saturate.Saved | None
    saved_S: score.Saved


def _forward(bk: Backend, objective: Objective, G: Array) -> _Forward:
    D, saved_D = distances.forward(bk, G)
    factor = objective.bandwidth_factor if isinstance(objective.bandwidth, str) else 1.0
    b, degenerate, saved_b = bandwidth.forward(
        bk, D, objective.bandwidth, objective.n_neighbors, factor, objective.degenerate_rule
    )
    K, saved_K = gaussian.forward(bk, D, b, objective.self_weight)
    A, deg, saved_A = normalise.forward(bk, K)
    At, saved_At = power.forward(bk, A, objective.power)
    V, saved_V = (G, None) if objective.saturation is None else saturate.forward(bk, G, objective.nu(G.shape[-1]))
    S, saved_S = score.forward(bk, At, V, deg)
    return _Forward(S, b, degenerate, deg, saved_D, saved_b, saved_K, saved_A, saved_At, saved_V, saved_S)


def _backward(bk: Backend, f: _Forward) -> Array:
    dAt, dG, ddeg = score.backward(bk, f.saved_S, bk.xp.ones_like(f.S))
    if f.saved_V is not None:  # what the score has is the derivative in V
        dG = saturate.backward(bk, f.saved_V, dG)
    dA = power.backward(bk, f.saved_At, dAt)
    dK = normalise.backward(bk, f.saved_A, dA, ddeg)
    dD, db = gaussian.backward(bk, f.saved_K, dK)
    dD = bandwidth.add_entries(bk, dD, bandwidth.backward(bk, f.saved_b, db))
    return dG + distances.backward(bk, f.saved_D, dD)


def scores_of_gram(bk: Backend, objective: Objective, G: Array) -> Scores:
    """Scores of Gram matrices G (R, n, n), with dS/dG (R, n, n) in the place of dS/dz."""
    f = _forward(bk, objective, G)
    alone = normalise.isolated_degree(objective.self_weight, float(bk.xp.finfo(f.deg.dtype).eps))
    isolated = (f.deg <= alone).mean(axis=-1)
    return Scores(f.S, f.b, f.degenerate, isolated, _backward(bk, f))


def _stacked_scores_and_grad(bk: Backend, objective: Objective, X: Array, z: Array, undecided: Array) -> Scores:
    xp = bk.xp
    products, saved = zip(*(gram.forward(bk, X, z_r) for z_r in z), strict=True)
    scores = scores_of_gram(bk, objective, xp.stack(products))
    wanted = undecided if undecided.ndim == 2 else undecided.any(axis=1)  # (draws, d)
    parts = zip(saved, scores.dz, wanted, strict=True)
    return scores._replace(dz=xp.stack([gram.backward(bk, saved_r, dG_r, w) for saved_r, dG_r, w in parts]))


def open_score(bk: Backend, objective: Objective, G: Array) -> float:
    """S of the data as they are, every gate open: Tr(X' P^t X).      G = X X' (n, n)."""
    return float(_forward(bk, objective, G[None]).S[0])


class OpenGraph(NamedTuple):
    """The graph of data as they are, every gate open."""

    P: Array  # (n, n), rows sum to 1
    bandwidth: float
    degenerate: bool  # the bandwidth rule gave 0 and its substitute was used
    isolated: float  # share of rows without any neighbour in the kernel


def open_graph(bk: Backend, objective: Objective, G: Array) -> OpenGraph:
    """The graph that G = X X' (n, n) is of."""
    f = _forward(bk, replace(objective, power=1), G[None])
    degree = f.deg[0]
    r = degree**0.5
    P = f.saved_A.A[0] * r[None, :] / r[:, None]  # P_ij = A_ij r_j / r_i
    alone = normalise.isolated_degree(objective.self_weight, float(bk.xp.finfo(degree.dtype).eps))
    return OpenGraph(P, float(f.b[0]), bool(f.degenerate[0]), float((degree <= alone).mean()))
