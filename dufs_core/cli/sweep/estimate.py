"""What the fits of a job will take, before they are computed."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from dufs_core.cli.sweep import stacking as group
from dufs_core.cli.sweep.fit_id import Fit
from dufs_core.cli.sweep.job_file import Job
from dufs_core.cli.sweep.worker import load, one_line
from dufs_core.data.on_disk import is_on_disk
from dufs_core.errors import InterruptedFit
from dufs_core.objective.engines.choose import needed_bytes
from dufs_core.selection.checkpoint import Checkpoint
from dufs_core.selection.search import SearchState

_STEPS, _SECONDS = 4, 0.3  # that a probe takes at least
_MOST_STEPS = 1000
_COSTLY = (  # with the engine: what the time of a step depends on, and whether the data can be computed with
    "power", "gate_noise", "n_draws", "batch_size", "backend", "dtype", "bandwidth", "optimizer", "scaling",
)  # fmt: skip


def predict(job: Job, in_this_process: bool = True) -> list[dict[str, Any]]:
    """For each fit its bytes, predicted by the engine, and seconds, from a measured probe; or why not.

    Parameters and memory are checked for every fit. A probe takes some steps on the data with the fit's settings (once
    for fits of a data set that differ in nothing that steps cost). Fits that a GPU would compute as one population are
    probed as one: together is their number, bytes are those of all of them, seconds are each one's share. seconds:
    those of one run that takes max_iter steps, with decoys after the search for their structure, which is measured. A
    run that converges takes fewer, without decoys a search over max_runs runs may take as many times more.
    """
    found: dict[str, dict[str, Any]] = {}
    for _, fits in job.grouped():
        steps: dict[tuple[Any, ...], tuple[float, float] | None] = {}  # seconds before the first one, and of one
        for task in group.tasks(fits, in_this_process):
            waiting, size = list(task), group.size(task)[0] if len(task) > 1 else 1
            while waiting:
                some = waiting[:size]
                try:
                    facts = [_facts(fit, len(some)) for fit in some]
                    costly = (some[0].settings["fdr"] is None, *(some[0].settings[name] for name in _COSTLY))
                    key = (len(some), facts[0]["engine"], *costly)
                    if key not in steps:
                        steps[key] = _probed(some)
                except Exception as error:  # the sweep records it as the fit's; here it is the prediction
                    if len(some) > 1:  # the sweep then computes each alone
                        size = 1
                        continue
                    facts, measured = [{"error": one_line(error)}], None
                else:
                    measured = steps[key]
                for fit, one in zip(some, facts, strict=True):
                    seconds = None
                    if measured is not None:
                        before, step = measured
                        seconds = before + step * fit.settings["max_iter"] / len(some)
                    found[fit.id] = {"id": fit.id, "together": len(some), **one, "seconds": seconds}
                waiting = waiting[len(some) :]
    return [found[fit.id] for fit in job.fits]


class _Clock(Checkpoint):
    """Keeps no state but the time of every look, and ends the fit once it has seen enough."""

    def __init__(self, fit: Fit) -> None:
        super().__init__(fit.id)  # a path that is never written to; those of a population differ
        self.start = SearchState([], None)
        self.begun = 0.0
        self.looks: list[tuple[int, float]] = []

    def begin(self, *_: Any) -> Any:
        """The keeper of the fit is the clock itself."""
        self.begun = time.perf_counter()
        return self

    def keep(self, progress: Callable[[], SearchState]) -> None:
        """Called between steps."""
        position = progress().position
        step, now = position.step if position is not None else 0, time.perf_counter()
        if not self.looks or step > self.looks[-1][0]:  # one that has ended waits for others of a population
            self.looks.append((step, now))
        began = self.looks[0][1]
        if step >= _STEPS and (now - began >= _SECONDS or step >= _MOST_STEPS // 2):
            raise InterruptedFit("the probe has seen enough")

    def finish(self, progress: SearchState) -> None:
        """Called at the end of a fit that is not interrupted."""

    @property
    def seconds_before(self) -> float:
        """From the beginning of the fit to the first look."""
        return self.looks[0][1] - self.begun if self.looks else 0.0

    @property
    def step_seconds(self) -> float | None:
        """Of the last steps that were taken together: the first may compile, the next ones be captured."""
        if len(self.looks) < 2:
            return None
        (before, began), (after, ended) = self.looks[-2:]
        return (ended - began) / (after - before)


def _selector(fit: Fit, **changes: Any) -> Any:
    from dufs_core.selection.dufs import DUFS

    return DUFS(**dict(fit.settings) | {"random_state": fit.seed, "n_jobs": fit.threads} | changes)


def _facts(fit: Fit, together: int) -> dict[str, Any]:
    """Bytes and engine of a fit, or of so many like it. Raises what the fit would raise for its parameters."""
    from dufs_core.selection.fit_many import bytes_together

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given, selector = load(fit), _selector(fit)
        bk, X = selector._accept(given)
        selector._engine(bk, X, fit.threads)
    if together > 1:
        memory = bytes_together(bk, selector, X, together)
    else:
        memory = needed_bytes(selector.engine_, *selector.memory_of(X, fit.threads))
    held = 0 if is_on_disk(given) else given.nbytes
    return {"bytes": int(held + memory), "engine": selector.engine_}


def _probed(fits: Sequence[Fit]) -> tuple[float, float] | None:
    """Seconds before the steps (0 without decoys) and of one step of fits that are computed together.

    None where no step could be measured. Raises what the fits would raise.
    """
    from dufs_core.selection.fit_many import fit_stack

    clocks = [_Clock(fit) for fit in fits]
    changes = {"max_iter": _MOST_STEPS, "max_runs": 1, "tol": 0.0}
    probed = [_selector(fit, **changes, callbacks=[clock]) for fit, clock in zip(fits, clocks, strict=True)]
    X = load(fits[0])
    with warnings.catch_warnings(), suppress(InterruptedFit):
        warnings.simplefilter("ignore")
        fit_stack(probed, X) if len(probed) > 1 else probed[0].fit(X)
    step, decoys = clocks[0].step_seconds, fits[0].settings["fdr"] is not None
    return None if step is None else (clocks[0].seconds_before if decoys else 0.0, step)
