"""The numbers and pictures of docs/walks/images.md: threes and eights of MNIST, faces of Yale, objects of COIL20.

    python -m bench.walks.images --out DIR [digits] [faces] [objects] [path]

Needs matplotlib, and t10k-*-ubyte.gz, Yale.mat and COIL20.mat in DUFS_DATA.
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from bench import common
from bench.paper.data import read_idx
from bench.walks import clusters, run
from dufs_core import DUFS, GatedLaplacian, LambdaPath, report
from dufs_core.baselines import MCFS, LaplacianScore
from dufs_core.errors import DufsWarning
from dufs_core.inspection import plotting
from dufs_core.inspection.metrics import clustering_accuracy
from dufs_core.inspection.plotting.canvas import figure


def mnist(digits: tuple[int, ...]) -> tuple[Any, Any]:
    """Images (n, 28, 28) and labels of these digits."""
    images, labels = map(read_idx, common.required("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"))
    chosen = np.isin(labels, digits)
    return images[chosen], labels[chosen]


def square_images(name: str) -> tuple[Any, Any]:
    """Images of 32 x 32 pixels as rows in C order, and labels; MATLAB stores them by columns."""
    X, labels = common.matlab(name)
    return X.reshape(-1, 32, 32).transpose(0, 2, 1).reshape(len(X), -1), labels


def fitted(what: str, X: Any, **settings: Any) -> DUFS:
    """A fit, with its time and what it warned of printed."""
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DufsWarning)
        selector = DUFS(random_state=0, backend="numpy", **settings).fit(X)
    print(
        f"\n{what}: {time.perf_counter() - start:.1f} s, "
        f"{int((selector.q_values_ <= selector.fdr).sum())} of {X.shape[1]} found, "
        f"{int(selector.in_graph_.sum())} make the graph, "
        f"{len(selector.constant_features_)} constant",
        *(f"  {warning.message}" for warning in caught), sep="\n", flush=True,
    )  # fmt: skip
    return selector


def accuracy(X: Any, labels: Any) -> str:
    """Of k-means, k the number of labels, in per cent: mean and spread of five starts."""
    each = [100 * clustering_accuracy(labels, found) for found in clusters(X.astype(float), labels)]
    return f"{np.mean(each):.1f} ± {np.std(each):.1f}"


def judged(X: Any, labels: Any, rankings: dict[str, Any], counts: tuple[int, ...]) -> None:
    print(f"| columns | {' | '.join(map(str, counts))} |")
    for what, ranking in rankings.items():
        print(f"| {what} | {' | '.join(accuracy(X[:, ranking[:k]], labels) for k in counts)} |", flush=True)
    print(f"| all {X.shape[1]} | {' | '.join([accuracy(X, labels)] * len(counts))} |")


def digits(out: Path) -> None:
    images, labels = mnist((3, 8))
    X = images.reshape(len(images), -1)
    by_columns = fitted("digits, scaling='columns'", X)
    selector = fitted("digits", X, scaling="global")
    print(report(selector, X).text(most=3))
    times = {}
    rankings = {"DUFS": selector.order_, "DUFS, columns": by_columns.order_}
    for baseline in (LaplacianScore(scaling="global"), MCFS(scaling="global", n_clusters=2, n_features_to_select=50)):
        start = time.perf_counter()
        rankings[type(baseline).__name__] = baseline.fit(X).order_
        times[type(baseline).__name__] = round(time.perf_counter() - start, 1)
    rankings["largest variance"] = np.argsort(-X.var(axis=0), kind="stable")
    rankings["at random"] = np.random.default_rng(0).permutation(np.flatnonzero(X.var(axis=0)))
    print("seconds:", times)
    judged(X, labels, rankings, (10, 20, 50, 100))

    few = fitted("digits, 20 pixels", X, scaling="global", n_features_to_select=20)
    picture, axes = figure(1, 3, 4.0, 3.8)
    plotting.selected_pixels(few, (28, 28), ax=axes[0])
    plotting.selected_pixels(few, (28, 28), images[labels == 3].mean(axis=0), axes[1])
    plotting.selected_pixels(few, (28, 28), images[labels == 8].mean(axis=0), axes[2])
    picture.savefig(out / "digits-pixels.png", dpi=80)
    picture, ax = figure(1, 1, 6.4, 3.6)
    plotting.ranked_scores(selector, ax)
    picture.savefig(out / "digits-fit.png", dpi=70)
    picture, axes = figure(1, 3, 4.4, 3.6)
    plotting.spectrum(selector, X, axes[0])
    plotting.embedding(selector, X, labels, axes[1:])
    picture.savefig(out / "digits-walk.png", dpi=70)


def faces(out: Path) -> None:
    X, labels = square_images("Yale")
    diverse = fitted("faces", X, scaling="global", n_features_to_select=50)
    certain = fitted("faces, by evidence", X, scaling="global", n_features_to_select=50, ranking="evidence")
    variance = np.argsort(-X.var(axis=0), kind="stable")
    scores = {"Laplacian score": LaplacianScore(scaling="global").fit(X).order_}
    rankings = {"DUFS": diverse.order_, "DUFS, by evidence": certain.order_, **scores, "variance": variance}
    rankings["at random"] = np.random.default_rng(0).permutation(X.shape[1])
    judged(X, labels, rankings, (20, 50, 100))
    picture, axes = figure(1, 3, 4.0, 3.8)
    plotting.selected_pixels(diverse, (32, 32), ax=axes[0])
    plotting.selected_pixels(certain, (32, 32), ax=axes[1])
    plotting.selected_pixels(diverse, (32, 32), X.mean(axis=0), axes[2])
    picture.savefig(out / "faces-pixels.png", dpi=80)


def objects(out: Path) -> None:
    X, labels = square_images("COIL20")
    selector = fitted("objects", X, scaling="global", n_features_to_select=50)
    rankings = {"DUFS": selector.order_, "Laplacian score": LaplacianScore(scaling="global").fit(X).order_}
    rankings["MCFS"] = MCFS(scaling="global", n_clusters=20, n_features_to_select=100).fit(X).order_
    rankings["at random"] = np.random.default_rng(0).permutation(X.shape[1])
    judged(X, labels, rankings, (20, 50, 100))
    picture, axes = figure(1, 4, 3.8, 3.6)
    plotting.selected_pixels(selector, (32, 32), ax=axes[0])
    plotting.selected_pixels(selector, (32, 32), X[0], axes[1])
    plotting.embedding(selector, X, labels, axes[2:])
    picture.savefig(out / "objects.png", dpi=65)


def path(out: Path) -> None:
    """Lambdas, judged on held-out rows, of 400 digits."""
    images, labels = mnist((3, 8))
    X = images[:400].reshape(400, -1)
    start = time.perf_counter()
    found = LambdaPath(
        GatedLaplacian(scaling="global", max_runs=1, batch_size=100, max_iter=600, backend="numpy"),
        n_lams=5, n_splits=1, random_state=0,
    ).fit(X)  # fmt: skip
    print(f"\npath: {time.perf_counter() - start:.0f} s")
    for row in zip(found.lams_, found.n_selected_, found.held_out_z_, found.p_value_, found.stability_, strict=True):
        print("lam {:.2g}: {} open, held-out z {:.1f}, p = {:.2g}, stability {:.2f}".format(*row))
    print("accuracy", accuracy(found.transform(X), labels[:400]), "all", accuracy(X, labels[:400]))
    picture, axes = figure(1, 3, 4.4, 3.6)
    plotting.lambda_path(found, axes[0])
    plotting.path_criterion(found, axes[1])
    plotting.selected_pixels(found, (28, 28), ax=axes[2])
    picture.savefig(out / "digits-path.png", dpi=70)


if __name__ == "__main__":
    run(__doc__ or "", {"digits": digits, "faces": faces, "objects": objects, "path": path})
