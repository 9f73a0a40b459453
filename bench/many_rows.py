"""Whole fits of many rows: seconds beside the floors of the same run, and peak memory.

    python -m bench.many_rows [--quick] [--only CASE ...] [--json FILE]

Each record is a process of its own, after a fit of few rows. memory: 30,000 x 2,000 in memory, beside
`numpy.corrcoef(X.T)`. disk: 10^6 x 200 and 10^7 x 50 from .npy files, beside the sum of what no such fit can do
without, each measured by itself: the file read once, columns and decoys of all blocks made, their products at the rate
of one large product, and one product of each block with a matrix of its rows. sparse: 1,300,000 x 2,000 with 7%
stored, and 1% of the rows, in which 20 columns are stored ten times as often, as CSR made here in chunks. tall:
10^7 x 2. In all dense data 20 columns (of two: none) are shifted by 0.6 in half of the rows. `peak_mib`: the rise of
memory that belongs to the process alone during the fit; `predicted_mib` what the planner says.
"""

from __future__ import annotations

import json
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from bench.common import Peak, Records, child, markdown, parser
from bench.peers import gemm_rate
from dufs_core import DUFS
from dufs_core.backend import get_backend
from dufs_core.selection.fit import FitTask
from dufs_core.significance.blocks import BlockPools, Blocks
from dufs_core.significance.rows import Rows

Array = np.ndarray[Any, Any]
CHUNK = 20_000  # rows made at a time
STRUCTURED = 20
SHIFT = 0.3
DENSITY, RARE = 0.07, 0.01

Case = tuple[str, int, int]  # where the rows are, rows, columns
FULL: list[Case] = [
    ("memory", 30_000, 2000), ("disk", 10**6, 200), ("disk", 10**7, 50), ("tall", 10**7, 2),
    ("sparse", 1_300_000, 2000),
]  # fmt: skip
QUICK: list[Case] = [("memory", 2000, 100), ("disk", 20_000, 20), ("sparse", 20_000, 60)]


def chunks(n: int, d: int) -> Iterator[Array]:
    """Rows of the dense data, some at a time."""
    rng = np.random.default_rng(0)
    for start in range(0, n, CHUNK):
        rows = min(CHUNK, n - start)
        part = rng.standard_normal((rows, d), dtype=np.float32)
        if d > STRUCTURED:
            part[rng.random(rows) < 0.5, :STRUCTURED] += np.float32(2 * SHIFT)
        yield part


def stored(n: int, d: int, path: Path) -> Any:
    """The dense data in a file, as a memory map."""
    X = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(n, d))
    start = 0
    for part in chunks(n, d):
        X[start : start + len(part)] = part
        start += len(part)
    X.flush()
    del X
    return np.load(path, mmap_mode="r")


def counts(n: int, d: int) -> Any:
    """Sparse rows (CSR), a hundredth of which have more in 20 columns."""
    rng = np.random.default_rng(0)
    parts = []
    for start in range(0, n, CHUNK):
        rows = min(CHUNK, n - start)
        part = rng.random((rows, d), dtype=np.float32)
        part[rng.random(rows) < RARE, :STRUCTURED] *= 0.1
        parts.append(sparse.csr_array(np.where(part < DENSITY, 1 + part, 0)))
    return sparse.vstack(parts, format="csr")


def floors(X: Any) -> dict[str, float]:
    """Seconds of what a fit of rows on disk cannot do without."""
    n, d = X.shape
    bk = get_backend("numpy")
    seconds = {}

    # the file, read once
    start = time.perf_counter()
    for first in range(0, n, CHUNK):
        np.array(X[first : first + CHUNK])
    seconds["reading"] = time.perf_counter() - start

    # columns and decoys of every block, of rows in memory
    some = np.asfortranarray(X[: min(n, 200 * 512)])
    blocks = Blocks(bk, some, Rows(len(some)), 0, 2, len(some))
    pools = BlockPools(bk, blocks, np.arange(d), True, 0)
    start = time.perf_counter()
    for _ in pools.together():
        pass
    seconds["decoys"] = (time.perf_counter() - start) * n / blocks.n

    # their products, one side of the diagonal, and those of each block with a matrix of its rows
    D = pools.pool.size
    seconds["products"] = n * D * D / 2 / gemm_rate()
    seconds["graphs"] = n * D * 512 / gemm_rate()
    return seconds


def one(case: Case) -> dict[str, Any]:
    """A record, in this process."""
    where, n, d = case
    warnings.simplefilter("ignore")
    record: dict[str, Any] = {"where": where, "n": n, "d": d}
    with tempfile.TemporaryDirectory() as folder:
        DUFS(random_state=0).fit(np.concatenate(list(chunks(100, 30))))
        if where == "sparse":
            X = counts(n, d)
        elif where == "disk":
            X = stored(n, d, Path(folder) / "X.npy")
        else:
            X = np.concatenate(list(chunks(n, d)))
        selector = DUFS(random_state=0)
        step, kept = FitTask.begin(selector, X).memory
        with Peak(mapped=True) as peak:
            start = time.perf_counter()
            selector.fit(X)
            record["seconds"] = time.perf_counter() - start
        record |= {"peak_mib": peak.mib, "predicted_mib": (step.after + kept) / 2**20}
        record["recall"] = float(selector.support_[:STRUCTURED].mean())
        record["false"] = int(selector.support_[STRUCTURED:].sum())
        record["rows"] = selector.rows_._asdict()
        if where == "memory":
            start = time.perf_counter()
            np.corrcoef(X.T)
            record["floors"] = {"corrcoef": time.perf_counter() - start}
        elif where == "disk":
            record["floors"] = floors(X)
        if "floors" in record:
            record["over_floor"] = record["seconds"] / sum(record["floors"].values())
    return record


def table(records: list[dict[str, Any]]) -> str:
    head = ["rows", "columns", "where", "seconds", "floors", "ratio", "peak MiB", "predicted", "recall", "false"]
    head += ["rows in pairs", "rows on graphs"]
    lines = []
    for r in records:
        floors_of = ", ".join(f"{name} {seconds:.1f}" for name, seconds in r.get("floors", {}).items()) or None
        ratio = f"{r['over_floor']:.2f}" if "over_floor" in r else None
        line = [f"{r['n']:,}", f"{r['d']:,}", r["where"], f"{r['seconds']:.1f}", floors_of, ratio]
        line += [f"{r['peak_mib']:,.0f}", f"{r['predicted_mib']:,.0f}", f"{r['recall']:.2f}", r["false"]]
        lines.append([*line, f"{r['rows']['n_rows']:,}", f"{r['rows']['n_on_graphs']:,}"])
    return "Whole fits of many rows, and what none can do without, in the same run\n\n" + markdown(head, lines)


def main() -> None:
    p = parser(__doc__)
    p.add_argument("--quick", action="store_true", help="few rows")
    p.add_argument("--only", nargs="+", default=[case[0] for case in FULL], metavar="CASE")
    a = p.parse_args()
    if a.one:
        print(json.dumps(one(tuple(a.one))))
        return
    records = Records(a.json, lambda r: (r["where"], r["n"], r["d"]), table)
    for case in QUICK if a.quick else FULL:
        if case[0] in a.only and case not in records.kept:
            records.add(child("bench.many_rows", *case))
            records.save()
    print(records.table)


if __name__ == "__main__":
    main()
