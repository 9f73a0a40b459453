"""Natural data, where most columns carry something: what the first columns of a ranking say about the classes.

python -m bench.natural [--quick] [--only METHOD ...] [--data SET ...] [--json FILE]

Columns of mean 0 and variance 1; of every ranking the first 50, 100, 200 and 300; k-means with k = number of classes,
ten runs of one start each; the mean of accuracy and of NMI over runs and sizes. MCFS ranks anew for each size. The sets
are in two halves, so that what is tuned on one can be judged on the other. Every finished cell is kept in FILE's
neighbour with the ending .cells.jsonl, and only what that lacks is run; FILE has all records so far, and tables of them
are written beside it, with the ending .md. --quick: three data sets, fast methods, as far as the command line does not
say otherwise.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from sklearn.cluster import KMeans
from sklearn.metrics import normalized_mutual_info_score

from bench.common import Records, available, markdown, matlab, parser
from bench.paper.cells import measure_all
from dufs_core import DUFS, baselines
from dufs_core.data.dense import scale_columns
from dufs_core.inspection.metrics import clustering_accuracy

Array = np.ndarray[Any, Any]
HALVES = {
    "A": ("COIL20", "Yale", "TOX-171", "ORL", "ALLAML", "GLIOMA"),
    "B": ("Isolet", "lung_small", "warpPIE10P", "pixraw10P", "Prostate-GE"),
}
SETS = tuple(name for half in HALVES.values() for name in half)
QUICK_SETS = ("Yale", "lung_small", "GLIOMA")
SIZES = (50, 100, 200, 300)
RUNS = 10
DRAWS = 20  # of random columns


class Natural(NamedTuple):
    """A data set with classes."""

    X: Array  # (n, d) float64, every column of mean 0 and variance 1, or 0
    labels: Array  # (n,)
    variance: Array  # (d,) of the columns in the units of the file

    @property
    def classes(self) -> int:
        return len(np.unique(self.labels))


@lru_cache(maxsize=1)
def load(name: str) -> Natural:
    """One of SETS. Raises MissingData where its file is not there."""
    X, labels = matlab(name)
    X = X.astype(np.float64)
    return Natural(scale_columns(X, "columns", np.float64).X, labels, X.var(axis=0))


# --- methods


class Method(NamedTuple):
    """One row of the table."""

    rank: Callable[[Natural, int, int], Array]  # the data, number of columns wanted, draw: positions, best first
    note: str = ""
    slow: bool = False  # no part of --quick
    refitted: bool = False  # the ranking depends on the number of columns wanted
    draws: int = 1


def baseline(name: str, clusters: int | None = None, **settings: Any) -> Callable[[Natural, int, int], Array]:
    """A selector of dufs_core.baselines. clusters: how many it is told of; 0: as many as there are classes."""

    def rank(data: Natural, count: int, draw: int) -> Array:
        told = {} if clusters is None else {"n_clusters": clusters or data.classes}
        return getattr(baselines, name)(n_features_to_select=count, **told, **settings).fit(data.X).order_

    return rank


def permutation(data: Natural, count: int, draw: int) -> Array:
    return np.random.default_rng(draw).permutation(data.X.shape[1])


def by_variance(data: Natural, count: int, draw: int) -> Array:
    return np.argsort(-data.variance, kind="stable")


def dufs(data: Natural, count: int, draw: int) -> Array:
    return DUFS(random_state=0, n_features_to_select=count).fit(data.X).order_


ALL = "all features"
METHODS: dict[str, Method] = {
    ALL: Method(lambda data, count, draw: np.arange(data.X.shape[1])),
    "random": Method(permutation, note=f"{DRAWS} draws", draws=DRAWS),
    "variance": Method(by_variance, note="raw"),
    "LS": Method(baseline("LaplacianScore")),
    "MCFS": Method(baseline("MCFS", 0), note="told the classes", refitted=True),
    "MCFS5": Method(baseline("MCFS", 5), note="5 clusters", refitted=True),
    "NDFS": Method(baseline("NDFS", 0, random_state=0), note="told the classes"),
    "LLCFS": Method(baseline("LLCFS", 0, random_state=0), note="told the classes"),
    "SRCFS": Method(baseline("SRCFS", random_state=0)),
    "DUFS": Method(dufs, slow=True),
}


# --- records


def measure(data: str, method: str) -> dict[str, Any]:
    """The record of one method on one data set: accuracy and NMI in percent, lists over SIZES; seconds of one fit.

    Sizes are at most the number of columns. All features have one size, d, with as many runs as all sizes have.
    """
    source, how = load(data), METHODS[method]
    d = source.X.shape[1]
    sizes, runs = ([d], RUNS * len(SIZES)) if method == ALL else ([min(size, d) for size in SIZES], RUNS)
    values: list[list[tuple[float, float]]] = []  # (draws, sizes)
    seconds = []
    for draw in range(how.draws):
        rankings = []
        for count in sizes if how.refitted else [max(sizes)]:
            start = time.perf_counter()
            rankings.append(how.rank(source, count, draw))
            seconds.append(time.perf_counter() - start)
        rankings *= len(sizes) // len(rankings)
        values.append([judged(source, r[:size], runs) for r, size in zip(rankings, sizes, strict=True)])
    accuracy, nmi = (np.mean(values, axis=0) * 100).round(2).T.tolist()
    about = {"data": data, "method": method, "sizes": sizes, "runs": runs}
    return about | {"accuracy": accuracy, "nmi": nmi, "seconds": round(float(np.median(seconds)), 2)}


def judged(data: Natural, columns: Array, runs: int) -> tuple[float, float]:
    """Mean accuracy and mean NMI of k-means by some columns over so many starts."""
    X = np.ascontiguousarray(data.X[:, columns])
    clusters = [KMeans(data.classes, n_init=1, random_state=seed).fit_predict(X) for seed in range(runs)]
    accuracy = np.mean([clustering_accuracy(data.labels, c) for c in clusters])
    return float(accuracy), float(np.mean([normalized_mutual_info_score(data.labels, c) for c in clusters]))


def key(record: dict[str, Any]) -> tuple[str, str]:
    """What a cell is."""
    return record["data"], record["method"]


def plan(a: argparse.Namespace) -> Iterator[dict[str, str]]:
    """The arguments of `measure` for every cell; those on the same data come one after the other."""
    names = a.only or [name for name, m in METHODS.items() if not (a.quick and m.slow)]
    for data in a.data:
        yield from ({"data": data, "method": name} for name in names)


# --- tables


def table(records: Sequence[dict[str, Any]]) -> str:
    """Means over the sets and over their halves, with ranks; every data set."""
    sets = [name for name in SETS if any(r["data"] == name for r in records)]
    rows = {name: {r["data"]: r for r in records if r["method"] == name} for name in METHODS}
    rows = {name: row for name, row in rows.items() if row}
    labels = {name: name + (f" ({METHODS[name].note})" if METHODS[name].note else "") for name in rows}
    groups = {"all": sets} | {half: [name for name in sets if name in mine] for half, mine in HALVES.items()}
    columns: list[list[str | None]] = []
    head = ["method"]
    for group, members in groups.items():
        for title, measure in (("ACC", "accuracy"), ("NMI", "nmi")):
            means = [mean_over(row, members, measure) for row in rows.values()]
            columns.append(with_ranks(means))
            head.append(title if group == "all" else f"{title}, {group}")
    slowest = [f"{max(r['seconds'] for r in row.values()):.1f}" for row in rows.values()]
    sums = zip(labels.values(), *columns, [f"{len(row)} of {len(sets)}" for row in rows.values()], slowest, strict=True)
    each = [
        [label, *(f"{value(row[s], 'accuracy'):.1f} / {value(row[s], 'nmi'):.1f}" if s in row else None for s in sets)]
        for label, row in zip(labels.values(), rows.values(), strict=True)
    ]
    said = "; ".join(f"{half}: {', '.join(members)}" for half, members in groups.items() if half in HALVES and members)
    return "\n\n".join(
        [
            f"Means over the sets (rank), percent. {said}",
            markdown([*head, "sets", "most seconds a fit"], sums),
            "ACC / NMI by data set",
            markdown(["method", *sets], each),
        ]
    )


def value(record: dict[str, Any], measure: str) -> float:
    """The mean over the sizes."""
    return float(np.mean(record[measure]))


def mean_over(row: dict[str, dict[str, Any]], sets: Sequence[str], measure: str) -> float | None:
    """The mean of one method over all of these sets; None if one is missing, or there are none."""
    return float(np.mean([value(row[s], measure) for s in sets])) if sets and all(s in row for s in sets) else None


def with_ranks(means: Sequence[float | None]) -> list[str | None]:
    """Each with its place, the largest first; equal ones share the better place."""
    there = [m for m in means if m is not None]
    return [None if m is None else f"{m:.1f} ({1 + sum(other > m for other in there)})" for m in means]


# --- command line


def main(argv: list[str] | None = None) -> None:
    p = parser(__doc__)
    p.add_argument("--quick", action="store_true", help=f"{', '.join(QUICK_SETS)}; fast methods")
    p.add_argument("--only", nargs="+", choices=METHODS, metavar="METHOD", help=", ".join(METHODS))
    p.add_argument("--data", nargs="+", choices=SETS, metavar="SET", help=", ".join(SETS))
    a = p.parse_args(argv)
    a.data, _ = available(a.data or (QUICK_SETS if a.quick else SETS))
    measure_all(a.json, measure, ([settings] for settings in plan(a)), Records(a.json, key, table))


if __name__ == "__main__":
    main()
