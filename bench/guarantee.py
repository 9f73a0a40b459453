"""Whether the false discovery rate holds where the truth is known: simulated structure beside nuisance of many kinds.

python -m bench.guarantee [--quick] [--sets N] [--jobs N] [--json FILE]

independent: every nuisance column is independent of all others, of four kinds, beside four structures; `--sets` data
sets of each pair. none: the same without structure. correlated: nuisance columns that depend on one another, all of
them or half of them, the others independent; a quarter as many of each. 60, 100 or 200 rows and 60, 150 or 400 columns,
drawn by the seed. One fit a data set; what it selects at the rates 0.05, 0.1 and 0.2 is read from its
q-values. Every data set is kept in FILE's neighbour with the ending .cells.jsonl, and only what that lacks is run; FILE
has the means, a table of them is written beside it, with the ending .md. --quick: two data sets of each pair.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from bench.common import markdown, number_of_runs, parser, save
from bench.paper.cells import beside
from dufs_core import DUFS
from dufs_core.datasets import two_moons
from dufs_core.errors import SelectionWarning

Array = np.ndarray[Any, Any]
Draw = Callable[[np.random.Generator, int, int], Array]  # (generator, n, columns) to (n, columns)
RATES = (0.05, 0.1, 0.2)
ROWS, COLUMNS = (60, 100, 200), (60, 150, 400)
SETS, QUICK_SETS = 65, 2  # of each pair of a structure and a kind of nuisance
CLUSTER_COLUMNS, CURVE_COLUMNS = 12, 5
BLOCK = 5  # columns that are equally correlated
SHARES = (0.0, 0.5)  # of the nuisance is independent, beside correlated nuisance


# --- data


def counts(rng: np.random.Generator, n: int, count: int) -> Array:
    """Poisson, or negative binomial with variance mean + 2 mean^2, of means 0.2 to 1: 37% to 85% zeros."""
    mean = rng.uniform(0.2, 1.0, count)
    rate = np.where(rng.random(count) < 0.5, mean, rng.gamma(0.5, 2 * mean, size=(n, count)))
    return rng.poisson(rate, size=(n, count)).astype(np.float64)


def binary(rng: np.random.Generator, n: int, count: int) -> Array:
    """0 and 1; the share of ones is 0.05 to 0.5."""
    return (rng.random((n, count)) < rng.uniform(0.05, 0.5, count)).astype(np.float64)


def chain(rho: float, rng: np.random.Generator, n: int, count: int) -> Array:
    """N(0, 1), correlation rho^|k - l|: AR(1) along the columns."""
    X = rng.normal(size=(n, count))
    for k in range(1, count):
        X[:, k] = rho * X[:, k - 1] + np.sqrt(1 - rho**2) * X[:, k]
    return X


def blocks(rho: float, rng: np.random.Generator, n: int, count: int) -> Array:
    """N(0, 1), correlation rho in blocks of at least 5 columns and at most 9, 0 between them."""
    block = np.minimum(np.arange(count) // BLOCK, max(count // BLOCK, 1) - 1)
    shared = rng.normal(size=(n, block.max(initial=0) + 1))[:, block]
    return np.sqrt(rho) * shared + np.sqrt(1 - rho) * rng.normal(size=(n, count))


def clusters(rng: np.random.Generator, n: int) -> Array:
    """Three clusters; their centres are N(0, 1.5^2), and N(0, 1) is added."""
    labels = rng.integers(3, size=n)
    return rng.normal(0, 1.5, size=(3, CLUSTER_COLUMNS))[labels] + rng.normal(size=(n, CLUSTER_COLUMNS))


def moons(rng: np.random.Generator, n: int) -> Array:
    return two_moons(n, 2, 0.1, int(rng.integers(2**31))).X


def ring(rng: np.random.Generator, n: int) -> Array:
    """Radius 1, N(0, 0.1^2) added."""
    angle = rng.uniform(0, 2 * np.pi, n)
    return np.column_stack([np.cos(angle), np.sin(angle)]) + 0.1 * rng.normal(size=(n, 2))


def curve(rng: np.random.Generator, n: int) -> Array:
    """cos(pi (f_k t + phase_k)), f_k from 0.5 to 1.5, of a t that is uniform in (0, 1); N(0, 0.15^2) added."""
    f, phase = rng.uniform(0.5, 1.5, CURVE_COLUMNS), rng.uniform(0, 2, CURVE_COLUMNS)
    t = rng.random((n, 1))
    return np.cos(np.pi * (f * t + phase)) + 0.15 * rng.normal(size=(n, CURVE_COLUMNS))


STRUCTURES: dict[str, Callable[[np.random.Generator, int], Array]] = {
    "clusters": clusters, "moons": moons, "ring": ring, "curve": curve, "none": lambda rng, n: np.zeros((n, 0)),
}  # fmt: skip
INDEPENDENT: dict[str, Draw] = {
    "normal": lambda rng, n, count: rng.normal(size=(n, count)),
    "heavy-tailed": lambda rng, n, count: rng.standard_t(2, size=(n, count)),
    "counts": counts,
    "binary": binary,
}
CORRELATED: dict[str, Draw] = {f"AR(1), {rho}": partial(chain, rho) for rho in (0.3, 0.6, 0.9)} | {
    f"blocks of {BLOCK}, {rho}": partial(blocks, rho) for rho in (0.5, 0.8)
}
NUISANCE = INDEPENDENT | CORRELATED
STRUCTURE, DEPENDENT, ALONE = 2, 1, 0  # what a column is: part of the structure, dependent nuisance, or independent


class Problem(NamedTuple):
    X: Array  # (n, d)
    kind: Array  # (d,) STRUCTURE, DEPENDENT or ALONE


def problem(structure: str, nuisance: str, independent: float, number: int) -> Problem:
    """Data set `number`; a share `independent` of its nuisance columns is independent: all but of the correlated."""
    names = list(STRUCTURES), list(NUISANCE)
    about = [names[0].index(structure), names[1].index(nuisance), int(100 * independent)]
    rng = np.random.default_rng([number, *about])
    n, d = int(rng.choice(ROWS)), int(rng.choice(COLUMNS))
    found = STRUCTURES[structure](rng, n)
    count = d - found.shape[1]
    apart = round(independent * count)
    alone = INDEPENDENT[nuisance if nuisance in INDEPENDENT else "normal"](rng, n, apart)
    others = NUISANCE[nuisance](rng, n, count - apart)
    kind = np.repeat([STRUCTURE, ALONE, DEPENDENT], [found.shape[1], apart, count - apart])
    order = rng.permutation(d)
    return Problem(np.hstack([found, alone, others])[:, order], kind[order])


# --- records


def data_set(structure: str, nuisance: str, independent: float, number: int) -> dict[str, Any]:
    """What one fit selects, at each of RATES: columns in all, of the structure, and of the dependent nuisance."""
    X, kind = problem(structure, nuisance, independent, number)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SelectionWarning)  # that nothing is selected: the record has it
        q = DUFS(random_state=number, n_jobs=1, backend="numpy").fit(X).q_values_
    chosen = [kind[q <= rate] for rate in RATES]
    return {
        "n": len(X), "d": len(kind), "of_structure": int((kind == STRUCTURE).sum()),
        "selected": [len(c) for c in chosen],
        "true": [int((c == STRUCTURE).sum()) for c in chosen],
        "dependent": [int((c == DEPENDENT).sum()) for c in chosen],
    }  # fmt: skip


def plan(sets: int) -> Iterator[dict[str, Any]]:
    """The arguments of `data_set` for every data set. Those of fewer `sets` are the first of those of more."""
    for number in range(sets):
        for nuisance in INDEPENDENT:
            for structure in STRUCTURES:
                yield {"structure": structure, "nuisance": nuisance, "independent": 1.0, "number": number}
    for number in range(-(-sets // 4)):
        for nuisance in CORRELATED:
            for structure in ("clusters", "moons"):
                for share in SHARES:
                    yield {"structure": structure, "nuisance": nuisance, "independent": share, "number": number}


def summary(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means over data sets, a list by RATES each: a false discovery is a column that is independent of all others.

    dependent_share: of all that is selected in all of them.
    """
    selected, true, dependent = (np.array([r[name] for r in records]) for name in ("selected", "true", "dependent"))
    fdp = (selected - true - dependent) / np.maximum(selected, 1)
    mean, error = fdp.mean(axis=0), fdp.std(axis=0, ddof=1 if len(fdp) > 1 else 0) / np.sqrt(len(fdp))
    means = {
        "fdp": mean,
        "standard_error": error,
        "recall": (true / np.maximum([[r["of_structure"]] for r in records], 1)).mean(axis=0),
        "selected": selected.mean(axis=0),
        "empty": (selected == 0).mean(axis=0),
        "dependent_share": dependent.sum(axis=0) / np.maximum(selected.sum(axis=0), 1),
    }
    rounded = {name: np.round(values, 4).tolist() for name, values in means.items()}
    return {"data_sets": len(records), **rounded, "within": (mean <= np.array(RATES) + 2 * error).tolist()}


def summaries(records: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """`summary` of each part, by what the rows of its table are."""
    groups: dict[tuple[str, str], list[Any]] = {}
    for r in records:
        structure, nuisance = r["structure"], r["nuisance"]
        if nuisance in CORRELATED:
            part, names = "correlated", [f"{nuisance}; {structure}; {r['independent']:.0%} independent"]
        elif structure == "none":
            part, names = "none", [nuisance, "all"]
        else:
            part, names = "independent", [nuisance, structure, "all"]
        for name in names:
            groups.setdefault((part, name), []).append(r)
    parts, order = ["independent", "none", "correlated"], [*NUISANCE, *STRUCTURES, "all"]
    found: dict[str, dict[str, Any]] = {}
    for part, name in sorted(groups, key=lambda key: (parts.index(key[0]), order.index(key[1].split(";")[0]))):
        found.setdefault(part, {})[name] = summary(groups[part, name])
    return found


# --- tables


def table(means: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """A table for each rate of what is independent, one of what has no structure, one of what is correlated."""
    independent, none, correlated = (means.get(part, {}).items() for part in ("independent", "none", "correlated"))
    parts = []
    for i, rate in enumerate(RATES):
        head = ["nuisance or structure", "data sets", "mean FDP", f"at most {rate:g} + 2 se", "recall", "selected"]
        rows = [
            [name, s["data_sets"], fdp(s, i), "yes" if s["within"][i] else "no", f"{s['recall'][i]:.2f}",
             f"{s['selected'][i]:.1f}"]
            for name, s in independent
        ]  # fmt: skip
        parts += [f"Independent nuisance, q = {rate:g}", markdown(head, rows)]
    head = ["nuisance", "data sets", *(f"nothing selected, q = {rate:g}" for rate in RATES)]
    rows = [[name, s["data_sets"], *(f"{share:.3f}" for share in s["empty"])] for name, s in none]
    parts += ["No structure at all: nothing should be selected in a share 1 - q", markdown(head, rows)]
    head = ["nuisance", "structure", "of it independent", "data sets", "selected", "recall", "dependent of selected",
            *(f"FDP of independent, q = {rate:g}" for rate in RATES)]  # fmt: skip
    rows = [
        [*(name.removesuffix(" independent").split("; ")), s["data_sets"], f"{s['selected'][1]:.1f}",
         f"{s['recall'][1]:.2f}", f"{s['dependent_share'][1]:.2f}", *(fdp(s, i) for i in range(len(RATES)))]
        for name, s in correlated
    ]  # fmt: skip
    parts += [
        "Correlated nuisance. Columns that depend on others are no false discoveries in the sense of the guarantee; "
        f"their share of all that is selected, and other means, at q = {RATES[1]:g}",
        markdown(head, rows),
    ]
    return "\n\n".join(parts)


def fdp(s: Mapping[str, Any], i: int) -> str:
    return f"{s['fdp'][i]:.3f} ± {s['standard_error'][i]:.3f}"


# --- command line


def main(argv: list[str] | None = None) -> None:
    p = parser(__doc__)
    p.add_argument("--quick", action="store_true", help=f"{QUICK_SETS} data sets of each pair")
    p.add_argument("--sets", type=number_of_runs, help=f"of each pair (default {SETS})")
    p.add_argument("--jobs", type=number_of_runs, default=2, help="processes (default 2)")
    a = p.parse_args(argv)
    settings = list(plan(a.sets or (QUICK_SETS if a.quick else SETS)))
    with beside(a.json, a.jobs) as cells:
        results = cells.compute(data_set, settings)
    means = summaries(s | r for s, r in zip(settings, results, strict=True))
    save(a.json, {"rates": RATES, "fit_seconds": round(cells.seconds / len(settings), 3), **means}, table(means))
    print(table(means))


if __name__ == "__main__":
    main()
