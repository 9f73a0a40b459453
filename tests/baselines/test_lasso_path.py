"""Blocks of steps of the lasso path against scikit-learn's single steps, and the conditions of the optimum."""

import numpy as np
import pytest
from sklearn.linear_model import lars_path

from dufs_core.baselines import MCFS, lasso_path, mcfs
from dufs_core.baselines.lasso_path import path_end
from tests.generators import standardise


def correlated(n, d, seed, rank=6):
    """Columns that share few directions: many leave the path again."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, rank)) @ rng.normal(size=(rank, d)) + 0.3 * rng.normal(size=(n, d))
    y = rng.normal(size=n) + X[:, 0] / 3
    return standardise(X), y - y.mean()


@pytest.fixture(params=["as they are", "two steps a block", "always anew"])
def blocks(request, monkeypatch):
    if request.param == "two steps a block":
        monkeypatch.setattr(lasso_path, "_SHORTEST", 2)
        monkeypatch.setattr(lasso_path, "_LONGEST", 4)
        monkeypatch.setattr(lasso_path, "_SPARE", 1)
    elif request.param == "always anew":
        monkeypatch.setattr(lasso_path, "_DRIFT", 0.0)


@pytest.mark.parametrize("shape", [(60, 25), (60, 300), (30, 30), (25, 800)])
@pytest.mark.parametrize("seed", range(3))
def test_blocks_of_steps_are_least_angle_regression(blocks, shape, seed):
    X, y = correlated(*shape, seed)
    for steps in (1, 2, 7, 20, min(shape) - 6, min(shape)):
        expected = lars_path(X, y, max_iter=steps, method="lasso", return_path=False)[2]
        np.testing.assert_allclose(path_end(X, y, steps), expected, rtol=1e-6, atol=1e-7 * np.abs(expected).max())


def test_columns_leave_the_path_and_turn_to_the_other_side():
    """What the comparison above is worth."""
    X, y = correlated(30, 30, 0)
    paths = np.sign(lars_path(X, y, max_iter=30, method="lasso")[2])
    left = (paths[:, :-1] != 0) & (paths[:, 1:] == 0)
    assert left.sum() > 5
    assert ((paths > 0).any(axis=1) & (paths < 0).any(axis=1)).any()


def test_the_end_is_an_optimum_with_many_steps():
    X, y = correlated(300, 900, 0, rank=30)
    a = path_end(X, y, 300)
    c = X.T @ (y - X @ a)
    lam = np.abs(c).max()
    np.testing.assert_allclose(c[a != 0], lam * np.sign(a[a != 0]), rtol=1e-8)
    assert lam < 0.1 * np.abs(X.T @ y).max()


@pytest.mark.parametrize("sign", [1, -1])
def test_of_equal_columns_the_first_takes_part(blocks, sign):
    X, y = correlated(60, 40, 0)
    twice = np.hstack([X, sign * X[:, ::-1]])
    a = path_end(twice, y, 30)
    np.testing.assert_allclose(a[:40], path_end(X, y, 30), rtol=1e-8, atol=1e-10)
    assert not a[40:].any()


def test_a_target_without_correlation_has_no_path():
    X, _ = correlated(20, 5, 0)
    assert not path_end(X, np.zeros(20), 3).any()


@pytest.mark.parametrize("scaling", ["columns", "global", "none"])
def test_mcfs_does_not_depend_on_who_makes_the_steps(monkeypatch, scaling):
    X = correlated(60, 90, 0)[0] * np.linspace(1, 3, 90)
    selector = MCFS(n_features_to_select=25, scaling=scaling)
    expected = selector.fit(X).scores_
    monkeypatch.setattr(mcfs, "_SMALL", 0)
    np.testing.assert_allclose(selector.fit(X).scores_, expected, rtol=1e-6, atol=1e-8)
