"""The whole chain, for both losses, every bandwidth rule, both noises and all powers; and every engine."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import numpy as np
from scipy.sparse import csc_array

from dufs_core.backend import Backend
from dufs_core.data.sparse import ScaledSparseMatrix
from dufs_core.gradcheck.suite import expectation, formulas
from dufs_core.gradcheck.suite.entries import Engine, Example, Kink, Operation
from dufs_core.gradcheck.suite.examples import GATE_SIGMA, KINDS, POWERS, problem
from dufs_core.objective.chain import Evaluate, Objective
from dufs_core.objective.engines.choose import new_engine

RULES = ("median", "q90", "max", "fixed")
MANY_ROWS, MANY_COLUMNS = (65, 72), (36, 40)  # every sixth example: several panels of rows, and of open columns
FEW_COLUMNS = (17, 21)  # of so many rows, every other example with t = 2: engines may have another form for them


def _example(
    loss: str, rule: str, noise: Any, saturating: bool, bk: Backend, evaluate: Evaluate, rng: np.random.Generator,
    index: int,
) -> Example:  # fmt: skip
    t = POWERS[index % len(POWERS)]
    kind = KINDS[(index // 2) % len(KINDS)]
    n = 2 * int(rng.integers(2, 5)) + index // len(POWERS) % 2
    d = None
    if index % 6 == 3:
        n, d = int(rng.integers(*MANY_ROWS)), int(rng.integers(*MANY_COLUMNS))
    elif index % (2 * len(POWERS)) == len(POWERS) + 1:
        n, d = int(rng.integers(*MANY_ROWS)), int(rng.integers(*FEW_COLUMNS))
    p = problem(rng, kind, noise, n, d=d)
    objective = Objective(
        lam=float(rng.uniform(0.05, 1)) * p.scale if loss == "regularised" else None,
        power=t,
        bandwidth=float(rng.uniform(0.5, 5)) * p.scale if rule == "fixed" else rule,  # type: ignore[arg-type]
        n_neighbors=p.n_neighbors,
        bandwidth_factor=p.bandwidth_factor,
        self_loops=index % 5 != 2,
        gate_sigma=GATE_SIGMA,
        degenerate_rule="one" if index % 7 == 4 and kind != "nearly_closed" else "data",
        saturation=float(10.0 ** rng.uniform(-1, 1)) * p.scale if saturating else None,
    )
    X, eps, mu = bk.xp.asarray(np.asfortranarray(p.X)), bk.xp.asarray(p.eps), bk.xp.asarray(p.mu)
    return Example(
        lambda mu: evaluate(bk, objective, mu, eps, X)[0].loss,
        lambda mu: evaluate(bk, objective, mu, eps, X)[1],
        (mu,),
        f"{kind}, t={t}, n={len(X)}, d={len(mu)}, draws={len(eps)}, self_loops={objective.self_loops}",
        analytic=lambda mu: formulas.chain(bk, objective, mu, eps, X),
    )


def _gradient_at(mu: Any, eps: Any, lam: float, bk: Backend, evaluate: Evaluate) -> Any:
    """dL/dmu of two columns at one draw."""
    X = np.asfortranarray(np.random.default_rng(0).standard_normal((5, 2)))
    moved = [bk.xp.asarray(a) for a in (np.array(mu), np.array([eps]), X)]
    return bk.to_host(evaluate(bk, Objective(lam=lam), *moved)[1])


_CLOSED = [float(np.exp(-m * m / 0.5) / (np.sqrt(2 * np.pi) * 0.5)) for m in (-1.0, -1.5)]  # lam dp/dmu
_KINKS = (
    Kink("gates at u = 0 and u = 1: slope 0", partial(_gradient_at, (0.5, 0.5), (-1.0, 1.0), 0.0), [0.0, 0.0]),
    Kink("gates all closed: the regulariser alone", partial(_gradient_at, (-1.0, -1.5), (0.0, 0.0), 1.0), _CLOSED),
)


def _chain(loss: str, rule: str, noise: str, saturating: bool = False) -> Operation:
    expected = partial(expectation.whole_chain, lam=0.3 if loss == "regularised" else None)
    return Operation(
        f"chain[{loss}, {rule}, {noise}{', saturating' * saturating}]",
        "objective",
        partial(_example, loss, rule, noise, saturating),
        kinks=_KINKS if (loss, rule, noise) == ("regularised", "max", "batch") else (),
        expectation=expected if (rule, noise) == ("fixed", "batch") and not saturating else None,
        engines=("reference",) if noise == "sample" else (),
    )


CHAINS = tuple(_chain(*names) for names in product(("regularised", "parameter-free"), RULES, ("batch", "sample")))
CHAINS += tuple(
    _chain(*names, saturating=True)
    for names in (
        ("regularised", "max", "batch"),
        ("regularised", "max", "sample"),
        ("parameter-free", "median", "batch"),
        ("parameter-free", "fixed", "batch"),
    )
)


def _on_sparse_columns(engine: Evaluate, bk: Backend, objective: Objective, mu: Any, eps: Any, X: Any) -> Any:
    """A sparse engine on X, without the first entries (unstored: -shift); odd columns store x + shift, even ones x."""
    X = bk.to_host(X)
    thin, shift = np.arange(X.shape[1]) % 2 == 1, -X[0]
    rows, columns = (places.ravel() for places in np.indices((len(X) - 1, X.shape[1])))
    stored = np.where(thin, X + shift, X)[rows + 1, columns]
    matrix = csc_array((stored, (rows + 1, columns)), shape=X.shape)
    return engine(bk, objective, mu, eps, ScaledSparseMatrix(matrix, shift.astype(np.float64), thin, bk))


def _load(name: str) -> Evaluate:
    engine: Evaluate = new_engine(name)
    return partial(_on_sparse_columns, engine) if name.endswith("sparse") else engine


_BACKENDS = {
    "reference": ("numpy", "cupy"),
    "dense": ("numpy",),
    "streaming": ("numpy",),
    "sparse": ("numpy",),
    "cuda": ("cupy",),
    "cuda_streaming": ("cupy",),
    "cuda_sparse": ("cupy",),
}
ENGINES = {name: Engine(partial(_load, name), backends) for name, backends in _BACKENDS.items()}
