"""The composed loss and gradient, in every engine, against the slow reference."""

from __future__ import annotations

import itertools

import generators as gen
import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st

from dufs_core.backend import get_backend
from dufs_core.objective.chain import Objective
from dufs_core.objective.engines.choose import ENGINES, get_engine

bk = get_backend("numpy")
LOSSES = [None, 0.3]
NOISES = [*((engine, False) for engine in ENGINES), ("reference", True)]  # one gate per sample in one engine alone
with_noise = pytest.mark.parametrize(("engine", "per_sample"), NOISES)


def evaluate(engine, objective, mu, eps, X, threads=1):
    call = get_engine(engine, bk, threads)
    return call(bk, objective, mu, eps, X)


def settings_of(o: Objective):
    """The reference's names for what an Objective holds."""
    fixed = not isinstance(o.bandwidth, str)
    return dict(
        lam=o.lam,
        delta=o.delta,
        sigma=o.gate_sigma,
        rule="fixed" if fixed else o.bandwidth,
        fixed=o.bandwidth if fixed else None,
        k=o.n_neighbors,
        C=o.bandwidth_factor,
        t=o.power,
        degenerate_rule={"data": "ours", "one": "authors"}[o.degenerate_rule],
        own=1.0 if o.self_loops else 1e-12,
        saturation=o.saturation,
    )


def compare(engine, objective, mu, eps, X, tolerance=1e-12):
    """Value, gradient, score and bandwidth of all draws; the gradient in units of its largest entry."""
    value, dmu = evaluate(engine, objective, mu, eps, X)
    want, want_dmu = reference.mean_value_and_grad(X, mu, eps, **settings_of(objective))
    assert value.loss == pytest.approx(want, rel=tolerance, abs=1e-14)
    gen.assert_close(dmu, want_dmu, 50 * tolerance, "gradient")
    for r, draw in enumerate(eps):
        c = reference.chain(X, mu, draw, **settings_of(objective))
        assert value.bandwidth[r] == pytest.approx(np.real(c.b), rel=tolerance)
        assert value.score[r] == pytest.approx(np.real(c.S), rel=tolerance, abs=1e-14)
    assert dmu.dtype == np.float64
    return value, dmu


def point(seed, n, d, per_sample, count=1, spread=0.3):
    """Data, a start near 1/2 and draws that leave some gates open, some closed and some between."""
    X = gen.noise(n, d, seed)
    mu = 0.5 + spread * np.random.default_rng(seed + 1).normal(size=d)
    return X, mu, gen.draws(seed + 2, d, n if per_sample else None, count)


@with_noise
@pytest.mark.parametrize("lam", LOSSES)
@pytest.mark.parametrize(
    ("t", "bandwidth", "k", "C"),
    [
        (1, "max", 1, 2.0),
        (2, "median", 2, 1.0),
        (2, "max", 2, 5.0),
        (2, 1.7, 2, 5.0),
        (3, "q90", 3, 5.0),
        (5, "max", 1, 0.5),
    ],
)  # fmt: skip
def test_value_and_gradient(engine, lam, per_sample, t, bandwidth, k, C):
    for n, d, saturation in ((9, 4, None), (12, 3, None), (9, 4, 0.3), (5, 7, 0.05)):
        X, mu, eps = point(n, n, d, per_sample, count=2)
        objective = Objective(
            lam=lam, power=t, bandwidth=bandwidth, n_neighbors=k, bandwidth_factor=C, delta=1e-3, saturation=saturation
        )
        compare(engine, objective, mu, eps, X)


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=25)
@given(data=st.data())
def test_any_setting(engine, data):
    draw = data.draw
    n, d = draw(st.integers(2, 9)), draw(st.integers(1, 5))
    seed, per_sample, count = draw(st.integers(0, 10**6)), draw(st.booleans()), draw(st.integers(1, 3))
    X, mu, eps = point(seed, n, d, per_sample and engine == "reference", count)
    objective = Objective(
        lam=draw(st.sampled_from([None, 0.0, 0.05, 2.0])),
        power=draw(st.integers(1, 4)),
        bandwidth=draw(st.sampled_from(["median", "q90", "max", 0.5, 20.0])),
        n_neighbors=draw(st.integers(1, n - 1)),
        bandwidth_factor=draw(st.sampled_from([0.5, 1.0, 5.0])),
        self_loops=draw(st.booleans()),
        gate_sigma=draw(st.sampled_from([0.2, 0.5, 1.0])),
        delta=draw(st.sampled_from([1e-6, 0.1])),
        degenerate_rule=draw(st.sampled_from(["data", "one"])),
        saturation=draw(st.sampled_from([None, 0.01, 0.3, 10.0])),
    )
    _, dmu = evaluate(engine, objective, mu, eps, X)
    value, _ = evaluate(engine, objective, mu, eps, X)
    want, want_dmu = reference.mean_value_and_grad(X, mu, eps, **settings_of(objective))
    assert value.loss == pytest.approx(want, rel=1e-11, abs=1e-12)
    # terms of either sign may cancel: errors are measured against the score's own slope, of the order of 1
    scale = max(abs(want_dmu).max(), 1e-3 * abs(want))
    assert abs(dmu - want_dmu).max() <= 1e-9 * scale + 1e-12


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("bandwidth", ["median", "q90", "max"])
def test_the_gradient_flows_through_the_bandwidth(engine, bandwidth):
    """With the bandwidth that the rule finds given as a number, the loss is the same, the gradient another."""
    X, mu, eps = point(5, 10, 4, False)
    value, dmu = compare(engine, Objective(bandwidth=bandwidth), mu, eps, X)
    held, held_dmu = compare(engine, Objective(bandwidth=float(value.bandwidth[0])), mu, eps, X)
    assert held.loss == pytest.approx(value.loss, rel=1e-14)
    assert gen.relative(held_dmu, dmu) > 0.1


@with_noise
@pytest.mark.parametrize("lam", LOSSES)
def test_several_draws_are_the_mean_of_single_ones(engine, lam, per_sample):
    X, mu, eps = point(6, 10, 4, per_sample, count=6)
    objective = Objective(lam=lam)
    value, dmu = evaluate(engine, objective, mu, eps, X)
    single = [evaluate(engine, objective, mu, eps[r : r + 1], X) for r in range(6)]
    assert value.loss == pytest.approx(np.mean([v.loss for v, _ in single]), rel=1e-13)
    gen.assert_close(dmu, np.mean([g for _, g in single], axis=0), 1e-12)
    gen.assert_close(value.score, np.concatenate([v.score for v, _ in single]), 1e-13)


@pytest.mark.parametrize("engine", [e for e in ENGINES if e != "reference"])
@pytest.mark.parametrize("n", [2, 17, 64, 130, 200])  # below, at and across the sizes at which work is split
@pytest.mark.parametrize("d", [7, 80])
def test_engines_agree_on_larger_problems(engine, n, d):
    X, mu, eps = point(n, n, d, False, count=4)
    for t, bandwidth, saturation in (
        (2, "max", None), (1, "q90", None), (3, "median", None), (2, 2.0, None), (2, "max", 0.3), (3, 2.0, 0.1),
    ):  # fmt: skip
        objective = Objective(power=t, bandwidth=bandwidth, n_neighbors=1, saturation=saturation)
        value, dmu = evaluate("reference", objective, mu, eps, X)
        for threads in (1, 3):
            other, other_dmu = evaluate(engine, objective, mu, eps, X, threads)
            assert other.loss == pytest.approx(value.loss, rel=1e-13)
            gen.assert_close(other_dmu, dmu, 1e-11)
            gen.assert_close(other.bandwidth, value.bandwidth, 1e-13)


@with_noise
def test_a_large_limit_is_none(engine, per_sample):
    X, mu, eps = point(7, 20, 5, per_sample, count=3)
    value, dmu = evaluate(engine, Objective(), mu, eps, X)
    for saturation in (1e14, 1e300):
        limited, limited_dmu = evaluate(engine, Objective(saturation=saturation), mu, eps, X)
        assert limited.loss == pytest.approx(value.loss, rel=1e-11)
        gen.assert_close(limited_dmu, dmu, 1e-11)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_small_limit_counts_directions(engine):
    """S / nu tends to the trace of P^t on the span of Xt: copies, on the same graph, add nothing."""
    X, mu = gen.noise(12, 2, 3), np.full(2, 9.0)
    objective = Objective(bandwidth=30.0, saturation=1e-9)
    (value, _), (copied, _) = (
        evaluate(engine, objective, np.tile(mu, c), np.zeros((1, 2 * c)), np.tile(X, c) / c**0.5) for c in (1, 5)
    )
    assert copied.score[0] == pytest.approx(value.score[0], rel=1e-6)
    assert value.score[0] <= 2 * 12 * 1e-9


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_limit_below_rounding_gives_numbers(engine, dtype):
    """Equal columns of +-1, whose system without the lift of its diagonal is singular in float32."""
    X = np.asfortranarray(np.tile([[-1.0], [1.0]], (5, 3)).astype(dtype))
    mu, eps = np.full(3, 0.5, dtype), np.zeros((1, 3), dtype)
    value, dmu = evaluate(engine, Objective(bandwidth=2.0, saturation=1e-9), mu, eps, X)
    assert 0 < value.score[0] <= 1.1e-8
    assert np.isfinite(dmu).all()


@pytest.mark.parametrize("engine", ENGINES)
def test_large_batch_stays_within_rounding_of_the_matrix_form(engine):
    """n = 120, d = 30, three draws, against S and dS/dXt written with matrices through P (not through A)."""
    X, mu, eps = point(8, 120, 30, False, count=3)
    objective = Objective(lam=None, delta=0.0, bandwidth=3.0)
    value, dmu = evaluate(engine, objective, mu, eps, X)
    S, slopes = [], []
    for e in eps:
        u = mu + 0.5 * e
        Xt = X * np.clip(u, 0, 1)
        D = np.square(Xt[:, None, :] - Xt[None, :, :]).sum(axis=2)
        K = np.exp(-D / 3.0)
        deg = K.sum(axis=1)
        P = K / deg[:, None]
        S.append(np.trace(Xt.T @ P @ P @ Xt))
        dP = Xt @ (P @ Xt).T + (P.T @ Xt) @ Xt.T
        dK = (dP - (dP * P).sum(axis=1, keepdims=True)) / deg[:, None]
        B = -dK * K / 3.0
        B = B + B.T
        dXt = (P @ P + (P @ P).T) @ Xt + 2 * (B.sum(axis=1)[:, None] * Xt - B @ Xt)
        slopes.append((X * dXt).sum(axis=0) * ((u > 0) & (u < 1)))
    p = np.real(reference.probabilities(mu.tolist(), 0.5))
    dp = np.exp(-2.0 * mu**2) / (0.5 * np.sqrt(2 * np.pi))
    want = -np.mean(S) / (120 * p.sum())
    assert value.loss == pytest.approx(want, rel=1e-13)
    gen.assert_close(dmu, -np.mean(slopes, axis=0) / (120 * p.sum()) - want / p.sum() * dp, 1e-12)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dtype_and_inputs(engine, dtype):
    """The gradient has the inputs' dtype, the loss is a float, and nothing that came in is written to."""
    X, mu, eps = (a.astype(dtype) for a in point(9, 11, 4, False, count=3))
    before = [a.tobytes() for a in (X, mu, eps)]
    value, dmu = evaluate(engine, Objective(lam=0.1), mu, eps, X)
    assert [a.tobytes() for a in (X, mu, eps)] == before
    assert dmu.dtype == dtype
    assert dmu.shape == mu.shape
    assert type(value.loss) is float
    assert value.score.shape == value.bandwidth.shape == value.degenerate.shape == (3,)
    exact, exact_dmu = evaluate(engine, Objective(lam=0.1), *(a.astype(np.float64) for a in (mu, eps, X)))
    assert value.loss == pytest.approx(exact.loss, rel=1e-4)
    gen.assert_close(dmu, exact_dmu, 1e-3)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("order", ["C", "F", "strided"])
def test_memory_order_of_the_data(engine, order):
    X, mu, eps = point(10, 12, 5, engine == "reference")
    laid_out = {"C": np.ascontiguousarray(X), "F": np.asfortranarray(X), "strided": np.repeat(X, 2, axis=0)[::2]}[order]
    compare(engine, Objective(), mu, eps, laid_out)


@pytest.mark.parametrize("engine", ENGINES)
def test_known_answers(engine):
    """Two far clusters: P averages within a half, so P Xt = Xt and S = sum of squares. Equal rows: P = 1 / n."""
    mu, eps = np.full(3, 0.5), np.array([[0.0, 0.2, 3.0]])
    z = np.array([0.5, 0.6, 1.0])
    X = gen.two_far_clusters(n=12, d=3, distance=10.0).X
    value, _ = evaluate(engine, Objective(bandwidth=0.1), mu, eps, X)
    assert value.score[0] == pytest.approx(np.square(X * z).sum(), rel=1e-14)
    # with a bandwidth far above every distance all rows weigh alike, and the centred columns score 0
    value, _ = evaluate(engine, Objective(bandwidth=1e12), mu, eps, X)
    assert abs(value.score[0]) < 1e-7
    X = gen.identical_rows(n=6, d=3)
    value, dmu = evaluate(engine, Objective(lam=0.0), mu, eps, X)
    assert value.score[0] == pytest.approx(np.square(X * z).sum(), rel=1e-14)
    assert value.bandwidth[0] == 5.0
    assert not value.degenerate[0]  # every distance is 0: the bandwidth is of no consequence
    gen.assert_close(dmu, -2 * X[0] ** 2 * z * [0.5 * 2, 1, 0] / 1, 1e-13)


@pytest.mark.parametrize("engine", ENGINES)
def test_gate_kinks_in_the_chain(engine):
    """A gate exactly at 0 or 1 has no score slope; the regulariser's slope stays."""
    X, _, _ = point(11, 9, 3, False)
    mu = np.full(3, 0.5)
    eps = np.array([[-1.0, 1.0, 0.1]])  # u = 0, 1, 0.55
    _, dmu = compare(engine, Objective(lam=0.0), mu, eps, X)
    assert dmu[0] == dmu[1] == 0
    assert dmu[2] != 0
    _, dmu = compare(engine, Objective(lam=1.0), mu, eps, X)
    assert dmu[0] == dmu[1] == pytest.approx(np.exp(-0.5) * 2 / np.sqrt(2 * np.pi), rel=1e-14)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("lam", LOSSES)
def test_zero_rules_in_the_chain(engine, lam):
    """Rows that coincide: bandwidth 0 by the rule, replaced, and the gradient belongs to the replaced loss."""
    X = gen.duplicates_and_others(7, 3, 4, seed=2)
    mu, eps = np.full(4, 0.5), gen.draws(3, 4, count=1)
    for bandwidth, degenerate_rule in itertools.product(["median", "q90", "max"], ["data", "one"]):
        objective = Objective(lam=lam, bandwidth=bandwidth, degenerate_rule=degenerate_rule, bandwidth_factor=1.5)
        value, _ = compare(engine, objective, mu, eps, X, tolerance=1e-11)
        assert value.degenerate[0] == (bandwidth == "median")


@pytest.mark.parametrize("engine", ENGINES)
def test_neighbours_out_of_range(engine):
    X, mu, eps = point(12, 5, 3, False)
    for k in (0, 5, 6):
        with pytest.raises(ValueError, match=f"n_neighbors={k} for 5 rows, where 1 to 4 is valid"):
            evaluate(engine, Objective(n_neighbors=k), mu, eps, X)
    evaluate(engine, Objective(n_neighbors=4), mu, eps, X)


@pytest.mark.parametrize("engine", ENGINES)
def test_power_and_rule_are_checked(engine):
    X, mu, eps = point(13, 5, 3, False)
    with pytest.raises(ValueError, match="power must be a whole number of at least 1; got 0"):
        evaluate(engine, Objective(power=0), mu, eps, X)
    with pytest.raises(ValueError, match=r"median.*max.*'mean'"):
        evaluate(engine, Objective(bandwidth="mean"), mu, eps, X)
