"""The directory of a sweep: what is done stays done.

    sweep.json           what was asked for
    fits/ID.npz          one file per fit that is over: the row of the table, mu, ranking, support, q-values, history
    checkpoints/ID.ckpt  checkpoints of fits in progress
    log.jsonl            what happened, one JSON object a line
    results.csv          the table, one row per fit; summary.csv: means over the seeds
    lock                 locked by the job that works here
    stop.JOB             tells the workers of one job to save and end

A fit is over when its file is there: it is written beside its place, flushed and renamed, so a row is complete or does
not exist, and the identity is its name, so none can exist twice. Tables are made from these files, again at each end.
"""

from __future__ import annotations

import csv
import io
import json
import os
import warnings
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dufs_core.backend import Array
from dufs_core.cli.sweep.job_file import Fit, Job, JobError
from dufs_core.errors import DamagedFileError
from dufs_core.selection import atomic_io
from dufs_core.selection.atomic_io import json_value
from dufs_core.selection.checkpoint import Checkpoint, differences

FORMAT = 1
_COLUMNS = (
    "status", "error", "n_samples", "n_features", "n_selected", "n_iter", "n_runs", "converged", "loss", "bandwidth",
    "n_found", "smallest_fdr", "price", "excess_score", "p_value", "backend", "engine", "together", "seconds",
    "warnings",
)  # fmt: skip


class Result(NamedTuple):
    """What is kept of a fit."""

    row: dict[str, Any]
    arrays: dict[str, Array]


def failure(fit: Fit, error: BaseException) -> Result:
    """The result of a fit that ended with an error."""
    return Result(id_columns(fit) | {"status": "failed", "error": error_line(error)}, {})


def id_columns(fit: Fit) -> dict[str, Any]:
    """How the row of a fit begins."""
    return {"id": fit.id, "data": fit.data.name, "seed": fit.seed}


def error_line(error: BaseException) -> str:
    """An error in a table."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def join_warnings(caught: Sequence[warnings.WarningMessage], first: str = "") -> str:
    """Warnings for users in a table, each once."""
    sentences = (" ".join(str(w.message).split()) for w in caught if issubclass(w.category, UserWarning))
    return " | ".join(dict.fromkeys([*([first] if first else []), *sentences]))


def result_of(fit: Fit, selector: Any) -> Result:
    """Measures and arrays of a fitted selector; a failure if its gate parameters are not finite."""
    if not np.isfinite(selector.mu_).all():
        return failure(fit, FloatingPointError("the fit ended with gate parameters that are not finite"))
    names = ("n_iter", "n_runs", "converged", "loss", "bandwidth", "backend", "engine")
    row = id_columns(fit) | {"status": "done", "error": None, "n_selected": int(selector.support_.sum())}
    row |= {name: getattr(selector, f"{name}_") for name in names}
    arrays = {"mu": selector.mu_, "ranking": selector.order_, "support": selector.support_}
    arrays |= {f"history/{name}": column for name, column in selector.history_.items()}
    if selector.fdr is None:
        return Result(row | {"excess_score": selector.excess_score_, "p_value": selector.p_value_}, arrays)
    n_found = int((selector.q_values_ <= selector.fdr).sum())
    row |= {"n_found": n_found, "smallest_fdr": selector.smallest_fdr_, "price": selector.lam_}
    return Result(row, arrays | {"q_values": selector.q_values_, "evidence": selector.evidence_})


class Store:
    """The files of a sweep in `directory`. Only the holder of its lock may write."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory).absolute()
        self.plan = self.directory / "sweep.json"
        self.lock = self.directory / "lock"
        self.stop = self.directory / f"stop.{os.urandom(8).hex()}"  # workers of an earlier job may look for theirs yet
        self._fits = self.directory / "fits"
        self.checkpoints = self.directory / "checkpoints"
        self._log = self.directory / "log.jsonl"

    def check(self, resume: bool) -> None:
        """Make sure, before anything is made, that the directory is new, or a sweep's that is to be resumed."""
        if not self.directory.exists():
            return
        if not self.directory.is_dir():
            raise JobError(f"{self.directory} is not a directory")
        if self.plan.exists():
            if resume:
                return
            raise JobError(f"{self.directory} holds a sweep: --resume goes on with it; a new one needs a new directory")
        mine = {path.name for path in (self._fits, self.checkpoints, self.lock, self._log)}
        for path in self.directory.iterdir():  # a job that was killed at once leaves no more than these
            if path.name not in mine and not path.name.startswith((f".{self.plan.name}.", "stop.")):
                raise JobError(f"{self.directory} is not empty and holds no sweep; take another directory")

    def open(self, job: Job) -> None:
        """Make what is missing; refuse another job than the one that the directory belongs to. The lock is held."""
        for folder in (self._fits, self.checkpoints):
            folder.mkdir(exist_ok=True)
            for left in folder.glob(".*.tmp"):
                left.unlink(missing_ok=True)
        atomic_io.remove_temporaries(self.plan)
        now = json_value(job.described)
        if self.plan.exists():
            self._compare(now)
            return
        document = {"format": FORMAT, "job": now}
        atomic_io.write_bytes(self.plan, (json.dumps(document, indent=1) + "\n").encode())

    def _compare(self, now: dict[str, Any]) -> None:
        """Raise JobError unless the job is that of sweep.json."""
        try:
            then = json.loads(self.plan.read_text("utf-8"))
            if then["format"] != FORMAT:
                raise JobError(f"{self.plan} has format {then['format']}; this version reads format {FORMAT}")
            changed = differences(then["job"], now)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, JobError):
                raise
            raise JobError(
                f"{self.plan} is damaged, or that of something else ({error_line(error)}). If the directory is that "
                f"of this job, delete the file: fits that are done are kept; otherwise take another directory"
            ) from error
        if changed:
            raise JobError(
                f"{self.directory} belongs to another job: {'; '.join(changed)}. Undo the change, or take another "
                f"directory"
            )

    def checkpoint(self, fit: Fit) -> Path:
        """Where the checkpoint of a fit in progress is."""
        return self.checkpoints / f"{fit.id}.ckpt"

    def save(self, fit: Fit, result: Result) -> None:
        """Keep a result. The checkpoint goes if the fit is done; one that failed is tried again."""
        packed = atomic_io.pack_npz({"row": np.array(json.dumps(json_value(result.row))), **result.arrays})
        atomic_io.write_bytes(self._fits / f"{fit.id}.npz", packed)
        if result.row["status"] == "done":
            self.clear_checkpoint(fit)

    def clear_checkpoint(self, fit: Fit) -> None:
        Checkpoint(self.checkpoint(fit)).remove()

    def result(self, fit: Fit) -> Result | None:
        """What is kept of a fit that is over. A damaged file is as good as none, and is removed."""
        path = self._fits / f"{fit.id}.npz"
        try:
            arrays = atomic_io.unpack_npz(path.read_bytes(), path)
        except FileNotFoundError:
            return None
        except DamagedFileError as error:
            self.log("damaged", fit=fit.id, error=str(error))
            path.unlink()
            return None
        return Result(json.loads(str(arrays.pop("row"))), arrays)

    def log(self, event: str, **fields: Any) -> None:
        """Append one line; a line that a crash has cut off is ended first."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps(json_value({"time": now, "event": event, **fields})) + "\n"
        with self._log.open("a+b", buffering=0) as file:
            if file.tell() and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
                line = "\n" + line
            file.write(line.encode())

    def write_tables(self, job: Job) -> list[dict[str, Any]]:
        """Write results.csv, one row for each fit that is over, and summary.csv; returns the rows of the latter."""
        rows: list[dict[str, Any]] = []
        points: dict[tuple[Any, ...], list[Result]] = {}
        for fit in job.fits:
            result = self.result(fit)
            if result is not None:
                settings = {_column(name): fit.settings[name] for name in job.mentioned}
                rows.append(id_columns(fit) | settings | {name: result.row.get(name) for name in _COLUMNS})
                support = {name: array for name, array in result.arrays.items() if name == "support"}
                point = fit.data.name, *(fit.settings[name] for name in job.varied)
                points.setdefault(point, []).append(Result(result.row, support))
        judged = [name for name in ("smallest_fdr", "excess_score") if any(row[name] is not None for row in rows)]
        names = ["data", *map(_column, job.varied)]
        table = [dict(zip(names, point, strict=True)) | summary(some, judged) for point, some in points.items()]
        for name, content in (("results.csv", rows), ("summary.csv", table)):
            if content:
                atomic_io.write_bytes(self.directory / name, csv_text(content).encode())
        return table


def _column(parameter: str) -> str:
    """The name of a parameter's column: that of a result (bandwidth) is taken."""
    return f"{parameter}_setting" if parameter in _COLUMNS else parameter


def csv_text(table: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV; None is an empty cell, numbers read back to the same bits."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(table[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return buffer.getvalue()


def summary(results: Sequence[Result], judged: Sequence[str]) -> dict[str, Any]:
    """Means over the seeds of one data set and point of the grid.

    stability: the mean Jaccard index of the selections of two seeds, |A and B| / |A or B|, where one is not empty.
    judged: which of smallest_fdr (fits with decoys) and excess_score (fdr=None) the fits of the job have.
    """
    done = [result for result in results if result.row["status"] == "done"]
    pairs = combinations([result.arrays["support"] for result in done], 2)
    names = ("n_selected", *judged, "n_iter", "seconds")
    columns = {name: [result.row.get(name) for result in done] for name in names}
    columns["stability"] = [float((a & b).sum() / (a | b).sum()) for a, b in pairs if (a | b).any()]
    known = {name: [value for value in values if value is not None] for name, values in columns.items()}
    means = {name: float(np.mean(values)) if values else None for name, values in known.items()}
    return {"fits": len(results), "failed": len(results) - len(done)} | means


def text_table(table: Sequence[Mapping[str, Any]]) -> str:
    """Rows for reading."""

    def cell(value: Any) -> str:
        return "none" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)

    cells = [list(table[0]), *(list(map(cell, row.values())) for row in table)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in cells)
