"""Damaged and hostile files, read and fitted by the command line: whether each ends in a result or in a sentence.

    python -m bench.fuzz [--quick] [--minutes M] [--json FILE]

Files of every format, checkpoints and job files are changed (files.py): bits, cuts, insertions, pieces of other files,
numbers of headers and indices made huge, also within archives whose checksums are right. File I is made of the number I
alone (`outcome`). Workers take many files each, with 2 GiB of address
space, and 30 s of a processor for a file. The matrices of matrices.py follow the files.

crashes: files that ended a worker by a signal; tracebacks: exceptions that are no sentence; hangs; over_memory: files
for which memory ran out; nan: results that are not finite; peak_mib: the largest resident set of a worker.
"""

from __future__ import annotations

import io
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

from bench.common import ROOT, parser, save
from bench.fuzz.files import mutated, table, valid
from dufs_core import GatedLaplacian
from dufs_core.cli.main import main as command
from dufs_core.errors import DufsError

LIMIT, SECONDS, FILES, QUICK, SHARE = 2 << 30, 30, 50_000, 1_000, 2_500
MATRICES, QUICK_MATRICES = 3_000, 50
FIT = ["--json", "--backend", "numpy", "--n-jobs", "1", "--max-iter", "3"]
GATES = "--method gates --max-runs 1 --n-draws 2 --batch-size"
VARIANTS = (  # batches: a header may say millions of rows, and steps of all of them take hours
    f"{GATES} 1000", f"{GATES} 1000 --transpose", f"{GATES} 7", "--fdr 0.1", "--scaling global",
)  # fmt: skip
GOOD = {"matrices", "fits", "sound", "refused"}
BAD = ("crashes", "tracebacks", "hangs", "over_memory", "nan")


def outcome(number: int, files: dict[str, bytes], folder: Path) -> tuple[str, str, str]:
    """The name of the valid file, what became of the changed one, and the last that was said."""
    seeded, name = random.Random(number), list(files)[number % len(files)]
    path = folder / ("changed.toml" if name == "job.toml" else f"changed{Path(name).suffix}")
    path.write_bytes(mutated(seeded, name, files))
    if name.endswith(".ckpt"):
        return name, *resumed(path)
    fit = ["fit", str(path), *FIT, *seeded.choice(VARIANTS).split()]
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = command(["sweep", str(path), "--dry-run", "--json"] if name == "job.toml" else fit)
    said = err.getvalue()
    last = said.strip().rpartition("\n")[2]
    if "out of memory" in last:
        return name, "over_memory", last
    if "Traceback" in said or code not in (0, 2) or (code == 2 and not last.startswith("dufs-core: ")):
        return name, "tracebacks", said
    result = json.loads(out.getvalue()) if code == 0 and name != "job.toml" else {"scores": [0.0]}
    last_step = (result["loss"], result["bandwidth"]) if result.get("n_iter") else ()
    if None in (*result["scores"], *last_step):
        return name, "nan", out.getvalue()
    return name, "refused" if code else "taken", last


def resumed(path: Path) -> tuple[str, str]:
    try:
        with warnings.catch_warnings(action="ignore"):
            fit = GatedLaplacian.resume(path, table(), n_jobs=1, callbacks=[lambda info: True])
        return ("taken" if np.isfinite(fit.scores_).all() else "nan"), ""
    except Exception as error:
        inner = traceback.extract_tb(error.__traceback__)[-1].filename
        a_sentence = isinstance(error, DufsError) or (isinstance(error, ValueError) and "dufs_core" in inner)
        what = "refused" if a_sentence else "over_memory" if isinstance(error, MemoryError) else "tracebacks"
        return what, traceback.format_exc()


def work(first: int, stop: int) -> None:
    """Print a line before and after each file; a signal of a clock ends the process where one takes too long."""
    with tempfile.TemporaryDirectory() as name:
        files = valid(Path(name))
        resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for number in range(first, stop):
            print(json.dumps([number]), flush=True)
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            signal.alarm(20 * SECONDS)  # beside other programs a second takes long
            kind, what, said = outcome(number, files, Path(name))
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            print(json.dumps([number, kind, what, said[-1500:] if what in BAD else "", peak]), flush=True)


def share(numbers: range, end: float) -> tuple[Counter[str], int, list[dict[str, Any]]]:
    """Counts, peak and bad files of some numbers; a worker that dies is replaced by one for the numbers that follow."""
    counts, peak, bad, at = Counter[str](), 0, [], numbers.start

    def note(kind: str, what: str, said: str) -> None:
        counts[what] += 1
        if what in BAD:
            bad.append({"number": at, "kind": kind, "what": what, "said": said[-300:]})
            print(f"file {at} ({kind}): {what}: {said}", flush=True)

    while at < numbers.stop and time.monotonic() < end:
        argv = [sys.executable, "-m", "bench.fuzz", "--one", json.dumps([at, numbers.stop])]
        with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as worker:
            for line in worker.stdout or ():
                at, *found = json.loads(line)
                if found:
                    note(*found[:3])
                    peak, at = max(peak, found[3]), at + 1
                if time.monotonic() > end:
                    worker.kill()
        if worker.returncode and time.monotonic() < end:
            what = "hangs" if -worker.returncode in (signal.SIGALRM, signal.SIGPROF) else "crashes"
            note("?", what, f"ended with {worker.returncode}")
            at += 1
    return counts, peak, bad


def run(files: int, minutes: float) -> dict[str, Any]:
    """The files 0 to `files`, by as many workers as there are processors, for so many minutes at most."""
    began, workers = time.monotonic(), os.cpu_count() or 1
    size = min(SHARE, -(-files // workers))
    shares = [range(i, min(i + size, files)) for i in range(0, files, size)]
    with ThreadPoolExecutor(workers) as pool:
        done = list(pool.map(lambda numbers: share(numbers, began + 60 * minutes), shares))
    counts = sum((counts for counts, _, _ in done), Counter[str]())
    found = {"inputs": counts.total(), **{name: counts[name] for name in ("taken", "refused", *BAD)}}
    found |= {"peak_mib": max(peak for _, peak, _ in done), "seconds": round(time.monotonic() - began, 1)}
    return found | {"bad": [one for _, _, bad in done for one in bad][:50]}


def hostile(count: int) -> dict[str, int]:
    """How fits of the matrices 0 to `count` end, by as many processes as there are processors."""
    step = -(-count // (os.cpu_count() or 1))

    def part(first: int) -> Counter[str]:
        argv = [sys.executable, "-m", "bench.fuzz.matrices", str(first), str(min(step, count - first))]
        return Counter(json.loads(subprocess.check_output(argv, cwd=ROOT, text=True).strip().splitlines()[-1]))

    with ThreadPoolExecutor() as pool:
        return dict(sum(pool.map(part, range(0, count, step)), Counter()))


def main() -> int:
    made = parser(__doc__)
    made.add_argument("--quick", action="store_true", help=f"{QUICK:,} files instead of {FILES:,}")
    made.add_argument("--minutes", type=float, default=float("inf"), metavar="M", help="stop after so many")
    args = made.parse_args()
    if args.one is not None:
        work(*args.one)
        return 0
    found = run(QUICK if args.quick else FILES, args.minutes)
    found["matrices"] = hostile(QUICK_MATRICES if args.quick else MATRICES)
    save(args.json, found)
    print(json.dumps(found))
    return int(any(found[name] for name in BAD) or bool(found["matrices"].keys() - GOOD))


if __name__ == "__main__":
    sys.exit(main())
