"""Rows whose groups a fit is told, far rows and far cells: the rate, the power, and what that costs.

`bench.rows` runs these parts and writes their records; --only takes some of them.

groups: 200 x 100, N(0, 1) and for each group and column an offset N(0, 1.5^2), rows in random order, the groups told.
Without structure, and with 15 columns of three clusters. Wins: the share of columns without structure whose evidence is
above that of all their M decoys, 1 / (1 + M) where the columns and their decoys are alike; its error is over sets.
far: rows far out in all columns, or half of them, which are independent, nothing told. "at": the cells have the value;
"by": it is added; "times": they are multiplied. It is in deviations of the column.
curve: of 200 rows, how many lie 20 deviations out in all of 40 independent columns. Between a glitch and a group of
rows there is no bound that all would draw alike: this shows where ours is.
cells: two moons and 6 columns of noise, one cell of the first column far out. wine: of sklearn's 13 columns the four
with the largest F statistic of the cultivars, 12 columns of N(0, 1), and the same with one row times 1000.
batches: data whose rows come in parts that are known. pbmc68k: the lane of the chip, the number at the end of a
barcode. Isolet: the speakers, who come in the same order in each letter, twice. MNIST, test images: the first 5,000 are
of one collection (SD-3, employees), the others of another (SD-1, students). Told and not told, and beside the columns
that come first in both, those of two seeds.
cost: whole fits of noise, nothing told, by this code and by that of another folder, each in a process of its own that
has fitted once before, in turns, compiled kernels in the cache: the median of the ratios of their CPU times.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from sklearn.datasets import load_wine
from sklearn.feature_selection import f_classif

from bench.common import ROOT, generator, markdown, matlab, required
from bench.paper.data import read_idx
from dufs_core import DUFS
from dufs_core.datasets import two_moons
from dufs_core.errors import RowsWarning

Array = np.ndarray[Any, Any]
Generator = np.random.Generator
Record = dict[str, Any]
COLUMNS = 100
PLANTED = 15
OFFSET = 1.5  # deviation of the groups' offsets
SEPARATION = 2.0  # deviation of the clusters' centres
SEEDS = 10  # of moons, wine, and each point of the curve
FAR_VALUES = (10.0, 30.0, 1e6)
CURVE = (1, 2, 3, 5, 8, 12, 20)
TOP = (20, 100)  # columns whose overlap is asked
COST = {"300 x 2000": (300, 2000, 5), "512 x 20000": (512, 20_000, 2)}  # rows, columns, pairs of fits
PARTS = ("groups", "far", "curve", "cells", "wine", "batches", "cost")

Tables = dict[str, tuple[str, dict[str, Callable[[dict[str, Any]], Any]]]]  # title and columns of each part


# --- a fit


class Seen(NamedTuple):
    """What a fit says."""

    selected: Array  # (d,) bool
    wins: Array  # (d,) bool, above all its decoys
    judged: Array  # (d,) bool, has decoys
    by_chance: float  # share that wins
    order: Array  # (d,) columns, best first
    diagnosis: dict[str, float]
    warned: bool  # of its rows


def fitted(
    X: Array, seed: int, groups: Array | None = None, covariates: Array | None = None, rows: Any = "independent"
) -> Seen:
    """One fit, and what it says of its rows."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model = DUFS(rows=rows, random_state=seed, n_jobs=1, backend="numpy")
        model.fit(X, groups=groups, covariates=covariates)
    decoys = model.decoy_evidence_
    return Seen(
        selected=model.support_,
        wins=model.evidence_ > decoys.max(axis=0),
        judged=~np.isnan(decoys).any(axis=0),
        by_chance=1 / (1 + len(decoys)),
        order=model.order_,
        diagnosis={finding.what: round(finding.number, 4) for finding in model.diagnosis_},
        warned=any(issubclass(warning.category, RowsWarning) for warning in said),
    )


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and its standard error."""
    spread = np.std(values, ddof=1) if len(values) > 1 else 0.0
    return round(float(np.mean(values)), 4), round(float(spread / np.sqrt(len(values))), 4)


def summary(fits: Sequence[Seen], planted: int = 0) -> Record:
    """Means over fits, whose first `planted` columns have structure and no other has."""
    wins = [fit.wins[planted:][fit.judged[planted:]].mean() for fit in fits]
    false = [fit.selected[planted:].sum() / max(fit.selected.sum(), 1) for fit in fits]
    power = [fit.selected[:planted].mean() for fit in fits] if planted else None
    return {
        "sets": len(fits),
        "fdp": mean_and_error(false),
        "wins": mean_and_error(wins),
        "by_chance": round(fits[0].by_chance, 4),
        "power": mean_and_error(power) if power else None,
        "selected": round(float(np.mean([fit.selected.sum() for fit in fits])), 2),
        "diagnosed": sum(bool(fit.diagnosis) for fit in fits),
        "warned": sum(fit.warned for fit in fits),
    }


# --- groups that are told


def alike(rng: Generator, count: int) -> Array:
    """Groups of one deviation."""
    return np.ones((count, COLUMNS))


def by_column(rng: Generator, count: int) -> Array:
    """A deviation for each group and column."""
    return np.exp(rng.normal(size=(count, COLUMNS)))


def common_ratios(rng: Generator, count: int) -> Array:
    """Four groups, whose deviations are those of all columns."""
    return np.array([0.3, 0.6, 1.5, 3.0])[:, None] * np.ones(COLUMNS)


class Grouped(NamedTuple):
    sizes: tuple[int, ...]
    deviation: Callable[[Generator, int], Array] = alike


GROUPS: dict[str, Grouped] = {
    "two batches": Grouped((100,) * 2),
    "ten donors": Grouped((20,) * 10),
    "pairs": Grouped((2,) * 100),
    "triples": Grouped((3,) * 66 + (2,)),
    "groups of 1 to 40": Grouped((1, 2, 5, 8, 12, 20, 35, 37, 40, 40)),
    "variances by group and column": Grouped((40,) * 5, by_column),
    "variance ratios of all columns": Grouped((50,) * 4, common_ratios),
}
QUICK_GROUPS = ("two batches", "pairs")


def in_groups(kind: str, planted: int, rng: Generator) -> tuple[Array, Array]:
    """A data set and the group of each row; the first columns tell three clusters."""
    about = GROUPS[kind]
    count = len(about.sizes)
    group = rng.permutation(np.repeat(np.arange(count), about.sizes))
    n = len(group)
    X = rng.normal(size=(n, COLUMNS))
    labels = rng.integers(3, size=n)
    X[:, :planted] += SEPARATION * rng.normal(size=(3, planted))[labels]

    # the group's scale is that of structure and noise
    X *= about.deviation(rng, count)[group]
    offsets = OFFSET * rng.normal(size=(count, COLUMNS))
    return X + offsets[group], group


def groups(kind: str, planted: int, sets: int) -> Record:
    """The rate and the power where groups are told."""
    fits = []
    for number in range(sets):
        rng = generator(f"groups {planted}", kind, number)
        X, group = in_groups(kind, planted, rng)
        fits.append(fitted(X, number, group))
    return {"part": "groups", "kind": kind, "planted": planted, **summary(fits, planted)}


# --- far rows


BASES: dict[str, Callable[[Generator, int, int], Array]] = {
    "normal": lambda rng, n, d: rng.normal(size=(n, d)),
    "t3": lambda rng, n, d: rng.standard_t(3, size=(n, d)),
    "log-normal": lambda rng, n, d: np.exp(rng.normal(size=(n, d))),
    "counts": lambda rng, n, d: rng.poisson(0.3, size=(n, d)).astype(np.float64),
    "binary": lambda rng, n, d: (rng.random((n, d)) < 0.2).astype(np.float64),
}


class Far(NamedTuple):
    """Independent columns, some rows of which are far out."""

    base: str
    n: int
    d: int
    count: int  # of rows
    how: str  # at, by or times
    value: float
    share: float = 1.0  # of the columns

    @property
    def name(self) -> str:
        rows = f"{self.count} row{'s' * (self.count > 1)}"
        of = "" if self.share == 1 else f" in {self.share:.0%}"
        return f"{self.base}, {self.n} x {self.d}: {rows} {self.how} {self.value:g}{of}"

    def draw(self, rng: Generator) -> Array:
        X = BASES[self.base](rng, self.n, self.d)
        columns = rng.permutation(self.d)[: round(self.share * self.d)]
        cells = np.ix_(rng.permutation(self.n)[: self.count], columns)
        deviation = X[:, columns].std(axis=0)
        if self.how == "at":
            X[cells] = self.value * deviation
        elif self.how == "by":
            X[cells] += self.value * deviation
        else:
            X[cells] *= self.value
        return X


FAR = (
    Far("normal", 200, 40, 1, "at", 5),
    Far("normal", 100, 40, 2, "at", 5),
    Far("normal", 100, 6, 1, "at", 50),
    Far("normal", 512, 40, 2, "at", 50),
    Far("normal", 100, 40, 1, "at", 1e3),
    Far("normal", 200, 100, 2, "at", 1e3, 0.5),
    Far("normal", 100, 40, 1, "at", 1e6),
    Far("normal", 100, 40, 2, "at", 1e6),
    Far("normal", 200, 40, 1, "by", 5, 0.5),
    Far("normal", 100, 40, 2, "by", 5),
    Far("normal", 100, 40, 2, "by", 50),
    Far("normal", 100, 40, 1, "by", 1e3),
    Far("normal", 200, 40, 1, "times", 5),
    Far("normal", 100, 40, 2, "times", 5),
    Far("normal", 100, 40, 2, "times", 50),
    Far("normal", 100, 40, 2, "times", 1e3),
    Far("normal", 100, 40, 1, "times", 1e6, 0.5),
    Far("t3", 100, 40, 1, "at", 50),
    Far("t3", 100, 40, 2, "times", 5),
    Far("log-normal", 100, 40, 1, "at", 50),
    Far("log-normal", 100, 40, 2, "times", 5),
    Far("counts", 100, 40, 1, "at", 50),
    Far("counts", 100, 40, 1, "by", 5),
    Far("counts", 100, 40, 2, "by", 5),
    Far("counts", 100, 40, 2, "at", 10),
    Far("binary", 100, 40, 1, "at", 10),
    Far("binary", 100, 40, 2, "at", 10),
)
QUICK_FAR = (Far("normal", 100, 6, 1, "at", 50), Far("counts", 100, 40, 2, "by", 5))


def far(kind: Far, sets: int) -> Record:
    """What is selected where nothing is but far rows."""
    fits = []
    for number in range(sets):
        X = kind.draw(generator("far", kind.name, number))
        fits.append(fitted(X, number))
    return {"part": "far", "kind": kind.name, **summary(fits)}


def curve(count: int, sets: int) -> Record:
    """The same for so many rows that share a value."""
    rows = far(Far("normal", 200, 40, count, "at", 20), sets)
    share = round(rows["selected"] / 40, 4)
    return rows | {"part": "curve", "rows": count, "share": share}


# --- structure beside a far cell or row


def found(part: str, kind: str, X: Callable[[int], Array], real: int, sets: int) -> Record:
    """How often the first `real` columns are all found, and alone."""
    fits = [fitted(X(seed), seed) for seed in range(sets)]
    contained = sum(bool(fit.selected[:real].all()) for fit in fits)
    exact = sum(bool(fit.selected[:real].all() and not fit.selected[real:].any()) for fit in fits)
    warned = sum(fit.warned for fit in fits)
    return {"part": part, "kind": kind, "sets": sets, "contained": contained, "exact": exact, "warned": warned}


def moons(value: float | None, seed: int) -> Array:
    """Two moons and 6 columns of noise, one cell of the first column far out."""
    X = two_moons(n_features=8, random_state=seed).X
    if value is not None:
        row = generator("cells", "moons", seed).integers(len(X))
        X[row, 0] = value
    return X


def wine(factor: float, seed: int) -> Array:
    """Four columns of wines and 12 of noise, one row times a factor."""
    X, cultivar = load_wine(return_X_y=True)
    best = np.argsort(-f_classif(X, cultivar)[0])[:4]
    rng = generator("wine", "noise", seed)
    X = np.hstack([X[:, best], rng.normal(size=(len(X), 12))])
    X[rng.integers(len(X))] *= factor
    return X


def cells(value: float | None, sets: int) -> Record:
    """Moons with one far cell, or none."""
    kind = "none" if value is None else f"{value:g}"
    return found("cells", kind, lambda seed: moons(value, seed), 2, sets)


def wines(factor: float, sets: int) -> Record:
    """Wines with one far row, or none."""
    kind = "none" if factor == 1 else f"times {factor:g}"
    return found("wine", kind, lambda seed: wine(factor, seed), 4, sets)


# --- batches that are known


def lanes() -> tuple[Array, Array]:
    """Cells, and the lane of each."""
    import h5py

    with h5py.File(*required("10x_pbmc68k_reduced.h5ad")) as file:
        X = file["X"][:].astype(np.float64)
        barcodes = file["obs"]["index"]
    lane = [barcode.decode().rsplit("-", 1)[1] for barcode in barcodes]
    return X, np.array(lane, dtype=int)


def speakers() -> tuple[Array, Array]:
    """Spoken letters, sorted by letter, and who speaks."""
    X, letter = matlab("Isolet")
    in_letter = np.arange(len(X)) % 60
    # each of the 30 speaks a letter twice, one after the other
    assert (np.bincount(letter)[1:] == 60).all()
    return X.astype(np.float64), in_letter // 2


def writers() -> tuple[Array, Array]:
    """Digits, and which of two collections each is of."""
    X = read_idx(*required("t10k-images-idx3-ubyte.gz")).reshape(10_000, 784)
    return X.astype(np.float64), np.arange(10_000) // 5000


BATCHES = {"pbmc68k, lanes": lanes, "Isolet, speakers": speakers, "MNIST, collections": writers}


@cache
def known(name: str) -> tuple[Array, Array]:
    """X and the batch of each row. Raises MissingData."""
    return BATCHES[name]()


def common_to_first(one: Seen, other: Seen) -> list[int]:
    """How many of the first columns are the same, for each of TOP."""
    return [len(np.intersect1d(one.order[:m], other.order[:m])) for m in TOP]


def batches(name: str) -> Record:
    """A fit that is told the batches beside one that is not."""
    X, batch = known(name)
    told = fitted(X, 0, batch)
    untold = fitted(X, 0)
    # two seeds, nothing told, do not agree either
    other_seed = fitted(X, 1)
    both = int((told.selected & untold.selected).sum())
    return {
        "part": "batches",
        "kind": name,
        "n": len(X),
        "d": X.shape[1],
        "batches": len(np.unique(batch)),
        "told": int(told.selected.sum()),
        "untold": int(untold.selected.sum()),
        "both": both,
        "overlap": common_to_first(told, untold),
        "overlap_of_seeds": common_to_first(untold, other_seed),
        "diagnosis_told": told.diagnosis,
        "diagnosis_untold": untold.diagnosis,
    }


# --- what it costs


FIT = """
import json, os, sys, time, warnings
import numpy as np
import dufs_core
from dufs_core import DUFS
assert dufs_core.__file__.startswith(os.getcwd())
warnings.simplefilter("ignore")
n, d, seed = json.loads(sys.argv[1])
rng = np.random.default_rng(seed)
DUFS(random_state=0, n_jobs=1).fit(rng.normal(size=(60, 30)))
X = rng.normal(size=(n, d))
start = time.process_time()
DUFS(random_state=seed, n_jobs=1).fit(X)
print(time.process_time() - start)
"""


def cpu_seconds(folder: str, n: int, d: int, seed: int) -> float:
    """Of one fit by the code in a folder, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", FIT, json.dumps([n, d, seed])],
        env=os.environ | {"PYTHONPATH": folder, "OPENBLAS_NUM_THREADS": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout.splitlines()[-1])


def cost(kind: str, against: str) -> Record:
    """The time of this code by that of another."""
    n, d, pairs = COST[kind]
    here = []
    there = []
    turns = [(str(ROOT), here), (os.path.abspath(against), there)]
    for folder, _ in turns:
        # so that kernels come from the cache
        cpu_seconds(folder, 60, 2000, 0)
    for seed in range(pairs):
        # who is first changes, so that a machine that slows down favours neither
        for folder, seconds in turns if seed % 2 else turns[::-1]:
            seconds.append(round(cpu_seconds(folder, n, d, seed), 2))
    ratios = [a / b for a, b in zip(here, there, strict=True)]
    ratio = round(float(np.median(ratios)), 3)
    return {"part": "cost", "kind": kind, "ratio": ratio, "here": here, "there": there}


# --- records


def records(
    parts: Sequence[str], sets: int, quick: bool, against: str | None, there: Sequence[str]
) -> Iterator[Record]:
    """All records of some parts, of the batches those that are there."""
    seeds = 1 if quick else SEEDS
    if "groups" in parts:
        for kind in QUICK_GROUPS if quick else GROUPS:
            yield groups(kind, 0, sets)
            yield groups(kind, PLANTED, sets)
    if "far" in parts:
        for rows in QUICK_FAR if quick else FAR:
            yield far(rows, sets)
    if "curve" in parts:
        for count in CURVE[::6] if quick else CURVE:
            yield curve(count, seeds)
    if "cells" in parts:
        for value in (None, *FAR_VALUES):
            yield cells(value, seeds)
    if "wine" in parts:
        for factor in (1.0, 1000.0):
            yield wines(factor, seeds)
    if "batches" in parts:
        for name in there:
            yield batches(name)
    if "cost" in parts and against:
        for kind in COST:
            yield cost(kind, against)


# --- tables


def table(records: Sequence[Record], tables: Tables) -> str:
    """The tables of the parts that there are."""
    made = []
    for part, (title, columns) in tables.items():
        chosen = [r for r in records if r["part"] == part]
        lines = [[cell(r) for cell in columns.values()] for r in chosen]
        if lines:
            made += [title, markdown(list(columns), lines)]
    return "\n\n".join(made)


def with_error(name: str) -> Callable[[Record], str | None]:
    """A cell with a mean and its error."""

    def cell(record: Record) -> str | None:
        value = record[name]
        return None if value is None else f"{value[0]:.3f} ± {value[1]:.3f}"

    return cell


def field(name: str) -> Callable[[Record], Any]:
    """A cell with what the record has."""
    return lambda record: record[name]


def of_sets(name: str) -> Callable[[Record], str]:
    """A cell with a number of sets."""
    return lambda record: f"{record[name]} of {record['sets']}"


def joined(name: str) -> Callable[[Record], str]:
    """A cell with several numbers."""
    return lambda record: ", ".join(map(str, record[name]))


def listed(name: str) -> Callable[[Record], str]:
    """A cell with names and their numbers."""
    return lambda record: "; ".join(f"{key} {value}" for key, value in record[name].items())


def errors_away(record: Record) -> str | None:
    """How many errors the wins are above chance."""
    mean, error = record["wins"]
    return f"{(mean - record['by_chance']) / error:+.1f}" if error else None


RATE = {
    "sets": field("sets"),
    "mean FDP": with_error("fdp"),
    "wins": with_error("wins"),
    "by chance": field("by_chance"),
    "errors away": errors_away,
}
SAID = {"selected": field("selected"), "diagnosed": of_sets("diagnosed"), "warned": of_sets("warned")}
MOONS = {"sets": field("sets"), "all found": of_sets("contained"), "and nothing else": of_sets("exact"),
         "warned": of_sets("warned")}  # fmt: skip
TABLES: Tables = {
    "groups": (
        "Groups that are told, 200 x 100, at 0.1",
        {"rows": field("kind"), "planted": field("planted"), **RATE, "power": with_error("power"), **SAID},
    ),
    "far": ("Far rows in independent columns, at 0.1", {"rows": field("kind"), **RATE, **SAID}),
    "curve": (
        "How many rows at 20 deviations, 200 x 40",
        {"far rows": field("rows"), "share of the columns selected": field("share"), **RATE, **SAID},
    ),
    "cells": ("Two moons of 8 columns, one far cell", {"cell": field("kind"), **MOONS}),
    "wine": ("Four columns of wines of 16, one far row", {"row": field("kind"), **MOONS}),
    "batches": (
        "Batches that are known, told and not told, at 0.1",
        {
            "data": field("kind"),
            "rows x columns": lambda r: f"{r['n']} x {r['d']}",
            "batches": field("batches"),
            "selected, told": field("told"),
            "not told": field("untold"),
            "both": field("both"),
            "common to the first 20, 100": joined("overlap"),
            "of two seeds, not told": joined("overlap_of_seeds"),
            "diagnosis, told": listed("diagnosis_told"),
            "diagnosis, not told": listed("diagnosis_untold"),
        },
    ),
    "cost": (
        "Whole fits where nothing is told, CPU seconds against those of the code before",
        {
            "rows x columns": field("kind"),
            "median ratio": field("ratio"),
            "this code": joined("here"),
            "before": joined("there"),
        },
    ),
}
