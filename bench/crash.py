"""Batch jobs killed at random moments, resumed, and compared bit by bit with one that was left alone.

    python -m bench.crash [--quick] [--kills N] [--terms N] [--seeds N] [--json FILE]

A sweep of 20 fits, which saves the state of its fits after every call of the engine, is killed with SIGKILL, half of
the times after a random time, half inside one of the calls that write, flush, rename and remove files (the n-th, n
random, before or after it); or asked to end by SIGTERM after a random time. It is resumed, and killed again, until it
is done; then the next one starts, until the kills asked for have happened (default 200 and 50; --quick: 10 and 2).
Every process is a fork of this one, which saves the seconds of importing and compiling. FILE, if it exists, is added
to, so that a run may be made in parts.

kills: SIGKILL and SIGTERM together; resumed: processes that found a part done; mismatches: arrays and numbers that are
not, bit by bit, those of the undisturbed sweep; lost,
duplicated: rows missing from the tables (lost too: states of fits that had to be started anew), or there twice.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any
from unittest import mock

from bench.common import number_of_runs, save
from dufs_core.cli.main import main as command
from dufs_core.selection import atomic_io

JOB = """
seeds = SEEDS
checkpoint_seconds = 0
[[data]]
path = "two-moons"
samples = 60
features = 15
[[data]]
path = "two-moons"
name = "in minibatches"
samples = 90
features = 10
settings = {batch_size = 40}
[settings]
method = "gates"
backend = "numpy"
n_draws = 4
max_runs = 2
max_iter = 150
[grid]
lam = ["none", 0.03]
"""
WRITES = ("fsync", "replace", "link", "unlink", "ftruncate", "pwrite", "write", "mkdir")  # of the module os


def in_child(arguments: list[str], before: Callable[[], None] = lambda: None) -> int:
    """The pid of a fork of this process that runs `dufs-core` silently."""
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        before()
        code = command(arguments)
    finally:
        os._exit(code)


def ended(pid: int) -> tuple[int, int]:
    """The signal and the exit code that a child ended with."""
    _, status = os.waitpid(pid, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, os.waitstatus_to_exitcode(status)


def dies_at(count: int) -> Callable[[], None]:
    """Make this process kill itself at its `count`-th write: odd before it, even after it."""
    calls = 0

    def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == count and count % 2:
                os.kill(os.getpid(), signal.SIGKILL)
            value = function(*args, **kwargs)
            if calls == count:
                os.kill(os.getpid(), signal.SIGKILL)
            return value

        return call

    def patch() -> None:
        for name in WRITES:
            mock.patch.object(os, name, wrapped(getattr(os, name))).start()

    return patch


def outcome(directory: Path) -> dict[str, Any]:
    """All that a sweep found, by fit: bytes of the arrays, and numbers of the row but its seconds."""
    found = {}
    for path in sorted((directory / "fits").glob("*.npz")):
        arrays = atomic_io.unpack_npz(path.read_bytes(), path)
        row = json.loads(str(arrays.pop("row")))
        row.pop("seconds")
        row.pop("warnings")  # some are said once per process
        found[path.stem] = {name: (str(a.dtype), a.shape, a.tobytes()) for name, a in arrays.items()} | row
    return found


def logged(directory: Path) -> tuple[int, str | None]:
    """How often a sweep was started, and the last event in its log; lines that a kill cut off do not count."""
    events = []
    if (directory / "log.jsonl").exists():
        for line in (directory / "log.jsonl").read_text().splitlines():
            with suppress(ValueError):
                events.append(json.loads(line)["event"])
    return events.count("started"), events[-1] if events else None


def started_anew(directory: Path) -> int:
    """Fits whose checkpoint was of no use."""
    anew = 0
    for path in (directory / "fits").glob("*.npz"):
        row = json.loads(str(atomic_io.unpack_npz(path.read_bytes(), path)["row"]))
        anew += "started anew" in row["warnings"]
    return anew


def rows(directory: Path) -> list[str]:
    """The identities in the table of a sweep."""
    with (directory / "results.csv").open(newline="") as file:
        return [row["id"] for row in csv.DictReader(file)]


def disturbed(folder: Path, job: Path, whole: float, kills: int, terms: int, rng: random.Random) -> dict[str, int]:
    """One sweep, killed until it is done, or until enough kills have happened; then left to end."""
    directory = folder / f"sweep{rng.getrandbits(60)}"
    arguments = ["sweep", str(job), "--out", str(directory), "--resume", "--json"]
    counts = dict.fromkeys(("sigkill", "sigkill_in_writes", "sigterm", "exits_3", "resumed", "unexpected"), 0)
    first = True
    while True:
        left = kills - counts["sigkill"], terms - counts["sigterm"]
        kind = "" if sum(left) == 0 else "term" if rng.random() * sum(left) < left[1] else "kill"
        counts["resumed"] += not first and any((directory / "checkpoints").glob("*.ckpt*"))
        first = False
        before, _ = logged(directory)
        if kind == "kill" and rng.random() < 0.5:
            in_writes, pid = True, in_child(arguments, dies_at(1 + int(rng.expovariate(1 / (3 * len(UNDISTURBED))))))
        else:
            in_writes, pid = False, in_child(arguments)
            if kind:
                time.sleep(rng.random() * whole / 3)
                os.kill(pid, signal.SIGTERM if kind == "term" else signal.SIGKILL)
        by, code = ended(pid)
        begun, last = logged(directory)
        cut_off = by == signal.SIGTERM and begun > before and last not in ("finished", "interrupted")
        counts["sigkill"] += by == signal.SIGKILL
        counts["sigkill_in_writes"] += by == signal.SIGKILL and in_writes
        counts["sigterm"] += kind == "term" and (by == signal.SIGTERM or code == 3)
        counts["exits_3"] += code == 3
        counts["unexpected"] += cut_off or by not in (0, signal.SIGKILL, signal.SIGTERM) or code not in (0, 3, -9, -15)
        if (by, code) == (0, 0):
            return counts | compared(directory)


UNDISTURBED: dict[str, Any] = {}


def compared(directory: Path) -> dict[str, int]:
    """What differs from the undisturbed sweep."""
    found, table = outcome(directory), rows(directory)
    return {
        "mismatches": sum(
            found[fit].get(name) != value
            for fit, whole in UNDISTURBED.items() if fit in found
            for name, value in whole.items()
        ) + len(found.keys() - UNDISTURBED.keys()),
        "lost": len(UNDISTURBED.keys() - set(table)) + started_anew(directory),
        "duplicated": len(table) - len(set(table)),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="12 kills")
    parser.add_argument("--kills", type=int, metavar="N", help="of SIGKILL")
    parser.add_argument("--terms", type=int, metavar="N", help="of SIGTERM")
    parser.add_argument(
        "--seeds", type=number_of_runs, metavar="N", default=5, help="of each of four settings (default: 5)"
    )
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    kills = arguments.kills if arguments.kills is not None else 10 if arguments.quick else 200
    terms = arguments.terms if arguments.terms is not None else 2 if arguments.quick else 50
    earlier: dict[str, Any] = {}
    if arguments.json and Path(arguments.json).exists():
        earlier = json.loads(Path(arguments.json).read_text())
    rng = random.Random(earlier.get("kills", 0))
    total: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job = folder / "job.toml"
        job.write_text(JOB.replace("SEEDS", str(list(range(arguments.seeds)))))
        alone = folder / "alone"
        with redirect_stdout(io.StringIO()):  # imports and compiles, for every fork
            command(["sweep", str(job), "--out", str(folder / "warm-up")])
        began = time.perf_counter()
        if ended(in_child(["sweep", str(job), "--out", str(alone)])) != (0, 0):
            print("the undisturbed sweep failed", file=sys.stderr)
            return 1
        whole = time.perf_counter() - began
        UNDISTURBED.update(outcome(alone))
        done = 0
        while True:
            left = kills - total.get("sigkill", 0), terms - total.get("sigterm", 0)
            if max(left) <= 0:
                break
            counts = disturbed(folder, job, whole, max(0, left[0]), max(0, left[1]), rng)
            total = {key: total.get(key, 0) + count for key, count in counts.items()}
            done += 1
            print(json.dumps({"sweeps": done} | total), flush=True)
    total["sweeps"], total["fits"] = done, done * len(UNDISTURBED)
    total["kills"] = total["sigkill"] + total["sigterm"]
    keys = ["kills", "resumed", "mismatches", "lost", "duplicated", *sorted(total.keys())]
    result: dict[str, Any] = {key: total[key] + earlier.get(key, 0) for key in keys}
    print(json.dumps(result))
    save(arguments.json, result | {"parts": earlier.get("parts", 0) + 1, "seconds_of_one_sweep": round(whole, 2)})
    return 1 if result["mismatches"] or result["lost"] or result["duplicated"] or result["unexpected"] else 0


if __name__ == "__main__":
    sys.exit(main())
