"""Normalisation of the affinity in its symmetric form: K -> A, with the degrees.

The random-walk matrix P = K / deg (rows sum to 1) is similar to the symmetric A = deg^(-1/2) K deg^(-1/2):
P^t = deg^(-1/2) A^t deg^(1/2). Working with A halves the products and keeps every matrix symmetric.
"""

from __future__ import annotations

from typing import NamedTuple

from dufs_core.backend import Array, Backend

# K_ii without self-loops: far below any neighbour's weight, but a row without neighbours keeps itself
SELF_WEIGHT = 1e-12


class Saved(NamedTuple):
    A: Array  # (..., n, n)
    deg: Array  # (..., n)


def isolated_degree(self_weight: float, eps: float) -> float:
    """The largest degree of a row that counts as isolated.

    Its neighbours together then weigh at most rounding, 8 eps (with self-loops, self_weight 1), or at most the row's
    own weight `SELF_WEIGHT` (without).
    """
    return 1 + 8 * eps if self_weight == 1 else 2 * self_weight


def forward(bk: Backend, K: Array) -> tuple[Array, Array, Saved]:
    """A_ij = K_ij / sqrt(deg_i deg_j),  deg_i = sum_j K_ij.

    K (..., n, n) symmetric, K >= 0 and K_ii >= `SELF_WEIGHT`, hence no division by zero.
    Returns A (..., n, n) symmetric, and deg (..., n).
    """
    deg = K.sum(axis=-1, dtype=bk.xp.float64).astype(K.dtype)
    q = deg**-0.5
    A = K * q[..., :, None]
    A *= q[..., None, :]
    return A, deg, Saved(A, deg)


def backward(bk: Backend, saved: Saved, dA: Array, ddeg: Array) -> Array:
    """dK_ij = q_i dA_ij q_j + ddeg_i - (1 / (2 deg_i)) sum_j (dA_ij + dA_ji) A_ij,  q = deg^(-1/2).

    dA (..., n, n); ddeg (..., n), the derivative through every other use of the degrees. Returns dK (..., n, n).
    """
    A, deg = saved
    q = deg**-0.5
    C = dA * A
    through_deg = ddeg - (C.sum(axis=-1) + C.sum(axis=-2)) / (2 * deg)
    dK = dA * q[..., :, None]
    dK *= q[..., None, :]
    dK += through_deg[..., :, None]
    return dK
