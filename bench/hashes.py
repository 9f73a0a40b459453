"""Fits under 34 settings as hashes of their bits: what a change of the code's structure must leave as it was.

python -m bench.hashes --json before.json        then, with the other code on the same machine, --against before.json
"""

from __future__ import annotations

import argparse
import hashlib
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from bench.common import save
from dufs_core import DUFS, GatedLaplacian, Graph, LambdaPath, fit_many, stability_selection
from dufs_core.baselines import LLCFS, MCFS, NDFS, SRCFS, ConcreteAutoencoder, LaplacianScore


def example(n: int = 120, d: int = 60, seed: int = 0) -> Any:
    """Two clusters in six of d columns, the others noise of several scales."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * rng.lognormal(size=d)
    X[: n // 2, 10:16] += 4
    return X.astype(np.float32)


def digest(*arrays: Any) -> str:
    """Sixteen digits of the SHA-256 of arrays, NumPy or not."""
    state = hashlib.sha256()
    for array in arrays:
        state.update(np.ascontiguousarray(array).tobytes())
    return state.hexdigest()[:16]


def of_selector(selector: Any) -> str:
    """Scores, the order, the gates that there are, and the losses of every step."""
    parts = [selector.scores_, selector.order_, selector.get_support()]
    if hasattr(selector, "mu_"):
        gates = selector.mu_[~np.isnan(selector.mu_)]
        parts += [gates, selector.history_["loss"], selector.history_["bandwidth"]]
    if hasattr(selector, "q_values_"):
        parts += [selector.q_values_, selector.evidence_, selector.decoy_evidence_]
    return digest(*parts)


def _fit(selector: Any, X: Any | None = None) -> Callable[[], str]:
    return lambda: of_selector(selector.fit(example() if X is None else X))


def _gates(**settings: Any) -> Callable[[], str]:
    return _fit(GatedLaplacian(**{"random_state": 3, "max_iter": 60, "max_runs": 2} | settings))


def _graph(**parts: Any) -> Graph:
    return GatedLaplacian().graph.with_parts(parts)


def _path() -> str:
    path = LambdaPath(GatedLaplacian(random_state=3, max_iter=60), n_lams=3, random_state=0).fit(example())
    return digest(path.lams_, path.scores_, path.p_value_)


def _population() -> str:
    selectors = [GatedLaplacian(max_iter=60, max_runs=2, random_state=seed) for seed in range(3)]
    return digest(*[np.frombuffer(of_selector(fit).encode(), np.uint8) for fit in fit_many(selectors, example())])


def _stability() -> str:
    selector = GatedLaplacian(lam=0.1, random_state=3, max_iter=60, max_runs=1)
    return digest(stability_selection(selector, example(), n_subsamples=4, random_state=0).frequencies)


def _sparse() -> Any:
    return sparse.csr_array(example() * (example(seed=1) > 0.5))


SETTINGS: dict[str, Callable[[], str]] = {
    "defaults": _fit(DUFS(random_state=0)),
    "defaults, 20 of 60": _fit(DUFS(random_state=0, n_features_to_select=20)),
    "defaults, 80 x 900": _fit(DUFS(random_state=0), example(80, 900)),
    "defaults, 700 rows": _fit(DUFS(random_state=0), example(700, 40)),
    "defaults, evidence": _fit(DUFS(random_state=0, ranking="evidence")),
    "defaults, sparse": _fit(DUFS(random_state=0), _sparse()),
    "defaults, global": _fit(DUFS(random_state=0, scaling="global")),
    "gates": _gates(),
    "paper": _fit(GatedLaplacian.preset("paper", random_state=0, max_iter=60)),
    "authors_code, reference": _fit(
        GatedLaplacian.preset("authors_code", random_state=0, max_iter=40, batch_size=50, engine="reference")
    ),
    "wide": _fit(GatedLaplacian.preset("wide", random_state=0, max_iter=60)),
    "lam": _gates(lam=0.2),
    "diverse": _gates(ranking="diverse", lam=0.01),
    "batches": _gates(batch_size=40),
    "streaming": _gates(engine="streaming"),
    "streaming, power 3, fixed": _gates(engine="streaming", graph=_graph(power=3, bandwidth=20.0)),
    "sparse": _fit(GatedLaplacian(random_state=3, max_iter=60), _sparse()),
    "sparse, batches": _fit(GatedLaplacian(random_state=3, max_iter=60, batch_size=40), _sparse()),
    "q90, power 3": _gates(graph=_graph(bandwidth="q90", power=3, n_neighbors=4)),
    "fixed bandwidth, no self-loops": _gates(graph=_graph(bandwidth=30.0, self_loops=False, power=1)),
    "adam, float64": _gates(optimizer="adam", learning_rate=0.05, dtype="float64"),
    "sgd": _gates(optimizer="sgd", learning_rate=0.5),
    "global": _gates(scaling="global"),
    "none": _gates(scaling="none"),
    "population": _population,
    "lambda path": _path,
    "stability": _stability,
    "laplacian score": _fit(LaplacianScore()),
    "mcfs": _fit(MCFS(n_clusters=2)),
    "ndfs": _fit(NDFS(n_clusters=2, random_state=0)),
    "llcfs": _fit(LLCFS()),
    "srcfs": _fit(SRCFS(random_state=0)),
    "autoencoder": _fit(ConcreteAutoencoder(n_features_to_select=3, random_state=0, max_iter=20)),
}


def main(argv: list[str] | None = None) -> None:
    """Print, write and compare the hashes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--against", metavar="FILE", type=Path)
    args = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    before = json.loads(args.against.read_text())["hashes"] if args.against else {}
    hashes = {}
    for name, run in SETTINGS.items():
        hashes[name] = run()
        print(
            f"{name:40} {hashes[name]}", "" if not before else "same" if hashes[name] == before[name] else "DIFFERENT"
        )
    save(args.json, {"hashes": hashes} | ({"before": before} if before else {}))
    if before and before != hashes:
        raise SystemExit("Some bits are not what they were.")


if __name__ == "__main__":
    main()
