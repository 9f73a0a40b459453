"""The gated Laplacian score: A^t, degrees and Gram matrix -> S."""

from __future__ import annotations

from typing import NamedTuple

from dufs_core.backend import Array, Backend


class Saved(NamedTuple):
    At: Array  # (..., n, n)
    G: Array  # (..., n, n)
    deg: Array  # (..., n)


def forward(bk: Backend, At: Array, G: Array, deg: Array) -> tuple[Array, Saved]:
    """S = Tr(Xt' P^t Xt) = sum_ij A^t_ij G_ij sqrt(deg_j / deg_i).      Larger is better.

    At, G (..., n, n) symmetric; deg (..., n). Returns S (...), float64 (the sum runs over n^2 terms).
    """
    q = deg**-0.5
    Wr = bk.xp.matmul(At * G, (1 / q)[..., None])[..., 0]  # with 1 / q the rounding of q cancels
    S = (Wr * q).sum(axis=-1, dtype=bk.xp.float64)
    return S, Saved(At, G, deg)


def backward(bk: Backend, saved: Saved, dS: Array) -> tuple[Array, Array, Array]:
    """dAt = dS G R,  dG = dS A^t R,  R_ij = (r_i q_j + q_i r_j) / 2  (both symmetric),
    ddeg_i = dS (q_i (W q)_i - q_i^3 (W r)_i) / 2,  W = A^t G,  q = deg^(-1/2), r = deg^(1/2).

    dS (...). Returns dAt, dG (..., n, n) and ddeg (..., n).
    """
    xp = bk.xp
    At, G, deg = saved
    q = deg**-0.5
    r = 1 / q
    scale = dS.astype(G.dtype)[..., None, None]
    R = (r * 0.5)[..., :, None] * q[..., None, :]
    R = (R + xp.swapaxes(R, -1, -2)) * scale
    W = At * G
    Wq = xp.matmul(W, q[..., None])[..., 0]
    Wr = xp.matmul(W, r[..., None])[..., 0]
    ddeg = scale[..., 0] * (q * Wq - q**3 * Wr) * 0.5
    return G * R, At * R, ddeg
