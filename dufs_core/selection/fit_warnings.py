"""What a fit has to say about its result: at most one warning of each kind, each with what to do."""

from __future__ import annotations

import warnings
from decimal import ROUND_CEILING, Context
from typing import Any

import numpy as np

from dufs_core.errors import (
    DegenerateBandwidthWarning,
    SelectionWarning,
    UnconvergedWarning,
    all_constant,
    isolated_rows,
    user_stacklevel,
)
from dufs_core.selection.presets import graph_rules
from dufs_core.selection.search import Outcome, excess_threshold

_ISOLATED_SHARE = 0.1  # share of rows without neighbours that is worth a warning


def warn_about_fit(selector: Any, best: Outcome, n: int) -> None:
    """Warn of what is doubtful about the outcome of a fitted `dufs_core.DUFS` on n rows."""
    d, n_open = len(selector.mu_), int((selector.mu_ > 0).sum())
    run, varying = best.run, d - len(selector.constant_features_)
    rules = graph_rules(selector, n)
    if run.isolated > _ISOLATED_SHARE:
        said = f"In some step {run.isolated:.0%} of the rows had no neighbour within the bandwidth (b = "
        said += f"{selector.bandwidth_:.3g} at the end), which turns the score into plain variance"
        rule = (rules.bandwidth, rules.bandwidth_factor, rules.n_neighbors)
        warnings.warn(isolated_rows(said, *rule), stacklevel=user_stacklevel())
    if run.degenerate:
        warnings.warn(
            f"In {run.degenerate} of {run.n_iter} steps the bandwidth rule {rules.bandwidth!r} gave 0 (duplicate "
            f"rows) and a substitute was used (see bandwidth_). A larger n_neighbors (now {rules.n_neighbors}, at "
            f"most {n - 1}) looks past the duplicates.",
            DegenerateBandwidthWarning, stacklevel=user_stacklevel(),
        )  # fmt: skip
    if selector.tol > 0 and not run.converged and run.n_iter == selector.max_iter and len(run.mu):
        undecided = run.history["undecided_gates"][-1] / getattr(selector, "n_gates_", len(run.mu))
        warnings.warn(
            f"The fit ended after max_iter={selector.max_iter} steps with {undecided:.1%} of the gates undecided (tol "
            f"is {selector.tol:.1%}): the selection may still change. Use more steps, or a larger learning_rate (now "
            f"{selector.learning_rate:g}).",
            UnconvergedWarning, stacklevel=user_stacklevel(),
        )  # fmt: skip
    if selector.fdr is not None:
        _warn_of_nothing(selector, d, varying)
        return
    everything = f"all {varying} features" + " that are not constant" * (varying < d)
    if selector.lam is not None and len(run.mu) and n_open in (0, varying) and selector.n_features_to_select is None:
        what, direction = ("no feature", "smaller") if n_open == 0 else (everything, "larger")
        warnings.warn(
            f"The fit selected {what} with lam={selector.lam}: try a {direction} lam, lam=None, or set "
            f"n_features_to_select to take the best of the ranking.",
            SelectionWarning, stacklevel=user_stacklevel(),
        )  # fmt: skip
    elif not len(run.mu):
        warnings.warn(all_constant(d), stacklevel=user_stacklevel())
    elif varying == 1:
        which = "a single column" + " that is not constant" * (d > 1)
        warnings.warn(
            f"X has {which}, so that there is nothing to select among. If it holds labels, give the data.",
            SelectionWarning, stacklevel=user_stacklevel(),
        )  # fmt: skip
    elif n_open in (0, varying) and selector.n_features_to_select is None:
        what = "no feature" if n_open == 0 else everything
        after, advice = (
            f"after {selector.n_iter_} steps of at most {selector.max_iter}",
            "more steps, another random_state",
        )
        if run.converged:
            after = f"and converged, after {selector.n_iter_} steps"
            advice = 'another scaling ("global" where columns share a unit) or bandwidth ("q90"), or set lam'
        warnings.warn(
            f"The parameter-free fit selected {what} {after}: try {advice}, or set n_features_to_select to take "
            f"the best of the ranking.",
            SelectionWarning, stacklevel=user_stacklevel(),
        )  # fmt: skip
    elif selector.n_runs_ == selector.max_runs and not best.passed:
        none = f"None of {selector.n_runs_} runs" if selector.n_runs_ > 1 else "The run has not"
        warnings.warn(
            f"{none} found convincing structure: the {n_open} features with mu > 0 have a permutation gap of "
            f"{selector.excess_score_:.3g}, and {excess_threshold(n_open, n):.3f} is asked of so many, since columns "
            f"chosen from {d} have some by chance. Treat the selection as noise unless other rows confirm it "
            f"(LambdaPath, stability_selection), or look at other scaling and bandwidth settings.",
            SelectionWarning, stacklevel=user_stacklevel(),
        )  # fmt: skip


def rate_text(rate: float) -> str:
    """A false discovery rate in three digits, rounded up: at this rate, too, what it belongs to is found."""
    return f"{float(Context(prec=3, rounding=ROUND_CEILING).create_decimal(repr(float(rate)))):g}"


def _warn_of_nothing(selector: Any, d: int, varying: int) -> None:
    """Warn that no column was found at the false discovery rate asked for, and at which one would be."""
    if not varying:
        warnings.warn(all_constant(d), stacklevel=user_stacklevel())
    elif varying == 1:
        warnings.warn(
            "X has a single column that is not constant, so that there is nothing to select among. If it holds labels, "
            "give the data.",
            SelectionWarning, stacklevel=user_stacklevel(),
        )  # fmt: skip
    elif np.isnan(selector.decoy_evidence_).all():
        warnings.warn(
            f"No feature was judged: fewer than two of {d} differ from their median in at least 3 rows, and others "
            f"cannot be told from their shuffled copies. More rows are needed, or fdr=None, which has no copies.",
            SelectionWarning, stacklevel=user_stacklevel(),
        )  # fmt: skip
    elif not (selector.q_values_ <= selector.fdr).any():
        smallest = selector.smallest_fdr_
        found = int((selector.q_values_ <= float(rate_text(smallest))).sum())
        other = (
            f"At fdr={rate_text(smallest)} {found} would be found"
            if smallest < 1
            else "No rate finds any: no column is told from its shuffled copies"
        )
        warnings.warn(
            f"No feature was found at a false discovery rate of {selector.fdr:g}. {other}. That can be the answer. "
            f"More rows show weaker structure, and n_features_to_select takes the best of the ranking all the same.",
            SelectionWarning, stacklevel=user_stacklevel(),
        )  # fmt: skip
