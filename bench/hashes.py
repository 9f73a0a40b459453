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
from dufs_core import DUFS, LambdaPath, fit_many, stability_selection
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
    """mu or scores, the order, and the losses of every step."""
    order = selector.order_
    parts = [selector.scores_, order, selector.get_support()]
    if hasattr(selector, "mu_"):
        parts += [selector.mu_, selector.history_["loss"], selector.history_["bandwidth"]]
    if getattr(selector, "fdr", None) is not None:
        parts += [selector.q_values_, selector.evidence_, selector.decoy_evidence_]
    return digest(*parts)


def _fit(selector: Any, X: Any | None = None) -> Callable[[], str]:
    return lambda: of_selector(selector.fit(example() if X is None else X))


def _old(**settings: Any) -> Callable[[], str]:
    return _fit(DUFS(**{"fdr": None, "random_state": 3, "max_iter": 60, "max_runs": 2} | settings))


def _path() -> str:
    path = LambdaPath(DUFS(fdr=None, random_state=3, max_iter=60), n_lams=3, random_state=0).fit(example())
    return digest(path.lams_, path.mu_, path.scores_, path.p_value_)


def _population() -> str:
    selectors = [DUFS(fdr=None, max_iter=60, max_runs=2, random_state=seed) for seed in range(3)]
    return digest(*[np.frombuffer(of_selector(fit).encode(), np.uint8) for fit in fit_many(selectors, example())])


def _stability() -> str:
    selector = DUFS(fdr=None, lam=0.1, random_state=3, max_iter=60, max_runs=1)
    return digest(stability_selection(selector, example(), n_subsamples=4, random_state=0).frequencies)


SETTINGS: dict[str, Callable[[], str]] = {
    "defaults": _fit(DUFS(random_state=0)),
    "defaults, 20 of 60": _fit(DUFS(random_state=0, n_features_to_select=20)),
    "defaults, 80 x 900": _fit(DUFS(random_state=0), example(80, 900)),
    "defaults, 700 rows": _fit(DUFS(random_state=0), example(700, 40)),
    "defaults, evidence": _fit(DUFS(random_state=0, ranking="evidence")),
    "defaults, sparse": _fit(DUFS(random_state=0), sparse.csr_array(example() * (example(seed=1) > 0.5))),
    "defaults, global": _fit(DUFS(random_state=0, scaling="global")),
    "fdr=None": _old(),
    "paper": _fit(DUFS.preset("paper", random_state=0, max_iter=60)),
    "authors_code, reference": _fit(
        DUFS.preset("authors_code", random_state=0, max_iter=40, batch_size=50, engine="reference")
    ),
    "wide": _fit(DUFS.preset("wide", random_state=0, max_iter=60)),
    "lam": _old(lam=0.2),
    "diverse": _old(ranking="diverse", lam=0.01),
    "batches": _old(batch_size=40),
    "streaming": _old(engine="streaming"),
    "streaming, power 3, fixed": _old(engine="streaming", power=3, bandwidth=20.0),
    "sparse": _fit(DUFS(fdr=None, random_state=3, max_iter=60), sparse.csr_array(example() * (example(seed=1) > 0.5))),
    "sparse, batches": _fit(
        DUFS(fdr=None, random_state=3, max_iter=60, batch_size=40),
        sparse.csr_array(example() * (example(seed=1) > 0.5)),
    ),
    "q90, power 3": _old(bandwidth="q90", power=3, n_neighbors=4),
    "fixed bandwidth, no self-loops": _old(bandwidth=30.0, self_loops=False, power=1),
    "adam, float64": _old(optimizer="adam", learning_rate=0.05, dtype="float64"),
    "global": _old(scaling="global"),
    "none": _old(scaling="none"),
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
