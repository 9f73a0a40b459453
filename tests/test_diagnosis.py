"""What says that rows may not be exchanged: right answers, what is named, and what must not matter."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest

from bench import rows as bench
from dufs_core import LambdaPath
from dufs_core.errors import RowsWarning
from dufs_core.selection.methods import make_selector
from dufs_core.significance.diagnosis import (
    MOST_COLUMNS,
    NEIGHBOURS_Z,
    WINDOW,
    common_values,
    copied_rows,
    diagnose,
    factor,
    neighbours_z,
)


@pytest.fixture(autouse=True)
def strict():
    """As in a script of a user who wants to hear of everything."""
    with np.errstate(all="raise"):
        yield


def generator(*seed):
    return np.random.default_rng(seed)


def noise(n=200, d=20, seed=0):
    return generator(seed).normal(size=(n, d))


def found(X, *arguments, **options):
    """The findings by what they are."""
    return {f.what: f for f in diagnose(X, *arguments, **options)}


def only(X, what, *arguments, **options):
    """The one finding that there is."""
    (finding,) = diagnose(X, *arguments, **options)
    assert finding.what == what
    return finding


def troubled(seed=0):
    """Far rows 11 and 150, copies in rows 100 to 129, columns 2, 5, 7 and 8 imputed in rows 40 to 69: 160 x 30."""
    X = noise(160, 30, seed)
    X[100:130] = X[:30].round(4)
    X[40:70, [2, 5, 7, 8]] = np.delete(X, np.s_[40:70], axis=0)[:, [2, 5, 7, 8]].mean(axis=0)
    X[[11, 150]] = [[60.0], [-80.0]]
    X[111] = noise(1, 30, seed + 1)  # the copy of a far row would be none
    return X


# --- right answers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", bench.TOLD)
def test_rows_that_may_not_be_exchanged_are_said(kind):
    about = bench.TOLD[kind]
    X = about.draw(generator(1))
    finding = found(X, selected_share=1.0)[about.what]
    assert finding.sentence.endswith(".")
    assert finding.sentence.count(". ") == 0
    shown = (f"{finding.number:.1f}", f"{finding.number:.1%}", f"{finding.number:.0%}")
    assert any(text in finding.sentence for text in shown)


@pytest.mark.parametrize("kind", bench.SILENCE)
def test_rows_that_may_are_not(kind):
    X, share = bench.SILENCE[kind].draw(generator(2))
    assert diagnose(X, selected_share=share) == ()


def test_what_is_concerned_is_named():
    findings = found(troubled())
    assert list(findings) == ["copies", "far rows", "equal cells"]
    np.testing.assert_array_equal(findings["copies"].rows, np.delete(np.arange(100, 130), 11))
    assert findings["copies"].number == 29 / 160
    np.testing.assert_array_equal(findings["far rows"].rows, [11, 150])
    assert findings["far rows"].number == 1
    assert "Rows 11, 150 lie more than 8 standard deviations" in findings["far rows"].sentence
    np.testing.assert_array_equal(findings["far rows"].columns, np.arange(30))
    np.testing.assert_array_equal(findings["equal cells"].rows, np.arange(40, 70))
    np.testing.assert_array_equal(findings["equal cells"].columns, [2, 5, 7, 8])
    assert "Columns 2, 5, 7, 8 have equal values in the same 30 rows (19%)" in findings["equal cells"].sentence


def test_columns_are_named_as_the_user_names_them():
    X = noise()
    X[:, 3] = np.arange(200)
    names = [f"gene {k}" for k in range(19)]
    finding = only(X, "row counter", names=[*names[:3], "time\n", *names[3:]])
    assert finding.sentence.startswith(r"Column time\n counts the rows (100% of the steps")
    assert only(X, "row counter").sentence.startswith("Column 3 counts the rows")


@pytest.mark.parametrize(("start", "step"), [(0, 1), (5, -1), (1.6e9, 60), (0.1, 0.3), (-3e200, 1e198)])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_row_counter_is_known_by_its_values(start, step, dtype):
    """In the units of the user or scaled, also where some rows were lost."""
    X = noise()
    X[:, 3] = start + step * np.arange(200)
    if dtype == "float32":
        X = (X / np.abs(X).max(axis=0)).astype(dtype)
        X[:, 3] = np.linspace(-1, 1, 200) * np.sign(step)
    np.testing.assert_array_equal(only(X, "row counter").columns, [3])
    kept = np.sort(generator(0).permutation(200)[:180])
    finding = only(X[kept], "row counter")
    assert 0.5 < finding.number < 1
    assert only(X[kept], "row counter", kept).number == 1  # where the rows are said


def test_a_counter_in_a_sample_of_a_large_table():
    positions = generator(3).permutation(100_000)[:512]
    X = noise(512, 5)
    X[:, 4] = (positions - 5e4) / 28_867
    finding = only(X.astype(np.float32), "row counter", positions)
    np.testing.assert_array_equal(finding.columns, [4])


def test_a_table_sorted_by_a_column_has_no_counter():
    X = noise()
    X = X[np.argsort(X[:, 3])]
    assert diagnose(X) == ()
    X[:, 3] = generator(1).permutation(200)  # numbers of rows in another order
    assert diagnose(X) == ()


def test_copies_beyond_chance_only():
    rng = generator(4)
    few_values = rng.integers(0, 3, (100, 4)).astype(float)
    texts = (rng.random((200, 10)) < 0.1).astype(float)
    counts = rng.poisson(0.1, (200, 500)).astype(float)
    for X in (few_values, texts, counts):
        assert diagnose(X) == ()
    counts[160:] = counts[:40]
    np.testing.assert_array_equal(only(counts, "copies").rows, np.arange(160, 200))
    bootstrap = noise(100, 30)[rng.integers(100, size=100)]
    expected = np.setdiff1d(np.arange(100), np.unique(bootstrap, axis=0, return_index=True)[1])
    np.testing.assert_array_equal(only(bootstrap, "copies").rows, expected)


def test_copies_of_copies_count_once_each():
    """Rows 0, 60 and 61 are one: two of them repeat."""
    X = noise(60, 12)
    X = np.concatenate([X, X[[0, 0, 1, 2]] + 1e-5])
    np.testing.assert_array_equal(only(X, "copies").rows, [60, 61, 62, 63])


def test_a_rare_group_is_not_far_rows():
    """What few rows share to the last digit may be a glitch; more than 5% of the rows are a group."""
    X = noise(300, 20)
    X[:15] += 30
    np.testing.assert_array_equal(only(X, "far rows").rows, np.arange(15))
    X[15] += 30
    assert diagnose(X) == ()


def test_columns_imputed_each_by_itself_are_nothing():
    X = noise(300, 20)
    missing = generator(5).random(X.shape) < 0.1
    X = np.where(missing, np.where(missing, 0, X).sum(axis=0) / (~missing).sum(axis=0), X)
    assert diagnose(X) == ()


@pytest.mark.parametrize("fill", [-9999.0, np.mean, np.median])
def test_together_they_are(fill):
    X = noise(300, 20)
    missing = generator(5).random(300) < 0.2
    X[missing, 4:8] = fill(X[~missing, 4:8], axis=0) if callable(fill) else fill
    finding = only(X, "equal cells")
    np.testing.assert_array_equal(finding.columns, [4, 5, 6, 7])
    np.testing.assert_array_equal(finding.rows, np.flatnonzero(missing))


# --- against slow independent code -----------------------------------------------------------------------------------


def slow_statistic(x):
    """Median over windows of: mean product of neighbours less that of the other pairs, over all columns; x (n, d)."""
    values = []
    for start in range(0, len(x) - WINDOW + 1, WINDOW):
        near, others = [], []
        for i in range(start, start + WINDOW):
            for j in range(i + 1, start + WINDOW):
                (near if j == i + 1 else others).append(x[i] @ x[j])
        values.append(np.mean(near) - np.mean(others))
    return np.median(values)


@pytest.mark.parametrize("rho", [0.0, 0.5])
def test_neighbours_against_plain_loops(rho):
    x = bench.autoregression(rho, 60, 40)(generator(7))
    rng, null = generator(8), []
    for _ in range(150):
        order = np.concatenate([start + rng.permutation(WINDOW) for start in range(0, 60, WINDOW)])
        null.append(slow_statistic(x[order]))
    z = (slow_statistic(x) - np.mean(null)) / np.std(null)
    assert neighbours_z(x @ x.T, 0) == pytest.approx(z, abs=1 + 0.15 * abs(z))


def test_a_factor_in_all_columns_and_in_some():
    rng = generator(9)
    t, y = rng.normal(size=300), rng.normal(size=(200, 300))

    def of(loadings):
        x = np.outer(loadings, t) + y
        x -= x.mean(axis=1, keepdims=True)
        x /= x.std(axis=1, keepdims=True)
        return factor(x, x.T @ x, 0)

    left, evenness = of(np.ones(200))
    assert left < 0.01
    assert evenness > 0.98
    left, evenness = of(np.arange(200) < 20)
    assert left < 0.05
    assert evenness == pytest.approx(0.1, abs=0.02)
    assert of(np.zeros(200)) == (1, 0)


def test_a_factor_is_asked_for_only_where_most_columns_are_selected():
    X = bench.TOLD["two batches of 0.5, 300 x 500"].draw(generator(1))
    assert diagnose(X, selected_share=0.5) == ()
    assert only(X, "one factor", selected_share=0.6).number < 0.05


def test_the_commonest_value():
    """Of four columns: filled in with the mean; at the edge of the others; with another as common; distinct."""
    x = noise(100, 4, 6).T.copy()
    x[0, :20] = x[0, 20:].mean()
    x[1, :20] = x[1].min() - 0.1
    x[2, :20], x[2, 20:35] = 0.0, 0.5
    columns, at = common_values(x, np.sort(x, axis=1))
    np.testing.assert_array_equal(columns, [0])
    np.testing.assert_array_equal(at, [np.arange(100) < 20])


# --- what must not matter --------------------------------------------------------------------------------------------


def same(one, other, columns=None, rows=None):
    """Equal findings, where column k and row i of the second are columns[k] and rows[i] of the first."""
    assert one.keys() == other.keys()
    for what, finding in one.items():
        again = other[what]
        assert again.number == pytest.approx(finding.number, rel=1e-6, abs=1e-9)
        at = again.columns if columns is None else np.sort(columns[again.columns])
        np.testing.assert_array_equal(at, finding.columns)
        at = again.rows if rows is None else np.sort(rows[again.rows])
        np.testing.assert_array_equal(at, finding.rows)


@pytest.mark.parametrize("seed", range(3))
def test_order_sign_and_units_of_columns_do_not_matter(seed):
    rng = generator(seed)
    for X in (troubled(seed), bench.autoregression(0.9, 200, 30)(rng), bench.batches(2, 200, 300, 1.0)(rng)):
        before = found(X, selected_share=1.0)
        assert before
        columns = rng.permutation(X.shape[1])
        same(before, found(X[:, columns], selected_share=1.0), columns)
        units = rng.choice([-1.0, 1.0], X.shape[1]) * 10.0 ** rng.integers(-9, 9, X.shape[1])
        same(before, found(X * units, selected_share=1.0))
        constant = np.concatenate([X, np.full((len(X), 2), 0.3)], axis=1)
        same(before, found(constant, selected_share=1.0))


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_rows_matters_to_neighbours_and_counters_only(seed):
    X = troubled(seed)
    rows = generator(seed).permutation(160)
    before, after = found(X), found(X[rows])
    earlier, later = before.pop("copies"), after.pop("copies")  # which one of two is the copy depends on the order
    assert len(earlier.rows) == len(later.rows)
    assert set(rows[later.rows] % 100) == set(earlier.rows % 100)
    same(before, after, rows=rows)
    counted = X.copy()
    counted[:, 0] = np.arange(160)  # a column that would tell the copies apart is left out
    assert list(found(counted)) == ["copies", "far rows", "row counter", "equal cells"]
    assert "row counter" not in found(counted[rows])
    series = bench.autoregression(0.9, 200, 30)(generator(seed))
    assert only(series, "neighbours").number > NEIGHBOURS_Z
    assert diagnose(series[generator(seed).permutation(200)]) == ()


def test_a_sample_in_any_order_is_put_in_order():
    series = bench.autoregression(0.9, 400, 30)(generator(1))
    series[390:] = series[:10]
    rows = generator(2).permutation(400)[:300]
    one, other = found(series[rows], rows), found(series[np.sort(rows)], np.sort(rows))
    assert "neighbours" in one
    same(one, other)
    far = noise(100, 20)
    far[7] = 90
    np.testing.assert_array_equal(only(far, "far rows", 1000 - np.arange(100)).rows, [993])


def test_the_seed_decides():
    X = bench.autoregression(0.5, 200, 30)(generator(1))
    assert diagnose(X, seed=1)[0].number == diagnose(X, seed=1)[0].number
    assert diagnose(X, seed=1)[0].number == pytest.approx(diagnose(X, seed=2)[0].number, rel=0.3)


# --- little, and strange ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", range(13))
def test_nothing_is_said_of_few_rows(n):
    assert diagnose(noise(n, 30), selected_share=1.0) == ()
    assert diagnose(np.tile(np.arange(n)[:, None] % 3, (1, 6)).astype(float), selected_share=1.0) == ()


@pytest.mark.parametrize("d", [0, 1, 2])
def test_nothing_is_said_of_few_columns(d):
    assert diagnose(noise(100, d), selected_share=1.0) == ()


def test_columns_that_do_not_vary():
    X = noise(60, 6)
    X[:, 0] = 0.3
    X[:, 1] = 0
    X[:2, 1] = 5  # in two rows only
    X[:, 2] = 1e-310 * np.arange(60)[generator(0).permutation(60)]
    assert diagnose(X, selected_share=1.0) == ()
    assert diagnose(np.ones((60, 6)), selected_share=1.0) == ()


@pytest.mark.parametrize("value", [1e6, 1e20, 1e300, -1e-300])
def test_numbers_of_any_size(value):
    """One far cell of one column is no far row; all columns in such units are as before."""
    X = noise(60, 6)
    X[3, 2] = value
    assert diagnose(X, selected_share=1.0) == ()
    assert diagnose(noise(60, 6) * value, selected_share=1.0) == ()
    X[3] = abs(value) + 50
    np.testing.assert_array_equal(only(X, "far rows").rows, [3])


def test_whole_numbers_and_other_layouts():
    X = generator(0).poisson(30.0, (200, 12))
    X[:40] = X[40:80]
    before = only(X, "copies")
    for other in (X.astype(np.uint16), np.asfortranarray(X, dtype=np.float32), np.repeat(X, 2, axis=0)[::2]):
        assert only(other, "copies").number == before.number


def test_of_many_columns_some_are_read():
    X = noise(60, 3 * MOST_COLUMNS)
    X[7, ::2] = 1e5
    X[:, 1234] = -np.arange(60)
    findings = found(X)
    assert findings["far rows"].number == pytest.approx(0.5, abs=0.1)
    np.testing.assert_array_equal(findings["row counter"].columns, [1234])


def test_few_distinct_rows_have_no_scale():
    y = np.tile(noise(5, 8), (10, 1)).T
    assert len(copied_rows(y, 0.0)) == 0


# --- the benchmark ---------------------------------------------------------------------------------------------------


def test_a_share_of_a_sample_says_so():
    X = noise(100, 20)
    X[50:70] = X[:20]
    assert "of the rows looked at repeat" in only(X, "copies", np.arange(0, 200, 2)).sentence
    assert "of the rows repeat" in only(X, "copies").sentence


def test_squares_of_distances_that_vanish():
    """Distances of 0 between rows that differ have no logarithm, and no ratio."""
    y = 1e-170 * np.arange(1.0, 61.0) * np.ones((4, 1))
    assert len(copied_rows(y, 0.0)) < 60


def test_a_path_warns_of_all_rows_once():
    X = bench.autoregression(0.9, 120, 12)(generator(0))
    path = LambdaPath(n_splits=1, lams=[0.1, 0.3], random_state=0)
    with warnings.catch_warnings(record=True) as caught, np.errstate(all="warn"):
        warnings.simplefilter("always")
        path.fit(X)
    said = [w for w in caught if issubclass(w.category, RowsWarning)]
    assert [f.what for f in path.diagnosis_] == ["neighbours"]
    assert [str(w.message) for w in said] == [path.diagnosis_[0].sentence]


@pytest.mark.parametrize("method", [["gates"], 3, {"gates": 1}])
def test_a_method_that_is_no_text(method):
    with pytest.raises(ValueError, match="method"):
        make_selector(method, None, {})


def test_records_and_tables(tmp_path, monkeypatch, capsys):
    one = {"row counter": bench.TOLD["row counter"], "two batches": bench.TOLD["two batches of 0.5, 300 x 500"]}
    monkeypatch.setattr(bench, "TOLD", one)
    monkeypatch.setattr(bench, "SILENCE", {"normal": bench.SILENCE["normal"]})
    monkeypatch.setattr(bench, "QUICK_REAL", ("here",))
    monkeypatch.setattr(bench, "TIMED", ((30, 40),))
    monkeypatch.setattr(bench.rows_told, "records", lambda *settings: iter(()))
    monkeypatch.setattr(bench.rows_time, "records", lambda *settings: iter(()))
    monkeypatch.setattr(bench, "selected_share", lambda X, seed: 0.7)
    monkeypatch.setattr(bench, "load", lambda name: (bench.autoregression(0.9, 600, 20)(generator(0)), np.zeros(600)))
    bench.main(["--quick", "--json", str(tmp_path / "rows.json")])
    records = json.loads((tmp_path / "rows.json").read_text())["records"]
    counter, batches, silent, real, time = records
    assert (counter["named"], counter["sets"], counter["least"], counter["others"]) == (3, 3, 1.0, 0)
    assert (batches["named"], batches["sets"]) == (1, 1)
    assert (silent["sets"], silent["with_alarm"]) == (15, 0)
    assert real["stored"].keys() == {"neighbours"}
    assert real["shuffled"] == {}
    assert (time["kind"], time["seconds"] < 1) == ("30 x 40", True)
    table = (tmp_path / "rows.md").read_text()
    assert "| row counter | row counter | 3 of 3 | 1.0 | 1.0 | 0 |" in table
    assert table.strip() in capsys.readouterr().out


def test_shuffled_within_classes():
    X, labels = np.arange(12.0)[:, None], np.arange(12) % 3
    shuffled = bench.within_classes(X, labels, generator(0))
    np.testing.assert_array_equal(np.sort(shuffled, axis=0), X)
    np.testing.assert_array_equal(shuffled[:, 0] % 3, labels)
