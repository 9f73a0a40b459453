"""How often the selection is exactly the informative columns.

python -m bench.recovery [--quick] [--json FILE]

Noisy two moons, 100 samples, the fits of `dufs-core fit two-moons --features D --noise E --seed S`.
"""

from __future__ import annotations

import argparse
import time
import warnings

import numpy as np

from bench.common import save
from dufs_core import DUFS
from dufs_core.datasets import two_moons


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="10 seeds, d = 10, 20, 50")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    seeds, sizes = (10, (10, 20, 50)) if arguments.quick else (20, (10, 20, 50, 100))
    DUFS(random_state=0, max_iter=1, n_restarts=1).fit(two_moons().X)  # compile
    records = []
    for noise in (0.1, 0.05):
        for d in sizes:
            fits = []
            for seed in range(seeds):
                problem = two_moons(n_features=d, noise=noise, random_state=seed)
                start = time.perf_counter()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    selector = DUFS(random_state=seed).fit(problem.X)
                seconds = time.perf_counter() - start
                exact = np.array_equal(np.flatnonzero(selector.support_), problem.informative)
                fits.append((exact, seconds, selector.n_runs_))
            exact, seconds, runs = (np.array(column) for column in zip(*fits, strict=True))
            records.append(
                {
                    "problem": "two-moons", "d": d, "noise": noise, "settings": "default", "runs": seeds,
                    "exact": int(exact.sum()), "seconds": round(float(np.median(seconds)), 2),
                    "seconds_max": round(float(seconds.max()), 2), "runs_per_fit": round(float(runs.mean()), 2),
                    "missed_seeds": np.flatnonzero(~exact).tolist(),
                }
            )  # fmt: skip
            print(records[-1], flush=True)
            save(arguments.json, {"records": records})


if __name__ == "__main__":
    main()
