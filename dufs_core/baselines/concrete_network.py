"""The concrete autoencoder's network: its layers, forward above backward, and the chain of them.

U = select(X, l, g, T);   H_1 = U;   H_{m+1} = leaky(H_m W_m + c_m);   Xhat = H_M W_M + c_M;   L = mean (Xhat - X)^2

Every forward returns its value and what its backward needs. Source: Abid, Balin and Zou 2019 (arXiv 1901.09346).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dufs_core.backend import Array, Backend

SLOPE = 0.2  # of the leaky rectifier for negative inputs


class Selected(NamedTuple):
    """What `select_forward` saves."""

    X: Array  # (n, d)
    S: Array  # (k, d) rows sum to 1
    temperature: float


def softmax(bk: Backend, logits: Array, temperature: float) -> Array:
    """S_ij = exp(l_ij / T) / sum_m exp(l_im / T), the largest logit of a row subtracted first.      (k, d)."""
    scaled = logits / temperature
    S = bk.xp.exp(scaled - scaled.max(axis=-1, keepdims=True))
    return S / S.sum(axis=-1, keepdims=True)


def select_forward(bk: Backend, X: Array, logits: Array, gumbel: Array, temperature: float) -> tuple[Array, Selected]:
    """U = X S',  S = softmax((l + g) / T) over the columns: each of k nodes makes a soft choice of one column.

    X (n, d) rows; logits l and Gumbel noise g (k, d); temperature T > 0. As T -> 0 the rows of S become one-hot at
    argmax(l + g), a draw of column j with probability softmax(l)_j. Returns U (n, k).
    Source: Maddison, Mnih and Teh 2017 (the concrete distribution).
    """
    S = softmax(bk, logits + gumbel, temperature)
    return X @ S.T, Selected(X, S, temperature)


def select_backward(bk: Backend, saved: Selected, dU: Array) -> Array:
    """dl_i = S_i * (dS_i - <dS_i, S_i>) / T,  dS = dU' X.      dU (n, k) -> dl (k, d)."""
    X, S, temperature = saved
    dS = dU.T @ X
    return S * (dS - (dS * S).sum(axis=-1, keepdims=True)) / temperature


def affine_forward(bk: Backend, U: Array, W: Array, c: Array) -> tuple[Array, tuple[Array, Array]]:
    """V_ij = sum_l U_il W_lj + c_j.      U (n, k), W (k, m), c (m,) -> V (n, m)."""
    return U @ W + c, (U, W)


def affine_backward(bk: Backend, saved: tuple[Array, Array], dV: Array) -> tuple[Array, Array, Array]:
    """dU = dV W',  dW = U' dV,  dc_j = sum_i dV_ij.      dV (n, m)."""
    U, W = saved
    return dV @ W.T, U.T @ dV, dV.sum(axis=0)


def leaky_forward(bk: Backend, V: Array) -> tuple[Array, Array]:
    """H = V where V > 0, else 0.2 V.      Any shape. Saves where V > 0. Source: Maas, Hannun and Ng 2013."""
    positive = V > 0
    return bk.xp.where(positive, V, SLOPE * V), positive


def leaky_backward(bk: Backend, positive: Array, dH: Array) -> Array:
    """dV = dH where V > 0, else 0.2 dH: at the kink V = 0 the slope of the negative side."""
    return bk.xp.where(positive, dH, SLOPE * dH)


def error_forward(bk: Backend, Xhat: Array, X: Array) -> tuple[float, Array]:
    """L = sum_ij (Xhat_ij - X_ij)^2 / (n d).      (n, d) both. Returns a float, summed in float64; saves Xhat - X."""
    residual = Xhat - X
    return float((residual * residual).mean(dtype=bk.xp.float64)), residual


def error_backward(bk: Backend, residual: Array) -> Array:
    """dXhat = 2 (Xhat - X) / (n d)."""
    return residual * (2.0 / residual.size)


def value_and_grad(
    bk: Backend, parameters: Sequence[Array], X: Array, gumbel: Array, temperature: float
) -> tuple[float, list[Array]]:
    """The loss of one batch and its derivative with respect to every parameter.

    parameters: logits (k, d), then W_m and c_m of each layer of the decoder, the last one giving d columns: 3 arrays
    for a linear decoder, 2 more for each hidden layer. X (n, d); gumbel (k, d); temperature > 0.
    Returns a float and a list of arrays in the parameters' shapes.
    """
    logits, *decoder = parameters
    H, selected = select_forward(bk, X, logits, gumbel, temperature)
    layers, bends = [], []
    for i in range(0, len(decoder), 2):
        if i:
            H, bend = leaky_forward(bk, H)
            bends.append(bend)
        H, layer = affine_forward(bk, H, decoder[i], decoder[i + 1])
        layers.append(layer)
    loss, residual = error_forward(bk, H, X)

    dH = error_backward(bk, residual)
    gradients: list[Array] = []
    while layers:
        dH, dW, dc = affine_backward(bk, layers.pop(), dH)
        gradients = [dW, dc, *gradients]
        if bends:
            dH = leaky_backward(bk, bends.pop(), dH)
    return loss, [select_backward(bk, selected, dH), *gradients]
