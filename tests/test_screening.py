"""The screening of pairs: against the definition, and what it is for."""

import numpy as np
import pytest

from dufs_core.backend import get_backend
from dufs_core.datasets import two_moons
from dufs_core.screening import _pair_scores, pair_gaps, strongest_columns
from tests.generators import noise, standardise

NUMPY = get_backend("numpy")


def test_pair_scores_are_the_definition():
    X = noise(12, 4)
    scores = _pair_scores(NUMPY, X)
    for k in range(4):
        for m in range(4):
            pair = X[:, [k, m]]
            K = np.exp(-((pair[:, None] - pair[None]) ** 2).sum(axis=2))
            P = K / K.sum(axis=1, keepdims=True)
            expected = 0.0 if k == m else np.trace(pair.T @ P @ P @ pair) / (2 * len(X))
            assert scores[k, m] == pytest.approx(expected, rel=1e-12)


def test_gaps_of_independent_columns_are_small_and_centred():
    gaps = pair_gaps(NUMPY, noise(100, 30))[np.triu_indices(30, 1)]
    assert abs(gaps.mean()) < 0.005
    assert abs(gaps).max() < 0.08


@pytest.mark.parametrize("n", [100, 300])  # 300: rows are sampled
def test_the_moons_come_first_wherever_they_stand(n):
    X = standardise(two_moons(n_samples=n, n_features=100).X)[:, ::-1]
    ranking = np.random.default_rng(0).permutation(100)
    assert set(strongest_columns(NUMPY, X, ranking)[:2]) == {98, 99}


def test_more_columns_than_are_screened_are_cut_by_the_ranking():
    X = noise(10, 450)
    ranking = np.arange(450)[::-1]
    assert set(strongest_columns(NUMPY, X, ranking)) == set(range(50, 450))


@pytest.mark.parametrize("d", [0, 1, 2])
def test_hardly_any_columns(d):
    assert sorted(strongest_columns(NUMPY, noise(10, 2), np.arange(d))) == list(range(d))
