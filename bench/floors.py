"""What a training step on a GPU must cost, from counts of operations and bytes: `python -m bench.floors`.

Microseconds at power 2, one draw a fit, float32, with the shares of open and undecided gates at the start. The rates
and the measured steps are those of bench/results/gpu.json.
"""

from __future__ import annotations

import json
from pathlib import Path

from bench.gpu_slices import STEPS
from dufs_core.objective.engines import gpu_plan

RESULTS = Path(__file__).with_name("results") / "gpu.json"
FITS = 64  # of 100 x 5966, in the last line
OPEN, UNDECIDED = 0.841, 0.683  # shares of the gates where mu = 1/2 and sigma = 1/2
MATRICES, DATA = 16, 7  # n x n, n x d arrays that the kernels between the products read or write


def launches(n: int, d: int, fits: int = 1) -> int | None:
    """Kernels of a captured step; None for one that is not captured."""
    if not gpu_plan.is_captured((n, d), fits, fits):
        return None
    return 18 + (gpu_plan.parts_of_gram(n, d, 1) > 1)


def floors(n: int, d: int, fits: int, rate: float, copy: float) -> dict[str, float]:
    """Of the products in multiply-adds (x' M x, G and A A are symmetric: half), of the passes in bytes."""
    return {
        "G": fits * n**2 * OPEN * d / 2 / rate,
        "A A, A H": fits * 1.5 * n**3 / rate,
        "x' M x": fits * n**2 * UNDECIDED * d / 2 / rate,
        "n x n": 4 * fits * MATRICES * n**2 / copy,
        "X": 4 * fits * DATA * n * d / copy,
    }


def table() -> str:
    """The table of docs/gpu.md."""
    slices = json.loads(RESULTS.read_text(encoding="utf-8"))["slices"]
    rates = slices["streaming"]["found"]["rates"]
    measured = {(r["n"], r["d"]): 1e3 * r["ours"]["median"] for r in slices["steps"]["found"]}
    each = measured[100, 20] / 20  # a launch: that step was 20 of them and no work
    lines = []
    for n, d, fits in [(n, d, 1) for n, d in STEPS] + [(100, 5966, FITS)]:
        found = {k: 1e6 * v for k, v in floors(n, d, fits, rates["product_float32"], rates["copy_float32"]).items()}
        count = launches(n, d, fits)
        cells = [f"{n} x {d}" + (f", {fits} fits" if fits > 1 else ""), *(f"{v:,.1f}" for v in found.values())]
        cells.append(f"{sum(found.values()):,.0f}")
        cells.append("by the host" if count is None else f"{count}: {count * each:.0f}")
        cells.append(f"{measured[n, d]:,.0f}" if fits == 1 else "")
        lines.append("| " + " | ".join(cells) + " |")
    head = ["size", *(f"`{name}`" for name in found), "floor", "launches", "measured before"]
    return "\n".join(["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1), *lines]) + "\n"


if __name__ == "__main__":
    print(table(), end="")
