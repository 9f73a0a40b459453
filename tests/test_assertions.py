"""Every test can fail: an assertion is reachable from it, and none holds whatever is computed. Read from the source."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent

import pytest

HERE = Path(__file__).parent
# What checks without the word assert: pytest's own, and scikit-learn's checks of estimators.
CHECKS = {"raises", "warns", "deprecated_call", "fail", "AssertionError", "parametrize_with_checks"}
# Functions and methods whose answer is all that they do.
ANSWERS = {"all", "allclose", "any", "array_equal", "equals", "exists", "is_dir", "is_file", "isclose", "issubset"}


# --- assertions that hold whatever is computed


def last_name(node: ast.expr) -> str:
    return getattr(node, "attr", getattr(node, "id", ""))


def same(left: ast.expr, right: ast.expr) -> bool:
    """Whether two expressions are one and the same; two calls need not give the same."""
    calls = any(isinstance(node, ast.Call) for node in ast.walk(left))
    return not calls and ast.dump(left) == ast.dump(right)


def always_true(test: ast.expr) -> bool:
    match test:
        case ast.Constant(value=value):
            return bool(value)
        case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts) | ast.Dict(keys=parts):
            return bool(parts)
        case ast.ListComp(generators=loops) | ast.SetComp(generators=loops) | ast.DictComp(generators=loops):
            return not any(loop.ifs for loop in loops)
        case ast.GeneratorExp() | ast.Lambda() | ast.JoinedStr():
            return True
        case ast.Attribute():  # a method where its answer was meant
            return test.attr in ANSWERS
        case ast.BoolOp(op=ast.Or()):
            return any(map(always_true, test.values))
        case ast.Compare(left=left, ops=[ast.Eq() | ast.Is() | ast.LtE() | ast.GtE()], comparators=[right]):
            return same(left, right)
        case ast.Call(args=[left, right, *_]):
            return last_name(test.func) in ANSWERS and same(left, right)
    return False


def cannot_fail(statement: ast.AST) -> bool:
    """Whether a statement looks like a check but is none."""
    match statement:
        case ast.Assert(msg=ast.Constant(value=value)) if not isinstance(value, str):
            return True  # a comma where == was meant
        case ast.Assert():
            return always_true(statement.test)
        case ast.Expr(value=ast.Call(func=function, args=[left, right, *_])) if "assert" in last_name(function):
            return same(left, right)
        case ast.Expr(value=ast.Call(func=function)):
            return last_name(function) in ANSWERS
    return False


# --- assertions that a test reaches


@dataclass(eq=False)
class Scope:
    """A module or a function: whether it asserts by itself, what it names, and the functions that it defines."""

    outer: Scope | None = None
    is_fixture: bool = False
    asserts: bool = False
    variables: set[str] = field(default_factory=set)  # and parameters: these hide functions of the same name
    names: set[tuple[str, str]] = field(default_factory=set)  # that are read; what stands before the dot comes first
    functions: dict[str, Scope] = field(default_factory=dict)
    methods: dict[str, Scope] = field(default_factory=dict)  # of its classes
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)  # name: module, and the name there
    idle: list[int] = field(default_factory=list)  # lines of assertions that cannot fail


def read(node: ast.AST, scope: Scope, functions: dict[str, Scope]) -> None:
    """Note what stands below a node: functions in `functions`, all else in the scope."""
    for child in ast.iter_child_nodes(node):
        into, defined = scope, functions
        if isinstance(child, ast.stmt) and cannot_fail(child):
            scope.idle.append(child.lineno)
        match child:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                decorators = [getattr(d, "func", d) for d in child.decorator_list]
                into = Scope(scope, any(last_name(d) == "fixture" for d in decorators), idle=scope.idle)
                into.variables = {a.arg for a in ast.walk(child.args) if isinstance(a, ast.arg)}
                functions[child.name] = into
                defined = into.functions
            case ast.ClassDef():
                defined = scope.methods
            case ast.Assert():
                scope.asserts = True
            case ast.Name(id=name, ctx=ast.Load()):
                scope.names.add(("", name))
            case ast.Name(id=name):
                scope.variables.add(name)
            case ast.Attribute(value=before, attr=name):
                scope.names.add((getattr(before, "id", "?"), name))
            case ast.Import(names=found):
                scope.imports |= {a.asname or a.name: (a.name, "") for a in found}
            case ast.ImportFrom(module=str(module), names=found):
                scope.imports |= {a.asname or a.name: (module, a.name) for a in found}
        read(child, into, defined)


class Suite:
    """Test files, each a scope: {path: text}."""

    def __init__(self, texts: dict[Path, str]) -> None:
        self.modules = {path: Scope() for path in texts}
        for path, scope in self.modules.items():
            read(ast.parse(texts[path]), scope, scope.functions)
        self.by_name = {path.stem: scope for path, scope in self.modules.items()}
        shared = [scope.functions for path, scope in self.modules.items() if path.stem == "conftest"]
        self.shared = {name: f for functions in shared for name, f in functions.items() if f.is_fixture}

    def without_assertion(self) -> list[str]:
        """The tests from which no assertion is reachable."""
        return [
            f"{path}::{name}"
            for path, module in self.modules.items()
            for name, found in (module.functions | module.methods).items()
            if path.stem.startswith("test_") and name.startswith("test") and not self.reaches(found, set())
        ]

    def idle_assertions(self) -> list[str]:
        """The lines with assertions that cannot fail."""
        return [f"{path}:{line}" for path, module in self.modules.items() for line in module.idle]

    def reaches(self, scope: Scope, seen: set[Scope]) -> bool:
        """Whether a function asserts, or names one that does: it may be handed on to be called."""
        if scope in seen:
            return False
        seen.add(scope)
        if scope.is_fixture:  # what it gives may be called; what it asserts itself is not about the test
            return any(self.reaches(found, seen) for found in scope.functions.values())
        if scope.asserts:
            return True
        for before, name in scope.names:
            found = self.meant(scope, before, name)
            if found is None and (name in CHECKS or name.startswith("assert_")):
                return True
            if found is not None and self.reaches(found, seen):
                return True
        return False

    def meant(self, scope: Scope | None, before: str, name: str) -> Scope | None:
        """The function of these files that is meant by a name, behind a dot or not, if it is one."""
        is_variable = False
        while scope is not None:
            module = self.imported_module(scope, before)
            if module is not None:
                return module.functions.get(name)
            is_variable = is_variable or name in scope.variables
            found = scope.methods.get(name) if before else scope.functions.get(name) or self.imported(scope, name)
            if found is not None and (found.is_fixture or not is_variable):
                return found
            scope = scope.outer
        return self.shared.get(name) if is_variable else None

    def imported_module(self, scope: Scope, name: str) -> Scope | None:
        module, _ = scope.imports.get(name, ("", ""))
        return self.by_name.get(module.removeprefix("tests."))

    def imported(self, scope: Scope, name: str) -> Scope | None:
        module = self.imported_module(scope, name)
        return None if module is None else module.functions.get(scope.imports[name][1])


@pytest.fixture(scope="module")
def suite():
    return Suite({path.relative_to(HERE): path.read_text("utf-8") for path in sorted(HERE.rglob("*.py"))})


def test_every_test_asserts_something(suite):
    assert not suite.without_assertion()


def test_no_assertion_holds_whatever_is_computed(suite):
    assert not suite.idle_assertions()


# --- the check itself

HELPERS = """
    import pytest

    def close(a, b):
        assert a == b

    def compute(x):
        return x

    @pytest.fixture
    def compare():
        def equal(a, b):
            assert a == b
        return equal

    @pytest.fixture
    def checked():
        assert compute(1) == 1
"""
TESTS = """
    import conftest
    import numpy as np
    import pytest
    from conftest import close, compute

    def repeat(x):
        return repeat(x - 1) if x else compute(x)

    def test_vacuous_of_a_call(): compute(1)
    def test_vacuous_of_a_module(): conftest.compute(1)
    def test_vacuous_of_a_helper_that_calls_itself(): repeat(3)
    def test_vacuous_of_a_method(): compute(1).close(1, 1)
    def test_vacuous_of_a_fixture_that_asserts(checked): print(checked)

    def test_vacuous_of_a_parameter(close):
        close(1, 1)

    def test_vacuous_of_a_variable():
        close = compute
        close(1)

    def test_vacuous_of_a_function_nobody_calls():
        def check():
            assert compute(1) == 1

    class TestClass:
        def check(self): close(1, 1)
        def test_vacuous_in_a_class(self): compute(1)
        def test_of_a_method(self): self.check()

    def test_of_an_assertion(): assert compute(1) == 1
    def test_of_numpy(): np.testing.assert_array_equal(compute(1), 1)
    def test_of_a_helper(): close(compute(1), 1)
    def test_of_a_module(): conftest.close(compute(1), 1)
    def test_of_a_fixture_that_gives_a_function(compare): compare(compute(1), 1)

    def test_of_an_exception():
        with pytest.raises(ValueError):
            compute(1)

    def test_of_a_callback():
        def check(x):
            assert x == 1
        [*map(check, [compute(1)])]
"""


def test_vacuous_tests_are_found():
    planted = Suite({Path("conftest.py"): dedent(HELPERS), Path("test_planted.py"): dedent(TESTS)})
    names = [word.partition("(")[0] for word in TESTS.split() if word.startswith("test_vacuous")]
    assert len(names) == 9
    assert sorted(planted.without_assertion()) == sorted(f"test_planted.py::{name}" for name in names)


# Texts, never run as tests: the check has to find every one of them.
@pytest.mark.parametrize(
    "statement",
    [
        "assert [x]", "assert (x, 1)", "assert {x: 1}", "assert [f(x) for x in y]", "assert (f(x) for x in y)",
        "assert f'{x}'", "assert True", "assert x or [1]", "assert x == x", "assert x[0].y >= x[0].y",
        "assert len(x), 3", "assert np.array_equal(x, x)", "assert (x == y).all", "np.allclose(x, y)",
        "assert_array_equal(x.y, x.y)",
    ],
)  # fmt: skip
def test_what_cannot_fail_is_found(statement):
    planted = Suite({Path("test_planted.py"): f"def test_planted():\n    {statement}\n"})
    assert planted.idle_assertions() == ["test_planted.py:2"]


@pytest.mark.parametrize(
    "statement",
    [
        "assert x", "assert []", "assert [x for x in y if x]", "assert x == y", "assert f(x) == f(x)", "assert x < x",
        "assert x, 'why'", "assert x, f'{x}'", "assert x or y", "assert np.array_equal(x, y)", "assert (x == y).all()",
        "assert_array_equal(f(x), f(x))", "f(x, x)",
    ],
)  # fmt: skip
def test_what_can_fail_is_left_alone(statement):
    planted = Suite({Path("test_planted.py"): f"def test_planted():\n    {statement}\n"})
    assert planted.idle_assertions() == []
