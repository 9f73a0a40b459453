"""Soft precision, soft recall and accuracy of spectral clustering against epochs, for several numbers of columns.

Two moons (noise 0.1, n = 100) and d - 2 columns N(0, 1), variance 1 each; parameter-free loss, one run a data set.
Every 10 epochs: soft precision and recall of the open probabilities p, and the accuracy of spectral clustering of the
gated data X * clip(mu, 0, 1): k-means with two clusters on psi_2 of their Gaussian kernel, bandwidth as in the fit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.cluster import KMeans

from bench.common import markdown
from bench.paper.cells import Cells, Report
from bench.paper.drawing import figure
from bench.paper.score_demo import SETTINGS, selector
from dufs_core.backend import Array, get_backend
from dufs_core.data.dense import scale_columns
from dufs_core.datasets import two_moons
from dufs_core.inspection.metrics import clustering_accuracy
from dufs_core.inspection.spectral import affinity, random_walk_spectrum
from dufs_core.objective.ops.regulariser import probabilities
from dufs_core.training.loop import StepInfo

EVERY = 10  # epochs
CURVES = ("soft_precision", "soft_recall", "accuracy")
COLOURS = ("#1f5fa8", "#2f7d4f", "#c8590a", "#8a3ea8")


def soft_precision_recall(probabilities: Array, informative: Array) -> tuple[float, float]:
    """sum over informative of p / sum(p), and sum over informative of p / their number.      p = P(z > 0), (d,)."""
    total = float(probabilities[informative].sum())
    return total / max(float(probabilities.sum()), 1e-300), total / len(informative)


class Watch:
    """A callback that measures every 10 epochs, and at the first."""

    def __init__(self, X: Array, labels: Array, informative: Array, factor: float, sigma: float) -> None:
        self._data, self._factor, self._sigma = (X, labels, informative), factor, sigma
        self.epochs: list[int] = []
        self.curves: dict[str, list[float]] = {name: [] for name in CURVES}

    def __call__(self, info: StepInfo) -> None:
        if info.step % EVERY and info.step != 1:
            return
        X, labels, informative = self._data
        mu = np.array(info.mu, dtype=np.float64)
        p = probabilities(get_backend("numpy"), mu, self._sigma)
        values = [
            *soft_precision_recall(p, informative),
            spectral_accuracy(X * np.clip(mu, 0, 1), labels, self._factor),
        ]
        self.epochs.append(info.step)
        for name, value in zip(CURVES, values, strict=True):
            self.curves[name].append(round(value, 4))


def spectral_accuracy(X: Array, labels: Array, factor: float) -> float:
    """Of two clusters, from psi_2 (Shi and Malik, "Normalized cuts and image segmentation", PAMI 2000)."""
    psi = random_walk_spectrum(affinity(X, "max", 2, factor)).vectors[:, 1:]
    return clustering_accuracy(labels, KMeans(2, n_init=1, random_state=0).fit_predict(psi))


def trajectory(settings: str, d: int, seed: int, max_iter: int) -> dict[str, Any]:
    """The curves of one run."""
    problem = two_moons(100, d, 0.1, seed)
    X = scale_columns(problem.X, "columns", np.float64).X
    fit = selector(settings, random_state=seed, max_iter=max_iter)
    watch = Watch(X, problem.labels, problem.informative, fit.graph.bandwidth_factor, fit.gate_sigma)
    fit.set_params(callbacks=[watch]).fit(X)
    exact = np.array_equal(np.flatnonzero(fit.support_), problem.informative)
    return {"epochs": watch.epochs, "exact": exact, "n_iter": fit.n_iter_} | watch.curves


def run(cells: Cells, quick: bool) -> Report:
    dims, seeds = ((10, 20), 1) if quick else ((10, 20, 50, 100), 10)
    plan = {"ours": (seeds, 100 if quick else 2000), "paper": (1 if quick else 5, 100 if quick else 15_000)}
    keys = [(s, d) for s in SETTINGS for d in dims]
    records = []
    for s, d in keys:
        runs, most = plan[s]
        group = cells.compute(
            trajectory, [{"settings": s, "d": d, "seed": seed, "max_iter": most} for seed in range(runs)]
        )
        longest = max((r["epochs"] for r in group), key=len)
        curves = {name: np.mean([_extended(r[name], len(longest)) for r in group], axis=0).round(4) for name in CURVES}
        end = {f"final_{name}": float(np.mean([r[name][-1] for r in group])) for name in CURVES}
        record = {"settings": s, "d": d, "runs": runs, "exact": sum(r["exact"] for r in group)}
        records.append(record | {"n_iter": [r["n_iter"] for r in group], "epochs": longest} | end | curves)

    made, panels = figure(len(SETTINGS), 3, 3.8, 2.8)
    for record in records:
        row, colour = list(SETTINGS).index(record["settings"]), COLOURS[dims.index(record["d"])]
        for axes, name in zip(panels[3 * row : 3 * row + 3], CURVES, strict=True):
            axes.plot(record["epochs"], record[name], color=colour, linewidth=1.2, label=f"d = {record['d']}")
            axes.set(xlabel="epoch", ylim=(0, 1.03), title=f"{SETTINGS[record['settings']]}, {record['runs']} runs")
            axes.set_xscale("log" if record["settings"] == "paper" else "linear")  # 300 to 15,000 epochs
            axes.set_ylabel({"accuracy": "spectral clustering accuracy"}.get(name, name.replace("_", " ")))
    panels[0].legend(frameon=False, fontsize=7)
    header = ["steps", "d", "runs", "exactly the moons", "epochs", "soft precision", "soft recall", "accuracy"]
    rows = [
        (SETTINGS[r["settings"]], r["d"], r["runs"], r["exact"], f"{np.mean(r['n_iter']):.0f}",
         *(f"{r[f'final_{name}']:.3f}" for name in CURVES))
        for r in records
    ]  # fmt: skip
    return Report({"n": 100, "noise": 0.1, "records": records}, markdown(header, rows), made)


def _extended(values: list[float], length: int) -> list[float]:
    """A run that has ended stays where it is."""
    return values + values[-1:] * (length - len(values))
