"""The paper's experiments.

python -m bench.paper NAME [--quick] [--out DIR] [--workers N]

Writes NAME.md (table), NAME.png and NAME.json to DIR. Every finished cell is kept in DIR/NAME.cells.jsonl and not
computed again. --quick: small sizes, in DIR/quick.
Some experiments have options of their own: see their docstrings.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path

from bench.common import save
from bench.paper.cells import Cells
from bench.paper.drawing import picture
from dufs_core.selection.atomic_io import json_value, write_bytes

# each a module with `run(cells, quick, **options) -> Report` and, if it has options, OPTIONS for add_argument
EXPERIMENTS = (
    "diffusion", "chi-square", "gates", "table1", "curves", "path", "starts", "deflation", "score-demo", "convergence",
    "power", "noisy-images", "coil",
)  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.paper", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=EXPERIMENTS, metavar="NAME", help=", ".join(EXPERIMENTS))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("bench/results"), metavar="DIR")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes (default 1)")
    a, rest = parser.parse_known_args(arguments)
    module = import_module(f"bench.paper.{a.name.replace('-', '_')}")
    own = argparse.ArgumentParser(prog=f"{parser.prog} {a.name}")
    for flag, how in getattr(module, "OPTIONS", {}).items():
        own.add_argument(flag, **how)
    chosen = vars(own.parse_args(rest))
    folder = a.out / "quick" if a.quick else a.out
    folder.mkdir(parents=True, exist_ok=True)
    cells = Cells(folder / f"{a.name}.cells.jsonl", a.workers)
    report = module.run(cells, a.quick, **chosen)
    if report.figure is not None:
        write_bytes(folder / f"{a.name}.png", picture(report.figure))
    write_bytes(folder / f"{a.name}.md", (report.table.rstrip("\n") + "\n").encode())
    about = {"experiment": a.name, "quick": a.quick, "seconds": round(cells.seconds, 1), "cells": cells.asked}
    save(str(folder / f"{a.name}.json"), about | json_value(report.results))
    print(f"{report.table}\n{cells.asked} cells, {cells.seconds:.1f} s; results in {folder}/{a.name}.*")


if __name__ == "__main__":
    main()
