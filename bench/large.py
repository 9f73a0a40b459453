"""Fits of sparse data and of data on disk: time, peak memory, and the selection against that of dense data.

    python -m bench.large rcv1 [--max-iter N] [--columns M] [--dense] [--json FILE]
    python -m bench.large bladder|mnist [--max-iter N] [--batch-size N] [--dense] [--json FILE]

rcv1: 1747 documents x 47,236 tf-idf values; with --columns the M that most documents have. bladder: 2100 cells x 20,670
counts, log(1 + x), CSR. mnist: 10,000 images x 784, read from an .npy file in batches (of 1000). --dense fits the same
data as an array in memory. The peak is that of the process, less what it had before the fit.
"""

from __future__ import annotations

import argparse
import gzip
import resource
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from bench.common import data_file, save
from dufs_core import DUFS

RCV1 = ("rcv1_small.dat", "rcv1_small_test.data", "rcv1_smaller.dat")
RCV1_COLUMNS = 47_236


def required(name: str) -> Path:
    path = data_file(name)
    if path is None:
        raise SystemExit(f"{name} is not in DUFS_DATA or ../shared/data")
    return path


def vowpal_wabbit(paths: list[Path], d: int) -> sparse.csr_array:
    """The distinct documents of files of lines "label |f column:value ...", columns counted from 1."""
    seen: dict[str, None] = {}
    for path in paths:
        for line in path.read_text().splitlines():
            seen.setdefault(line.split("|", 1)[1].split(" ", 1)[1].strip())
    columns, values, indptr = [], [], [0]
    for document in seen:
        for entry in document.split():
            column, value = entry.split(":")
            columns.append(int(column) - 1)
            values.append(float(value))
        indptr.append(len(columns))
    return sparse.csr_array((values, columns, indptr), shape=(len(seen), d))


def rcv1(n_columns: int | None) -> Any:
    X = vowpal_wabbit([required(name) for name in RCV1], RCV1_COLUMNS)
    if n_columns is not None:
        documents = np.bincount(X.indices, minlength=X.shape[1])
        X = X[:, np.sort(np.argsort(-documents, kind="stable")[:n_columns])]
    return X


def bladder() -> Any:
    import h5py

    with h5py.File(required("mouse_bladder_cell_select_2100.h5"), "r") as file:
        parts = [sparse.csr_array(file["X"][start : start + 100]) for start in range(0, 2100, 100)]
    X = sparse.vstack(parts, format="csr").astype(np.float32)
    X.data = np.log1p(X.data)
    return X


def mnist(folder: str) -> Any:
    with gzip.open(required("t10k-images-idx3-ubyte.gz")) as file:
        X = np.frombuffer(file.read()[16:], dtype=np.uint8).reshape(10_000, 784)
    np.save(Path(folder) / "mnist.npy", X)
    return np.load(Path(folder) / "mnist.npy", mmap_mode="r")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", choices=["rcv1", "bladder", "mnist"])
    parser.add_argument("--max-iter", type=int, default=2000)
    parser.add_argument("--max-runs", type=int, default=1)
    parser.add_argument("--columns", type=int)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--dense", action="store_true")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    settings: dict[str, Any] = {
        "random_state": 0,
        "scaling": "global",
        "backend": "numpy",
        "max_runs": args.max_runs,
    }
    settings["batch_size"] = args.batch_size or (1000 if args.data == "mnist" else None)
    with tempfile.TemporaryDirectory() as folder:
        X = {"rcv1": lambda: rcv1(args.columns), "bladder": bladder, "mnist": lambda: mnist(folder)}[args.data]()
        if args.dense:
            X = X.toarray() if sparse.issparse(X) else np.array(X)
        small = sparse.random(40, 30, 0.2, random_state=0, format="csr")
        one = DUFS(fdr=None, **(settings | {"max_iter": 1, "batch_size": None}))
        one.fit(small if sparse.issparse(X) else small.toarray())
        before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
        fit = DUFS(fdr=None, **settings, max_iter=args.max_iter).fit(X)
        seconds = time.perf_counter() - began
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    result = {
        "data": args.data, "shape": list(X.shape), "dense": args.dense, "batch_size": settings["batch_size"],
        "engine": fit.engine_, "seconds": seconds, "peak_mb": peak / 1000,
        "n_iter": fit.n_iter_, "ms_per_step": 1000 * seconds / max(fit.n_iter_, 1),
        "converged": fit.converged_, "open": int((fit.mu_ > 0).sum()), "constant": len(fit.constant_features_),
        "gap": fit.excess_score_, "best": fit.order_[:50].tolist(),
    }  # fmt: skip
    print({key: value for key, value in result.items() if key != "best"}, fit.order_[:10])
    save(args.json, result)


if __name__ == "__main__":
    main()
