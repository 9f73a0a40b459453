"""Fits with decoys (the default) and without (fdr=None) on real data: time, convergence, and k-means accuracy of the
top features beside all features.

python -m bench.real [--only NAME ...] [--json FILE]      (records of other data sets in FILE are kept)

Accuracy: k-means with k = number of classes on the raw columns, mean of 20 runs with one start each, best
assignment of clusters to classes. The fit sees columns scaled to mean 0 and variance 1 and no labels.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import loadmat

from bench.common import data_file, markdown, save
from dufs_core import DUFS
from dufs_core.inspection.metrics import kmeans_accuracy

CHANGES = {
    "COIL20": {"batch_size": 1000},
    "Isolet": {"batch_size": 1000},
    "Prostate-GE": {},
    "pixraw10P": {},
}  # fdr=None
COUNTS = (50, 100, 150, 200, 250, 300)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=CHANGES, default=list(CHANGES))
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    records = {}
    if arguments.json and Path(arguments.json).exists():
        kept = json.loads(Path(arguments.json).read_text())["records"]
        records = {(record["data"], "fdr" in record["settings"]): record for record in kept}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        DUFS(random_state=0, max_iter=1).fit(np.random.default_rng(0).normal(size=(50, 9)))  # compiles
    for name in arguments.only:
        path = data_file(f"{name}.mat")
        if path is None:
            print(f"{name}: left out, {name}.mat is not in DUFS_DATA or ../shared/data", flush=True)
            continue
        mat = loadmat(path)
        for settings in ({}, {"fdr": None} | CHANGES[name]):
            record = measure(mat["X"], mat["Y"].ravel(), settings)
            records[name, bool(settings)] = {"data": name} | record
            print(records[name, bool(settings)], flush=True)
            save(arguments.json, {"records": list(records.values())}, table(records))


def measure(X: np.ndarray, labels: np.ndarray, settings: dict[str, Any]) -> dict[str, Any]:
    """The record of one fit."""
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        selector = DUFS(random_state=0, **settings).fit(X)
    seconds = time.perf_counter() - start
    raw = X.astype(np.float64)
    accuracy = {k: kmeans_accuracy(raw[:, selector.order_[:k]], labels) for k in COUNTS}
    return {
        "n": X.shape[0], "d": X.shape[1], "settings": settings, "seconds": round(seconds, 2),
        "n_iter": selector.n_iter_, "runs": selector.n_runs_, "converged": selector.converged_,
        "selected": int(selector.support_.sum()),
        "accuracy_top": {str(k): [round(100 * v, 1) for v in a] for k, a in accuracy.items()},
        "accuracy_all": [round(100 * v, 1) for v in kmeans_accuracy(raw, labels)],
        "warnings": [str(w.message) for w in caught],
    }  # fmt: skip


def table(records: dict[tuple[str, bool], dict[str, Any]]) -> str:
    """Both fits of each data set side by side."""
    rows = []
    for name in dict.fromkeys(name for name, _ in records):
        pair = [records.get((name, gates)) for gates in (False, True)]
        if None not in pair:
            decoys, gates = pair
            rows.append(
                [name, f"{gates['n']} x {gates['d']}", gates["seconds"], decoys["seconds"],
                 f"{gates['seconds'] / decoys['seconds']:.1f}", gates["selected"], decoys["selected"],
                 decoys["converged"], f"{np.mean([a[0] for a in gates['accuracy_top'].values()]):.1f}",
                 f"{np.mean([a[0] for a in decoys['accuracy_top'].values()]):.1f}", decoys["accuracy_all"][0]]
            )  # fmt: skip
    head = ["data", "shape", "fdr=None, s", "decoys, s", "times faster", "fdr=None selects", "decoys select",
            "converged", "accuracy, fdr=None", "accuracy, decoys", "all features"]  # fmt: skip
    return markdown(head, rows)


if __name__ == "__main__":
    main()
