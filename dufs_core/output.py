"""The result of a fit as files: selection.csv, history.csv, result.json; with matplotlib gates.png and report.html.

Files are written into a temporary directory beside their place and moved there when all are complete.
"""

from __future__ import annotations

import csv
import json
import math
import os
import shutil
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from dufs_core.backend import Array
from dufs_core.errors import DufsWarning
from dufs_core.reporting import report

FILES = ("selection.csv", "history.csv", "gates.png", "report.html", "result.json")  # all, in the order of moving


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
        The contents of result.json; anything `plain` understands.
    selector : DUFS
        Fitted on X: history.csv, the picture and the report are of it.
    X, names, labels
        The data, names of the features, and labels of the samples (colours), for the report.

    Returns
    -------
    list of str
        The names of the files written.
    """
    directory = Path(directory).absolute()
    fresh = not directory.exists()
    beside = directory.parent if fresh else directory  # a directory that exists may be a mount point: stay in it
    beside.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".dufs-core-", dir=beside))
    try:
        _write_rows(staging / "selection.csv", list(table[0]), (row.values() for row in table))
        history = selector.history_
        _write_rows(staging / "history.csv", list(history), zip(*history.values(), strict=True))
        (staging / "result.json").write_text(json.dumps(plain(result), indent=1, allow_nan=False) + "\n", "utf-8")
        if find_spec("matplotlib") is not None:
            try:
                draw(staging / "gates.png", selector)
            except Exception as error:  # a picture is not worth losing a fit for
                (staging / "gates.png").unlink(missing_ok=True)
                warnings.warn(f"gates.png could not be drawn: {error}", DufsWarning, stacklevel=2)
            try:
                text = report(selector, X, names=names, labels=labels).html()
                (staging / "report.html").write_text(text, "utf-8")
            except Exception as error:  # nor is a page
                warnings.warn(f"report.html could not be written: {error}", DufsWarning, stacklevel=2)
        written = [name for name in FILES if (staging / name).exists()]
        if fresh:
            umask = os.umask(0)
            os.umask(umask)
            staging.chmod(0o777 & ~umask)  # mkdtemp's are private
            staging.rename(directory)
        else:
            for name in FILES:
                if name in written:
                    (staging / name).replace(directory / name)
                else:  # of an earlier result
                    (directory / name).unlink(missing_ok=True)
    finally:
        with suppress(OSError):
            shutil.rmtree(staging)
    return written


def plain(value: Any) -> Any:
    """The value in the types of strict JSON; NaN and infinities become None."""
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value)


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
    """Save a picture of a fit: loss and number of open gates against the step; mu in order of rank."""
    from dufs_core import plotting
    from dufs_core.plotting.canvas import figure

    made, (left, right) = figure(1, 2)
    plotting.loss_and_gates(selector, left)
    plotting.ranked_scores(selector, right)
    made.savefig(path)
