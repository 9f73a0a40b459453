"""Time, peak memory and error of one step as the data grow, beside what was predicted and beside peers.

    python -m bench.scale [--quick] [--json FILE]

Every record is a process of its own: one short fit (one draw, one run) on random data, after one on tiny data that
compiles. Gates have little noise (sigma 0.1), so that every column is open and undecided: the most that a step can
take. `seconds` is a training step, `peak_mib` the rise of resident memory during the fit above that before it
(VmHWM, reset before; "minibatch": without the pages of the file on disk), `predicted_mib` what the planner says,
`relative_error` the float32 gradient's distance to the float64 one of the same draw (of "dense" up to 5,000 rows, else
of "streaming"), relative in norm. `over_floor` of "streaming": `seconds` over 9.5 n^2 d multiply-adds at the rate of
NumPy's float32 product in the same process. Growth exponents are slopes of log seconds. Records that FILE has already
are kept, so that the command can be stopped and run again.

Peers (bench/README.md): featselectlib's training step until it runs out of memory (of 20 GiB), and the same score and
gradient through pykeops' lazy products and PyTorch's autograd. One that is missing is reported by name.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from bench import steps as programs
from bench.common import Peak, Records, child, parser
from bench.peers import gemm_rate, missing
from dufs_core import GatedLaplacian

BATCH = 1000
LIMIT = 20 << 30  # bytes that a peer may allocate
_ERROR_WORK = 2 * 10**11  # n^2 d beyond which a float64 step takes too long

Case = tuple[str, int, int]  # engine, rows, columns
QUICK: list[Case] = [
    ("dense", 1000, 50), ("streaming", 1000, 50), ("streaming", 20_000, 50), ("minibatch", 20_000, 50),
    ("sparse", 1000, 10_000),
]  # fmt: skip
ROWS = (1000, 3000, 10_000, 30_000, 100_000)
COLUMNS = (1000, 3000, 10_000, 30_000, 100_000)
FULL: list[Case] = [
    *[("dense", n, d) for d in (50, 500) for n in ROWS[:3]],
    *[("streaming", n, d) for d in (50, 500) for n in ROWS if n * d < 5 * 10**7],
    *[("minibatch", n, d) for d in (50, 500) for n in ROWS],
    *[("sparse", n, 10_000) for n in ROWS[:3]],
    *[("dense", 500, d) for d in COLUMNS],
    *[("sparse", 500, d) for d in COLUMNS],
    ("streaming", 20_000, 50), ("streaming", 5000, 50), ("dense", 5000, 50), ("sparse", 1747, 47_236),
    *[("featselectlib", n, 50) for n in ROWS],
    *[("pykeops", n, 50) for n in ROWS[:3]],
    ("streaming", 100_000, 500),
]  # fmt: skip
PEERS = ("featselectlib", "pykeops")


def data(engine: str, n: int, d: int, folder: str) -> Any:
    """Standard normal rows; 1% of the entries for "sparse"; on disk for "minibatch"."""
    rng = np.random.default_rng(0)
    if engine == "sparse":
        from scipy import sparse

        return sparse.random_array((n, d), density=0.01, format="csr", dtype=np.float32, rng=rng)
    if engine == "minibatch":
        path = Path(folder) / "X.npy"
        X = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(n, d))
        for start in range(0, n, BATCH):
            X[start : start + BATCH] = rng.standard_normal((min(BATCH, n - start), d), dtype=np.float32)
        X.flush()
        del X
        return np.load(path, mmap_mode="r")
    return rng.standard_normal((n, d), dtype=np.float32)


def _fit(engine: str, X: Any, steps: int) -> tuple[float, float]:
    """Seconds of a training step of a short fit, and the MiB that were predicted for it."""
    from dufs_core.selection import memory, trainer

    seconds, predicted = [], []
    train, check = trainer.train, memory.needed_bytes

    def timed(*arguments: Any, **how: Any) -> Any:
        start = time.perf_counter()
        runs = train(*arguments, **how)
        seconds.append((time.perf_counter() - start) / runs[0].n_iter)
        return runs

    def noted(*arguments: Any, **how: Any) -> int:
        predicted.append(check(*arguments, **how))
        return predicted[-1]

    trainer.train, memory.needed_bytes = timed, noted  # type: ignore[assignment]
    try:
        batch = {"batch_size": BATCH} if engine == "minibatch" else {"engine": engine}
        GatedLaplacian(max_iter=steps, gate_sigma=0.1, n_draws=1, max_runs=1, tol=0.0, random_state=0, **batch).fit(X)
    finally:
        trainer.train, memory.needed_bytes = train, check
    return seconds[-1], predicted[-1] / 2**20


def _error(engine: str, X: Any) -> float | None:
    """Relative error in norm of one float32 gradient."""
    from dufs_core.backend import get_backend
    from dufs_core.objective.chain import Objective
    from dufs_core.objective.engines.choose import get_engine
    from dufs_core.training.loop import gate_noise

    bk, rows = get_backend("numpy"), BATCH if engine == "minibatch" else X.shape[0]
    if rows * rows * X.shape[1] > _ERROR_WORK:
        return None
    used = "dense" if engine == "minibatch" else engine
    exact = "dense" if rows <= 5000 else "streaming"
    gradients = []
    for name, dtype in ((used, "float32"), (exact, "float64")):
        if engine == "sparse":
            from dufs_core.data.sparse import scale_sparse

            table = scale_sparse(X, "columns", dtype, by_rows=False).X
            given = table if name == "sparse" else table.dense_block(slice(None), np.arange(X.shape[1]))
        else:
            from dufs_core.data.dense import scale_columns

            given = scale_columns(np.asarray(X[:rows]), "columns", dtype).X
        d = X.shape[1]
        eps = gate_noise(bk, 0, 1, 1, None, np.arange(d), dtype)
        evaluate = get_engine(name, bk, os.cpu_count() or 1, sparse=name == "sparse")
        gradients.append(evaluate(bk, Objective(), np.full(d, 0.5, dtype), eps, given)[1].astype(np.float64))
    return float(np.linalg.norm(gradients[0] - gradients[1]) / np.linalg.norm(gradients[1]))


def _peer(engine: str, n: int, d: int) -> dict[str, Any]:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
    make = programs.featselectlib_stepper if engine == "featselectlib" else programs.keops_stepper
    try:
        make(100, d, os.cpu_count() or 1)(1)  # compiles
        step = make(n, d, os.cpu_count() or 1)
        with Peak() as peak:
            start = time.perf_counter()
            step(1)
            seconds = time.perf_counter() - start
    except (RuntimeError, MemoryError) as error:
        return {"failed": f"{type(error).__name__}: {str(error).strip().splitlines()[0][:160]}"}
    return {"seconds": seconds, "peak_mib": peak.mib}


def one(case: Case) -> dict[str, Any]:
    """A record, in this process."""
    engine, n, d = case
    record: dict[str, Any] = {"engine": engine, "n": n, "d": d, "seconds": None, "peak_mib": None}
    record |= {"predicted_mib": None, "relative_error": None}
    if engine in PEERS:
        return record | _peer(engine, n, d)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        _fit(engine, data("dense" if engine == "minibatch" else engine, 60, 50, folder), 2)
        X = data(engine, n, d, folder)
        with Peak(mapped=engine == "minibatch") as peak:
            seconds, predicted = _fit(engine, X, 1 if n * n * d > 10**11 else 3)
        record |= {"seconds": seconds, "peak_mib": peak.mib, "predicted_mib": predicted}
        if engine == "streaming":
            record["over_floor"] = seconds * gemm_rate() / (9.5 * n * n * d)
        record["relative_error"] = _error(engine, X)
    return record


def exponents(records: list[dict[str, Any]]) -> dict[str, float]:
    """Slopes of log seconds against log n (3,000 rows and more) and against log d (500 rows)."""
    found: dict[str, float] = {}
    for engine in dict.fromkeys(r["engine"] for r in records):
        done = [r for r in records if r["engine"] == engine and r["seconds"]]
        series = {f"n, d = {d}": [(r["n"], r["seconds"]) for r in done if r["d"] == d and r["n"] >= 3000]
                  for d in dict.fromkeys(r["d"] for r in done)}  # fmt: skip
        series["d, n = 500"] = [(r["d"], r["seconds"]) for r in done if r["n"] == 500]
        for name, points in series.items():
            if len(points) > 1:
                x, y = np.log(np.array(points, dtype=float)).T
                found[f"{engine}: {name}"] = round(float(np.polyfit(x, y, 1)[0]), 2)
    return found


def main() -> None:
    p = parser(__doc__)
    p.add_argument("--quick", action="store_true", help="five small records, no peers")
    a = p.parse_args()
    if a.one:
        print(json.dumps(one(tuple(a.one))))
        return
    records = Records(a.json, lambda r: (r["engine"], r["n"], r["d"]))
    for case in QUICK if a.quick else FULL:
        if package := missing(case[0]):
            print(f"{case[0]} is left out: {package} is not installed")
        elif case not in records.kept:
            try:
                records.add(child("bench.scale", *case))
            except RuntimeError as error:
                print(f"{case}: {error}")
                about = dict(zip(("engine", "n", "d"), case, strict=True))
                records.add(about | {"seconds": None, "failed": "killed"})
            records.save(exponents=exponents(list(records.kept.values())))
    print(exponents(list(records.kept.values())))


if __name__ == "__main__":
    main()
