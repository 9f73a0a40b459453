"""The loop around the objective: batches, draws, start, stopping, history, reproducibility."""

from __future__ import annotations

import warnings

import generators as gen
import numpy as np
import pytest
import reference
from generators import gated
from hypothesis import given, settings
from hypothesis import strategies as st

from dufs_core import GatedLaplacian
from dufs_core.backend import get_backend, random
from dufs_core.errors import DufsWarning
from dufs_core.objective.chain import Objective, Value
from dufs_core.objective.engines.choose import ENGINES, get_engine
from dufs_core.objective.optimizers import normalized, sgd
from dufs_core.objective.protocol import Engine, RunSpec, Schedule, undecided
from dufs_core.training.loop import TrainingRun, batches, gate_noise, initial_mu, train

bk = get_backend("numpy")
some = settings(max_examples=50)


def schedule(**changes):
    return Schedule(**({"n_draws": 2, "max_iter": 5, "tol": 0.0} | changes))


class Spy(Engine):
    """An engine that records what it is given and returns a gradient of one's choice."""

    def __init__(self, gradient=lambda mu: np.zeros_like(mu), isolated=(), degenerate=()):
        self.gradient, self.calls = gradient, []
        self.isolated, self.degenerate = list(isolated), list(degenerate)

    def __call__(self, bk, objective, mu, eps, X):
        self.calls.append((mu.copy(), eps.copy(), X.copy()))
        step, R = len(self.calls), len(eps)
        isolated = self.isolated.pop(0) if self.isolated else 0.0
        degenerate = np.full(R, self.degenerate.pop(0) if self.degenerate else False)
        S = np.full(R, 10.0 * step)
        return Value(-float(step), S, np.full(R, 0.5 * step), degenerate, isolated), self.gradient(mu)


def run(spy, n=8, d=3, seed=1, optimizer=None, callbacks=(), objective=None, **changes):
    spec = RunSpec(objective or Objective(), optimizer or sgd(0.1), schedule(**changes), seed, np.arange(d))
    return train(bk, gen.noise(n, d), spy, [TrainingRun(spec, callbacks)])[0]


# --- batches --------------------------------------------------------------------------------------------------------


@some
@given(st.integers(2, 300), st.integers(2, 320), st.integers(0, 1000), st.integers(0, 5))
def test_an_epoch_visits_every_row_once_in_near_equal_batches(n, size, seed, epoch):
    parts = batches(bk, seed, epoch, n, schedule(batch_size=size))
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(n))
    lengths = [len(p) for p in parts]
    assert len(parts) == -(-n // size)
    assert max(lengths) <= size
    assert max(lengths) - min(lengths) <= 1


def test_no_batch_of_one_row():
    assert sorted(len(p) for p in batches(bk, 0, 0, 1001, schedule(batch_size=1000))) == [500, 501]


@pytest.mark.parametrize("size", [None, 12, 13, 1000])
@pytest.mark.parametrize("kind", ["near_equal", "wrap"])
def test_a_full_batch_keeps_the_rows_in_place(size, kind):
    (rows,) = batches(bk, 0, 3, 12, schedule(batch_size=size, batches=kind))
    np.testing.assert_array_equal(rows, np.arange(12))


def test_epochs_and_seeds_shuffle_differently():
    orders = {
        tuple(np.concatenate(batches(bk, seed, epoch, 40, schedule(batch_size=10))))
        for seed in range(5)
        for epoch in range(5)
    }
    assert len(orders) == 25


@some
@given(st.integers(3, 200), st.data(), st.integers(0, 1000))
def test_wrapping_batches_are_full_and_miss_no_row(n, data, seed):
    size = data.draw(st.integers(2, n - 1))
    parts = batches(bk, seed, 0, n, schedule(batch_size=size, batches="wrap"))
    assert [len(p) for p in parts] == [size] * -(-n // size)
    assert set(np.concatenate(parts)) == set(range(n))
    np.testing.assert_array_equal(
        np.sort(np.concatenate(parts)[:n]), np.arange(n)
    )  # each row once before any comes again  # fmt: skip


@pytest.mark.parametrize("kind", ["near_equal", "wrap"])
def test_the_engine_is_given_the_rows_of_its_batch(kind):
    spy, X = Spy(), gen.noise(11, 3)
    run(spy, n=11, batch_size=4, batches=kind, max_iter=7)
    rows = [r for epoch in range(3) for r in batches(bk, 1, epoch, 11, schedule(batch_size=4, batches=kind))]
    assert len(spy.calls) == 7
    for (_, _, batch), r in zip(spy.calls, rows, strict=False):
        np.testing.assert_array_equal(batch, X[r])


@pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")
@pytest.mark.parametrize("n", [5, 6, 7, 9])
def test_the_smallest_batch_size_trains_or_is_refused_by_its_name(n):
    """5 rows in near-equal batches of at most 4 are 2 and 3: too few for a second neighbour, which must not surface
    as a complaint about n_neighbors in the middle of a fit."""
    model = GatedLaplacian(batch_size=4, max_iter=4, max_runs=1, n_features_to_select=1, random_state=0).set_params(
        graph__n_neighbors=2
    )
    try:
        model.fit(gen.noise(n, 4))
    except ValueError as error:
        assert n == 5
        assert "batch_size" in str(error)  # noqa: PT017
    else:
        assert model.n_iter_ == 4


@pytest.mark.parametrize("size", [1, 3, 0, -1, 2.5, True])
def test_batches_too_small_are_refused(size):
    with pytest.raises(ValueError, match=r"batch_size must be a whole number of at least n_neighbors \+ 2 = 4"):
        GatedLaplacian(batch_size=size).set_params(graph__n_neighbors=2).fit(gen.noise(12, 3))


@pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")
def test_a_batch_larger_than_the_data_is_said_once_and_is_the_full_batch():
    X = gen.noise(12, 4)
    settings_ = dict(max_iter=5, max_runs=2, n_features_to_select=2, random_state=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        larger = gated(batch_size=13, **settings_).fit(X)
    said = [str(w.message) for w in caught if w.category is DufsWarning]
    assert len(said) == 1
    assert "batch_size=13 exceeds the 12 rows" in said[0]
    np.testing.assert_array_equal(larger.mu_, gated(**settings_).fit(X).mu_)
    np.testing.assert_array_equal(larger.mu_, gated(batch_size=12, **settings_).fit(X).mu_)


# --- draws ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [None, np.array([4, 0, 9])])
@pytest.mark.parametrize("count", [2, 4, 10, 16])
def test_draws_are_antithetic(rows, count):
    eps = gate_noise(bk, 3, 7, count, rows, np.arange(5), np.float64)
    assert eps.shape == ((count, 5) if rows is None else (count, 3, 5))
    np.testing.assert_array_equal(eps[count // 2 :], -eps[: count // 2])
    half = eps[: count // 2].reshape(-1)
    assert np.unique(abs(half)).size == half.size


def test_a_single_draw_has_no_partner():
    eps = gate_noise(bk, 3, 7, 1, None, np.arange(5), np.float64)
    np.testing.assert_array_equal(eps, gate_noise(bk, 3, 7, 2, None, np.arange(5), np.float64)[:1])


def test_every_step_has_draws_of_its_own():
    spy = Spy()
    run(spy, n_draws=4, max_iter=6)
    for step, (_, eps, _) in enumerate(spy.calls, start=1):
        np.testing.assert_array_equal(eps, gate_noise(bk, 1, step, 4, None, np.arange(3), np.float64))
    assert np.unique([abs(eps) for _, eps, _ in spy.calls]).size == 6 * 2 * 3


def test_noise_per_sample_belongs_to_the_row_not_to_its_place_in_the_batch():
    spy = Spy()
    run(spy, n=11, batch_size=4, gate_noise="sample", max_iter=6)
    rows = [r for epoch in range(2) for r in batches(bk, 1, epoch, 11, schedule(batch_size=4))]
    for step, ((_, eps, _), r) in enumerate(zip(spy.calls, rows, strict=True), start=1):
        whole = gate_noise(bk, 1, step, 2, np.arange(11), np.arange(3), np.float64)
        np.testing.assert_array_equal(eps, whole[:, r])


def test_draws_belong_to_the_columns_position():
    """Columns 2, 5 and 7 of the user's data get the draws of 2, 5 and 7."""
    spy, X = Spy(), gen.noise(8, 3)
    train(bk, X, spy, [TrainingRun(RunSpec(Objective(), sgd(0.1), schedule(), 4, np.array([2, 5, 7])))])
    for step, (_, eps, _) in enumerate(spy.calls, start=1):
        np.testing.assert_array_equal(eps, gate_noise(bk, 4, step, 2, None, np.arange(8), np.float64)[:, [2, 5, 7]])


@pytest.mark.parametrize("count", [0, -2, 3, 7])
def test_odd_numbers_of_draws_are_refused(count):
    with pytest.raises(ValueError, match=f"n_draws must be 1 or an even number .*got {count}"):
        run(Spy(), n_draws=count)


# --- start ----------------------------------------------------------------------------------------------------------


def test_the_start_is_one_half():
    for dtype in (np.float32, np.float64):
        mu = initial_mu(bk, 5, np.arange(6), dtype, noisy_start=False)
        assert mu.dtype == dtype
        np.testing.assert_array_equal(mu, 0.5)


def test_the_start_with_jitter_is_a_truncated_normal():
    mu = initial_mu(bk, 5, np.arange(20_000), np.float64, noisy_start=True)
    g = (mu - 0.5) / 0.01
    assert abs(g).max() <= 2
    assert abs(g).max() > 1.99
    assert abs(g.mean()) < 4.5 * 0.88 / np.sqrt(g.size)
    assert g.std() == pytest.approx(0.8796, abs=0.015)  # of a normal cut at two standard deviations
    attempts = [
        random.normals(bk, 5, random.Stream.INITIAL_MU, a, 1, None, np.arange(200), np.float64)[0] for a in range(6)
    ]
    np.testing.assert_array_equal(mu[:200], reference.truncated_start(attempts))
    np.testing.assert_array_equal(mu[[3, 900]], initial_mu(bk, 5, np.array([3, 900]), np.float64, noisy_start=True))


# --- steps, stopping, history ---------------------------------------------------------------------------------------


def test_steps_follow_the_rule_and_its_state():
    """A gradient of (mu - 1): its running size carries over from step to step."""
    spy = Spy(gradient=lambda mu: mu - 1.0)
    result = run(spy, optimizer=normalized(0.1), max_iter=12)
    x, size, path = 0.5, 0.0, []
    for step in range(1, 13):
        path.append(x)
        size = 0.9 * size + 0.1 * (x - 1.0) ** 2
        x -= 0.1 * (x - 1.0) / np.sqrt(size / (1 - 0.9**step))
    np.testing.assert_allclose([mu[0] for mu, _, _ in spy.calls], path, rtol=1e-14)
    np.testing.assert_allclose(result.mu, x, rtol=1e-14)


def test_undecided_at_its_ends():
    """Open from 1 + 1.2 sigma, closed from -1.2 sigma; in between, the ends included, undecided."""
    mu = np.array([-0.601, -0.599, 0.0, 0.5, 1.0, 1.599, 1.601])
    np.testing.assert_array_equal(undecided(mu, 0.5), [False, True, True, True, True, True, False])
    np.testing.assert_array_equal(undecided(mu, 0.1), [False, False, True, True, True, False, False])


def test_it_stops_when_the_gates_are_decided():
    """Every step moves every gate by 0.25 outward: |mu - 1/2| passes 1.1 at step 5."""
    spy = Spy(gradient=lambda mu: np.array([-2.5, 2.5, 2.5]))
    result = run(spy, max_iter=100)
    assert result.n_iter == len(spy.calls) == 5
    assert result.converged
    np.testing.assert_allclose(result.mu, [1.75, -0.75, -0.75])
    np.testing.assert_array_equal(result.history["undecided_gates"], [3, 3, 3, 3, 0])
    np.testing.assert_array_equal(result.history["open_gates"], [3, 1, 1, 1, 1])


@pytest.mark.parametrize(("tol", "steps"), [(0.0, 40), (0.24, 40), (0.25, 5), (0.5, 5)])
def test_a_share_of_undecided_gates_is_allowed(tol, steps):
    """Three of four gates decide at step 5, the last never."""
    result = run(Spy(gradient=lambda mu: np.array([-2.5, 2.5, 2.5, 0.0])), d=4, tol=tol, max_iter=40)
    assert result.n_iter == steps
    assert result.converged == (steps == 5)


def test_it_stops_after_max_iter():
    for most in (1, 2, 17):
        result = run(Spy(), n=11, batch_size=4, max_iter=most)
        assert result.n_iter == most
        assert not result.converged


def test_callbacks_see_every_step_and_can_stop():
    seen, late = [], []
    result = run(
        Spy(gradient=lambda mu: np.ones(3)),
        max_iter=50,
        callbacks=[lambda info: seen.append(info) or info.step == 4, lambda info: late.append(info.step) or "truthy"],
    )
    assert result.n_iter == 4
    assert not result.converged
    assert [info.step for info in seen] == late == [1, 2, 3, 4]
    assert [info.loss for info in seen] == [-1, -2, -3, -4]
    np.testing.assert_allclose([info.mu[0] for info in seen], [0.4, 0.3, 0.2, 0.1])
    assert [(info.open_gates, info.undecided_gates) for info in seen] == [(3, 3)] * 4
    np.testing.assert_array_equal(seen[-1].mu, result.mu)


def test_history():
    result = run(Spy(gradient=lambda mu: np.array([2.0, -2.0, 0.0])), n=8, max_iter=5)
    history = result.history
    assert list(history) == ["step", "loss", "score", "bandwidth", "open_gates", "undecided_gates"]
    np.testing.assert_array_equal(history["step"], [1, 2, 3, 4, 5])
    np.testing.assert_array_equal(history["loss"], [-1, -2, -3, -4, -5])
    np.testing.assert_array_equal(history["score"], [10 / 8, 20 / 8, 30 / 8, 40 / 8, 50 / 8])
    np.testing.assert_array_equal(history["bandwidth"], [0.5, 1, 1.5, 2, 2.5])
    np.testing.assert_array_equal(history["open_gates"], [3, 3, 2, 2, 2])
    for name in ("step", "open_gates", "undecided_gates"):
        assert history[name].dtype == np.int64


def test_the_score_is_per_row_of_the_batch():
    result = run(Spy(), n=8, batch_size=4, max_iter=2)
    np.testing.assert_array_equal(result.history["score"], [10 / 4, 20 / 4])


def test_isolated_rows_and_substitutes_are_summed_up():
    spy = Spy(isolated=[0.1, 0.4, 0.2], degenerate=[True, False, True])
    result = run(spy, max_iter=3)
    assert result.isolated == 0.4
    assert result.degenerate == 2


# --- reproducibility, and the whole thing on real objectives --------------------------------------------------------


def learn(seed=0, X=None, columns=None, name="dense", threads=1, **changes):
    X = gen.three_clusters(n=24, d=6).X if X is None else X
    engine = get_engine(name, bk, threads)
    columns = np.arange(X.shape[1]) if columns is None else columns
    setting = {"n_draws": 4, "max_iter": 15} | changes
    spec = RunSpec(Objective(), normalized(0.02), schedule(**setting), seed, columns)
    return train(bk, X, engine, [TrainingRun(spec)])[0]


@pytest.mark.parametrize(
    ("engine", "changes"),
    [
        *((engine, changes) for engine in ENGINES for changes in ({}, {"batch_size": 7})),
        ("reference", {"gate_noise": "sample", "batch_size": 7}),
    ],
)
def test_the_same_seed_gives_the_same_bits(engine, changes):
    first, other = learn(3, name=engine, **changes), learn(4, name=engine, **changes)
    learn(99)
    again, threaded = learn(3, name=engine, **changes), learn(3, name=engine, threads=3, **changes)
    for result in (again, threaded):
        np.testing.assert_array_equal(result.mu, first.mu)
        for name, values in first.history.items():
            np.testing.assert_array_equal(result.history[name], values)
    assert (other.mu != first.mu).any()


@pytest.mark.parametrize("changes", [{}, {"batch_size": 7}, {"gate_noise": "sample", "name": "reference"}])
def test_a_shorter_run_is_the_beginning_of_a_longer_one(changes):
    whole, part = learn(2, max_iter=15, **changes), learn(2, max_iter=6, **changes)
    np.testing.assert_array_equal(part.history["loss"], whole.history["loss"][:6])


@pytest.mark.parametrize("engine", [e for e in ENGINES if e != "reference"])
@pytest.mark.parametrize("changes", [{}, {"batch_size": 7}])
def test_engines_train_alike(engine, changes):
    plain, other = learn(1, name="reference", **changes), learn(1, name=engine, **changes)
    gen.assert_close(other.mu, plain.mu, 1e-9)
    gen.assert_close(other.history["loss"], plain.history["loss"], 1e-9)


@pytest.mark.parametrize("changes", [{}, {"batch_size": 7}])
def test_permuted_columns_train_alike(changes):
    X = gen.three_clusters(n=24, d=6).X
    order = np.random.default_rng(0).permutation(6)
    gen.assert_close(learn(1, X[:, order], columns=order, **changes).mu, learn(1, X, **changes).mu[order], 1e-9)


def test_negated_columns_train_to_the_same_bits():
    X = gen.three_clusters(n=24, d=6).X
    np.testing.assert_array_equal(learn(1, X * np.array([1, -1, -1, 1, 1, -1])).mu, learn(1, X).mu)


def test_three_clusters_are_found():
    problem = gen.three_clusters(n=60, d=10)
    result = learn(0, problem.X, n_draws=16, max_iter=800, tol=0.01)
    assert result.converged
    np.testing.assert_array_equal(np.flatnonzero(result.mu > 0), problem.informative)
