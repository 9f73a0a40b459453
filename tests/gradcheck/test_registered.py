"""Every registered operation, chain and engine, on awkward examples; and nothing is left unregistered."""

from __future__ import annotations

import ast
import pkgutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dufs_core.gradcheck
import dufs_core.objective.engines
import dufs_core.objective.ops
from dufs_core.backend import get_backend
from dufs_core.gradcheck.suite import run as suite
from dufs_core.gradcheck.suite.chain import RULES
from dufs_core.gradcheck.suite.registry import OPS, engines, operations
from dufs_core.objective.engines.choose import ENGINES
from dufs_core.objective.rules import QUANTILES

bk = get_backend("numpy")
loaded = {name: engine.load() for name, engine in engines().items() if "numpy" in engine.backends}
PAIRS = [(op, name) for op in operations() for name in [*loaded, OPS] if op.runs_on(name)]
IDS = [f"{op.name}-{name}" for op, name in PAIRS]


def test_every_operation_is_registered():
    modules = {module.name for module in pkgutil.iter_modules(dufs_core.objective.ops.__path__)}
    missing = modules - {op.module for op in operations()}
    assert not missing, f"not registered in dufs_core/gradcheck/suite/operations.py: {sorted(missing)}"


def test_every_engine_is_registered():
    missing = set(ENGINES) - set(engines())
    assert not missing, f"not registered in dufs_core/gradcheck/suite/chain.py: {sorted(missing)}"


def test_every_bandwidth_rule_is_registered():
    missing = (set(QUANTILES) | {"fixed"}) - set(RULES)
    assert not missing, f"not in RULES of dufs_core/gradcheck/suite/chain.py: {sorted(missing)}"
    assert {f"bandwidth[{rule}]" for rule in QUANTILES} <= {op.name for op in operations()}


def test_names_are_taken_once():
    names = [operation.name for operation in operations()]
    assert len(names) == len(set(names))


CHECKER = ("arrays", "trees", "differences", "arguments", "problem", "report", "compare", "locate", "check", "batches")
SUITE = ("entries", "examples", "formulas", "expectation", "operations", "chain", "registry", "run")
ORDER = [f"dufs_core.gradcheck.{name}" for name in (*CHECKER, *(f"suite.{name}" for name in SUITE))]


@pytest.mark.parametrize("module", ORDER)
def test_imports_go_one_way_within_the_folder(module):
    """Each module names only those above it, at its top: neither in a function nor as a text that is imported."""
    path = Path(dufs_core.gradcheck.__file__).parent.joinpath(*module.split(".")[2:]).with_suffix(".py")
    tree = ast.parse(path.read_text("utf-8"))
    found = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert all(node in tree.body for node in found), "an import inside a function"
    named = {f"{node.module}.{alias.name}" for node in found for alias in node.names} | {n.module for n in found}
    named |= {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    assert not named & set(ORDER[ORDER.index(module) :])


@pytest.mark.parametrize(("operation", "engine"), PAIRS, ids=IDS)
def test_gradient(operation, engine):
    """Five-point, complex step, value and kinks by name, over the first awkward examples of seed 1."""
    result = suite.check_gradients(bk, operation, engine, loaded.get(engine), 1, 12 if engine == OPS else 4)
    assert not result.failures, result.failures[0]
    assert result.worst_relative_error < 1e-9


@pytest.mark.parametrize("engine", [OPS, *loaded])
@settings(max_examples=40)
@given(data=st.data())
def test_gradient_anywhere(engine, data):
    """Hypothesis chooses operation, seed and kind; a failure shrinks to the simplest of them."""
    operation = data.draw(st.sampled_from([op for op, name in PAIRS if name == engine]))
    seed, index = data.draw(st.integers(0, 2**31)), data.draw(st.integers(0, 87))
    result = suite.Result(operation.name, engine, "gradient", 1)
    suite._one_example(bk, operation, loaded.get(engine), seed, index, result)
    assert not result.failures, result.failures[0]


@pytest.mark.parametrize(("operation", "engine"), PAIRS, ids=IDS)
def test_expectation(operation, engine):
    if operation.expectation is None:
        return
    result = suite.check_expectation(bk, operation, engine, loaded.get(engine), 1, 0)
    assert not result.failures, result.failures[0]


def test_kinks_are_rare_and_redrawn():
    """The generators keep their distance: nearly every first draw can be judged."""
    redrawn = judged = 0
    for operation, engine in PAIRS:
        if engine == OPS:
            result = suite.check_gradients(bk, operation, engine, None, 2, 11)
            redrawn, judged = redrawn + result.redrawn, judged + 11
    assert redrawn < 0.1 * judged


@pytest.mark.parametrize("engine", ["reference", "dense"])
def test_gradient_in_chunks_and_threads(engine, monkeypatch):
    """A few draws made several chunks, or spread over three threads."""
    from dufs_core.objective import chain as objective
    from dufs_core.objective.engines import cpu_dense as dense

    monkeypatch.setattr(objective, "_ELEMENTS_TOGETHER", 64)
    monkeypatch.setattr(dense, "_WORTH_A_THREAD", 1)
    evaluate = dense.DenseEngine(3) if engine == "dense" else loaded[engine]
    chains = [op for op in operations() if op.runs_on(engine) and "regularised, max" in op.name]
    assert chains
    for chain in chains:
        result = suite.check_gradients(bk, chain, engine, evaluate, 5, 4)
        assert not result.failures, result.failures[0]
