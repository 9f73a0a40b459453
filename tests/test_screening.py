"""The screening of pairs: against the definition, and what it is for."""

from itertools import permutations

import numpy as np
import pytest

from dufs_core import GatedLaplacian, report
from dufs_core.backend import get_backend
from dufs_core.datasets import two_moons
from dufs_core.significance.hsic import PairwiseHSIC, hsic_z_scores
from tests.generators import noise, standardise

NUMPY = get_backend("numpy")


def test_dependence_is_the_definition():
    X = noise(12, 3)
    z = hsic_z_scores(NUMPY, X)
    centre = np.eye(12) - 1 / 12
    C = []
    for k in range(3):
        x = X[:, k] / X[:, k].std()
        C.append(centre @ np.exp(-((x[:, None] - x[None]) ** 2) / 0.3) @ centre)
    for k in range(3):
        for m in range(3):
            expected = np.trace(C[k]) * np.trace(C[m]) / 11
            s = np.sqrt(2) * np.linalg.norm(C[k]) * np.linalg.norm(C[m]) / 12
            assert z[k, m] == pytest.approx(0 if k == m else ((C[k] * C[m]).sum() - expected) / s, rel=1e-9)


def test_the_mean_is_that_of_all_permutations():
    x, y = noise(5, 2).T
    values = [hsic_z_scores(NUMPY, np.column_stack([x, y[list(order)]]))[0, 1] for order in permutations(range(5))]
    assert np.mean(values) == pytest.approx(0, abs=1e-9)


def test_a_constant_column_depends_on_none():
    X = np.column_stack([noise(20, 2), np.full(20, 3.0)])
    assert not hsic_z_scores(NUMPY, X)[2].any()


@pytest.mark.parametrize("n", [100, 300])  # 300: rows are sampled
def test_the_moons_come_first_wherever_they_stand(n):
    X = standardise(two_moons(n_samples=n, n_features=100).X)[:, ::-1]
    ranking = np.random.default_rng(0).permutation(100)
    screening = PairwiseHSIC(NUMPY, X, ranking)
    assert set(screening.strongest[:2]) == {98, 99}
    assert screening.all_dependent(np.array([98, 99]))
    assert not screening.all_dependent(np.array([1, 98, 99]))


@pytest.mark.parametrize(("name", "informative"), [("ring", 2), ("three-clusters", 3)])
def test_rings_and_clusters_come_first(name, informative):
    bench = pytest.importorskip("bench.recovery", reason="bench is not beside the tests")
    X, columns = bench.problem(name, 60, 0.1, 0)
    screening = PairwiseHSIC(NUMPY, standardise(X), np.arange(60))
    assert set(screening.strongest[:informative]) == set(columns)
    assert screening.all_dependent(columns)


def test_clusters_convince_although_their_gap_is_nothing():
    X = noise(100, 20)
    X[:, [3, 8, 15]] = 2 * np.eye(3)[np.arange(100) % 3] + 0.1 * X[:, [3, 8, 15]]
    selector = GatedLaplacian(random_state=0).fit(X)  # a SelectionWarning would be an error
    np.testing.assert_array_equal(selector.get_support(indices=True), [3, 8, 15])
    assert abs(selector.excess_score_) < 0.05
    assert selector.p_value_ == 0.05
    assert selector.stopped_by_hsic_
    notes = " ".join(report(selector, X).notes)
    assert "Each open column depends on another one more than the strongest pair of shuffled columns does" in notes
    assert "more structure than" not in notes


def test_the_strongest_pair_of_noise_is_not_dependent():
    tied = [
        screening.all_dependent(screening.strongest[:2])
        for screening in (PairwiseHSIC(NUMPY, noise(60, 20, seed=seed), np.arange(20)) for seed in range(20))
    ]
    assert sum(tied) <= 3


def test_more_columns_than_are_screened_are_cut_by_the_ranking():
    screening = PairwiseHSIC(NUMPY, noise(10, 450), np.arange(450)[::-1])
    assert set(screening.strongest) == set(range(50, 450))
    assert not screening.all_dependent(np.array([0, 60]))


@pytest.mark.parametrize("d", [0, 1, 2])
def test_hardly_any_columns(d):
    screening = PairwiseHSIC(NUMPY, noise(10, 2), np.arange(d))
    assert sorted(screening.strongest) == list(range(d))
    assert not screening.all_dependent(np.arange(min(d, 1)))
