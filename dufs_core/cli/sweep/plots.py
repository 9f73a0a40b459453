"""Pictures of a sweep: for each data set, features selected and smallest q-value or permutation gap over the grid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dufs_core.cli.sweep.job_file import Job
from dufs_core.cli.sweep.tables import JUDGED, cell_text, column_name


def draw(folder: Path, job: Job, table: Sequence[Mapping[str, Any]]) -> Iterator[Path]:
    """Save DATA.png in `folder` for each data set with fits that are done; yields each. Needs matplotlib."""
    folder.mkdir(exist_ok=True)
    for data, _ in job.grouped():
        done = [row for row in table if row["data"] == data.name and row["status"] == "done"]
        if done:
            path = folder / f"{data.name}.png"
            made = picture(data.name, done, [column_name(name) for name in job.varied])
            try:
                made.savefig(path)
            except OSError:  # half a picture is none
                path.unlink(missing_ok=True)
                raise
            yield path


def picture(name: str, rows: Sequence[Mapping[str, Any]], varied: Sequence[str]) -> Any:
    """The figure of one data set: a point for each of its fits that are done, and a line through their means."""
    from dufs_core.inspection.plotting.canvas import BLUE, ORANGE, figure
    from dufs_core.inspection.plotting.paths import over_settings

    points: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        points.setdefault(tuple(row[parameter] for parameter in varied), []).append(row)
    labels = [", ".join(map(cell_text, point)) for point in points]
    if len(set(labels)) < len(labels):  # points that few digits do not tell apart
        labels = [", ".join("none" if value is None else str(value) for value in point) for point in points]
    known = {name: label for name, label in JUDGED.items() if any(row.get(name) is not None for row in rows)}
    shown = {"n_selected": "features selected"} | known
    made, axes = figure(1, len(shown))
    for ax, (key, label) in zip(np.atleast_1d(axes), shown.items(), strict=True):
        values = [[row[key] for row in members if row.get(key) is not None] for members in points.values()]
        having = [i for i, column in enumerate(values) if column]  # only some points may have decoys
        colour = BLUE if key == "n_selected" else ORANGE
        over_settings([labels[i] for i in having], [values[i] for i in having], ax, colour)
        ax.set_xlabel(", ".join(varied) or "no parameter is varied")
        ax.set_ylabel(label)
        ax.set_title(f"{name}: each seed, and their mean")
    return made
