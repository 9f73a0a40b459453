"""What each default is worth: single runs on noisy two moons with one part changed.

python -m bench.ablation [--seeds N] [--dims D ...] [--only VARIANT ...] [--json FILE]

100 samples, noise 0.1, columns permuted by the seed. Every finished fit is kept in FILE, and only what it lacks is
run; a table of all of FILE is written beside it, with the ending .md.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.common import markdown, number_of_runs, save
from bench.recovery import problem
from dufs_core import DUFS
from dufs_core.backend import Array, Backend
from dufs_core.objective.chain import Objective, Value
from dufs_core.objective.protocol import Engine
from dufs_core.selection.fit_task import FitTask

DIMS = (20, 50, 100)
NOISE = 0.1
ENDS = {  # how a run can end, and what the table says of it
    "exact": "exactly the two",
    "one": "one of the two alone",
    "more": "the two and others",
    "chance": "chance columns",
    "undecided": "gates undecided",
    "all": "all gates open",
}


class _Schedule(Engine):
    """An engine whose objective has one number changed: `start` while all gates are open, its own when none is."""

    def __init__(self, engine: Engine, number: str, start: float) -> None:
        self.engine, self.number, self.start = engine, number, start

    def __call__(self, bk: Backend, objective: Objective, mu: Array, eps: Array, X: Array) -> tuple[Value, Array]:
        share = float((mu > 0).mean())
        number = share * self.start + (1 - share) * getattr(objective, self.number)
        return self.engine(bk, replace(objective, **{self.number: number}), mu, eps, X)


class Annealed(DUFS):
    """DUFS in which one number of the objective moves with the share of open gates, from `start` to its parameter.

    The gates take no gradient through the share. They count as decided by the parameter gate_sigma, where an annealed
    one ends. Steps are taken one by one, because compiled code keeps the objective of a whole run.
    """

    name: str
    start: float

    def fit(self, X: Any, y: Any = None) -> Annealed:
        """Learn the gates."""
        task = FitTask.begin(self, X, y)
        task.run(_Schedule(task.engine(), self.name, self.start))
        return self


class AnnealedFactor(Annealed):
    """From bandwidth factor 5."""

    name, start = "bandwidth_factor", 5.0


class AnnealedSigma(Annealed):
    """From twice the default gate_sigma."""

    name, start = "gate_sigma", 1.0


class AnnealedToSmallSigma(Annealed):
    """From the default gate_sigma."""

    name, start = "gate_sigma", 0.5


def _single(kind: type[DUFS] = DUFS, **changes: Any) -> Callable[[int], DUFS]:
    """What makes the selector of one run for d columns."""
    return lambda d: kind(fdr=None, max_runs=1, **{k: v(d) if callable(v) else v for k, v in changes.items()})


VARIANTS: dict[str, Callable[[int], DUFS]] = {
    "the defaults": _single(),
    "1 draw": _single(n_draws=1),
    "2 draws": _single(n_draws=2),
    "64 draws": _single(n_draws=64),
    "SGD, rate d / 4": _single(optimizer="sgd", learning_rate=lambda d: d / 4),
    "SGD, rate d^2 / 10": _single(optimizer="sgd", learning_rate=lambda d: d * d / 10),
    "Adam, rate 0.005": _single(optimizer="adam", learning_rate=0.005),
    "Adam, rate 0.02": _single(optimizer="adam", learning_rate=0.02),
    "bandwidth factor 1": _single(bandwidth_factor=1.0),
    "bandwidth factor 5": _single(bandwidth_factor=5.0),
    "bandwidth factor from 5 to 2": _single(AnnealedFactor),
    "median bandwidth": _single(bandwidth="median"),
    "no gradient through the bandwidth": _single(bandwidth_gradient=False),
    "sigma 0.25": _single(gate_sigma=0.25),
    "sigma 1": _single(gate_sigma=1.0),
    "sigma from 1 to 0.5": _single(AnnealedSigma),
    "sigma from 0.5 to 0.25": _single(AnnealedToSmallSigma, gate_sigma=0.25),
    "the defaults with their search": lambda d: DUFS(fdr=None),
}


def end(chosen: Array, informative: Array, d: int, converged: bool) -> str:
    """One of ENDS."""
    if np.array_equal(chosen, informative):
        return "exact"
    if len(chosen) == d:
        return "all"
    if not converged:
        return "undecided"
    found = len(np.intersect1d(chosen, informative))
    if found == len(informative):
        return "more"
    return "one" if found == len(chosen) == 1 else "chance"


def measure(variant: str, d: int, seed: int) -> dict[str, Any]:
    """How one fit ends, its seconds and its steps."""
    X, informative = problem("two-moons", d, NOISE, seed)
    selector = VARIANTS[variant](d).set_params(random_state=seed)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of gates left undecided, and of runs that do not convince
        selector.fit(X)
    seconds = round(time.perf_counter() - start, 3)
    ended = end(np.flatnonzero(selector.support_), informative, d, selector.converged_)
    return {"ended": ended, "seconds": seconds, "n_iter": selector.n_iter_}


def table(records: list[dict[str, Any]]) -> str:
    """One line for every variant, over all d that were measured."""
    dims = sorted({r["d"] for r in records})
    rows = []
    for variant in VARIANTS:
        cells = {r["d"]: r for r in records if r["variant"] == variant}
        if not cells:
            continue
        ends = Counter(e for r in cells.values() for e in r["ended"])
        medians = [
            [None if d not in cells else np.median(cells[d][name]) for d in dims] for name in ("n_iter", "seconds")
        ]
        rows.append(
            [variant]
            + [f"{cells[d]['ended'].count('exact')} of {len(cells[d]['ended'])}" if d in cells else "-" for d in dims]
            + ["; ".join(f"{ends[key]} {text}" for key, text in ENDS.items() if key != "exact" and ends[key]) or "-"]
            + [
                ", ".join("-" if m is None else f"{m:{form}}" for m in line)
                for line, form in zip(medians, ("g", ".2f"), strict=True)
            ]
        )
    head = ["single runs of", *(f"d = {d}" for d in dims), "the others end with", "median steps", "median seconds"]
    return markdown(head, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=number_of_runs, default=20)
    parser.add_argument("--dims", nargs="+", type=int, default=list(DIMS))
    parser.add_argument("--only", nargs="+", choices=VARIANTS, metavar="VARIANT", help=", ".join(VARIANTS))
    parser.add_argument("--json", metavar="FILE")
    a = parser.parse_args()
    records: list[dict[str, Any]] = []
    if a.json and Path(a.json).exists():
        records = json.loads(Path(a.json).read_text())["records"]
    for d in a.dims:
        for variant in a.only or VARIANTS:
            record = next((r for r in records if (r["variant"], r["d"]) == (variant, d)), None)
            if record is None:
                record = {"variant": variant, "d": d, "ended": [], "seconds": [], "n_iter": []}
                records.append(record)
            for seed in range(len(record["ended"]), a.seeds):
                for name, found in measure(variant, d, seed).items():
                    record[name].append(found)
                save(a.json, {"records": records})
            print(variant, d, dict(Counter(record["ended"])), np.median(record["n_iter"]), flush=True)
    save(a.json, {"records": records}, table(records))
    if not a.json:
        print(table(records))


if __name__ == "__main__":
    main()
