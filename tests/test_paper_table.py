"""The paper's second table: loaders on small files in the published formats, the protocols, a table of two rows."""

import gzip
import json
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.io import savemat

from bench import common
from bench.common import data_file
from bench.paper import __main__ as command
from bench.paper import data, path, protocol, published, readings, settings, table1
from bench.paper.cells import Cells
from bench.paper.protocol import ALL, COUNTS, DRAWS, DUFS_METHODS, RANDOM, SELECTORS, STARTS, cached_load
from dufs_core import GatedLaplacian, LambdaPath
from tests.generators import gated


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A DUFS_DATA of our own, with Yale of 40 rows and 120 columns: three clusters in the first ten."""
    monkeypatch.setenv("DUFS_DATA", str(tmp_path))
    own = tmp_path.joinpath  # and not the folder beside the repository
    monkeypatch.setattr(common, "data_file", lambda name: own(name) if own(name).is_file() else None)
    rng = np.random.default_rng(0)
    labels = np.arange(40) % 3
    X = rng.normal(size=(40, 120))
    X[:, :10] += 4 * labels[:, None]
    savemat(tmp_path / "Yale.mat", {"X": X, "Y": labels[:, None]})
    cached_load.cache_clear()
    yield tmp_path
    cached_load.cache_clear()


def test_gisette_in_the_format_of_uci(folder):
    (folder / "gisette_train.data").write_text("1 0 991 \n0 7 2 \n")
    (folder / "gisette_train.labels").write_text("1\n-1\n")
    found = data.load("GISETTE")
    assert found.X.tolist() == [[1, 0, 991], [0, 7, 2]]
    assert found.labels.tolist() == [1, -1]
    (folder / "gisette_train.labels").write_text("1\n")
    with pytest.raises(ValueError, match=r"2 rows and gisette_train.* 1 labels"):
        data.load("GISETTE")


def test_a_missing_file_is_named(folder):
    with pytest.raises(common.MissingData, match=r"gisette_train\.data and gisette_train\.labels"):
        data.load("GISETTE")


def test_pix10_is_divided_by_its_largest_value(folder):
    savemat(folder / "pixraw10P.mat", {"X": np.array([[0, 62], [31, 5]], dtype=np.uint8), "Y": np.array([[1], [2]])})
    assert data.load("PIX10").X.tolist() == [[0, 1], [0.5, 5 / 62]]


@pytest.mark.parametrize("packed", [True, False])
def test_mnist_in_idx_format(folder, packed):
    pixels = np.arange(3 * 2 * 2, dtype=np.uint8).reshape(3, 2, 2)
    for name, values in (("t10k-images-idx3-ubyte.gz", pixels), ("t10k-labels-idx1-ubyte.gz", np.uint8([7, 8, 9]))):
        raw = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes() + values.tobytes()
        (folder / name).write_bytes(gzip.compress(raw) if packed else raw)
    found = data.load("MNIST")
    assert sorted(found.labels) == [7, 8, 9]
    for row, label in zip(found.X, found.labels, strict=True):
        np.testing.assert_array_equal(row, pixels[label - 7].ravel() / 255)
    (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 9, 1]))
    with pytest.raises(ValueError, match="holds 1 values; its header says 9"):
        data.load("MNIST")
    (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(b"no such thing")
    with pytest.raises(ValueError, match="no IDX file"):
        data.load("MNIST")


def test_documents_in_both_formats(tmp_path):
    (tmp_path / "a.dat").write_text("-1 |f 9:0.5 14:0.25\n1 |f 3:1\n1 |f 3:1\n")  # the last row repeats
    (tmp_path / "b.svm").write_text("101,102 9:2\n103 47236:1\n")
    X, labels = data.read_documents(tmp_path / "a.dat", tmp_path / "b.svm")
    assert labels == [(-1,), (1,), (101, 102), (103,)]
    assert X.shape == (4, 47237)
    assert [X[0, 9], X[0, 14], X[1, 3], X[2, 9], X[3, 47236]] == [0.5, 0.25, 1, 2, 1]
    assert X.nnz == 5


def test_rcv1_follows_the_papers_rule():
    rng = np.random.default_rng(0)
    labels = [(1.0,)] * 5 + [(2.0,)] * 9 + [(3.0,)] * 4 + [(1.0, 2.0)] * 3
    from scipy.sparse import csr_matrix

    X = rng.normal(size=(len(labels), 6))
    X[:, 4] = 0
    X[14:, 5], X[:14, 5] = 1, 0  # only in rows that are dropped
    found, y = data.two_classes(csr_matrix(X), labels)
    assert np.unique(y, return_counts=True)[1].tolist() == [5, 5]  # two labels, or the third class: dropped
    assert found.shape == (10, 4)
    assert all(any((row == full).all() for full in X[:14, :4]) for row in found)


def test_grid_is_fair():
    grid = settings.grid()
    lengths = {m: len(grid[m]) for m in table1.OF_THE_PAPER}
    assert len(set(lengths.values())) == 1, lengths
    assert max(lengths.values()) <= 10
    for method in lengths:
        assert len({json.dumps(s, sort_keys=True) for s in grid[method]}) == lengths[method], method


def test_cells_of_both_orders_are_the_same_fits():
    """With the rows of a step that the grid has for the data, which are DUFS's alone."""
    grid = settings.grid()
    for name, rows in (("ISOLET", 500), ("Yale", None)):
        cells = settings.cells_of(grid, name, "DUFS", False)
        assert cells == settings.cells_of(grid, name, "DUFS-R", False)
        assert {c["method"] for c in cells} == {"DUFS"}
        assert {c["settings"].get("batch_size") for c in cells} == {rows}
        assert all("batch_size" not in c["settings"] for c in settings.cells_of(grid, name, "LS", False))


def score(data, method, chosen, counts, runs, seed, start=STARTS[0]):
    """A selection and what it is worth, in one."""
    orders = protocol.rank(data, method, chosen, counts, seed)
    return orders | protocol.judge(data, method, chosen, counts, runs, seed, start, orders["orders"])


@pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")  # of fits as short as these
def test_every_setting_of_the_grid_can_be_used(folder):
    """On rows enough for 30 neighbours; a step or two each."""
    grid = settings.grid()
    once = {"max_iter": 1}
    short = {"DUFS": once, "CAE": {"steps": 1}, "NDFS": once, "LLCFS": once}
    for method in (*table1.OF_THE_PAPER, *table1.PLAIN, ALL):
        for s in grid.get(method, [{}]):
            counts = [] if method == ALL else [5]
            result = score("Yale", method, s | short.get(method, {}), counts, 1, 0)
            assert 100 / 3 <= result["accuracy"][0] <= 100, (method, s)
    for extra in grid["extra"]:
        lam = {"lam": extra["lam"][1]} if "lam" in extra else {}
        assert score("Yale", "DUFS", extra["settings"] | lam | {"max_iter": 3, "tol": 0.0}, [5], 1, 0)["n_iter"] == 3


def test_dufs_finds_the_clusters(folder):
    result = score("Yale", "DUFS", {}, [10], 5, 0)
    assert result["accuracy"] == result["diverse"]["accuracy"] == [100]
    assert result["nmi"] == result["ari"] == [100]
    assert {*result["orders"]["gates"][0]} == {*result["orders"]["diverse"][0]} == set(range(10))


@pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")  # of fits as short as these
def test_a_cell_of_dufs_has_both_orders_of_its_columns(folder):
    short = {"max_iter": 5, "batch_size": 20}
    orders = protocol.rank("Yale", "DUFS", short, [4], 3)["orders"]
    data = cached_load("Yale")
    for ranking in DUFS_METHODS.values():
        alone = gated(ranking=ranking, max_runs=1, random_state=3, **short).fit(data.X)
        np.testing.assert_array_equal(orders[ranking][0], alone.order_[:4])
    assert list(orders["gates"][0]) != list(orders["diverse"][0])


@pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")  # of fits as short as these
def test_columns_of_norm_1_are_on_one_scale(folder):
    short = {"max_iter": 5}
    X = cached_load("Yale").X
    ours = [protocol.fitted(cached_load("Yale"), "DUFS", short | s, 0).mu_ for s in ({}, {"unit_norm": True})]
    alone = gated(scaling="global", max_runs=1, random_state=0, **short)
    np.testing.assert_array_equal(ours[1], alone.fit(X / np.linalg.norm(X, axis=0)).mu_)
    assert not np.allclose(*ours)


def test_rankings_that_need_no_method():
    rng = np.random.default_rng(0)
    common, other = rng.normal(size=(2, 200))
    X = rng.normal(size=(200, 8))
    X[:, :4] += 4 * common[:, None]
    X[:, 4:6] += 2 * other[:, None]
    X[:, 7] *= 100
    assert protocol.simple(X, "variance")[0] == 7
    assert {*protocol.simple(X, "correlation^4")[:4]} == {*protocol.simple(X, "PCA", (1, 1))[:4]} == {0, 1, 2, 3}
    assert {*protocol.simple(X, "PCA", (2, 2))[:2]} == {4, 5}
    correlation = np.corrcoef(X.T) ** 4
    np.testing.assert_array_equal(protocol.simple(X, "correlation^4"), np.argsort(-correlation.sum(axis=0)))


def test_random_columns_are_twenty_selections(folder):
    result = score("Yale", RANDOM, {}, [5, 120], 2, 0)
    assert np.shape(result["draws"]) == (DRAWS, 2)
    np.testing.assert_allclose(np.mean(result["draws"], axis=0), result["accuracy"], atol=0.01)
    few, every = np.array(result["draws"]).T
    assert len(set(few)) > 5
    assert len(set(every)) <= 2  # all columns: they differ by the order alone
    found = table1.of_draws({"draws": [[i, 0.0] for i in range(20)]}, [0, 1])
    assert (found["best"], found["best_of_eight"]) == (19, round(8 * 21 / 9 - 1, 2))  # the mean of a maximum
    assert found["each"] == list(range(20))


def test_starts_of_kmeans_are_three():
    """Of many groups plain k-means++ finds fewer than the greedy variant, and random rows fewer still."""
    labels = np.repeat(np.arange(25), 8)
    X = 10 * np.stack([labels % 5, labels // 5], axis=1) + np.random.default_rng(0).normal(size=(200, 2))
    found = {
        start: np.mean([protocol.agreement(labels, protocol.clusters(X, 25, start, seed)) for seed in range(30)])
        for start in STARTS
    }
    assert found["random rows"] < found["k-means++"] - 0.02
    assert found["k-means++"] < found["greedy-k-means++"] - 0.02
    assert protocol.agreement([0, 0, 1, 1], [1, 1, 0, 0]) == (1, 1, 1)
    assert protocol.agreement([0, 0, 1, 1], [0, 1, 0, 1]) == (0.5, 0, -0.5)


def test_a_selection_is_computed_once_for_all_starts(folder, monkeypatch):
    cells = Cells(folder / "x.jsonl")
    calls = []
    rank = table1.rank
    monkeypatch.setattr(table1, "rank", lambda **s: calls.append(s) or rank(**s))
    table1.rank.__name__ = "rank"
    for start in STARTS:
        table1.compute(cells, settings.grid(start), True, ["Yale"], ["LS", RANDOM, ALL])
    assert [c["method"] for c in calls] == ["LS", "LS", RANDOM, ALL]
    cells = Cells(folder / "x.jsonl")  # as the file has them
    for start in STARTS:
        (s,) = settings.cells_of(settings.grid(start), "Yale", ALL, True)
        expected = protocol.judge(**s, orders={})
        assert settings.known(cells, s, ALL) == expected


def fake(accuracy, **more):
    return {"accuracy": accuracy, "deviation": [0.1] * len(accuracy), **more}


def cells_with(path, grid, results):
    """A file of cells in which DUFS's settings on Yale have these results."""
    wanted = settings.cells_of(grid, "Yale", "DUFS", False)
    lines = [
        {"function": "judge", "settings": s, "result": r, "seconds": 1} for s, r in zip(wanted, results, strict=False)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Cells(path)


def test_oracle_takes_the_best_and_label_free_the_first(tmp_path):
    grid = settings.grid()
    first = fake([40, 41, 42, 43, 44, 39.0])
    cells = cells_with(tmp_path / "x.jsonl", grid, [first, fake([30, 50.5, 20, 20, 20, 20])])
    grid["label_free"] = {}
    oracle = table1.record(cells, grid, "Yale", "DUFS", "oracle", False)
    assert (oracle["accuracy"], oracle["n_features"], oracle["cells"]) == (50.5, 100, 2)
    assert oracle["settings"] == grid["DUFS"][1]
    assert (oracle["paper"], oracle["paper_n_features"]) == (47.9, 200)
    label_free = table1.record(cells, grid, "Yale", "DUFS", "label_free", False)
    assert (label_free["accuracy"], label_free["n_features"]) == (39, 300)
    nothing = table1.record(cells, grid, "Yale", "LS", "oracle", False)
    assert nothing["accuracy"] is None
    assert nothing["paper"] == 42.7
    assert table1.record(cells, grid, "RCV1", "LS", "oracle", False)["paper"] is None  # other data


def test_label_free_dufs_goes_by_the_shape_of_the_data(monkeypatch, tmp_path):
    grid = settings.grid()
    results = [fake([0, 0, 0, 0, 0, 30.0 + i]) for i in range(8)]
    cells = cells_with(tmp_path / "x.jsonl", grid, results)
    wide = {"Yale": True, "ISOLET": False, "GISETTE": None}
    monkeypatch.setattr(settings, "is_wide", wide.get)
    places = {data: settings.label_free(grid, data, "DUFS") for data in wide}
    assert places == {"Yale": 5, "ISOLET": 2, "GISETTE": None}
    assert settings.label_free(grid, "GISETTE", "LS") == 0
    assert table1.record(cells, grid, "Yale", "DUFS", "label_free", False)["accuracy"] == 35.0
    wide = gated(**grid["DUFS"][5], ranking=DUFS_METHODS["DUFS-R"]).set_params(graph__power=2, graph__bandwidth="max")
    assert wide.get_params() == GatedLaplacian.preset("wide").get_params()


def test_accuracy_by_the_number_of_columns_is_of_label_free_settings(monkeypatch, tmp_path):
    """Over rows that every method has; of DUFS the setting for the shape of the data."""
    grid = settings.grid()
    monkeypatch.setattr(settings, "is_wide", {"Yale": True, "ISOLET": False, "PIX10": True}.get)
    rows = [("Yale", SELECTORS, 10), ("ISOLET", SELECTORS, 20), ("PIX10", ["DUFS", "LS"], 90)]
    lines = [
        json.dumps({"function": "judge", "settings": s, "seconds": 1, "result": fake(
            [base + i] * len(s["counts"]), diverse=fake([base + i + 1] * len(s["counts"])))})
        for name, methods, base in rows for method in (*methods, *table1.PLAIN) if method != "DUFS-R"
        for i, s in enumerate(settings.cells_of(grid, name, method, False))
    ]  # fmt: skip
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(lines))
    found = table1.by_count(Cells(path), grid, False)
    assert found["data"] == ["Yale", "ISOLET"]
    assert set(found["mean"]) == {*SELECTORS, *table1.PLAIN} - {"CAE"}
    assert found["mean"]["LS"] == [15] * 6
    assert found["mean"]["DUFS"] == [(10 + 5 + 20 + 2) / 2] * 6
    assert found["mean"]["DUFS-R"] == [(10 + 5 + 20 + 2) / 2 + 1] * 6


def test_readings_of_the_papers_numbers(tmp_path):
    """Of Yale (42.7 for LS, 41.7 for MCFS); other data, and settings that are not computed, have none."""
    grid = settings.grid() | {"LS": [{}, {"n_neighbors": 2}], "MCFS": [{}]}
    results = {("LS", 0): [41.8, 35], ("LS", 1): [43.5, 10], ("MCFS", 0): [38, 38.5]}  # and greedy one more
    lines = [
        json.dumps({"function": "judge", "settings": settings.cells_of(grid, name, method, False)[i] | {"start": start},
                    "result": fake([v + (start == STARTS[1]) for v in values]), "seconds": 1})
        for name in ("Yale", "RCV1") for (method, i), values in results.items() for start in STARTS[:2]
    ]  # fmt: skip
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    cells = Cells(tmp_path / "x.jsonl")
    ls, mcfs = readings.nearest(cells, grid, ["Yale", "RCV1"])
    assert (ls["setting"], ls["start"], ls["accuracy"], ls["n_features"]) == ("k = 2", STARTS[0], 43.5, 50)
    assert (ls["reproduced"], ls["near"], ls["readings"]) == (True, 3, 4)  # one by the other start is nearer
    assert (mcfs["method"], mcfs["setting"], mcfs["start"], mcfs["accuracy"]) == ("MCFS", "defaults", STARTS[1], 39.5)
    assert (mcfs["reproduced"], mcfs["near"], mcfs["readings"]) == (False, 0, 2)
    text = "\n".join(readings.tables([ls, mcfs], [], []))
    assert "| Yale | LS | 42.7 | reproduced by k = 2; k-means++; 50 columns | 43.5 | +0.8 | 3 of 4 |" in text
    assert "| not reproduced, nearest defaults; greedy-k-means++; 100 columns | 39.5 | -2.2 | 0 of 2 |" in text
    assert readings.same_everywhere(cells, grid, ["Yale"]) == []  # one row is too few
    wide = readings.Reading("", "", 44.9, 4.0, 300, 42.7)
    assert wide.near  # two standard errors of a difference are 2.5
    assert not wide._replace(deviation=3.0).near


def test_one_reading_for_all_rows_is_the_nearest_on_average(tmp_path):
    grid = settings.grid() | {"LS": [{}, {"n_neighbors": 2}]}
    off = {"Yale": (0, 2), "ALLAML": (9, 2), "TOX-171": (0, -2)}
    lines = [
        json.dumps({"function": "judge", "settings": s, "seconds": 1,
                    "result": fake([published.accuracy(name, "LS") + by] * 6)})
        for name, both in off.items() for s, by in zip(settings.cells_of(grid, name, "LS", False), both, strict=True)
    ]  # fmt: skip
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    (found,) = readings.same_everywhere(Cells(tmp_path / "x.jsonl"), grid, list(off))
    assert (found["setting"], found["rows"], found["reproduced"]) == ("k = 2", 3, 0)
    assert found["distance"] == pytest.approx(2)


def test_settings_beyond_the_grid_are_listed_whether_run_or_not(tmp_path):
    grid = settings.grid()
    first, second = settings.extra_cells(grid, "ALLAML")[:2]
    line = {"function": "judge", "settings": second | {"start": STARTS[1]}, "seconds": 1,
            "result": fake([1, 9, 3, 4, 5, 6.0], selected=7, n_iter=8)}  # fmt: skip
    (tmp_path / "x.jsonl").write_text(json.dumps(line))
    found = readings.extras(Cells(tmp_path / "x.jsonl"), grid, ["ALLAML"])
    assert found[0]["setting"] == readings.text(first["settings"])
    assert found[0]["start"] is None
    assert (found[1]["DUFS"], found[1]["DUFS columns"], found[1]["selected"], found[1]["n_iter"]) == (9, 100, 7, 8)
    (text,) = readings.tables([], [], found[:2])
    assert "| not run | - | - | - | - | 74.5 |" in text
    assert "| greedy-k-means++ | 9.0 (100) | - | 7 | 8 | 74.5 |" in text


def test_the_setting_for_a_data_set_is_chosen_on_the_others(monkeypatch, tmp_path):
    """The best of each kind is another setting; with only one of a kind there is nothing to choose on."""
    grid = settings.grid()
    accuracies = {"Yale": [9, 1, 5], "ALLAML": [8, 2, 7], "PIX10": [3, 1, 6], "ISOLET": [1, 4, 2]}
    cells = {(d, i): fake([0.0, float(v)]) for d, values in accuracies.items() for i, v in enumerate(values)}
    monkeypatch.setattr(table1, "is_wide", lambda data: data != "ISOLET")
    monkeypatch.setattr(table1, "cells_of", lambda fixed, data, method, quick: [(data, i) for i in range(3)])
    known = SimpleNamespace(known=lambda _, key: cells.get(key))
    assert table1.held_out(known, grid, [*accuracies, "GISETTE"], "DUFS") == {"Yale": 5, "ALLAML": 8, "PIX10": 3}


def test_label_free_is_300_columns_or_the_most_there_are():
    assert table1.candidates({"counts": list(COUNTS)}, fake([1] * 6), "label_free") == [5]
    assert table1.candidates({"counts": [50, 150]}, fake([1] * 2), "label_free") == [1]
    assert table1.candidates({"counts": []}, fake([1]), "label_free") == [0]


def test_ranks_are_over_complete_rows():
    names = [m for m in table1.METHODS if m != ALL]
    assert names[-2:] == ["DUFS", "DUFS-R"]
    values = {"Yale": [1, 2, 3, 4, 5, 6, 7, 0], "ALLAML": [1, 1, 3, 4, 5, 7, 6, 8],
              "ISOLET": [1, 2, 3, None, 5, 6, 7, 8]}  # fmt: skip
    records = [
        {"data": d, "method": m, "accuracy": v} for d, row in values.items() for m, v in zip(names, row, strict=True)
    ]
    found = table1.ranks(records)
    assert found["rows"] == 2
    assert found["mean"]["DUFS"] == 1.5
    assert found["mean"]["DUFS-R"] == 4  # the last of seven, then the first: in the place of DUFS, not beside it
    assert found["mean"]["LS"] == 6.75  # a tie shares its ranks
    assert found["median"]["CAE"] == 1.5


@pytest.mark.parametrize("rows", [2, 3])
def test_ranks_are_printed_from_three_complete_rows_on(rows):
    names = ["Yale", "ALLAML", "ISOLET"][:rows]
    records = [
        {"data": d, "method": m, "protocol": p, "accuracy": 40.0 + i, "n_features": 50, "paper": None}
        for d in names for p in table1.PROTOCOLS for i, m in enumerate(table1.METHODS)
    ]  # fmt: skip
    rank = {p: table1.ranks([r for r in records if r["protocol"] == p]) for p in table1.PROTOCOLS}
    text = table1.table(records, names, rank)
    assert text.count("median rank (3 rows)") == text.count("mean rank (3 rows)") == (2 if rows == 3 else 0)
    assert ("rank" in text) == (rows == 3)


def test_published_values_are_whole():
    assert all(len(row) == len(published.METHODS) for row in published.ACCURACY.values())
    assert published.accuracy("PIX10", "CAE") == 94.1
    assert published.accuracy("GLIOMA", "LS") is None
    assert published.n_features("ISOLET", "DUFS") == 150


def test_small_table_and_curves(folder, capsys):
    out = ["--quick", "--out", str(folder / "out")]
    command.main(["table1", *out, "--methods", "LS", ALL])
    command.main(["table1", *out, "--methods", "DUFS", "DUFS-R", *table1.PLAIN])
    found = json.loads((folder / "out" / "quick" / "table1.json").read_text())
    rows = {(r["data"], r["method"], r["protocol"]): r for r in found["records"]}
    assert {d for d, _, _ in rows} == {"Yale", "GLIOMA"}
    assert all(
        r["accuracy"] is None and "GLIOMA.mat not in DUFS_DATA" in r["reason"]
        for k, r in rows.items() if k[0] == "GLIOMA"
    )  # fmt: skip
    assert rows["Yale", "DUFS", "oracle"]["paper"] == rows["Yale", "DUFS-R", "oracle"]["paper"] == 47.9
    for method in ("LS", "DUFS", "DUFS-R", ALL):  # of the earlier command too
        assert 100 / 3 <= rows["Yale", method, "oracle"]["accuracy"] <= 100
    assert rows["Yale", "CAE", "oracle"]["accuracy"] is None
    text = capsys.readouterr().out
    assert "GLIOMA: left out" in text
    assert "rank" not in text
    before = (folder / "out" / "quick" / "table1.cells.jsonl").read_bytes()
    command.main(["curves", *out])
    assert (folder / "out" / "quick" / "table1.cells.jsonl").read_bytes() == before  # the same cells
    found = json.loads((folder / "out" / "quick" / "curves.json").read_text())
    assert [(r["method"], r["choice"]) for r in found["records"]] == [
        *((m, c) for m in ("DUFS", "DUFS-R", "LS") for c in ("label-free", "best with labels")),
        (RANDOM, ""),
        ("variance", ""),
    ]
    text = (folder / "out" / "quick" / "table1.md").read_text()
    table = text[text.index("what needs no method") :].splitlines()
    names, values = (line.split(" | ") for line in (table[2], table[4]))
    simple = dict(zip(names, values, strict=True))
    draws = rows["Yale", RANDOM, "oracle"]["draws"]
    assert simple["best of 20"] == f"{draws['best']:.1f}"
    ours = rows["Yale", "LS", "oracle"]
    assert simple["draws below LS"] == str(sum(ours["accuracy"] > v for v in draws["each"]))
    assert f"{ours['nmi']:.1f} / {ours['ari']:.1f}" in text


@pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")  # of fits as short as these
def test_small_path(folder):
    command.main(["path", "--quick", "--out", str(folder / "out")])
    record = json.loads((folder / "out" / "quick" / "path.json").read_text())["records"][0]
    assert record["data"] == "Yale"
    assert len(record["lam"]) == len(record["p"]) == len(record["accuracy_selected"]) == 3
    selector = GatedLaplacian.preset("wide", ranking="gates", max_runs=1, n_jobs=1, **path.QUICK)
    alone = LambdaPath(selector, n_lams=3, n_splits=1, n_permutations=19, random_state=0)
    alone.fit(cached_load("Yale").X[:, ::16])
    assert record["best"] == alone.best_index_
    assert record["selected"] == alone.n_selected_.tolist()
    for count, accuracy in zip(record["selected"], record["accuracy_selected"], strict=True):
        assert accuracy is None if count == 0 else 100 / 3 <= accuracy <= 100
    table = (folder / "out" / "quick" / "path.md").read_text()
    assert f"| {record['selected'][record['best']]} | {record['p'][record['best']]:.2g} |" in table


def test_a_missing_data_set_keeps_the_papers_numbers(folder):
    cells, grid = Cells(folder / "x.jsonl"), settings.grid()
    missing = table1.compute(cells, grid, False, ["GISETTE"], table1.METHODS)
    assert missing["GISETTE"].startswith("gisette_train.data and gisette_train.labels not in DUFS_DATA")
    for method in DUFS_METHODS:
        entry = table1.record(cells, grid, "GISETTE", method, "oracle", False)
        assert (entry["accuracy"], entry["paper"]) == (None, 99.5)
        assert table1.entry_text(entry) == "- / 99.5"


def test_the_quick_table_has_two_rows_with_numbers(folder):
    savemat(folder / "GLIOMA.mat", {"X": np.eye(40)[:, :30], "Y": np.arange(40)[:, None] % 4})
    command.main(["table1", "--quick", "--out", str(folder / "out"), "--methods", "LS", ALL])
    found = json.loads((folder / "out" / "quick" / "table1.json").read_text())
    numbers = {(r["data"], r["method"]) for r in found["records"] if r["accuracy"] is not None}
    assert numbers == {(d, m) for d in ("Yale", "GLIOMA") for m in ("LS", ALL)}


def test_unknown_method_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main(["table1", "--quick", "--out", str(tmp_path), "--methods", "UMAP"])
    assert stopped.value.code == 2
    assert "SRCFS" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "shape", "classes"),
    [("PIX10", (100, 10000), 10), ("Yale", (165, 1024), 15), ("RCV1", (1000, None), 2), ("MNIST", (1000, 784), 10)],
)
def test_real_data(name, shape, classes):
    missing = [f for f in data.SOURCES[name].files if data_file(f) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not in DUFS_DATA or ../shared/data")
    found = data.load(name)
    assert found.X.shape[0] == shape[0]
    assert shape[1] in (None, found.X.shape[1])
    assert len(np.unique(found.labels)) == classes
    assert found.X.dtype == np.float64
