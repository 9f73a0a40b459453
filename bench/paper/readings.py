"""How near the numbers that the paper prints are to readings of it: settings, orders of the columns, starts of k-means.

A reading of a number is one setting of its method (grid.toml) and one start of k-means, at its best number of columns;
of DUFS also either order, and the settings beyond the grid. It reproduces the number if they differ by no more than two
standard errors of the difference of two means of 20 runs, or a point.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from bench.common import markdown
from bench.paper import published
from bench.paper.cells import Cells
from bench.paper.data import SOURCES
from bench.paper.protocol import ALL, DUFS_METHODS, RUNS, SELECTORS, STARTS
from bench.paper.settings import cells_of, extra_cells, known, selection

FEWEST_ROWS = 3  # of one reading, to be compared with others over all rows
SHORT = {
    "n_neighbors": "k", "bandwidth_factor": "C", "bandwidth": "bandwidth", "self_loops": "self-loops",
    "lam_share": "lam share", "batch_size": "batch", "learning_rate": "rate", "n_clusters": "clusters",
}  # fmt: skip


class Reading(NamedTuple):
    """One reading of one number."""

    setting: str
    start: str
    accuracy: float
    deviation: float
    n_features: int | None
    paper: float

    @property
    def off(self) -> float:
        return self.accuracy - self.paper

    @property
    def near(self) -> bool:
        return abs(self.off) <= max(1.0, 2 * np.sqrt(2 / RUNS) * self.deviation)


def readings(cells: Cells, fixed: dict[str, Any], data: str, method: str) -> Iterator[Reading]:
    """All that are computed."""
    theirs = published.accuracy(data, method)
    if theirs is None or not SOURCES[data].same:
        return
    for start in STARTS:
        at = fixed | {"start": start}
        wanted = cells_of(at, data, method, False) + (extra_cells(at, data) if method == "DUFS" else [])
        for order in DUFS_METHODS if method == "DUFS" else [method]:
            for s in wanted:
                if (result := known(cells, s, order)) is not None:
                    best = int(np.argmax(result["accuracy"]))
                    counts = s["counts"] or [None]
                    deviation = result["deviation"][best]
                    setting = text(s["settings"]) + (", diverse order" if order == "DUFS-R" else "")
                    yield Reading(setting, start, result["accuracy"][best], deviation, counts[best], theirs)


def text(settings: dict[str, Any], hidden: Sequence[str] = ("batch_size",)) -> str:
    """k = 2, C = 5"""
    shown = {key: value for key, value in settings.items() if key not in (*hidden, "tol", "max_iter")}
    return ", ".join(f"{SHORT.get(key, key)} = {value}" for key, value in shown.items()) or "defaults"


def nearest(cells: Cells, fixed: dict[str, Any], names: Sequence[str]) -> list[dict[str, Any]]:
    """For each number of the paper the nearest reading, and how many of the readings reproduce it.

    If some do, the nearest of those by the protocol's own start of k-means, where there is one.
    """
    found = []
    for data in names:
        for method in [m for m in (*SELECTORS, ALL) if m != "DUFS-R"]:
            those = list(readings(cells, fixed, data, method))
            if those:
                best = min(those, key=lambda r: (not r.near, r.near and r.start != STARTS[0], abs(r.off)))
                found.append(
                    {"data": data, "method": method, **best._asdict(), "reproduced": best.near,
                     "near": sum(r.near for r in those), "readings": len(those)}
                )  # fmt: skip
    return found


def same_everywhere(cells: Cells, fixed: dict[str, Any], names: Sequence[str]) -> list[dict[str, Any]]:
    """For each method the one reading, the same on all rows, that is nearest to the paper on average."""
    found = []
    for method in [m for m in (*SELECTORS, ALL) if m != "DUFS-R"]:
        rows: dict[tuple[str, str], list[Reading]] = defaultdict(list)
        for data in names:
            for r in readings(cells, fixed, data, method):
                rows[r.setting, r.start].append(r)
        most = max(map(len, rows.values()), default=0)
        if most >= FEWEST_ROWS:
            distance = {key: float(np.mean([abs(r.off) for r in v])) for key, v in rows.items() if len(v) == most}
            setting, start = best = min(distance, key=distance.__getitem__)
            found.append(
                {"method": method, "setting": setting, "start": start, "rows": most, "distance": distance[best],
                 "reproduced": sum(r.near for r in rows[best])}
            )  # fmt: skip
    return found


def extras(cells: Cells, fixed: dict[str, Any], names: Sequence[str]) -> list[dict[str, Any]]:
    """The settings of DUFS beyond the grid, in the order of mu and in the other, by the first start that is there."""
    found = []
    for data in names:
        for i, s in enumerate(extra_cells(fixed, data)):
            ways = [extra_cells(fixed | {"start": start}, data)[i] for start in STARTS]
            way = next((w for w in ways if known(cells, w, "DUFS") is not None), None)
            entry = {"data": data, "setting": text(s["settings"], ()), "start": way and way["start"]}
            both = {order: known(cells, way, order) for order in DUFS_METHODS} if way else {}
            for order, result in both.items():
                if result is None:
                    continue
                best = int(np.argmax(result["accuracy"]))
                entry[order] = result["accuracy"][best]
                entry[f"{order} columns"] = s["counts"][best]
            about = (cells.known("rank", selection(way)) or known(cells, way, "DUFS")) if way else {}
            entry |= {key: about.get(key) for key in ("selected", "n_iter")}
            found.append(entry | {"paper": published.accuracy(data, "DUFS") if SOURCES[data].same else None})
    return found


KINDS = (nearest, same_everywhere, extras)


def tables(near: Sequence[dict[str, Any]], same: Sequence[dict[str, Any]], more: Sequence[dict[str, Any]]) -> list[str]:
    """The three as Markdown, each under its title."""
    parts = []
    if near:
        rows = [
            [n["data"], n["method"], n["paper"], ("reproduced by " if n["reproduced"] else "not reproduced, nearest ")
             + f"{n['setting']}; {n['start']}" + (f"; {n['n_features']} columns" if n["n_features"] else ""),
             f"{n['accuracy']:.1f}", f"{n['accuracy'] - n['paper']:+.1f}", f"{n['near']} of {n['readings']}"]
            for n in near
        ]  # fmt: skip
        head = ["data", "method", "the paper's", "the nearest reading", "it has", "difference", "readings as near"]
        parts.append("The paper's numbers, one by one\n\n" + markdown(head, rows))
    if same:
        rows = [[s["method"], s["setting"], s["start"], f"{s['distance']:.1f}", f"{s['reproduced']} of {s['rows']}"]
                for s in same]  # fmt: skip
        head = ["method", "setting", "k-means", "mean distance", "reproduced"]
        parts.append("One reading for all rows, the nearest to the paper's column\n\n" + markdown(head, rows))
    if more:
        rows = [
            [m["data"], m["setting"], m["start"] or "not run",
             *(f"{m[o]:.1f} ({m[f'{o} columns']})" if o in m else None for o in DUFS_METHODS),
             m["selected"], m["n_iter"], m["paper"]]
            for m in more
        ]  # fmt: skip
        head = ["data", "settings", "k-means", *DUFS_METHODS, "gates open", "steps", "the paper's"]
        parts.append("Settings of DUFS beyond the grid: the best number of columns\n\n" + markdown(head, rows))
    return parts
