"""The directory of a sweep: what is done stays done.

    sweep.json           what was asked for, and the fits with their identities
    fits/ID.npz          one file per fit that is over: the row of the table, mu, ranking, support, q-values, history
    checkpoints/ID.ckpt  the state of fits in progress
    log.jsonl            what happened, one JSON object a line
    results.parquet      the table, one row per fit (results.csv without pyarrow); summary.csv, plots/
    lock                 who is working here
    stop.JOB             there while the workers of one job are to stop; stays if they were given up, until a job ends

A fit is over when its file is there: it is written beside its place, flushed and renamed, so a row is complete or does
not exist, and the identity is its name, so none can exist twice. Tables are made from these files, again at each end.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from dufs_core.backend import Array
from dufs_core.cli.sweep.fit_id import Fit
from dufs_core.cli.sweep.job_file import Job, JobError
from dufs_core.errors import DamagedFileError
from dufs_core.selection import atomic_io as durable
from dufs_core.selection.atomic_io import json_value
from dufs_core.selection.checkpoint import Checkpoint, differences

FORMAT = 1
_ROW = "row"


class Store:
    """The files of a sweep in `directory`. Only the holder of its lock may write."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory).absolute()
        self.plan = self.directory / "sweep.json"
        self.lock = self.directory / "lock"
        self.stop = self.directory / f"stop.{os.urandom(8).hex()}"  # workers of an earlier job may look for theirs yet
        self._fits = self.directory / "fits"
        self._checkpoints = self.directory / "checkpoints"
        self._log = self.directory / "log.jsonl"

    def check(self, resume: bool) -> None:
        """Make sure, before anything is made, that the directory is new, or a sweep's that is to be resumed."""
        if not self.directory.exists():
            return
        if not self.directory.is_dir():
            raise JobError(f"{self.directory} is not a directory")
        if self.plan.exists():
            if not resume:
                raise JobError(
                    f"{self.directory} holds a sweep: --resume goes on with it; a new one needs a new directory"
                )
            return
        mine = {path.name for path in (self._fits, self._checkpoints, self.lock, self._log)}
        for path in self.directory.iterdir():  # a job that was killed at once leaves no more than these
            if path.name not in mine and not path.name.startswith((f".{self.plan.name}.", "stop.")):
                raise JobError(f"{self.directory} is not empty and holds no sweep; take another directory")

    def open(self, job: Job) -> None:
        """Make what is missing; refuse another job than the one that the directory belongs to. The lock is held."""
        for folder in (self._fits, self._checkpoints):
            folder.mkdir(exist_ok=True)
            for left in folder.glob(".*.tmp"):
                left.unlink(missing_ok=True)
        durable.remove_temporaries(self.plan)
        now = json_value(job.described)
        if self.plan.exists():
            try:
                then = json.loads(self.plan.read_text("utf-8"))
            except ValueError as error:
                raise JobError(
                    f"{self.plan} is damaged ({error}); if the job is the same, delete it: fits that are done are kept"
                ) from error
            if not isinstance(then, dict) or not {"format", "job"} <= then.keys():
                raise JobError(
                    f"{self.plan} is not that of a sweep: it has no format and no job. Take another directory; if it "
                    f"is the right one, delete the file: fits that are done are kept"
                )
            if then["format"] != FORMAT:
                raise JobError(f"{self.plan} has format {then['format']}; this version reads format {FORMAT}")
            if changed := differences(then["job"], now):
                raise JobError(
                    f"{self.directory} belongs to another job: {'; '.join(changed)}. Undo the change, or take another "
                    f"directory"
                )
            return
        fits = {
            fit.id: {"data": fit.data.name, "seed": fit.seed} | {name: fit.settings[name] for name in job.mentioned}
            for fit in job.fits
        }
        document = {"format": FORMAT, "job": now, "fits": json_value(fits)}
        durable.write_bytes(self.plan, (json.dumps(document, indent=1) + "\n").encode())

    # --- fits --------------------------------------------------------------------------------------------------------

    def result(self, fit: Fit) -> Path:
        """Where the result of a fit is, when it is over."""
        return self._fits / f"{fit.id}.npz"

    def checkpoint(self, fit: Fit) -> Path:
        """Where the state of a fit in progress is."""
        return self._checkpoints / f"{fit.id}.ckpt"

    def save(self, fit: Fit, row: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        """Keep the result of a fit. The checkpoint goes if it is done; one that failed is tried again."""
        packed = durable.packed({_ROW: np.array(json.dumps(json_value(row))), **arrays})
        durable.write_bytes(self.result(fit), packed)
        if row["status"] == "done":
            self.clear_checkpoint(fit)

    def clear_checkpoint(self, fit: Fit) -> None:
        """Remove the state of a fit that is over."""
        Checkpoint(self.checkpoint(fit)).remove()

    def row(self, fit: Fit) -> dict[str, Any] | None:
        """The row of a fit that is over. A damaged file is as good as none, and is removed."""
        path = self.result(fit)
        try:
            row: dict[str, Any] = json.loads(str(durable.unpacked(path.read_bytes(), path)[_ROW]))
        except FileNotFoundError:
            return None
        except DamagedFileError as error:
            self.log("damaged", fit=fit.id, error=str(error))
            path.unlink()
            return None
        return row

    def arrays(self, fit: Fit) -> dict[str, Array]:
        """mu, ranking, support, history, and with decoys q_values and evidence of a fit; empty for one that failed."""
        path = self.result(fit)
        found = durable.unpacked(path.read_bytes(), path)
        return {name: array for name, array in found.items() if name != _ROW}

    # --- stopping ----------------------------------------------------------------------------------------------------

    def remove_stops(self) -> None:
        """Remove the file by which workers are told to stop, and those of earlier jobs: the sweep is over."""
        for path in self.directory.glob("stop.*"):
            path.unlink(missing_ok=True)

    # --- log ---------------------------------------------------------------------------------------------------------

    def log(self, event: str, **fields: Any) -> None:
        """Append one line; a line that a crash has cut off is ended first."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps(json_value({"time": now, "event": event, **fields})) + "\n"
        descriptor = os.open(self._log, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                line = "\n" + line
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def last_words(self, event: str, **fields: Any) -> None:
        """A line, if it can be written: of a job that ends, perhaps because nothing can."""
        with suppress(OSError):
            self.log(event, **fields)
