"""How k-means starts, and in which units: its accuracy on all features of table1's data sets, beside the paper's.

Starts by k-means++, by scikit-learn's greedy k-means++ or from random rows; columns in the units of the file, z-scored
(columns that do not vary are 0) or of norm 1. As in bench/paper/protocol.py: k = number of classes, mean and standard
deviation of 20 runs of one start each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.common import available, markdown
from bench.paper import published
from bench.paper.cells import Cells, Report
from bench.paper.data import SOURCES, Data
from bench.paper.drawing import BLUE, GREEN, GREY, ORANGE, figure, legend_below
from bench.paper.protocol import ALL, RUNS, STARTS, cached_load, judged
from bench.paper.table1 import QUICK_DATA
from dufs_core.data.dense import scale_columns

SCALINGS = {"file": "units of the file", "columns": "z-scored", "norm": "of norm 1"}
VARIANTS = {(scaling, start): f"{SCALINGS[scaling]}, {start}" for scaling in SCALINGS for start in STARTS}
COLOURS = dict(zip(SCALINGS, (BLUE, ORANGE, GREEN), strict=True))
MARKERS = dict(zip(STARTS, "osx", strict=True))


def everything(data: str, scaling: str, start: str, runs: int) -> dict[str, float]:
    """Accuracy of k-means on all columns in percent, mean and standard deviation over the runs."""
    X, labels = cached_load(data)
    if scaling == "columns":
        X = scale_columns(X, scaling, np.float64).X
    elif scaling == "norm":
        X = X / np.maximum(np.linalg.norm(X, axis=0), 1e-300)
    found = judged(Data(X, labels), [np.arange(X.shape[1])], runs, 0, start)
    return {key: found[key][0] for key in ("accuracy", "deviation")}


def run(cells: Cells, quick: bool) -> Report:
    names, left_out = available(QUICK_DATA if quick else SOURCES, cached_load)
    records: list[dict[str, Any]] = []
    runs = 3 if quick else RUNS
    for data in names:
        found = cells.compute(
            everything, [{"data": data, "scaling": how, "start": start, "runs": runs} for how, start in VARIANTS]
        )
        paper = published.accuracy(data, ALL) if SOURCES[data].same else None
        values = {key: dict(zip(VARIANTS.values(), (r[key] for r in found), strict=True)) for key in found[0]}
        records.append({"data": data, "runs": runs, "paper": paper} | values)

    made, (axes,) = figure(1, 1, width=8.0, height=4.0)
    x = np.arange(len(records))
    for i, ((scaling, start), label) in enumerate(VARIANTS.items()):
        mean, deviation = ([r[key][label] for r in records] for key in ("accuracy", "deviation"))
        axes.errorbar(
            x + 0.08 * (i - 4), mean, deviation, fmt=MARKERS[start], color=COLOURS[scaling], markersize=4,
            elinewidth=0.8, label=label,
        )  # fmt: skip
    theirs = [(i, r["paper"]) for i, r in enumerate(records) if r["paper"] is not None]
    for number, (i, paper) in enumerate(theirs):
        axes.hlines(paper, i - 0.38, i + 0.38, color=GREY, linestyle="--", label=None if number else "the paper")
    axes.set_xticks(x, [r["data"] for r in records], rotation=30, ha="right")
    axes.set(ylabel="k-means accuracy of all features, %")
    legend_below(made, axes, 3)

    distances = {label: distance(records, label) for label in VARIANTS.values()}
    rows = [
        [r["data"], *(f"{r['accuracy'][label]:.1f} ± {r['deviation'][label]:.1f}" for label in VARIANTS.values()),
         r["paper"]]
        for r in records
    ]  # fmt: skip
    if theirs:
        few = f"{len(theirs)} row{'s' * (len(theirs) > 1)}"
        rows.append([f"mean distance from the paper ({few})", *(f"{d:.1f}" for d in distances.values()), None])
    notes = [f"{data}: left out, {reason}." for data, reason in left_out.items()]
    table = "\n\n".join([markdown(["data", *VARIANTS.values(), "the paper"], rows), *notes])
    return Report({"records": records, "distance_from_the_paper": distances, "left_out": left_out}, table, made)


def distance(records: Sequence[dict[str, Any]], label: str) -> float | None:
    """Mean absolute difference of a variant from the paper's accuracy, over the rows where it has one."""
    differences = [abs(r["accuracy"][label] - r["paper"]) for r in records if r["paper"] is not None]
    return round(float(np.mean(differences)), 2) if differences else None
