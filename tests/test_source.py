"""Minibatch fits on data that stay on disk: the same numbers as from memory, and never all of them in memory."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc

import generators as gen
import numpy as np
import pytest
from generators import gated
from scipy import sparse
from sklearn.base import clone

from dufs_core import GatedLaplacian
from dufs_core.backend import get_backend
from dufs_core.baselines import LaplacianScore
from dufs_core.data import on_disk as source_module
from dufs_core.data.accept import dense_part
from dufs_core.data.dense import scale_columns
from dufs_core.data.on_disk import OnDiskMatrix, is_on_disk, statistics
from dufs_core.objective.engines.choose import predicted_bytes
from dufs_core.objective.protocol import StepSize
from dufs_core.selection.memory import chunk_bytes

bk = get_backend("numpy")
QUICK = {
    "max_iter": 25, "max_runs": 1, "n_draws": 2, "random_state": 0, "backend": "numpy", "batch_size": 31, "tol": 0.0,
}  # fmt: skip
pytestmark = pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")


def table(dtype=np.float64):
    """Clusters, a constant 0.3 (N9), a column at 1e4 + 0.1 N(0, 1) (N1)."""
    X = np.ascontiguousarray(gen.three_clusters(n=100).X * 10)
    X[:, 4] = 0.3
    X[:, 5] = 1e4 + 0.1 * X[:, 5]
    return X.astype(dtype)


def on_disk(kind, X, folder):
    if kind == "memmap":
        np.save(folder / "X.npy", X)
        return np.load(folder / "X.npy", mmap_mode="r")
    if kind == "fortran memmap":
        np.save(folder / "X.npy", np.asfortranarray(X))
        return np.load(folder / "X.npy", mmap_mode="r")
    if kind == "zarr":
        zarr = pytest.importorskip("zarr")
        stored = zarr.create_array(store=str(folder / "X.zarr"), shape=X.shape, chunks=(7, X.shape[1]), dtype=X.dtype)
        stored[:] = X
        return stored
    h5py = pytest.importorskip("h5py")
    file = h5py.File(folder / "X.h5", "w")  # stays open as long as its dataset
    return file.create_dataset("X", data=X, chunks=(7, X.shape[1]), compression="gzip")


class CountedSlices:
    """A source that allows nothing but slices of rows, and remembers the longest."""

    def __init__(self, X, sparse_rows=False):
        self.X, self.shape, self.dtype, self.longest = X, X.shape, X.dtype, 0
        self.sparse_rows = sparse_rows

    def __getitem__(self, rows):
        assert isinstance(rows, slice)
        part = self.X[rows]
        self.longest = max(self.longest, part.shape[0])
        return sparse.csr_array(part) if self.sparse_rows else part


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of 8 rows, and rows further than 2 apart read on their own."""
    monkeypatch.setattr(source_module, "CHUNK_BYTES", 8 * 10 * 8)
    monkeypatch.setattr(source_module, "_GAP_BYTES", 8 * 10 * 2)


@pytest.mark.parametrize("kind", ["memmap", "fortran memmap", "hdf5", "zarr"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int16, ">f8"])
def test_fit_equals_memory(kind, dtype, tmp_path, small_chunks):
    X = table(dtype)
    stored = on_disk(kind, X, tmp_path)
    assert is_on_disk(stored)
    fit = gated(**QUICK, dtype="float64").fit(stored)
    memory = gated(**QUICK, dtype="float64").fit(X)
    np.testing.assert_allclose(fit.mu_, memory.mu_, atol=1e-8)
    np.testing.assert_array_equal(fit.order_, memory.order_)
    np.testing.assert_array_equal(fit.constant_features_, memory.constant_features_)
    assert fit.excess_score_ == pytest.approx(memory.excess_score_, abs=1e-8)
    np.testing.assert_array_equal(np.asarray(stored[:]), X)
    once_more = gated(**QUICK, dtype="float64").fit(CountedSlices(X))
    np.testing.assert_array_equal(once_more.mu_, fit.mu_)  # the container changes no bit


@pytest.mark.parametrize("scaling", ["columns", "global", "none"])
@pytest.mark.parametrize("sparse_rows", [False, True])
def test_rows_equal_prepared(scaling, sparse_rows, small_chunks):
    X = table()
    expected = scale_columns(X, scaling, "float64")
    stored = CountedSlices(X, sparse_rows)
    found = OnDiskMatrix(bk, stored, scaling, "float64")
    rows = np.array([99, 3, 4, 50, 3, 0])
    np.testing.assert_array_equal(found.constant, expected.constant)
    np.testing.assert_allclose(found.take_rows(rows), expected.X[rows], atol=1e-9)
    assert found.take_rows(rows).flags.f_contiguous
    some = found.take_columns(np.array([9, 5, 4])).take_columns(np.array([1, 0]))
    assert some.shape == (100, 2)
    np.testing.assert_allclose(some.take_rows(rows), expected.X[np.ix_(rows, [5, 9])], atol=1e-9)
    np.testing.assert_allclose(some.dense_block(slice(None), np.array([1])), expected.X[:, [9]], atol=1e-9)
    assert stored.longest <= 8


def test_statistics_keep_the_digits(small_chunks):
    """1e8 + N(0, 1): the textbook sum of squares has no digit of the variance left in float64."""
    X = 1e8 + np.random.default_rng(0).normal(size=(1000, 10))
    mean, squares, _, _ = statistics(CountedSlices(X))
    centred = X - X.mean(axis=0)
    np.testing.assert_allclose(squares, (centred**2).sum(axis=0), rtol=1e-7)
    np.testing.assert_allclose(mean, X.mean(axis=0), rtol=1e-14)


def test_one_gate_a_sample_and_wrapped_batches():
    """Rows twice in a batch (the authors' shuffles run on), noise by row."""
    X = table()
    settings = {**QUICK, "conventions": GatedLaplacian.preset("authors_code").conventions, "dtype": "float64"}
    fit, memory = gated(**settings).fit(CountedSlices(X)), gated(**settings).fit(X)
    np.testing.assert_allclose(fit.mu_, memory.mu_, atol=1e-8)


def test_not_finite(small_chunks):
    X = table()
    X[3, 7], X[60, 2], X[61, 7] = np.nan, np.inf, -np.inf
    with pytest.raises(ValueError, match="3 of 1000 values, the first in column 2"):
        gated(**QUICK).fit(CountedSlices(X))


@pytest.mark.parametrize("factor", [1e200, 1e-200])
def test_squares_beyond_float64(factor):
    X = table()
    X[:, 2] *= factor
    with pytest.raises(ValueError, match="Column 2 runs from"):
        gated(**QUICK).fit(CountedSlices(X))


def test_not_numbers():
    with pytest.raises(ValueError, match="Complex data not supported"):
        gated(**QUICK).fit(CountedSlices(table().astype(complex)))


@pytest.mark.parametrize("method", [gated(**QUICK, dtype="float64"), LaplacianScore()], ids=["DUFS", "baseline"])
@pytest.mark.parametrize("sparse_rows", [False, True])
def test_transform_checks_what_it_reads(method, sparse_rows, small_chunks):
    """One row is enough; no row, no numbers, NaN are refused. No read is longer than a chunk."""
    X = table()
    fitted = clone(method).fit(X)
    stored = CountedSlices(X, sparse_rows)
    found = fitted.transform(stored)
    assert sparse.issparse(found) == sparse_rows
    np.testing.assert_array_equal(found.toarray() if sparse_rows else found, X[:, fitted.support_])
    assert stored.longest == 8
    assert fitted.transform(CountedSlices(X[:1], sparse_rows)).shape == (1, fitted.support_.sum())
    with pytest.raises(ValueError, match=r"0 sample\(s\) .* minimum of 1 is required"):
        fitted.transform(CountedSlices(X[:0], sparse_rows))
    with pytest.raises(ValueError, match="must hold real numbers; its dtype is object"):
        fitted.transform(CountedSlices(X.astype(object), sparse_rows))
    X[3, 7], X[60, 2], X[61, 7] = np.nan, np.inf, -np.inf
    with pytest.raises(ValueError, match="3 of 1000 values, the first in column 2"):
        fitted.transform(CountedSlices(X, sparse_rows))


@pytest.mark.parametrize("sparse_rows", [False, True])
def test_a_part_reads_the_rows_it_needs(sparse_rows, small_chunks):
    X = table()
    stored = CountedSlices(X, sparse_rows)
    rows, columns = np.array([3, 4, 50, 99]), np.array([9, 0])
    np.testing.assert_array_equal(dense_part(stored, rows, columns), X[np.ix_(rows, columns)])
    assert stored.longest == 2


def test_anndata(tmp_path):
    """Backed mode: dense, and sparse by rows; without batch_size sparse rows are loaded and stay sparse."""
    anndata = pytest.importorskip("anndata")
    X = table()
    for name, stored in (("dense", X), ("sparse", sparse.csr_matrix(X))):
        anndata.AnnData(stored).write_h5ad(tmp_path / f"{name}.h5ad")
        backed = anndata.read_h5ad(tmp_path / f"{name}.h5ad", backed="r")
        fit, memory = (
            gated(**QUICK, dtype="float64").fit(backed.X),
            gated(**QUICK, dtype="float64").fit(X),
        )
        np.testing.assert_allclose(fit.mu_, memory.mu_, atol=1e-8)
        assert fit.engine_ == memory.engine_
        whole = gated(**QUICK | {"batch_size": None, "max_iter": 2}).fit(backed.X)
        assert whole.engine_ == ("sparse" if name == "sparse" else memory.engine_)
        backed.file.close()


def test_a_minibatch_fit_does_not_load_the_data(tmp_path):
    """60,000 x 500 float32, 120 MB on disk; the peak of a fresh process. Pages of the file can be given back."""
    path = tmp_path / "X.npy"
    stored = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(60_000, 500))
    rng = np.random.default_rng(0)
    for start in range(0, len(stored), 6000):
        stored[start : start + 6000] = rng.normal(size=(6000, 500))
    stored.flush()
    code = (
        "import sys, warnings, numpy as np\n"
        "from dufs_core import GatedLaplacian\n"
        "warnings.simplefilter('ignore')\n"
        "def anonymous(name):\n"
        "    lines = open('/proc/self/status').read().splitlines()\n"
        "    return int(next(line.split()[1] for line in lines if line.startswith(name)))\n"
        "settings = dict(max_iter=2, max_runs=1, random_state=0, n_draws=2, backend='numpy')\n"
        "GatedLaplacian(**settings).fit(np.random.default_rng(0).normal(size=(20, 5)))\n"
        "before, peak = anonymous('RssAnon'), 0\n"
        "def look(info):\n"
        "    global peak\n"
        "    peak = max(peak, anonymous('RssAnon'))\n"
        "GatedLaplacian(**settings, batch_size=300, callbacks=[look]).fit(np.load(sys.argv[1], mmap_mode='r'))\n"
        "print(peak - before)"
    )
    if not sys.platform.startswith("linux"):
        pytest.skip("/proc/self/status is Linux's")
    command = [sys.executable, "-c", code, str(path)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert int(out) < 90_000  # kB; the scaled copy alone would be 120,000


def test_predicted_memory(tmp_path):
    """Within a fifth of the traced peak, which is more than 100 MB; the mapped file itself is not traced."""
    stored = np.lib.format.open_memmap(tmp_path / "X.npy", mode="w+", dtype=np.float32, shape=(4000, 2500))
    for start in range(0, 4000, 500):
        stored[start : start + 500] = np.random.default_rng(start).normal(size=(500, 2500))
    settings = {"max_iter": 2, "max_runs": 1, "random_state": 0, "n_draws": 2, "backend": "numpy", "n_jobs": 1}
    settings |= {
        "lam": 370.0,
        "optimizer": "sgd",
    }  # all gates are closed after the first step, decided after the second
    gated(**settings).fit(np.array(stored[:20, :30]))
    problem = StepSize(2000, 2500, 2, 4, threads=1)
    predicted = chunk_bytes(problem.n, problem.d, problem.itemsize) + predicted_bytes("dense", problem)
    tracemalloc.start()
    try:
        gated(**settings, batch_size=2000).fit(stored)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak > 100e6
    assert abs(predicted / peak - 1) < 0.2, (predicted, peak)


@pytest.mark.parametrize("ending", ["npy", "h5"])
def test_command_line(ending, tmp_path, capsys):
    """With --batch-size the file is read by the fit; the result is that of the table in memory."""
    from dufs_core.cli.main import main
    from dufs_core.data.files import read_table

    X, path = table(), tmp_path / f"X.{ending}"
    if ending == "npy":
        np.save(path, X)
    else:
        with pytest.importorskip("h5py").File(path, "w") as file:
            file["X"], file["Y"] = X, np.arange(100)
    assert is_on_disk(read_table(path, on_disk=True).X)
    options = [
        "--method",
        "gates",
        "--batch-size",
        "31",
        "--max-iter",
        "25",
        "--max-runs",
        "1",
        "--n-draws",
        "2",
        "--tol",
        "0",
    ]
    options += ["--dtype", "float64", "--backend", "numpy", "--json", "--quiet"]
    assert main(["fit", str(path), *options]) == 0
    scores = json.loads(capsys.readouterr().out)["scores"]
    memory = gated(**QUICK, dtype="float64").fit(X)
    np.testing.assert_allclose(scores, memory.scores_, atol=1e-8)
