"""Rows that differ by covariates: splines, strata, decoys, and what is refused."""

import numpy as np
import pytest

from dufs_core import DUFS
from dufs_core.backend import get_backend
from dufs_core.data.groups import Told
from dufs_core.significance.covariates import accept_covariates, directions, residuals, strata
from dufs_core.significance.exchange import Exchange
from dufs_core.significance.rows import Rows

NUMPY = get_backend("numpy")


def test_a_cubic_of_the_covariate_is_explained():
    z = np.random.default_rng(0).uniform(20, 80, 200)
    Q = directions(z[:, None], None)
    np.testing.assert_allclose(Q.T @ Q, np.eye(Q.shape[1]), atol=1e-10)
    x = np.stack([1 + z, z**2 - 3 * z, 0.1 * z**3])
    np.testing.assert_allclose(residuals(x - x.mean(axis=1, keepdims=True), Q), 0, atol=1e-6 * abs(x).max())


def test_a_class_of_two_or_three_values_is_explained():
    z = np.repeat([1.0, 5.0, 6.0], 20)
    Q = directions(z[:, None], None)
    assert Q.shape == (60, 2)
    x = np.repeat([3.0, -1.0, 2.0], 20)[None]
    np.testing.assert_allclose(residuals(x - x.mean(), Q), 0, atol=1e-10)


def test_covariates_that_are_constant_in_groups_explain_nothing():
    group = np.repeat([0, 1, 3], 20)
    Q = directions(np.array([0.1, 0.7, 0.0, 0.3])[group][:, None], group)
    assert Q.shape == (60, 0)
    x = np.random.default_rng(0).normal(size=(2, 60))
    np.testing.assert_array_equal(residuals(x, Q), x)


def test_strata_have_similar_rows():
    rng = np.random.default_rng(1)
    Z = rng.uniform(size=(100, 2))
    group = np.repeat([0, 1], [60, 40])
    number = strata(Z, group)
    sizes = np.bincount(number)
    assert sizes.min() >= 7
    assert sizes.max() < 16
    assert all(len(set(group[number == s])) == 1 for s in range(len(sizes)))
    within = np.mean([Z[number == s].std(axis=0).mean() for s in range(len(sizes))])
    assert within < 0.6 * Z.std(axis=0).mean()


def test_decoys_are_shuffled_within_strata():
    z = np.random.default_rng(2).uniform(size=64)
    exchange = Exchange.of(NUMPY, Rows.of(64, Told(covariates=z)), 0)
    order = exchange.orders(3, np.arange(5))
    assert (exchange.exchanged[order] == exchange.exchanged).all()
    values = exchange.prepared(np.random.default_rng(3).normal(size=(5, 64)), np.arange(5)).values
    finished = exchange.finished(np.take_along_axis(values, order[0], axis=1), 0)
    Q = directions(z[:, None], None)
    # clipped once, and that little is left of the covariate
    assert abs(finished @ Q).max() < 0.1 * np.sqrt(64)


@pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")
@pytest.mark.parametrize("kind", ["mean", "deviation"])
def test_age_untold_and_told(kind):
    rng = np.random.default_rng(4)
    age = rng.uniform(20, 80, 200)
    unit = (age[:, None] - 50) / 30
    X = rng.normal(size=(200, 40))
    X = X + 2 * np.sin(rng.uniform(1, 3, 40) * unit) if kind == "mean" else X * np.exp(unit)
    assert DUFS(random_state=0).fit(X).support_.sum() > 20
    told = DUFS(random_state=0).fit(X, covariates=age)
    assert not told.support_.any()
    assert told.rows_.n_covariates == 1
    assert "what 1 covariate explains was taken out" in told.rows_.sentence.lower()
    rows = rng.choice([-1, 1], size=(200, 1))
    X[:, :5] += 2.5 * rows * X[:, :5].std(axis=0)
    assert set(range(5)) <= set(DUFS(random_state=0).fit(X, covariates=age).get_support(indices=True))


@pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")
def test_nuisance_wins_about_one_in_six():
    """At most 0.2, within three standard errors over 12 sets, where the variance grows with age."""
    shares = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        age = rng.uniform(size=160)
        X = rng.normal(size=(160, 40)) * np.exp(2 * age[:, None])
        fitted = DUFS(random_state=seed).fit(X, covariates=age)
        shares.append((fitted.evidence_ > fitted.decoy_evidence_.max(axis=0)).mean())
    assert np.mean(shares) < 0.2 + 3 * np.std(shares) / np.sqrt(12)


@pytest.mark.parametrize(
    ("covariates", "sentence"),
    [
        (np.zeros(5), r"covariates have shape \(5,\), and X 6 rows"),
        (np.zeros((2, 6)), r"covariates have shape \(2, 6\), and X 6 rows"),
        (np.arange(6).astype("datetime64[D]"), "not times or complex ones"),
        (list("abcdef"), "covariates must be numbers .* belongs into groups"),
        ([1, 2, 3, np.nan, 5, np.inf] * 10, "missing or infinite in 20 of 60 rows"),
        (np.eye(6)[:, :1], "covariates have 7 splines in all, more than half of the 6 rows"),
        (np.ones((60, 1)), "covariate 0 has one value in all rows: leave it out"),
    ],
)
def test_covariates_that_are_none(covariates, sentence):
    with pytest.raises(ValueError, match=sentence):
        accept_covariates(covariates, 60 if len(covariates) == 60 else 6)
