"""The kernels of sparse columns, run on the CPU, against the same sums in float64 over dense arrays; broken ones."""

from __future__ import annotations

import numpy as np
import pytest
from emulator import Order
from scipy import sparse
from test_broken_kernels import caught, with_faults
from test_emulated import EPS, close, dtypes
from test_streaming_kernels import new

from dufs_core.kernels import cuda

pytestmark = pytest.mark.cuda_emulated
i64, f64 = np.int64, np.float64
shapes = pytest.mark.parametrize(("n", "d"), [(1, 1), (9, 40), (300, 5), (2051, 3)])  # a second strip from 2,049 on


class Columns:
    """Sparse columns with an empty row and an empty column, a full one, and stored zeros; some gates are 0 or 1."""

    def __init__(self, n, d, dtype, R=2, seed=0):
        rng = np.random.default_rng(seed)
        stored = rng.random((n, d)) < 0.2
        stored[n // 2] = stored[:, -1] = False
        stored[:, 0] = True
        X = rng.normal(1.0, 1.0, (n, d)) * stored
        X[rng.random((n, d)) < 0.05] = 0
        X = X.astype(dtype)
        rows, columns = np.nonzero(stored)
        by_rows = sparse.csr_array((X[rows, columns], (rows, columns)), shape=(n, d))
        self.by_rows, self.by_columns = self.parts(by_rows), self.parts(by_rows.tocsc())
        self.n, self.d, self.R = n, d, R
        self.m = rng.normal(size=d)
        self.z = np.clip(rng.normal(0.5, 0.6, (R, d)), 0, 1).astype(dtype)
        self.z[0, 0] = 0.5
        z, centred = self.z.astype(f64), X.astype(f64) - self.m
        self.c = (z**2 * self.m**2).sum(axis=1)
        self.a = (z**2 * self.m) @ X.T.astype(f64) - self.c[:, None] / 2
        self.G = np.einsum("rk,ik,jk->rij", z**2, centred, centred)
        M = rng.normal(size=(R, n, n))
        self.M = (M + M.swapaxes(1, 2)).astype(dtype)
        self.M1 = self.M.sum(axis=2, dtype=f64)
        undecided = (z > 0) & (z < 1)
        self.dots = np.where(undecided, 2 * z * np.einsum("ik,rij,jk->rk", centred, self.M.astype(f64), centred), 0)
        full = np.tile(-self.m.astype(dtype), (n, 1))
        full[rows, columns] = X[rows, columns]
        self.full = np.ascontiguousarray(full.T)
        self.sizes = tuple(map(i64, (R, d, n)))

    @staticmethod
    def parts(matrix):
        return matrix.data, matrix.indices.astype(np.int32), matrix.indptr.astype(i64)


def launched(launch, c, grid=3, **how):
    """a, G, dots and the columns written out backwards; launch(kernel, grid, *arguments)."""
    dtype, listed = c.z.dtype, np.arange(c.d)[::-1].copy()
    a, G, dots, out = new(c.R, c.n), new(c.R, c.n, c.n, of=dtype), new(c.R, c.d), new(c.d, c.n, of=dtype)
    launch("sparse_means", grid, *c.by_rows, c.m, c.z, c.c, *c.sizes, a, **how)
    launch("sparse_gram", grid, *c.by_rows, *c.by_columns, c.z, c.a, *c.sizes, G, **how)
    launch("sparse_dots", grid, *c.by_columns, c.m, c.z, c.M, c.M1, c.M1.sum(axis=1), *c.sizes, dots, **how)
    launch("dense_columns", grid, *c.by_columns, c.m, listed, i64(c.d), i64(c.n), out, **how)
    return a, G, dots, out


@dtypes
@shapes
def test_sparse_columns(run, dtype, n, d):
    c = Columns(n, d, dtype, R=1 if n > 2048 else 2)
    a, G, dots, out = launched(lambda kernel, *rest: run(kernel + "<T>", dtype, *rest), c, 70)
    close(a, c.a, 1e-13)
    close(G, c.G, 4 * EPS[dtype])
    np.testing.assert_array_equal(G, G.swapaxes(1, 2))
    scale = abs(c.M).sum(axis=(1, 2)).max()
    assert abs(dots - c.dots).max() <= 1e-13 * (abs(c.dots).max() + scale)
    np.testing.assert_array_equal(dots == 0, c.dots == 0)
    np.testing.assert_array_equal(out, c.full[::-1])


def test_no_sparse_column(run):
    """G is 0, not what its memory held."""
    c = Columns(5, 2, "float64")
    nothing, sizes = c.parts(sparse.csr_array((5, 0))), tuple(map(i64, (2, 0, 5)))
    a, G = new(2, 5), new(2, 5, 5)
    run("sparse_means<T>", "float64", 2, *nothing, new(0), new(2, 0), np.zeros(2), *sizes, a)
    run("sparse_gram<T>", "float64", 2, *nothing, *c.parts(sparse.csc_array((5, 0))), new(2, 0), a, *sizes, G)
    assert not a.any()
    assert not G.any()


@dtypes
def test_grids_and_thread_orders_change_no_bit_of_sparse_sums(run, dtype):
    c = Columns(70, 9, dtype)
    how = ({"order": Order.LOWEST_FIRST}, {"order": Order.HIGHEST_FIRST}, {"order": Order.SHUFFLED, "seed": 1})
    want = launched(lambda kernel, *rest: run(kernel + "<T>", dtype, *rest), c, 1)
    for grid, h in zip((100, 2, 3), how, strict=True):
        got = launched(lambda kernel, *rest, **k: run(kernel + "<T>", dtype, *rest, **k), c, grid, **h)
        for one, other in zip(want, got, strict=True):
            np.testing.assert_array_equal(one, other)


# Where FAULT is 1 the kernel is broken: one build holds all of them.
FAULTS = [  # text as it is, text that may be broken
    # races: barriers left out
    ("__syncthreads();  // the column before", "if (!FAULT) __syncthreads();  // the column before"),
    ("__syncthreads();  // the sums are complete", "if (!FAULT) __syncthreads();  // the sums are complete"),
    ("__syncthreads();  // every entry has its -m", "if (!FAULT) __syncthreads();  // every entry has its -m"),
    # a barrier that some threads miss
    ("if (gate == 0) continue;", "if (gate == 0 || (FAULT && threadIdx.x > 99)) continue;"),
    # wrong entries, signs and places
    ("if (rows[middle] < i) {", "if (rows[middle] < i + FAULT) {"),
    ("if (l >= width) break;", "if (l >= width + FAULT) break;"),
    ("n - j0 < STRIP ? n - j0 : STRIP, row", "n - j0 < STRIP ? n - j0 : STRIP + FAULT, row"),
    ("T(sums[l] - (a[row] + a[draw * n", "T(sums[l] - (a[row] + a[(FAULT ? 0 : draw) * n"),
    ("left * (gate *", "left * ((FAULT ? 1 : gate) *"),
    ("sum - c[draw] / 2", "sum - c[draw] / (2 - FAULT)"),
    ("base = (draw * n + rows[p]) * n", "base = (draw * n + rows[p] + FAULT) * n"),
    ("sum -= 2 * m *", "sum -= (2 - FAULT) * m *"),
    ("undecided = gate > 0 && gate < 1", "undecided = gate > 0 && (gate < 1 || FAULT)"),
    ("(sum + m * m * total", "(sum + m * (FAULT ? 1 : m) * total"),
    ("out[c * n + i] = T(-shift[k])", "out[c * n + i] = T(FAULT ? 0 : -shift[k])"),
]


@pytest.fixture(scope="module")
def breakable(build_folder):
    """breakable(number): the library with that fault, none for -1; strips of 64, so that 70 rows take two."""
    return with_faults(
        "sparse.cu", cuda.source("sparse.cu").replace("STRIP = 2048", "STRIP = 64"), FAULTS, build_folder
    )


@pytest.mark.stand_in
@pytest.mark.parametrize("number", range(len(FAULTS)))
def test_sparse_faults_are_caught(breakable, libraries, number):
    c = Columns(70, 9, "float32")

    def run(library, **how):
        return launched(lambda kernel, *rest, **k: library.launch(kernel + "<float>", *rest, **k), c, **how)

    assert caught(breakable(number), libraries["sparse.cu"], run)
    assert not caught(breakable(-1), libraries["sparse.cu"], run)
