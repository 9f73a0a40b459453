"""Pictures of a path over lambda."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dufs_core.backend import Array
from dufs_core.inspection.plotting import canvas
from dufs_core.inspection.plotting.canvas import BLUE, GREY
from dufs_core.selection.base import check_fitted, names_of


def lambda_path(path: Any, ax: Any = None, names: Sequence[Any] | None = None) -> Any:
    """mu of every column of a LambdaPath over lambda, and the lambda chosen; constant columns are left out.

    Parameters
    ----------
    path : LambdaPath
    names : sequence (n_features,), optional
        Names of the columns, by default those of the fit; shown for the ones open at the chosen lambda if few are.
    """
    check_fitted(path, "lams_")
    ax, lams, mu, best = canvas.axes_of(ax), path.lams_, path.mu_, path.best_index_
    names = names_of(path) if names is None else names
    is_open, (absent, kind) = mu[best] > 0, canvas.not_drawn(path)
    named = {int(k): canvas.feature_name(names, int(k)) for k in path.order_ if is_open[k]}
    canvas.gate_lines(ax, lams, mu, ("closed there", "open there"), ~is_open & ~absent, named)
    if absent.any():
        ax.plot([], [], " ", label=f"not drawn: {int(absent.sum())} {kind}")
    x = _lambda_axis(ax, lams, best)
    title = f"{len(lams)} values of lambda, {int(is_open.sum())} gates open at the one chosen"
    return canvas.finish(ax, x, r"gate parameter $\mu$", title)


def path_criterion(path: Any, ax: Any = None) -> Any:
    """The held-out excess score (z) over lambda, filled where p <= 0.05, and the features selected (second y axis).

    Parameters
    ----------
    path : LambdaPath
    """
    check_fitted(path, "lams_")
    ax, lams, z, sure = canvas.axes_of(ax), path.lams_, path.held_out_z_, path.p_value_ <= 0.05
    ax.plot(lams, z, color=BLUE, linewidth=1)
    ax.scatter(lams[sure], z[sure], color=BLUE, s=22, zorder=3, label=r"$p \leq 0.05$")
    ax.scatter(lams[~sure], z[~sure], facecolor="white", edgecolor=BLUE, s=22, zorder=3, label="$p > 0.05$")
    x = _lambda_axis(ax, lams, path.best_index_)
    canvas.finish(ax, x, "held-out excess score (z)", "what each lambda selects", loc="lower left")
    return canvas.twin_steps(ax, lams, path.n_selected_, "features selected", "steps-mid", 1.3)


def _lambda_axis(ax: Any, lams: Array, best: int) -> str:
    """Mark the lambda chosen; make the axis logarithmic if there are several positive ones. Returns its label."""
    from matplotlib.ticker import LogLocator

    positive = lams[lams > 0]
    if len(positive) > 1:
        how = {} if len(positive) == len(lams) else {"linthresh": positive.min()}
        ax.set_xscale("symlog" if how else "log", **how)
        if positive.max() > 10 * positive.min():
            ax.xaxis.set_minor_formatter("")  # all multiples of powers of ten would overlap
            if positive.max() < 1000 * positive.min() and not how:  # and the powers are too few
                ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
                ax.xaxis.set_major_formatter("{x:g}")
    ax.axvline(lams[best], color=GREY, linewidth=1, linestyle=":", label=rf"chosen, $\lambda$ = {lams[best]:.3g}")
    return r"regularisation strength $\lambda$"
