"""Selection where the truth is known: real columns among others that were shuffled, each on its own.

python -m bench.planted [--quick] [--only METHOD ...] [--data SET ...] [--cells R,N ...] [--seeds N] [--fdr Q]
                        [--json FILE]

At most 300 rows, r real columns, N shuffled ones, which keep their marginals and lose every tie. Methods that choose no
number of columns are given r; they have no part in the cells with r = 0, nor slow ones, unless --only names them, in
more than two cells and one seed. Every finished fit is kept in FILE's neighbour with the ending .cells.jsonl, and only
what that lacks is run; FILE has all records so far, and a table of them is written beside it, with the ending .md.
--quick: two data sets, three cells, one seed, fast methods, as far as the command line does not say otherwise.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
from scipy.io import loadmat
from sklearn.cluster import KMeans
from sklearn.metrics import normalized_mutual_info_score

from bench.common import Records, available, markdown, matlab, number_of_runs, parser, required
from bench.paper.cells import measure_all
from dufs_core import DUFS, GatedLaplacian, baselines
from dufs_core.backend import get_backend
from dufs_core.significance.hsic import hsic_z_scores

Array = np.ndarray[Any, Any]
ROWS = 300
SETS = ("COIL20", "Isolet", "Yale", "lung_small", "TOX-171", "warpPIE10P", "ORL", "pixraw10P", "CITEseq")
APART = ("pbmc68k",)  # hardly a column depends on another: even told the r, no method finds them
CELLS = ((8, 1000), (20, 2000), (50, 2000), (100, 1000), (15, 5000), (0, 1000))
SLOW_CELLS = CELLS[:2]
QUICK_SETS, QUICK_CELLS = ("Yale", "Isolet"), ((8, 1000), (20, 2000), (0, 1000))
SEEDS = 5
STEPS = 1000  # of the presets that have 15,000
MEASURES = {"fdp": "FDP", "recall": "recall", "top_r": "top-r", "nmi": "NMI"}
EPOCHS = 50  # of the concrete autoencoder, which has 300
DEPENDENCE_ROWS, DEPENDENCE_COLUMNS = 128, 2100  # an array (columns, rows, rows)


# --- data


class Planted(NamedTuple):
    """A data set with a known answer."""

    X: Array  # (n, r + N) float32, every column of mean 0 and variance 1
    truth: Array  # (r + N,) bool: real and whole
    labels: Array  # (n,)
    variance: Array  # (r + N,) of the columns before they were scaled

    @property
    def r(self) -> int:
        return int(self.truth.sum())

    @property
    def classes(self) -> int:
        return len(np.unique(self.labels))


def plant(X: Array, labels: Array, r: int, n_nuisance: int, seed: int) -> Planted:
    """r real columns among nuisance: other real columns, shuffled.

    Each is taken once where there are enough beside the r, else drawn with replacement from all of them.

    Raises
    ------
    ValueError
        If there are fewer than r columns that are not constant.
    """
    rng = np.random.default_rng([seed, r, n_nuisance])
    rows = rng.permutation(len(X))[:ROWS]
    X = X[rows]
    X = X[:, np.flatnonzero(X.max(axis=0) > X.min(axis=0))]
    d = X.shape[1]
    if r > d:
        raise ValueError(f"r = {r} real columns are wanted, and {d} of this data set are not constant: use r <= {d}")
    real, rest = np.split(rng.permutation(d), [r])
    once = len(rest) >= n_nuisance
    nuisance = rest[rng.permutation(len(rest))][:n_nuisance] if once else rng.choice(d, n_nuisance)
    Z = np.concatenate([X[:, real], rng.permuted(X[:, nuisance], axis=0)], axis=1)
    spread = Z.std(axis=0)  # above 0: a shuffled column is no more constant than it was
    Z = (Z - Z.mean(axis=0)) / spread
    order = rng.permutation(r + n_nuisance)
    return Planted(Z[:, order].astype(np.float32), order < r, labels[rows], spread[order] ** 2)


@cache
def load(name: str) -> tuple[Array, Array]:
    """X and the labels, 0 to classes - 1, of one of SETS or APART. Raises MissingData where its file is not there."""
    if name in APART:
        import h5py

        with h5py.File(*required("10x_pbmc68k_reduced.h5ad")) as file:
            X, labels = file["X"][:].astype(np.float64), file["obs"]["bulk_labels"]
    elif name == "CITEseq":
        counts, types = (loadmat(str(path)) for path in required("CITEseq.mat", "CITEseq-labels.mat"))
        X, labels = np.log1p(counts["G"].T.astype(np.float64)), types["labels"].ravel()
    else:
        X, labels = matlab(name)
    return X.astype(np.float64), np.unique(labels, return_inverse=True)[1]


@lru_cache(maxsize=1)
def planted(data: str, r: int, n_nuisance: int, seed: int) -> Planted:
    """`plant` in a set by its name; all methods see the same one."""
    return plant(*load(data), r, n_nuisance, seed)


# --- methods


class Choice(NamedTuple):
    """What a method says."""

    order: Array  # (d,) positions, best first
    selected: Array | None = None  # (d,) bool; None: the first r


class Method(NamedTuple):
    """One row of the table."""

    run: Callable[[Planted, int, float], Choice]  # of the data, the seed and the rate of false discoveries
    chooses: bool = False  # a number of columns
    slow: bool = False  # no part of --quick
    note: str = ""
    most_columns: float = np.inf


def ordered(scores: Array) -> Choice:
    """Largest first."""
    return Choice(np.argsort(-scores, kind="stable"))


def discoveries(p: Planted, seed: int, fdr: float) -> Choice:
    """DUFS's own rule."""
    fit = DUFS(fdr=fdr, random_state=seed).fit(p.X)
    return Choice(ordered(fit.scores_).order, fit.support_)


def gates(make: Callable[[int], GatedLaplacian]) -> Callable[[Planted, int, float], Choice]:
    """Open gates, in their order."""

    def run(p: Planted, seed: int, fdr: float) -> Choice:
        fit = make(seed).fit(p.X)
        return Choice(fit.order_, fit.support_)

    return run


def baseline(name: str, told_classes: bool = False, **settings: Any) -> Callable[[Planted, int, float], Choice]:
    """A selector of dufs_core.baselines that is asked for r columns."""

    def run(p: Planted, seed: int, fdr: float) -> Choice:
        clusters = {"n_clusters": p.classes} if told_classes else {}
        kind = getattr(baselines, name)
        return ordered(kind(n_features_to_select=p.r, random_state=seed, **clusters, **settings).fit(p.X).scores_)

    return run


def correlations(X: Array) -> Array:
    """sum_l |corr(x_k, x_l)|^4 over the other columns, (d,). X (n, d), mean 0, variance 1."""
    C = X.T @ X
    C /= len(X)
    np.fill_diagonal(C, 0)
    C *= C
    C *= C
    return C.sum(axis=1)


def ties(X: Array) -> Array:
    """The largest kernel dependence of each column on another one, (d,)."""
    return hsic_z_scores(get_backend("numpy"), X[:DEPENDENCE_ROWS]).max(axis=1)  # rows are in random order


def self_consistent(X: Array, r: int, start: int = 100, rounds: int = 12, n_neighbors: int = 5) -> Array:
    """x_k' P^2 x_k / n on the graph of the columns that this score puts first, (d,).

    From the `start` best by `correlations`, so many fewer by every round that r are left. P: random walk without
    self-loops, bandwidth the median squared distance to the fifth other row.
    """
    n = len(X)
    scores = correlations(X)
    for m in np.geomspace(start, max(r, 1), rounds).round().astype(int):
        chosen = X[:, ordered(scores).order[:m]]
        squares = (chosen * chosen).sum(axis=1)
        D = np.maximum(squares[:, None] + squares[None, :] - 2 * chosen @ chosen.T, 0)
        np.fill_diagonal(D, np.inf)  # no neighbour of itself
        b = np.median(np.partition(D, n_neighbors - 1, axis=1)[:, n_neighbors - 1])
        K = np.exp(-D / max(float(b), 1e-9))
        P = K / np.maximum(K.sum(axis=1, keepdims=True), 1e-20)
        scores = ((P.T @ X) * (P @ X)).sum(axis=0) / n
    return scores


METHODS: dict[str, Method] = {
    "DUFS": Method(discoveries, chooses=True),
    "DUFS gates": Method(
        gates(lambda seed: GatedLaplacian(max_runs=1, random_state=seed, max_iter=2000)),
        chooses=True, slow=True, note="one run",
    ),
    "wide": Method(
        gates(lambda seed: GatedLaplacian.preset("wide", max_runs=1, random_state=seed)),
        chooses=True, slow=True, note="preset",
    ),
    "paper": Method(
        gates(lambda seed: GatedLaplacian.preset("paper", max_iter=STEPS, random_state=seed)),
        chooses=True, slow=True, note=f"preset, {STEPS:,} steps",
    ),
    "authors_code": Method(
        gates(lambda seed: GatedLaplacian.preset("authors_code", max_iter=STEPS, random_state=seed)),
        chooses=True, slow=True, note=f"preset, {STEPS:,} steps",
    ),
    "LS": Method(baseline("LaplacianScore")),
    "LS random_walk": Method(baseline("LaplacianScore", variant="random_walk")),
    "MCFS": Method(baseline("MCFS", told_classes=True), note="told the classes"),
    "NDFS": Method(baseline("NDFS", told_classes=True), slow=True, note="told the classes"),
    "LLCFS": Method(baseline("LLCFS", told_classes=True), slow=True, note="told the classes"),
    "SRCFS": Method(baseline("SRCFS"), slow=True),
    "CAE": Method(baseline("ConcreteAutoencoder", max_iter=EPOCHS), slow=True, note=f"{EPOCHS} epochs"),
    "random": Method(lambda p, seed, fdr: ordered(np.random.default_rng([seed, len(p.truth), 1]).random(len(p.truth)))),
    "variance": Method(lambda p, seed, fdr: ordered(p.variance), note="raw"),
    "correlations": Method(lambda p, seed, fdr: ordered(correlations(p.X)), note="sum of fourth powers"),
    "dependence": Method(
        lambda p, seed, fdr: ordered(ties(p.X)), note="largest tie", most_columns=DEPENDENCE_COLUMNS
    ),
    "self-consistent": Method(lambda p, seed, fdr: ordered(self_consistent(p.X, p.r)), note="down to r columns"),
}  # fmt: skip


# --- records


@cache
def warm_up(method: str, n: int) -> None:
    """A fit of 60 columns: compiles what the fits of n rows use."""
    X = np.random.default_rng(0).normal(size=(n, 60)).astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this is noise
        METHODS[method].run(Planted(X, np.arange(60) < 5, np.arange(n) % 2, np.ones(60)), 0, 0.1)


def measure(data: str, r: int, n_nuisance: int, seed: int, method: str, fdr: float | None = None) -> dict[str, Any]:
    """The record of one fit."""
    p = planted(data, r, n_nuisance, seed)
    warm_up(method, len(p.X))
    start = time.perf_counter()
    choice = METHODS[method].run(p, seed, 0.1 if fdr is None else fdr)
    seconds = time.perf_counter() - start
    about = {"cell": f"{r}x{n_nuisance}", "data": data, "seed": seed, "method": method, "fdr": fdr}
    return about | judged(p, choice, seed) | {"seconds": round(seconds, 3)}


def judged(p: Planted, choice: Choice, seed: int) -> dict[str, Any]:
    """fdp (0 of an empty selection), recall, top_r, nmi, selected.

    None: what needs an r above 0; all of it for a method that is told r = 0.
    """
    r = p.r
    first = choice.order[:r]
    hits = int(p.truth[first].sum())
    if choice.selected is None:
        selected, true = (r, hits) if r else (None, 0)
    else:
        selected, true = int(choice.selected.sum()), int((choice.selected & p.truth).sum())
    nmi = None
    if r:
        clusters = KMeans(p.classes, n_init=5, random_state=seed).fit_predict(p.X[:, first])
        nmi = round(float(normalized_mutual_info_score(p.labels, clusters)), 4)
    return {
        "fdp": None if selected is None else round((selected - true) / max(selected, 1), 4),
        "recall": round(true / r, 4) if r else None,
        "top_r": round(hits / r, 4) if r else None,
        "nmi": nmi,
        "selected": selected,
    }


def key(record: dict[str, Any]) -> tuple[Any, ...]:
    """What a fit is."""
    return tuple(record[name] for name in ("cell", "data", "seed", "method", "fdr"))


def plan(a: argparse.Namespace, cell: tuple[int, int]) -> Iterator[dict[str, Any]]:
    """The arguments of `measure` for every fit of one cell; those on the same data come one after the other."""
    r, n_nuisance = cell
    names = a.only or [name for name, m in METHODS.items() if not (a.quick and m.slow)]
    for data in a.data:
        for seed in range(a.seeds):
            for name in names:
                method = METHODS[name]
                limited = method.slow and not a.only and (cell not in SLOW_CELLS or seed > 0)
                if limited or r + n_nuisance > method.most_columns or (r == 0 and not method.chooses):
                    continue
                fit = {"data": data, "r": r, "n_nuisance": n_nuisance, "seed": seed, "method": name}
                yield fit | ({"fdr": a.fdr} if name == "DUFS" else {})


# --- tables


def table(records: Sequence[dict[str, Any]]) -> str:
    """For each cell the means of every method; DUFS by data set; the sets apart in tables of their own."""
    common = [r for r in records if r["data"] not in APART]
    parts = [part for cell in cells_of(common) for part in cell_table(common, cell)]
    for label in rows_of(r for r in common if r["method"] == "DUFS"):
        parts += [f"{label} by data set: FDP, recall, top-r; nothing selected where r = 0", data_table(common, label)]
    for data in APART:
        apart = [r for r in records if r["data"] == data]
        parts += [part for cell in cells_of(apart) for part in cell_table(apart, cell, f"{data} (in no mean): ")]
    return "\n\n".join(parts)


def cells_of(records: Iterable[dict[str, Any]]) -> list[tuple[int, int]]:
    """The cells of the records, those of CELLS first."""
    cells = {tuple(int(part) for part in r["cell"].split("x")) for r in records}
    return sorted(cells, key=lambda cell: (CELLS.index(cell) if cell in CELLS else len(CELLS), cell))


def label_of(record: dict[str, Any]) -> str:
    """The method as the tables have it."""
    note = METHODS[record["method"]].note if record["fdr"] is None else f"fdr={record['fdr']:g}"
    return record["method"] + (f" ({note})" if note else "")


def rows_of(records: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The records by `label_of`, in the order of METHODS."""
    names = list(METHODS)
    rows: dict[str, list[dict[str, Any]]] = {}
    for r in sorted(records, key=lambda r: (names.index(r["method"]), r["fdr"] or 0)):
        rows.setdefault(label_of(r), []).append(r)
    return rows


def values(fits: Sequence[dict[str, Any]], r: int, names: Iterable[str]) -> list[str]:
    """The means of the fits of one cell; where r = 0, how many of them select nothing."""
    if r == 0:
        return [f"{sum(f['selected'] == 0 for f in fits)} of {len(fits)}"]
    return [f"{np.mean([f[name] for f in fits]):.2f}" for name in names]


def cell_table(records: Iterable[dict[str, Any]], cell: tuple[int, int], before: str = "") -> tuple[str, str]:
    """A heading, and the table of one cell."""
    r, n_nuisance = cell
    rows = rows_of(record for record in records if record["cell"] == f"{r}x{n_nuisance}")
    head = ["method", "fits", *(MEASURES.values() if r else ["nothing selected"]), "seconds"]
    body = [
        [label, len(fits), *values(fits, r, MEASURES), f"{np.median([f['seconds'] for f in fits]):.2f}"]
        for label, fits in rows.items()
    ]
    return f"{before}{r} real columns of {r + n_nuisance:,}", markdown(head, body)


def data_table(records: Iterable[dict[str, Any]], label: str) -> str:
    """One row of `rows_of`: data sets by cells."""
    fits: dict[str, dict[str, list[dict[str, Any]]]] = {}  # by data set and cell
    mine = rows_of(records)[label]
    for record in sorted(mine, key=lambda record: SETS.index(record["data"])):
        fits.setdefault(record["data"], {}).setdefault(record["cell"], []).append(record)
    cells = cells_of(mine)
    rows = [
        [data, *(", ".join(values(found[f"{r}x{n}"], r, list(MEASURES)[:3])) if f"{r}x{n}" in found else None
                 for r, n in cells)]
        for data, found in fits.items()
    ]  # fmt: skip
    return markdown(["data", *(f"{r} of {r + n:,}" for r, n in cells)], rows)


# --- command line


def cell(text: str) -> tuple[int, int]:
    """A value of --cells. Raises argparse.ArgumentTypeError."""
    r, _, n_nuisance = text.partition(",")
    if not (r.isdecimal() and n_nuisance.isdecimal() and int(n_nuisance) > 0):
        raise argparse.ArgumentTypeError(f"a cell is R,N, real and shuffled columns, such as 20,2000; got {text}")
    return int(r), int(n_nuisance)


def rate(text: str) -> float:
    """A value of --fdr. Raises argparse.ArgumentTypeError."""
    try:
        q = float(text)
    except ValueError:
        q = 0.0
    if not 0 < q < 1:
        raise argparse.ArgumentTypeError(f"the false discovery rate is a number between 0 and 1; got {text}")
    return q


def main(argv: list[str] | None = None) -> None:
    p = parser(__doc__)
    p.add_argument("--quick", action="store_true", help="Yale and Isolet; 8,1000 20,2000 0,1000; 1 seed")
    p.add_argument("--only", nargs="+", choices=METHODS, metavar="METHOD", help=", ".join(METHODS))
    p.add_argument("--data", nargs="+", choices=SETS + APART, help=f"default: all but {', '.join(APART)}")
    p.add_argument("--cells", nargs="+", type=cell, metavar="R,N")
    p.add_argument("--seeds", type=number_of_runs, help=f"default {SEEDS}")
    p.add_argument("--fdr", type=rate, default=0.1, help="of DUFS (default 0.1)")
    a = p.parse_args(argv)
    a.data, _ = available(a.data or (QUICK_SETS if a.quick else SETS), load)
    a.seeds = a.seeds or (1 if a.quick else SEEDS)
    groups = (plan(a, one) for one in a.cells or (QUICK_CELLS if a.quick else CELLS))
    measure_all(a.json, measure, groups, Records(a.json, key, table))


if __name__ == "__main__":
    main()
