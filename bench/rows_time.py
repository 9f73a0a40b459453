"""Rows in the order of time, and rows that differ by covariates, told to the fit: nulls and planted columns.

The parts series, planted series and covariates of `python -m bench.rows`. Every column of a null is drawn by itself.
The constants of `dufs_core.significance.series` and `.covariates` are those of the design that they came from, but for
the second filter, of 0.9, which was added for "2,000 rows, regimes of 200"; what was seen of other kinds has changed
none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from bench.common import generator
from bench.rows_told import RATE, SAID, Record, Tables, field, fitted, summary, with_error

Array = np.ndarray[Any, Any]
Generator = np.random.Generator
Draw = Callable[[Generator, int, int], Array]
ROWS, COLUMNS = 200, 100
REAL = 12  # of the columns, where there are any
PARTS = ("series", "planted series", "covariates")


# --- columns that remember their past


def recursion(e: Array, *coefficients: float) -> Array:
    """x_t = sum_k a_k x_(t-k) + e_t, begun long before."""
    x = e.copy()
    for t in range(len(x)):
        for k, a in enumerate(coefficients, start=1):
            if t >= k:
                x[t] += a * x[t - k]
    return x


def autoregression(*coefficients: float, burn: int = 300) -> Draw:
    """Stationary columns with these coefficients."""

    def draw(rng: Generator, n: int, d: int) -> Array:
        return recursion(rng.normal(size=(n + burn, d)), *coefficients)[burn:]

    return draw


def walks(rng: Generator, n: int, d: int) -> Array:
    return rng.normal(size=(n, d)).cumsum(axis=0)


def trends(rng: Generator, n: int, d: int) -> Array:
    """Lines of any slope, and AR(1) of 0.5."""
    time = np.linspace(-1, 1, n)[:, None]
    return 3 * rng.normal(size=d) * time + autoregression(0.5)(rng, n, d)


def seasons(rng: Generator, n: int, d: int) -> Array:
    """A sine of its own period and phase in each column, and AR(1) of 0.3."""
    time = np.arange(n)[:, None]
    period = rng.uniform(8, 60, d)
    return 1.5 * np.sin(2 * np.pi * time / period + rng.uniform(0, 2 * np.pi, d)) + autoregression(0.3)(rng, n, d)


def heavy(rng: Generator, n: int, d: int) -> Array:
    """AR(1) of 0.7 with innovations of Student's t, three degrees of freedom."""
    return recursion(rng.standard_t(3, size=(n + 300, d)), 0.7)[300:]


def regimes(rng: Generator, n: int, d: int) -> Array:
    """Two levels in each column, held for 25 rows on the mean, and noise."""
    states = np.cumsum(rng.random((n, d)) < 1 / 25, axis=0) % 2
    return 2.0 * states + rng.normal(size=(n, d))


def mixture(rng: Generator, n: int, d: int) -> Array:
    """Columns of seven kinds, in turn."""
    kinds: list[Draw] = [
        autoregression(0.0),
        autoregression(0.5),
        autoregression(0.9),
        OSCILLATION,
        walks,
        trends,
        heavy,
    ]
    out = np.empty((n, d))
    for k in range(d):
        out[:, k] = kinds[k % len(kinds)](rng, n, 1)[:, 0]
    return out


OSCILLATION = autoregression(1.6, -0.85)
NULLS: dict[str, tuple[Draw, str]] = {
    "independent rows": (autoregression(0.0), "A"),
    "AR(1) of 0.5": (autoregression(0.5), "B"),
    "AR(1) of 0.9": (autoregression(0.9), "A"),
    "AR(1) of 0.99": (autoregression(0.99), "B"),
    "oscillations": (OSCILLATION, "A"),
    "random walks": (walks, "B"),
    "trends": (trends, "A"),
    "seasons": (seasons, "B"),
    "heavy tails": (heavy, "A"),
    "regimes": (regimes, "B"),
    "all kinds mixed": (mixture, "A"),
}


# --- columns that move together


def common_regimes(rng: Generator, n: int, d: int, length: float = 25.0) -> Array:
    """Three states that last for some rows; each column has its level in each."""
    changes = np.cumsum(rng.random(n) < 1 / length)
    states = rng.integers(3, size=changes[-1] + 1)[changes]
    return 1.5 * rng.normal(size=(3, d))[states]


def factor(rng: Generator, n: int, d: int) -> Array:
    """One AR(1) of 0.5 in all, with signs and sizes."""
    return autoregression(0.5)(rng, n, 1) * rng.choice([-1, 1], d) * rng.uniform(0.7, 1.3, d)


def fast(rng: Generator, n: int, d: int) -> Array:
    """A factor without memory."""
    return rng.normal(size=(n, 1)) * rng.choice([-1, 1], d) * rng.uniform(0.8, 1.4, d)


def slow(rng: Generator, n: int, d: int) -> Array:
    return factor_of(autoregression(0.9), rng, n, d)


def swinging(rng: Generator, n: int, d: int) -> Array:
    return factor_of(OSCILLATION, rng, n, d)


def factor_of(draw: Draw, rng: Generator, n: int, d: int) -> Array:
    """One column of a kind, variance 1, in all of them."""
    common = draw(rng, n, 1)
    return common / common.std() * rng.choice([-1, 1], d) * rng.uniform(0.8, 1.4, d)


def heavy_factor(rng: Generator, n: int, d: int) -> Array:
    return factor_of(heavy, rng, n, d)


def curve(rng: Generator, n: int, d: int) -> Array:
    """Smooth functions of one number that changes like an AR(1) of 0.7."""
    t = autoregression(0.7)(rng, n, 1)
    t = t / t.std()
    return 1.5 * np.cos(rng.uniform(0.7, 1.4, d) * t + rng.uniform(0, 2 * np.pi, d))


class Planted(NamedTuple):
    """What twelve columns have in common, and what all columns are beside it."""

    common: Draw
    own: Draw
    half: str


def quick_regimes(rng: Generator, n: int, d: int) -> Array:
    return common_regimes(rng, n, d, 6.0)


def steps(rng: Generator, n: int, d: int) -> Array:
    """Increments in common, which random walks add up."""
    return (1.2 * rng.normal(size=(n, 1)) * rng.choice([-1, 1], d)).cumsum(axis=0)


PLANTED: dict[str, Planted] = {
    "regimes of 6 rows, AR(1) of 0.5": Planted(quick_regimes, autoregression(0.5), "A"),
    "regimes of 6 rows, independent rows": Planted(quick_regimes, autoregression(0.0), "B"),
    "AR(1) factor, AR(1) of 0.5": Planted(factor, autoregression(0.5), "A"),
    "fast factor, AR(1) of 0.5": Planted(fast, autoregression(0.5), "B"),
    "fast factor, AR(1) of 0.9": Planted(fast, autoregression(0.9), "A"),
    "slow factor, independent rows": Planted(slow, autoregression(0.0), "B"),
    "oscillating factor, oscillations": Planted(swinging, OSCILLATION, "A"),
    "heavy-tailed factor, AR(1) of 0.5": Planted(heavy_factor, autoregression(0.5), "B"),
    "increments in common, random walks": Planted(steps, walks, "A"),
    "fast factor, all kinds mixed": Planted(fast, mixture, "B"),
    "beyond the ten: curve, AR(1) of 0.3": Planted(curve, autoregression(0.3), "A"),
    "beyond the ten: regimes of 25 rows, AR(1) of 0.5": Planted(common_regimes, autoregression(0.5), "A"),
    "beyond the ten: regimes of 25 rows, independent rows": Planted(common_regimes, autoregression(0.0), "B"),
}


def planted(kind: str, rng: Generator, n: int = ROWS, d: int = COLUMNS) -> Array:
    """Twelve columns with something in common, the first ones, among others of the same kind."""
    about = PLANTED[kind]
    X = about.own(rng, n, d)
    size = 1.0 if about.own is walks else X.std(axis=0).mean()
    X[:, :REAL] += size * about.common(rng, n, REAL)
    return X


def long_regimes(rng: Generator) -> Array:
    """2,000 rows, AR(1) of 0.5, twelve columns with regimes of 200 rows."""
    X = autoregression(0.5)(rng, 2000, COLUMNS)
    X[:, :REAL] += common_regimes(rng, 2000, REAL, 200.0)
    return X


SEVERAL = {"4 series of 50 rows": (50,) * 4, "10 series of 20 rows": (20,) * 10, "of 20 to 100 rows": (20, 30, 50, 100)}


def several(kind: str, rng: Generator) -> tuple[Array, Array]:
    """AR(1) of 0.8 in several series, and the series of each row."""
    sizes = SEVERAL[kind]
    X = np.concatenate([autoregression(0.8)(rng, size, COLUMNS) for size in sizes])
    return X, np.repeat(np.arange(len(sizes)), sizes)


# --- covariates


def counts(rng: Generator, n: int, d: int) -> tuple[Array, Array]:
    """Counts of independent genes in cells of different size, and the logarithm of the total."""
    size = np.exp(0.5 * rng.normal(size=(n, 1)))
    X = rng.poisson(size * 3 * rng.gamma(1.0, 1.0, d)).astype(np.float64)
    return X, np.log(X.sum(axis=1))


def spreading(rng: Generator, n: int, d: int) -> tuple[Array, Array]:
    """The variance grows with age."""
    age = rng.uniform(20, 80, n)
    return rng.normal(size=(n, d)) * np.exp((age[:, None] - 50) / 30), age


def curves(rng: Generator, n: int, d: int) -> tuple[Array, Array]:
    """The mean is a curve of age."""
    age = rng.uniform(20, 80, n)
    unit = (age[:, None] - 50) / 30
    return rng.normal(size=(n, d)) + 2 * np.sin(rng.uniform(1, 3, d) * unit + rng.uniform(0, 6, d)), age


COVARIATES: dict[str, tuple[Callable[[Generator, int, int], tuple[Array, Array]], str]] = {
    "counts, log of the total": (counts, "A"),
    "variance grows with age": (spreading, "A"),
    "mean is a curve of age": (curves, "B"),
}


def with_clusters(kind: str, rng: Generator) -> tuple[Array, Array]:
    """The same, with three clusters in the first columns; of counts by factors of their means."""
    X, z = COVARIATES[kind][0](rng, ROWS, COLUMNS)
    shift = 2 * rng.normal(size=(3, REAL))[rng.integers(3, size=ROWS)]
    if COVARIATES[kind][0] is counts:
        depth = np.exp(z - z.mean())[:, None]
        X[:, :REAL] = rng.poisson(X[:, :REAL].mean(axis=0) * depth * np.exp(0.5 * shift))
    else:
        X[:, :REAL] += shift * X[:, :REAL].std(axis=0)
    return X, z


# --- records


def of_series(part: str, kind: str, half: str, draw: Callable[[Generator], Any], real: int, sets: int) -> Record:
    """Fits that are told that rows are series; draw: X, or X and the series of each row."""
    fits = []
    for number in range(sets):
        drawn = draw(generator(part, kind, number))
        X, groups = drawn if isinstance(drawn, tuple) else (drawn, None)
        fits.append(fitted(X, number, groups, rows="series"))
    return {"part": part, "kind": kind, "half": half, **summary(fits, real)}


def of_covariates(kind: str, real: int, sets: int) -> Record:
    """Fits that are told the covariate."""
    draw, half = COVARIATES[kind]
    fits = []
    for number in range(sets):
        rng = generator("covariates", f"{kind} {real}", number)
        X, z = with_clusters(kind, rng) if real else draw(rng, ROWS, COLUMNS)
        fits.append(fitted(X, number, covariates=z))
    return {"part": "covariates", "kind": kind, "half": half, "planted": real, **summary(fits, real)}


def records(parts: Sequence[str], sets: int, quick: bool) -> Iterator[Record]:
    """All records of some parts; quick: one kind of each."""
    some = slice(0, 1) if quick else slice(None)
    if "series" in parts:
        for kind, (draw, half) in list(NULLS.items())[some]:
            yield of_series("series", kind, half, lambda rng, draw=draw: draw(rng, ROWS, COLUMNS), 0, sets)
        for kind in [] if quick else SEVERAL:
            yield of_series("series", kind, "B", lambda rng, kind=kind: several(kind, rng), 0, sets)
    if "planted series" in parts:
        for kind, about in list(PLANTED.items())[some]:
            yield of_series("planted series", kind, about.half, lambda rng, kind=kind: planted(kind, rng), REAL, sets)
        if not quick:
            yield of_series("planted series", "2,000 rows, regimes of 200", "A", long_regimes, REAL, sets)
    if "covariates" in parts:
        for kind in list(COVARIATES)[some]:
            yield of_covariates(kind, 0, sets)
            yield of_covariates(kind, REAL, sets)


TABLES: Tables = {
    "series": (
        "Independent series that are told, 200 x 100, at 0.1",
        {"rows": field("kind"), "half": field("half"), **RATE, **SAID},
    ),
    "planted series": (
        "Series of which twelve have something in common, 200 x 100, at 0.1",
        {"rows": field("kind"), "half": field("half"), **RATE, "power": with_error("power"), **SAID},
    ),
    "covariates": (
        "Covariates that are told, 200 x 100, at 0.1",
        {
            "rows": field("kind"),
            "half": field("half"),
            "planted": field("planted"),
            **RATE,
            "power": with_error("power"),
            **SAID,
        },
    ),
}
