"""The chain, and the only file that knows its order.

    mu, eps -> gates z -> Gram G -> distances D -> bandwidth b -> kernel K -> normalised A -> power A^t
            -> score S -> loss L (with the regulariser sum p)

and the gradient flows back through the same list. Several draws (rows of eps) are evaluated together:
their matrices are stacked, as many as stay in the processor's cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from dufs_core.backend import Array, Backend
from dufs_core.ops import bandwidth, distances, gates, gaussian, gram, loss, normalise, power, regulariser, score

_ELEMENTS_TOGETHER = 1 << 15  # entries of the stacked (draws, n, n) matrices: temporaries stay in cache


class Value(NamedTuple):
    """What one evaluation gives beside its gradient."""

    loss: float
    score: Array  # (R,) S of every draw, float64, host or device as the backend
    bandwidth: Array  # (R,) b of every draw
    substituted: Array  # (R,) bool, the bandwidth rule gave 0 and its substitute was used
    isolated: float  # share of rows without any neighbour in the kernel (degree 1 within rounding)


@dataclass(frozen=True)
class Objective:
    """The gated Laplacian loss of arXiv 2007.04728 and its gradient, in the Gram form.

    L(mu) = mean over draws of -S / n + lam sum p, or with ``lam=None`` of -S / (n sum p + delta), where
    S = Tr(Xt' P^t Xt), Xt = X * z, z = clip(mu + gate_sigma eps, 0, 1), P = diag(K 1)^(-1) K,
    K_ij = exp(-||xt_i - xt_j||^2 / b), p = Phi(mu / gate_sigma).

    Parameters
    ----------
    lam : float or None
        Price of an open gate, in units of one feature's score (a column of variance 1 scores at most 1).
        None: the parameter-free quotient.
    power : int
        t, at least 1.
    bandwidth : "median", "max" or float
        Rule for b (see `dufs_core.ops.bandwidth`), or the number b itself.
    n_neighbors : int
        k of the rule, counting OTHER rows.
    bandwidth_factor : float
        C of the rule; a bandwidth given as a number is used as it is.
    bandwidth_gradient : bool
        Whether the gradient flows through the bandwidth. False treats b as a constant.
    gate_sigma : float
        Standard deviation of the gate noise.
    delta : float
        Added to n sum p in the parameter-free quotient.
    zero_rule : "data" or "one"
        Substitute for a bandwidth of zero (see `dufs_core.ops.bandwidth`).
    """

    lam: float | None = None
    power: int = 2
    bandwidth: bandwidth.Rule = "max"
    n_neighbors: int = 2
    bandwidth_factor: float = 5.0
    bandwidth_gradient: bool = True
    gate_sigma: float = 0.5
    delta: float = 1e-6
    zero_rule: Literal["data", "one"] = "data"

    def value_and_grad(self, bk: Backend, mu: Array, eps: Array, X: Array) -> tuple[Value, Array]:
        """The loss and its derivative with respect to mu.

        Parameters
        ----------
        mu : (d,)
        eps : (R, d) or (R, n, d)
            R draws of the gate noise, one vector for the batch or one per sample; N(0, 1).
        X : (n, d)
            Scaled data, fastest in Fortran order. mu, eps and X have one dtype, which is computed in.

        Returns
        -------
        Value, dmu (d,)
        """
        n = X.shape[0]
        R = len(eps)
        together = max(1, _ELEMENTS_TOGETHER // (n * n))
        z, saved_gates = gates.forward(bk, mu, eps, self.gate_sigma)

        parts = []
        dz = bk.xp.empty_like(z)
        for start in range(0, R, together):
            chunk = slice(start, min(start + together, R))
            parts.append(self._scores_and_grad(bk, X, z[chunk], saved_gates.undecided[chunk], dz[chunk]))
        S, b, substituted, isolated = (bk.xp.concatenate(p) for p in zip(*parts, strict=True))

        sum_p, saved_p = regulariser.forward(bk, mu, self.gate_sigma)
        L, saved_loss = loss.forward(bk, S, sum_p, n, self.lam, self.delta)
        dS, dsum_p = loss.backward(bk, saved_loss)
        dz *= dS.astype(dz.dtype).reshape(-1, *(1,) * (dz.ndim - 1))
        dmu = gates.backward(bk, saved_gates, dz) + regulariser.backward(bk, saved_p, dsum_p)
        return Value(L, S, b, substituted, float(isolated.mean())), dmu.astype(mu.dtype)

    def _scores_and_grad(
        self, bk: Backend, X: Array, z: Array, undecided: Array, dz: Array
    ) -> tuple[Array, Array, Array, Array]:
        """S, b, substituted, isolated (draws,) of a few draws; dS/dz is written to `dz`."""
        xp = bk.xp
        wanted = undecided if undecided.ndim == 2 else undecided.any(axis=1)  # (draws, d)
        products = [gram.forward(bk, X, z_r) for z_r in z]
        G = xp.stack([G_r for G_r, _ in products])
        D, saved_D = distances.forward(bk, G)
        rule, factor = (self.bandwidth, self.bandwidth_factor) if isinstance(self.bandwidth, str) else (self.bandwidth, 1.0)
        b, substituted, saved_b = bandwidth.forward(bk, D, rule, self.n_neighbors, factor, self.zero_rule)
        K, saved_K = gaussian.forward(bk, D, b)
        A, deg, saved_A = normalise.forward(bk, K)
        At, saved_At = power.forward(bk, A, self.power)
        S, saved_S = score.forward(bk, At, G, deg)

        dAt, dG, ddeg = score.backward(bk, saved_S, xp.ones_like(S))
        dA = power.backward(bk, saved_At, dAt)
        dK = normalise.backward(bk, saved_A, dA, ddeg)
        dD, db = gaussian.backward(bk, saved_K, dK)
        if self.bandwidth_gradient:
            dD = bandwidth.add_entries(bk, dD, bandwidth.backward(bk, saved_b, db))
        dG = dG + distances.backward(bk, saved_D, dD)
        for (_, saved_G), dG_r, wanted_r, dz_r in zip(products, dG, wanted, dz, strict=True):
            dz_r[...] = gram.backward(bk, saved_G, dG_r, wanted_r)

        isolated = (deg <= 1 + 8 * xp.finfo(deg.dtype).eps).mean(axis=-1)
        return S, b, substituted, isolated
