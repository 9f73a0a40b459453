"""Many fits on the same data at once (`fit_many`) beside the same fits one after the other.

    python -m bench.population [--quick] [--json FILE]

Both take all cores: one fit after the other with its draws over the threads, or one fit in each thread. The fits differ
in lam and seed, have a fixed number of steps, and must agree to the bit. Medians of three turns.
"""

from __future__ import annotations

import argparse
import time
import warnings
from statistics import median

import numpy as np

from bench.common import save
from dufs_core import DUFS, fit_many

# rows, columns, draws, fits, steps
SIZES = (
    (100, 20, 1, 32, 1000),
    (100, 20, 16, 16, 300),
    (100, 5966, 1, 8, 40),
    (100, 5966, 16, 4, 10),
    (1000, 1024, 1, 4, 10),
)
QUICK = ((100, 20, 1, 8, 50),)


def selectors(draws: int, fits: int, steps: int) -> list[DUFS]:
    settings = {"max_iter": steps, "tol": 0.0, "max_runs": 1, "n_draws": draws}
    return [DUFS(fdr=None, lam=None if i % 2 else 0.01 * (1 + i), random_state=i, **settings) for i in range(fits)]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.population", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one small size")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    records = []
    for n, d, draws, fits, steps in QUICK if args.quick else SIZES:
        X = np.random.default_rng(0).normal(size=(n, d))
        DUFS(fdr=None, max_iter=2, max_runs=1).fit(X)  # compiles
        times: dict[str, list[float]] = {"together": [], "one after the other": []}
        for _ in range(3):
            start = time.perf_counter()
            together = fit_many(selectors(draws, fits, steps), X)
            times["together"].append(time.perf_counter() - start)
            start = time.perf_counter()
            alone = [selector.fit(X) for selector in selectors(draws, fits, steps)]
            times["one after the other"].append(time.perf_counter() - start)
            assert all((a.mu_ == b.mu_).all() for a, b in zip(together, alone, strict=True))
        seconds = {name: round(median(values), 3) for name, values in times.items()}
        record = {"n": n, "d": d, "draws": draws, "fits": fits, "steps": steps, "seconds": seconds}
        record["ratio"] = round(seconds["one after the other"] / seconds["together"], 2)
        records.append(record)
        print(record, flush=True)
    if args.json:
        save(args.json, {"records": records})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
