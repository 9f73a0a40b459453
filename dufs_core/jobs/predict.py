"""What the fits of a job will take, before they are computed."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from dufs_core.backend import get_backend
from dufs_core.checkpoint import Checkpoint
from dufs_core.errors import InterruptedFit
from dufs_core.jobs import group
from dufs_core.jobs.identity import Fit
from dufs_core.jobs.job import Job
from dufs_core.jobs.work import load, one_line
from dufs_core.memory import needed_bytes
from dufs_core.search import Progress

_STEPS, _SECONDS = 4, 0.3  # that a probe takes at least
_MOST_STEPS = 1000
_COSTLY = (
    "power", "gate_noise", "n_draws", "batch_size", "engine", "backend", "dtype", "bandwidth", "optimizer",
)  # fmt: skip


def predict(job: Job, in_this_process: bool = True) -> list[dict[str, Any]]:
    """For each fit its bytes, predicted by `dufs_core.memory`, and seconds, from a measured probe; or why not.

    A probe takes some steps on the data with the fit's settings (once for fits of a data set that differ in nothing
    that steps cost). Fits that a GPU would compute as one population are probed as one: together is their number, bytes
    are those of all of them, seconds are each one's share. seconds: those of one run that takes max_iter steps. A run
    that converges takes fewer, a search over n_restarts runs may take as many times more.
    """
    found: dict[str, dict[str, Any]] = {}
    for _, fits in job.grouped():
        probes: dict[tuple[Any, ...], dict[str, Any]] = {}
        for task in group.tasks(fits, in_this_process):
            size = group.size(task)[0] if len(task) > 1 else 1
            for start in range(0, len(task), size):
                some = task[start : start + size]
                key = (len(some), *(some[0].settings[name] for name in _COSTLY))
                if key not in probes:
                    probes[key] = _probe(some)
                step = probes[key].get("step_seconds")
                for fit in some:
                    seconds = None if step is None else step * fit.settings["max_iter"] / len(some)
                    found[fit.id] = {"id": fit.id, "together": len(some), **probes[key], "seconds": seconds}
    return [found[fit.id] for fit in job.fits]


class _Clock(Checkpoint):
    """Keeps no state but the time of every look, and ends the fit once it has seen enough."""

    def __init__(self, fit: Fit) -> None:
        super().__init__(fit.id)  # a path that is never written to; those of a population differ
        self.start = Progress([], None)
        self.looks: list[tuple[int, float]] = []

    def begin(self, *_: Any) -> Any:
        """The keeper of the fit is the clock itself."""
        return self

    def keep(self, progress: Callable[[], Progress]) -> None:
        """Called between steps."""
        position = progress().position
        step, now = position.step if position is not None else 0, time.perf_counter()
        if not self.looks or step > self.looks[-1][0]:  # one that has ended waits for others of a population
            self.looks.append((step, now))
        began = self.looks[0][1]
        if step >= _STEPS and (now - began >= _SECONDS or step >= _MOST_STEPS // 2):
            raise InterruptedFit("the probe has seen enough")

    def finish(self, progress: Progress) -> None:
        """Called at the end of a fit that is not interrupted."""

    @property
    def step_seconds(self) -> float | None:
        """Of the last steps that were taken together: the first may compile, the next ones be captured."""
        if len(self.looks) < 2:
            return None
        (before, began), (after, ended) = self.looks[-2:]
        return (ended - began) / (after - before)


def _probe(fits: Sequence[Fit]) -> dict[str, Any]:
    """Of fits that are computed together."""
    from dufs_core.estimator import DUFS
    from dufs_core.population import bytes_together, fit_stack

    changes = {"max_iter": _MOST_STEPS, "n_restarts": 1, "tol": 0.0}
    clocks = [_Clock(fit) for fit in fits]
    try:
        X = load(fits[0].data)
        settings = [dict(fit.settings) | {"random_state": fit.seed, "n_jobs": fit.threads} for fit in fits]
        selector, bk = DUFS(**settings[0]), get_backend(fits[0].settings["backend"])
        selector._engine(bk, X, fits[0].threads)
        if len(fits) > 1:
            memory = bytes_together(bk, selector, X, len(fits))
        else:
            memory = needed_bytes(selector.engine_, *selector.memory_of(X, fits[0].threads))
        probed = [DUFS(**(s | changes), callbacks=[clock]) for s, clock in zip(settings, clocks, strict=True)]
        with warnings.catch_warnings(), suppress(InterruptedFit):
            warnings.simplefilter("ignore")
            fit_stack(probed, X) if len(probed) > 1 else probed[0].fit(X)
    except Exception as error:  # the sweep records it as the fit's; here it is the prediction
        return {"error": one_line(error)}
    return {
        "bytes": int(X.nbytes + memory), "engine": selector.engine_, "step_seconds": clocks[0].step_seconds
    }  # fmt: skip
