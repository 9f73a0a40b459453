"""Few columns for k-means: the first of DUFS's diverse order, or saturating gates on its first 100.

python -m bench.compact [--data SET ...] [--seeds N] [--json FILE]

Compact gates: GatedLaplacian(saturation=0.3) on the first 100 columns of DUFS(ranking="diverse"), in the order of mu,
with the graph of its defaults or that of preset "wide". Of every order the first 20 and 50; k-means as in
bench.natural. Which is better is to be told without labels, by a difference of statistics of both sets (compact minus
diverse). On one half of the data sets a threshold is chosen; the other half says what the rule is worth.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from bench.common import Records, available, markdown, number_of_runs, parser
from bench.natural import Natural, judged, load
from dufs_core import DUFS, GatedLaplacian
from dufs_core.backend import get_backend
from dufs_core.objective.chain import Objective, open_graph
from dufs_core.objective.ops import saturate

Array = np.ndarray[Any, Any]
HALVES = {
    "A": ("COIL20", "Yale", "TOX-171", "ORL", "ALLAML", "GLIOMA", "colon"),
    "B": ("Isolet", "lung_small", "warpPIE10P", "pixraw10P", "Prostate-GE", "arcene", "madelon"),
}
SETS = tuple(name for half in HALVES.values() for name in half)
POOL = 100  # columns that the gates choose from
SIZES = (20, 50)
RUNS = 20
SATURATION = 0.3
GRAPHS = {"compact": GatedLaplacian().graph, "compact, wide": GatedLaplacian.preset("wide").graph}
ORDERS = ("diverse", *GRAPHS)
GATES = {"max_runs": 1, "max_iter": 500, "learning_rate": 0.02, "n_draws": 4, "batch_size": 256}
STATISTICS = {  # with the graph of preset "wide"
    "own": "S_nu / n of the set on its own graph",
    "all": "S / n of all columns on the set's graph, a column",
    "all, saturated": "S_nu / n of all columns, scaled to the weight of 100, on the set's graph",
}
bk = get_backend("numpy")


# --- records


def orders(data: Natural, seed: int) -> dict[str, Array]:
    """Every order, positions in the data."""
    diverse = DUFS(ranking="diverse", n_features_to_select=POOL, random_state=seed).fit(data.X).order_[:POOL]
    size = min(GATES["batch_size"], len(data.X))
    found = {"diverse": diverse}
    for name, graph in GRAPHS.items():
        gates = GatedLaplacian(saturation=SATURATION, graph=graph, random_state=seed, **GATES | {"batch_size": size})
        found[name] = diverse[gates.fit(data.X[:, diverse]).order_]
    return found


def statistics(data: Natural, columns: Array) -> dict[str, float]:
    """STATISTICS of some columns, which take no labels."""
    graph = GRAPHS["compact, wide"]
    n, d = data.X.shape
    own = data.X[:, columns] @ data.X[:, columns].T
    everything = data.X @ data.X.T
    P = open_graph(bk, Objective(**graph.get_params()), own).P
    walk = np.linalg.matrix_power(P, graph.power)
    V_own, _ = saturate.forward(bk, own, SATURATION * n)
    V_all, _ = saturate.forward(bk, everything * (POOL / d), SATURATION * n)
    found = {"own": (walk * V_own).sum() / n, "all": (walk * everything).sum() / (n * d)}
    return {name: round(float(v), 5) for name, v in (found | {"all, saturated": (walk * V_all).sum() / n}).items()}


def measure(name: str, seed: int) -> dict[str, Any]:
    """The record of a data set and a seed: accuracy and NMI in percent, and statistics, of every order by size."""
    data = load(name)
    start = time.perf_counter()
    found = orders(data, seed)
    record: dict[str, Any] = {"data": name, "seed": seed, "seconds": round(time.perf_counter() - start, 1)}
    for order, columns in found.items():
        for size in SIZES:
            first = columns[:size]
            accuracy, nmi = judged(data, first, RUNS)
            values = {"accuracy": round(100 * accuracy, 2), "nmi": round(100 * nmi, 2)}
            record[f"{order} {size}"] = values | statistics(data, first)
    return record


# --- a rule


class Case(NamedTuple):
    """What compact gates change on one data set at one size: compact minus diverse."""

    accuracy: float
    statistics: dict[str, float]


def cases(records: Sequence[dict[str, Any]], half: str, order: str) -> list[Case]:
    """Those of one half of the data sets."""
    found = []
    for record in records:
        if record["data"] in HALVES[half]:
            for size in SIZES:
                compact, diverse = record[f"{order} {size}"], record[f"diverse {size}"]
                difference = {name: compact[name] - diverse[name] for name in STATISTICS}
                found.append(Case(compact["accuracy"] - diverse["accuracy"], difference))
    return found


def gained(some: Sequence[Case], statistic: str, threshold: float) -> float:
    """Mean accuracy over always diverse, where compact is taken above the threshold."""
    return float(np.mean([case.accuracy * (case.statistics[statistic] > threshold) for case in some]))


def chosen(some: Sequence[Case], statistic: str) -> float:
    """The threshold that gains the most; infinite, which is always diverse, where none gains."""
    values = sorted(case.statistics[statistic] for case in some)
    between = [(low + high) / 2 for low, high in pairwise(values)]
    return max((np.inf, -np.inf, *between), key=lambda threshold: gained(some, statistic, threshold))


def correlation(some: Sequence[Case], statistic: str) -> str | None:
    """Of the statistic with the gain; None where one of them is the same everywhere."""
    pairs = np.array([(case.accuracy, case.statistics[statistic]) for case in some])
    return f"{np.corrcoef(pairs, rowvar=False)[0, 1]:+.2f}" if (pairs.std(axis=0) > 0).all() else None


def table(records: Sequence[dict[str, Any]]) -> str:
    """Accuracy of every order on every set, and what the rules are worth."""
    columns = [(order, size) for size in SIZES for order in ORDERS]
    rows = []
    for half, names in HALVES.items():
        for name in names:
            mine = [record for record in records if record["data"] == name]
            if mine:
                means = [np.mean([r[f"{order} {size}"]["accuracy"] for r in mine]) for order, size in columns]
                rows.append([half, name, len(mine), *(f"{mean:.1f}" for mean in means)])

    rules: list[list[Any]] = []
    for order in GRAPHS:
        halves = {half: cases(records, half, order) for half in HALVES}
        if not all(halves.values()):
            continue
        for name, about in STATISTICS.items():
            correlations = [correlation(some, name) for some in halves.values()]
            for half, some in halves.items():
                threshold = chosen(some, name)
                worth = [f"{gained(each, name, threshold):+.2f}" for each in halves.values()]
                rules.append([order, about, half, f"{threshold:.3g}", *worth, *correlations])
        always = [f"{np.mean([case.accuracy for case in some]):+.2f}" for some in halves.values()]
        best = [f"{np.mean([max(0.0, case.accuracy) for case in some]):+.2f}" for some in halves.values()]
        rules.append([order, "always compact", None, None, *always, None, None])
        rules.append([order, "the better one, told by labels", None, None, *best, None, None])
    return "\n\n".join(
        [
            "Accuracy of k-means, percent, by the first columns of every order",
            markdown(["half", "data", "seeds", *(f"{order}, {size}" for order, size in columns)], rows),
            "Mean accuracy gained over always diverse: compact is taken where the difference of a statistic exceeds a "
            "threshold, the best one on a half (inf: never). Correlations are those of the difference with the gain",
            markdown(["gates", "rule", "chosen on", "threshold", "A", "B", "correlation, A", "B"], rules),
        ]
    )


def main(argv: list[str] | None = None) -> None:
    """Measure what the records lack, and write them."""
    p = parser(__doc__)
    p.add_argument("--data", nargs="+", choices=SETS, metavar="SET", help=", ".join(SETS))
    p.add_argument("--seeds", type=number_of_runs, default=3, metavar="N", help="of decoys, gates and rows; default 3")
    a = p.parse_args(argv)
    records = Records(a.json, lambda record: (record["data"], record["seed"]), table)
    there, _ = available(a.data or SETS)
    for seed in range(a.seeds):
        for name in there:
            if (name, seed) not in records.kept:
                records.add(measure(name, seed))
            records.save()
    print(records.table)


if __name__ == "__main__":
    main()
