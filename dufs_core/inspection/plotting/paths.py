"""Pictures of several fits of the same data."""

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
    SMALL,
    axes_of,
    feature_colour,
    left_out,
    many_lines,
    named_feature,
    plain,
    whole_numbers,
)
from dufs_core.selection.base import check_fitted, names_of


def lambda_path(path: Any, ax: Any = None, names: Sequence[Any] | None = None) -> Any:
    """mu of every column that is not constant over the prices lam, and the price that was chosen.

    Parameters
    ----------
    path : LambdaPath
        Fitted.
    ax : matplotlib axes, optional
    names : sequence of str, optional
        Of the d columns, for those still open at the chosen price if they are few; by default those of the fit.

    Returns
    -------
    matplotlib axes
    """
    check_fitted(path, "lams_")
    ax = axes_of(ax)
    lams, mu, best = path.lams_, path.mu_, path.best_index_
    names = names_of(path) if names is None else names
    is_open, (absent, kind) = mu[best] > 0, left_out(path)
    named = [int(k) for k in path.order_ if is_open[k]] if is_open.sum() <= LABELLED else []
    for mask, colour, label in ((~is_open & ~absent, GREY, "closed there"), (is_open, BLUE, "open there")):
        if not (named and colour == BLUE) and mask.any():
            many_lines(
                ax, lams, mu[:, mask], color=colour, linewidth=0.8, alpha=1 if mask.sum() < SMALL else 0.4,
                zorder=3 if colour == BLUE else 2, label=f"{int(mask.sum())} {label}",
            )  # fmt: skip
            continue
        for k in np.flatnonzero(mask):
            own = feature_colour(named.index(int(k)))
            ax.plot(
                lams, mu[:, k], marker=".", markersize=4, color=own, linewidth=1.6, zorder=3,
                label=named_feature(names, int(k)),
            )  # fmt: skip
    if absent.any():
        ax.plot([], [], " ", label=f"not drawn: {int(absent.sum())} {kind}")
    _prices(ax, lams, best)
    ax.axhline(0, color=ORANGE, linewidth=1, linestyle="--")
    ax.set_ylabel(r"gate parameter $\mu$")
    ax.set_title(f"{len(lams)} prices, {int(is_open.sum())} gates open at the one chosen")
    ax.legend(framealpha=0.85, edgecolor="none", fontsize="small")
    return plain(ax)


def path_criterion(path: Any, ax: Any = None) -> Any:
    """What chooses among the prices lam, filled where p <= 0.05, and the number of features selected.

    Parameters
    ----------
    path : LambdaPath
        Fitted.
    ax : matplotlib axes, optional
        The permutation gap on held-out rows is drawn here, the number on a twin of it.

    Returns
    -------
    matplotlib axes
        `ax`.
    """
    check_fitted(path, "lams_")
    ax = axes_of(ax)
    lams, best, gap, sure = path.lams_, path.best_index_, path.held_out_z_, path.p_value_ <= 0.05
    ax.plot(lams, gap, color=BLUE, linewidth=1)
    ax.scatter(lams[sure], gap[sure], color=BLUE, s=22, zorder=3, label=r"$p \leq 0.05$")
    ax.scatter(lams[~sure], gap[~sure], facecolor="white", edgecolor=BLUE, s=22, zorder=3, label="$p > 0.05$")
    ax.set_ylabel("held-out gap, in standard deviations", color=BLUE)
    ax.tick_params(axis="y", colors=BLUE)
    counts = ax.twinx()
    counts.plot(lams, path.n_selected_, color=ORANGE, linewidth=1.6, drawstyle="steps-mid")
    counts.set_ylabel("features selected", color=ORANGE)
    counts.tick_params(axis="y", colors=ORANGE)
    counts.set_ylim(0, 1.3 * max(1, path.n_selected_.max()))  # apart from the gap
    whole_numbers(counts.yaxis)
    _prices(ax, lams, best)
    ax.set_title("what each price selects")
    ax.legend(frameon=False, fontsize="small", loc="lower left")
    for each in (ax, counts):
        each.spines["top"].set_visible(False)
    return ax


def _prices(ax: Any, lams: Array, best: int) -> None:
    """The axis of lam, with the price chosen; logarithmic (from the smallest positive price) if there are several."""
    positive = lams[lams > 0]
    if len(positive) > 1:
        ax.set_xscale("log" if len(positive) == len(lams) else "symlog", **(
            {} if len(positive) == len(lams) else {"linthresh": positive.min()}
        ))  # fmt: skip
        if positive.max() > 10 * positive.min():
            ax.xaxis.set_minor_formatter("")  # all multiples of powers of ten would overlap
            if positive.max() < 1000 * positive.min() and len(positive) == len(lams):  # and the powers are too few
                from matplotlib.ticker import LogLocator

                ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
                ax.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    ax.axvline(lams[best], color=GREY, linewidth=1, linestyle=":", label=rf"chosen, $\lambda$ = {lams[best]:.3g}")
    ax.set_xlabel(r"price of an open gate $\lambda$")


def over_settings(
    settings: Sequence[str], values: Sequence[Sequence[float]], ax: Any = None, colour: str = BLUE
) -> Any:
    """Values of several fits (seeds) at each of several settings, and their means: `dufs_core.cli.sweep.plots`.

    values: for each setting those of its fits, one at least.
    """
    ax = axes_of(ax)
    for x, column in enumerate(values):
        ax.scatter([x] * len(column), column, s=16, color=colour, alpha=0.6, zorder=3)
    ax.plot([sum(column) / len(column) for column in values], color=colour, linewidth=1)
    shown = range(0, len(settings), -(-len(settings) // 12))
    ax.set_xticks(list(shown), [settings[i] for i in shown], rotation=30, ha="right")
    return plain(ax)
