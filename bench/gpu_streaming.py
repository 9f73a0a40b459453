"""Streaming steps for `bench.gpu`: time, and memory where no n x n array fits. One draw, all gates undecided."""

from __future__ import annotations

from typing import Any

from bench.gpu_slices import _arrays, _timed, machine
from dufs_core.backend import Backend
from dufs_core.objective.chain import Objective
from dufs_core.objective.engines.choose import predicted_bytes
from dufs_core.objective.engines.gpu_dense import CudaEngine
from dufs_core.objective.engines.gpu_streaming import CudaStreamingEngine
from dufs_core.objective.protocol import StepSize

SIZES = [(5000, 50), (20_000, 50), (20_000, 256), (100_000, 50), (100_000, 256)]  # rows, columns
QUICK = [(5000, 50), (5000, 256)]
GRAM_ROWS = 20_000  # up to so many the Gram form is timed beside


def streaming(bk: Backend, quick: bool) -> dict[str, Any]:
    """A step's time beside its floor and the Gram form's, its bytes beside the prediction.

    The floor: 13 n^2 d multiply-adds at the rate of a product (see dufs_core/objective/engines/gpu_streaming.py).
    """
    rates, found, pool = machine(bk, quick), [], bk.xp.get_default_memory_pool()
    for n, d in QUICK if quick else SIZES:
        mu, eps, X = _arrays(bk, n, d, 1)
        moved = [mu, eps * 0, X]
        pool.free_all_blocks()
        before, engine = pool.total_bytes(), CudaStreamingEngine()
        engine(bk, Objective(), *moved)
        taken = int(pool.total_bytes() - before)
        repeats = 3 if n > GRAM_ROWS else 7
        record: dict[str, Any] = {
            "n": n, "d": d, "bytes": taken, "predicted": predicted_bytes("cuda_streaming", StepSize(n, d, 1, 4)),
            "floor": 1e3 * 13 * n * n * d / rates["product_float32"],
            "engine": _timed(bk, lambda e=engine, m=moved: e(bk, Objective(), *m), repeats),
        }  # fmt: skip
        record["engine_over_floor"] = record["engine"]["median"] / record["floor"]
        if n <= GRAM_ROWS:
            gram = CudaEngine()
            record["gram_form"] = _timed(bk, lambda e=gram, m=moved: e(bk, Objective(), *m), repeats)
        found.append(record)
    return {"rates": rates, "steps": found}
