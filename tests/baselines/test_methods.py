"""Every baseline against hand-worked or independently coded float64 examples; what its paper proves."""

from __future__ import annotations

import numpy as np
import pytest
import slow_baselines as slow
from generators import assert_close, standardise
from hypothesis import given, settings
from hypothesis import strategies as st

from dufs_core.backend import get_backend
from dufs_core.backend.random import Stream, uniforms, words
from dufs_core.baselines import LLCFS, MCFS, NDFS, SRCFS, ConcreteAutoencoder, LaplacianScore
from dufs_core.baselines import concrete_autoencoder as cae
from dufs_core.baselines.laplacian_score import locality
from dufs_core.baselines.llcfs import local_models
from dufs_core.baselines.mcfs import sparse_coefficients
from dufs_core.baselines.ndfs import indicator_step, ridge

bk = get_backend("numpy")


def overlapping(n=30, d=7, seed=0):
    """Two clusters that overlap (columns 1 and 4) and noise: one component, no ties, no equal eigenvalues."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    X[:, [1, 4]] += 2.5 * (np.arange(n)[:, None] % 2)
    return standardise(X)


# --- Laplacian score ------------------------------------------------------------------------------------------------


def test_laplacian_score_by_hand():
    """Rows 0, 1, 3 on a line, k = 1, t = 1: edges 0-1 with a = e^-1 and 1-2 with b = e^-4.

    For f = (1, -1, 0): f'Dg1 = -b, 1'Dg1 = 2(a + b); f~'Lf~ = f'Lf = 4a + b; f~'Dgf~ = 2a + b - b^2 / (2a + 2b).
    """
    a, b = np.exp(-1.0), np.exp(-4.0)
    W = np.array([[0, a, 0], [a, 0, b], [0, b, 0]])
    by_hand = (4 * a + b) / (2 * a + b - b * b / (2 * a + 2 * b))
    assert_close(slow.laplacian_scores(np.array([[1.0], [-1.0], [0.0]]), W), [by_hand], 1e-14)
    X = np.array([[0.0, 1e-9], [1.0, -1e-9], [3.0, 0.0]])  # the second column does not move the graph
    scores = LaplacianScore(n_neighbors=1, bandwidth=1.0, scaling="none").fit(X).scores_
    assert_close(scores[1], 1 - by_hand, 1e-12)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("k", [1, 3, 8])
def test_laplacian_score(seed, k):
    X = overlapping(seed=seed)
    expected = 1 - slow.laplacian_scores(X, slow.graph(X, k, "median")[0])
    assert_close(LaplacianScore(n_neighbors=k).fit(X).scores_, expected, 1e-10)


@pytest.mark.parametrize(("rule", "quantile"), [("median", 0.5), ("q90", 0.9), ("max", 1.0)])
def test_bandwidth_rules(rule, quantile):
    X = overlapping()
    D = ((X[:, None] - X[None]) ** 2).sum(axis=2)
    t = 3.0 * np.quantile(np.sort(D, axis=1)[:, 4], quantile)
    expected = 1 - slow.laplacian_scores(X, slow.graph(X, 4, t)[0])
    found = LaplacianScore(n_neighbors=4, bandwidth=rule, bandwidth_factor=3.0).fit(X).scores_
    assert_close(found, expected, 1e-10)


@pytest.mark.parametrize("power", [1, 2, 5])
def test_random_walk_variant(power):
    """f' P^t f / n from the random-walk matrix itself."""
    X = overlapping()
    D = ((X[:, None] - X[None]) ** 2).sum(axis=2)
    K = np.exp(-D / (2.0 * np.sort(D, axis=1)[:, 3].max()))
    P = np.linalg.matrix_power(K / K.sum(axis=1, keepdims=True), power)
    expected = np.array([f @ P @ f for f in X.T]) / len(X)
    options = {"n_neighbors": 3, "bandwidth": "max", "bandwidth_factor": 2.0}
    assert_close(LaplacianScore(variant="random_walk", power=power, **options).fit(X).scores_, expected, 1e-10)


def test_locality_ignores_the_scale_of_a_column():
    X = overlapping()
    W, _ = slow.graph(X, 3, 1.0)
    from scipy.sparse import csr_array

    scale = np.array([1e-200, 1.0, 1e100, -1.0, 1e5, 1e-9, 3.0])
    assert_close(locality(X * scale, csr_array(W)), locality(X, csr_array(W)), 1e-12)


# --- MCFS -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "d"), [(30, 7), (9, 12)])
@pytest.mark.parametrize("wanted", [1, 2, 3])
def test_mcfs(n, d, wanted):
    """Both ways to run the path, from the Gram matrix and from the columns. No coefficient passes 0 so early."""
    X = overlapping(n, d)
    expected = slow.mcfs(X, slow.graph(X, 4, "median")[0], 3, wanted)
    fitted = MCFS(n_features_to_select=wanted, n_clusters=3, n_neighbors=4).fit(X)
    assert_close(fitted.scores_, expected, 1e-6)  # the path's own tolerance is 1.2e-7
    assert (fitted.scores_ > 0).sum() >= wanted


@pytest.mark.parametrize(("n", "d"), [(40, 30), (15, 40)])
@pytest.mark.parametrize("steps", [1, 5, 12, 25])
def test_sparse_coefficients_solve_the_l1_problem(n, d, steps):
    """Its solutions and no others have X_j'r = C sign(a_j) where a_j is not 0, at most C in size elsewhere."""
    X, y = overlapping(n, d), np.random.default_rng(1).normal(size=(n, 3))
    A = sparse_coefficients(X, y, steps)
    for a, target in zip(A.T, (y - y.mean(axis=0)).T, strict=True):
        pull = X.T @ (target - X @ a)
        used = a != 0
        assert 1 <= used.sum() <= steps
        C = abs(pull[used]).max()
        size = abs(X.T @ target).max()
        assert abs(pull[used] - C * np.sign(a[used])).max() <= 1e-6 * size
        assert abs(pull).max() <= C + 1e-6 * size


def test_mcfs_ends_at_least_squares():
    X = overlapping()
    y = np.random.default_rng(1).normal(size=(30, 2))
    expected = np.linalg.lstsq(X, y - y.mean(axis=0), rcond=None)[0]
    assert_close(sparse_coefficients(X, y, 7), expected, 1e-5)


def test_mcfs_takes_coefficients_in_size():
    X = overlapping()
    a = MCFS(n_features_to_select=2, n_clusters=1).fit(X).scores_
    b = MCFS(n_features_to_select=2, n_clusters=1).fit(X * [1, -1, 1, 1, 1, 1, 1]).scores_
    assert_close(a, b, 1e-9)
    assert set(np.argsort(-a)[:2]) == {1, 4}


# --- NDFS -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "d"), [(6, 15), (15, 6), (8, 8)])
def test_both_forms_of_the_ridge_regression(n, d):
    rng = np.random.default_rng(0)
    X, F, theta = rng.normal(size=(n, d)), rng.normal(size=(n, 3)), rng.uniform(0.1, 2, d)
    inverse = np.linalg.inv(X.T @ X + 0.7 * np.diag(1 / theta))
    R, solve = ridge(X, 0.7)(theta)
    assert_close(R, np.eye(n) - X @ inverse @ X.T, 1e-11)
    assert_close(solve(F), inverse @ X.T @ F, 1e-11)
    theta[2] = 0.0  # holds row 2 at 0
    without = np.delete(np.arange(d), 2)
    R, solve = ridge(X, 0.7)(theta)
    R_without, solve_without = ridge(X[:, without], 0.7)(theta[without])
    assert_close(R, R_without, 1e-11)
    assert_close(solve(F)[without], solve_without(F), 1e-11)
    assert not solve(F)[2].any()


@pytest.mark.parametrize(("n", "d"), [(30, 7), (12, 20)])
@pytest.mark.parametrize("gamma", [1.0, 1e3, 1e8])
def test_ndfs(n, d, gamma):
    X = overlapping(n, d)
    W, _ = slow.graph(X, 4, "median")
    q = W.sum(axis=1) ** -0.5
    F = np.random.default_rng(3).uniform(0.1, 1, (n, 3))
    fitted = NDFS(alpha=0.7, beta=0.9, gamma=gamma, max_iter=6, tol=1e-300)
    scores = fitted._iterate(X, np.eye(n) - W * np.outer(q, q), F)
    expected, history = slow.ndfs(X, W, F, 0.7, 0.9, gamma, 6)
    assert_close(fitted.history_["objective"], history, 1e-6)
    assert_close(scores, expected, 1e-6)
    assert (fitted.n_iter_, fitted.converged_) == (6, False)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    alpha=st.floats(1e-3, 1e3),
    beta=st.floats(1e-3, 1e3),
    gamma=st.sampled_from([1e-2, 1.0, 1e3, 1e8]),
    wide=st.booleans(),
)
def test_ndfs_objective_never_rises(seed, alpha, beta, gamma, wide):
    X = overlapping(*((10, 16) if wide else (20, 6)), seed=seed)
    fitted = NDFS(alpha=alpha, beta=beta, gamma=gamma, n_clusters=3, n_neighbors=4, max_iter=30, tol=1e-12)
    values = fitted.set_params(random_state=seed).fit(X).history_["objective"]
    assert np.isfinite(values).all()
    assert (np.diff(values) <= 1e-9 * np.abs(values[:-1])).all()


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), gamma=st.sampled_from([1e-3, 1.0, 1e4]))
def test_indicator_step_lowers_its_objective(seed, gamma):
    """For symmetric M of any sign, indefinite too."""
    rng = np.random.default_rng(seed)
    M = rng.normal(size=(8, 8))
    M, F = M + M.T, rng.uniform(0, 2, (8, 3))

    def value(F):
        return np.trace(F.T @ M @ F) + gamma / 2 * np.linalg.norm(F.T @ F - np.eye(3)) ** 2

    for _ in range(10):
        step = indicator_step(M, F, gamma)
        assert (step >= 0).all()
        assert value(step) <= value(F) + 1e-9 * abs(value(F))
        F = step


def test_repeated_regressions_minimise_the_sparse_one():
    """min ||F - X B||^2 + beta ||B||_{2,1}: X_j'(F - XB) = beta b_j / (2 ||b_j||), at most beta / 2 where b_j = 0."""
    X = overlapping()
    F = np.random.default_rng(0).normal(size=(30, 2)) + X[:, [1, 2]] * 0.5
    theta, beta = np.ones(7), 12.0
    for _ in range(3000):
        B = ridge(X, beta)(theta)[1](F)
        theta = 2 * np.linalg.norm(B, axis=1)
    pull, norms = X.T @ (F - X @ B), np.linalg.norm(B, axis=1)
    kept = norms > 1e-4
    assert 0 < kept.sum() < 7
    assert_close(pull[kept], beta * B[kept] / (2 * norms[kept, None]), 1e-6)
    assert (np.linalg.norm(pull[~kept], axis=1) <= beta / 2).all()


# --- LLCFS ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [0.1, 1.0, 30.0])
def test_local_models_are_ridge_regressions(beta):
    X, rng = overlapping(20, 5), np.random.default_rng(0)
    tau, y = rng.dirichlet(np.ones(5)), rng.normal(size=20)
    models = local_models(X, tau, 4, beta)
    for i, near in enumerate(models.indices):
        w, b = slow.local_regression(X[near], y[near], tau, beta)
        assert_close(models.alpha[i] @ y[near], X[i] @ w + b, 1e-9)
        assert_close(tau * (X[near].T @ models.R[i] @ y[near]), w, 1e-9)


@pytest.mark.parametrize("iterations", [1, 2, 4])
@pytest.mark.parametrize(("n", "d"), [(24, 5), (14, 18)])
def test_llcfs(n, d, iterations):
    X = overlapping(n, d)
    fitted = LLCFS(n_clusters=2, n_neighbors=6, beta=0.8, max_iter=iterations).fit(X)
    assert_close(fitted.scores_, slow.llcfs(X, 2, 6, 0.8, iterations), 1e-7)
    assert (fitted.n_iter_, fitted.converged_) == (iterations, False)
    assert_close(fitted.scores_.sum(), 1.0, 1e-12)


@pytest.mark.parametrize(("clusters", "noise_first"), [(5, True), (2, False)])
def test_llcfs_by_its_equations_prefers_noise_when_told_too_many_clusters(clusters, noise_first):
    """Two groups, 6 apart in columns 0 and 1 of 20: as coded from the paper, so ours."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 20))
    X[:, :2] += 6.0 * (np.arange(120)[:, None] % 2)
    X = standardise(X)
    fitted = LLCFS(n_clusters=clusters, max_iter=3).fit(X)
    assert_close(fitted.scores_, slow.llcfs(X, clusters, 5, 1.0, 3), 1e-7)
    assert (fitted.order_[0] > 1) == noise_first


@pytest.mark.parametrize("beta", [1.0, 1e6])
def test_local_models_of_rows_nearer_to_each_other_than_to_the_mean(beta):
    """Entries of the Gram matrix differ from each other in their last digits alone."""
    rng = np.random.default_rng(0)
    X = np.repeat(rng.normal(size=(4, 5)), 6, axis=0) + 1e-5 * rng.normal(size=(24, 5))
    tau, y = rng.dirichlet(np.ones(5)), rng.normal(size=24)
    models = local_models(X, tau, 4, beta)
    for i, near in enumerate(models.indices):
        w, b = slow.local_regression(X[near], y[near], tau, beta)
        assert_close(tau * (X[near].T @ models.R[i] @ y[near]), w, 1e-6)
        assert_close(models.alpha[i] @ y[near], X[i] @ w + b, 1e-6)


def test_columns_that_weigh_nothing_do_not_change_local_models():
    X, tau = overlapping(20, 9), np.array([0.3, 1e-60, 0.2, 1e-25, 0.1, 0.0, 0.3, 1e-40, 0.1])
    found, without = local_models(X, tau, 4, 1.0), local_models(X[:, tau > 1e-3], tau[tau > 1e-3], 4, 1.0)
    np.testing.assert_array_equal(found.indices, without.indices)
    assert_close(found.alpha, without.alpha, 1e-12)


# --- SRCFS ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("subspaces", [1, 3, 7, 20])
def test_srcfs(subspaces):
    X = overlapping()
    keys = words(bk, 11, Stream.PARTITION, 0, np.arange(4)[:, None], 0, np.arange(7))
    orders = [sorted(range(7), key=lambda j, row=row: int(row[j])) for row in keys]
    sizes = [len(part) for part in np.array_split(range(7), min(subspaces, 7))]
    partitions = [np.split(np.array(order), np.cumsum(sizes)[:-1]) for order in orders]
    assert all(max(len(s) for s in p) - min(len(s) for s in p) <= 1 for p in partitions)
    fitted = SRCFS(n_neighbors=3, n_partitions=4, n_subspaces=subspaces, random_state=11).fit(X)
    assert_close(fitted.scores_, slow.srcfs(X, partitions, 3), 1e-9)


def test_srcfs_with_one_subspace_is_the_laplacian_score():
    X = overlapping()
    near = np.sort(((X[:, None] - X[None]) ** 2).sum(axis=2), axis=1)[:, 1:6]
    t = 2 * np.sqrt(near).mean() ** 2
    a = SRCFS(n_subspaces=1, n_partitions=2, random_state=0).fit(X).scores_
    assert_close(a, LaplacianScore(bandwidth=t).fit(X).scores_, 1e-10)


# --- concrete autoencoder -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hidden", [(), (4,), (5, 3)])
def test_concrete_autoencoder_trains_as_coded_by_hand(hidden):
    X, seed, k, epochs = overlapping(20, 7), 5, 3, 4
    columns = np.arange(7)
    logits, *decoder = cae.initial_parameters(seed, k, columns, hidden, np.float64)
    noise, batches, temperatures = [], [], []
    from dufs_core.backend.random import permutation

    for epoch in range(epochs):
        order = permutation(bk, seed, Stream.SHUFFLE, epoch, 20)
        for rows in (order[:7], order[7:14], order[14:]):
            noise.append(-np.log(-np.log(uniforms(bk, seed, Stream.GUMBEL, len(noise), k, columns))))
            batches.append(rows)
            temperatures.append(8.0 * (0.5 / 8.0) ** (epoch / 3))
    expected, losses = slow.concrete_autoencoder(X, logits, decoder, noise, batches, temperatures, 0.01)
    parameters, history = cae.train(
        [logits, *decoder], X, columns, seed,
        epochs=epochs, batch_size=7, learning_rate=0.01, temperatures=(8.0, 0.5),
    )  # fmt: skip
    for a, b in zip(parameters, expected, strict=True):
        assert_close(a, b, 1e-9)
    sizes = [len(b) for b in batches]
    assert_close(history["loss"][-1], np.dot(losses[-3:], sizes[-3:]) / 20, 1e-10)
    assert_close(history["temperature"], 8.0 * (0.5 / 8.0) ** (np.arange(4) / 3), 1e-12)


@pytest.mark.parametrize("hidden", [(), (12,)])
def test_concrete_autoencoder_finds_the_columns_that_determine_the_others(hidden):
    """Columns 0, 3 and 5 are independent; each of the other six is one of them with noise."""
    rng = np.random.default_rng(0)
    sources = np.array([0, 3, 5])
    X = rng.normal(size=(200, 3))[:, [0, 0, 0, 1, 1, 2, 2, 1, 2]]
    X += 0.7 * rng.normal(size=X.shape) * ~np.isin(np.arange(9), sources)
    fitted = ConcreteAutoencoder(
        n_features_to_select=3, hidden=hidden, learning_rate=0.05, max_iter=600, batch_size=10, random_state=0
    ).fit(X)
    np.testing.assert_array_equal(np.flatnonzero(fitted.support_), sources)
    assert fitted.converged_
    assert fitted.n_duplicates_ == 0
    assert fitted.loss_ < 0.3  # of a variance of 1; the noise of the six others is 0.22 of all
    assert fitted.history_["temperature"][[0, -1]] == pytest.approx([10.0, 0.01])
    assert fitted.n_iter_ == len(fitted.history_["loss"]) == 600


def test_too_few_epochs_are_not_called_converged():
    fitted = ConcreteAutoencoder(n_features_to_select=2, max_iter=3, random_state=0).fit(overlapping())
    assert not fitted.converged_
    assert fitted.history_["mean_max_probability"][-1] < 0.998


def test_choices_are_distinct_and_the_surest_node_is_served_first():
    logits = np.array([[5.0, 1.0, 0.0, 4.0], [9.0, 0.0, 2.0, 1.0], [6.0, 3.0, 3.0, 0.0]])
    np.testing.assert_array_equal(cae.distinct_choice(logits), [3, 0, 1])
    everything = np.tile([3.0, 2.0, 1.0, 0.0], (4, 1))
    np.testing.assert_array_equal(cae.distinct_choice(everything), [0, 1, 2, 3])
    many = ConcreteAutoencoder(n_features_to_select=6, max_iter=2, random_state=0).fit(overlapping())
    assert many.support_.sum() == 6
    np.testing.assert_array_equal(np.sort(many.order_), np.arange(7))


def test_start_is_a_function_of_the_column():
    a = cae.initial_parameters(3, 2, np.array([0, 4, 7]), (3,), np.float64)
    b = cae.initial_parameters(3, 2, np.array([7, 0, 4]), (3,), np.float64)
    np.testing.assert_array_equal(a[0][:, [2, 0, 1]], b[0])
    np.testing.assert_array_equal(a[1], b[1])
    np.testing.assert_array_equal(a[3][:, [2, 0, 1]], b[3])
    assert np.abs(a[1]).max() <= np.sqrt(6 / (2 + 3))
