"""Environments of the packages: made by pip, and what is in them.

Everything here looks at an environment from outside, so a package that does not import is described like the others.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from statistics import median
from typing import Any

from bench.comparison.peers import NOT_INSTALLED, PEERS

ROOT = Path(__file__).resolve().parents[2]
_CONTENT = """
import json, sys
from importlib.metadata import distributions
from pathlib import Path
site = Path(next(p for p in sys.path if p.endswith("site-packages")))
found = {d.name.lower(): d for d in distributions(path=[str(site)]) if d.name.lower() not in ("pip", "setuptools")}
own = found.get(sys.argv[1].lower())
skip = ("pip", "pip-", "setuptools", "setuptools-", "pkg_resources", "_distutils_hack")
size = sum(f.stat().st_size for top in site.iterdir() if not top.name.startswith(skip)
           for f in ([top] if top.is_file() else top.rglob("*")) if f.is_file() and f.suffix != ".pyc")
licence = own and (own.metadata["License-Expression"] or next((c for c in own.metadata.get_all("Classifier", [])
                   if c.startswith("License")), None) or own.metadata["License"] or "none stated")
print(json.dumps({"distributions": len(found), "mb": round(size / 1e6), "version": own and own.version,
                  "licence": licence,
                  "python": sys.version.split()[0]}))
"""


def make(folder: Path, requirements: tuple[str, ...]) -> dict[str, Any]:
    """A fresh environment with `requirements`, unless `folder` is there; what pip said is kept in its pip.json."""
    record = folder / "pip.json"
    if not record.is_file():
        venv.create(folder, with_pip=True)
        command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--no-input", *requirements]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
        last = next((line for line in reversed(lines) if line.startswith(("ERROR", "Successfully"))), lines[-1])
        record.write_text(json.dumps({"asked": requirements, "exit": done.returncode, "said": last[:400]}) + "\n")
    result: dict[str, Any] = json.loads(record.read_text())
    return result


def _run(python: Path, code: str, *words: str) -> subprocess.CompletedProcess[str]:
    """In a folder without this checkout."""
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.run([str(python), "-c", code, *words], capture_output=True, text=True, cwd="/", env=environ)


def look(folder: Path, name: str) -> dict[str, Any]:
    """Content, licence, whether the module imports, seconds of that import (median of three, files in the cache)."""
    peer, python = PEERS[name], folder / "bin" / "python"
    facts: dict[str, Any] = json.loads(_run(python, _CONTENT, peer.distribution).stdout)
    times = []
    for _ in range(4):
        done = _run(
            python, f"import time; t = time.perf_counter(); import {peer.module}; print(time.perf_counter() - t)"
        )
        if done.returncode:
            return facts | {"imports": done.stderr.strip().splitlines()[-1]}
        times.append(float(done.stdout.splitlines()[-1]))
    return facts | {"imports": "yes", "import_s": round(median(times[1:]), 2)}


def refusals(folder: Path) -> dict[str, dict[str, Any]]:
    """What pip says to the packages that cannot be had."""
    return {name: make(folder / f"none-{i}", asked) for i, (name, asked) in enumerate(NOT_INSTALLED.items())}


def probe(python: Path, name: str, part: str, limit: float) -> list[dict[str, str]] | str:
    """One part of the probes in a process of that interpreter; the end of its errors where it fails."""
    command = [str(python), "-m", "bench.comparison.probes", name, part]
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=limit)
    except subprocess.TimeoutExpired:
        return f"ended after {limit:.0f} s"
    if done.returncode:
        return done.stderr.strip().splitlines()[-1][:200]
    records: list[dict[str, str]] = json.loads(done.stdout.splitlines()[-1])
    return records


def interpreter(folder: Path, name: str) -> Path:
    """The one that the probes of a package use, its environments made first."""
    peer = PEERS[name]
    made = make(folder / f"{name}-first", peer.install)
    if made["exit"]:
        sys.exit(f"{name}: pip failed: {made['said']}")
    if peer.adds:
        make(folder / f"{name}-second", peer.install + peer.adds)
    return folder / f"{name}-{peer.runs_in}" / "bin" / "python"
