"""What the training loop and the engines agree on: the steps of a run, what is recorded of each, when it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from dufs_core.backend import Array
from dufs_core.objective.chain import Objective
from dufs_core.objective.optimizers import Optimizer

DECIDED_MARGIN = 1.2  # in units of sigma: beyond it the noise moves a gate in 1 draw of 9, too rarely to turn it
HISTORY = ("step", "loss", "score", "bandwidth", "open_gates", "undecided_gates")
RECORD = (*HISTORY[1:], "isolated", "degenerate")  # what a step reports


@dataclass(frozen=True)
class Schedule:
    """How long, on what, and with which draws a run trains.

    n_draws draws of the gate noise a step, in antithetic pairs (eps, -eps) unless it is 1. A run ends after
    max_iter steps, or when at most a share `tol` of the gates is undecided: -1.2 sigma <= mu <= 1 + 1.2 sigma.

    batches "near_equal": an epoch visits every row once, in ceil(n / batch_size) batches whose sizes differ by
    at most one. "wrap": as the authors' code, always batch_size rows from an endless sequence of shuffles, so that
    a batch that reaches the end of one continues in the next.
    """

    n_draws: int
    max_iter: int
    tol: float
    batch_size: int | None = None
    gate_noise: Literal["batch", "sample"] = "batch"
    batches: Literal["near_equal", "wrap"] = "near_equal"


def undecided(mu: Array, sigma: float) -> Array:
    """Whether each gate can still change its mind: |mu - 1/2| <= 1/2 + 1.2 sigma; bool (d,)."""
    return ~(abs(mu - 0.5) > 0.5 + DECIDED_MARGIN * sigma)  # NaN decides nothing


class RunSpec(NamedTuple):
    """What stays the same during a run."""

    objective: Objective
    optimizer: Optimizer
    schedule: Schedule
    seed: int
    columns: Array  # (d,) positions in the data


class Steps(Protocol):
    """Gradient steps of one run, several at a time where the engine can. `Stepwise`, or an engine's own."""

    @property
    def mu(self) -> Array:
        """The gate parameters (d,)."""

    def advance(self, batch: Array, rows: Array, step: int, count: int) -> Array:
        """Up to `count` steps from number `step` on, on one batch; ends early when the gates are decided.

        batch (n, d); rows (n,), its positions in the data. Returns (steps taken, len(RECORD)).
        """

    def save(self) -> dict[str, np.ndarray[Any, Any]]:
        """Copies, on the host, of mu and of what the optimiser remembers (first, second, running)."""

    def load(self, saved: dict[str, np.ndarray[Any, Any]]) -> None:
        """Go on from what `save` gave, bit by bit as the run that it was taken from."""


class StackedSteps(Protocol):
    """Gradient steps of several runs on the same data at once."""

    @property
    def mu(self) -> Array:
        """The gate parameters (fits, d)."""

    def advance(self, batch: Array, rows: Array, step: int, count: int) -> list[Array]:
        """As `Steps.advance` for every fit: its (steps taken, len(RECORD)), none for a fit that had ended before."""

    def save(self, fit: int) -> dict[str, np.ndarray[Any, Any]]:
        """As `Steps.save`, of one fit."""

    def load(self, saved: Sequence[dict[str, np.ndarray[Any, Any]]]) -> None:
        """As `Steps.load`, of all fits."""


class RunState(NamedTuple):
    """Where a run stands between two steps: with the seed, all that it needs to go on."""

    step: int
    steps: dict[str, np.ndarray[Any, Any]]  # what Steps.save gave
    records: Array  # (step, len(RECORD))

    def is_end(self, schedule: Schedule, d: int) -> bool:
        """Whether nothing is left to do: of a run that has ended and waits for others of its population."""
        undecided = self.records[-1][RECORD.index("undecided_gates")]
        return bool(self.step >= schedule.max_iter or undecided <= schedule.tol * d)
