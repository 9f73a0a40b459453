"""Doubts about the result of a fit: at most one warning of each kind, each with what to do."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from decimal import ROUND_CEILING, Context
from typing import Any

import numpy as np

from dufs_core.errors import (
    DegenerateBandwidthWarning,
    DufsWarning,
    SelectionWarning,
    UnconvergedWarning,
    all_constant,
    isolated_rows,
    user_stacklevel,
)
from dufs_core.selection.presets import graph_rules
from dufs_core.selection.search import Outcome, excess_threshold

_REPEATED_SHARE = 0.05  # of copies among the rows that is worth a warning
_ISOLATED_SHARE = 0.1  # share of rows without neighbours that is worth a warning


def warn_about_fit(selector: Any, best: Outcome, n: int) -> None:
    """Warn of what is doubtful about the outcome of a fitted `dufs_core.DUFS` on n rows."""
    for doubt in (*_training_doubts(selector, best, n), _selection_doubt(selector, best, n)):
        if doubt is not None:
            warnings.warn(doubt, stacklevel=user_stacklevel())


def _training_doubts(selector: Any, best: Outcome, n: int) -> Iterator[DufsWarning]:
    run, rules = best.run, graph_rules(selector, n)
    if run.isolated > _ISOLATED_SHARE:
        said = f"In some step {run.isolated:.0%} of the rows had no neighbour within the bandwidth (b = "
        said += f"{selector.bandwidth_:.3g} at the end), which turns the score into plain variance"
        yield isolated_rows(said, rules.bandwidth, rules.bandwidth_factor, rules.n_neighbors)
    if run.degenerate:
        yield DegenerateBandwidthWarning(
            f"In {run.degenerate} of {run.n_iter} steps the bandwidth rule {rules.bandwidth!r} gave 0 (duplicate "
            f"rows) and a substitute was used (see bandwidth_). A larger n_neighbors (now {rules.n_neighbors}, at "
            f"most {n - 1}) looks past the duplicates."
        )
    if selector.tol > 0 and not run.converged and run.n_iter == selector.max_iter and len(run.mu):
        undecided = run.history["undecided_gates"][-1] / getattr(selector, "n_gates_", len(run.mu))
        yield UnconvergedWarning(
            f"The fit ended after max_iter={selector.max_iter} steps with {undecided:.1%} of the gates undecided (tol "
            f"is {selector.tol:.1%}): the selection may still change. Use more steps, or a larger learning_rate (now "
            f"{selector.learning_rate:g})."
        )


def _selection_doubt(selector: Any, best: Outcome, n: int) -> SelectionWarning | None:
    d = len(selector.mu_)
    varying = d - len(selector.constant_features_)
    if not varying:
        return all_constant(d)
    if varying == 1:
        which = "a single column" + " that is not constant" * (d > 1)
        return SelectionWarning(
            f"X has {which}, so that there is nothing to select among. If it holds labels, give the data."
        )
    text = _doubt_of_gates(selector, best, n) if selector.fdr is None else _doubt_of_decoys(selector)
    return SelectionWarning(text) if text else None


def _doubt_of_decoys(selector: Any) -> str | None:
    """That no column was found at the rate asked for, and at which one would be; or that rows are copies."""
    if np.isnan(selector.decoy_evidence_).all():
        return (
            f"No feature was judged: fewer than two of {len(selector.mu_)} differ from their median in at least 3 "
            f"rows, and others cannot be told from their shuffled copies. More rows are needed, or fdr=None, which "
            f"has no copies."
        )
    if (selector.q_values_ <= selector.fdr).any():
        if selector.repeated_rows_ <= _REPEATED_SHARE:
            return None
        return (
            f"{selector.repeated_rows_:.0%} of the rows repeat another row. Copies of samples make columns depend on "
            f"one another, so that noise is found: drop them first, as with numpy.unique(X, axis=0)."
        )
    other = "No rate finds any: no column is told from its shuffled copies"
    if selector.smallest_fdr_ < 1:
        rate = rate_text(selector.smallest_fdr_)
        other = f"At fdr={rate} {int((selector.q_values_ <= float(rate)).sum())} would be found"
    return (
        f"No feature was found at a false discovery rate of {selector.fdr:g}. {other}. That can be the answer. "
        f"More rows show weaker structure, and n_features_to_select takes the best of the ranking all the same."
    )


def _doubt_of_gates(selector: Any, best: Outcome, n: int) -> str | None:
    """With fdr=None: that no gate or every gate is open, or that no run passed the permutation test."""
    d, n_open = len(selector.mu_), int((selector.mu_ > 0).sum())
    varying = d - len(selector.constant_features_)
    if n_open in (0, varying) and selector.n_features_to_select is None:
        what = f"all {varying} features" + " that are not constant" * (varying < d) if n_open else "no feature"
        after, advice = f"with lam={selector.lam}", f"a {'larger' if n_open else 'smaller'} lam, lam=None"
        if selector.lam is None and best.run.converged:
            after = f"and converged, after {selector.n_iter_} steps"
            advice = 'another scaling ("global" where columns share a unit) or bandwidth ("q90"), or set lam'
        elif selector.lam is None:
            after = f"after {selector.n_iter_} steps of at most {selector.max_iter}"
            advice = "more steps, another random_state"
        fit = "fit" if selector.lam is not None else "parameter-free fit"
        return (
            f"The {fit} selected {what} {after}: try {advice}, or set n_features_to_select to take the best of the "
            f"ranking."
        )
    if selector.n_runs_ < selector.max_runs or best.passed:
        return None
    none = f"None of {selector.n_runs_} runs" if selector.n_runs_ > 1 else "The run has not"
    return (
        f"{none} found convincing structure: the {n_open} features with mu > 0 have an excess score of "
        f"{selector.excess_score_:.3g}, and {excess_threshold(n_open, n):.3f} is asked of so many, since columns "
        f"chosen from {d} have some by chance. Treat the selection as noise unless other rows confirm it "
        f"(LambdaPath, stability_selection), or look at other scaling and bandwidth settings."
    )


def rate_text(rate: float) -> str:
    """A false discovery rate in three digits, rounded up: at this rate, too, what it belongs to is found."""
    return f"{float(Context(prec=3, rounding=ROUND_CEILING).create_decimal(repr(float(rate)))):g}"
