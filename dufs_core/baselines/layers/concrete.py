"""The concrete selector layer: rows X and logits l -> k soft columns U.

Chain:  concrete.py (U)  ->  affine.py  ->  leaky_relu.py  ->  affine.py (Xhat)  ->  squared_error.py
"""

from __future__ import annotations

from typing import NamedTuple

from dufs_core.backend import Array, Backend


class Saved(NamedTuple):
    """What forward keeps for backward."""

    X: Array  # (n, d)
    S: Array  # (k, d) rows sum to 1
    temperature: float


def softmax(bk: Backend, logits: Array, temperature: float) -> Array:
    """S_ij = exp(l_ij / T) / sum_m exp(l_im / T), the largest logit of a row subtracted first.      (k, d)."""
    scaled = logits / temperature
    S = bk.xp.exp(scaled - scaled.max(axis=-1, keepdims=True))
    return S / S.sum(axis=-1, keepdims=True)


def forward(bk: Backend, X: Array, logits: Array, gumbel: Array, temperature: float) -> tuple[Array, Saved]:
    """U = X S',  S = softmax((l + g) / T) over the columns: node i shows a soft choice of one column.

    X (n, d) rows; logits l and Gumbel noise g (k, d); temperature T > 0. As T -> 0 the rows of S become one-hot at
    argmax(l + g), a draw of column j with probability softmax(l)_j. Returns U (n, k).
    Source: Abid, Balin and Zou 2019, section 3.1; Maddison, Mnih and Teh 2017 (the concrete distribution).
    """
    S = softmax(bk, logits + gumbel, temperature)
    return X @ S.T, Saved(X, S, temperature)


def backward(bk: Backend, saved: Saved, dU: Array) -> Array:
    """dl_i = S_i * (dS_i - <dS_i, S_i>) / T,  dS = dU' X.

    dU (n, k). Returns dl (k, d). The data and the noise are not differentiated.
    """
    X, S, temperature = saved
    dS = dU.T @ X
    return S * (dS - (dS * S).sum(axis=-1, keepdims=True)) / temperature
