"""The order of columns by what they explain together: against the definition, and what it is for."""

import numpy as np
import pytest
from generators import duplicates_and_others, noise, standardise, three_clusters
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from threadpoolctl import threadpool_info, threadpool_limits

from dufs_core import GatedLaplacian, LambdaPath, fit_many, report
from dufs_core.backend import get_backend, random
from dufs_core.data.dense import scale_columns
from dufs_core.data.sparse import scale_sparse
from dufs_core.errors import MemoryLimitError
from dufs_core.selection import diverse_ranking
from dufs_core.selection.diverse_ranking import diverse_order as order
from dufs_core.selection.diverse_ranking import neighbour_walk
from dufs_core.selection.fit import FitTask
from dufs_core.selection.memory import needed_bytes

NUMPY = get_backend("numpy")
ROUNDING = 1e-12  # of squared distances, and of lengths beside the largest


def walk(X):
    """P from its definition, row by row."""
    n = len(X)
    lengths = np.linalg.norm(X, axis=1)
    unit = [x / length if length > ROUNDING * max(lengths) else None for x, length in zip(X, lengths, strict=True)]
    D = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            D[i, j] = 2.0 if unit[i] is None or unit[j] is None else ((unit[i] - unit[j]) ** 2).sum()
            D[i, j] = D[i, j] if D[i, j] > ROUNDING else 0.0
    others = [np.delete(np.arange(n), i) for i in range(n)]
    fifth = np.array([sorted(D[i, others[i]])[:5][-1] for i in range(n)])
    positive = [D[i, j] for i in range(n) for j in others[i] if D[i, j] > 0]
    b = np.median(fifth) or min(positive, default=1.0)
    K = np.zeros((n, n))
    for i in range(n):
        for j in others[i]:
            if D[i, j] <= max(fifth[i], fifth[j]) * (1 + 1e-9):
                K[i, j] = np.exp(-D[i, j] / b)
    return K / K.sum(axis=1, keepdims=True)


class Regression:
    """R(S) from its definition."""

    def __init__(self, X, mu):
        self.X = (X - X.mean(axis=0)) * np.clip(mu, 0, 1)
        P = walk(self.X)
        self.Y = P @ P @ self.X
        squares = (self.X**2).sum(axis=0)
        self.structure = ((P @ self.X) ** 2).sum(axis=0) / squares
        s = np.clip(self.structure, 0.01, 0.99)
        self.nu = squares * (1 - s) / s

    def explained(self, S):
        x = self.X[:, S]
        A = np.linalg.inv(np.eye(len(x)) + (x / self.nu[S]) @ x.T)
        return (self.Y**2).sum() - np.trace(self.Y.T @ A @ self.Y)

    def check(self, found):
        """Every next column is one that raises R most."""
        for size in range(len(found) - 1):
            values = [self.explained(found[[*range(size), at]]) for at in range(size, len(found))]
            assert values[0] >= max(values) - 1e-9 * max(values)


def latent(seed, n=16, d=9):
    rng = np.random.default_rng(seed)
    X = standardise(rng.normal(size=(n, 4)) @ rng.normal(size=(4, d)) + 0.3 * rng.normal(size=(n, d)))
    return X + 0.2 * rng.normal(size=d)  # as the means are where rows are sampled


# --- against the definition ------------------------------------------------------------------------------------------


@settings(max_examples=20)
@given(seed=st.integers(0, 2**20), n=st.sampled_from([2, 3, 5, 6, 7, 16, 24]), spread=st.booleans())
def test_every_next_column_explains_most(seed, n, spread):
    """Down to fewer rows than there are neighbours."""
    X = latent(seed, n)
    mu = np.random.default_rng(seed).uniform(0.1, 1.4, size=9) if spread else np.full(9, 1.5)
    found = order(NUMPY, X, mu, 9)
    assert sorted(found) == list(range(9))
    Regression(X, mu).check(found)


@pytest.mark.parametrize("seed", range(5))
def test_columns_nearly_without_noise_have_a_hundredth(seed):
    """Four far groups whose rows differ little: without the bound the cleanest column would be worth most."""
    rng = np.random.default_rng(seed)
    clean = np.repeat(np.eye(4), 7, axis=0) @ rng.normal(size=(4, 3))
    X = standardise(clean @ rng.normal(size=(3, 8)) + rng.uniform(1e-4, 0.05, 8) * rng.normal(size=(28, 8)))
    regression = Regression(X, np.ones(8))
    assert (regression.structure > 0.99).any()
    regression.check(order(NUMPY, X, np.ones(8), 8))


@pytest.mark.parametrize("seed", range(5))
def test_columns_nearly_without_structure_have_a_hundredth(seed):
    """Small columns, of no weight in the graph, that the walk nearly cancels: the bound decides which is worth more."""
    X = latent(seed, 24)
    X -= X.mean(axis=0)
    _, _, directions = np.linalg.svd(walk(X) @ (np.eye(24) - 1 / 24))  # the last, 1 / sqrt(24), is of length 0
    X = np.hstack([X, 1e-4 * directions[-3:-1].T])
    regression = Regression(X, np.ones(11))
    assert (regression.structure[-2:] < 0.01).any()
    regression.check(order(NUMPY, X, np.ones(11), 11))


@pytest.mark.parametrize("copies", [2, 5, 8])
def test_duplicated_rows(copies):
    """With eight of each the fifth nearest row is at distance 0, up to rounding that is none of a distance."""
    X = np.repeat(latent(1, n=9), copies, axis=0)
    Regression(X, np.ones(9)).check(order(NUMPY, X, np.ones(9), 9))


def test_a_row_at_the_mean():
    """It has no direction."""
    X = standardise(np.vstack([latent(2), -latent(2)]))
    X = np.vstack([X, np.zeros(9)])
    np.testing.assert_allclose(neighbour_walk(NUMPY, X @ X.T), walk(X), rtol=1e-9, atol=1e-12)
    Regression(X, np.ones(9)).check(order(NUMPY, X, np.ones(9), 9))


def test_sums_that_are_kept_up_to_date_stay_right():
    """After 150 columns the 151st is still the best by sums that are formed anew."""
    rng = np.random.default_rng(0)
    X = standardise(rng.normal(size=(40, 6)) @ rng.normal(size=(6, 200)) + 0.2 * rng.normal(size=(40, 200)))
    mu = np.full(200, 2.0)
    regression, found = Regression(X, mu), order(NUMPY, X.astype(np.float32), mu, 151)
    x = regression.X[:, found[:150]]
    A = np.linalg.inv(np.eye(40) + (x / regression.nu[found[:150]]) @ x.T)
    gain = ((regression.Y.T @ A @ regression.X) ** 2).sum(axis=0)
    gain /= regression.nu + np.einsum("ik,ij,jk->k", regression.X, A, regression.X)
    gain[found[:150]] = 0
    assert gain[found[150]] >= 0.99 * gain.max()


def test_blocks_of_columns_do_not_show(monkeypatch):
    X, mu = latent(3, 40, 60), np.random.default_rng(3).uniform(0.3, 2, 60)
    whole = order(NUMPY, X, mu, 60)
    monkeypatch.setattr(diverse_ranking, "BLOCK", 7)
    np.testing.assert_array_equal(order(NUMPY, X, mu, 60), whole)


# --- the walk --------------------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**20), n=st.integers(2, 30))
def test_the_walk(seed, n):
    X = np.random.default_rng(seed).normal(size=(n, 4))
    P = neighbour_walk(NUMPY, X @ X.T)
    np.testing.assert_allclose(P, walk(X), rtol=1e-9, atol=1e-12)
    lengths = np.random.default_rng(seed + 1).uniform(0.1, 10, size=(n, 1))  # of the rows: of no consequence
    np.testing.assert_allclose(neighbour_walk(NUMPY, (lengths * X) @ (lengths * X).T), P, rtol=1e-9, atol=1e-12)


def test_three_rows():
    """At 0, 60 and 180 degrees: squared distances 1, 3 and 4, of which 4 is the median of the largest."""
    X = np.array([[2.0, 0.0], [0.5, 0.75**0.5], [-7.0, 0.0]])
    near, far, most = np.exp([-1 / 4, -3 / 4, -4 / 4])
    K = np.array([[0, near, most], [near, 0, far], [most, far, 0]])
    np.testing.assert_allclose(neighbour_walk(NUMPY, X @ X.T), K / K.sum(axis=1, keepdims=True), rtol=1e-12)


def test_rows_as_near_as_the_fifth_are_neighbours():
    """On a circle the sixth nearest row is as near as the fifth; rows of the identity are all as near."""
    angle = 2 * np.pi * np.arange(14) / 14
    X = np.column_stack([np.cos(angle), np.sin(angle)])
    D = 2 - 2 * np.cos(angle[1:4])
    weights = np.zeros(14)
    weights[[1, 2, 3]] = weights[[-1, -2, -3]] = np.exp(-D / D[2])
    expected = np.array([np.roll(weights, i) for i in range(14)]) / weights.sum()
    np.testing.assert_allclose(neighbour_walk(NUMPY, X @ X.T), expected, rtol=1e-9)
    np.testing.assert_allclose(neighbour_walk(NUMPY, np.eye(9)), (1 - np.eye(9)) / 8, rtol=1e-12)


def test_copies_of_a_row_and_others():
    """The fifth row of most is at distance 0: b is the smallest positive distance, and rounding of G no distance."""
    X = duplicates_and_others(40, 10, 6)
    expected, G = walk(X), X @ X.T
    assert (expected[expected > 0] < 1e-3).any()
    np.testing.assert_allclose(neighbour_walk(NUMPY, G), expected, rtol=1e-9, atol=1e-15)
    noisy = G * (1 + 1e-15 * np.random.default_rng(0).normal(size=(50, 50)))
    np.testing.assert_allclose(neighbour_walk(NUMPY, (noisy + noisy.T) / 2), expected, rtol=1e-9, atol=1e-15)


def test_a_far_row_keeps_neighbours():
    """At 300 times the bandwidth and more, where each of its weights alone is nearly nothing."""
    rng = np.random.default_rng(0)
    X = np.vstack([[1.0, 0.0] + 1e-3 * rng.normal(size=(30, 2)), [[-1.0, 0.0]]])
    P = neighbour_walk(NUMPY, X @ X.T)
    assert np.isfinite(P).all()
    np.testing.assert_allclose(P.sum(axis=1), 1)
    assert (P[-1] > 0).sum() >= 5


@pytest.mark.parametrize("G", [np.zeros((4, 4)), np.ones((4, 4))], ids=["all at the mean", "all alike"])
def test_rows_that_nothing_tells_apart(G):
    np.testing.assert_allclose(neighbour_walk(NUMPY, G), (1 - np.eye(4)) / 3, rtol=1e-12)


# --- what it is for --------------------------------------------------------------------------------------------------


def groups(n=90, copies=5, seed=0):
    """Three clustered measurements, each `copies` times with a little noise of its own: columns 0.., 5.., 10.."""
    rng = np.random.default_rng(seed)
    latent = three_clusters(n, 3, seed=seed).X
    return standardise(np.repeat(latent, copies, axis=1) + 0.2 * rng.normal(size=(n, 3 * copies)))


def test_one_of_each_kind_comes_first():
    X, mu = groups(), np.linspace(2.5, 1.1, 15)
    assert sorted(order(NUMPY, X, mu, 3) // 5) == [0, 1, 2]
    assert set(np.argsort(-mu)[:3] // 5) == {0}  # which the gates alone would not give


def test_copies_come_in_the_order_of_their_gates():
    X = np.repeat(groups(copies=1), 3, axis=1)
    mu = np.array([1.2, 1.9, 1.4, 1.5, 1.6, 1.7, 2.0, 1.3, 1.8])
    found = order(NUMPY, X, mu, 9)
    assert sorted(found[:3]) == [1, 5, 6]
    for group in range(3):
        members = found[found // 3 == group]
        np.testing.assert_array_equal(members, members[np.argsort(-mu[members])])


def test_multiples_are_equal():
    """Their gains differ in the last bits."""
    X = np.repeat(groups(copies=1), 20, axis=1) * np.random.default_rng(0).uniform(0.5, 2, 60)
    found = order(NUMPY, X, np.ones(60), 12)
    for group in range(3):
        members = found[found // 20 == group]
        np.testing.assert_array_equal(members, 20 * group + np.arange(len(members)))


def test_equal_gates_come_by_column_index():
    """Of very many columns as well, where a sort that is not stable mixes them."""
    X, mu = np.repeat(groups(copies=1), 20, axis=1), np.tile([1.5, 2.0], 30)
    found = order(NUMPY, X, mu, 60)
    for group in range(3):
        members = found[found // 20 == group]
        np.testing.assert_array_equal(members, members[np.lexsort((members, -mu[members]))])


def test_columns_without_noise_are_told_apart():
    """Four groups of equal rows, far from each other: P x = x for every column that is constant on each of them."""
    one, other = np.repeat([-1.0, -1.0, 1.0, 1.0], 7), np.repeat([-1.0, 1.0, -1.0, 1.0], 7)
    X = 1e3 * np.column_stack([one, one, one, other])
    np.testing.assert_array_equal(order(NUMPY, X, np.array([2.0, 1.9, 1.8, 1.7]), 4), [0, 3, 1, 2])


@pytest.mark.parametrize(("count", "number"), [(2, 2), (4, 4), (10, 4)])
def test_closed_columns_take_no_part(count, number):
    X, mu = noise(30, 10), np.array([-0.5, 0.2, -1.0, 1.6, 0.0, 1.2, -0.1, -2.0, 0.7, -0.3])
    found = order(NUMPY, X, mu, count)
    assert len(found) == number
    assert set(found) <= {1, 3, 5, 8}
    alone = order(NUMPY, X[:, [1, 3, 5, 8]], mu[[1, 3, 5, 8]], count)
    np.testing.assert_array_equal(found, np.array([1, 3, 5, 8])[alone])


def test_gates_weight_columns_up_to_one():
    X, mu = groups(60), np.random.default_rng(1).uniform(0.3, 1.0, 15)
    np.testing.assert_array_equal(order(NUMPY, X, mu, 15), order(NUMPY, X * mu, np.ones(15), 15))
    np.testing.assert_array_equal(order(NUMPY, X, mu + 1, 15), order(NUMPY, X, np.ones(15), 15))
    assert not np.array_equal(order(NUMPY, X, mu, 15), order(NUMPY, X, np.ones(15), 15))


def test_no_open_column():
    assert order(NUMPY, noise(10, 3), np.array([-1.0, 0.0, -0.5]), 2).shape == (0,)


def test_rows_columns_signs_and_units_do_not_matter():
    X, mu = groups(60), np.random.default_rng(1).uniform(0.3, 2.0, 15)
    found = order(NUMPY, X, mu, 15)
    rows, columns = np.random.default_rng(2).permutation(60), np.random.default_rng(3).permutation(15)
    np.testing.assert_array_equal(order(NUMPY, X[rows], mu, 15), found)
    np.testing.assert_array_equal(order(NUMPY, 1000 * X, mu, 15), found)
    np.testing.assert_array_equal(order(NUMPY, X * np.where(columns % 2, 1, -1), mu, 15), found)
    np.testing.assert_array_equal(columns[order(NUMPY, X[:, columns], mu[columns], 15)], found)


def test_many_rows_are_sampled(monkeypatch):
    """A column that varies on the other rows alone comes last; the sample does not depend on the engine."""
    monkeypatch.setattr(diverse_ranking, "ROWS", 40)
    X = groups(400)
    found = order(NUMPY, X, np.full(15, 2.0), 15)
    assert sorted(found[:3] // 5) == [0, 1, 2]
    read = random.permutation(NUMPY, 0, random.Stream.PERMUTATION, 1, 400)[:40]
    np.testing.assert_array_equal(order(NUMPY, X[read], np.full(15, 2.0), 15), found)
    for constant in (0.0, 0.1, -1 / 3):  # whose mean need not be itself, to the last bit
        rare = np.full((400, 1), constant)
        rare[np.setdiff1d(np.arange(400), read)[:3]] = 5.0
        mu = np.append(3.0, np.full(15, 2.0))
        np.testing.assert_array_equal(order(NUMPY, np.hstack([rare, X]), mu, 16), [*(found + 1), 0])


def test_of_very_many_columns_the_best_take_part(monkeypatch):
    monkeypatch.setattr(diverse_ranking, "CANDIDATES", 6)
    mu = np.random.default_rng(0).uniform(0.5, 2, 15)
    assert set(order(NUMPY, groups(), mu, 15)) == set(np.argsort(-mu)[:6])


@pytest.mark.parametrize("X", [np.zeros((6, 4)), np.ones((3, 4)), np.ones((1, 4))], ids=lambda X: str(X.shape))
def test_identical_rows(X):
    """They leave the order of the gates."""
    np.testing.assert_array_equal(order(NUMPY, X, np.array([1.0, 3.0, 2.0, 1.0]), 4), [1, 2, 0, 3])
    np.testing.assert_array_equal(order(NUMPY, X, np.array([1.0, 3.0, 2.0, 1.0]), 2), [1, 2])


@pytest.mark.parametrize("n", [1, 2, 3, 6, 30])
def test_a_single_column(n):
    np.testing.assert_array_equal(order(NUMPY, noise(n, 1), np.array([2.0]), 4), [0])


@pytest.mark.parametrize("unit", [1e-70, 1e90, 1e140])
def test_fourth_powers_beyond_float64(unit):
    X, mu = groups(60), np.random.default_rng(1).uniform(0.3, 2.0, 15)
    np.testing.assert_array_equal(order(NUMPY, unit * X, mu, 15), order(NUMPY, X, mu, 15))


def test_columns_that_are_too_small_for_their_squares_come_last():
    X = groups(60)
    found = order(NUMPY, np.hstack([1e-200 * X[:, :1], X]), np.full(16, 2.0), 16)
    np.testing.assert_array_equal(found, [*(order(NUMPY, X, np.full(15, 2.0), 15) + 1), 0])


@pytest.mark.parametrize("scaling", ["columns", "global"])
def test_sparse_columns_are_those_of_the_dense_matrix(scaling):
    rng = np.random.default_rng(0)
    X = np.where(rng.random((80, 30)) < 0.3, rng.exponential(size=(80, 30)) * np.repeat([1, 5, 2], 10), 0.0)
    X[:, 10:20] = X[:, :10] * 3 + 0.01 * (X[:, :10] > 0)
    mu = rng.uniform(-0.2, 2.0, 30)
    dense = scale_columns(X, scaling, np.float64).X
    table = scale_sparse(sparse.csr_matrix(X), scaling, "float64", by_rows=False).X
    np.testing.assert_array_equal(order(NUMPY, table, mu, 20), order(NUMPY, dense, mu, 20))


@pytest.mark.parametrize("shape", [(7, 3), (300, 150), (50, 300)])
def test_quadratic_forms(monkeypatch, shape):
    monkeypatch.setattr(diverse_ranking, "BLOCK", 40)
    rng = np.random.default_rng(0)
    X, M = rng.normal(size=shape), rng.normal(size=(shape[1], shape[1]))
    got = diverse_ranking._quadratic_forms(NUMPY, X, M, 2)
    np.testing.assert_allclose(got, np.einsum("ki,ij,kj->k", X, M, X), atol=1e-10)


@pytest.mark.parametrize(("best", "ahead"), [(1, 1), (1, 4), (3, 2), (5, 20)])
def test_choosing_from_few_several_steps_ahead_is_choosing_from_all(monkeypatch, best, ahead):
    X, mu = np.hstack([groups(60), noise(60, 20, seed=3)]), np.random.default_rng(1).uniform(0.3, 1.0, 35)
    X[:, 20:25] = X[:, 15:16]  # ties
    found = order(NUMPY, X, mu, 35)
    monkeypatch.setattr(diverse_ranking, "BEST", best)
    monkeypatch.setattr(diverse_ranking, "AHEAD", ahead)
    for threads in (1, 2):
        np.testing.assert_array_equal(order(NUMPY, X, mu, 35, threads), found)
    mu[15:25] = 1.0
    np.testing.assert_array_equal(order(NUMPY, X, mu, 12), found_from_all(monkeypatch, X, mu, 12))


def found_from_all(monkeypatch, *arguments):
    monkeypatch.setattr(diverse_ranking, "BEST", 10**6)
    return order(NUMPY, *arguments)


# --- in the selector -------------------------------------------------------------------------------------------------


def quick(**settings):
    return GatedLaplacian(
        **{"max_iter": 60, "max_runs": 1, "n_draws": 2, "learning_rate": 0.03, "random_state": 0} | settings
    )


@pytest.fixture(scope="module")
def data():
    return np.hstack([groups(), noise(90, 10, seed=5)])


@pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")
def test_the_selector_orders_its_open_columns(data):
    gates, found = quick().fit(data), quick(ranking="diverse", n_features_to_select=3).fit(data)
    np.testing.assert_array_equal(found.mu_, gates.mu_)
    np.testing.assert_array_equal(found.scores_, gates.mu_)
    assert sorted(found.order_) == list(range(25))
    np.testing.assert_array_equal(np.flatnonzero(found.support_), np.sort(found.order_[:3]))
    assert sorted(found.order_[:3] // 5) == [0, 1, 2]
    n_open = (gates.mu_ > 0).sum()
    assert n_open > 3
    rest = found.order_[3:]  # what is not asked for comes in the order of the gates
    np.testing.assert_array_equal(rest, gates.order_[~np.isin(gates.order_, found.order_[:3])])
    everything = quick(ranking="diverse").fit(data)
    np.testing.assert_array_equal(everything.support_, gates.support_)
    assert set(everything.order_[:n_open]) == set(np.flatnonzero(gates.support_))
    np.testing.assert_array_equal(everything.order_[:3], found.order_[:3])
    np.testing.assert_array_equal(everything.order_[n_open:], gates.order_[n_open:])


@pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")
def test_more_columns_than_are_open_are_filled_by_their_gates(data):
    gates = quick(n_features_to_select=22).fit(data)
    found = quick(n_features_to_select=22, ranking="diverse").fit(data)
    assert (gates.mu_ > 0).sum() < 22
    np.testing.assert_array_equal(found.support_, gates.support_)


@pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")
def test_data_on_disk_and_populations(data, tmp_path):
    np.save(tmp_path / "x.npy", data)
    settings = {"batch_size": 30, "ranking": "diverse", "n_features_to_select": 4}
    memory = quick(**settings).fit(data)
    disk = quick(**settings).fit(np.load(tmp_path / "x.npy", mmap_mode="r"))
    np.testing.assert_array_equal(disk.order_, memory.order_)
    together = fit_many([quick(**settings), quick(**settings | {"ranking": "gates"})], data)
    np.testing.assert_array_equal(together[0].order_, memory.order_)
    np.testing.assert_array_equal(together[1].order_, np.argsort(-memory.mu_, kind="stable"))


def test_the_memory_of_a_population_is_that_of_its_largest_fit(monkeypatch):
    monkeypatch.setattr(
        "dufs_core.significance.permutation.WORDS", 1000
    )  # of random words at once: else the gap takes more
    X, together = noise(90, 9000), [quick(engine="dense"), quick(engine="dense", ranking="diverse")]
    need = [needed_bytes("dense", *FitTask.begin(fit, X, threads=1).memory) for fit in together]
    assert need[1] > need[0]
    for fit in together:
        fit.set_params(max_memory=need[1] - 1)
    with pytest.raises(MemoryLimitError):
        fit_many(together, X)


@pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")
def test_blas_is_held_to_one_thread(data, monkeypatch):
    """As in the rest of a fit: the bits do not depend on fits in other threads."""
    seen = []

    def order_seen(*arguments):
        seen.extend(library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas")
        return order(*arguments)

    monkeypatch.setattr("dufs_core.selection.result.diverse_order", order_seen)
    with threadpool_limits(3, user_api="blas"):
        quick(ranking="diverse").fit(data)
    assert seen
    assert set(seen) == {1}


@pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")
def test_a_report_says_what_the_order_is(data):
    selector = quick(ranking="diverse", n_features_to_select=3).fit(data)
    selector.scores_ = selector.mu_ = np.where(selector.mu_ > 0, np.float32(1.5), selector.mu_)
    found = report(selector, data)
    assert not any("tie" in row["reason"] for row in found.rows)  # what decided was not the column index
    assert sum("complement each other" in note for note in found.notes) == 1
    assert not any("complement each other" in note for note in report(quick().fit(data), data).notes)


def test_a_path_refuses_an_order_that_it_would_not_use(data):
    selector = quick(ranking="diverse")
    with pytest.raises(ValueError, match=r"takes n_features_to_select=3 columns by their gates.*set ranking=\"gates\""):
        LambdaPath(selector, lams=[0.1], n_features_to_select=3).fit(data)


@pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")
def test_what_a_path_selects_does_not_depend_on_the_order(data):
    settings = {"lams": [0.1], "n_splits": 1, "n_permutations": 3, "random_state": 0}
    found = [LambdaPath(quick(max_iter=10, ranking=r), **settings).fit(data) for r in ("gates", "diverse")]
    np.testing.assert_array_equal(found[0].order_, found[1].order_)
    np.testing.assert_array_equal(found[0].support_, found[1].support_)


def test_an_unknown_ranking(data):
    with pytest.raises(ValueError, match="ranking must be one of 'gates', 'diverse'; got 'gate'"):
        quick(ranking="gate").fit(data)
