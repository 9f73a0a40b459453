"""What the fits of a job will take, before they are computed."""

from __future__ import annotations

import time
import warnings
from typing import Any

from dufs_core.backend import get_backend
from dufs_core.jobs.identity import DataSet, Fit
from dufs_core.jobs.job import Job
from dufs_core.jobs.work import load
from dufs_core.memory import needed_bytes

_STEPS = 4  # of a probe; the first, which may compile, is not counted
_COSTLY = (
    "power", "gate_noise", "n_draws", "batch_size", "engine", "backend", "dtype", "bandwidth", "optimizer",
)  # fmt: skip


def predict(job: Job) -> list[dict[str, Any]]:
    """For each fit its bytes, predicted by `dufs_core.memory`, and seconds, from a measured probe; or why not.

    A probe takes a few steps on the data with the fit's settings (once for fits of a data set that differ in nothing
    that steps cost). seconds: those of one run that takes max_iter steps. A run that converges takes fewer, a search
    over n_restarts runs may take as many times more.
    """
    found = []
    for data, fits in job.grouped():
        probes: dict[tuple[Any, ...], dict[str, Any]] = {}
        for fit in fits:
            key = tuple(fit.settings[name] for name in _COSTLY)
            if key not in probes:
                probes[key] = _probe(data, fit)
            probe = probes[key]
            step = probe.get("step_seconds")
            seconds = None if step is None else step * fit.settings["max_iter"]
            found.append({"id": fit.id, **probe, "seconds": seconds})
    return found


def _probe(data: DataSet, fit: Fit) -> dict[str, Any]:
    from dufs_core.estimator import DUFS

    ends: list[float] = []
    changes = {"max_iter": _STEPS, "n_restarts": 1, "tol": 0.0, "random_state": 0, "n_jobs": fit.threads}
    try:
        X = load(data)
        selector = DUFS(**(dict(fit.settings) | changes), callbacks=[lambda info: ends.append(time.perf_counter())])
        selector._engine(get_backend(selector.backend), X, fit.threads)
        step, data_bytes = selector.memory_of(X, fit.threads)
        memory = X.nbytes + needed_bytes(selector.engine_, step, data_bytes)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            selector.fit(X)
    except Exception as error:  # the sweep records it as the fit's; here it is the prediction
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}
    steps = len(ends) - 1  # -1 of data without a column that varies
    return {
        "bytes": int(memory),
        "engine": selector.engine_,
        "step_seconds": (ends[-1] - ends[0]) / steps if steps > 0 else None,
    }
