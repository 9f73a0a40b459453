"""The directory of a sweep.

    results.csv          the table, one row per fit, made from fits/ at the end of each job
    fits/ID.npz          a finished or failed fit: its row, mu, order, support, q-values, history
    checkpoints/ID.ckpt  a fit in progress
    log.jsonl            events, one JSON object a line
    sweep.json           the contents of the job file
    lock, job.ID         locked by the job at work; its workers save and end when this has gone

Files of fits are written beside their place, flushed and renamed: each is complete or absent.
"""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dufs_core.backend import Array
from dufs_core.cli.common import csv_cell, single_line
from dufs_core.cli.sweep import selector
from dufs_core.cli.sweep.job_file import Fit, Job, JobError
from dufs_core.selection import atomic_io
from dufs_core.selection.atomic_io import json_value, os_reason
from dufs_core.selection.checkpoint import Checkpoint, differences

_COLUMNS = (
    "status", "error", "n_samples", "n_features", "n_selected", "n_iter", "n_runs", "converged", "loss", "bandwidth",
    "n_found", "smallest_fdr", "excess_score", "p_value", "stopped_by_hsic", "backend", "engine",
    "together", "seconds", "warnings",
)  # fmt: skip


class Result(NamedTuple):
    """The row of a fit in the table, and its arrays."""

    row: dict[str, Any]
    arrays: dict[str, Array]


def failure(error: BaseException) -> Result:
    return Result({"status": "failed", "error": error_line(error)}, {})


def result_of(fitted: Any) -> Result:
    """Measures and arrays of a fitted selector."""
    row, arrays = selector.measures(fitted)
    return Result({"status": "done", "error": None} | row, arrays)


def error_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {single_line(error)}"


class Store:
    """The files of a sweep in `directory`. Only the holder of its lock may write."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory).absolute()
        self.checkpoints = self.directory / "checkpoints"
        self.working = self.directory / f"job.{os.urandom(8).hex()}"
        self._plan = self.directory / "sweep.json"
        self._fits = self.directory / "fits"
        self._log = self.directory / "log.jsonl"

    @contextmanager
    def locked(self, resume: bool) -> Iterator[None]:
        """Make the directory and hold its lock, the operating system's, which ends with the process.

        resume: whether the directory may hold a part of a sweep. Raises JobError if it holds what it may not, cannot
        be used, or if another job works in it.
        """
        lock = self.directory / "lock"
        with ExitStack() as stack:
            try:
                is_sweep = self._plan.exists()
                if is_sweep and not resume:
                    advice = "--resume goes on with it; a new one needs a new directory"
                    raise JobError(f"{self.directory} holds a sweep: {advice}")
                self.directory.mkdir(parents=True, exist_ok=True)
                if not (is_sweep or lock.exists()) and any(self.directory.iterdir()):
                    raise JobError(f"{self.directory} is not empty and holds no sweep; take another directory")
                fcntl.flock(stack.enter_context(open(lock, "ab", opener=_no_link)), fcntl.LOCK_EX | fcntl.LOCK_NB)
                for left in self.directory.glob("job.*"):  # of a job that was killed
                    left.unlink()
                self.working.touch()
            except BlockingIOError as error:
                advice = "wait for it, or take another directory"
                raise JobError(f"another job is working in {self.directory}: {advice}") from error
            except OSError as error:
                raise JobError(f"{error.filename or lock} cannot be used: {os_reason(error)}") from error
            stack.callback(self.working.unlink, missing_ok=True)
            yield

    def begin(self, job: Job) -> None:
        """Make missing files; JobError if the directory belongs to another job. The lock is held."""
        for folder in (self._fits, self.checkpoints):
            folder.mkdir(exist_ok=True)
        for left in self.directory.rglob(".*.tmp"):  # of writers that were killed
            left.unlink()
        now = json_value(job.described)
        if not self._plan.exists():
            atomic_io.write_bytes(self._plan, (json.dumps(now, indent=1) + "\n").encode())
            return
        try:
            changed = differences(json.loads(self._plan.read_text("utf-8")), now)
        except (ValueError, AttributeError, TypeError, RecursionError) as error:
            advice = "if the directory is that of this job, delete the file: fits that are done are kept"
            raise JobError(f"{self._plan} is damaged ({error}); {advice}") from error
        if changed:
            what = f"{self.directory} belongs to another job: {'; '.join(changed)}"
            raise JobError(f"{what}. Undo the change, or take another directory")

    def is_to_end(self) -> bool:
        """Whether the job is to end, or has; a worker that does not see the directory never knows."""
        return self.checkpoints.is_dir() and not self.working.exists()

    def checkpoint(self, fit: Fit, every_seconds: float = 60) -> Checkpoint:
        """The state of a fit, which is saved when the job is to end."""
        return Checkpoint(self.checkpoints / f"{fit.id}.ckpt", every_seconds, self.is_to_end)

    def save(self, fit: Fit, result: Result) -> None:
        """Write a result, and remove the checkpoint of a fit that is done; a failed one is tried again."""
        row = json.dumps(json_value(fit.names() | result.row))
        packed = atomic_io.pack_npz({"row": np.array(row), **result.arrays})
        atomic_io.write_bytes(self._fits / f"{fit.id}.npz", packed)
        if result.row["status"] == "done":
            self.checkpoint(fit).remove()

    def row(self, fit: Fit) -> dict[str, Any] | None:
        """The row of a fit that is over, else None. A damaged file is removed."""
        path = self._fits / f"{fit.id}.npz"
        try:
            return dict(atomic_io.json_of(atomic_io.unpack_npz(path.read_bytes(), path)["row"]))
        except FileNotFoundError:
            return None
        except (KeyError, ValueError, TypeError, RecursionError) as error:  # DamagedFileError is a ValueError
            self.log("damaged", fit=fit.id, error=str(error))
            path.unlink()
            return None

    def log(self, event: str, **fields: Any) -> None:
        """Append one object, on a line of its own whatever a crash has cut off before."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps(json_value({"time": now, "event": event, **fields}))
        with open(self._log, "a", opener=_no_link) as file:
            file.write("\n" * bool(file.tell()) + line)

    def write_table(self, job: Job) -> None:
        """Write results.csv: one row for each fit that is over; None is an empty cell."""
        buffer, own = io.StringIO(), [f"{name}_setting" if name in _COLUMNS else name for name in job.varied]
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(["id", "data", "seed", *own, *_COLUMNS])
        for fit in job.fits:
            if row := self.row(fit):
                settings = [fit.settings[name] for name in job.varied]
                cells = [*fit.names().values(), *settings, *map(row.get, _COLUMNS)]
                writer.writerow(map(csv_cell, cells))
        atomic_io.write_bytes(self.directory / "results.csv", buffer.getvalue().encode())


def _no_link(path: str, flags: int) -> int:
    """For `open`: refuses a symbolic link, which may have been put there to have another file written to."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)
