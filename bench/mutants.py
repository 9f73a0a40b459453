"""Proof that the gradient suite catches mistakes: plant faults in the backward code, see which check finds each.

    python -m bench.mutants [--json FILE] [--jobs 2] [--only TEXT]

Two kinds of faults. Mechanical ones come from an AST pass over the backward functions of dufs_core.ops and the
backward half of the engines and their kernels: every operator, sign, comparison, constant, axis, accumulation and
choice is changed once (lines that compute only the share of isolated rows, a statistic, are left out). Chosen ones
are meant to be hard: a dropped term, a missing bandwidth path, the wrong side of a kink, one coordinate off by
1e-6, a float32 leak (bench/faults.py).

Every mutant runs in a forked child, the cheapest checks first, up to the first failure. The kernels run without
their compiler, which the faults do not depend on, in tiles of 4 rows and chunks of 64 elements, so that a handful of
rows and draws makes several of each.
"""

from __future__ import annotations

import argparse
import ast
import copy
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
from functools import cache
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

ENVIRONMENT = {"NUMBA_DISABLE_JIT": "1", "OPENBLAS_NUM_THREADS": "1"}
TIME_LIMIT = 600.0  # seconds for one mutant; running past it counts as survived
TILE = 4
ELEMENTS_TOGETHER = 64  # a few draws are several chunks
EXAMPLES = 24


@dataclass(frozen=True)
class Target:
    """Functions whose backward code is mutated."""

    module: str
    functions: tuple[str, ...]
    engines: tuple[str, ...] = ()  # the engines that run this code; () for an operation
    after: str = ""  # only what follows the first line of the function with this text


TARGETS = (
    *(
        Target(f"dufs_core.ops.{name}", ("backward",))
        for name in ("gates", "gram", "distances", "gaussian", "normalise", "regulariser", "loss", "score")
    ),
    *(Target(f"dufs_core.ops.{name}", ("backward",)) for name in ("concrete", "affine", "leaky_relu", "squared_error")),
    Target("dufs_core.baselines.concrete_network", ("value_and_grad",), after="squared_error.forward("),
    Target("dufs_core.ops.bandwidth", ("backward", "add_entries")),
    Target("dufs_core.ops.power", ("backward", "backward_half")),
    Target("dufs_core.objective", ("_stacked_scores_and_grad",), ("operations",), after="_forward("),
    Target("dufs_core.engines.dense", ("_scores_and_gram_gradients",), ("dense",), after="sweeps.score"),
    Target("dufs_core.engines.dense", ("_scores_and_grad",), ("dense",), after="self._scores_and_gram_gradients("),
    Target("dufs_core.kernels.sweeps", ("score", "row_terms", "backward", "finish"), ("dense",)),
)


@dataclass
class Mutant:
    """One fault and what became of it."""

    target: str  # module
    function: str
    origin: str  # "mechanical" or "chosen"
    fault: str
    engines: tuple[str, ...]
    line: int = 0
    killed_by: str = ""
    message: str = ""
    proof: str = ""  # of equivalence
    seconds: float = 0.0

    @property
    def key(self) -> str:
        return f"{self.target}.{self.function}: {self.fault}"


# --- the AST pass ---------------------------------------------------------------------------------------------------

_OPERATORS: dict[type, type] = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}
_COMPARISONS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
}  # fmt: skip


def changes(node: ast.AST) -> Iterator[Callable[[Any], None]]:
    """What the pass does to one node: functions that change a copy of it in place."""

    def operator(n: Any) -> None:
        n.op = _OPERATORS[type(n.op)]()

    def remove_sign(n: Any) -> None:
        n.op = ast.UAdd()

    def other_axis(n: Any) -> None:
        n.operand = ast.Constant(3 - n.operand.value)

    def compare(n: Any) -> None:
        n.ops[0] = _COMPARISONS[type(n.ops[0])]()

    def constant(n: Any) -> None:
        n.value = 2 * n.value if isinstance(n.value, float) else n.value + 1

    def swap_operands(n: Any) -> None:
        n.left, n.right = n.right, n.left

    def swap_choice(n: Any) -> None:
        n.body, n.orelse = n.orelse, n.body

    def swap_where(n: Any) -> None:
        n.args[1], n.args[2] = n.args[2], n.args[1]

    def swap_index(n: Any) -> None:
        n.elts[-2], n.elts[-1] = n.elts[-1], n.elts[-2]

    def drop(n: Any) -> None:
        n.op, n.value = ast.Add(), ast.Constant(0)

    def axis_pair(n: ast.AST) -> bool:
        return isinstance(n, ast.UnaryOp) and isinstance(n.operand, ast.Constant) and n.operand.value in (1, 2)

    if isinstance(node, ast.BinOp):
        if type(node.op) in _OPERATORS:
            yield operator
        elif isinstance(node.op, ast.MatMult):
            yield swap_operands
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield other_axis if axis_pair(node) else remove_sign
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARISONS:
        yield compare
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield constant
    elif isinstance(node, ast.IfExp):
        yield swap_choice
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "where":
        yield swap_where
    elif isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Load) and len(node.elts) >= 2:
        if all(isinstance(e, ast.Name) for e in node.elts[-2:]):
            yield swap_index
    elif isinstance(node, ast.AugAssign):
        if type(node.op) in _OPERATORS:
            yield operator
        yield drop


def function_of(tree: ast.AST, name: str) -> ast.FunctionDef:
    return next(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == name)


def sites(tree: ast.Module, function: str, after: str, source: str) -> Iterator[tuple[int, int, int]]:
    """(position of the node in the function's walk, number of the change, line) of every possible change."""
    definition = function_of(tree, function)
    lines = source.splitlines()
    start = definition.body[0].end_lineno or 0  # the docstring
    if after:
        inside = range(definition.lineno, (definition.end_lineno or 0) + 1)
        start = next(i for i in inside if after in lines[i - 1])
    skipped = {id(n) for d in definition.decorator_list for n in ast.walk(d)}
    calls = [n for n in ast.walk(definition) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
    skipped |= {id(a) for call in calls if call.func.attr == "reshape" for a in call.args}  # -1 is no axis there
    skipped |= {id(n) for child in ast.walk(definition) if isinstance(child, ast.UnaryOp) for n in [child.operand]
                if isinstance(n, ast.Constant)}  # fmt: skip
    for position, node in enumerate(ast.walk(definition)):
        line = getattr(node, "lineno", 0)
        if line > start and id(node) not in skipped and "isolated" not in lines[line - 1]:
            for number, _ in enumerate(changes(node)):
                yield position, number, line


def mechanical() -> list[tuple[Mutant, tuple[str, int, int]]]:
    """Every mutant of the pass, with where to apply it."""
    found = []
    for target in TARGETS:
        source = source_of(target.module)
        tree = ast.parse(source)
        seen: dict[tuple[str, str], int] = {}
        for function in target.functions:
            for position, number, line in sites(tree, function, target.after, source):
                node = list(ast.walk(function_of(tree, function)))[position]
                changed = copy.deepcopy(node)
                list(changes(changed))[number](changed)
                before, now = ast.unparse(node), ast.unparse(ast.fix_missing_locations(changed))
                if before == now:
                    continue
                fault = f"{before}  ->  {now}   in   {source.splitlines()[line - 1].strip()}"
                seen[function, fault] = count = seen.get((function, fault), 0) + 1
                fault += f"   ({count})" if count > 1 else ""
                mutant = Mutant(target.module, function, "mechanical", fault, target.engines, line)
                found.append((mutant, (function, position, number)))
    return found


@cache
def source_of(module: str) -> str:
    return Path(str(import_module(module).__file__)).read_text(encoding="utf-8")


def mutated_source(module: str, where: tuple[str, int, int]) -> str:
    """The module's source with one change."""
    function, position, number = where
    tree = ast.parse(source_of(module))
    node = list(ast.walk(function_of(tree, function)))[position]
    list(changes(node))[number](node)
    return ast.unparse(ast.fix_missing_locations(tree))


# --- planting -------------------------------------------------------------------------------------------------------


def install(module: str, source: str) -> None:
    """Give the loaded module the functions of another source, so that everyone who calls them meets the fault."""
    loaded = import_module(module)
    replacement = ModuleType(module)
    replacement.__dict__["__file__"] = loaded.__file__
    exec(compile(source, f"<mutant of {module}>", "exec"), replacement.__dict__)
    for name, value in replacement.__dict__.items():
        if getattr(value, "__module__", None) != module:
            continue
        if isinstance(value, type):
            for method, body in vars(value).items():
                if isinstance(body, FunctionType) and body.__code__.co_filename.startswith("<mutant"):
                    setattr(getattr(loaded, name), method, _in_module(body, loaded))
        elif isinstance(value, FunctionType):
            old, rebound = loaded.__dict__.get(name), _in_module(value, loaded)
            loaded.__dict__[name] = rebound
            for other in list(sys.modules.values()):  # also where it was imported by name
                if getattr(other, "__name__", "").startswith("dufs_core") and other is not loaded:
                    for alias, thing in list(vars(other).items()):
                        if thing is old and old is not None:
                            setattr(other, alias, rebound)


def _in_module(function: FunctionType, module: ModuleType) -> FunctionType:
    """The function with the names of another module."""
    return FunctionType(
        function.__code__, module.__dict__, function.__name__, function.__defaults__, function.__closure__
    )


def set_sizes() -> None:
    """Small tiles, small chunks and few rows for every mutant (and for the unchanged code that is tried first)."""
    from dufs_core import objective
    from dufs_core.engines import dense
    from dufs_core.gradcheck import chain
    from dufs_core.kernels import sweeps

    sweeps.TILE = TILE
    objective._ELEMENTS_TOGETHER = dense._ELEMENTS_TOGETHER = ELEMENTS_TOGETHER
    chain.MANY_ROWS = (9, 14)


# --- killing --------------------------------------------------------------------------------------------------------


def plan(mutant: Mutant) -> Iterator[tuple[str, str, str, int]]:
    """(kind, operation, engine, examples), the checks that could find the fault, the cheapest first."""
    from dufs_core.gradcheck.registry import OPS, operations

    own = [o for o in operations() if not o.is_chain and mutant.target.endswith(f".{o.module}")]
    chains = [o for o in operations() if o.is_chain]
    engines = mutant.engines or ("operations",)
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
    from dufs_core.gradcheck import suite
    from dufs_core.gradcheck.registry import engines, operations

    checks = {
        "gradient": suite.check_gradients,
        "precision": suite.check_precision,
        "statistical": suite.check_expectation,
    }
    by_name = {o.name: o for o in operations()}
    loaded = {name: engine.load() for name, engine in engines().items() if "numpy" in engine.backends}
    bk = get_backend("numpy")
    for kind, name, engine, examples in plan(mutant):
        result = checks[kind](bk, by_name[name], engine, loaded.get(engine), 0, examples, True)
        if result.failures:
            mutant.message = result.failures[0][:400]
            mutant.killed_by = f"{_how(kind, mutant.message)}: {name}" + (
                f" ({engine})" if by_name[name].is_chain else ""
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
    from bench.faults import chosen, proof_of

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
