"""The result of a fit as files: selection.csv, history.csv, result.json and, with matplotlib, gates.png.

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

FILES = ("selection.csv", "history.csv", "gates.png", "result.json")  # all that is ever written, in the order of moving


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
    history: Mapping[str, Array],
    result: Mapping[str, Any],
    mu: Array,
    selected: Array,
) -> list[str]:
    """Write a result.

    Parameters
    ----------
    directory : path
        Made, with its parents, if missing. Files of an earlier result in it are replaced, others stay.
    table : sequence of mappings
        The rows of selection.csv.
    history : mapping of str to (steps,) arrays
        The columns of history.csv.
    result : mapping
        The contents of result.json; anything `plain` understands.
    mu, selected : (d,) arrays
        Gate parameters and the mask of the selected features, for the picture.

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
        _write_rows(staging / "history.csv", list(history), zip(*history.values(), strict=True))
        (staging / "result.json").write_text(json.dumps(plain(result), indent=1, allow_nan=False) + "\n", "utf-8")
        if find_spec("matplotlib") is not None:
            try:
                draw(staging / "gates.png", history, mu, selected)
            except Exception as error:  # a picture is not worth losing a fit for
                (staging / "gates.png").unlink(missing_ok=True)
                warnings.warn(f"gates.png could not be drawn: {error}", DufsWarning, stacklevel=2)
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


def draw(path: str | Path, history: Mapping[str, Array], mu: Array, selected: Array) -> None:
    """Save a picture of a fit: loss and number of open gates against the step; mu in order of rank.

    Parameters
    ----------
    path : path
    history : mapping
        With "step", "loss" and "open_gates".
    mu : (d,)
    selected : (d,) bool
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    blue, orange, grey = "#1f5fa8", "#c8590a", "#8a8a8a"
    figure = Figure(figsize=(10, 4), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)

    left.plot(history["step"], history["loss"], color=blue, linewidth=1)
    left.set_xlabel("step")
    left.set_ylabel("loss", color=blue)
    left.tick_params(axis="y", colors=blue)
    gates = left.twinx()
    gates.plot(history["step"], history["open_gates"], color=orange, linewidth=1.6, drawstyle="steps-post")
    gates.set_ylabel("open gates", color=orange)
    gates.tick_params(axis="y", colors=orange)
    gates.set_ylim(0, 1.05 * np.max(history["open_gates"], initial=1))
    gates.yaxis.set_major_locator(MaxNLocator(integer=True))
    left.set_title("training" if len(history["step"]) else "no steps: every feature is constant")

    order = np.argsort(-mu, kind="stable")
    rank = np.arange(1, len(mu) + 1)
    chosen = selected[order]
    size = 30 if len(mu) <= 50 else 12 if len(mu) <= 500 else 5
    for mask, colour, label in ((chosen, blue, "selected"), (~chosen, grey, "not selected")):
        right.scatter(rank[mask], mu[order][mask], s=size, color=colour, label=f"{int(mask.sum())} {label}", zorder=3)
    cut = r"cut, $\mu = 0$" if np.array_equal(selected, mu > 0) else r"$\mu = 0$"
    right.axhline(0, color=orange, linewidth=1, linestyle="--", label=cut)
    if len(mu) > 100:
        right.set_xscale("log")
        right.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    else:
        right.xaxis.set_major_locator(MaxNLocator(integer=True))
    right.set_xlabel("rank of the feature" + (" (log scale)" if len(mu) > 100 else ""))
    right.set_ylabel(r"gate parameter $\mu$")
    right.set_title(f"{int(chosen.sum())} of {len(mu)} features selected")
    right.legend(frameon=False)
    for axes in (left, right, gates):
        axes.spines["top"].set_visible(False)
    right.spines["right"].set_visible(False)
    figure.savefig(path)
