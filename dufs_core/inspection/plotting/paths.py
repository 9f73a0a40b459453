"""Pictures of a path over lambda."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dufs_core.backend import Array
from dufs_core.inspection.plotting.canvas import (
    BLUE,
    GREY,
    ORANGE,
    axes_of,
    excluded_mask,
    feature_lines,
    finish,
    twin_steps,
)
from dufs_core.selection.base import check_fitted, names_of


def lambda_path(path: Any, ax: Any = None, names: Sequence[Any] | None = None) -> Any:
    """mu of every column that is not constant over lambda, and the lambda that was chosen.

    Parameters
    ----------
    path : LambdaPath
        Fitted.
    ax : matplotlib axes, optional
    names : sequence of str, optional
        Names of the d columns, for those still open at the chosen lambda if they are few; by default those of the fit.

    Returns
    -------
    matplotlib axes
    """
    check_fitted(path, "lams_")
    ax = axes_of(ax)
    lams, mu, best = path.lams_, path.mu_, path.best_index_
    names = names_of(path) if names is None else names
    is_open, (absent, kind) = mu[best] > 0, excluded_mask(path)
    feature_lines(
        ax, lams, mu, np.arange(len(is_open)), is_open, ~is_open & ~absent, ("closed there", "open there"),
        path.order_, names, marker=".", markersize=4,
    )  # fmt: skip
    if absent.any():
        ax.plot([], [], " ", label=f"not drawn: {int(absent.sum())} {kind}")
    x = _lambda_axis(ax, lams, best)
    ax.axhline(0, color=ORANGE, linewidth=1, linestyle="--")
    title = f"{len(lams)} values of lambda, {int(is_open.sum())} gates open at the one chosen"
    return finish(
        ax, x, r"gate parameter $\mu$", title, frameon=True, framealpha=0.85, edgecolor="none", fontsize="small"
    )


def path_criterion(path: Any, ax: Any = None) -> Any:
    """The held-out criterion that chooses lambda, filled where p <= 0.05, and the number of features selected.

    Parameters
    ----------
    path : LambdaPath
        Fitted.
    ax : matplotlib axes, optional
        The excess score on held-out rows is drawn here, the number on a twin of it.

    Returns
    -------
    matplotlib axes
        `ax`.
    """
    check_fitted(path, "lams_")
    ax = axes_of(ax)
    lams, z, sure = path.lams_, path.held_out_z_, path.p_value_ <= 0.05
    ax.plot(lams, z, color=BLUE, linewidth=1)
    ax.scatter(lams[sure], z[sure], color=BLUE, s=22, zorder=3, label=r"$p \leq 0.05$")
    ax.scatter(lams[~sure], z[~sure], facecolor="white", edgecolor=BLUE, s=22, zorder=3, label="$p > 0.05$")
    x = _lambda_axis(ax, lams, path.best_index_)
    finish(ax, x, "held-out excess score (z)", "what each lambda selects", fontsize="small", loc="lower left")
    twin_steps(ax, lams, path.n_selected_, "features selected", "steps-mid", 1.3)
    ax.yaxis.label.set_color(BLUE)
    return ax


def _lambda_axis(ax: Any, lams: Array, best: int) -> str:
    """Draw the lambda chosen; make the axis logarithmic, from the smallest positive lambda, if there are several."""
    from matplotlib.ticker import LogLocator

    positive = lams[lams > 0]
    if len(positive) > 1:
        all_positive = len(positive) == len(lams)
        if all_positive:
            ax.set_xscale("log")
        else:
            ax.set_xscale("symlog", linthresh=positive.min())
        if positive.max() > 10 * positive.min():
            ax.xaxis.set_minor_formatter("")  # all multiples of powers of ten would overlap
            if all_positive and positive.max() < 1000 * positive.min():  # and the powers are too few
                ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
                ax.xaxis.set_major_formatter("{x:g}")
    ax.axvline(lams[best], color=GREY, linewidth=1, linestyle=":", label=rf"chosen, $\lambda$ = {lams[best]:.3g}")
    return r"$\lambda$, the regularisation strength"
