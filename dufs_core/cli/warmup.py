"""dufs-core warmup: compile every kernel of the CPU once, for an image or for many processes."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace

from dufs_core.cli.common import DONE, FAILED, single_line

_ROOM = 1 << 20  # bytes, of all kernels


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from dufs_core.kernels.native import cache_directory
    from dufs_core.training.progress import stage

    folder, began = cache_directory(), time.perf_counter()
    try:
        if folder is None:
            raise OSError("no directory for them can be made")
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_ROOM))
    except OSError as error:  # a fit would go on without
        advice = "name a directory that can be written in NUMBA_CACHE_DIR"
        print(f"dufs-core: kernels cannot be kept: {single_line(error)}; {advice}", file=sys.stderr)
        return FAILED
    with stage(sys.stderr.isatty(), "compiling kernels") as bar:
        for what in compiled_kernels():
            bar.clear()
            print(what, flush=True)
    print(f"all kernels are in {folder} ({time.perf_counter() - began:.1f} s)")
    return DONE


def compiled_kernels() -> Iterator[str]:
    """Compile what is not in the cache yet, and say each step before it is taken."""
    import numpy as np
    from scipy import sparse

    from dufs_core.backend import get_backend
    from dufs_core.data.sparse import scale_sparse
    from dufs_core.objective.chain import Objective
    from dufs_core.objective.engines.choose import new_engine
    from dufs_core.objective.optimizers import normalized
    from dufs_core.objective.protocol import RunSpec, Schedule

    bk, objective, d = get_backend("numpy"), Objective(), 4
    schedule = Schedule(n_draws=2, max_iter=1, tol=0.0)
    for dtype in ("float32", "float64"):
        X = np.asfortranarray(np.random.default_rng(0).normal(size=(20, d)), dtype)
        mu, eps = np.full(d, 0.5, dtype), np.zeros((2, d), dtype)
        X_sparse = scale_sparse(sparse.csc_array(X), "columns", dtype, by_rows=False).X
        for name, data in (("dense", X), ("streaming", X), ("sparse", X_sparse)):
            yield f"engine {name}, {dtype}"
            engine = new_engine(name)
            engine(bk, objective, mu, eps, data)
        for power, rows in ((1, 20), (2, 20), (2, 10)):  # whole steps, of each kernel of `dufs_core.kernels.steps`
            spec = RunSpec(replace(objective, power=power), normalized(0.01), schedule, 0, np.arange(d))
            steps = new_engine("dense").steps(bk, [spec], mu[None])
            if steps is not None:
                steps.advance(X[:rows], np.arange(rows), 1, 1)
