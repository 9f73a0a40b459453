"""The result of a fit as files: selection.csv, history.csv, result.json; with matplotlib gates.png and report.html.

Files are written into a temporary directory beside their place and moved there when they are complete: the
tables first, so that nothing that happens while pictures are made costs the fit.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from dufs_core.backend import Array
from dufs_core.errors import DufsWarning, user_stacklevel
from dufs_core.inspection.report import report
from dufs_core.selection.atomic_io import disk_is_full, json_value

TABLES = ("selection.csv", "history.csv", "result.json")  # in the order of moving
PICTURES = ("gates.png", "report.html")


def check_directory(directory: str | Path, force: bool = False) -> None:
    """Make sure, before the work, that `save` will be able to write to `directory`; leaves nothing behind.

    Parameters
    ----------
    directory : path
        It and its parents may be missing; they are made when there is something to write.
    force : bool
        Accept a directory that is not empty. Files of an earlier result in it will be replaced, others stay.

    Raises
    ------
    ValueError
        If something that is not a directory, or not an empty one, is in the way.
    OSError
        If no file can be made there.
    """
    directory = Path(directory)
    if directory.is_dir():
        if not force and any(directory.iterdir()):
            raise ValueError(
                f"{directory} is not empty; take another directory, or --force to replace the results in it"
            )
    elif directory.exists() or directory.is_symlink():
        raise ValueError(f"{directory} exists and is not a directory")
    existing = next(p for p in (directory, *directory.absolute().parents) if p.exists())
    if not existing.is_dir():
        raise ValueError(f"{existing} is not a directory, so {directory} cannot be made in it")
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".dufs-core-", dir=existing))
    except OSError as error:
        raise OSError(f"cannot write to {directory}: {existing}: {(error.strerror or str(error)).lower()}") from error


def save(
    directory: str | Path,
    table: Sequence[Mapping[str, Any]],
    result: Mapping[str, Any],
    selector: Any,
    X: Any,
    names: Sequence[str] | None = None,
    labels: Array | None = None,
) -> list[str]:
    """Write a result.

    Parameters
    ----------
    directory : path
        Made, with its parents, if missing. Files of an earlier result in it are replaced, others stay.
    table : sequence of mappings
        The rows of selection.csv.
    result : mapping
        The contents of result.json; anything `json_value` understands.
    selector : DUFS
        Fitted on X: history.csv, the picture and the report are of it.
    X, names, labels
        The data, names of the features, and labels of the samples (colours), for the report.

    Returns
    -------
    list of str
        The names of the files written.

    Raises
    ------
    OSError
        If the disk is full, or the tables cannot be written. A picture or report that fails otherwise is left out, with
        a warning.
    KeyboardInterrupt
        If the user interrupts; its message says what is written.
    """
    written: list[str] = []
    try:
        for name in _write(Path(directory).absolute(), table, result, selector, X, names, labels):
            written.append(name)
    except KeyboardInterrupt as interruption:
        if not written:
            raise
        raise KeyboardInterrupt(f"{', '.join(written)} are written to {directory}, the rest is not") from interruption
    return written


def _write(
    directory: Path,
    table: Sequence[Mapping[str, Any]],
    result: Mapping[str, Any],
    selector: Any,
    X: Any,
    names: Sequence[str] | None,
    labels: Array | None,
) -> Iterator[str]:
    """Yields the name of each file when it is in its place."""
    fresh = not directory.exists()
    beside = directory.parent if fresh else directory  # a directory that exists may be a mount point: stay in it
    beside.mkdir(parents=True, exist_ok=True)
    with _staging(beside) as staging:
        _write_rows(staging / "selection.csv", list(table[0]), (row.values() for row in table))
        history = selector.history_
        _write_rows(staging / "history.csv", list(history), zip(*history.values(), strict=True))
        (staging / "result.json").write_text(json.dumps(json_value(result), indent=1, allow_nan=False) + "\n", "utf-8")
        if fresh:
            umask = os.umask(0)
            os.umask(umask)
            staging.chmod(0o777 & ~umask)  # mkdtemp's are private
            staging.rename(directory)
            yield from TABLES
        else:
            for name in PICTURES:  # of an earlier result
                (directory / name).unlink(missing_ok=True)
            for name in TABLES:
                (staging / name).replace(directory / name)
                yield name
    if find_spec("matplotlib") is not None:
        yield from _save_pictures(directory, selector, X, names, labels)


def _save_pictures(
    directory: Path, selector: Any, X: Any, names: Sequence[str] | None, labels: Array | None
) -> Iterator[str]:
    """Write what can be drawn and explained; the rest costs a warning, unless the disk is full: an OSError."""

    def gates(path: Path) -> None:
        draw(path, selector)

    def explanation(path: Path) -> None:
        path.write_text(report(selector, X, names=names, labels=labels).html(), "utf-8")

    with _staging(directory) as staging:
        for name, write, done in zip(PICTURES, (gates, explanation), ("drawn", "written"), strict=True):
            try:
                write(staging / name)
            except Exception as error:  # a picture is not worth losing a fit for
                if disk_is_full(error):
                    raise
                warnings.warn(f"{name} could not be {done}: {error}", DufsWarning, stacklevel=user_stacklevel())
            else:
                (staging / name).replace(directory / name)
                yield name


@contextmanager
def _staging(beside: Path) -> Iterator[Path]:
    """A directory for files that are not complete; what is left in it at the end is removed."""
    staging = Path(tempfile.mkdtemp(prefix=".dufs-core-", dir=beside))
    try:
        yield staging
    finally:
        with suppress(OSError):
            shutil.rmtree(staging)


def _write_rows(path: Path, header: Sequence[str], rows: Any) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows([_cell(value) for value in row] for row in rows)


def _cell(value: Any) -> str:
    """Shortest text that reads back to the same number in its dtype."""
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    return str(value)


def draw(path: str | Path, selector: Any) -> None:
    """Save a picture of a fit: loss and number of open gates against the step; mu, or evidence, in order of rank."""
    from dufs_core.inspection import plotting
    from dufs_core.inspection.plotting.canvas import figure

    made, (left, right) = figure(1, 2)
    plotting.loss_and_gates(selector, left)
    plotting.ranked_scores(selector, right)
    made.savefig(path)
