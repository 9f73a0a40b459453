"""Pictures of a sweep: one for each data set, selected features and permutation gap over the grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dufs_core.jobs.job import Job
from dufs_core.jobs.table import _cell, _column


def draw(folder: Path, job: Job, table: Sequence[Mapping[str, Any]]) -> list[Path]:
    """Save DATA.png in `folder` for each data set with fits that are done. Needs matplotlib."""
    folder.mkdir(exist_ok=True)
    written = []
    for data, _ in job.grouped():
        done = [row for row in table if row["data"] == data.name and row["status"] == "done"]
        if done:
            written.append(folder / f"{data.name}.png")
            _one(written[-1], data.name, done, [_column(name) for name in job.varied])
    return written


def _one(path: Path, name: str, rows: Sequence[Mapping[str, Any]], varied: Sequence[str]) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    blue, orange = "#1f5fa8", "#c8590a"
    points: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        points.setdefault(tuple(_cell(row[parameter]) for parameter in varied), []).append(row)
    figure = Figure(figsize=(10, 4), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    panels = zip(
        figure.subplots(1, 2), ("n_selected", "permutation_gap"), ("features selected", "permutation gap"),
        (blue, orange), strict=True,
    )  # fmt: skip
    for axes, key, label, colour in panels:
        values = [[row[key] for row in members] for members in points.values()]
        for x, column in enumerate(values):
            axes.scatter([x] * len(column), column, s=16, color=colour, alpha=0.6, zorder=3)
        axes.plot([sum(column) / len(column) for column in values], color=colour, linewidth=1)
        shown = range(0, len(points), -(-len(points) // 12))
        axes.set_xticks(list(shown), [", ".join(list(points)[i]) for i in shown], rotation=30, ha="right")
        axes.set_xlabel(", ".join(varied) or "no parameter is varied")
        axes.set_ylabel(label)
        axes.set_title(f"{name}: each seed, and their mean")
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)
