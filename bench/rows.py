"""Rows that may not be exchanged: whether a fit is told so, and whether rows that may be raise no alarm.

python -m bench.rows [--quick] [--sets N] [--only PART ...] [--against FOLDER] [--json FILE]

told: `--sets` data sets of each kind of row that breaks the false discovery rate, all columns independent of one
another given the rows; how many of them `diagnose` names. "one factor" is asked only where more than half of the
columns are selected: that share is a fit's. silent: rows that may be exchanged, five times as many sets of each kind;
alarms. The share selected is taken to be that of the columns that depend on others, and 1 of noise, so that "one
factor" is asked too. real: the data sets there are, as they are stored and shuffled within their classes; every alarm
with its number, the share being a fit's. time: of one diagnosis of noise, all columns taken as selected. Thresholds
were chosen on the kinds of half A and on the real sets; what half B showed has changed none. Fits that are told the
groups, and those of far rows, are the parts of `bench.rows_told`, cost among them, which needs --against FOLDER with
the code before; those that are told times or covariates are the parts of `bench.rows_time`.

FILE has the records, a table of them is written beside it, with the ending .md. With --only, the records of other parts
stay as they are in FILE. --quick: 3 sets of each kind, 15 of the silent ones, three real sets; one set of kinds that
need a fit, and fewer of these.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench import rows_time, rows_told
from bench.common import available, generator, markdown, matlab, number_of_runs, parser, required, save
from bench.guarantee import binary, blocks, chain, counts, curve, moons, ring
from bench.planted import load as load_planted
from dufs_core import DUFS
from dufs_core.backend import get_backend, random
from dufs_core.errors import DufsWarning
from dufs_core.significance.diagnosis import Finding, diagnose

Array = np.ndarray[Any, Any]
Generator = np.random.Generator
SETS, QUICK_SETS = 20, 3
SILENT = 5  # times as many
ROWS, COLUMNS = (60, 100, 200, 300), (6, 20, 60, 150, 400)
TIMED = ((300, 2000), (512, 20_000))
FITTED = ("one factor",)
PARTS = ("told", "silent", "real", "time")


# --- rows that may not be exchanged


def autoregression(rho: float, n: int, d: int) -> Callable[[Generator], Array]:
    """N(0, 1) columns, each AR(1) along the rows; rho = 1: random walks."""

    def draw(rng: Generator) -> Array:
        X = rng.normal(size=(n, d))
        for i in range(1, n):
            X[i] = rho * X[i - 1] + np.sqrt(1 - rho**2 if rho < 1 else 1) * X[i]
        return X

    return draw


def batches(count: int, n: int, d: int, spread: float = 0.5, fixed: bool = False) -> Callable[[Generator], Array]:
    """N(0, 1) and offsets of batches: of size `spread` in one of two, or N(0, spread^2)."""

    def draw(rng: Generator) -> Array:
        batch = rng.integers(count, size=n)
        offsets = rng.choice([-spread, spread], size=(count, d)) if fixed else spread * rng.normal(size=(count, d))
        if fixed:
            offsets[0] = 0
        return offsets[batch] + rng.normal(size=(n, d))

    return draw


def library(rng: Generator) -> Array:
    """Counts of 1,000 independent genes in 500 cells of different size."""
    size = np.exp(0.5 * rng.normal(size=(500, 1)))
    return rng.poisson(size * rng.gamma(1.0, 2.0, 1000)).astype(np.float64)


def copied(noise: float, decimals: int | None = None, n: int = 300, d: int = 20) -> Callable[[Generator], Array]:
    """A fifth of the rows are copies, with noise or rounding; rows in random order."""

    def draw(rng: Generator) -> Array:
        X = rng.normal(size=(n, d))
        k = n // 5
        X[-k:] = X[:k] + noise * rng.normal(size=(k, d))
        if decimals is not None:
            X[-k:] = X[-k:].round(decimals)
        return X[rng.permutation(n)]

    return draw


def imputed(share: float, n: int = 300, d: int = 20, columns: int = 10) -> Callable[[Generator], Array]:
    """Columns that are missing together, and have their mean there."""

    def draw(rng: Generator) -> Array:
        X = rng.normal(size=(n, d))
        missing = rng.random(n) < share
        X[missing, :columns] = X[~missing, :columns].mean(axis=0)
        return X

    return draw


def counter(start: float, step: float, d: int = 20, n: int = 200) -> Callable[[Generator], Array]:
    """A column that counts the rows, among noise."""

    def draw(rng: Generator) -> Array:
        X = rng.normal(size=(n, d))
        X[:, rng.integers(d)] = start + step * np.arange(n)
        return X

    return draw


def kept_rows(rng: Generator) -> Array:
    """A row number in a table that has lost a twentieth of its rows."""
    X = rng.normal(size=(200, 20))
    X[:, 3] = np.sort(rng.permutation(210)[:200])
    return X


def far(value: float, count: int, n: int, d: int, share: float = 1.0) -> Callable[[Generator], Array]:
    """Rows far out in a share of the columns."""

    def draw(rng: Generator) -> Array:
        X = rng.normal(size=(n, d))
        X[rng.permutation(n)[:count, None], rng.permutation(d)[: round(share * d)]] = value
        return X

    return draw


class Told(NamedTuple):
    what: str  # of a finding
    draw: Callable[[Generator], Array]
    half: str


TOLD: dict[str, Told] = {
    "AR(1) of 0.5, 200 x 300": Told("neighbours", autoregression(0.5, 200, 300), "A"),
    "AR(1) of 0.9, 200 x 300": Told("neighbours", autoregression(0.9, 200, 300), "B"),
    "random walks, 200 x 100": Told("neighbours", autoregression(1.0, 200, 100), "B"),
    "AR(1) of 0.5, 60 x 300": Told("neighbours", autoregression(0.5, 60, 300), "B"),
    "two batches of 0.5, 300 x 500": Told("one factor", batches(2, 300, 500, fixed=True), "A"),
    "ten donors of 0.5, 300 x 500": Told("one factor", batches(10, 300, 500), "A"),
    "library size, 500 x 1,000": Told("one factor", library, "B"),
    "copies, six digits, 300 x 20": Told("copies", copied(0.0, 6), "A"),
    "copies, exact, 300 x 20": Told("copies", copied(0.0), "A"),
    "copies, noise of 0.1, 300 x 20": Told("copies", copied(0.1), "B"),
    "copies, noise of 0.1, 300 x 500": Told("copies", copied(0.1, d=500), "B"),
    "copies, two digits, 100 x 6": Told("copies", copied(0.0, 2, 100, 6), "B"),
    "imputed together, 20%, 10 of 20": Told("equal cells", imputed(0.2), "A"),
    "imputed together, 5%, 5 of 200": Told("equal cells", imputed(0.05, d=200, columns=5), "B"),
    "row counter": Told("row counter", counter(0, 1), "A"),
    "row counter, down, steps of 0.3": Told("row counter", counter(1e6, -0.3), "B"),
    "row counter, a twentieth of the rows lost": Told("row counter", kept_rows, "B"),
    "one row of 50, 100 x 6": Told("far rows", far(50, 1, 100, 6), "A"),
    "one row of 100, 200 x 40": Told("far rows", far(100, 1, 200, 40), "B"),
    "two rows of -9999 in half, 300 x 200": Told("far rows", far(-9999, 2, 300, 200, 0.5), "B"),
    "one row of 12, 200 x 40": Told("far rows", far(12, 1, 200, 40), "B"),
}


# --- rows that may


def noise(draw: Callable[[Generator, int, int], Array]) -> Callable[[Generator], tuple[Array, float]]:
    def drawn(rng: Generator) -> tuple[Array, float]:
        return draw(rng, int(rng.choice(ROWS)), int(rng.choice(COLUMNS))), 1.0

    return drawn


def beside(draw: Callable[[Generator, int], Array]) -> Callable[[Generator], tuple[Array, float]]:
    """Structured columns beside as much noise at least, rows in random order."""

    def drawn(rng: Generator) -> tuple[Array, float]:
        n = int(rng.choice(ROWS))
        found = draw(rng, n)
        count = found.shape[1] + int(rng.choice(COLUMNS))
        return np.hstack([found, rng.normal(size=(n, count))]), found.shape[1] / (found.shape[1] + count)

    return drawn


def clusters(separation: float, columns: int = 12) -> Callable[[Generator, int], Array]:
    def draw(rng: Generator, n: int) -> Array:
        labels = rng.choice(4, size=n, p=[0.4, 0.3, 0.2, 0.1])
        return separation * rng.normal(size=(4, columns))[labels] + rng.normal(size=(n, columns))

    return draw


def by_class(rows: int, share: float = 0.5) -> Callable[[Generator], tuple[Array, float]]:
    """Sorted by class; a share of the columns tells the classes."""

    def drawn(rng: Generator) -> tuple[Array, float]:
        classes, d = max(2, int(rng.choice(ROWS)) // rows), int(rng.choice(COLUMNS))
        labels = np.repeat(np.arange(classes), rows)
        centres = 1.5 * rng.normal(size=(classes, d)) * (np.arange(d) < share * d)
        return centres[labels] + rng.normal(size=(len(labels), d)), share

    return drawn


def sparse_counts(rng: Generator, n: int, d: int) -> Array:
    """Means of 0.01 to 0.2."""
    return rng.poisson(rng.uniform(0.01, 0.2, d), size=(n, d)).astype(np.float64)


def latent_classes(rng: Generator, n: int) -> Array:
    """30 binary columns that three classes nearly determine."""
    labels = rng.integers(3, size=n)
    return (rng.random((n, 30)) < rng.choice([0.05, 0.95], size=(3, 30))[labels]).astype(np.float64)


def expression(rng: Generator, n: int) -> Array:
    """log(1 + counts) of 60 genes in three kinds of cell, scaled to the median total; half of them zero."""
    labels = rng.integers(3, size=n)
    X = rng.poisson(rng.gamma(0.5, 4.0, size=(3, 60))[labels])
    total = np.maximum(X.sum(axis=1, keepdims=True), 1)
    return np.log1p(X * np.median(total) / total)


def smooth_curve(rng: Generator, n: int) -> Array:
    """12 columns that are functions of one number, without noise."""
    t = rng.random((n, 1))
    return np.cos(np.pi * (rng.uniform(0.5, 1.5, 12) * t + rng.uniform(0, 2, 12)))


def ranks(rng: Generator, n: int, d: int) -> Array:
    return rng.permuted(np.tile(np.arange(n, dtype=np.float64)[:, None], (1, d)), axis=0)


def rare(rng: Generator, n: int) -> Array:
    """A tenth of the rows is 4 away in 12 columns."""
    return 4.0 * (rng.random((n, 1)) < 0.1) + rng.normal(size=(n, 12))


class Silent(NamedTuple):
    draw: Callable[[Generator], tuple[Array, float]]  # X and the share of its columns that is selected
    half: str


SILENCE: dict[str, Silent] = {
    "normal": Silent(noise(lambda rng, n, d: rng.normal(size=(n, d))), "A"),
    "heavy-tailed": Silent(noise(lambda rng, n, d: rng.standard_t(2, size=(n, d))), "A"),
    "Cauchy": Silent(noise(lambda rng, n, d: rng.standard_cauchy(size=(n, d))), "B"),
    "log-normal": Silent(noise(lambda rng, n, d: np.exp(1.5 * rng.normal(size=(n, d)))), "B"),
    "counts": Silent(noise(counts), "A"),
    "sparse counts": Silent(noise(sparse_counts), "B"),
    "binary": Silent(noise(binary), "A"),
    "whole numbers of 1 to 5": Silent(noise(lambda rng, n, d: rng.integers(1, 6, (n, d)).astype(np.float64)), "B"),
    "ranks": Silent(noise(ranks), "B"),
    "one decimal": Silent(noise(lambda rng, n, d: rng.normal(size=(n, d)).round(1)), "B"),
    "columns in blocks of 0.8": Silent(noise(lambda rng, n, d: blocks(0.8, rng, n, d)), "A"),
    "columns in a chain of 0.9": Silent(noise(lambda rng, n, d: chain(0.9, rng, n, d)), "B"),
    "clusters": Silent(beside(clusters(1.5)), "A"),
    "clusters, far apart": Silent(beside(clusters(6.0)), "B"),
    "a rare cluster": Silent(beside(rare), "B"),
    "moons": Silent(beside(moons), "A"),
    "ring": Silent(beside(ring), "A"),
    "curve": Silent(beside(curve), "A"),
    "curve without noise": Silent(beside(smooth_curve), "B"),
    "latent classes, binary": Silent(beside(latent_classes), "B"),
    "expression": Silent(beside(expression), "B"),
    "sorted by class, 12 rows each": Silent(by_class(12), "A"),
    "sorted by class, 20 rows each": Silent(by_class(20), "B"),
    "sorted by class, 50 rows each": Silent(by_class(50), "B"),
}


# --- real data


REAL = ("ALLAML", "GLIOMA", "lung_small", "colon", "Yale", "Prostate-GE", "TOX-171", "arcene", "warpPIE10P",
        "pixraw10P", "ORL", "COIL20", "Isolet", "madelon", "BASEHOCK", "PCMAC", "CITEseq", "pbmc68k", "MNIST",
        "COIL-100", "mouse bladder")  # fmt: skip
QUICK_REAL = ("lung_small", "colon", "Yale")


def load(name: str) -> tuple[Array, Array]:
    """X and the labels of one of REAL. Raises MissingData where its file is not there."""
    if name in ("CITEseq", "pbmc68k"):
        return load_planted(name)
    if name == "MNIST":
        return mnist()
    if name == "COIL-100":
        with np.load(required("coil100_partial17_gray32.npz")[0]) as file:
            names = list(file)
            X = next(file[k] for k in names if file[k].ndim > 1)
            y = next((file[k] for k in names if file[k].ndim == 1), np.zeros(len(X)))
        return X.reshape(len(X), -1).astype(np.float64), y
    if name == "mouse bladder":
        import h5py

        with h5py.File(*required("mouse_bladder_cell_select_2100.h5")) as file:
            return file["X"][:].astype(np.float64), file["Y"][:].ravel()
    X, y = matlab(name)
    return X.astype(np.float64), y


def mnist() -> tuple[Array, Array]:
    import gzip

    images, labels = required("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz")
    X = np.frombuffer(gzip.decompress(images.read_bytes()), np.uint8, offset=16).reshape(-1, 784)
    return X.astype(np.float64), np.frombuffer(gzip.decompress(labels.read_bytes()), np.uint8, offset=8)


def looked_at(X: Array) -> tuple[Array, Array]:
    """The rows that a fit with random_state=0 reads, and their positions."""
    sample = random.sample(get_backend("numpy"), 0, random.Stream.DECOYS, 1, len(X), random.MOST_ROWS)
    positions = np.arange(len(X))[sample]
    return X[positions], positions


def within_classes(X: Array, labels: Array, rng: Generator) -> Array:
    """Rows of each class in random order, in the places that the class has."""
    order = np.arange(len(X))
    for label in np.unique(labels):
        at = np.flatnonzero(labels == label)
        order[at] = rng.permutation(at)
    return X[order]


# --- records


def selected_share(X: Array, seed: int) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DufsWarning
        )  # that nothing is selected, gates are undecided, or rows are copies
        return float(DUFS(random_state=seed, n_jobs=1, backend="numpy").fit(X).support_.mean())


def numbers(found: Sequence[Finding]) -> dict[str, float]:
    return {finding.what: round(finding.number, 4) for finding in found}


def told(kind: str, sets: int) -> dict[str, Any]:
    """How many sets of a kind are named as what they are, the numbers, and what else was said."""
    about = TOLD[kind]
    named, others, values, seconds = 0, 0, [], 0.0
    for number in range(sets):
        X = about.draw(generator("told", kind, number))
        share = selected_share(X, number) if about.what in FITTED else 0.0
        start = time.process_time()
        found = numbers(diagnose(X, selected_share=share, seed=number))
        seconds += time.process_time() - start
        named += about.what in found
        others += bool(found.keys() - {about.what})
        values.append(found.get(about.what))
    there = [value for value in values if value is not None]
    least, most = (min(there), max(there)) if there else (None, None)
    return {
        "part": "told", "kind": kind, "half": about.half, "what": about.what, "sets": sets, "named": named,
        "least": least, "most": most, "others": others, "seconds": round(seconds / sets, 4),
    }  # fmt: skip


def silent(kind: str, sets: int) -> dict[str, Any]:
    """The alarms of a kind that should have none."""
    about = SILENCE[kind]
    alarms: dict[str, list[float]] = {}
    sets_with_alarm = 0
    for number in range(sets):
        X, share = about.draw(generator("silent", kind, number))
        found = numbers(diagnose(X, selected_share=share, seed=number))
        sets_with_alarm += bool(found)
        for what, value in found.items():
            alarms.setdefault(what, []).append(value)
    return {
        "part": "silent", "kind": kind, "half": about.half, "sets": sets, "with_alarm": sets_with_alarm,
        "alarms": alarms,
    }  # fmt: skip


def real(name: str) -> dict[str, Any]:
    """The alarms of a real set, as it is stored and shuffled within its classes; seconds of one diagnosis."""
    X, labels = load(name)
    rows, positions = looked_at(X)
    share = selected_share(X, 0)
    start = time.process_time()
    stored = numbers(diagnose(rows, positions, share))
    seconds = time.process_time() - start
    shuffled = within_classes(X, labels, np.random.default_rng(0))[positions]
    return {
        "part": "real", "kind": name, "n": X.shape[0], "d": X.shape[1], "selected_share": round(share, 3),
        "stored": stored, "shuffled": numbers(diagnose(shuffled, positions, share)), "seconds": round(seconds, 3),
    }  # fmt: skip


def timed(n: int, d: int) -> dict[str, Any]:
    """The least time of three, of this process alone."""
    X = generator("time", "noise", n).normal(size=(n, d)).astype(np.float32)
    seconds = []
    for _ in range(3):
        start = time.process_time()
        diagnose(X, selected_share=1.0)
        seconds.append(time.process_time() - start)
    return {"part": "time", "kind": f"{n} x {d}", "seconds": round(min(seconds), 3)}


def records(
    parts: Sequence[str], half: str | None, sets: int, quick: bool, there: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """All records of some parts: the simulated ones of a half or both, the real sets that are there."""
    if "told" in parts:
        for kind, about in TOLD.items():
            if half in (None, about.half):
                # a fit takes longer than all else in a quick run
                yield told(kind, 1 if quick and about.what in FITTED else sets)
    if "silent" in parts:
        for kind, about in SILENCE.items():
            if half in (None, about.half):
                yield silent(kind, SILENT * sets)
    if "real" in parts:
        for name in there:
            yield real(name)
    if "time" in parts:
        for n, d in TIMED:
            yield timed(n, d)


# --- tables


def table(records: Sequence[dict[str, Any]]) -> str:
    """The tables of the parts that there are."""
    parts = []
    for half in "AB":
        rows = [
            [r["kind"], r["what"], f"{r['named']} of {r['sets']}", r["least"], r["most"], r["others"], r["seconds"]]
            for r in records
            if r["part"] == "told" and r["half"] == half
        ]
        head = ["rows", "sentence", "said", "least number", "largest", "sets with another sentence", "seconds"]
        parts.append((f"Rows that may not be exchanged, half {half}", head, rows))
        chosen = [r for r in records if r["part"] == "silent" and r["half"] == half]
        lines = [[r["kind"], r["sets"], r["with_alarm"], listed(r["alarms"])] for r in chosen]
        if lines:
            lines.append(["all", sum(r["sets"] for r in chosen), sum(r["with_alarm"] for r in chosen), ""])
        parts.append((f"Rows that may, half {half}", ["rows", "sets", "with an alarm", "alarms"], lines))
    lines = [
        [
            r["kind"],
            f"{r['n']} x {r['d']}",
            r["selected_share"],
            listed(r["stored"]),
            listed(r["shuffled"]),
            r["seconds"],
        ]
        for r in records
        if r["part"] == "real"
    ]
    head = ["data", "rows x columns", "share selected", "as stored", "shuffled within classes", "seconds"]
    parts.append(("Real data", head, lines))
    lines = [[r["kind"], r["seconds"]] for r in records if r["part"] == "time"]
    parts.append(("Time", ["rows x columns", "seconds"], lines))
    return "\n\n".join(f"{title}\n\n{markdown(head, lines)}" for title, head, lines in parts if lines)


def listed(alarms: dict[str, Any]) -> str:
    return "; ".join(f"{what} {value}" for what, value in alarms.items())


# --- command line


def kept(path: str | None, parts: Sequence[str]) -> list[dict[str, Any]]:
    """The records of a file that are of other parts."""
    if path is None or not Path(path).exists():
        return []
    stored = json.loads(Path(path).read_text())["records"]
    return [record for record in stored if record["part"] not in parts]


def main(argv: list[str] | None = None) -> None:
    p = parser(__doc__)
    p.add_argument("--quick", action="store_true", help=f"{QUICK_SETS} sets of each kind, {len(QUICK_REAL)} real ones")
    p.add_argument("--sets", type=number_of_runs, help=f"of each kind (default {SETS})")
    p.add_argument(
        "--half", choices=("A", "B"), help="of the simulated kinds of rows that nothing is told about, alone"
    )
    everything = (*PARTS, *rows_told.PARTS, *rows_time.PARTS)
    p.add_argument("--only", nargs="+", choices=everything, metavar="PART", help=", ".join(everything))
    p.add_argument("--against", metavar="FOLDER", help="a checkout of other code, for the part cost")
    a = p.parse_args(argv)
    sets = a.sets or (QUICK_SETS if a.quick else SETS)
    parts = a.only or everything
    found: list[dict[str, Any]] = []

    def keep(made: Iterator[dict[str, Any]]) -> None:
        for record in made:
            found.append(record)
            print(json.dumps(record), flush=True)

    if a.half:
        keep(records(("told", "silent"), a.half, sets, a.quick, ()))
        print(table(found))
        return
    names = (QUICK_REAL if a.quick else REAL) if "real" in parts else ()
    there, left_out = available(names, load)
    keep(records(parts, None, sets, a.quick, there))
    names = rows_told.BATCHES if "batches" in parts and not a.quick else ()
    there, without_batches = available(names, rows_told.known)
    keep(rows_told.records(parts, a.sets or (1 if a.quick else SETS), a.quick, a.against, there))
    keep(rows_time.records(parts, a.sets or (1 if a.quick else SETS), a.quick))
    if a.only:
        found = kept(a.json, parts) + found
    made = [table(found), rows_told.table(found, rows_told.TABLES), rows_told.table(found, rows_time.TABLES)]
    tables = "\n\n".join(filter(None, made))
    save(a.json, {"sets": sets, "records": found, "left_out": left_out | without_batches}, tables)
    print(tables)


if __name__ == "__main__":
    main()
