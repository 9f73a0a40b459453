"""The awkward inputs are what their names say, and the same for the same seed; closed forms are closed forms."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad

from dufs_core.gradcheck.suite import examples
from dufs_core.gradcheck.suite.expectation import expected_square, judge

some = settings(max_examples=40)
generators = st.builds(np.random.default_rng, st.integers(0, 2**32 - 1))


@some
@given(generators, st.sampled_from(examples.KINDS), st.sampled_from(("batch", "sample")))
def test_problems(rng, kind, noise):
    p = examples.problem(rng, kind, noise)
    u = p.mu + examples.GATE_SIGMA * p.eps
    margin = 0.004 if p.kind == "nearly_closed" else 0.019
    assert np.abs(u).min() > margin
    assert np.abs(u - 1).min() > margin
    n, d = p.X.shape
    assert p.mu.shape == (d,)
    assert p.eps.shape[-1] == d
    assert p.eps.ndim == 2 or p.eps.shape[1] == n
    assert 1 <= p.n_neighbors <= n - 1
    assert p.kind != "two_rows" or n == 2
    assert p.kind != "one_column" or d == 1


@some
@given(generators)
def test_data_kinds(rng):
    twice, constant = examples.data(rng, "duplicates", n=6), examples.data(rng, "constant_column")
    assert len(np.unique(twice, axis=0)) < 6
    assert (constant.max(axis=0) == constant.min(axis=0)).any()


@some
@given(generators)
def test_more_data_kinds(rng):
    apart, ties = examples.data(rng, "two_components", n=6), examples.data(rng, "near_ties", n=6)
    D = examples.squared_distances(apart)
    assert D[0, 1] < 1e-2 * D[0, -1]
    D = examples.squared_distances(ties)
    assert abs(D[0, 1] / D[0, 2] - 1) < 0.5


@some
@given(generators)
def test_matrices(rng):
    K, D, b = examples.affinity(rng, "tiny_bandwidth")
    M = examples.symmetric(rng.standard_normal((4, 4)))
    assert b < 0.2 * np.median(D[D > 0])
    np.testing.assert_array_equal(K, K.T)
    assert (np.diag(K) == 1).all()
    np.testing.assert_array_equal(M, M.T)
    assert M.shape == (4, 4)


def test_unknown_kind():
    with pytest.raises(ValueError, match="unknown kind 'nonsense'"):
        examples.data(np.random.default_rng(0), "nonsense")


@pytest.mark.parametrize("kind", examples.KINDS)
def test_same_seed_same_problem(kind):
    a, b = (examples.problem(np.random.default_rng(5), kind) for _ in range(2))
    np.testing.assert_array_equal(a.X, b.X)
    np.testing.assert_array_equal(a.eps, b.eps)


@pytest.mark.parametrize("mu", [-1.0, 0.0, 0.3, 0.5, 1.0, 1.7])
@pytest.mark.parametrize("sigma", [0.2, 0.5])
def test_expected_square_is_the_integral(mu, sigma):
    """The closed form against quadrature, its derivative against differences of the closed form."""

    def integral(f):
        density = lambda e: f(np.clip(mu + sigma * e, 0, 1)) * np.exp(-e * e / 2) / np.sqrt(2 * np.pi)  # noqa: E731
        kinks = sorted(k for k in (-mu / sigma, (1 - mu) / sigma) if abs(k) < 12)
        edges = [-12.0, *kinks, 12.0]
        return sum(quad(density, a, b, epsabs=1e-13)[0] for a, b in pairwise(edges))

    square, slope = expected_square(np.array([mu]), sigma)
    assert square[0] == pytest.approx(integral(lambda z: z * z), abs=1e-11)
    h = 1e-5
    up, down = expected_square(np.array([mu + h]), sigma), expected_square(np.array([mu - h]), sigma)
    assert slope[0] == pytest.approx((up[0][0] - down[0][0]) / (2 * h), abs=1e-9)


def test_statistical_judge():
    rng = np.random.default_rng(0)
    exact = np.array([1.0, -2.0])
    right = exact + rng.standard_normal((40, 2))
    assert judge(right, exact)[0] < 5
    assert judge(right + 2, exact)[0] > 6.5
