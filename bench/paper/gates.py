"""Density of a stochastic gate z = clip(mu + sigma eps, 0, 1) at mu = 0.5 and -1, with its atoms at 0 and 1."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import norm

from bench.common import markdown
from bench.paper.cells import Cells, Report
from bench.paper.drawing import BLUE, ORANGE, figure, legend_below
from dufs_core.backend import get_backend
from dufs_core.objective.ops import gates

SIGMA = 0.5
MEANS = (0.5, -1.0)
BINS = 50


def draws(mu: float, n: int) -> dict[str, Any]:
    """Gates drawn through the library's operation: the atoms, and the density between them."""
    eps = np.random.default_rng(0).standard_normal((n, 1))
    z = gates.forward(get_backend("numpy"), np.array([mu]), eps, SIGMA)[0].ravel()
    inside = z[(z > 0) & (z < 1)]
    density = np.histogram(inside, BINS, (0, 1))[0] * BINS / n
    return {"at_0": np.mean(z == 0), "at_1": np.mean(z == 1), "density": density.round(4)}


def run(cells: Cells, quick: bool) -> Report:
    n = 10_000 if quick else 1_000_000
    measured = cells.compute(draws, [{"mu": mu, "n": n} for mu in MEANS])
    made, panels = figure(1, 2)
    x = np.linspace(0, 1, 201)
    records = []
    for axes, mu, sample in zip(panels, MEANS, measured, strict=True):
        at_0, at_1 = norm.cdf(-mu / SIGMA), norm.sf((1 - mu) / SIGMA)
        records.append(
            {"mu": mu, "at_0": at_0, "at_1": at_1, "drawn_at_0": sample["at_0"], "drawn_at_1": sample["at_1"]}
        )
        axes.stairs(
            sample["density"], np.linspace(0, 1, BINS + 1), fill=True, color=BLUE, alpha=0.35, label=f"{n:,} draws"
        )
        axes.plot(x, norm.pdf((x - mu) / SIGMA) / SIGMA, color=BLUE, label="density on (0, 1)")
        axes.vlines([0, 1], 0, [at_0, at_1], color=ORANGE, linewidth=3, label="probability of exactly 0, 1")
        axes.plot([0, 1], [sample["at_0"], sample["at_1"]], "o", color=ORANGE, label="share of the draws")
        axes.set(title=f"$\\mu$ = {mu:g}, $\\sigma$ = {SIGMA}", xlabel="z", ylabel="density (at 0 and 1: probability)")
        axes.set(ylim=(0, 1.05), xlim=(-0.05, 1.05))
    legend_below(made, panels[0], 4)
    table = markdown(
        ["mu", "P(z = 0)", "drawn", "P(z = 1)", "drawn"],
        [(r["mu"], *(f"{r[key]:.4f}" for key in ("at_0", "drawn_at_0", "at_1", "drawn_at_1"))) for r in records],
    )
    return Report({"sigma": SIGMA, "records": records}, table, made)
