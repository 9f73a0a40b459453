"""Write the result of a fit: selection.csv, result.json, report.html, of gates history.csv; with matplotlib a picture.

Every file is complete or absent. The tables come first, so that a failing picture cannot cost the fit.
"""

from __future__ import annotations

import csv
import io
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dufs_core.backend import Array
from dufs_core.cli.common import csv_cell
from dufs_core.errors import DufsWarning, user_stacklevel
from dufs_core.inspection.report import report
from dufs_core.selection.atomic_io import disk_is_full, json_value, os_reason, write_bytes

_HISTORY = "history.csv"  # of trained gates
TABLES = ("selection.csv", "result.json")  # of every fit, in the order of writing


def check_directory(directory: str | Path, force: bool = False) -> None:
    """Check before the fit that `save` can write to `directory`, which may be missing; leave no trace.

    Raises ValueError if it holds files (unless `force`) or a part of its path is no directory, OSError if no
    file can be made there.
    """
    directory = Path(directory)
    if directory.is_dir() and not force and any(directory.iterdir()):
        raise ValueError(f"{directory} is not empty; take another directory, or --force to replace the results in it")
    there = (path for path in (directory, *directory.absolute().parents) if path.exists() or path.is_symlink())
    if not (existing := next(there)).is_dir():
        raise ValueError(f"{existing} is not a directory, so that nothing can be written to {directory}")
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".dufs-core-", dir=existing))
    except OSError as error:
        raise OSError(f"cannot write to {directory}: {existing}: {os_reason(error)}") from error


def save(
    directory: str | Path,
    table: Sequence[Mapping[str, Any]],
    result: Mapping[str, Any],
    selector: Any,
    X: Any,
    names: Sequence[str] | None,
    labels: Array | None,
) -> list[str]:
    """Write `table` to selection.csv, `result` to result.json, and picture and report; return the names of the files.

    The directory is made if missing; files of an earlier result are replaced, others stay. Raises OSError for tables
    that cannot be written and a full disk (other failures of picture and report are warnings), and KeyboardInterrupt,
    saying what is written.
    """

    rows = _csv(list(table[0]), (row.values() for row in table))
    facts = (json.dumps(json_value(result), indent=1, allow_nan=False) + "\n").encode()
    tables = dict(zip(TABLES, (rows, facts), strict=True))
    if hasattr(selector, "history_"):
        history = selector.history_
        tables[_HISTORY] = _csv(list(history), zip(*history.values(), strict=True))
    pictures: dict[str, Callable[[], bytes]] = {
        "selection.png": lambda: draw(selector),
        "report.html": lambda: report(selector, X, names=names, labels=labels).html().encode(),
    }
    directory, written = Path(directory).absolute(), []
    fresh = not directory.exists()
    directory.mkdir(parents=True, exist_ok=True)
    try:
        for name in (*pictures, _HISTORY):  # of an earlier result
            (directory / name).unlink(missing_ok=True)
        for name, data in tables.items():
            write_bytes(directory / name, data)
            written.append(name)
        for name, make in pictures.items():
            try:
                write_bytes(directory / name, make())
                written.append(name)
            except Exception as error:
                if disk_is_full(error):
                    raise
                warnings.warn(f"{name} could not be made: {error}", DufsWarning, stacklevel=user_stacklevel())
    except KeyboardInterrupt as interruption:
        if not written:
            raise
        raise KeyboardInterrupt(f"{', '.join(written)} are written to {directory}, the rest is not") from interruption
    finally:
        if fresh and not written:
            directory.rmdir()
    return written


def _csv(header: Sequence[str], rows: Iterable[Iterable[Any]]) -> bytes:
    """CSV text; numbers have the fewest digits that read back to the same number in their dtype."""
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    for row in rows:
        cells = [str(value).lower() if isinstance(value, (bool, np.bool_)) else csv_cell(value) for value in row]
        writer.writerow("" if cell is None else str(cell) for cell in cells)
    return file.getvalue().encode()


def draw(selector: Any) -> bytes:
    """A picture of a fit as PNG: mu, or evidence, by rank; of trained gates also loss and open ones by step."""
    from dufs_core.inspection import plotting
    from dufs_core.inspection.plotting.canvas import figure, png

    if not hasattr(selector, "history_"):
        made, ax = figure()
        plotting.ranked_scores(selector, ax)
        return png(made)
    made, (left, right) = figure(1, 2)
    plotting.loss_and_gates(selector, left)
    plotting.ranked_scores(selector, right)
    return png(made)
