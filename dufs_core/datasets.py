"""Problems with known answers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dufs_core.backend import Array
from dufs_core.backend.memory import check_room


class Dataset(NamedTuple):
    """Data with the answer."""

    X: Array  # (n, d) float64, unscaled
    labels: Array  # (n,) int
    informative: Array  # indices of the columns that carry the structure


def two_moons(n_samples: int = 100, n_features: int = 10, noise: float = 0.1, random_state: int = 0) -> Dataset:
    """Two interleaved half circles in columns 0 and 1, standard normal nuisance in all others.

    Upper moon (cos a, sin a), lower moon (1 - cos a, 1/2 - sin a), a evenly spaced on [0, pi], plus
    N(0, noise^2) in both columns; `noise` is a standard deviation. Rows are shuffled.
    Source: arXiv 2007.04728, section 5.1.

    Raises ValueError unless n_samples >= 2, n_features >= 2 and noise >= 0, MemoryLimitError if they are too many.
    """
    if n_samples < 2 or n_features < 2 or noise < 0:
        raise ValueError(
            "two moons need at least 2 samples, 2 features and a noise of at least 0; "
            f"got {n_samples} samples, {n_features} features, noise {noise}"
        )
    check_room(f"two moons of {n_samples} x {n_features} numbers", 3 * 8 * n_samples * n_features)
    rng = np.random.default_rng(random_state)
    n_upper = n_samples // 2
    upper = np.linspace(0, np.pi, n_upper)
    lower = np.linspace(0, np.pi, n_samples - n_upper)
    labels = np.repeat([0, 1], [n_upper, n_samples - n_upper])
    moons = np.column_stack(
        [np.concatenate([np.cos(upper), 1 - np.cos(lower)]), np.concatenate([np.sin(upper), 0.5 - np.sin(lower)])]
    )
    moons += noise * rng.standard_normal(moons.shape)
    order = rng.permutation(n_samples)
    nuisance = rng.standard_normal((n_samples, n_features - 2))
    return Dataset(np.hstack([moons[order], nuisance]), labels[order], np.array([0, 1]))
