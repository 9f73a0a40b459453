"""Fits with decoys (DUFS) and of the gates alone (GatedLaplacian) on real data: time, convergence, and k-means accuracy
of the top features beside all features.

python -m bench.real [--only NAME ...] [--json FILE]      (records of other data sets in FILE are kept)

Accuracy: k-means with k = number of classes on the raw columns, mean of 20 runs with one start each, best
assignment of clusters to classes. The fit sees columns scaled to mean 0 and variance 1 and no labels.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np

from bench.common import Records, available, markdown, matlab, parser
from dufs_core import DUFS, GatedLaplacian
from dufs_core.inspection.metrics import kmeans_accuracy

CHANGES: dict[str, dict[str, Any]] = {  # of the gates alone
    "COIL20": {"batch_size": 1000}, "Isolet": {"batch_size": 1000}, "Prostate-GE": {}, "pixraw10P": {},
}  # fmt: skip
COUNTS = (50, 100, 150, 200, 250, 300)


def key(record: dict[str, Any]) -> tuple[str, str]:
    """The data set and the selector."""
    return record["data"], record["selector"]


def main() -> None:
    p = parser(__doc__)
    p.add_argument("--only", nargs="+", choices=CHANGES, default=list(CHANGES))
    a = p.parse_args()
    records = Records(a.json, key, table)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        DUFS(random_state=0).fit(np.random.default_rng(0).normal(size=(50, 9)))  # loads what fits need
    for name in available(a.only)[0]:
        for selector in (DUFS(random_state=0), GatedLaplacian(random_state=0, **CHANGES[name])):
            settings = CHANGES[name] if isinstance(selector, GatedLaplacian) else {}
            about = {"data": name, "selector": type(selector).__name__, "settings": settings}
            records.add(about | measure(*matlab(name), selector))
            records.save()


def measure(X: np.ndarray, labels: np.ndarray, selector: DUFS | GatedLaplacian) -> dict[str, Any]:
    """The record of one fit."""
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        selector.fit(X)
    seconds = time.perf_counter() - start
    raw = X.astype(np.float64)
    accuracy = {k: kmeans_accuracy(raw[:, selector.order_[:k]], labels) for k in COUNTS}
    return {
        "n": X.shape[0], "d": X.shape[1], "seconds": round(seconds, 2),
        "n_iter": getattr(selector, "n_iter_", 0), "runs": getattr(selector, "n_runs_", 0),
        "converged": getattr(selector, "converged_", True),
        "selected": int(selector.support_.sum()),
        "accuracy_top": {str(k): [round(100 * v, 1) for v in a] for k, a in accuracy.items()},
        "accuracy_all": [round(100 * v, 1) for v in kmeans_accuracy(raw, labels)],
        "warnings": [str(w.message) for w in caught],
    }  # fmt: skip


def table(records: list[dict[str, Any]]) -> str:
    """Both fits of each data set side by side."""
    rows, by_key = [], {key(record): record for record in records}
    for name in dict.fromkeys(name for name, _ in by_key):
        pair = [by_key.get((name, selector)) for selector in ("DUFS", "GatedLaplacian")]
        if None not in pair:
            decoys, gates = pair
            rows.append(
                [name, f"{gates['n']} x {gates['d']}", gates["seconds"], decoys["seconds"],
                 f"{gates['seconds'] / decoys['seconds']:.1f}", gates["selected"], decoys["selected"],
                 decoys["converged"], f"{np.mean([a[0] for a in gates['accuracy_top'].values()]):.1f}",
                 f"{np.mean([a[0] for a in decoys['accuracy_top'].values()]):.1f}", decoys["accuracy_all"][0]]
            )  # fmt: skip
    head = ["data", "shape", "gates, s", "decoys, s", "times faster", "gates select", "decoys select",
            "converged", "accuracy, gates", "accuracy, decoys", "all features"]  # fmt: skip
    return markdown(head, rows)


if __name__ == "__main__":
    main()
