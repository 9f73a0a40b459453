"""How the figures and tables look."""

from __future__ import annotations

import io

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


def picture(made: Figure) -> bytes:
    """The figure as a PNG file with a palette: a third of the size."""
    full, small = io.BytesIO(), io.BytesIO()
    made.savefig(full, format="png")
    with Image.open(full) as image:
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(small, "png", optimize=True)
    return small.getvalue()
