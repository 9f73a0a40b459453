"""Everything that needs a GPU, in one command: correctness first, then times, memory and first calls.

python -m bench.gpu [--quick] [--only SLICE ...] [--again] --json FILE

Slices are run in order and written to FILE as each ends; those that FILE holds already (from the same card and the
same size of run) are left out, so that the command can be stopped and run again. --again repeats them. Every slice
stays well below ten minutes. Without a GPU the command says why and exits with 2.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import gpu_slices, gpu_streaming
from bench.common import save
from dufs_core.backend import Backend, get_backend
from dufs_core.errors import BackendUnavailableError

SLICES: dict[str, Callable[[Backend, bool], Any]] = {
    "correctness": gpu_slices.correctness,
    "machine": gpu_slices.machine,
    "kernels": gpu_slices.kernels,
    "steps": gpu_slices.steps,
    "population": gpu_slices.population,
    "fits": gpu_slices.fits,
    "memory": gpu_slices.memory,
    "streaming": gpu_streaming.streaming,
    "first_call": gpu_slices.first_call,
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, few repeats")
    parser.add_argument("--only", nargs="+", choices=SLICES, default=list(SLICES), metavar="SLICE")
    parser.add_argument("--again", action="store_true", help="repeat the slices that FILE holds already")
    parser.add_argument("--json", metavar="FILE", required=True)
    args = parser.parse_args(arguments)
    try:
        bk = get_backend("cupy")
    except BackendUnavailableError as error:
        print(f"bench.gpu measures on a GPU only, and there is none to use: {error}", file=sys.stderr)
        return 2
    card = gpu_slices.card(bk)
    path = Path(args.json)
    result: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    if result.get("card") != card or result.get("quick") != args.quick:
        result = {"card": card, "quick": args.quick, "slices": {}}
    for name in args.only:
        if name in result["slices"] and not args.again:
            print(f"{name}: done already", flush=True)
            continue
        start = time.perf_counter()
        found = SLICES[name](bk, args.quick)
        result["slices"][name] = {
            "seconds": round(time.perf_counter() - start, 1),
            "card": card["name"],
            "found": found,
        }
        save(args.json, result)
        print(f"{name}: {json.dumps(found)[:2000]}", flush=True)
    correct = result["slices"].get("correctness", {}).get("found", {}).get("failed", 0) == 0
    return 0 if correct else 1


if __name__ == "__main__":
    sys.exit(main())
