"""Pixels selected on images, drawn over them, and the accuracy of k-means on them; DUFS beside the Laplacian score.

Selectors see no labels. Accuracy: k-means with k = number of classes on the first 50, ..., 300 pixels, mean over starts
and over draws of whatever is random. DUFS: parameter-free, one run; LS: with DUFS's neighbours and bandwidth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from bench.paper.cells import Cells, Report
from bench.paper.drawing import BLUE, GREY, ORANGE, figure, markdown
from bench.paper.images import COUNTS, Images, accuracies, bare, draw_selected, missing
from dufs_core import DUFS
from dufs_core.baselines import LaplacianScore

METHODS = ("DUFS", "LS")
SIZES = {False: (2000, 20), True: (5, 1)}  # quick: most steps of a fit, starts of k-means


class Data(NamedTuple):
    """A set of images, and how it is fitted."""

    title: str
    files: tuple[str, ...]
    load: Callable[[int, int], Images]  # of (n, seed)
    n: int
    small: int  # n of the quick run
    seeds: int  # draws of the noise and of the gates
    settings: dict[str, Any]  # of DUFS


def selection(data: Data, method: str, seed: int, quick: bool) -> dict[str, Any]:
    """The first 300 pixels of a method's ranking on one draw, and k-means on them."""
    n = data.small if quick else data.n
    max_iter, starts = SIZES[quick]
    images = data.load(n, seed)
    shared = {name: data.settings[name] for name in ("scaling", "bandwidth_factor")}
    fitted = {}
    if method == "DUFS":
        batch = None if "batch_size" not in data.settings else min(data.settings["batch_size"], n)
        selector = DUFS(n_restarts=1, n_jobs=1, random_state=seed, max_iter=max_iter)
        selector.set_params(**data.settings | {"batch_size": batch}).fit(images.X)
        fitted = {"open": int(selector.support_.sum()), "n_iter": selector.n_iter_}
    else:
        selector = LaplacianScore(bandwidth="max", n_neighbors=2, **shared).fit(images.X)
    ranking = selector.ranking_[: COUNTS[-1]]
    return fitted | {"ranking": ranking, "accuracy": accuracies(images, ranking, starts)}


def report(cells: Cells, quick: bool, sets: Mapping[str, Data], cell: Callable[..., dict[str, Any]]) -> Report:
    """A row of panels and two rows of the table for each data set; `cell` is `selection` with the set's name."""
    made, panels = figure(len(sets), 4, 3.0, 3.0)
    records, absent = [], {}
    for row, (name, data) in enumerate(sets.items()):
        shown = panels[4 * row : 4 * row + 4]
        if reason := missing(data.files):
            absent[name] = reason
            for axes in shown:
                bare(axes, f"{data.title}: no data")
            continue
        images = data.load(data.small if quick else data.n, 0)
        bare(shown[0], data.title)
        shown[0].imshow(images.picture(images.X[0]), cmap="gray")
        for method, axes, colour in zip(METHODS, shown[1:], (ORANGE, BLUE), strict=False):
            settings = [{"data": name, "method": method, "seed": s, "quick": quick} for s in range(data.seeds)]
            group = cells.compute(cell, settings[:1] if quick else settings)
            draw_selected(axes, images, group[0]["ranking"], f"{method}: 50, 100, ..., 300 pixels")
            mean = {k: float(np.mean([r["accuracy"][k][0] for r in group])) for k in group[0]["accuracy"]}
            spread = {k: float(np.std([r["accuracy"][k][0] for r in group])) for k in mean}
            records.append({"data": name, "method": method, "runs": len(group), "accuracy": mean, "std": spread})
            if method == "DUFS":
                records[-1] |= {key: [r[key] for r in group] for key in ("open", "n_iter")}
            curve, bars = ([values[str(k)] for k in COUNTS] for values in (mean, spread))
            shown[3].errorbar(COUNTS, curve, bars, color=colour, marker=".", capsize=2, label=method)
        shown[3].axhline(mean["all"], color=GREY, linestyle="--", linewidth=1, label="all pixels")
        shown[3].set(xlabel="pixels selected", ylabel="k-means accuracy, %")
        shown[3].legend(frameon=False, fontsize=8)
    counts = (*map(str, COUNTS), "all")
    rows = [(sets[r["data"]].title, r["method"], *(f"{r['accuracy'][k]:.1f}" for k in counts)) for r in records]
    left_out = [f"{sets[name].title}: left out, {reason}." for name, reason in absent.items()]
    table = "\n\n".join([markdown(["data", "method", *counts], rows), *left_out])
    results = {"dufs": {name: data.settings for name, data in sets.items()}, "records": records, "left_out": absent}
    return Report(results, table, made)
