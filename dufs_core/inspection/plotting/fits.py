"""Pictures of one fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dufs_core.backend import Array
from dufs_core.inspection.fitted import is_judged, kind_of
from dufs_core.inspection.plotting.canvas import (
    BLUE,
    GREY,
    ORANGE,
    PALE,
    SMALL,
    axes_of,
    excluded_mask,
    feature_lines,
    finish,
    line_collection,
    rank_axis,
    twin_steps,
    values_of,
)
from dufs_core.objective.rules import DECIDED_MARGIN
from dufs_core.selection.base import check_fitted, names_of
from dufs_core.selection.fit_warnings import rate_text
from dufs_core.training.trajectory import RunTrajectory, Trajectory


def loss_and_gates(selector: Any, ax: Any = None) -> Any:
    """The loss and the number of open gates (mu > 0) at every step of the run that was kept.

    Parameters
    ----------
    selector : DUFS
        Fitted.
    ax : matplotlib axes, optional
        The loss is drawn here, the gates on a twin of it.

    Returns
    -------
    matplotlib axes
        `ax`.
    """
    check_fitted(selector, "history_")
    ax, history = axes_of(ax), selector.history_
    ax.plot(history["step"], history["loss"], color=BLUE, linewidth=1)
    ax.set_xlabel("step")
    ax.set_ylabel("loss", color=BLUE)
    ax.set_title("training" if len(history["step"]) else "no steps: no features to compare")
    gates = "open gates, decoys included" if kind_of(selector) == "decoys" else "open gates"
    twin_steps(ax, history["step"], history["open_gates"], gates, "steps-post", 1.05)
    return ax


def ranked_scores(selector: Any, ax: Any = None) -> Any:
    """Evidence, mu or scores of the features, best first, and where the selection was cut.

    With decoys: the evidence of features and decoys. Each copy of the features is sorted, too, and a grey band reaches
    from the least to the most of the copies. A feature above the cut that is not selected was beaten by a decoy of its
    own. Otherwise mu, or the scores, in order of rank. Features that took no part in the fit (constant, not judged, or
    set aside after its first run) are not drawn.

    Parameters
    ----------
    selector : DUFS, LambdaPath, or a selector of `dufs_core.baselines`
        Fitted.
    ax : matplotlib axes, optional

    Returns
    -------
    matplotlib axes
    """
    check_fitted(selector)
    ax, kind = axes_of(ax), kind_of(selector)
    (values, y), (absent, why) = values_of(selector), excluded_mask(selector)
    order = np.argsort(-values, kind="stable") if kind == "decoys" else selector.order_
    values, chosen = values[order], selector.support_[order]
    absent = absent[order] & ~chosen
    d, n_chosen, rank = len(order), int(chosen.sum()), np.arange(1, len(order) + 1)
    size = 30 if d <= SMALL else 12 if d <= 10 * SMALL else 5
    for mask, colour, label in ((chosen, BLUE, "selected"), (~chosen & ~absent, GREY, "not selected")):
        ax.scatter(rank[mask], values[mask], s=size, color=colour, label=f"{int(mask.sum())} {label}", zorder=3)
    if absent.any():
        ax.plot([], [], " ", label=f"not drawn: {int(absent.sum())} {why}")
    title = f"{n_chosen} of {d} features selected"
    if kind == "decoys":
        _decoys_and_cut(ax, selector)
        return finish(ax, "rank by evidence" + rank_axis(ax, d), y, title, fontsize="small")
    by_sign = kind != "scores" and np.array_equal(selector.support_, selector.scores_ > 0)
    if kind != "scores":
        ax.axhline(0, color=ORANGE, linewidth=1, linestyle="--", label=r"cut, $\mu = 0$" if by_sign else r"$\mu = 0$")
    if not by_sign and 0 < n_chosen < d:
        ax.axvline(n_chosen + 0.5, color=ORANGE, linewidth=1, label=f"cut after rank {n_chosen}")
    return finish(ax, "rank of the feature" + rank_axis(ax, d), y, title)


def _decoys_and_cut(ax: Any, selector: Any) -> None:
    """The evidence of the decoys, sorted, and the least evidence that a feature is found with."""
    found = selector.q_values_ <= selector.fdr
    decoys = -np.sort(-selector.decoy_evidence_[:, is_judged(selector)], axis=1)  # (M, d'), each copy best first
    M, judged = decoys.shape
    if judged:
        rank = np.arange(1, judged + 1)
        label = f"decoys: {M} shuffled copies, sorted" if M > 1 else "decoys: a shuffled copy, sorted"
        ax.fill_between(rank, decoys.min(axis=0), decoys.max(axis=0), color=PALE, linewidth=1, zorder=1, label=label)
        ax.plot(rank, np.median(decoys, axis=0), color=GREY, linewidth=1, zorder=2)
    if found.any():
        cut, label = float(selector.evidence_[found].min()), f"cut at fdr {selector.fdr:g}: {int(found.sum())} found"
        ax.axhline(cut, color=ORANGE, linewidth=1, linestyle="--", label=label)
    elif judged:
        least = rate_text(selector.smallest_fdr_)
        ax.plot([], [], " ", label=f"none found at fdr {selector.fdr:g} (smallest q = {least})")


def gate_trajectories(trajectory: Trajectory, selector: Any, ax: Any = None) -> Any:
    """mu of every column that has a gate over the steps of the run that was kept; decoys are grey and dashed.

    Parameters
    ----------
    trajectory : Trajectory
        A callback of the fit.
    selector : DUFS
        The selector of that fit. Gates in the band from -1.2 gate_sigma to 1 + 1.2 gate_sigma are undecided.
    ax : matplotlib axes, optional

    Returns
    -------
    matplotlib axes

    Raises
    ------
    ValueError
        If no run of the trajectory ended with the selector's gates.
    """
    check_fitted(selector, "mu_")
    ax, runs = axes_of(ax), trajectory.runs  # a copy of all states
    number, run = _kept_run(runs, selector)
    own = run.columns < len(selector.mu_)  # the others are decoys
    chosen = np.zeros(len(own), dtype=bool)
    chosen[own] = selector.support_[run.columns[own]]
    title = f"{len(run.columns)} gates"
    if n_decoys := int((~own).sum()):
        decoys = "1 decoy" if n_decoys == 1 else f"{n_decoys} decoys"
        line_collection(ax, run.steps, run.mu[:, ~own], color=GREY, linewidth=0.8, linestyle="--", label=decoys)
        title += f", {decoys} among them"
    feature_lines(
        ax, run.steps, run.mu, run.columns, chosen, own & ~chosen, ("not selected", "selected"),
        selector.order_, names_of(selector),
    )  # fmt: skip
    margin = DECIDED_MARGIN * selector.gate_sigma
    ax.axhspan(-margin, 1 + margin, color=GREY, alpha=0.1, linewidth=0, label="undecided")
    ax.axhline(0, color=ORANGE, linewidth=1, linestyle="--", label=r"$\mu = 0$")
    title += f" of run {number} of {len(runs)}" if len(runs) > 1 else ""
    legend = {"frameon": True, "framealpha": 0.85, "edgecolor": "none", "fontsize": "small"}
    return finish(ax, "step", r"gate parameter $\mu$", title, **legend)


def _kept_run(runs: Sequence[RunTrajectory], selector: Any) -> tuple[int, RunTrajectory]:
    """The run that ended with the selector's gates, and its number from 1."""
    for number, run in reversed(list(enumerate(runs, start=1))):
        own = run.columns < len(selector.mu_)
        same_end = own.all() or run.steps[-1] == selector.n_iter_  # the selector keeps no mu of decoys
        if same_end and np.array_equal(selector.mu_[run.columns[own]], run.mu[-1][own]):
            return number, run
    raise ValueError(
        f"None of the trajectory's runs ({len(runs)}) ended with the selector's gates: give the "
        f"trajectory to the fit, as in DUFS(callbacks=[trajectory]).fit(X), and the selector of that same fit"
    )


def precision_recall(selector: Any, informative: Array, ax: Any = None) -> Any:
    """Precision and recall of the first k columns by rank against k, and where the selection was cut.

    Parameters
    ----------
    selector : DUFS, LambdaPath, or a selector of `dufs_core.baselines`
        Fitted.
    informative : (m,) int
        The columns of the right answer.
    ax : matplotlib axes, optional

    Returns
    -------
    matplotlib axes

    Raises
    ------
    ValueError
        If informative is empty, or holds something else than columns.
    """
    check_fitted(selector)
    informative, order, d = np.asarray(informative), selector.order_, len(selector.order_)
    columns = informative.dtype.kind in "iu" and informative.ndim == 1
    if not columns or not informative.size or not 0 <= informative.min() <= informative.max() < d:
        raise ValueError(
            f"informative must hold the columns of the right answer, at least one, whole numbers from 0 to {d - 1}; "
            f"got {informative.tolist()!r}"
        )
    ax, k, total = axes_of(ax), np.arange(1, d + 1), len(np.unique(informative))
    hits, cut = np.cumsum(np.isin(order, informative)), int(selector.support_.sum())
    marker = "." if d <= SMALL else None
    ax.plot(k, hits / k, color=BLUE, label="precision", marker=marker)
    ax.plot(k, hits / total, color=ORANGE, label="recall", marker=marker)
    if cut:
        ax.axvline(cut, color=GREY, linewidth=1, linestyle="--", label=f"{cut} selected")
    ax.set_ylim(-0.02, 1.05)
    return finish(ax, "number of features by rank" + rank_axis(ax, d), "share", f"{total} informative features of {d}")
