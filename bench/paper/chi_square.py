"""How many nuisance dimensions two clusters bear: psi_2 against the labels, beside a chi-square bound.

50 points per cluster, the clusters at distance r in one coordinate, d more coordinates N(0, s^2) with s = 1 / sqrt(2),
so that differences have variance 1 (the paper's text prints s = 0.5). Columns are not scaled; the affinity has the
paper's bandwidth, 5 times the largest squared distance to the second other row.
"""

from __future__ import annotations

from math import floor, log, sqrt
from typing import Any

import numpy as np
from matplotlib.ticker import NullFormatter

from bench.common import markdown
from bench.paper.cells import Cells, Report
from bench.paper.diffusion import correlation
from bench.paper.drawing import BLUE, GREY, ORANGE, figure
from dufs_core.inspection.spectral import affinity, random_walk_spectrum

POINTS = 50  # per cluster
S = sqrt(0.5)
RULE, FACTOR = "max", 5.0
EPSILON = 0.05
LEVEL = 0.7  # of the correlation
DISTANCES = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0)
BOUND_DISTANCES = (5.0, 6.0, 8.0, 10.0, 15.0, 20.0)  # where the bound allows dimensions
DIMENSIONS = tuple(round(d) for d in np.geomspace(1, 31_623, 28))


def max_nuisance_dimensions(r: float, n: int, epsilon: float, s: float) -> int:
    """The largest d for which every point is nearer to its own cluster, with probability at least 1 - epsilon.

    Two clusters of n points at distance r in one coordinate, d more coordinates N(0, s^2). A squared distance within a
    cluster is 2 s^2 X, between clusters r^2 + 2 s^2 X', with X, X' chi-squared with d degrees of freedom, and for every
    g > 0 (Laurent and Massart, Annals of Statistics 28 (2000), lemma 1)

        P(X >= d + 2 sqrt(d g) + 2 g) <= exp(-g),      P(X <= d - 2 sqrt(d g)) <= exp(-g).

    There are n (n - 1) pairs within clusters and n^2 between them. With g = log((2 n^2 - n) / epsilon) none of these
    events happens with probability 1 - epsilon, and it is enough that 4 sqrt(d g) + 2 g <= rho^2 = r^2 / (2 s^2). The
    paper multiplies the probabilities as if the pairs were independent; the union bound costs next to nothing.
    """
    g, rho2 = log((2 * n * n - n) / epsilon), (r / s) ** 2 / 2
    return floor((max(rho2 - 2 * g, 0.0) / (4 * sqrt(g))) ** 2)


def correlations(r: float, seed: int, largest: int) -> list[float]:
    """|corr(psi_2, labels)| for every d of DIMENSIONS up to `largest`, the first d coordinates of one draw."""
    rng = np.random.default_rng([seed, round(10 * r)])
    labels = np.repeat([0, 1], POINTS)
    signal = r * labels[:, None].astype(float)
    nuisance = S * rng.standard_normal((2 * POINTS, largest))
    values = []
    for d in DIMENSIONS:
        if d <= largest:
            K = affinity(np.hstack([signal, nuisance[:, :d]]), RULE, 2, FACTOR)
            values.append(correlation(random_walk_spectrum(K).vectors[:, 1], labels))
    return values


def crossing(d: tuple[int, ...], values: list[float]) -> float | None:
    """Where the curve first falls below LEVEL, between two d's on a logarithmic scale; None if it does not."""
    below = next((i for i, value in enumerate(values) if value < LEVEL), None)
    if below is None or below == 0:
        return None
    a, b = values[below - 1 : below + 1]
    share = (a - LEVEL) / (a - b)
    return float(np.exp((1 - share) * np.log(d[below - 1]) + share * np.log(d[below])))


def run(cells: Cells, quick: bool) -> Report:
    seeds, largest = (2, 300) if quick else (20, DIMENSIONS[-1])
    used = tuple(d for d in DIMENSIONS if d <= largest)
    keys = [(r, seed) for r in DISTANCES for seed in range(seeds)]
    results = cells.compute(correlations, [{"r": r, "seed": seed, "largest": largest} for r, seed in keys])
    records: list[dict[str, Any]] = []
    for i, r in enumerate(DISTANCES):
        curve = np.mean(results[i * seeds : (i + 1) * seeds], axis=0).tolist()
        bound = max_nuisance_dimensions(r, POINTS, EPSILON, S)
        records.append(
            {"r": r, "runs": seeds, "d": used, "correlation": curve, "crossing": crossing(used, curve), "bound": bound}
        )
    crossed = [(x["r"], x["crossing"]) for x in records if x["crossing"] is not None]
    r, d = (np.array(column) for column in zip(*crossed, strict=True))
    degree = min(4, len(r) - 1)
    polynomial = np.polynomial.Polynomial.fit(r, d, degree, w=1 / d)  # relative errors: d spans three decades
    slope = float(np.diff(np.log(d[-2:]))[0] / np.diff(np.log(r[-2:]))[0]) if len(r) > 1 else None

    made, panels = figure(1, 2, 5.0, 3.4)
    for i, record in enumerate(records):
        colour = ((1 - i / len(records)) * 0.8 + 0.1, 0.35, i / len(records))
        panels[0].semilogx(used, record["correlation"], color=colour, label=f"r = {record['r']:g}")
    panels[0].axhline(LEVEL, color=GREY, linewidth=1, linestyle=":")
    panels[0].set(xlabel="nuisance dimensions d", ylabel="correlation of $\\psi_2$ with the labels", ylim=(0, 1.02))
    panels[0].legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    panels[1].loglog(r, d, "o", color=BLUE, label=f"correlation falls below {LEVEL}")
    fine = np.linspace(r.min(), r.max(), 200)
    panels[1].loglog(fine, polynomial(fine), color=BLUE, linewidth=1, label=f"polynomial of degree {degree}")
    bounds = [(x, max_nuisance_dimensions(x, POINTS, EPSILON, S)) for x in BOUND_DISTANCES]
    panels[1].loglog(
        *zip(*[pair for pair in bounds if pair[1]], strict=True),
        "s-",
        color=ORANGE,
        markersize=4,
        label="sure to stay apart (95%)",
    )
    panels[1].set(xlabel="distance r", ylabel="nuisance dimensions d")
    panels[1].set_xticks(ticks := [1, 2, 3, 5, 10, 20], [str(tick) for tick in ticks])
    panels[1].xaxis.set_minor_formatter(NullFormatter())
    panels[1].legend(frameon=False, fontsize=7)
    rows = [
        (x["r"], f"{x['crossing']:.0f}", f"{x['crossing'] / x['r'] ** 4:.1f}", x["bound"])
        if x["crossing"] is not None
        else (x["r"], None, None, x["bound"])
        for x in records
    ]
    rows += [(x, None, None, b) for x, b in bounds if x not in DISTANCES]
    table = markdown(["r", f"d where the correlation falls below {LEVEL}", "d / r^4", "bound (95%)"], rows)
    if slope is not None:
        table += f"\n\nSlope of log d against log r between the last two distances: {slope:.2f}."
    return Report(
        {"points_per_cluster": POINTS, "s": S, "level": LEVEL, "epsilon": EPSILON, "records": records,
         "polynomial": polynomial.convert().coef.tolist(), "degree": degree, "last_slope": slope,
         "bounds": [{"r": x, "d": b} for x, b in bounds]},
        table, made,
    )  # fmt: skip
