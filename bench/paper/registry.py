"""The experiments by name. Each is a module with one function, `run(cells, quick) -> Report`."""

from __future__ import annotations

from importlib import import_module

from bench.paper.cells import Experiment

MODULES = {
    "diffusion": "diffusion",
    "chi-square": "chi_square",
    "gates": "gates",
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
