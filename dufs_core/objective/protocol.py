"""What the training loop and the engines agree on: an engine, its steps, the record of a step, the end of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from dufs_core.backend import Array, Backend
from dufs_core.objective.chain import Objective, Scores, Value
from dufs_core.objective.optimizers import Optimizer
from dufs_core.objective.rules import DECIDED_MARGIN, RECORD, is_decided


@dataclass(frozen=True)
class Schedule:
    """How long, on what, and with which draws a run trains.

    n_draws draws of the gate noise a step, in antithetic pairs (eps, -eps) unless it is 1. A run ends after
    max_iter steps, or when at most a share `tol` of the gates is undecided: -1.2 sigma <= mu <= 1 + 1.2 sigma.

    batches "near_equal": an epoch visits every row once, in ceil(n / batch_size) batches whose sizes differ by
    at most one. "wrap": as the authors' code, always batch_size rows from an endless sequence of shuffles, so that
    a batch that reaches the end of one continues in the next.

    noisy_start: mu starts with a little noise around 1/2, as in the authors' code.
    """

    n_draws: int
    max_iter: int
    tol: float
    batch_size: int | None = None
    gate_noise: Literal["batch", "sample"] = "batch"
    batches: Literal["near_equal", "wrap"] = "near_equal"
    noisy_start: bool = False


def undecided(mu: Array, sigma: float) -> Array:
    """Whether each gate can still change its mind: |mu - 1/2| <= 1/2 + 1.2 sigma; bool (d,)."""
    return ~is_decided(mu, DECIDED_MARGIN * sigma)


class RunSpec(NamedTuple):
    """What stays the same during a run."""

    objective: Objective
    optimizer: Optimizer
    schedule: Schedule
    seed: int
    columns: Array  # (d,) positions in the data


class Steps(Protocol):
    """Gradient steps of one or several runs on the same data, several at a time where the engine can.

    `dufs_core.training.loop.Stepwise`, or an engine's own. Several runs differ in seed and lam.
    """

    @property
    def mu(self) -> Array:
        """The gate parameters (runs, d)."""

    def advance(self, batch: Array, rows: Array, step: int, count: int) -> list[Array]:
        """Up to `count` steps from number `step` on, on one batch; a run ends early when its gates are decided.

        batch (n, d); rows (n,), its positions in the data. Returns the records of each run, (steps taken, len(RECORD)),
        none for a run that had ended before.
        """

    def save(self, run: int) -> dict[str, np.ndarray[Any, Any]]:
        """Copies, on the host, of mu and of what the optimiser remembers (first, second, running) in one run."""

    def load(self, saved: Sequence[dict[str, np.ndarray[Any, Any]]]) -> None:
        """Go on from what `save` gave for every run, bit by bit as the runs that it was taken from."""


class RunState(NamedTuple):
    """Where a run stands between two steps: with the seed, all that it needs to go on."""

    step: int
    steps: dict[str, np.ndarray[Any, Any]]  # what Steps.save gave
    records: Array  # (step, len(RECORD))

    def is_end(self, schedule: Schedule, d: int) -> bool:
        """Whether the run has ended: one may be saved while it waits for others of its stack."""
        undecided = self.records[-1][RECORD.index("undecided_gates")]
        return bool(self.step >= schedule.max_iter or undecided <= schedule.tol * d)


class StepSize(NamedTuple):
    """What the memory and the time of a step depend on."""

    n: int  # rows of a step
    d: int  # columns
    draws: int
    itemsize: int  # bytes of an entry: 4 or 8
    power: int = 2
    fixed_bandwidth: bool = False
    per_sample: bool = False  # one gate per sample, which only the reference engine evaluates
    threads: int = 1
    fits: int = 1  # on a GPU: how many share the draws
    after: int = 0  # bytes of the tests after a run
    dense_columns: int = 0  # of sparse data: those that are written out for products (`dufs_core.data.sparse`)
    saturating: bool = False


class Engine:
    """A way to evaluate `dufs_core.objective.chain.Objective`: engine(bk, objective, mu, eps, X) -> (Value, dmu)."""

    name = ""
    keeps_arrays = False  # whether the arrays of a step stay allocated after a run
    progress: Callable[[float], None] | None = None  # called within long steps with the part of a step that is done

    def __call__(self, bk: Backend, objective: Objective, mu: Array, eps: Array, X: Array) -> tuple[Value, Array]:
        """The loss and its gradient in mu (d,), for draws eps (R, d), or (R, n, d) with one gate per sample."""
        return objective.value_and_grad(bk, mu, eps, X, self._scores_and_grad)

    def _scores_and_grad(self, bk: Backend, objective: Objective, X: Any, z: Array, undecided: Array) -> Scores:
        """The scores of gates z (R, d) and their derivatives in z, where `undecided`."""
        raise NotImplementedError

    def bytes_needed(self, size: StepSize) -> int:
        """Bytes that a step allocates beside the data, in the worst case: every gate open."""
        raise NotImplementedError

    def steps(self, bk: Backend, specs: Sequence[RunSpec], mu: Array) -> Steps | None:
        """Whole steps of these runs, mu (runs, d), with noise and update; None where the engine has none of its own."""
        return None
