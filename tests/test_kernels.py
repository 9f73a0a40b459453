"""The compiled kernels: the exponential's error in units of the last place, tiles, noise, and the fused passes."""

from __future__ import annotations

import itertools

import generators as gen
import numpy as np
import pytest
from numba import njit
from scipy.special import erf

from dufs_core.backend import get_backend, random
from dufs_core.kernels import noise, panels, tile
from dufs_core.kernels.arrays import CHUNK, GATHERED, LANES, Draw
from dufs_core.kernels.vector import exp_nonpositive, load, store
from dufs_core.objective.chain import Objective
from dufs_core.objective.engines import cpu_dense as dense
from dufs_core.objective.engines.choose import ENGINES, get_engine
from dufs_core.objective.ops import bandwidth as bandwidth_op
from dufs_core.objective.ops import distances as distances_op

bk = get_backend("numpy")


@njit
def exponentials(x, out):
    for i in range(0, x.size, LANES):
        store(out, i, exp_nonpositive(load(x, i)))


def exp_of(x):
    padded = np.zeros(-(-x.size // LANES) * LANES, x.dtype)
    padded[: x.size] = x
    out = np.empty_like(padded)
    exponentials(padded, out)
    return out[: x.size]


def arguments(lowest, count=200_001):
    """Even steps, steps near 0, and both sides of every point where the reduction changes its power of two."""
    rng = np.random.default_rng(0)
    switches = -(np.arange(int(-lowest / np.log(2))) + 0.5) * np.log(2)
    near = np.concatenate([switches, np.nextafter(switches, 0), np.nextafter(switches, -1e9)])
    return np.concatenate(
        [np.linspace(lowest, 0, count), lowest * rng.random(count), -np.logspace(-300, 0, 2001), [0.0, -0.0], near]
    )


def test_exponential_float32():
    x = arguments(-87.0).astype(np.float32)
    want = np.exp(x.astype(np.float64))
    ulp = np.spacing(want.astype(np.float32)).astype(np.float64)
    got = exp_of(x)
    assert got.dtype == np.float32
    error = abs(got.astype(np.float64) - want) / ulp
    assert error.max() <= 2.0, f"{error.max():.3f} ulp at x = {x[error.argmax()]!r}"


def test_exponential_float64():
    x = arguments(-700.0)
    # exp in extended precision where the platform has it; NumPy's float64 exp is within 1 ulp elsewhere
    want = np.exp(x.astype(np.longdouble))
    ulp = np.spacing(want.astype(np.float64)).astype(np.longdouble)
    error = (abs(exp_of(x).astype(np.longdouble) - want) / ulp).astype(np.float64)
    assert error.max() <= 2.0, f"{error.max():.3f} ulp at x = {x[error.argmax()]!r}"


@pytest.mark.parametrize(("dtype", "lowest"), [(np.float32, -87.0), (np.float64, -708.0)])
def test_exponential_at_its_ends(dtype, lowest):
    """exp(0) is 1, the lowest argument still counts, below it and at -inf the result is exactly 0."""
    lowest = dtype(lowest)
    x = np.array([0.0, -0.0, lowest, np.nextafter(lowest, dtype(-np.inf)), -1e4, -1e30, -np.inf], dtype=dtype)
    got = exp_of(x)
    assert got[0] == got[1] == 1
    assert got[2] == pytest.approx(np.exp(np.float64(lowest)), rel=1e-6)
    np.testing.assert_array_equal(got[3:], 0)


def test_exponential_never_exceeds_one_and_grows():
    for dtype in (np.float32, np.float64):
        x = np.sort(arguments(-80.0).astype(dtype))
        got = exp_of(x)
        assert got.max() <= 1
        assert got.min() > 0
        # monotone up to the last place
        assert (np.diff(got) >= -2 * np.spacing(got[1:])).all()


@njit(error_model="numpy")
def error_functions(x, out):
    for i in range(x.size):
        out[i] = noise.erf(x[i])


def test_error_function():
    """Within 2e-15 everywhere, odd, exactly 1 in the end; NaN stays."""
    x = np.concatenate([np.linspace(-7, 7, 100_001), [0.0, 1e-300, np.inf, 1e300, np.nan]])
    out, mirrored = np.empty((2, x.size))
    error_functions(x, out)
    error_functions(-x, mirrored)
    assert abs(out - erf(x))[:-1].max() <= 2e-15
    np.testing.assert_array_equal(out[-3:], [1, 1, np.nan])
    np.testing.assert_array_equal(mirrored, -out)


engines = pytest.mark.parametrize("engine", [e for e in ENGINES if e != "reference"])


def both(engine, objective, mu, eps, X, threads=1):
    """The chain of operations, and an engine that runs compiled kernels."""
    plain = get_engine("reference", bk, 1)
    compiled = get_engine(engine, bk, threads)
    return plain(bk, objective, mu, eps, X), compiled(bk, objective, mu, eps, X)


@engines
@pytest.mark.parametrize(("n", "d"), [(2, 1), (3, 1), (5, 2), (7, 13), (31, 3), (33, 17), (65, 5), (129, 2)])
def test_odd_shapes(engine, n, d):
    X = gen.noise(n, d, seed=n)
    mu, eps = np.linspace(0.2, 0.9, d), gen.draws(d, d, count=3)
    for t, bandwidth, k in ((1, "median", 1), (2, "max", n - 1), (4, "q90", (n + 1) // 2), (3, 4.0, 1)):
        objective = Objective(power=t, bandwidth=bandwidth, n_neighbors=k, lam=0.2)
        (value, dmu), (other, other_dmu) = both(engine, objective, mu, eps, X)
        gap = abs(other.score - value.score).max() / (n * d)  # a score is at most the sum of squares, n d
        assert gap <= 1e-14, f"score, t = {t}, {bandwidth}: {gap:.3g}"
        gen.assert_close(other.bandwidth, value.bandwidth, 1e-13)
        assert other.isolated == value.isolated
        gen.assert_close(other_dmu, dmu, 1e-11, f"gradient, t = {t}, {bandwidth}")


@pytest.mark.parametrize("n_open", [0, 1, 16, 19, 20, 40])
def test_few_open_columns(n_open):
    """Less than a third of the rows: another form of the same products, at t = 2."""
    n, d = 60, 40
    X, eps = gen.noise(n, d, seed=n_open), 0.3 * gen.draws(n_open, d, count=3)
    mu = np.where(np.random.default_rng(0).permutation(d) < n_open, np.linspace(0.5, 0.9, d), -9.0)
    for objective in (Objective(), Objective(bandwidth="max", lam=0.2), Objective(self_loops=False, bandwidth=20.0)):
        (value, dmu), (other, other_dmu) = both("dense", objective, mu, eps, X)
        np.testing.assert_allclose(other.score, value.score, rtol=1e-12)
        gen.assert_close(other_dmu, dmu, 1e-11, str(objective))


def test_more_open_columns_than_are_prepared_at_a_time():
    n, d = 3 * GATHERED + 40, GATHERED + 9
    X, eps = gen.noise(n, d), 0.3 * gen.draws(0, d, count=1)
    mu = np.where(np.arange(d) % 4, 3.0, 0.7)  # all open, a quarter undecided
    (value, dmu), (other, other_dmu) = both("dense", Objective(), mu, eps, X, threads=2)
    np.testing.assert_allclose(other.score, value.score, rtol=1e-12)
    gen.assert_close(other_dmu, dmu, 1e-11)


@engines
def test_float32_is_as_near_as_the_operations(engine):
    """Root mean square error against float64 over problems: score at most 2, gradient at most 3 times theirs."""
    plain, compiled = [], []
    for seed in range(20):
        X, mu, eps = gen.noise(40, 8, seed), np.full(8, 0.5), gen.draws(seed, 8, count=2)
        (exact, exact_dmu), _ = both(engine, Objective(), mu, eps, X)
        single = [a.astype(np.float32) for a in (mu, eps, X)]
        for errors, (value, dmu) in zip((plain, compiled), both(engine, Objective(), *single), strict=True):
            assert dmu.dtype == np.float32
            errors.append([gen.relative(value.score, exact.score), gen.relative(dmu, exact_dmu)])
    plain, compiled = (np.sqrt(np.mean(np.square(e), axis=0)) for e in (plain, compiled))
    assert compiled[0] <= 2 * plain[0]
    assert compiled[1] <= 3 * plain[1]


@engines
@pytest.mark.parametrize("name", ["duplicates", "twins", "equal", "constant column", "closed"])
def test_special_cases(engine, name):
    X = {
        "duplicates": gen.duplicates_and_others(8, 5),
        "twins": gen.twins(),
        "equal": gen.identical_rows(),
        "constant column": gen.with_constant_column(),
        "closed": gen.noise(9, 4),
    }[name]
    d = X.shape[1]
    mu, eps = np.full(d, -9.0 if name == "closed" else 0.5), gen.draws(1, d, count=2)
    for bandwidth, degenerate_rule, C in itertools.product(("median", "q90", "max"), ("data", "one"), (1.0, 5.0)):
        objective = Objective(bandwidth=bandwidth, degenerate_rule=degenerate_rule, bandwidth_factor=C)
        (value, dmu), (other, other_dmu) = both(engine, objective, mu, eps, X)
        np.testing.assert_array_equal(other.degenerate, value.degenerate)
        gen.assert_close(other.bandwidth, value.bandwidth, 1e-12)
        assert other.loss == pytest.approx(value.loss, rel=1e-12, abs=1e-15)
        gen.assert_close(other_dmu, dmu, 1e-11)


def in_panels(A):
    """A (n, m) as (panels, rows, LANES), padding that would spoil every sum that read it."""
    n, m = A.shape
    panels_ = np.full((-(-m // LANES), -(-n // LANES) * LANES, LANES), np.nan, A.dtype)
    for j in range(m):
        panels_[j // LANES, :n, j % LANES] = A[:, j]
    return panels_


def out_of_panels(P, n, m):
    return np.stack([P[j // LANES, :n, j % LANES] for j in range(m)], axis=1)


@njit(error_model="numpy")
def run_tiles(L, R, C, length, two):
    tile.tile(L, 0, R, 0, C, 0, length, two, False)
    tile.tile(L, 0, R, 0, C, 0, length, two, True)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("length", [0, 1, 2, 37])
@pytest.mark.parametrize("two", [False, True])
def test_tile(dtype, length, two):
    rng = np.random.default_rng(length)
    L, *R = rng.normal(size=(3, 40, LANES)).astype(dtype)
    C = np.full((2, tile.ROWS + 1, LANES), np.nan, dtype)
    run_tiles(L[None], np.stack(R), C, length, two)
    for c, panel in zip(C[: 1 + two], R, strict=False):
        want = 2 * (L[:length, : tile.ROWS].astype(float).T @ panel[:length].astype(float))
        np.testing.assert_allclose(c[:-1], want, rtol=0, atol=200 * np.finfo(dtype).eps)
    assert np.isnan(C[1 + two :]).all()
    assert np.isnan(C[:, -1]).all()


@njit(error_model="numpy")
def run_product(L, R, C, n, length, twice, add, parts):
    for part in range(parts):
        panels.symmetric_product(L, R, C, n, length, twice, add, True, part, parts)


@njit(error_model="numpy")
def run_full_product(L, R, C, length, add, parts):
    for part in range(parts):
        panels.product(L, R, C, length, add, part, parts)


@pytest.mark.parametrize("n", [1, 15, 16, 17, 40, 300])
@pytest.mark.parametrize("parts", [1, 3])
def test_products(n, parts):
    """Shapes that fill no panel, more rows than a product takes at a time, more members than panels."""
    rng = np.random.default_rng(n)
    A, H = rng.normal(size=(2, n, n))
    A, H = A + A.T, H + H.T
    C = in_panels(np.zeros((n, n)))
    run_product(in_panels(A), in_panels(A), C, n, n, False, False, parts)
    np.testing.assert_allclose(out_of_panels(C, n, n), A @ A, atol=1e-10)
    run_product(in_panels(A), in_panels(H), C, n, n, True, True, parts)
    np.testing.assert_allclose(out_of_panels(C, n, n), A @ A + A @ H + H @ A, atol=1e-10)
    for length, add, want in ((n, False, A @ H), (n, True, 2 * A @ H), (0, False, np.zeros((n, n)))):
        run_full_product(in_panels(A), in_panels(H), C, length, add, parts)
        np.testing.assert_allclose(out_of_panels(C, n, n), want, atol=1e-10)


@njit(error_model="numpy")
def run_neighbours(G, g, n, k, kth, largest, best, parts):
    panels.diagonal(G, n, g)
    draw = Draw(G, G, G, G, G, G, G, g, kth, largest, g, g, g, g, G)
    for part in range(parts):
        panels.neighbours(draw, n, k, best, part, parts)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("n", [6, 40])
def test_neighbours(dtype, k, n):
    """The k-th distance to others and the largest, of the operation's distances, clamped where rounding is negative."""
    X = gen.noise(n, 3)
    G = (X @ X.T).astype(dtype)
    G[0, 4] = G[4, 0] = 1.001 * (G[0, 0] + G[4, 4]) / 2
    P = -(-n // LANES)
    g, kth, largest = np.zeros((3, P * LANES), dtype)
    run_neighbours(in_panels(G), g, n, k, kth, largest, np.zeros((k, LANES), dtype), 2)
    D, _ = distances_op.forward(bk, G[None])
    tolerance = 8 * np.finfo(dtype).eps * np.diag(G).max()
    assert D[0, 0, 4] == 0
    np.testing.assert_allclose(kth[:n], bandwidth_op.neighbour_distances(bk, D, k)[0], rtol=0, atol=tolerance)
    np.testing.assert_allclose(largest[:n], D[0].max(axis=1), rtol=0, atol=tolerance)


@njit(error_model="numpy")
def run_normals(seed, step, columns, n_draws, out):
    noise.gate_normals(np.uint64(seed), np.uint64(step), columns, 2, len(columns) - 2, n_draws, out)


@pytest.mark.parametrize("n_draws", [1, 2, 8, 9])
@pytest.mark.parametrize("seed", [0, 7, 2**63 + 11])
def test_noise_is_the_library_s(n_draws, seed):
    columns = np.array([5, 9, 0, 1, 2, 77, 2**31, 2**32 - 1, *range(100, 250)], dtype=np.uint64)
    out = np.full((n_draws + 3, CHUNK), np.nan)
    run_normals(np.uint64(seed), np.uint64(1234), columns, n_draws, out)
    want = random.normals(bk, seed, random.Stream.GATES, 1234, n_draws, None, columns[2:], np.float64)
    np.testing.assert_allclose(out[:n_draws, : len(columns) - 2], want, rtol=1e-14, atol=1e-14)


@engines
@pytest.mark.parametrize(("n", "d"), [(30, 6), (300, 6), (30, 1300), (30, 610)])
@pytest.mark.parametrize("count", [1, 17])
def test_threads_change_no_bit(engine, n, d, count, monkeypatch):
    monkeypatch.setattr(dense, "_WORTH_A_THREAD", 1)
    X, mu, eps = gen.noise(n, d), np.full(d, 0.5), gen.draws(0, d, count=count)
    results = [both(engine, Objective(), mu, eps, X, threads)[1] for threads in (1, 2, 3, 4, 16)]
    monkeypatch.setattr(dense, "_OWN_DRAW_ROWS", 1)  # threads share every draw
    results.append(both(engine, Objective(), mu, eps, X, 3)[1])
    for value, dmu in results[1:]:
        np.testing.assert_array_equal(value.score, results[0][0].score)
        np.testing.assert_array_equal(dmu, results[0][1])


@engines
def test_one_compilation_a_dtype(engine):
    """A read-only or differently ordered input must not cost a second compilation of many seconds."""
    X, mu, eps = gen.noise(10, 3), np.full(3, 0.5), gen.draws(0, 3, count=2)
    both(engine, Objective(), mu, eps, X)
    before = len(dense._scores._codes)
    read_only = X.copy(order="F")
    read_only.setflags(write=False)
    for data in (np.ascontiguousarray(X), X[::-1], np.repeat(X, 2, axis=1)[:, ::2], read_only):
        both(engine, Objective(), mu, eps, data)
    both(engine, Objective(), np.repeat(mu, 2)[::2], np.asfortranarray(eps), X)
    assert len(dense._scores._codes) == before


@pytest.mark.parametrize(("n", "d"), [(5, 3), (17, 9), (33, 40), (35, 7)])
def test_what_work_arrays_hold_is_not_read(n, d, monkeypatch):
    """Padding beyond n included: they are kept from fit to fit, and here full of NaN at the start."""
    plan = dense.DenseEngine.plan

    def poisoned(self, *size):
        before, found = self._plan, plan(self, *size)
        if found is not before:
            groups = [found.shared, *(group for work in found.works for group in (work.draw, work.mine))]
            for array in (a for group in groups for a in group if a.dtype.kind == "f"):
                array.fill(np.nan)
        return found

    X = gen.noise(n, d, seed=n)
    mu, eps = np.linspace(0.2, 0.9, d), gen.draws(d, d, count=3)
    choices = itertools.product((1, 2, 4), ("median", "max"), (True, False))
    problems = [Objective(power=t, bandwidth=b, self_loops=s) for t, b, s in choices]
    want = [dense.DenseEngine(2)(bk, objective, mu, eps, X) for objective in problems]
    monkeypatch.setattr(dense.DenseEngine, "plan", poisoned)
    for objective, (value, dmu) in zip(problems, want, strict=True):
        same, same_dmu = dense.DenseEngine(2)(bk, objective, mu, eps, X)
        np.testing.assert_array_equal(same.score, value.score)
        np.testing.assert_array_equal(same_dmu, dmu)


def test_a_member_that_fails_ends_the_others(monkeypatch):
    """The exception comes out, nobody waits for ever, and the engine works again."""
    X, mu, eps = gen.noise(40, 6), np.full(6, 0.5), gen.draws(0, 6, count=1)
    monkeypatch.setattr(dense, "_WORTH_A_THREAD", 1)
    evaluate = dense.DenseEngine(3)
    want = evaluate(bk, Objective(), mu, eps, X)[1]
    right = dense._scores

    def wrong(*arguments):
        if arguments[-1].place.thread == 1:
            raise MemoryError("no memory in one thread")
        right(*arguments)

    monkeypatch.setattr(dense, "_scores", wrong)
    with pytest.raises(MemoryError, match="no memory in one thread"):
        evaluate(bk, Objective(), mu, eps, X)
    monkeypatch.setattr(dense, "_scores", right)
    np.testing.assert_array_equal(evaluate(bk, Objective(), mu, eps, X)[1], want)


def test_a_bandwidth_that_is_too_small_to_invert():
    """-1 / b beyond float32: the kernel is 1 on the diagonal and 0 elsewhere, as by the operations."""
    X, mu, eps = gen.noise(20, 3).astype(np.float32), np.full(3, 0.5, np.float32), gen.draws(0, 3, count=1)
    value, dmu = dense.DenseEngine(1)(bk, Objective(bandwidth=1e-39), mu, eps.astype(np.float32), X)
    assert np.isfinite(value.loss)
    assert np.isfinite(dmu).all()
    assert value.isolated == 1
