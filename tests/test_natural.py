"""bench.natural: what is ranked, judged, kept and printed."""

import json

import numpy as np
import pytest
from scipy.io import savemat

from bench import common, natural
from bench.natural import METHODS, Method, Natural
from dufs_core import DUFS


@pytest.fixture
def few(monkeypatch):
    """Small sizes, few runs and draws."""
    monkeypatch.setattr(natural, "SIZES", (2, 4, 50))
    monkeypatch.setattr(natural, "RUNS", 2)
    monkeypatch.setitem(METHODS, "random", METHODS["random"]._replace(draws=3))
    natural.load.cache_clear()
    yield
    natural.load.cache_clear()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Yale and GLIOMA of three clusters in the first 4 of 12 columns, one of them constant; no other set."""
    rng = np.random.default_rng(0)
    labels = np.arange(36) % 3
    X = rng.normal(size=(36, 12))
    X[:, :4] = 9 * rng.normal(size=(3, 4))[labels] + 2 * rng.normal(size=(36, 4))
    X[:, 7] = 5.0
    data = tmp_path / "data"
    data.mkdir()
    for name in ("Yale", "GLIOMA"):
        savemat(data / f"{name}.mat", {"X": X, "Y": labels[:, None] + 1})
    monkeypatch.setattr(common, "data_file", lambda name: data / name if (data / name).is_file() else None)
    return data


@pytest.fixture
def data(few, folder):
    return natural.load("Yale")


def test_every_set_is_in_one_half():
    assert len(natural.SETS) == len(set(natural.SETS)) == 11
    assert set(natural.QUICK_SETS) <= set(natural.SETS)


def test_columns_are_scaled_and_variance_is_of_the_raw_ones(data):
    whole = np.arange(12) != 7
    np.testing.assert_allclose(data.X.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(data.X.std(axis=0)[whole], 1)
    assert not data.X[:, 7].any()
    assert data.variance[7] == 0
    assert data.variance[:4].min() > 4 * data.variance[4:].max()
    assert data.classes == 3
    assert set(METHODS["variance"].rank(data, 4, 0)[:4]) == {0, 1, 2, 3}


def test_a_set_without_a_file_is_said(folder, few, capsys):
    with pytest.raises(common.MissingData, match=r"ORL\.mat not in DUFS_DATA"):
        natural.load("ORL")
    there, left_out = common.available(["Yale", "ORL"])
    assert (there, list(left_out)) == (["Yale"], ["ORL"])
    assert "ORL: left out, ORL.mat not in" in capsys.readouterr().out


def test_good_columns_find_the_classes_and_poor_ones_do_not(data):
    assert natural.judged(data, np.arange(4), 10) > (0.8, 0.7)
    assert natural.judged(data, np.arange(8, 12), 10) < (0.7, 0.5)
    p = Natural(np.repeat([[0.0], [9.0]], 5, axis=0), np.repeat(["a", "b"], 5), np.ones(1))
    assert natural.judged(p, np.array([0]), 3) == (1.0, 1.0)


@pytest.mark.parametrize("method", [name for name in METHODS if name != "DUFS"])
def test_every_method_ranks_columns(data, method):
    ranking = METHODS[method].rank(data, 4, 0)
    assert len(set(ranking.tolist())) == len(ranking) >= 4
    np.testing.assert_array_equal(ranking, METHODS[method].rank(data, 4, 0))
    assert (ranking.tolist() != METHODS[method].rank(data, 4, 1).tolist()) == (METHODS[method].draws > 1)


def test_dufs_is_asked_for_as_many_columns(data, monkeypatch):
    asked = []

    def fit(self, X, y=None):
        asked.append(self.get_params() | {"shape": X.shape})
        self.order_ = np.arange(X.shape[1])
        return self

    monkeypatch.setattr(DUFS, "fit", fit)
    record = natural.measure("Yale", "DUFS")
    default = DUFS().get_params() | {"random_state": 0, "n_features_to_select": 12, "shape": (36, 12)}
    assert asked == [default]  # one fit, for the largest size there is
    assert record["sizes"] == [2, 4, 12]


@pytest.mark.parametrize(("refitted", "counts"), [(False, [12]), (True, [2, 4, 12])])
def test_a_record_has_every_size_of_one_ranking_or_of_its_own(data, monkeypatch, refitted, counts):
    wanted = []

    def rank(source, count, draw):
        wanted.append((count, draw))
        return np.arange(12)

    monkeypatch.setitem(METHODS, "LS", Method(rank, refitted=refitted, draws=2))
    record = natural.measure("Yale", "LS")
    assert wanted == [(count, draw) for draw in range(2) for count in counts]
    for measure, i in (("accuracy", 0), ("nmi", 1)):
        expected = [round(100 * natural.judged(data, np.arange(size), 2)[i], 2) for size in (2, 4, 12)]
        assert record[measure] == pytest.approx(expected)


def test_all_features_have_as_many_runs_as_all_sizes(data):
    record = natural.measure("Yale", natural.ALL)
    assert (record["sizes"], record["runs"], len(record["accuracy"])) == ([12], 6, 1)


def test_means_ranks_and_halves():
    """LS lacks a set of half B; its means over all and over B are no means of the same sets."""

    def record(data, method, accuracy):
        return {"data": data, "method": method, "accuracy": accuracy, "nmi": [10.0, 30.0], "seconds": 1.0}

    records = [
        record("Yale", "variance", [40.0, 60.0]), record("lung_small", "variance", [70.0, 90.0]),
        record("Isolet", "variance", [20.0, 20.0]), record("Yale", "LS", [50.0, 52.0]),
        record("lung_small", "LS", [90.0, 92.0]),
    ]  # fmt: skip
    table = natural.table(records)
    assert "A: Yale; B: Isolet, lung_small" in table
    variance = "| variance (raw) | 50.0 (1) | 20.0 (1) | 50.0 (2) | 20.0 (1) | 50.0 (1) | 20.0 (1) | 3 of 3 | 1.0 |"
    assert variance in table
    assert "| LS | - | - | 51.0 (1) | 20.0 (1) | - | - | 2 of 3 | 1.0 |" in table
    assert "| LS | 51.0 / 20.0 | - | 91.0 / 20.0 |" in table
    assert natural.with_ranks([1.0, None, 3.0, 1.0]) == ["1.0 (2)", None, "3.0 (1)", "1.0 (2)"]
    assert natural.mean_over({}, [], "nmi") is None


def test_cells_are_kept_and_printed(few, folder, tmp_path, capsys, monkeypatch):
    file = tmp_path / "x.json"
    common = ["--data", "Yale", "ORL", "--json", str(file)]
    natural.main([*common, "--only", "LS"])
    assert "ORL: left out" in capsys.readouterr().out

    def no_fit(*a):
        raise AssertionError("computed again")

    monkeypatch.setitem(METHODS, "LS", Method(no_fit))
    natural.main([*common, "--only", "LS", "variance"])
    records = json.loads(file.read_text())["records"]
    assert [(r["data"], r["method"]) for r in records] == [("Yale", "LS"), ("Yale", "variance")]
    table = file.with_suffix(".md").read_text()
    assert table.strip() in capsys.readouterr().out
    assert "| variance (raw) |" in table

    file.unlink()  # what was cut off before FILE was written is in its neighbour
    natural.main([*common, "--only", "LS"])
    assert [r["method"] for r in json.loads(file.read_text())["records"]] == ["LS"]


def test_quick_is_fast_methods_on_three_sets(few, folder, monkeypatch, capsys):
    done = []

    def measure(data, method):
        done.append((data, method))
        return {"data": data, "method": method, "accuracy": [1.0], "nmi": [1.0], "seconds": 0.0}

    monkeypatch.setattr(natural, "measure", measure)
    natural.main(["--quick"])
    fast = [name for name in METHODS if name != "DUFS"]
    assert done == [(data, name) for data in ("Yale", "GLIOMA") for name in fast]
    assert "lung_small: left out" in capsys.readouterr().out
    done.clear()
    natural.main(["--quick", "--only", "DUFS", "--data", "GLIOMA"])
    assert done == [("GLIOMA", "DUFS")]
    with pytest.raises(SystemExit):
        natural.main(["--data", "MNIST"])
