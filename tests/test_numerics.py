"""Inputs that break comparable software: large offsets, tiny bandwidths, duplicates, closed gates, smallest shapes."""

from __future__ import annotations

import itertools

import generators as gen
import numpy as np
import pytest
import reference

from dufs_core.backend import get_backend
from dufs_core.data.dense import scale_columns
from dufs_core.objective.chain import Objective
from dufs_core.objective.engines.choose import ENGINES, get_engine
from dufs_core.objective.ops import bandwidth, distances, gaussian, gram, normalise

bk = get_backend("numpy")
engines = pytest.mark.parametrize("engine", ENGINES)
NOISES = [*((engine, False) for engine in ENGINES), ("reference", True)]  # one gate per sample in one engine alone
with_noise = pytest.mark.parametrize(("engine", "per_sample"), NOISES)
dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])
rules = pytest.mark.parametrize("rule", ["median", "q90", "max"])


def evaluate(engine, objective, mu, eps, X):
    call = get_engine(engine, bk, 1)
    return call(bk, objective, mu, eps, X)


def finite(value, dmu):
    assert np.isfinite(value.loss)
    assert np.isfinite(value.score).all()
    assert (value.bandwidth > 0).all()
    assert np.isfinite(value.bandwidth).all()
    assert np.isfinite(dmu).all()
    assert 0 <= value.isolated <= 1


def through_k(X, b):
    """D and K of ungated data by the operations."""
    G, _ = gram.forward(bk, X, np.ones(X.shape[1], X.dtype))
    D, _ = distances.forward(bk, G)
    K, _ = gaussian.forward(bk, D, np.array(b, X.dtype))
    return D, K


# --- N1: values far from 0 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scaling", ["columns", "global", "none"])
@pytest.mark.parametrize("offset", [1e4, -1e4])
def test_neighbours_survive_a_large_offset(scaling, offset):
    """40 x 50 float32 values 1e4 + 0.1 N(0,1): the neighbours are float64's."""
    raw = (offset + 0.1 * np.random.default_rng(0).normal(size=(40, 50))).astype(np.float32)
    exact = raw.astype(np.float64)
    if scaling == "columns":
        exact = gen.standardise(exact)
    want = np.array(reference.squared_distances(exact.tolist()))
    X, constant = scale_columns(raw, scaling, np.float32)
    assert X.dtype == np.float32
    assert not constant.any()
    D, K = through_k(X, 1.0)
    off = ~np.eye(40, dtype=bool)
    ratio = D[off] / want[off]
    assert ratio.max() / ratio.min() - 1 < 1e-4  # "global" divides by one common scale
    for M in (D, want):
        np.fill_diagonal(M, np.inf)
    np.testing.assert_array_equal(D.argmin(axis=1), want.argmin(axis=1))
    assert ((K >= 0) & (K <= 1)).all()
    assert (np.diag(K) == 1).all()


def test_the_expanded_form_needs_that_centring():
    """The same data uncentred lose most neighbours in float32: the test above can fail."""
    raw = (1e4 + 0.1 * np.random.default_rng(0).normal(size=(40, 50))).astype(np.float32)
    want = np.array(reference.squared_distances(raw.astype(np.float64).tolist()))
    D, _ = through_k(raw, 1.0)
    for M in (D, want):
        np.fill_diagonal(M, np.inf)
    assert (D.argmin(axis=1) != want.argmin(axis=1)).mean() > 0.5


# --- N3: a bandwidth far too small, or far too large ----------------------------------------------------------------


@engines
@dtypes
@pytest.mark.parametrize("b", [1e-6, 1e-30, 1e-37])
def test_tiny_bandwidth(engine, dtype, b):
    """K is the identity: S is the plain sum of squares, every row is reported as isolated, slopes are exact."""
    X, mu = gen.noise(12, 3).astype(dtype), np.full(3, 0.5, dtype)
    eps = np.array([[0.0, 0.3, -0.4]], dtype)
    value, dmu = evaluate(engine, Objective(lam=0.0, bandwidth=b), mu, eps, X)
    finite(value, dmu)
    z = mu + dtype(0.5) * eps[0]
    squares = np.square(X.astype(np.float64)).sum(axis=0)
    assert value.isolated == 1
    assert value.score[0] == pytest.approx((squares * z**2).sum(), rel=1e-5)
    gen.assert_close(dmu, -2 * squares * z / 12, 1e-5)


@engines
def test_isolated_rows_are_counted(engine):
    """Three of nine rows far from everything."""
    X = np.zeros((9, 2))
    X[6:] = [[1e3, 0.0], [0.0, 1e3], [-1e3, 0.0]]
    value, dmu = evaluate(engine, Objective(bandwidth=1.0), np.full(2, 0.5), np.ones((1, 2)), X)
    finite(value, dmu)
    assert value.isolated == pytest.approx(3 / 9)


@engines
@dtypes
def test_isolated_rows_without_self_loops(engine, dtype):
    """Rows whose neighbours weigh together at most what the row weighs itself, 1e-12.

    Pairs at squared distances with exp(-D) = 3e-12 (joined), 0.8e-12 (lone), and a row far from all.
    """
    apart = np.sqrt(-np.log([3e-12, 0.8e-12]))
    X = np.array([[0, 0], [apart[0], 0], [0, 100], [apart[1], 100], [100, 0]], dtype)
    objective = Objective(bandwidth=1.0, self_loops=False)
    value, dmu = evaluate(engine, objective, np.full(2, 2.0, dtype), np.zeros((1, 2), dtype), X)
    finite(value, dmu)
    assert value.isolated == pytest.approx(3 / 5)


@engines
@dtypes
def test_huge_bandwidth(engine, dtype):
    """K = 1: P averages, and centred data score 0."""
    X, mu, eps = gen.noise(12, 3).astype(dtype), np.full(3, 0.5, dtype), np.zeros((1, 3), dtype)
    value, dmu = evaluate(engine, Objective(bandwidth=1e20), mu, eps, X)
    finite(value, dmu)
    assert abs(value.score[0]) < 1e-5
    assert value.isolated == 0


@engines
@dtypes
def test_rows_that_underflow(engine, dtype):
    """One row so far away that its kernel row underflows to (0, .., 1, .., 0)."""
    X = gen.noise(10, 2)
    X[0] = 300.0
    X = X.astype(dtype)
    value, dmu = evaluate(
        engine, Objective(bandwidth="median"), np.full(2, 0.5, dtype), np.array([[0.3, -0.2]], dtype), X
    )
    finite(value, dmu)
    assert value.isolated == pytest.approx(0.1)


# --- N4, N6: duplicates ---------------------------------------------------------------------------------------------


@engines
@rules
@dtypes
def test_many_duplicates(engine, rule, dtype):
    """40 equal rows and 10 others: the median distance is 0 and the smallest positive one takes its place."""
    X = gen.duplicates_and_others().astype(dtype)
    X = np.asfortranarray(X - X.mean(axis=0))
    mu, eps = np.full(4, 0.5, dtype), np.zeros((1, 4), dtype)
    value, dmu = evaluate(engine, Objective(bandwidth=rule, bandwidth_factor=1.0), mu, eps, X)
    finite(value, dmu)
    D = reference.squared_distances((X.astype(np.float64) * 0.5).tolist())
    kth = reference.kth_distances(D, 2)
    replaced = min(v for v in kth if v > 1e-6)
    want = {"max": max(kth), "q90": reference.upper_decile(kth), "median": replaced}[rule]
    assert value.degenerate[0] == (rule == "median")
    assert value.bandwidth[0] == pytest.approx(want, rel=1e-5 if dtype is np.float32 else 1e-12)


@dtypes
def test_the_nearest_neighbour_of_a_row_is_its_twin(dtype):
    X = gen.twins(n=10)
    X = (X - X.mean(axis=0)).astype(dtype)
    D, _ = through_k(X, 1.0)
    nearest = bandwidth.neighbour_distances(bk, D, 1)
    # the smallest distance to another row, self excluded by its index
    assert nearest.max() <= 1e-5 if dtype is np.float32 else (nearest <= 1e-13).all()
    _, degenerate, saved = bandwidth.forward(bk, D, "max", 1, 1.0)
    assert (saved.rows != saved.columns).all()
    assert degenerate or dtype is np.float32
    for i in range(10):
        assert reference.kth_neighbour(D.tolist(), i, 1, False) == i ^ 1
    # the second neighbour is the first that is not the twin
    second = bandwidth.neighbour_distances(bk, D, 2)
    D[np.arange(10), np.arange(10) ^ 1] = np.inf
    np.fill_diagonal(D, np.inf)
    np.testing.assert_array_equal(second, D.min(axis=1))


# --- N5: what the bandwidth means -----------------------------------------------------------------------------------


@engines
@rules
def test_doubling_the_factor_doubles_the_bandwidth_and_raises_the_kernel(engine, rule):
    X, mu, eps = gen.noise(10, 3), np.full(3, 0.5), np.zeros((1, 3))
    once, _ = evaluate(engine, Objective(bandwidth=rule, bandwidth_factor=1.0), mu, eps, X)
    twice, _ = evaluate(engine, Objective(bandwidth=rule, bandwidth_factor=2.0), mu, eps, X)
    fixed, _ = evaluate(engine, Objective(bandwidth=float(twice.bandwidth[0])), mu, eps, X)
    assert twice.bandwidth[0] == 2 * once.bandwidth[0]
    assert fixed.score[0] == pytest.approx(twice.score[0], rel=1e-13)
    Xt = np.asfortranarray(X * 0.5)
    _, K = through_k(Xt, once.bandwidth[0])
    _, K2 = through_k(Xt, twice.bandwidth[0])
    off = ~np.eye(10, dtype=bool)
    assert (K2[off] > K[off]).all()


# --- N7, n = 2, d = 1 -----------------------------------------------------------------------------------------------


@with_noise
@rules
@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("d", [1, 2])
def test_smallest_problems(engine, rule, n, d, per_sample):
    X, mu = gen.noise(n, d, seed=n), np.full(d, 0.4)
    eps = gen.draws(3, d, n if per_sample else None, count=2) * 0.3
    for k, t, lam in itertools.product(range(1, n), (1, 2, 3), (None, 0.1)):
        o = Objective(lam=lam, bandwidth=rule, n_neighbors=k, power=t, bandwidth_factor=1.5)
        value, dmu = evaluate(engine, o, mu, eps, X)
        finite(value, dmu)
        want, want_dmu = reference.mean_value_and_grad(
            X, mu, eps, lam=lam, delta=o.delta, rule=rule, k=k, C=1.5, t=t
        )  # fmt: skip
        assert value.loss == pytest.approx(want, rel=1e-12, abs=1e-13)
        # nearly flat where all rows are each other's neighbours: bounded by the terms that cancel
        assert abs(dmu - want_dmu).max() <= 1e-11 * max(1e-2, abs(want_dmu).max())
    for k in (0, n, n + 1):
        with pytest.raises(ValueError, match=f"1 to {n - 1} is valid"):
            evaluate(engine, Objective(bandwidth=rule, n_neighbors=k), mu, eps, X)


def test_two_rows_have_a_closed_form():
    """n = 2, D / b = 1 / C whatever the gates: P^2 is constant and the slope is that of the sum of squares alone."""
    X, mu, eps = np.array([[1.0], [-1.0]]), np.array([0.5]), np.array([[0.4]])
    a = np.exp(-1.0 / 5.0)
    eigenvalue = ((1 - a) / (1 + a)) ** 2
    for engine in ENGINES:
        value, dmu = evaluate(engine, Objective(lam=0.0, n_neighbors=1), mu, eps, X)
        assert value.score[0] == pytest.approx(2 * 0.7**2 * eigenvalue, rel=1e-13)
        assert dmu[0] == pytest.approx(-2 * 0.7 * eigenvalue, rel=1e-12)


# --- N10: all gates closed ------------------------------------------------------------------------------------------


@with_noise
@dtypes
@pytest.mark.parametrize("rule", ["median", "q90", "max", 0.5])
@pytest.mark.parametrize("lam", [None, 0.0, 1e6])
def test_all_gates_closed(engine, dtype, per_sample, rule, lam):
    """z = 0: K = 1, P = 1 / n, S = 0; the only slope left is the regulariser's."""
    X, mu = gen.noise(8, 3).astype(dtype), np.full(3, -3.0, dtype)
    eps = np.zeros((2, 8, 3) if per_sample else (2, 3), dtype)
    for degenerate_rule in ("data", "one"):
        objective = Objective(lam=lam, bandwidth=rule, degenerate_rule=degenerate_rule)
        value, dmu = evaluate(engine, objective, mu, eps, X)
        finite(value, dmu)
        assert (value.score == 0).all()
        assert value.isolated == 0
        if rule != 0.5:
            assert (value.degenerate == (degenerate_rule == "one")).all()
            assert (value.bandwidth == 5.0).all()
        slope = np.exp(-18.0) * 2 / np.sqrt(2 * np.pi)
        gen.assert_close(dmu, np.full(3, (lam or 0.0) * slope), 1e-5 if dtype is np.float32 else 1e-13)


@engines
def test_the_last_open_gate(engine):
    """One gate open by a hair: distances of 1e-20 are not taken for 0, since the floor is relative to them."""
    X, mu = gen.noise(8, 3), np.array([-3.0, 1e-10, -3.0])
    for rule in ("median", "max"):
        value, dmu = evaluate(engine, Objective(lam=0.0, bandwidth=rule), mu, np.zeros((1, 3)), X)
        finite(value, dmu)
        assert not value.degenerate[0]
        c = reference.chain(X, mu, np.zeros(3), lam=0.0, rule=rule)
        assert value.bandwidth[0] == pytest.approx(np.real(c.b), rel=1e-12)
        assert value.score[0] == pytest.approx(np.real(c.S), rel=1e-12)
        assert dmu[1] != 0
        assert dmu[0] == dmu[2] == 0


@engines
@dtypes
@pytest.mark.parametrize("rule", ["median", "max"])
def test_constant_columns_only(engine, dtype, rule):
    X, mu, eps = np.zeros((6, 2), dtype, order="F"), np.full(2, 0.5, dtype), np.zeros((2, 2), dtype)
    value, dmu = evaluate(engine, Objective(bandwidth=rule), mu, eps, X)
    finite(value, dmu)
    assert value.loss == 0
    assert (dmu == 0).all()


# --- P's rows, precision --------------------------------------------------------------------------------------------


@dtypes
@pytest.mark.parametrize("b", [1e-3, 1.0, 1e3])
def test_kernel_and_walk_matrix_keep_their_promises(dtype, b):
    """K in [0, 1] with ones on the diagonal; rows of P = K / deg sum to 1 within a few units in the last place."""
    for n, seed in ((5, 0), (60, 1), (300, 2)):
        _, K = through_k(gen.noise(n, 6, seed).astype(dtype), b)
        assert (np.diag(K) == 1).all()
        assert ((K >= 0) & (K <= 1)).all()
        A, deg, _ = normalise.forward(bk, K)
        for M in (K / deg[:, None], A * np.sqrt(deg)[None, :] / np.sqrt(deg)[:, None]):
            assert abs(M.astype(np.float64).sum(axis=1) - 1).max() <= 16 * np.finfo(dtype).eps


def plain_value_and_grad(X, mu, eps, C, k):
    """The published program's formulas as they stand, in the dtype of X: P not A, every product of full width.

    D = r - 2 Xt Xt' + r', K, P, P P, mean(P^2 Xt * Xt), and reverse mode through each, with the bandwidth at
    the farthest k-th neighbour. Regularised loss with lam = 0: only the score is compared.
    """
    n = len(X)
    u = mu + X.dtype.type(0.5) * eps
    Xt = X * np.clip(u, 0, 1)
    r = (Xt * Xt).sum(axis=1)
    D = r[:, None] - 2 * (Xt @ Xt.T) + r[None, :]
    np.fill_diagonal(D, 0)
    order = np.argsort(D + np.diag(np.full(n, np.inf, X.dtype)), axis=1)
    i = int(np.argmax(D[np.arange(n), order[:, k - 1]]))
    j = order[i, k - 1]
    b = X.dtype.type(C) * D[i, j]
    K = np.exp(-D / b)
    deg = K.sum(axis=1)
    P = K / deg[:, None]
    Q = P @ P
    Y = Q @ Xt
    S = (Y * Xt).sum()
    dQ = Xt @ Xt.T
    dXt = Y + Q.T @ Xt
    dP = dQ @ P.T + P.T @ dQ
    dK = (dP - (dP * P).sum(axis=1, keepdims=True)) / deg[:, None]
    dD = -dK * K / b
    dD[i, j] += C * -(dD * D).sum() / b
    B = dD + dD.T
    dXt = dXt + 2 * (B.sum(axis=1)[:, None] * Xt - B @ Xt)
    return -S / n, -(X * dXt).sum(axis=0) * ((u > 0) & (u < 1)) / n


def test_the_plain_formulas_are_right():
    X, mu, eps = gen.noise(15, 4), np.full(4, 0.5), gen.draws(0, 4)
    value, dmu = plain_value_and_grad(X, mu, eps[0], 5.0, 2)
    want, want_dmu = reference.value_and_grad(X, mu, eps[0], lam=0.0)
    assert value == pytest.approx(want, rel=1e-12)
    gen.assert_close(dmu, want_dmu, 1e-11)


@engines
@pytest.mark.parametrize(("n", "d"), [(30, 6), (100, 40)])
def test_float32_is_as_good_as_the_plain_formulas(engine, n, d):
    """Root mean square error against float64 over 90 problems: value at most 2, gradient at most 3 times theirs.

    Without the largest twentieth of the errors: in a few problems the row that the bandwidth is read from turns on a
    rounding, and with it on the processor.
    """
    ours, plain = [], []
    objective = Objective(lam=0.0)
    for seed in range(90):
        X, mu, eps = gen.noise(n, d, seed), np.full(d, 0.5), gen.draws(seed, d)
        exact, exact_dmu = evaluate("reference", objective, mu, eps, X)
        single = [a.astype(np.float32) for a in (mu, eps, X)]
        value, dmu = evaluate(engine, objective, *single)
        ours.append([abs(value.loss / exact.loss - 1), gen.relative(dmu, exact_dmu)])
        value, dmu = plain_value_and_grad(single[2], single[0], single[1][0], 5.0, 2)
        assert dmu.dtype == np.float32
        plain.append([abs(value / exact.loss - 1), gen.relative(dmu, exact_dmu)])
    ours, plain = (np.sqrt(np.mean(np.sort(np.square(e), axis=0)[:-5], axis=0)) for e in (ours, plain))
    assert ours[0] <= 2 * plain[0], (ours, plain)
    assert ours[1] <= 3 * plain[1], (ours, plain)


@engines
@rules
@pytest.mark.parametrize(
    ("dtype", "exponent"), [(np.float32, 40), (np.float32, -25), (np.float64, 400), (np.float64, -240)]
)
def test_units_of_the_data(engine, rule, dtype, exponent):
    """Powers of two are exact: data in other units, as long as they pass `prepare`, give the same bits, scaled."""
    X, mu, eps = gen.noise(9, 3).astype(dtype), np.full(3, 0.5, dtype), gen.draws(0, 3, count=2).astype(dtype)
    unit = dtype(2.0) ** exponent
    objective = Objective(lam=0.0, bandwidth=rule)
    value, dmu = evaluate(engine, objective, mu, eps, X)
    other, other_dmu = evaluate(engine, objective, mu, eps, X * unit)
    finite(other, other_dmu)
    np.testing.assert_array_equal(other.score, value.score * float(unit) ** 2)
    np.testing.assert_array_equal(other_dmu, dmu * unit * unit)
