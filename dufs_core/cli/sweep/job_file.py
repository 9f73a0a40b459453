"""Job files in TOML (docs/batch-jobs.md), checked before any fit, with a sentence for every mistake."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import tomllib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from dufs_core import backend
from dufs_core._version import __version__
from dufs_core.data.fingerprint import array_fingerprint, file_fingerprint
from dufs_core.datasets import two_moons
from dufs_core.errors import DufsError, did_you_mean
from dufs_core.objective.engines import choose
from dufs_core.selection.atomic_io import os_reason
from dufs_core.selection.decoys.dufs import DUFS
from dufs_core.selection.parameters import check_parameters

MOONS = "two-moons"
_MOST_FITS = 10**6  # they are listed before the first
_MANY = 10**6  # rows and columns with which parameters are checked before the data are read
_REAL = ("fdr", "lam", "bandwidth", "bandwidth_factor", "gate_sigma", "learning_rate", "tol")
_ELSEWHERE = {
    "random_state": "the seeds are listed as seeds = [0, 1, ...]",
    "n_jobs": "the threads of each fit are set by threads = 1",
    "callbacks": "a job file cannot hold functions",
    "verbose": "a sweep has one progress bar",
}
_MOONS_DEFAULTS: dict[str, Any] = {"samples": 100, "features": 10, "noise": 0.1, "seed": 0}  # of two_moons, in order
_MOONS_OPTIONS = dict.fromkeys(_MOONS_DEFAULTS, (int, float))
_FILE_OPTIONS = {"variable": str, "labels": str, "transpose": bool, "header": bool, "index_column": (str, int, list)}
_WORDS = {str: "a text", bool: "true or false", (int, float): "a number"}  # for types of options


def _are_seeds(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(v) is int and 0 <= v < 2**32 for v in value)


_NUMBERS: dict[str, tuple[Any, Callable[[Any], bool], str]] = {  # default, check, in words
    "seeds": ([0], _are_seeds, "a list of whole numbers from 0 to 2^32 - 1, as in [0, 1, 2]"),
    "threads": (1, lambda v: type(v) is int and 1 <= v <= 1024, "a whole number from 1 to 1024"),
    "checkpoint_seconds": (60, lambda v: type(v) in (int, float) and 0 <= v <= 1e9, "a number from 0 to 10^9"),
}


class JobError(DufsError, ValueError):
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


@dataclass(frozen=True)
class Fit:
    """One fit of a sweep."""

    data: DataSet
    settings: Mapping[str, Any]  # every parameter that changes results, with its default
    seed: int
    threads: int

    @property
    def id(self) -> str:
        """The first 16 digits of the SHA-256 of all that the result depends on."""
        identity = {"settings": _without_limit(self.settings), "seed": self.seed, "threads": self.threads}
        identity |= {"data": self.data.described(), "version": __version__}
        return sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def _without_limit(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without max_memory: a sweep whose fits failed at it goes on with a higher one."""
    return {name: value for name, value in settings.items() if name != "max_memory"}


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
    except (ValueError, OverflowError, RuntimeError, MemoryError) as error:  # JobError, and what endless numbers raise
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
    common, grid = part(_parameters, document, "settings", "[settings]"), part(_grid, document)
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
    described["settings"] = _without_limit(common)
    for data, own in sets:
        if data.name in described["data"]:
            raise JobError(f'two data sets are called "{data.name}": give each its own name')
        if twice := [name for name in grid if name in common or name in own]:
            raise JobError(f"{twice[0]} stands in [grid] and in the settings; one of them has to go")
        described["data"][data.name] = data.described() | {"settings": _without_limit(own)}
        for values in itertools.product(*grid.values()):
            settings = _complete(common | own | dict(zip(grid, values, strict=True)))
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


def _table(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = document.get(name, {})
    if not isinstance(table, Mapping):
        raise JobError(f"{name} must be a table, [{name}], of parameters; got {table!r}")
    return table


def _parameters(document: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    """Parameters of DUFS (and preset) in one form each, since identities are hashes: None for "none", 1.0 for 1."""
    defaults, table = DUFS().get_params(deep=False), _table(document, name)
    for parameter in table:
        if parameter in _ELSEWHERE:
            raise JobError(f"{parameter} cannot stand in {where}: {_ELSEWHERE[parameter]}")
    presets = ["preset"] if where == "[settings]" else []
    _check_names(table, [*presets, *(known for known in defaults if known not in _ELSEWHERE)], where)
    found: dict[str, Any] = {}
    for parameter, value in table.items():
        none = value == "none" and (parameter == "fdr" or defaults.get(parameter, "") is None)
        found[parameter] = None if none else float(value) if parameter in _REAL and type(value) is int else value
    return found


def _grid(document: Mapping[str, Any]) -> dict[str, list[Any]]:
    grid = {}
    for name, values in _table(document, "grid").items():
        if not isinstance(values, list) or not values:
            raise JobError(f"[grid] lists values to combine, as in {name} = [1, 2]; got {name} = {values!r}")
        grid[name] = [_parameters({"grid": {name: value}}, "grid", "[grid]")[name] for value in values]
    return grid


def _complete(given: dict[str, Any]) -> dict[str, Any]:
    """All parameters that results depend on, checked as far as they can be without data."""
    changes = {name: value for name, value in given.items() if name != "preset"}
    try:
        selector = DUFS.preset(given["preset"], **changes) if "preset" in given else DUFS(**changes)
        with warnings.catch_warnings(action="ignore"):
            check_parameters(selector, _MANY, _MANY)
    except (ValueError, TypeError) as error:
        raise JobError(str(error)) from error
    for name, known in (("backend", backend.NAMES), ("engine", choose.NAMES)):
        if getattr(selector, name) not in known:
            raise JobError(f"{name} must be one of {', '.join(known)}; got {getattr(selector, name)!r}")
    return {name: value for name, value in selector.get_params(deep=False).items() if name not in _ELSEWHERE}


def _data(entry: Any, where: str, folder: Path) -> tuple[DataSet, dict[str, Any]]:
    """A data set and the settings that are its own."""
    if not isinstance(entry, Mapping) or not isinstance(entry.get("path"), str):
        raise JobError(f'{where} needs a path, as in path = "measurements.csv"')
    own = _parameters(entry, "settings", f"settings of {where}")
    path, name = entry["path"], entry.get("name", Path(entry["path"]).stem)
    if not isinstance(name, str) or not re.fullmatch(r"[\w.+-][\w .+-]*", name):
        raise JobError(f"{where}: a name is made of letters, digits, spaces and . _ + -; got {name!r}")
    options: dict[str, Any] = _MOONS_OPTIONS if path == MOONS else _FILE_OPTIONS
    _check_names(entry, ["path", "name", "settings", *options], where)
    given = {key: value for key, value in entry.items() if key in options}
    for key, value in given.items():
        types = options[key]
        if not isinstance(value, types) or (isinstance(value, bool) and types is not bool):
            words = _WORDS.get(types, "the name or number of a column, or a list of them")
            raise JobError(f"{where}: {key} must be {words}; got {value!r}")
    try:
        if path == MOONS:
            given = _MOONS_DEFAULTS | given
            digest = array_fingerprint(two_moons(*given.values()).X)
        else:
            if "index_column" in given:
                columns = given["index_column"]
                given["index_column"] = tuple(map(str, columns if isinstance(columns, list) else [columns]))
            if "$" in (path := os.path.expandvars(path)):
                raise ValueError(f"the path {path} names an environment variable that is not set")
            path = str(folder / Path(path).expanduser())
            digest = file_fingerprint(path)
    except OSError as error:
        raise JobError(f"{where}: {path} cannot be read: {os_reason(error)}") from error
    except (ValueError, TypeError, OverflowError, RuntimeError, MemoryError) as error:
        raise JobError(f"{where}: {error}") from error
    return DataSet(name, path, tuple(given.items()), digest), own
