"""Parameters that belong together: a selector has them as one, by name and by part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self

import numpy as np

from dufs_core.backend import get_backend
from dufs_core.errors import did_you_mean


class Settings:
    """A frozen group of parameters whose parts scikit-learn's searches reach as ``graph__power``."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parts by name, as scikit-learn asks for them."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]

    def __sklearn_clone__(self) -> Self:
        """Itself: it cannot change."""
        return self

    def with_parts(self, parts: Mapping[str, Any]) -> Self:
        """A copy with other parts. Raises ValueError for a part that it has not."""
        known = self.get_params()
        for name in parts:
            if name not in known:
                listed = did_you_mean(name, known) or f": it has {', '.join(known)}"
                raise ValueError(f"{type(self).__name__} has no {name!r}{listed}")
        return replace(self, **parts)  # type: ignore[type-var]


@dataclass(frozen=True)
class Graph(Settings):
    """The neighbourhood graph of the rows: P = diag(K 1)^(-1) K, K_ij = exp(-||xt_i - xt_j||^2 / b).

    The defaults are those of `dufs_core.DUFS`: a score without the column itself asks for close neighbours.

    Parameters
    ----------
    power : int, default 1
        t, the power of the random walk P^t. Without self-loops P has negative eigenvalues, and the score can be
        negative for an odd power.
    bandwidth : "max", "median", "q90" or float, default "median"
        b = bandwidth_factor times the largest, the median or the 0.9 quantile of the squared distances to the
        n_neighbors-th other row, read from the gated data at every step; a number is b itself.
    n_neighbors : int, default 5
        Other rows: a row is not its own neighbour.
    bandwidth_factor : float, default 1.0
    self_loops : bool, default False
        Whether a row is its own neighbour, K_ii = 1 (the paper's graph) or K_ii = 0. With thousands of columns all
        distances are nearly equal, and a row outweighs its neighbours unless the bandwidth is so large that every row
        is one.

    Examples
    --------
    >>> from dufs_core import DUFS, Graph
    >>> DUFS(graph=Graph(n_neighbors=10)).set_params(graph__power=2).graph.n_neighbors
    10
    >>> P = Graph()([[0.0], [0.1], [5.0], [5.2], [0.2], [5.1], [0.3]])
    >>> bool(P[0, 1] > P[0, 2])
    True
    """

    power: int = 1
    bandwidth: Literal["median", "q90", "max"] | float = "median"
    n_neighbors: int = 5
    bandwidth_factor: float = 1.0
    self_loops: bool = False

    def __call__(self, X: Any) -> Any:
        """P (n, n), float64: the random walk on rows X (n, d), in host memory, as they are; all gates open."""
        from dufs_core.objective.chain import Objective, open_graph

        X = np.asarray(X, dtype=np.float64)
        X = X - X.mean(axis=0)  # no distance changes, and no digits are lost
        return open_graph(get_backend("numpy"), Objective(**self.get_params()), X @ X.T).P


@dataclass(frozen=True)
class Conventions(Settings):
    """Where the authors' published code departs from the paper; the defaults are the paper's.

    Parameters
    ----------
    gate_noise : "batch" or "sample", default "batch"
        One noise vector for all rows of a step, or one per row (engine "reference" or "auto").
    batches : "near_equal" or "wrap", default "near_equal"
        Every row once an epoch, or batches of exactly batch_size rows that run on into the next shuffle.
    noisy_start : bool, default False
        mu starts at 0.5 + truncated N(0, 0.01^2) instead of 0.5.
    rate_per_column : bool, default False
        learning_rate is per 1/d of the regularised loss.
    zero_bandwidth : "data" or "one", default "data"
        What replaces a bandwidth statistic of zero: a distance in the data, or 1 (for all below 1e-8).
    delta : float, default 0.0
        Added to the mean open probability in the parameter-free loss.
    """

    gate_noise: Literal["batch", "sample"] = "batch"
    batches: Literal["near_equal", "wrap"] = "near_equal"
    noisy_start: bool = False
    rate_per_column: bool = False
    zero_bandwidth: Literal["data", "one"] = "data"
    delta: float = 0.0


Graph.__module__ = "dufs_core"  # where users find it, and where pickles look for it
Conventions.__module__ = "dufs_core"


def check_group(name: str, value: Any, kind: type[Settings]) -> None:
    """Raise ValueError unless value is a group of parameters of this kind."""
    if not isinstance(value, kind):
        raise ValueError(f"{name} must be a {kind.__name__}, as in {name}={kind()!r}; got {value!r}")


def flat_settings(selector: Any) -> dict[str, Any]:
    """The parameters of a selector, groups by their parts: plain values for files and command lines."""
    found = selector.get_params(deep=False)
    for name in selector.groups:
        found |= selector.group(name).get_params()
        del found[name]
    return found  # type: ignore[no-any-return]


def set_flat(selector: Any, settings: Mapping[str, Any]) -> Any:
    """Set parameters that `flat_settings` may have given, in place; the selector is returned."""
    place = {part: f"{name}__{part}" for name in selector.groups for part in selector.group(name).get_params()}
    return selector.set_params(**{place.get(name, name): value for name, value in settings.items()})
