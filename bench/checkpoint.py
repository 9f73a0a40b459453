"""What checkpoints cost: fits of Prostate-GE with none, and with one at different intervals.

    python -m bench.checkpoint [--repeats N] [--json FILE]

Seconds of CPU time (other work on the machine disturbs them least), the median of the repeats; saves: how many states
were written; ms_a_save: wall time of one, packing and flushing included. share_at_default: of the default interval,
what a save takes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

from scipy.io import loadmat

from bench.common import data_file, save
from dufs_core import DUFS
from dufs_core.selection.checkpoint import Checkpoint, CheckpointWriter

INTERVALS = (None, 60.0, 1.0, 0.0)  # seconds; 0: after every call of the engine


def fit(X: Any, path: Path, every: float | None) -> dict[str, Any]:
    """One fit, and the saves in it."""
    spent: list[float] = []
    keep = CheckpointWriter.save_now

    def timed(self: CheckpointWriter, progress: Any) -> None:
        began = time.perf_counter()
        keep(self, progress)
        spent.append(time.perf_counter() - began)

    callbacks = [] if every is None else [Checkpoint(path, every)]
    settings = {"fdr": None, "random_state": 0, "max_iter": 300, "max_runs": 1, "n_jobs": 1, "backend": "numpy"}
    selector = DUFS(**settings, callbacks=callbacks)
    with mock.patch.object(CheckpointWriter, "save_now", timed):
        began = time.process_time()
        selector.fit(X)
        seconds = time.process_time() - began
    return {"seconds": seconds, "saves": len(spent), "ms": spent, "mu": selector.mu_.tobytes()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, metavar="N")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    path = data_file("Prostate-GE.mat")
    if path is None:
        print("left out: Prostate-GE.mat is not in DUFS_DATA or ../shared/data")
        return
    warnings.simplefilter("ignore")
    X = loadmat(path)["X"]
    DUFS(fdr=None, random_state=0, max_iter=3, max_runs=1, n_jobs=1, backend="numpy").fit(X)  # compiles
    runs: dict[float | None, list[dict[str, Any]]] = {every: [] for every in INTERVALS}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(arguments.repeats):
            for every in INTERVALS:
                runs[every].append(fit(X, Path(folder, f"{turn}-{every}"), every))
    records = []
    for every, done in runs.items():
        saves = [1000 * s for run in done for s in run["ms"]]
        records.append(
            {
                "every_seconds": every, "cpu_s": round(median(run["seconds"] for run in done), 3),
                "saves": done[0]["saves"], "ms_a_save": round(median(saves), 2) if saves else None,
                "same_bits": all(run["mu"] == runs[None][0]["mu"] for run in done),
            }
        )  # fmt: skip
        print(json.dumps(records[-1]), flush=True)
    share = records[-1]["ms_a_save"] / 1000 / 60
    print(json.dumps({"share_at_default": share}))
    save(
        arguments.json, {"n": X.shape[0], "d": X.shape[1], "steps": 300, "share_at_default": share, "records": records}
    )


if __name__ == "__main__":
    main()
