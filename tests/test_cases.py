"""Inputs that broke comparable software, on every selector: what holds for one has to hold for all of them.

The cases carry letters: N numerics, S selection, T contract, M machines. Engines: test_numerics.py; sparse data:
test_sparse.py; data on disk: test_source.py; what one selector alone has: its own file.
"""

from __future__ import annotations

import pickle
import re
import threading
import tracemalloc
import warnings

import generators as gen
import numpy as np
import pandas as pd
import pytest
from generators import gated
from scipy import sparse
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from dufs_core import LambdaPath, report, stability_selection
from dufs_core.backend import get_backend
from dufs_core.baselines import LLCFS, MCFS, NDFS, SRCFS, ConcreteAutoencoder, LaplacianScore
from dufs_core.baselines.graphs import neighbours
from dufs_core.data import dense as data
from dufs_core.errors import IsolatedRowsWarning, MemoryLimitError, SelectionWarning
from dufs_core.objective.ops import distances, gram
from dufs_core.objective.rules import RECORD
from dufs_core.selection.fit import FitTask
from dufs_core.training.loop import Run

pytestmark = pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")
bk = get_backend("numpy")


def dufs(**changes):
    settings = {"max_iter": 6, "max_runs": 1, "n_draws": 2, "random_state": 0, "backend": "numpy"}
    return gated(**settings | changes)


def path(selector=None, **changes):
    settings = {"n_lams": 2, "n_splits": 1, "n_permutations": 9, "random_state": 0}
    return LambdaPath(dufs() if selector is None else selector, **(settings | changes))


ENGINES = {name: dufs(engine=name) for name in ("reference", "dense", "streaming")}
GATED = ENGINES | {
    "several runs": dufs(max_runs=3, max_iter=3),
    "batches": dufs(batch_size=21),
    "one gate a sample": dufs(gate_noise="sample"),
    "no self-loops": dufs(self_loops=False),
    "diverse": dufs(ranking="diverse", n_features_to_select=3),
    "path": path(),
}
BASELINES = {
    "LaplacianScore": LaplacianScore(),
    "random walk": LaplacianScore(variant="random_walk"),
    "MCFS": MCFS(n_clusters=2),
    "NDFS": NDFS(n_clusters=2, random_state=0),
    "LLCFS": LLCFS(n_clusters=2, max_iter=3),
    "SRCFS": SRCFS(n_partitions=3, n_subspaces=3, random_state=0),
    "ConcreteAutoencoder": ConcreteAutoencoder(max_iter=4, random_state=0),
}
ALL = GATED | BASELINES
every = pytest.mark.parametrize("selector", ALL.values(), ids=ALL)
every_gated = pytest.mark.parametrize("selector", GATED.values(), ids=GATED)
every_baseline = pytest.mark.parametrize("selector", BASELINES.values(), ids=BASELINES)


@pytest.fixture(scope="module")
def X():
    """42 x 6, two overlapping clusters in columns 1 and 4."""
    X = np.random.default_rng(7).normal(size=(42, 6))
    X[:, [1, 4]] += 3.0 * (np.arange(42)[:, None] % 2)
    return X


def fit(selector, X, **changes):
    return clone(selector).set_params(**changes).fit(X)


def ended_with(selector, X, mu):
    """The result of a fit whose gates are mu after six steps, at least one of them undecided."""
    run = Run(mu.astype(selector.dtype), np.zeros((6, len(RECORD))), converged=False)
    return FitTask.begin(selector, X).run(first=run)


def scaled(selector, scaling):
    name = "selector__scaling" if isinstance(selector, LambdaPath) else "scaling"
    return clone(selector).set_params(**{name: scaling})


def assert_same(a, b):
    for name in ("scores_", "order_", "support_"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)


def assert_sound(fitted):
    d = fitted.n_features_in_
    assert fitted.scores_.shape == (d,)
    assert np.isfinite(fitted.scores_).all()
    if getattr(fitted, "ranking", None) in (None, "gates"):
        np.testing.assert_array_equal(fitted.order_, np.argsort(-fitted.scores_, kind="stable"))
    else:
        assert sorted(fitted.order_) == list(range(d))
        assert fitted.support_[fitted.order_[:3]].all()


# --- numerics -------------------------------------------------------------------------------------------------------


@every_baseline
@pytest.mark.parametrize("scaling", ["columns", "global", "none"])
def test_n1_scores_survive_a_large_offset(selector, scaling, X):
    """float32 values at 1e4 score as the same values moved to 0 in float64 (the autoencoder's in its float32)."""
    raw = (1e4 + 0.1 * X).astype(np.float32)
    near = raw.astype(np.float64) - 1e4
    a, b = (fit(scaled(selector, scaling), values).scores_ for values in (raw, near))
    np.testing.assert_allclose(a, b, rtol=1e-3 if isinstance(selector, ConcreteAutoencoder) else 1e-5, atol=1e-8)


@every_gated
def test_n1_gates_survive_a_large_offset(selector, X):
    raw = (1e4 + 0.1 * X).astype(np.float32)
    np.testing.assert_allclose(fit(selector, raw).scores_, fit(selector, raw - np.float64(1e4)).scores_, atol=1e-4)


@pytest.mark.parametrize("unit", [1e20, 1e200])
def test_n2_huge_columns_of_paths_and_halves(unit, X):
    Z = X.copy()
    Z[:, 2] = np.arange(42) % 3 * unit
    assert_sound(fit(path(), Z))
    assert np.isfinite(stability_selection(dufs(), Z, n_subsamples=2, random_state=0).frequencies).all()
    assert len(report(fit(dufs(n_features_to_select=3), Z), Z).rows) == 6
    for Y in (Z, sparse.csr_array(Z)):
        with pytest.raises(ValueError, match="Column 2 reaches"):  # and no RuntimeWarning, which is an error here
            dufs(scaling="none").fit(Y)


@pytest.mark.parametrize(("dtype", "limit"), [("float32", 3e-8), ("float64", 1e-75)])
@pytest.mark.parametrize("kind", ["dense", "sparse", "on disk"])
def test_n2_units_too_small_for_squares_are_refused(dtype, limit, kind, X):
    """Without scaling, distances that vanish in the dtype would be taken for duplicate rows, and no gate would move."""

    def fitted(unit):
        Z = X * unit
        if kind == "sparse":
            Z = sparse.csr_array(Z)
        elif kind == "on disk":
            Z = SimpleSource(Z)
        settings = {"batch_size": 21} if kind == "on disk" else {}
        return dufs(scaling="none", dtype=dtype, **settings).fit(Z)

    np.testing.assert_allclose(fitted(limit * 10).mu_, fitted(1.0).mu_, atol=1e-4)
    with pytest.raises(
        ValueError, match=rf"No value is further than .* \(column \d\); squares of .* vanish in {dtype}"
    ):
        fitted(limit / 10)


class SimpleSource:
    def __init__(self, X):
        self.X, self.shape, self.dtype = X, X.shape, X.dtype

    def __getitem__(self, rows):
        return self.X[rows]


@every_baseline
def test_n2_baselines_refuse_what_they_cannot_square(selector, X):
    with pytest.raises(ValueError, match="vanish in float"):
        fit(scaled(selector, "none"), X * 1e-80)
    if isinstance(selector, LLCFS):  # its ridge has a unit
        with pytest.raises(ValueError, match=r"Column \d reaches .*e\+30 from its mean; .* ridge 1 / beta = 1 is lost"):
            fit(scaled(selector, "none"), X * 1e30)
    elif not isinstance(selector, ConcreteAutoencoder):
        assert_sound(fit(scaled(selector, "none"), X * 1e30))


def with_bandwidth(selector, **changes):
    path_to = next(name for name in selector.get_params() if name.rpartition("__")[2] == "bandwidth")
    prefix = path_to.removesuffix("bandwidth")
    return clone(selector).set_params(**{prefix + name: value for name, value in changes.items()})


HAVE_BANDWIDTH = [name for name in ALL if name not in ("LLCFS", "SRCFS", "ConcreteAutoencoder")]


@pytest.mark.parametrize("name", [*HAVE_BANDWIDTH, "stability", "sparse"])
def test_n3_a_bandwidth_far_too_small_is_said_once(name, X):
    """One warning with the share of isolated rows and a bandwidth, and with that bandwidth none."""

    def run(**changes):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if name == "stability":
                stability_selection(dufs(**changes), X, n_subsamples=4, random_state=0)
            elif name == "sparse":
                dufs(**changes).fit(sparse.csr_array(X))
            else:
                assert_sound(with_bandwidth(ALL[name], **changes).fit(X))
        return [str(w.message) for w in caught if w.category is IsolatedRowsWarning]

    (said,) = run(bandwidth=1e-6)
    assert "100% of the rows" in said
    assert 'Use a larger bandwidth: bandwidth="max"' in said
    assert run(bandwidth="max") == []


@pytest.mark.parametrize("selector", [dufs(self_loops=False), LaplacianScore(variant="random_walk")])
def test_n3_the_largest_bandwidth_with_a_small_factor(selector, X):
    factor = 1e-3 if isinstance(selector, LaplacianScore) else 0.01
    with pytest.warns(IsolatedRowsWarning, match="Use a larger bandwidth: a bandwidth_factor of more than") as caught:
        with_bandwidth(selector, bandwidth="max", bandwidth_factor=factor).fit(X)
    assert not any("gives every row" in str(w.message) for w in caught)


@pytest.mark.parametrize("name", [*ENGINES, "sparse"])
@pytest.mark.parametrize("rule", ["median", "q90", "max"])
def test_n4_duplicates_are_visible_in_the_bandwidth(name, rule):
    """40 equal rows: the bandwidth of the history is the rule of the gated data's distances, or its substitute for 0.

    One step with one draw, whose gates are those of the paper's start, mu = 1/2.
    """
    from dufs_core.training.loop import gate_noise

    Z = gen.duplicates_and_others(40, 10, 4)
    settings = {"bandwidth": rule, "max_iter": 1, "n_draws": 1, "bandwidth_factor": 3.0, "dtype": "float64"}
    found = dufs(**settings, engine="auto" if name == "sparse" else name).fit(
        sparse.csr_array(Z) if name == "sparse" else Z
    )
    z = np.clip(0.5 + 0.5 * gate_noise(bk, 0, 1, 1, None, np.arange(4), np.float64)[0], 0, 1)
    Xt = gen.standardise(Z) * z
    D = np.square(Xt[:, None] - Xt[None]).sum(axis=2)
    np.fill_diagonal(D, np.inf)
    second = np.sort(D, axis=1)[:, 1]
    s = {"median": second[second > 1e-9].min(), "q90": np.quantile(second, 0.9), "max": second.max()}[rule]
    assert found.history_["bandwidth"][-1] == pytest.approx(3 * s, rel=1e-9)


@every_gated
def test_n8_two_components(selector, X):
    Z = X.copy()
    Z[:, [1, 4]] *= 1e6
    first = fit(selector, Z)
    assert_sound(first)
    assert_same(fit(selector, Z), first)


@every_gated
@pytest.mark.parametrize("n", [11, 29])
@pytest.mark.parametrize("value", [0.3, 1e9])
def test_n9_constant_columns_close_and_rank_last(selector, n, value):
    Z = np.random.default_rng(0).normal(size=(n, 4))
    Z[:, 1] = value  # n times 0.3 has a computed variance that is not 0
    changes = {"batch_size": 9} if getattr(selector, "batch_size", None) else {}
    found = fit(selector, Z, **changes)
    assert_sound(found)
    assert found.order_[-1] == 1
    assert not found.support_[1]
    half = np.zeros((24, 3))  # constant in one half of the rows, whatever the split
    half[:, :2] = np.random.default_rng(1).normal(size=(24, 2))
    half[5, 2] = 1
    if isinstance(selector, LambdaPath):
        assert_sound(fit(selector, half))
        for method in (dufs(), LaplacianScore(n_neighbors=2)):
            found = stability_selection(method, half, n_subsamples=2, random_state=0)
            assert np.isfinite(found.frequencies).all()


@pytest.mark.parametrize("n_permutations", [9, 99])
def test_n10_a_path_of_nothing_or_everything_says_so(n_permutations, X):
    selector = dufs(max_iter=400, learning_rate=0.01)
    with pytest.warns(SelectionWarning, match=r"lam=1e\+06, selected no feature: try smaller lams"):
        found = path(selector, lams=[1e6], n_permutations=n_permutations).fit(X)
    assert not found.support_.any()
    assert_sound(found)
    with pytest.warns(SelectionWarning, match="All 3 columns of X are constant: nothing can be selected"):
        path(n_permutations=n_permutations).fit(np.ones((20, 3)))
    said = "selected all 6 features: try larger lams" if n_permutations == 9 else "treat the 6 features"
    with pytest.warns(SelectionWarning, match=said):
        path(dufs(max_iter=2), lams=[1e-4], n_permutations=n_permutations).fit(gen.noise(42, 6, seed=2))


def test_n10_a_parameter_free_fit_that_closes_every_gate_says_what_to_try(X):
    (said,) = (doubt for doubt in ended_with(dufs(), X, np.full(6, -9.0)).doubts if isinstance(doubt, SelectionWarning))
    assert re.search("selected no feature after 6 steps .*: try more steps, another random_s", str(said))


def test_n11_unsigned_integers_are_cast_before_they_are_subtracted():
    """(500, 1000) against (497, 744) in uint16: 9 + 256^2 = 65545, which 16 bits hold as 9."""
    raw = np.array([[500, 1000], [497, 744], [0, 0]], dtype=np.uint16)
    for dtype in (np.float32, np.float64):
        Z, _ = data.scale_columns(raw, "none", dtype)
        assert Z.dtype == dtype
        D, _ = distances.forward(bk, gram.forward(bk, Z, np.ones(2, dtype))[0])
        assert D[0, 1] == pytest.approx(65545, rel=1e-5 if dtype is np.float32 else 1e-12)
    assert neighbours(Z, 1).squared[0, 0] == pytest.approx(65545)


@every_gated
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_n11_the_dtype_asked_for_is_computed_in(selector, dtype, X):
    is_path = isinstance(selector, LambdaPath)
    found = fit(selector, X, **{"selector__dtype" if is_path else "dtype": dtype})
    assert found.mu_.dtype == found.scores_.dtype == np.dtype(dtype)


@every
@pytest.mark.parametrize("dtype", [np.uint16, bool, np.float16])
def test_n11_t1_other_dtypes_are_cast_and_not_written_to(selector, dtype, X):
    Z = np.asfortranarray((X * 30).clip(0, 250).astype(dtype) if dtype is not bool else X > 0)
    before = Z.tobytes(order="F")
    found = fit(selector, Z)
    assert_same(found, fit(selector, Z.astype(np.float64)))
    taken = found.transform(Z)
    assert Z.tobytes(order="F") == before
    assert taken.dtype == dtype
    np.testing.assert_array_equal(taken, Z[:, found.support_])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("container", [np.asarray, np.float32, pd.DataFrame, sparse.csr_array, sparse.csc_array])
def test_n12_a_bad_cell_is_counted_wherever_it_is_read(bad, container, X):
    fitted = fit(dufs(n_features_to_select=6), X)
    Z = X.copy()
    Z[3, 5] = Z[7, 2] = bad
    Z = container(Z)
    sentence = "NaN or infinity: 2 of 252 values, the first in column 2"
    calls = [fitted.transform, lambda Z: stability_selection(dufs(), Z, n_subsamples=2), lambda Z: report(fitted, Z)]
    for call in [*calls, path().fit, path(lams=[0.1]).fit]:
        with pytest.raises(ValueError, match=sentence):
            call(Z)
    if not sparse.issparse(Z):
        with pytest.raises(ValueError, match=sentence):
            fit(LaplacianScore(), X).transform(Z)


def test_n12_without_a_copy_of_the_data(monkeypatch):
    """Of 16 MB a tenth is taken at most, with a bad cell and without."""
    monkeypatch.setattr(data, "_BLOCK_ELEMENTS", 1 << 16)
    Z = np.zeros((1000, 2000))
    for bad in (False, True):
        tracemalloc.start()
        try:
            if bad:
                Z[-1, -1] = np.nan
                with pytest.raises(ValueError, match="1 of 2000000 values, the first in column 1999"):
                    data.check_finite(Z)
            else:
                data.check_finite(Z)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < Z.nbytes / 10


# --- selection ------------------------------------------------------------------------------------------------------


@every_gated
def test_s1_exactly_the_number_wanted_of_identical_columns(selector):
    rng = np.random.default_rng(0)
    Z = np.hstack([np.tile(rng.normal(size=(30, 1)), (1, 60)), rng.normal(size=(30, 5))])
    changes = {"batch_size": 15} if getattr(selector, "batch_size", None) else {}
    first = fit(selector, Z, n_features_to_select=20, **changes)
    assert first.support_.sum() == 20
    assert_same(fit(selector, Z, n_features_to_select=20, **changes), first)


def test_s2_saturated_gates_keep_their_order(X):
    """Ranked by mu, not by the gates, which are all 1 from mu = 1 on; exact ties by column."""
    for mu, ranking in (([0.2, 1.3, 2.4, 5.0, -1.0], [3, 2, 1, 0, 4]), ([2.0, 3.0, -1.0, 3.0, -1.0], [1, 3, 0, 2, 4])):
        mu = np.array(mu)
        found = ended_with(dufs(n_features_to_select=2), X[:, :5], mu)
        np.testing.assert_array_equal(found.order, ranking)
        np.testing.assert_array_equal(np.flatnonzero(found.support), sorted(ranking[:2]))
        np.testing.assert_array_equal(path(n_features_to_select=2)._selection(mu), sorted(ranking[:2]))


@pytest.mark.parametrize("name", [*ENGINES, "batches", "path", "sparse"])
def test_s4_two_blobs_come_first(name):
    """Columns 3 and 7 of 12 tell two blobs apart, one of them mirrored; the others are noise."""
    rng = np.random.default_rng(0)
    Z = rng.normal(size=(80, 12))
    Z[:, 3] += 3.5 * (np.arange(80) % 2)
    Z[:, 7] -= 3.5 * (np.arange(80) % 2)
    settings = {"max_iter": 300, "learning_rate": 0.02, "n_draws": 16}
    if name == "path":
        found = path(dufs(**settings | {"n_draws": 4}), n_lams=2).fit(Z)
    elif name == "sparse":
        found = fit(dufs(**settings), sparse.csr_array(Z))
    else:
        found = fit(GATED[name], Z, **settings | ({"batch_size": 40} if name == "batches" else {}))
    assert_sound(found)
    assert set(found.order_[:2]) == set(np.flatnonzero(found.support_)) == {3, 7}
    assert found.scores_[[3, 7]].min() > np.delete(found.scores_, [3, 7]).max()


@every_gated
def test_s3_negated_and_constant_columns_change_no_score(selector, X):
    first = fit(selector, X)
    assert_same(fit(selector, X * [1, -1, 1, 1, -1, 1]), first)
    wider = fit(selector, np.hstack([X, np.full((42, 1), 7.0)]))
    np.testing.assert_allclose(wider.scores_[:-1], first.scores_, rtol=1e-6)
    assert wider.order_[-1] == 6


@pytest.mark.parametrize("name", [*ENGINES, "several runs", "path"])
def test_s3_permuted_rows_change_only_rounding(name, X):
    prefix = "selector__" if name == "path" else ""
    exact = clone(ALL[name]).set_params(**{prefix + "dtype": "float64"})
    order = np.random.default_rng(0).permutation(42)
    if name == "path":  # halves are drawn by row: only the fits on all rows are the same
        np.testing.assert_allclose(fit(exact, X[order], lams=[0.1]).mu_, fit(exact, X, lams=[0.1]).mu_, rtol=1e-8)
    else:
        np.testing.assert_allclose(fit(exact, X[order]).mu_, fit(exact, X).mu_, rtol=1e-8)


@every
@pytest.mark.parametrize("wanted", [0, -1, 7, 1000, 1.5, "all", float("nan"), True])
def test_s5_a_number_that_cannot_be_is_named_with_the_number_there_is(selector, wanted, X):
    with pytest.raises(ValueError, match=rf"from 1 to the 6 features of X.*; got {wanted!r}$"):
        fit(selector, X, n_features_to_select=wanted)


# --- contract -------------------------------------------------------------------------------------------------------


@every
def test_t1_t5_layouts_and_containers_change_no_bit(selector, X, tmp_path):
    first = fit(selector, X)
    np.save(tmp_path / "X.npy", X)
    read_only = np.array(X, order="F")
    read_only.flags.writeable = False
    for given in (
        read_only, np.repeat(X, 2, axis=0)[::2], np.ascontiguousarray(X[:, ::-1])[:, ::-1], X[::-1].copy()[::-1],
        X.astype(">f8"), X.tolist(), pd.DataFrame(X), X.astype(object), np.load(tmp_path / "X.npy", mmap_mode="c"),
    ):  # fmt: skip
        if isinstance(given, np.memmap) and getattr(selector, "batch_size", None):
            continue  # batches are read from disk: test_source.py
        before = np.array(given).tobytes()
        found = fit(selector, given)
        assert_same(found, first)
        np.testing.assert_array_equal(np.asarray(found.transform(given), dtype=float), X[:, first.support_])
        assert np.array(given).tobytes() == before
    assert (tmp_path / "X.npy").stat().st_size == 128 + X.nbytes


@every
def test_t2_t3_a_frame_keeps_names_order_and_dtypes(selector):
    rng = np.random.default_rng(0)
    columns = {
        "z": rng.normal(size=40).astype(np.float16),
        "a": rng.integers(-9, 9, 40).astype(np.int8),
        "m": np.arange(40) % 2 == 0,
    }
    frame = pd.DataFrame(columns)
    before = frame.copy()
    found = fit(clone(selector).set_output(transform="pandas"), frame, n_features_to_select=2)
    names = [frame.columns[k] for k in np.flatnonzero(found.support_)]
    assert set(names) == {frame.columns[k] for k in found.order_[:2]}
    assert list(found.get_feature_names_out()) == names
    pd.testing.assert_frame_equal(found.transform(frame), frame[names])
    pd.testing.assert_frame_equal(frame, before)


@pytest.mark.parametrize("name", ["LaplacianScore", "random walk", "MCFS", "NDFS", "SRCFS"])
def test_t2_everything_says_m(name):
    """Columns z, a, m, of which m has two blobs."""
    Z = np.random.default_rng(0).normal(size=(60, 3))
    Z[:, 2] += 6.0 * (np.arange(60) % 2)
    frame = pd.DataFrame(Z, columns=["z", "a", "m"])
    found = fit(clone(BASELINES[name]).set_output(transform="pandas"), frame, n_features_to_select=1)
    assert found.order_[0] == 2
    np.testing.assert_array_equal(found.support_, [False, False, True])
    assert list(found.get_feature_names_out()) == list(found.transform(frame).columns) == ["m"]
    assert report(found, frame).rows[0]["feature"] == "m"


@every
def test_t4_a_pickle_and_a_clone_fit_alike(selector, X):
    fitted = fit(selector, X)
    again = pickle.loads(pickle.dumps(fitted))
    assert_same(again, fitted)
    assert_same(pickle.loads(pickle.dumps(clone(selector))).fit(X), fitted)
    np.testing.assert_array_equal(again.transform(X), fitted.transform(X))


def test_t4_a_path_in_a_grid_search(X):
    pipeline = make_pipeline(path(lams=[0.1]), LogisticRegression())
    grid = {"lambdapath__n_features_to_select": [1, 2], "lambdapath__selector__max_iter": [2, 3]}
    search = GridSearchCV(pipeline, grid, cv=2).fit(X, np.arange(42) % 2)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_t4_threads_at_once(X):
    """Paths, stability and fits in six threads: nothing waits for ever, and every number is the one computed alone."""
    jobs = [
        lambda: fit(path(), X).scores_,
        lambda: fit(ENGINES["streaming"], X).scores_,
        lambda: stability_selection(path(n_features_to_select=2), X, n_subsamples=2, random_state=0).frequencies,
    ]
    expected, found = [job() for job in jobs], [None] * 6
    threads = [threading.Thread(target=lambda i=i: found.__setitem__(i, jobs[i % 3]()), daemon=True) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    for i in range(6):
        np.testing.assert_array_equal(found[i], expected[i % 3])


@pytest.mark.parametrize("make", [sparse.dok_array, sparse.lil_array, sparse.bsr_array, sparse.dia_array])
def test_t6_other_formats_of_sparse_data(make, X):
    Z = np.where(abs(X) < 0.7, 0, X)
    assert_same(fit(dufs(), make(Z)), fit(dufs(), sparse.csr_array(Z)))


def test_t6_stability_of_sparse_rows_is_that_of_dense_ones(X):
    Z = np.where(abs(X) < 0.7, 0, X)
    selector = dufs(n_features_to_select=2, dtype="float64")
    dense, *others = (
        stability_selection(selector, given, n_subsamples=3, random_state=0).frequencies
        for given in (Z, sparse.csr_array(Z), sparse.csc_array(Z))
    )
    for other in others:
        np.testing.assert_array_equal(other, dense)


@every_gated
@pytest.mark.parametrize("shape", [(1, 5), (0, 5), (5, 0), (5,)])
def test_t7_unusable_shapes(selector, shape):
    words = r"minimum of (2|1) is required|Expected 2D array"
    with pytest.raises(ValueError, match=words):
        fit(selector, np.ones(shape))
    with pytest.raises(ValueError, match=r"minimum of (4|1) is required|Expected 2D array"):
        stability_selection(selector, np.ones(shape), n_subsamples=2)
    if len(shape) == 2:
        with pytest.raises(ValueError, match=words):
            dufs().fit(sparse.csr_array(np.ones(shape)))


@every
def test_t7_one_column_and_the_wrong_width(selector):
    changes = {"n_neighbors": 2} if "n_neighbors" in selector.get_params() else {}
    changes |= {"batch_size": None} if getattr(selector, "batch_size", None) else {}
    changes |= {"n_features_to_select": None} if getattr(selector, "ranking", "gates") != "gates" else {}
    n = 12 if isinstance(selector, LambdaPath) else 5
    found = fit(selector, np.random.default_rng(0).normal(size=(n, 1)), **changes)
    assert_sound(found)
    with pytest.raises(ValueError, match=rf"X has 2 features, but {type(selector).__name__} is expecting 1 features"):
        found.transform(np.ones((5, 2)))


@every_gated
def test_t8_threads_and_earlier_fits_change_no_bit(selector, X):
    name = "selector__n_jobs" if isinstance(selector, LambdaPath) else "n_jobs"
    first = fit(selector, X, **{name: 1})
    assert_same(fit(selector, X, **{name: 4}), first)
    assert_same(clone(selector).fit(X[:, :3]).fit(X), first)
    if not getattr(selector, "batch_size", None) and selector is ALL["dense"]:
        settings = {"engine": "auto", "n_jobs": 1}
        Z = sparse.csr_array(np.where(abs(X) < 0.7, 0, X))
        assert_same(fit(selector, Z, **settings), fit(selector, Z, **settings | {"n_jobs": 4}))


# --- machines -------------------------------------------------------------------------------------------------------


@every_baseline
def test_m1_square_arrays_are_refused_before_they_are_allocated(selector, monkeypatch):
    """60,000 rows: 28.8 GB for each n x n array; the methods that hold none are not refused."""
    monkeypatch.setattr("dufs_core.backend.memory.available_bytes", lambda bk: 20 * 10**9)
    squares = selector._squares() if hasattr(selector, "_squares") else 0
    assert (squares > 0) == (selector in [BASELINES[name] for name in ("random walk", "NDFS", "LLCFS")])
    if not squares:
        return
    Z = np.lib.stride_tricks.as_strided(np.arange(60_050.0), (60_000, 50), (8, 8))
    tracemalloc.start()
    try:
        with pytest.raises(MemoryLimitError, match=rf"{squares} arrays of 60,000 x 60,000 .*20 GB are available"):
            fit(selector, Z)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100e6


@pytest.mark.parametrize("name", ["random walk", "NDFS", "LLCFS"])
def test_m1_as_many_square_arrays_are_held_as_is_said(name):
    Z = gen.noise(600, 4)
    selector = clone(BASELINES[name])
    if name != "random walk":
        selector.set_params(max_iter=1)
    fit(selector, Z[:30])
    tracemalloc.start()
    try:
        fit(selector, Z)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 0.5 < peak / (8 * 600**2 * selector._squares()) < 1.15
