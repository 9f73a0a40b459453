"""The selector of a fit: all that a sweep knows of its class, parameters and results."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from dufs_core import backend
from dufs_core.errors import invalid_choice
from dufs_core.objective.engines import choose
from dufs_core.selection.dufs import DUFS
from dufs_core.selection.parameters import check_parameters

Selector = DUFS
ELSEWHERE = {  # parameters that are no settings
    "random_state": "the seeds are listed as seeds = [0, 1, ...]",
    "n_jobs": "the threads of each fit are set by threads = 1",
    "callbacks": "a job file cannot hold functions",
    "verbose": "a sweep has one progress bar",
}
_TYPES = {field.name: str(field.type) for field in fields(DUFS) if field.name not in ELSEWHERE}
SETTINGS = tuple(_TYPES)
FREE = ("max_memory",)  # changes no result: a sweep whose fits failed at it goes on with a higher one
_STACKED = ("lam", "n_features_to_select", "ranking")  # may differ between the fits of a stack
_NUMBERS = ("n_iter", "n_runs", "converged", "backend", "engine", "excess_score", "p_value")  # fitted attributes
_ARRAYS = ("mu", "order", "support", "q_values", "evidence")
_MANY = 10**6  # rows and columns with which parameters are checked before the data are read


def normal_value(name: str, value: Any) -> Any:
    """A value of a job file in its one form, since identities are hashes: None for "none", 1.0 for 1."""
    kind = _TYPES.get(name, "")
    if value == "none" and "None" in kind:
        return None
    return float(value) if type(value) is int and "float" in kind and "int" not in kind else value


def complete(given: Mapping[str, Any]) -> dict[str, Any]:
    """All settings, those `given` (and a preset) among them, checked as far as they can be without data.

    Raises ValueError or TypeError.
    """
    changes = {name: value for name, value in given.items() if name != "preset"}
    selector = DUFS.preset(given["preset"], **changes) if "preset" in given else DUFS(**changes)
    with warnings.catch_warnings(action="ignore"):
        check_parameters(selector, _MANY, _MANY)
    for name, known in (("backend", backend.NAMES), ("engine", choose.NAMES)):
        if getattr(selector, name) not in known:
            raise invalid_choice(name, getattr(selector, name), known)
    return {name: getattr(selector, name) for name in SETTINGS}


def new_selector(fit: Any, callbacks: Sequence[Any] = (), **found: Any) -> Selector:
    """The unfitted selector of a `dufs_core.cli.sweep.job_file.Fit`, with settings `found` in place of its own."""
    return DUFS(**(fit.settings | found), random_state=fit.seed, n_jobs=fit.threads, callbacks=callbacks)


def same_in_a_stack(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """The settings that fits of one stack share; None for a fit that stays alone, as with decoys of its own."""
    if settings["backend"] != "cupy" or settings["fdr"] is not None:
        return None
    return {name: value for name, value in settings.items() if name not in _STACKED}


def measures(fitted: Selector) -> tuple[dict[str, Any], dict[str, Any]]:
    """Numbers and arrays of a fitted selector, by name. Raises FloatingPointError if its gates are not finite."""
    if not np.isfinite(fitted.mu_).all():
        raise FloatingPointError("the fit ended with gate parameters that are not finite")
    row, arrays = (
        {name: getattr(fitted, f"{name}_") for name in names if hasattr(fitted, f"{name}_")}
        for names in (_NUMBERS, _ARRAYS)
    )
    row["n_selected"] = int(fitted.support_.sum())
    if "q_values" in arrays:
        q = arrays["q_values"]
        row |= {"n_found": int((q <= fitted.fdr).sum()), "smallest_fdr": float(q.min()), "found_lam": fitted.lam_}
    if fitted.n_iter_:
        row |= {name: float(fitted.history_[name][-1]) for name in ("loss", "bandwidth")}
    return row, arrays | {f"history/{name}": column for name, column in fitted.history_.items()}
