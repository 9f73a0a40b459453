"""Neighbours, kernels, eigenvectors and indicators that the baselines share."""

from __future__ import annotations

import warnings

import generators as gen
import numpy as np
import pytest
from generators import assert_close
from scipy.linalg import eigh, subspace_angles
from scipy.sparse import csr_array

from dufs_core.baselines import graphs
from dufs_core.errors import IsolatedRowsWarning, MemoryLimitError


def test_a_row_is_not_its_own_neighbour_and_twins_find_each_other():
    X = gen.twins(20, 3)
    near = graphs.neighbours(X, 3)
    np.testing.assert_array_equal(near.indices[:, 0], np.arange(20) ^ 1)
    assert (near.squared[:, 0] == 0).all()
    assert (near.indices != np.arange(20)[:, None]).all()


@pytest.mark.parametrize("d", [2, 40])
def test_both_searches_agree(monkeypatch, d):
    X = gen.noise(60, d)
    dense = graphs.neighbours(X, 6)
    monkeypatch.setattr(graphs, "_DENSE_ROWS", 0)
    other = graphs.neighbours(X, 6)
    np.testing.assert_array_equal(dense.indices, other.indices)
    np.testing.assert_array_equal(graphs.neighbours(X, 6, X @ X.T).indices, other.indices)
    twins = graphs.neighbours(gen.twins(20, 3), 3)
    np.testing.assert_array_equal(twins.indices[:, 0], np.arange(20) ^ 1)


def test_more_duplicates_than_neighbours():
    near = graphs.neighbours(gen.duplicates_and_others(), 3)
    assert (near.indices != np.arange(50)[:, None]).all()
    assert (near.squared[:40] == 0).all()


def test_neighbours_in_blocks(monkeypatch):
    X = gen.noise(30, 7)
    whole = graphs.neighbours(X, 4)
    monkeypatch.setattr(graphs, "_BLOCK_ELEMENTS", 60)
    blocked = graphs.neighbours(X, 4)
    np.testing.assert_array_equal(whole.squared, blocked.squared)
    D = ((X[:, None] - X[None]) ** 2).sum(axis=2)
    np.testing.assert_allclose(whole.squared, np.sort(D, axis=1)[:, 1:5], rtol=1e-12)


def test_kernel_of_identical_rows_and_of_far_rows():
    W = graphs.heat_kernel(graphs.neighbours(gen.identical_rows(), 2), "median")
    assert set(W.data) == {1.0}
    X = np.vstack([gen.noise(20, 3), [[1e9, 0, 0]]])
    W = graphs.heat_kernel(graphs.neighbours(X, 2), "median")
    assert (W.sum(axis=1) > 0).all()
    assert np.isfinite(graphs.spectral_embedding(W, 3, X)).all()
    assert (W != W.T).nnz == 0


def test_too_small_a_bandwidth_is_said():
    near = graphs.neighbours(gen.noise(20, 3), 3)
    with pytest.warns(IsolatedRowsWarning, match=r"100% of the rows have no neighbour within the bandwidth"):
        W = graphs.heat_kernel(near, 1e-9)
    assert (W.sum(axis=1) > 0).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wide, narrow = (graphs.heat_kernel(near, "max", factor) for factor in (2.0, 1.0))
    assert (wide - narrow).data.min() > 0


def components(sizes, seed=0):
    """A connected random weighted graph of each size, nothing between them; and data."""
    rng = np.random.default_rng(seed)
    n = sum(sizes)
    W, start = np.zeros((n, n)), 0
    for size in sizes:
        block = rng.uniform(0.1, 1, (size, size)) * (rng.random((size, size)) < 8 / size)
        block[np.arange(size - 1), np.arange(1, size)] = 0.5
        W[start : start + size, start : start + size] = np.maximum(block, block.T)
        start += size
    np.fill_diagonal(W, 0)
    return csr_array(W), rng.normal(size=(n, 6)) - 0.0


@pytest.mark.parametrize("sizes", [(40,), (30, 20), (20, 20, 15, 12)])
@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("dense_rows", [0, 800])
def test_spectral_embedding(monkeypatch, sizes, k, dense_rows):
    """L y = lambda Dg y, y'Dg y = 1'Dg 1, 1'Dg y = 0, the smallest lambda, by both solvers, in any row order."""
    monkeypatch.setattr(graphs, "_DENSE_ROWS", dense_rows)
    W, X = components(sizes)
    X -= X.mean(axis=0)
    Y = graphs.spectral_embedding(W, k, X)
    D = np.diag(W.sum(axis=1))
    L = D - W.toarray()
    values = eigh(L, D, eigvals_only=True)[1 : k + 1]
    assert_close(Y.T @ D @ Y / D.sum(), np.eye(k), 1e-9)
    assert abs(Y.T @ D.sum(axis=1)).max() < 1e-8 * D.sum()
    assert abs(L @ Y - D @ Y * values).max() < 1e-9 * abs(D @ Y).max()
    order = np.random.default_rng(1).permutation(len(X))
    again = graphs.spectral_embedding(csr_array(W.toarray()[order][:, order]), k, X[order])
    np.testing.assert_allclose(again, Y[order], atol=1e-7)


def test_solvers_agree():
    W, X = components((60, 40))
    dense = graphs.spectral_embedding(W, 4, X)
    root = np.sqrt(W.sum(axis=1))
    sparse = graphs._largest_sparse(graphs.normalised(W), root, 4, X) * (np.linalg.norm(root) / root)[:, None]
    np.testing.assert_allclose(sparse, dense, atol=1e-7)


def test_sparse_solver_that_gives_up(monkeypatch):
    from scipy.sparse.linalg import ArpackNoConvergence

    def gives_up(*args, **options):
        raise ArpackNoConvergence("no", np.empty(0), np.empty((0, 0)))

    W, X = components((60,))
    expected = graphs.spectral_embedding(W, 3, X)
    monkeypatch.setattr(graphs, "_DENSE_ROWS", 0)
    monkeypatch.setattr(graphs, "eigsh", gives_up)
    np.testing.assert_array_equal(graphs.spectral_embedding(W, 3, X), expected)


def test_a_dense_decomposition_without_room_is_refused(monkeypatch):
    X = np.random.default_rng(0).normal(size=(60, 3))
    W = graphs.heat_kernel(graphs.neighbours(X, 5), "median")
    monkeypatch.setattr("dufs_core.backend.memory.available_bytes", lambda bk: 50_000)
    with pytest.raises(MemoryLimitError, match=r"holds 3 arrays of 60 x 60 numbers, 86.4 kB; 50 kB are available"):
        graphs.spectral_embedding(W, 4, X)


def test_lowest_eigenvectors_take_whole_eigenspaces():
    """Eigenvalue 0 with multiplicity 12, 3 wanted: those along which the data vary most."""
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.normal(size=(20, 20)))[0]
    M = Q @ np.diag([0.0] * 12 + [1.0] * 8) @ Q.T
    X = rng.normal(size=(20, 4))
    V = graphs.lowest_eigenvectors((M + M.T) / 2, 3, X)
    null = Q[:, :12]
    best = null @ np.linalg.svd(null.T @ X)[0][:, :3]
    assert np.degrees(subspace_angles(V, best)).max() < 1e-5
    largest = np.take_along_axis(V, abs(V).argmax(axis=0)[None], axis=0)
    assert (largest > 0).all()


def local_predictions(n, parts, k=4, seed=0):
    """I - A (n, n), each row of A with k entries that sum to 1, in so many parts that nothing joins."""
    rng = np.random.default_rng(seed)
    A, of = np.zeros((n, n)), np.arange(n) % parts
    for i in range(n):
        near = rng.choice(np.flatnonzero((of == of[i]) & (np.arange(n) != i)), k, replace=False)
        A[i, near] = rng.normal(size=k)
        A[i, near] += (1 - A[i].sum()) / k
    return np.eye(n) - A


@pytest.mark.parametrize("k", [2, 3, 8])
def test_lowest_right_singular_vectors_are_those_of_lapack(k):
    E = local_predictions(90, 1)
    found = graphs.lowest_right_singular(csr_array(E), k)
    assert_close(found.T @ found, np.eye(k), 1e-12)
    expected = np.linalg.svd(E)[2][-k:].T
    assert subspace_angles(found, expected).max() < 1e-9


@pytest.mark.parametrize("parts", [2, 3])
def test_lowest_right_singular_vectors_are_left_to_lapack_in_several_parts(parts):
    assert graphs.lowest_right_singular(csr_array(local_predictions(90, parts)), 2) is None


def test_lowest_right_singular_vectors_are_left_to_lapack_where_one_may_be_missed():
    """Four copies of one block, joined by nothing that counts: every value four times."""
    E = np.kron(np.eye(4), local_predictions(30, 1))
    E[30, :30] += 1e-9 * np.random.default_rng(0).normal(size=30)
    E[60, 0] = E[90, 0] = E[0, 30] = 1e-9
    assert graphs.lowest_right_singular(csr_array(E), 2) is None


def test_cluster_indicators():
    X = gen.three_clusters().X[:, :3]
    labels = gen.three_clusters().labels
    F = graphs.cluster_indicators(X, 3, 0)
    assert_close(F.T @ F, np.eye(3), 1e-12)
    assert ((F > 0).sum(axis=1) == 1).all()
    assert len({(int(a), int(b)) for a, b in zip(labels, F.argmax(axis=1), strict=True)}) == 3
    assert graphs.cluster_indicators(gen.identical_rows(), 3, 0).shape == (6, 1)
    np.testing.assert_array_equal(F, graphs.cluster_indicators(X, 3, 0))
