"""LambdaPath on the wide data sets of table1: the lambda that it takes without labels, among all of its lambdas.

`dufs_core.LambdaPath` with its defaults on the graph of the preset "wide". For every lambda: the open columns, the
k-means accuracy of these columns and of the first 300 by their gates, and what the path goes by. Labels judge only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.common import available, markdown
from bench.paper.cells import Cells, Report
from bench.paper.drawing import BLUE, GREY, ORANGE, RED, figure, legend_below
from bench.paper.protocol import ALL, RUNS, STARTS, cached_load, judge
from dufs_core import GatedLaplacian, LambdaPath
from dufs_core.inspection.metrics import kmeans_accuracy

DATA = ("Yale", "GLIOMA", "TOX-171", "ALLAML", "PROSTATE", "PIX10")
QUICK_DATA = ("Yale",)
QUICK = {"max_iter": 5, "n_draws": 2}
COUNT = 300

OPTIONS = {"--data": {"nargs": "+", "choices": DATA, "default": list(DATA), "metavar": "NAME"}}


def path(data: str, quick: bool, seed: int) -> dict[str, Any]:
    """Lists over the lambdas, and the position of the one that is taken."""
    source = cached_load(data)
    X = source.X[:, ::16] if quick else source.X
    selector = GatedLaplacian.preset(
        "wide", ranking="gates", max_runs=1, backend="numpy", n_jobs=1, **QUICK if quick else {}
    )
    some = {"n_lams": 3, "n_splits": 1, "n_permutations": 19} if quick else {}
    found = LambdaPath(selector, random_state=seed, **some).fit(X)

    def accuracy(columns: np.ndarray) -> float | None:
        if not len(columns):
            return None
        return round(100 * kmeans_accuracy(X[:, columns], source.labels, 2 if quick else RUNS, seed)[0], 2)

    return {
        "lam": found.lams_, "selected": found.n_selected_, "best": found.best_index_, "p": found.p_value_,
        "held_out": found.held_out_z_, "gap": found.excess_score_, "stability": found.stability_,
        "accuracy_selected": [accuracy(np.flatnonzero(mu > 0)) for mu in found.mu_],
        f"accuracy_{COUNT}": [accuracy(np.argsort(-mu, kind="stable")[:COUNT]) for mu in found.mu_],
    }  # fmt: skip


def row(data: str, r: dict[str, Any], everything: float) -> list[Any]:
    """What the taken lambda has, and the range over all lambdas."""
    best, counts, first = r["best"], r["selected"], r[f"accuracy_{COUNT}"]
    among = [a for a in r["accuracy_selected"] if a is not None]
    own = r["accuracy_selected"][best]
    return [
        data, " ".join(map(str, counts)), counts[best], f"{r['p'][best]:.2g}",
        None if own is None else f"{own:.1f}", *(f"{f(among):.1f}" if among else None for f in (np.mean, min, max)),
        f"{first[best]:.1f}", *(f"{f(first):.1f}" for f in (np.mean, min, max)), f"{everything:.1f}",
    ]  # fmt: skip


def run(cells: Cells, quick: bool, data: Sequence[str] = DATA) -> Report:
    names, missing = available([d for d in (QUICK_DATA if quick else DATA) if d in data], cached_load)
    results = cells.compute(path, [{"data": d, "quick": quick, "seed": 0} for d in names])
    runs = 2 if quick else RUNS
    all_of_them = cells.compute(
        judge, [{"data": d, "method": ALL, "settings": {}, "counts": [], "runs": runs, "seed": 0, "start": STARTS[1]}
                for d in names], [{"orders": {}}] * len(names),
    )  # fmt: skip
    everything = [r["accuracy"][0] for r in all_of_them]
    made, panels = figure(-(-len(names) // 3) or 1, min(3, len(names)) or 1)
    for axes in panels[len(names) :]:
        axes.set_axis_off()
    for axes, name, r, level in zip(panels, names, results, everything, strict=False):
        for key, colour, label in (
            ("accuracy_selected", ORANGE, "the open columns"), (f"accuracy_{COUNT}", BLUE, f"the first {COUNT}"),
        ):  # fmt: skip
            axes.plot(r["lam"], np.array(r[key], dtype=float), ".-", color=colour, label=label)
        axes.axvline(r["lam"][r["best"]], color=RED, label="the lambda taken")
        axes.axhline(level, color=GREY, linestyle="--", label=ALL)
        axes.set_xscale("log")
        axes.set(title=name, xlabel=r"$\lambda$", ylabel="k-means accuracy, %")
    if names:
        legend_below(made, panels[0], 4)
    header = ["data", "open gates, lowest lambda first", "taken", "p",
              "open columns: at the lambda taken", "mean", "least", "most",
              f"first {COUNT}: at the lambda taken", "mean", "least", "most", ALL]  # fmt: skip
    rows = [row(*item) for item in zip(names, results, everything, strict=True)]
    records = [{"data": d, ALL: e} | r for d, r, e in zip(names, results, everything, strict=True)]
    return Report({"records": records, "left_out": missing}, markdown(header, rows), made)
