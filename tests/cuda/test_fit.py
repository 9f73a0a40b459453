"""Training, search, the permutation gap, checks of gradients and whole fits on the CuPy backend's stand-in."""

from __future__ import annotations

import importlib.util

import fake_cupy
import generators as gen
import numpy as np
import pytest
from generators import gated
from sklearn.base import clone

from dufs_core import DUFS, GatedLaplacian, fit_many
from dufs_core.backend import get_backend, random
from dufs_core.data.dense import scale_columns
from dufs_core.datasets import two_moons
from dufs_core.errors import InterruptedFit
from dufs_core.gradcheck.suite import run as suite
from dufs_core.gradcheck.suite.registry import OPS, engines
from dufs_core.gradcheck.suite.registry import operations as registered
from dufs_core.objective.chain import Objective
from dufs_core.objective.engines.choose import get_engine
from dufs_core.objective.engines.gpu_steps import CudaSteps
from dufs_core.objective.engines.reference import ReferenceEngine
from dufs_core.objective.optimizers import State, adam, get_optimizer, normalized, sgd
from dufs_core.objective.protocol import RunSpec, Schedule
from dufs_core.selection import fit_many as population
from dufs_core.selection.checkpoint import Checkpoint
from dufs_core.selection.diverse_ranking import diverse_order
from dufs_core.selection.gates import search
from dufs_core.significance.permutation import permutation_test
from dufs_core.training.loop import TrainingRun, train

pytestmark = pytest.mark.cuda_launch
cpu = get_backend("numpy")


@pytest.fixture
def on_gpu(device, monkeypatch):
    """Every backend that is asked for is the stand-in, except by the name "numpy"."""
    import dufs_core.backend.cupy

    monkeypatch.setattr(dufs_core.backend.cupy, "cupy_backend", lambda: device)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: find("numpy" if name == "cupy" else name))
    return device


class Tensor:
    """An array of another library: DLPack and nothing else."""

    def __init__(self, array, device=(2, 0)):
        self._a, self._device = array, device

    def __dlpack_device__(self):
        return self._device

    def __dlpack__(self, **_):
        return self._a


# --- the operations, unchanged --------------------------------------------------------------------------------------


CHAINS = [op for op in registered() if not op.is_chain] + [op for op in registered() if op.is_chain][::4]


@pytest.mark.parametrize("operation", CHAINS, ids=lambda op: op.name)
def test_gradients_of_operations(device, operation):
    """The verifier's own checks of every operation, and of some chains through the operations, on device arrays."""
    evaluate = ReferenceEngine() if operation.is_chain else None
    result = suite.check_gradients(device, operation, OPS, evaluate, 1, 2)
    assert not result.failures, result.failures[0]


def test_gradient_of_the_engine(device):
    chain = next(op for op in registered() if op.is_chain)
    result = suite.check_gradients(device, chain, "cuda", engines()["cuda"].load(), 1, 2)
    assert not result.failures, result.failures[0]


def test_the_order_of_representatives(device):
    X = np.repeat(gen.three_clusters(60, 3).X, 4, axis=1) + 0.2 * gen.noise(60, 12)
    mu = np.linspace(2.0, -0.1, 12)
    expected = diverse_order(cpu, X, mu, 12)
    found = diverse_order(device, device.to_device(X), mu, 12)
    assert isinstance(found, np.ndarray)
    np.testing.assert_array_equal(found, expected)


def test_random_numbers_and_steps(device):
    """What the backend's kernels replace gives what NumPy gives."""
    rows, columns = np.arange(5), np.array([2, 0, 7])
    for seed in (0, 2**64 - 1):
        ours, theirs = (random.permutation(bk, seed, random.Stream.SHUFFLE, 3, 50) for bk in (device, cpu))
        np.testing.assert_array_equal(ours.get(), theirs)
        assert random.derived_seed(device, seed, 3) == random.derived_seed(cpu, seed, 3)
        for given in (None, rows):
            ours, theirs = (
                random.normals(bk, seed, random.Stream.GATES, 4, 6, given, columns, np.float64) for bk in (device, cpu)
            )
            gen.assert_close(ours.get(), theirs, 1e-15)
    for rule in (sgd(0.1), adam(0.1), normalized(0.1)):
        ours, theirs, state, other = device.xp.asarray(np.full(9, 0.5)), np.full(9, 0.5), State(), State()
        for t in range(4):
            grad = np.random.default_rng(t).normal(size=9)
            before = ours.get()
            new, state = rule(device, ours, device.xp.asarray(grad), state)
            np.testing.assert_array_equal(ours.get(), before)
            ours = new
            theirs, other = rule(cpu, theirs, grad, other)
        gen.assert_close(ours.get(), theirs, 1e-14)


@pytest.mark.parametrize("scaling", ["columns", "global", "none"])
def test_data_of_the_device(device, scaling):
    X = np.random.default_rng(0).normal(size=(11, 5)) * np.arange(1, 6)
    X[:, 2] = 0.3
    moved = device.xp.asarray(X)
    ours, theirs = scale_columns(moved, scaling, "float64", device.xp), scale_columns(X, scaling, "float64")
    gen.assert_close(ours.X.get(), theirs.X, 1e-14)
    np.testing.assert_array_equal(ours.constant.get(), theirs.constant)
    np.testing.assert_array_equal(moved.get(), X)
    moved[3, 4] = np.nan
    with pytest.raises(ValueError, match="NaN or infinity: 1 of 55 values, the first in column 4"):
        scale_columns(moved, scaling, "float64", device.xp)
    moved[3, 4] = 1e200
    if scaling == "none":
        with pytest.raises(ValueError, match="Column 4 reaches"):
            scale_columns(moved, scaling, "float64", device.xp)


@pytest.mark.parametrize(("name", "noise"), [("reference", "batch"), ("reference", "sample"), ("cuda", "batch")])
@pytest.mark.parametrize("batch_size", [None, 6])
def test_training(device, name, batch_size, noise):
    X, columns = gen.noise(13, 4), np.arange(4)
    schedule = Schedule(2, 5, 0.0, batch_size=batch_size, gate_noise=noise, noisy_start=True)

    def run(bk, engine, data):
        evaluate = get_engine(engine, bk, 1)
        optimizer = get_optimizer("normalized", 0.05)
        return train(bk, data, evaluate, [TrainingRun(RunSpec(Objective(), optimizer, schedule, 3, columns))])[0]

    ours, theirs = run(device, name, device.xp.asarray(X)), run(cpu, "reference", X)
    gen.assert_close(ours.mu.get(), theirs.mu, 1e-10)
    for key, values in theirs.history.items():
        assert isinstance(ours.history[key], np.ndarray)
        np.testing.assert_allclose(ours.history[key], values, rtol=1e-9)


def test_permutation_gap(device):
    for n in (40, 600):  # 600 rows are sampled down
        X = two_moons(n_samples=n, n_features=5).X
        X = scale_columns(X, "columns", "float64").X
        ours, theirs = (
            permutation_test(bk, bk.to_device(X), np.array([0, 1]), 3, columns=np.arange(5)) for bk in (device, cpu)
        )
        assert ours.excess == pytest.approx(theirs.excess, rel=1e-10)
        assert ours.p_value == theirs.p_value


# --- the estimator --------------------------------------------------------------------------------------------------


ATTRIBUTES = ("mu_", "gate_probabilities_", "scores_", "order_", "support_", "constant_features_")


def fit(X, **changes):
    settings = {"max_iter": 6, "max_runs": 2, "n_draws": 2, "random_state": 0, "dtype": "float64"}
    return gated(**settings | {"tol": 0.0} | changes).fit(X)


@pytest.fixture(scope="module")
def table():
    X = two_moons(n_samples=20, n_features=5).X.copy()
    X[:, 3] = 1.0
    return X


@pytest.mark.stand_in
@pytest.mark.filterwarnings("ignore::dufs_core.errors.SelectionWarning")
@pytest.mark.parametrize("kind", ["numpy", "float32", "cupy", "dlpack"])
@pytest.mark.parametrize("engine", ["auto", "reference"])
def test_a_fit_equals_the_cpu_s(on_gpu, table, kind, engine):
    X = table.astype(np.float32) if kind == "float32" else table
    given = {"cupy": on_gpu.xp.asarray, "dlpack": Tensor}.get(kind, lambda a: a)(X)
    entered = fake_cupy.Device.entered
    ours, theirs = fit(given, backend="cupy", engine=engine), fit(X, backend="numpy")
    assert (ours.backend_, ours.engine_) == ("cupy", "cuda" if engine == "auto" else engine)
    for name in ATTRIBUTES:
        assert isinstance(getattr(ours, name), np.ndarray)
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-9, atol=1e-12, err_msg=name)
    assert ours.history_["loss"][-1] == pytest.approx(theirs.history_["loss"][-1], rel=1e-9)
    assert ours.excess_score_ == pytest.approx(theirs.excess_score_, abs=1e-9)
    assert ours.n_features_in_ == 5
    assert fake_cupy.Device.entered == entered + (kind in ("cupy", "dlpack"))  # the array's own device was current


@pytest.mark.filterwarnings("ignore::dufs_core.errors.SelectionWarning")
@pytest.mark.parametrize("preset", ["paper", "authors_code"])
def test_presets(on_gpu, table, preset):
    ours, theirs = (
        GatedLaplacian.preset(preset, backend=backend, max_iter=4, random_state=1, dtype="float64", batch_size=8).fit(
            table
        )
        for backend in ("cupy", "numpy")
    )
    np.testing.assert_allclose(ours.mu_, theirs.mu_, rtol=1e-9)


@pytest.mark.stand_in
def test_auto_takes_the_device(on_gpu, table):
    assert get_backend("auto").name == "cupy"
    with pytest.warns(UserWarning, match="All 5 columns of X are constant"):
        assert fit(np.ones((6, 5))).backend_ == "cupy"


@pytest.mark.stand_in
@pytest.mark.filterwarnings("ignore::dufs_core.errors.SelectionWarning")
def test_transform_stays_on_the_device(on_gpu, table):
    selector = fit(table, backend="cupy", n_features_to_select=2)
    X = on_gpu.xp.asarray(table)
    for given in (X, Tensor(table)):
        got = selector.transform(given)
        assert isinstance(got, fake_cupy.ndarray)
        np.testing.assert_array_equal(got.get(), table[:, selector.support_])
    np.testing.assert_array_equal(selector.transform(table), table[:, selector.support_])
    assert selector.transform(X[:1]).shape == (1, 2)
    with pytest.raises(ValueError, match="X has 4 features, but GatedLaplacian is expecting 5 features"):
        selector.transform(X[:, :4])
    with pytest.raises(ValueError, match="NaN or infinity: 1 of"):
        selector.transform(on_gpu.xp.asarray(np.where(np.arange(5) == 1, np.nan, table[:1])))


@pytest.mark.filterwarnings("ignore::dufs_core.errors.SelectionWarning")
@pytest.mark.parametrize("optimizer", [{"optimizer": "normalized"}, {"optimizer": "adam"}], ids=["normalized", "adam"])
def test_a_fit_goes_on_from_a_checkpoint(on_gpu, table, tmp_path, optimizer):
    X, path, asked = on_gpu.xp.asarray(table), tmp_path / "fit.ckpt", iter([False, True])
    with pytest.raises(InterruptedFit):
        fit(X, backend="cupy", callbacks=[Checkpoint(path, stop=lambda: next(asked))], **optimizer)
    resumed = GatedLaplacian.resume(path, X)
    straight = fit(X, backend="cupy", **optimizer)
    assert resumed.n_iter_ == straight.n_iter_ > 2
    assert resumed.mu_.tobytes() == straight.mu_.tobytes()
    for name, column in straight.history_.items():
        np.testing.assert_array_equal(resumed.history_[name], column)


@pytest.mark.stand_in
def test_arrays_that_cannot_be_used(on_gpu, table):
    X = on_gpu.xp.asarray(table)
    with pytest.raises(
        ValueError, match=r'X lives on a GPU, and the NumPy backend computes on the CPU: use backend="c'
    ):
        fit(X, backend="numpy")
    for given, message in (
        (X[0], "Expected 2D array, got 1D array"), (X[:1], r"Found array with 1 sample\(s\)"),
        (X[:, :0], r"Found array with 0 feature\(s\)"), (X + 0j, "real numbers; its dtype is complex128"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            fit(given, backend="cupy")


@pytest.mark.stand_in
def test_the_stand_in_is_as_strict_as_cupy(device):
    a, host = device.xp.ones(3), np.ones(3)
    for broken in (lambda: np.asarray(a), lambda: a + host, lambda: host + a, lambda: np.exp(host) * a,
                   lambda: device.xp.maximum(a, host), lambda: np.concatenate([a, a]), lambda: a[host > 0],
                   lambda: a.__setitem__(0, host), lambda: np.add(a, host)):  # fmt: skip
        with pytest.raises(TypeError):
            broken()
    with pytest.raises(AttributeError):
        device.xp.setdiff1d(a, a)  # CuPy has it, the library may not use it unlisted
    assert float((np.float64(2) * a).sum()) == 6


@pytest.mark.filterwarnings("ignore::dufs_core.errors.SelectionWarning")
@pytest.mark.parametrize(
    "how", [{}, {"batch_size": 8}, {"gate_noise": "sample"}], ids=["all rows", "batches", "sample"]
)
def test_a_population(on_gpu, how):
    """Their runs meet and advance as one, where they can; each fit is what it is alone."""
    X = gen.noise(15, 4)
    settings = {"max_iter": 6, "max_runs": 2, "n_draws": 2, "dtype": "float64", "learning_rate": 0.2} | how
    given = [gated(lam=lam, random_state=seed, **settings) for lam, seed in ((None, 0), (0.4, 0), (None, 1))]
    stacked = []
    plain = CudaSteps.advance

    def advance(self, *arguments):
        stacked.append(len(self._specs))
        return plain(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CudaSteps, "advance", advance)
        together = fit_many(given, X)
    assert (max(stacked, default=1) == 1) == bool(how)
    for got in together:
        want = clone(got).fit(X)
        np.testing.assert_array_equal(got.mu_, want.mu_)
        assert (got.n_iter_, got.n_runs_, got.excess_score_) == (want.n_iter_, want.n_runs_, want.excess_score_)


@pytest.mark.filterwarnings("ignore::dufs_core.errors.SelectionWarning")
def test_a_saturating_population(on_gpu):
    """Fits advance as one, whose products are cuBLAS's: each is within rounding of what it is alone, and on the CPU."""
    X = gen.noise(15, 4)
    settings = {"max_iter": 6, "max_runs": 1, "n_draws": 2, "dtype": "float64", "learning_rate": 0.2}
    given = [gated(lam=lam, random_state=3, saturation=0.3, **settings) for lam in (None, 0.4)]
    for got in fit_many(given, X):
        assert got.engine_ == "cuda"
        np.testing.assert_allclose(got.mu_, clone(got).fit(X).mu_, rtol=1e-9)
        np.testing.assert_allclose(got.mu_, clone(got).set_params(backend="numpy").fit(X).mu_, rtol=1e-9)


def planted(n):
    """Three columns that follow each other, one of them half, among 30."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(n, 30))
    X[:, 10] = X[:, 4] + 0.3 * rng.normal(size=n)
    X[:, 21] = X[:, 4] ** 2 + 0.3 * rng.normal(size=n)
    X[:, 7] = X[:, 4] + X[:, 10] + rng.normal(size=n)
    return X


@pytest.mark.parametrize("how", [{}, {"scaling": "global"}, {"ranking": "evidence"}], ids=str)
def test_decoys(on_gpu, how):
    """The competition of columns and decoys on the device: the numbers of the CPU."""
    X = planted(45)
    settings = {"dtype": "float64", "random_state": 1} | how
    want = DUFS(**settings, backend="numpy").fit(X)
    assert {4, 10} <= set(np.flatnonzero(want.support_))
    for given in (X, on_gpu.xp.asarray(X)):
        got = DUFS(**settings, backend="cupy").fit(given)
        np.testing.assert_array_equal(got.in_graph_, want.in_graph_)
        for name in ("scores_", "evidence_", "decoy_evidence_", "q_values_"):
            assert isinstance(getattr(got, name), np.ndarray)
            np.testing.assert_allclose(getattr(got, name), getattr(want, name), rtol=1e-6, atol=1e-8, err_msg=name)
        np.testing.assert_array_equal(got.order_, want.order_)


@pytest.mark.parametrize("what", ["groups", "series", "covariates"])
def test_decoys_of_rows_that_are_told(on_gpu, what):
    """Groups of two sizes, two series, a covariate: the numbers of the CPU."""
    X = planted(45)
    told = {"covariates": np.linspace(0, 1, 45)} if what == "covariates" else {"groups": np.repeat([0, 1], [22, 23])}
    rows = "series" if what == "series" else "independent"
    settings = {"dtype": "float64", "random_state": 1, "rows": rows, "n_features_to_select": 2}
    want = DUFS(**settings, backend="numpy").fit(X, **told)
    got = DUFS(**settings, backend="cupy").fit(on_gpu.xp.asarray(X), **told)
    for name in ("scores_", "evidence_", "decoy_evidence_"):
        np.testing.assert_allclose(getattr(got, name), getattr(want, name), rtol=1e-6, atol=1e-8, err_msg=name)
    np.testing.assert_array_equal(got.order_, want.order_)


@pytest.mark.parametrize("what", ["groups", "nothing"])
def test_decoys_of_rows_in_blocks(on_gpu, what):
    """More than 512 rows, in the memory of the device: the numbers of the CPU."""
    X = planted(530)
    X[:, 29] = 0
    X[[3, 200, 400, 500], 29] = 1.0
    told = {"groups": np.arange(530) % 20} if what == "groups" else {}
    settings = {"dtype": "float64", "random_state": 1}
    want = DUFS(**settings, backend="numpy").fit(X, **told)
    assert {4, 10} <= set(np.flatnonzero(want.support_))
    got = DUFS(**settings, backend="cupy").fit(on_gpu.xp.asarray(X), **told)
    for name in ("scores_", "evidence_", "decoy_evidence_"):
        np.testing.assert_allclose(getattr(got, name), getattr(want, name), rtol=1e-6, atol=1e-8, err_msg=name)
    assert got.rows_ == want.rows_


def test_a_population_with_decoys(on_gpu):
    """Every fit has decoys of its own, and what it finds alone."""
    X = planted(45)
    given = [DUFS(random_state=seed, dtype="float64") for seed in (0, 1)]
    for got in fit_many(given, X):
        want = clone(got).fit(X)
        np.testing.assert_array_equal(got.evidence_, want.evidence_)
        np.testing.assert_array_equal(got.q_values_, want.q_values_)


@pytest.mark.stand_in
@pytest.mark.filterwarnings("ignore::dufs_core.errors.SelectionWarning")
def test_a_population_in_turns(on_gpu, monkeypatch):
    """As many at once as memory has room for; one that fails ends all with its error."""
    X = gen.noise(15, 4)
    monkeypatch.setattr(on_gpu.xp, "free_memory", 300_000)
    counts, stacked = [], population._first_runs
    monkeypatch.setattr(population, "_first_runs", lambda *a: counts.append(len(a[0])) or stacked(*a))
    made = [GatedLaplacian(random_state=seed, max_iter=2, max_runs=1, n_draws=2, tol=0.9) for seed in range(5)]
    for got in fit_many(made, X):
        want = clone(got).fit(X)
        np.testing.assert_array_equal(got.mu_, want.mu_)

    assert sum(counts) == 5
    assert len(counts) > 1

    def fail(info):
        raise RuntimeError("broken callback")

    for position, most in ((0, 10**9), (3, 2)):  # in the first stack, which is told; in a later one
        made = [GatedLaplacian(random_state=seed, max_iter=most, max_runs=2, n_draws=2, tol=0.0) for seed in range(5)]
        made[position].callbacks = [fail]
        with pytest.raises(RuntimeError, match="broken callback"):
            fit_many(made, X)


@pytest.mark.filterwarnings("ignore::dufs_core.errors.SelectionWarning")
def test_a_population_of_data_on_disk(on_gpu, tmp_path):
    """Batches are read on the host, and every fit has the bits that it has alone."""
    np.save(tmp_path / "X.npy", gen.noise(12, 3))
    X = np.load(tmp_path / "X.npy", mmap_mode="r")
    settings = {"batch_size": 6, "max_iter": 2, "max_runs": 1, "n_draws": 2, "tol": 0.9}
    for got in fit_many([gated(random_state=seed, **settings) for seed in (0, 1)], X):
        assert got.backend_ == "cupy"
        np.testing.assert_array_equal(got.mu_, clone(got).fit(X).mu_)


@pytest.mark.filterwarnings("ignore::dufs_core.errors.SelectionWarning")
def test_a_member_that_fails_between_runs_ends_all(on_gpu, monkeypatch):
    """The others wait for it, or train for years: they are told."""
    failed, plain = [], search.permutation_test

    def fail_once(*arguments, **how):
        if not failed:
            failed.append(True)
            raise MemoryError("no room for a gap")
        return plain(*arguments, **how)

    monkeypatch.setattr(search, "permutation_test", fail_once)
    made = [GatedLaplacian(random_state=seed, max_iter=3, max_runs=4, n_draws=2) for seed in range(4)]
    with pytest.raises(MemoryError, match="no room for a gap"):
        fit_many(made, gen.noise(15, 4))
