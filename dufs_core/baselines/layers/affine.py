"""A dense layer: U -> V = U W + c.

Chain:  concrete.py (U) or leaky_relu.py  ->  affine.py (V)  ->  leaky_relu.py or squared_error.py
"""

from __future__ import annotations

from typing import NamedTuple

from dufs_core.backend import Array, Backend


class Saved(NamedTuple):
    """What forward keeps for backward."""

    U: Array  # (n, k)
    W: Array  # (k, m)


def forward(bk: Backend, U: Array, W: Array, c: Array) -> tuple[Array, Saved]:
    """V_ij = sum_l U_il W_lj + c_j.      U (n, k), W (k, m), c (m,) -> V (n, m)."""
    return U @ W + c, Saved(U, W)


def backward(bk: Backend, saved: Saved, dV: Array) -> tuple[Array, Array, Array]:
    """dU = dV W',  dW = U' dV,  dc_j = sum_i dV_ij.      dV (n, m)."""
    U, W = saved
    return dV @ W.T, U.T @ dV, dV.sum(axis=0)
