"""Free oracles: what may not change when columns or rows are permuted, flipped or appended."""

from __future__ import annotations

import generators as gen
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dufs_core.backend import get_backend, random
from dufs_core.objective.chain import Objective
from dufs_core.objective.engines.choose import ENGINES, get_engine

bk = get_backend("numpy")
some = settings(max_examples=12)
seeds = st.integers(0, 10**6)
engines = pytest.mark.parametrize("engine", ENGINES)
NOISES = [*((engine, False) for engine in ENGINES), ("reference", True)]  # one gate per sample in one engine alone
with_noise = pytest.mark.parametrize(("engine", "per_sample"), NOISES)
OBJECTIVES = [
    Objective(),
    Objective(lam=0.2, bandwidth="median", n_neighbors=1, power=3),
    Objective(bandwidth=2.0, power=1),
    Objective(bandwidth="q90", lam=0.1),
    Objective(degenerate_rule="one", bandwidth="median", bandwidth_factor=1.0),
]
objectives = pytest.mark.parametrize("objective", OBJECTIVES, ids=["max", "median", "fixed", "q90", "authors"])


def evaluate(engine, objective, mu, eps, X):
    call = get_engine(engine, bk, 1)
    return call(bk, objective, np.ascontiguousarray(mu), np.ascontiguousarray(eps), np.asfortranarray(X))


def point(seed, n=11, d=6, per_sample=False):
    rng = np.random.default_rng(seed)
    columns = np.arange(d)
    eps = random.normals(bk, seed, random.Stream.GATES, 1, 2, np.arange(n) if per_sample else None, columns, np.float64)
    return gen.noise(n, d, seed), rng.normal(0.5, 0.3, size=d), eps, rng


def same(a, b, tolerance=1e-11):
    (value, dmu), (other, other_dmu) = a, b
    assert other.loss == pytest.approx(value.loss, rel=tolerance)
    gen.assert_close(other.bandwidth, value.bandwidth, tolerance)
    gen.assert_close(other_dmu, dmu, tolerance, "gradient")


@with_noise
@objectives
@some
@given(seed=seeds)
def test_permuting_columns_with_their_draws_permutes_the_gradient(engine, objective, per_sample, seed):
    X, mu, eps, rng = point(seed, per_sample=per_sample)
    order = rng.permutation(len(mu))
    value, dmu = evaluate(engine, objective, mu, eps, X)
    same((value, dmu[order]), evaluate(engine, objective, mu[order], eps[..., order], X[:, order]))


@with_noise
def test_permuting_columns_where_the_gram_matrix_has_no_rounding(engine, per_sample):
    """Small whole numbers: G is the same in every bit, and what is left is the last product's own rounding.

    The streaming form goes on with the columns instead of G: its score is a sum over them.
    """
    rng = np.random.default_rng(0)
    n, d = 9, 7
    X = rng.integers(-4, 5, size=(n, d)).astype(np.float64)
    mu, eps = np.full(d, 0.5), rng.integers(-4, 5, size=(2, n, d) if per_sample else (2, d)) / 4.0
    for lam in (0.25, None):
        objective = Objective(lam=lam, bandwidth=4.0)
        value, dmu = evaluate(engine, objective, mu, eps, X)
        order = rng.permutation(d)
        other, other_dmu = evaluate(engine, objective, mu[order], eps[..., order], X[:, order])
        if engine == "streaming":
            gen.assert_close(other.score, value.score, 1e-15)
        else:
            np.testing.assert_array_equal(other.score, value.score)
        gen.assert_close(other_dmu, dmu[order], 2e-15)


@with_noise
@objectives
@some
@given(seed=seeds)
def test_permuting_rows_changes_nothing_but_rounding(engine, objective, per_sample, seed):
    X, mu, eps, rng = point(seed, per_sample=per_sample)
    order = rng.permutation(len(X))
    a = evaluate(engine, objective, mu, eps, X)
    same(a, evaluate(engine, objective, mu, eps[:, order] if per_sample else eps, X[order]))


@with_noise
@objectives
def test_negating_columns_changes_no_bit(engine, objective, per_sample):
    X, mu, eps, _ = point(3, per_sample=per_sample)
    value, dmu = evaluate(engine, objective, mu, eps, X)
    for signs in ([-1, 1, 1, 1, 1, 1], [1, -1, -1, 1, -1, 1], [-1] * 6):
        other, other_dmu = evaluate(engine, objective, mu, eps, X * np.array(signs))
        assert other.loss == value.loss
        np.testing.assert_array_equal(other_dmu, dmu)


@with_noise
@objectives
@pytest.mark.parametrize("at", [0, 3, 6])
def test_a_zero_column_changes_no_other_slope(engine, objective, per_sample, at):
    """A constant column is 0 after scaling: no score, no score slope, and no other column notices its gate.

    It still counts in the regulariser, so its mu is put where P(z > 0) is 0 to the last bit.
    """
    X, mu, eps, rng = point(4, per_sample=per_sample)
    a = evaluate(engine, objective, mu, eps, X)
    wider = np.insert(X, at, 0.0, axis=1)
    gates = np.insert(eps, at, rng.normal(size=eps.shape[:-1]), axis=-1)
    value, dmu = evaluate(engine, objective, np.insert(mu, at, -20.0), gates, wider)
    assert dmu[at] == 0
    same(a, (value, np.delete(dmu, at)), 1e-12)
    # open, it adds its own probability and nothing else
    regularised = Objective(lam=0.5, bandwidth=objective.bandwidth, n_neighbors=objective.n_neighbors)
    closed, _ = evaluate(engine, regularised, np.insert(mu, at, -20.0), gates, wider)
    opened, dmu = evaluate(engine, regularised, np.insert(mu, at, 0.0), gates, wider)
    assert opened.loss == pytest.approx(closed.loss + 0.25, rel=1e-13)
    assert dmu[at] == pytest.approx(0.5 / (np.sqrt(2 * np.pi) * 0.5), rel=1e-14)


@objectives
def test_one_noise_for_the_batch_equals_the_same_noise_for_every_sample(objective):
    X, mu, eps, _ = point(5)
    spread = np.repeat(eps[:, None, :], len(X), axis=1)
    same(evaluate("reference", objective, mu, eps, X), evaluate("reference", objective, mu, spread, X), 1e-12)


@engines
def test_equal_columns_with_equal_draws_have_equal_slopes(engine):
    X, mu, eps, _ = point(6)
    X[:, 4], mu[4], eps[:, 4] = X[:, 1], mu[1], eps[:, 1]
    _, dmu = evaluate(engine, Objective(), mu, eps, X)
    assert dmu[4] == pytest.approx(dmu[1], rel=1e-13)


@engines
@pytest.mark.parametrize("bandwidth", ["median", "q90", "max"])
def test_scaling_the_data_scales_the_score(engine, bandwidth):
    """X -> 4 X: D, b and S grow by 16, K stays, so the losses and slopes grow by 16, in every bit."""
    X, mu, eps, _ = point(7)
    objective = Objective(bandwidth=bandwidth, delta=0.0)
    value, dmu = evaluate(engine, objective, mu, eps, X)
    other, other_dmu = evaluate(engine, objective, mu, eps, 4.0 * X)
    assert other.bandwidth == pytest.approx(16 * value.bandwidth, rel=1e-15)
    np.testing.assert_array_equal(other.score, 16 * value.score)
    regularised = Objective(bandwidth=bandwidth, lam=0.0)
    _, dmu = evaluate(engine, regularised, mu, eps, X)
    _, other_dmu = evaluate(engine, regularised, mu, eps, 4.0 * X)
    np.testing.assert_array_equal(other_dmu, 16 * dmu)


@engines
@pytest.mark.parametrize("bandwidth", ["median", "q90", "max"])
def test_a_single_column_scores_alike_in_any_order_of_its_rows(engine, bandwidth):
    """Alone, a permuted copy is as good as the column: blocks of permuted copies share their scores."""
    X = gen.permuted_copies(n=13, d=2, copies=3)
    objective = Objective(bandwidth=bandwidth)
    scores = []
    for column in range(6):
        mu = np.full(6, -9.0)
        mu[column] = 9.0
        value, _ = evaluate(engine, objective, mu, np.zeros((1, 6)), X)
        scores.append(value.score[0])
    for column in range(6):
        assert scores[column] == pytest.approx(scores[column % 2], rel=1e-12)


@engines
def test_structure_scores_above_noise(engine):
    """Three clusters: their three columns together score far above any three nuisance columns."""
    X = gen.three_clusters().X

    def score_of(columns):
        mu = np.full(10, -9.0)
        mu[columns] = 9.0
        return evaluate(engine, Objective(), mu, np.zeros((1, 10)), X)[0].score[0] / (45 * len(columns))

    assert score_of([0, 1, 2]) > 0.8
    assert max(score_of([a, a + 1, a + 2]) for a in range(3, 8)) < 0.5
