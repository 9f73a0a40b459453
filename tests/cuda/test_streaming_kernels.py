"""The kernels of the streaming form, run on the CPU, against the same passes in float64 over whole matrices."""

from __future__ import annotations

from typing import NamedTuple

import generators as gen
import numpy as np
import pytest
from emulator import Order
from test_emulated import EPS, close, dtypes, lazily, tolerance

pytestmark = pytest.mark.cuda_emulated
i64, f64 = np.int64, np.float64
shapes = pytest.mark.parametrize(("n", "m"), [(1, 1), (2, 7), (31, 64), (33, 65), (127, 7), (130, 65)])


class Streamed(NamedTuple):
    """Everything the passes compute, from whole matrices in float64; vectors and operands rounded to a dtype."""

    D: np.ndarray  # (n, n)
    b: np.ndarray  # (1,)
    own: np.float64  # K_ii
    K: np.ndarray  # (n, n)
    deg: np.ndarray  # (n,)
    walks: np.ndarray  # (t + 1, 2, m, n), rounded
    score: np.ndarray  # (n,) from the rounded walks, as all that follows
    share: np.ndarray  # (n,), rounded
    dots: np.ndarray  # (n, n)
    BX: np.ndarray  # (m, n)
    row_sums: np.ndarray  # (n,)
    slopes: np.ndarray  # (n,)


def streamed(m, n, dtype, t=2, seed=0, own=1.0):
    rng = np.random.default_rng(seed)
    Xt = (rng.normal(size=(m, n)) * rng.random((m, 1))).astype(dtype).astype(f64)
    D = ((Xt[:, :, None] - Xt[:, None, :]) ** 2).sum(axis=0)
    b = np.array([max(D.mean(), 0.1)])
    K = np.exp(-D / b)
    np.fill_diagonal(K, own)
    deg = K.sum(axis=1)
    walks = [np.stack([Xt, Xt / deg])]
    for _ in range(t):
        walks.append(walks[-1] @ K / deg)
    walks = np.stack(walks).astype(dtype)
    F, C = walks.astype(f64).swapaxes(0, 1)
    score = (F[0] * F[t]).sum(axis=0)
    share = sum((C[a] * F[t - a]).sum(axis=0) for a in range(t)).astype(dtype)
    dots = sum(C[a].T @ F[t - 1 - a] + F[t - 1 - a].T @ C[a] for a in range(t))
    E = np.where(D > 0, K * (dots - share[:, None].astype(f64) - share.astype(f64)), 0)
    return Streamed(
        D, b, f64(own), K, deg, walks, score, share, dots, -(Xt @ E) / b, -E.sum(axis=1) / b, (E * D).sum(axis=1)
    )


def new(*shape, of=f64):
    return np.full(shape, np.nan, of)


def neighbours(run, Xt, k, grid=3, **how):
    m, n = Xt.shape
    kth, neighbour, largest = new(n, of=Xt.dtype), np.full(n, -1), new(n, of=Xt.dtype)
    run("nearest<T>", Xt.dtype, grid, Xt, i64(m), i64(n), i64(k), kth, neighbour, largest, **how)
    return kth, neighbour, largest


@dtypes
@shapes
def test_streamed_neighbours(run, dtype, n, m):
    s = streamed(m, n, dtype, seed=n)
    others = s.D + np.diag(np.full(n, np.inf))
    for k in {min(k, n - 1) for k in (1, 2, 5, 40 if n == 33 else 1)} - {0}:
        kth, neighbour, largest = neighbours(run, s.walks[0, 0], k)
        close(kth, np.sort(others, axis=1)[:, k - 1], tolerance(dtype, m))
        np.testing.assert_array_equal(neighbour, np.argsort(others, axis=1)[:, k - 1])  # no ties in these data
        close(largest, s.D.max(axis=1), tolerance(dtype, m))


@pytest.mark.parametrize("k", [1, 2, 3, 4, 7, 69])
def test_streamed_neighbours_at_equal_distances(run, k):
    """Whole numbers, so that distances are exact and many tie: by distance, then by index; duplicates count."""
    Xt = np.random.default_rng(0).integers(0, 3, (2, 70)).astype(f64)
    D = ((Xt[:, :, None] - Xt[:, None, :]) ** 2).sum(axis=0) + np.diag(np.full(70, np.inf))
    kth, neighbour, largest = neighbours(run, Xt, k)
    np.testing.assert_array_equal(neighbour, np.argsort(D, axis=1, kind="stable")[:, k - 1])
    np.testing.assert_array_equal(kth, np.sort(D, axis=1)[:, k - 1])
    np.testing.assert_array_equal(largest, np.where(np.isinf(D), 0, D).max(axis=1))


def test_streamed_neighbours_without_columns(run):
    """All gates closed: every distance is 0."""
    kth, neighbour, largest = neighbours(run, np.zeros((0, 70)), 5)
    assert (kth == 0).all()
    assert (largest == 0).all()
    np.testing.assert_array_equal(neighbour, np.where(np.arange(70) < 5, 5, 4))


@dtypes
@shapes
def test_streamed_passes(run, dtype, n, m):
    """Each kernel from the reference's operands: degrees, walks, the terms of rows, the pull."""
    t = 3 if n == 33 else 2
    s = streamed(m, n, dtype, t, seed=n, own=1e-12 if m % 2 and n > 2 else 1.0)  # n = 2: derivatives 0
    Xt, walks, tol = s.walks[0, 0], s.walks, 2 * tolerance(dtype, m)
    deg = new(n)
    run("degrees<T>", dtype, 2, Xt, s.b, s.own, i64(m), i64(n), deg)
    close(deg, s.deg, tol)
    Y = new(m, n, of=dtype)
    run("divided<T>", dtype, 2, Xt, s.deg, i64(m), i64(n), Y)
    close(Y, Xt / s.deg, EPS[dtype])

    width = 2 * m - m // 3  # the last walk leaves columns out
    Y = np.ascontiguousarray(walks[0].reshape(2 * m, n)[:width])
    got = new(width, n, of=dtype)
    run("walk<T>", dtype, 3, Xt, s.b, s.own, s.deg, Y, i64(m), i64(width), i64(n), got)
    close(got, Y.astype(f64) @ s.K / s.deg, tol)

    score, share = new(n), new(n, of=dtype)
    run("row_terms<T>", dtype, 2, walks, i64(t), i64(m), i64(n), score, share)
    close(score, s.score, 1e-14)
    close(share, s.share, 8 * EPS[dtype])

    wanted = m - m // 3
    BX, row_sums, slopes = new(wanted, n, of=dtype), new(n), new(n)
    sizes = (i64(t), i64(m), i64(wanted), i64(n))
    run("pull<T>", dtype, 3, walks, s.b, s.share, *sizes, BX, row_sums, slopes)
    pulled = [(BX, s.BX[:wanted]), (row_sums, s.row_sums), (slopes, s.slopes)]

    G, g = tile(s, dtype, 0, n)
    B = new(n, n, of=dtype)
    sums, moments = new(n), new(n)
    for first, rows in halves(n):
        part = G[first : first + rows].copy()
        run("tile_pull<T>", dtype, 2, part, s.dots[first : first + rows].astype(dtype), g, s.b, s.share, i64(first),
            i64(rows), i64(n), sums, moments)  # fmt: skip
        B[first : first + rows] = part
    pulled += [(Xt.astype(f64) @ B, s.BX), (sums, s.row_sums), (moments, s.slopes)]
    size = abs(s.dots).max() * n  # differences of dots are small against their terms
    for got, want in pulled:
        assert np.isfinite(got).all()
        assert abs(got - want).max(initial=0) <= 20 * tol * (abs(want).max(initial=0) + EPS[dtype] * size)


def tile(s, dtype, first, rows):
    """Rows of G and the norms, rounded from float64."""
    G = (s.walks[0, 0].astype(f64).T @ s.walks[0, 0].astype(f64)).astype(dtype)
    return np.ascontiguousarray(G[first : first + rows]), np.ascontiguousarray(np.diagonal(G))


def halves(n):
    return [(first, rows) for first, rows in ((0, n // 2), (n // 2, n - n // 2)) if rows]


@dtypes
@shapes
def test_rows_of_matrices(run, dtype, n, m):
    """Norms, neighbours, degrees and K, two tiles of rows one after the other."""
    s = streamed(m, n, dtype, seed=n, own=1.0 if m % 2 else 0.25)
    g = new(n, of=dtype)
    run("norms<T>", dtype, 1, s.walks[0, 0], i64(m), i64(n), g)
    close(g, (s.walks[0, 0].astype(f64) ** 2).sum(axis=0), EPS[dtype])
    others = s.D + np.diag(np.full(n, np.inf))
    deg = new(n)
    kth, neighbour, largest = new(n, of=dtype), np.full(n, -1), new(n, of=dtype)
    k = min(3, n - 1)
    for first, rows in halves(n):
        G, norms = tile(s, dtype, first, rows)
        K, sizes = G.copy(), (i64(first), i64(rows), i64(n))
        run("tile_affinity<T>", dtype, 3, K, norms, s.b, s.own, *sizes, deg)
        close(K, s.K[first : first + rows], 4 * tolerance(dtype, m))
        assert (K[np.arange(rows), first + np.arange(rows)] == s.own).all()
        if k:
            run("tile_nearest<T>", dtype, 2, G, norms, *sizes, i64(k), kth, neighbour, largest)
    close(deg, s.deg, 4 * tolerance(dtype, m))
    if k:
        close(kth, np.sort(others, axis=1)[:, k - 1], 8 * tolerance(dtype, m))
        gen.assert_close(s.D[np.arange(n), neighbour], kth, 8 * tolerance(dtype, m))
        close(largest, s.D.max(axis=1), 8 * tolerance(dtype, m))


def test_the_neighbour_in_a_row_is_the_first_at_its_distance(run):
    X = gen.twins(34, 5).T  # whole twins: the nearest other row is the twin, at a distance of 0
    X = np.round(4 * X)
    G, g = np.ascontiguousarray(X.T @ X), np.ascontiguousarray((X * X).sum(axis=0))
    kth, neighbour, largest = new(34), np.full(34, -1), new(34)
    run("tile_nearest<T>", "float64", 5, G, g, i64(0), i64(34), i64(34), i64(1), kth, neighbour, largest)
    D = ((X[:, :, None] - X[:, None, :]) ** 2).sum(axis=0) + np.diag(np.full(34, np.inf))
    np.testing.assert_array_equal(neighbour, D.argmin(axis=1))
    np.testing.assert_array_equal(kth, D.min(axis=1))


@dtypes
def test_grids_and_thread_orders_change_no_bit_of_a_pass(run, dtype):
    s = streamed(9, 130, dtype)
    Xt, results = s.walks[0, 0], []
    for grid, order, seed in ((1, Order.ROUNDS, 0), (100, Order.LOWEST_FIRST, 0), (2, Order.HIGHEST_FIRST, 0),
                              (3, Order.SHUFFLED, 1)):  # fmt: skip
        how = {"order": order, "seed": seed}
        deg, out = new(130), new(18, 130, of=dtype)
        BX, row_sums, slopes = new(9, 130, of=dtype), new(130), new(130)
        run("degrees<T>", dtype, grid, Xt, s.b, s.own, i64(9), i64(130), deg, **how)
        sizes = (i64(9), i64(18), i64(130))
        run("walk<T>", dtype, grid, Xt, s.b, s.own, s.deg, s.walks[1].reshape(18, 130), *sizes, out, **how)
        run("pull<T>", dtype, grid, s.walks, s.b, s.share, *map(i64, (2, 9, 9, 130)), BX, row_sums, slopes, **how)
        results.append((*neighbours(run, Xt, 5, grid, **how), deg, out, BX, row_sums, slopes))
    for other in results[1:]:
        for a, c in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(a, c)


def test_streamed_entries_beyond_32_bits(run):
    """Operands of more than 2^31 entries: the last rows of the result are written where they belong."""
    n, width = 3, 2**31 // 3 + 70
    Y, out = lazily(width * n, np.float32), lazily(width * n, np.float32)
    Y[-n:] = 1
    blocks = -(-width // 64)
    Xt = np.array([[0, 1, 3]], np.float32)
    K = np.exp(-((Xt.T - Xt) ** 2).astype(f64))
    run("walk<T>", "float32", blocks, Xt, np.ones(1), f64(1), K.sum(axis=1), Y, i64(1), i64(width), i64(n), out,
        blocks=range(blocks - 1, blocks))  # fmt: skip
    np.testing.assert_allclose(out[-2 * n :], [0, 0, 0, 1, 1, 1], rtol=1e-6)
