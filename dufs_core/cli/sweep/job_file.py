"""Job files in TOML (docs/batch-jobs.md), checked before any fit, with a sentence for every mistake."""

from __future__ import annotations

import itertools
import json
import math
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from dufs_core._version import __version__
from dufs_core.cli.common import UsageError, single_line
from dufs_core.cli.sweep import selector
from dufs_core.data.files import read_table
from dufs_core.data.fingerprint import array_fingerprint, file_fingerprint
from dufs_core.data.groups import Told
from dufs_core.datasets import two_moons
from dufs_core.errors import DufsError, did_you_mean
from dufs_core.selection.atomic_io import os_reason

MOONS = "two-moons"
_MOST_FITS = 10**6  # they are listed before the first
_MOONS_DEFAULTS: dict[str, Any] = {"samples": 100, "features": 10, "noise": 0.1, "seed": 0}  # of two_moons, in order
_NUMBER, _TEXT, _TRUTH = ((int, float), "a number"), ((str,), "a text"), ((bool,), "true or false")
_COLUMN = ((str, int), "the name or number of a column")
_COLUMNS = ((str, int, list), "the name or number of a column, or a list of them")
_MOONS_OPTIONS: dict[str, Any] = dict.fromkeys(_MOONS_DEFAULTS, _NUMBER)
_FILE_OPTIONS: dict[str, Any] = {
    "variable": _TEXT, "labels": _TEXT, "groups": _COLUMN, "covariates": _COLUMNS, "transpose": _TRUTH,
    "header": _TRUTH, "index_column": _COLUMNS,
}  # fmt: skip


def _are_seeds(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(v) is int and 0 <= v < 2**32 for v in value)


_NUMBERS: dict[str, tuple[Any, Callable[[Any], bool], str]] = {  # default, check, in words
    "seeds": ([0], _are_seeds, "a list of whole numbers from 0 to 2^32 - 1, as in [0, 1, 2]"),
    "threads": (1, lambda v: type(v) is int and 1 <= v <= 1024, "a whole number from 1 to 1024"),
    "checkpoint_seconds": (60, lambda v: type(v) in (int, float) and 0 <= v <= 1e9, "a number from 0 to 10^9"),
}


class JobError(UsageError, DufsError, ValueError):
    """A job file cannot be used; the sentence says what is wrong."""


@dataclass(frozen=True)
class DataSet:
    """A file and how it is read, or two moons and their parameters."""

    name: str
    path: str  # absolute, or "two-moons"
    reading: tuple[tuple[str, Any], ...]  # arguments of read_table or two_moons
    sha256: str  # of the file, or of the array

    def described(self) -> dict[str, Any]:
        """All that a result depends on: neither name nor folder."""
        return {"reading": dict(self.reading), "sha256": self.sha256}

    def read(self, on_disk: bool) -> tuple[Any, Told]:
        """X (n, d), and what is told of its rows.

        Raises ValueError if the file is not a table, or has changed since the job file was read.
        """
        reading = dict(self.reading)
        if self.path == MOONS:
            return two_moons(*reading.values()).X, Told()
        if file_fingerprint(self.path) != self.sha256:
            raise ValueError(f"{self.path} has changed since the sweep was started")
        table = read_table(self.path, **reading, on_disk=on_disk)
        return table.X, Told(table.groups, table.covariates)


@dataclass(frozen=True)
class Fit:
    """One fit of a sweep."""

    data: DataSet
    settings: Mapping[str, Any]  # every one, with its default
    seed: int
    threads: int

    @property
    def id(self) -> str:
        """The first 16 digits of the SHA-256 of all that the result depends on."""
        identity = {"settings": _bound(self.settings), "seed": self.seed, "threads": self.threads}
        identity |= {"data": self.data.described(), "version": __version__}
        return sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]

    def names(self) -> dict[str, Any]:
        """The first columns of its row in the table."""
        return {"id": self.id, "data": self.data.name, "seed": self.seed}


def _bound(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that results depend on."""
    return {name: value for name, value in settings.items() if name not in selector.FREE}


@dataclass(frozen=True)
class Job:
    """The contents of a job file."""

    fits: tuple[Fit, ...]  # in the order of the file: data sets, grid, seeds
    varied: tuple[str, ...]  # the parameters of the grid
    checkpoint_seconds: float
    described: dict[str, Any]  # must agree with that of the directory


def read_job(path: str | Path) -> Job:
    """Read and check a job file. Raises JobError if it is not readable TOML, or an entry is unknown or unusable."""
    path = Path(path)
    try:
        document = tomllib.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise JobError(f"{path} cannot be read: {os_reason(error)}") from error
    except Exception as error:  # also RecursionError of deep nesting, ValueError of endless numbers, MemoryError
        raise JobError(f"{path} is not a TOML file: {error or type(error).__name__}") from error
    try:
        return _job(document, path.absolute().parent)
    except (ValueError, TypeError, OverflowError) as error:  # JobError, what parameters and endless numbers raise
        raise JobError(f"{path}: {error}") from error


def _job(document: Mapping[str, Any], folder: Path) -> Job:
    mistakes: list[str] = []

    def part(read: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return read(*arguments)
        except JobError as error:
            mistakes.append(str(error))

    part(_check_names, document, [*_NUMBERS, "data", "settings", "grid"], "the job file")
    seeds, threads, seconds = (part(_number, document, name) for name in _NUMBERS)
    common = part(_settings, document.get("settings", {}), "[settings]", ["preset"])
    grid = part(_grid, document.get("grid", {}))
    entries = document["data"] if isinstance(document.get("data"), list) else []
    if not entries:
        mistakes.append("there is nothing to fit: at least one [[data]] with a path is needed")
    sets = [part(_data, entry, f"[[data]] number {i}", folder) for i, entry in enumerate(entries, start=1)]
    if mistakes:
        raise JobError("; ".join(mistakes))
    if (count := math.prod(map(len, grid.values())) * len(seeds) * len(sets)) > _MOST_FITS:
        raise JobError(f"the grid, the seeds and the data make {count:,} fits, more than {_MOST_FITS:,}")
    fits: dict[str, Fit] = {}
    described: dict[str, Any] = {"version": __version__, "seeds": seeds, "threads": threads, "grid": grid, "data": {}}
    described["settings"] = _bound(common)
    for data, own in sets:
        if data.name in described["data"]:
            raise JobError(f'two data sets are called "{data.name}": give each its own name')
        if twice := [name for name in grid if name in common or name in own]:
            raise JobError(f"{twice[0]} stands in [grid] and in the settings; one of them has to go")
        described["data"][data.name] = data.described() | {"settings": _bound(own)}
        for values in itertools.product(*grid.values()):
            settings = selector.complete(common | own | dict(zip(grid, values, strict=True)))
            for fit in (Fit(data, settings, seed, threads) for seed in seeds):
                if (first := fits.setdefault(fit.id, fit)) is not fit:
                    names = f'"{first.data.name}" and "{data.name}"'
                    raise JobError(f"a fit would be computed twice ({names}): a seed, a value or the data are repeated")
    return Job(tuple(fits.values()), tuple(grid), float(seconds), described)


def _check_names(table: Mapping[str, Any], names: Any, where: str) -> None:
    for name in table:
        if name not in names:
            raise JobError(f"{where} has no {name!r}{did_you_mean(name, names) or ': it has ' + ', '.join(names)}")


def _number(document: Mapping[str, Any], name: str) -> Any:
    default, is_good, words = _NUMBERS[name]
    value = document.get(name, default)
    if not is_good(value):
        raise JobError(f"{name} must be {words}; got {value!r}")
    return value


def _settings(table: Any, where: str, more: Sequence[str] = ()) -> dict[str, Any]:
    if not isinstance(table, Mapping):
        raise JobError(f"{where} must be a table of parameters; got {table!r}")
    for name in table:
        if name in selector.ELSEWHERE:
            raise JobError(f"{name} cannot stand in {where}: {selector.ELSEWHERE[name]}")
    _check_names(table, [*more, *selector.SETTINGS], where)
    return {name: selector.normal_value(name, value) for name, value in table.items()}


def _grid(table: Any) -> dict[str, list[Any]]:
    _settings(table, "[grid]")
    for name, values in table.items():
        if not isinstance(values, list) or not values:
            raise JobError(f"[grid] lists values to combine, as in {name} = [1, 2]; got {name} = {values!r}")
    return {name: [selector.normal_value(name, value) for value in values] for name, values in table.items()}


def _data(entry: Any, where: str, folder: Path) -> tuple[DataSet, dict[str, Any]]:
    """A data set and the settings that are its own."""
    if not isinstance(entry, Mapping) or not isinstance(entry.get("path"), str):
        raise JobError(f'{where} needs a path, as in path = "measurements.csv"')
    own = _settings(entry.get("settings", {}), f"settings of {where}")
    path = entry["path"]
    name = single_line(entry.get("name", Path(path).stem))
    options = _MOONS_OPTIONS if path == MOONS else _FILE_OPTIONS
    _check_names(entry, ["path", "name", "settings", *options], where)
    given = {key: value for key, value in entry.items() if key in options}
    for key, value in given.items():
        types, words = options[key]
        if type(value) not in types:
            raise JobError(f"{where}: {key} must be {words}; got {value!r}")
    try:
        if path == MOONS:
            given = _MOONS_DEFAULTS | given
            digest = array_fingerprint(two_moons(*given.values()).X)
        else:
            for key in ("covariates", "index_column"):
                if key in given:
                    columns = given[key]
                    given[key] = tuple(map(str, columns if isinstance(columns, list) else [columns]))
            if "groups" in given:
                given["groups"] = str(given["groups"])
            if "$" in (path := os.path.expandvars(path)):
                raise ValueError(f"the path {path} names an environment variable that is not set")
            path = str(folder / Path(path).expanduser())
            digest = file_fingerprint(path)
    except OSError as error:
        raise JobError(f"{where}: {path} cannot be read: {os_reason(error)}") from error
    except (ValueError, TypeError, OverflowError, RuntimeError, MemoryError) as error:
        raise JobError(f"{where}: {error}") from error
    return DataSet(name, path, tuple(given.items()), digest), own
