"""The order of open columns by what they explain together: against the definition, and what it is for."""

from dataclasses import replace

import numpy as np
import pytest
from generators import noise, standardise, three_clusters
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from threadpoolctl import threadpool_info, threadpool_limits

from dufs_core import DUFS, LambdaPath, fit_population, report, representatives
from dufs_core.backend import get_backend
from dufs_core.data import prepare
from dufs_core.errors import MemoryLimitError
from dufs_core.memory import needed_bytes
from dufs_core.objective import Objective
from dufs_core.representatives import representatives as order
from dufs_core.sparse import prepare_sparse

NUMPY = get_backend("numpy")
OBJECTIVE = Objective(bandwidth="median", bandwidth_factor=1.0)


def walk(X, objective):
    """P from its definition."""
    D = ((X[:, None] - X[None]) ** 2).sum(axis=2)
    others = np.sort(np.where(np.eye(len(X), dtype=bool), np.inf, D), axis=1)[:, objective.n_neighbors - 1]
    b = objective.bandwidth_factor * {"median": np.median, "max": np.max}[objective.bandwidth](others)
    K = np.exp(-D / b)
    np.fill_diagonal(K, 1.0 if objective.self_loops else 1e-12)
    return K / K.sum(axis=1, keepdims=True)


class Regression:
    """R(S) from its definition."""

    def __init__(self, X, mu, objective):
        self.X = (X - X.mean(axis=0)) * np.clip(mu, 0, 1)
        self.Y = walk(self.X, objective) @ self.X
        squares = (self.X**2).sum(axis=0)
        self.nu = np.maximum(squares - (self.Y**2).sum(axis=0), 0.01 * squares)

    def explained(self, S):
        x = self.X[:, S]
        A = np.linalg.inv(np.eye(len(x)) + (x / self.nu[S]) @ x.T)
        return (self.Y**2).sum() - np.trace(self.Y.T @ A @ self.Y)


@settings(max_examples=20)
@given(seed=st.integers(0, 2**20), rule=st.sampled_from(["median", "max"]), loops=st.booleans(), spread=st.booleans())
def test_every_next_column_explains_most(seed, rule, loops, spread):
    rng = np.random.default_rng(seed)
    X = standardise(rng.normal(size=(14, 4)) @ rng.normal(size=(4, 9)) + 0.3 * rng.normal(size=(14, 9)))
    X += 0.2 * rng.normal(size=9)  # as the means are where rows are sampled
    mu = rng.uniform(0.1, 1.4, size=9) if spread else np.full(9, 1.5)
    objective = Objective(bandwidth=rule, bandwidth_factor=0.5, n_neighbors=3, self_loops=loops)
    regression, found = Regression(X, mu, objective), order(NUMPY, X, mu, objective, 9)
    assert sorted(found) == list(range(9))
    for size in range(8):
        rest = found[size:]
        values = [regression.explained(found[[*range(size), size + i]]) for i in range(len(rest))]
        assert values[0] >= max(values) - 1e-9 * max(values)


@pytest.mark.parametrize("seed", range(5))
def test_nearly_noiseless_columns_count_as_noisy_by_a_hundredth(seed):
    """Four far groups whose rows differ little: without the floor the cleanest column would be worth most."""
    rng = np.random.default_rng(seed)
    latent = np.repeat(np.eye(4), 5, axis=0) @ rng.normal(size=(4, 3))
    X = standardise(latent @ rng.normal(size=(3, 8)) + rng.uniform(1e-4, 0.05, 8) * rng.normal(size=(20, 8)))
    mu, objective = np.full(8, 2.0), Objective(bandwidth="median", bandwidth_factor=3.0)
    regression, found = Regression(X, mu, objective), order(NUMPY, X, mu, objective, 8)
    assert (regression.nu == 0.01 * (regression.X**2).sum(axis=0)).any()
    for size in range(7):
        values = [regression.explained(found[[*range(size), at]]) for at in range(size, 8)]
        assert values[0] >= max(values) - 1e-9 * max(values)


def test_sums_that_are_kept_up_to_date_stay_right():
    """After 150 columns the 151st is still the best by sums that are formed anew."""
    rng = np.random.default_rng(0)
    X = standardise(rng.normal(size=(40, 6)) @ rng.normal(size=(6, 200)) + 0.2 * rng.normal(size=(40, 200)))
    mu = np.full(200, 2.0)
    regression, found = Regression(X, mu, OBJECTIVE), order(NUMPY, X.astype(np.float32), mu, OBJECTIVE, 151)
    x = regression.X[:, found[:150]]
    A = np.linalg.inv(np.eye(40) + (x / regression.nu[found[:150]]) @ x.T)
    gain = ((regression.Y.T @ A @ regression.X) ** 2).sum(axis=0)
    gain /= regression.nu + np.einsum("ik,ij,jk->k", regression.X, A, regression.X)
    gain[found[:150]] = 0
    assert gain[found[150]] >= 0.99 * gain.max()


def groups(n=90, copies=5, seed=0):
    """Three clustered measurements, each `copies` times with a little noise of its own: columns 0.., 5.., 10.."""
    rng = np.random.default_rng(seed)
    latent = three_clusters(n, 3, seed=seed).X
    return standardise(np.repeat(latent, copies, axis=1) + 0.2 * rng.normal(size=(n, 3 * copies)))


def test_one_of_each_kind_comes_first():
    X, mu = groups(), np.linspace(2.5, 1.1, 15)
    assert sorted(order(NUMPY, X, mu, OBJECTIVE, 3) // 5) == [0, 1, 2]
    assert set(np.argsort(-mu)[:3] // 5) == {0}  # which the gates alone would not give


def test_copies_come_in_the_order_of_their_gates():
    X = np.repeat(groups(copies=1), 3, axis=1)
    mu = np.array([1.2, 1.9, 1.4, 1.5, 1.6, 1.7, 2.0, 1.3, 1.8])
    found = order(NUMPY, X, mu, OBJECTIVE, 9)
    assert sorted(found[:3]) == [1, 5, 6]
    for group in range(3):
        members = found[found // 3 == group]
        np.testing.assert_array_equal(members, members[np.argsort(-mu[members])])


def test_equal_gates_come_by_column_index():
    """Of very many columns as well, where a sort that is not stable mixes them."""
    X, mu = np.repeat(groups(copies=1), 20, axis=1), np.tile([1.5, 2.0], 30)
    found = order(NUMPY, X, mu, OBJECTIVE, 60)
    for group in range(3):
        members = found[found // 20 == group]
        np.testing.assert_array_equal(members, members[np.lexsort((members, -mu[members]))])


def test_columns_without_noise_are_told_apart():
    """Four groups of equal rows, far from each other: P x = x for every column that is constant on each of them."""
    one, other = np.repeat([-1.0, -1.0, 1.0, 1.0], 5), np.repeat([-1.0, 1.0, -1.0, 1.0], 5)
    X = 1e3 * np.column_stack([one, one, one, other])
    np.testing.assert_array_equal(order(NUMPY, X, np.array([2.0, 1.9, 1.8, 1.7]), OBJECTIVE, 4), [0, 3, 1, 2])


@pytest.mark.parametrize(("count", "number"), [(2, 2), (4, 4), (10, 4)])
def test_closed_columns_take_no_part(count, number):
    X, mu = noise(30, 10), np.array([-0.5, 0.2, -1.0, 1.6, 0.0, 1.2, -0.1, -2.0, 0.7, -0.3])
    found = order(NUMPY, X, mu, OBJECTIVE, count)
    assert len(found) == number
    assert set(found) <= {1, 3, 5, 8}
    alone = order(NUMPY, X[:, [1, 3, 5, 8]], mu[[1, 3, 5, 8]], OBJECTIVE, count)
    np.testing.assert_array_equal(found, np.array([1, 3, 5, 8])[alone])


def test_no_open_column():
    assert order(NUMPY, noise(10, 3), np.array([-1.0, 0.0, -0.5]), OBJECTIVE, 2).shape == (0,)


def test_rows_columns_and_units_do_not_matter():
    X, mu = groups(60), np.random.default_rng(1).uniform(0.3, 2.0, 15)
    found = order(NUMPY, X, mu, OBJECTIVE, 15)
    rows, columns = np.random.default_rng(2).permutation(60), np.random.default_rng(3).permutation(15)
    np.testing.assert_array_equal(order(NUMPY, X[rows], mu, OBJECTIVE, 15), found)
    np.testing.assert_array_equal(order(NUMPY, 1000 * X, mu, OBJECTIVE, 15), found)
    np.testing.assert_array_equal(columns[order(NUMPY, X[:, columns], mu[columns], OBJECTIVE, 15)], found)


def test_many_rows_are_sampled(monkeypatch):
    """A column that varies on the other rows alone comes last; the sample does not depend on the engine."""
    monkeypatch.setattr(representatives, "ROWS", 40)
    X = groups(400)
    found = order(NUMPY, X, np.full(15, 2.0), OBJECTIVE, 15)
    assert sorted(found[:3] // 5) == [0, 1, 2]
    from dufs_core import random

    read = random.permutation(NUMPY, 0, random.Stream.PERMUTATION, 1, 400)[:40]
    rare = np.zeros((400, 1))
    rare[np.setdiff1d(np.arange(400), read)[:3]] = 5.0
    mu = np.append(3.0, np.full(15, 2.0))
    np.testing.assert_array_equal(order(NUMPY, np.hstack([rare, X]), mu, OBJECTIVE, 16), [*(found + 1), 0])


def test_of_very_many_columns_the_best_take_part(monkeypatch):
    monkeypatch.setattr(representatives, "CANDIDATES", 6)
    mu = np.random.default_rng(0).uniform(0.5, 2, 15)
    assert set(order(NUMPY, groups(), mu, OBJECTIVE, 15)) == set(np.argsort(-mu)[:6])


def test_identical_rows_and_a_single_column():
    mu = np.full(4, 2.0)
    np.testing.assert_array_equal(order(NUMPY, np.zeros((6, 4)), mu, OBJECTIVE, 4), [0, 1, 2, 3])
    np.testing.assert_array_equal(order(NUMPY, noise(6, 1), mu[:1], OBJECTIVE, 4), [0])


@pytest.mark.parametrize("unit", [1e-70, 1e90, 1e140])
def test_fourth_powers_beyond_float64(unit):
    X, mu = groups(60), np.random.default_rng(1).uniform(0.3, 2.0, 15)
    np.testing.assert_array_equal(order(NUMPY, unit * X, mu, OBJECTIVE, 15), order(NUMPY, X, mu, OBJECTIVE, 15))


def test_more_neighbours_than_rows_that_are_read(monkeypatch):
    monkeypatch.setattr(representatives, "ROWS", 40)
    X, mu = groups(90), np.full(15, 2.0)
    most = order(NUMPY, X, mu, replace(OBJECTIVE, n_neighbors=39), 15)
    np.testing.assert_array_equal(order(NUMPY, X, mu, replace(OBJECTIVE, n_neighbors=60), 15), most)


@pytest.mark.parametrize("scaling", ["columns", "global"])
def test_sparse_columns_are_those_of_the_dense_matrix(scaling):
    rng = np.random.default_rng(0)
    X = np.where(rng.random((80, 30)) < 0.3, rng.exponential(size=(80, 30)) * np.repeat([1, 5, 2], 10), 0.0)
    X[:, 10:20] = X[:, :10] * 3 + 0.01 * (X[:, :10] > 0)
    mu = rng.uniform(-0.2, 2.0, 30)
    dense = prepare(X, scaling, np.float64).X
    table = prepare_sparse(sparse.csr_matrix(X), scaling, "float64", by_rows=False).X
    np.testing.assert_array_equal(order(NUMPY, table, mu, OBJECTIVE, 20), order(NUMPY, dense, mu, OBJECTIVE, 20))


# --- in the selector -------------------------------------------------------------------------------------------------


def quick(**settings):
    return DUFS(fdr=None, **{"max_iter": 60, "n_restarts": 1, "n_draws": 2, "learning_rate": 0.03, "random_state": 0} | settings)


@pytest.fixture(scope="module")
def data():
    return np.hstack([groups(), noise(90, 10, seed=5)])


@pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")
def test_the_selector_orders_its_open_columns(data):
    gates, found = quick().fit(data), quick(ranking="representatives", n_features_to_select=3).fit(data)
    np.testing.assert_array_equal(found.mu_, gates.mu_)
    np.testing.assert_array_equal(found.scores_, gates.mu_)
    assert sorted(found.ranking_) == list(range(25))
    np.testing.assert_array_equal(np.flatnonzero(found.support_), np.sort(found.ranking_[:3]))
    assert sorted(found.ranking_[:3] // 5) == [0, 1, 2]
    n_open = (gates.mu_ > 0).sum()
    assert n_open > 3
    rest = found.ranking_[3:]  # what is not asked for comes in the order of the gates
    np.testing.assert_array_equal(rest, gates.ranking_[~np.isin(gates.ranking_, found.ranking_[:3])])
    everything = quick(ranking="representatives").fit(data)
    np.testing.assert_array_equal(everything.support_, gates.support_)
    assert set(everything.ranking_[:n_open]) == set(np.flatnonzero(gates.support_))
    np.testing.assert_array_equal(everything.ranking_[:3], found.ranking_[:3])
    np.testing.assert_array_equal(everything.ranking_[n_open:], gates.ranking_[n_open:])


@pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")
def test_more_columns_than_are_open_are_filled_by_their_gates(data):
    gates = quick(n_features_to_select=22).fit(data)
    found = quick(n_features_to_select=22, ranking="representatives").fit(data)
    assert (gates.mu_ > 0).sum() < 22
    np.testing.assert_array_equal(found.support_, gates.support_)


@pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")
def test_data_on_disk_and_populations(data, tmp_path):
    np.save(tmp_path / "x.npy", data)
    settings = {"batch_size": 30, "ranking": "representatives", "n_features_to_select": 4}
    memory = quick(**settings).fit(data)
    disk = quick(**settings).fit(np.load(tmp_path / "x.npy", mmap_mode="r"))
    np.testing.assert_array_equal(disk.ranking_, memory.ranking_)
    together = fit_population([quick(**settings), quick(**settings | {"ranking": "gates"})], data)
    np.testing.assert_array_equal(together[0].ranking_, memory.ranking_)
    np.testing.assert_array_equal(together[1].ranking_, np.argsort(-memory.mu_, kind="stable"))


def test_the_memory_of_a_population_is_that_of_its_largest_fit():
    X, together = noise(90, 9000), [quick(engine="dense"), quick(engine="dense", ranking="representatives")]
    need = [needed_bytes("dense", *fit.memory_of(X, 1)) for fit in together]
    assert need[1] > need[0]
    for fit in together:
        fit.set_params(max_memory=need[1] - 1)
    with pytest.raises(MemoryLimitError):
        fit_population(together, X)


@pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")
def test_blas_is_held_to_one_thread(data, monkeypatch):
    """As in the rest of a fit: the bits do not depend on fits in other threads."""
    seen = []

    def order_seen(*arguments):
        seen.extend(library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas")
        return order(*arguments)

    monkeypatch.setattr("dufs_core.estimator.representatives", order_seen)
    with threadpool_limits(3, user_api="blas"):
        quick(ranking="representatives").fit(data)
    assert seen
    assert set(seen) == {1}


@pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")
def test_a_report_says_what_the_order_is(data):
    selector = quick(ranking="representatives", n_features_to_select=3).fit(data)
    selector.scores_ = selector.mu_ = np.where(selector.mu_ > 0, np.float32(1.5), selector.mu_)
    found = report(selector, data)
    assert not any("tie" in row["reason"] for row in found.rows)  # what decided was not the column index
    assert sum("not by mu" in note for note in found.notes) == 1
    assert not any("not by mu" in note for note in report(quick().fit(data), data).notes)


def test_a_path_refuses_an_order_that_it_would_not_use(data):
    selector = quick(ranking="representatives")
    with pytest.raises(ValueError, match=r"takes n_features_to_select=3 columns by their gates.*set ranking=\"gates\""):
        LambdaPath(selector, lams=[0.1], n_features_to_select=3).fit(data)


@pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")
def test_what_a_path_selects_by_price_does_not_depend_on_the_order(data):
    settings = {"lams": [0.1], "n_splits": 1, "n_permutations": 3, "random_state": 0}
    found = [LambdaPath(quick(max_iter=10, ranking=r), **settings).fit(data) for r in ("gates", "representatives")]
    np.testing.assert_array_equal(found[0].ranking_, found[1].ranking_)
    np.testing.assert_array_equal(found[0].support_, found[1].support_)


def test_an_unknown_ranking(data):
    with pytest.raises(ValueError, match="ranking must be one of 'gates', 'representatives'; got 'gate'"):
        quick(ranking="gate").fit(data)
