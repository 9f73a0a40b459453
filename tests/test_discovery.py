"""Fits with decoys: which columns they find, that nuisance and its decoys win alike, and what a fit says of itself.

Decoys are functions of the order of the rows, so that permuting rows draws other decoys; permuting columns or changing
the seed does, too. What is found then may differ as much as between two seeds, and no test asks for equal q-values.
"""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
from scipy import sparse

from dufs_core import DUFS, Graph
from dufs_core.datasets import two_moons
from dufs_core.errors import (
    DegenerateBandwidthWarning,
    DufsWarning,
    IsolatedRowsWarning,
    RowsWarning,
    SelectionWarning,
)
from dufs_core.significance import pool as pools
from dufs_core.significance import structure
from dufs_core.significance.decoys import q_values

quiet = pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")


def selector(**changes):
    return DUFS(**({"random_state": 0, "n_jobs": 1, "backend": "numpy"} | changes))


def fit_quietly(X, **changes):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DufsWarning)
        return selector(**changes).fit(X)


def blobs(n=80, d=40, informative=8, seed=0):
    """Two clusters in every fifth column."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    X[:, : 5 * informative : 5] += 4.0 * (np.arange(n) % 2)[:, None]
    return X


BLOBS = np.arange(0, 40, 5)


@pytest.fixture(scope="module")
def found():
    """A fit of the blobs."""
    return fit_quietly(blobs())


def assert_same_fit(a, b):
    for name in ("in_graph_", "scores_", "q_values_", "evidence_", "decoy_evidence_", "order_", "support_"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))


# --- nuisance and its decoys win alike


def nuisance(kind, rng, n, d):
    """Columns that are independent of one another."""
    if kind == "normal":
        return rng.normal(size=(n, d))
    if kind == "far-tailed":
        return rng.standard_t(2, size=(n, d))
    if kind == "counts":
        return rng.poisson(rng.uniform(0.2, 1, d), size=(n, d)).astype(np.float64)
    return (rng.random((n, d)) < rng.uniform(0.1, 0.5, d)).astype(np.float64)


KINDS = ("normal", "far-tailed", "counts", "binary")


def wins_of_nuisance(fits, n, each, clusters=0, **changes):
    """By kind: groups that one of the 1 + M alone is the best of, and those of them that the column is."""
    alone, won = np.zeros(len(KINDS)), np.zeros(len(KINDS))
    for seed in range(fits):
        rng = np.random.default_rng([seed, n])
        X = np.hstack([nuisance(kind, rng, n, each) for kind in KINDS])
        kind = np.repeat(np.arange(len(KINDS)), each)
        if clusters:
            X = np.hstack([X, 4.0 * (np.arange(n) % 2)[:, None] + rng.normal(size=(n, clusters))])
        m = fit_quietly(X, random_state=seed, **changes)
        group = np.vstack([m.evidence_, m.decoy_evidence_])[:, : len(kind)]
        judged = ~np.isnan(group[1])
        unique = judged & ((group == group.max(axis=0)).sum(axis=0) == 1)
        alone += np.bincount(kind[unique], minlength=len(KINDS))
        won += np.bincount(kind[unique & (group.argmax(axis=0) == 0)], minlength=len(KINDS))
    return alone, won


@pytest.mark.parametrize(
    ("fits", "n", "decoys", "changes"),
    [
        (45, 40, 5, {}),
        (30, 40, 5, {"clusters": 5}),
        (30, 40, 1, {"clusters": 3}),
        (4, 530, 2, {"clusters": 3}),
    ],
    ids=["nothing else", "beside clusters", "one decoy", "more rows than the pool"],
)
def test_a_nuisance_column_wins_against_its_decoys_as_often_as_each_of_them(monkeypatch, fits, n, decoys, changes):
    """A share 1 / (M + 1), within 3 standard errors, of all and of every kind; equal bests count for neither."""
    monkeypatch.setattr(pools, "MOST_DECOYS", decoys)
    alone, won = wins_of_nuisance(fits, n, 5, **changes)
    share = 1 / (1 + decoys)
    assert alone.sum() > 0.9 * fits * 20
    for total, wins in ((alone.sum(), won.sum()), *zip(alone, won, strict=True)):
        error = np.sqrt(share * (1 - share) / total)
        assert abs(wins / total - share) < 3 * error, (alone, won)


@pytest.mark.parametrize("clusters", [0, 4])
def test_decoys_are_in_graphs_and_treated_as_their_columns(monkeypatch, clusters):
    """Where column and decoys change places, so does the evidence alone."""
    members = []
    build_pools, find_structure = structure.build_pools, structure.find_structure

    def watched(*arguments):
        found = find_structure(*arguments)
        members.append(found.members)
        return found

    monkeypatch.setattr(structure, "find_structure", watched)
    for seed in range(4):
        rng = np.random.default_rng([seed, clusters])
        X = rng.normal(size=(30, 12))
        X[:, :clusters] += 4.0 * (np.arange(30) % 2)[:, None]
        places = rng.permuted(np.arange(6 * 12).reshape(6, 12), axis=0)

        def renamed(*arguments, places=places):
            (pool,) = build_pools(*arguments)
            old = np.concatenate([places.ravel(), np.arange(pool.competing, len(pool.X))])
            return [pool._replace(X=pool.X[old], tiebreak=pool.tiebreak[old])]

        fits = []
        for build in (build_pools, renamed):
            monkeypatch.setattr(structure, "build_pools", build)
            fits.append(fit_quietly(X, dtype="float64"))
        open_columns = members[-2][members[-2] < 12]
        np.testing.assert_array_equal(np.flatnonzero(fits[0].in_graph_), open_columns)
        a, b = (np.vstack([m.evidence_, m.decoy_evidence_]) for m in fits)
        np.testing.assert_allclose(b, a.ravel()[places], rtol=1e-6, atol=1e-6)
    assert clusters or any((some >= 12).any() for some in members)  # decoys, where there is no structure


# --- what is found


def test_clusters_are_found(found):
    assert set(BLOBS) <= set(np.flatnonzero(found.support_))
    assert found.support_.sum() <= 8 + 5
    assert found.support_[found.order_[: found.support_.sum()]].all()
    assert found.scores_[BLOBS].min() > np.delete(found.scores_, BLOBS).max()
    assert set(BLOBS) <= set(np.flatnonzero(found.in_graph_))
    assert not hasattr(found, "mu_")


def test_attributes_tell_of_the_competition(found):
    assert found.decoy_evidence_.shape == (5, 40)
    assert found.q_values_.shape == found.evidence_.shape == found.scores_.shape == (40,)
    evidence = np.vstack([found.evidence_, found.decoy_evidence_])
    np.testing.assert_array_equal(q_values(evidence, np.exp(-evidence.max(axis=0))), found.q_values_)
    assert found.q_values_.min() <= 1 / (5 * 8)
    np.testing.assert_array_equal(found.support_, found.q_values_ <= 0.1)
    np.testing.assert_array_equal(np.sort(found.order_), np.arange(40))
    assert np.isfinite(found.scores_).all()
    assert not hasattr(found, "excess_score_")
    assert not hasattr(found, "p_value_")


@quiet
@pytest.mark.parametrize("rate", [0.01, 0.05, 0.3, 0.9, np.float32(0.2)])
def test_the_rate_only_cuts_the_q_values(found, rate):
    m = selector(fdr=rate).fit(blobs())
    np.testing.assert_array_equal(m.q_values_, found.q_values_)
    np.testing.assert_array_equal(m.support_, found.q_values_ <= rate)


@quiet
def test_two_moons_need_a_rate_of_one_tenth():
    """Two columns and five decoys: 1 / (5 * 2)."""
    m = selector().fit(two_moons(100, 20, random_state=0).X)
    np.testing.assert_array_equal(np.flatnonzero(m.support_), [0, 1])
    assert m.q_values_.min() == 0.1


@pytest.mark.parametrize("order", ["evidence", "diverse"])
def test_selected_columns_come_first(found, order):
    m = fit_quietly(blobs(), ranking=order)
    np.testing.assert_array_equal(m.support_, found.support_)
    assert m.support_[m.order_[: m.support_.sum()]].all()
    if order == "evidence":
        np.testing.assert_array_equal(m.order_, np.argsort(-m.evidence_, kind="stable"))


@quiet
@pytest.mark.parametrize(("wanted", "count"), [(1, 1), (3, 3), (25, 25), (40, 40), (0.25, 10), (0.01, 1)])
def test_as_many_as_asked_for(wanted, count):
    m = selector(n_features_to_select=wanted).fit(blobs())
    assert m.support_.sum() == count
    np.testing.assert_array_equal(np.sort(m.order_[:count]), np.flatnonzero(m.support_))
    certain = selector(n_features_to_select=wanted, ranking="evidence").fit(blobs())
    assert set(np.flatnonzero(certain.support_)) <= set(BLOBS) or count > 8
    noise = selector(n_features_to_select=wanted).fit(np.random.default_rng(0).normal(size=(30, 40)))
    assert noise.support_.sum() == count


# --- what cannot be judged


@quiet
def test_constant_and_rare_columns_have_no_part():
    X = blobs()
    X[:, 3], X[:, 5], X[:, 7] = 2.0, 0.0, 0.0
    X[:2, 7] = 1.0
    m = selector().fit(X)
    aside = [3, 5, 7]
    assert (m.q_values_[aside] == 1).all()
    assert (m.scores_[aside] == 0).all()
    np.testing.assert_array_equal(np.isnan(m.decoy_evidence_).all(axis=0), np.isin(np.arange(40), aside))
    assert m.evidence_[aside].max() < np.delete(m.evidence_, aside).min()
    assert not m.support_[aside].any()
    assert set(m.order_[-3:]) == set(aside)
    assert set(np.setdiff1d(BLOBS, aside)) <= set(np.flatnonzero(m.support_))
    np.testing.assert_array_equal(m.constant_features_, [3, 5])


@quiet
@pytest.mark.parametrize("shape", [(3, 4), (4, 2), (20, 1), (5, 2), (2, 6), (6, 30)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_small_data(shape, dtype):
    X = np.random.default_rng(0).normal(size=shape)
    m = selector(dtype=dtype).fit(X)
    assert ((m.q_values_ > 0) & (m.q_values_ <= 1)).all()
    for name in ("scores_", "evidence_"):
        assert np.isfinite(getattr(m, name)).all()
    np.testing.assert_array_equal(np.sort(m.order_), np.arange(shape[1]))


@quiet
@pytest.mark.parametrize(
    "X",
    [
        np.zeros((10, 5)),
        np.eye(12),
        np.ones((10, 1)) * np.arange(5),
        np.repeat(np.random.default_rng(0).normal(size=(2, 8)), 10, axis=0),
        np.repeat(np.random.default_rng(0).normal(size=(20, 1)), 8, axis=1),
        np.repeat(np.arange(10) % 2.0, 2)[:, None] * np.ones(8),
    ],
    ids=["zeros", "one in a row", "constant", "two different rows", "copies", "copies of two values"],
)
def test_degenerate_data(X):
    m = selector().fit(X)
    for name in ("scores_", "evidence_", "q_values_"):
        assert np.isfinite(getattr(m, name)).all(), name
    if len(np.unique(X[:, 0])) == 20:
        assert m.support_.all()  # copies of one column tell of one another


def test_an_empty_selection_says_at_which_rate_something_is_found():
    """The rate in the sentence, taken literally, gives the number in the sentence."""
    X = two_moons(100, 20, random_state=0).X
    with pytest.warns(SelectionWarning, match=r"false discovery rate of 0.05. At fdr=0.1 2 would be found") as caught:
        m = selector(fdr=0.05).fit(X)
    assert sum(issubclass(w.category, SelectionWarning) for w in caught) == 1
    assert not m.support_.any()
    rate, number = re.search(r"At fdr=([\d.]+) (\d+) would", str(caught[0].message)).groups()
    assert fit_quietly(X, fdr=float(rate)).support_.sum() == int(number)


def test_where_no_rate_finds_anything_the_warning_says_so():
    fits = []
    for seed in range(20):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fits.append(selector(random_state=seed, fdr=0.01).fit(np.random.default_rng(seed).normal(size=(30, 6))))
        said = " ".join(str(w.message) for w in caught if issubclass(w.category, SelectionWarning))
        assert ("No rate finds any" in said) == (fits[-1].q_values_.min() == 1)
        assert not fits[-1].support_.any()
    rates = {m.q_values_.min() for m in fits}
    assert 1 in rates
    assert len(rates) > 1


# --- the same fit


def test_a_seed_is_a_fit(found):
    assert_same_fit(fit_quietly(blobs()), found)
    assert_same_fit(fit_quietly(blobs(), n_jobs=2), found)
    other = fit_quietly(blobs(), random_state=1)
    assert not np.array_equal(other.decoy_evidence_, found.decoy_evidence_)
    assert set(BLOBS) <= set(np.flatnonzero(other.support_))


def test_signs_and_units_of_columns_do_not_matter(found):
    """Decoys are then those with the other sign, and all graphs and scores the same, but for rounding."""
    factor = np.where(np.arange(40) % 2, -1.0, 1.0) * 2.0 ** (np.arange(40) % 7 - 3)
    m = fit_quietly(blobs() * factor)
    np.testing.assert_allclose(m.evidence_, found.evidence_, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(m.q_values_, found.q_values_, rtol=1e-3)
    np.testing.assert_array_equal(m.support_, found.support_)


def test_neither_the_order_of_rows_nor_of_columns_hides_structure():
    """Other decoys (see the head of this file), so only what is far above chance stays."""
    rng = np.random.default_rng(5)
    rows, columns = rng.permutation(80), rng.permutation(40)
    by_rows, by_columns = fit_quietly(blobs()[rows]), fit_quietly(blobs()[:, columns])
    assert set(BLOBS) <= set(np.flatnonzero(by_rows.support_))
    assert set(BLOBS) <= set(columns[by_columns.support_])


def test_precision_does_not_decide(found):
    m = fit_quietly(blobs(), dtype="float64")
    np.testing.assert_allclose(m.q_values_, found.q_values_, rtol=1e-3)
    np.testing.assert_allclose(m.scores_[BLOBS], found.scores_[BLOBS], rtol=1e-2)


@pytest.mark.parametrize("kind", [sparse.csr_array, sparse.csc_array, sparse.csr_matrix])
def test_sparse_data_give_what_dense_data_give(kind):
    """Counts, most of them 0; in eight columns more of them where the row is odd."""
    rng = np.random.default_rng(0)
    X = rng.poisson(0.3, size=(80, 40)).astype(np.float64)
    X[:, BLOBS] += rng.poisson(4.0, size=(80, 8)) * (np.arange(80) % 2)[:, None]
    dense, thin = fit_quietly(X), fit_quietly(kind(X))
    np.testing.assert_allclose(thin.q_values_, dense.q_values_, rtol=1e-9)
    np.testing.assert_allclose(thin.evidence_, dense.evidence_, rtol=1e-2, atol=1e-2)
    np.testing.assert_array_equal(thin.support_, dense.support_)
    assert set(BLOBS) <= set(np.flatnonzero(thin.support_))


@pytest.mark.parametrize("n", [80, 700])
def test_data_on_disk_give_what_data_in_memory_give(n, tmp_path):
    """The same rows are looked at."""
    X = blobs(n=n)
    whole = fit_quietly(X)
    np.save(tmp_path / "X.npy", X)
    stored = fit_quietly(np.load(tmp_path / "X.npy", mmap_mode="r"))
    assert set(BLOBS) <= set(np.flatnonzero(whole.support_ & stored.support_))
    np.testing.assert_allclose(stored.q_values_, whole.q_values_, rtol=1e-9)
    np.testing.assert_allclose(stored.evidence_, whole.evidence_, rtol=1e-2, atol=1e-2)


# --- structure that no pair of columns shows


def parity(n, d, factors, seed):
    """Random signs and their product, each with noise, in the first columns."""
    rng = np.random.default_rng([seed, d])
    X = rng.normal(size=(n, d))
    signs = rng.choice([-1, 1], (n, factors))
    X[:, :factors] = signs + 0.3 * X[:, :factors]
    X[:, factors] = signs.prod(axis=1) + 0.3 * X[:, factors]
    return X


@pytest.mark.parametrize(("factors", "n", "d"), [(2, 100, 10), (2, 150, 20), (3, 150, 8)])
def test_products_of_columns_are_seen(factors, n, d):
    found, others = 0, 0
    for seed in range(5):
        m = fit_quietly(parity(n, d, factors, seed), random_state=seed)
        found += m.support_[: factors + 1].sum()
        others += m.support_[factors + 1 :].sum()
    assert found == 5 * (factors + 1)
    assert others <= 5


# --- parameters


@pytest.mark.parametrize("fdr", [0, 1, 0.0, 1.0, -0.1, 1.5, float("nan"), True, "0.1", [0.1]])
def test_what_is_no_rate_is_refused(fdr):
    with pytest.raises(ValueError, match="fdr is a false discovery rate, above 0 and below 1") as refused:
        selector(fdr=fdr).fit(blobs())
    assert repr(fdr) in str(refused.value)


def test_what_belongs_to_gates_alone_says_so():
    with pytest.raises(ValueError, match=r"the gates without decoys are GatedLaplacian\(\)"):
        selector(fdr=None).fit(blobs())
    with pytest.raises(ValueError, match="ranking must be one of 'diverse', 'evidence'; got 'gates'"):
        selector(ranking="gates").fit(blobs())
    for name in ("max_runs", "lam", "max_iter", "batch_size", "callbacks", "engine"):
        with pytest.raises(TypeError, match=f"DUFS has no parameter '{name}': it is one of GatedLaplacian, whose"):
            selector(**{name: 2})


def test_a_graph_without_neighbours_is_said():
    with pytest.warns(IsolatedRowsWarning, match=r"On the graph of the columns found 100% of the rows have no neigh"):
        selector(graph=Graph(bandwidth=1e-9)).fit(blobs())
    rng = np.random.default_rng(0)
    X = np.hstack([np.repeat(rng.integers(0, 2, (80, 1)), 5, axis=1), rng.normal(size=(80, 5))])
    with pytest.warns(DegenerateBandwidthWarning, match=r"rule 'median' gave 0 \(duplicate rows\)"):
        selector().fit(X)


# --- copies of rows --------------------------------------------------------------------------------------------------


def test_copies_of_rows_are_a_warning():
    """They make columns depend on one another: noise is found, and the fit says why."""
    X = np.random.default_rng(0).normal(size=(100, 30))
    with pytest.warns(RowsWarning, match=r"33% of the rows repeat another row.*keep one row of each"):
        fitted = selector().fit(np.concatenate([X, X[:50]]))
    (finding,) = fitted.diagnosis_
    assert (finding.what, finding.number) == ("copies", pytest.approx(1 / 3))
    np.testing.assert_array_equal(finding.rows, np.arange(100, 150))
    assert fitted.support_.any()
    assert fit_quietly(X).diagnosis_ == ()


def test_rows_that_agree_by_chance_are_no_copies():
    """Few columns of few values, and rows of a text that have no word of it."""
    rng = np.random.default_rng(0)
    assert fit_quietly(rng.integers(0, 3, (100, 4)).astype(float)).diagnosis_ == ()
    assert fit_quietly((rng.random((200, 10)) < 0.1).astype(float)).diagnosis_ == ()


@pytest.mark.filterwarnings("ignore::dufs_core.errors.DegenerateBandwidthWarning")
@pytest.mark.parametrize("make", [np.asarray, sparse.csr_array])
def test_a_far_row_is_named_in_every_layout(make, tmp_path):
    X = np.random.default_rng(0).normal(size=(100, 6))
    X[17] = 50.0
    fitted = fit_quietly(make(X))
    assert [finding.what for finding in fitted.diagnosis_] == ["far rows"]
    said = "Row 17 lies more than 8 standard deviations from the others in up to 100% of the columns"
    assert fitted.diagnosis_[0].sentence.startswith(said)
    assert not fitted.support_.any()
    np.save(tmp_path / "X.npy", X)
    stored = fit_quietly(np.load(tmp_path / "X.npy", mmap_mode="r"))
    np.testing.assert_array_equal(stored.diagnosis_[0].rows, [17])


def test_rows_in_the_order_of_time_are_said_by_name_of_what_to_do():
    """The columns are independent walks: nothing is to be found, and everything is."""
    X = np.random.default_rng(1).normal(size=(200, 30)).cumsum(axis=0)
    with pytest.warns(RowsWarning, match=r"Neighbouring rows are more alike .*rows=.series."):
        fitted = selector().fit(X)
    assert fitted.support_.all()
    notes = fitted._explanation(200).notes
    assert fitted.diagnosis_[0].sentence in notes


def test_a_sample_of_many_rows_names_rows_of_the_table():
    """Of 1,500 rows 512 are looked at: what is said of them are positions in the table."""
    X = np.random.default_rng(2).normal(size=(1500, 6))
    X[:12] = 60.0
    fitted = fit_quietly(X)
    (finding,) = [found for found in fitted.diagnosis_ if found.what in ("far rows", "copies")][:1]
    assert set(finding.rows.tolist()) <= set(range(12))


def test_nothing_is_warned_of_where_nothing_is_selected():
    X = np.random.default_rng(3).normal(size=(60, 10))
    X[:, 3] = np.arange(60)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fitted = selector().fit(X)
    assert [finding.what for finding in fitted.diagnosis_] == ["row counter"]
    assert fitted.diagnosis_[0].columns.tolist() == [3]
    assert fitted.support_.any() == any(w.category is RowsWarning for w in caught)
