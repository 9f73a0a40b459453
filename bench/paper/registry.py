"""The experiments by name. Each is a module with one function, `run(cells, quick, **options) -> Report`.

A module may have OPTIONS, {"--flag": arguments of add_argument}: its own options of the command line.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from bench.paper.cells import Experiment

MODULES = {
    "diffusion": "diffusion",
    "chi-square": "chi_square",
    "gates": "gates",
    "table1": "table1",
    "curves": "curves",
    "path": "path",
    "starts": "starts",
    "score-demo": "score_demo",
    "convergence": "convergence",
    "power": "power",
    "noisy-images": "noisy_images",
    "coil": "coil",
}


def experiment(name: str) -> Experiment:
    """The function `run` of the experiment's module; nothing else is imported."""
    run: Experiment = import_module(f"bench.paper.{MODULES[name]}").run
    return run


def options(name: str) -> dict[str, dict[str, Any]]:
    """The options that only this experiment has."""
    own: dict[str, dict[str, Any]] = getattr(import_module(f"bench.paper.{MODULES[name]}"), "OPTIONS", {})
    return own
