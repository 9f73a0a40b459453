"""The sparse CUDA engine on the stand-in device: its numbers, its memory, and fits from either side."""

from __future__ import annotations

import tracemalloc
from collections import deque

import fake_cupy
import generators as gen
import numpy as np
import pytest
from generators import gated
from scipy import sparse
from test_fit import on_gpu  # noqa: F401 (a fixture)

from dufs_core import fit_many
from dufs_core.backend import get_backend
from dufs_core.data.dense import scale_columns
from dufs_core.data.sparse import scale_sparse
from dufs_core.errors import MemoryLimitError
from dufs_core.gradcheck.suite import run as suite
from dufs_core.gradcheck.suite.registry import engines
from dufs_core.gradcheck.suite.registry import operations as registered
from dufs_core.objective.chain import Objective
from dufs_core.objective.engines import gpu_plan
from dufs_core.objective.engines import gpu_sparse as cuda_sparse
from dufs_core.objective.engines.choose import get_engine, predicted_bytes
from dufs_core.objective.engines.gpu_sparse import CudaSparseEngine
from dufs_core.objective.protocol import StepSize

pytestmark = [pytest.mark.cuda_launch, pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")]
cpu = get_backend("numpy")
QUICK = {"max_iter": 5, "max_runs": 1, "n_draws": 2, "random_state": 0, "dtype": "float64", "tol": 0.0}


def counts(n=40, d=30, seed=0):
    """Sparse and dense columns, an empty one and an empty row, and one at 1e4 + 0.1 N(0, 1)."""
    rng = np.random.default_rng(seed)
    X = rng.normal(2.0, 1.0, size=(n, d)) * (rng.random((n, d)) < np.where(np.arange(d) < 22, 0.08, 0.5))
    X[:, d // 2] = 0
    X[-1] = 0
    X[:, -1] = 1e4 + 0.1 * rng.normal(size=n)
    return X


def compare(device, objective, X, dtype="float64", tolerance=1e-9):
    """Scores and gradients against the operations in float64 on dense data; two calls give the same bits."""
    n, d = X.shape
    mu, eps = np.random.default_rng(1).uniform(-0.2, 1.2, d).astype(dtype), gen.draws(0, d, count=3).astype(dtype)
    dense = scale_columns(X, "columns", "float64").X
    want, dmu = objective.value_and_grad(cpu, *(a.astype(np.float64) for a in (mu, eps)), dense)
    table = scale_sparse(sparse.csr_array(X), "columns", dtype, by_rows=False, bk=device).X
    engine, moved = CudaSparseEngine(), [device.xp.asarray(a) for a in (mu, eps)]
    (got, got_dmu), (again, again_dmu) = (engine(device, objective, *moved, table) for _ in range(2))
    np.testing.assert_array_equal(got_dmu.get(), again_dmu.get())
    np.testing.assert_array_equal(got.score, again.score)
    gen.assert_close(got_dmu.get(), dmu, tolerance, "gradient")
    assert abs(got.score - want.score).max() <= tolerance * (want.score.max() + n)
    gen.assert_close(got.bandwidth, want.bandwidth, tolerance)
    np.testing.assert_array_equal(got.degenerate, want.degenerate)
    assert got.isolated == pytest.approx(want.isolated)


@pytest.mark.parametrize("size", ["captured", "library products"])
@pytest.mark.parametrize(
    "objective",
    [Objective(), Objective(power=4, bandwidth="q90", lam=0.1), Objective(power=1, bandwidth=40.0),
     Objective(power=3, bandwidth="median", n_neighbors=5, self_loops=False), Objective(saturation=0.3)],
)  # fmt: skip
def test_sparse_numbers(device, monkeypatch, objective, size):
    if size == "library products":
        monkeypatch.setattr(gpu_plan, "CAPTURED_WORK", 0)
        monkeypatch.setattr(gpu_plan, "ELEMENTS_TOGETHER", 0)
        monkeypatch.setattr(cuda_sparse, "COLUMNS", 3)
    compare(device, objective, counts())
    compare(device, objective, counts(), "float32", 1e-3)


@pytest.mark.parametrize("columns", [slice(0, 15), slice(22, 29)])
def test_only_sparse_or_only_dense_columns(device, columns):
    compare(device, Objective(), counts()[:, columns])


def test_gradient_of_the_sparse_engine(device):
    chain = next(op for op in registered() if op.is_chain and "batch" in op.name)
    result = suite.check_gradients(device, chain, "cuda_sparse", engines()["cuda_sparse"].load(), 1, 2)
    assert not result.failures, result.failures[0]


class OnDevice:
    """What the library uses of a matrix of cupyx.scipy.sparse (test_names.py asks the real one)."""

    __module__ = "cupyx.scipy.sparse._csr"

    def __init__(self, matrix):
        self._matrix, self.format, self.shape, self.dtype = matrix, matrix.format, matrix.shape, matrix.dtype
        self.data = fake_cupy.ndarray(matrix.data)

    def get(self):
        return self._matrix.copy()

    def tocsc(self):
        return OnDevice(self._matrix.tocsc())

    def asformat(self, name):
        return OnDevice(self._matrix.asformat(name))

    def __getitem__(self, key):
        rows, columns = key
        return OnDevice(self._matrix[rows, columns.get()])


@pytest.mark.stand_in
@pytest.mark.parametrize("batch_size", [None, 15])
@pytest.mark.parametrize("make", [sparse.csr_matrix, sparse.csc_array])
def test_sparse_fits_from_either_side(on_gpu, batch_size, make):  # noqa: F811
    X = make(counts())
    settings = QUICK | {"batch_size": batch_size}
    want = gated(**settings, backend="numpy").fit(X)
    before = fake_cupy.Device.entered
    for given, backend in ((X, "cupy"), (OnDevice(X), "auto"), (OnDevice(X), "cupy")):
        got = gated(**settings, backend=backend).fit(given)
        np.testing.assert_allclose(got.mu_, want.mu_, rtol=1e-8)
        np.testing.assert_array_equal(got.order_, want.order_)
        assert got.excess_score_ == pytest.approx(want.excess_score_, abs=1e-9)
        assert (got.engine_, got.backend_) == ("cuda_sparse", "cupy")
    assert fake_cupy.Device.entered >= before + 2
    selected = got.transform(OnDevice(X))
    assert selected.format == X.format
    np.testing.assert_array_equal(selected.get().toarray(), want.transform(X).toarray())
    assert got.transform(OnDevice(X[:1])).shape == (1, got.support_.sum())
    assert gated(**settings, backend="auto").fit(X).backend_ == "numpy"  # where it lives


@pytest.mark.stand_in
def test_sparse_fits_together(on_gpu):  # noqa: F811
    X = sparse.csr_array(counts())
    selectors = [gated(**QUICK | {"random_state": seed}, backend="cupy") for seed in (0, 1)]
    for got in fit_many(selectors, OnDevice(X)):
        alone = gated(**QUICK | {"random_state": got.random_state}, backend="cupy").fit(X)
        np.testing.assert_array_equal(got.mu_, alone.mu_)


@pytest.mark.stand_in
@pytest.mark.parametrize(
    ("parameters", "message"),
    [({"engine": "cuda"}, "engine='cuda' cannot take sparse X"),
     ({"gate_noise": "sample"}, 'gate_noise="sample" cannot take sparse X'),
     ({"max_memory": 1000}, "engine 'cuda_sparse'")],
)  # fmt: skip
def test_what_sparse_data_on_a_device_cannot_have(on_gpu, parameters, message):  # noqa: F811
    with pytest.raises((ValueError, MemoryLimitError), match=message):
        gated(**QUICK | parameters).fit(OnDevice(sparse.csr_array(counts())))


@pytest.mark.stand_in
def test_sparse_steps_on_a_full_device(device, monkeypatch):
    monkeypatch.setitem(fake_cupy.limits, "array", 1000)
    with pytest.raises(MemoryLimitError, match=r"no memory left for sparse steps over 40 rows and 30 columns with 3"):
        compare(device, Objective(), counts())


@pytest.mark.stand_in
def test_the_sparse_engine_takes_what_is_predicted(device):
    """Traced peaks on the stand-in device, whose arrays are NumPy's, with the columns already there."""
    device.xp.launches = deque(maxlen=0)  # keeps nothing
    for n, d, density, power in ((100, 150, 0.03, 2), (100, 150, 0.4, 3)):
        X = sparse.random(n, d, density, format="csr", random_state=0)
        table = scale_sparse(X, "columns", "float32", by_rows=False, bk=device).X
        engine, objective = CudaSparseEngine(), Objective(power=power)
        arrays = [device.xp.asarray(a.astype(np.float32)) for a in (np.full(d, 0.5), gen.draws(0, d, count=4) / 10)]
        engine(device, objective, *arrays, table)
        tracemalloc.start()
        try:
            engine(device, objective, *arrays, table)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        problem = StepSize(n, d, 4, 4, power, dense_columns=int((~table.sparse_columns).sum()))
        predicted = predicted_bytes("cuda_sparse", problem)
        buffers = 10**5  # of NumPy, where it sums float32 numbers in float64
        assert 0.8 * predicted <= peak <= 1.05 * predicted + buffers, (n, d, peak, predicted)


def test_sparse_is_an_engine_of_this_backend(device):
    engine = get_engine("sparse", device, 1, sparse=True)
    assert engine.name == "cuda_sparse"
    assert isinstance(engine, CudaSparseEngine)
