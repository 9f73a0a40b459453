"""Pixels selected on images, drawn over them, and the accuracy of k-means on them; DUFS beside the Laplacian score.

Selectors see no labels. Accuracy: k-means with k = number of classes on the first 50, ..., 300 pixels. DUFS: one run,
learning rate 0.015; DUFS-R: the same with ``ranking="diverse"``. All with the largest distance to the second
neighbour times each of a set's bandwidth factors, DUFS also with lambdas lam, as a share of the largest score of a
column at the start, and with the graph of the preset "wide". Two protocols: the setting with the best accuracy (oracle,
as the paper's tuning), and for DUFS that with the largest excess score (label-free), where there are several and
that gap is above what the search of `GatedLaplacian` takes for chance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.common import MissingData, markdown
from bench.paper.cells import Cells, Report
from bench.paper.drawing import BLUE, GREY, ORANGE, RED, figure
from bench.paper.images import OPACITY, SHADES, Images, accuracies, accuracy, bare, draw_selected
from bench.paper.protocol import COUNTS, DUFS_METHODS, lam_of_share
from dufs_core import GatedLaplacian
from dufs_core.baselines import LaplacianScore
from dufs_core.selection.settings import set_flat
from dufs_core.significance.permutation import excess_threshold

CURVES = {
    "DUFS, oracle": (ORANGE, "-"), "DUFS, label-free": (ORANGE, ":"),
    "DUFS-R, oracle": (RED, "-"), "DUFS-R, label-free": (RED, ":"), "LS, oracle": (BLUE, "-"),
}  # fmt: skip
LEARNING_RATE = 0.015
SIZES = {False: (2000, 10), True: (5, 1)}  # quick: most steps of a fit, starts of k-means


class Setting(NamedTuple):
    """What is varied."""

    factor: float  # of the bandwidth
    share: float | None = None  # lam as a share of the largest score of a column; None: the parameter-free loss
    wide: bool = False  # the graph of the preset "wide", with this factor

    @property
    def of_cell(self) -> dict[str, Any]:
        """As a cell has it: what is not set is left out."""
        own = {"factor": self.factor}
        if self.share is not None:
            own["share"] = self.share
        return own | ({"wide": True} if self.wide else {})

    def __str__(self) -> str:
        return f"{self.factor:g}" + (f", {self.share:g}" if self.share is not None else "") + ", wide" * self.wide


WIDE = Setting(0.5, wide=True)  # the preset


class Data(NamedTuple):
    """A set of images, and how it is fitted."""

    title: str
    load: Callable[[int, int], Images]  # of (n, seed)
    n: int
    small: int  # n of the quick run
    seeds: int  # draws of the noise and of the gates
    grid: tuple[Setting, ...]
    scaling: str
    settings: dict[str, Any]  # of DUFS


def selection(
    data: Data, method: str, factor: float, seed: int, quick: bool, share: float | None = None, wide: bool = False
) -> dict[str, Any]:
    """The first 300 pixels of a method's ranking on one draw, and k-means on them."""
    n = data.small if quick else data.n
    max_iter, starts = SIZES[quick]
    images = data.load(n, seed)
    if method == "all":
        return {"accuracy": accuracy(images, np.arange(images.X.shape[1]), starts)}
    shared = {"scaling": data.scaling, "bandwidth": "max", "n_neighbors": 2, "bandwidth_factor": factor}
    fitted = {}
    if method in DUFS_METHODS:
        settings = {"max_runs": 1, "n_jobs": 1, "max_iter": max_iter, "learning_rate": LEARNING_RATE}
        selector = GatedLaplacian(**settings, random_state=seed, ranking=DUFS_METHODS[method])
        set_flat(selector, shared | data.settings)
        if wide:
            selector.set_params(graph__n_neighbors=5, graph__self_loops=False)
        if share is not None:
            selector.set_params(lam=lam_of_share(images.X, share, shared))
        if selector.batch_size is not None:
            selector.set_params(batch_size=min(n, selector.batch_size))
        selector.fit(images.X)
        fitted = {"open": int(selector.support_.sum()), "n_iter": selector.n_iter_, "gap": selector.excess_score_}
    else:
        selector = LaplacianScore(**shared).fit(images.X)
    ranking = selector.order_[: COUNTS[-1]]
    return fitted | {"ranking": ranking, "accuracy": accuracies(images, ranking, starts)}


def best(group: Sequence[Sequence[dict[str, Any]]]) -> list[int]:
    """Which of group[setting][seed] each seed takes with labels: the setting that is best on average."""
    place = int(np.argmax([np.mean([r["accuracy"] for r in runs], axis=0).max() for runs in group]))
    return [place] * len(group[0])


def label_free(group: Sequence[Sequence[dict[str, Any]]], n_rows: int) -> tuple[list[int], str]:
    """Which of group[setting][seed] each seed takes without labels: that with the largest gap; or none, and why."""
    if len(group) == 1:
        return [], "there is one setting only"
    which = [int(i) for i in np.argmax([[r["gap"] for r in runs] for runs in group], axis=0)]
    for seed, i in enumerate(which):
        gap, needed = group[i][seed]["gap"], excess_threshold(group[i][seed]["open"], n_rows)
        if gap < needed:
            return [], f"the largest excess score is {gap:.1g}, which may be chance (below {needed:.2g})"
    return which, ""


def report(cells: Cells, quick: bool, sets: Mapping[str, Data], cell: Callable[..., dict[str, Any]]) -> Report:
    """A row of panels and rows of the table for each data set; `cell` is `selection` with the set's name."""
    made, panels = figure(len(sets), 5, 3.0, 3.0)
    records, rows, absent, no_choice = [], [], {}, {}
    for row, (name, data) in enumerate(sets.items()):
        shown = panels[5 * row : 5 * row + 5]
        try:
            images = data.load(data.small if quick else data.n, 0)
        except MissingData as reason:
            absent[name] = str(reason)
            for axes in shown:
                bare(axes, f"{data.title}: no data")
            continue
        seeds = range(1 if quick else data.seeds)
        grid = data.grid[:1] if quick else data.grid
        grids = dict.fromkeys(DUFS_METHODS, grid)
        grids["LS"] = tuple(dict.fromkeys(Setting(s.factor) for s in grid if not s.wide))

        def all_seeds(method: str, setting: Setting, name: str = name, seeds: range = seeds) -> list[dict[str, Any]]:
            shared = {"data": name, "method": method, "quick": quick} | setting.of_cell
            return cells.compute(cell, [shared | {"seed": seed} for seed in seeds])

        groups = {method: [all_seeds(method, setting) for setting in grids[method]] for method in grids}
        everything = float(np.mean([r["accuracy"] for r in all_seeds("all", Setting(0.0))]))
        bare(shown[0], data.title)
        shown[0].imshow(images.picture(images.X[0]), cmap="gray")
        for label, (colour, style) in CURVES.items():
            method, protocol = label.split(", ")
            if protocol == "oracle":
                which = best(groups[method])
            else:
                which, reason = label_free(groups[method], len(images.X))
                if not which:
                    no_choice[name] = reason
                    continue
            runs = [groups[method][i][s] for s, i in enumerate(which)]
            curves = np.array([r["accuracy"] for r in runs])
            records.append({"data": name, "method": method, "protocol": protocol, "runs": len(runs),
                            "settings": [grids[method][i] for i in which], "accuracy": curves.mean(axis=0).round(2),
                            "std": curves.std(axis=0).round(2), "all": everything})  # fmt: skip
            if method in DUFS_METHODS:
                records[-1] |= {key: [r[key] for r in runs] for key in ("open", "n_iter", "gap")}
            if protocol == "oracle":
                draw_selected(shown[1 + list(grids).index(method)], images, runs[0]["ranking"], label)
            shown[4].plot(COUNTS, records[-1]["accuracy"], style, color=colour, marker=".", label=label)
            used = dict.fromkeys(str(grids[method][i]) for i in which)
            curve = (f"{v:.1f}" for v in records[-1]["accuracy"])
            rows.append((data.title, label, "; ".join(used), *curve, f"{everything:.1f}"))
        shown[4].axhline(everything, color=GREY, linestyle="--", linewidth=1, label="all pixels")
        shown[4].set(xlabel="pixels selected", ylabel="k-means accuracy, %", xticks=COUNTS)
    key(made, panels)
    lines = {
        label: line for axes in panels[4::5] for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    labels = [label for label in (*CURVES, "all pixels") if label in lines]
    if labels:
        made.legend([lines[name] for name in labels], labels, loc="outside lower center", ncols=6, frameon=False)
    notes = [f"{sets[name].title}: left out, {reason}." for name, reason in absent.items()]
    notes += [f"{sets[name].title}: no label-free choice, {reason}." for name, reason in no_choice.items()]
    table = "\n\n".join([markdown(["data", "method", "factor, share", *map(str, COUNTS), "all"], rows), *notes])
    settings = {
        name: {"grid": d.grid, "scaling": d.scaling, "learning_rate": LEARNING_RATE} | d.settings
        for name, d in sets.items()
    }
    results = {"settings": settings, "counts": COUNTS, "records": records}
    return Report(results | {"left_out": absent, "no_label_free": no_choice}, table, made)


def key(made: Figure, panels: list[Axes]) -> None:
    """The shades of the selected pixels, beneath the images of pixels."""
    images = [axes for i, axes in enumerate(panels) if i % 5 in (1, 2, 3)]
    bar = made.colorbar(SHADES, ax=images, location="bottom", aspect=50, fraction=0.04, pad=0.02, alpha=OPACITY)
    bar.set_label("place in the ranking of the pixels", fontsize=8)
    bar.ax.tick_params(labelsize=8)
