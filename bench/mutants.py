"""Proof that the gradient suite catches mistakes: plant faults in the backward code, see which check finds each.

    python -m bench.mutants [--json FILE] [--jobs 2] [--only TEXT]

The faults are those of bench/faults.py, chosen to be hard: a dropped term, a missing bandwidth path, the wrong side of
a kink, one coordinate off by 1e-6, a float32 leak. Mechanical changes of the operations, every operator and constant in
turn, are made by a tool of its own: see bench/mutation.toml.

Every mutant runs in a forked child, the cheapest checks first, up to the first failure. The kernels run without
their compiler, which the faults do not depend on, with panels and blocks so small that a handful of rows and columns
makes several of each (bench/lanes.py).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from multiprocessing import get_context
from typing import Any

from bench.common import parser, save
from bench.faults import chosen
from bench.planting import Mutant

ENVIRONMENT = {"NUMBA_DISABLE_JIT": "1", "OPENBLAS_NUM_THREADS": "1"}
TIME_LIMIT = 600  # seconds for one mutant; running past it counts as survived
ELEMENTS_TOGETHER = 64  # a few draws are several chunks
MANY_ROWS, MANY_COLUMNS, FEW_COLUMNS = (9, 14), (26, 29), (3, 5)
EXAMPLES = 24
MUTANTS: list[tuple[Mutant, Callable[[], None]]] = []  # on trial; the forked children find them here


def set_sizes() -> None:
    """Small panels and blocks and few rows for every mutant (and for the unchanged code that is tried first)."""
    from bench import lanes
    from dufs_core.gradcheck.suite import chain
    from dufs_core.objective import chain as objective

    lanes.install()
    objective._ELEMENTS_TOGETHER = ELEMENTS_TOGETHER
    chain.MANY_ROWS, chain.MANY_COLUMNS, chain.FEW_COLUMNS = MANY_ROWS, MANY_COLUMNS, FEW_COLUMNS


def plan(mutant: Mutant) -> Iterator[tuple[str, str, str, int]]:
    """(kind, operation, engine, examples), the checks that could find the fault, the cheapest first."""
    from dufs_core.gradcheck.suite.registry import OPS, operations

    own = [o for o in operations() if not o.is_chain and mutant.target.endswith(f".{o.module}")]
    for examples in (6, EXAMPLES):
        yield from (("gradient", o.name, OPS, examples) for o in own)
    yield from (("statistical", o.name, OPS, EXAMPLES) for o in own if o.expectation)
    for engine in mutant.engines or ("reference",):
        chains = [o for o in operations() if o.is_chain and o.runs_on(engine)]
        some = [o for o in chains if "regularised" in o.name and ("max," in o.name or "median," in o.name)]
        yield from (("gradient", o.name, engine, 4) for o in chains)
        yield from (("statistical", o.name, engine, 0) for o in chains if o.expectation)
        yield from (("gradient", o.name, engine, EXAMPLES) for o in some if not own)


def judge(mutant: Mutant) -> None:
    """Run the plan up to the first failure; fills in killed_by and message."""
    from dufs_core.backend import get_backend
    from dufs_core.gradcheck.suite import run as suite
    from dufs_core.gradcheck.suite.registry import engines, operations

    checks = {"gradient": suite.check_gradients, "statistical": suite.check_expectation}
    by_name = {o.name: o for o in operations()}
    loaded = {name: engine.load() for name, engine in engines().items() if "numpy" in engine.backends}
    bk = get_backend("numpy")
    for kind, name, engine, examples in plan(mutant):
        result = checks[kind](bk, by_name.get(name), engine, loaded.get(engine), 0, examples, True)
        if result.failures:
            mutant.message = result.failures[0][:400]
            where = f" ({engine})" if by_name[name].is_chain else ""
            mutant.killed_by = f"{_how(kind, mutant.message)}: {name}{where}"
            return


def _how(kind: str, message: str) -> str:
    if ", kink " in message:
        return "kink by name"
    if "differs from the plain formula" in message:
        return "value"
    if "complex step gives" in message:
        return "complex step"
    if ": FAILED" in message:
        return "contract"
    if "Error: " in message and "WRONG" not in message:
        return "exception"
    return {"gradient": "five-point"}.get(kind, kind)


def unchanged(mutants: list[Mutant]) -> None:
    """Run the checks of the unchanged code in this process, so that all is loaded before any fork; they must pass."""
    for module, engines in {(m.target, m.engines) for m in mutants}:
        mutant = Mutant(module, "", "", engines)
        judge(mutant)
        if mutant.killed_by:
            raise RuntimeError(f"the unchanged code fails, {mutant.killed_by}: {mutant.message}")


def late(*_: Any) -> None:
    """A handler of SIGALRM."""
    raise SystemExit(f"no verdict after {TIME_LIMIT} s")  # no Exception, which the checks would take for a failure


def attempt(number: int) -> tuple[int, Mutant]:
    """Plant a fault in this process, a forked child, and judge it; one that could not be tried has survived."""
    mutant, plant = MUTANTS[number]
    start = time.perf_counter()
    signal.signal(signal.SIGALRM, late)
    signal.alarm(TIME_LIMIT)
    with open(os.devnull, "w") as quiet:
        os.dup2(quiet.fileno(), 2)
    try:
        plant()
        judge(mutant)
    except BaseException as error:  # not a verdict: the checks turn what the mutant raises into failures
        mutant.killed_by, mutant.message = "", f"not tried: {type(error).__name__}: {error}"[:400]
    mutant.seconds = round(time.perf_counter() - start, 2)
    return number, mutant


def run(only: str = "", jobs: int = 2, report: Callable[[Mutant], None] = lambda mutant: None) -> list[Mutant]:
    """Try every mutant whose key contains `only`; the unchanged code is tried first and must pass everything."""
    set_sizes()
    MUTANTS[:] = [(m, plant) for m, plant in chosen() if only in m.key]
    unchanged([m for m, _ in MUTANTS])
    results = [m for m, _ in MUTANTS]
    with get_context("fork").Pool(jobs, maxtasksperchild=1) as pool:  # a child for each: its fault dies with it
        for number, mutant in pool.imap_unordered(attempt, range(len(results))):
            results[number] = mutant
            report(mutant)
    return results


def main(argv: list[str] | None = None) -> int:
    """Run, print one line per mutant and the counts; 1 if anything survived."""
    p = parser((__doc__ or "").partition("\n")[0])
    p.add_argument("--jobs", type=int, default=2, help="mutants tried at the same time (default 2)")
    p.add_argument("--only", default="", metavar="TEXT", help="only mutants whose description contains TEXT")
    args = p.parse_args(argv)
    if any(os.environ.get(name) != value for name, value in ENVIRONMENT.items()):  # read when numpy and numba load
        os.execve(sys.executable, [sys.executable, "-m", "bench.mutants", *sys.argv[1:]], os.environ | ENVIRONMENT)

    def report(m: Mutant) -> None:
        print(f"{m.killed_by or 'SURVIVED':60.60} {m.seconds:6.1f} s  {m.key}", flush=True)

    start = time.perf_counter()
    results = run(args.only, args.jobs, report)
    survivors = [m for m in results if not m.killed_by]
    found = {
        "planted": len(results), "killed": len(results) - len(survivors), "survivors": [m.key for m in survivors],
        "killed_by": dict(Counter(m.killed_by.partition(":")[0] or "survived" for m in results).most_common()),
        "targets": dict(Counter(m.target for m in results)), "seconds": round(time.perf_counter() - start, 1),
    }  # fmt: skip
    print(json.dumps(found, indent=1))
    save(args.json, found | {"mutants": [asdict(m) for m in results]})
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
