"""DUFS.preset("paper") and DUFS.preset("authors_code"), every step in float64 against the slow trainers.

The slow trainers know nothing of the library's random numbers: noise, start and batches are handed to them as arrays.
"""

from __future__ import annotations

import warnings

import generators as gen
import numpy as np
import pytest
import reference

from dufs_core import GatedLaplacian
from dufs_core.backend import get_backend, random
from dufs_core.errors import DufsWarning
from dufs_core.objective.engines.choose import ENGINES
from dufs_core.objective.protocol import Schedule
from dufs_core.training.loop import batches

bk = get_backend("numpy")
SEED, N, D, STEPS = 20, 17, 5, 12
engines = pytest.mark.parametrize("engine", ENGINES)


def problem():
    return gen.three_clusters(n=N, d=D, spread=0.3, seed=4).X


def fit(preset, X, **changes):
    """Every mu after its step, the losses, and the fitted selector."""
    path = []
    steps = {"max_iter": STEPS, "tol": 0.0, "callbacks": [lambda info: path.append(info.mu.copy())]}
    model = GatedLaplacian.preset(preset, dtype="float64", random_state=SEED, **steps, **changes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DufsWarning)  # twelve steps select everything; gates may close in between
        model.fit(X)
    return np.array(path), model


def noise(rows_of_step, per_sample, d=D):
    """The library's draw of each step: one vector, or one for every row of the batch."""
    gates, columns = random.Stream.GATES, np.arange(d)
    return [
        random.normals(bk, SEED, gates, step, 1, rows if per_sample else None, columns, np.float64)[0]
        for step, rows in enumerate(rows_of_step, start=1)
    ]


def start(d=D):
    return reference.truncated_start(
        [random.normals(bk, SEED, random.Stream.INITIAL_MU, a, 1, None, np.arange(d), np.float64)[0] for a in range(8)]
    )


def shuffles(count):
    return [random.permutation(bk, SEED, random.Stream.SHUFFLE, epoch, N) for epoch in range(count)]


def compare(path, model, want, tolerance=1e-10):
    """Every step, the losses too; and the steps must be worth comparing."""
    assert np.abs(np.diff(want.mu, axis=0)).max(axis=1).min() > 1e-5
    for step, (mu, expected) in enumerate(zip(path, want.mu[1:], strict=True), start=1):
        gen.assert_close(mu - want.mu[0], expected - want.mu[0], tolerance, f"mu after step {step}")
    gen.assert_close(model.history_["loss"], want.loss, tolerance, "loss")
    np.testing.assert_array_equal(model.mu_, path[-1])


FULL = [np.arange(N)] * STEPS


@engines
@pytest.mark.parametrize(("lam", "rate"), [(None, 1.0), (0.1, 0.3), (0.7, 0.2)])
def test_paper(engine, lam, rate):
    X = problem()
    path, model = fit("paper", X, engine=engine, lam=lam, learning_rate=rate)
    want = reference.train_paper(X, noise(FULL, False), FULL, rate=rate, lam=lam, delta=1e-6)
    compare(path, model, want)


@engines
@pytest.mark.parametrize("C", [2.0, 5.0])
@pytest.mark.parametrize("k", [2, 5])
def test_paper_other_settings_of_its_runs(engine, C, k):
    """C = 2 for two of its data sets, k = 5 for two others."""
    X = problem()
    path, model = fit("paper", X, engine=engine, bandwidth_factor=C, n_neighbors=k)
    want = reference.train_paper(X, noise(FULL, False), FULL, rate=1.0, delta=1e-6, C=C, k=k)
    compare(path, model, want)


@engines
@pytest.mark.parametrize("lam", [None, 0.1])
def test_paper_in_minibatches(engine, lam):
    """17 rows in batches of at most 6: 5, 6 and 6, every row once an epoch."""
    X = problem()
    rows = [part for order in shuffles(4) for part in (order[:5], order[5:11], order[11:])]
    path, model = fit("paper", X, engine=engine, lam=lam, batch_size=6, learning_rate=0.3)
    want = reference.train_paper(X, noise(rows, False), rows, rate=0.3, lam=lam, delta=1e-6)
    compare(path, model, want)


@pytest.mark.parametrize(("lam", "rate"), [(None, 1.0), (0.1, 1.0), (0.7, 0.5)])
@pytest.mark.parametrize("C", [1.0, 5.0])
def test_authors_code(lam, rate, C):
    """C = 1 is the default of their class, 5 stands in their example."""
    X = problem()
    path, model = fit("authors_code", X, lam=lam, learning_rate=rate, bandwidth_factor=C)
    want = reference.train_authors_code(X, noise(FULL, True), start(), FULL, rate=rate, lam=lam, C=C)
    # the regularised loss differs by the factor d, which the library puts into the rate
    scale = 1 if lam is None else D
    compare(path, model, want._replace(loss=want.loss * scale))


@pytest.mark.parametrize("lam", [None, 0.1])
def test_authors_code_in_minibatches(lam):
    """Full batches of 7 of 17 rows; which rows is taken from the library."""
    X = problem()
    plan = Schedule(n_draws=1, max_iter=STEPS, tol=0.0, batch_size=7, batches="wrap")
    rows = [part for epoch in range(4) for part in batches(bk, SEED, epoch, N, plan)]
    assert {len(r) for r in rows} == {7}
    path, model = fit("authors_code", X, lam=lam, batch_size=7)
    want = reference.train_authors_code(X, noise(rows, True), start(), rows, rate=1.0, lam=lam)
    compare(path, model, want._replace(loss=want.loss * (1 if lam is None else D)))


def test_authors_code_batches_run_on_into_the_next_shuffle():
    """The published program cuts batches of 7 from one shuffle of the 17 rows after another, without a break."""
    plan = Schedule(n_draws=1, max_iter=STEPS, tol=0.0, batch_size=7, batches="wrap")
    rows = [part for epoch in range(4) for part in batches(bk, SEED, epoch, N, plan)]
    np.testing.assert_array_equal(rows, reference.wrapping_rows(shuffles(5), 7, STEPS))


def test_authors_code_replaces_a_bandwidth_of_zero_by_one():
    """With noise per sample the bandwidth is below 1e-8 only where the data themselves are tiny: scaling "none"."""
    X = problem() * 1e-6
    path, model = fit("authors_code", X, scaling="none", lam=0.0, learning_rate=1e11)
    centred = X - X.mean(axis=0)
    want = reference.train_authors_code(centred, noise(FULL, True), start(), FULL, rate=1e11, lam=0.0)
    np.testing.assert_array_equal(model.history_["bandwidth"], 1.0)
    compare(path, model, want._replace(loss=want.loss * D), tolerance=1e-9)


@pytest.mark.parametrize("preset", ["paper", "authors_code"])
def test_presets_are_far_from_each_other(preset):
    """The comparison can fail: each preset against the other one's trainer is wrong from the first step."""
    X = problem()
    path, _ = fit(preset, X)
    other = (
        reference.train_authors_code(X, noise(FULL, True), start(), FULL, rate=1.0)
        if preset == "paper"
        else reference.train_paper(X, noise(FULL, False), FULL, rate=1.0, delta=1e-6)
    )
    assert gen.relative(path[0] - 0.5, other.mu[1] - 0.5) > 1e-3


def test_the_wide_preset_sees_clusters_among_many_columns():
    """Three clusters in 12 of 400 columns, 60 rows: after 400 steps it has closed most gates, the default few."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 400))
    X[:, :12] += 2.5 * np.repeat(np.eye(3), 4, axis=1)[np.arange(60) % 3]
    n_open = []
    for selector in (GatedLaplacian.preset("wide"), GatedLaplacian()):
        selector.set_params(
            max_runs=1, max_iter=400, n_draws=4, random_state=0, n_features_to_select=12, ranking="gates"
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DufsWarning)
            selector.fit(X)
        np.testing.assert_array_equal(selector.get_support(indices=True), np.arange(12))
        n_open.append((selector.mu_ > 0).sum())
    assert n_open[0] < 100
    assert n_open[1] > 300


def test_preset_settings():
    """What the presets say they are, and that `changes` win."""
    paper = GatedLaplacian.preset("paper").get_params()
    authors = GatedLaplacian.preset("authors_code").get_params()
    for params in (paper, authors):
        assert (params["lam"], params["power"], params["gate_sigma"]) == (None, 2, 0.5)
        assert (params["optimizer"], params["momentum"], params["n_draws"], params["max_runs"]) == ("sgd", 0, 1, 1)
        assert params["bandwidth_gradient"] is True
        assert params["scaling"] == "columns"
    assert (paper["gate_noise"], paper["bandwidth"], paper["n_neighbors"], paper["bandwidth_factor"]) == (
        "batch", "max", 2, 5.0,
    )  # fmt: skip
    assert (authors["gate_noise"], authors["bandwidth"], authors["n_neighbors"], authors["bandwidth_factor"]) == (
        "sample", "median", 1, 1.0,
    )  # fmt: skip
    assert GatedLaplacian.preset("paper", n_draws=4).set_params(graph__power=3).get_params()["power"] == 3
    assert paper["fdr"] is authors["fdr"] is GatedLaplacian.preset("wide").fdr is None
    changed = {
        name
        for name, value in GatedLaplacian.preset("wide").get_params().items()
        if value != getattr(GatedLaplacian(), name)
    }
    assert changed == {"power", "bandwidth", "self_loops", "n_neighbors", "bandwidth_factor", "ranking"}
    with pytest.raises(ValueError, match=r"wide.*paper.*authors_code.*'mine'"):
        GatedLaplacian.preset("mine")
