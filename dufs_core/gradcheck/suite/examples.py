"""Awkward examples, each a pure function of a seeded NumPy generator, so that any of them can be drawn again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Host = np.ndarray[Any, np.dtype[np.float64]]
Rng = np.random.Generator
Noise = Literal["batch", "sample"]
Count = int | None  # None: drawn

KINDS = (
    "plain",
    "duplicates",
    "constant_column",
    "near_ties",
    "large",
    "small",
    "tiny_bandwidth",
    "nearly_closed",
    "two_rows",
    "one_column",
    "two_components",
)  # see `data` and `problem`
POWERS = (1, 2, 3, 4, 5)
GATE_SIGMA = 0.5
KINK_MARGIN = 0.02  # distance of every mu + sigma eps from 0 and from 1


def data(rng: Rng, kind: str = "plain", n: Count = None, d: Count = None) -> Host:
    """Rows of a small data set, (n, d) float64: standard normal, or else awkward as the kind says.

    "near_ties": two rows nearly equally far from a third; "large", "small": times 1e6, 1e-6; "two_components": two
    groups a hundred spreads apart. Raises ValueError on an unknown kind.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown kind {kind!r}; there are {', '.join(KINDS)}")
    n = 2 if kind == "two_rows" else int(rng.integers(3, 10)) if n is None else n
    d = 1 if kind == "one_column" else int(rng.integers(1, 7)) if d is None else d
    X = rng.standard_normal((n, d))
    if kind == "duplicates" and n > 2:
        order = rng.permutation(n)
        X[order[: int(rng.integers(1, n - 1))]] = X[order[-1]]
    elif kind == "constant_column":
        X[:, int(rng.integers(d))] = rng.standard_normal()
    elif kind == "near_ties" and n > 2:
        X[1] = 2 * X[0] - X[2] + 10.0 ** rng.uniform(-6, -2) * rng.standard_normal(d)
    elif kind in ("large", "small"):
        X *= 1e6 if kind == "large" else 1e-6
    elif kind == "two_components":
        X[: n // 2] += 1e2
    return X


@dataclass(frozen=True)
class Problem:
    """Data, gate parameters and noise for one evaluation of the whole chain."""

    kind: str
    X: Host  # (n, d)
    mu: Host  # (d,)
    eps: Host  # (R, d), or (R, n, d) for noise per sample
    n_neighbors: int
    bandwidth_factor: float
    scale: float  # mean square of X: a bandwidth or lam given as a number is in these units


def problem(
    rng: Rng, kind: str = "plain", noise: Noise = "batch", n: Count = None, draws: Count = None, d: Count = None
) -> Problem:
    """A problem whose gates keep a distance from their kinks, with data of the kind asked for.

    "tiny_bandwidth": most of K underflows; "nearly_closed": gates open by some thousandths or shut, in some draws all.
    """
    X = data(rng, kind, n, d)
    n, d = X.shape
    R = int(rng.integers(1, 4)) if draws is None else draws
    mu, margin = rng.uniform(-0.2, 1.2, d), KINK_MARGIN
    if kind == "nearly_closed":
        mu, margin = rng.uniform(-0.4, 0.1, d), 0.005
    eps = rng.standard_normal((R, d) if noise == "batch" else (R, n, d))
    if kind == "nearly_closed":
        eps = np.minimum(eps * 0.3, (0.02 - mu) / GATE_SIGMA)
    factor = 10.0 ** rng.uniform(-2.5, -1) if kind == "tiny_bandwidth" else float(rng.choice([1.0, 2.0, 5.0]))
    k = int(rng.integers(1, min(3, n - 1) + 1))
    return Problem(kind, X, mu, away_from_kinks(mu, eps, GATE_SIGMA, margin), k, factor, float(np.mean(X**2)))


def away_from_kinks(mu: Host, eps: Host, sigma: float, margin: float = KINK_MARGIN) -> Host:
    """eps, moved where needed so that every mu + sigma eps is at least `margin` away from 0 and from 1."""
    u = mu + sigma * eps
    for kink in (0.0, 1.0):
        near = np.abs(u - kink) < margin
        u = np.where(near, kink + np.copysign(margin, u - kink) * 1.001, u)
    return np.asarray((u - mu) / sigma)


def symmetric(matrix: Any) -> Any:
    """(M + M') / 2 over the last two axes: the projection onto symmetric matrices, on either array module."""
    return (matrix + matrix.swapaxes(-1, -2)) / 2


def squared_distances(X: Host) -> Host:
    """||x_i - x_j||^2 from the differences, exactly symmetric with zero diagonal.      (n, d) -> (n, n)"""
    return np.asarray(((X[:, None, :] - X[None, :, :]) ** 2).sum(axis=-1))


def affinity(rng: Rng, kind: str, n: Count = None) -> tuple[Host, Host, float]:
    """K, D (n, n) and b of data of this kind: a kernel as it occurs, underflowing for "tiny_bandwidth"."""
    D = squared_distances(data(rng, kind, n))
    b = float(np.median(D[D > 0])) if (D > 0).any() else 1.0
    b *= 10.0 ** rng.uniform(-2.5, -1) if kind == "tiny_bandwidth" else rng.uniform(0.5, 5)
    return np.exp(-D / b), D, b
