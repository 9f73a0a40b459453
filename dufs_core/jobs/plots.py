"""Pictures of a sweep: one for each data set, selected features and permutation gap over the grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dufs_core.jobs.job import Job
from dufs_core.jobs.table import cell_text, column_name


def draw(folder: Path, job: Job, table: Sequence[Mapping[str, Any]]) -> list[Path]:
    """Save DATA.png in `folder` for each data set with fits that are done. Needs matplotlib."""
    folder.mkdir(exist_ok=True)
    written = []
    for data, _ in job.grouped():
        done = [row for row in table if row["data"] == data.name and row["status"] == "done"]
        if done:
            written.append(folder / f"{data.name}.png")
            _one(written[-1], data.name, done, [column_name(name) for name in job.varied])
    return written


def _one(path: Path, name: str, rows: Sequence[Mapping[str, Any]], varied: Sequence[str]) -> None:
    from dufs_core.plotting import over_settings
    from dufs_core.plotting.canvas import BLUE, ORANGE, figure

    points: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        points.setdefault(tuple(cell_text(row[parameter]) for parameter in varied), []).append(row)
    made, axes = figure(1, 2)
    for ax, key, label, colour in zip(
        axes, ("n_selected", "permutation_gap"), ("features selected", "permutation gap"), (BLUE, ORANGE), strict=True
    ):
        values = [[row[key] for row in members] for members in points.values()]
        over_settings([", ".join(point) for point in points], values, ax, colour)
        ax.set_xlabel(", ".join(varied) or "no parameter is varied")
        ax.set_ylabel(label)
        ax.set_title(f"{name}: each seed, and their mean")
    made.savefig(path)
