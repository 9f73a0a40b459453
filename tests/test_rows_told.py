"""The benchmark of groups that are told, far rows and far cells."""

import json

import numpy as np
import pytest

from bench import rows, rows_time, rows_told
from bench.common import ROOT, generator


def seen(selected, wins, diagnosis=None, warned=False):
    return rows_told.Seen(
        selected=np.array(selected, dtype=bool),
        wins=np.array(wins, dtype=bool),
        judged=np.ones(len(selected), dtype=bool),
        by_chance=1 / 6,
        order=np.arange(len(selected)),
        diagnosis=diagnosis or {},
        warned=warned,
    )


@pytest.mark.parametrize("kind", rows_told.GROUPS)
def test_groups_have_their_sizes_in_random_order(kind):
    X, group = rows_told.in_groups(kind, 15, generator("groups", kind, 0))
    assert X.shape == (200, 100)
    assert tuple(np.bincount(group)) == rows_told.GROUPS[kind].sizes
    assert (np.diff(group) < 0).any()


def test_structure_is_in_the_first_columns():
    X, group = rows_told.in_groups("two batches", 15, generator("groups", "here", 0))
    for number in range(2):
        X[group == number] -= X[group == number].mean(axis=0)
    within = abs(np.corrcoef(X.T) - np.eye(100))
    assert within[:15, :15].mean() > 2 * within[15:, 15:].mean()


@pytest.mark.parametrize("how", ["at", "by", "times"])
def test_far_rows(how):
    kind = rows_told.Far("normal", 50, 20, 2, how, 1e6, 0.5)
    far = abs(kind.draw(generator("far", kind.name, 0))) > 1e3
    assert kind.name == f"normal, 50 x 20: 2 rows {how} 1e+06 in 50%"
    assert far.any(axis=0).sum() == 10
    assert far.any(axis=1).sum() == 2


def test_means_over_fits():
    fits = [
        seen([1, 1, 1, 0], [1, 1, 1, 0], {"far rows": 1.0}, warned=True),
        seen([1, 0, 0, 0], [1, 1, 0, 0]),
    ]
    summary = rows_told.summary(fits, planted=2)
    assert summary["fdp"] == pytest.approx((1 / 6, 1 / 6), abs=1e-4)
    assert summary["wins"] == pytest.approx((0.25, 0.25))
    assert summary["power"] == pytest.approx((0.75, 0.25))
    assert (summary["sets"], summary["diagnosed"], summary["warned"]) == (2, 1, 1)
    assert rows_told.summary(fits[:1])["power"] is None


def test_columns_without_decoys_are_not_counted():
    fit = seen([0, 0, 0, 0], [1, 0, 0, 0])._replace(judged=np.array([True, True, False, False]))
    assert rows_told.summary([fit])["wins"] == (0.5, 0.0)


def test_a_fit_says_what_it_saw():
    X = generator("far", "one row", 0).normal(size=(60, 12))
    X[3] = 1e4
    X[:, 11] = 0
    fit = rows_told.fitted(X, 0)
    assert not fit.warned  # far rows are warned of where something is selected
    assert fit.diagnosis.keys() == {"far rows"}
    np.testing.assert_array_equal(fit.judged, np.arange(12) < 11)
    assert fit.by_chance == pytest.approx(1 / 6)


def test_moons_and_wine_have_one_far_cell_or_row():
    np.testing.assert_array_equal((rows_told.moons(30.0, 0) != rows_told.moons(None, 0)).sum(), 1)
    changed = rows_told.wine(1000.0, 0) != rows_told.wine(1.0, 0)
    assert changed.shape == (178, 16)
    assert changed.any(axis=1).sum() == 1


def test_speakers_come_twice_in_each_letter(monkeypatch):
    letters = np.repeat(np.arange(1, 27), 60)
    monkeypatch.setattr(rows_told, "matlab", lambda name: (np.zeros((1560, 2)), letters))
    speaker = rows_told.speakers()[1]
    np.testing.assert_array_equal(np.bincount(speaker), [52] * 30)
    np.testing.assert_array_equal(speaker[:4], [0, 0, 1, 1])


def test_batches_told_and_not_told(monkeypatch):
    rng = generator("batches", "here", 0)
    monkeypatch.setattr(rows_told, "known", lambda name: (rng.normal(size=(4, 3)), np.array([0, 0, 1, 1])))
    monkeypatch.setattr(
        rows_told, "fitted", lambda X, seed, groups=None: seen([1, groups is None, 0], [1, 0, 0], {"one factor": 0.01})
    )
    record = rows_told.batches("here")
    assert (record["batches"], record["told"], record["untold"], record["both"]) == (2, 1, 2, 1)
    assert record["overlap"] == [3, 3]
    assert "| here | 4 x 3 | 2 | 1 | 2 | 1 | 3, 3 | 3, 3 | one factor 0.01 | one factor 0.01 |" in rows_told.table(
        [record], rows_told.TABLES
    )


def test_cost_takes_turns(monkeypatch):
    turns = []

    def seconds(folder, n, d, seed):
        turns.append(folder)
        return 3.0 if folder == str(ROOT) else 2.0

    monkeypatch.setattr(rows_told, "cpu_seconds", seconds)
    record = rows_told.cost("512 x 20000", "/before")
    here = str(ROOT)
    assert turns == [here, "/before", "/before", here, here, "/before"]  # the first two are not counted
    assert record["ratio"] == 1.5
    assert "/before" not in rows_told.table([record], rows_told.TABLES)


def test_seconds_of_a_fit():
    assert rows_told.cpu_seconds(str(ROOT), 40, 10, 0) > 0


def test_quick_records_and_the_tables(tmp_path, monkeypatch, capsys):
    def fit(X, seed, groups=None):
        d = X.shape[1]
        return seen(np.arange(d) < 2, np.arange(d) % 6 == 0, warned=groups is None)

    monkeypatch.setattr(rows_told, "fitted", fit)
    file = tmp_path / "rows.json"
    old = [{"part": "time", "kind": "30 x 40", "seconds": 0.1}, {"part": "wine", "kind": "old"}]
    file.write_text(json.dumps({"records": old}))
    parts = ["groups", "far", "curve", "cells", "wine", "cost"]
    rows.main(["--quick", "--only", *parts, "--json", str(file)])
    records = json.loads(file.read_text())["records"]

    # those of parts that were not run are kept, and no others; nothing to compare the cost with was given
    assert records[0] == old[0]
    assert [r["part"] for r in records[1:]] == ["groups"] * 4 + ["far"] * 2 + ["curve"] * 2 + ["cells"] * 4 + [
        "wine"
    ] * 2
    table = file.with_suffix(".md").read_text()
    assert "| two batches | 15 | 1 | 0.000 ± 0.000 |" in table
    assert "| 30 | 1 | 1 of 1 | 1 of 1 | 1 of 1 |" in table
    assert "| times 1000 | 1 | 0 of 1 | 0 of 1 | 1 of 1 |" in table
    assert "| 30 x 40 | 0.1 |" in table
    assert table.strip() in capsys.readouterr().out


@pytest.mark.parametrize("kind", rows_time.PLANTED)
def test_the_first_columns_have_something_in_common(kind):
    """In what is left when each is freed of its past by differences, or as it is."""
    X = rows_time.planted(kind, generator("planted series", kind, 0))
    assert X.shape == (200, 100)
    related = [abs(np.corrcoef(x.T) - np.eye(100)) for x in (X, np.diff(X, axis=0))]
    assert max(r[:12, :12].mean() - r[12:, 12:].mean() for r in related) > 0.1


@pytest.mark.parametrize("kind", rows_time.NULLS)
def test_nulls_are_drawn_anew(kind):
    draw, half = rows_time.NULLS[kind]
    X = draw(np.random.default_rng(0), 120, 14)
    assert X.shape == (120, 14)
    assert half in "AB"
    assert np.isfinite(X).all()
    assert (draw(np.random.default_rng(1), 120, 14) != X).all()


def test_a_record_of_each_part_of_time():
    found = list(rows_time.records(rows_time.PARTS, 1, quick=True))
    assert [record["part"] for record in found] == ["series", "planted series", "covariates", "covariates"]
    assert "independent rows" in rows_told.table(found, rows_time.TABLES)
