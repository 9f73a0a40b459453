"""The layers of the concrete autoencoder and the whole network, registered."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from dufs_core.backend import Array, Backend
from dufs_core.baselines import concrete_network as network
from dufs_core.baselines.concrete_network import SLOPE, value_and_grad
from dufs_core.gradcheck.suite import formulas
from dufs_core.gradcheck.suite.examples import KINDS, data
from dufs_core.gradcheck.suite.registry import Example, Kink, Operation, layer, register

Rng = np.random.Generator
KINK_MARGIN = 0.02  # distance of every input of the leaky rectifier from 0


def _concrete(bk: Backend, _: Any, rng: Rng, index: int) -> Example:
    kind = KINDS[index % len(KINDS)]
    X = data(rng, kind)
    shape = (int(rng.integers(1, 5)), X.shape[1])
    inputs = X, rng.normal(size=shape), rng.gumbel(size=shape)
    T = float(10.0 ** rng.uniform(-0.5, 1))

    def backward(bk: Backend, saved: Any, dU: Array) -> tuple[None, Array]:
        return None, network.select_backward(bk, saved, dU)

    note, scales = f"{kind}, k={shape[0]}, T={T:.2g}", (1.0, min(1.0, T), 1.0)
    return layer(bk, network.select_forward, backward, formulas.concrete, inputs, (T,), note, scales=scales)


def _affine(bk: Backend, _: Any, rng: Rng, index: int) -> Example:
    kind = KINDS[index % len(KINDS)]
    U = data(rng, kind)
    m = int(rng.integers(1, 6))
    inputs = U, rng.normal(size=(U.shape[1], m)), rng.normal(size=m)
    return layer(bk, network.affine_forward, network.affine_backward, formulas.affine, inputs, note=kind)


def _leaky_relu(bk: Backend, _: Any, rng: Rng, index: int) -> Example:
    kind = KINDS[index % len(KINDS)]
    V = data(rng, kind)
    margin = KINK_MARGIN * np.abs(V).max()
    V = np.where(np.abs(V) < margin, np.copysign(margin, V), V)
    return layer(bk, network.leaky_forward, network.leaky_backward, formulas.leaky_relu, (V,), note=kind)


def _slope_at_zero(bk: Backend, _: Any) -> Any:
    V = bk.xp.asarray([0.0, 2.0**-40, -(2.0**-40)])
    return bk.to_host(network.leaky_backward(bk, network.leaky_forward(bk, V)[1], bk.xp.ones_like(V)))


def _squared_error(bk: Backend, _: Any, rng: Rng, index: int) -> Example:
    kind = KINDS[index % len(KINDS)]
    X = data(rng, kind)
    inputs = rng.normal(size=X.shape) * float(np.abs(X).max() or 1.0), X
    return layer(bk, network.error_forward, network.error_backward, formulas.squared_error, inputs, note=kind)


def _autoencoder(hidden: int, bk: Backend, _: Any, rng: Rng, index: int) -> Example:
    """The whole network with that many hidden layers."""
    kind = ("plain", "duplicates", "constant_column", "two_rows", "one_column", "two_components")[index % 6]
    X = bk.xp.asarray(data(rng, kind))
    d, k = X.shape[1], int(rng.integers(1, 4))
    widths = [k, *(int(w) for w in rng.integers(1, 5, hidden)), d]
    parameters = [rng.normal(size=(k, d))]
    for a, b in pairwise(widths):
        parameters += [rng.normal(size=(a, b)), rng.normal(size=b)]
    gumbel, T = bk.xp.asarray(rng.gumbel(size=(k, d))), float(10.0 ** rng.uniform(-0.5, 1))

    def forward(bk: Backend, *p: Array) -> tuple[float, list[Array]]:
        return value_and_grad(bk, p, X.astype(p[0].dtype), gumbel.astype(p[0].dtype), T)

    def backward(bk: Backend, gradients: list[Array]) -> tuple[Array, ...]:
        return tuple(gradients)

    def formula(bk: Backend, *p: Array) -> Any:
        return formulas.autoencoder(bk, X, gumbel, T, *p)

    note = f"{kind}, k={k}, widths={widths[1:]}, T={T:.2g}"
    scales = (min(1.0, T), *(1.0 for _ in parameters[1:]))
    return layer(bk, forward, backward, formula, parameters, note=note, scales=scales)


_BEND = Kink("bend at V = 0: the negative side's slope; 1 above", _slope_at_zero, [SLOPE, 1.0, SLOPE])
_MODULE = "baselines.concrete_network"
register(Operation("concrete", _MODULE, _concrete, complex_rtol=1e-11))
register(Operation("affine", _MODULE, _affine))
register(Operation("leaky_relu", _MODULE, _leaky_relu, kinks=(_BEND,)))
register(Operation("squared_error", _MODULE, _squared_error))
for _hidden in (0, 1, 2):
    _name = f"concrete_autoencoder[hidden={_hidden}]"
    register(Operation(_name, _MODULE, partial(_autoencoder, _hidden), complex_rtol=1e-11))
