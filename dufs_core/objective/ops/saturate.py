"""The saturated Gram matrix, in which a direction counts at most nu however many columns carry it: G -> V.

The score of V in place of G is nu Tr(P^t G M), M = (G + nu I)^(-1). The graph is that of G.
"""

from __future__ import annotations

from typing import NamedTuple

from dufs_core.backend import Array, Backend

_LIFT = 4  # times the rounding of the largest entry is added to the diagonal: nothing is singular, however small nu


class Saved(NamedTuple):
    A: Array  # (..., n, n)


def forward(bk: Backend, G: Array, nu: float) -> tuple[Array, Saved]:
    """V = A^(-1) G = nu M G,  A = I + G / nu: an eigenvalue g of G becomes g / (1 + g / nu), at most nu.

    G (..., n, n) symmetric and positive semidefinite; nu > 0. Returns V (..., n, n), symmetric. For large nu it is G.
    """
    A = _system(bk, G, nu)
    return bk.xp.linalg.solve(A, G), Saved(A)


def backward(bk: Backend, saved: Saved, dV: Array) -> Array:
    """dG = A^(-1) dV A^(-1) = nu^2 M dV M.

    dV (..., n, n) symmetric. Returns dG (..., n, n), symmetric.
    """
    half = bk.xp.linalg.solve(saved.A, dV)
    return bk.xp.linalg.solve(saved.A, bk.xp.swapaxes(half, -1, -2))


def columns(bk: Backend, Xt: Array, nu: float) -> Array:
    """Y with V = Y Xt': nu M Xt = nu Xt (Xt' Xt + nu I)^(-1), from the smaller of the two systems.

    Xt (d, n): rows are columns of the gated data. Returns Y (d, n). With P fixed, z_k dS/dz_k = 2 y_k' P^t y_k.
    """
    d, n = Xt.shape
    if d <= n:
        return bk.xp.linalg.solve(_system(bk, Xt @ Xt.T, nu), Xt)
    return bk.xp.linalg.solve(_system(bk, Xt.T @ Xt, nu), Xt.T).T


def _system(bk: Backend, G: Array, nu: float) -> Array:
    """A = I + G / nu, its diagonal lifted by the rounding of G."""
    xp = bk.xp
    A = G * G.dtype.type(1 / nu)
    largest = xp.diagonal(A, axis1=-2, axis2=-1).max(axis=-1)
    i = xp.arange(A.shape[-1])
    A[..., i, i] += 1 + (_LIFT * float(xp.finfo(A.dtype).eps)) * largest[..., None]
    return A
