"""The CUDA engine on the stand-in device: its numbers, what it launches, and its graph."""

from __future__ import annotations

import tracemalloc
from collections import deque

import fake_cupy
import generators as gen
import numpy as np
import pytest
import reference

from dufs_core.backend import get_backend
from dufs_core.kernels import cuda
from dufs_core.objective.chain import Objective
from dufs_core.objective.engines import gpu_plan
from dufs_core.objective.engines.choose import get_engine, predicted_bytes
from dufs_core.objective.engines.gpu_dense import CudaEngine
from dufs_core.objective.protocol import StepSize

pytestmark = pytest.mark.cuda_launch
cpu = get_backend("numpy")
SHAPES = [(2, 1), (9, 3), (33, 7), (9, 140)]  # the last: Gram matrices summed in parts
SIZES = pytest.mark.parametrize("size", ["small", "large"])


def problem(n, d, draws=2, dtype=np.float64):
    X, mu = gen.noise(n, d, seed=n), np.linspace(-0.2, 1.1, d)
    return [a.astype(dtype) for a in (mu, gen.draws(d, d, None, draws), X)]


def both(device, objective, mu, eps, X, engine=None, times=1):
    """The operations in float64 on the CPU, and the engine on the device, `times` times."""
    want = objective.value_and_grad(cpu, *(a.astype(np.float64) for a in (mu, eps, X)))
    moved = [device.xp.asarray(a) for a in (mu, eps, np.asfortranarray(X))]
    engine = engine or CudaEngine()
    return want, [engine(device, objective, *moved) for _ in range(times)]


def check(want, got, X, tolerance=1e-11):
    (value, dmu), (other, other_dmu) = want, got
    gen.assert_close(other_dmu.get(), dmu, tolerance, "gradient")
    assert other.loss == pytest.approx(value.loss, rel=tolerance, abs=1e-14)
    gap = abs(other.score - value.score).max() / X.size  # a score is at most the sum of squares
    assert gap <= 1e-14, f"score: {gap:.3g}"
    gen.assert_close(other.bandwidth, value.bandwidth, tolerance)
    np.testing.assert_array_equal(other.degenerate, value.degenerate)
    assert other.isolated == pytest.approx(value.isolated)
    assert all(isinstance(a, np.ndarray) for a in (other.score, other.bandwidth, other.degenerate))


@pytest.fixture
def large(monkeypatch):
    """Every step counts as one over many entries, its draws taken in turns."""
    monkeypatch.setattr(gpu_plan, "CAPTURED_WORK", 0)
    monkeypatch.setattr(gpu_plan, "ELEMENTS_TOGETHER", 0)


@pytest.mark.parametrize(("n", "d"), SHAPES)
@pytest.mark.parametrize(
    ("t", "rule", "lam", "saturation"),
    [(1, "max", None, None), (2, "median", 0.3, None), (3, 3.0, None, None), (4, "q90", 0.1, None),
     (1, "median", 0.1, 0.3), (2, "max", None, 0.1), (3, 3.0, 0.2, 2.0)],
)  # fmt: skip
@SIZES
def test_numbers(device, request, n, d, t, rule, lam, saturation, size):
    if size == "large":
        request.getfixturevalue(size)
    objective = Objective(power=t, bandwidth=rule, n_neighbors=min(2, n - 1), lam=lam, saturation=saturation)
    mu, eps, X = problem(n, d)
    want, (got,) = both(device, objective, mu, eps, X)
    check(want, got, X)


@pytest.mark.parametrize(("n", "d", "draws"), [(1, 65, 2), (31, 1000, 2), (100, 65, 4), (127, 130, 20)])
def test_few_rows(device, n, d, draws):
    mu, eps, X = problem(n, d, draws)
    want, (got,) = both(device, Objective(bandwidth=3.0 if n == 1 else "max", n_neighbors=min(2, n)), mu, eps, X)
    check(want, got, X, 1e-10)


@pytest.mark.parametrize(("n", "d", "draws", "parts"), [(100, 20, 1, 1), (100, 5966, 1, 32), (72, 7129, 4, 8)])
def test_parts_of_gram_matrices(n, d, draws, parts):
    """Enough to keep a device busy, of as many terms as a tile has, or more."""
    assert gpu_plan.parts_of_gram(n, d, draws) == parts


@pytest.mark.parametrize(("rule", "k", "t", "lam"), [("max", 2, 2, None), ("median", 1, 3, 0.2), ("fixed", 1, 2, None)])
def test_against_the_independent_reference(device, rule, k, t, lam):
    """Python loops over direct differences, differentiated by the complex step."""
    mu, eps, X = problem(7, 3)
    loss, gradient = reference.mean_value_and_grad(
        X, mu, eps, lam=lam, delta=1e-6, rule=rule, k=k, C=2.0, t=t, fixed=4.0
    )
    objective = Objective(
        lam=lam, power=t, bandwidth=4.0 if rule == "fixed" else rule, n_neighbors=k, bandwidth_factor=2.0
    )
    value, dmu = CudaEngine()(device, objective, *(device.xp.asarray(a) for a in (mu, eps, X)))
    assert value.loss == pytest.approx(loss, rel=1e-11)
    gen.assert_close(dmu.get(), gradient, 1e-10)


@pytest.mark.stand_in
def test_a_given_bandwidth_keeps_no_distances(device):
    mu, eps, X = problem(9, 70)
    want, (got,) = both(device, Objective(bandwidth=40.0), mu, eps, X)
    check(want, got, X)
    assert not any(launch.kernel == "distances<double>" for launch in device.xp.launches)


@SIZES
@pytest.mark.parametrize("name", ["duplicates", "twins", "equal", "constant column", "closed", "open"])
def test_special_cases(device, request, name, size):
    if size == "large":
        request.getfixturevalue(size)
    X = {"duplicates": gen.duplicates_and_others(8, 5), "twins": gen.twins(), "equal": gen.identical_rows(),
         "constant column": gen.with_constant_column()}.get(name, gen.noise(9, 4))  # fmt: skip
    d = X.shape[1]
    mu, eps = np.full(d, {"closed": -9.0, "open": 9.0}.get(name, 0.5)), gen.draws(1, d, count=2)
    for objective in (Objective(bandwidth="median", degenerate_rule="one"), Objective(bandwidth="max", lam=0.2),
                      Objective(bandwidth="q90"), Objective(self_loops=False)):  # fmt: skip
        want, (got,) = both(device, objective, mu, eps, X)
        check(want, got, X)


def test_float32_is_as_near_as_the_operations(device):
    """Root mean square error against float64 over problems: score at most 2, gradient at most 3 times theirs."""
    plain, fused = [], []
    for seed in range(8):
        X, mu, eps = gen.noise(24, 5, seed), np.full(5, 0.5), gen.draws(seed, 5, count=2)
        single = [a.astype(np.float32) for a in (mu, eps, X)]
        exact, (got,) = both(device, Objective(), *single)
        value, dmu = Objective().value_and_grad(cpu, *single)
        assert got[1].dtype == np.float32
        for errors, (score, gradient) in ((plain, (value.score, dmu)), (fused, (got[0].score, got[1].get()))):
            errors.append([gen.relative(score, exact[0].score), gen.relative(gradient, exact[1])])
    plain, fused = (np.sqrt(np.mean(np.square(e), axis=0)) for e in (plain, fused))
    assert fused[0] <= 2 * plain[0]
    assert fused[1] <= 3 * plain[1]


def test_results_are_not_overwritten_by_the_next_step(device):
    engine = CudaEngine()
    mu, eps, X = (device.xp.asarray(a) for a in problem(9, 3))
    first = engine(device, Objective(), mu, eps, X)
    kept = first[1].get(), first[0].score.copy()
    engine(device, Objective(), mu + 0.2, eps, X)
    np.testing.assert_array_equal(first[1].get(), kept[0])
    np.testing.assert_array_equal(first[0].score, kept[1])


@pytest.mark.stand_in
def test_the_cuda_engine_takes_what_is_predicted(device):
    """The bytes of the arrays of its plan, on the stand-in device."""
    for n, d, draws, power, rule in ((40, 6, 4, 2, "max"), (40, 6, 2, 4, "max"), (30, 200, 2, 1, 2.0)):
        plan = gpu_plan.Plan(device, [Objective(power=power, bandwidth=rule)], (n, d), draws, "float32")
        taken = sum(a.nbytes for name, a in vars(plan.arrays).items() if name != "lam")
        assert taken == predicted_bytes("cuda", StepSize(n, d, draws, 4, power, not isinstance(rule, str)))


@pytest.mark.stand_in
def test_the_solver_of_systems_is_counted(device):
    """Traced peaks of a saturating step on the stand-in device, whose arrays are NumPy's."""
    both(device, Objective(saturation=0.3), *problem(9, 2, dtype=np.float32))  # loads what is loaded once
    for n, d, draws, power in ((300, 20, 2, 2), (150, 300, 4, 1)):
        device.xp.launches = deque(maxlen=0)  # keeps nothing
        eps = gen.draws(0, d, None, draws) / 10  # every gate is undecided
        arrays = [device.xp.asarray(a.astype(np.float32)) for a in (np.full(d, 0.5), eps, gen.noise(n, d))]
        tracemalloc.start()
        try:
            CudaEngine()(device, Objective(power=power, saturation=0.3), *arrays)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        predicted = predicted_bytes("cuda", StepSize(n, d, draws, 4, power, saturating=True))
        assert 0.7 * predicted <= peak <= 1.05 * predicted + 10**5, (n, d, peak, predicted)


# --- what is launched -----------------------------------------------------------------------------------------------


def test_the_launches_of_a_step(device):
    """Every launch by name and grid, for n = 70 rows and 2 draws; arguments have the kernel's types."""
    both(device, Objective(), *problem(70, 3, dtype=np.float32))
    rows, tiles = 2 * 70, 2 * 3
    assert [(launch.kernel, *launch.grid) for launch in device.xp.launches] == [
        ("gated<float>", -(-2 * 3 * 70 // 256)),
        ("product<float, true>", 2 * 2 * 2),
        ("diagonal<float>", 1),
        ("distances<float>", rows),
        ("bandwidth<float>", 2),
        ("affinity<float>", rows),
        ("symmetrise<float>", rows),
        ("product<float, true>", 2 * 2 * 2),
        ("score<float>", rows),
        ("product<float, true>", 2 * 2 * 2),
        ("grad_degrees<float>", tiles),
        ("backward<float>", tiles),
        ("finish<float>", 2),
        ("product<float, false>", 2 * 1 * 2),
        ("column_dots<float>", 1),
        ("loss<float>", 1),
    ]
    assert {launch.block for launch in device.xp.launches} == {(256,)}
    for launch in device.xp.launches:  # the emulator has compared each with the kernel's parameters; see types
        for argument in launch.arguments:
            assert isinstance(argument, fake_cupy.ndarray | np.generic)
            assert not isinstance(argument, fake_cupy.ndarray) or argument.flags.c_contiguous


@pytest.mark.stand_in
def test_closed_and_saturated_columns_are_left_out_of_large_steps(device, large):
    mu, eps, X = problem(9, 4)
    mu = np.array([-9.0, 0.5, 9.0, 0.5])
    want, (got,) = both(device, Objective(lam=0.1), mu, eps * 0.1, X)
    check(want, got, X)
    launched = {launch.kernel: launch for launch in device.xp.launches}
    gated, dots = launched["gated<double>"], launched["column_dots<double>"]
    assert gated.arguments[0].shape == (3, 9)  # the open ones
    assert dots.arguments[0].shape == (2, 9)  # the undecided ones


@pytest.mark.stand_in
def test_nothing_is_launched_for_no_work(device):
    device.kernels.launch("symmetrise<T>", "float64", 0, None)
    assert device.xp.launches == []


@pytest.mark.stand_in
def test_kernels_compile_once(device, monkeypatch):
    made = []
    plain = device.xp.RawModule
    monkeypatch.setattr(device.xp, "RawModule", lambda **how: made.append(how) or plain(**how))
    for dtype in (np.float32, np.float64, np.float32):
        both(device, Objective(), *problem(9, 3, dtype=dtype))
    assert len(made) == 2 * len([file for file in cuda.KERNELS if not file.startswith(("streaming", "sparse"))])
    assert all(how["options"] == cuda.OPTIONS for how in made)


def test_engines_belong_to_backends(device):
    assert get_engine("auto", device, 1).name == "cuda"
    assert get_engine("reference", device, 1).name == "reference"
    assert get_engine("auto", cpu, 1).name == "dense"
    for name, backend in (("cuda", cpu), ("dense", device)):
        with pytest.raises(ValueError, match=rf"engine='{name}' does not compute with backend=\"{backend.name}\""):
            get_engine(name, backend, 1)


@pytest.mark.stand_in
def test_constants_of_python_and_the_kernels_agree():
    text = cuda.source("gates.cu")
    for name, value in (("THREADS", cuda.THREADS), ("RECORD", 7), ("BETA2", 0.999), ("UNDECIDED_GATES", 4)):
        assert f"#define {name} {value}\n" in text
