"""`dufs-core gradcheck`: run the gradient checks; print a table, and write JSON.

Exit code 0: everything confirmed; 1: a gradient is wrong; 2: the backend or engine asked for is not there.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from dufs_core.backend import get_backend
from dufs_core.cli.common import UsageError, machine, single_line, versions
from dufs_core.errors import BackendUnavailableError
from dufs_core.gradcheck.suite.run import KINDS, run_suite
from dufs_core.training.progress import stage

EXAMPLES = """\
examples:
  dufs-core gradcheck
  dufs-core gradcheck --only gates --kind gradient --examples 100 --seed 1
  dufs-core gradcheck --engine dense --json gradcheck.json
  dufs-core gradcheck --backend cupy

exit codes: 0 every gradient is confirmed, 1 one is wrong, 2 bad usage, or the backend or engine is not there,
130 interrupted
"""
_LINE = "{:40} {:7} {:12} {:>8} {:>10} {:>8}  {}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--backend", default="numpy", choices=("numpy", "cupy"), help="where the arrays live")
    parser.add_argument("--engine", default=None, help="only this engine (default: every one that runs on the backend)")
    parser.add_argument("--seed", type=int, default=0, help="seed of every example (default 0)")
    parser.add_argument("--examples", type=int, default=12, help="examples for each line of the table (default 12)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only operations whose name contains TEXT")
    parser.add_argument("--kind", choices=KINDS, default=None, help="only this kind of check")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="write the results to FILE as well")


def run(args: argparse.Namespace) -> int:
    """Run the suite, print the table, write the JSON file; return the exit code."""
    start = time.perf_counter()
    if args.examples < 1 or args.seed < 0:
        raise UsageError("--examples must be at least 1 and --seed at least 0")
    settings = {name: getattr(args, name) for name in ("engine", "only", "seed", "examples")}
    results = []
    try:
        bk = get_backend(args.backend)
        print(_LINE.format("operation", "engine", "kind", "examples", "worst", "seconds", "worst case"), flush=True)
        with stage(sys.stderr.isatty(), "checking") as bar:
            for result in run_suite(bk, kinds=(args.kind,) if args.kind else KINDS, **settings):
                worst = "FAILED" if result.failures else f"{result.worst_relative_error:.1e}"
                seconds = f"{result.seconds:.2f}"
                cells = (result.name, result.engine, result.kind, result.examples, worst, seconds, result.worst_case)
                bar.clear()
                print(_LINE.format(*cells).rstrip(), flush=True)
                results.append(result)
    except (BackendUnavailableError, ValueError) as error:
        raise UsageError(single_line(error)) from error
    failures = sum(bool(r.failures) for r in results)
    for result in results:
        for message in result.failures[:3]:
            print(f"\nFAILED {result.kind}, engine {result.engine}\n{message}")
    took = time.perf_counter() - start
    print(f"\n{len(results)} checks, {sum(r.examples for r in results)} examples, {failures} failed, {took:.1f} s")
    if args.json is not None:
        about = {"failures": failures, "settings": settings | {"backend": args.backend}}
        about |= {"versions": versions(), "machine": machine()}
        table = about | {"checks": [asdict(result) for result in results]}
        args.json.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    return 1 if failures else 0
