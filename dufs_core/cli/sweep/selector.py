"""The selector of a fit: all that a sweep knows of classes, parameters and results."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from dufs_core import backend
from dufs_core.errors import invalid_choice
from dufs_core.objective.engines import choose
from dufs_core.selection.gated_selector import GatedSelector
from dufs_core.selection.methods import METHODS, make_selector, method_of
from dufs_core.selection.parameters import check_shared
from dufs_core.selection.settings import flat_settings

ELSEWHERE = {  # parameters that are no settings
    "random_state": "the seeds are listed as seeds = [0, 1, ...]",
    "n_jobs": "the threads of each fit are set by threads = 1",
    "callbacks": "a job file cannot hold functions",
    "verbose": "a sweep has one progress bar",
}
_TYPES = {
    part.name: str(part.type)
    for kind in METHODS.values()
    for owner in (kind, *kind.groups.values())
    for part in fields(owner)  # type: ignore[arg-type]
    if part.name not in (*ELSEWHERE, *kind.groups)
}
SETTINGS = ("method", *_TYPES)
FREE = ("max_memory",)  # changes no result: a sweep whose fits failed at it goes on with a higher one
_STACKED = ("lam", "n_features_to_select", "ranking")  # may differ between the fits of a stack
_NUMBERS = ("n_iter", "converged", "backend", "engine")  # fitted attributes
_ARRAYS = ("mu", "order", "support", "q_values", "evidence", "in_graph")
_MANY = 10**6  # rows and columns with which parameters are checked before the data are read


def normal_value(name: str, value: Any) -> Any:
    """A value of a job file in its one form, since identities are hashes: None for "none", 1.0 for 1."""
    kind = _TYPES.get(name, "")
    if value == "none" and "None" in kind:
        return None
    return float(value) if type(value) is int and "float" in kind and "int" not in kind else value


def complete(given: Mapping[str, Any]) -> dict[str, Any]:
    """All settings, those `given` (and a method or a preset) among them, checked as far as they can be without data.

    Raises ValueError or TypeError.
    """
    changes = {name: value for name, value in given.items() if name not in ("method", "preset")}
    selector = make_selector(given.get("method"), given.get("preset"), changes)
    with warnings.catch_warnings(action="ignore"):
        check_shared(selector, _MANY, _MANY)
        selector._procedure().check(_MANY, _MANY, is_sparse=False)
    found = flat_settings(selector)
    for name, known in (("backend", backend.NAMES), ("engine", choose.NAMES)):
        if name in found and found[name] not in known:
            raise invalid_choice(name, found[name], known)
    return {"method": method_of(selector)} | {name: found[name] for name in _TYPES if name in found}


def new_selector(fit: Any, callbacks: Sequence[Any] = (), **found: Any) -> GatedSelector:
    """The unfitted selector of a `dufs_core.cli.sweep.job_file.Fit`, with settings `found` in place of its own."""
    settings = {name: value for name, value in fit.settings.items() if name != "method"} | found
    selector = make_selector(fit.settings["method"], None, settings)
    if callbacks:
        selector.set_params(callbacks=callbacks)
    selector.set_params(random_state=fit.seed, n_jobs=fit.threads)
    return selector


def same_in_a_stack(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """The settings that fits of one stack share; None for a fit that stays alone, as with decoys of its own."""
    selector = make_selector(settings["method"], None, {})
    if settings["backend"] != "cupy" or selector._procedure().training is None:
        return None
    return {name: value for name, value in settings.items() if name not in _STACKED}


def measures(fitted: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Numbers and arrays of a fitted selector, by name."""
    row, arrays = (
        {name: getattr(fitted, f"{name}_") for name in names if hasattr(fitted, f"{name}_")}
        for names in (_NUMBERS, _ARRAYS)
    )
    row["n_selected"] = int(fitted.support_.sum())
    row |= fitted._facts()
    history = getattr(fitted, "history_", {})  # where gates were trained
    if history and fitted.n_iter_:
        row |= {name: float(history[name][-1]) for name in ("loss", "bandwidth")}
    return row, arrays | {f"history/{name}": column for name, column in history.items()}
