"""Default fits on real data: time, convergence, and k-means accuracy of the top features beside all features.

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

import numpy as np
from scipy.io import loadmat

from bench.common import data_file, save
from dufs_core import DUFS
from dufs_core.metrics import kmeans_accuracy

CHANGES = {"COIL20": {"batch_size": 1000}, "Isolet": {"batch_size": 1000}, "Prostate-GE": {}, "pixraw10P": {}}
COUNTS = (50, 100, 150, 200, 250, 300)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=CHANGES, default=list(CHANGES))
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    records = {}
    if arguments.json and Path(arguments.json).exists():
        records = {record["data"]: record for record in json.loads(Path(arguments.json).read_text())["records"]}
    for name in arguments.only:
        path = data_file(f"{name}.mat")
        if path is None:
            print(f"{name}: left out, {name}.mat is not in DUFS_DATA or ../shared/data", flush=True)
            continue
        mat = loadmat(path)
        X, labels = mat["X"], mat["Y"].ravel()
        start = time.perf_counter()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            selector = DUFS(random_state=0, **CHANGES[name]).fit(X)
        seconds = time.perf_counter() - start
        raw = X.astype(np.float64)
        accuracy = {k: kmeans_accuracy(raw[:, selector.ranking_[:k]], labels) for k in COUNTS}
        record = {
            "data": name, "n": X.shape[0], "d": X.shape[1], "settings": CHANGES[name], "seconds": round(seconds, 1),
            "n_iter": selector.n_iter_, "runs": selector.n_runs_, "converged": selector.converged_,
            "selected": int(selector.support_.sum()), "permutation_gap": round(selector.permutation_gap_, 4),
            "accuracy_top": {str(k): [round(100 * v, 1) for v in a] for k, a in accuracy.items()},
            "accuracy_all": [round(100 * v, 1) for v in kmeans_accuracy(raw, labels)],
            "warnings": [str(w.message) for w in caught],
        }  # fmt: skip
        records[name] = record
        print(record, flush=True)
        save(arguments.json, {"records": list(records.values())})


if __name__ == "__main__":
    main()
