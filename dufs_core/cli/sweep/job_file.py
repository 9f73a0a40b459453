"""Job files: TOML, checked before anything is computed, with a sentence for every mistake.

seeds = [0, 1, 2]
threads = 1                      # of each fit (default 1)
checkpoint_seconds = 60          # between states of a fit in progress (default 60)

[[data]]                         # one or more
path = "measurements.csv"        # beside the job file; $VARIABLES are replaced; or "two-moons"
name = "measurements"            # default: the file's name
labels = "species"               # variable, labels, transpose, header, index_column: as in dufs-core fit
settings = {batch_size = 1000}   # for this data set

[settings]                       # parameters of every fit: those of DUFS, and preset
max_iter = 1000

[grid]                           # every combination of these, for every data set and seed
lam = [0.1, 0.2, "none"]         # TOML has no null: "none" is None
"""

from __future__ import annotations

import inspect
import itertools
import os
import re
import tomllib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from dufs_core._version import __version__
from dufs_core.cli.sweep.fit_id import DataSet, Fit, without_free
from dufs_core.errors import DufsError

_TOP = ("seeds", "threads", "checkpoint_seconds", "data", "settings", "grid")
_READING = {"variable": str, "labels": str, "transpose": bool, "header": bool, "index_column": list}
_MOONS: dict[str, Any] = {"samples": 100, "features": 10, "noise": 0.1, "seed": 0}
_ELSEWHERE = {
    "random_state": "the seeds are listed as seeds = [0, 1, ...]",
    "n_jobs": "the threads of each fit are set by threads = 1",
    "callbacks": "a job file cannot hold functions",
    "verbose": "a sweep has one progress bar",
}
_REAL = ("fdr", "lam", "bandwidth", "bandwidth_factor", "gate_sigma", "learning_rate", "momentum", "tol")
_MANY = 10**6  # rows and columns with which parameters are checked before the data are read


class JobError(DufsError, ValueError):
    """A job file cannot be used; the sentence says what is wrong."""


@dataclass(frozen=True)
class Job:
    """What a job file asks for."""

    fits: tuple[Fit, ...]  # in the order of the file: data sets, grid, seeds
    varied: tuple[str, ...]  # the parameters of the grid
    mentioned: tuple[str, ...]  # all parameters that the file sets
    checkpoint_seconds: float
    described: dict[str, Any]  # what a directory of results must agree with

    def grouped(self) -> list[tuple[DataSet, list[Fit]]]:
        """The fits of each data set."""
        return [(data, list(fits)) for data, fits in itertools.groupby(self.fits, lambda fit: fit.data)]


def read_job(path: str | Path) -> Job:
    """Read and check a job file.

    Raises
    ------
    JobError
        If it cannot be read, is not TOML, or something in it is unknown, missing or unusable.
    """
    path = Path(path)
    try:
        document = tomllib.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise JobError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise JobError(f"{path} is not a TOML file: {error}") from error
    try:
        return _job(document, path.absolute().parent)
    except JobError as error:
        raise JobError(f"{path}: {error}") from error


def _job(document: Mapping[str, Any], folder: Path) -> Job:
    _known(document, _TOP, "the job file")
    seeds = _seeds(document.get("seeds", [0]))
    threads = _whole(document.get("threads", 1), "threads")
    seconds = document.get("checkpoint_seconds", 60)
    if not _number(seconds) or seconds < 0:
        raise JobError(f"checkpoint_seconds must be a number of at least 0; got {seconds!r}")
    common = _parameters(_table(document, "settings"), "[settings]")
    grid = _grid(_table(document, "grid"))
    entries = document.get("data")
    if not isinstance(entries, list) or not entries:
        raise JobError("there is nothing to fit: at least one [[data]] with a path is needed")
    sets = [_data(entry, number, folder) for number, entry in enumerate(entries, start=1)]
    names = [data.name for data, _ in sets]
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise JobError(f'two data sets are called "{doubled[0]}": give each its own name')

    fits: dict[str, Fit] = {}
    mentioned = dict.fromkeys([*common, *grid])
    for data, own in sets:
        for name in grid:
            if name in common or name in own:
                raise JobError(f"{name} stands in [grid] and in the settings; one of them has to go")
        mentioned |= dict.fromkeys(own)
        for values in itertools.product(*grid.values()):
            settings = _complete(common | own | dict(zip(grid, values, strict=True)))
            for seed in seeds:
                fit = Fit(data, settings, seed, threads)
                if fit.id in fits:
                    raise JobError(
                        f'the fit of "{data.name}" with seed {seed} would be computed twice (also as that of '
                        f'"{fits[fit.id].data.name}"): the same data with the same settings are listed twice'
                    )
                fits[fit.id] = fit
    described = {
        "version": __version__, "seeds": seeds, "threads": threads, "settings": without_free(common),
        "grid": grid,
        "data": {data.name: data.described() | {"settings": without_free(own)} for data, own in sets},
    }  # fmt: skip
    return Job(
        tuple(fits.values()), tuple(grid), tuple(n for n in mentioned if n != "preset"), float(seconds), described
    )


# --- parts of the file -----------------------------------------------------------------------------------------------


def _known(table: Mapping[str, Any], names: Any, where: str) -> None:
    for name in table:
        if name not in names:
            close = get_close_matches(name, names, 1)
            raise JobError(
                f"{where} has no {name!r}" + (f"; did you mean {close[0]!r}?" if close else f": it has {_list(names)}")
            )


def _list(names: Any) -> str:
    return ", ".join(names)


def _table(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = document.get(name, {})
    if not isinstance(table, Mapping):
        raise JobError(f"{name} must be a table, [{name}], of parameters; got {table!r}")
    return table


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _whole(value: Any, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise JobError(f"{name} must be a whole number of at least 1; got {value!r}")
    return value


def _seeds(seeds: Any) -> list[int]:
    good = isinstance(seeds, list) and seeds and all(type(seed) is int and 0 <= seed < 2**32 for seed in seeds)
    if not good:
        raise JobError(f"seeds must be a list of whole numbers from 0 to 2^32 - 1, as in [0, 1, 2]; got {seeds!r}")
    if len(set(seeds)) < len(seeds):
        raise JobError(f"seeds must differ from each other; got {seeds}")
    return list(seeds)


def _defaults() -> dict[str, Any]:
    from dufs_core.selection.dufs import DUFS

    return {name: parameter.default for name, parameter in inspect.signature(DUFS).parameters.items()}


def _parameters(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Parameters of DUFS (and preset), with None for "none" where None is possible, and 1.0 for a 1 that means it."""
    defaults = _defaults()
    for name in table:
        if name in _ELSEWHERE:
            raise JobError(f"{name} cannot stand in {where}: {_ELSEWHERE[name]}")
    _known(table, [name for name in ("preset", *defaults) if name not in _ELSEWHERE], where)
    return {name: _value(name, value, defaults.get(name, "")) for name, value in table.items()}


def _value(name: str, value: Any, default: Any) -> Any:
    """The value of a parameter, the same however it is written: identities are hashes of it."""
    if value == "none" and (default is None or name == "fdr"):
        return None
    return float(value) if name in _REAL and type(value) is int else value


def _grid(table: Mapping[str, Any]) -> dict[str, list[Any]]:
    for name, values in table.items():
        if not isinstance(values, list) or not values:
            raise JobError(f"[grid] lists values to combine, as in {name} = [1, 2]; got {name} = {values!r}")
    if "preset" in table:
        raise JobError("preset stands in [settings]: make one job file for each preset")
    grid = {}
    for name, values in table.items():
        grid[name] = [_parameters({name: value}, "[grid]")[name] for value in values]
        if any(a == b and type(a) is type(b) for a, b in itertools.combinations(grid[name], 2)):
            raise JobError(f"[grid] {name} lists a value twice: {values}")
    return grid


def _complete(given: dict[str, Any]) -> dict[str, Any]:
    """All parameters that results depend on, checked as far as they can be without data."""
    from dufs_core import backend
    from dufs_core.objective import engines
    from dufs_core.selection.dufs import DUFS
    from dufs_core.selection.parameters import check_parameters

    changes = {name: value for name, value in given.items() if name != "preset"}
    try:
        selector = DUFS.preset(given["preset"], **changes) if "preset" in given else DUFS(**changes)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check_parameters(selector, _MANY, _MANY)
    except (ValueError, TypeError) as error:
        raise JobError(str(error)) from error
    for name, known in (("backend", backend.NAMES), ("engine", engines.NAMES)):
        if getattr(selector, name) not in known:
            raise JobError(f"{name} must be one of {_list(known)}; got {getattr(selector, name)!r}")
    return {name: value for name, value in selector.get_params(deep=False).items() if name not in _ELSEWHERE}


def _data(entry: Any, number: int, folder: Path) -> tuple[DataSet, dict[str, Any]]:
    """A data set, and the settings for it alone."""
    where = f"[[data]] number {number}"
    if not isinstance(entry, Mapping) or not isinstance(entry.get("path"), str):
        raise JobError(f'{where} needs a path, as in path = "measurements.csv"')
    own = _parameters(_table(entry, "settings"), f"settings of {where}")
    if "preset" in own:
        raise JobError(f"{where}: preset stands in [settings]")
    name = entry.get("name", Path(entry["path"]).stem)
    if not isinstance(name, str) or not re.fullmatch(r"[\w.+-][\w .+-]*", name):
        raise JobError(f"{where}: a name is made of letters, digits, spaces and . _ + -; got {name!r}")
    moons = entry["path"] == "two-moons"
    _known(entry, ["path", "name", "settings", *(_MOONS if moons else _READING)], where)
    given = {key: value for key, value in entry.items() if key not in ("path", "name", "settings")}
    return (_moons(name, given, where) if moons else _file(name, entry["path"], given, folder, where)), own


def _moons(name: str, given: Mapping[str, Any], where: str) -> DataSet:
    from dufs_core.data.files.arrays import array_fingerprint

    reading = _MOONS | dict(given)
    if not all(map(_number, reading.values())):
        raise JobError(f"{where}: {_list(_MOONS)} are numbers; got {dict(given)}")
    try:
        X = make_moons(reading)
    except (ValueError, TypeError) as error:
        raise JobError(f"{where}: {error}") from error
    return DataSet(name, "two-moons", tuple(reading.items()), array_fingerprint(X))


def make_moons(reading: Mapping[str, Any]) -> Any:
    """The data of a `DataSet` with the path "two-moons"."""
    from dufs_core.datasets import two_moons

    return two_moons(reading["samples"], reading["features"], reading["noise"], reading["seed"]).X


def _file(name: str, path: str, given: dict[str, Any], folder: Path, where: str) -> DataSet:
    from dufs_core.data.files.arrays import file_fingerprint

    for key, value in given.items():
        if key == "index_column" and isinstance(value, (str, int)) and not isinstance(value, bool):
            given[key] = value = [value]
        if not isinstance(value, _READING[key]):
            raise JobError(f"{where}: {key} must be a {_READING[key].__name__}; got {value!r}")
    if "index_column" in given:
        given["index_column"] = [str(column) for column in given["index_column"]]
    expanded = os.path.expandvars(path)
    if "$" in expanded:
        raise JobError(f"{where}: the path {path} names an environment variable that is not set")
    full = folder / Path(expanded).expanduser()
    if not full.is_file():
        raise JobError(f"{where}: {full} {'is not a file' if full.exists() else 'does not exist'}")
    try:
        digest = file_fingerprint(full)
    except OSError as error:
        raise JobError(f"{where}: {full} cannot be read: {(error.strerror or str(error)).lower()}") from error
    reading = tuple((key, tuple(value) if key == "index_column" else value) for key, value in given.items())
    return DataSet(name, str(full), reading, digest)
