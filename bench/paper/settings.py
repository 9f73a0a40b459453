"""The settings of table1: the committed grid of every method, its cells, and what they found."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from bench.common import MissingData
from bench.paper.cells import Cells
from bench.paper.protocol import ALL, COUNTS, DUFS_METHODS, RUNS, STARTS, cached_load

QUICK_COUNTS = (50, 100)
QUICK = {
    "DUFS": {"max_iter": 10},
    "CAE": {"steps": 10},
    "NDFS": {"max_iter": 2},
    "LLCFS": {"max_iter": 2},
}


def grid(start: str = STARTS[0]) -> dict[str, Any]:
    """The committed grid, and how k-means starts."""
    return tomllib.loads(Path(__file__).with_name("grid.toml").read_text()) | {"start": start}


def cells_of(fixed: dict[str, Any], data: str, method: str, quick: bool) -> list[dict[str, Any]]:
    """The settings of the cells of one method on one data set."""
    counts = list(QUICK_COUNTS if quick else fixed["counts"].get(method, COUNTS))
    method = "DUFS" if method in DUFS_METHODS else method
    settings = fixed.get(method, [{}])
    if method == "DUFS" and data in fixed["batch_size"]:
        settings = [s | {"batch_size": fixed["batch_size"][data]} for s in settings]
    if quick:
        settings = [s | QUICK.get(method, {}) for s in settings[:2]]
    return [_cell(fixed, data, method, s, [] if method == ALL else counts, 3 if quick else RUNS) for s in settings]


def extra_cells(fixed: dict[str, Any], data: str) -> list[dict[str, Any]]:
    """Other settings of DUFS on one data set, which no oracle chooses from."""
    return [
        _cell(fixed, data, "DUFS", extra["settings"] | ({} if lam is None else {"lam": lam}), list(COUNTS), RUNS)
        for extra in fixed["extra"]
        if data in extra["data"]
        for lam in extra.get("lam", [None])
    ]


def _cell(fixed: dict[str, Any], data: str, method: str, settings: Any, counts: Any, runs: int) -> dict[str, Any]:
    return {"data": data, "method": method, "settings": settings, "counts": counts, "runs": runs,
            "seed": fixed["seed"], "start": fixed["start"]}  # fmt: skip


def selection(cell: dict[str, Any]) -> dict[str, Any]:
    """What of a cell's settings its selection depends on: not how it is judged."""
    return {key: cell[key] for key in ("data", "method", "settings", "counts", "seed")}


def known(cells: Cells, settings: dict[str, Any], method: str) -> Any:
    """The result of a cell for a method, else None: a cell of DUFS has also what DUFS-R would have."""
    result = cells.known("judge", settings)
    if result is not None and method == "DUFS-R":
        return result | result["diverse"] if "diverse" in result else None  # the oldest cells have one order
    return result


def label_free(fixed: dict[str, Any], data: str, method: str) -> int | None:
    """Which setting is taken without labels; None where the shape of the data decides and is not known."""
    choice, wide = fixed["label_free"].get("DUFS" if method in DUFS_METHODS else method), is_wide(data)
    if choice is None:
        return 0
    return None if wide is None else int(choice["wide" if wide else "other"])


@cache
def is_wide(data: str) -> bool | None:
    """Whether there are more columns than rows; None without the file."""
    try:
        n, d = cached_load(data).X.shape
    except MissingData:
        return None
    return bool(d > n)
