"""The compiled kernels: the exponential's error in units of the last place, and the fused passes."""

from __future__ import annotations

import itertools

import generators as gen
import numpy as np
import pytest
from numba import njit

from dufs_core.backend import get_backend
from dufs_core.engines import ENGINES, get_engine
from dufs_core.kernels.exponential import exp_nonpositive
from dufs_core.objective import Objective
from dufs_core.ops import bandwidth as bandwidth_op
from dufs_core.ops import distances as distances_op

bk = get_backend("numpy")


@njit
def exponentials(x, out):
    for i in range(x.size):
        out[i] = exp_nonpositive(x[i])


def exp_of(x):
    out = np.empty_like(x)
    exponentials(x, out)
    return out


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


engines = pytest.mark.parametrize("engine", [e for e in ENGINES if e != "operations"])


def both(engine, objective, mu, eps, X, threads=1):
    """The chain of operations, and an engine that runs compiled kernels."""
    _, plain = get_engine("operations", bk, 1)
    _, compiled = get_engine(engine, bk, threads)
    return plain(bk, objective, mu, eps, X), compiled(bk, objective, mu, eps, X)


@engines
@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize(("n", "d"), [(2, 1), (3, 1), (5, 2), (7, 13), (31, 3), (33, 17), (65, 5), (129, 2)])
def test_odd_shapes(engine, n, d, per_sample):
    X = gen.noise(n, d, seed=n)
    mu, eps = np.linspace(0.2, 0.9, d), gen.draws(d, d, n if per_sample else None, count=3)
    for t, bandwidth, k in ((1, "median", 1), (2, "max", n - 1), (4, "q90", (n + 1) // 2), (3, 4.0, 1)):
        objective = Objective(power=t, bandwidth=bandwidth, n_neighbors=k, lam=0.2)
        (value, dmu), (other, other_dmu) = both(engine, objective, mu, eps, X)
        gap = abs(other.score - value.score).max() / (n * d)  # a score is at most the sum of squares, n d
        assert gap <= 1e-14, f"score, t = {t}, {bandwidth}: {gap:.3g}"
        gen.assert_close(other.bandwidth, value.bandwidth, 1e-13)
        assert other.isolated == value.isolated
        gen.assert_close(other_dmu, dmu, 1e-11, f"gradient, t = {t}, {bandwidth}")


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
    for bandwidth, zero_rule, C in itertools.product(("median", "q90", "max"), ("data", "one"), (1.0, 5.0)):
        objective = Objective(bandwidth=bandwidth, zero_rule=zero_rule, bandwidth_factor=C)
        (value, dmu), (other, other_dmu) = both(engine, objective, mu, eps, X)
        np.testing.assert_array_equal(other.substituted, value.substituted)
        gen.assert_close(other.bandwidth, value.bandwidth, 1e-12)
        assert other.loss == pytest.approx(value.loss, rel=1e-12, abs=1e-15)
        gen.assert_close(other_dmu, dmu, 1e-11)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_distances_pass(dtype, k):
    """The same entries as the operation's, clamped where rounding would make them negative, and the k-th of others."""
    from dufs_core.kernels import sweeps

    G = np.stack([X @ X.T for X in (gen.noise(6, 3, seed) for seed in range(3))]).astype(dtype)
    G[1, 0, 4] = G[1, 4, 0] = 1.001 * (G[1, 0, 0] + G[1, 4, 4]) / 2
    D, kth, largest = np.full_like(G, np.nan), np.empty((3, 6), dtype), np.empty((3, 6), dtype)
    sweeps.distances(G, np.diagonal(G, axis1=1, axis2=2).copy(), k, D, kth, largest, 0, 18)
    want, _ = distances_op.forward(bk, G)
    gen.assert_close(D, want, 4 * np.finfo(dtype).eps)
    assert D[1, 0, 4] == D[1, 4, 0] == 0
    np.testing.assert_array_equal(kth, bandwidth_op.neighbour_distances(bk, D, k))
    np.testing.assert_array_equal(largest, D.max(axis=2))


@engines
@pytest.mark.parametrize("n", [30, 150])
def test_threads_change_no_bit(engine, n):
    X, mu, eps = gen.noise(n, 6), np.full(6, 0.5), gen.draws(0, 6, count=7)
    results = [both(engine, Objective(), mu, eps, X, threads)[1] for threads in (1, 2, 3, 16)]
    for value, dmu in results[1:]:
        np.testing.assert_array_equal(value.score, results[0][0].score)
        np.testing.assert_array_equal(dmu, results[0][1])


@engines
def test_one_compilation_a_dtype(engine):
    """A read-only or differently ordered input must not cost a second compilation of many seconds."""
    from dufs_core.kernels import sweeps

    passes = ("distances", "bandwidth", "affinity", "symmetrise", "score", "row_terms", "backward", "finish")

    def compiled():
        return {name: len(getattr(sweeps, name).signatures) for name in passes}

    X, mu, eps = gen.noise(10, 3), np.full(3, 0.5), gen.draws(0, 3, count=2)
    both(engine, Objective(), mu, eps, X)
    before = compiled()
    read_only = X.copy(order="F")
    read_only.setflags(write=False)
    for data in (np.ascontiguousarray(X), X[::-1], np.repeat(X, 2, axis=1)[:, ::2], read_only):
        both(engine, Objective(), mu, eps, data)
    both(engine, Objective(), np.repeat(mu, 2)[::2], np.asfortranarray(eps), X)
    assert compiled() == before
