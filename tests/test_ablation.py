"""The ablation bench: its variants are what they say, and finished fits are kept."""

import json

import numpy as np
import pytest

from dufs_core import DUFS
from dufs_core.datasets import two_moons

ablation = pytest.importorskip("bench.ablation", reason="bench is not beside the tests")


@pytest.mark.parametrize(
    ("chosen", "converged", "expected"),
    [([1, 3], True, "exact"), ([1, 3], False, "exact"), ([3], True, "one"), ([1, 2, 3], True, "more"),
     ([2], True, "chance"), ([2, 3], True, "chance"), ([], True, "chance"), ([0, 1, 3], False, "undecided"),
     ([0, 1, 2, 3], True, "all"), ([0, 1, 2, 3], False, "all")],
)  # fmt: skip
def test_every_end_has_a_name(chosen, converged, expected):
    assert ablation.end(np.array(chosen, dtype=int), np.array([1, 3]), 4, converged) == expected


def test_annealing_moves_the_number_with_the_open_gates():
    seen = []
    schedule = ablation._Schedule(lambda _, objective, *__: seen.append(objective), "bandwidth_factor", 5.0)
    objective = ablation.Objective(bandwidth_factor=2.0)
    for mu in ([0.5, 0.5], [0.5, -1.0], [-1.0, -1.0]):
        schedule(None, objective, np.array(mu), None, None)
    assert [o.bandwidth_factor for o in seen] == [5.0, 3.5, 2.0]
    assert {o.gate_sigma for o in seen} == {objective.gate_sigma}


@pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")  # that three steps decide nothing
def test_annealing_from_the_number_itself_changes_nothing():
    class Still(ablation.Annealed):
        name, start = "bandwidth_factor", 2.0

    X = two_moons(n_features=6).X
    settings = {"fdr": None, "max_iter": 3, "max_runs": 1, "random_state": 0}
    still, default = Still(**settings).fit(X), DUFS(**settings).fit(X)
    np.testing.assert_allclose(still.mu_, default.mu_, rtol=1e-5)
    moved = ablation.AnnealedFactor(**settings).fit(X)
    assert moved.bandwidth_ > 2 * default.bandwidth_


def test_finished_fits_are_kept(tmp_path, monkeypatch, capsys):
    path, calls = tmp_path / "ablation.json", []
    real = ablation.measure

    def counted(variant, d, seed):
        calls.append((variant, d, seed))
        return real(variant, d, seed)

    monkeypatch.setattr(ablation, "measure", counted)
    command = ["ablation", "--dims", "3", "--only", "the defaults", "SGD, rate d / 4", "--json", str(path)]
    for seeds in (1, 1, 2):
        monkeypatch.setattr("sys.argv", [*command, "--seeds", str(seeds)])
        ablation.main()
    assert calls == [(v, 3, seed) for seed in (0, 1) for v in ("the defaults", "SGD, rate d / 4")]
    records = json.loads(path.read_text())["records"]
    assert [(r["variant"], r["d"], len(r["ended"]), len(r["n_iter"])) for r in records] == [
        ("the defaults", 3, 2, 2), ("SGD, rate d / 4", 3, 2, 2)]  # fmt: skip
    lines = path.with_suffix(".md").read_text().splitlines()
    assert lines[0].startswith("| single runs of | d = 3 |")
    assert [line.split(" |")[0] for line in lines[2:]] == ["| the defaults", "| SGD, rate d / 4"]
    assert lines[2].split(" | ")[1].endswith(" of 2")
