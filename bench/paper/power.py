"""The power t of the random walk against nuisance dimensions: k-means accuracy of the selected columns.

Two moons (noise 0.1, n = 100) and d - 2 columns N(0, 1), variance 1 each; parameter-free loss, t = 1, 2, 3. One run of
our steps a data set, not the default's search, which would make up for a weaker objective (its screening has t = 2).
k-means with two clusters (best of 5 starts) on the selected columns; on all columns, if a run selects none.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.cluster import KMeans

from bench.common import markdown
from bench.paper.cells import Cells, Report
from bench.paper.drawing import BLUE, GREEN, GREY, ORANGE, figure, legend_below, means
from bench.paper.score_demo import selector
from dufs_core.backend import Array
from dufs_core.data.dense import scale_columns
from dufs_core.datasets import two_moons
from dufs_core.inspection.metrics import clustering_accuracy

POWERS = (1, 2, 3)
RUNS = dict.fromkeys((3, 8, 18, 48, 98), 100)  # of each number of nuisance dimensions


def accuracy(X: Array, labels: Array) -> float:
    """Of k-means with two clusters."""
    return clustering_accuracy(labels, KMeans(2, n_init=5, random_state=0).fit_predict(X))


def fits(nuisance: int, seeds: list[int], powers: list[int]) -> list[dict[str, Any]]:
    """One record a seed: what each power selects, with the two bounds: all columns, and the informative ones."""
    records = []
    for seed in seeds:
        problem = two_moons(100, nuisance + 2, 0.1, seed)
        X = scale_columns(problem.X, "columns", np.float64).X
        record: dict[str, Any] = {"all": accuracy(X, problem.labels), "moons": accuracy(X[:, :2], problem.labels)}
        for t in powers:
            fit = selector("ours", power=t, random_state=seed).fit(X)
            chosen = np.flatnonzero(fit.support_)
            record[f"t{t}"] = accuracy(X[:, chosen], problem.labels) if len(chosen) else record["all"]
            record[f"exact{t}"] = np.array_equal(chosen, problem.informative)
        records.append(record)
    return records


def run(cells: Cells, quick: bool) -> Report:
    dims, together = ({3: 1}, 1) if quick else (RUNS, 10)
    records = []
    for nuisance, runs in dims.items():
        blocks = [list(range(first, first + together)) for first in range(0, runs, together)]
        settings = [{"nuisance": nuisance, "seeds": seeds, "powers": POWERS} for seeds in blocks]
        group = [record for block in cells.compute(fits, settings) for record in block]
        names = ("all", "moons", *(f"t{t}" for t in POWERS))
        exact = {f"exact{t}": sum(r[f"exact{t}"] for r in group) for t in POWERS}
        records.append({"nuisance": nuisance, "runs": runs} | means(group, names) | exact)

    made, panels = figure(1, 2, 4.4, 3.7)
    lines = {"t1": (BLUE, "t = 1", "-"), "t2": (ORANGE, "t = 2", "-"), "t3": (GREEN, "t = 3", "-"),
             "all": (GREY, "all columns", "--"), "moons": (GREY, "the moons' columns", ":")}  # fmt: skip
    for name, (colour, label, style) in lines.items():
        errors = [r[f"{name}_std"] / np.sqrt(r["runs"]) for r in records]
        panels[0].errorbar(
            list(dims), [r[name] for r in records], errors, fmt=style, color=colour, marker=".", capsize=3, label=label
        )
    for t in POWERS:
        share = [r[f"exact{t}"] / r["runs"] for r in records]
        panels[1].plot(list(dims), share, color=lines[f"t{t}"][0], marker=".")
    panels[0].set(ylabel="k-means accuracy", ylim=(0.45, 1), xlabel="nuisance dimensions")
    panels[1].set(ylabel="share of runs with exactly the moons", ylim=(0, 1.03), xlabel="nuisance dimensions")
    panels[0].set_title("mean, standard error", fontsize=9)
    legend_below(made, panels[0], 5)
    header = ["nuisance", "runs", *(f"accuracy, t = {t}" for t in POWERS), "all columns", "the moons' columns",
              *(f"exact, t = {t}" for t in POWERS)]  # fmt: skip
    rows = [
        (r["nuisance"], r["runs"], *(f"{r[f't{t}']:.3f} ({r[f't{t}_std']:.3f})" for t in POWERS),
         f"{r['all']:.3f}", f"{r['moons']:.3f}", *(r[f"exact{t}"] for t in POWERS))
        for r in records
    ]  # fmt: skip
    return Report({"n": 100, "noise": 0.1, "records": records}, markdown(header, rows), made)
