"""How the figures and tables look."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

BLUE, ORANGE, GREEN, GREY, RED = "#1f5fa8", "#c8590a", "#2f7d4f", "#777777", "#a8323e"


def figure(rows: int, columns: int, width: float = 4.2, height: float = 3.2) -> tuple[Figure, list[Axes]]:
    """A figure of rows x columns panels, `width` x `height` inches each, and the panels in reading order."""
    made = Figure(figsize=(columns * width, rows * height), dpi=100, layout="constrained")
    FigureCanvasAgg(made)
    panels = list(made.subplots(rows, columns, squeeze=False).ravel())
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
    return made, panels


def legend_below(made: Figure, axes: Axes, columns: int) -> None:
    """One legend for all panels, with the lines of one of them."""
    made.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=columns, frameon=False, fontsize=8)


def means(group: Sequence[dict[str, Any]], names: Iterable[str]) -> dict[str, float]:
    """The mean of each entry over the records of a group, and its standard deviation as NAME_std."""
    values = {name: [record[name] for record in group] for name in names}
    return {name: float(np.mean(v)) for name, v in values.items()} | {
        f"{name}_std": float(np.std(v)) for name, v in values.items()
    }


def picture(made: Figure) -> bytes:
    """The figure as a PNG file with a palette: a third of the size."""
    full, small = io.BytesIO(), io.BytesIO()
    made.savefig(full, format="png")
    with Image.open(full) as image:
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(small, "png", optimize=True)
    return small.getvalue()
