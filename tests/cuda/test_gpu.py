"""On a machine with a GPU: every kernel, the engine, the gradients and whole fits, on the card itself.

The tests are those of the emulator and of the stand-in device; here their fixtures give them the real
ones. What is marked `stand_in` stays with those two.
"""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import test_emulated
import test_engine
import test_fit
import test_sparse_engine
import test_sparse_kernels
import test_streaming_engine
import test_streaming_kernels

from dufs_core.backend import get_backend
from dufs_core.kernels import cuda
from dufs_core.objective.chain import Objective
from dufs_core.objective.engines.choose import predicted_bytes
from dufs_core.objective.engines.gpu_dense import CudaEngine
from dufs_core.objective.engines.gpu_streaming import CudaStreamingEngine
from dufs_core.objective.optimizers import get_optimizer
from dufs_core.objective.protocol import RunSpec, Schedule, StepSize
from tests.generators import gated

pytestmark = pytest.mark.gpu


def runs_on_a_card(test):
    """Whether it does not look into the emulator or the stand-in itself."""
    return callable(test) and all(mark.name != "stand_in" for mark in getattr(test, "pytestmark", ()))


FIXTURES = ("large", "table", "few_rows")
MODULES = (test_emulated, test_engine, test_fit, test_streaming_kernels, test_streaming_engine)
for _module in (*MODULES, test_sparse_kernels, test_sparse_engine):
    globals().update({
        name: value for name, value in vars(_module).items()
        if (name.startswith("test_") and runs_on_a_card(value)) or name in FIXTURES
    })  # fmt: skip


@pytest.fixture(scope="session")
def device():
    """The CuPy backend; skips, with the cause, where it cannot compute."""
    if importlib.util.find_spec("cupy") is None:
        pytest.skip("CuPy is not installed")
    from dufs_core.backend.cupy import cupy_backend

    found = cupy_backend()
    if isinstance(found, str):
        pytest.skip(f"no GPU: {found}")
    return found


@pytest.fixture
def on_gpu(device):
    return device


@pytest.fixture(scope="session")
def run(device):
    """One launch on the card, as the emulator's: NumPy arrays go there, and what the kernel wrote comes back."""
    xp = device.xp

    def launch(kernel, dtype, grid, *arguments, **_):
        moved = [xp.asarray(a) if isinstance(a, np.ndarray) else a for a in arguments]
        shared = {id(a): m for a, m in zip(arguments, moved, strict=True) if isinstance(a, np.ndarray)}
        moved = [shared.get(id(a), a) for a in arguments]  # an array given twice is one array there too
        device.kernels.launch(kernel, dtype, grid, *moved)
        for a, m in zip(arguments, moved, strict=True):
            if isinstance(a, np.ndarray) and a.flags.writeable:
                a[...] = m.get()

    return launch


def arrays(device, n, d, draws, dtype, seed=0):
    rng = np.random.default_rng(seed)
    made = rng.uniform(-0.2, 1.2, d), rng.normal(size=(draws, d)), np.asfortranarray(rng.normal(size=(n, d)))
    return [device.xp.asarray(a.astype(dtype)) for a in made]


@pytest.mark.parametrize("dtype", list(cuda.ELEMENT))
@pytest.mark.parametrize(("n", "d", "draws"), [(100, 50, 16), (257, 65, 4), (1000, 784, 4)])
def test_a_hundred_repeats_are_the_same_bits(device, dtype, n, d, draws):
    moved = arrays(device, n, d, draws, dtype)
    engine = CudaEngine()
    value, dmu = engine(device, Objective(), *moved)
    for _ in range(100):
        other, other_dmu = engine(device, Objective(), *moved)
        assert other.loss == value.loss
        assert bool((other_dmu == dmu).all())


def six_steps(device, X, power=2):
    """Six steps that have yet to be taken."""
    d = X.shape[1]
    spec = RunSpec(
        Objective(power=power), get_optimizer("normalized", 0.05), Schedule(4, 6, 0.0), seed=0, columns=np.arange(d)
    )
    return CudaEngine().steps(device, [spec], device.xp.full((1, d), 0.5, dtype=X.dtype))


@pytest.mark.parametrize("power", [1, 2, 3])
def test_a_graph_gives_the_bits_of_its_launches(device, power):
    _, _, X = arrays(device, 120, 9, 4, np.float32)
    results = []
    for refused in (None, "switched off by this test"):
        steps = six_steps(device, X, power)
        _, replay = steps._plan(X)
        replay.refused = refused
        (records,) = steps.advance(X, None, 1, 6)
        assert (replay.graph is None) == (refused is not None), replay.refused
        results.append((records, steps.mu.get()))
    np.testing.assert_array_equal(results[0][0], results[1][0])
    np.testing.assert_array_equal(results[0][1], results[1][1])


def test_the_current_stream_is_used_and_kept(device):
    stream = device.xp.cuda.Stream(non_blocking=True)
    _, _, X = arrays(device, 60, 5, 2, np.float32)
    want = six_steps(device, X)
    want.advance(X, None, 1, 6)
    steps = six_steps(device, X)
    with stream:
        steps.advance(X, None, 1, 6)
        assert device.xp.cuda.get_current_stream() == stream
        got = steps.mu.get()
    np.testing.assert_array_equal(got, want.mu.get())


@pytest.mark.parametrize(("n", "d"), [(100, 20), (100, 1500), (1200, 1500)])  # captured; too large for that
def test_fits_together_are_the_bits_of_each_alone(device, n, d):
    lams, seeds = (None, 0.01, 0.1), (1, 2, 3)
    problems = [
        RunSpec(Objective(lam=lam), get_optimizer("normalized", 0.02), Schedule(2, 40, 0.0), seed, np.arange(d))
        for lam, seed in zip(lams, seeds, strict=True)
    ]
    mu, _, X = arrays(device, n, d, 2, np.float32)
    start = device.xp.stack([mu] * 3)
    together = CudaEngine().steps(device, problems, start).advance(X, None, 1, 40)
    for problem, records in zip(problems, together, strict=True):
        (alone,) = CudaEngine().steps(device, [problem], mu[None]).advance(X, None, 1, 40)
        if n == 100:  # our own, of sums in parts for many columns products
            np.testing.assert_array_equal(records, alone)
        else:  # cuBLAS may choose another algorithm for another number of matrices
            np.testing.assert_allclose(records, alone, rtol=2e-3)


@pytest.mark.filterwarnings("ignore::dufs_core.errors.SelectionWarning")
@pytest.mark.parametrize("engine", ["cuda", "reference"])
def test_fits_from_either_side(device, engine):
    from dufs_core.datasets import two_moons

    X = two_moons(n_samples=100, n_features=10).X
    settings = {"random_state": 0, "max_iter": 60, "max_runs": 1, "dtype": "float64"}
    want = gated(**settings, backend="numpy").fit(X)
    for given in (X, device.xp.asarray(X)):
        got = gated(**settings, backend="cupy", engine=engine).fit(given)
        np.testing.assert_allclose(got.mu_, want.mu_, rtol=1e-6, atol=1e-8)
        assert isinstance(got.mu_, np.ndarray)
    assert get_backend("auto").name == "cupy"


def test_decoys_from_either_side(device):
    """The competition of columns with their decoys finds on the card what it finds on the host."""
    from dufs_core import DUFS

    X = np.random.default_rng(0).normal(size=(200, 300))
    X[:, :12] += X[:, 12:13]
    settings = {"random_state": 0, "max_iter": 60, "dtype": "float64"}
    want = DUFS(**settings, backend="numpy").fit(X)
    assert want.support_[:13].all()
    for given in (X, device.xp.asarray(X)):
        got = DUFS(**settings, backend="cupy").fit(given)
        np.testing.assert_array_equal(got.support_, want.support_)
        np.testing.assert_allclose(got.evidence_, want.evidence_, rtol=1e-6, atol=1e-8)


def test_entries_beyond_32_bits_on_the_card(device):
    n = 46_341
    free, _ = device.xp.cuda.runtime.memGetInfo()
    if free < 10 * 10**9:
        pytest.skip(f"an array of {n} x {n} needs 8.6 GB, {free / 10**9:.1f} GB are free")
    xp = device.xp
    G, g, b, deg = xp.zeros((1, n, n), dtype=np.float32), xp.full(n, 0.5, dtype=np.float32), xp.ones(1), xp.empty(n)
    device.kernels.launch("affinity<T>", np.dtype(np.float32), n, G, g, b, 1.0, 0, n, n, G, deg, None, None)
    assert float(G[0, -1, -1]) == 1
    np.testing.assert_allclose(deg.get(), 1 + (n - 1) * np.exp(-1), rtol=1e-6)


@pytest.mark.parametrize("dtype", list(cuda.ELEMENT))
@pytest.mark.parametrize(("n", "d", "power"), [(3000, 7, 2), (2500, 64, 3), (2000, 300, 2), (1500, 100, 1)])
def test_streaming_equals_the_gram_form_on_the_card(device, dtype, n, d, power):
    """At sizes with many rows; a hundredfold of rounding is allowed in float32."""
    moved = arrays(device, n, d, 2, dtype)
    objective = Objective(power=power, n_neighbors=5, lam=0.1)
    engine = CudaStreamingEngine()
    value, dmu = engine(device, objective, *moved)
    want, want_dmu = CudaEngine()(device, objective, *moved)
    tolerance = 1e-9 if dtype == "float64" else 1e-3
    assert value.loss == pytest.approx(want.loss, rel=tolerance)
    gap = float(abs(dmu - want_dmu).max() / abs(want_dmu).max())
    assert gap <= tolerance, f"gradient: {gap:.3g}"
    for _ in range(10):
        other, other_dmu = engine(device, objective, *moved)
        assert other.loss == value.loss
        assert bool((other_dmu == dmu).all())


@pytest.mark.parametrize("d", [64, 256])
def test_streaming_a_hundred_thousand_rows(device, d):
    """Where an n x n array would take 40 GB: memory as predicted and below 8 GB, and the same bits twice."""
    n = 100_000
    free, _ = device.xp.cuda.runtime.memGetInfo()
    if free < 9 * 10**9:
        pytest.skip(f"this test may take 8 GB, {free / 10**9:.1f} GB are free")
    moved = arrays(device, n, d, 1, np.float32)
    pool = device.xp.get_default_memory_pool()
    pool.free_all_blocks()
    before = pool.total_bytes()
    value, dmu = CudaStreamingEngine()(device, Objective(), *moved)
    taken = pool.total_bytes() - before
    assert taken <= 8 * 10**9
    assert taken <= 1.2 * predicted_bytes("cuda_streaming", StepSize(n, d, 1, 4))
    assert np.isfinite(value.loss)
    other, other_dmu = CudaStreamingEngine()(device, Objective(), *moved)
    assert other.loss == value.loss
    assert bool((other_dmu == dmu).all())


@pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")
@pytest.mark.parametrize("batch_size", [None, 200])
def test_sparse_fits_on_the_card(device, batch_size):
    """From the host and from the card, as on the CPU; several strips of rows and both kinds of columns in a step."""
    from cupyx.scipy import sparse as on_card
    from scipy import sparse

    parts = [sparse.random(2500, d, density, random_state=0) for d, density in ((300, 0.02), (40, 0.4))]
    X = sparse.csr_matrix(sparse.hstack(parts))
    settings = {"random_state": 0, "max_iter": 5, "max_runs": 1, "n_draws": 2, "dtype": "float64"}
    want = gated(**settings, batch_size=batch_size, backend="numpy").fit(X)
    for given, backend in ((X, "cupy"), (on_card.csr_matrix(X), "auto"), (on_card.csc_matrix(X), "cupy")):
        got = gated(**settings, batch_size=batch_size, backend=backend).fit(given)
        np.testing.assert_allclose(got.mu_, want.mu_, rtol=1e-6, atol=1e-8)
        assert got.engine_ == "cuda_sparse"
        again = gated(**settings, batch_size=batch_size, backend=backend).fit(given)
        np.testing.assert_array_equal(got.mu_, again.mu_)
    selected = got.transform(on_card.csr_matrix(X))
    assert selected.format == "csr"
    np.testing.assert_array_equal(selected.get().toarray(), want.transform(X).toarray())
