"""Laplacian scores of ten columns before and after gating, and the way there: loss and open gates.

Two moons (noise 0.1) and eight N(0, 1) columns, variance 1 each. The score of a column is f' P^2 f / n on the graph of
all columns as they are (the start), or of the columns times their final gates clip(mu, 0, 1). Parameter-free loss; one
run with our steps, and the paper's (plain SGD, one draw a step, rate 1).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.common import markdown
from bench.paper.cells import Cells, Report
from bench.paper.drawing import BLUE, GREY, ORANGE, figure
from dufs_core import GatedLaplacian
from dufs_core.backend import Array
from dufs_core.data.dense import scale_columns
from dufs_core.datasets import two_moons
from dufs_core.inspection.spectral import affinity
from dufs_core.selection.settings import set_flat

D = 10
POINTS_KEPT = 300  # of a history, at most
SETTINGS = {"ours": "our steps", "paper": "the paper's steps"}


def selector(settings: str, **changes: Any) -> GatedLaplacian:
    """One run: with our steps, or with the paper's bandwidth, draws and steps."""
    chosen = GatedLaplacian.preset("paper") if settings == "paper" else GatedLaplacian(max_runs=1)
    set_flat(chosen, changes | {"n_jobs": 1})
    return chosen


def column_scores(X: Array, factor: float, gates: Array) -> Array:
    """f' P^2 f / n of every column f of X, P from the gated X."""
    K = affinity(X * gates, "max", 2, factor)
    P = K / K.sum(axis=1, keepdims=True)
    return np.einsum("ij,ij->j", P.T @ X, P @ X) / len(X)


def demo(settings: str, seed: int, max_iter: int) -> dict[str, Any]:
    """Scores and history of one run."""
    X = scale_columns(two_moons(100, D, 0.1, seed).X, "columns", np.float64).X
    fitted = selector(settings, random_state=seed, max_iter=max_iter).fit(X)
    history = fitted.history_
    kept = np.unique(np.linspace(1, fitted.n_iter_, POINTS_KEPT).round().astype(int)) - 1
    factor = fitted.graph.bandwidth_factor
    return {
        "start": column_scores(X, factor, np.ones(D)).round(6),
        "end": column_scores(X, factor, np.clip(fitted.mu_.astype(float), 0, 1)).round(6),
        "mu": fitted.mu_.astype(float).round(3),
        "selected": np.flatnonzero(fitted.support_),
        "n_iter": fitted.n_iter_,
        "step": history["step"][kept],
        "loss": history["loss"][kept].round(5),
        "open_gates": history["open_gates"][kept],
    }


def run(cells: Cells, quick: bool) -> Report:
    seed, most = 1, {"ours": 2000, "paper": 300 if quick else 15_000}
    results = cells.compute(demo, [{"settings": s, "seed": seed, "max_iter": most[s]} for s in SETTINGS])
    made, panels = figure(len(SETTINGS), 3, 3.8, 2.8)
    for row, (label, r) in enumerate(zip(SETTINGS.values(), results, strict=True)):
        for axes, name, text in zip(
            panels[3 * row :], ("start", "end"), ("all gates open", "final gates"), strict=False
        ):
            axes.bar(np.arange(1, D + 1), r[name], color=[ORANGE, ORANGE] + [GREY] * (D - 2))
            axes.set(title=f"{label}: {text}", xlabel="column", ylabel="score $f'P^2f\\,/\\,n$", xticks=range(1, D + 1))
        axes = panels[3 * row + 2]
        axes.plot(r["step"], r["loss"], color=BLUE)
        axes.set(title=f"{label}: {r['n_iter']:,} epochs", xlabel="epoch")
        axes.set_ylabel("loss", color=BLUE)
        second = axes.twinx()
        second.plot(r["step"], r["open_gates"], color=ORANGE)
        second.set_ylabel("open gates", color=ORANGE)
        second.set_ylim(0, D + 0.5)
        second.spines["top"].set_visible(False)
    rows = []
    for label, r in zip(SETTINGS.values(), results, strict=True):
        for name, text in (("start", "all open"), ("end", "final")):
            informative, nuisance = r[name][:2], r[name][2:]
            rows.append(
                (label, text, ", ".join(f"{v:.4f}" for v in informative), f"{max(nuisance):.4f}",
                 r["n_iter"] if name == "end" else None, r["selected"] if name == "end" else None)
            )  # fmt: skip
    header = ["steps", "gates", "scores of the moons' columns", "largest of the others", "epochs", "selected"]
    records = [{"settings": s} | r for s, r in zip(SETTINGS, results, strict=True)]
    return Report({"d": D, "seed": seed, "records": records}, markdown(header, rows), made)
