"""What a fit asks of the procedure that its selector stands for, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from dufs_core.backend import Array
from dufs_core.data.scaling import ScaledData
from dufs_core.errors import DufsWarning
from dufs_core.selection.settings import Conventions
from dufs_core.significance.diagnosis import Finding
from dufs_core.significance.rows import Rows, RowsUsed
from dufs_core.training.loop import Run


class Gates(NamedTuple):
    """Gates that were trained."""

    run: Run  # that was kept
    columns: Array  # (m,) positions of the columns that had gates in it
    mu: Array  # (m,) their gates, NumPy


class Found(NamedTuple):
    """What a procedure found on the d columns of the data."""

    gates: Gates | None  # None: it trains none
    scores: Array  # (d,) larger is better
    order_by: Array  # (d,) larger comes first
    weights: Array  # (d,) above 0: columns that the diverse order may begin with, and their weights in it
    findings: Sequence[Finding]  # of all rows, in the place of those of the rows that are looked at
    rows: RowsUsed | None  # that took part; None: all
    support: Array  # (d,) bool: what is selected where no number is asked for
    judged: Any  # NamedTuple: the procedure's own attributes of the selector
    doubts: Sequence[DufsWarning]  # what is doubtful about graph and training
    doubt: str | None  # and about the selection
    read: Callable[[Array], Array] | None  # some columns (d', n') for the diverse order; None: as they are


class FitSize(NamedTuple):
    """What time and memory of a fit depend on."""

    rows: int  # that are in hand at once
    gates: int  # most that are trained at once
    around: int  # bytes before or after the steps, at most


class Training(NamedTuple):
    """How a procedure trains gates."""

    optimizer: str
    n_draws: int | str
    saturation: float | None  # nu / n of the saturating score; None: the trace
    conventions: Conventions


class Procedure(Protocol):
    """What a selector does between scaled data and a selection; made from the parameters of the selector."""

    training: Training | None  # how gates are trained, by an engine; None: there are none to train
    rows_in_hand: int | None  # rows that are computed with at once, of those on disk; None: all
    scales_groups: bool  # whether the data that it is given are centred and scaled within groups of rows

    def check(self, n: int, d: int, is_sparse: bool) -> None:
        """Raise ValueError for a parameter of its own that cannot be used with n rows and d columns."""

    def size(self, n: int, d: int, itemsize: int, threads: int) -> FitSize:
        """What the fit of n rows and d columns takes."""

    def run(self, data: ScaledData, rows: Rows, context: Any, threads: int, first: Run | None) -> Found:
        """From scaled data to a selection.

        rows: which may be exchanged; context: a `dufs_core.selection.trainer.GateTrainer` for a procedure that trains
        gates, else a FitContext; first: the first run of the gates, if it has been trained already.
        """
