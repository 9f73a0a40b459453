"""Minibatches beside the full batch: overlap of the best columns, accuracy, time.

    python -m bench.batches [--only NAME ...] [--sizes SIZE ...] [--json FILE]      (records in FILE are kept)

Default fits of one run on Isolet (1560 x 617) and COIL20 (1440 x 1024). `overlap`: how many of the 100 best columns are
among the full batch's 100 best (seed 0); the full batch with another seed says how much of a difference is the draws'.
Accuracy: k-means on the 100 best raw columns, mean of 20 runs (bench.real).
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

from bench.common import data_file, save
from dufs_core import DUFS
from dufs_core.inspection.metrics import kmeans_accuracy

BEST = 100
SIZES = (0, 1000, 500, 250)  # 0: the full batch


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.batches", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=("Isolet", "COIL20"), default=["Isolet", "COIL20"])
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    records: list[dict[str, Any]] = []
    if args.json and Path(args.json).exists():
        records = json.loads(Path(args.json).read_text())["records"]
    for name in args.only:
        path = data_file(f"{name}.mat")
        if path is None:
            print(f"{name}: left out, {name}.mat is not in DUFS_DATA or ../shared/data", flush=True)
            continue
        mat = loadmat(path)
        X, labels = mat["X"].astype(np.float64), mat["Y"].ravel()
        for size, seed in [(size, 0) for size in args.sizes] + [(0, 1)]:
            if any((r["data"], r["batch_size"], r["seed"]) == (name, size, seed) for r in records):
                continue
            start = time.perf_counter()
            selector = DUFS(fdr=None, batch_size=size or None, max_runs=1, random_state=seed).fit(X)
            seconds = time.perf_counter() - start
            best = selector.order_[:BEST]
            whole = [r for r in records if (r["data"], r["batch_size"], r["seed"]) == (name, 0, 0)]
            reference = whole[0]["best"] if whole else best.tolist()
            accuracy = [round(100 * v, 1) for v in kmeans_accuracy(X[:, best], labels)]
            records.append(
                {"data": name, "batch_size": size, "seed": seed, "seconds": round(seconds, 1),
                 "n_iter": selector.n_iter_, "converged": selector.converged_,
                 "selected": int(selector.support_.sum()), "backend": selector.backend_, "engine": selector.engine_,
                 "overlap": len(np.intersect1d(best, reference)), "accuracy": accuracy, "best": best.tolist()}
            )  # fmt: skip
            print({k: v for k, v in records[-1].items() if k != "best"}, flush=True)
            save(args.json, {"records": records})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
