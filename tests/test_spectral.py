"""Eigenvectors of the graph beside the general, slower solvers, and on graphs with known answers."""

import numpy as np
import pytest
import reference

from dufs_core.datasets import two_moons
from dufs_core.inspection import spectral


@pytest.fixture
def K():
    return spectral.affinity(two_moons(30, 4, 0.1, 0).X)


@pytest.mark.parametrize("rule", ["max", "median", "q90"])
def test_affinity_is_the_reference_kernel(rule):
    X = two_moons(15, 3, 0.1, 1).X + 1e4  # far from 0
    D = reference.squared_distances(X.tolist())
    s = reference.scale(D, rule, 2)
    expected = reference.real([[np.exp(-D_ij / (2 * s)) for D_ij in row] for row in D])
    np.testing.assert_allclose(spectral.affinity(X, rule), expected, rtol=1e-9)


def test_a_number_is_the_bandwidth_itself():
    alone = spectral.affinity([[0.0], [2.0], [5.0]], 4.0, self_loops=False)[0]
    np.testing.assert_allclose(alone, [1e-12, np.exp(-1), np.exp(-25 / 4)], rtol=1e-12)
    np.testing.assert_allclose(spectral.affinity([[0.0], [2.0], [5.0]], 4.0)[0], np.exp([-0, -1, -25 / 4]), rtol=1e-12)


def test_spectrum_beside_the_general_solver(K):
    P = K / K.sum(axis=1, keepdims=True)
    expected = np.sort(np.linalg.eigvals(P).real)[::-1]
    values, psi = spectral.random_walk_spectrum(K, 4)
    np.testing.assert_allclose(values, expected[:4], rtol=1e-10)
    np.testing.assert_allclose(P @ psi, psi * values, atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(psi, axis=0), 1, rtol=1e-12)
    np.testing.assert_allclose(psi[:, 0], len(K) ** -0.5, rtol=1e-10)


def test_signs_follow_the_largest_entry(K):
    psi = spectral.random_walk_spectrum(K, len(K)).vectors
    size = abs(psi)
    for vector, largest in zip(psi.T, size.max(axis=0), strict=True):
        assert vector[np.flatnonzero(abs(vector) >= (1 - 1e-6) * largest)[0]] > 0


def test_psi_2_tells_two_groups_apart():
    X = np.vstack([np.zeros((6, 1)), np.ones((9, 1))]) + 0.01 * np.random.default_rng(0).standard_normal((15, 1))
    (one, second), psi = spectral.random_walk_spectrum(spectral.affinity(X, 1.0))
    assert one == pytest.approx(1)
    assert second == pytest.approx(0.46, abs=0.03)  # 2 x 2 blocks of ones and of exp(-1)
    assert len(set(np.sign(psi[:6, 1]))) == len(set(np.sign(psi[6:, 1]))) == 1
    assert np.sign(psi[0, 1]) != np.sign(psi[-1, 1])


def test_a_graph_in_two_pieces():
    K = np.kron(np.eye(2), np.ones((3, 3)))
    values, psi = spectral.random_walk_spectrum(K)
    np.testing.assert_allclose(values, 1)
    np.testing.assert_allclose(psi[:3], psi[:1].repeat(3, axis=0), atol=1e-12)
    np.testing.assert_allclose(psi[3:], psi[3:4].repeat(3, axis=0), atol=1e-12)


@pytest.mark.parametrize(
    ("K", "words"),
    [
        (np.ones((2, 3)), "shape is \\(2, 3\\)"),
        (-np.eye(2), "not negative"),
        (np.array([[1, np.nan], [np.nan, 1]]), "2 entries are not"),
        (np.array([[1, 0.5], [0.4, 1]]), "differ by up to 0.1"),
        (np.diag([1.0, 0.0]), "1 rows of K have sum 0, the first is 1"),
    ],
)
def test_bad_affinities(K, words):
    with pytest.raises(ValueError, match=words):
        spectral.random_walk_spectrum(K)


def test_bad_arguments(K):
    with pytest.raises(ValueError, match="1 to the number of rows, 30; got 31"):
        spectral.random_walk_spectrum(K, 31)
    with pytest.raises(ValueError, match="1 values that are NaN"):
        spectral.affinity([[0.0], [np.nan]])
    with pytest.raises(ValueError, match="positive number; got -1"):
        spectral.affinity([[0.0], [1.0]], -1.0)
    with pytest.raises(ValueError, match="n_neighbors=2 for 2 rows"):
        spectral.affinity([[0.0], [1.0]])
    with pytest.raises(ValueError, match="at least 2 rows"):
        spectral.affinity([0.0, 1.0])
    with pytest.raises(ValueError, match="or a positive number; got None"):
        spectral.affinity(np.eye(3), None)
    for factor in (0, -1.0, np.nan, np.inf, "2"):
        with pytest.raises(ValueError, match="bandwidth_factor must be a positive number"):
            spectral.affinity(np.eye(3), bandwidth_factor=factor)
    with pytest.raises(ValueError, match=r"overflow float64 \(entries reach 1e\+200\): divide X"):
        spectral.affinity(np.eye(3) * 1e200)
