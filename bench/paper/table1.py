"""The paper's second table: seven selectors and all features on eleven data sets, by k-means; NMI and ARI beside it.

Two protocols. `oracle`, the paper's: the best of 50, 100, ... 300 columns and of the settings of grid.toml, chosen
with the labels. `label_free`: one setting of grid.toml and 300 columns. DUFS-R is DUFS with
``ranking="diverse"``, of the same fits. A second table has what needs no method: random columns (20 draws), raw
variance, the sum of abs(correlation)^4, the leading principal components. A third, how near the paper's numbers are
to each of ours (bench/paper/readings.py). --methods and --data limit what is computed now; the tables show every cell
that is there. --start: how k-means starts; the selections are computed once for all starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from bench.common import available, markdown
from bench.paper import published, readings
from bench.paper.cells import Cells, Report
from bench.paper.data import SOURCES
from bench.paper.drawing import BLUE, GREEN, GREY, ORANGE, RED, figure
from bench.paper.protocol import (
    ALL,
    COUNTS,
    DRAWS,
    DUFS_METHODS,
    RANDOM,
    SELECTORS,
    SIMPLE,
    STARTS,
    cached_load,
    judge,
    rank,
)
from bench.paper.settings import cells_of, extra_cells, grid, is_wide, known, label_free, selection

PROTOCOLS = ("oracle", "label_free")
METHODS = (*SELECTORS, ALL)
PLAIN = (RANDOM, *SIMPLE)  # rankings that need no method
MEASURES = ("accuracy", "nmi", "ari")
EIGHT = 8  # settings of a method in the grid
OF_THE_PAPER = tuple(m for m in SELECTORS if m != "DUFS-R")
LABEL_FREE_COUNT = 300
ROWS_FOR_RANKS = 3  # from so many complete rows on the ranks are printed
QUICK_DATA = ("Yale", "GLIOMA")

OPTIONS: dict[str, dict[str, Any]] = {
    "--methods": {"nargs": "+", "choices": (*METHODS, *PLAIN), "default": [*METHODS, *PLAIN], "metavar": "METHOD"},
    "--data": {"nargs": "+", "choices": list(SOURCES), "default": list(SOURCES), "metavar": "NAME"},
    "--start": {"choices": STARTS, "default": STARTS[0], "metavar": "START", "help": ", ".join(STARTS)},
}


def compute(
    cells: Cells, fixed: dict[str, Any], quick: bool, names: Sequence[str], methods: Sequence[str]
) -> dict[str, str]:
    """Compute what is missing, a data set at a time; why the data sets that are not there are not."""
    there, missing = available(names, cached_load)
    for name in there:
        todo = [s for method in methods for s in cells_of(fixed, name, method, quick)]
        if "DUFS" in methods and not quick:
            todo += extra_cells(fixed, name)
        new = [s for s in todo if cells.known("judge", s) is None]
        selections = cells.compute(rank, [selection(s) for s in new])
        cells.compute(judge, new, [{"orders": r["orders"]} for r in selections])
        cells.compute(judge, todo)
    return missing


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
        "nmi": result.get("nmi", [None] * (best + 1))[best],  # older cells have the accuracy alone
        "ari": result.get("ari", [None] * (best + 1))[best],
        "n_features": settings["counts"][best] if settings["counts"] else None,
        "settings": settings["settings"],
        "cells": len(there),
        "cells_wanted": len(wanted),
        **({"draws": of_draws(result, candidates(settings, result, protocol))} if "draws" in result else {}),
    }


def of_draws(result: dict[str, Any], places: list[int]) -> dict[str, Any]:
    """Of random columns: the best of its numbers of columns for each draw, and the best of all draws.

    Of eight, as many as a method has settings: the mean over all choices of eight draws.
    """
    each = sorted(max(draw[i] for i in places) for draw in result["draws"])
    shares = [comb(i, EIGHT - 1) / comb(len(each), EIGHT) for i in range(len(each))]
    return {"each": each, "best": each[-1], "best_of_eight": round(float(np.dot(shares, each)), 2)}


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


def means(records: Sequence[dict[str, Any]], what: str) -> dict[str, Any]:
    """Mean of a measure for every method over the rows that all have; methods with fewer rows are not in it."""
    table = pd.DataFrame(records).pivot(index="data", columns="method", values=what).astype(float)
    full = table.loc[:, table.notna().sum() == table.notna().sum().max()].dropna()
    return {"data": list(full.index), "mean": full.mean().round(2).to_dict() if len(full) else {}}


def defaults(cells: Cells, fixed: dict[str, Any], names: Sequence[str], quick: bool) -> dict[str, float]:
    """Accuracy of DUFS's defaults (no lam) with 300 columns, where it is computed."""
    found = {}
    for name in names:
        for s in cells_of(fixed, name, "DUFS", quick):
            result = cells.known("judge", s) if not set(s["settings"]) - {"max_iter", "batch_size"} else None
            if result is not None:
                found[name] = result["accuracy"][candidates(s, result, "label_free")[0]]
    return found


def by_count(cells: Cells, fixed: dict[str, Any], quick: bool) -> dict[str, Any]:
    """Mean accuracy of the label-free settings for every number of columns, over the rows that all methods have.

    CAE, which has not all numbers of columns, is left out.
    """
    methods = [m for m in (*SELECTORS, *PLAIN) if m not in fixed["counts"]]
    curves: dict[str, list[list[float]]] = {}  # by data set
    for data in SOURCES:
        places = {method: 0 if quick else label_free(fixed, data, method) for method in methods}
        if None not in places.values():
            found = [known(cells, cells_of(fixed, data, m, quick)[place], m) for m, place in places.items()]
            if None not in found:
                curves[data] = [result["accuracy"] for result in found]
    mean = np.mean(list(curves.values()), axis=0).round(2).tolist() if curves else []
    return {"data": list(curves), "mean": dict(zip(methods, mean, strict=False))}


def table(records: Sequence[dict[str, Any]], names: Sequence[str], ranked: dict[str, dict[str, Any]]) -> str:
    """For each protocol: ours (columns), the paper's, the difference; then the ranks, if enough rows are complete."""
    parts = []
    for protocol in PROTOCOLS:
        rows = []
        for data in names:
            mine = {r["method"]: r for r in records if r["data"] == data and r["protocol"] == protocol}
            rows.append([data, *(entry_text(mine[m]) for m in METHODS)])
        for kind in ("median", "mean") if ranked[protocol]["rows"] >= ROWS_FOR_RANKS else ():
            of_paper = published.MEAN_RANKS if kind == "mean" and protocol == "oracle" else {}
            values = ranked[protocol][kind]
            cells = [f"{values[m]:g}" + (f" / {of_paper[m]:g}" if m in of_paper else "") if m in values else None
                     for m in METHODS]  # fmt: skip
            rows.append([f"{kind} rank ({ranked[protocol]['rows']} rows)", *cells])
        parts.append(f"{protocol}: ours (columns) / the paper's, difference\n\n" + markdown(["data", *METHODS], rows))
    return "\n\n".join(parts)


def simple_table(records: Sequence[dict[str, Any]], names: Sequence[str], protocol: str) -> str:
    """Accuracy of what needs no method beside LS and DUFS, and how many of the random draws each of them is above."""
    methods = ("LS", *DUFS_METHODS)
    rows, numbers = [], []
    for data in names:
        mine = {r["method"]: r for r in records if r["data"] == data and r["protocol"] == protocol}
        if mine[RANDOM]["accuracy"] is None:
            continue
        draws = mine[RANDOM]["draws"]
        values = [mine[ALL]["accuracy"], mine[RANDOM]["accuracy"], draws["best_of_eight"], draws["best"],
                  *(mine[m]["accuracy"] for m in (*SIMPLE, *methods))]  # fmt: skip
        numbers.append([np.nan if v is None else v for v in values])
        above = [None if mine[m]["accuracy"] is None else sum(mine[m]["accuracy"] > v for v in draws["each"])
                 for m in methods]  # fmt: skip
        rows.append([data, *(None if v is None else f"{v:.1f}" for v in values), *above])
    complete = [row for row in numbers if not np.isnan(row).any()]
    means_ = np.mean(complete, axis=0) if complete else []
    rows.append([f"mean ({len(complete)} rows)", *(f"{v:.1f}" for v in means_), *[None] * len(methods)])
    head = ["data", ALL, f"random: mean of {DRAWS}", "best of 8", f"best of {DRAWS}", *SIMPLE, *methods]
    return markdown([*head, *(f"draws below {m}" for m in methods)], rows)


def later_table(records: Sequence[dict[str, Any]]) -> str:
    """DUFS beside what later papers print, on the data sets that are the same."""
    found = {(r["data"], r["method"], r["protocol"]): r["accuracy"] for r in records}
    columns = [(m, p) for p in PROTOCOLS for m in DUFS_METHODS] + [(RANDOM, "label_free")]
    rows = []
    for data in (d for d in SOURCES if SOURCES[d].same and any(d in theirs for theirs in published.LATER.values())):
        ours = [found.get((data, *column)) for column in columns]
        theirs = [published.accuracy(data, "DUFS"), *(later.get(data) for later in published.LATER.values())]
        rows.append([data, *(None if v is None else f"{v:.1f}" for v in (*ours, *theirs))])
    return markdown(["data", *(f"{m}, {p}" for m, p in columns), "the paper's DUFS", *published.LATER], rows)


def agreement_table(records: Sequence[dict[str, Any]], names: Sequence[str], protocol: str) -> str:
    """NMI / ARI of the entries."""
    methods = (*METHODS, *PLAIN)
    rows = []
    for data in names:
        mine = {r["method"]: r for r in records if r["data"] == data and r["protocol"] == protocol}
        both = [(mine[m].get("nmi"), mine[m].get("ari")) for m in methods]
        if any(nmi is not None for nmi, _ in both):
            rows.append([data, *(None if nmi is None else f"{nmi:.1f} / {ari:.1f}" for nmi, ari in both)])
    of_protocol = [r for r in records if r["protocol"] == protocol]
    nmi, ari = (means(of_protocol, what)["mean"] for what in ("nmi", "ari"))
    rows.append(["mean", *(f"{nmi[m]:.1f} / {ari[m]:.1f}" if m in nmi else None for m in methods)])
    return markdown(["data", *methods], rows)


def entry_text(entry: dict[str, Any]) -> str:
    """47.3 (200) / 47.9, -0.6"""
    ours, theirs = entry["accuracy"], entry["paper"]
    text = "-" if ours is None else f"{ours:.1f}" + (f" ({entry['n_features']})" if entry["n_features"] else "")
    if theirs is None:
        return text
    return f"{text} / {theirs:.1f}" + (f", {ours - theirs:+.1f}" if ours is not None else "")


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
        (RANDOM, "label_free", "accuracy", "+", GREY, "300 random columns"),
    ]
    for method, protocol, what, marker, colour, label in styles:
        found = {r["data"]: r[what] for r in records if r["method"] == method and r["protocol"] == protocol}
        y = [np.nan if found.get(d) is None else found[d] for d in names]
        axes.plot(x, y, marker, color=colour, label=label, markersize=12 if marker == "_" else 6, markeredgewidth=1.8)
    axes.set_xticks(x, names, rotation=30, ha="right")
    axes.set(ylabel="k-means accuracy, %")
    axes.legend(frameon=False, fontsize=8)
    return made


def run(
    cells: Cells, quick: bool, methods: Sequence[str] = (*METHODS, *PLAIN), data: Sequence[str] = tuple(SOURCES),
    start: str = STARTS[0],
) -> Report:  # fmt: skip
    fixed = grid(start)
    names = [d for d in (QUICK_DATA if quick else SOURCES) if d in data]
    missing = compute(cells, fixed, quick, names, methods)
    names = list(QUICK_DATA if quick else SOURCES)
    records = [record(cells, fixed, d, m, p, quick) for p in PROTOCOLS for d in names for m in (*METHODS, *PLAIN)]
    for r in records:
        if r["data"] in missing:
            r["reason"] = missing[r["data"]]
    by_protocol = {p: [r for r in records if r["protocol"] == p] for p in PROTOCOLS}
    ranked = {p: ranks(found) for p, found in by_protocol.items()}
    of_readings = [] if quick else [f(cells, fixed, names) for f in readings.KINDS]
    results = {
        "clustered": f"columns in the units of the file, k-means started by {start}",
        "notes": {d: SOURCES[d].note for d in names if SOURCES[d].note},
        "records": records,
        "ranks": ranked,
        "means": {p: {what: means(found, what) for what in MEASURES} for p, found in by_protocol.items()},
        "label_free_by_count": by_count(cells, fixed, quick),
        "dufs_defaults": defaults(cells, fixed, names, quick),
        "dufs_held_out": {} if quick else {m: held_out(cells, fixed, names, m) for m in DUFS_METHODS},
        **{f.__name__: found for f, found in zip(readings.KINDS, of_readings, strict=bool(of_readings))},
    }
    parts = [table(records, names, ranked)]
    for p in PROTOCOLS:
        parts += [f"{p}: what needs no method, accuracy", simple_table(records, names, p)]
    counts = results["label_free_by_count"]
    if len(counts["data"]) >= ROWS_FOR_RANKS:
        parts.append(f"label_free, by the number of columns: means over {', '.join(counts['data'])}")
        parts.append(markdown(["method", *map(str, COUNTS)], [[m, *row] for m, row in counts["mean"].items()]))
    for p in PROTOCOLS:
        parts += [f"{p}: NMI / ARI of the same choices", agreement_table(records, names, p)]
    parts += ["beside later papers, accuracy", later_table(records)]
    parts += readings.tables(*of_readings) if of_readings else []
    return Report(results, "\n\n".join(parts), draw(records))
