"""Pictures of one fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dufs_core.backend import Array
from dufs_core.inspection.plotting import canvas
from dufs_core.inspection.plotting.canvas import BLUE, GREY, ORANGE, PALE, SMALL
from dufs_core.objective.rules import DECIDED_MARGIN
from dufs_core.selection.base import check_fitted, names_of
from dufs_core.selection.decoys.explanation import is_judged, rate_text, shuffled_copies
from dufs_core.training.trajectory import RunTrajectory, Trajectory


def loss_and_gates(selector: Any, ax: Any = None) -> Any:
    """The loss at every step of the run of the gates that was kept, and the open ones (mu > 0; second y axis)."""
    check_fitted(selector, "history_")
    ax, history = canvas.axes_of(ax), selector.history_
    ax.plot(history["step"], history["loss"], color=BLUE, linewidth=1)
    title = "training" if len(history["step"]) else "no steps: no features to compare"
    ax.set(xlabel="step", ylabel="loss", title=title)
    return canvas.twin_steps(ax, history["step"], history["open_gates"], "open gates", "steps-post", 1.05)


def ranked_scores(selector: Any, ax: Any = None) -> Any:
    """Evidence, mu or scores of the features by rank, and the cut of the selection.

    With decoys: evidence, with a grey band for the decoys: each shuffled copy of the features sorted, from the least
    to the most of the copies. A feature above the cut that is not selected was beaten by a decoy of its own. Features
    without part in the fit (constant, not judged, or set aside after its first run) are not drawn.
    """
    check_fitted(selector)
    ax, drawn = canvas.axes_of(ax), selector._drawn()
    absent, why = canvas.not_drawn(selector)
    order = selector.order_ if drawn.decoys is None else np.argsort(-drawn.values, kind="stable")
    values, chosen = drawn.values[order], selector.support_[order]
    absent = absent[order] & ~chosen
    d, n_chosen, rank = len(order), int(chosen.sum()), np.arange(1, len(order) + 1)
    size = 30 if d <= SMALL else 12 if d <= 10 * SMALL else 5
    for mask, colour, label in ((chosen, BLUE, "selected"), (~chosen & ~absent, GREY, "not selected")):
        ax.scatter(rank[mask], values[mask], s=size, color=colour, label=f"{int(mask.sum())} {label}", zorder=3)
    if absent.any():
        ax.plot([], [], " ", label=f"not drawn: {int(absent.sum())} {why}")

    # the cut: the least evidence, mu = 0, or a number of features
    by_sign = drawn.has_zero and np.array_equal(selector.support_, drawn.values > 0)
    if drawn.has_zero:
        ax.axhline(0, color=ORANGE, linewidth=1, linestyle="--", label=r"cut, $\mu = 0$" if by_sign else r"$\mu = 0$")
    if drawn.decoys is not None:
        _decoys_and_cut(ax, selector)
    elif not by_sign and 0 < n_chosen < d:
        ax.axvline(n_chosen + 0.5, color=ORANGE, linewidth=1, label=f"cut after rank {n_chosen}")
    x = ("rank of the feature" if drawn.decoys is None else "rank by evidence") + canvas.rank_axis(ax, d)
    return canvas.finish(ax, x, drawn.label, f"{n_chosen} of {d} features selected")


def _decoys_and_cut(ax: Any, selector: Any) -> None:
    """Draw the sorted evidence of the decoys, and the least evidence of the features found."""
    found = selector.q_values_ <= selector.fdr_
    decoys = -np.sort(-selector.decoy_evidence_[:, is_judged(selector)], axis=1)  # (M, d'), each copy best first
    M, judged = decoys.shape
    if judged:
        rank, label = np.arange(1, judged + 1), f"decoys: {shuffled_copies(M)}, sorted"
        ax.fill_between(rank, decoys.min(axis=0), decoys.max(axis=0), color=PALE, linewidth=1, zorder=1, label=label)
        ax.plot(rank, np.median(decoys, axis=0), color=GREY, linewidth=1, zorder=2)
    if found.any():
        cut, label = float(selector.evidence_[found].min()), f"cut at fdr {selector.fdr_:g}: {int(found.sum())} found"
        ax.axhline(cut, color=ORANGE, linewidth=1, linestyle="--", label=label)
    elif judged:
        none = f"none found at fdr {selector.fdr_:g} (smallest q = {rate_text(selector.q_values_.min())})"
        ax.plot([], [], " ", label=none)


def gate_trajectories(trajectory: Trajectory, selector: Any, ax: Any = None) -> Any:
    """mu of every column with a gate over the steps of the run that was kept.

    Gates from -1.2 gate_sigma to 1 + 1.2 gate_sigma are undecided.

    Parameters
    ----------
    trajectory : Trajectory
        A callback of the fit of `selector`; ValueError if it was one of another fit.
    selector : GatedLaplacian
    """
    check_fitted(selector, "mu_")
    ax, runs = canvas.axes_of(ax), trajectory.runs  # a copy of all states
    number, run = _kept_run(runs, selector)
    position = {int(column): k for k, column in enumerate(run.columns) if selector.support_[column]}
    title = f"{len(run.columns)} gates"
    names, best_first = names_of(selector), [int(column) for column in selector.order_ if int(column) in position]
    named = {position[column]: canvas.feature_name(names, column) for column in best_first}
    others = ~np.isin(np.arange(len(run.columns)), list(named))
    canvas.gate_lines(ax, run.steps, run.mu, ("not selected", "selected"), others, named)
    margin = DECIDED_MARGIN * selector.gate_sigma
    ax.axhspan(-margin, 1 + margin, color=GREY, alpha=0.1, linewidth=0, label="undecided")
    title += f" of run {number} of {len(runs)}" if len(runs) > 1 else ""
    return canvas.finish(ax, "step", r"gate parameter $\mu$", title)


def _kept_run(runs: Sequence[RunTrajectory], selector: Any) -> tuple[int, RunTrajectory]:
    """The run with the selector's final gates, and its number from 1."""
    for number, run in reversed(list(enumerate(runs, start=1))):
        if np.array_equal(selector.mu_[run.columns], run.mu[-1]):
            return number, run
    none = f"None of the trajectory's runs ({len(runs)}) ended with the selector's gates"
    raise ValueError(
        f"{none}: use the trajectory and selector of one fit, GatedLaplacian(callbacks=[trajectory]).fit(X)"
    )


def precision_recall(selector: Any, informative: Array, ax: Any = None) -> Any:
    """Precision and recall of the first k columns by rank over k, and the cut of the selection.

    Parameters
    ----------
    informative : array (m,) of int
        The informative columns; ValueError unless there is at least one.
    """
    check_fitted(selector)
    informative, order, d = np.asarray(informative), selector.order_, len(selector.order_)
    whole = informative.dtype.kind in "iu" and informative.ndim == 1 and informative.size
    if not whole or not 0 <= informative.min() <= informative.max() < d:
        needed = f"the informative columns, at least one, whole numbers from 0 to {d - 1}"
        raise ValueError(f"informative must hold {needed}; got {informative.tolist()!r}")
    ax, k, total = canvas.axes_of(ax), np.arange(1, d + 1), len(np.unique(informative))
    hits, cut = np.cumsum(np.isin(order, informative)), int(selector.support_.sum())
    for values, label, colour in ((hits / k, "precision", BLUE), (hits / total, "recall", ORANGE)):
        ax.plot(k, values, color=colour, label=label, marker="." if d <= SMALL else None)
    if cut:
        ax.axvline(cut, color=GREY, linewidth=1, linestyle="--", label=f"{cut} selected")
    ax.set_ylim(-0.02, 1.05)
    x = "number of features by rank" + canvas.rank_axis(ax, d)
    return canvas.finish(ax, x, "share", f"{total} informative features of {d}")
