"""Problems with known answers, and the small helpers that several test files share."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dufs_core import DUFS, GatedLaplacian
from dufs_core.selection.settings import set_flat


def standardise(X):
    """Columns of mean 0 and variance 1; constant columns become 0."""
    X = np.asarray(X, dtype=np.float64)
    X = X - X.mean(axis=0)
    deviation = X.std(axis=0)
    return np.asfortranarray(X / np.where(deviation > 0, deviation, 1.0))


class Clusters(NamedTuple):
    X: np.ndarray  # (n, d)
    labels: np.ndarray  # (n,)
    informative: np.ndarray  # columns that separate the clusters


def noise(n, d, seed=0):
    """Independent standard normals: no structure at all, in generic position (no ties)."""
    return standardise(np.random.default_rng(seed).normal(size=(n, d)))


def two_far_clusters(n=12, d=3, distance=1e4):
    """Rows equal within each half, `distance` apart between the halves in every column.

    With a bandwidth far below the distance, P is block diagonal with entries 2 / n, P^t = P, P Xt = Xt and
    S is the sum of squares of Xt; D is 0 within a half and d distance^2 between.
    """
    labels = np.arange(n) % 2
    X = np.where(labels[:, None] == 0, -distance / 2, distance / 2) * np.ones(d)
    return Clusters(np.asfortranarray(X), labels, np.arange(d))


def identical_rows(n=6, d=4):
    """Every row the same: D = 0, K = 1, P = 1 / n, S = n |row|^2."""
    return np.asfortranarray(np.tile(np.linspace(-1.0, 2.0, d), (n, 1)))


def duplicates_and_others(copies=40, others=10, d=4, seed=0):
    """`copies` identical rows and `others` random ones: most k-th neighbour distances are 0."""
    rng = np.random.default_rng(seed)
    return np.asfortranarray(np.vstack([np.tile(rng.normal(size=d), (copies, 1)), rng.normal(size=(others, d))]))


def twins(n=8, d=3, seed=0):
    """Rows 2 i and 2 i + 1 are equal, everything else is not: the nearest neighbour of a row is its twin."""
    return np.asfortranarray(np.repeat(np.random.default_rng(seed).normal(size=(n // 2, d)), 2, axis=0))


def with_constant_column(n=14, d=4, at=2, seed=0):
    """Noise with column `at` standardised from a constant, that is 0."""
    X = noise(n, d, seed)
    X[:, at] = 0.0
    return X


def permuted_copies(n=14, d=2, copies=3, seed=0):
    """`copies` blocks of the same d columns, the rows of each block in an order of its own."""
    rng = np.random.default_rng(seed)
    block = noise(n, d, seed)
    return np.asfortranarray(np.hstack([block, *(block[rng.permutation(n)] for _ in range(copies - 1))]))


def three_clusters(n=45, d=10, spread=0.15, seed=0):
    """Three clusters in columns 0 to 2 (one centre on each axis), noise in the others; standardised."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(n) % 3)
    X = rng.normal(size=(n, d))
    X[:, :3] = 2.0 * np.eye(3)[labels] + spread * rng.normal(size=(n, 3))
    return Clusters(standardise(X), labels, np.arange(3))


def draws(seed, d, n=None, count=1):
    """Standard normal gate noise (count, d), or (count, n, d) where n is given."""
    shape = (count, d) if n is None else (count, n, d)
    return np.random.default_rng(seed).normal(size=shape)


def margin(mu, eps, sigma=0.5):
    """Distance of the nearest gate to a kink of the clip."""
    u = mu + sigma * eps
    return float(np.minimum(abs(u), abs(u - 1.0)).min())


def relative(a, b):
    """Largest |a - b| in units of the largest |b| (of 1 where b is 0)."""
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    assert a.shape == b.shape, (a.shape, b.shape)
    assert np.isfinite(a).all()
    size = float(abs(b).max(initial=0.0))
    return float(abs(a - b).max(initial=0.0)) / (size or 1.0)


def assert_close(a, b, tolerance, what=""):
    """One number against one bound; the message carries the worst error."""
    error = relative(a, b)
    assert error <= tolerance, f"{what}: relative error {error:.3g} > {tolerance:.3g}"


# right pairs of function and backward, for the checker of gradients


def product(x, w):
    return x @ w


def product_backward(x, w, y):
    return y @ w.T, x.T @ y


def square(x):
    return x**2


def square_backward(x, w):
    return 2 * x * w


def gated(**settings):
    """A `GatedLaplacian` with parts of its groups (power, gate_noise, ...) given by their own names."""
    return set_flat(GatedLaplacian(), settings)


def decoys(**settings):
    """A `DUFS` with parts of its graph given by their own names."""
    return set_flat(DUFS(), settings)
