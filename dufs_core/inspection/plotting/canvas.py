"""What all pictures share: figures of their own, colours, axes of ranks, names of features."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from dufs_core.backend import Array

BLUE, ORANGE, GREY, PALE = "#1f5fa8", "#c8590a", "#8a8a8a", "#d9d9d9"
COLOURS = (BLUE, ORANGE, "#2c8c5a", "#8e4fb0", "#b8860b", "#c23b6b", "#4c9fb8", "#6b5b45")
SMALL = 50  # features: points and lines of more are drawn finer
LABELLED = 7  # features named in a legend
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


def png(made: Any, dpi: int | None = None) -> bytes:
    """The figure as the bytes of a PNG file."""
    buffer = io.BytesIO()
    made.savefig(buffer, format="png", dpi=dpi or made.dpi)
    return buffer.getvalue()


def axes_of(ax: Any, width: float = 5.0) -> Any:
    return figure(width=width)[1] if ax is None else ax


def feature_colour(number: int) -> str:
    """Of the first, second, ... feature that is named; orange is for cuts."""
    return [colour for colour in COLOURS if colour != ORANGE][number % (len(COLOURS) - 1)]


def plain(ax: Any) -> Any:
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def many_lines(ax: Any, x: Array, y: Array, **how: Any) -> None:
    """y (m, k) against x (m,) as k lines that look alike: one object, which draws thousands in the time of few."""
    from matplotlib.collections import LineCollection

    points = np.empty((y.shape[1], len(x), 2))
    points[:, :, 0], points[:, :, 1] = x, y.T
    ax.add_collection(LineCollection(list(points), **how))
    ax.autoscale_view()


def whole_numbers(axis: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))


def rank_axis(ax: Any, d: int) -> None:
    """The axis of ranks 1 to d, logarithmic for many."""
    from matplotlib.ticker import FuncFormatter

    if d > 2 * SMALL:
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    else:
        whole_numbers(ax.xaxis)


def log_note(d: int) -> str:
    return " (log scale)" if d > 2 * SMALL else ""


def values_of(selector: Any) -> tuple[Array, str]:
    """What the columns of a fitted selector are compared by (d,), and its name: evidence, mu, or a score."""
    if hasattr(selector, "evidence_"):
        return selector.evidence_, "evidence"
    return selector.scores_, r"gate parameter $\mu$" if hasattr(selector, "mu_") else "score"


def left_out(selector: Any) -> tuple[Array, str]:
    """The columns (d,) bool that took no part in the fit, whose values only say so, and what they are called."""
    mask = np.zeros(len(selector.support_), dtype=bool)
    kinds = []
    if hasattr(selector, "decoy_evidence_"):
        mask = np.isnan(selector.decoy_evidence_).any(axis=0)
        some = len(selector.constant_features_) > 0, mask.sum() > len(selector.constant_features_)
        return mask, " or ".join(kind for kind, any_ in zip(("constant", "not judged"), some, strict=True) if any_)
    for name, kind in (("constant_features_", "constant"), ("excluded_features_", "set aside")):
        columns = getattr(selector, name, np.zeros(0, dtype=int))
        mask[columns] = True
        kinds += [kind] * (len(columns) > 0)
    return mask, " or ".join(kinds)


def named_feature(names: Sequence[Any] | None, column: int) -> str:
    """A feature's name, cut."""
    name = f"x{column}" if names is None else str(names[column])
    return verbatim(name if len(name) <= _NAME else name[: _NAME - 1] + "…")


def verbatim(text: Any) -> str:
    """Text for matplotlib to show as it is: with $ it sets mathematics, and legends leave out what begins with _."""
    shown = str(text).replace("$", r"\$")
    return "\u200b" + shown if shown.startswith("_") else shown  # a space of no width
