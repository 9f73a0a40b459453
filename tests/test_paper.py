"""The paper's experiments: cells are kept, whatever stops the run, and every experiment runs at its small size."""

import json
import math

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from bench.paper import __main__ as command
from bench.paper import chi_square, convergence, deflation, diffusion, gates, pixels, score_demo, starts
from bench.paper.cells import Cells
from bench.paper.data import Data
from dufs_core.baselines import LaplacianScore
from dufs_core.datasets import two_moons
from dufs_core.inspection.metrics import kmeans_accuracy
from dufs_core.inspection.spectral import affinity

CALLS = []


def square(x, fail=False):
    CALLS.append(x)
    if fail:
        raise RuntimeError("stopped")
    return {"square": x * x}


@pytest.fixture(autouse=True)
def calls():
    CALLS.clear()
    return CALLS


def test_finished_cells_are_not_computed_again(tmp_path, calls):
    path = tmp_path / "x.cells.jsonl"
    assert Cells(path).compute(square, [{"x": 2}, {"x": 3}, {"x": 2}]) == [{"square": 4}, {"square": 9}, {"square": 4}]
    assert calls == [2, 3]
    again = Cells(path)
    assert again.compute(square, [{"x": 3}, {"x": 4}]) == [{"square": 9}, {"square": 16}]
    assert calls == [2, 3, 4]
    assert again.asked == 2
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["settings"] for line in lines] == [{"x": 2}, {"x": 3}, {"x": 4}]
    assert all(line["seconds"] >= 0 and line["function"] == "square" for line in lines)


def test_an_error_keeps_what_was_done(tmp_path, calls):
    path = tmp_path / "x.cells.jsonl"
    with pytest.raises(RuntimeError, match="stopped"):
        Cells(path).compute(square, [{"x": 1}, {"x": 2, "fail": True}])
    assert Cells(path).compute(square, [{"x": 1}]) == [{"square": 1}]
    assert calls == [1, 2]


@pytest.mark.parametrize(("cut", "expected"), [(1, [1, 2]), (10, [1, 2, 2]), (40, [1, 2, 2])])
def test_a_line_cut_by_a_crash_is_computed_again(tmp_path, calls, cut, expected):
    path = tmp_path / "x.cells.jsonl"
    Cells(path).compute(square, [{"x": 1}, {"x": 2}])
    path.write_bytes(path.read_bytes()[:-cut])
    assert Cells(path).compute(square, [{"x": 1}, {"x": 2}]) == [{"square": 1}, {"square": 4}]
    assert Cells(path).compute(square, [{"x": 1}, {"x": 2}]) == [{"square": 1}, {"square": 4}]
    assert calls == expected  # a line that lacks its newline alone is whole


def test_workers_write_their_cells(tmp_path):
    path = tmp_path / "x.cells.jsonl"
    assert Cells(path, workers=2).compute(abs_difference, [{"a": a, "b": 3} for a in range(4)]) == [3, 2, 1, 0]
    assert len(path.read_text().splitlines()) == 4


def abs_difference(a, b):
    return abs(a - b)


@pytest.mark.parametrize(
    "name",
    [
        "chi-square",
        "coil",
        "convergence",
        "deflation",
        "diffusion",
        "gates",
        "noisy-images",
        "power",
        "score-demo",
        "starts",
    ],
)
def test_every_experiment_writes_table_picture_and_json(tmp_path, capsys, name):
    command.main([name, "--quick", "--out", str(tmp_path)])
    assert [path.name for path in tmp_path.iterdir()] == ["quick"]
    written = {path.suffix: path for path in (tmp_path / "quick").iterdir()}
    if written.keys() != {".jsonl", ".json", ".md", ".png"}:
        assert "left out" in written[".md"].read_text()
    result = json.loads(written[".json"].read_text())
    assert {"command", "versions", "cpu", "seconds", "cells", "records"} <= set(result)
    assert result["experiment"] == name
    assert result["quick"] is True
    assert written[".png"].read_bytes().startswith(b"\x89PNG")
    table = written[".md"].read_text()
    assert table in capsys.readouterr().out
    if result.get("left_out"):
        pytest.skip(f"part of the experiment has no data: {result['left_out']}")
    assert table.count("\n| ") >= len(result["records"])


def test_second_eigenvalue_of_the_laplacian():
    K = affinity(two_moons(30, 4, 0.1, 0).X)
    L = np.diag(K.sum(axis=1)) - K
    assert diffusion.algebraic_connectivity(K) == pytest.approx(np.sort(np.linalg.eigvals(L).real)[1], rel=1e-9)
    assert diffusion.algebraic_connectivity(np.ones((5, 5))) == pytest.approx(5)  # the complete graph
    assert diffusion.algebraic_connectivity(np.eye(4)) == 0  # in pieces


def test_soft_precision_and_recall():
    assert convergence.soft_precision_recall(np.array([0.5, 1.0, 0.25, 0.25]), [0, 1]) == (0.75, 0.75)
    assert convergence.soft_precision_recall(np.zeros(4), [0, 1]) == (0, 0)


def test_gates_have_their_atoms(tmp_path):
    records = gates.run(Cells(tmp_path / "gates.cells.jsonl"), quick=True).results["records"]
    assert records
    for record in records:
        assert record["drawn_at_0"] == pytest.approx(record["at_0"], abs=0.02)
        assert record["drawn_at_1"] == pytest.approx(record["at_1"], abs=0.02)


@pytest.mark.parametrize("r", [0.0, 5.0, 12.0, 30.0])
@pytest.mark.parametrize(("n", "epsilon", "s"), [(1, 0.5, 1.0), (50, 0.05, math.sqrt(0.5)), (50, 1e-6, 0.5)])
def test_the_bound_by_counting(r, n, epsilon, s):
    """The condition for d, written out from the two tails."""
    g, d = -math.log(epsilon / (n * (n - 1) + n * n)), 0
    while True:
        within = 2 * s * s * ((d + 1) + 2 * math.sqrt((d + 1) * g) + 2 * g)
        if within > r * r + 2 * s * s * ((d + 1) - 2 * math.sqrt((d + 1) * g)):
            break
        d += 1
    assert chi_square.max_nuisance_dimensions(r, n, epsilon, s) == d


def test_what_the_bound_promises_happens():
    rng, n, r = np.random.default_rng(0), 20, 9.0
    d = chi_square.max_nuisance_dimensions(r, n, 0.2, math.sqrt(0.5))
    assert d > 5
    kept = 0
    for _ in range(50):
        X = math.sqrt(0.5) * rng.standard_normal((2 * n, d))
        first, second = X[:n], X[n:]
        between = cdist(first, second, "sqeuclidean") + r * r
        kept += max(cdist(c, c, "sqeuclidean").max() for c in (first, second)) < between.min()
    assert kept >= 40


def test_crossing_of_a_curve():
    assert chi_square.crossing((1, 10, 100), [0.9, 0.8, 0.6]) == pytest.approx(10**1.5)
    assert chi_square.crossing((1, 10, 100), [0.9, 0.8, 0.75]) is None
    assert chi_square.crossing((1, 10, 100), [0.6, 0.5, 0.4]) is None


def test_pixels_are_chosen_without_labels_only_by_a_gap_above_chance():
    """100 rows, 1000 open gates: 0.018 is needed."""

    def group(*gaps):
        return [[{"gap": gap, "open": 1000, "accuracy": [accuracy]} for gap, accuracy in runs] for runs in gaps]

    both = group([(0.02, 60.0), (0.05, 50.0)], [(0.03, 50.0), (0.02, 50.0)])
    assert pixels.label_free(both, 100) == ([1, 0], "")
    assert pixels.best(both) == [0, 0]
    one_by_chance = group([(0.02, 60.0), (0.001, 50.0)], [(0.03, 50.0), (0.002, 50.0)])
    which, reason = pixels.label_free(one_by_chance, 100)
    assert which == []
    assert "excess score is 0.002, which may be chance (below 0.018)" in reason
    assert pixels.label_free(both[:1], 100) == ([], "there is one setting only")


def test_starts_of_kmeans(monkeypatch):
    """scikit-learn's start in the units of the file; z-scoring finds what units hide, and so does a norm of 1."""
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 4
    X = rng.normal(size=(60, 3))
    X[:, 0] += 3 * labels
    X[:, 2] *= 1000  # in these units nothing else counts
    monkeypatch.setattr(starts, "cached_load", lambda name: Data(X, labels))
    found = {v: starts.everything("x", *v, runs=5) for v in starts.VARIANTS}
    mean, deviation = kmeans_accuracy(X, labels, 5, 0)
    expected = {"accuracy": round(100 * mean, 2), "deviation": round(100 * deviation, 2)}
    assert found["file", "greedy-k-means++"] == expected
    for start in starts.STARTS:
        for scaling in ("columns", "norm"):
            assert found[scaling, start]["accuracy"] > found["file", start]["accuracy"] + 5


def test_what_the_first_coordinate_hides_is_selected_without_it(monkeypatch):
    """Two groupings of the rows, the stronger in ten columns, the classes in three."""
    rng = np.random.default_rng(0)
    strong, labels = np.arange(80) % 2, np.arange(80) // 2 % 2
    X = rng.normal(size=(80, 13))
    X[:, :10] += 3 * strong[:, None]
    X[:, 10:] += 3 * labels[:, None]
    monkeypatch.setattr(deflation, "cached_load", lambda name: Data(X, labels))
    monkeypatch.setattr(deflation, "COUNTS", (3,))
    deflation.coordinates.cache_clear()
    for kind in deflation.REMOVED:
        assert deflation.alone("x", kind)["accuracy"][0] < 65
        assert deflation.selected("x", kind, 1, "LS", True)["accuracy"][0] > 95
    each = deflation.alone("x", "principal")
    assert each["value"][0] > 0.5
    assert each["accuracy"][1] > 95
    assert deflation.selected("x", "principal", 0, "LS", True)["accuracy"][0] < 65
    deflation.coordinates.cache_clear()


def test_distance_from_the_paper_is_over_the_rows_that_it_has():
    records = [{"accuracy": {"x": a}, "paper": p} for a, p in ((50.0, 53.0), (60.0, 59.0), (1.0, None))]
    assert starts.distance(records, "x") == 2
    assert starts.distance(records[2:], "x") is None


def test_scores_of_columns_beside_the_estimator():
    X = two_moons(40, 5, 0.1, 0).X
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    expected = (
        LaplacianScore(variant="random_walk", bandwidth="max", n_neighbors=2, bandwidth_factor=2.0).fit(X).scores_
    )
    np.testing.assert_allclose(score_demo.column_scores(X, 2.0, np.ones(5)), expected, rtol=1e-6)


def test_unknown_experiment_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main(["nothing", "--out", str(tmp_path)])
    assert stopped.value.code == 2
    assert "gates" in capsys.readouterr().err
