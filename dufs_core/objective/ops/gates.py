"""Stochastic gates: parameters mu and noise eps -> gates z in [0, 1]."""

from __future__ import annotations

from typing import NamedTuple

from dufs_core.backend import Array, Backend


class Saved(NamedTuple):
    undecided: Array  # (..., d) bool, 0 < mu + sigma eps < 1


def forward(bk: Backend, mu: Array, eps: Array, sigma: float) -> tuple[Array, Saved]:
    """z = clip(mu + sigma eps, 0, 1).      Source: arXiv 2007.04728, section 3.

    mu (d,); eps (..., d) standard normal, one vector for a whole batch or one per sample.
    Returns z in the shape of eps.
    """
    u = mu + sigma * eps
    return bk.xp.clip(u, 0, 1), Saved((u > 0) & (u < 1))


def backward(bk: Backend, saved: Saved, dz: Array) -> Array:
    """dmu_k = sum over leading axes of dz_k [0 < u_k < 1]; the slope is 0 at both kinks, u = 0 and u = 1.

    dz (..., d). Returns dmu (d,).
    """
    dmu = bk.xp.where(saved.undecided, dz, 0)
    return dmu.sum(axis=tuple(range(dmu.ndim - 1)))
