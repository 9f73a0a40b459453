"""A sweep of 5 data sets x 8 values of lam x 5 seeds (bench/sweep.toml) beside the same fits in fresh processes.

    python -m bench.sweep [--max-iter N] [--every K] [--workers N] [--seconds S] [--out DIR] [--json FILE]

The sweep goes to DIR (default: a temporary one) and is resumed if a part is there. Then every K-th fit (default: each)
is computed by a process of its own, as a loop in a shell would: `dufs-core fit` with the same settings. Its bits are
compared. With --seconds the run ends, resumable from FILE and DIR, when so many have passed.

sweep_s: wall time of the sweep's processes; in_sweep_s: what the compared fits took in it; alone_s: wall time of the
processes that computed them alone; fits_s: what the fits in these took, without the start of the process.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.common import data_file, save
from dufs_core.cli.sweep.job_file import Fit, read_job
from dufs_core.cli.sweep.results import Store

COMMAND = [sys.executable, "-c", "import sys; from dufs_core.cli.main import main; sys.exit(main())"]


def digest(scores: Any) -> str:
    """Of gate parameters as JSON gives them: shortest decimals, which read back to the same bits."""
    return hashlib.sha256(json.dumps([repr(float(score)) for score in scores]).encode()).hexdigest()


def alone(fit: Fit) -> dict[str, Any]:
    """A fit by the command line in a fresh process, with the options that the job sets."""
    options = ["--n-jobs", str(fit.threads), "--random-state", str(fit.seed), "--json", "--backend", "numpy"]
    for name in ("lam", "max_iter", "max_runs"):
        options += ["--" + name.replace("_", "-"), str(fit.settings[name])]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": str(fit.threads)}
    began = time.perf_counter()
    ended = subprocess.run([*COMMAND, "fit", fit.data.path, *options], env=environment, capture_output=True, text=True)
    seconds = time.perf_counter() - began
    if ended.returncode:
        raise RuntimeError(ended.stderr)
    result = json.loads(ended.stdout)
    return {"seconds": seconds, "fit_seconds": result["seconds"], "scores": digest(result["scores"])}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-iter", type=int, default=600, metavar="N")
    parser.add_argument("--every", type=int, default=1, metavar="K")
    parser.add_argument("--workers", type=int, default=1, metavar="N")
    parser.add_argument("--seconds", type=float, default=float("inf"), metavar="S")
    parser.add_argument("--out", metavar="DIR")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    end = time.perf_counter() + arguments.seconds
    if "DUFS_DATA" not in os.environ:
        found = data_file("colon.mat")
        if found is None:
            print("left out: the data are not in DUFS_DATA or ../shared/data", file=sys.stderr)
            return 0
        os.environ["DUFS_DATA"] = str(found.parent)
    out = Path(arguments.out or tempfile.mkdtemp())
    out.mkdir(parents=True, exist_ok=True)
    text = Path(__file__).with_suffix(".toml").read_text()
    (out / "job.toml").write_text(text.replace("max_iter = 600", f"max_iter = {arguments.max_iter}"))
    job, store = read_job(out / "job.toml"), Store(out / "sweep")
    records: dict[str, Any] = {}
    if arguments.json and Path(arguments.json).exists():
        records = json.loads(Path(arguments.json).read_text())["records"]

    def keep() -> None:
        save(arguments.json, {"max_iter": arguments.max_iter, "workers": arguments.workers, "records": records})

    sweep = records.setdefault("sweep", {"seconds": 0.0, "parts": 0, "done": 0})
    if sweep["done"] < len(job.fits):
        options = ["--resume", "-q", *(["--workers", str(arguments.workers)] if arguments.workers > 1 else [])]
        command = [*COMMAND, "sweep", str(out / "job.toml"), "--out", str(store.directory), *options]
        began = time.perf_counter()
        process = subprocess.Popen(command)
        try:
            process.wait(None if arguments.seconds == float("inf") else max(1.0, end - began - 5))
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait()
        sweep["seconds"] += time.perf_counter() - began
        sweep["parts"] += 1
        sweep["done"] = sum(store.result(fit) is not None for fit in job.fits)
        keep()
    for fit in job.fits[:: arguments.every]:
        if sweep["done"] < len(job.fits) or time.perf_counter() > end:
            break
        if fit.id not in records:
            records[fit.id] = {"data": fit.data.name, **alone(fit)}
            keep()
    summary = compared(records, [fit for fit in job.fits[:: arguments.every] if fit.id in records], store)
    print(json.dumps(summary))
    save(arguments.json, {"max_iter": arguments.max_iter, "workers": arguments.workers, **summary, "records": records})
    return 1 if summary["mismatches"] else 0


def compared(records: dict[str, Any], fits: list[Fit], store: Store) -> dict[str, Any]:
    """Times of both ways, and how many fits differ in any bit of mu."""
    rows = [(records[fit.id], result) for fit in fits if (result := store.result(fit)) is not None]
    mismatches = sum(digest(result.arrays["mu"]) != record["scores"] for record, result in rows)
    return {
        "sweep_s": round(records["sweep"]["seconds"], 1), "fits": records["sweep"]["done"], "compared": len(rows),
        "in_sweep_s": round(sum(result.row["seconds"] for _, result in rows), 1),
        "alone_s": round(sum(record["seconds"] for record, _ in rows), 1),
        "fits_s": round(sum(record["fit_seconds"] for record, _ in rows), 1),
        "mismatches": mismatches,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
