"""Pictures of one fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dufs_core.backend import Array
from dufs_core.plotting.canvas import (
    BLUE,
    GREY,
    LABELLED,
    ORANGE,
    SMALL,
    axes_of,
    feature_colour,
    left_out,
    log_note,
    many_lines,
    named_feature,
    plain,
    rank_axis,
    whole_numbers,
)
from dufs_core.selection import check_fitted, names_of
from dufs_core.trainer import DECIDED_MARGIN
from dufs_core.trajectory import RunTrajectory, Trajectory


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
    gates.set_ylabel("open gates", color=ORANGE)
    gates.tick_params(axis="y", colors=ORANGE)
    gates.set_ylim(0, 1.05 * np.max(history["open_gates"], initial=1))
    whole_numbers(gates.yaxis)
    ax.set_title("training" if len(history["step"]) else "no steps: every feature is constant")
    for each in (ax, gates):
        each.spines["top"].set_visible(False)
    return ax


def ranked_scores(selector: Any, ax: Any = None) -> Any:
    """The scores in order of rank, and where the selection was cut.

    Features that took no part in the fit (constant, or set aside after its first run) have no score to draw.

    Parameters
    ----------
    selector : DUFS, LambdaPath, or a selector of `dufs_core.baselines`
        Fitted: `scores_`, `ranking_` and `support_` are read.
    ax : matplotlib axes, optional

    Returns
    -------
    matplotlib axes
    """
    check_fitted(selector)
    ax = axes_of(ax)
    gated = hasattr(selector, "mu_")
    order = selector.ranking_
    scores, chosen = selector.scores_[order], selector.support_[order]
    d, rank = len(order), np.arange(1, len(order) + 1)
    size = 30 if d <= SMALL else 12 if d <= 10 * SMALL else 5
    absent, kind = left_out(selector)
    absent = absent[order] & ~chosen
    for mask, colour, label in ((chosen, BLUE, "selected"), (~chosen & ~absent, GREY, "not selected")):
        ax.scatter(rank[mask], scores[mask], s=size, color=colour, label=f"{int(mask.sum())} {label}", zorder=3)
    if absent.any():
        ax.plot([], [], " ", label=f"not drawn: {int(absent.sum())} {kind}")
    by_sign = gated and np.array_equal(selector.support_, selector.scores_ > 0)
    if gated:
        label = r"cut, $\mu = 0$" if by_sign else r"$\mu = 0$"
        ax.axhline(0, color=ORANGE, linewidth=1, linestyle="--", label=label)
    if not by_sign and 0 < chosen.sum() < d:
        cut = int(chosen.sum()) + 0.5
        ax.axvline(cut, color=ORANGE, linewidth=1, label=f"cut after rank {int(cut)}")
    rank_axis(ax, d)
    ax.set_xlabel("rank of the feature" + log_note(d))
    ax.set_ylabel(r"gate parameter $\mu$" if gated else "score")
    ax.set_title(f"{int(chosen.sum())} of {d} features selected")
    ax.legend(frameon=False)
    return plain(ax)


def gate_trajectories(trajectory: Trajectory, selector: Any, ax: Any = None) -> Any:
    """mu of every column over the steps of the run that was kept.

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
    chosen = selector.support_[run.columns]
    best = [int(column) for column in selector.ranking_[:LABELLED] if selector.support_[column]]
    named = int(chosen.sum()) <= LABELLED
    for mask, colour, label in ((~chosen, GREY, "not selected"), (chosen, BLUE, "selected")):
        if not (named and colour == BLUE) and mask.any():
            many_lines(
                ax, run.steps, run.mu[:, mask], color=colour, linewidth=0.8, alpha=1 if mask.sum() < SMALL else 0.4,
                zorder=3 if colour == BLUE else 2, label=f"{int(mask.sum())} {label}",
            )  # fmt: skip
            continue
        for k in np.flatnonzero(mask):
            name = named_feature(names_of(selector), int(run.columns[k]))
            own = feature_colour(best.index(run.columns[k]))
            ax.plot(run.steps, run.mu[:, k], color=own, linewidth=1.6, zorder=3, label=name)
    margin = DECIDED_MARGIN * selector.gate_sigma
    ax.axhspan(-margin, 1 + margin, color=GREY, alpha=0.1, linewidth=0, label="undecided")
    ax.axhline(0, color=ORANGE, linewidth=1, linestyle="--", label=r"$\mu = 0$")
    ax.set_xlabel("step")
    ax.set_ylabel(r"gate parameter $\mu$")
    ax.set_title(f"{len(run.columns)} gates" + (f" of run {_position(runs, run)}" * (len(runs) > 1)))
    ax.legend(framealpha=0.85, edgecolor="none", fontsize="small")
    return plain(ax)


def _kept_run(runs: Sequence[RunTrajectory], selector: Any) -> RunTrajectory:
    for run in reversed(runs):
        if np.array_equal(selector.mu_[run.columns], run.mu[-1]):
            return run
    raise ValueError(
        f"None of the trajectory's runs ({len(runs)}) ended with the selector's gates: give the "
        f"trajectory to the fit, as in DUFS(callbacks=[trajectory]).fit(X), and the selector of that same fit"
    )


def _position(runs: Sequence[RunTrajectory], run: RunTrajectory) -> str:
    number = next(i for i, other in enumerate(runs, start=1) if np.array_equal(other.mu[-1], run.mu[-1]))
    return f"{number} of {len(runs)}"


def precision_recall(selector: Any, informative: Array, ax: Any = None) -> Any:
    """Precision and recall of the first k columns by rank against k, and where the selection was cut.

    Parameters
    ----------
    selector : DUFS, LambdaPath, or a selector of `dufs_core.baselines`
        Fitted: `ranking_` and `support_` are read.
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
    if not columns or not informative.size or not 0 <= informative.min() <= informative.max() < len(selector.ranking_):
        raise ValueError(
            f"informative must hold the columns of the right answer, at least one, whole numbers from 0 to "
            f"{len(selector.ranking_) - 1}; got {informative.tolist()!r}"
        )
    ax = axes_of(ax)
    order, d = selector.ranking_, len(selector.ranking_)
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
