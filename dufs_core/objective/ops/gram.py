"""Gram matrix of the gated data: X, z -> G.

Everything the loss needs passes through G, so nothing of size (n, d) is ever back-propagated. Columns
whose gate is closed contribute nothing and are left out of the product; columns whose derivative is not
wanted (saturated gates have none) are left out of the backward product. Both are exact.
X is fastest in Fortran order, where gathering columns copies contiguous memory.
"""

from __future__ import annotations

from typing import NamedTuple

from dufs_core.backend import Array, Backend


class Saved(NamedTuple):
    X: Array  # (n, d)
    z: Array  # (d,) or (n, d)


def forward(bk: Backend, X: Array, z: Array) -> tuple[Array, Saved]:
    """G = Xt Xt',  Xt = X * z, from the columns that are not closed.

    X (n, d); z (d,), one gate vector for the batch, or (n, d), one per sample. Returns G (n, n), symmetric.
    """
    open_columns = bk.xp.flatnonzero(z if z.ndim == 1 else (z != 0).any(axis=0))
    gates = z[open_columns, None] if z.ndim == 1 else z.T[open_columns]
    Xt = X.T[open_columns] * gates  # (open, n), the transpose of the gated data
    return Xt.T @ Xt, Saved(X, z)


def backward(bk: Backend, saved: Saved, dG: Array, wanted: Array) -> Array:
    """dz_k = 2 z_k x_k' dG x_k (batch gates), or dz_ik = X_ik ((dG + dG') Xt)_ik (per sample).

    dG (n, n). wanted (d,) bool: the columns whose derivative is needed; the others are returned as 0.
    Returns dz in the shape of z.
    """
    xp = bk.xp
    X, z = saved
    columns = xp.flatnonzero(wanted)
    rows = X.T[columns]  # (wanted, n)
    dz = xp.zeros_like(z)
    if z.ndim == 1:
        dz[columns] = 2 * z[columns] * ((rows @ dG) * rows).sum(axis=1)
    else:
        dz.T[columns] = rows * ((rows * z.T[columns]) @ (dG + dG.T))
    return dz
