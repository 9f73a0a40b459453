"""Pixels selected under noise: MNIST's threes and eights, and PIX10's faces; DUFS beside the Laplacian score.

MNIST: 1,000 random threes and eights of the test images, background pixels replaced by uniform draws from [0, 1].
PIX10: 100 faces, divided by their maximum, uniform draws from [0, 0.3] added to all pixels. See bench/paper/pixels.py.
"""

from __future__ import annotations

from typing import Any

from bench.paper import pixels
from bench.paper.cells import Cells, Report
from bench.paper.images import noisy_digits, noisy_faces
from bench.paper.pixels import WIDE, Setting

DATA = {
    "mnist": pixels.Data(
        "MNIST 3 and 8 with noise", noisy_digits, 1000, 60, 2,
        (Setting(0.1), Setting(0.3), Setting(1.0), Setting(2.0), WIDE), "columns", {"batch_size": 500},
    ),
    "pix10": pixels.Data(
        "PIX10 with noise", noisy_faces, 100, 20, 2,
        (Setting(0.1), Setting(0.3), Setting(1.0), Setting(2.0), Setting(0.3, 0.75), Setting(2.0, 0.75),
         Setting(2.0, 0.9), WIDE), "global", {},
    ),
}  # fmt: skip


def noisy(
    data: str, method: str, factor: float, seed: int, quick: bool, share: float | None = None, wide: bool = False
) -> dict[str, Any]:
    """One cell."""
    return pixels.selection(DATA[data], method, factor, seed, quick, share, wide)


def run(cells: Cells, quick: bool) -> Report:
    return pixels.report(cells, quick, DATA, noisy)
