"""The mechanical mutants: an AST pass over the backward functions that changes one thing at a time."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from bench.planting import Mutant, source_of


@dataclass(frozen=True)
class Target:
    """Functions whose backward code is mutated."""

    module: str
    functions: tuple[str, ...]
    engines: tuple[str, ...] = ()  # the engines that run this code; () for an operation
    after: str = ""  # only what follows the first line of the function with this text


TARGETS = (
    *(
        Target(f"dufs_core.objective.ops.{name}", ("backward",))
        for name in ("gates", "gram", "distances", "gaussian", "normalise", "regulariser", "loss", "score")
    ),
    Target(
        "dufs_core.baselines.concrete_network",
        ("select_backward", "affine_backward", "leaky_backward", "error_backward"),
    ),
    Target("dufs_core.baselines.concrete_network", ("value_and_grad",), after="error_forward("),
    Target("dufs_core.objective.ops.bandwidth", ("backward", "add_entries")),
    Target("dufs_core.objective.ops.power", ("backward", "backward_half")),
    Target("dufs_core.objective.chain", ("_stacked_scores_and_grad",), ("reference",), after="_forward("),
    Target("dufs_core.objective.engines.cpu_dense", ("_scores_and_grad",), ("dense",), after="len(RECORD)"),
    Target("dufs_core.kernels.steps", ("_powers_and_derivative",), ("dense",)),
    Target(
        "dufs_core.kernels.panels", ("row_terms", "backward", "finish", "quadratic_forms", "column_dots"), ("dense",)
    ),
    Target("dufs_core.kernels.streaming", ("_slopes", "_dots"), ("streaming",)),
    Target("dufs_core.objective.engines.cpu_streaming", ("through_bandwidth",), ("streaming",)),
)


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
        n.value = 2 * n.value or 1.0 if isinstance(n.value, float) else n.value + 1

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


def _left_out(lines: list[str], line: int) -> bool:
    """Whether no gradient of one thread depends on the line.

    The share of isolated rows is a statistic; whether to wait for other threads, and where a thread's share of a copy
    starts, show with several threads only (tests/test_kernels.py compares numbers of threads).
    """
    text, following = lines[line - 1].strip(), lines[line].strip() if line < len(lines) else ""
    waits = text.startswith("if ") and following.startswith("wait_for_all(")
    return waits or "isolated" in text or "range(start * " in text


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
        if line > start and id(node) not in skipped and not _left_out(lines, line):
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


def mutated_source(module: str, where: tuple[str, int, int]) -> str:
    """The module's source with one change."""
    function, position, number = where
    tree = ast.parse(source_of(module))
    node = list(ast.walk(function_of(tree, function)))[position]
    list(changes(node))[number](node)
    return ast.unparse(ast.fix_missing_locations(tree))
