"""Gate parameters over the steps of a fit, kept by a callback."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dufs_core.backend import Array
from dufs_core.training.loop import StepInfo


class RunTrajectory(NamedTuple):
    """The gates of one run of the search."""

    steps: Array  # (m,) int
    mu: Array  # (m, d')
    columns: Array  # (d',) positions in the data of the columns that took part


class Trajectory:
    """A callback that keeps mu, for `dufs_core.inspection.plotting.gate_trajectories`.

    Parameters
    ----------
    every : int, default 1
        Steps between two states that are kept; the last state of a run always is. A state takes a number for each gate.

    Attributes
    ----------
    runs : list of RunTrajectory
        The runs of the search, in their order. A fit adds to what earlier ones left.

    Raises
    ------
    ValueError
        Unless `every` is a positive whole number.

    Examples
    --------
    >>> from dufs_core import GatedLaplacian, Trajectory
    >>> from dufs_core.datasets import two_moons
    >>> trajectory = Trajectory(every=5)
    >>> selector = GatedLaplacian(callbacks=[trajectory], random_state=0).fit(two_moons(n_features=10).X)
    >>> trajectory.runs[-1].columns[:2]  # with decoys gates are given to few columns
    array([0, 1])
    """

    def __init__(self, every: int = 1) -> None:
        if not isinstance(every, int) or isinstance(every, bool) or every < 1:
            raise ValueError(f"every must be a whole number of at least 1 (steps between two states); got {every!r}")
        self.every = every
        self._runs: list[tuple[Array, dict[int, Array]]] = []  # columns, and mu of steps

    def __call__(self, info: StepInfo) -> None:
        mu: Any = info.mu
        last = next(reversed(self._runs[-1][1])) if self._runs else info.step
        if info.step <= last:
            self._runs.append((np.array(info.columns), {}))
        states = self._runs[-1][1]
        if states and last % self.every:
            del states[last]  # it was kept for being the last
        states[info.step] = np.array(mu.get() if hasattr(mu, "get") else mu)

    @property
    def runs(self) -> list[RunTrajectory]:
        return [
            RunTrajectory(np.array(list(states)), np.stack(list(states.values())), columns)
            for columns, states in self._runs
        ]


Trajectory.__module__ = "dufs_core"  # where users find it, and where pickles look for it
