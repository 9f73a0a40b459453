"""The concrete autoencoder as a function of its parameters: the only file that knows the order of its layers.

U = concrete(X, l, g, T);   H_1 = U;   H_{m+1} = leaky(H_m W_m + c_m);   Xhat = H_M W_M + c_M;   L = mean (Xhat - X)^2
"""

from __future__ import annotations

from collections.abc import Sequence

from dufs_core.backend import Array, Backend
from dufs_core.baselines.layers import affine, concrete, leaky_relu, squared_error

SLOPE = 0.2  # of the leaky rectifier for negative inputs


def value_and_grad(
    bk: Backend, parameters: Sequence[Array], X: Array, gumbel: Array, temperature: float
) -> tuple[float, list[Array]]:
    """The loss of one batch and its derivative with respect to every parameter.

    parameters: logits (k, d), then W_m and c_m of each layer of the decoder, the last one giving d columns: 3 arrays
    for a linear decoder, 2 more for each hidden layer. X (n, d); gumbel (k, d); temperature > 0.
    Returns a float and a list of arrays in the parameters' shapes.
    """
    logits, *decoder = parameters
    U, selected = concrete.forward(bk, X, logits, gumbel, temperature)
    loss, dU, gradients = reconstruction(bk, decoder, U, X)
    return loss, [concrete.backward(bk, selected, dU), *gradients]


def reconstruction(bk: Backend, decoder: Sequence[Array], U: Array, X: Array) -> tuple[float, Array, list[Array]]:
    """The loss of one batch, dU and the derivatives with respect to the decoder's parameters, for U (n, k)."""
    H = U
    layers: list[affine.Saved] = []
    bends: list[leaky_relu.Saved] = []
    for i in range(0, len(decoder), 2):
        if i:
            H, bend = leaky_relu.forward(bk, H, SLOPE)
            bends.append(bend)
        H, layer = affine.forward(bk, H, decoder[i], decoder[i + 1])
        layers.append(layer)
    loss, residual = squared_error.forward(bk, H, X)

    dH = squared_error.backward(bk, residual)
    gradients: list[Array] = []
    while layers:
        dH, dW, dc = affine.backward(bk, layers.pop(), dH)
        gradients = [dW, dc, *gradients]
        if bends:
            dH = leaky_relu.backward(bk, bends.pop(), dH)
    return loss, dH, gradients
