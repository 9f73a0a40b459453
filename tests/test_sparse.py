"""Sparse X gives what dense X gives, stays sparse, and is not written to (T1, T5, T6, N1, N9, N12)."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc

import generators as gen
import numpy as np
import pytest
from generators import gated
from scipy import sparse

from dufs_core import DUFS, report, stability_selection
from dufs_core.backend import get_backend
from dufs_core.baselines import LaplacianScore
from dufs_core.data.dense import scale_columns
from dufs_core.data.sparse import scale_sparse
from dufs_core.errors import MemoryLimitError
from dufs_core.objective.chain import Objective, dense_scores_and_grad
from dufs_core.objective.engines.choose import get_engine
from dufs_core.objective.engines.cpu_sparse import SparseEngine
from dufs_core.selection.fit import FitTask
from dufs_core.selection.memory import needed_bytes
from dufs_core.significance.permutation import permutation_test

bk = get_backend("numpy")
QUICK = {"max_iter": 60, "max_runs": 1, "n_draws": 2, "random_state": 0, "backend": "numpy", "tol": 0.0}
pytestmark = pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")


def counts(n=90, d=60, seed=0):
    """Thin and spread columns; empty and full ones, a constant 0.3, one at 1e4 + 0.1 N(0, 1) (N1), an empty row."""
    rng = np.random.default_rng(seed)
    X = rng.normal(2.0, 1.0, size=(n, d)) * (rng.random((n, d)) < np.where(np.arange(d) < 45, 0.06, 0.5))
    X[7] = 0
    X[:, 3] = 0
    X[:, 4] = 0.3
    X[:, 5] = 1e4 + 0.1 * rng.normal(size=n)
    X[:, :2] = 0
    X[::11, :2] = rng.normal(3, 0.3, size=(len(X[::11]), 2))  # two that agree
    return X


def with_explicit_zeros(X):
    """CSR that stores some of the zeros, with int64 indices."""
    rows, columns = np.nonzero((X != 0) | (np.add.outer(np.arange(X.shape[0]), np.arange(X.shape[1])) % 5 == 0))
    indptr = np.searchsorted(rows, np.arange(X.shape[0] + 1)).astype(np.int64)
    stored = sparse.csr_array((X[rows, columns], columns.astype(np.int64), indptr), shape=X.shape)
    stored.indices, stored.indptr = stored.indices.astype(np.int64), stored.indptr.astype(np.int64)
    return stored


def unsorted_duplicates(X):
    """CSC whose rows come backwards, every entry in two halves."""
    rows = [np.repeat(np.flatnonzero(column)[::-1], 2) for column in X.T]
    indptr = np.concatenate([[0], np.cumsum([len(r) for r in rows])])
    values = np.concatenate([X[r, k] / 2 for k, r in enumerate(rows)])
    return sparse.csc_array((values, np.concatenate(rows), indptr), shape=X.shape)


def bytes_of(X):
    return [getattr(X, part).tobytes() for part in ("data", "indices", "indptr")]


@pytest.mark.parametrize("scaling", ["columns", "global", "none"])
@pytest.mark.parametrize("make", [sparse.csr_array, sparse.csc_matrix, with_explicit_zeros, unsorted_duplicates])
def test_prepared_as_dense(scaling, make):
    X = counts()
    given = make(X)
    before = bytes_of(given)
    expected, found = scale_columns(X, scaling, "float64"), scale_sparse(given, scaling, "float64", by_rows=False)
    assert bytes_of(given) == before
    np.testing.assert_array_equal(found.constant, expected.constant)
    assert set(np.flatnonzero(found.constant)) == {3, 4}
    everything = found.X.dense_block(slice(None), np.arange(X.shape[1]))
    np.testing.assert_allclose(everything, expected.X, atol=1e-9)  # of 1e4: 12 digits
    rows = np.array([5, 80, 7])
    by_rows = scale_sparse(given, scaling, "float64", by_rows=True).X
    np.testing.assert_array_equal(by_rows.dense_block(rows, np.array([50, 5, 2])), everything[np.ix_(rows, [50, 5, 2])])
    np.testing.assert_array_equal(by_rows.take_rows(rows).dense_block(slice(None), np.arange(60)), everything[rows])


def compare(X, objective, dtype, tolerance):
    """Scores and derivatives of draws with one and three threads against the operations in float64, in units of n."""
    n, d = X.shape
    data = scale_sparse(sparse.csr_array(X), "columns", dtype, by_rows=False).X
    z = np.clip(0.5 + np.random.default_rng(0).normal(size=(3, d)) / 2, 0, 1)
    undecided = (z > 0) & (z < 1)
    exact = dense_scores_and_grad(bk, objective, scale_columns(X, "columns", "float64").X, z, undecided)
    z = z.astype(dtype)
    one, three = (SparseEngine(threads)._scores_and_grad(bk, objective, data, z, undecided) for threads in (1, 3))
    for found, again in zip(one, three, strict=True):
        np.testing.assert_array_equal(found, again)
    assert one.dz.dtype == dtype
    assert abs(one.S - exact.S).max() <= tolerance * (exact.S.max() + n)
    assert abs(one.dz - np.where(undecided, exact.dz, 0)).max() <= tolerance * n
    gen.assert_close(one.b, exact.b, tolerance, "b")


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("float32", 1e-4)])
@pytest.mark.parametrize(
    "objective",
    [
        Objective(),
        Objective(power=4, bandwidth="q90"),
        Objective(power=1, bandwidth=90.0),
        Objective(power=3, self_loops=False),
        Objective(saturation=0.3),
    ],
)
def test_engine_equals_operations(objective, dtype, tolerance):
    compare(np.hstack([counts(), counts(seed=1)]), objective, dtype, tolerance)


def test_threads_share_one_draw():
    """Enough rows for three threads to be worth their while, and spread columns in two chunks."""
    thin, spread = sparse.random(400, 300, 0.05, random_state=0), sparse.random(400, 700, 0.3, random_state=1)
    compare(sparse.hstack([thin, spread]).toarray(), Objective(), "float32", 1e-4)


def test_close_neighbours_far_from_zero():
    """N1: every value stored, at 1e4 + 0.1 N(0, 1); the distances in float32 are those of float64."""
    X = 1e4 + 0.1 * np.random.default_rng(0).normal(size=(40, 50))
    data = scale_sparse(sparse.csr_array(X), "none", "float32", by_rows=False).X
    everything = np.ones((1, 50), np.float32)
    value, _ = get_engine("auto", bk, 1, sparse=True)(bk, Objective(), everything[0] * 3, 0 * everything, data)
    exact, _ = Objective().value_and_grad(
        bk, np.full(50, 3.0), np.zeros((1, 50)), scale_columns(X, "none", "float64").X
    )
    gen.assert_close(value.bandwidth, exact.bandwidth, 1e-4, "b")
    gen.assert_close(value.score, exact.score, 1e-4, "S")


@pytest.mark.parametrize("scaling", ["columns", "global"])
def test_fit_equals_dense(scaling):
    X = counts()
    dense = gated(**QUICK, scaling=scaling, dtype="float64").fit(X)
    for given in (sparse.csr_matrix(X), with_explicit_zeros(X), sparse.coo_array(X), unsorted_duplicates(X)):
        before = given.data.tobytes()
        fit = gated(**QUICK, scaling=scaling, dtype="float64").fit(given)
        assert given.data.tobytes() == before
        assert fit.engine_ == "sparse"
        np.testing.assert_allclose(fit.mu_, dense.mu_, atol=1e-6)
        np.testing.assert_array_equal(fit.order_, dense.order_)
        np.testing.assert_array_equal(fit.constant_features_, [3, 4])
        assert fit.excess_score_ == pytest.approx(dense.excess_score_, abs=1e-9)
        selected = fit.transform(given)
        assert sparse.issparse(selected)
        np.testing.assert_allclose(selected.toarray(), X[:, fit.support_])


def test_minibatches_equal_dense():
    X = counts()
    settings = {**QUICK, "batch_size": 31, "dtype": "float64", "max_iter": 20}
    dense, fit = gated(**settings).fit(X), gated(**settings).fit(sparse.csc_array(X))
    np.testing.assert_allclose(fit.mu_, dense.mu_, atol=1e-6)
    np.testing.assert_array_equal(fit.order_, dense.order_)


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.bool_, np.float32])
def test_other_dtypes(dtype):
    X = (counts() * 3).clip(0, 100).astype(dtype)
    settings = {**QUICK, "max_iter": 10, "dtype": "float64"}
    np.testing.assert_allclose(
        gated(**settings).fit(sparse.csr_array(X)).mu_,
        gated(**settings).fit(np.asarray(X)).mu_,
        atol=1e-6,
    )


@pytest.mark.parametrize("make", [sparse.csr_array, sparse.csc_array])
def test_not_finite(make):
    X = counts()
    X[3, 50], X[9, 40], X[11, 50] = np.nan, np.inf, -np.inf
    with pytest.raises(ValueError, match="3 of 5400 values, the first in column 40"):
        gated(**QUICK).fit(make(X))


def damaged():
    """Name -> a sparse matrix (90, 60) whose index arrays were changed after it was made, and what is said of them."""
    made = {}

    def add(name, kind, part, position, value, said, dtype="int32"):
        X = sparse.csr_array(counts()).tobsr((2, 3)) if kind == "bsr_array" else getattr(sparse, kind)(counts())
        if kind == "coo_array":
            X.coords = tuple(part.astype(dtype) for part in X.coords)
        elif kind != "lil_array":
            X.indices, X.indptr = X.indices.astype(dtype), X.indptr.astype(dtype)
        array = getattr(X, part)
        if position is None:
            setattr(X, part, value(array))
        else:
            array[position] = value
        made[name] = X, said

    for dtype, beyond in (("int32", 1 << 30), ("int64", 1 << 40)):
        for kind in ("csr_array", "csc_matrix", "bsr_array"):

            def damage(name, part, position, value, said, kind=kind, dtype=dtype):
                add(f"{kind} {dtype}: {name}", kind, part, position, value, said, dtype)

            damage("too large", "indices", 5, beyond, "must be < ")
            damage("negative", "indices", 5, -1, "must be >= 0")
            damage("falls", "indptr", 30, beyond, "non-decreasing sequence")
            damage("below zero", "indptr", 30, -1, "non-decreasing sequence")
            least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
            damage("falls, and its differences do not", "indptr", slice(1, 5), [most, least, -1, 0], "indptr falls")
            damage("falls to nothing", "indptr", None, lambda a: np.append(a[:-1], 0).astype(a.dtype), "indptr falls")
            damage("falls below nothing", "indptr", -1, -7, "indptr falls")
            damage("start", "indptr", 0, 1, "index pointer should start with 0")
            damage("end", "indptr", -1, beyond, "should be less than the size of index and data arrays")
            damage("short", "indptr", None, lambda a: a[:-1], "index pointer size")
            damage("fewer values", "data", None, lambda a: a[:-1], "should have the same size")
            damage("more indices", "indices", None, lambda a: np.append(a, a[:3]), "should have the same size")
            damage("a table", "indices", None, lambda a: a[:, None], "should be 1-D")
            for part in ("indices", "indptr"):
                damage(f"fractions in {part}", part, None, lambda a: a + 0.5, f"{part} holds float64, not whole")
                damage(f"objects in {part}", part, None, lambda a: a.astype(object), f"{part} holds object, not whole")
        add(f"coo row {dtype}", "coo_array", "row", 5, 90, "axis 0 index 90 exceeds matrix dimension 90", dtype)
        add(f"coo column {dtype}", "coo_array", "col", 5, -7, "negative axis 1 index: -7", dtype)
    add("coo fractions", "coo_array", "coords", None, lambda a: (a[0] + 0.5, a[1]), "row holds float64, not whole")
    add("coo values", "coo_array", "data", None, lambda a: a[:-1], "must have the same length")
    add("bsr blocks", "bsr_array", "data", None, lambda a: np.repeat(a, 7, axis=1), "blocks of shape")
    add("bsr nothing", "bsr_array", "data", None, lambda a: a[:, :0], "blocks of shape")
    add("lil column", "lil_array", "rows", 3, [5, 99], r"90 lists of \d+ columns, 90 of \d+ values")
    X = sparse.lil_array(counts())
    X.rows[3][0] = 60
    made["lil index"] = X, "must be < 60"
    X = sparse.dok_array(counts())
    X._dict[3, 60] = 1.0
    made["dok index"] = X, "axis 1 index 60"
    X = sparse.dia_array((np.ones((2, 60)), [0, 1]), shape=(90, 60))
    X.offsets = X.offsets[:-1]
    made["dia"] = X, "number of diagonals"
    X = sparse.dia_array((np.ones((2, 60)), [0, 1]), shape=(90, 60))
    X.offsets = np.array([0, 1.5])
    made["dia fractions"] = X, "offsets holds float64, not whole numbers"
    return made


DAMAGED = damaged()


@pytest.fixture(scope="module")
def fitted():
    return gated(**QUICK).fit(counts())


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_index_arrays_are_refused(name, fitted):
    X, said = DAMAGED[name]
    for use in (DUFS().fit, LaplacianScore().fit, fitted.transform, lambda X: report(fitted, X)):
        with pytest.raises(ValueError, match=rf"damaged index arrays: .*{said}"):
            use(X)
    with pytest.raises(ValueError, match="damaged index arrays"):
        stability_selection(gated(**QUICK), X)


def test_damaged_rows_on_a_disk():
    class Stored:
        shape, dtype = (90, 60), np.dtype(float)

        def __getitem__(self, rows):
            part = sparse.csr_array(counts()[rows])
            part.indices[:] = 1 << 30
            return part

    for fit in (gated(batch_size=20), DUFS()):
        with pytest.raises(ValueError, match="damaged index arrays"):
            fit.fit(Stored())


@pytest.mark.parametrize("make", [sparse.csr_array, sparse.csc_matrix])
def test_what_a_matrix_says_of_its_order_is_not_believed(make):
    """Duplicates and columns out of order, said to be canonical; spare room behind the entries, with NaN in it."""
    X = np.ascontiguousarray(counts().T) if make is sparse.csc_matrix else counts()
    indptr = np.concatenate([[0], np.cumsum(2 * np.count_nonzero(X, axis=1))])
    columns = np.concatenate([np.repeat(np.flatnonzero(row)[::-1], 2) for row in X])
    values = np.repeat(X, 2, axis=1)[:, ::-1]
    values = values[values != 0] / 2
    given = make((90, 60))
    given.data, given.indices = np.append(values, np.nan), np.append(columns, -1).astype(np.int32)
    given.indptr = indptr.astype(np.int32)
    given.has_sorted_indices = given.has_canonical_format = True
    X = X if make is sparse.csr_array else X.T
    settings = {**QUICK, "dtype": "float64", "max_iter": 5, "engine": "sparse"}
    fit, expected = gated(**settings).fit(given), gated(**settings).fit(make(X))
    np.testing.assert_allclose(fit.mu_, expected.mu_, atol=1e-10)
    assert given.indices[-1] == -1  # X is as it was


def test_nothing_stored():
    fit = gated(**QUICK).fit(sparse.csr_array((20, 5)))
    assert len(fit.constant_features_) == 5
    assert np.isnan(fit.mu_).all()
    assert np.isfinite(fit.scores_).all()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"engine": "dense"}, "engine='dense' cannot take sparse X"),
        ({"engine": "reference"}, "engine='reference' cannot take sparse X"),
        ({"gate_noise": "sample"}, 'gate_noise="sample" cannot take sparse X'),
    ],
)
def test_what_sparse_data_cannot_have(parameters, message):
    with pytest.raises(ValueError, match=message):
        gated(**QUICK | parameters).fit(sparse.csr_array(counts()))


def test_the_engine_takes_nothing_else():
    with pytest.raises(ValueError, match='engine="sparse" takes sparse X'):
        gated(**QUICK, engine="sparse").fit(counts())


def test_sparse_on_a_device():
    matrix = type("csr_matrix", (), {"__module__": "cupyx.scipy.sparse._csr", "shape": (5, 5), "dtype": np.dtype("f4")})
    with pytest.raises(ValueError, match="X lives on a GPU, and the NumPy backend"):
        gated(**QUICK).fit(matrix())


@pytest.mark.parametrize("saturation", [None, 0.3])
def test_predicted_memory(saturation):
    """Within a fifth of the traced peak, where that is some hundred MB."""
    X = sparse.random(2400, 20_000, 0.02, format="csr", random_state=0, dtype=np.float32)
    settings = {"max_iter": 1, "max_runs": 1, "random_state": 0, "n_draws": 2, "backend": "numpy", "n_jobs": 1}
    settings |= {"lam": 1e4, "optimizer": "sgd", "saturation": saturation}  # all gates close
    gated(**settings).fit(X[:20, :30])
    predicted = needed_bytes("sparse", *FitTask.begin(gated(**settings), X, threads=1).memory)
    tracemalloc.start()
    try:
        gated(**settings).fit(X)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak > 100e6
    assert abs(predicted / peak - 1) < 0.2, (predicted, peak)
    with pytest.raises(MemoryLimitError, match="engine 'sparse'"):
        gated(**settings, max_memory=10**8).fit(X)


def test_permutation_gap_in_blocks(monkeypatch):
    """Many columns are read a few at a time; the gap is that of all at once."""
    data = scale_sparse(sparse.csr_array(counts()), "columns", "float64", by_rows=False).X
    columns = np.arange(8, 60)
    everything = data.dense_block(slice(None), np.arange(60))
    at_once = permutation_test(bk, everything, columns)
    monkeypatch.setattr("dufs_core.significance.permutation.WORDS", 90 * 5)
    assert permutation_test(bk, data, columns).excess == pytest.approx(at_once.excess, abs=1e-12)


def test_a_fit_does_not_densify():
    """1000 x 100,000 with 200,000 entries, 400 MB in dense float32, fits in 100 MB. The peak of a fresh process."""
    code = (
        "import resource, warnings, scipy.sparse\n"
        "from dufs_core import GatedLaplacian\n"
        "warnings.simplefilter('ignore')\n"
        "settings = dict(max_iter=2, max_runs=1, random_state=0, n_draws=2, backend='numpy', lam=1e3,\n"
        "    optimizer='sgd')\n"  # all gates close: shuffling so many columns takes long
        "small = scipy.sparse.random(30, 40, 0.1, format='csr', random_state=0)\n"
        "X = scipy.sparse.random(1000, 100_000, 0.002, format='csr', random_state=0)\n"
        "GatedLaplacian(**settings).fit(small)\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "fit = GatedLaplacian(**settings, n_features_to_select=10).fit(X)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    kilobytes = 1 if sys.platform != "darwin" else 1000
    assert int(out) / kilobytes < 150_000
