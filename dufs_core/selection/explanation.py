"""Sentences that explanations share: what is doubtful about the training of gates, how it ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dufs_core.errors import DegenerateBandwidthWarning, DufsWarning, UnconvergedWarning, isolated_rows
from dufs_core.selection.settings import Graph
from dufs_core.significance.diagnosis import Finding
from dufs_core.training.loop import Run

ISOLATED_SHARE = 0.1  # share of rows without neighbours that is worth a warning
COMPLEMENTING = "so that the first few complement each other"


def training_doubts(settings: Any, graph: Graph, run: Run, n: int) -> Iterator[DufsWarning]:
    """What is doubtful about a run on n rows, each with what to do."""
    n_gates = len(run.mu)
    if run.isolated > ISOLATED_SHARE:
        said = f"In some step {run.isolated:.0%} of the rows had no neighbour within the bandwidth (b = "
        said += f"{run.history['bandwidth'][-1]:.3g} at the end), which turns the score into plain variance"
        yield isolated_rows(said, graph.bandwidth, graph.bandwidth_factor, graph.n_neighbors)
    if run.degenerate:
        yield DegenerateBandwidthWarning(
            f"In {run.degenerate} of {run.n_iter} steps the bandwidth rule {graph.bandwidth!r} gave 0 (duplicate "
            f'rows) and a substitute was used (see history_["bandwidth"]). A larger n_neighbors (now '
            f"{graph.n_neighbors}, at most {n - 1}) looks past the duplicates."
        )
    if settings.tol > 0 and not run.converged and run.n_iter == settings.max_iter and n_gates:
        undecided = run.history["undecided_gates"][-1] / n_gates
        yield UnconvergedWarning(
            f"The fit ended after max_iter={settings.max_iter} steps with {undecided:.1%} of the gates undecided (tol "
            f"is {settings.tol:.1%}): the selection may still change. Use more steps, or a larger learning_rate (now "
            f"{settings.learning_rate:g})."
        )


def convergence_note(selector: Any, steps: str) -> str:
    """Whether the gates of a fitted selector were decided at the end."""
    if selector.converged_:
        return f"Converged ({steps})."
    return f"Not converged ({steps}): some gates are undecided; a larger max_iter lets them decide."


def features(count: int, singular: str = "", plural: str = "") -> str:
    """A number of features, and what they are or do."""
    return f"1 feature {singular}".rstrip() if count == 1 else f"{count} features {plural}".rstrip()


def sentences(diagnosis: Sequence[Finding]) -> list[str]:
    """What a diagnosis of the rows says."""
    return [finding.sentence for finding in diagnosis]
