"""Registers, shared memory and spills of every CUDA kernel: `python -m bench.cuda_resources --json FILE`.

Compiles with NVRTC from PyPI; needs no GPU.
"""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import version
from pathlib import Path

from bench.common import save

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "cuda"))
import nvrtc


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.cuda_resources", description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="write the table to a file")
    args = parser.parse_args()
    library = nvrtc.library()
    if library is None:
        print(f"{nvrtc.PACKAGE} is not installed: pip install '.[test]' on Linux", file=sys.stderr)
        return 2
    table = nvrtc.table(library)
    for name, architectures in table.items():
        numbers = (f"{a} {r['registers']:3d}/{r['spill_bytes']}" for a, r in architectures.items())
        print(f"{name:45s} registers/spills  " + "  ".join(numbers))
    save(args.json, {"nvrtc": version(nvrtc.PACKAGE), "options": list(nvrtc.OPTIONS), "kernels": table})
    return 0


if __name__ == "__main__":
    sys.exit(main())
