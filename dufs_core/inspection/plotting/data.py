"""Pictures of the data: selected pixels, and the random walk before and after the selection."""

from __future__ import annotations

from typing import Any

import numpy as np

from dufs_core.backend import Array
from dufs_core.data.accept import dense_part, host_array, some_rows
from dufs_core.data.dense import scale_columns
from dufs_core.inspection.fitted import host_data
from dufs_core.inspection.plotting import canvas
from dufs_core.inspection.plotting.canvas import BLUE, COLOURS, GREY, ORANGE, PALE
from dufs_core.inspection.spectral import Spectrum, affinity, random_walk_spectrum
from dufs_core.selection.base import check_fitted
from dufs_core.selection.gates.gated_laplacian import GatedLaplacian
from dufs_core.selection.parameters import graph_for
from dufs_core.selection.settings import Graph

_MOST_ROWS = 600  # of the eigenproblems
_LISTED = 24  # labels of a legend
_MOST_ENTRIES = 1 << 25  # of the rows in hand


def selected_pixels(selector: Any, shape: tuple[int, int], image: Array | None = None, ax: Any = None) -> Any:
    """The selected pixels, marked on an image, or on the evidence (mu, score) of all pixels.

    Without an image, pixels without part in the fit (constant, not judged, or set aside) are grey. ValueError if
    shape, image and selector disagree.

    Parameters
    ----------
    shape : (height, width)
        Their product is the number of features; rows of X are images in C order. For MATLAB's column order fit
        ``X.reshape(-1, width, height).transpose(0, 2, 1).reshape(len(X), -1)``.
    image : array with height * width numbers, optional
        One row of X, or the mean of several.
    """
    check_fitted(selector)
    d = len(selector.support_)
    if np.size(shape) != 2 or shape[0] * shape[1] != d:
        needed = f"(height, width) with height * width = {d}, the number of features"
        raise ValueError(f"shape must be {needed}; got {shape}")
    if image is not None and np.size(image) != d:
        raise ValueError(f"image must have {d} numbers, one for each feature; got {np.size(image)}")
    ax = canvas.axes_of(ax)
    rows, columns = np.nonzero(selector.support_.reshape(shape))
    size = (ax.get_position().height * ax.figure.get_figheight() * 72 / max(shape)) ** 2
    title = f"{len(rows)} of {d} pixels selected"
    if image is None:
        absent, kind = canvas.not_drawn(selector)
        values, label, *_ = selector._drawn()
        absent &= ~selector.support_
        scores = np.ma.masked_array(np.asarray(values, dtype=float), absent)
        ax.set_facecolor(PALE)
        ax.figure.colorbar(ax.imshow(scores.reshape(shape), cmap="viridis"), ax=ax, label=label, shrink=0.8)
        ax.scatter(columns, rows, s=0.15 * size, marker="s", color="white", linewidths=0)
        title += f"\n(grey: {int(absent.sum())} {kind})" if absent.any() else ""
    else:
        ax.imshow(np.asarray(image, dtype=float).reshape(shape), cmap="gray")
        ax.scatter(columns, rows, s=0.6 * size, marker="s", color=ORANGE, alpha=0.75, linewidths=0)
    ax.set(xticks=[], yticks=[], title=title)
    return ax


def spectrum(selector: Any, X: Any, ax: Any = None, n_values: int = 10) -> Any:
    """The `n_values` largest eigenvalues of the random walk P, with all columns and with the selected ones.

    A good selection has as many eigenvalues near 1 as there are clusters, and then a gap. P has the selector's scaling
    and graph; at most 600 rows of X are used, always the same. ValueError if nothing is selected, or X has another
    number of features.
    """
    ax = canvas.axes_of(ax)
    rows, parts = _before_and_after(selector, X)
    for (part, label), colour in zip(parts, (GREY, BLUE), strict=True):
        values = _walk(selector, part, n_values).values
        ax.plot(np.arange(1, len(values) + 1), values, color=colour, marker="o", markersize=4, label=label)
    canvas.whole_numbers(ax.xaxis)
    return canvas.finish(ax, "number of the eigenvalue", "eigenvalue of P", f"spectrum of the random walk{rows}")


def embedding(selector: Any, X: Any, labels: Any = None, axes: Any = None) -> Any:
    """The rows in the second and third eigenvector of P, before and after the selection; see `spectrum`.

    Parameters
    ----------
    X : array-like (n_samples, n_features)
        The data of the fit; ValueError if it has another number of features.
    labels : array-like (n_samples,), optional
        Colours, with a legend for up to 24 different labels; missing ones are "no label". The fit does not use them.
    axes : two matplotlib axes, optional
    """
    from matplotlib import colormaps

    check_fitted(selector)
    groups: list[tuple[str | None, Any]] = [(None, slice(None))]
    if labels is not None:
        labels = labels if isinstance(labels, np.ndarray) else np.asarray(labels, dtype=object)
        if labels.shape != (n := host_array(X).shape[0],):
            got = len(labels) if labels.ndim == 1 else f"an array of shape {labels.shape}"
            raise ValueError(f"labels must be one for each of the {n} rows of X; got {got}")
        groups = _groups(labels[some_rows(n, _most_rows(len(selector.support_)))])
    axes = canvas.figure(1, 2)[1] if axes is None else axes
    rows, parts = _before_and_after(selector, X)
    colours: Any = COLOURS if len(groups) <= len(COLOURS) else colormaps["turbo"](np.linspace(0, 1, len(groups)))
    for ax, (part, what) in zip(axes, parts, strict=True):
        points = _walk(selector, part, 3).vectors[:, 1:]
        size = 12 if len(points) <= 300 else 5
        for (group, mask), colour in zip(groups, colours, strict=False):
            ax.scatter(points[mask, 0], points[mask, 1], s=size, linewidths=0, color=colour, label=group)
        ax.set(xlabel=r"$\psi_2$", ylabel=r"$\psi_3$", xticks=[], yticks=[], title=what + rows)
        ax.spines[["top", "right"]].set_visible(False)
        if 1 < len(groups) <= len(COLOURS):
            ax.legend(frameon=False, fontsize="small", markerscale=2)
    if len(COLOURS) < len(groups) <= _LISTED:  # beside both pictures, where it hides no point
        ax.legend(frameon=False, fontsize="x-small", markerscale=2, loc="center left", bbox_to_anchor=(1, 0.5))
    return axes


def _groups(labels: Array) -> list[tuple[str | None, Any]]:
    """The sorted labels as text, each with the mask (n,) of its rows; missing ones last."""
    missing = np.array([_is_missing(label) for label in labels], dtype=bool)
    found: list[tuple[str | None, Any]] = []
    for kind in sorted(set(labels[~missing]), key=lambda kind: (isinstance(kind, str), kind)):  # numbers before text
        mask = np.zeros(len(labels), dtype=bool)
        mask[~missing] = labels[~missing] == kind
        found.append((canvas.escape_mathtext(kind), mask))
    return [*found, ("no label", missing)] if missing.any() else found


def _is_missing(label: Any) -> bool:
    """None, and what does not equal itself: NaN, NaT."""
    try:
        return label is None or bool(label != label)
    except TypeError:  # pandas.NA, which is neither
        return True


def _most_rows(d: int) -> int:
    return min(_MOST_ROWS, max(100, _MOST_ENTRIES // d))


def _before_and_after(selector: Any, X: Any) -> tuple[str, tuple[tuple[Array, str], ...]]:
    """A note on the rows drawn; their scaled data with all columns and with the selected ones, each in words."""
    check_fitted(selector)
    X, d = host_data(selector, X), len(selector.support_)
    if not selector.support_.any():
        raise ValueError("No feature is selected, so that there is nothing to draw after the selection")
    rows = some_rows(X.shape[0], _most_rows(d))
    scaling = getattr(_settings(selector), "scaling", "columns")
    scaled = scale_columns(dense_part(X, rows, np.arange(d)), scaling, np.float64).X
    note = "" if len(rows) == X.shape[0] else f", {len(rows)} of {X.shape[0]} rows"
    selected = scaled[:, selector.support_]
    return note, ((scaled, f"all {d} features"), (selected, f"the {selected.shape[1]} selected"))


def _settings(selector: Any) -> Any:
    """The selector with the parameters: that of a path, or the selector itself."""
    return getattr(selector, "selector", None) or selector


def _walk(selector: Any, X: Array, count: int) -> Spectrum:
    """The `count` (at most n) largest eigenvalues of P on X (n, m), and their eigenvectors."""
    graph = _graph(selector, len(X))
    neighbors = min(graph.n_neighbors, len(X) - 1)
    K = affinity(X, graph.bandwidth, neighbors, graph.bandwidth_factor, graph.self_loops)
    return random_walk_spectrum(K, min(count, len(X)))


def _graph(selector: Any, n: int) -> Graph:
    """The graph of a fitted selector on n rows; parameters that baselines lack are those of `GatedLaplacian`."""
    settings = _settings(selector)
    if isinstance(getattr(settings, "graph", None), Graph):
        return graph_for(settings, n)
    names = GatedLaplacian().graph.get_params()
    own = {name: value for name in names if (value := getattr(settings, name, None)) is not None}
    return GatedLaplacian().graph.with_parts(own)
