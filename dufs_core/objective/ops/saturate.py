"""The saturated Gram matrix, in which a direction counts at most nu however many columns carry it: G -> V.

The score of V in place of G is nu Tr(P^t G M), M = (G + nu I)^(-1). The graph is that of G.
"""

from __future__ import annotations

from typing import NamedTuple

from dufs_core.backend import Array, Backend

_LIFT = 4  # roundings of the largest entry


class Saved(NamedTuple):
    Q: Array  # (..., n, n)


def forward(bk: Backend, G: Array, nu: float) -> tuple[Array, Saved]:
    """V = Q G,  Q = nu M = (I + G / nu)^(-1): an eigenvalue g of G becomes g / (1 + g / nu), at most nu.

    G (..., n, n) symmetric and positive semidefinite; nu > 0. Returns V (..., n, n), symmetric. For large nu it is G.
    """
    Q = _inverse(bk, G, nu)
    return bk.xp.matmul(Q, G), Saved(Q)


def backward(bk: Backend, saved: Saved, dV: Array) -> Array:
    """dG = Q dV Q = nu^2 M dV M.

    dV (..., n, n) symmetric. Returns dG (..., n, n), symmetric.
    """
    return bk.xp.matmul(bk.xp.matmul(saved.Q, dV), saved.Q)


def columns(bk: Backend, Xt: Array, nu: float) -> Array:
    """Y with V = Y Xt': nu M Xt = nu Xt (Xt' Xt + nu I)^(-1), from the smaller of the two inverses.

    Xt (d, n): rows are columns of the gated data. Returns Y (d, n). With P fixed, z_k dS/dz_k = 2 y_k' P^t y_k.
    """
    d, n = Xt.shape
    if d <= n:
        return bk.xp.matmul(_inverse(bk, bk.xp.matmul(Xt, Xt.T), nu), Xt)
    return bk.xp.matmul(Xt, _inverse(bk, bk.xp.matmul(Xt.T, Xt), nu))


def _inverse(bk: Backend, G: Array, nu: float) -> Array:
    """(I + G / nu)^(-1), with the rounding of G on the diagonal: nothing is singular, however small nu."""
    xp = bk.xp
    A = G * G.dtype.type(1 / nu)
    largest = xp.diagonal(A, axis1=-2, axis2=-1).max(axis=-1)
    i = xp.arange(A.shape[-1])
    A[..., i, i] += 1 + (_LIFT * float(xp.finfo(A.dtype).eps)) * largest[..., None]
    return bk.inverse(A)
