"""The command: table, JSON, exit codes, and that it is light."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from dufs_core.cli import gradcheck as command
from dufs_core.cli.main import main
from dufs_core.gradcheck.suite import registry
from dufs_core.gradcheck.suite.entries import Example, Operation
from dufs_core.objective.ops import gaussian


def run(*argv):
    return main(["gradcheck", *map(str, argv)])


def test_table_and_json(tmp_path, capsys):
    file = tmp_path / "gradcheck.json"
    assert run("--only", "ga", "--examples", 3, "--seed", 4, "--json", file) == 0
    out = capsys.readouterr().out
    for word in ("operation", "engine", "worst case", "gates[batch]", "gaussian", "0 failed"):
        assert word in out
    result = json.loads(file.read_text())
    assert result["failures"] == 0
    names = {c["name"] for c in result["checks"]}
    assert {"gates[batch]", "gates[sample]", "gaussian"} <= names
    assert {c["kind"] for c in result["checks"]} == {"gradient"}
    for check in result["checks"]:
        assert {"name", "engine", "kind", "examples", "worst_relative_error", "worst_case", "seconds"} <= set(check)
        assert check["examples"] > 0
        assert check["kind"] != "gradient" or check["worst_relative_error"] < 1e-9


def test_statistical_checks(capsys):
    chain = "chain[regularised, fixed, batch]"
    assert run("--engine", "reference", "--only", chain, "--kind", "statistical", "--examples", 1) == 0
    out = capsys.readouterr().out
    assert "standard errors from the closed form" in out
    assert "1 checks, 40 examples, 0 failed" in out


def test_a_wrong_gradient_makes_it_fail(tmp_path, capsys, monkeypatch):
    right = gaussian.backward
    monkeypatch.setattr(gaussian, "backward", lambda bk, saved, dK: tuple(g * 1.000001 for g in right(bk, saved, dK)))
    file = tmp_path / "gradcheck.json"
    assert run("--only", "gaussian", "--kind", "gradient", "--examples", 2, "--json", file) == 1
    out = capsys.readouterr().out
    assert "FAILED" in out
    assert "WRONG GRADIENT" in out
    assert "worst coordinate" in out
    assert json.loads(file.read_text())["failures"] == 1


def test_a_backward_that_raises_makes_it_fail(capsys, monkeypatch):
    def broken(bk, saved, dK):
        raise IndexError("no such entry")

    monkeypatch.setattr(gaussian, "backward", broken)
    assert run("--only", "gaussian", "--examples", 1) == 1
    assert "IndexError: no such entry" in capsys.readouterr().out


def test_a_gradient_of_another_precision_is_caught(capsys, monkeypatch):
    right = gaussian.backward
    monkeypatch.setattr(gaussian, "backward", lambda bk, s, dK: tuple(g.astype(np.float64) for g in right(bk, s, dK)))
    assert run("--only", "gaussian", "--kind", "gradient") == 1
    assert "the gradient is float64, although the input went in as float32" in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv", [("--engine", "nonsense"), ("--examples", 0), ("--backend", "cupy"), ("--seed", -1)], ids=str
)
def test_what_is_not_there_is_exit_2(argv, capsys, monkeypatch):
    if argv[0] == "--backend":
        from dufs_core.errors import BackendUnavailableError

        def unavailable(name):
            raise BackendUnavailableError(name, "there is no device")

        monkeypatch.setattr(command, "get_backend", unavailable)
    assert run(*argv, "--only", "gaussian") == 2
    assert capsys.readouterr().err.startswith("dufs-core: ")


def test_engine_chooses_the_chains(capsys):
    assert run("--engine", "reference", "--only", "chain[regularised, fixed, batch]", "--examples", 1) == 0
    out = capsys.readouterr().out
    assert " reference " in out
    assert "small" not in out
    assert "dense" not in out


def test_a_new_operation_is_covered_by_listing_it(capsys, monkeypatch):
    """What someone adding an operation does; here with a mistake, which the command finds."""

    def example(bk, evaluate, rng, index):
        x = rng.uniform(1, 2, 3)
        return Example(lambda x: np.log(x), lambda x, w: w / x**2, (x,), "some numbers")

    monkeypatch.setattr(registry, "OPERATIONS", (*registry.OPERATIONS, Operation("logarithm", "logarithm", example)))
    assert run("--only", "logarithm", "--kind", "gradient") == 1
    assert "logarithm at some numbers" in capsys.readouterr().out


def test_light_and_without_hypothesis():
    """The command runs where the test extra is not installed, and imports nothing heavy before it needs it."""
    code = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "import dufs_core.cli.gradcheck\n"
        "assert not {'numba', 'cupy', 'sklearn'} & set(sys.modules)\n"
        "from dufs_core.cli.main import main\n"
        "sys.exit(main(['gradcheck', '--only', 'loss', '--examples', '2']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
