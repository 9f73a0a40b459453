"""The first fit in a new process: `dufs-core fit two-moons` with an empty cache, a warm one, and none.

    python -m bench.start [--json FILE]

Seconds of the whole process, and from its start to the end of the first step. "none": no directory can be written, so
that the kernels are compiled and forgotten.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from statistics import median

from bench.common import parser, save

FIRST_STEP = """
import sys, time
from dufs_core import DUFS
from dufs_core.datasets import two_moons
DUFS(fdr=None, max_runs=1, random_state=0, callbacks=[lambda info: True]).fit(two_moons(n_features=20).X)
"""
COMMAND = "import sys; from dufs_core.cli.main import main; sys.exit(main(['fit', 'two-moons']))"
NO_CACHE = "import numba.core.caching as caching; caching.CacheImpl._locator_classes = []\n"


def seconds(code: str, folder: str) -> float:
    """Wall time of a Python process whose compiled kernels are kept in `folder`."""
    environment = os.environ | {"NUMBA_CACHE_DIR": folder}
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True)
    return round(time.perf_counter() - start, 2)


def main() -> None:
    a = parser(__doc__).parse_args()
    records = []
    for what, code in (("fit two-moons", COMMAND), ("first step", FIRST_STEP)):
        with tempfile.TemporaryDirectory() as folder:
            cold = seconds(code, folder)
            warm = median(seconds(code, folder) for _ in range(5))
            none = seconds(NO_CACHE + code, folder)
        records.append({"what": what, "cold_s": cold, "warm_s": warm, "no_cache_s": none})
        print(json.dumps(records[-1]), flush=True)
    save(a.json, {"records": records})


if __name__ == "__main__":
    main()
