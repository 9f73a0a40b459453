"""What every benchmark records, and where the data are."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dufs_core.selection.atomic_io import write_bytes

PACKAGES = ("dufs-core", "numpy", "scipy", "numba", "scikit-learn", "joblib")
OTHERS = ("torch", "featselectlib", "jax", "matplotlib")  # recorded where they are installed


def environment() -> dict[str, Any]:
    """Command, versions and machine that made a result."""
    model = platform.processor()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    module = getattr(sys.modules["__main__"].__spec__, "name", "?").removesuffix(".__main__")
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except ModuleNotFoundError:
            from dufs_core import __version__

            versions[name] = __version__ if name == "dufs-core" else "?"
    for name in OTHERS:
        with suppress(ModuleNotFoundError):
            versions[name] = version(name)
    command = " ".join(["python -m", module, *sys.argv[1:]])
    return {"command": command, "versions": versions, "cpu": model, "cores": os.cpu_count()}


def data_file(name: str) -> Path | None:
    """The benchmark file called `name`, from the folder DUFS_DATA or ../shared/data; None if it is not there."""
    for folder in (os.environ.get("DUFS_DATA"), Path(__file__).resolve().parents[2] / "shared" / "data"):
        if folder and (Path(folder) / name).is_file():
            return Path(folder) / name
    return None


def save(path: str | None, result: dict[str, Any], table: str = "") -> None:
    """Write a JSON file, and a Markdown table beside it, each whole or not at all, if a path is given."""
    if path:
        write_bytes(Path(path), (json.dumps(environment() | result, indent=1) + "\n").encode())
    if path and table:
        write_bytes(Path(path).with_suffix(".md"), f"{table}\n".encode())


def number_of_runs(text: str) -> int:
    """A value of --seeds. Raises argparse.ArgumentTypeError for what is no whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"the number of data sets must be a whole number of at least 1; got {text}")
    return int(text)


def markdown(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table; None is written as a dash."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join("-" if cell is None else str(cell) for cell in line) + " |" for line in lines)
