"""The operations of dufs_core.objective.ops, registered: where each is tried and what its plain formula is."""

from __future__ import annotations

from typing import Any

import numpy as np

from dufs_core.backend import Array, Backend
from dufs_core.gradcheck.suite import expectation, formulas
from dufs_core.gradcheck.suite.examples import (
    GATE_SIGMA,
    KINDS,
    affinity,
    away_from_kinks,
    data,
    problem,
    squared_distances,
    symmetric,
)
from dufs_core.gradcheck.suite.registry import Example, Kink, Operation, register
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
    score,
)

Rng = np.random.Generator
POWERS = (1, 2, 3, 4, 5)


def _kind(index: int, *without: str) -> str:
    kinds = [kind for kind in KINDS if kind not in without]
    return kinds[index % len(kinds)]


def _stack(rng: Rng, make: Any) -> tuple[Array, ...]:
    """Arrays from make(n): one example, or two or three of the same size stacked along a new first axis."""
    copies = int(rng.integers(0, 4))
    n = int(rng.integers(2, 8))
    if copies < 2:
        return tuple(np.asarray(part) for part in make(n))
    return tuple(np.stack(parts) for parts in zip(*(make(n) for _ in range(copies)), strict=True))


# --- gates ----------------------------------------------------------------------------------------------------------


def _gates(noise: Any) -> Any:
    def example(bk: Backend, _: Any, rng: Rng, index: int) -> Example:
        p = problem(rng, _kind(index), noise)
        sigma = float(rng.uniform(0.1, 1.0))
        mu, eps = bk.xp.asarray(p.mu), bk.xp.asarray(away_from_kinks(p.mu, p.eps, sigma))

        def backward(mu: Array, eps: Array, dz: Array) -> Array:
            return gates.backward(bk, gates.forward(bk, mu, eps, sigma)[1], dz)

        return Example(
            lambda mu, eps: gates.forward(bk, mu, eps, sigma)[0],
            backward,
            (mu, eps),
            p.kind,
            analytic=lambda mu, eps: formulas.gates(bk, mu, eps, sigma),
        )

    return example


def _gate_slope(u: float) -> Any:
    """dz/dmu at mu + sigma eps = u, from two draws, so that both ways to reach a kink are tried."""

    def gradient(bk: Backend, _: Any) -> Any:
        mu, eps = bk.xp.asarray([u, 0.5]), bk.xp.asarray([[0.0, (u - 0.5) / 0.5], [0.0, (u - 0.5) / 0.5]])
        return bk.to_host(gates.backward(bk, gates.forward(bk, mu, eps, 0.5)[1], bk.xp.ones_like(eps)))

    return gradient


_GATE_KINKS = (
    Kink("gate at u = 0: slope 0", _gate_slope(0.0), [0.0, 0.0]),
    Kink("gate at u = 1: slope 0", _gate_slope(1.0), [0.0, 0.0]),
    Kink("gate just above u = 0: slope 1", _gate_slope(2.0**-40), [2.0, 2.0]),
    Kink("gate just below u = 1: slope 1", _gate_slope(1 - 2.0**-40), [2.0, 2.0]),
)
register(Operation("gates[batch]", "gates", _gates("batch"), kinks=_GATE_KINKS, expectation=expectation.clipped_gates))
register(Operation("gates[sample]", "gates", _gates("sample")))


# --- gram -----------------------------------------------------------------------------------------------------------


def _gram(noise: Any) -> Any:
    def example(bk: Backend, _: Any, rng: Rng, index: int) -> Example:
        xp = bk.xp
        p = problem(rng, _kind(index), noise, draws=1)
        z0 = np.clip(p.mu + GATE_SIGMA * p.eps[0], 0, 1)
        wanted_host = rng.random(p.X.shape[1]) < 0.7
        X, z0, wanted = xp.asarray(p.X), xp.asarray(z0), xp.asarray(wanted_host)

        def held(z: Array) -> Array:
            """Columns whose derivative is not wanted stay where they are: the function does not depend on them."""
            return xp.where(wanted, z, z0.astype(z.real.dtype))

        def backward(X: Array, z: Array, dG: Array) -> tuple[None, Array]:
            return None, gram.backward(bk, gram.forward(bk, X, z)[1], dG, wanted)

        return Example(
            lambda X, z: gram.forward(bk, X, held(z))[0],
            backward,
            (X, z0),
            p.kind,
            analytic=lambda X, z: (X * held(z)) @ (X * held(z)).T,
        )

    return example


register(Operation("gram[batch]", "gram", _gram("batch")))
register(Operation("gram[sample]", "gram", _gram("sample")))


# --- distances ------------------------------------------------------------------------------------------------------


def _distances(bk: Backend, _: Any, rng: Rng, index: int) -> Example:
    kind = _kind(index, "duplicates", "near_ties")

    def make(n: int) -> tuple[Array]:
        X = data(rng, kind, n)
        G = X @ X.T
        if index % 2:  # not a Gram matrix: some exact distances are negative and must be clamped
            G = G + symmetric(rng.standard_normal(G.shape)) * np.mean(X**2)
        G = symmetric(G)
        g = np.diagonal(G)
        D = g[:, None] + g[None, :] - 2 * G
        size = np.abs(G).max()
        push = np.where(np.abs(D) < 0.1 * size, np.sign(D) * 0.1 * size, 0.0)  # away from the clamp
        push[np.diag_indices_from(push)] = 0
        return (symmetric(G - push / 2),)

    (G,) = _stack(rng, make)

    def backward(G: Array, dD: Array) -> Array:
        return distances.backward(bk, distances.forward(bk, G)[1], dD)

    return Example(
        lambda G: distances.forward(bk, G)[0],
        backward,
        (bk.xp.asarray(G),),
        kind,
        project={0: symmetric},
        analytic=lambda G: formulas.gram_distances(bk, G),
    )


def _clamped_slope(bk: Backend, _: Any) -> Any:
    """Three rows, the first two equal: D_12 = 0, so nothing flows through it."""
    X = bk.xp.asarray([[1.0, 2.0], [1.0, 2.0], [0.0, 1.0]])
    D, saved = distances.forward(bk, X @ X.T)
    dD = bk.xp.zeros_like(D)
    dD[0, 1] = dD[1, 0] = 1.0
    return bk.to_host(distances.backward(bk, saved, dD))


def _diagonal_slope(bk: Backend, _: Any) -> Any:
    """The diagonal of D is 0 whatever G is: nothing flows through it."""
    X = bk.xp.asarray([[1.0, 2.0], [3.0, 2.0], [0.0, 1.0]])
    saved = distances.forward(bk, X @ X.T)[1]
    return bk.to_host(distances.backward(bk, saved, bk.xp.eye(3)))


_ZERO = np.zeros((3, 3))
register(
    Operation(
        "distances",
        "distances",
        _distances,
        kinks=(Kink("clamp at D = 0: slope 0", _clamped_slope, _ZERO), Kink("diagonal: 0", _diagonal_slope, _ZERO)),
    )
)


# --- bandwidth ------------------------------------------------------------------------------------------------------


def _typical(D: Any) -> float:
    """The median positive distance to a nearest row: the scale on which neighbours change."""
    nearest = np.where(D > 0, D, np.inf).min(axis=-1)
    nearest = nearest[np.isfinite(nearest)]
    return float(np.median(nearest)) if nearest.size else 1.0


def _bandwidth(rule: str) -> Any:
    def example(bk: Backend, _: Any, rng: Rng, index: int) -> Example:
        xp = bk.xp
        kind = _kind(index)
        factor = float(rng.uniform(0.5, 5))
        degenerate_rule: Any = "one" if index % 3 == 2 else "data"
        (D,) = (xp.asarray(a) for a in _stack(rng, lambda n: (squared_distances(data(rng, kind, max(n, 2))),)))
        n = D.shape[-1]
        k = int(rng.integers(1, min(3, n - 1) + 1))
        number = float(rng.uniform(0.5, 2)) * float(xp.max(D) or 1.0)
        given: Any = number if rule == "fixed" else rule
        _, group, sizes = (xp.asarray(a) for a in np.unique(bk.to_host(D), return_inverse=True, return_counts=True))

        def tied(v: Array) -> Array:
            """Equal distances (duplicate rows, symmetry) move together, zeros stay: ties remain ties."""
            mean = xp.bincount(group.ravel(), weights=v.ravel()) / sizes
            return xp.where(D > 0, mean[group.reshape(D.shape)], 0)

        def backward(D: Array, db: Array) -> Array:
            saved = bandwidth.forward(bk, D, given, k, factor, degenerate_rule)[2]
            untouched = xp.zeros_like(D)
            return bandwidth.add_entries(bk, untouched, bandwidth.backward(bk, saved, db)) + untouched

        def formula(D: Array) -> Array:
            if rule == "fixed":
                return xp.full(D.shape[:-2], number * factor, dtype=D.dtype)
            values = []
            for M in D.reshape(-1, n, n):
                quantile = bandwidth.quantile_of(rule)
                entries, constant = formulas.bandwidth_entries(bk, M, quantile, k, factor, degenerate_rule)
                values.append(sum(M[i, j] * w for i, j, w in entries) if entries else xp.asarray(constant))
            return xp.stack(values).reshape(D.shape[:-2])

        return Example(
            lambda D: bandwidth.forward(bk, D, given, k, factor, degenerate_rule)[0],
            backward,
            (D,),
            f"{kind}, k={k}, degenerate_rule={degenerate_rule}",
            cotangents=(xp.asarray(rng.standard_normal(D.shape[:-2])),),
            scales=(_typical(bk.to_host(D)),),
            project={0: tied},
            analytic=formula,
        )

    return example


def _tied(bk: Backend, _: Any) -> Any:
    """Both others are equally near to row 0, whose distance is the maximum: exactly one entry carries it all."""
    D = bk.xp.asarray([[0.0, 4.0, 4.0], [4.0, 0.0, 1.0], [4.0, 1.0, 0.0]])
    b, _, saved = bandwidth.forward(bk, D, "max", 1, 2.0)
    dD = bandwidth.add_entries(bk, bk.xp.zeros_like(D), bandwidth.backward(bk, saved, bk.xp.ones_like(b)))
    return np.sort(bk.to_host(dD), axis=None)[::-1][:3]


def _tied_median(bk: Backend, _: Any) -> Any:
    """Four corners of a square, every nearest distance the same: weights 1/2 and 1/2 on sides, none on diagonals."""
    D = bk.xp.asarray(squared_distances(np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, 0.0]])))
    b, _, saved = bandwidth.forward(bk, D, "median", 1, 3.0)
    dD = bk.to_host(bandwidth.add_entries(bk, bk.xp.zeros_like(D), bandwidth.backward(bk, saved, bk.xp.ones_like(b))))
    return [dD.sum(), dD[bk.to_host(D) == 1.0].sum(), np.count_nonzero(dD)]


def _all_zero(bk: Backend, _: Any) -> Any:
    """All rows equal: b is a substitute constant, no entry carries a derivative."""
    D = bk.xp.zeros((3, 3))
    b, _, saved = bandwidth.forward(bk, D, "max", 1, 2.0)
    dD = bandwidth.add_entries(bk, bk.xp.zeros_like(D), bandwidth.backward(bk, saved, bk.xp.ones_like(b)))
    return bk.to_host(dD)


_MAX_KINKS = (
    Kink("kNN tie: one of the tied pairs carries the slope", _tied, [2.0, 0.0, 0.0]),
    Kink("all distances 0: no slope", _all_zero, _ZERO),
)
_MEDIAN_KINKS = (Kink("median of tied rows: half each, on nearest pairs", _tied_median, [3.0, 3.0, 2.0]),)
for _rule, _kinks in (("median", _MEDIAN_KINKS), ("q90", ()), ("max", _MAX_KINKS), ("fixed", ())):
    register(Operation(f"bandwidth[{_rule}]", "bandwidth", _bandwidth(_rule), kinks=_kinks))


# --- gaussian -------------------------------------------------------------------------------------------------------


def _gaussian(bk: Backend, _: Any, rng: Rng, index: int) -> Example:
    kind = _kind(index)
    D, b = _stack(rng, lambda n: affinity(rng, kind, n)[1:])
    xp = bk.xp
    own = 1.0 if index % 3 else float(rng.uniform(0, 1))
    diagonal = xp.eye(D.shape[-1], dtype=bool)

    def backward(D: Array, b: Array, dK: Array) -> Any:
        return gaussian.backward(bk, gaussian.forward(bk, D, b, own)[1], dK)

    def formula(D: Array, b: Array) -> Array:
        return xp.where(diagonal, own, xp.exp(-D / b[..., None, None])).astype(D.dtype)

    smallest = float(np.min(b))
    return Example(
        lambda D, b: gaussian.forward(bk, D, b, own)[0],
        backward,
        (xp.asarray(D), xp.asarray(b)),
        kind,
        scales=(smallest, smallest),
        analytic=formula,
    )


register(Operation("gaussian", "gaussian", _gaussian))


# --- normalise ------------------------------------------------------------------------------------------------------


def _normalise(bk: Backend, _: Any, rng: Rng, index: int) -> Example:
    kind = _kind(index)
    lopsided = index % 2  # the backward is stated for any K, not only symmetric ones

    def make(n: int) -> tuple[Array]:
        K = affinity(rng, kind, n)[0]
        return (K * rng.uniform(0.5, 1, K.shape) if lopsided else K,)

    (K,) = _stack(rng, make)

    def backward(K: Array, dA: Array, ddeg: Array) -> Array:
        return normalise.backward(bk, normalise.forward(bk, K)[2], dA, ddeg)

    def formula(K: Array) -> tuple[Array, Array]:
        deg = K.sum(axis=-1)
        return K / bk.xp.sqrt(deg[..., :, None] * deg[..., None, :]), deg

    return Example(
        lambda K: normalise.forward(bk, K)[:2],
        backward,
        (bk.xp.asarray(K),),
        kind,
        analytic=formula,
    )


register(Operation("normalise", "normalise", _normalise))


# --- power ----------------------------------------------------------------------------------------------------------


def _affinity_degrees(rng: Rng, kind: str, n: int) -> tuple[Any, Any]:
    K = affinity(rng, kind, n)[0]
    deg = K.sum(axis=1)
    return symmetric(K / np.sqrt(np.outer(deg, deg))), deg


def _power(t: int) -> Any:
    def example(bk: Backend, _: Any, rng: Rng, index: int) -> Example:
        kind = _kind(index)
        (A,) = _stack(rng, lambda n: _affinity_degrees(rng, kind, n)[:1])

        def backward(A: Array, dAt: Array) -> Array:
            return power.backward(bk, power.forward(bk, A, t)[1], dAt)

        return Example(
            lambda A: power.forward(bk, A, t)[0],
            backward,
            (bk.xp.asarray(A),),
            kind,
            cotangents=(bk.xp.asarray(symmetric(rng.standard_normal(A.shape))),),
            project={0: symmetric},
            symmetric=(0,),
            analytic=lambda A: formulas.power(bk, A, t),
        )

    return example


for _t in POWERS:
    register(Operation(f"power[{_t}]", "power", _power(_t)))


# --- score ----------------------------------------------------------------------------------------------------------


def _score(bk: Backend, _: Any, rng: Rng, index: int) -> Example:
    kind = _kind(index)
    xp = bk.xp

    def make(n: int) -> tuple[Any, Any, Any]:
        A, deg = _affinity_degrees(rng, kind, n)
        X = data(rng, kind, len(A))
        return A, symmetric(X @ X.T), deg

    At, G, deg = (xp.asarray(a) for a in _stack(rng, make))

    def backward(At: Array, G: Array, deg: Array, dS: Array) -> Any:
        return score.backward(bk, score.forward(bk, At, G, deg)[1], dS)

    def formula(At: Array, G: Array, deg: Array) -> Array:
        r = xp.sqrt(deg)
        return (At * G * r[..., None, :] / r[..., :, None]).sum(axis=(-2, -1))

    dS = rng.standard_normal(At.shape[:-2])
    return Example(
        lambda At, G, deg: score.forward(bk, At, G, deg)[0],
        backward,
        (At, G, deg),
        kind,
        cotangents=(xp.asarray(dS),),
        project={0: symmetric, 1: symmetric},
        symmetric=(0, 1),
        analytic=formula,
    )


register(Operation("score", "score", _score))


# --- regulariser ----------------------------------------------------------------------------------------------------


def _regulariser(bk: Backend, _: Any, rng: Rng, index: int) -> Example:
    sigma = float(rng.uniform(0.1, 1.0))
    mu = bk.xp.asarray(rng.uniform(-2, 2, int(rng.integers(1, 9))) * (0.05 if index % 3 == 0 else 1.0) * sigma)

    def backward(mu: Array, dsum: Array) -> Array:
        return regulariser.backward(bk, regulariser.forward(bk, mu, sigma)[1], float(dsum))

    return Example(
        lambda mu: regulariser.forward(bk, mu, sigma)[0],
        backward,
        (mu,),
        f"d={len(mu)}",
        cotangents=(bk.xp.asarray(rng.standard_normal()),),
        analytic=lambda mu: formulas.probability_sum(bk, mu, sigma),
    )


register(Operation("regulariser", "regulariser", _regulariser, expectation=expectation.open_gates))


# --- loss -----------------------------------------------------------------------------------------------------------


def _loss(free: bool) -> Any:
    def example(bk: Backend, _: Any, rng: Rng, index: int) -> Example:
        n = int(rng.integers(2, 20))
        sum_p = float(rng.uniform(0.001, 0.01) if index % 3 == 0 else rng.uniform(0.1, 8))
        S = bk.xp.asarray(rng.uniform(0, n, int(rng.integers(1, 6))))
        lam, delta = (None if free else float(rng.uniform(0, 3))), float(10.0 ** rng.uniform(-6, 0))

        def backward(S: Array, sum_p: float) -> Any:
            return loss.backward(bk, loss.forward(bk, S, sum_p, n, lam, delta)[1])

        return Example(
            lambda S, sum_p: loss.forward(bk, S, sum_p, n, lam, delta)[0],
            backward,
            (S, sum_p),
            f"draws={len(S)}, sum_p={sum_p:.3g}",
            scales=(float(n), sum_p),
            analytic=lambda S, sum_p: formulas.loss(S, sum_p, n, lam, delta),
        )

    return example


register(Operation("loss[regularised]", "loss", _loss(False)))
register(Operation("loss[parameter-free]", "loss", _loss(True)))
