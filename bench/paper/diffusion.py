"""What nuisance columns do to the graph of two moons: lambda_2 and psi_2 of P, D - K's second eigenvalue, PCA.

300 points, noise 0.1, k more columns uniform on (0, 1). Columns are left as they are, as in the paper; the same with
columns scaled to variance 1 stands beside it (a uniform column then counts as much as a moon's). The bandwidth of the
affinity is 5 times the median squared distance to the second other row: local enough for the moons themselves.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from scipy.linalg import eigh

from bench.common import markdown
from bench.paper.cells import Cells, Report
from bench.paper.drawing import BLUE, GREY, ORANGE, figure, means
from dufs_core.backend import Array
from dufs_core.datasets import two_moons
from dufs_core.inspection.spectral import affinity, random_walk_spectrum

COUNTS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 40, 60, 80, 100)
SHOWN = (0, 10, 40)  # in the scatter plots
RULE, FACTOR = "median", 5.0


def data(n: int, k: int, scaled: bool, seed: int) -> tuple[Array, Array]:
    """(X, labels) of the moons with k uniform columns."""
    moons = two_moons(n, 2, 0.1, seed)
    X = np.hstack([moons.X, np.random.default_rng([seed, 1]).uniform(size=(n, k))])
    X -= X.mean(axis=0)
    return (X / X.std(axis=0) if scaled else X), moons.labels


def first_components(X: Array) -> Array:
    """The first two principal components of centred X, (n, 2)."""
    U, size, _ = np.linalg.svd(X, full_matrices=False)
    return U[:, :2] * size[:2]


def correlation(a: Array, b: Array) -> float:
    """Size of the correlation of two vectors."""
    return float(abs(np.corrcoef(a, b)[0, 1]))


def algebraic_connectivity(K: Array) -> float:
    """Second smallest eigenvalue of the graph Laplacian diag(K 1) - K (Fiedler 1973); 0 if K is not connected.

    Unlike lambda_2 it grows with the degrees.
    """
    values = eigh(np.diag(K.sum(axis=1)) - K, eigvals_only=True, subset_by_index=(1, 1))
    return max(float(values[0]), 0.0)


def spectra(n: int, k: int, scaled: bool, seed: int) -> dict[str, Any]:
    """The numbers of one data set."""
    X, labels = data(n, k, scaled, seed)
    K = affinity(X, RULE, 2, FACTOR)
    values, psi = random_walk_spectrum(K)
    components = first_components(X)
    return {
        "lambda_2": values[1],
        "laplacian_2": algebraic_connectivity(K),
        "psi_2": correlation(psi[:, 1], labels),
        "pca": max(correlation(c, labels) for c in components.T),
    }


def run(cells: Cells, quick: bool) -> Report:
    n, seeds = (60, 1) if quick else (300, 10)
    keys = [(scaled, k) for scaled in (False, True) for k in COUNTS]
    results = cells.compute(
        spectra, [{"n": n, "k": k, "scaled": scaled, "seed": seed} for scaled, k in keys for seed in range(seeds)]
    )
    records = []
    for i, (scaled, k) in enumerate(keys):
        group = results[i * seeds : (i + 1) * seeds]
        records.append({"scaled": scaled, "k": k, "runs": seeds} | means(group, group[0]))

    made, panels = figure(3, 3, 3.6, 2.7)
    _curve(panels[0], records, "lambda_2", "$\\lambda_2$ of $P$")
    _curve(panels[1], records, "laplacian_2", "second eigenvalue of $D - K$")
    _curve(panels[2], records, "psi_2", "correlation with the labels")
    _curve(panels[2], records, "pca", "correlation with the labels", "--")
    lines = [panels[2].plot([], [], style, color=GREY)[0] for style in ("-", "--")]
    panels[2].legend(lines, ["$\\psi_2$", "PCA, better of two"], frameon=False, fontsize=8)
    panels[0].legend(frameon=False, fontsize=8)
    for column, k in enumerate(SHOWN):
        X, labels = data(n, k, False, 0)
        psi = random_walk_spectrum(affinity(X, RULE, 2, FACTOR)).vectors[:, 1]
        order = np.argsort(labels, kind="stable")
        panels[3 + column].scatter(np.arange(n), psi[order], s=4, c=_colours(labels[order]))
        panels[3 + column].set(title=f"$\\psi_2$, k = {k}", xlabel="row, by moon", ylabel="$\\psi_2$")
        components = first_components(X)
        panels[6 + column].scatter(components[:, 0], components[:, 1], s=4, c=_colours(labels))
        panels[6 + column].set(title=f"PCA, k = {k}", xlabel="component 1", ylabel="component 2")
    header = ["columns", "k", "lambda_2", "D - K", "psi_2 against labels", "PCA against labels"]
    rows = [
        ("variance 1" if r["scaled"] else "as they are", r["k"],
         *(f"{r[name]:.3f}" for name in ("lambda_2", "laplacian_2", "psi_2", "pca")))
        for r in records
    ]  # fmt: skip
    return Report(
        {"n": n, "bandwidth": RULE, "bandwidth_factor": FACTOR, "records": records}, markdown(header, rows), made
    )


def _colours(labels: Array) -> list[str]:
    return [(BLUE, ORANGE)[label] for label in labels]


def _curve(axes: Axes, records: list[dict[str, Any]], name: str, label: str, style: str = "-") -> None:
    for scaled, colour, text in ((False, BLUE, "columns as they are"), (True, ORANGE, "columns of variance 1")):
        chosen = [r for r in records if r["scaled"] == scaled]
        k = [r["k"] for r in chosen]
        mean, spread = (np.array([r[key] for r in chosen]) for key in (name, f"{name}_std"))
        axes.plot(k, mean, style, color=colour, label=text)
        axes.fill_between(k, mean - spread, mean + spread, color=colour, alpha=0.15, linewidth=0)
    axes.set(xlabel="nuisance columns k", ylabel=label)
