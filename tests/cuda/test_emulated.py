"""The CUDA kernels, run on the CPU, against the operations and random numbers of the library in float64."""

from __future__ import annotations

import mmap

import generators as gen
import numpy as np
import pytest
from emulator import Order

from dufs_core.backend import get_backend, random
from dufs_core.kernels import cuda
from dufs_core.objective.ops import bandwidth as bandwidth_op
from dufs_core.objective.ops import distances as distances_op
from dufs_core.objective.ops import gates as gates_op
from dufs_core.objective.ops import gaussian, normalise, power, regulariser
from dufs_core.objective.ops import loss as loss_op
from dufs_core.objective.ops import score as score_op
from dufs_core.objective.optimizers import State, adam, normalized, sgd
from dufs_core.training import loop as trainer

pytestmark = pytest.mark.cuda_emulated
bk = get_backend("numpy")
i64, f64, u64 = np.int64, np.float64, np.uint64
SIZES = [1, 31, 33, 127, 257]
EPS = {"float32": 1.2e-7, "float64": 2.3e-16}
dtypes = pytest.mark.parametrize("dtype", list(cuda.ELEMENT))
sizes = pytest.mark.parametrize("n", SIZES)


def data(R, d, n, dtype, seed=0):
    """Gated data (R, d, n) and their Gram matrices, rounded to dtype; float64 copies of exactly these numbers."""
    rng = np.random.default_rng(seed)
    Xt = (rng.normal(size=(R, d, n)) * rng.random((R, d, 1))).astype(dtype)
    G = np.matmul(Xt.astype(f64).transpose(0, 2, 1), Xt.astype(f64)).astype(dtype)
    return Xt, G, Xt.astype(f64), G.astype(f64)


def close(got, want, tolerance, what=""):
    assert np.isfinite(got).all(), what
    gen.assert_close(got, want, tolerance, what)


# --- random numbers and gates ---------------------------------------------------------------------------------------


@dtypes
@pytest.mark.parametrize("draws", [1, 2, 5, 8])
@pytest.mark.parametrize("step", [0, 9])
def test_normals(run, dtype, draws, step):
    columns = np.array([3, 0, 2**32 - 1, 10, 65], dtype=u64)
    out = np.full((draws, 5), np.nan, dtype)
    seed, clock, stream = np.array([2**63 + 5], u64), np.array([step - 1]), int(random.Stream.INITIAL_MU)
    run("normals<T>", dtype, 2, columns, seed, clock, stream, 1, draws, 5, False, out)
    want = random.normals(bk, 2**63 + 5, random.Stream.INITIAL_MU, step, draws, None, columns, f64)
    assert np.abs(out - want).max() <= (2e-15 if dtype == "float64" else 3e-7)  # log and cos differ in their last bit


@dtypes
@sizes
@pytest.mark.parametrize("d", [1, 7, 64, 65])
def test_gated_data_and_column_dots(run, dtype, n, d):
    R, sigma = 3, 0.5
    X = gen.noise(n + 2, d)[:n].T.astype(dtype).copy()
    mu, eps = np.linspace(-0.5, 1.5, d).astype(dtype), gen.draws(d, d, None, R).astype(dtype)
    Xt = np.full((R, d, n), np.nan, dtype)
    gates = (sigma, R, 0, R, d, n)
    run("gated<T>", dtype, 5, X, mu, eps, *gates, Xt)
    z, saved = gates_op.forward(bk, mu, eps, np.dtype(dtype).type(sigma))
    np.testing.assert_array_equal(Xt, X * z[:, :, None])

    M = np.random.default_rng(1).normal(size=(R, n, n))
    M += M.transpose(0, 2, 1)
    MX = np.matmul(X.astype(f64), M).astype(dtype)
    dots = np.full((R, d), np.nan)
    run("column_dots<T>", dtype, 4, X, MX, mu, eps, *gates, dots)
    dz = 2 * z.astype(f64) * (X.astype(f64) * MX.astype(f64)).sum(axis=2)
    want = np.where(saved.undecided, dz, 0)
    close(dots, want, n * EPS["float64"] * 20 + (EPS["float32"] if dtype == "float32" else 0))


@dtypes
@pytest.mark.parametrize("lam", [None, 0.3])
def test_loss_and_its_gradient(run, dtype, lam):
    R, d, n, sigma = 5, 300, 40, 0.7
    rng = np.random.default_rng(2)
    S, dots, mu = rng.random(R) * 50, rng.normal(size=(R, d)), rng.normal(size=d).astype(dtype)
    isolated, dmu, (value, share) = rng.random(R), np.full(d, np.nan, dtype), np.full((2, 1), np.nan)
    lams = np.array([np.nan if lam is None else lam])
    run("loss<T>", dtype, 1, S, isolated, dots, mu, lams, i64(1), i64(R), i64(d), i64(n), f64(sigma), f64(0.01), dmu,
        value, share)  # fmt: skip
    sum_p, saved_p = regulariser.forward(bk, mu.astype(f64), sigma)
    L, saved = loss_op.forward(bk, S, sum_p, n, lam, 0.01)
    dS, dsum = loss_op.backward(bk, saved)
    close(np.array([value[0], share[0]]), np.array([L, isolated.mean()]), 1e-14)
    close(dmu, (dS[:, None] * dots).sum(axis=0) + regulariser.backward(bk, saved_p, dsum), 8 * EPS[dtype])


@dtypes
@pytest.mark.parametrize("d", [1, 7, 700])
@pytest.mark.parametrize(("code", "rule"), [(0, sgd(0.1)), (1, adam(0.1)), (2, normalized(0.1))])
def test_optimiser_steps(run, dtype, d, code, rule):
    rng = np.random.default_rng(3)
    params, want, state = np.full(d, 0.5, dtype), np.full(d, 0.5), State()
    first = np.zeros(d) if code == 1 else None
    second = np.zeros(d if code == 1 else 1) if code else None
    for t in range(1, 6):
        grad = (rng.normal(size=d) * (t != 3)).astype(dtype)  # a gradient of 0 once
        clock, done, records = np.array([t - 1]), np.array([0]), np.full((1, 1, len(trainer.RECORD)), np.nan)
        run("advance<T>", dtype, 1, grad, code, 0.1, params, first, second, *np.ones((5, 1)), clock.copy(),
            1, 1, d, 3, 1, 0.6, -1.0, clock, done, records)  # fmt: skip
        want, state = rule(bk, want, grad.astype(f64), state)
    close(params, want, 20 * EPS[dtype])


# --- several fits at once: each like alone, one that is done not at all ---------------------------------------------


@dtypes
@pytest.mark.parametrize("R", [1, 2, 6, 10])
def test_gate_noise(run, dtype, R):
    fits, columns = 3, np.array([3, 0, 2**32 - 1, 10, 65], dtype=u64)
    seeds, clock = np.array([5, 2**64 - 1, 0], dtype=u64), np.array([0, 7, 2**31])
    eps = np.full((fits, R, 5), np.nan, dtype)
    run("normals<T>", dtype, 2, columns, seeds, clock, 0, fits, R, 5, True, eps)
    for fit in range(fits):
        want = trainer.gate_noise(bk, int(seeds[fit]), int(clock[fit]) + 1, R, None, columns, f64)
        assert np.abs(eps[fit] - want).max() <= (1e-15 if dtype == "float64" else 3e-7)


@dtypes
@pytest.mark.parametrize(("first", "R"), [(0, 6), (2, 4), (1, 3)])  # turns that end, and begin, within a fit
def test_gates_of_several_fits(run, dtype, first, R):
    n, d, per_fit = 9, 5, 2
    X, mu = gen.noise(n, d).T.astype(dtype).copy(), np.random.default_rng(0).random((3, d)).astype(dtype)
    eps, Y = gen.draws(1, d, count=R).astype(dtype), np.random.default_rng(1).normal(size=(R, d, n)).astype(dtype)
    sizes = (f64(0.5), i64(R), i64(first), i64(per_fit), i64(d), i64(n))
    Xt, dots = np.full((R, d, n), np.nan, dtype), np.full((R, d), np.nan)
    run("gated<T>", dtype, 3, X, mu, eps, *sizes, Xt)
    run("column_dots<T>", dtype, 2, X, Y, mu, eps, *sizes, dots)
    for r in range(R):
        alone = (f64(0.5), i64(1), i64(0), i64(1), i64(d), i64(n))
        Xt_r, dots_r = np.full((1, d, n), np.nan, dtype), np.full((1, d), np.nan)
        run("gated<T>", dtype, 3, X, mu[(first + r) // per_fit], eps[r], *alone, Xt_r)
        run("column_dots<T>", dtype, 2, X, Y[r], mu[(first + r) // per_fit], eps[r], *alone, dots_r)
        np.testing.assert_array_equal(Xt[r], Xt_r[0])
        np.testing.assert_array_equal(dots[r], dots_r[0])


@dtypes
@pytest.mark.parametrize("code", [0, 1, 2])
def test_steps_of_several_fits(run, dtype, code):
    """The loss, and the update with its record, of three fits, the second of which is done: it keeps everything."""
    rng, fits, R, d, n, room, grid = np.random.default_rng(6), 3, 4, 300, 20, 3, 2
    S, dots, mu = rng.random(fits * R) * 9, rng.normal(size=(fits * R, d)), rng.normal(size=(fits, d)).astype(dtype)
    isolated, lam = rng.random(fits * R), np.array([np.nan, 0.3, 0.1])
    b, degenerate = rng.random(fits * R), np.array([0.0] * 11 + [1.0])

    def step(rows, draws, grid):
        count = len(range(fits)[rows])
        sizes = (i64(count), i64(R), i64(d))
        dmu, value, share = np.full((count, d), np.nan, dtype), np.full(count, np.nan), np.full(count, np.nan)
        run("loss<T>", dtype, grid, S[draws], isolated[draws], dots[draws], mu[rows], lam[rows], *sizes, i64(n),
            f64(0.5), f64(1e-6), dmu, value, share)  # fmt: skip
        params, first = mu[rows].copy(), np.full((count, d), 0.1)
        second = np.full((count, d if code == 1 else 1), 0.2)
        clock, done, start = np.array([4, 9, 4])[rows], np.array([0, 1, 0])[rows], np.array([3])
        records = np.full((count, room, len(trainer.RECORD)), np.nan)
        run("advance<T>", dtype, grid, dmu, code, 0.1, params, first, second, value, share,
            S[draws], b[draws], degenerate[draws], start, *sizes, n, room, 0.6, 250.0 if code else 0.0, clock, done,
            records)  # fmt: skip
        return dmu, value, share, params, first, second, clock, done, records

    together = step(slice(None), slice(None), grid)
    for fit in range(fits):
        for got, want in zip(together, step(slice(fit, fit + 1), slice(fit * R, fit * R + R), 1), strict=True):
            np.testing.assert_array_equal(got[fit], want[0])
    _, value, share, params, first, _, clock, done, records = together
    np.testing.assert_array_equal(params[1], mu[1])
    np.testing.assert_array_equal(first[1], np.full(d, 0.1))
    np.testing.assert_array_equal(clock, [5, 9, 5])
    assert np.isnan(records[:, 0]).all()  # the record of step 5 is the second after step 3
    assert np.isnan(records[1]).all()
    undecided = int(trainer.undecided(params[2].astype(f64), 0.5).sum())
    draws = slice(2 * R, 3 * R)
    want = [value[2], S[draws].mean() / n, b[draws].mean(), (params[2] > 0).sum(), undecided, share[2], 1]
    close(records[2, 1], np.array(want), 1e-14)
    assert done[2] == (undecided <= (250 if code else 0))


# --- products -------------------------------------------------------------------------------------------------------


@dtypes
@pytest.mark.parametrize(("p", "q", "m"), [(1, 1, 1), (33, 31, 7), (64, 64, 64), (65, 127, 33), (257, 1, 65)])
@pytest.mark.parametrize("transposed", [True, False])
def test_product(run, dtype, p, q, m, transposed):
    rng = np.random.default_rng(4)
    A = rng.normal(size=(3, m, p) if transposed else (3, p, m)).astype(dtype)
    B = rng.normal(size=(3, m, q)).astype(dtype)
    for shared in (False, True):
        C = np.full((3, p, q), np.nan, dtype)
        name = "product<T, true>" if transposed else "product<T, false>"
        run(name, dtype, 4, A, B, i64(3), i64(p), i64(q), i64(m), i64(0 if shared else m * p), i64(m * q), i64(1), C)
        left = (A[:1] if shared else A).astype(f64)
        want = np.matmul(left.transpose(0, 2, 1) if transposed else left, B.astype(f64))
        close(C, want, 2 * m * EPS[dtype])


def test_a_gram_product_is_symmetric_to_the_bit(run):
    A, C = np.random.default_rng(5).normal(size=(2, 19, 70)), np.empty((2, 70, 70))
    run("product<T, true>", "float64", 8, A, A, *(i64(v) for v in (2, 70, 70, 19, 19 * 70, 19 * 70, 1)), C)
    np.testing.assert_array_equal(C, C.transpose(0, 2, 1))


@dtypes
@pytest.mark.parametrize(("n", "m", "parts"), [(5, 1, 1), (7, 100, 3), (65, 130, 4), (3, 2, 5)])
def test_sums_in_parts(run, dtype, n, m, parts):
    """The terms of a product in several sums, the last of them shorter or empty; the Gram matrix stays symmetric."""
    A = np.random.default_rng(6).normal(size=(2, m, n)).astype(dtype)
    sums, C = np.full((parts, 2, n, n), np.nan, dtype), np.full((2, n, n), np.nan, dtype)
    run("product<T, true>", dtype, 5, A, A, *(i64(v) for v in (2, n, n, m, m * n, m * n, parts)), sums)
    run("add_parts<T>", dtype, 3, sums, i64(parts), i64(C.size), C)
    close(C, np.matmul(A.transpose(0, 2, 1).astype(f64), A.astype(f64)), 2 * m * EPS[dtype])
    np.testing.assert_array_equal(C, C.transpose(0, 2, 1))


@dtypes
def test_combine(run, dtype):
    left, right = np.arange(700, dtype=dtype), np.ones(700, dtype)
    run("combine<T>", dtype, 2, f64(0.5), left, f64(-2), right, i64(700), left)
    np.testing.assert_array_equal(left, 0.5 * np.arange(700) - 2)


# --- distances and bandwidth ----------------------------------------------------------------------------------------


def neighbours(run, G, k, grid=7):
    """D, kth, neighbour and largest of Gram matrices (R, n, n)."""
    R, n, _ = G.shape
    dtype = G.dtype
    g, D = np.full((R, n), np.nan, dtype), np.full_like(G, np.nan)
    kth, neighbour, largest = np.full((R, n), np.nan, dtype), np.full((R, n), -1), np.full((R, n), np.nan, dtype)
    run("diagonal<T>", dtype, 2, G, R, n, g)
    run("distances<T>", dtype, grid, G, g, 0, R * n, n, k, D, kth, neighbour, largest)
    return D, kth, neighbour, largest


@dtypes
@pytest.mark.parametrize("n", [2, *SIZES[1:]])
@pytest.mark.parametrize("d", [1, 65])
def test_distances_and_neighbours(run, dtype, n, d):
    _, G, _, G64 = data(2 if n < 257 else 1, d, n, dtype, seed=n)
    for k in {1, min(2, n - 1), n - 1}:
        D, kth, neighbour, largest = neighbours(run, G, k)
        want, _ = distances_op.forward(bk, G64)
        close(D, want, 4 * EPS[dtype])
        assert (np.diagonal(D, axis1=1, axis2=2) == 0).all()
        np.testing.assert_array_equal(kth, bandwidth_op.neighbour_distances(bk, D, k))
        np.testing.assert_array_equal(np.take_along_axis(D, neighbour[..., None], axis=2)[..., 0], kth)
        assert (neighbour != np.arange(n)).all()
        np.testing.assert_array_equal(largest, D.max(axis=2))


def test_distances_of_equal_rows_are_zero(run):
    """Duplicates: the nearest neighbour is the twin, and a small negative value is clamped."""
    X = gen.twins(34, 5)
    G = (X @ X.T)[None]
    G[0, 3, 9] = G[0, 9, 3] = 1.01 * (G[0, 3, 3] + G[0, 9, 9]) / 2
    D, kth, neighbour, _ = neighbours(run, np.ascontiguousarray(G), 1)
    assert D[0, 3, 9] == D[0, 9, 3] == 0
    assert (kth <= 1e-12).all()
    others = D[0] + np.diag(np.full(34, np.inf))
    np.testing.assert_array_equal(neighbour[0], others.argmin(axis=1))  # of equal distances the first


def bandwidths(run, D, k, rule, factor, degenerate_rule):
    R, n, _ = D.shape
    _, kth, largest = neighbours_of_distances(D, k)
    position, noise = bandwidth_op.quantile_of(rule) * (n - 1), bandwidth_op.noise_level(np.finfo(D.dtype))
    b, degenerate = np.full(R, np.nan), np.full(R, np.nan)
    rows, weights = np.full((R, 2), -1, i64), np.full((R, 2), np.nan)
    run("bandwidth<T>", D.dtype, 2, kth, largest, i64(R), i64(n), i64(int(position)), f64(position - int(position)),
        f64(factor), np.bool_(degenerate_rule == "one"), *map(f64, noise), b, degenerate, rows, weights)  # fmt: skip
    return b, degenerate, rows, weights


def neighbours_of_distances(D, k):
    return D, bandwidth_op.neighbour_distances(bk, D, k), D.max(axis=2)


@dtypes
@pytest.mark.parametrize("n", [2, 3, *SIZES[1:]])
@pytest.mark.parametrize("rule", ["median", "q90", "max"])
def test_bandwidth(run, dtype, n, rule):
    D, _ = distances_op.forward(bk, data(3, 3, n, dtype, seed=n)[1])
    b, degenerate, rows, weights = bandwidths(run, D, 1, rule, 2.5, "data")
    want, want_substituted, saved = bandwidth_op.forward(bk, D, rule, 1, 2.5)
    close(b, want, 4 * EPS[dtype])
    np.testing.assert_array_equal(degenerate, want_substituted)
    used = weights != 0
    np.testing.assert_array_equal(rows[used], saved.rows[used])
    close(weights, saved.weights, EPS[dtype])


@pytest.mark.parametrize("degenerate_rule", ["data", "one"])
@pytest.mark.parametrize("rule", ["median", "q90", "max"])
@pytest.mark.parametrize("name", ["duplicates", "twins", "equal", "tied"])
def test_bandwidth_of_ties_and_zeros(run, rule, degenerate_rule, name):
    X = {"duplicates": gen.duplicates_and_others(), "twins": gen.twins(), "equal": gen.identical_rows()}.get(name)
    if X is None:  # all neighbours at one distance: the row is chosen by its index
        D = np.ones((1, 300, 300)) - np.eye(300)
    else:
        D, _ = distances_op.forward(bk, (X @ X.T)[None])
    b, degenerate, rows, weights = bandwidths(run, D, 1, rule, 2.0, degenerate_rule)
    want, want_substituted, saved = bandwidth_op.forward(bk, D, rule, 1, 2.0, degenerate_rule)
    close(b, want, 1e-15)
    np.testing.assert_array_equal(degenerate, want_substituted)
    close(weights, saved.weights, 1e-15)
    np.testing.assert_array_equal(rows[weights != 0], saved.rows[weights != 0])


# --- kernel, scores and the backward sweep --------------------------------------------------------------------------


def tolerance(dtype, d=1):
    return (4 + d / 8) * EPS[dtype]


@dtypes
@sizes
@pytest.mark.parametrize("d", [1, 7, 64, 65])
def test_kernel_and_degrees(run, dtype, n, d):
    """From G; degrees, their roots, the symmetric form."""
    R = 2
    _, G, _, _ = data(R, d, n, dtype, seed=n + d)
    G = np.tril(G) + np.tril(G, -1).transpose(0, 2, 1)  # symmetric to the bit
    D, _ = distances_op.forward(bk, G.astype(f64))
    b = np.array([0.7, 3.0]) * d
    self_weight = 0.25 if d in (7, 64) else 1.0
    want, _ = gaussian.forward(bk, D, b, self_weight)
    A, deg, _ = normalise.forward(bk, want)
    K, degrees = np.full((R, n, n), np.nan, dtype), np.full((R, n), np.nan)
    g, q, r = np.full((3, R, n), np.nan, dtype)
    run("diagonal<T>", dtype, 2, G, R, n, g)
    run("affinity<T>", dtype, 3, G, g, b, self_weight, 0, R * n, n, K, degrees, q, r)
    for got, expected in ((K, want), (degrees, deg), (q, deg**-0.5), (r, deg**0.5)):
        close(got, expected, 4 * tolerance(dtype, d))
    assert (np.diagonal(K, axis1=1, axis2=2) == self_weight).all()
    np.testing.assert_array_equal(K, K.transpose(0, 2, 1))
    run("symmetrise<T>", dtype, 5, K, q, R, n)
    close(K, A, 4 * tolerance(dtype, d))


@dtypes
@sizes
@pytest.mark.parametrize("t", [1, 2])
@pytest.mark.parametrize("rule", ["median", 3.0])
def test_score_and_backward_sweep(run, dtype, n, t, rule):
    """S and M = dS/dG against the operations in float64, from the same G; without D where b is given."""
    R, d = 2, 5
    rule = 3.0 if n == 1 else rule
    _, G, _, G64 = data(R, d, n, dtype, seed=n)
    S, M = sweep(run, G, t, rule)
    want_S, want_M = operations(G64, t, rule)
    # float32: measured against what the operations lose in float32
    own = operations(G, t, rule) if dtype == "float32" else (want_S, want_M)
    lost = [np.sqrt(np.mean((o - w) ** 2)) for o, w in zip(own, (want_S, want_M), strict=True)]
    close(S, want_S, 1e-13 if dtype == "float64" else 1e-5)
    if dtype == "float64":
        close(M, want_M, 1e-12)
    else:
        error = np.sqrt(np.mean((M - want_M) ** 2))
        assert error <= 3 * lost[1] + 1e-6 * abs(want_M).max(), (error, lost[1])


def operations(G, t, rule, C=2.0):
    """S and M = dS/dG through the operations."""
    D, saved_D = distances_op.forward(bk, G)
    if isinstance(rule, str):
        b, _, saved_b = bandwidth_op.forward(bk, D, rule, 1, C)
    else:
        b, saved_b = np.full(len(G), rule, G.dtype), None
    K, saved_K = gaussian.forward(bk, D, b)
    A, deg, saved_A = normalise.forward(bk, K)
    At, saved_At = power.forward(bk, A, t)
    S, saved_S = score_op.forward(bk, At, G, deg)
    dAt, dG, ddeg = score_op.backward(bk, saved_S, np.ones_like(S))
    dK = normalise.backward(bk, saved_A, power.backward(bk, saved_At, dAt), ddeg)
    dD, db = gaussian.backward(bk, saved_K, dK)
    if saved_b is not None:
        dD = bandwidth_op.add_entries(bk, dD, bandwidth_op.backward(bk, saved_b, db))
    M = dG + distances_op.backward(bk, saved_D, dD)
    return S, (M + M.transpose(0, 2, 1)) / 2


def sweep(run, G, t, rule, C=2.0, grid=3, **how):
    """S and M through the kernels; products by NumPy."""
    R, n, _ = G.shape
    dtype, size = G.dtype, (i64(R), i64(n))
    new = lambda *shape, of=dtype: np.full(shape, np.nan, of)  # noqa: E731
    A, deg, g, q, r = new(R, n, n), new(R, n, of=f64), new(R, n), new(R, n), new(R, n)
    D, neighbour, rows, weights, b = None, None, np.zeros((R, 2), i64), np.zeros((R, 2)), np.full(R, 3.0)
    if isinstance(rule, str):
        D, _, neighbour, _ = neighbours(run, G, 1)
        b, _, rows, weights = bandwidths(run, D, 1, rule, C, "data")
    run("diagonal<T>", dtype, grid, G, *size, g, **how)
    run("affinity<T>", dtype, grid, G, g, b, 1.0, 0, R * n, n, A, deg, q, r, **how)
    run("symmetrise<T>", dtype, grid, A, q, *size, **how)
    At = A.copy() if t == 1 else np.matmul(A, A)
    H, Wq, Wr = G.copy(), new(R, n, of=f64), new(R, n, of=f64)
    run("score<T>", dtype, grid, At, H, q, r, *size, H, Wq, Wr, **how)
    S, isolated = new(R, of=f64), new(R, of=f64)
    T = H / 2 if t == 1 else np.matmul(A, H)
    half_ddeg, row_sums, db = new(R, n), new(R, n, of=f64), new(R, -(-n // cuda.SWEEP_TILE), of=f64)
    run("grad_degrees<T>", dtype, grid, T, A, q, Wq, Wr, *size, half_ddeg, **how)
    M = At if t == 2 else new(R, n, n)
    run("backward<T>", dtype, grid, T, A, D, At, q, r, half_ddeg, b, *size, M, row_sums, db, **how)
    scored = (Wr, q, deg, 1 + 1e-6)
    run("finish<T>", dtype, grid, M, neighbour, rows, weights, b, db, *scored, *size, row_sums, S, isolated, **how)
    np.testing.assert_allclose(isolated, (deg <= 1 + 1e-6).mean(axis=1))
    return S, M


# --- launches -------------------------------------------------------------------------------------------------------


@dtypes
def test_grids_and_thread_orders_change_no_bit(run, dtype):
    """Any grid, any order of the threads between barriers, any repetition: the same bits."""
    Xt, G, _, _ = data(2, 9, 65, dtype)
    results = [sweep(run, G, 2, "max", grid=grid, order=order, seed=seed) for grid, order, seed in (
        (1, Order.ROUNDS, 0), (130, Order.LOWEST_FIRST, 0), (7, Order.HIGHEST_FIRST, 0), (6, Order.SHUFFLED, 1),
        (6, Order.SHUFFLED, 2), (1000, Order.ROUNDS, 0),
    )]  # fmt: skip
    for S, M in results[1:]:
        np.testing.assert_array_equal(S, results[0][0])
        np.testing.assert_array_equal(M, results[0][1])
    others = []
    for order in Order:
        C, D = np.empty((2, 65, 65), dtype), np.empty((2, 65, 65), dtype)
        kth, neighbour, largest = np.empty((2, 65), dtype), np.empty((2, 65), i64), np.empty((2, 65), dtype)
        run("product<T, true>", dtype, 3, Xt, Xt, *map(i64, (2, 65, 65, 9, 585, 585, 1)), C, order=order)
        g = np.ascontiguousarray(np.diagonal(G, axis1=1, axis2=2))
        run("distances<T>", dtype, 5, G, g, 0, 130, 65, 2, D, kth, neighbour, largest, order=order)
        others.append([C, D, kth, neighbour, largest])
    for other in others[1:]:
        for a, c in zip(others[0], other, strict=True):
            np.testing.assert_array_equal(a, c)


def lazily(count, dtype):
    """An array of zeros of any size: memory is taken only for the pages that are written to."""
    size = count * np.dtype(dtype).itemsize
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000))
    return np.frombuffer(pages, dtype=dtype)


@pytest.mark.stand_in
@pytest.mark.parametrize("n", [46_340, 46_341])
def test_entries_beyond_32_bits(run, n):
    """n^2 passes 2^31 between these two sizes: the last rows are written where they belong."""
    G, D = lazily(n * n, np.float32), lazily(n * n, np.float32)
    g, kth, largest = np.ones(n, np.float32), np.zeros(n, np.float32), np.zeros(n, np.float32)
    g[5] = 3
    neighbour, last = np.zeros(n, i64), range(n - 1, n)
    run("distances<T>", "float32", n, G, g, 0, n, n, 1, D, kth, neighbour, largest, blocks=last)
    want = np.full(n, 2, np.float32)
    want[5], want[-1] = 4, 0
    np.testing.assert_array_equal(D[n * (n - 1) :], want)
    assert (kth[-1], neighbour[-1], largest[-1]) == (2, 0, 4)
    K, deg = D, np.zeros(n)
    run("affinity<T>", "float32", n, G, g, np.ones(1), 1.0, 0, n, n, K, deg, None, None, blocks=last)
    want = np.exp(-want)
    close(K[n * (n - 1) :], want, 2e-7)
    assert deg[-1] == pytest.approx(want.sum(dtype=f64), rel=1e-6)
    M, sums, db = G, np.zeros(n), np.zeros(-(-n // cuda.SWEEP_TILE))
    ones, half_ddeg, tiles = np.ones(n, np.float32), np.zeros(n, np.float32), len(db)
    run("backward<T>", "float32", tiles, K, K, None, K, ones, ones, half_ddeg, np.ones(1), 1, n, M, sums, db,
        blocks=range(tiles - 1, tiles))  # fmt: skip
    assert M[n * n - 1] == pytest.approx(1 + 2 * 2, rel=1e-6)  # A = T = K = 1 on the diagonal: E = 2, dD = -2
