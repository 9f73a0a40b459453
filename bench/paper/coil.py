"""Pixels selected on COIL-20 and on 17 objects of COIL-100; DUFS beside the Laplacian score. See bench/paper/pixels.py.

Batches of at most 1,000 rows and bandwidth factor 2, as the paper's runs on COIL-20; two draws a step.
"""

from __future__ import annotations

from typing import Any

from bench.paper import pixels
from bench.paper.cells import Cells, Report
from bench.paper.images import coil20, coil100_part
from bench.paper.pixels import WIDE, Setting

GRID = (Setting(2.0), WIDE)
SETTINGS = {"batch_size": 1000, "n_draws": 2}
DATA = {
    "coil20": pixels.Data("COIL-20", coil20, 1440, 60, 1, GRID, "columns", SETTINGS),
    "coil100-part": pixels.Data("COIL-100, 17 objects", coil100_part, 1224, 60, 1, GRID, "columns", SETTINGS),
}


def objects(data: str, method: str, factor: float, seed: int, quick: bool, wide: bool = False) -> dict[str, Any]:
    """One cell."""
    return pixels.selection(DATA[data], method, factor, seed, quick, wide=wide)


def run(cells: Cells, quick: bool) -> Report:
    return pixels.report(cells, quick, DATA, objects)
