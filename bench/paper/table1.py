"""The paper's second table: seven selectors and all features on eleven data sets, by k-means accuracy.

Two protocols. `oracle`, the paper's: the best of 50, 100, ... 300 columns and of the settings of grid.toml, chosen
with the labels. `label_free`: one setting of grid.toml and 300 columns. DUFS-R is DUFS with
``ranking="diverse"``, of the same fits. --methods and --data limit what is computed now; the table shows
every cell that is there.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from bench.common import MissingData, available, markdown
from bench.paper import published
from bench.paper.cells import Cells, Report
from bench.paper.data import SOURCES, Data
from bench.paper.drawing import BLUE, GREEN, GREY, ORANGE, RED, figure
from bench.paper.protocol import ALL, COUNTS, DUFS_METHODS, RUNS, SELECTORS, cached_load, score

PROTOCOLS = ("oracle", "label_free")
METHODS = (*SELECTORS, ALL)
OF_THE_PAPER = tuple(m for m in SELECTORS if m != "DUFS-R")
LABEL_FREE_COUNT = 300
NEAR = 2.5  # points from the paper's
ROWS_FOR_RANKS = 3  # from so many complete rows on the ranks are printed
QUICK_DATA = ("Yale", "GLIOMA")
QUICK_COUNTS = (50, 100)
QUICK = {
    "DUFS": {"max_iter": 10},
    "CAE": {"steps": 10},
    "NDFS": {"max_iter": 2},
    "LLCFS": {"max_iter": 2},
}
_WEIGHT = {"CAE": 40, "LLCFS": 8, "DUFS": 8, "DUFS-R": 8, "NDFS": 4, "MCFS": 2, "SRCFS": 1, "LS": 0.3, ALL: 0.1}

OPTIONS: dict[str, dict[str, Any]] = {
    "--methods": {"nargs": "+", "choices": METHODS, "default": list(METHODS), "metavar": "METHOD"},
    "--data": {"nargs": "+", "choices": list(SOURCES), "default": list(SOURCES), "metavar": "NAME"},
}


def grid() -> dict[str, Any]:
    """The committed grid."""
    return tomllib.loads(Path(__file__).with_name("grid.toml").read_text())


def cells_of(fixed: dict[str, Any], data: str, method: str, quick: bool) -> list[dict[str, Any]]:
    """The settings of the cells of one method on one data set."""
    counts = list(QUICK_COUNTS if quick else fixed["counts"].get(method, COUNTS))
    method = "DUFS" if method in DUFS_METHODS else method
    settings = fixed.get(method, [{}])
    if method == "DUFS" and data in fixed["batch_size"]:
        settings = [s | {"batch_size": fixed["batch_size"][data]} for s in settings]
    if quick:
        settings = [s | QUICK.get(method, {}) for s in settings[:2]]
    return [
        {"data": data, "method": method, "settings": s, "counts": counts if method != ALL else [],
         "runs": 3 if quick else RUNS, "seed": fixed["seed"]}
        for s in settings
    ]  # fmt: skip


def known(cells: Cells, settings: dict[str, Any], method: str) -> Any:
    """The result of a cell for a method, else None: a cell of DUFS has also what DUFS-R would have."""
    result = cells.known("score", settings)
    if result is not None and method == "DUFS-R":
        return result | result["diverse"]
    return result


def preset_cells(fixed: dict[str, Any], data: str) -> list[dict[str, Any]]:
    """The paper's own settings on one data set, a cell for each lam; none where the grid has no preset for it."""
    preset = dict(fixed["presets"].get(data, {}))
    lams = preset.pop("lam", [])
    return [
        {"data": data, "method": "DUFS", "settings": {"preset": "paper", "tol": 0.0, "lam": lam, **preset},
         "counts": list(COUNTS), "runs": RUNS, "seed": fixed["seed"]}
        for lam in lams
    ]  # fmt: skip


def cost(data: Data, method: str) -> float:
    """Grows with the time of a cell, so that long ones can come first."""
    n, d = data.X.shape
    return _WEIGHT[method] * d * (100 if method == "CAE" else n * (1 + n / 1000))


def compute(
    cells: Cells, fixed: dict[str, Any], quick: bool, names: Sequence[str], methods: Sequence[str]
) -> dict[str, str]:
    """Compute what is missing; why the data sets that are not there are not."""
    there, missing = available(names, cached_load)
    todo = []
    for name in there:
        for method in methods:
            settings = cells_of(fixed, name, method, quick)
            if method == "DUFS" and not quick:
                settings = [*preset_cells(fixed, name), *settings]
            todo += [(cost(cached_load(name), method), s) for s in settings]
    todo.sort(key=lambda item: -item[0])
    cells.compute(score, [s for _, s in todo])
    return missing


def label_free(fixed: dict[str, Any], data: str, method: str) -> int | None:
    """Which setting is taken without labels; None where the shape of the data decides and is not known."""
    choice, wide = fixed["label_free"].get("DUFS" if method in DUFS_METHODS else method), is_wide(data)
    if choice is None:
        return 0
    return None if wide is None else int(choice["wide" if wide else "other"])


@cache
def is_wide(data: str) -> bool | None:
    """Whether there are more columns than rows; None without the file."""
    try:
        n, d = cached_load(data).X.shape
    except MissingData:
        return None
    return bool(d > n)


def held_out(cells: Cells, fixed: dict[str, Any], names: Sequence[str], method: str) -> dict[str, float]:
    """DUFS with 300 columns on each data set, by the setting that is best on the others of its kind (wide or not)."""
    complete = {}
    for name in names:
        results = [known(cells, s, method) for s in cells_of(fixed, name, method, False)]
        if results and None not in results:
            complete[name] = [result["accuracy"][-1] for result in results]
    found = {}
    for name, values in complete.items():
        others = [v for other, v in complete.items() if other != name and is_wide(other) == is_wide(name)]
        if others:
            found[name] = values[int(np.argmax(np.mean(others, axis=0)))]
    return found


def record(cells: Cells, fixed: dict[str, Any], data: str, method: str, protocol: str, quick: bool) -> dict[str, Any]:
    """One entry of the table; accuracy None while none of its cells is there."""
    wanted = cells_of(fixed, data, method, quick)
    if protocol == "label_free" and wanted:
        place = 0 if quick else label_free(fixed, data, method)
        wanted = [] if place is None else [wanted[place]]
    there = [(s, result) for s in wanted if (result := known(cells, s, method)) is not None]
    same = SOURCES[data].same
    entry = {
        "data": data, "method": method, "protocol": protocol, "accuracy": None, "n_features": None,
        "paper": published.accuracy(data, method) if same else None,
        "paper_n_features": published.n_features(data, method) if same else None,
    }  # fmt: skip
    if not there:
        return entry
    settings, result, best = min(
        ((s, r, i) for s, r in there for i in candidates(s, r, protocol)), key=lambda c: -c[1]["accuracy"][c[2]]
    )
    return entry | {
        "accuracy": result["accuracy"][best],
        "deviation": result["deviation"][best],
        "n_features": settings["counts"][best] if settings["counts"] else None,
        "settings": settings["settings"],
        "cells": len(there),
        "cells_wanted": len(wanted),
    }


def candidates(settings: dict[str, Any], result: dict[str, Any], protocol: str) -> list[int]:
    """The positions in `counts` that a protocol chooses from."""
    if protocol == "oracle" or not settings["counts"]:
        return list(range(len(result["accuracy"])))
    return [int(np.argmin([abs(c - LABEL_FREE_COUNT) for c in settings["counts"]]))]


def ranks(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean and median rank of the methods (1 is best) over the data sets on which all of them have a value.

    Seven methods are ranked, the paper's; DUFS-R has the rank that it has among them in the place of DUFS.
    """
    table = pd.DataFrame(records).pivot(index="data", columns="method", values="accuracy").astype(float)
    table = table.reindex(columns=list(SELECTORS)).dropna()
    if table.empty:
        return {"rows": 0, "mean": {}, "median": {}}
    ranked = table.drop(columns="DUFS-R").rank(axis=1, ascending=False)
    ranked["DUFS-R"] = table.drop(columns="DUFS").rank(axis=1, ascending=False)["DUFS-R"]
    return {"rows": len(ranked), "mean": ranked.mean().round(2).to_dict(), "median": ranked.median().to_dict()}


def means(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean accuracy of every method in both protocols over the rows that have all of them."""
    keys = [(m, p) for m in SELECTORS for p in PROTOCOLS] + [(ALL, "oracle")]
    found = {(r["data"], r["method"], r["protocol"]): r["accuracy"] for r in records}
    rows = [d for d in SOURCES if all(found.get((d, *key)) is not None for key in keys)]
    names = [f"{m} {p}" if m != ALL else ALL for m, p in keys]
    values = [round(float(np.mean([found[d, *key] for d in rows])), 2) if rows else None for key in keys]
    return {"data": rows, **dict(zip(names, values, strict=True))}


def defaults(cells: Cells, fixed: dict[str, Any], names: Sequence[str], quick: bool) -> dict[str, float]:
    """Accuracy of DUFS's defaults (no lam) with 300 columns, where it is computed."""
    found = {}
    for name in names:
        for s in cells_of(fixed, name, "DUFS", quick):
            result = cells.known("score", s) if not set(s["settings"]) - {"max_iter", "batch_size"} else None
            if result is not None:
                found[name] = result["accuracy"][candidates(s, result, "label_free")[0]]
    return found


def by_count(cells: Cells, fixed: dict[str, Any], quick: bool) -> dict[str, Any]:
    """Mean accuracy of the label-free settings for every number of columns, over the rows that all methods have.

    CAE, which has not all numbers of columns, is left out.
    """
    methods = [m for m in SELECTORS if m not in fixed["counts"]]
    curves: dict[str, list[list[float]]] = {}  # by data set
    for data in SOURCES:
        places = {method: 0 if quick else label_free(fixed, data, method) for method in methods}
        if None not in places.values():
            found = [known(cells, cells_of(fixed, data, m, quick)[place], m) for m, place in places.items()]
            if None not in found:
                curves[data] = [result["accuracy"] for result in found]
    mean = np.mean(list(curves.values()), axis=0).round(2).tolist() if curves else []
    return {"data": list(curves), "mean": dict(zip(methods, mean, strict=False))}


def spreads(cells: Cells, fixed: dict[str, Any], names: Sequence[str]) -> list[dict[str, Any]]:
    """For each setting of a method the best accuracy over the numbers of columns; of these the least and the most.

    Where the paper has a value, for the methods that are not ours: how much of a difference to it is the setting.
    """
    found = []
    for name in names:
        for method in [m for m in SELECTORS if m not in DUFS_METHODS]:
            results = [known(cells, s, method) for s in cells_of(fixed, name, method, False)]
            theirs = published.accuracy(name, method) if SOURCES[name].same else None
            if theirs is not None and None not in results:
                best = [max(result["accuracy"]) for result in results]
                found.append({"data": name, "method": method, "least": min(best), "most": max(best), "paper": theirs})
    return found


def spread_table(found: Sequence[dict[str, Any]]) -> str:
    """least to most / the paper's; in bold where the paper's is more than 2.5 points outside."""
    methods = [m for m in SELECTORS if m not in DUFS_METHODS]
    rows: dict[str, dict[str, str]] = {}
    for f in found:
        text = f"{f['least']:.1f} to {f['most']:.1f} / {f['paper']:.1f}"
        near = f["least"] - NEAR <= f["paper"] <= f["most"] + NEAR
        rows.setdefault(f["data"], {})[f["method"]] = text if near else f"**{text}**"
    return markdown(["data", *methods], [[d, *(row.get(m) for m in methods)] for d, row in rows.items()])


def table(records: Sequence[dict[str, Any]], names: Sequence[str], rank: dict[str, dict[str, Any]]) -> str:
    """For each protocol: ours (columns), the paper's, the difference; then the ranks, if enough rows are complete."""
    parts = []
    for protocol in PROTOCOLS:
        rows = []
        for data in names:
            mine = {r["method"]: r for r in records if r["data"] == data and r["protocol"] == protocol}
            rows.append([data, *(entry_text(mine[m]) for m in METHODS)])
        for kind in ("median", "mean") if rank[protocol]["rows"] >= ROWS_FOR_RANKS else ():
            of_paper = published.MEAN_RANKS if kind == "mean" and protocol == "oracle" else {}
            values = rank[protocol][kind]
            cells = [f"{values[m]:g}" + (f" / {of_paper[m]:g}" if m in of_paper else "") if m in values else None
                     for m in METHODS]  # fmt: skip
            rows.append([f"{kind} rank ({rank[protocol]['rows']} rows)", *cells])
        parts.append(f"{protocol}: ours (columns) / the paper's, difference\n\n" + markdown(["data", *METHODS], rows))
    return "\n\n".join(parts)


def entry_text(entry: dict[str, Any]) -> str:
    """47.3 (200) / 47.9, -0.6"""
    ours, theirs = entry["accuracy"], entry["paper"]
    text = "-" if ours is None else f"{ours:.1f}" + (f" ({entry['n_features']})" if entry["n_features"] else "")
    if theirs is None:
        return text
    return f"{text} / {theirs:.1f}" + (f", {ours - theirs:+.1f}" if ours is not None else "")


def presets(cells: Cells, fixed: dict[str, Any]) -> list[dict[str, Any]]:
    """Records of the paper's own settings, where they are computed."""
    records = []
    for data in fixed["presets"]:
        for s in preset_cells(fixed, data):
            result = cells.known("score", s)
            if result is not None:
                best = int(np.argmax(result["accuracy"]))
                records.append(
                    {"data": data, "lam": s["settings"]["lam"], "accuracy": result["accuracy"][best],
                     "n_features": s["counts"][best], "selected": result["selected"], "n_iter": result["n_iter"],
                     "paper": published.accuracy(data, "DUFS")}
                )  # fmt: skip
    return records


def draw(records: Sequence[dict[str, Any]]) -> Figure:
    """DUFS (both protocols), LS, all features, and what the paper prints for DUFS."""
    made, (axes,) = figure(1, 1, width=8.0, height=4.0)
    names = [d for d in SOURCES if any(r["data"] == d and r["accuracy"] is not None for r in records)]
    x = np.arange(len(names))
    styles = [
        ("DUFS", "oracle", "accuracy", "o", BLUE, "DUFS, oracle"),
        ("DUFS", "label_free", "accuracy", "s", GREEN, "DUFS, label-free"),
        ("DUFS-R", "oracle", "accuracy", "o", RED, "DUFS-R, oracle"),
        ("DUFS", "oracle", "paper", "_", "black", "DUFS in the paper"),
        ("LS", "oracle", "accuracy", "^", ORANGE, "LS, oracle"),
        (ALL, "oracle", "accuracy", "x", GREY, ALL),
    ]
    for method, protocol, what, marker, colour, label in styles:
        found = {r["data"]: r[what] for r in records if r["method"] == method and r["protocol"] == protocol}
        y = [np.nan if found.get(d) is None else found[d] for d in names]
        axes.plot(x, y, marker, color=colour, label=label, markersize=12 if marker == "_" else 6, markeredgewidth=1.8)
    axes.set_xticks(x, names, rotation=30, ha="right")
    axes.set(ylabel="k-means accuracy, %")
    axes.legend(frameon=False, fontsize=8)
    return made


def run(cells: Cells, quick: bool, methods: Sequence[str] = METHODS, data: Sequence[str] = tuple(SOURCES)) -> Report:
    fixed = grid()
    names = [d for d in (QUICK_DATA if quick else SOURCES) if d in data]
    missing = compute(cells, fixed, quick, names, methods)
    names = list(QUICK_DATA if quick else SOURCES)
    records = [record(cells, fixed, d, m, p, quick) for p in PROTOCOLS for d in names for m in METHODS]
    for r in records:
        if r["data"] in missing:
            r["reason"] = missing[r["data"]]
    rank = {p: ranks([r for r in records if r["protocol"] == p]) for p in PROTOCOLS}
    results = {
        "clustered": "columns in the units of the file",
        "notes": {d: SOURCES[d].note for d in names if SOURCES[d].note},
        "records": records,
        "ranks": rank,
        "means": means(records),
        "label_free_by_count": by_count(cells, fixed, quick),
        "dufs_defaults": defaults(cells, fixed, names, quick),
        "dufs_held_out": {} if quick else {m: held_out(cells, fixed, names, m) for m in DUFS_METHODS},
        "spreads": [] if quick else spreads(cells, fixed, names),
        "presets": presets(cells, fixed),
    }
    text = table(records, names, rank)
    counts = results["label_free_by_count"]
    if len(counts["data"]) >= ROWS_FOR_RANKS:
        text += f"\n\nlabel_free, by the number of columns: means over {', '.join(counts['data'])}\n\n"
        text += markdown(["method", *map(str, COUNTS)], [[m, *row] for m, row in counts["mean"].items()])
    if results["spreads"]:
        text += "\n\nThe settings of a method: accuracy at its best number of columns, least to most / the paper's\n\n"
        text += spread_table(results["spreads"])
    if results["presets"]:
        rows = [[r["data"], r["lam"], f"{r['accuracy']:.1f}", r["n_features"], r["selected"], r["n_iter"], r["paper"]]
                for r in results["presets"]]  # fmt: skip
        head = ["data", "lam", "accuracy", "columns", "gates open", "steps", "the paper's"]
        text += "\n\nThe paper's own settings (preset `paper`), at full length\n\n" + markdown(head, rows)
    return Report(results, text, draw(records))
