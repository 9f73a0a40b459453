"""What a fit finds as the rows grow: structure that is weak, or in few rows, beside one-line formulas on all rows.

python -m bench.power [--quick] [--only PART ...] [--sets N] [--json FILE]

grid: 20 columns of 2,000, the others N(0, 1). weak: three clusters, in which a column is shifted by -delta, 0 and
delta, in an order of its own. rare: all 20 are shifted by 2 in the same few rows. The rows are in random order, sorted
by class, or five samples one after the other, with their classes in any order, in turn by the seed. Top-r: the share of
the r best columns that are structured, by the evidence of a fit and by each formula.
real: 20 columns of handwritten digits or documents, among 1,000 others, each shuffled on its own; the same measures.
curve: 100 columns, 10 of them weak or rare, or two of moons or of a ring, in 100 to 1,000,000 rows.
million: 20 of 200 columns are shifted by 4 in a thousandth of 1,000,000 rows.
guarantee: how often a nuisance column has more evidence than all its M decoys, beside 1 / (1 + M), and the rate of
false discoveries, for 5, 50 and 500 blocks of rows, and for groups of 2 to 400 rows that are told.

Every fit is kept in FILE as it is made, and only what FILE lacks is run; a table is beside it with the ending .md, and
the curve with the ending .png. (bench/results/power.json is of another program, bench.paper power.) --quick: three
seeds, and 2,000 rows at most, in the parts million and guarantee some more.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import eigh

from bench import guarantee
from bench.common import Records, available, generator, markdown, matlab, number_of_runs, parser, required
from bench.paper.data import read_idx
from bench.paper.drawing import BLUE, GREEN, ORANGE, RED, figure, picture
from bench.planted import ordered
from bench.rows_told import mean_and_error
from dufs_core import DUFS
from dufs_core.errors import DufsWarning
from dufs_core.selection.atomic_io import write_bytes

Array = np.ndarray[Any, Any]
Generator = np.random.Generator
Record = dict[str, Any]
Draw = Callable[[Generator, int, int], tuple[Array, Array]]  # (generator, n, r) to columns (n, r) and classes (n,)
SEEDS, QUICK_SEEDS = 10, 3
QUICK_ROWS = 2000  # at most
GRID = {"weak 0.3": (2000, 8000, 30_000), "weak 0.5": (512, 2000, 8000)} | {
    f"rare {share}%": (2000, 20_000) for share in ("5", "2", "1", "0.5")
}
REAL = {"digits": 10_000, "text": 1993}  # rows
REAL_NUISANCE = 1000
FEWEST_ROWS = 20  # in which a pixel or a word is not 0
CURVE = ("weak 0.3", "rare 2%", "moons", "ring")
CURVE_ROWS = (100, 300, 512, 600, 1000, 3000, 10_000, 100_000, 1_000_000)
MANY_ROWS = 1_000_000  # of which fewer sets are drawn
MILLION, QUICK_MILLION = "rare 0.1% by 4", 20_000
COLUMNS = {"grid": 2000, "curve": 100, "million": 200, "guarantee": 60}
PLANTED = {"grid": 20, "real": 20, "curve": 10, "million": 20, "guarantee": 10}
BLOCK = 512  # rows
GROUPS = "groups"
DESIGNS = {"5 blocks": 5 * BLOCK, "50 blocks": 50 * BLOCK, "500 blocks": 500 * BLOCK, GROUPS: 3000}  # rows
SETS = {"5 blocks": 40, "50 blocks": 20, "500 blocks": 4, GROUPS: 40}
QUICK_DESIGNS = ("5 blocks", GROUPS)
GROUP_ROWS = (2, 400)
OFFSET = 0.5  # deviation of the groups' means
ARRANGEMENTS = ("random", "sorted", "samples")
SAMPLES = 5
MOST_COMPONENTS = 10
PARTS = ("grid", "real", "curve", "million", "guarantee")


# --- data


def weak(delta: float) -> Draw:
    """Three clusters; a column is shifted by -delta, 0 and delta in them, in an order of its own."""

    def draw(rng: Generator, n: int, count: int) -> tuple[Array, Array]:
        classes = rng.integers(3, size=n)
        shifts = rng.permuted(np.tile([[-delta], [0.0], [delta]], count), axis=0)
        return shifts[classes] + rng.normal(size=(n, count)), classes

    return draw


def rare(share: float, shift: float = 2.0) -> Draw:
    """All columns are shifted in the same rows."""

    def draw(rng: Generator, n: int, count: int) -> tuple[Array, Array]:
        classes = (rng.permutation(n) < round(share * n)).astype(np.intp)
        return shift * classes[:, None] + rng.normal(size=(n, count)), classes

    return draw


def of_two(draw_columns: Callable[[Generator, int], Array]) -> Draw:
    """Two columns without classes, whatever number is asked for."""
    return lambda rng, n, count: (draw_columns(rng, n), np.zeros(n, dtype=np.intp))


STRUCTURES: dict[str, Draw] = {
    "weak 0.3": weak(0.3), "weak 0.5": weak(0.5), "rare 5%": rare(0.05), "rare 2%": rare(0.02), "rare 1%": rare(0.01),
    "rare 0.5%": rare(0.005), MILLION: rare(0.001, 4.0), "moons": of_two(guarantee.moons),
    "ring": of_two(guarantee.ring), "none": lambda rng, n, count: (np.zeros((n, 0)), np.zeros(n, dtype=np.intp)),
}  # fmt: skip
NUISANCE: dict[str, Callable[[Generator, int, int], Array]] = {
    "normal": lambda rng, n, count: rng.standard_normal((n, count), dtype=np.float32),
    "binary 5%": lambda rng, n, count: (rng.random((n, count)) < 0.05).astype(np.float32),
    "Poisson 0.3": lambda rng, n, count: rng.poisson(0.3, (n, count)).astype(np.float32),
    "lognormal": lambda rng, n, count: rng.lognormal(size=(n, count)).astype(np.float32),
}


class Case(NamedTuple):
    """One fit."""

    part: str
    kind: str  # of structure, of data, or nuisance; structure; design
    n: int
    seed: int

    @property
    def random(self) -> Generator:
        return generator("power", f"{self.part} {self.kind} {self.n}", self.seed)


class Problem(NamedTuple):
    X: Array  # (n, d) float32
    truth: Array  # (d,) bool: structured


def arranged(rng: Generator, classes: Array, arrangement: str) -> Array:
    """The rows, which are in random order, in another: sorted by class, or five samples, each by classes in any order.

    Rows of independent nuisance need not follow.
    """
    if arrangement == "random":
        return np.arange(len(classes))
    if arrangement == "sorted":
        return np.argsort(classes, kind="stable")
    sample = rng.integers(SAMPLES, size=len(classes))
    places = rng.permuted(np.tile(np.arange(classes.max() + 1), (SAMPLES, 1)), axis=1)
    return np.lexsort((places[sample, classes], sample))


def planted(case: Case, structure: str, nuisance: str = "normal", arrangement: str = "random") -> Problem:
    """Columns with a structure at random places among nuisance."""
    rng = case.random
    X = NUISANCE[nuisance](rng, case.n, COLUMNS[case.part])
    columns, classes = STRUCTURES[structure](rng, case.n, PLANTED[case.part])
    truth = np.arange(X.shape[1]) < columns.shape[1]
    rng.shuffle(truth)
    X[:, truth] = columns[arranged(rng, classes, arrangement)]
    return Problem(X, truth)


@cache
def load(name: str) -> Array:
    """Values (n, d) of pixels or words that are not 0 in 20 rows. Raises MissingData where the file is not there."""
    if name == "digits":
        X = read_idx(*required("t10k-images-idx3-ubyte.gz")).reshape(10_000, 784)
    else:
        X = matlab("BASEHOCK")[0]
        X = X.toarray() if hasattr(X, "toarray") else X
    X = X[:, (X != 0).sum(axis=0) >= FEWEST_ROWS].astype(np.float32)
    return X[:, X.max(axis=0) > X.min(axis=0)]


def real(case: Case) -> Problem:
    """Real columns at random places among others that are shuffled.

    Digits: those of more than the median variance, among any that are drawn with replacement. Text: words among others.
    """
    rng = case.random
    X = load(case.kind)
    X = X[np.sort(rng.permutation(len(X))[: case.n])]
    d = X.shape[1]
    spread = X.var(axis=0)
    good = np.flatnonzero(spread > np.median(spread)) if case.kind == "digits" else np.arange(d)
    chosen = rng.choice(good, PLANTED["real"], replace=False)
    others = np.arange(d) if case.kind == "digits" else np.setdiff1d(np.arange(d), chosen)
    nuisance = rng.choice(others, REAL_NUISANCE, replace=case.kind == "digits")
    Z = np.concatenate([X[:, chosen], rng.permuted(X[:, nuisance], axis=0)], axis=1)
    order = rng.permutation(Z.shape[1])
    return Problem(Z[:, order], order < len(chosen))


def in_groups(case: Case, X: Array) -> tuple[Array, Array]:
    """X with a mean of its own in every column of every group, and the groups (n,): 2 to 400 rows, the last one cut."""
    rng = generator("power groups", case.kind, case.seed)
    least, most = GROUP_ROWS
    sizes = rng.integers(least, most + 1, size=case.n // least)
    groups = np.repeat(np.arange(len(sizes)), sizes)[: case.n]
    means = rng.normal(0, OFFSET, size=(groups.max() + 1, X.shape[1])).astype(np.float32)
    return X + means[groups], groups


# --- formulas


def formulas(X: Array) -> dict[str, Array]:
    """Scores (d,) of every column by one line each, on all rows.

    "components": the share of a column that the first principal components of the scaled columns explain, as many as
    have more variance than chance gives them, at least one and at most 10.
    """
    Z = X - X.mean(axis=0)
    spread = Z.std(axis=0)
    Z /= np.where(spread > 0, spread, 1)
    n, d = Z.shape
    C = Z.T @ Z / n

    # principal components
    edge = 1.02 * (1 + np.sqrt(d / n)) ** 2
    values, vectors = eigh(C, subset_by_index=[max(d - MOST_COMPONENTS, 0), d - 1])
    count = max(int((values > edge).sum()), 1)
    explained = (vectors[:, -count:] ** 2) @ values[-count:]

    # pairs
    np.fill_diagonal(C, 0)
    return {"fourth powers": (C**4).sum(axis=0), "largest": abs(C).max(axis=0), "components": explained}


FORMULAS = ("fourth powers", "largest", "components")


def top_r(scores: Array, truth: Array) -> float:
    """The share of the r best columns that are structured."""
    r = int(truth.sum())
    return round(float(truth[ordered(scores).order[:r]].mean()), 4)


# --- records


def fitted(p: Problem, seed: int, groups: Array | None = None) -> tuple[DUFS, Record]:
    """A fit, and its recall (None: there is nothing to find), false discovery proportion and seconds."""
    start = time.perf_counter()
    with warnings.catch_warnings():
        # that nothing is selected, or that rows are sorted
        warnings.simplefilter("ignore", DufsWarning)
        fit = DUFS(random_state=seed, backend="numpy").fit(p.X, groups=groups)
    seconds = time.perf_counter() - start
    found = fit.support_
    return fit, {
        "recall": round(float(found[p.truth].mean()), 4) if p.truth.any() else None,
        "fdp": round(float((found & ~p.truth).sum() / max(found.sum(), 1)), 4),
        "seconds": round(seconds, 2),
    }


def ranked(p: Problem, seed: int) -> Record:
    """What a fit finds, and how it ranks beside formulas."""
    fit, found = fitted(p, seed)
    by_formula = {name: top_r(scores, p.truth) for name, scores in formulas(p.X).items()}
    return {"DUFS": top_r(fit.evidence_, p.truth)} | by_formula | found


def of_grid(case: Case) -> Record:
    arrangement = ARRANGEMENTS[case.seed % len(ARRANGEMENTS)]
    p = planted(case, case.kind, arrangement=arrangement)
    return {"order": arrangement} | ranked(p, case.seed)


def of_real(case: Case) -> Record:
    return ranked(real(case), case.seed)


def of_curve(case: Case) -> Record:
    return fitted(planted(case, case.kind), case.seed)[1]


def of_guarantee(case: Case) -> Record:
    """The share of nuisance columns, of those that have decoys, above all their decoys, and what is selected."""
    nuisance, structure, design = case.kind.split("; ")
    p = planted(case, structure, nuisance)
    groups = None
    if design == GROUPS:
        X, groups = in_groups(case, p.X)
        p = p._replace(X=X)
    fit, found = fitted(p, case.seed, groups)
    decoys = fit.decoy_evidence_
    wins = fit.evidence_ > decoys.max(axis=0)
    judged = ~p.truth & ~np.isnan(decoys).any(axis=0)
    by_chance = round(1 / (1 + len(decoys)), 4)
    return {"wins": round(float(wins[judged].mean()), 4), "by_chance": by_chance} | found


MEASURES: dict[str, Callable[[Case], Record]] = {
    "grid": of_grid,
    "real": of_real,
    "curve": of_curve,
    "million": of_curve,
    "guarantee": of_guarantee,
}


def key(record: Record) -> Case:
    return Case(*(record[name] for name in Case._fields))


def cells(part: str, quick: bool) -> Iterator[tuple[str, int, int]]:
    """The kinds of a part, with rows and a number of seeds."""
    if part == "grid":
        for kind, rows in GRID.items():
            yield from ((kind, n, SEEDS) for n in rows)
    elif part == "real":
        there, _ = available(REAL, load)
        yield from ((kind, min(REAL[kind], QUICK_ROWS if quick else REAL[kind]), SEEDS) for kind in there)
    elif part == "curve":
        for kind in CURVE:
            yield from ((kind, n, QUICK_SEEDS if n >= MANY_ROWS else SEEDS) for n in CURVE_ROWS)
    elif part == "million":
        yield MILLION, QUICK_MILLION if quick else MANY_ROWS, 1
    else:
        for nuisance in NUISANCE:
            for structure in ("none", "weak 0.3"):
                for design in QUICK_DESIGNS if quick else DESIGNS:
                    yield f"{nuisance}; {structure}; {design}", DESIGNS[design], SETS[design]


def plan(parts: Iterable[str], quick: bool, sets: int | None) -> Iterator[Case]:
    """All fits of some parts; `sets`: so many seeds of each cell."""
    for part in parts:
        for kind, n, count in cells(part, quick):
            if quick and n > QUICK_ROWS and part in ("grid", "curve"):
                continue
            seeds = sets or (min(count, QUICK_SEEDS) if quick else count)
            yield from (Case(part, kind, n, seed) for seed in range(seeds))


# --- tables


def by_cell(records: Iterable[Record], part: str) -> Iterator[tuple[str, int, list[Record]]]:
    """The kinds of a part in the order in which they were run, each with its rows, few first, and their records."""
    kinds: dict[str, dict[int, list[Record]]] = {}
    for record in records:
        if record["part"] == part:
            kinds.setdefault(record["kind"], {}).setdefault(record["n"], []).append(record)
    for kind, rows in kinds.items():
        yield from ((kind, n, rows[n]) for n in sorted(rows))


def average(fits: Sequence[Record], name: str) -> float:
    return float(np.mean([fit[name] for fit in fits]))


def with_error(fits: Sequence[Record], name: str, digits: int = 3) -> str | None:
    """The mean over sets and its standard error; None where there is nothing to measure."""
    values = [fit[name] for fit in fits if fit[name] is not None]
    if not values:
        return None
    mean, error = mean_and_error(values)
    return f"{mean:.{digits}f} ± {error:.{digits}f}"


def seconds(fits: Sequence[Record]) -> str:
    return f"{np.median([fit['seconds'] for fit in fits]):.1f}"


def ranked_table(records: Iterable[Record], part: str) -> str:
    """Top-r of fits and formulas, and what is selected."""
    head = ["kind", "rows", "sets", "DUFS", *FORMULAS, "best formula", "recall", "mean FDP", "seconds"]
    lines = []
    for kind, n, fits in by_cell(records, part):
        means = {name: average(fits, name) for name in FORMULAS}
        best = max(means, key=lambda name: means[name])
        shares = [f"{value:.2f}" for value in (average(fits, "DUFS"), *means.values())]
        found = [with_error(fits, "recall", 2), with_error(fits, "fdp"), seconds(fits)]
        lines.append([kind, f"{n:,}", len(fits), *shares, best, *found])
    return markdown(head, lines)


def curve_table(records: Iterable[Record], part: str) -> str:
    """Recall and false discoveries."""
    head = ["structure", "rows", "sets", "recall", "mean FDP", "seconds"]
    lines = [
        [kind, f"{n:,}", len(fits), with_error(fits, "recall", 2), with_error(fits, "fdp"), seconds(fits)]
        for kind, n, fits in by_cell(records, part)
    ]
    return markdown(head, lines)


def guarantee_table(records: Iterable[Record], part: str) -> str:
    """Wins of nuisance beside chance, and false discoveries."""
    head = ["nuisance", "structure", "rows in", "rows", "sets", "nuisance wins", "1 / (1 + M)", "mean FDP", "recall"]
    lines = []
    for kind, n, fits in by_cell(records, part):
        chance = f"{average(fits, 'by_chance'):.3f}"
        found = [with_error(fits, "wins"), chance, with_error(fits, "fdp"), with_error(fits, "recall", 2)]
        lines.append([*kind.split("; "), f"{n:,}", len(fits), *found])
    return markdown(head, lines)


TABLES: dict[str, tuple[str, Callable[[Iterable[Record], str], str]]] = {
    "grid": ("20 structured columns of 2,000: top-r of DUFS and of formulas", ranked_table),
    "real": ("20 real columns among 1,000 shuffled ones: top-r of DUFS and of formulas", ranked_table),
    "curve": ("Structure among 100 columns, q = 0.1", curve_table),
    "million": ("20 markers of 200 columns", curve_table),
    "guarantee": ("Nuisance columns above all their M decoys, and false discoveries at q = 0.1", guarantee_table),
}


def table(records: Sequence[Record]) -> str:
    """A heading and a table for each part."""
    there = {record["part"] for record in records}
    texts = []
    for part, (title, of_part) in TABLES.items():
        if part in there:
            texts += [title, of_part(records, part)]
    return "\n\n".join(texts)


def drawn(records: Iterable[Record]) -> bytes:
    """Recall against rows, a line for each structure, with standard errors."""
    points: dict[str, list[tuple[float, ...]]] = {}
    for kind, n, fits in by_cell(records, "curve"):
        points.setdefault(kind, []).append((n, *mean_and_error([fit["recall"] for fit in fits])))
    made, (axes,) = figure(1, 1, 5.6, 3.6)
    for (kind, of_kind), color in zip(points.items(), (BLUE, ORANGE, GREEN, RED), strict=False):
        n, mean, error = zip(*of_kind, strict=True)
        axes.errorbar(n, mean, error, color=color, label=kind, marker="o", markersize=3, capsize=2)
    axes.set(xscale="log", ylim=(-0.05, 1.05), xlabel="rows", ylabel="recall")
    axes.legend(frameon=False, fontsize=8)
    return picture(made)


# --- command line


def main(argv: list[str] | None = None) -> None:
    p = parser(__doc__)
    p.add_argument("--quick", action="store_true", help=f"{QUICK_SEEDS} sets of each kind, few rows")
    p.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", default=PARTS, help=", ".join(PARTS))
    p.add_argument("--sets", type=number_of_runs, help="of each kind")
    a = p.parse_args(argv)
    records = Records(a.json, key, table)
    for case in plan(a.only, a.quick, a.sets):
        if case not in records.kept:
            records.add(case._asdict() | MEASURES[case.part](case))
            records.save()
    kept = list(records.kept.values())
    if a.json and any(record["part"] == "curve" for record in kept):
        write_bytes(Path(a.json).with_suffix(".png"), drawn(kept))
    print(records.table)


if __name__ == "__main__":
    main()
