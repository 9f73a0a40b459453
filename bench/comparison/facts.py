"""Questions about a package itself, asked in the interpreter that has it: `python -m bench.comparison.facts PACKAGE`.

Pipelines, command lines, what its source speaks of, and for the two programs of the gated Laplacian that run here the
formula that they compute: the loss of one step, with the noise it drew, beside the same in NumPy with every combination
of bandwidth rule, neighbour and power; the combinations that agree are named.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import warnings
from importlib.metadata import distribution
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from bench.comparison.environments import ROOT
from bench.comparison.peers import PEERS, gated_laplacian, loader, quiet
from dufs_core.datasets import two_moons

WORDS = {
    "CUDA": r"cuda|cupy",
    "resuming": r"checkpoint|resume",
    "data on disk": r"memmap|dask|backed|h5py\.Dataset",
    "sparse input": r"issparse|accept_sparse|csr_matrix|csr_array",
    "p-values": r"p_value|pval|permutation",
}


def record(question: str, answer: str, ran: str, came_back: str) -> dict[str, str]:
    return {"question": question, "method": "", "answer": answer, "ran": ran, "came_back": came_back[:220]}


def estimator(name: str) -> Any:
    """What would stand in a pipeline, for two columns of ten."""
    if name == "dufs-core":
        from dufs_core import DUFS

        return DUFS(n_features_to_select=2, random_state=0)
    if name == "featselectlib":
        return gated_laplacian().GatedLaplacianModel(input_dim=10)
    if name == "lscae":
        from lscae import Lscae

        return Lscae(input_dim=10, kwargs={})
    if name == "skfeature":
        from skfeature.function.similarity_based.lap_score import lap_score
        from sklearn.feature_selection import SelectKBest

        return SelectKBest(lap_score, k=2)
    if name == "CAE":
        from concrete_autoencoder import ConcreteAutoencoderFeatureSelector
        from keras.layers import Dense

        return ConcreteAutoencoderFeatureSelector(K=2, output_function=Dense(10), num_epochs=2, tryout_limit=1)
    if name == "ITMO_FS":
        from ITMO_FS.filters.sparse import NDFS

        return NDFS(p=2, c=2)
    if name == "FRUFS":
        from FRUFS import FRUFS

        return FRUFS(k=2, verbose=1, random_state=0)
    if name == "gsrfs":
        from gsrfs import GSRSelector

        return GSRSelector(n_features=2, random_state=0)
    if name == "VT":
        from sklearn.feature_selection import VarianceThreshold

        return VarianceThreshold()
    from scanpy.preprocessing import highly_variable_genes

    return highly_variable_genes


def pipeline(name: str) -> dict[str, str]:
    """StandardScaler, the selector, KMeans; where scikit-learn is not there, fit and transform alone."""
    X = two_moons(100, 10).X
    y = np.zeros(len(X), int) if name == "skfeature" else None  # SelectKBest asks for one
    step = estimator(name)
    try:
        from sklearn.cluster import KMeans
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler
    except ModuleNotFoundError:
        with quiet():
            rows = step.fit(X, X).transform(X)
        return record(
            "in a scikit-learn pipeline",
            f"no: transform gives {rows.shape}",
            "fit(X, X).transform(X), X 100 x 10",
            f"shape {rows.shape}",
        )
    ran = f"make_pipeline(StandardScaler(), {type(step).__name__}, KMeans(2)).fit(X{'' if y is None else ', y'})"
    try:
        with quiet():
            fitted = make_pipeline(StandardScaler(), step, KMeans(2, random_state=0)).fit(X, y)
        return record("in a scikit-learn pipeline", "yes", ran, f"KMeans saw {fitted[-1].n_features_in_} columns")
    except Exception as error:
        said = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return record("in a scikit-learn pipeline", f"raises {type(error).__name__}", ran, said)


def source(name: str) -> list[dict[str, str]]:
    """Which subjects the package's own source speaks of, and its commands."""
    found = distribution(PEERS[name].distribution)
    files = [Path(str(f.locate())) for f in found.files or [] if f.suffix == ".py" and "tests" not in f.parts]
    if name == "dufs-core":
        files = list((ROOT / "dufs_core").rglob("*.py"))
    if name == "VT":
        files = [f for f in files if f.name == "_variance_threshold.py"]
    if name == "HVG":
        files = [f for f in files if f.name == "_highly_variable_genes.py"]
    records = []
    for subject, pattern in WORDS.items():
        hits = [f.name for f in files if re.search(pattern, f.read_text("utf-8", "replace"), re.IGNORECASE)]
        records.append(
            record(
                f"source speaks of {subject}",
                "yes" if hits else "no",
                f"/{pattern}/i in {len(files)} files",
                f"{len(hits)} files: {', '.join(sorted(hits)[:4])}",
            )
        )
    commands = [e.name for e in found.entry_points if e.group == "console_scripts"]
    return [
        *records,
        record("command line", ", ".join(commands) or "no", "console_scripts of its metadata", str(commands)),
    ]


def loss(X: Any, z: Any, mu: Any, rule: str, neighbour: int, power: int) -> float:
    """-Tr(Xt' P^t Xt) / (n d) / mean_k P(z_k > 0): the parameter-free loss, the regulariser a mean over columns."""
    from math import erf

    Xt = X * z
    squares = (Xt * Xt).sum(axis=1)
    D = squares[:, None] + squares - 2 * Xt @ Xt.T
    kth = np.sort(D, axis=1)[:, neighbour]
    b = 2 * {"median": np.median, "max": np.max, "q90": lambda s: np.quantile(s, 0.9), "mean": np.mean}[rule](kth)
    K = np.exp(-D / b)
    P = np.linalg.matrix_power(K / K.sum(axis=1, keepdims=True), power)
    opened = np.mean([0.5 + 0.5 * erf((m + 0.5) / (0.5 * 2**0.5)) for m in mu]) + 1e-6
    return float(-np.mean((P @ Xt) * Xt) / opened)


def formula() -> list[dict[str, str]]:
    """Of featselectlib's module: the loss, the draws, the optimiser and the number of steps, seen from outside."""
    import torch

    X = two_moons(63, 6).X.astype(np.float32)
    model = gated_laplacian().GatedLaplacianModel(input_dim=6, knn=3, num_epochs=30, verbose=False)
    drawn: list[tuple[int, ...]] = []
    plain = torch.randn

    def watched(*shape: Any, **settings: Any) -> Any:
        drawn.append(tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else tuple(shape))
        return plain(*shape, **settings)

    mu = model.get_gates("raw").copy()
    torch.manual_seed(7)
    torch.randn = watched
    try:
        value = model.train_step(torch.from_numpy(X))[0]
    finally:
        torch.randn = plain
    torch.manual_seed(7)
    eps = torch.randn(6).normal_().numpy()
    z = np.clip(mu + 0.5 + 0.5 * eps, 0, 1)
    combinations = product(("median", "max", "q90", "mean"), (1, 2, 3), (1, 2, 3))
    agree = [c for c in combinations if abs(loss(X.astype(float), z, mu, *c) / value - 1) < 1e-4]
    said = f"loss {value:.6f}; of 36 combinations these agree to 1e-4: {agree}"
    ran = "train_step on 63 x 6, knn=3, its draw repeated in NumPy"
    steps = []
    one = model.train_step
    model.train_step = lambda x: steps.append(1) or one(x)
    model.select_features(loader(X, 63))
    moved = model.optimizer
    chosen = agree[0] if len(agree) == 1 else None
    return [
        record("bandwidth", chosen[0] if chosen else "unclear", ran, said),
        record(
            "neighbours",
            "the row counts as its first" if chosen and chosen[1] == 2 else "unclear",
            ran,
            said + " (index of the sorted row, the row itself at 0; knn=3)",
        ),
        record("power of the walk", str(chosen[2]) if chosen else "unclear", ran, said),
        record("gate noise", f"one draw of {drawn}", "torch.randn watched in train_step", f"shapes {drawn}, X 63 x 6"),
        record("optimiser", type(moved).__name__, "type(model.optimizer)", str(type(moved))),
        record(
            "stops by itself", f"no: {len(steps)} steps in 30 epochs", "select_features, num_epochs=30", f"{len(steps)}"
        ),
    ]


def ours() -> list[dict[str, str]]:
    """What DUFS accepts and gives, by fits of a few steps and one whole fit."""
    from dufs_core import DUFS

    X = two_moons(60, 6).X
    records = []
    for question, settings in (
        ("bandwidth", [{"bandwidth": b} for b in ("max", "q90", "median", 1.5)]),
        ("power of the walk", [{"power": p} for p in (1, 2, 3, 5)]),
        ("gate noise", [{"gate_noise": g} for g in ("batch", "sample")]),
        ("draws a step", [{"n_draws": r} for r in (1, 2, 16)]),
        ("optimiser", [{"optimizer": o} for o in ("normalized", "sgd", "adam")]),
        ("neighbours", [{"n_neighbors": k} for k in (1, 2, 5)]),
    ):
        losses = [DUFS(fdr=None, max_iter=3, max_runs=1, random_state=0, **s).fit(X).loss_ for s in settings]
        values = [str(next(iter(s.values()))) for s in settings]
        different = len({round(float(v), 9) for v in losses})
        records.append(
            record(
                question,
                ", ".join(values),
                f"fit of 3 steps with each of {values}",
                f"losses {np.round(losses, 4).tolist()}, {different} different",
            )
        )
    fitted = DUFS(random_state=0).fit(two_moons(100, 10).X)
    records.append(
        record(
            "stops by itself",
            "when the gates are decided",
            "DUFS(random_state=0).fit(two moons)",
            f"n_iter_ {fitted.n_iter_} of 2000, converged_ {fitted.converged_}",
        )
    )
    records.append(
        record(
            "several runs judged without labels",
            "permutation gap, p-value",
            "the same fit",
            f"gap {fitted.excess_score_:.3f}, p {fitted.p_value_:.3g}",
        )
    )
    return records


def ask(python: Path, name: str) -> list[dict[str, str]] | str:
    """All of it in a process of that interpreter; the end of its errors where it fails."""
    command = [str(python), "-m", "bench.comparison.facts", name]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        return done.stderr.strip().splitlines()[-1][:200]
    records: list[dict[str, str]] = json.loads(done.stdout.splitlines()[-1])
    return records


def main() -> None:
    name = sys.argv[1]
    warnings.simplefilter("ignore")
    more = {"featselectlib": formula, "dufs-core": ours}.get(name, list)()
    print(json.dumps([pipeline(name), *source(name), *more]))


if __name__ == "__main__":
    main()
