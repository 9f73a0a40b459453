"""The whole chain, registered for both losses, every bandwidth rule, both noises and all powers; and every engine."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from itertools import product
from typing import Any

import numpy as np
from scipy.sparse import csc_array

from dufs_core.backend import Array, Backend
from dufs_core.data.sparse import ScaledSparseMatrix
from dufs_core.gradcheck.suite import expectation, formulas
from dufs_core.gradcheck.suite.examples import GATE_SIGMA, KINDS, problem
from dufs_core.gradcheck.suite.operations import POWERS
from dufs_core.gradcheck.suite.registry import Engine, Example, Kink, Operation, register
from dufs_core.objective.chain import Evaluate, Objective

RULES = ("median", "q90", "max", "fixed")
MANY_ROWS, MANY_COLUMNS = (65, 72), (36, 40)  # every sixth example: several panels of rows, and of open columns
FEW_COLUMNS = (17, 21)  # of so many rows, every other example with t = 2: engines may have another form for them


def _example(
    loss: str, rule: str, noise: Any, bk: Backend, evaluate: Evaluate, rng: np.random.Generator, index: int
) -> Example:
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
    )
    X, eps, mu = bk.xp.asarray(np.asfortranarray(p.X)), bk.xp.asarray(p.eps), bk.xp.asarray(p.mu)

    def function(mu: Array) -> Any:
        return evaluate(bk, objective, mu, eps, X)[0].loss

    return Example(
        function,
        lambda mu: evaluate(bk, objective, mu, eps, X)[1],
        (mu,),
        f"{kind}, t={t}, n={len(X)}, d={len(mu)}, draws={len(eps)}, self_loops={objective.self_loops}",
        analytic=lambda mu: formulas.chain(bk, objective, mu, eps, X),
    )


def _gradient_at(u: float, noise: str, bk: Backend, evaluate: Evaluate) -> Any:
    """dL/dmu of the first of two columns, where mu + sigma eps = u, without a regulariser: 0 at a kink."""
    X = np.asfortranarray(np.random.default_rng(0).standard_normal((5, 2)))
    eps = np.full((1, 2) if noise == "batch" else (1, 5, 2), (u - 0.5) / 0.5)
    eps[..., 1] = 0.0
    objective = Objective(lam=0.0, power=2, bandwidth="max", n_neighbors=1)
    moved = [bk.xp.asarray(a) for a in (np.full(2, 0.5), eps, X)]
    return bk.to_host(evaluate(bk, objective, *moved)[1])[0]


def _all_closed(bk: Backend, evaluate: Evaluate) -> Any:
    """Every gate closed: only the regulariser, lam exp(-mu^2 / (2 sigma^2)) / (sqrt(2 pi) sigma), is left."""
    X = bk.xp.asarray(np.asfortranarray(np.random.default_rng(0).standard_normal((5, 2))))
    mu, eps = bk.xp.asarray([-1.0, -1.5]), bk.xp.zeros((2, 2))
    value, gradient = evaluate(bk, Objective(lam=1.0), mu, eps, X)
    return [*bk.to_host(gradient), *bk.to_host(value.score)]


_CLOSED = [float(np.exp(-m * m / 0.5) / (np.sqrt(2 * np.pi) * 0.5)) for m in (-1.0, -1.5)] + [0.0, 0.0]


def _chain(loss: str, rule: str, noise: str) -> Operation:
    kinks = (
        Kink("gate at u = 0: slope 0", partial(_gradient_at, 0.0, noise), 0.0),
        Kink("gate at u = 1: slope 0", partial(_gradient_at, 1.0, noise), 0.0),
        Kink("all gates closed: the regulariser alone", _all_closed, _CLOSED),
    )
    expected = partial(expectation.whole_chain, lam=0.3 if loss == "regularised" else None)
    return Operation(
        f"chain[{loss}, {rule}, {noise}]",
        "objective",
        partial(_example, loss, rule, noise),
        complex_rtol=1e-10,
        kinks=kinks if (loss, rule) == ("regularised", "max") else (),
        expectation=expected if (rule, noise) == ("fixed", "batch") else None,
        engines=("reference",) if noise == "sample" else (),
    )


for _names in product(("regularised", "parameter-free"), RULES, ("batch", "sample")):
    register(_chain(*_names))


def _load(path: str, *arguments: int) -> Evaluate:
    module, _, name = path.partition(".")
    engine: Evaluate = getattr(import_module(f"dufs_core.objective.engines.{module}"), name)(*arguments)
    return partial(_on_sparse_columns, engine) if module.endswith("sparse") else engine


def _on_sparse_columns(engine: Evaluate, bk: Backend, objective: Objective, mu: Any, eps: Any, X: Any) -> Any:
    """A sparse engine on X, without the first entries (unstored: -shift); odd columns store x + shift, even ones x."""
    X = bk.to_host(X)
    thin, shift = np.arange(X.shape[1]) % 2 == 1, -X[0]
    rows, columns = (places.ravel() for places in np.indices((len(X) - 1, X.shape[1])))
    stored = np.where(thin, X + shift, X)[rows + 1, columns]
    matrix = csc_array((stored, (rows + 1, columns)), shape=X.shape)
    return engine(bk, objective, mu, eps, ScaledSparseMatrix(matrix, shift.astype(np.float64), thin, bk))


register(Engine("reference", partial(_load, "reference.ReferenceEngine")))
register(Engine("dense", partial(_load, "cpu_dense.DenseEngine", 1), ("numpy",)))
register(Engine("streaming", partial(_load, "cpu_streaming.StreamingEngine", 1), ("numpy",)))
register(Engine("sparse", partial(_load, "cpu_sparse.SparseEngine", 1), ("numpy",)))
register(Engine("cuda", partial(_load, "gpu_dense.CudaEngine"), ("cupy",)))
register(Engine("cuda_streaming", partial(_load, "gpu_streaming.CudaStreamingEngine"), ("cupy",)))
register(Engine("cuda_sparse", partial(_load, "gpu_sparse.CudaSparseEngine"), ("cupy",)))
