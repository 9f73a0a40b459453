"""Dependence of a column on products of others: by an oracle, for columns and decoys alike, and its rate."""

from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np
import pytest

from dufs_core.backend import get_backend
from dufs_core.significance import products
from dufs_core.significance.products import product_dependence, rows_of_products

bk = get_backend("numpy")


def standard(rng, D, n):
    """Rows of mean 0 and variance 1, of three kinds."""
    X = rng.normal(size=(D, n))
    X[::3] = rng.poisson(1.0, size=X[::3].shape)
    X[1::3] = rng.choice([-1.0, 1.0], size=X[1::3].shape)
    X -= X.mean(axis=1, keepdims=True)
    return X / X.std(axis=1, keepdims=True)


def slow(X, competing, size):
    """The same, one product at a time."""
    n = X.shape[1]
    best = np.zeros(min(len(X), competing + 120))
    for factors in combinations(range(competing), size):
        product = X[list(factors)].prod(axis=0)
        product = product - product.mean()
        for k in range(len(best)):
            if k not in factors and product.any():
                r = product @ X[k] / np.sqrt((product @ product) * n)
                best[k] = max(best[k], abs(r) * np.sqrt(n))
    return best


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("size", "competing"), [(2, 9), (3, 7)])
def test_it_is_the_strongest_of_all_products(size, competing, threads, monkeypatch):
    monkeypatch.setattr(products, "TOGETHER", 5)
    X = standard(np.random.default_rng(size), 14, 30)
    found = product_dependence(bk, X, competing, size, 30, threads)
    np.testing.assert_allclose(found, slow(X, competing, size), rtol=1e-10)


def test_calibration_columns_are_no_factors_and_are_few():
    """The competing columns have the same dependence whatever the others are."""
    rng = np.random.default_rng(0)
    X = standard(rng, 200, 40)
    other = X.copy()
    other[12:] = standard(rng, 188, 40)
    found = product_dependence(bk, X, 12, 2, 40, 1)
    assert len(found) == 12 + 120
    np.testing.assert_array_equal(found[:12], product_dependence(bk, other, 12, 2, 40, 1)[:12])


def test_constant_products_say_nothing():
    """The square of a sign is 1 in every row."""
    sign = np.tile([1.0, -1.0], 10)
    X = np.stack([sign, sign, np.random.default_rng(0).permutation(sign)])
    found = product_dependence(bk, X, 3, 2, 20, 1)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found[2], 0, atol=1e-12)


def test_larger_data_have_fewer_rows_and_kinds_of_products():
    found = [rows_of_products(6 * d, 300) for d in (3, 10, 20, 30, 60, 100, 140)]
    assert found[:3] == [{2: 300, 3: 300}] * 3
    assert found[3][2] == 300
    assert 100 <= found[3][3] < 300
    assert found[4:6] == [{2: 300}] * 2
    assert 100 <= found[6][2] < 300
    assert rows_of_products(6 * 1000, 300) == rows_of_products(6 * 100_000, 20) == {}
    assert rows_of_products(6 * 10, 20) == {2: 20, 3: 20}
    for d, n in ((30, 512), (100, 512), (140, 300)):
        for size, rows in rows_of_products(6 * d, n).items():
            assert comb(6 * d, size) * (6 * d + 120) * rows <= products.PRODUCTS


def test_some_rows_give_what_these_rows_give_alone():
    X = standard(np.random.default_rng(3), 12, 90)
    some = X[:, np.arange(30) * 3]
    some = some - some.mean(axis=1, keepdims=True)
    some /= some.std(axis=1, keepdims=True)
    np.testing.assert_allclose(product_dependence(bk, X, 9, 2, 30, 1), slow(some, 9, 2), rtol=1e-10)


def test_of_independent_columns_none_is_beyond_chance():
    """The distribution of columns is that of the calibration columns: the mean of their ranks is a half."""
    shares = []
    for seed in range(30):
        X = standard(np.random.default_rng(seed), 30 + 120, 60)
        found = product_dependence(bk, X, 30, 2, 60, 1)
        shares.append((found[:30, None] > found[None, 30:]).mean())
    assert abs(np.mean(shares) - 0.5) < 3 * np.std(shares) / np.sqrt(30)


@pytest.mark.parametrize(("size", "columns"), [(2, 3), (3, 4)])
def test_a_product_of_signs_is_seen_by_all_of_its_columns(size, columns):
    rng = np.random.default_rng(1)
    X = standard(rng, 20 + 120, 200)
    signs = rng.choice([-1.0, 1.0], size=(columns, 200))
    signs[-1] = signs[:-1].prod(axis=0)
    X[:columns] = signs
    found = product_dependence(bk, X, 20, size, 200, 1)
    np.testing.assert_allclose(found[:columns], np.sqrt(200), rtol=0.05)
    assert found[columns:].max() < 7
