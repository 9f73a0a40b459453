"""Rows in the order of time: innovations, the common filter, decoys, and what is refused."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from scipy.signal import lfilter

from dufs_core import DUFS, fit_many, stability_selection
from dufs_core.backend import get_backend, random
from dufs_core.data.groups import Told
from dufs_core.data.times import check_times
from dufs_core.errors import RowsWarning, SelectionWarning
from dufs_core.significance import series
from dufs_core.significance.exchange import Exchange
from dufs_core.significance.rows import Rows, averaged
from dufs_core.significance.series import COLOURS, Pieces, coloured, long_enough, n_lags, whitened

NUMPY = get_backend("numpy")
STREAM = random.Stream.DECOYS


def autoregression(coefficients, n, d, seed=0):
    """Columns (d, n) with these coefficients, begun long before."""
    e = np.random.default_rng(seed).normal(size=(d, n + 200))
    return lfilter([1.0], [1.0, *(-a for a in coefficients)], e)[:, 200:]


def lagged(e, lag):
    """The mean correlation of a value and the one so many rows before."""
    a = e - e.mean(axis=1, keepdims=True)
    return ((a[:, lag:] * a[:, :-lag]).mean(axis=1) / a.var(axis=1)).mean()


def white(x, pieces=None, seed=0):
    pieces = Pieces((0,), (x.shape[1],)) if pieces is None else pieces
    lags = n_lags(np.array(pieces.sizes))
    return whitened(x, pieces, lags, np.arange(len(x)), seed)


# --- innovations


@pytest.mark.parametrize("coefficients", [(0.5,), (0.95,), (1.6, -0.85), (0.0,)])
def test_innovations_have_no_memory(coefficients):
    e = white(autoregression(coefficients, 400, 60))
    assert e.shape == (60, 388)
    assert max(abs(lagged(e, lag)) for lag in (1, 2, 3, 5)) < 0.03


@pytest.mark.parametrize("x", ["walk", "trend"])
def test_walks_and_trends_have_innovations(x):
    e = np.random.default_rng(1).normal(size=(60, 400))
    x = e.cumsum(axis=1) if x == "walk" else e + np.linspace(-5, 5, 400)
    assert max(abs(lagged(white(x), lag)) for lag in (1, 2, 3)) < 0.03


def test_innovations_are_those_that_the_columns_were_made_of():
    e = np.random.default_rng(2).normal(size=(20, 900))
    x = lfilter([1.0], [1.0, -0.8], e)
    found = white(x)
    correlation = [np.corrcoef(a, b)[0, 1] for a, b in zip(found, e[:, -found.shape[1] :], strict=True)]
    assert min(correlation) > 0.97


def test_the_bias_of_the_fit_is_removed(monkeypatch):
    """Independent AR(1) of 0.95 at 60 rows: squared correlations after the filter are nearly those of shuffled ones."""

    def related(e):
        y = coloured(np, e, Pieces.of_sizes(np.array([e.shape[1]])), 0.5)
        return (np.corrcoef(y) ** 2).mean()

    x = autoregression((0.95,), 60, 400)
    corrected = white(x)
    by_chance = related(np.random.default_rng(0).permuted(corrected, axis=1))
    monkeypatch.setattr(series, "_COPIES", 0)
    assert related(corrected) < 1.1 * by_chance
    assert related(white(x)) > 1.15 * by_chance


def test_a_glitch_does_not_hide_the_memory():
    x = autoregression((0.9,), 300, 40)
    x[:, 150] += 1e4
    e = white(x)
    kept = np.delete(e, np.arange(136, 142), axis=1)
    assert abs(lagged(kept, 1)) < 0.06


def test_columns_are_whitened_by_themselves():
    x = np.concatenate([autoregression((0.5,), 120, 3), autoregression((0.9,), 120, 3, seed=1)])
    pieces = Pieces((0, 50), (50, 70))
    together = whitened(x, pieces, 6, np.arange(6), 0)
    for k in range(6):
        np.testing.assert_allclose(whitened(x[k : k + 1], pieces, 6, np.array([k]), 0)[0], together[k], rtol=1e-9)


def test_series_are_whitened_apart():
    """A step from one series to the next is nobody's innovation."""
    x = autoregression((0.5,), 120, 30)
    moved = x.copy()
    moved[:, 60:] += 1e3
    pieces = Pieces((0, 60), (60, 60))
    np.testing.assert_allclose(white(moved, pieces), white(x, pieces), atol=1e-6)
    assert white(x, pieces).shape == (30, 120 - 2 * 7)


@pytest.mark.parametrize(("sizes", "lags"), [([400], 12), ([60], 7), ([9], 1), ([20] * 10, 2), ([300, 8, 8], 12)])
def test_lags(sizes, lags):
    assert n_lags(np.array(sizes)) == lags
    assert long_enough(np.array(sizes)).tolist() == [size >= 3 * lags + 1 for size in sizes]


# --- the common filter


@pytest.mark.parametrize("colour", COLOURS)
def test_the_filter_by_a_recursion(colour):
    e = np.random.default_rng(3).normal(size=(4, 90))
    pieces = Pieces((0, 40), (40, 50))
    out = coloured(np, e, pieces, colour)
    for start, stop in ((0, 40), (40, 90)):
        part = e[:, start:stop]
        mirrored = np.concatenate([part[:, ::-1], part], axis=1)
        expected = lfilter([1.0], [1.0, -colour], mirrored)[:, stop - start :]
        expected -= expected.mean(axis=1, keepdims=True)
        if stop - start > 40:
            time = np.arange(stop - start)
            expected -= np.stack([np.polyval(np.polyfit(time, row, 1), time) for row in expected])
        np.testing.assert_allclose(out[:, start:stop], expected, atol=1e-5)
    assert (e == np.random.default_rng(3).normal(size=(4, 90))).all()


# --- rows


def test_series_are_read_in_order():
    group = np.array([1, 0, 1, 1, 0, 0, 1])
    sample = Rows(7, group, is_series=True).sample(NUMPY, 0, STREAM, 1, 512)
    assert sample.positions.tolist() == [1, 4, 5, 0, 2, 3, 6]
    assert sample.group.tolist() == [0, 0, 0, 1, 1, 1, 1]


def test_long_series_are_read_as_means():
    n = 1300
    assert averaged(n) == 3
    table = Rows(n, np.repeat([0, 1], [800, 500]), is_series=True)
    X = np.random.default_rng(0).normal(size=(n, 4))
    exchange = Exchange.of(NUMPY, table, 0)
    x = exchange.read(X, np.array([2, 0]))
    assert x.shape == (2, 266 + 166)
    np.testing.assert_allclose(x[0, :3], X[:9, 2].reshape(3, 3).mean(axis=1))
    np.testing.assert_allclose(x[1, 266], X[800:803, 0].mean())


def test_halves_of_a_series_are_stretches():
    first, second = Rows(100, is_series=True).halves(1, 0)
    assert (np.diff(first.rows) == 1).all()
    assert len(first.rows) == 50
    assert sorted([*first.rows, *second.rows]) == list(range(100))
    # what lies before and after the stretch is two series
    pieces = [second.rows[second.group == g] for g in np.unique(second.group)]
    assert all((np.diff(piece) == 1).all() for piece in pieces)


@pytest.mark.filterwarnings("ignore::dufs_core.errors.SelectionWarning")
def test_short_series_take_no_part():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(206, 20))
    labels = ["long"] * 200 + ["short"] * 6
    with pytest.warns(RowsWarning, match="6 rows of series too short to tell their past took no part"):
        fitted = DUFS(rows="series", n_features_to_select=2, random_state=0).fit(X, groups=labels)
    assert fitted.rows_[:5] == (200, 1, 6, 0, 1)
    with pytest.raises(ValueError, match=r'rows="series" needs 20 rows in series .* of 1 has 12 rows'):
        DUFS(rows="series").fit(X[:12])


# --- fits


@pytest.mark.filterwarnings("ignore::dufs_core.errors.SelectionWarning")
def test_walks_are_not_found_and_what_they_share_is():
    rng = np.random.default_rng(4)
    e = rng.normal(size=(200, 40))
    untold = DUFS(random_state=0)
    with pytest.warns(RowsWarning, match="Neighbouring rows are more alike"):
        assert untold.fit(e.cumsum(axis=0)).support_.sum() > 30
    assert not DUFS(rows="series", random_state=0).fit(e.cumsum(axis=0)).support_.any()
    e[:, :6] += 1.5 * rng.normal(size=(200, 1))
    told = DUFS(rows="series", random_state=0).fit(e.cumsum(axis=0))
    assert told.get_support(indices=True).tolist() == [0, 1, 2, 3, 4, 5]
    assert not told.diagnosis_
    assert told.rows_.sentence.startswith("200 rows were taken as one series, evenly spaced; columns were freed")
    np.testing.assert_array_equal(told.transform(e), e[:, :6])


@pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")
@pytest.mark.parametrize("kind", ["AR(1) of 0.9", "walks", "several"])
def test_nuisance_wins_about_one_in_six(kind):
    """At most 0.2, within three standard errors over 12 sets: the whitening is approximate."""
    shares = []
    for seed in range(12):
        x = autoregression((0.9,), 200, 40, seed)
        if kind == "walks":
            x = np.random.default_rng(seed).normal(size=(40, 200)).cumsum(axis=1)
        groups = np.repeat(np.arange(4), 50) if kind == "several" else None
        fitted = DUFS(rows="series", random_state=seed).fit(x.T, groups=groups)
        shares.append((fitted.evidence_ > fitted.decoy_evidence_.max(axis=0)).mean())
        assert not fitted.support_.any()
    assert np.mean(shares) < 0.2 + 3 * np.std(shares) / np.sqrt(12)


@pytest.mark.filterwarnings("ignore::dufs_core.errors.SelectionWarning")
def test_every_layout_and_thread_has_the_same(tmp_path):
    x = autoregression((0.7,), 150, 16).T.astype(np.float32)
    x[:, :4] += 2 * np.random.default_rng(0).normal(size=(150, 1)).astype(np.float32)
    plain = DUFS(rows="series", random_state=0, n_jobs=1, backend="numpy").fit(x)
    assert plain.support_[:4].all()
    threads = DUFS(rows="series", random_state=0, n_jobs=2, backend="numpy").fit(x)
    np.testing.assert_array_equal(threads.evidence_, plain.evidence_)
    np.save(tmp_path / "X.npy", x)
    for layout in (sparse.csr_array(x), np.load(tmp_path / "X.npy", mmap_mode="r"), pd.DataFrame(x)):
        other = DUFS(rows="series", random_state=0, backend="numpy").fit(layout)
        np.testing.assert_array_equal(other.support_, plain.support_)
        np.testing.assert_allclose(other.evidence_, plain.evidence_, rtol=1e-2, atol=1e-2)


@pytest.mark.filterwarnings("ignore::dufs_core.errors.SelectionWarning")
def test_together_and_on_stretches():
    x = autoregression((0.7,), 160, 12).T
    x[:, :4] += 2 * np.random.default_rng(0).normal(size=(160, 1))
    groups = np.repeat(["a", "b"], 80)
    settings = {"rows": "series", "random_state": 0}
    expected = DUFS(**settings).fit(x, groups=groups)
    (together,) = fit_many([DUFS(**settings)], x, groups=groups)
    np.testing.assert_array_equal(together.evidence_, expected.evidence_)
    stable = stability_selection(
        DUFS(rows="series", n_features_to_select=4), x, groups=groups, n_subsamples=2, random_state=0
    )
    assert stable.frequencies[:4].min() == 1.0


# --- what cannot be taken out


def two_levels(rng, n, d):
    return (np.cumsum(rng.random((n, d)) < 0.05, axis=0) % 2).astype(float)


def held(rng, n, d):
    """Each column keeps its value for ten rows on the mean."""
    values = rng.normal(size=(n, d))
    since = np.where(rng.random((n, d)) < 0.1, np.arange(n)[:, None], 0)
    return np.take_along_axis(values, np.maximum.accumulate(since, axis=0), axis=0)


def coarse(rng, n, d):
    return np.rint(rng.normal(size=(n, d)).cumsum(axis=0) / 5)


@pytest.mark.parametrize("draw", [two_levels, held, coarse])
def test_columns_that_remember_too_much_are_not_judged(draw):
    X = draw(np.random.default_rng(0), 300, 20)
    with pytest.warns(SelectionWarning, match="No feature was judged"):
        fitted = DUFS(rows="series", random_state=0).fit(X)
    assert not fitted.support_.any()
    (finding,) = [found for found in fitted.diagnosis_ if found.what == "memory"]
    assert finding.number > 0.9
    assert "remember more of the past than could be taken out" in finding.sentence
    assert "treat the selection as unproven" in finding.sentence


def test_few_columns_that_remember_leave_the_others_judged():
    rng = np.random.default_rng(1)
    X = autoregression((0.6,), 300, 30).T
    X[:, :5] += 2 * rng.normal(size=(300, 1))
    X[:, 29] = two_levels(rng, 300, 1)[:, 0]
    with pytest.warns(RowsWarning, match="Column 29 remembers more .* and is not judged"):
        fitted = DUFS(rows="series", random_state=0).fit(X)
    assert fitted.support_[:5].all()
    assert np.isnan(fitted.decoy_evidence_[:, 29]).all()
    assert not np.isnan(fitted.decoy_evidence_[:, :29]).any()


def test_innovations_of_normal_series_do_not_remember():
    e = white(autoregression((0.9,), 200, 400))
    assert series.remembers(e).mean() < 0.02
    assert series.remembers(autoregression((0.9,), 200, 50)).mean() > 0.95


@pytest.mark.filterwarnings("ignore::dufs_core.errors.SelectionWarning")
@pytest.mark.parametrize("rows", [1, 3, 5])
def test_an_outage_is_no_structure(rows):
    X = np.random.default_rng(1).normal(size=(200, 30))
    X[50 : 50 + rows] = -9999
    assert not DUFS(rows="series", random_state=0).fit(X).support_.any()


# --- times


def test_times_are_evenly_spaced():
    months = pd.date_range("2020-01-31", periods=60, freq="ME")
    X = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 4)), index=months)
    check_times(X, None)
    check_times(X.to_numpy(), None)
    check_times(X.reset_index(drop=True), None)
    check_times(pd.concat([X, X]), ["a"] * 60 + ["b"] * 60)
    with pytest.raises(ValueError, match="the index of X falls or repeats at row 60: sort it"):
        check_times(pd.concat([X, X]), None)
    gap = X.drop(X.index[20:24])
    with pytest.raises(ValueError, match=r"1 of 55 steps of the index of X differ .* the first before row 20: bring"):
        DUFS(rows="series").fit(gap)
    check_times(gap, [0] * 20 + [1] * 36)
    quarters = pd.DataFrame(X.to_numpy(), index=pd.period_range("2000Q1", periods=60, freq="Q"))
    check_times(quarters, None)
    with pytest.raises(ValueError, match=r"1 of 55 steps of the index of X differ .* the first before row 20: bring"):
        check_times(quarters.drop(quarters.index[20:24]), None)
    trading = pd.DataFrame(X.to_numpy(), index=pd.bdate_range("2020-01-06", periods=60))
    with pytest.raises(ValueError, match=r"11 of 59 steps .*\(trading days\), leave the times out, X.reset_index"):
        check_times(trading, None)
    check_times(trading.reset_index(drop=True), None)


# --- what goes with what


@pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")
@pytest.mark.parametrize("groups", [False, True])
@pytest.mark.parametrize("covariates", [False, True])
@pytest.mark.parametrize("rows", ["independent", "series"])
@pytest.mark.parametrize("layout", ["dense", "sparse", "on disk", "batches", "batches from disk"])
@pytest.mark.parametrize("method", ["decoys", "gates"])
def test_what_goes_with_what(groups, covariates, rows, layout, method, tmp_path):
    """Every combination is fitted, or refused in a sentence that names what to do."""
    from dufs_core import GatedLaplacian

    if method == "gates" and rows == "series":
        pytest.skip("GatedLaplacian has no parameter rows")
    if method == "decoys" and layout.startswith("batches"):
        pytest.skip("DUFS has no parameter batch_size")
    rng = np.random.default_rng(0)
    n = 600 if method == "decoys" and layout == "on disk" else 96  # data of few rows are read into memory
    X = rng.normal(size=(n, 8)).astype(np.float32)
    np.save(tmp_path / "X.npy", X)
    given = sparse.csr_array(X) if layout == "sparse" else X
    if layout.endswith("disk"):
        given = np.load(tmp_path / "X.npy", mmap_mode="r")
    told = Told(np.repeat(["a", "b"], n // 2) if groups else None, rng.uniform(size=(n, 2)) if covariates else None)
    size = 40 if layout.startswith("batches") else None
    selector: DUFS | GatedLaplacian = DUFS(rows=rows, random_state=0)
    if method == "gates":
        selector = GatedLaplacian(max_runs=1, max_iter=10, random_state=0, batch_size=size)
    refused = None
    if method == "gates" and covariates:
        refused = "takes no covariates: use DUFS"
    elif method == "gates" and groups and layout in ("sparse", "batches from disk"):
        refused = "takes groups with dense data in memory"
    if refused:
        with pytest.raises(ValueError, match=refused):
            selector.fit(given, groups=told.groups, covariates=told.covariates)
        return
    fitted = selector.fit(given, groups=told.groups, covariates=told.covariates)
    assert np.isfinite(fitted.scores_).all()
    averaged = -(-n // 512) if rows == "series" else 0
    expected = (n, 2 if groups else None, 0, 2 if covariates else 0, averaged)
    assert fitted.rows_[:5] == expected


def test_unknown_rows_are_refused():
    with pytest.raises(ValueError, match="rows must be"):
        DUFS(rows="time").fit(np.eye(8))
