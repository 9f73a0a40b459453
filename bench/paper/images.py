"""Images as tables, their selected pixels drawn over them, and the accuracy of k-means on those."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap

from bench.common import required
from bench.paper.data import read_idx, read_mat, read_pix10
from bench.paper.protocol import COUNTS
from dufs_core.backend import Array
from dufs_core.inspection.metrics import kmeans_accuracy

SHADES = ScalarMappable(  # of the first 50 pixels, the next 50, ...
    BoundaryNorm((0, *COUNTS), len(COUNTS)),
    ListedColormap(("#b30000", "#e34a33", "#fc8d59", "#fdbb84", "#fdd49e", "#ffe9cc")),
)
OPACITY = 0.85  # of the shades over the image


class Images(NamedTuple):
    """One image a row."""

    X: Array  # (n, d) float64
    labels: Array  # (n,)
    shape: tuple[int, int]
    by_columns: bool  # pixels run down the columns of an image, not along its rows

    def picture(self, row: Array) -> Array:
        """A row of X, or any (d,) array, as an image."""
        return row.reshape(self.shape, order="F" if self.by_columns else "C")


def noisy_digits(n: int, seed: int) -> Images:
    """n random threes and eights, divided by 255; pixels that are 0 are replaced by uniform draws from [0, 1]."""
    images, digits = map(read_idx, required("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"))
    rng = np.random.default_rng(seed)
    rows = rng.choice(np.flatnonzero(np.isin(digits, (3, 8))), n, replace=False)
    X = images[rows].reshape(n, -1) / 255.0
    return Images(np.where(X == 0, rng.uniform(size=X.shape), X), digits[rows], images.shape[1:], False)


def noisy_faces(n: int, seed: int) -> Images:
    """n of PIX10's 100 faces, divided by their maximum, with uniform draws from [0, 0.3] added to all pixels."""
    X, labels = read_pix10(*required("pixraw10P.mat"))
    rows = _spread(len(X), n)
    noise = np.random.default_rng(seed).uniform(0, 0.3, (n, X.shape[1]))
    return Images(X[rows] + noise, labels[rows], (100, 100), True)


def coil20(n: int, seed: int) -> Images:
    """n of COIL-20's 1,440 images, 32 x 32, values in [0, 1]."""
    X, labels = read_mat(*required("COIL20.mat"))
    rows = _spread(len(X), n)
    return Images(X[rows], labels[rows], (32, 32), True)


def coil100_part(n: int, seed: int) -> Images:
    """n of 1,224 images of 17 of COIL-100's objects, in grey, 32 x 32, values in [0, 1]."""
    with np.load(*required("coil100_partial17_gray32.npz")) as archive:
        rows = _spread(len(archive["X"]), n)
        return Images(archive["X"][rows] / 255.0, archive["y"][rows], (32, 32), False)


def _spread(most: int, n: int) -> Array:
    """n of `most` rows, evenly spread, so that every class is there."""
    return np.linspace(0, most - 1, n).round().astype(int)


def accuracies(images: Images, ranking: Array, n_runs: int) -> list[float]:
    """Percent, mean of n_runs k-means, on the first 50, ..., 300 columns of a ranking."""
    return [accuracy(images, ranking[:count], n_runs) for count in COUNTS]


def accuracy(images: Images, columns: Array, n_runs: int) -> float:
    """Percent, mean of n_runs k-means with k = number of classes."""
    return round(100 * kmeans_accuracy(images.X[:, columns], images.labels, n_runs)[0], 2)


def draw_selected(axes: Axes, images: Images, ranking: list[int], title: str) -> None:
    """The first 300 pixels of a ranking in six shades, darkest first, over the mean image in grey."""
    rank = np.full(images.X.shape[1], np.nan)
    rank[ranking[: COUNTS[-1]]] = np.arange(min(len(ranking), COUNTS[-1]))
    axes.imshow(images.picture(images.X.mean(axis=0)), cmap="gray")
    axes.imshow(images.picture(rank), cmap=SHADES.cmap, norm=SHADES.norm, alpha=OPACITY)
    bare(axes, title)


def bare(axes: Axes, title: str) -> None:
    """An image without axes."""
    axes.set_title(title, fontsize=9)
    axes.set_axis_off()
