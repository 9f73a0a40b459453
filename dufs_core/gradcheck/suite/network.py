"""The layers of the concrete autoencoder and the whole network, registered."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from dufs_core.backend import Array, Backend
from dufs_core.baselines import concrete_network as network
from dufs_core.baselines.concrete_network import SLOPE, value_and_grad
from dufs_core.gradcheck.suite.examples import KINDS, data
from dufs_core.gradcheck.suite.registry import Example, Kink, Operation, register

Rng = np.random.Generator
KINK_MARGIN = 0.02  # distance of every input of the leaky rectifier from 0


def _softmax(bk: Backend, logits: Array, gumbel: Array, temperature: float) -> Array:
    """From the definition, shifted by the largest real part of a row; takes complex logits."""
    scaled = (logits + gumbel) / temperature
    E = bk.xp.exp(scaled - scaled.real.max(axis=1)[:, None])
    return E / E.sum(axis=1)[:, None]


def _concrete(bk: Backend, _: Any, rng: Rng, index: int) -> Example:
    kind = KINDS[index % len(KINDS)]
    X = bk.xp.asarray(data(rng, kind))
    shape = (int(rng.integers(1, 5)), X.shape[1])
    logits, gumbel = bk.xp.asarray(rng.normal(size=shape)), bk.xp.asarray(rng.gumbel(size=shape))
    temperature = float(10.0 ** rng.uniform(-0.5, 1))

    def backward(X: Array, logits: Array, gumbel: Array, dU: Array) -> tuple[None, Array]:
        return None, network.select_backward(bk, network.select_forward(bk, X, logits, gumbel, temperature)[1], dU)

    return Example(
        lambda X, logits, gumbel: network.select_forward(bk, X, logits, gumbel, temperature)[0],
        backward,
        (X, logits, gumbel),
        f"{kind}, k={shape[0]}, T={temperature:.2g}",
        scales=(1.0, min(1.0, temperature), 1.0),
        analytic=lambda X, logits, gumbel: X @ _softmax(bk, logits, gumbel, temperature).T,
    )


register(Operation("concrete", "baselines.concrete_network", _concrete, complex_rtol=1e-11))


def _affine(bk: Backend, _: Any, rng: Rng, index: int) -> Example:
    kind = KINDS[index % len(KINDS)]
    U = bk.xp.asarray(data(rng, kind))
    m = int(rng.integers(1, 6))
    W, c = bk.xp.asarray(rng.normal(size=(U.shape[1], m))), bk.xp.asarray(rng.normal(size=m))

    def backward(U: Array, W: Array, c: Array, dV: Array) -> Any:
        return network.affine_backward(bk, network.affine_forward(bk, U, W, c)[1], dV)

    def formula(U: Array, W: Array, c: Array) -> Array:
        return (U[:, :, None] * W[None, :, :]).sum(axis=1) + c

    return Example(
        lambda U, W, c: network.affine_forward(bk, U, W, c)[0],
        backward,
        (U, W, c),
        kind,
        analytic=formula,
    )


register(Operation("affine", "baselines.concrete_network", _affine))


def _leaky(bk: Backend, V: Array) -> Array:
    return V * bk.xp.where(V.real > 0, 1.0, SLOPE).astype(V.real.dtype)


def _leaky_relu(bk: Backend, _: Any, rng: Rng, index: int) -> Example:
    kind = KINDS[index % len(KINDS)]
    V = data(rng, kind)
    size = np.abs(V).max()
    V = bk.xp.asarray(np.where(np.abs(V) < KINK_MARGIN * size, np.copysign(KINK_MARGIN * size, V), V))

    return Example(
        lambda V: network.leaky_forward(bk, V)[0],
        lambda V, dH: network.leaky_backward(bk, network.leaky_forward(bk, V)[1], dH),
        (V,),
        kind,
        analytic=lambda V: _leaky(bk, V),
    )


def _slope_at_zero(bk: Backend, _: Any) -> Any:
    V = bk.xp.asarray([0.0, 2.0**-40, -(2.0**-40)])
    return bk.to_host(network.leaky_backward(bk, network.leaky_forward(bk, V)[1], bk.xp.ones_like(V)))


_BEND = Kink("bend at V = 0: the negative side's slope; 1 above", _slope_at_zero, [SLOPE, 1.0, SLOPE])
register(Operation("leaky_relu", "baselines.concrete_network", _leaky_relu, kinks=(_BEND,)))


def _squared_error(bk: Backend, _: Any, rng: Rng, index: int) -> Example:
    kind = KINDS[index % len(KINDS)]
    X = bk.xp.asarray(data(rng, kind))
    Xhat = bk.xp.asarray(rng.normal(size=X.shape)) * float(bk.xp.abs(X).max() or 1.0)

    def backward(Xhat: Array, X: Array) -> tuple[Array]:
        return (network.error_backward(bk, network.error_forward(bk, Xhat, X)[1]),)

    def formula(Xhat: Array, X: Array) -> Any:
        return ((Xhat - X) ** 2).sum() / X.size

    return Example(
        lambda Xhat, X: network.error_forward(bk, Xhat, X)[0],
        backward,
        (Xhat, X),
        kind,
        analytic=formula,
    )


register(Operation("squared_error", "baselines.concrete_network", _squared_error))


def _network(hidden: int) -> Any:
    """The whole network with that many hidden layers."""

    def example(bk: Backend, _: Any, rng: Rng, index: int) -> Example:
        kind = ("plain", "duplicates", "constant_column", "two_rows", "one_column", "two_components")[index % 6]
        X = bk.xp.asarray(data(rng, kind))
        d, k = X.shape[1], int(rng.integers(1, 4))
        widths = [k, *(int(w) for w in rng.integers(1, 5, hidden)), d]
        parameters = [rng.normal(size=(k, d))]
        for a, b in pairwise(widths):
            parameters += [rng.normal(size=(a, b)), rng.normal(size=b)]
        gumbel, temperature = bk.xp.asarray(rng.gumbel(size=(k, d))), float(10.0 ** rng.uniform(-0.5, 1))

        def evaluate(p: tuple[Array, ...]) -> Any:
            return value_and_grad(bk, p, X.astype(p[0].dtype), gumbel.astype(p[0].dtype), temperature)

        def formula(*p: Array) -> Any:
            logits, *decoder = p
            H = X @ _softmax(bk, logits, gumbel, temperature).T
            for i in range(0, len(decoder), 2):
                H = (_leaky(bk, H) if i else H) @ decoder[i] + decoder[i + 1]
            return ((H - X) ** 2).sum() / X.size

        return Example(
            lambda *p: evaluate(p)[0],
            lambda *p: tuple(evaluate(p)[1]),
            tuple(bk.xp.asarray(p) for p in parameters),
            f"{kind}, k={k}, widths={widths[1:]}, T={temperature:.2g}",
            scales=(min(1.0, temperature), *(1.0 for _ in parameters[1:])),
            analytic=formula,
        )

    return example


for _hidden in (0, 1, 2):
    _name = f"concrete_autoencoder[hidden={_hidden}]"
    register(Operation(_name, "baselines.concrete_network", _network(_hidden), complex_rtol=1e-11))
