"""Gaussian kernel: squared distances D and bandwidth b -> affinity K."""

from __future__ import annotations

from typing import NamedTuple

from dufs_core.backend import Array, Backend


class Saved(NamedTuple):
    K: Array  # (..., n, n)
    D: Array  # (..., n, n)
    b: Array  # (...)


def forward(bk: Backend, D: Array, b: Array, self_weight: float = 1.0) -> tuple[Array, Saved]:
    """K_ij = exp(-D_ij / b), K_ii = self_weight.      Source: arXiv 2007.04728, section 2, with b = 2 sigma_b^2.

    D (..., n, n) non-negative, 0 on its diagonal; b (...) positive, in the units of D. Returns K in [0, 1], 1 where D
    is 0 between different rows.
    """
    K = bk.xp.exp(D / -b[..., None, None])
    i = bk.xp.arange(K.shape[-1])
    K[..., i, i] = self_weight
    return K, Saved(K, D, b)


def backward(bk: Backend, saved: Saved, dK: Array) -> tuple[Array, Array]:
    """dD = -E / b,  db = sum(E D) / b^2,  with E = dK K off the diagonal, and 0 on it.

    dK (..., n, n). Returns dD (..., n, n) and db (...).
    """
    K, D, b = saved
    dD = dK * K
    i = bk.xp.arange(K.shape[-1])
    dD[..., i, i] = 0
    dD /= -b[..., None, None]
    return dD, -(dD * D).sum(axis=(-2, -1)) / b
