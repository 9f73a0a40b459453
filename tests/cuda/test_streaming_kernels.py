"""The kernels of the streaming form on some rows at a time, run on the CPU, against whole matrices in float64."""

from __future__ import annotations

from typing import NamedTuple

import generators as gen
import numpy as np
import pytest
from emulator import Order
from test_emulated import EPS, close, dtypes, tolerance

pytestmark = pytest.mark.cuda_emulated
i64, f64 = np.int64, np.float64
shapes = pytest.mark.parametrize(("n", "m"), [(1, 1), (2, 7), (31, 64), (33, 65), (127, 7), (130, 65)])


class Streamed(NamedTuple):
    """Everything the passes compute, from whole matrices in float64; vectors and operands rounded to a dtype."""

    G: np.ndarray  # (n, n), rounded
    g: np.ndarray  # (n,), rounded
    D: np.ndarray  # (n, n)
    b: np.ndarray  # (1,)
    self_weight: float
    K: np.ndarray  # (n, n)
    deg: np.ndarray  # (n,)
    rho: np.ndarray  # (n,), rounded
    dots: np.ndarray  # (n, n), rounded
    C: np.ndarray  # (n, n)
    row_sums: np.ndarray  # (n,)
    slopes: np.ndarray  # (n,)


def streamed(m, n, dtype, t=2, seed=0, self_weight=1.0):
    rng = np.random.default_rng(seed)
    Xt = (rng.normal(size=(m, n)) * rng.random((m, 1))).astype(dtype).astype(f64)
    G = (Xt.T @ Xt).astype(dtype)
    D = ((Xt[:, :, None] - Xt[:, None, :]) ** 2).sum(axis=0)
    b = np.array([max(D.mean(), 0.1)])
    K = np.exp(-D / b)
    np.fill_diagonal(K, self_weight)
    deg = K.sum(axis=1)
    F, B = [Xt], [Xt / deg]
    for _ in range(t):
        F.append(F[-1] @ K / deg)
        B.append(B[-1] @ K / deg)
    rho = sum((B[a] * F[t - a]).sum(axis=0) for a in range(t)).astype(dtype)
    dots = sum(B[a].T @ F[t - 1 - a] + F[t - 1 - a].T @ B[a] for a in range(t)).astype(dtype)
    E = np.where(D > 0, K * (dots.astype(f64) - rho[:, None].astype(f64) - rho.astype(f64)), 0)
    g = np.ascontiguousarray(np.diagonal(G))
    sums = (-E.sum(axis=1) / b, (E * D).sum(axis=1))
    return Streamed(G, g, D, b, self_weight, K, deg, rho, dots, -E / b, *sums)


def new(*shape, of=f64):
    return np.full(shape, np.nan, of)


def halves(n):
    return [(first, rows) for first, rows in ((0, n // 2), (n // 2, n - n // 2)) if rows]


@dtypes
@shapes
def test_rows_of_matrices(run, dtype, n, m):
    """Neighbours, degrees and K, and the last pass, two tiles of rows one after the other."""
    s = streamed(m, n, dtype, 3 if n == 33 else 2, seed=n, self_weight=1.0 if m % 2 else 0.25)
    others = s.D + np.diag(np.full(n, np.inf))
    deg, row_sums, slopes = new(3, n)
    kth, neighbour, largest = new(n, of=dtype), np.full(n, -1), new(n, of=dtype)
    k, C, tol = min(3, n - 1), new(n, n, of=dtype), 8 * tolerance(dtype, m)
    for first, rows in halves(n):
        here, sizes = slice(first, first + rows), (first, rows, n)
        K = s.G[here].copy()
        run("affinity<T>", dtype, 3, K, s.g, s.b, s.self_weight, *sizes, K, deg, None, None)
        close(K, s.K[here], tol)
        assert (K[np.arange(rows), first + np.arange(rows)] == s.self_weight).all()
        if k:
            D = s.G[here].copy()
            run("distances<T>", dtype, 2, D, s.g, *sizes, k, D, kth, neighbour, largest)
        C[here] = s.G[here]
        tile = C[here]
        run("grad_distances<T>", dtype, 2, tile, s.dots[here], s.g, s.b, s.rho, *sizes, row_sums, slopes)
    close(deg, s.deg, tol)
    if k:
        close(kth, np.sort(others, axis=1)[:, k - 1], tol)
        gen.assert_close(s.D[np.arange(n), neighbour], kth, tol)
        close(largest, s.D.max(axis=1), tol)
    size = abs(s.dots).max() * n  # differences of dots are small against their terms
    for got, want in ((C, s.C), (row_sums, s.row_sums), (slopes, s.slopes)):
        assert np.isfinite(got).all()
        assert abs(got - want).max(initial=0) <= 5 * tol * (abs(want).max(initial=0) + EPS[dtype] * size)


@dtypes
def test_grids_and_thread_orders_change_no_bit_of_a_pass(run, dtype):
    s, results = streamed(9, 130, dtype), []
    for grid, order, seed in ((1, Order.ROUNDS, 0), (200, Order.LOWEST_FIRST, 0), (7, Order.HIGHEST_FIRST, 0),
                              (6, Order.SHUFFLED, 1)):  # fmt: skip
        C, row_sums, slopes = s.G.copy(), new(130), new(130)
        how = {"order": order, "seed": seed}
        run("grad_distances<T>", dtype, grid, C, s.dots, s.g, s.b, s.rho, 0, 130, 130, row_sums, slopes, **how)
        results.append((C, row_sums, slopes))
    for other in results[1:]:
        for a, c in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(a, c)
