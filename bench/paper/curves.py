"""Accuracy, NMI and ARI against the number of columns, of DUFS (both orders) and LS, on COIL20, ISOLET and PROSTATE.

Mean and standard deviation of 20 runs of k-means, for the label-free setting and for the setting of grid.toml that is
best with the labels; beside them random columns (mean of 20 draws) and raw variance. The cells are table1's, and in
its file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.common import markdown
from bench.paper import settings, table1
from bench.paper.cells import Cells, Report
from bench.paper.data import SOURCES
from bench.paper.drawing import BLUE, GREEN, GREY, ORANGE, RED, figure, legend_below
from bench.paper.protocol import ALL, RANDOM, STARTS

DATA = ("COIL20", "ISOLET", "PROSTATE")
QUICK_DATA = table1.QUICK_DATA[:1]
COLOURS = {"DUFS": BLUE, "DUFS-R": RED, "LS": ORANGE, RANDOM: GREY, "variance": GREEN}

OPTIONS = {
    "--data": table1.OPTIONS["--data"] | {"choices": DATA, "default": list(DATA)},
    "--start": table1.OPTIONS["--start"],
}


def curves(cells: Cells, fixed: dict[str, Any], data: str, method: str, quick: bool) -> list[dict[str, Any]]:
    """The label-free setting's curve, and the best setting's; none while no cell is there."""
    wanted = settings.cells_of(fixed, data, method, quick)
    known = [(s, r) for s in wanted if (r := settings.known(cells, s, method)) is not None]
    if not known:
        return []
    place = 0 if quick else settings.label_free(fixed, data, method)
    chosen = [] if place is None else [item for item in known if item[0] is wanted[place]]
    best = max(known, key=lambda item: max(item[1]["accuracy"]))
    choices = [*(("label-free", item) for item in chosen), ("best with labels", best)]
    if len(wanted) == 1:
        choices = [("", best)]
    return [
        {"data": data, "method": method, "choice": choice, "settings": s["settings"], "n_features": s["counts"],
         **{key: r.get(key) for key in ("accuracy", "deviation", "nmi", "ari")}}
        for choice, (s, r) in choices
    ]  # fmt: skip


def run(cells: Cells, quick: bool, data: Sequence[str] = DATA, start: str = STARTS[0]) -> Report:
    fixed = settings.grid(start)
    of_table = Cells(cells.path.with_name("table1.cells.jsonl"), cells.workers)
    names = [d for d in (QUICK_DATA if quick else DATA) if quick or d in data]
    table1.compute(of_table, fixed, quick, names, (*COLOURS, ALL))
    cells.asked, cells.seconds = of_table.asked, of_table.seconds
    records: list[dict[str, Any]] = []
    made, panels = figure(1, len(names))
    for axes, name in zip(panels, names, strict=True):
        for method, colour in COLOURS.items():
            for curve in curves(of_table, fixed, name, method, quick):
                line = "--" if curve["choice"] == "label-free" else "-"
                x, mean, deviation = (np.array(curve[key]) for key in ("n_features", "accuracy", "deviation"))
                axes.plot(x, mean, line, color=colour, marker="o", markersize=3, label=f"{method}, {curve['choice']}")
                if line == "-":
                    axes.fill_between(x, mean - deviation, mean + deviation, color=colour, alpha=0.15)
                records.append(curve)
        everything = of_table.known("judge", settings.cells_of(fixed, name, ALL, quick)[0])
        if everything is not None:
            axes.axhline(everything["accuracy"][0], color=GREY, linestyle=":", label=ALL)
        axes.set(title=name, xlabel="selected columns", ylabel="k-means accuracy, %")
    legend_below(made, panels[0], 4)
    parts = []
    for what in ("accuracy", "nmi", "ari"):
        header = ["data", "method", "settings", *(map(str, records[0]["n_features"] if records else ()))]
        rows = [[r["data"], r["method"], r["choice"], *(f"{v:.1f}" for v in r[what])] for r in records if r[what]]
        parts += [what if what == "accuracy" else what.upper(), markdown(header, rows)]
    return Report({"records": records, "paper": {d: SOURCES[d].same for d in names}}, "\n\n".join(parts), made)
