"""What preparing a table does to the rate: missing cells filled in, counts scaled.

python -m bench.preparing [--quick] [--sets N] [--json FILE]

Every table has independent columns, so that nothing is to be found; beside it the same with three clusters in ten
columns, of which the share that is found is told. A table of the records is written beside FILE, with the ending .md.
--quick: 1 set of each.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.impute import KNNImputer, SimpleImputer

from bench.common import markdown, number_of_runs, parser, save
from dufs_core import DUFS
from dufs_core.errors import DufsWarning

Array = np.ndarray[Any, Any]
Generator = np.random.Generator
SETS, QUICK_SETS = 6, 1
REAL = 10  # columns with clusters, where there are any


def clusters(rng: Generator, n: int) -> Array:
    """Three groups of rows in ten columns."""
    return 1.5 * rng.normal(size=(3, REAL))[rng.integers(3, size=n)]


# --- missing cells


def incomplete(rng: Generator, together: bool, planted: bool) -> Array:
    """300 x 30; a fifth of the cells of 20 columns is missing: in the same rows of all, or in rows of each."""
    X = rng.normal(size=(300, 30))
    if planted:
        X[:, :REAL] += clusters(rng, 300)
    missing = rng.random((300, 1 if together else 20)) < 0.2
    X[:, 5:25] = np.where(missing, np.nan, X[:, 5:25])
    return X


def drawn(X: Array, rng: Generator) -> Array:
    """Every missing cell filled with a value of its column, drawn for it alone."""
    X = X.copy()
    for column in X.T:
        missing = np.isnan(column)
        column[missing] = rng.choice(column[~missing], missing.sum())
    return X


FILLED: dict[str, Callable[[Array, Generator], Array]] = {
    "mean": lambda X, rng: SimpleImputer().fit_transform(X),
    "median": lambda X, rng: SimpleImputer(strategy="median").fit_transform(X),
    "five nearest rows": lambda X, rng: KNNImputer().fit_transform(X),
    "a value of the column, drawn for each cell": drawn,
    "rows with missing cells dropped": lambda X, rng: X[~np.isnan(X).any(axis=1)],
}


# --- counts


def counts(rng: Generator, mean: float, planted: bool) -> Array:
    """300 x 200 counts of independent genes in cells whose size varies by a factor of 1.6."""
    size = np.exp(0.5 * rng.normal(size=(300, 1)))
    rate = mean * rng.gamma(1.0, 1.0, 200) * np.ones((300, 1))
    if planted:
        rate[:, :REAL] *= np.exp(clusters(rng, 300))
    return rng.poisson(size * rate).astype(np.float64)


def log_of_share(X: Array, total: float | None) -> Array:
    """Logarithms of the counts of each cell, scaled to one total: the one given, or the median."""
    sums = np.maximum(X.sum(axis=1, keepdims=True), 1)
    return np.log1p(X * (np.median(sums) if total is None else total) / sums)


DEPTH = "the same, and the logarithm of the total as a covariate"
SCALED: dict[str, Callable[[Array, Generator], Array]] = {
    "as they are": lambda X, rng: X,
    "log1p of counts scaled to 10,000": lambda X, rng: log_of_share(X, 1e4),
    "log1p of counts scaled to the median total": lambda X, rng: log_of_share(X, None),
    DEPTH: lambda X, rng: log_of_share(X, None),
}


# --- measuring


def measured(
    draw: Callable[[Generator, bool], Array], prepare: Callable[[Array, Generator], Array], has_depth: bool, sets: int
) -> Any:
    """Columns selected of noise, the share of real ones found, and of false ones beside them; means over sets."""
    found = []
    for number in range(sets):
        rng = np.random.default_rng(number)
        selections = []
        for planted in (False, True):
            X = draw(rng, planted)
            depth = np.log(np.maximum(X.sum(axis=1), 1)) if has_depth else None
            selections.append(select(prepare(X, rng), depth, number))
        noise, beside = selections
        false = beside[REAL:].sum() / max(beside.sum(), 1)
        found.append((noise.sum(), beside[:REAL].mean(), false))
    return [round(float(value), 3) for value in np.mean(found, axis=0)]


def select(X: Array, depth: Array | None, seed: int) -> Array:
    """The columns selected at a rate of 0.1."""
    with warnings.catch_warnings(action="ignore", category=DufsWarning):
        support: Array = DUFS(random_state=seed, backend="numpy", n_jobs=1).fit(X, covariates=depth).support_
    return support


def kinds() -> dict[tuple[str, str], Any]:
    """(table, what is done): how it is drawn and prepared."""
    out: dict[tuple[str, str], Any] = {}
    for together in (True, False):
        name = f"300 x 30, a fifth of 20 columns missing {'together' if together else 'each in its own rows'}"
        for how, fill in FILLED.items():
            if how.startswith("rows") and not together:
                continue  # hardly a row is complete
            out[name, how] = (lambda rng, planted, t=together: incomplete(rng, t, planted)), fill
    for mean in (1.0, 10.0):
        for how, scale in SCALED.items():
            draw = lambda rng, planted, m=mean: counts(rng, m, planted)  # noqa: E731
            out[f"300 x 200 counts of mean {mean:g}", how] = draw, scale
    return out


def main(argv: list[str] | None = None) -> None:
    """Measure, print and save."""
    p = parser(__doc__)
    p.add_argument("--quick", action="store_true", help=f"{QUICK_SETS} sets of each")
    p.add_argument("--sets", type=number_of_runs, help=f"of each (default {SETS})")
    a = p.parse_args(argv)
    sets = a.sets or (QUICK_SETS if a.quick else SETS)
    records = []
    for (table, how), (draw, prepare) in kinds().items():
        selected, recall, fdp = measured(draw, prepare, how == DEPTH, sets)
        records.append({"table": table, "done": how, "selected_of_noise": selected, "recall": recall, "fdp": fdp})
        print(records[-1], flush=True)
    head = ["table", "what is done", "selected where nothing is", "share of ten real ones found", "false share then"]
    save(a.json, {"sets": sets, "records": records}, markdown(head, [list(r.values()) for r in records]))


if __name__ == "__main__":
    main()
