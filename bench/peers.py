"""One gradient step of ours beside those of featselectlib, PyTorch autograd and JAX: time, floor, memory.

    python -m bench.peers [--quick] [--json FILE]

Needs the peers (bench/README.md); one that is missing is reported by name. Every program runs in a process of its
own with as many threads as there are cores, warmed up; programs take turns, and the medians of all turns are compared.
The floor is the time that the step's multiply-adds (bench/steps.py counts them) would take at the rate of a large
float32 matrix product by NumPy, measured in the same run. peak_mib: rise of resident memory over that before the
first step.
"""

from __future__ import annotations

import json
import os
import time
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import Any

import numpy as np

from bench import steps
from bench.common import Peak, child, parser, save

SIZES = ((100, 20), (100, 5966), (72, 7129), (1000, 1024), (1560, 617), (6000, 4955))
PROGRAMS = ("ours", "featselectlib", "torch", "torch compiled", "jax")
NEEDS = {"featselectlib": ("torch", "featselectlib"), "pykeops": ("torch", "pykeops"), "torch": ("torch",),
         "torch compiled": ("torch",), "jax": ("jax",)}  # fmt: skip
TURNS = 3  # one for more than 5,000 rows
SECONDS = 2.0  # of steps in a turn, at least two steps


def missing(program: str) -> str:
    """The package that keeps the program from running, or nothing."""
    for package in NEEDS.get(program, ()):
        try:
            version(package)
        except PackageNotFoundError:
            return package
    return ""


def gemm_rate() -> float:
    """Multiply-adds a second of a float32 product of 2000 x 2000 matrices; median of 7."""
    n = 2000
    A, B, C = np.ones((n, n), np.float32), np.ones((n, n), np.float32), np.empty((n, n), np.float32)
    np.matmul(A, B, out=C)
    seconds = []
    for _ in range(7):
        start = time.perf_counter()
        np.matmul(A, B, out=C)
        seconds.append(time.perf_counter() - start)
    return n**3 / median(seconds)


def measure(program: str, n: int, d: int) -> dict[str, float]:
    """Median milliseconds a step and peak MiB of one program, in this process."""
    threads = os.cpu_count() or 1
    if program.startswith("torch"):
        step = steps.torch_stepper(n, d, threads, compiled=program.endswith("compiled"))
    else:
        step = {"ours": steps.ours_stepper, "featselectlib": steps.featselectlib_stepper, "jax": steps.jax_stepper}[
            program
        ](n, d, threads)
    with Peak() as memory:
        step(1)
    start = time.perf_counter()
    step(1)
    one = time.perf_counter() - start
    together = max(1, int(0.05 / one))
    times = [one] if one > SECONDS else []
    if not times:
        step(together)
    start = time.perf_counter()
    while len(times) < 2 or time.perf_counter() - start < SECONDS:
        began = time.perf_counter()
        step(together)
        times.append((time.perf_counter() - began) / together)
    return {"ms": median(times) * 1e3, "peak_mib": memory.mib}


def compare(n: int, d: int, programs: list[str]) -> list[dict[str, Any]]:
    """One record for each peer at one size."""
    found: dict[str, list[dict[str, float]]] = {program: [] for program in programs}
    rates, failed = [], {}
    for _ in range(TURNS if n <= 5000 else 1):
        rates.append(gemm_rate())
        for program in programs:
            try:
                found[program].append(child("bench.peers", program, n, d))
            except RuntimeError as error:
                failed[program] = str(error)
    rate = median(rates)
    ms = {p: median([r["ms"] for r in results]) for p, results in found.items() if results}
    peak = {p: max(r["peak_mib"] for r in results) for p, results in found.items() if results}
    both = [p for p in ("torch", "torch compiled") if p in ms]
    records = []
    for peer in ("featselectlib", "torch", "jax"):
        program = min(both, key=ms.__getitem__) if peer == "torch" and both else peer
        if program not in ms:
            print(f"{n} x {d}: {peer} gave no time: {failed.get(program, 'not installed')}", flush=True)
            continue
        floor = steps.multiply_adds("ours", n, d) / rate * 1e3
        peer_floor = steps.multiply_adds(peer, n, d) / rate * 1e3
        records.append({
            "n": n, "d": d, "peer": peer, "program": program, "ours_ms": round(ms["ours"], 4),
            "peer_ms": round(ms[program], 4), "ratio": round(ms[program] / ms["ours"], 2), "floor_ms": round(floor, 4),
            "over_floor": round(ms["ours"] / floor, 2), "peak_mib": round(peak["ours"], 1),
            "peer_floor_ms": round(peer_floor, 4), "peer_over_floor": round(ms[program] / peer_floor, 2),
            "peer_peak_mib": round(peak[program], 1), "gemm_gmadds": round(rate / 1e9, 1),
            "all_ms": {p: round(t, 4) for p, t in ms.items()},
        })  # fmt: skip
        print(json.dumps(records[-1]), flush=True)
    return records


def main() -> None:
    p = parser(__doc__)
    p.add_argument("--quick", action="store_true", help="the first five sizes")
    a = p.parse_args()
    if a.one:
        print(json.dumps(measure(*a.one)))
        return
    for program in filter(missing, PROGRAMS):
        print(f"left out: {program} needs the package {missing(program)}, which is not installed (bench/README.md)")
    programs = [program for program in PROGRAMS if not missing(program)]
    records = []
    for n, d in SIZES[:5] if a.quick else SIZES:
        records += compare(n, d, programs)
        save(a.json, {"records": records})


if __name__ == "__main__":
    main()
