"""What a fit asks of the procedure that its selector stands for, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from dufs_core.backend import Array
from dufs_core.data.scaling import ScaledData
from dufs_core.selection.settings import Conventions
from dufs_core.selection.trainer import GateTrainer
from dufs_core.significance.rows import Rows
from dufs_core.training.loop import Run


class Found(NamedTuple):
    """What a procedure found on the d columns of the data."""

    run: Run  # that was kept; its gates may include those of decoys
    columns: Array  # (m,) positions of the columns that had gates in it
    mu: Array  # (m,) their gates, NumPy
    scores: Array  # (d,) larger is better
    order_by: Array  # (d,) larger comes first
    weights: Array  # (d,) above 0: columns that the diverse order may begin with, and their weights in it
    support: Array  # (d,) bool: what is selected where no number is asked for
    judged: Any  # NamedTuple: the procedure's own attributes of the selector
    doubt: str | None  # what is doubtful about the selection
    read: Callable[[Array], Array] | None  # some columns (d', n') for the diverse order; None: as they are


class FitSize(NamedTuple):
    """What time and memory of a fit depend on."""

    rows: int  # of a step
    gates: int  # most that are trained at once
    kept: int  # bytes beside the scaled data, all along
    around: int  # bytes before or after the steps, at most


class Procedure(Protocol):
    """What a selector does between scaled data and a selection; made from the parameters of the selector."""

    optimizer: str
    n_draws: int | str
    conventions: Conventions
    saturation: float | None
    stacks: bool  # whether fits that differ in lam and seed can advance as one
    on_sparse: bool  # whether gates are trained on sparse X as it is
    scales_groups: bool  # whether the data that it is given are centred and scaled within groups of rows

    def check(self, n: int, d: int, is_sparse: bool) -> None:
        """Raise ValueError for a parameter of its own that cannot be used with n rows and d columns."""

    def size(self, n: int, d: int, itemsize: int, threads: int) -> FitSize:
        """What the fit of n rows and d columns takes."""

    def run(self, data: ScaledData, rows: Rows, trainer: GateTrainer, threads: int, first: Run | None) -> Found:
        """From scaled data to a selection.

        rows: which may be exchanged; first: the first run of the gates, if it has been trained already.
        """
