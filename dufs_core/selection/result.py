"""The result of a fit: what a procedure found, with the order of the columns and what is doubtful."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dufs_core.backend import Array, Backend, get_backend
from dufs_core.data.scaling import ScaledData
from dufs_core.errors import DufsWarning, RowsWarning, SelectionWarning, all_constant
from dufs_core.objective.ops import regulariser
from dufs_core.selection.diverse_ranking import diverse_order
from dufs_core.selection.parameters import n_wanted
from dufs_core.selection.procedure import Found, Gates
from dufs_core.significance.diagnosis import SELECTED_SHARE, Finding
from dufs_core.significance.rows import Rows, RowsUsed
from dufs_core.training.progress import stage

_DIVERSE = 300  # columns in that order where no number of columns is asked for


_NO_ATTRIBUTES = ("judged", "trained", "doubts", "inherited")


class Trained(NamedTuple):
    """The gates of all d columns, and how they were trained."""

    mu: Array  # (d,) NaN without a gate
    gate_probabilities: Array  # (d,)
    history: dict[str, Array]  # each (n_iter,)
    n_iter: int
    converged: bool
    engine: str


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """Everything that a fit found, complete before the selector is touched.

    The fields become attributes with an underscore at their end, as `dufs_core.DUFS` and `dufs_core.GatedLaplacian`
    document them; so do those of `judged`, the procedure's own, and of `trained`. `doubts` are warned of once the
    result is kept, and `inherited` has n_features_in_, and feature_names_in_ where columns have names.
    """

    scores: Array  # (d,)
    order: Array  # (d,) int
    support: Array  # (d,) bool
    constant_features: Array
    diagnosis: tuple[Finding, ...]
    rows: RowsUsed
    backend: str
    judged: Any
    trained: Trained | None  # where gates were
    doubts: tuple[DufsWarning, ...]
    inherited: dict[str, Any]

    def attributes(self) -> dict[str, Any]:
        """The fitted attributes of the selector."""
        own = {name: value for name, value in vars(self).items() if name not in _NO_ATTRIBUTES}
        for group in (self.judged, self.trained):
            own |= {} if group is None else group._asdict()
        return self.inherited | {f"{name}_": value for name, value in own.items()}


def complete(
    settings: Any, found: Found, findings: Sequence[Finding], data: ScaledData, rows: Rows, context: Any, threads: int
) -> FitResult:  # fmt: skip
    """What a procedure found with scaled data (n, d), as the result of the fit with these settings."""
    d = data.X.shape[1]
    gates = found.gates
    of_gates = [] if gates is None else [gates.mu, gates.run.history["bandwidth"]]
    if not all(np.isfinite(values).all() for values in (found.order_by, *of_gates)):
        graph = settings.graph
        sigma = "" if gates is None else f"gate_sigma={settings.gate_sigma!r}, "
        raise ValueError(
            f"A gate, the bandwidth or the evidence would not be a finite number: with {sigma}bandwidth="
            f"{graph.bandwidth!r} and bandwidth_factor={graph.bandwidth_factor!r} numbers leave the range of "
            f'{settings.dtype}. Use values nearer to 1, or dtype="float64"'
        )

    with stage(settings.verbose, "ranking"):
        order, support = _ordered(settings, found, context.bk, data.X, threads)
    constant = np.flatnonzero(data.constant)
    is_broad = found.support.mean() > SELECTED_SHARE
    of_all = {finding.what for finding in found.findings}
    asked = [*(finding for finding in findings if finding.what not in of_all), *found.findings]
    diagnosis = tuple(finding for finding in asked if is_broad or finding.what != "one factor")
    return FitResult(
        scores=found.scores,
        order=order,
        support=support,
        constant_features=constant,
        diagnosis=diagnosis,
        rows=found.rows or rows.used,
        backend=context.bk.name,
        judged=found.judged,
        trained=None if gates is None else _of_all(gates, d, settings, context.engine.name),
        doubts=(
            *found.doubts,
            *rows.doubts(),
            *_doubts_of_selection(d, d - len(constant), found.doubt),
            *(RowsWarning(finding.sentence) for finding in diagnosis if support.any()),
        ),
        inherited={name: value for name, value in vars(settings).items() if name.endswith("_in_")},
    )


def _of_all(gates: Gates, d: int, settings: Any, engine: str) -> Trained:
    """Trained gates, as all d columns have them."""
    run = gates.run
    mu = np.full(d, np.nan, dtype=settings.dtype)
    mu[gates.columns] = gates.mu
    probabilities = np.asarray(regulariser.probabilities(get_backend("numpy"), mu, settings.gate_sigma))
    return Trained(mu, probabilities, run.history, run.n_iter, run.converged, engine)


def _ordered(settings: Any, found: Found, bk: Backend, X: Any, threads: int) -> tuple[Array, Array]:
    """All columns, best first, and the selection."""
    d = len(found.order_by)
    wanted = settings.n_features_to_select
    count = None if wanted is None else n_wanted(wanted, d)
    order = np.argsort(-found.order_by, kind="stable")
    if settings.ranking == "diverse":
        first = diverse_order(bk, X, found.weights, count or _DIVERSE, threads, found.read)
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
