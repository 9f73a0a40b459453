"""What the benchmarks share: their records, the data, the command line, processes of their own."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import loadmat

from dufs_core import __version__
from dufs_core.selection.atomic_io import write_bytes

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (
    "numpy", "scipy", "numba", "scikit-learn", "joblib", "torch", "featselectlib", "jax", "matplotlib", "scanpy",
)  # fmt: skip


def environment() -> dict[str, Any]:
    """Command, versions and machine that made a result."""
    model = platform.processor()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    module = getattr(sys.modules["__main__"].__spec__, "name", "?").removesuffix(".__main__")
    versions = {"python": platform.python_version(), "dufs-core": __version__}
    for name in PACKAGES:
        with suppress(ModuleNotFoundError):
            versions[name] = version(name)
    command = " ".join(["python -m", module, *sys.argv[1:]])
    return {"command": command, "versions": versions, "cpu": model, "cores": os.cpu_count()}


class MissingData(SystemExit):
    """A file is not there: a command that does not catch this ends with the sentence, which says which."""


def data_file(name: str) -> Path | None:
    """The benchmark file called `name`, from the folder DUFS_DATA or ../shared/data; None if it is not there."""
    for folder in (os.environ.get("DUFS_DATA"), ROOT.parent / "shared" / "data"):
        if folder and (Path(folder) / name).is_file():
            return Path(folder) / name
    return None


def required(*names: str) -> list[Path]:
    """The paths of files, or MissingData."""
    paths = {name: data_file(name) for name in names}
    missing = [name for name, path in paths.items() if path is None]
    if missing:
        raise MissingData(f"{' and '.join(missing)} not in DUFS_DATA or ../shared/data")
    return [path for path in paths.values() if path is not None]


def matlab(name: str) -> tuple[Any, Any]:
    """X and Y of `name`.mat, a file of the scikit-feature collection, as they are stored; or MissingData."""
    (path,) = required(f"{name}.mat")
    stored = loadmat(str(path))
    return stored["X"], stored["Y"].ravel()


def available(names: Iterable[str], load: Callable[[str], Any] = matlab) -> tuple[list[str], dict[str, str]]:
    """The data sets that `load` finds, and why the others are left out, which is printed too."""
    there, left_out = [], {}
    for name in names:
        try:
            load(name)
            there.append(name)
        except MissingData as reason:
            left_out[name] = str(reason)
            print(f"{name}: left out, {reason}", flush=True)
    return there, left_out


def child(module: str, *arguments: Any, timeout: float | None = None) -> Any:
    """What `python -m module --one ARGUMENTS` prints, a process of its own, as JSON in its last line.

    Raises RuntimeError with the last line of its errors where it fails, subprocess.TimeoutExpired after `timeout`.
    """
    command = [sys.executable, "-W", "ignore", "-m", module, "--one", json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=timeout)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1])
    return json.loads(done.stdout.splitlines()[-1])


def _resident(field: str) -> float:
    """MiB of this process: VmRSS, or VmHWM, the most since it was last reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024


def generator(part: str, kind: str, number: int) -> np.random.Generator:
    """Random numbers for data set `number` of a kind in a part of a benchmark."""
    return np.random.default_rng([number, *f"{part} {kind}".encode()])


class Peak:
    """The rise of resident memory inside a `with` block, in MiB.

    With `mapped`, without the pages of mapped files, which the system takes back when it needs them: sampled every 2
    ms, since only the sum has a high-water mark.
    """

    def __init__(self, mapped: bool = False) -> None:
        self._mapped, self._highest, self._over = mapped, 0.0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._over.wait(0.002):
            self._highest = max(self._highest, _resident("RssAnon"))

    def __enter__(self) -> Peak:
        Path("/proc/self/clear_refs").write_text("5")
        self._before = _resident("RssAnon" if self._mapped else "VmRSS")
        if self._mapped:
            self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self.mib = (self._highest if self._mapped else _resident("VmHWM")) - self._before


def parser(doc: str | None) -> argparse.ArgumentParser:
    """The command line of a benchmark, with --json FILE, and --one for `child`."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", metavar="FILE")
    made.add_argument("--one", type=json.loads, help=argparse.SUPPRESS)
    return made


def save(path: str | None, result: dict[str, Any], table: str = "") -> None:
    """Write a JSON file, and a Markdown table beside it, each whole or not at all, if a path is given."""
    if path:
        write_bytes(Path(path), (json.dumps(environment() | result, indent=1) + "\n").encode())
    if path and table:
        write_bytes(Path(path).with_suffix(".md"), f"{table}\n".encode())


class Records:
    """The records of a benchmark by their key, with those that FILE has already; `save` writes them with a table."""

    def __init__(
        self,
        file: str | None,
        key: Callable[[dict[str, Any]], Any],
        table: Callable[[list[dict[str, Any]]], str] = lambda records: "",
        **about: Any,
    ) -> None:
        self._file, self._key, self._table, self._about = file, key, table, about
        old = json.loads(Path(file).read_text())["records"] if file and Path(file).exists() else []
        self.kept = {key(record): record for record in old}

    @property
    def table(self) -> str:
        return self._table(list(self.kept.values()))

    def add(self, record: dict[str, Any]) -> None:
        self.kept[self._key(record)] = record
        print(json.dumps(record), flush=True)

    def save(self, **about: Any) -> None:
        save(self._file, self._about | {"records": list(self.kept.values())} | about, self.table)


def number_of_runs(text: str) -> int:
    """A value of --seeds. Raises argparse.ArgumentTypeError for what is no whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"the number of data sets must be a whole number of at least 1; got {text}")
    return int(text)


def markdown(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table; None is written as a dash."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join("-" if cell is None else str(cell) for cell in line) + " |" for line in lines)
