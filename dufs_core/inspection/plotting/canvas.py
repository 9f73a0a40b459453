"""Figures, colours, axes and names of features for all pictures."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from dufs_core.backend import Array
from dufs_core.errors import printable

BLUE, ORANGE, GREY, PALE = "#1f5fa8", "#c8590a", "#8a8a8a", "#d9d9d9"
COLOURS = (BLUE, ORANGE, "#2c8c5a", "#8e4fb0", "#b8860b", "#c23b6b", "#4c9fb8", "#6b5b45")
SMALL = 50  # features: points and lines of more are drawn finer
_LABELLED = 7  # features named in a legend
_NAME = 24


def figure(rows: int = 1, columns: int = 1, width: float = 5.0, height: float = 4.0) -> tuple[Any, Any]:
    """A figure outside pyplot, and its axes (one, or an array)."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("pictures need matplotlib: pip install 'dufs-core[plot]'") from error
    made = Figure(figsize=(width * columns, height * rows), dpi=150, layout="constrained")
    FigureCanvasAgg(made)
    return made, made.subplots(rows, columns)


def png(made: Any, dpi: int = 150) -> bytes:
    buffer = io.BytesIO()
    made.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()


def axes_of(ax: Any) -> Any:
    return figure()[1] if ax is None else ax


def finish(ax: Any, x: str, y: str, title: str, **legend: Any) -> Any:
    ax.set(xlabel=x, ylabel=y, title=title)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(**({"framealpha": 0.85, "edgecolor": "none", "fontsize": "small"} | legend))
    return ax


def whole_numbers(axis: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))


def rank_axis(ax: Any, d: int) -> str:
    """Make the x axis one of ranks 1 to d, logarithmic if d is large; return the end of its label."""
    if d <= 2 * SMALL:
        whole_numbers(ax.xaxis)
        return ""
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter("{x:g}")
    return " (log scale)"


def twin_steps(ax: Any, x: Array, counts: Array, label: str, drawstyle: str, top: float) -> Any:
    """Draw counts over x as orange steps on a second y axis; the first has a blue curve."""
    twin = ax.twinx()
    twin.plot(x, counts, color=ORANGE, linewidth=1.6, drawstyle=drawstyle)
    twin.set(ylabel=label, ylim=(0, top * np.max(counts, initial=1)))
    whole_numbers(twin.yaxis)
    for each, colour in ((ax, BLUE), (twin, ORANGE)):
        each.yaxis.label.set_color(colour)
        each.tick_params(axis="y", colors=colour)
        each.spines["top"].set_visible(False)
        each.spines["right"].set_visible(True)
    return ax


def line_collection(ax: Any, x: Array, y: Array, **style: Any) -> None:
    """Draw y (m, k) over x (m,) as k lines of one style: one object, since thousands of Line2D are slow."""
    from matplotlib.collections import LineCollection

    points = np.empty((y.shape[1], len(x), 2))
    points[:, :, 0], points[:, :, 1] = x, y.T
    ax.add_collection(LineCollection(list(points), linewidth=0.8, **style))
    ax.autoscale_view()


def gate_lines(ax: Any, x: Array, mu: Array, labels: tuple[str, str], grey: Array, blue: dict[int, str]) -> None:
    """Draw mu (m, k) over x: columns of the mask `grey` (k,), and of `blue`, each with its name and colour if few."""
    ax.axhline(0, color=ORANGE, linewidth=1, linestyle="--", label=r"$\mu = 0$")
    few = len(blue) <= _LABELLED
    colours = [colour for colour in COLOURS if colour != ORANGE]  # the colour of cuts
    many: list[Any] = [] if few else list(blue)
    for columns, colour, label in ((np.flatnonzero(grey), GREY, labels[0]), (many, BLUE, labels[1])):
        if len(columns):
            alpha, text = 1 if len(columns) < SMALL else 0.4, f"{len(columns)} {label}"
            line_collection(ax, x, mu[:, columns], color=colour, alpha=alpha, zorder=2 + (colour == BLUE), label=text)
    for colour, (column, name) in zip(colours, blue.items() if few else (), strict=False):
        ax.plot(x, mu[:, column], color=colour, linewidth=1.6, zorder=3, label=name)


def feature_name(names: Sequence[Any] | None, column: int) -> str:
    name = f"x{column}" if names is None else str(names[column])
    return escape_mathtext(name if len(name) <= _NAME else name[: _NAME - 1] + "…")


def escape_mathtext(text: Any) -> str:
    """Text that matplotlib shows as it is: $ would begin mathematics, and a first _ hide a legend's entry."""
    shown = printable(text).replace("$", r"\$")
    return "\u200b" + shown if shown.startswith("_") else shown  # a space of no width


def not_drawn(selector: Any) -> tuple[Array, str]:
    """Mask (d,) of the columns without part in the fit, and its description."""
    constant = np.zeros(len(selector.support_), dtype=bool)
    constant[selector.constant_features_] = True
    kinds = {"constant": constant} | {name: mask & ~constant for name, mask in selector._drawn().aside.items()}
    return np.any(list(kinds.values()), axis=0), " or ".join(name for name, mask in kinds.items() if mask.any())
