"""Where the classes of PROSTATE lie, and what removing the leading coordinates of the rows does to a selection.

The columns, z-scored, lose their projection on the first principal components, or on the first eigenvectors of the
random walk of the preset "wide" on all columns (the constant one apart); LS and DUFS (preset "wide") select on what is
left, and k-means clusters by the columns in the units of the file, as in table1. No option of the library does this.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from bench.common import available, markdown
from bench.paper.cells import Cells, Report
from bench.paper.drawing import BLUE, ORANGE, figure, legend_below
from bench.paper.protocol import COUNTS, RUNS, STARTS, agreement, cached_load, clusters, judged
from dufs_core import GatedLaplacian, baselines
from dufs_core.data.dense import scale_columns

Array = np.ndarray[Any, Any]
DATA = ("PROSTATE", "ALLAML", "GLIOMA")
QUICK_DATA = ("GLIOMA",)
LOOKED_AT = 6  # coordinates
REMOVED = {"principal": (0, 1, 2, 3), "diffusion": (1, 2, 3)}
COLOURS = {"LS": ORANGE, "DUFS": BLUE}


@lru_cache(maxsize=4)
def coordinates(data: str, kind: str) -> tuple[Array, Array]:
    """The leading coordinates of the rows, unit vectors (n, LOOKED_AT), and their shares or eigenvalues."""
    Z = scale_columns(cached_load(data).X, "columns", np.float64).X
    G = Z @ Z.T
    if kind == "principal":
        values, vectors = np.linalg.eigh(G)
        return vectors[:, ::-1][:, :LOOKED_AT], values[::-1][:LOOKED_AT] / values.sum()
    squares = np.diag(G)
    D2 = np.maximum(squares[:, None] + squares - 2 * G, 0)
    bandwidth = 0.5 * np.sort(D2, axis=1)[:, 5].max()  # to the fifth other row
    K = np.exp(-D2 / bandwidth)
    np.fill_diagonal(K, 0)
    roots = np.sqrt(K.sum(axis=1))
    values, vectors = np.linalg.eigh(K / np.outer(roots, roots))
    psi = (vectors / roots[:, None])[:, ::-1][:, 1 : LOOKED_AT + 1]
    return psi / np.linalg.norm(psi, axis=0), values[::-1][1 : LOOKED_AT + 1]


def alone(data: str, kind: str) -> dict[str, list[float]]:
    """Of each coordinate its share or eigenvalue, and the accuracy of k-means on it alone."""
    labels = cached_load(data).labels
    k = len(np.unique(labels))
    vectors, values = coordinates(data, kind)
    found = [
        np.mean([agreement(labels, clusters(v[:, None], k, STARTS[0], run))[0] for run in range(RUNS)])
        for v in vectors.T
    ]
    return {"value": [round(float(v), 4) for v in values], "accuracy": [round(100 * float(a), 1) for a in found]}


def selected(data: str, kind: str, removed: int, method: str, quick: bool) -> dict[str, Any]:
    """k-means by the first columns, as `protocol.judged`, after so many coordinates have been removed."""
    source = cached_load(data)
    Z = scale_columns(source.X, "columns", np.float64).X
    Q = np.linalg.qr(coordinates(data, kind)[0][:, :removed])[0]
    Z = Z - Q @ (Q.T @ Z)
    if method == "LS":
        order = baselines.LaplacianScore().fit(Z).order_
    else:
        short = {"max_iter": 5} if quick else {}
        order = (
            GatedLaplacian.preset("wide", max_runs=1, backend="numpy", n_jobs=1, random_state=0, **short).fit(Z).order_
        )
    return judged(source, [order[:c] for c in COUNTS], 2 if quick else RUNS, 0, STARTS[0])


def run(cells: Cells, quick: bool) -> Report:
    names, missing = available(QUICK_DATA if quick else DATA, cached_load)
    kinds = [{"data": d, "kind": kind} for d in names for kind in REMOVED]
    looks = [s | found for s, found in zip(kinds, cells.compute(alone, kinds), strict=True)]
    wanted = [
        s | {"removed": removed, "method": method, "quick": quick}
        for s in kinds for method in COLOURS for removed in REMOVED[s["kind"]]
    ]  # fmt: skip
    records = [s | found for s, found in zip(wanted, cells.compute(selected, wanted), strict=True)]
    head = ["data", "coordinates", *map(str, range(1, LOOKED_AT + 1))]
    parts = [
        "Each coordinate alone: its share of the variance (principal) or eigenvalue (diffusion), k-means accuracy",
        markdown(head, [[x["data"], x["kind"], *(f"{v:.2f}, {a:.1f}" for v, a in zip(x["value"], x["accuracy"],
                                                                                     strict=True))] for x in looks]),
        "Columns selected after the first of them are removed: k-means accuracy",
        markdown(["data", "method", "removed", *map(str, COUNTS)],
                 [[r["data"], r["method"], f"{r['removed']} {r['kind']}" if r["removed"] else "none",
                   *(f"{a:.1f}" for a in r["accuracy"])] for r in records]),
    ]  # fmt: skip
    made, panels = figure(1, len(names))
    for axes, name in zip(panels, names, strict=True):
        for (kind, line), (method, colour) in product((("principal", "-"), ("diffusion", "--")), COLOURS.items()):
            mine = [r for r in records if r["data"] == name and r["method"] == method and r["kind"] == kind]
            found = {r["removed"]: np.mean(r["accuracy"]) for r in mine}
            axes.plot(*zip(*found.items(), strict=True), line, color=colour, marker="o", label=f"{method}, {kind}")
        axes.set(title=name, xlabel="coordinates removed", ylabel="accuracy, mean over 50 to 300 columns, %")
    legend_below(made, panels[0], 4)
    return Report({"coordinates": looks, "records": records, "left_out": missing}, "\n\n".join(parts), made)
