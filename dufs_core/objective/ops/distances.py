"""Squared Euclidean distances between the gated rows: Gram matrix G -> D."""

from __future__ import annotations

from typing import NamedTuple

from dufs_core.backend import Array, Backend


class Saved(NamedTuple):
    positive: Array  # (..., n, n) bool, where D is not clamped


def forward(bk: Backend, G: Array) -> tuple[Array, Saved]:
    """D_ij = max(G_ii + G_jj - 2 G_ij, 0),  D_ii = 0 exactly.

    G (..., n, n) symmetric. Returns D (..., n, n). The clamp only removes rounding: the exact value is
    never negative for a Gram matrix.
    """
    xp = bk.xp
    g = xp.diagonal(G, axis1=-2, axis2=-1)  # (..., n)
    D = G * -2
    D += g[..., :, None]
    D += g[..., None, :]
    xp.maximum(D, 0, out=D)
    i = xp.arange(D.shape[-1])
    D[..., i, i] = 0
    return D, Saved(D > 0)


def backward(bk: Backend, saved: Saved, dD: Array) -> Array:
    """dG = -2 E + diag(rowsum(E + E')),  E = dD where D > 0, else 0 (slope 0 at the clamp).

    dD (..., n, n). Returns dG (..., n, n), symmetric where dD is.
    """
    xp = bk.xp
    E = xp.where(saved.positive, dD, 0)
    dG = E * -2
    i = xp.arange(dG.shape[-1])
    dG[..., i, i] += E.sum(axis=-1) + E.sum(axis=-2)
    return dG
