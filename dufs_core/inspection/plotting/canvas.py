"""Shared by all pictures: figures, colours, axes of ranks, names of features."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from dufs_core.backend import Array
from dufs_core.inspection.fitted import column_mask, is_judged, kind_of

BLUE, ORANGE, GREY, PALE = "#1f5fa8", "#c8590a", "#8a8a8a", "#d9d9d9"
COLOURS = (BLUE, ORANGE, "#2c8c5a", "#8e4fb0", "#b8860b", "#c23b6b", "#4c9fb8", "#6b5b45")
SMALL = 50  # features: points and lines of more are drawn finer
_LABELLED = 7  # features named in a legend
_NAME = 24


def figure(rows: int = 1, columns: int = 1, width: float = 5.0, height: float = 4.0) -> tuple[Any, Any]:
    """A figure that pyplot does not know, and its axes (one, or an array of them).

    Raises ImportError, saying what to install, without matplotlib.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("pictures need matplotlib: pip install 'dufs-core[plot]'") from error
    made = Figure(figsize=(width * columns, height * rows), dpi=150, layout="constrained")
    FigureCanvasAgg(made)
    return made, made.subplots(rows, columns)


def png(made: Any, dpi: int = 150) -> bytes:
    """The figure as the bytes of a PNG file."""
    buffer = io.BytesIO()
    made.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()


def axes_of(ax: Any) -> Any:
    return figure()[1] if ax is None else ax


def finish(ax: Any, x: str, y: str, title: str, **legend: Any) -> Any:
    """Label the axes, and draw the legend."""
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.set_title(title)
    ax.legend(**({"frameon": False} | legend))
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def whole_numbers(axis: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))


def rank_axis(ax: Any, d: int) -> str:
    """Make the x axis one of ranks 1 to d, logarithmic for many; return what to add to its label."""
    if d <= 2 * SMALL:
        whole_numbers(ax.xaxis)
        return ""
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter("{x:g}")
    return " (log scale)"


def twin_steps(ax: Any, x: Array, counts: Array, label: str, drawstyle: str, top: float) -> None:
    """Counts over x as orange steps on a twin of axes whose own curve is blue."""
    twin = ax.twinx()
    twin.plot(x, counts, color=ORANGE, linewidth=1.6, drawstyle=drawstyle)
    twin.set_ylabel(label, color=ORANGE)
    twin.set_ylim(0, top * np.max(counts, initial=1))
    whole_numbers(twin.yaxis)
    for each, colour in ((ax, BLUE), (twin, ORANGE)):
        each.tick_params(axis="y", colors=colour)
        each.spines["top"].set_visible(False)


def line_collection(ax: Any, x: Array, y: Array, **style: Any) -> None:
    """y (m, k) against x (m,) as k lines that look alike: one object, which draws thousands in the time of few."""
    from matplotlib.collections import LineCollection

    points = np.empty((y.shape[1], len(x), 2))
    points[:, :, 0], points[:, :, 1] = x, y.T
    ax.add_collection(LineCollection(list(points), **style))
    ax.autoscale_view()


def feature_lines(
    ax: Any, x: Array, mu: Array, columns: Array, chosen: Array, grey: Array, kinds: tuple[str, str],
    order: Array, names: Sequence[Any] | None, **style: Any,
) -> None:  # fmt: skip
    """mu (m, k) of `columns` (k,): grey for the masked, blue or, if they are few, named in colours for the chosen."""
    few = chosen.sum() <= _LABELLED
    colours = [colour for colour in COLOURS if colour != ORANGE]  # orange is for cuts
    for mask, colour, kind, z in ((grey, GREY, kinds[0], 2), (chosen, BLUE, kinds[1], 3)):
        if mask.any() and not (few and colour == BLUE):
            alpha = 1 if mask.sum() < SMALL else 0.4
            label = f"{int(mask.sum())} {kind}"
            line_collection(ax, x, mu[:, mask], color=colour, linewidth=0.8, alpha=alpha, zorder=z, label=label)
    if few:
        best = [k for k in order if k in columns[chosen]]
        for k in np.flatnonzero(chosen):
            column = int(columns[k])
            label = escape_mathtext(_short(names[column]) if names is not None else f"x{column}")
            ax.plot(x, mu[:, k], color=colours[best.index(column)], linewidth=1.6, zorder=3, label=label, **style)


def _short(name: Any) -> str:
    text = str(name)
    return text if len(text) <= _NAME else text[: _NAME - 1] + "…"


def values_of(selector: Any) -> tuple[Array, str]:
    """What the columns of a fitted selector are compared by (d,), and its name: evidence, mu, or a score."""
    if kind_of(selector) == "decoys":
        return selector.evidence_, "evidence"
    return selector.scores_, "score" if kind_of(selector) == "scores" else r"gate parameter $\mu$"


def excluded_mask(selector: Any) -> tuple[Array, str]:
    """The columns (d,) bool that took no part in the fit, whose values only say so, and what they are called."""
    constant = column_mask(selector, "constant_features_")
    judged = kind_of(selector) != "decoys"
    others = column_mask(selector, "excluded_features_") if judged else ~is_judged(selector) & ~constant
    kinds = (("constant", constant), ("set aside" if judged else "not judged", others))
    return constant | others, " or ".join(kind for kind, mask in kinds if mask.any())


def escape_mathtext(text: Any) -> str:
    """Text for matplotlib to show as it is: with $ it sets mathematics, and legends leave out what begins with _."""
    shown = str(text).replace("$", r"\$")
    return "\u200b" + shown if shown.startswith("_") else shown  # a space of no width
