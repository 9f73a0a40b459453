"""How often the selection is exactly the informative columns, or is reported as noise where there are none.

python -m bench.recovery [--quick] [--only PROBLEM ...] [--dims D ...] [--noises E ...] [--settings NAME ...]
                         [--seeds N] [--json FILE]

100 samples, columns permuted by the seed. Every finished cell is kept in FILE, and only what it lacks is run; a table
of all of FILE is written beside it, with the ending .md.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.base import clone

from bench.common import Records, markdown, number_of_runs, parser
from dufs_core import DUFS, GatedLaplacian
from dufs_core.datasets import two_moons
from dufs_core.errors import SelectionWarning

N = 100
PROBLEMS = ("two-moons", "three-clusters", "ring", "correlated", "heavy-tails", "none")
SETTINGS = {
    "default": DUFS(),
    "gates": GatedLaplacian(),
    "paper": GatedLaplacian.preset("paper"),
    "authors_code": GatedLaplacian.preset("authors_code").set_params(
        graph__bandwidth_factor=5.0
    ),  # as in their example of two moons
    "authors_code_c1": GatedLaplacian.preset("authors_code"),  # their class's default factor
}
FULL = ("default", "gates")  # the others have two moons alone
DIMS = (6, 10, 20, 30, 50, 100, 200)  # of two moons
FEWER_DIMS = (10, 20, 50)  # of two moons by the presets
FEWER_RUNS = 10
ENDS = (10, 100)  # of the other problems
NOISES = (0.05, 0.1, 0.316)  # of two moons


def problem(name: str, d: int, noise: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(X, sorted positions of the informative columns)."""
    if d < 3:
        raise ValueError(f"The problems have up to three informative columns: use at least 3 columns; got d = {d}")
    rng = np.random.default_rng([seed, d])
    X, informative = rng.normal(size=(N, d)), 2
    if name in ("two-moons", "correlated", "heavy-tails"):  # nuisance: N(0, 1); AR(1) with 0.3; t with 3 degrees
        moons = two_moons(N, d, noise, seed).X
        if name == "two-moons":
            X = moons
        elif name == "heavy-tails":
            X = rng.standard_t(3, size=(N, d))
        else:
            for k in range(3, d):
                X[:, k] = 0.3 * X[:, k - 1] + np.sqrt(1 - 0.3**2) * X[:, k]
        X[:, :2] = moons[:, :2]
    elif name == "ring":
        angle = rng.uniform(0, 2 * np.pi, N)
        X[:, :2] = np.column_stack([np.cos(angle), np.sin(angle)]) + noise * rng.normal(size=(N, 2))
    elif name == "three-clusters":  # one centre on each axis
        informative = 3
        X[:, :3] = 2 * np.eye(3)[np.arange(N) % 3] + noise * rng.normal(size=(N, 3))
    else:
        informative = 0
    order = rng.permutation(d)
    return X[:, order], np.flatnonzero(order < informative)


def plan(a: argparse.Namespace) -> Iterator[tuple[str, str, int, float, int]]:
    """(settings, problem, d, noise, runs) of every cell; the command line may leave all but the settings open."""
    for settings in a.settings:
        for name in a.only or (PROBLEMS if settings in FULL else ("two-moons",)):
            moons = name == "two-moons"
            dims = a.dims or ((DIMS if settings in FULL else FEWER_DIMS) if moons else ENDS)
            noises = a.noises or ((NOISES if settings in FULL else NOISES[:2]) if moons else (0.1,))
            for d in dims:
                slow = settings.startswith("authors_code") and d >= 50  # all 15,000 steps, noise for every sample
                runs = min(a.seeds, FEWER_RUNS) if slow else a.seeds
                yield from ((settings, name, d, noise, runs) for noise in noises)


def key(record: dict[str, Any]) -> tuple[Any, ...]:
    """What a cell is, but for the number of its runs."""
    return record["settings"], record["problem"], record["d"], record["noise"]


def measure(settings: str, name: str, d: int, noise: float, seeds: int) -> dict[str, Any]:
    """The record of one cell."""
    fits = []
    for seed in range(seeds):
        X, informative = problem(name, d, noise, seed)
        selector = clone(SETTINGS[settings]).set_params(random_state=seed)
        start = time.perf_counter()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            selector.fit(X)
        seconds = time.perf_counter() - start
        flagged = any(issubclass(w.category, SelectionWarning) for w in caught)
        exact = np.array_equal(np.flatnonzero(selector.support_), informative)
        runs = getattr(selector, "n_runs_", 0)  # a competition with decoys trains nothing
        contained = selector.support_[informative].all()
        fits.append((exact, contained, flagged, seconds, runs, selector.support_.sum()))
    exact, contained, flagged, seconds, runs, selected = (np.array(column) for column in zip(*fits, strict=True))
    return {
        "problem": name, "d": d, "noise": noise, "settings": settings, "runs": seeds,
        "exact": int(exact.sum()), "contained": int(contained.sum()), "flagged_as_noise": int(flagged.sum()),
        "seconds": round(float(np.median(seconds)), 2), "seconds_max": round(float(seconds.max()), 2),
        "runs_per_fit": round(float(runs.mean()), 2), "selected": float(np.median(selected)),
        "missed_seeds": np.flatnonzero(~exact).tolist(),
    }  # fmt: skip


def table(records: list[dict[str, Any]]) -> str:
    """Every record, in the order of SETTINGS and PROBLEMS."""
    names = list(SETTINGS)
    order = sorted(
        records, key=lambda r: (names.index(r["settings"]), PROBLEMS.index(r["problem"]), r["d"], r["noise"])
    )
    rows = [
        [r["settings"], r["problem"], r["d"], r["noise"] if r["problem"] != "none" else "-",
         f"{r['exact']} of {r['runs']}" if r["problem"] != "none" else "-",
         f"{r['contained']} of {r['runs']}" if r["problem"] != "none" and "contained" in r else "-",
         f"{r['flagged_as_noise']} of {r['runs']}", f"{r['seconds']:.2f} ({r['seconds_max']:.2f})"]
        for r in order
    ]  # fmt: skip
    head = ["settings", "problem", "d", "noise", "exactly the informative columns", "these among others",
            "reported as noise", "median (most) seconds a fit"]  # fmt: skip
    return markdown(head, rows)


def main(argv: list[str] | None = None) -> None:
    p = parser(__doc__)
    p.add_argument("--quick", action="store_true", help="two-moons, 10 seeds, d = 10, 20, 50, noise 0.05 and 0.1")
    p.add_argument("--only", nargs="+", choices=PROBLEMS)
    p.add_argument("--dims", nargs="+", type=int)
    p.add_argument("--noises", nargs="+", type=float)
    p.add_argument("--settings", nargs="+", choices=SETTINGS, help="all; with --quick: default")
    p.add_argument("--seeds", type=number_of_runs, default=50)
    a = p.parse_args(argv)
    a.settings = a.settings or (["default"] if a.quick else list(SETTINGS))
    if a.quick:
        a.only, a.dims, a.noises, a.seeds = ["two-moons"], [10, 20, 50], [0.05, 0.1], 10
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a step is no fit
        GatedLaplacian(random_state=0, max_iter=1).fit(two_moons().X)  # compiles
    records = Records(a.json, key, table)
    for *cell, runs in plan(a):
        if records.kept.get(tuple(cell), {}).get("runs") != runs:
            records.add(measure(*cell, runs))
            records.save()


if __name__ == "__main__":
    main()
