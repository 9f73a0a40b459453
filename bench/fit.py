"""Whole fits beside featselectlib: seconds at equal steps, and seconds to the same quality.

    python -m bench.fit [--only NAME ...] [--budget SECONDS] [--json FILE]

Equal steps: both take the same number of SGD steps with one draw on all rows; scaling, and our permutation test at the
end, are part of the time. Same quality: ours is `DUFS(fdr=None, random_state=0)` (in minibatches of 1000 rows where
that is what `bench.real` does). Its quality is whether the best two columns are the two moons, or the k-means accuracy
of the best 100 columns. featselectlib trains with the authors' rate (1) on the parameter-free loss and is looked at
every so often (that is not part of its time) until its quality is at least ours, twice in a row, or the budget is
spent: then its time is a lower bound. Every program runs in a process of its own, compiled kernels in the cache.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import loadmat

from bench.common import data_file, save
from bench.peers import missing
from bench.real import CHANGES
from bench.steps import featselectlib_model
from dufs_core import DUFS
from dufs_core.datasets import two_moons
from dufs_core.inspection.metrics import kmeans_accuracy

STEPS = {"two moons": 2000, "Prostate-GE": 500, "COIL20": 30, "Isolet": 30}  # at equal steps
LOOK = {"two moons": 200, "Prostate-GE": 200, "COIL20": 20, "Isolet": 20}  # steps between two looks at the peer


def load(name: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] | None:
    """Data (n, d) and labels, or None where the file is not there."""
    if name == "two moons":
        data = two_moons(n_features=20, noise=0.1, random_state=0)
        return data.X, data.labels
    path = data_file(f"{name}.mat")
    if path is None:
        return None
    mat = loadmat(path)
    return mat["X"], mat["Y"].ravel()


def quality(name: str, X: Any, labels: Any, ranking: Any) -> float:
    """1 or 0 for the two moons, else k-means accuracy in percent."""
    if name == "two moons":
        return float(set(ranking[:2].tolist()) == {0, 1})
    return 100 * kmeans_accuracy(X[:, ranking[:100]].astype(np.float64), labels)[0]


def run(program: str, name: str, target: float, budget: float) -> dict[str, float]:
    """One program on one data set, in this process."""
    data = load(name)
    assert data is not None
    X, labels = data
    warnings.simplefilter("ignore")
    if program.startswith("ours"):
        DUFS(fdr=None, max_iter=1, max_runs=1).fit(X[:50, :30])  # kernels from the cache
        settings: dict[str, Any] = {"random_state": 0} | CHANGES.get(name, {})
        if program == "ours, steps":
            settings = {
                "n_draws": 1, "max_runs": 1, "max_iter": STEPS[name], "tol": 0.0, "optimizer": "sgd",
                "learning_rate": 1e-6, "bandwidth": "median", "n_neighbors": 1, "random_state": 0,
            }  # fmt: skip
        start = time.perf_counter()
        selector = DUFS(fdr=None, **settings).fit(X)
        seconds = time.perf_counter() - start
        return {
            "seconds": seconds, "steps": selector.n_iter_, "quality": quality(name, X, labels, selector.order_),
        }  # fmt: skip
    import torch
    from sklearn.preprocessing import StandardScaler

    start = time.perf_counter()
    scaled = torch.from_numpy(StandardScaler().fit_transform(X).astype(np.float32))
    model = featselectlib_model(X.shape[1], rate=1.0)
    if program == "featselectlib, steps":
        for _ in range(STEPS[name]):
            model.train_step(scaled)
        return {"seconds": time.perf_counter() - start, "steps": STEPS[name]}
    seconds, steps, reached, best = time.perf_counter() - start, 0, 0, 0.0
    while reached < 2 and seconds < budget:
        start = time.perf_counter()
        for _ in range(LOOK[name]):
            model.train_step(scaled)
        seconds += time.perf_counter() - start
        steps += LOOK[name]
        found = quality(name, X, labels, np.argsort(-model.get_gates("raw"), kind="stable"))
        reached, best = reached + 1 if found >= target else 0, max(best, found)
    return {"seconds": seconds, "steps": steps, "quality": best, "reached": float(reached >= 2)}


def child(program: str, name: str, target: float = 0.0, budget: float = 0.0) -> dict[str, float]:
    """`run` in a fresh process."""
    command = [sys.executable, "-m", "bench.fit", "--one", program, name, str(target), str(budget)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).resolve().parents[1])
    if done.returncode:
        raise RuntimeError(f"{program} on {name}: {done.stderr.strip().splitlines()[-1]}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return {key: round(value, 3) for key, value in result.items()}


def compare(name: str, budget: float, peer: bool) -> dict[str, Any]:
    """The record of one data set."""
    ours, best = child("ours, steps", name), child("ours", name)
    record: dict[str, Any] = {"data": name, "ours_equal_steps": ours, "ours": best}
    if peer:
        equal = child("featselectlib, steps", name)
        same = child("featselectlib", name, best["quality"], budget)
        record |= {
            "featselectlib_equal_steps": equal, "ratio_equal_steps": round(equal["seconds"] / ours["seconds"], 1),
            "featselectlib": same, "ratio_quality": round(same["seconds"] / best["seconds"], 1),
            "ratio_quality_is_a_lower_bound": not same["reached"],
        }  # fmt: skip
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--budget", type=float, default=120.0, help="seconds of training for the peer (default 120)")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        program, name, target, budget = arguments.one
        print(json.dumps(run(program, name, float(target), float(budget))))
        return
    package = missing("featselectlib")
    if package:
        print(f"featselectlib left out: it needs the package {package}, which is not installed (bench/README.md)")
    records = []
    for name in arguments.only:
        if load(name) is None:
            print(f"{name}: left out, {name}.mat is not in DUFS_DATA or ../shared/data")
            continue
        records.append(compare(name, arguments.budget, peer=not package))
        print(json.dumps(records[-1]), flush=True)
        save(arguments.json, {"records": records})


if __name__ == "__main__":
    main()
