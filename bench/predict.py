"""What `dufs-core info --predict` says, beside the time and the memory of the fit.

python -m bench.predict [--quick] [--json FILE]

Every shape is a process of its own: a fit of tiny data, which loads everything, then in turn, twice where it is short,
the fit and the prediction, of which the fastest count. The data are N(0, 1); the first 20 columns, or a tenth of few,
share a shift of 0, 0.5 or 1 in three clusters of rows. `seconds` is the fit, `peak_mib` the most that the resident
memory of the first fit rises above that before, without pages of files, `prediction_seconds` what the prediction itself
took.
Target: time within a factor of 1.5, memory within 1.3. Records that FILE has already are kept.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.common import Peak, Records, child, markdown, parser
from dufs_core import DUFS
from dufs_core.selection.prediction import predict

Array = np.ndarray[Any, Any]
Record = dict[str, Any]
SHAPES = [
    (100, 200), (512, 2000), (300, 20_000), (600, 100), (2000, 200), (2000, 2000), (10_000, 100), (10_000, 1000),
    (30_000, 500), (100_000, 50), (100_000, 200), (1_000_000, 20),
]  # fmt: skip
QUICK = [(100, 200), (600, 100)]
STRUCTURED = 20  # columns at most
SHIFT = 0.5
TURNS = 2
SHORT = 10.0  # seconds of a fit that is made TURNS times


def data(n: int, d: int) -> Array:
    """Three clusters that few columns show weakly."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d), dtype=np.float32)
    cluster = rng.integers(3, size=n).astype(np.float32)
    X[:, : min(STRUCTURED, max(1, d // 10))] += SHIFT * cluster[:, None]
    return X


def one(n: int, d: int) -> Record:
    """A record, in this process."""
    warnings.simplefilter("ignore")
    for rows in (60, 600):
        DUFS(random_state=0, backend="numpy").fit(data(rows, 10))
    X = data(n, d)
    record: Record = {"n": n, "d": d}
    seconds: list[float] = []
    predicted: list[float] = []
    spent: list[float] = []
    while len(seconds) < TURNS and (not seconds or seconds[0] < SHORT):
        with Peak(mapped=True) as peak:
            start = time.perf_counter()
            selector = DUFS(random_state=0, backend="numpy").fit(X)
            seconds.append(time.perf_counter() - start)
        record.setdefault("peak_mib", peak.mib)
        start = time.perf_counter()
        found = predict(n, d)
        spent.append(time.perf_counter() - start)
        predicted.append(found.seconds)
    record |= {"seconds": min(seconds), "predicted_seconds": min(predicted), "prediction_seconds": min(spent)}
    return record | {"predicted_mib": found.bytes / 2**20, "found": int(selector.support_.sum())}


def table(records: list[Record]) -> str:
    """Shape, predicted, measured and their ratio."""
    header = ["rows", "columns", "s predicted", "s measured", "ratio", "MiB predicted", "MiB measured", "ratio"]
    lines = [
        [
            f"{r['n']:,}",
            f"{r['d']:,}",
            f"{r['predicted_seconds']:.2f}",
            f"{r['seconds']:.2f}",
            f"{r['predicted_seconds'] / r['seconds']:.2f}",
            f"{r['predicted_mib']:.0f}",
            f"{r['peak_mib']:.0f}",
            f"{r['predicted_mib'] / r['peak_mib']:.2f}",
        ]
        for r in records
    ]
    return markdown(header, lines)


def main(argv: Sequence[str] | None = None) -> None:
    p = parser(__doc__)
    p.add_argument("--quick", action="store_true", help="two small shapes")
    a = p.parse_args(argv)
    if a.one:
        print(json.dumps(one(*a.one)))
        return
    records = Records(a.json, lambda r: (r["n"], r["d"]), table)
    for shape in QUICK if a.quick else SHAPES:
        if shape not in records.kept:
            records.add(child("bench.predict", *shape))
            records.save()
    print(records.table)


if __name__ == "__main__":
    main()
