"""Differentiable unsupervised feature selection with hand-written gradients.

Selectors and everything they need load at first use: importing this package costs little more than NumPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dufs_core._version import __version__

if TYPE_CHECKING:
    from dufs_core.inspection.report import report as report
    from dufs_core.selection.checkpoint import Checkpoint as Checkpoint
    from dufs_core.selection.decoys.dufs import DUFS as DUFS
    from dufs_core.selection.fit_many import fit_many as fit_many
    from dufs_core.selection.gates.gated_laplacian import GatedLaplacian as GatedLaplacian
    from dufs_core.selection.gates.lambda_path import LambdaPath as LambdaPath
    from dufs_core.selection.settings import Conventions as Conventions
    from dufs_core.selection.settings import Graph as Graph
    from dufs_core.selection.stability import stability_selection as stability_selection
    from dufs_core.training.trajectory import Trajectory as Trajectory

_MODULES = {
    "Checkpoint": "selection.checkpoint",
    "Conventions": "selection.settings",
    "DUFS": "selection.decoys.dufs",
    "GatedLaplacian": "selection.gates.gated_laplacian",
    "Graph": "selection.settings",
    "LambdaPath": "selection.gates.lambda_path",
    "Trajectory": "training.trajectory",
    "fit_many": "selection.fit_many",
    "report": "inspection.report",
    "stability_selection": "selection.stability",
}
__all__ = [
    "DUFS", "Checkpoint", "Conventions", "GatedLaplacian", "Graph", "LambdaPath", "Trajectory", "__version__",
    "fit_many", "report", "stability_selection",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in ("anndata", "datasets", "plotting"):  # modules
        return import_module("dufs_core.inspection.plotting" if name == "plotting" else f"dufs_core.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'dufs_core' has no attribute {name!r}")
    return getattr(import_module(f"dufs_core.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
