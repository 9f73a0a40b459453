"""Mean squared reconstruction error: Xhat -> L.

Chain:  affine.py (Xhat)  ->  squared_error.py (L)
"""

from __future__ import annotations

from typing import NamedTuple

from dufs_core.backend import Array, Backend


class Saved(NamedTuple):
    """What forward keeps for backward."""

    residual: Array  # (n, d) Xhat - X


def forward(bk: Backend, Xhat: Array, X: Array) -> tuple[float, Saved]:
    """L = sum_ij (Xhat_ij - X_ij)^2 / (n d).      Xhat and X (n, d). Returns a float, summed in float64."""
    residual = Xhat - X
    return float((residual * residual).mean(dtype=bk.xp.float64)), Saved(residual)


def backward(bk: Backend, saved: Saved) -> Array:
    """dXhat = 2 (Xhat - X) / (n d).      X is not differentiated."""
    return saved.residual * (2.0 / saved.residual.size)
