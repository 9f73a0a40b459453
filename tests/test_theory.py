"""The chi-square bound beside counting, exact tails and draws."""

import math

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from scipy.stats import chi2

from dufs_core.inspection import theory


def holds(d, r, n, epsilon, s):
    """The condition for d, written out from the two tails."""
    g = -math.log(epsilon / (n * (n - 1) + n * n))
    within = 2 * s * s * (d + 2 * math.sqrt(d * g) + 2 * g)
    between = r * r + 2 * s * s * (d - 2 * math.sqrt(d * g))
    return within <= between


@pytest.mark.parametrize("r", [0.0, 1.0, 5.0, 7.0, 12.0, 30.0])
@pytest.mark.parametrize(("n", "epsilon", "s"), [(1, 0.5, 1.0), (50, 0.05, math.sqrt(0.5)), (50, 1e-6, 0.5)])
def test_most_dimensions_by_counting(r, n, epsilon, s):
    d = 0
    while holds(d + 1, r, n, epsilon, s):
        d += 1
    assert theory.max_nuisance_dimensions(r, n, epsilon, s) == d


@pytest.mark.parametrize(("r", "d"), [(8.0, 3), (12.0, 60), (20.0, 700), (3.0, 10**6), (30.0, 1)])
def test_probability_by_bisection(r, d):
    low, high = 0.0, r * r  # of g, for s with differences of variance 1
    for _ in range(200):
        g = (low + high) / 2
        low, high = (g, high) if 4 * math.sqrt(d * g) + 2 * g <= r * r else (low, g)
    expected = max(0.0, 1 - (2 * 50 * 50 - 50) * math.exp(-low))
    assert theory.separation_probability(r, 50, d) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_the_two_agree():
    for r in (8.0, 11.0, 25.0):
        d = theory.max_nuisance_dimensions(r, 50, 0.05)
        assert d > 0
        assert theory.separation_probability(r, 50, d) >= 0.95
        assert theory.separation_probability(r, 50, d + 1) < 0.95


def test_ends():
    assert theory.max_nuisance_dimensions(1e70, 1, 0.99, s=1.0) > 1e270
    assert theory.separation_probability(0.1, 50, 0) == 1
    assert theory.separation_probability(0.0, 50, 0) == 0
    assert theory.separation_probability(0.0, 50, 10) == 0
    assert theory.exponent(1, math.exp(-3)) == pytest.approx(3)


@pytest.mark.parametrize("d", [1, 7, 400])
@pytest.mark.parametrize("g", [0.1, 2.0, 20.0])
def test_tails_are_bounds(d, g):
    low, high = theory.chi2_bounds(d, g)
    assert chi2.sf(high, d) <= math.exp(-g)
    assert chi2.cdf(low, d) <= math.exp(-g)


def test_what_is_promised_happens():
    rng, n, r = np.random.default_rng(0), 20, 9.0
    d = theory.max_nuisance_dimensions(r, n, 0.2)
    assert d > 5
    kept = 0
    for _ in range(50):
        X = math.sqrt(0.5) * rng.standard_normal((2 * n, d))
        first, second = X[:n], X[n:]
        between = cdist(first, second, "sqeuclidean") + r * r
        kept += max(cdist(c, c, "sqeuclidean").max() for c in (first, second)) < between.min()
    assert kept >= 40


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: theory.exponent(0, 0.1), "at least 1; got 0"),
        (lambda: theory.exponent(5, 1.0), "between 0 and 1; got 1.0"),
        (lambda: theory.max_nuisance_dimensions(-1.0, 5), "at least 0; got -1"),
        (lambda: theory.max_nuisance_dimensions(1.0, 5, s=0.0), "must be positive; got 0"),
        (lambda: theory.max_nuisance_dimensions(math.nan, 5), "got nan"),
        (lambda: theory.separation_probability(1.0, 5, -1), "at least 0; got -1"),
        (lambda: theory.max_nuisance_dimensions(1e200, 5), "at most 1e.70, .* got r = 1e.200"),
        (lambda: theory.separation_probability(1.0, 5, 3, s=1e-200), "at most 1e.70, .* s = 1e-200"),
        (lambda: theory.chi2_bounds(0, 1.0), "d = 0"),
    ],
)
def test_bad_numbers(call, words):
    with pytest.raises(ValueError, match=words):
        call()
