"""Leaky rectifier: V -> H, elementwise.

Chain:  affine.py (V)  ->  leaky_relu.py (H)  ->  affine.py
"""

from __future__ import annotations

from typing import NamedTuple

from dufs_core.backend import Array, Backend


class Saved(NamedTuple):
    """What forward keeps for backward."""

    positive: Array  # bool, where V > 0
    slope: float


def forward(bk: Backend, V: Array, slope: float) -> tuple[Array, Saved]:
    """H = V where V > 0, else slope V.      Any shape; 0 <= slope < 1.      Source: Maas, Hannun and Ng 2013."""
    positive = V > 0
    return bk.xp.where(positive, V, slope * V), Saved(positive, slope)


def backward(bk: Backend, saved: Saved, dH: Array) -> Array:
    """dV = dH where V > 0, else slope dH: at the kink V = 0 the slope of the negative side."""
    return bk.xp.where(saved.positive, dH, saved.slope * dH)
