"""Where the structure is: the pool of columns and decoys, what chance looks like, scores and the set that they settle.

Whatever is computed must treat a column and its decoys alike: rename them, and the result has the new names.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dufs_core import DUFS
from dufs_core.backend import get_backend
from dufs_core.backend.blas import one_blas_thread
from dufs_core.data.dense import scale_columns
from dufs_core.objective.chain import Objective
from dufs_core.significance import pairs, structure
from dufs_core.significance.exchange import Exchange
from dufs_core.significance.pool import n_calibration, n_decoys
from dufs_core.significance.rows import Rows
from dufs_core.significance.structure import Sources, build_pools, chance, find_structure, scores

bk = get_backend("numpy")
pytestmark = pytest.mark.usefixtures("as_in_a_fit")
LOCAL = Objective(power=1, bandwidth="median", n_neighbors=5, bandwidth_factor=1.0, self_loops=False)


@pytest.fixture(scope="module")
def as_in_a_fit():
    """BLAS has one thread."""
    with one_blas_thread():
        yield


def blobs(n=60, d=60, informative=8, distance=4.0, seed=0):
    """Two clusters in the first columns."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    X[:, :informative] += distance * (np.arange(n) % 2)[:, None] - distance / 2
    return X


def mixed(n=50, d=24, seed=0):
    """Normal, far-tailed, counted and binary columns in turn."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    X[:, 1::4] = rng.standard_t(2, size=X[:, 1::4].shape)
    X[:, 2::4] = rng.poisson(0.6, size=X[:, 2::4].shape)
    X[:, 3::4] = rng.random(X[:, 3::4].shape) < 0.3
    return X


def pool_of(X, seed=0, dtype="float64", scaling="columns", columns=None):
    data = scale_columns(X, scaling, dtype)
    columns = np.flatnonzero(~data.constant) if columns is None else columns
    return build_pools(bk, data.X, columns, Exchange.of(bk, Rows(len(X)), seed), scaling == "columns")[0]


def found_by(pool, threads):
    return find_structure(bk, Sources.of_table(bk, pool, threads), threads, LOCAL)


def without_far_cells(X):
    """The columns whose farthest cells are no farther than others."""
    size = np.sort(abs(X - np.median(X, axis=0)), axis=0)
    return np.flatnonzero((size[-1] < 1.5 * size[-3]) & (size[-1] < 3 * X.std(axis=0)))


def groups(pool):
    """(1 + M, d', n): the columns, then each set of decoys."""
    return pool.X[: pool.competing].reshape(1 + pool.n_decoys, len(pool.columns), -1)


# --- the pool


@pytest.mark.parametrize("X", [mixed(), mixed(d=9), mixed(n=600)], ids=["24 columns", "9", "600 rows"])
def test_decoys_are_permutations_of_their_columns(X):
    pool = pool_of(X)
    d = X.shape[1]
    assert pool.n_decoys == n_decoys(d) == 5
    np.testing.assert_array_equal(pool.columns, np.arange(d))
    values = np.sort(groups(pool), axis=2)
    np.testing.assert_array_equal(values, np.broadcast_to(values[0], values.shape))
    calibration = pool.X[pool.competing :]
    assert len(calibration) == n_calibration(d) == 400
    source = np.arange(400) % d
    np.testing.assert_array_equal(np.sort(calibration, axis=1), values[0][source])
    real = np.arange(0, d, 4)  # binary ones repeat by chance
    rows = np.concatenate([groups(pool)[:, real].reshape(-1, pool.X.shape[1]), calibration[np.isin(source, real)]])
    assert len(np.unique(rows, axis=0)) == len(rows)  # no shuffle is another one, nor none


def test_columns_of_the_pool_are_those_of_the_data_clipped():
    X = mixed()
    x = groups(pool_of(X))[0]
    z = np.clip((X - X.mean(axis=0)) / X.std(axis=0), -2, 2)
    normal = np.intersect1d(without_far_cells(X), np.arange(0, 24, 4))
    assert len(normal) >= 4
    np.testing.assert_allclose(x[normal], ((z - z.mean(axis=0)) / z.std(axis=0)).T[normal], atol=1e-12)
    np.testing.assert_allclose(x.mean(axis=1), 0, atol=1e-12)
    np.testing.assert_allclose(x.std(axis=1), 1, atol=1e-12)


def test_shuffles_are_uniform():
    """How often value i comes to row j, over 120 columns and 5 decoys; mean 100 of 6 values."""
    X = np.random.default_rng(0).normal(size=(6, 120))
    ranks = groups(pool_of(X))[1:].argsort(axis=2).argsort(axis=2).reshape(-1, 6)
    of_column = groups(pool_of(X))[0].argsort(axis=1).argsort(axis=1)
    where = np.array([[np.flatnonzero(of_column[k % 120] == r[j])[0] for j in range(6)] for k, r in enumerate(ranks)])
    counted = np.array([np.bincount(where[:, j], minlength=6) for j in range(6)])
    assert ((counted - 100) ** 2 / 100).sum() < 52.6  # 25 degrees of freedom: one in a thousand has more
    together = np.corrcoef(where[:120, 0], where[120:240, 0])[0, 1]  # two decoys of a column
    assert abs(together) < 0.3


def test_columns_that_vary_in_too_few_rows_are_left_out():
    X = blobs(n=40, d=12)
    X[:, 3:6] = 1.0
    X[:2, 3], X[:3, 4], X[5:7, 5] = 2.0, 2.0, (3.0, 7.0)
    assert np.setdiff1d(np.arange(12), pool_of(X).columns).tolist() == [3, 5]
    far = X.copy()
    far[:, 3] = 0.0
    far[0, 3] = 1e12  # one far row
    assert 3 not in pool_of(far).columns


def test_what_is_not_judged_changes_nothing():
    X = blobs(n=40, d=12)
    rare = np.zeros((40, 1))
    rare[7] = 1.0
    plain, more = pool_of(X), pool_of(np.hstack([X, np.full((40, 1), 3.0), rare]))
    np.testing.assert_array_equal(more.X, plain.X)
    np.testing.assert_array_equal(more.columns, plain.columns)
    np.testing.assert_array_equal(more.tiebreak, plain.tiebreak)
    np.testing.assert_array_equal(more.scale, plain.scale)


def test_the_pool_is_a_function_of_the_seed_and_of_the_positions():
    X = mixed(d=12)
    first, again, other = pool_of(X, 3), pool_of(X, 3), pool_of(X, 4)
    for name in ("X", "columns", "scale", "tiebreak"):
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
    normal = without_far_cells(X)  # others have cells that are drawn anew
    assert len(normal) >= 2
    np.testing.assert_array_equal(groups(other)[0][normal], groups(first)[0][normal])
    assert not np.array_equal(groups(other)[1], groups(first)[1])
    some = np.array([1, 4, 10])
    np.testing.assert_array_equal(groups(pool_of(X, 3, columns=some)), groups(first)[:, some])


def test_scales_are_those_of_the_data():
    """Columns that keep their units keep their weight, relative to the median of all; decoys have their column's."""
    X = np.random.default_rng(0).uniform(-1, 1, size=(60, 9)) * np.geomspace(0.1, 10, 9)
    pool = pool_of(X, scaling="global")
    spread = X.std(axis=0)
    np.testing.assert_allclose(pool.scale, spread / np.median(spread), rtol=1e-10)
    np.testing.assert_array_equal(pool.scales(np.array([2, 9 + 2, 5 * 9 + 4])), pool.scale[[2, 2, 4]])
    np.testing.assert_allclose(pool_of(X).scale, 1, rtol=1e-10)


def test_how_many_decoys():
    assert [n_decoys(d) for d in (1, 2, 1000, 1777, 1779, 4000, 8000, 10**6)] == [5, 5, 5, 5, 4, 2, 1, 1]
    assert [n_calibration(d) for d in (1, 400, 700, 1000, 10**6)] == [400, 400, 700, 1000, 1000]
    (wide,) = build_pools(
        bk, np.random.default_rng(0).normal(size=(5, 1300)), np.arange(1300), Exchange.of(bk, Rows(5), 0)
    )
    calibration = np.sort(wide.X[wide.competing :], axis=1)  # of every 1.3rd column
    np.testing.assert_array_equal(calibration, np.sort(wide.X[np.arange(1000) * 1300 // 1000], axis=1))


# --- chance


def test_chance_is_right_in_the_middle_and_in_the_tail():
    """Values of P(more than s) = exp(-s); and for any values a share exp(-E) of others like them has more than E."""
    rng = np.random.default_rng(0)
    evidence = chance(rng.exponential(size=4000))
    s = np.array([0.1, 0.5, 1.0, 2.0, 4.0, 8.0])
    np.testing.assert_allclose(evidence(s), s, rtol=0.1)
    for draw in (rng.normal, rng.uniform, lambda size: rng.chisquare(3, size)):
        E = chance(draw(size=4000))(draw(size=4000))
        for level in (0.1, 1.0, 2.0, 3.0):
            assert (E > level).mean() == pytest.approx(np.exp(-level), abs=0.02)  # noqa: SIM300
        assert (E > 5).mean() < 2 * np.exp(-5)  # of a bounded variable fewer


@given(st.lists(st.integers(-3, 3) | st.floats(-1e6, 1e6), min_size=2, max_size=40), st.lists(st.floats(-1e7, 1e7)))
def test_chance_is_monotone_and_finite(null, s):
    s = np.sort(np.array([*s, *null, -1e8, 1e8], dtype=np.float64))
    E = chance(np.array(null, dtype=np.float64))(s)
    assert np.isfinite(E).all()
    steps = np.diff(E)
    assert (steps >= -1e-9 * abs(E[1:])).all()
    assert E[0] < E[-1]


def test_chance_of_equal_values():
    E = chance(np.full(50, 2.0))(np.array([1.0, 2.0, 3.0]))
    assert (np.diff(E) > 0).all()
    assert E[2] > 1e6


# --- scores


def slow_scores(X, members, weights, objective):
    """x_k' P^t x_k / n of every row of X (D, n), P on the other members: one column at a time, from differences."""
    out = []
    for k, x in enumerate(X):
        own = [(X[m], w) for m, w in zip(members, weights, strict=True) if m != k]
        D = sum(w * np.subtract.outer(v, v) ** 2 for v, w in own) + np.zeros((len(x), len(x)))
        others = np.array([np.sort(np.delete(row, i)) for i, row in enumerate(D)])
        b = objective.bandwidth_factor * np.median(others[:, objective.n_neighbors - 1])
        K = np.exp(-D / b)
        np.fill_diagonal(K, 1.0 if objective.self_loops else 0.0)
        P = K / K.sum(axis=1, keepdims=True)
        out.append(x @ np.linalg.matrix_power(P, objective.power) @ x / len(x))
    return np.array(out)


@pytest.mark.parametrize(
    "change", [{}, {"power": 2}, {"self_loops": True}, {"n_neighbors": 2, "bandwidth_factor": 3.0}]
)
def test_scores_are_those_without_the_column_itself(change):
    objective = replace(LOCAL, **change)
    pool = pool_of(blobs(n=31, d=10, informative=3))
    pool = pool._replace(X=pool.X[:75])  # fewer for calibration
    members = np.array([0, 2, 10, 33, 60])  # columns, decoys, and one for calibration
    weights = np.array([1.0, 0.5, 0.2, 2.0, 1.0])
    got = scores(bk, [[pool]], members, weights, objective)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, slow_scores(pool.X, members, weights, objective), atol=1e-10)
    np.testing.assert_array_equal(scores(bk, [[pool]], members, weights, objective, threads=3), got)
    low = scores(bk, [[pool._replace(X=pool.X.astype(np.float32))]], members, weights, objective)
    np.testing.assert_allclose(low, got, atol=1e-5)


def test_a_column_alone_in_the_graph_has_no_score():
    pool = pool_of(blobs(n=31, d=10))
    got = scores(bk, [[pool]], np.array([4]), np.array([1.0]), LOCAL)
    assert got[4] == 0
    assert np.isfinite(got).all()


def test_members_that_are_copies_leave_a_score():
    """Without one of two equal columns the other remains; of equal rows the graph is what the bandwidth rule says."""
    X = np.repeat(blobs(n=16, d=10, seed=3), 2, axis=0)
    X[:, 1] = X[:, 0]
    got = scores(bk, [[pool_of(X)]], np.array([0, 1]), np.ones(2), LOCAL)
    assert np.isfinite(got).all()
    assert got[0] == pytest.approx(got[1], rel=1e-9)
    assert got[0] > 0.9


# --- the set


@pytest.mark.parametrize(("dtype", "seed"), [("float32", 0), ("float64", 1), ("float32", 2)])
def test_two_blobs_are_found(seed, dtype):
    found = found_by(pool_of(blobs(d=40, seed=seed), seed, dtype), 1)
    assert set(range(8)) <= set(found.members.tolist())
    assert len(found.members) <= 10
    assert (np.diff(found.members) > 0).all()
    assert found.above_chance > 100
    least = found.evidence[:8].min()
    assert least > np.quantile(found.evidence[8:], 0.95)


def test_of_nothing_a_small_set_without_evidence_is_found():
    for seed in range(3):
        X = np.random.default_rng(seed).normal(size=(50, 15))
        found = found_by(pool_of(X, seed, "float32"), 1)
        assert 2 <= len(found.members) <= 10
        assert found.above_chance < 15


def renamed(pool, rng):
    """The pool with column and decoys of every group in another order, and the new place of each."""
    M, d = pool.n_decoys, len(pool.columns)
    old = np.arange(pool.competing).reshape(1 + M, d)
    old = np.concatenate([rng.permuted(old, axis=0).ravel(), np.arange(pool.competing, len(pool.X))])
    return pool._replace(X=pool.X[old], tiebreak=pool.tiebreak[old]), old


@pytest.fixture
def several_blocks(monkeypatch):
    """Of pairs and of scores, as larger data have."""
    monkeypatch.setattr(pairs, "TILE", 50)
    monkeypatch.setattr(structure, "BLOCK", 40)


@pytest.mark.usefixtures("several_blocks")
@pytest.mark.parametrize("X", [blobs(n=40, d=20), mixed(n=40, d=20), mixed(n=20, d=30)])
def test_a_column_and_its_decoys_are_treated_alike(X):
    pool = pool_of(X)
    other, old = renamed(pool, np.random.default_rng(1))
    a, b = (found_by(p, 1) for p in (pool, other))
    np.testing.assert_allclose(b.evidence, a.evidence[old], rtol=1e-8, atol=1e-8)
    np.testing.assert_array_equal(np.sort(old[b.members]), a.members)
    assert b.above_chance == pytest.approx(a.above_chance, rel=1e-8)
    members = [np.array([0, 3, 20, 65]), np.flatnonzero(np.isin(old, [0, 3, 20, 65]))]
    weights = [np.ones(4), np.ones(4)]
    a_scores, b_scores = (
        scores(bk, [[p]], m, w, LOCAL) for p, m, w in zip((pool, other), members, weights, strict=True)
    )
    np.testing.assert_allclose(b_scores, a_scores[old], atol=1e-10)


def slow_pairs(X, competing):
    """Dependences n r^2 - 1 from all pairs at once; of the likely ones the 64 strongest of each column, and ties."""
    D, n = X.shape
    Q = (X @ X.T) ** 2 / n - 1
    np.fill_diagonal(Q, -np.inf)
    tail = D**-0.7 / np.sqrt(np.pi * max(0.7 * np.log(D), 1.0))
    likely = np.quantile(Q[competing:, :competing].astype(np.float32), 1 - tail)
    least = np.sort(Q, axis=1)[:, [-64]]
    return Q.max(axis=1), np.where((likely < Q) & (least <= Q), np.sqrt(np.maximum(Q - likely, 0)), 0.0)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("tile", [30, 128, 1000])
def test_pairs_are_those_of_the_whole_square(monkeypatch, tile, threads):
    """Of columns with few partners, with more than 64, and with more than 64 equal ones."""
    monkeypatch.setattr(pairs, "TILE", tile)
    monkeypatch.setattr(pairs, "_FUNCTIONS", 1)
    rng = np.random.default_rng(0)
    n = 256  # n^(-1/4) is a power of 2: with sums of whole numbers no rounding, of any BLAS, breaks ties
    x = rng.normal(size=(400, n))
    x[:150] += 2 * rng.normal(size=n)
    x[150:240] = rng.integers(-4, 5, size=n)
    x[250:252] = x[249]
    x[rng.permutation(300)] = x[:300].copy()
    x = np.sign(x) * np.minimum(abs(np.round(4 * x)), 8)
    x[:, n // 2 :] = -x[:, : n // 2]
    strongest, graph = pairs.pair_dependence(bk, x, 300, threads, pairs.n_functions(*x.shape))
    expected, likely = slow_pairs(x, 300)
    np.testing.assert_allclose(strongest, expected, rtol=1e-12)
    assert ((likely > 0).sum(axis=1) > 64).any()
    np.testing.assert_allclose(graph.toarray(), likely, rtol=1e-6, atol=1e-4)


@pytest.mark.usefixtures("several_blocks")
def test_any_number_of_threads_finds_the_same_bits():
    pool = pool_of(mixed(n=40, d=30), dtype="float32")
    one, three = (found_by(pool, threads) for threads in (1, 3))
    np.testing.assert_array_equal(three.members, one.members)
    np.testing.assert_array_equal(three.evidence, one.evidence)
    assert three.above_chance == one.above_chance


def test_dependence_that_is_no_line_is_seen():
    """A ring: no correlation, and the strongest ties of all columns."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 40))
    angle = rng.uniform(0, 2 * np.pi, 100)
    X[:, :2] = np.column_stack([np.cos(angle), np.sin(angle)])
    assert abs(np.corrcoef(X[:, :2].T)[0, 1]) < 0.2
    found = found_by(pool_of(X), 1)
    assert set(np.argsort(-found.evidence)[:2].tolist()) == {0, 1}
    assert {0, 1} <= set(found.members.tolist())


@pytest.mark.parametrize("few", ["binary", "counts"])
def test_columns_of_few_values_hide_no_structure(few):
    """What such columns share by chance is not stronger than what the others do."""
    rng = np.random.default_rng(1)
    X = blobs(n=60, d=60)
    X[:, 8:] = rng.random((60, 52)) < 0.15 if few == "binary" else rng.poisson(0.4, size=(60, 52))
    found = found_by(pool_of(X), 1)
    assert set(range(8)) <= set(found.members.tolist())
    assert len(found.members) <= 12


@pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")
def test_columns_whose_squares_vanish_beside_others_do_not_compete():
    X = np.random.default_rng(0).normal(size=(20, 6))
    X[:, 4:] *= 1e30
    with np.errstate(divide="raise", invalid="raise"):
        fitted = DUFS(scaling="global", random_state=0, backend="numpy").fit(X)
    assert np.isfinite(fitted.scores_).all()
    assert np.isnan(fitted.decoy_evidence_[:, :4]).all()
    assert np.isfinite(fitted.decoy_evidence_[:, 4:]).all()
