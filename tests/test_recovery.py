"""bench.recovery: what is measured, kept and printed."""

import argparse
import json
import warnings
from pathlib import Path

import numpy as np
import pytest

from bench import recovery
from dufs_core import GatedLaplacian
from dufs_core.errors import SelectionWarning
from dufs_core.selection.gated_selector import GatedSelector


@pytest.fixture
def few(monkeypatch):
    """Fits of a few steps, and how often one was made."""
    fits, fit = [], GatedSelector.fit

    def counted(self, X, y=None):
        fits.append(X.shape)
        of_gates = {"n_draws": 2, "max_runs": 1, "max_iter": 2} if isinstance(self, GatedLaplacian) else {}
        return fit(self.set_params(**of_gates), X, y)

    monkeypatch.setattr(GatedSelector, "fit", counted)
    return fits


def test_what_cannot_be_measured_is_said(capsys):
    with pytest.raises(ValueError, match=r"use at least 3 columns; got d = 2"):
        recovery.problem("two-moons", 2, 0.1, 0)
    for seeds in ("0", "-1", "few"):
        with pytest.raises(SystemExit):
            recovery.main(["--seeds", seeds])
        assert f"a whole number of at least 1; got {seeds}" in capsys.readouterr().err


@pytest.mark.parametrize("name", recovery.PROBLEMS)
def test_informative_columns_are_where_the_problem_says(name):
    X, informative = recovery.problem(name, 8, 0.1, 3)
    same, again = recovery.problem(name, 8, 0.1, 3)
    np.testing.assert_array_equal(X, same)
    np.testing.assert_array_equal(informative, again)
    assert len(informative) == {"none": 0, "three-clusters": 3}.get(name, 2)
    if name == "ring":
        np.testing.assert_allclose(np.linalg.norm(X[:, informative], axis=1), 1, atol=0.5)


def test_a_record_counts_what_fits_select(monkeypatch):
    """Seed 0 selects the two, seed 1 one more, seed 2 one of them and says that it may be noise."""

    def fit(self, X, y=None):
        _, informative = recovery.problem("two-moons", 5, 0.1, self.random_state)
        extra = next(k for k in range(5) if k not in informative)
        chosen = {0: informative, 1: [*informative, extra], 2: informative[:1]}[self.random_state]
        if self.random_state == 2:
            warnings.warn("noise", SelectionWarning, stacklevel=1)
        self.support_, self.n_runs_ = np.isin(np.arange(5), chosen), 1 + self.random_state
        return self

    monkeypatch.setattr(GatedLaplacian, "fit", fit)
    record = recovery.measure("gates", "two-moons", 5, 0.1, 3)
    assert (record["exact"], record["missed_seeds"]) == (1, [1, 2])
    assert (record["contained"], record["flagged_as_noise"], record["selected"]) == (2, 1, 2)
    assert (record["runs"], record["runs_per_fit"]) == (3, 2)


def test_a_fit_with_decoys_has_no_run(few):
    assert recovery.measure("default", "two-moons", 5, 0.1, 2)["runs_per_fit"] == 0
    assert few == [(100, 5), (100, 5)]


def test_cells_are_kept_replaced_and_printed(few, tmp_path):
    file = tmp_path / "x.json"
    common = ["--only", "two-moons", "--noises", "0.1", "--settings", "paper", "--json", str(file)]
    recovery.main([*common, "--dims", "3", "4", "--seeds", "2"])
    assert few[1:] == [(100, 3), (100, 3), (100, 4), (100, 4)]  # after one that compiles
    recovery.main([*common, "--dims", "3", "4", "--seeds", "2"])
    assert len(few) == 6  # the file has everything
    recovery.main([*common, "--dims", "4", "--seeds", "1"])
    records = {r["d"]: r for r in json.loads(file.read_text())["records"]}
    assert {d: r["runs"] for d, r in records.items()} == {3: 2, 4: 1}  # in its place, not beside it
    record = records[3]
    assert record["exact"] + len(record["missed_seeds"]) == 2
    assert record["exact"] <= record["contained"] <= 2
    table = file.with_suffix(".md").read_text()
    assert f"| paper | two-moons | 3 | 0.1 | {record['exact']} of 2 |" in table
    assert "| 4 | 0.1 | " in table


def test_the_plan_is_what_the_documentation_shows():
    a = argparse.Namespace(settings=list(recovery.SETTINGS), only=None, dims=None, noises=None, seeds=50)
    cells = list(recovery.plan(a))
    assert len({cell[:-1] for cell in cells}) == len(cells)
    file = Path(__file__).parents[1] / "bench" / "results" / "recovery.json"
    recorded = {(*recovery.key(r), r["runs"]) for r in json.loads(file.read_text())["records"]}
    assert recorded == set(cells)
