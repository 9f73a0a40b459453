"""bench.planted: what is planted, counted, kept and printed."""

import argparse
import json
import warnings

import numpy as np
import pytest

from bench import planted
from bench.common import MissingData
from bench.planted import METHODS, Choice, Method, Planted


def scaled(X):
    return (X - X.mean(axis=0)) / X.std(axis=0)


def table_of(n, d):
    """Columns of unlike marginals, one of them constant; the labels are the numbers of the rows."""
    X = np.random.default_rng(0).gamma(2.0, size=(n, d)) ** np.linspace(0.3, 2, d)
    X[:, 3] = 7.0
    return X, np.arange(n)


@pytest.fixture
def easy():
    """Five columns of two clusters among 45 of noise, on 60 rows."""
    rng = np.random.default_rng(1)
    labels = np.arange(60) % 2
    X = rng.normal(size=(60, 50))
    truth = np.isin(np.arange(50), [3, 10, 11, 30, 49])
    X[:, truth] = 4.0 * labels[:, None] + rng.normal(size=(60, 5))
    return Planted(scaled(X).astype(np.float32), truth, labels, X.var(axis=0))


@pytest.mark.parametrize(("n", "r", "n_nuisance"), [(40, 4, 20), (40, 4, 200), (400, 4, 10), (40, 0, 20), (40, 29, 5)])
def test_real_columns_are_whole_and_nuisance_is_shuffled(n, r, n_nuisance):
    X, row_numbers = table_of(n, 30)
    p = planted.plant(X, row_numbers, r, n_nuisance, seed=2)
    assert p.X.shape == (min(n, planted.ROWS), r + n_nuisance)
    assert p.X.dtype == np.float32
    assert (p.truth.sum(), p.r) == (r, r)
    assert len(np.unique(p.labels)) == len(p.X) == p.classes
    rows = X[p.labels]
    raw = np.delete(rows, 3, axis=1)
    source = scaled(raw)
    where = [int(np.abs(source - x[:, None]).max(axis=0).argmin()) for x in p.X[:, p.truth].T]
    np.testing.assert_allclose(p.X[:, p.truth], source[:, where], atol=1e-5)
    assert len(set(where)) == r
    np.testing.assert_allclose(p.variance[p.truth], raw[:, where].var(axis=0))

    nuisance, marginals = p.X[:, ~p.truth], np.sort(source, axis=0)
    of = [int(np.abs(marginals - x[:, None]).max(axis=0).argmin()) for x in np.sort(nuisance, axis=0).T]
    np.testing.assert_allclose(np.sort(nuisance, axis=0), marginals[:, of], atol=1e-5)
    np.testing.assert_allclose(p.variance[~p.truth], raw[:, of].var(axis=0))
    assert np.abs(nuisance - source[:, of]).max(axis=0).min() > 0.1  # none is where it was
    assert len(np.unique(nuisance, axis=1).T) == n_nuisance  # two shuffles of a column are not the same
    if n_nuisance <= 29 - r:
        assert len(set(of)) == n_nuisance
        assert not set(of) & set(where)


def test_what_is_planted_is_a_function_of_the_seed():
    X, labels = table_of(40, 30)
    before = X.copy()
    first, again, other = (planted.plant(X, labels, 4, 20, seed) for seed in (0, 0, 1))
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(first.X, other.X)
    np.testing.assert_array_equal(X, before)
    assert not first.truth[:4].all()  # permuted
    with pytest.raises(ValueError, match="r = 30 real columns are wanted, and 29 of this data set are not constant"):
        planted.plant(X, labels, 30, 20, 0)


def test_a_record_counts_what_is_selected(easy):
    """Among the first five are three true ones; four columns are selected, one of them true."""
    order = np.array([3, 0, 10, 1, 11, *np.setdiff1d(np.arange(50), [3, 0, 10, 1, 11])])
    record = planted.judged(easy, Choice(order, np.isin(np.arange(50), [0, 1, 2, 3])), 0)
    assert (record["fdp"], record["recall"], record["top_r"], record["selected"]) == (0.75, 0.2, 0.6, 4)
    assert 0.8 < record["nmi"] <= 1
    nothing = planted.judged(easy, Choice(order, np.zeros(50, dtype=bool)), 0)
    assert nothing == record | {"fdp": 0, "recall": 0, "selected": 0}
    told = planted.judged(easy, Choice(order), 0)
    assert told == record | {"fdp": 0.4, "recall": 0.6, "selected": 5}


def test_without_real_columns_a_record_has_what_is_selected_alone(easy):
    p = easy._replace(truth=np.zeros(50, dtype=bool))
    none = {"fdp": None, "recall": None, "top_r": None, "nmi": None, "selected": None}
    order = np.arange(50)
    assert planted.judged(p, Choice(order), 0) == none
    assert planted.judged(p, Choice(order, order < 0), 0) == none | {"fdp": 0, "selected": 0}
    assert planted.judged(p, Choice(order, order < 2), 0) == none | {"fdp": 1, "selected": 2}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_orders_all_columns(name, easy):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of fits that do not converge
        choice = METHODS[name].run(easy, 0, 0.2)
    assert sorted(choice.order) == list(range(50))
    assert (choice.selected is not None) == METHODS[name].chooses
    if choice.selected is not None:
        assert choice.selected.shape == (50,)
        assert choice.selected.dtype == bool
    if name in ("correlations", "dependence", "self-consistent", "LS", "LS random_walk"):
        assert easy.truth[choice.order[:5]].all()


def test_DUFS_is_asked_for_a_rate_and_the_gates_are_not(monkeypatch, easy):
    """DUFS by the order of its scores, the others by their ranking."""

    class Asked:
        kind = "decoys"

        def __init__(self, name="", **settings):
            settings = {"kind": self.kind} | settings
            self.settings = {"name": name} | settings
            self.scores_, self.order_, self.support_ = np.arange(50), np.arange(50), np.arange(50) < 3

        def fit(self, X):
            asked.append(self.settings)
            return self

        preset = classmethod(lambda cls, name, **settings: cls(name, **settings))

    class AskedGates(Asked):
        kind = "gates"

    asked = []
    monkeypatch.setattr(planted, "DUFS", Asked)
    monkeypatch.setattr(planted, "GatedLaplacian", AskedGates)
    names = ("DUFS", "DUFS gates", "wide", "paper", "authors_code")
    choices = [METHODS[name].run(easy, 7, 0.2) for name in names]
    assert [c.order[0] for c in choices] == [49, 0, 0, 0, 0]
    assert all(c.selected.sum() == 3 for c in choices)
    assert asked == [
        {"kind": "decoys", "name": "", "fdr": 0.2, "random_state": 7},
        {"kind": "gates", "name": "", "max_runs": 1, "max_iter": 2000, "random_state": 7},
        {"kind": "gates", "name": "wide", "max_runs": 1, "random_state": 7},
        {"kind": "gates", "name": "paper", "max_iter": 1000, "random_state": 7},
        {"kind": "gates", "name": "authors_code", "max_iter": 1000, "random_state": 7},
    ]


def test_the_trivial_scores_are_their_formulas(easy):
    C = np.corrcoef(easy.X.T.astype(np.float64))
    np.fill_diagonal(C, 0)
    np.testing.assert_allclose(planted.correlations(easy.X), (C**4).sum(axis=0), rtol=1e-3)
    one = planted.self_consistent(easy.X, 5, start=5, rounds=1)  # on the graph of the five
    S = easy.X[:, planted.ordered(planted.correlations(easy.X)).order[:5]]
    D = ((S[:, None] - S[None]) ** 2).sum(axis=2)
    K = np.exp(-D / np.median(np.sort(D, axis=1)[:, 5])) * (1 - np.eye(60))
    P = K / K.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(one, np.diag(easy.X.T @ P @ P @ easy.X) / 60, atol=1e-4)
    assert METHODS["variance"].run(easy, 0, 0.1).order[0] == easy.variance.argmax()


def test_slow_methods_have_two_cells_and_one_seed_unless_they_are_named():
    def fits(**changes):
        a = argparse.Namespace(only=None, data=["Yale", "ORL"], seeds=2, fdr=0.2, quick=False)
        vars(a).update(changes)
        return {c: list(planted.plan(a, c)) for c in planted.CELLS}

    everything = fits()
    slow = [(c, f["seed"]) for c, plan in everything.items() for f in plan if f["method"] == "NDFS"]
    assert slow == [((8, 1000), 0), ((8, 1000), 0), ((20, 2000), 0), ((20, 2000), 0)]
    assert {f["method"] for f in everything[0, 1000]} == {"DUFS"}
    assert "dependence" not in {f["method"] for f in everything[15, 5000]}
    assert {f.get("fdr") for f in everything[8, 1000] if f["method"] == "DUFS"} == {0.2}
    assert not any("fdr" in f for f in everything[8, 1000] if f["method"] != "DUFS")
    assert [len(plan) for plan in fits(only=["NDFS"]).values()] == [4, 4, 4, 4, 4, 0]
    assert not {"DUFS gates", "paper", "NDFS"} & {f["method"] for plan in fits(quick=True).values() for f in plan}


def record(data, method, seed, cell="8x1000", fdr=None, **values):
    values = {"fdp": 0.5, "recall": 0.25, "top_r": 0.375, "nmi": 0.4, "selected": 4, "seconds": 1.0} | values
    return {"cell": cell, "data": data, "seed": seed, "method": method, "fdr": fdr} | values


def test_the_table_has_means_by_cell_and_DUFS_by_data_set():
    none = {"fdp": 0, "recall": None, "top_r": None, "nmi": None, "selected": 0, "cell": "0x1000"}
    text = planted.table(
        [
            record("ORL", "LS", 0),
            record("Yale", "DUFS", 0, fdr=0.1, fdp=0.0),
            record("Yale", "DUFS", 1, fdr=0.1, fdp=0.2, seconds=3.0),
            record("ORL", "DUFS", 0, fdr=0.1, fdp=0.1, seconds=4.0),
            record("pbmc68k", "DUFS", 0, fdr=0.1, fdp=1.0),
            record("Yale", "DUFS", 0, fdr=0.1, **none),
            record("Yale", "DUFS", 1, fdr=0.1, **none | {"selected": 3, "fdp": 1}),
            record("ORL", "paper", 0, nmi=0.6, cell="20x2000"),
        ]
    )
    lines = text.splitlines()
    headings = [line for line in lines if line and not line.startswith("|")]
    assert headings == [
        "8 real columns of 1,008", "20 real columns of 2,020", "0 real columns of 1,000",
        "DUFS (fdr=0.1) by data set: FDP, recall, top-r; nothing selected where r = 0",
        "pbmc68k (in no mean): 8 real columns of 1,008",
    ]  # fmt: skip
    rows = [line for line in lines if line.startswith("|") and "---" not in line]
    assert rows == [
        "| method | fits | FDP | recall | top-r | NMI | seconds |",
        "| DUFS (fdr=0.1) | 3 | 0.10 | 0.25 | 0.38 | 0.40 | 3.00 |",
        "| LS | 1 | 0.50 | 0.25 | 0.38 | 0.40 | 1.00 |",
        "| method | fits | FDP | recall | top-r | NMI | seconds |",
        "| paper (preset, 1,000 steps) | 1 | 0.50 | 0.25 | 0.38 | 0.60 | 1.00 |",
        "| method | fits | nothing selected | seconds |",
        "| DUFS (fdr=0.1) | 2 | 1 of 2 | 1.00 |",
        "| data | 8 of 1,008 | 0 of 1,000 |",
        "| Yale | 0.10, 0.25, 0.38 | 1 of 2 |",
        "| ORL | 0.10, 0.25, 0.38 | - |",
        "| method | fits | FDP | recall | top-r | NMI | seconds |",
        "| DUFS (fdr=0.1) | 1 | 1.00 | 0.25 | 0.38 | 0.40 | 1.00 |",
    ]


def test_finished_fits_are_kept_and_what_is_missing_is_said(monkeypatch, tmp_path, capsys):
    runs = []

    def run(p, seed, fdr):
        runs.append(p.X.shape)
        return Choice(np.arange(p.X.shape[1]), p.truth)

    def load(name):
        if name == "ORL":
            raise MissingData("ORL.mat is not there")
        X, numbers = table_of(40, 30)
        return X, numbers % 3

    monkeypatch.setattr(planted, "load", load)
    monkeypatch.setitem(METHODS, "LS", Method(run, chooses=True))
    planted.planted.cache_clear()
    planted.warm_up.cache_clear()
    file = tmp_path / "x.json"
    common = ["--only", "LS", "--data", "Yale", "ORL", "--seeds", "2", "--json", str(file)]
    planted.main([*common, "--cells", "4,20"])
    assert "ORL: left out, ORL.mat is not there" in capsys.readouterr().out
    assert runs == [(40, 60), (40, 24), (40, 24)]  # after one that compiles
    file.unlink()
    planted.main([*common, "--cells", "4,20", "0,20"])
    assert runs[3:] == [(40, 20), (40, 20)]  # what was interrupted goes on
    planted.main([*common, "--cells", "4,20"])
    assert len(runs) == 5
    records = json.loads(file.read_text())["records"]
    assert [(r["cell"], r["seed"], r["fdp"], r["recall"]) for r in records] == [
        ("4x20", 0, 0, 1), ("4x20", 1, 0, 1), ("0x20", 0, 0, None), ("0x20", 1, 0, None),
    ]  # fmt: skip
    assert "| LS | 2 | 0.00 | 1.00 |" in file.with_suffix(".md").read_text()
    assert "| LS | 2 | 2 of 2 |" in file.with_suffix(".md").read_text()
    planted.planted.cache_clear()
    planted.warm_up.cache_clear()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cells", "8"], "a cell is R,N, real and shuffled columns, such as 20,2000; got 8"),
        (["--cells", "8,0"], "got 8,0"),
        (["--fdr", "1.5"], "the false discovery rate is a number between 0 and 1; got 1.5"),
        (["--fdr", "few"], "got few"),
        (["--seeds", "0"], "a whole number of at least 1; got 0"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused(arguments, message, capsys):
    with pytest.raises(SystemExit):
        planted.main(arguments)
    assert message in capsys.readouterr().err
