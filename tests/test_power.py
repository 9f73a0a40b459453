"""bench.power: one smoke test."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("bench.power", reason="bench is not beside the tests")
from bench import power


@pytest.fixture
def small(monkeypatch):
    """One or two cells of every simulated part, of few rows and columns."""
    monkeypatch.setattr(power, "GRID", {"weak 0.5": (60,), "rare 5%": (60,)})
    monkeypatch.setattr(power, "CURVE", ("ring",))
    monkeypatch.setattr(power, "CURVE_ROWS", (100,))
    monkeypatch.setattr(power, "QUICK_MILLION", 80)
    monkeypatch.setattr(power, "NUISANCE", {"normal": power.NUISANCE["normal"]})
    monkeypatch.setattr(power, "QUICK_DESIGNS", ("groups",))
    monkeypatch.setattr(power, "DESIGNS", {"groups": 60})
    monkeypatch.setattr(power, "GROUP_ROWS", (10, 20))
    monkeypatch.setattr(power, "COLUMNS", dict.fromkeys(power.COLUMNS, 25))


def test_a_slice_of_every_simulated_part(tmp_path, capsys, small):
    file = tmp_path / "found.json"
    simulated = [part for part in power.PARTS if part != "real"]
    argv = ["--quick", "--only", *simulated, "--sets", "1", "--json", str(file)]
    power.main(argv)
    records = json.loads(file.read_text())["records"]
    assert [record["part"] for record in records] == ["grid"] * 2 + ["curve", "million"] + ["guarantee"] * 2
    assert "| ring | 100 | 1 | 1.00 " in file.with_suffix(".md").read_text()
    assert file.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    power.main(argv)  # everything is there
    assert "{" not in capsys.readouterr().out


@pytest.mark.parametrize("arrangement", power.ARRANGEMENTS)
def test_an_arrangement_holds_every_row_once(arrangement):
    classes = np.random.default_rng(0).integers(3, size=50)
    order = power.arranged(np.random.default_rng(1), classes, arrangement)
    assert sorted(order) == list(range(50))


def test_formulas_put_structured_columns_first():
    X = np.random.default_rng(0).normal(size=(400, 30)).astype(np.float32)
    X[:, :5] += np.repeat([[-2], [2]], 200, axis=0)
    for name, scores in power.formulas(X).items():
        assert name in power.FORMULAS
        assert power.top_r(scores, np.arange(30) < 5) == 1
