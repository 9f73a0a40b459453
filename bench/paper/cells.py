"""Finished cells are kept: an experiment is a list of cells, each a function of settings, each computed once.

A cell is one line of `<out>/<name>.cells.jsonl`: function, settings, result, seconds, and warnings if there were any.
The process that computed it writes the line at once and flushes it to the disk, so a run that is stopped at any moment
goes on where it was. To compute a cell again, remove its line; after a change to what cells compute, remove the file.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from joblib import Parallel, delayed, parallel_config
from matplotlib.figure import Figure
from tqdm import tqdm

from bench.common import Records
from dufs_core.selection.atomic_io import json_value

Function = Callable[..., Any]  # of keyword arguments that JSON can hold, to what JSON can hold


class Report(NamedTuple):
    """What an experiment has to say."""

    results: Mapping[str, Any]  # into the JSON file
    table: str  # Markdown
    figure: Figure | None


class Cells:
    """The cells of one experiment, in one file."""

    def __init__(self, path: Path, workers: int = 1) -> None:
        self.path, self.workers = path, workers
        self.seconds = 0.0  # of all cells that were asked for, whenever they were computed
        self.asked = 0
        _end_cut_line(path)
        self._done = _read(path)

    def compute(
        self, function: Function, settings: Sequence[Mapping[str, Any]], given: Sequence[Mapping[str, Any]] = ()
    ) -> list[Any]:
        """[function(**s) for s in settings], as JSON gives it back; what the file has is not computed again.

        `given` are further arguments that follow from the settings, such as results of other cells; the file has them
        not.

        With more than one worker cells are computed in processes of their own, each with one thread for BLAS and Numba.
        A cell that raises ends the computation; the cells that are done stay done.
        """
        keys = [_key(function.__name__, s) for s in settings]
        more = given or [{}] * len(keys)
        missing = {k: (s, g) for k, s, g in zip(keys, settings, more, strict=True) if k not in self._done}
        with parallel_config("loky", inner_max_num_threads=1 if self.workers > 1 else None):
            records = Parallel(n_jobs=self.workers, return_as="generator")(
                delayed(_compute)(function, dict(s), dict(g), self.path) for s, g in missing.values()
            )
            for key, record in zip(
                missing, tqdm(records, function.__name__, len(missing), leave=False, disable=None), strict=True
            ):
                self._done[key] = record
        self.seconds += sum(self._done[key]["seconds"] for key in dict.fromkeys(keys))
        self.asked += len(dict.fromkeys(keys))
        return [self._done[key]["result"] for key in keys]

    def known(self, function: str, settings: Mapping[str, Any]) -> Any:
        """The result of a cell of the function of that name if the file has it, else None."""
        record = self._done.get(_key(function, settings))
        return None if record is None else record["result"]


@contextmanager
def beside(file: str | None, workers: int = 1) -> Iterator[Cells]:
    """The cells in FILE's neighbour with the ending .cells.jsonl; without a FILE in one that goes in the end."""
    with tempfile.TemporaryDirectory() as folder:
        yield Cells(Path(file or f"{folder}/x").with_suffix(".cells.jsonl"), workers)


def measure_all(
    file: str | None, measure: Function, groups: Iterable[Iterable[dict[str, Any]]], records: Records
) -> None:
    """A record by `measure` for all settings; FILE and its table are written after each group, the table is printed."""
    with beside(file) as cells:
        for group in groups:
            for settings in group:
                records.add(cells.compute(measure, [settings])[0])
            records.save()
    print(records.table)


def _key(function: str, settings: Mapping[str, Any]) -> str:
    return json.dumps([function, json_value(settings)], sort_keys=True)


def _compute(function: Function, settings: dict[str, Any], given: dict[str, Any], path: Path) -> dict[str, Any]:
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = function(**settings, **given)
    record = {"function": function.__name__, "settings": json_value(settings), "result": json_value(result)}
    record["seconds"] = round(time.perf_counter() - start, 3)
    if caught:
        record["warnings"] = list(dict.fromkeys(str(w.message) for w in caught))
    _append(path, json.dumps(record) + "\n")
    return record


def _append(path: Path, line: str) -> None:
    """One write, so that lines of several processes do not mix; on the disk when this returns."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(descriptor, line.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _end_cut_line(path: Path) -> None:
    """After a crash in the middle of a line the next cell starts a new one."""
    if path.exists() and (data := path.read_bytes()) and not data.endswith(b"\n"):
        _append(path, "\n")


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """The records by key. A line that a crash has cut is as good as none."""
    done = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        done[_key(record["function"], record["settings"])] = record
    return done
