"""The directory of a sweep.

    results.csv          the table, one row per fit, made from fits/ at the end of each job
    fits/ID.npz          a finished or failed fit: its row, mu, order, support, q-values, history
    checkpoints/ID.ckpt  a fit in progress
    log.jsonl            events, one JSON object a line
    sweep.json           the contents of the job file
    lock, stop.JOB       locked by the job at work; tells its workers to save and end

Files of fits are written beside their place, flushed and renamed: each is complete or absent.
"""

from __future__ import annotations

import csv
import io
import json
import os
import warnings
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dufs_core.backend import Array
from dufs_core.cli.common import csv_cell, single_line
from dufs_core.cli.sweep.job_file import Fit, Job, JobError
from dufs_core.errors import DamagedFileError
from dufs_core.selection import atomic_io
from dufs_core.selection.atomic_io import json_value, os_reason
from dufs_core.selection.checkpoint import Checkpoint, differences

FORMAT = 1
_COLUMNS = (
    "status", "error", "n_samples", "n_features", "n_selected", "n_iter", "n_runs", "converged", "loss", "bandwidth",
    "n_found", "smallest_fdr", "found_lam", "excess_score", "p_value", "backend", "engine", "together", "seconds",
    "warnings",
)  # fmt: skip


class Result(NamedTuple):
    """The row of a fit in the table, and its arrays."""

    row: dict[str, Any]
    arrays: dict[str, Array]


def failure(fit: Fit, error: BaseException) -> Result:
    return Result(id_columns(fit) | {"status": "failed", "error": error_line(error)}, {})


def id_columns(fit: Fit) -> dict[str, Any]:
    """The first columns of the row of a fit."""
    return {"id": fit.id, "data": fit.data.name, "seed": fit.seed}


def error_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {single_line(error)}"


def join_warnings(caught: Sequence[warnings.WarningMessage], first: str = "") -> str:
    """Warnings for users on one line, each once."""
    sentences = (single_line(w.message) for w in caught if issubclass(w.category, UserWarning))
    return " | ".join(dict.fromkeys(filter(None, [first, *sentences])))


def result_of(fit: Fit, selector: Any) -> Result:
    """Measures and arrays of a fitted selector; a failure if its gate parameters are not finite."""
    if not np.isfinite(selector.mu_).all():
        return failure(fit, FloatingPointError("the fit ended with gate parameters that are not finite"))
    names = ("n_iter", "n_runs", "converged", "loss", "bandwidth", "backend", "engine")
    row = id_columns(fit) | {"status": "done", "error": None, "n_selected": int(selector.support_.sum())}
    row |= {name: getattr(selector, f"{name}_") for name in names}
    arrays = {"mu": selector.mu_, "order": selector.order_, "support": selector.support_}
    arrays |= {f"history/{name}": column for name, column in selector.history_.items()}
    if selector.fdr is None:
        return Result(row | {"excess_score": selector.excess_score_, "p_value": selector.p_value_}, arrays)
    n_found = int((selector.q_values_ <= selector.fdr).sum())
    row |= {"n_found": n_found, "smallest_fdr": selector.smallest_fdr_, "found_lam": selector.lam_}
    return Result(row, arrays | {"q_values": selector.q_values_, "evidence": selector.evidence_})


class Store:
    """The files of a sweep in `directory`. Only the holder of its lock may write."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory).absolute()
        self.plan = self.directory / "sweep.json"
        self.lock = self.directory / "lock"
        self.stop = self.directory / f"stop.{os.urandom(8).hex()}"  # workers of an earlier job may look for theirs yet
        self.checkpoints = self.directory / "checkpoints"
        self._fits = self.directory / "fits"
        self._log = self.directory / "log.jsonl"

    def check(self, resume: bool) -> None:
        """Make the directory; JobError if it holds a sweep that is not to be resumed, or anything else."""
        mine = {path.name for path in (self._fits, self.checkpoints, self.lock, self._log)}
        try:
            if self.plan.exists() and not resume:
                advice = "--resume goes on with it; a new one needs a new directory"
                raise JobError(f"{self.directory} holds a sweep: {advice}")
            self.directory.mkdir(parents=True, exist_ok=True)
            for path in [] if self.plan.exists() else self.directory.iterdir():
                # a job that was killed at once leaves no more than these
                if path.name not in mine and not path.name.startswith((f".{self.plan.name}.", "stop.")):
                    raise JobError(f"{self.directory} is not empty and holds no sweep; take another directory")
        except OSError as error:
            raise JobError(f"{self.directory} cannot be used: {os_reason(error)}") from error

    def open(self, job: Job) -> None:
        """Make missing files; JobError if the directory belongs to another job. The lock is held."""
        for folder in (self._fits, self.checkpoints):
            folder.mkdir(exist_ok=True)
            for left in folder.glob(".*.tmp"):
                left.unlink(missing_ok=True)
        atomic_io.remove_temporaries(self.plan)
        now = json_value({"format": FORMAT, **job.described})
        if not self.plan.exists():
            atomic_io.write_bytes(self.plan, (json.dumps(now, indent=1) + "\n").encode())
            return
        try:
            changed = differences(json.loads(self.plan.read_text("utf-8")), now)
        except (ValueError, AttributeError, TypeError, RecursionError) as error:
            advice = "if the directory is that of this job, delete the file: fits that are done are kept"
            raise JobError(f"{self.plan} is damaged ({error}); {advice}") from error
        if changed:
            what = f"{self.directory} belongs to another job: {'; '.join(changed)}"
            raise JobError(f"{what}. Undo the change, or take another directory")

    def checkpoint(self, fit: Fit) -> Checkpoint:
        return Checkpoint(self.checkpoints / f"{fit.id}.ckpt")

    def save(self, fit: Fit, result: Result) -> None:
        """Write a result, and remove the checkpoint of a fit that is done; a failed one is tried again."""
        packed = atomic_io.pack_npz({"row": np.array(json.dumps(json_value(result.row))), **result.arrays})
        atomic_io.write_bytes(self._fits / f"{fit.id}.npz", packed)
        if result.row["status"] == "done":
            self.checkpoint(fit).remove()

    def result(self, fit: Fit) -> Result | None:
        """The result of a fit that is over, else None. A damaged file is removed."""
        path = self._fits / f"{fit.id}.npz"
        try:
            arrays = atomic_io.unpack_npz(path.read_bytes(), path)
            row = atomic_io.json_of(arrays.pop("row"))
            if row["status"] not in ("done", "failed"):
                raise DamagedFileError(f"{path} holds no result of a fit")
        except FileNotFoundError:
            return None
        except (KeyError, ValueError, TypeError, RecursionError) as error:  # DamagedFileError is a ValueError
            self.log("damaged", fit=fit.id, error=str(error))
            path.unlink()
            return None
        return Result(row, arrays)

    def log(self, event: str, **fields: Any) -> None:
        """Append one line, after ending a line that a crash has cut off."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps(json_value({"time": now, "event": event, **fields})) + "\n"
        with self._log.open("a+b", buffering=0) as file:
            if file.tell() and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
                line = "\n" + line
            file.write(line.encode())

    def write_table(self, job: Job) -> None:
        """Write results.csv: one row for each fit that is over; None is an empty cell."""
        buffer, own = io.StringIO(), [f"{name}_setting" if name in _COLUMNS else name for name in job.varied]
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(["id", "data", "seed", *own, *_COLUMNS])
        for fit in job.fits:
            result = self.result(fit)
            if result is not None:
                settings = [fit.settings[name] for name in job.varied]
                cells = [fit.id, fit.data.name, fit.seed, *settings, *map(result.row.get, _COLUMNS)]
                writer.writerow(map(csv_cell, cells))
        atomic_io.write_bytes(self.directory / "results.csv", buffer.getvalue().encode())
