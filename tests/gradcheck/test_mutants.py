"""The mutation run is complete and not stale: enough faults everywhere, and every one can still be planted."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import dufs_core.objective.ops
from dufs_core.objective.engines.choose import ENGINES

mutants = pytest.importorskip("bench.mutants", reason="bench is not beside the tests")


def test_enough_faults_everywhere():
    """At least 4 for each operation, 5 for each engine, 100 in all; none stale."""
    planted = [mutant for mutant, _ in mutants.chosen()]
    assert len(planted) >= 100
    by_target = Counter(m.target for m in planted)
    for module in pkgutil.iter_modules(dufs_core.objective.ops.__path__):
        assert by_target[f"dufs_core.objective.ops.{module.name}"] >= 4, f"too few faults in {module.name}"
    by_engine = Counter(engine for m in planted for engine in m.engines)
    for engine in ENGINES:
        assert by_engine[engine] >= 5, f"too few faults in the engine {engine}"


@pytest.mark.parametrize("only", ["objective.ops.loss.backward: d", "kernels.sparse.gram: centring"])
def test_a_few_are_killed(only):
    root = Path(mutants.__file__).parents[1]
    command = [sys.executable, "-m", "bench.mutants", "--only", f"dufs_core.{only}"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"survivors": []' in done.stdout
