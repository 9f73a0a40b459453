"""Pictures of one fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dufs_core.backend import Array
from dufs_core.inspection.plotting.canvas import (
    BLUE,
    GREY,
    LABELLED,
    ORANGE,
    PALE,
    SMALL,
    axes_of,
    feature_colour,
    left_out,
    log_note,
    many_lines,
    named_feature,
    plain,
    rank_axis,
    values_of,
    whole_numbers,
)
from dufs_core.objective.protocol import DECIDED_MARGIN
from dufs_core.selection.base import check_fitted, names_of
from dufs_core.selection.fit_warnings import rate_text
from dufs_core.training.trajectory import RunTrajectory, Trajectory


def loss_and_gates(selector: Any, ax: Any = None) -> Any:
    """The loss and the number of open gates (mu > 0) at every step of the run that was kept.

    Parameters
    ----------
    selector : DUFS
        Fitted: its `history_` is read.
    ax : matplotlib axes, optional
        The loss is drawn here, the gates on a twin of it.

    Returns
    -------
    matplotlib axes
        `ax`.
    """
    check_fitted(selector, "history_")
    ax = axes_of(ax)
    history = selector.history_
    ax.plot(history["step"], history["loss"], color=BLUE, linewidth=1)
    ax.set_xlabel("step")
    ax.set_ylabel("loss", color=BLUE)
    ax.tick_params(axis="y", colors=BLUE)
    gates = ax.twinx()
    gates.plot(history["step"], history["open_gates"], color=ORANGE, linewidth=1.6, drawstyle="steps-post")
    gates.set_ylabel("open gates" + ", decoys included" * hasattr(selector, "decoy_evidence_"), color=ORANGE)
    gates.tick_params(axis="y", colors=ORANGE)
    gates.set_ylim(0, 1.05 * np.max(history["open_gates"], initial=1))
    whole_numbers(gates.yaxis)
    ax.set_title("training" if len(history["step"]) else "no steps: no features to compare")
    for each in (ax, gates):
        each.spines["top"].set_visible(False)
    return ax


def ranked_scores(selector: Any, ax: Any = None) -> Any:
    """What the features are compared by, best first, and where the selection was cut.

    With decoys their evidence, in its order, and that of the decoys: each copy of the features sorted, too, as a grey
    band from the least to the most of the copies. A feature above the cut at the false discovery rate that is not
    selected was beaten by a decoy of its own. Otherwise mu, or the scores, in order of rank. Features that took no part
    in the fit (constant, not judged, or set aside after its first run) have nothing to draw.

    Parameters
    ----------
    selector : DUFS, LambdaPath, or a selector of `dufs_core.baselines`
        Fitted: `scores_`, `order_` and `support_` are read; with decoys `evidence_`, `decoy_evidence_`, `q_values_`
        and `support_`.
    ax : matplotlib axes, optional

    Returns
    -------
    matplotlib axes
    """
    check_fitted(selector)
    ax = axes_of(ax)
    competed, gated = hasattr(selector, "decoy_evidence_"), hasattr(selector, "mu_")
    values, label = values_of(selector)
    order = np.argsort(-values, kind="stable") if competed else selector.order_
    scores, chosen = values[order], selector.support_[order]
    d, rank = len(order), np.arange(1, len(order) + 1)
    size = 30 if d <= SMALL else 12 if d <= 10 * SMALL else 5
    absent, kind = left_out(selector)
    absent = absent[order] & ~chosen
    ax.set_ylabel(label)
    for mask, colour, label in ((chosen, BLUE, "selected"), (~chosen & ~absent, GREY, "not selected")):
        ax.scatter(rank[mask], scores[mask], s=size, color=colour, label=f"{int(mask.sum())} {label}", zorder=3)
    if absent.any():
        ax.plot([], [], " ", label=f"not drawn: {int(absent.sum())} {kind}")
    ax.set_xlabel("rank of the feature" + log_note(d))
    ax.set_title(f"{int(chosen.sum())} of {d} features selected")
    if competed:
        _decoys_and_cut(ax, selector)
        rank_axis(ax, d)
        ax.set_xlabel("rank by evidence" + log_note(d))
        ax.legend(frameon=False, fontsize="small")
        return plain(ax)
    by_sign = gated and np.array_equal(selector.support_, selector.scores_ > 0)
    if gated:
        label = r"cut, $\mu = 0$" if by_sign else r"$\mu = 0$"
        ax.axhline(0, color=ORANGE, linewidth=1, linestyle="--", label=label)
    if not by_sign and 0 < chosen.sum() < d:
        cut = int(chosen.sum()) + 0.5
        ax.axvline(cut, color=ORANGE, linewidth=1, label=f"cut after rank {int(cut)}")
    rank_axis(ax, d)
    ax.legend(frameon=False)
    return plain(ax)


def _decoys_and_cut(ax: Any, selector: Any) -> None:
    """The evidence of the decoys, sorted, and the least evidence that a feature is found with."""
    decoys, found = selector.decoy_evidence_, selector.q_values_ <= selector.fdr
    decoys = -np.sort(-decoys[:, ~np.isnan(decoys).any(axis=0)], axis=1)  # (M, d'), each copy best first
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
        The selector of that fit, for what it selected, names and noise. The band in which gates are undecided is
        -1.2 gate_sigma to 1 + 1.2 gate_sigma.
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
    ax = axes_of(ax)
    runs = trajectory.runs  # a copy of all states
    run = _kept_run(runs, selector)
    own = _own(run, selector)
    chosen = np.zeros(len(own), dtype=bool)
    chosen[own] = selector.support_[run.columns[own]]
    best = sorted((int(column) for column in run.columns[chosen]), key=lambda column: int(selector.ranking_[column]))
    named = len(best) <= LABELLED
    if not own.all():
        many_lines(
            ax, run.steps, run.mu[:, ~own], color=GREY, linewidth=0.8, linestyle="--", zorder=1,
            label=_decoys(int((~own).sum())),
        )  # fmt: skip
    for mask, colour, label in ((own & ~chosen, GREY, "not selected"), (chosen, BLUE, "selected")):
        if not (named and colour == BLUE) and mask.any():
            many_lines(
                ax, run.steps, run.mu[:, mask], color=colour, linewidth=0.8, alpha=1 if mask.sum() < SMALL else 0.4,
                zorder=3 if colour == BLUE else 2, label=f"{int(mask.sum())} {label}",
            )  # fmt: skip
            continue
        for k in np.flatnonzero(mask):
            name = named_feature(names_of(selector), int(run.columns[k]))
            colour_of_k = feature_colour(best.index(run.columns[k]))
            ax.plot(run.steps, run.mu[:, k], color=colour_of_k, linewidth=1.6, zorder=3, label=name)
    margin = DECIDED_MARGIN * selector.gate_sigma
    ax.axhspan(-margin, 1 + margin, color=GREY, alpha=0.1, linewidth=0, label="undecided")
    ax.axhline(0, color=ORANGE, linewidth=1, linestyle="--", label=r"$\mu = 0$")
    ax.set_xlabel("step")
    ax.set_ylabel(r"gate parameter $\mu$")
    among = f", {_decoys(int((~own).sum()))} among them" if not own.all() else ""
    ax.set_title(f"{len(run.columns)} gates{among}" + (f" of run {_position(runs, run)}" * (len(runs) > 1)))
    ax.legend(framealpha=0.85, edgecolor="none", fontsize="small")
    return plain(ax)


def _kept_run(runs: Sequence[RunTrajectory], selector: Any) -> RunTrajectory:
    for run in reversed(runs):
        own = _own(run, selector)
        same_end = own.all() or run.steps[-1] == selector.n_iter_  # of decoys the selector keeps no mu
        if same_end and np.array_equal(selector.mu_[run.columns[own]], run.mu[-1][own]):
            return run
    raise ValueError(
        f"None of the trajectory's runs ({len(runs)}) ended with the selector's gates: give the "
        f"trajectory to the fit, as in DUFS(callbacks=[trajectory]).fit(X), and the selector of that same fit"
    )


def _own(run: RunTrajectory, selector: Any) -> Array:
    """Which gates (m,) bool are of columns; the others are of decoys."""
    return run.columns < len(selector.mu_)


def _decoys(count: int) -> str:
    return "1 decoy" if count == 1 else f"{count} decoys"


def _position(runs: Sequence[RunTrajectory], run: RunTrajectory) -> str:
    number = next(i for i, other in enumerate(runs, start=1) if np.array_equal(other.mu[-1], run.mu[-1]))
    return f"{number} of {len(runs)}"


def precision_recall(selector: Any, informative: Array, ax: Any = None) -> Any:
    """Precision and recall of the first k columns by rank against k, and where the selection was cut.

    Parameters
    ----------
    selector : DUFS, LambdaPath, or a selector of `dufs_core.baselines`
        Fitted: `order_` and `support_` are read.
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
    informative = np.asarray(informative)
    columns = informative.dtype.kind in "iu" and informative.ndim == 1
    if not columns or not informative.size or not 0 <= informative.min() <= informative.max() < len(selector.order_):
        raise ValueError(
            f"informative must hold the columns of the right answer, at least one, whole numbers from 0 to "
            f"{len(selector.order_) - 1}; got {informative.tolist()!r}"
        )
    ax = axes_of(ax)
    order, d = selector.order_, len(selector.order_)
    hits = np.cumsum(np.isin(order, informative))
    k = np.arange(1, d + 1)
    marker = "." if d <= SMALL else None
    ax.plot(k, hits / k, color=BLUE, label="precision", marker=marker)
    ax.plot(k, hits / len(np.unique(informative)), color=ORANGE, label="recall", marker=marker)
    cut = int(selector.support_.sum())
    if cut:
        ax.axvline(cut, color=GREY, linewidth=1, linestyle="--", label=f"{cut} selected")
    ax.set_ylim(-0.02, 1.05)
    rank_axis(ax, d)
    ax.set_xlabel("number of features by rank" + log_note(d))
    ax.set_ylabel("share")
    ax.set_title(f"{len(np.unique(informative))} informative features of {d}")
    ax.legend(frameon=False)
    return plain(ax)
