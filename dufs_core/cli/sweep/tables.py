"""Rows of fits as tables: results.parquet or results.csv, and summary.csv."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from dufs_core.backend import Array
from dufs_core.cli.sweep.fit_id import Fit
from dufs_core.cli.sweep.job_file import Job
from dufs_core.selection import atomic_io as durable

_FACTS = (
    "status", "error", "n_samples", "n_features", "n_selected", "n_iter", "n_runs", "converged", "loss", "bandwidth",
    "n_found", "smallest_fdr", "price", "excess_score", "p_value", "backend", "engine", "together", "seconds",
    "warnings",
)  # fmt: skip
JUDGED = {"smallest_fdr": "smallest q-value", "excess_score": "permutation gap"}  # with decoys, and without


def rows(job: Job, row_of: Callable[[Fit], dict[str, Any] | None]) -> list[dict[str, Any]]:
    """One row for each fit that is over: identity, data set, seed, the parameters that the job sets, what came out."""
    table = []
    for fit in job.fits:
        row = row_of(fit)
        if row is not None:
            settings = {column_name(name): fit.settings[name] for name in job.mentioned}
            facts = {name: row.get(name) for name in _FACTS}
            table.append({"id": fit.id, "data": fit.data.name, "seed": fit.seed, **settings, **facts})
    return table


def column_name(parameter: str) -> str:
    """The name of a parameter's column: that of a result (bandwidth) is taken."""
    return f"{parameter}_setting" if parameter in _FACTS else parameter


def write(directory: Path, name: str, table: Sequence[Mapping[str, Any]]) -> Path:
    """Write results as Parquet where pyarrow is installed, else as CSV; the other form, of an earlier job, goes."""
    if find_spec("pyarrow") is not None:
        import pyarrow
        import pyarrow.parquet

        columns = {key: _of_one_type([row[key] for row in table]) for key in table[0]}
        buffer = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.table(columns), buffer)
        path, other = directory / f"{name}.parquet", directory / f"{name}.csv"
        durable.write_bytes(path, buffer.getvalue())
    else:
        path, other = write_csv(directory / f"{name}.csv", table), directory / f"{name}.parquet"
    other.unlink(missing_ok=True)
    return path


def write_csv(path: Path, table: Sequence[Mapping[str, Any]]) -> Path:
    """Write rows as CSV; None is an empty cell, numbers read back to the same bits."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(table[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    durable.write_bytes(path, buffer.getvalue().encode())
    return path


def _of_one_type(values: list[Any]) -> list[Any]:
    """Texts and numbers of one column (bandwidth) as texts."""
    kinds = {type(value) for value in values if value is not None}
    return [None if v is None else str(v) for v in values] if str in kinds and len(kinds) > 1 else values


def summary(job: Job, table: Sequence[Mapping[str, Any]], supports: Callable[[str], Array]) -> list[dict[str, Any]]:
    """One row for each data set and point of the grid: means over the seeds.

    stability: the mean Jaccard index of the selections of two seeds, |A and B| / |A or B|, where one is not empty. Of
    smallest_fdr (fits with decoys) and excess_score (fdr=None) those that the job's fits have.
    """
    measures = ["n_selected", *(name for name in JUDGED if any(row.get(name) is not None for row in table)), "n_iter"]
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    columns = ["data", *map(column_name, job.varied)]
    for row in table:
        groups.setdefault(tuple(row[name] for name in columns), []).append(row)
    found = []
    for key, members in groups.items():
        done = [row for row in members if row["status"] == "done"]
        masks = [supports(row["id"]) for row in done]
        shared = [float((a & b).sum() / (a | b).sum()) for a, b in combinations(masks, 2) if (a | b).any()]
        found.append(
            dict(zip(columns, key, strict=True))
            | {"fits": len(members), "failed": len(members) - len(done)}
            | {name: _mean([row[name] for row in done if row.get(name) is not None]) for name in measures}
            | {"stability": _mean(shared), "seconds": _mean([row["seconds"] for row in done])}
        )
    return found


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if len(values) else None


def text(table: Sequence[Mapping[str, Any]]) -> str:
    """Rows for reading."""
    cells = [list(table[0]), *([cell_text(value) for value in row.values()] for row in table)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in cells)


def cell_text(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
