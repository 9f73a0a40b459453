"""Seeded hostile matrices through the eight selectors: python -m bench.fuzz.matrices FIRST COUNT.

Each fit must end with finite scores and a ranking, or with a sentence. Failures are listed on stderr; the last line of
stdout is one JSON object of counts.
"""

from __future__ import annotations

import json
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import sparse

from dufs_core import DUFS, GatedLaplacian, baselines
from dufs_core.errors import DufsError

_HERE: dict[str, Any] = {"random_state": 0, "backend": "numpy"}
SELECTORS: dict[str, Callable[[], Any]] = {
    "DUFS": lambda: DUFS(**_HERE),
    "GatedLaplacian": lambda: GatedLaplacian(max_runs=2, n_draws=2, max_iter=3, **_HERE),
    "LaplacianScore": lambda: baselines.LaplacianScore(n_neighbors=1),
    "MCFS": lambda: baselines.MCFS(n_neighbors=1, random_state=0),
    "NDFS": lambda: baselines.NDFS(n_neighbors=1, max_iter=3, random_state=0),
    "LLCFS": lambda: baselines.LLCFS(n_neighbors=1, max_iter=3),
    "SRCFS": lambda: baselines.SRCFS(n_neighbors=1, random_state=0),
    "ConcreteAutoencoder": lambda: baselines.ConcreteAutoencoder(max_iter=3, random_state=0),
}
_VALUES: dict[str, Callable[[Any, tuple[int, int]], Any]] = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "any size": lambda rng, shape: rng.normal(size=shape) * 10.0 ** rng.uniform(-300, 300, shape),
    "columns of any size": lambda rng, shape: rng.normal(size=shape) * 10.0 ** rng.uniform(-300, 300, shape[1]),
    "subnormal": lambda rng, shape: rng.normal(size=shape) * 1e-310,
    "integers": lambda rng, shape: rng.integers(-3, 4, shape),
    "huge integers": lambda rng, shape: rng.integers(-(2**62), 2**62, shape),
    "booleans": lambda rng, shape: rng.random(shape) < 0.5,
    "mostly zeros": lambda rng, shape: rng.normal(size=shape) * (rng.random(shape) < 0.2),
    "huge offset": lambda rng, shape: 10.0 ** rng.uniform(3, 17) + rng.normal(size=shape),
}


def matrix(seed: int) -> tuple[Any, str]:
    """A hostile matrix, and what it is."""
    rng = np.random.default_rng(seed)
    shape = int(rng.integers(2, 41)), int(rng.integers(1, 61))
    kind = str(rng.choice(list(_VALUES)))
    X, said = _VALUES[kind](rng, shape), [f"{shape[0]} x {shape[1]}", kind]

    def happens(what: str, chance: float, possible: bool = True) -> bool:
        if rng.random() >= chance or not possible:
            return False
        said.append(what)
        return True

    X = X[rng.integers(0, len(X), len(X))] if happens("repeated rows", 0.2) else X
    X = X[:, rng.integers(0, X.shape[1], X.shape[1])] if happens("repeated columns", 0.2) else X
    if happens("constant columns", 0.2):
        X[:, rng.random(X.shape[1]) < 0.5] = X[0, 0]
    wide = X.dtype == np.float64
    if happens("one huge entry", 0.1, wide):
        X[tuple(rng.integers(0, X.shape))] = 10.0 ** rng.uniform(0, 308)
    if happens("not finite", 0.05, wide):
        X[tuple(rng.integers(0, X.shape))] = rng.choice([np.nan, np.inf, -np.inf])
    dtype = str(rng.choice(("float16", "float32", ">f4", ">f8", "object")))
    if happens(dtype, 0.4, wide):
        with np.errstate(all="ignore"):
            X = X.astype(dtype)
    form = str(rng.choice(["csr", "csc", "coo"]))
    if happens(f"{form} with zeros", 0.15, X.dtype.isnative and dtype not in ("object", "float16")):
        where = np.nonzero((X != 0) | (rng.random(X.shape) < 0.1))
        return sparse.coo_array((X[where], where), shape=X.shape).asformat(form), ", ".join(said)
    X = np.asfortranarray(X) if happens("Fortran order", 0.2) else X
    X = np.repeat(X, 2, axis=0)[::2][:, ::-1] if happens("not contiguous", 0.2) else X
    X.flags.writeable = not happens("read-only", 0.2)
    return X, ", ".join(said)


def judge(make: Callable[[], Any], X: Any) -> tuple[str, str]:
    """How a fit ends (sound, refused, NaN, no ranking, traceback), and why."""
    try:
        fitted = make().fit(X)
        if not np.isfinite(fitted.scores_).all():
            return "NaN", "scores_ are not finite"
        is_order = np.array_equal(np.sort(fitted.ranking_), np.arange(1, X.shape[1] + 1))
        return ("sound", "") if is_order else ("no ranking", str(fitted.ranking_))
    except (ValueError, TypeError, DufsError) as error:
        ours = {"dufs_core", "validation.py"} & {*traceback.extract_tb(error.__traceback__)[-1].filename.split("/")}
        return ("refused" if ours and len(str(error).split()) > 4 else "traceback"), f"{error!r}"
    except Exception as error:
        return "traceback", f"{error!r} in {traceback.extract_tb(error.__traceback__)[-1]}"


def main() -> None:
    """Run the command."""
    first, count = map(int, sys.argv[1:])
    counts = Counter(matrices=count, fits=count * len(SELECTORS))
    for seed in range(first, first + count):
        X, said = matrix(seed)
        for name, make in SELECTORS.items():
            with warnings.catch_warnings(record=True, action="always") as caught:
                end, why = judge(make, X)
            numeric = {str(w.message) for w in caught if issubclass(w.category, RuntimeWarning)}
            counts.update([end] + ["RuntimeWarning"] * bool(numeric))
            if end not in ("sound", "refused") or numeric:
                print(f"{seed}  {name}  {end}  {why}  {sorted(numeric)}  ({said})", file=sys.stderr, flush=True)
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
