"""Structure that no pair of columns shows: how often a fit finds it, and how often it finds what is not there.

python -m bench.interactions [--quick] [--only KIND ...] [--sets N] [--nulls N] [--json FILE]

The first columns have the structure, all others are N(0, 1), and independent. parity of two: two random signs and their
product, each with noise of 0.3; parity of three: the same of three signs. XOR: the third column is the sign of the
product of two normal ones, with noise. product: it is the product. difference: its absolute difference. sphere: points
on a sphere. none: nothing. Every finished cell is kept in FILE, and only what it lacks is run; a table is beside it.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bench.common import Records, generator, markdown, number_of_runs, parser
from bench.rows_told import mean_and_error
from dufs_core import DUFS

Array = np.ndarray[Any, Any]
Generator = np.random.Generator
NOISE = 0.3
ROWS = (100, 300, 1000)
COLUMNS = (10, 30, 100)
SETS, NULLS = 20, 1000
NULL_SHAPES = ((100, 10), (100, 30))


def parity(factors: int) -> Callable[[Generator, int], Array]:
    def draw(rng: Generator, n: int) -> Array:
        signs = rng.choice([-1.0, 1.0], (n, factors))
        columns = np.column_stack([signs, signs.prod(axis=1)])
        return columns + NOISE * rng.normal(size=columns.shape)

    return draw


def of_two(third: Callable[[Array, Array], Array]) -> Callable[[Generator, int], Array]:
    """Two normal columns, and a function of both with noise."""

    def draw(rng: Generator, n: int) -> Array:
        x, y = rng.normal(size=(2, n))
        return np.column_stack([x, y, third(x, y) + NOISE * rng.normal(size=n)])

    return draw


def sphere(rng: Generator, n: int) -> Array:
    x = rng.normal(size=(n, 3))
    return np.sqrt(3) * x / np.linalg.norm(x, axis=1, keepdims=True) + 0.1 * rng.normal(size=(n, 3))


KINDS: dict[str, Callable[[Generator, int], Array]] = {
    "parity of two": parity(2),
    "parity of three": parity(3),
    "XOR": of_two(lambda x, y: np.sign(x * y)),
    "product": of_two(lambda x, y: x * y),
    "difference": of_two(lambda x, y: abs(x - y)),
    "sphere": sphere,
}
NOTHING = "none"


def measured(kind: str, n: int, d: int, sets: int) -> dict[str, Any]:
    """One cell of the table."""
    recall, complete, fdp, wins, seconds = [], [], [], [], []
    for number in range(sets):
        rng = generator("interactions", f"{kind} {n} {d}", number)
        X = rng.normal(size=(n, d))
        real = 0
        if kind != NOTHING:
            structure = KINDS[kind](rng, n)
            real = structure.shape[1]
            X[:, :real] = structure

        # fit
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fit = DUFS(random_state=number, backend="numpy").fit(X)
        seconds.append(time.perf_counter() - start)

        # what was found, and what was not there
        found = fit.support_
        recall.append(found[:real].mean() if real else 0.0)
        complete.append(bool(found[:real].all()))
        fdp.append(found[real:].sum() / max(found.sum(), 1))
        wins.append((fit.evidence_ > fit.decoy_evidence_.max(axis=0))[real:].mean())
    return {
        "kind": kind, "n": n, "d": d, "sets": sets, "recall": mean_and_error(recall), "complete": sum(complete),
        "fdp": mean_and_error(fdp), "wins": mean_and_error(wins), "seconds": round(float(np.median(seconds)), 2),
    }  # fmt: skip


def key(record: dict[str, Any]) -> tuple[Any, ...]:
    return record["kind"], record["n"], record["d"]


def plan(only: Sequence[str], sets: int, nulls: int, quick: bool) -> Iterator[tuple[str, int, int, int]]:
    """All cells; quick: one of each kind."""
    for kind in only:
        if kind == NOTHING:
            for n, d in NULL_SHAPES[:1] if quick else NULL_SHAPES:
                yield kind, n, d, nulls
            continue
        for d in COLUMNS[:1] if quick else COLUMNS:
            for n in ROWS[:1] if quick else ROWS:
                yield kind, n, d, sets


def table(records: Sequence[dict[str, Any]]) -> str:
    head = ["structure", "rows", "columns", "sets", "recall", "all of it", "mean FDP", "nuisance wins", "seconds"]
    lines = [
        [
            r["kind"],
            r["n"],
            r["d"],
            r["sets"],
            "-" if r["kind"] == NOTHING else "{:.2f} ± {:.2f}".format(*r["recall"]),
            "-" if r["kind"] == NOTHING else f"{r['complete']} of {r['sets']}",
            "{:.3f} ± {:.3f}".format(*r["fdp"]),
            "{:.3f} ± {:.3f}".format(*r["wins"]),
            r["seconds"],
        ]
        for r in records
    ]
    return markdown(head, lines)


def main(argv: list[str] | None = None) -> None:
    p = parser(__doc__)
    everything = (*KINDS, NOTHING)
    p.add_argument("--quick", action="store_true", help="one cell of each kind, 2 sets")
    p.add_argument("--only", nargs="+", choices=everything, metavar="KIND", default=everything)
    p.add_argument("--sets", type=number_of_runs)
    p.add_argument("--nulls", type=number_of_runs)
    a = p.parse_args(argv)
    sets = a.sets or (2 if a.quick else SETS)
    nulls = a.nulls or (2 if a.quick else NULLS)
    records = Records(a.json, key, table)
    for kind, n, d, count in plan(a.only, sets, nulls, a.quick):
        if records.kept.get((kind, n, d), {}).get("sets") != count:
            records.add(measured(kind, n, d, count))
            records.save()
    print(records.table)


if __name__ == "__main__":
    main()
