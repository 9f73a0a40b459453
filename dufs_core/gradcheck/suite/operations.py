"""The operations of dufs_core.objective.ops and the concrete autoencoder: where each is tried, its slopes at kinks."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from dufs_core.backend import Array, Backend
from dufs_core.baselines import concrete_network as network
from dufs_core.gradcheck.suite import examples, formulas
from dufs_core.gradcheck.suite.entries import Example, Kink, Operation, layer
from dufs_core.objective.ops import (
    bandwidth,
    distances,
    gates,
    gaussian,
    gram,
    loss,
    normalise,
    power,
    regulariser,
    saturate,
    score,
)

Rng = examples.Rng
_ZERO = np.zeros((3, 3))


def _kind(index: int, *without: str) -> str:
    kinds = [kind for kind in examples.KINDS if kind not in without]
    return kinds[index % len(kinds)]


def _stack(rng: Rng, make: Any) -> tuple[Array, ...]:
    """Arrays from make(n): one example, or two or three of the same size stacked along a new first axis."""
    copies, n = int(rng.integers(0, 4)), int(rng.integers(2, 8))
    if copies < 2:
        return tuple(np.asarray(part) for part in make(n))
    return tuple(np.stack(parts) for parts in zip(*(make(n) for _ in range(copies)), strict=True))


def _gates(noise: Any, bk: Backend, _: Any, rng: Rng, index: int) -> Example:
    p = examples.problem(rng, _kind(index), noise)
    sigma = float(rng.uniform(0.1, 1.0))
    arguments = p.mu, examples.away_from_kinks(p.mu, p.eps, sigma), sigma
    return layer(bk, gates.forward, gates.backward, formulas.gates, arguments, note=p.kind)


def _gate_slopes(bk: Backend, _: Any) -> Any:
    """dz/dmu at both kinks and just inside of them, each reached by mu, and from mu = 1/2 by the noise."""
    u = np.array([0.0, 1.0, 2.0**-40, 1 - 2.0**-40])
    mu, eps = (bk.xp.asarray(np.append(*halves)) for halves in ((u, 0 * u + 0.5), (0 * u, (u - 0.5) / 0.5)))
    z, saved = gates.forward(bk, mu, eps, 0.5)
    return bk.to_host(gates.backward(bk, saved, bk.xp.ones_like(z)))


def _gram(noise: Any, bk: Backend, _: Any, rng: Rng, index: int) -> Example:
    p = examples.problem(rng, _kind(index), noise, draws=1)
    z0 = bk.xp.asarray(np.clip(p.mu + examples.GATE_SIGMA * p.eps[0], 0, 1))
    wanted = bk.xp.asarray(rng.random(p.X.shape[1]) < 0.7)

    def held(z: Array) -> Array:
        """Columns whose derivative is not wanted stay where they are: the function does not depend on them."""
        return bk.xp.where(wanted, z, z0.astype(z.real.dtype))

    return layer(
        bk,
        lambda bk, X, z: gram.forward(bk, X, held(z)),
        lambda bk, saved, dG: gram.backward(bk, saved, dG, wanted),
        lambda bk, X, z: formulas.gram(bk, X, held(z)),
        (p.X, z0),
        wrt=(1,),
        note=p.kind,
    )


def _distances(bk: Backend, _: Any, rng: Rng, index: int) -> Example:
    kind = _kind(index, "duplicates", "near_ties")

    def make(n: int) -> tuple[Array]:
        X = examples.data(rng, kind, n)
        G = X @ X.T
        if index % 2:  # not a Gram matrix: some exact distances are negative and must be clamped
            G = G + examples.symmetric(rng.standard_normal(G.shape)) * np.mean(X**2)
        G = examples.symmetric(G)
        g = np.diagonal(G)
        D = g[:, None] + g[None, :] - 2 * G
        size = np.abs(G).max()
        push = np.where(np.abs(D) < 0.1 * size, np.sign(D) * 0.1 * size, 0.0)  # away from the clamp
        push[np.diag_indices_from(push)] = 0
        return (examples.symmetric(G - push / 2),)

    inputs, project = _stack(rng, make), {0: examples.symmetric}
    return layer(bk, distances.forward, distances.backward, formulas.distances, inputs, note=kind, project=project)


def _distance_slope(bk: Backend, _: Any) -> Any:
    """dG at the Gram matrix of three rows, two of them equal."""
    X = bk.xp.asarray([[1.0, 2.0], [1.0, 2.0], [0.0, 1.0]])
    dD = bk.xp.asarray([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    return bk.to_host(distances.backward(bk, distances.forward(bk, X @ X.T)[1], dD))


def _bandwidth_slope(bk: Backend, saved: Any, D: Array, db: Array) -> Array:
    zeros = bk.xp.zeros_like(D)
    return bandwidth.add_entries(bk, zeros, bandwidth.backward(bk, saved, db)) + zeros  # which must still be zeros


def _bandwidth(rule: str, bk: Backend, _: Any, rng: Rng, index: int) -> Example:
    xp, kind, factor = bk.xp, _kind(index), float(rng.uniform(0.5, 5))
    degenerate_rule = "one" if index % 3 == 2 else "data"
    (D,) = _stack(rng, lambda n: (examples.squared_distances(examples.data(rng, kind, max(n, 2))),))
    k = int(rng.integers(1, min(3, D.shape[-1] - 1) + 1))
    number = float(rng.uniform(0.5, 2)) * float(np.max(D) or 1.0)
    arguments = D, number if rule == "fixed" else rule, k, factor, degenerate_rule
    _, group, sizes = (xp.asarray(a) for a in np.unique(D, return_inverse=True, return_counts=True))
    movable = xp.asarray(D > 0)

    def tied(v: Array) -> Array:
        """Equal distances (duplicate rows, symmetry) move together, zeros stay: ties remain ties."""
        mean = xp.bincount(group.ravel(), weights=v.ravel()) / sizes
        return xp.where(movable, mean[group.reshape(v.shape)], 0)

    def forward(bk: Backend, D: Array, *settings: Any) -> Any:
        b, _, saved = bandwidth.forward(bk, D, *settings)
        return b, (saved, D)

    def backward(bk: Backend, saved: tuple[Any, Array], db: Array) -> Array:
        return _bandwidth_slope(bk, *saved, db)

    note, db = f"{kind}, k={k}, degenerate_rule={degenerate_rule}", rng.standard_normal(D.shape[:-2])
    return layer(bk, forward, backward, formulas.bandwidths, arguments, (0,), note, (db,), project={0: tied})


def _slopes(D: Any, rule: str, factor: float, bk: Backend, _: Any) -> Any:
    D = bk.xp.asarray(D)
    b, _, saved = bandwidth.forward(bk, D, rule, 1, factor)
    return bk.to_host(_bandwidth_slope(bk, saved, D, bk.xp.ones_like(b)))


def _tied(bk: Backend, _: Any) -> Any:
    """Both others are equally near to row 0, whose distance is the maximum: exactly one entry carries it all."""
    dD = _slopes([[0.0, 4.0, 4.0], [4.0, 0.0, 1.0], [4.0, 1.0, 0.0]], "max", 2.0, bk, _)
    return np.sort(dD, axis=None)[::-1][:3]


def _tied_median(bk: Backend, _: Any) -> Any:
    """Four corners of a square, every nearest distance the same: weights 1/2 and 1/2 on sides, none on diagonals."""
    D = examples.squared_distances(np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, 0.0]]))
    dD = _slopes(D, "median", 3.0, bk, _)
    return [dD.sum(), dD[D == 1.0].sum(), np.count_nonzero(dD)]


def _gaussian(bk: Backend, _: Any, rng: Rng, index: int) -> Example:
    kind = _kind(index)
    D, b = _stack(rng, lambda n: examples.affinity(rng, kind, n)[1:])
    arguments = D, b, 1.0 if index % 3 else float(rng.uniform(0, 1))
    return layer(bk, gaussian.forward, gaussian.backward, formulas.gaussian, arguments, (0, 1), kind)


def _normalise(bk: Backend, _: Any, rng: Rng, index: int) -> Example:
    kind = _kind(index)

    def make(n: int) -> tuple[Array]:
        K = examples.affinity(rng, kind, n)[0]
        return (K * rng.uniform(0.5, 1, K.shape) if index % 2 else K,)  # the backward is stated for any K

    return layer(bk, normalise.forward, normalise.backward, formulas.normalise, _stack(rng, make), note=kind)


def _affinity_degrees(rng: Rng, kind: str, n: int) -> tuple[Any, Any]:
    K = examples.affinity(rng, kind, n)[0]
    deg = K.sum(axis=1)
    return examples.symmetric(K / np.sqrt(np.outer(deg, deg))), deg


def _power(t: int, bk: Backend, _: Any, rng: Rng, index: int) -> Example:
    kind = _kind(index)
    (A,) = _stack(rng, lambda n: _affinity_degrees(rng, kind, n)[:1])
    promise: Any = {"project": {0: examples.symmetric}, "symmetric": (0,)}
    dAt = examples.symmetric(rng.standard_normal(A.shape))
    return layer(bk, power.forward, power.backward, formulas.power, (A, t), (0,), kind, (dAt,), **promise)


def _saturate(bk: Backend, _: Any, rng: Rng, index: int) -> Example:
    kind = _kind(index)

    def make(n: int) -> tuple[Any]:
        X = examples.data(rng, kind, n)
        return (examples.symmetric(X @ X.T),)

    (G,) = _stack(rng, make)
    nu = float(10.0 ** rng.uniform(-2, 2)) * float(np.mean(np.diagonal(G, axis1=-2, axis2=-1)) or 1.0)
    promise: Any = {"project": {0: examples.symmetric}, "symmetric": (0,)}
    dV = examples.symmetric(rng.standard_normal(G.shape))
    return layer(bk, saturate.forward, saturate.backward, formulas.saturate, (G, nu), (0,), kind, (dV,), **promise)


def _score(bk: Backend, _: Any, rng: Rng, index: int) -> Example:
    kind = _kind(index)

    def make(n: int) -> tuple[Any, Any, Any]:
        A, deg = _affinity_degrees(rng, kind, n)
        X = examples.data(rng, kind, len(A))
        return A, examples.symmetric(X @ X.T), deg

    inputs = _stack(rng, make)
    promise: Any = {"project": {0: examples.symmetric, 1: examples.symmetric}, "symmetric": (0, 1)}
    dS = rng.standard_normal(inputs[0].shape[:-2])
    return layer(bk, score.forward, score.backward, formulas.score, inputs, (0, 1, 2), kind, (dS,), **promise)


def _regulariser(bk: Backend, _: Any, rng: Rng, index: int) -> Example:
    sigma = float(rng.uniform(0.1, 1.0))
    mu = rng.uniform(-2, 2, int(rng.integers(1, 9))) * (0.05 if index % 3 == 0 else 1.0) * sigma

    arguments, note, dsum = (mu, sigma), f"d={len(mu)}", rng.standard_normal()
    return layer(bk, regulariser.forward, regulariser.backward, formulas.regulariser, arguments, (0,), note, (dsum,))


def _loss(free: bool, bk: Backend, _: Any, rng: Rng, index: int) -> Example:
    n = int(rng.integers(2, 20))
    sum_p = float(rng.uniform(0.001, 0.01) if index % 3 == 0 else rng.uniform(0.1, 8))
    S = rng.uniform(0, n, int(rng.integers(1, 6)))
    arguments = S, sum_p, n, None if free else float(rng.uniform(0, 3)), float(10.0 ** rng.uniform(-6, 0))
    note = f"draws={len(S)}, sum_p={sum_p:.3g}"
    return layer(bk, loss.forward, loss.backward, formulas.loss, arguments, (0, 1), note)


def _slope_at_zero(bk: Backend, _: Any) -> Any:
    V = bk.xp.asarray([0.0, 2.0**-40, -(2.0**-40)])
    return bk.to_host(network.leaky_backward(bk, network.leaky_forward(bk, V)[1], bk.xp.ones_like(V)))


def _autoencoder(hidden: int, bk: Backend, _: Any, rng: Rng, index: int) -> Example:
    """The whole network with that many hidden layers."""
    kind = ("plain", "duplicates", "constant_column", "two_rows", "one_column", "two_components")[index % 6]
    X = examples.data(rng, kind)
    d, k = X.shape[1], int(rng.integers(1, 4))
    widths = [k, *(int(w) for w in rng.integers(1, 5, hidden)), d]
    parameters = [rng.normal(size=(k, d))]
    for a, b in pairwise(widths):
        parameters += [rng.normal(size=(a, b)), rng.normal(size=b)]
    gumbel, T = rng.gumbel(size=(k, d)), float(10.0 ** rng.uniform(-0.5, 1))
    return layer(
        bk,
        lambda bk, X, gumbel, *p: network.value_and_grad(bk, p, X, gumbel, T),
        lambda bk, gradients: tuple(gradients),
        lambda bk, X, gumbel, *p: formulas.autoencoder(bk, X, gumbel, T, *p),
        (X, gumbel, *parameters),
        range(2, 2 + len(parameters)),
        note=f"{kind}, k={k}, widths={widths[1:]}, T={T:.2g}",
    )


_KINKS = {
    "gates[batch]": (Kink("gates at kinks: slope 0, just inside: 1", _gate_slopes, [0.0, 0.0, 1.0, 1.0] * 2),),
    "distances": (Kink("clamp at D = 0, and the diagonal: slope 0", _distance_slope, _ZERO),),
    "bandwidth[median]": (Kink("median of tied rows: half each, on nearest pairs", _tied_median, [3.0, 3.0, 2.0]),),
    "bandwidth[max]": (
        Kink("kNN tie: one of the tied pairs carries the slope", _tied, [2.0, 0.0, 0.0]),
        Kink("all distances 0: no slope", partial(_slopes, _ZERO, "max", 2.0), _ZERO),
    ),
    "concrete_autoencoder[hidden=1]": (
        Kink("bend at V = 0: the negative side's slope; 1 above", _slope_at_zero, [network.SLOPE, 1.0, network.SLOPE]),
    ),
}
_EXAMPLES: dict[str, Any] = {
    **{f"gates[{noise}]": partial(_gates, noise) for noise in ("batch", "sample")},
    **{f"gram[{noise}]": partial(_gram, noise) for noise in ("batch", "sample")},
    "distances": _distances,
    **{f"bandwidth[{rule}]": partial(_bandwidth, rule) for rule in ("median", "q90", "max", "fixed")},
    "gaussian": _gaussian,
    "normalise": _normalise,
    **{f"power[{t}]": partial(_power, t) for t in examples.POWERS},
    "saturate": _saturate,
    "score": _score,
    "regulariser": _regulariser,
    "loss[regularised]": partial(_loss, False),
    "loss[parameter-free]": partial(_loss, True),
}
_NETWORK = {f"concrete_autoencoder[hidden={hidden}]": partial(_autoencoder, hidden) for hidden in (0, 1, 2)}
OPERATIONS = tuple(
    Operation(
        name,
        "baselines.concrete_network" if name in _NETWORK else name.partition("[")[0],
        example,
        kinks=_KINKS.get(name, ()),
    )
    for name, example in (_EXAMPLES | _NETWORK).items()
)
