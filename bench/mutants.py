"""Proof that the gradient suite catches mistakes: plant faults in the backward code, see which check finds each.

    python -m bench.mutants [--json FILE] [--jobs 2] [--only TEXT]

Two kinds of faults. Mechanical ones come from an AST pass over the backward functions of dufs_core.objective.ops and
the
backward half of the engines and their kernels: every operator, sign, comparison, constant, axis, accumulation and
choice is changed once (bench/mechanical.py). Chosen ones are meant to be hard: a dropped term, a missing bandwidth
path, the wrong side of a kink, one coordinate off by 1e-6, a float32 leak (bench/faults.py).

Every mutant runs in a forked child, the cheapest checks first, up to the first failure. The kernels run without
their compiler, which the faults do not depend on, with panels and blocks so small that a handful of rows and columns
makes several of each (bench/lanes.py).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import select
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.mechanical import TARGETS, mechanical, mutated_source
from bench.planting import Mutant, install

ENVIRONMENT = {"NUMBA_DISABLE_JIT": "1", "OPENBLAS_NUM_THREADS": "1"}
TIME_LIMIT = 600.0  # seconds for one mutant; running past it counts as survived
ELEMENTS_TOGETHER = 64  # a few draws are several chunks
MANY_ROWS, MANY_COLUMNS = (9, 14), (26, 29)
EXAMPLES = 24


def set_sizes() -> None:
    """Small panels and blocks and few rows for every mutant (and for the unchanged code that is tried first)."""
    from bench import lanes
    from dufs_core.gradcheck.suite import chain
    from dufs_core.objective import chain as objective

    lanes.install()
    objective._ELEMENTS_TOGETHER = ELEMENTS_TOGETHER
    chain.MANY_ROWS, chain.MANY_COLUMNS = MANY_ROWS, MANY_COLUMNS


def plan(mutant: Mutant) -> Iterator[tuple[str, str, str, int]]:
    """(kind, operation, engine, examples), the checks that could find the fault, the cheapest first."""
    from dufs_core.gradcheck.suite.registry import OPS, operations

    own = [o for o in operations() if not o.is_chain and mutant.target.endswith(f".{o.module}")]
    chains = [o for o in operations() if o.is_chain]
    engines = mutant.engines or ("reference",)
    for examples in (6, EXAMPLES):
        yield from (("gradient", o.name, OPS, examples) for o in own)
    for kind in ("precision", "statistical"):
        yield from ((kind, o.name, OPS, EXAMPLES) for o in own if kind == "precision" or o.expectation)
    some = [o for o in chains if "regularised" in o.name and ("max," in o.name or "median," in o.name)]
    for engine in engines:
        yield from (("gradient", o.name, engine, 4) for o in chains)
    for engine in engines:
        yield from (("statistical", o.name, engine, 0) for o in chains if o.expectation)
        if not own and not mutant.proof:
            yield from (("gradient", o.name, engine, EXAMPLES) for o in some)
        yield from (("precision", o.name, engine, EXAMPLES) for o in some)


def judge(mutant: Mutant) -> None:
    """Run the plan up to the first failure; fills in killed_by and message."""
    from dufs_core.backend import get_backend
    from dufs_core.gradcheck.suite import run as suite
    from dufs_core.gradcheck.suite.registry import engines, operations

    checks = {
        "gradient": suite.check_gradients,
        "precision": suite.check_precision,
        "statistical": suite.check_expectation,
    }
    by_name = {o.name: o for o in operations()}
    loaded = {name: engine.load() for name, engine in engines().items() if "numpy" in engine.backends}
    bk = get_backend("numpy")
    for kind, name, engine, examples in plan(mutant):
        result = checks[kind](bk, by_name.get(name), engine, loaded.get(engine), 0, examples, True)
        if result.failures:
            mutant.message = result.failures[0][:400]
            mutant.killed_by = f"{_how(kind, mutant.message)}: {name}" + (
                f" ({engine})" if kind != "update" and by_name[name].is_chain else ""
            )
            return


def _how(kind: str, message: str) -> str:
    if ", kink " in message:
        return "kink by name"
    if "differs from the plain formula" in message:
        return "value"
    if "complex step gives" in message:
        return "complex step"
    if "WRONG GRADIENT" in message and "comparisons disagree" in message and "backward gives" not in message:
        return "contract"
    if "Error: " in message and "WRONG" not in message:
        return "exception"
    return {"gradient": "five-point"}.get(kind, kind)


def unchanged(modules: set[str]) -> None:
    """Run the checks of the unchanged code in this process, so that all is loaded before any fork; they must pass."""
    for module, engines in {(t.module, t.engines) for t in TARGETS if t.module in modules}:
        mutant = Mutant(module, "", "", "", engines, proof="no fault")
        judge(mutant)
        if mutant.killed_by:
            raise RuntimeError(f"the unchanged code fails, {mutant.killed_by}: {mutant.message}")


@dataclass
class Trial:
    """A mutant on trial in a forked child, whose verdict comes back through a pipe."""

    mutant: Mutant
    child: int
    pipe: Any
    start: float

    def finish(self, late: bool = False) -> Mutant:
        """Read the verdict; a child that is late, or that died without one, has not found the fault."""
        mutant = self.mutant
        if late:
            os.kill(self.child, signal.SIGKILL)
        text = "" if late else self.pipe.read()
        self.pipe.close()
        os.waitpid(self.child, 0)
        mutant.killed_by, mutant.message = json.loads(text) if text else ("", "no verdict")
        mutant.proof = "" if mutant.killed_by else mutant.proof
        mutant.seconds = round(time.perf_counter() - self.start, 2)
        return mutant


def fork(mutant: Mutant, plant: Callable[[], None]) -> Trial:
    """Start a child that plants the fault and judges it. (This process has no threads: forking it is safe.)"""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            with open(os.devnull, "w") as quiet:
                os.dup2(quiet.fileno(), 2)
            plant()
            judge(mutant)
        except BaseException as error:  # not a verdict: the checks turn what the mutant raises into failures
            mutant.killed_by, mutant.message = "", f"not tried: {type(error).__name__}: {error}"[:400]
        with os.fdopen(write, "w") as pipe:
            json.dump([mutant.killed_by, mutant.message], pipe)
        os._exit(0)
    os.close(write)
    return Trial(mutant, child, os.fdopen(read), time.perf_counter())


def collect() -> list[tuple[Mutant, Callable[[], None]]]:
    """All mutants with the function that plants each."""
    from bench.equivalent import proof_of
    from bench.faults import chosen

    collected: list[tuple[Mutant, Callable[[], None]]] = []
    for mutant, where in mechanical():
        mutant.proof = proof_of(mutant)
        collected.append((mutant, _planter(mutant.target, where)))
    collected += [(mutant, plant) for mutant, plant in chosen()]
    return collected


def _planter(module: str, where: tuple[str, int, int]) -> Callable[[], None]:
    return lambda: install(module, mutated_source(module, where))


def run(only: str = "", jobs: int = 2, report: Callable[[Mutant], None] = lambda mutant: None) -> list[Mutant]:
    """Try every mutant whose key contains `only`; the unchanged code is tried first and must pass everything."""
    set_sizes()
    mutants = [(m, plant) for m, plant in collect() if only in m.key]
    unchanged({m.target for m, _ in mutants})
    waiting, running = deque(mutants), {}
    while waiting or running:
        while waiting and len(running) < jobs:
            trial = fork(*waiting.popleft())
            running[trial.pipe] = trial
        ready, _, _ = select.select(list(running), [], [], 5.0)
        late = [pipe for pipe, t in running.items() if time.perf_counter() - t.start > TIME_LIMIT and pipe not in ready]
        for pipe in ready + late:
            report(running.pop(pipe).finish(late=pipe in late))
    return [mutant for mutant, _ in mutants]


def summary(results: list[Mutant], seconds: float) -> dict[str, Any]:
    """The object that is written as JSON."""
    import numpy

    equivalent = [m for m in results if m.proof and not m.killed_by]
    survivors = [m for m in results if not m.killed_by and not m.proof]
    killers: dict[str, int] = {}
    targets: dict[str, dict[str, int]] = {}
    for m in results:
        how = m.killed_by.partition(":")[0] or ("equivalent" if m.proof else "survived")
        killers[how] = killers.get(how, 0) + 1
        row = targets.setdefault(m.target, {"planted": 0, "mechanical": 0, "chosen": 0, "killed": 0, "equivalent": 0})
        row["planted"] += 1
        row[m.origin] += 1
        row["killed"] += bool(m.killed_by)
        row["equivalent"] += m in equivalent
    return {
        "command": "python -m bench.mutants --json bench/results/mutants.json",
        "planted": len(results),
        "mechanical": sum(m.origin == "mechanical" for m in results),
        "chosen": sum(m.origin == "chosen" for m in results),
        "killed": sum(bool(m.killed_by) for m in results),
        "survivors": [asdict(m) for m in survivors],
        "equivalent": [asdict(m) for m in equivalent],
        "killed_by": dict(sorted(killers.items(), key=lambda item: -item[1])),
        "targets": targets,
        "seconds": round(seconds, 1),
        "versions": {"python": platform.python_version(), "numpy": numpy.__version__},
        "machine": {"cpu": _cpu(), "cores": os.cpu_count()},
        "mutants": [asdict(m) for m in results],
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def main(argv: list[str] | None = None) -> int:
    """Run, print one line per mutant and the table; 1 if anything survived."""
    parser = argparse.ArgumentParser(prog="python -m bench.mutants", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    parser.add_argument("--jobs", type=int, default=2, help="mutants tried at the same time (default 2)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only mutants whose description contains TEXT")
    args = parser.parse_args(argv)
    if any(os.environ.get(name) != value for name, value in ENVIRONMENT.items()):  # read when numpy and numba load
        os.execve(sys.executable, [sys.executable, "-m", "bench.mutants", *sys.argv[1:]], os.environ | ENVIRONMENT)

    start = time.perf_counter()

    def report(m: Mutant) -> None:
        verdict = m.killed_by or ("equivalent" if m.proof else "SURVIVED")
        print(f"{verdict:60.60} {m.seconds:6.1f} s  {m.key}", flush=True)

    results = run(args.only, args.jobs, report)
    found = summary(results, time.perf_counter() - start)
    print(f"\n{'target':36}{'planted':>9}{'mechanical':>12}{'chosen':>8}{'killed':>8}{'equivalent':>12}")
    for target, row in found["targets"].items():
        print(
            f"{target:36}{row['planted']:9}{row['mechanical']:12}{row['chosen']:8}{row['killed']:8}{row['equivalent']:12}"
        )
    print(f"\nkilled by: {found['killed_by']}")
    print(
        f"planted {found['planted']}, killed {found['killed']}, equivalent {len(found['equivalent'])}, "
        f"survivors {len(found['survivors'])}, {found['seconds']:.0f} s"
    )
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 1 if found["survivors"] else 0


if __name__ == "__main__":
    sys.exit(main())
