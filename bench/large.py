"""Fits of sparse data and of data on disk: time, peak memory, and the selection against that of dense data.

    python -m bench.large rcv1 [--max-iter N] [--columns M] [--dense] [--json FILE]
    python -m bench.large bladder|mnist [--max-iter N] [--batch-size N] [--dense] [--json FILE]

rcv1: 1747 documents x 47,236 tf-idf values; with --columns the M that most documents have. bladder: 2100 cells x 20,670
counts, log(1 + x), CSR. mnist: 10,000 images x 784, read from an .npy file in batches (of 1000). --dense fits the same
data as an array in memory. The peak is that of the process, less what it had before the fit.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from bench.common import Peak, parser, required, save
from bench.paper.data import RCV1_FILES, read_documents, read_idx
from dufs_core import GatedLaplacian


def rcv1(n_columns: int | None = None) -> Any:
    """The distinct documents as tf-idf values of the words (CSR), of the most frequent words if a number is given."""
    X = sparse.csr_array(read_documents(*required(*RCV1_FILES))[0])[:, 1:]  # columns are counted from 1
    if n_columns is not None:
        documents = np.bincount(X.indices, minlength=X.shape[1])
        X = X[:, np.sort(np.argsort(-documents, kind="stable")[:n_columns])]
    return X


def bladder() -> Any:
    import h5py

    with h5py.File(*required("mouse_bladder_cell_select_2100.h5")) as file:
        parts = [sparse.csr_array(file["X"][start : start + 100]) for start in range(0, 2100, 100)]
    X = sparse.vstack(parts, format="csr").astype(np.float32)
    X.data = np.log1p(X.data)
    return X


def mnist(folder: str) -> Any:
    np.save(Path(folder) / "mnist.npy", read_idx(*required("t10k-images-idx3-ubyte.gz")).reshape(10_000, 784))
    return np.load(Path(folder) / "mnist.npy", mmap_mode="r")


def main() -> None:
    p = parser(__doc__)
    p.add_argument("data", choices=["rcv1", "bladder", "mnist"])
    p.add_argument("--max-iter", type=int, default=2000)
    p.add_argument("--max-runs", type=int, default=1)
    p.add_argument("--columns", type=int)
    p.add_argument("--batch-size", type=int)
    p.add_argument("--dense", action="store_true")
    a = p.parse_args()
    warnings.simplefilter("ignore")
    batch_size = a.batch_size or (1000 if a.data == "mnist" else None)
    settings: dict[str, Any] = {"random_state": 0, "scaling": "global", "backend": "numpy", "max_runs": a.max_runs}
    with tempfile.TemporaryDirectory() as folder:
        X = {"rcv1": lambda: rcv1(a.columns), "bladder": bladder, "mnist": lambda: mnist(folder)}[a.data]()
        if a.dense:
            X = X.toarray() if sparse.issparse(X) else np.array(X)
        small = sparse.random(40, 30, 0.2, random_state=0, format="csr")
        GatedLaplacian(max_iter=1, **settings).fit(small if sparse.issparse(X) else small.toarray())  # compiles
        with Peak() as peak:
            began = time.perf_counter()
            fit = GatedLaplacian(max_iter=a.max_iter, batch_size=batch_size, **settings).fit(X)
            seconds = time.perf_counter() - began
    result = {
        "data": a.data, "shape": list(X.shape), "dense": a.dense, "batch_size": batch_size,
        "engine": fit.engine_, "seconds": seconds, "peak_mib": peak.mib,
        "n_iter": fit.n_iter_, "ms_per_step": 1000 * seconds / max(fit.n_iter_, 1),
        "converged": fit.converged_, "open": int((fit.mu_ > 0).sum()), "constant": len(fit.constant_features_),
        "gap": fit.excess_score_, "best": fit.order_[:50].tolist(),
    }  # fmt: skip
    print({key: value for key, value in result.items() if key != "best"}, fit.order_[:10])
    save(a.json, result)


if __name__ == "__main__":
    main()
