"""The streaming CUDA engine on the stand-in device: its numbers, its memory, and what it launches."""

from __future__ import annotations

import tracemalloc
from collections import deque

import fake_cupy
import generators as gen
import numpy as np
import pytest
import reference
from generators import gated
from test_engine import both, check, cpu, problem

from dufs_core.errors import MemoryLimitError
from dufs_core.gradcheck.suite import run as suite
from dufs_core.gradcheck.suite.registry import engines
from dufs_core.gradcheck.suite.registry import operations as registered
from dufs_core.objective.chain import Objective
from dufs_core.objective.engines import gpu_streaming as cuda_streaming
from dufs_core.objective.engines.choose import get_engine, predicted_bytes
from dufs_core.objective.engines.gpu_dense import CudaEngine
from dufs_core.objective.engines.gpu_streaming import CudaStreamingEngine
from dufs_core.objective.protocol import StepSize

pytestmark = pytest.mark.cuda_launch


@pytest.fixture
def few_rows(monkeypatch):
    """Ten rows of 70 at a time."""
    monkeypatch.setattr(cuda_streaming, "TILE_ELEMENTS", 700)


@pytest.mark.parametrize(("n", "d"), [(2, 1), (9, 3), (70, 7), (7, 20)])
@pytest.mark.parametrize(
    ("t", "rule", "lam", "saturation"),
    [(1, "max", None, None), (2, "median", 0.3, None), (3, 3.0, None, None), (4, "q90", 0.1, None),
     (1, "median", 0.1, 0.3), (2, "max", None, 0.1), (3, 3.0, 0.2, 2.0)],
)  # fmt: skip
def test_streaming_numbers(few_rows, device, n, d, t, rule, lam, saturation):
    objective = Objective(power=t, bandwidth=rule, n_neighbors=min(3, n - 1), lam=lam, saturation=saturation)
    mu, eps, X = problem(n, d)
    want, (got,) = both(device, objective, mu, eps, X, CudaStreamingEngine())
    check(want, got, X)
    # the float64 engine of the Gram form gives the same
    other = CudaEngine()(device, objective, *(device.xp.asarray(a) for a in (mu, eps, X)))
    gen.assert_close(got[1].get(), other[1].get(), 1e-10)


@pytest.mark.parametrize(("rule", "k", "t", "lam"), [("max", 2, 2, None), ("median", 1, 3, 0.2), ("fixed", 1, 1, None)])
def test_streaming_against_the_independent_reference(few_rows, device, rule, k, t, lam):
    """Python loops over direct differences, differentiated by the complex step."""
    mu, eps, X = problem(7, 3)
    loss, gradient = reference.mean_value_and_grad(
        X, mu, eps, lam=lam, delta=1e-6, rule=rule, k=k, C=2.0, t=t, fixed=4.0
    )
    objective = Objective(
        lam=lam, power=t, bandwidth=4.0 if rule == "fixed" else rule, n_neighbors=k, bandwidth_factor=2.0
    )
    value, dmu = CudaStreamingEngine()(device, objective, *(device.xp.asarray(a) for a in (mu, eps, X)))
    assert value.loss == pytest.approx(loss, rel=1e-11)
    gen.assert_close(dmu.get(), gradient, 1e-10)


@pytest.mark.parametrize("name", ["duplicates", "twins", "equal", "constant column", "closed", "open", "both"])
def test_streaming_special_cases(few_rows, device, name):
    X = {"duplicates": gen.duplicates_and_others(8, 5), "twins": gen.twins(), "equal": gen.identical_rows(),
         "constant column": gen.with_constant_column()}.get(name, gen.noise(9, 4))  # fmt: skip
    d = X.shape[1]
    mu, eps = np.full(d, {"closed": -9.0, "open": 9.0}.get(name, 0.5)), gen.draws(1, d, count=3)
    if name == "both":  # one draw with all gates closed between two others
        eps[1] = -9.0
    for objective in (
        Objective(bandwidth="median", degenerate_rule="one"), Objective(bandwidth="max", lam=0.2),
        Objective(bandwidth="q90"), Objective(power=1, n_neighbors=5),
        Objective(self_loops=False),
    ):  # fmt: skip
        want, (got,) = both(device, objective, mu, eps, X, CudaStreamingEngine())
        check(want, got, X)


def test_streaming_float32_is_as_near_as_the_operations(few_rows, device):
    """Root mean square error against float64 over problems: score at most 2, gradient at most 3 times theirs."""
    plain, streamed = [], []
    for seed in range(8):
        X, mu, eps = gen.noise(40, 5, seed), np.full(5, 0.5), gen.draws(seed, 5, count=2)
        single = [a.astype(np.float32) for a in (mu, eps, X)]
        exact, (got,) = both(device, Objective(), *single, CudaStreamingEngine())
        value, dmu = Objective().value_and_grad(cpu, *single)
        assert got[1].dtype == np.float32
        for errors, (score, gradient) in ((plain, (value.score, dmu)), (streamed, (got[0].score, got[1].get()))):
            errors.append([gen.relative(score, exact[0].score), gen.relative(gradient, exact[1])])
    plain, streamed = (np.sqrt(np.mean(np.square(e), axis=0)) for e in (plain, streamed))
    assert streamed[0] <= 2 * plain[0]
    assert streamed[1] <= 3 * plain[1]


@pytest.mark.stand_in
def test_streaming_takes_what_is_predicted(device, monkeypatch):
    """Traced peaks on the stand-in device, whose arrays are NumPy's."""
    both(device, Objective(), *problem(9, 2, dtype=np.float32), CudaStreamingEngine())  # loads what is loaded once
    device.xp.launches = deque(maxlen=0)  # keeps nothing
    for n, d, draws, power, rule, elements, saturation in (
        (300, 30, 2, 2, "max", 1 << 27, None), (200, 120, 3, 3, "max", 2000, None),
        (250, 70, 1, 1, 2.0, 1 << 27, None), (300, 100, 2, 2, "max", 2000, 0.3), (100, 250, 1, 1, 2.0, 2000, 0.3),
    ):  # fmt: skip
        monkeypatch.setattr(cuda_streaming, "TILE_ELEMENTS", elements)
        eps = gen.draws(0, d, None, draws) / 10  # every gate is undecided
        arrays = [device.xp.asarray(a.astype(np.float32)) for a in (np.full(d, 0.5), eps, gen.noise(n, d))]
        objective = Objective(power=power, bandwidth=rule, saturation=saturation)
        tracemalloc.start()
        try:
            CudaStreamingEngine()(device, objective, *arrays)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        size = StepSize(n, d, draws, 4, power, not isinstance(rule, str), saturating=saturation is not None)
        predicted = predicted_bytes("cuda_streaming", size)
        buffers = 10**5  # of NumPy, where it sums float32 numbers in float64
        assert 0.8 * predicted <= peak <= 1.05 * predicted + buffers, (n, d, peak, predicted)


@pytest.mark.stand_in
def test_streaming_memory_grows_with_n_not_its_square():
    one, two = (predicted_bytes("cuda_streaming", StepSize(n, 256, 4, 4)) for n in (100_000, 200_000))
    assert one < 8 * 10**9
    assert two < 2 * one


@pytest.mark.stand_in
def test_streaming_on_a_full_device(device, monkeypatch):
    monkeypatch.setitem(fake_cupy.limits, "array", 1000)
    with pytest.raises(MemoryLimitError, match=r"no memory left for streaming steps over 20 rows and 3 columns with 2"):
        both(device, Objective(), *problem(20, 3), CudaStreamingEngine())


def test_streaming_refuses_neighbours_that_are_not_there(device):
    with pytest.raises(ValueError, match="got n_neighbors=9 for 9 rows"):
        both(device, Objective(n_neighbors=9), *problem(9, 3), CudaStreamingEngine())


@pytest.mark.stand_in
def test_the_launches_of_a_streaming_step(few_rows, device):
    """By name and grid, for n = 70 rows, one draw of 3 columns of which 1 is saturated and 1 is closed."""
    mu, eps, X = problem(70, 4, draws=1, dtype=np.float32)
    mu = np.array([0.5, 9, 0.4, -9], np.float32)
    both(device, Objective(n_neighbors=5), mu, eps * 0, X, CudaStreamingEngine())
    passes = ["distances"] * 7 + ["bandwidth"] + ["affinity"] * 7 * (1 + 2) + ["grad_distances"] * 7
    assert [launch.kernel for launch in device.xp.launches] == [f"{name}<float>" for name in passes]
    assert {launch.grid for launch in device.xp.launches} == {(10,), (1,)}


def test_streaming_steps_are_the_same_bits_and_overwrite_nothing(few_rows, device):
    mu, eps, X = (device.xp.asarray(a) for a in problem(70, 3))
    engine = CudaStreamingEngine()
    value, dmu = engine(device, Objective(), mu, eps, X)
    kept = dmu.get(), value.score.copy()
    engine(device, Objective(), mu + 0.2, eps, X)
    for other, other_dmu in [(value, dmu), engine(device, Objective(), mu, eps, X)]:
        np.testing.assert_array_equal(other_dmu.get(), kept[0])
        np.testing.assert_array_equal(other.score, kept[1])


@pytest.mark.parametrize("name", ["median", "max"])
def test_gradient_of_the_streaming_engine(few_rows, device, name):
    """By the verifier's five-point differences, along random directions and every gate."""
    chain = next(op for op in registered() if op.is_chain and name in op.name and "batch" in op.name)
    result = suite.check_gradients(device, chain, "cuda_streaming", engines()["cuda_streaming"].load(), 1, 1)
    assert not result.failures, result.failures[0]


@pytest.mark.filterwarnings("ignore::dufs_core.errors.SelectionWarning")
def test_a_streaming_fit(device, monkeypatch):
    from dufs_core.backend import cupy as cupy_backend

    monkeypatch.setattr(cupy_backend, "cupy_backend", lambda: device)
    pytest.importorskip("cupy", reason="CuPy is not installed (it is for Linux, in the extra `test`)")
    settings = {"max_iter": 4, "max_runs": 1, "n_draws": 2, "random_state": 0, "dtype": "float64"}
    X = gen.noise(20, 4)
    want = gated(**settings, backend="numpy", engine="reference").fit(X)
    got = gated(**settings, backend="cupy", engine="streaming").fit(X)
    np.testing.assert_allclose(got.mu_, want.mu_, rtol=1e-8)
    assert got.engine_ == "cuda_streaming"
    with pytest.raises(MemoryLimitError, match="engine 'cuda_streaming'"):
        gated(**settings, backend="cupy", engine="streaming", max_memory=1000).fit(X)


def test_streaming_is_an_engine_of_this_backend(device):
    engine = get_engine("streaming", device, 1)
    assert engine.name == "cuda_streaming"
    assert isinstance(engine, CudaStreamingEngine)


@pytest.mark.parametrize(
    ("n", "d", "limit", "want"),
    [
        (1000, 50, None, "cuda"),
        (5000, 50, None, "cuda_streaming"),
        (5000, 256, None, "cuda_streaming"),
        (6000, 1000, None, "cuda"),
        (6000, 1000, 6 * 10**8, "cuda_streaming"),
    ],
)
def test_the_form_that_is_chosen(device, n, d, limit, want):
    """By what a step costs, and by what fits."""
    assert get_engine("auto", device, 1, StepSize(n, d, 1, 4), limit).name == want


@pytest.mark.stand_in
def test_rows_of_a_tile():
    assert cuda_streaming.tile_rows(2**40) == 1
    assert cuda_streaming.tile_rows(70) == 70
