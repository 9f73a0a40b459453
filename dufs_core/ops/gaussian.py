"""Gaussian kernel: squared distances D and bandwidth b -> affinity K.

Chain:  distances.py (D), bandwidth.py (b)  ->  gaussian.py (K)  ->  normalise.py (A)
"""

from __future__ import annotations

from typing import NamedTuple

from dufs_core.backend import Array, Backend


class Saved(NamedTuple):
    """What forward keeps for backward."""

    K: Array  # (..., n, n)
    D: Array  # (..., n, n)
    b: Array  # (...)


def forward(bk: Backend, D: Array, b: Array) -> tuple[Array, Saved]:
    """K_ij = exp(-D_ij / b).      Source: arXiv 2007.04728, section 2, with b = 2 sigma_b^2.

    D (..., n, n) non-negative; b (...) positive, in the units of D. Returns K in [0, 1], 1 where D is 0.
    """
    K = bk.xp.exp(D / -b[..., None, None])
    return K, Saved(K, D, b)


def backward(bk: Backend, saved: Saved, dK: Array) -> tuple[Array, Array]:
    """dD = -E / b,  db = sum(E D) / b^2,  with E = dK K.

    dK (..., n, n). Returns dD (..., n, n) and db (...).
    """
    K, D, b = saved
    dD = dK * K
    dD /= -b[..., None, None]
    return dD, -(dD * D).sum(axis=(-2, -1)) / b
