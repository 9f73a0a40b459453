"""The result of a fit: what a procedure found, with the order of the columns and what is doubtful."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dufs_core.backend import Array, get_backend
from dufs_core.data.scaling import ScaledData
from dufs_core.errors import DufsWarning, RowsWarning, SelectionWarning, all_constant
from dufs_core.objective.ops import regulariser
from dufs_core.selection.diverse_ranking import diverse_order
from dufs_core.selection.explanation import training_doubts
from dufs_core.selection.parameters import graph_for, n_wanted
from dufs_core.selection.procedure import Found
from dufs_core.selection.trainer import GateTrainer
from dufs_core.significance.diagnosis import SELECTED_SHARE, Finding
from dufs_core.significance.rows import Rows, RowsUsed
from dufs_core.training.progress import stage

_DIVERSE = 300  # columns in that order where no number of columns is asked for


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """Everything that a fit found, complete before the selector is touched.

    The fields become attributes with an underscore at their end, as `dufs_core.DUFS` and `dufs_core.GatedLaplacian`
    document them; so do those of `judged`, the procedure's own. `doubts` are warned of once the result is kept, and
    `inherited` has n_features_in_, and feature_names_in_ where columns have names.
    """

    scores: Array  # (d,)
    order: Array  # (d,) int
    support: Array  # (d,) bool
    mu: Array  # (d,) NaN without a gate
    gate_probabilities: Array  # (d,)
    history: dict[str, Array]  # each (n_iter,)
    n_iter: int
    converged: bool
    constant_features: Array
    diagnosis: tuple[Finding, ...]
    rows: RowsUsed
    backend: str
    engine: str
    judged: Any
    doubts: tuple[DufsWarning, ...]
    inherited: dict[str, Any]

    def attributes(self) -> dict[str, Any]:
        """The fitted attributes of the selector."""
        own = {name: value for name, value in vars(self).items() if name not in ("judged", "doubts", "inherited")}
        return self.inherited | {f"{name}_": value for name, value in (own | self.judged._asdict()).items()}


def complete(
    settings: Any, found: Found, findings: Sequence[Finding], data: ScaledData, rows: Rows, trainer: GateTrainer,
    threads: int,
) -> FitResult:  # fmt: skip
    """What a procedure found with scaled data (n, d), as the result of the fit with these settings."""
    n, d = data.X.shape
    run = found.run

    # gates of all columns
    mu = np.full(d, np.nan, dtype=settings.dtype)
    mu[found.columns] = found.mu
    probabilities = regulariser.probabilities(get_backend("numpy"), mu, settings.gate_sigma)
    finite = np.isfinite(found.mu).all() and np.isfinite(found.order_by).all()
    if not (finite and np.isfinite(run.history["bandwidth"]).all()):
        graph = settings.graph
        raise ValueError(
            f"A gate, the bandwidth or the evidence would not be a finite number: with gate_sigma="
            f"{settings.gate_sigma!r}, bandwidth={graph.bandwidth!r} and bandwidth_factor={graph.bandwidth_factor!r} "
            f'numbers leave the range of {settings.dtype}. Use values nearer to 1, or dtype="float64"'
        )

    with stage(settings.verbose, "ranking"):
        order, support = _ordered(settings, found, trainer, data.X, threads)
    constant = np.flatnonzero(data.constant)
    is_broad = found.support.mean() > SELECTED_SHARE
    diagnosis = tuple(finding for finding in findings if is_broad or finding.what != "one factor")
    return FitResult(
        scores=found.scores,
        order=order,
        support=support,
        mu=mu,
        gate_probabilities=np.asarray(probabilities),
        history=run.history,
        n_iter=run.n_iter,
        converged=run.converged,
        constant_features=constant,
        diagnosis=diagnosis,
        rows=rows.used,
        backend=trainer.bk.name,
        engine=trainer.engine.name,
        judged=found.judged,
        doubts=(
            *training_doubts(settings, graph_for(settings, n), run, len(run.mu), n),
            *rows.doubts(),
            *_doubts_of_selection(d, d - len(constant), found.doubt),
            *(RowsWarning(finding.sentence) for finding in diagnosis if support.any()),
        ),
        inherited={name: value for name, value in vars(settings).items() if name.endswith("_in_")},
    )


def _ordered(settings: Any, found: Found, trainer: GateTrainer, X: Any, threads: int) -> tuple[Array, Array]:
    """All columns, best first, and the selection."""
    d = len(found.order_by)
    wanted = settings.n_features_to_select
    count = None if wanted is None else n_wanted(wanted, d)
    order = np.argsort(-found.order_by, kind="stable")
    if settings.ranking == "diverse":
        first = diverse_order(trainer.bk, X, found.weights, count or _DIVERSE, threads, found.read)
        order = np.concatenate([first, order[~np.isin(order, first)]])
    if count is None:
        return order, found.support
    support = np.zeros(d, dtype=bool)
    support[order[:count]] = True
    return order, support


def _doubts_of_selection(d: int, varying: int, doubt: str | None) -> list[DufsWarning]:
    """What is doubtful about a selection among d columns of which `varying` are not constant: one sentence at most."""
    if not varying:
        return [all_constant(d)]
    if varying == 1:
        which = "a single column" + " that is not constant" * (d > 1)
        doubt = f"X has {which}, so that there is nothing to select among. If it holds labels, give the data."
    return [SelectionWarning(doubt)] if doubt else []
