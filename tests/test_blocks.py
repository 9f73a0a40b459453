"""More than 512 rows: logical blocks, decoys within them, limits that all share, correlations of all rows."""

import warnings

import h5py
import numpy as np
import pytest
from scipy import sparse

from dufs_core import DUFS
from dufs_core.backend import get_backend, random
from dufs_core.data.dense import scale_columns
from dufs_core.data.groups import Within
from dufs_core.errors import DegenerateBandwidthWarning, DufsWarning, RowsWarning
from dufs_core.significance import blocks, correlations, pairs, products, structure
from dufs_core.significance.blocks import BlockPools, Blocks, most_rows, reach
from dufs_core.significance.correlations import Correlations
from dufs_core.significance.rows import Rows

bk = get_backend("numpy")
STREAM = random.Stream.DECOYS


@pytest.fixture(autouse=True)
def few_curves(monkeypatch):
    """Functions and products of columns take most of the time of small fits, and are not asked about here."""
    monkeypatch.setattr(pairs, "_PRODUCTS", 1e9)
    monkeypatch.setattr(products, "PRODUCTS", 1e8)


def structured(n, d=60, informative=10, shift=0.4, seed=0):
    """Three clusters in the first columns, and which rows are of which."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)).astype(np.float32)
    cluster = rng.integers(3, size=n)
    X[:, :informative] += shift * rng.permuted(np.tile([-1, 0, 1], (informative, 1)), axis=1)[:, cluster].T
    return X, cluster


def pools_of(X, seed=0, threads=1, group=None, most=10**9):
    data = scale_columns(X, "columns", "float32")
    columns = np.flatnonzero(~data.constant)
    in_blocks = Blocks(bk, data.X, Rows(len(X), group), seed, threads, most)
    return BlockPools(bk, in_blocks, columns, True, seed)


# --- rows in blocks


@pytest.mark.parametrize("n", [513, 600, 1024, 5000])
def test_every_row_is_in_one_block(n):
    order, ends = Rows(n).blocks(3, STREAM, 1, n)
    sizes = np.diff(ends, prepend=0)
    assert sorted(order) == list(range(n))
    assert sizes.max() <= 512
    assert sizes.max() - sizes.min() <= 1
    assert len(ends) == -(-n // 512)


def test_blocks_mix_rows_of_the_whole_table():
    """Of a table of two halves each block has about half its rows in each."""
    order, ends = Rows(8192).blocks(0, STREAM, 1, 8192)
    for rows in np.split(order, ends[:-1]):
        assert abs((rows < 4096).sum() - 256) < 60  # 5 standard deviations


def test_of_more_rows_some_are_drawn():
    order, _ = Rows(5000).blocks(0, STREAM, 1, 1500)
    other, _ = Rows(5000).blocks(1, STREAM, 1, 1500)
    assert len(order) == len(set(order)) == 1500
    assert len(np.intersect1d(order, other)) < 600


def test_groups_stay_together():
    rng = np.random.default_rng(0)
    sizes = rng.integers(2, 200, size=60)
    group = rng.permutation(np.repeat(np.arange(60), sizes))
    order, ends = Rows(len(group), group).blocks(0, STREAM, 1, len(group))
    assert sorted(order) == list(range(len(group)))
    assert np.diff(ends, prepend=0).max() <= 512
    for rows in np.split(order, ends[:-1]):
        labels, count = np.unique(group[rows], return_counts=True)
        assert (count >= np.minimum(16, sizes[labels])).all()


def test_quick_orders_are_permutations_within_groups():
    group = np.array([1, 0, 0, 1, 1, 0, 1, 0, 1])
    order = random.orders(bk, 5, STREAM, 0, 5, 9, np.arange(4000), 2, group, random.quick_words)
    assert (np.sort(order, axis=2) == np.arange(9)).all()
    assert (group[order] == group).all()
    at_first = np.bincount(order[:, :, 0].ravel(), minlength=9)
    own = group == 1
    assert at_first[~own].sum() == 0
    expected = 20_000 / own.sum()
    assert (abs(at_first[own] - expected) < 5 * np.sqrt(expected)).all()
    assert not (order[0] == order[1]).all(axis=1).mean() > 0.01
    same = random.orders(bk, 5, STREAM, 0, 5, 9, np.arange(4000), 1, group, random.quick_words)
    np.testing.assert_array_equal(order, same)


# --- values


def test_decoys_are_their_columns_in_another_order_of_the_block():
    X, _ = structured(1300, d=12)
    pools = pools_of(X)
    M, d = pools.pool.n_decoys, 12
    for number in range(len(pools.blocks)):
        Z = pools.linear(pools.blocks.exchange(number))
        columns, decoys = Z[:d], Z[d : pools.pool.competing].reshape(M, d, -1)
        np.testing.assert_allclose(np.sort(decoys, axis=2), np.sort(columns, axis=1)[None].repeat(M, 0), atol=2e-6)
        assert (decoys != columns).mean() > 0.9
        assert abs(Z.mean(axis=1)).max() < 1e-5


def test_values_reach_farther_the_more_rows_there_are():
    """A cell of 1,000 is brought to the limit, which 512 rows have at 2 deviations and 10^6 at 13."""
    assert reach(100) == reach(512) == 2.0
    assert reach(16 * 512) == 4.0
    X = np.random.default_rng(0).normal(size=(8192, 5))
    X[7, 2] = 1000.0
    pools = pools_of(X)
    Z = np.concatenate(list(pools.together()), axis=1)
    assert 3.5 < abs(Z[2]).max() < 4.5
    assert abs(Z[:5].std(axis=1) - 1).max() < 0.05


def test_decoys_of_groups_stay_in_them():
    rng = np.random.default_rng(0)
    group = rng.integers(40, size=1500)
    X = rng.normal(size=(1500, 6)) + 3 * rng.normal(size=(40, 6))[group]
    pools = pools_of(X, group=group)
    exchange = pools.blocks.exchange(0)
    Z = pools.linear(exchange)
    columns, decoys = Z[:6], Z[6 : pools.pool.competing].reshape(5, 6, -1)
    for label in np.unique(exchange.group):
        own = exchange.group == label
        assert abs(Z[:, own].mean(axis=1)).max() < 1e-5
        expected = np.sort(columns[:, own], axis=1)[None].repeat(5, 0)
        np.testing.assert_allclose(np.sort(decoys[:, :, own], axis=2), expected, atol=1e-5)
    assert isinstance(exchange.within, Within)


# --- correlations


@pytest.mark.parametrize(("n", "whole"), [(2000, True), (600, False)])
@pytest.mark.parametrize("threads", [1, 3])
def test_correlations_are_those_of_all_rows(n, whole, threads, monkeypatch):
    monkeypatch.setattr(correlations, "TILE", 100)
    monkeypatch.setattr(pairs, "TILE", 128)
    rng = np.random.default_rng(0)
    D, competing = 700, 500
    Z = rng.normal(size=(D, n)).astype(np.float32)
    Z[:30] += 0.3 * rng.normal(size=n).astype(np.float32)
    Z -= Z.mean(axis=1, keepdims=True)
    asked = []
    found = Correlations(bk, np.array_split(Z, 5, axis=1), D, n, threads, asked.append)
    assert found._is_whole == whole
    assert asked[-1] == n

    expected = n * np.corrcoef(Z.astype(np.float64)) ** 2 - 1
    np.fill_diagonal(expected, -np.inf)
    strongest, graph = found.partners(competing)
    np.testing.assert_allclose(strongest, expected.max(axis=1), rtol=1e-3, atol=1e-3)
    column, partner = graph.nonzero()
    likely = expected[column, partner].min()
    np.testing.assert_allclose(graph[column, partner] ** 2, expected[column, partner] - likely, atol=0.3)
    assert (expected[:competing] > likely).sum() <= 1.02 * (column < competing).sum()

    members = np.array([3, 7, 40, 650])
    np.fill_diagonal(expected, 0)
    np.testing.assert_allclose(found.with_members(members), expected[:, members].sum(axis=1), rtol=1e-3, atol=2e-3)


def test_one_row_adds_at_most_one():
    """Two columns that are 0 but in one row each have in common are not dependent."""
    n = 10_000
    Z = np.random.default_rng(0).normal(size=(50, n)).astype(np.float32)
    Z[:2] = 0
    Z[:2, 5] = 1.0
    found = Correlations(bk, [Z], 50, n, 1, lambda rows: None)
    assert abs(found._tile(slice(0, 1), slice(1, 2)).item() - 1.0) < 1e-3


# --- fits


@pytest.mark.parametrize("order", ["random", "sorted by class", "by sample"])
def test_weak_structure_is_found_in_many_rows_in_any_order(order):
    """512 of these rows show nothing."""
    X, cluster = structured(6000, d=200, shift=0.35)
    if order == "sorted by class":
        X = X[np.argsort(cluster, kind="stable")]
    elif order == "by sample":
        X = X[np.lexsort((cluster, np.arange(len(X)) // 1200))]
    few = DUFS(random_state=0, max_rows=512).fit
    with pytest.warns(DufsWarning):
        assert few(X).support_.sum() == 0
    found = DUFS(random_state=0).fit(X)
    assert found.support_[:10].all()
    assert found.support_[10:].sum() <= 3
    assert (np.argsort(-found.evidence_)[:10] < 10).all()


@pytest.mark.parametrize("kind", ["normal", "counts"])
def test_what_one_row_in_fifty_shares_is_found(kind):
    rng = np.random.default_rng(1)
    rare = rng.random(5000) < 0.02
    if kind == "normal":
        X = rng.normal(size=(5000, 200))
        X[rare, :15] += 2
    else:
        rate = np.full((5000, 200), 0.05)
        rate[rare, :15] = 1.0
        X = rng.poisson(rate).astype(np.float32)
    with warnings.catch_warnings(action="ignore", category=DegenerateBandwidthWarning):  # rows of zeros
        found = DUFS(random_state=0).fit(X)
    assert found.support_[:15].all()
    assert found.support_[15:].sum() <= 4


def test_a_pair_that_512_rows_do_not_show_is_found():
    X = np.random.default_rng(0).normal(size=(6000, 200))
    X[:, 1] += 0.085 * X[:, 0]
    found = DUFS(random_state=0).fit(X)
    assert found.support_[:2].all()
    assert found.support_[2:].sum() <= 1


def test_a_far_row_of_many_decides_nothing():
    X = np.random.default_rng(0).normal(size=(2000, 60))
    X[17] = 100.0
    with pytest.warns(DufsWarning):
        assert DUFS(random_state=0).fit(X).support_.sum() == 0


def test_nuisance_wins_its_groups_as_often_as_chance():
    """Whatever its values, beside structure; groups of all sizes, too."""
    wins = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        X, _ = structured(1100, d=170, shift=0.8, seed=seed)
        X[:, 10:50] = rng.random((1100, 40)) < 0.02
        X[:, 50:90] = rng.lognormal(size=(1100, 40))
        X[:, 90:130] = rng.poisson(0.2, size=(1100, 40))
        group = rng.integers(50, size=1100) if seed % 2 else None
        if group is not None:
            X[:, 10:] += rng.normal(size=(50, 160)).astype(np.float32)[group] / 2
        fitted = DUFS(random_state=seed).fit(X, groups=group)
        wins.append((fitted.evidence_[10:] > fitted.decoy_evidence_[:, 10:].max(axis=0)).mean())
    error = np.std(wins) / np.sqrt(len(wins))
    assert abs(np.mean(wins) - 1 / 6) < 3 * error, (np.mean(wins), error)


def test_decoys_are_treated_as_their_columns(monkeypatch):
    """Where column and decoys change places in every block, so does the evidence alone."""
    X, _ = structured(600, d=12, informative=4, shift=1.5)
    rng = np.random.default_rng(0)
    places = rng.permuted(np.arange(6 * 12).reshape(6, 12), axis=0)
    pools = pools_of(X)
    old = np.concatenate([places.ravel(), np.arange(72, pools.pool.size)])
    local = structure.Objective(power=2, bandwidth="median", n_neighbors=5, bandwidth_factor=1.0, self_loops=False)

    def evidence(pools):
        sources = structure.Sources.of_blocks(bk, pools, 1, lambda rows: None)
        return structure.find_structure(bk, sources, 1, local).evidence

    expected = evidence(pools)
    made = BlockPools._with_decoys
    monkeypatch.setattr(BlockPools, "_with_decoys", lambda self, exchange, x: made(self, exchange, x)[old])
    renamed = pools_of(X)
    renamed.pool = renamed.pool._replace(tiebreak=renamed.pool.tiebreak[old])
    np.testing.assert_allclose(evidence(renamed), expected[old], rtol=1e-3, atol=1e-3)


def test_threads_and_storage_change_nothing(tmp_path):
    X, _ = structured(700, d=170, shift=0.8)
    X[abs(X) < 0.7] = 0
    one = DUFS(random_state=0, n_jobs=1).fit(X)
    three = DUFS(random_state=0, n_jobs=3).fit(X)
    np.testing.assert_array_equal(three.evidence_, one.evidence_)
    np.testing.assert_array_equal(DUFS(random_state=0).fit(np.asfortranarray(X)).evidence_, one.evidence_)

    np.save(tmp_path / "X.npy", X)
    stored = [np.load(tmp_path / "X.npy", mmap_mode="r"), sparse.csr_array(X), sparse.csc_array(X)]
    with h5py.File(tmp_path / "X.h5", "w") as file:
        file.create_dataset("X", data=X, chunks=(64, 170), compression="gzip")
        for kept in (*stored, file["X"]):
            fitted = DUFS(random_state=0).fit(kept)
            np.testing.assert_allclose(fitted.evidence_, one.evidence_, rtol=1e-3, atol=1e-3)
            np.testing.assert_array_equal(fitted.support_, one.support_)


def test_columns_that_few_rows_tell():
    """A word of 5 documents of 3,000 is judged, one of two is not; both are constant in most blocks."""
    X = np.random.default_rng(0).normal(size=(3000, 12))
    X[:, :2] = 0
    X[[5, 600, 1200, 1800, 2999], 0] = 1
    X[[5, 600], 1] = 1
    with pytest.warns(DufsWarning):
        fitted = DUFS(random_state=0).fit(X)
    judged = ~np.isnan(fitted.decoy_evidence_).any(axis=0)
    assert judged.tolist() == [True, False, *[True] * 10]
    assert np.isfinite(fitted.evidence_).all()


# --- how many rows


def test_rows_beyond_a_budget_are_drawn_and_counted():
    X, _ = structured(3000, d=20)
    fitted = DUFS(random_state=0, max_rows=1000).fit(X)
    assert fitted.rows_.n_rows == 1000
    assert fitted.rows_.n_not_drawn == 2000
    assert fitted.rows_.sentence == "1,000 of 3,000 rows, drawn at random, took part."
    with pytest.warns(DufsWarning):
        few = DUFS(random_state=0, max_rows=512).fit(X)
    assert (few.rows_.n_rows, few.rows_.n_not_drawn) == (512, 2488)
    for value in (511, 0, 10.5, "all", True):
        with pytest.raises(ValueError, match=r"max_rows must be a whole number of at least 512; got"):
            DUFS(max_rows=value).fit(X)


def test_the_budget_is_of_time_and_memory():
    assert most_rows(50) > 10**7
    assert most_rows(200) > 10**6
    assert 160_000 < most_rows(2000) < 170_000
    for d in (2000, 8000, 20_000, 100_000, 10**6):
        D = blocks.pool_size(d)
        rows = most_rows(d)
        assert rows == 512 or (rows * D * D <= 2.0001e13 and 4 * D * min(D, rows) <= 2**30)


def test_covariates_are_taken_out_of_every_block():
    rng = np.random.default_rng(0)
    age = rng.normal(size=1500)
    X = rng.normal(size=(1500, 20)) + np.sin(2 * age)[:, None] + 0.5 * age[:, None]
    with pytest.warns(RowsWarning):
        assert DUFS(random_state=0).fit(X).support_.sum() > 15
    with pytest.warns(DufsWarning):
        told = DUFS(random_state=0).fit(X, covariates=age)
    assert told.support_.sum() <= 1

    # beside steep slopes, too, whose shuffled rows would be noise in the decoys
    X += 30 * age[:, None]
    X[:, :6] += rng.choice([-0.5, 0.5], size=(1500, 1))
    told = DUFS(random_state=0).fit(X, covariates=age)
    assert told.support_[:6].all()
    assert told.support_[6:].sum() <= 1
    won = told.evidence_[6:] > told.decoy_evidence_[:, 6:].max(axis=0)
    assert won.sum() >= 1


def test_columns_whose_squares_vanish_beside_others_are_not_judged():
    X = np.random.default_rng(0).normal(size=(600, 8))
    X[:, 3] *= 1e-25
    with pytest.warns(DufsWarning):
        fitted = DUFS(random_state=0, scaling="global").fit(X)
    assert np.flatnonzero(np.isnan(fitted.decoy_evidence_[0])).tolist() == [3]


def test_scores_of_blocks_are_added_up():
    X, _ = structured(1400, d=20, informative=5, shift=1.0)
    pools = pools_of(X)
    pools.first()
    (blocks_of,) = pools.scored()
    local = structure.Objective(power=2, bandwidth="median", n_neighbors=5, bandwidth_factor=1.0, self_loops=False)
    members = np.arange(5)
    weights = np.ones(5)
    each = [structure.scores(bk, [[pool]], members, weights, local) * pool.X.shape[1] for pool in blocks_of]
    added = structure.scores(bk, [blocks_of[:2], blocks_of[2:]], members, weights, local)
    np.testing.assert_allclose(added, sum(each) / 1400, rtol=1e-6)


# --- what all rows say against exchanging them


def test_all_far_rows_are_named():
    """Ten rows of -99 of 3,000, of which 512 have one or two."""
    X = np.random.default_rng(0).normal(size=(3000, 30))
    far = np.arange(10) * 290 + 7
    X[far] = -99.0
    with pytest.warns(RowsWarning):
        fitted = DUFS(random_state=0).fit(X)
    (finding,) = (finding for finding in fitted.diagnosis_ if finding.what == "far rows")
    np.testing.assert_array_equal(finding.rows, far)
    assert finding.sentence.startswith("10 rows (7, 297, 587, 877, 1167, ...) lie more than 8 standard deviations")


def test_rows_of_groups_that_are_left_out_do_not_move_the_far_ones():
    X = np.random.default_rng(0).normal(size=(1200, 30))
    group = np.arange(1200) % 40
    group[:3] = [100, 101, 102]  # alone
    X[[600, 1199]] = 1e4
    with pytest.warns(DufsWarning):
        fitted = DUFS(random_state=0).fit(X, groups=group)
    (finding,) = (finding for finding in fitted.diagnosis_ if finding.what == "far rows")
    assert finding.rows.tolist() == [600, 1199]


@pytest.mark.parametrize("kind", ["trend", "batches"])
def test_weak_drifts_that_select_everything_are_named(kind):
    """512 of these rows show none."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 50))
    if kind == "trend":
        X += 0.3 * np.linspace(-1, 1, 4000)[:, None] * rng.choice([-1, 1], 50)
    else:
        X += 0.3 * rng.normal(size=(5, 50))[np.arange(4000) // 800]
    with pytest.warns(RowsWarning, match="Few factors explain nearly all columns"):
        assert DUFS(random_state=0).fit(X).support_.sum() > 40


def test_what_few_columns_share_is_no_factor():
    X, _ = structured(2000, d=60, informative=20, shift=0.8)
    assert DUFS(random_state=0).fit(X).diagnosis_ == ()


@pytest.mark.parametrize("kind", ["zarr", "backed dense", "backed sparse"])
def test_other_storage_changes_nothing(kind, tmp_path):
    X, _ = structured(700, d=170, shift=0.8)
    X[abs(X) < 0.7] = 0
    if kind == "zarr":
        stored = pytest.importorskip("zarr").create_array(str(tmp_path / "X.zarr"), data=X, chunks=(50, 170))
    else:
        anndata = pytest.importorskip("anndata")
        anndata.AnnData(X if kind == "backed dense" else sparse.csr_matrix(X)).write_h5ad(tmp_path / "X.h5ad")
        stored = anndata.read_h5ad(tmp_path / "X.h5ad", backed="r").X
    fitted = DUFS(random_state=0).fit(stored)
    expected = DUFS(random_state=0).fit(X)
    np.testing.assert_allclose(fitted.evidence_, expected.evidence_, rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(fitted.support_, expected.support_)
