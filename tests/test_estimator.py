"""The selector: scikit-learn's contract, and the inputs that broke comparable software."""

import pickle
import threading
import warnings

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from dufs_core import DUFS, GatedLaplacian, Graph, LambdaPath
from dufs_core.backend import get_backend
from dufs_core.baselines import LLCFS, MCFS, NDFS, SRCFS, ConcreteAutoencoder, LaplacianScore
from dufs_core.datasets import two_moons
from dufs_core.errors import (
    BackendUnavailableError,
    DegenerateBandwidthWarning,
    DufsWarning,
    IsolatedRowsWarning,
    SelectionWarning,
    UnconvergedWarning,
)
from dufs_core.significance.permutation import excess_threshold, permutation_test
from tests.generators import gated

ENGINES = ("reference", "dense")


def quick(**changes):
    """A fit of a second at most: few steps, one run."""
    return gated(**{"max_iter": 12, "max_runs": 1, "n_draws": 4, "random_state": 0} | changes)


def fit_quietly(selector, X):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DufsWarning)
        return selector.fit(X)


@pytest.fixture(scope="module")
def moons():
    return two_moons(60, 6, random_state=0).X


def assert_same_fit(a, b):
    np.testing.assert_array_equal(a.mu_, b.mu_)
    np.testing.assert_array_equal(a.order_, b.order_)
    assert a.history_.keys() == b.history_.keys()
    for name in a.history_:
        np.testing.assert_array_equal(a.history_[name], b.history_[name])


@pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")
@pytest.mark.filterwarnings("ignore:No features were selected:UserWarning")
@parametrize_with_checks(
    [
        quick(max_iter=3),
        quick(max_iter=3, engine="reference", dtype="float64"),
        DUFS(random_state=0),
    ]
)
def test_scikit_learn_contract(estimator, check):
    check(estimator)


@pytest.mark.parametrize("d", [10, 20, 60])
def test_default_fit_recovers_two_moons(d):
    problem = two_moons(n_features=d, random_state=3)
    selector = DUFS(random_state=3).fit(problem.X)
    assert selector.support_[:2].all()
    assert selector.q_values_[:2].max() == selector.q_values_.min() == 0.1
    assert selector.evidence_[:2].min() > np.nanmax(selector.decoy_evidence_)
    assert selector.support_.sum() <= 4
    assert set(selector.order_[: selector.support_.sum()]) == set(np.flatnonzero(selector.support_))


@pytest.mark.parametrize("d", [10, 20])
def test_gates_alone_recover_two_moons(d):
    problem = two_moons(n_features=d, random_state=3)
    selector = GatedLaplacian(random_state=3).fit(problem.X)
    assert set(np.flatnonzero(selector.support_)) == {0, 1}
    assert selector.converged_
    assert selector.excess_score_ > 0.15
    assert selector.p_value_ < 0.05
    assert selector.scores_.shape == (d,)
    assert list(selector.history_["step"]) == list(range(1, selector.n_iter_ + 1))
    np.testing.assert_array_equal(selector.order_, np.argsort(-selector.scores_, kind="stable"))
    assert selector.transform(problem.X).shape == (100, 2)


# --- numerics -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("column", "container"),
    [(np.array([1, 2, 3] * 10) * 1e20, np.float32), (np.array([1, 2, 3] * 10) * 1e200, np.float64)],
)
@pytest.mark.parametrize("scaling", ["columns", "global", "none"])
def test_huge_columns_give_finite_results_or_name_the_column(dtype, column, container, scaling):
    X = np.random.default_rng(0).normal(size=(30, 4))
    X[:, 2] = column
    selector = quick(dtype=dtype, scaling=scaling)
    if scaling == "none" and (dtype == "float32" or container is np.float64):
        with pytest.raises(ValueError, match=r"Column 2 reaches .* from its mean"):
            selector.fit(X.astype(container))
        return
    fit_quietly(selector, X.astype(container))
    assert np.isfinite(selector.mu_).all()
    assert np.isfinite(selector.history_["loss"]).all()


@pytest.mark.filterwarnings("ignore::dufs_core.errors.SelectionWarning")
@pytest.mark.parametrize("engine", ENGINES)
def test_tiny_bandwidth_is_reported_once_with_the_share(engine, moons):
    with pytest.warns(IsolatedRowsWarning, match=r"100% of the rows had no neighbour") as caught:
        selector = quick(bandwidth=1e-6, engine=engine).fit(moons)
    assert sum(w.category is IsolatedRowsWarning for w in caught) == 1
    assert np.isfinite(selector.history_["loss"]).all()
    assert np.isfinite(selector.mu_).all()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("rule", ["median", "q90", "max"])
def test_many_identical_rows(engine, rule):
    rng = np.random.default_rng(1)
    X = np.vstack([np.tile(rng.normal(size=(1, 5)), (40, 1)), rng.normal(size=(10, 5))])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        selector = quick(bandwidth=rule, engine=engine).fit(X)
    assert selector.history_["bandwidth"][-1] > 0
    assert np.isfinite(selector.mu_).all()
    assert any(w.category is DegenerateBandwidthWarning for w in caught) == (rule == "median")


@pytest.mark.parametrize(("n", "k"), [(2, 3), (3, 3), (10, 10), (10, 11), (10, 0)])
def test_too_many_neighbours_name_the_valid_range(n, k):
    X = np.random.default_rng(0).normal(size=(n, 3))
    with pytest.raises(ValueError, match=rf"1 to {n - 1} is valid|at least 1; got 0"):
        quick(n_neighbors=k).fit(X)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("n", [2, 3, 4])
def test_fewest_rows(engine, n):
    X = np.random.default_rng(0).normal(size=(n, 3))
    selector = fit_quietly(quick(n_neighbors=n - 1, engine=engine), X)
    assert np.isfinite(selector.mu_).all()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("scaling", ["columns", "global", "none"])
def test_constant_columns_are_held_closed_and_ranked_last(engine, scaling):
    X = np.random.default_rng(0).normal(size=(11, 5))
    X[:, 1] = 0.3  # its computed variance is not 0
    X[:, 3] = 1e9
    selector = fit_quietly(quick(engine=engine, scaling=scaling), X)
    np.testing.assert_array_equal(selector.constant_features_, [1, 3])
    assert set(selector.order_[-2:]) == {1, 3}
    assert not selector.support_[[1, 3]].any()
    np.testing.assert_array_equal(np.isnan(selector.mu_), np.isin(np.arange(5), [1, 3]))
    assert np.isfinite(selector.scores_).all()


def test_all_columns_constant():
    with pytest.warns(SelectionWarning, match="All 3 columns of X are constant"):
        selector = quick().fit(np.ones((10, 3)))
    assert not selector.support_.any()
    np.testing.assert_array_equal(selector.order_, [0, 1, 2])


@pytest.mark.parametrize(("lam", "what", "steps"), [(1e6, "no feature", 400), (0, "all 6 features", 5)])
def test_nothing_or_everything_selected_is_said(lam, what, steps, moons):
    with pytest.warns(SelectionWarning, match=rf"selected {what} with lam"):
        selector = quick(lam=lam, max_iter=steps, learning_rate=0.01).fit(moons)
    assert np.isfinite(selector.history_["loss"]).all()


@pytest.mark.parametrize(
    ("max_iter", "said"),
    [(1, "after 1 steps of at most 1: try more steps"), (2000, r"and converged, after \d+ steps: try another scaling")],
)
def test_all_columns_selected_without_a_price(max_iter, said):
    X = np.random.default_rng(0).normal(size=(40, 1)) + np.zeros((1, 4))  # four copies
    with pytest.warns(SelectionWarning, match=f"selected all 4 features {said}"):
        GatedLaplacian(max_runs=1, max_iter=max_iter, backend="numpy", random_state=0).fit(X)


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint8, np.uint16, bool, np.float16])
def test_other_dtypes_are_cast_before_subtracting(dtype):
    X = np.random.default_rng(0).integers(0, 2 if dtype is bool else 100, size=(30, 4)).astype(dtype)
    assert_same_fit(fit_quietly(quick(), X), fit_quietly(quick(), X.astype(np.float64)))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_bad_cell_is_counted_and_located(bad):
    X = np.random.default_rng(0).normal(size=(20, 7))
    X[3, 5] = X[4, 6] = bad
    with pytest.raises(ValueError, match=r"NaN or infinity: 2 of 140 values, the first in column 5"):
        quick().fit(X)


# --- selection ------------------------------------------------------------------------------------------------------


def test_identical_columns_give_exactly_the_number_wanted():
    rng = np.random.default_rng(0)
    X = np.hstack([np.tile(rng.normal(size=(30, 1)), (1, 200)), rng.normal(size=(30, 5))])
    first = fit_quietly(quick(n_features_to_select=50), X)
    assert first.support_.sum() == 50
    for _ in range(9):
        np.testing.assert_array_equal(fit_quietly(quick(n_features_to_select=50), X).support_, first.support_)


def test_negated_columns_change_nothing(moons):
    assert_same_fit(fit_quietly(quick(), moons), fit_quietly(quick(), moons * [1, -1, 1, 1, -1, 1]))


def test_permuted_rows_change_only_rounding(moons):
    order = np.random.default_rng(0).permutation(len(moons))
    a = fit_quietly(quick(dtype="float64"), moons)
    b = fit_quietly(quick(dtype="float64"), moons[order])
    np.testing.assert_allclose(a.mu_, b.mu_, rtol=1e-8)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_appended_constant_column_changes_no_other_score(engine, moons):
    a = fit_quietly(quick(engine=engine), moons)
    b = fit_quietly(quick(engine=engine), np.hstack([moons, np.full((len(moons), 1), 7.0)]))
    np.testing.assert_array_equal(a.mu_, b.mu_[:-1])


@pytest.mark.parametrize("wanted", [0, -1, 7, 1000, 0.0, 1.0, 1.5, "all", True])
def test_unusable_number_of_features_names_both_numbers(wanted, moons):
    with pytest.raises(ValueError, match=r"from 1 to the 6 features"):
        quick(n_features_to_select=wanted).fit(moons)


def test_truth_values_of_numpy_are_taken(moons):
    a = fit_quietly(quick(self_loops=np.bool_(False)), moons)
    assert_same_fit(a, fit_quietly(quick(self_loops=False), moons))


@pytest.mark.parametrize(("wanted", "number"), [(1, 1), (6, 6), (0.5, 3), (0.01, 1), (np.int64(2), 2)])
def test_number_of_features_is_exact(wanted, number, moons):
    selector = fit_quietly(quick(n_features_to_select=wanted), moons)
    assert selector.transform(moons).shape[1] == number
    assert set(np.flatnonzero(selector.support_)) == set(selector.order_[:number])


# --- contract -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16])
@pytest.mark.parametrize("order", ["C", "F"])
def test_input_is_not_written_to(dtype, order, moons):
    X = np.array(moons * 10, dtype=dtype, order=order)
    before = X.tobytes(order="A")
    X.flags.writeable = False
    fit_quietly(quick(), X).transform(X)
    assert X.tobytes(order="A") == before


def test_names_masks_order_and_frames_agree(moons):
    frame = pd.DataFrame(moons, columns=["z", "a", "m", "k", "b", "c"])
    selector = fit_quietly(quick(n_features_to_select=2).set_output(transform="pandas"), frame)
    names = [frame.columns[i] for i in np.flatnonzero(selector.support_)]
    assert list(selector.get_feature_names_out()) == names
    assert list(selector.transform(frame).columns) == names
    np.testing.assert_array_equal(selector.transform(frame), frame[names])


def test_frames_keep_their_dtypes():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "flag": rng.integers(0, 2, 40).astype(bool),
            "small": rng.integers(-9, 9, 40).astype(np.int8),
            "half": rng.normal(size=40).astype(np.float16),
        }
    )
    selector = fit_quietly(quick(n_features_to_select=3).set_output(transform="pandas"), frame)
    assert list(selector.transform(frame).dtypes) == list(frame.dtypes)


def test_pickles_do_not_name_the_module_that_a_class_is_written_in():
    from dufs_core import Checkpoint, Trajectory, baselines

    for public in (DUFS, LambdaPath, Checkpoint, Trajectory):
        assert public.__module__ == "dufs_core"
        assert pickle.loads(pickle.dumps(public)) is public
    assert pickle.loads(pickle.dumps(baselines.MCFS)) is baselines.MCFS
    assert baselines.MCFS.__module__ == "dufs_core.baselines"


def test_clone_and_pickle(moons):
    selector = quick(lam=0.01, bandwidth="median")
    assert clone(selector).get_params() == selector.get_params()
    fit_quietly(selector, moons)
    assert_same_fit(pickle.loads(pickle.dumps(selector)), selector)
    assert_same_fit(fit_quietly(pickle.loads(pickle.dumps(clone(selector))), moons), selector)
    with pytest.raises(NotFittedError):
        clone(selector).transform(moons)


@pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")
def test_grid_search_over_a_pipeline(moons):
    y = two_moons(60, 6, random_state=0).labels
    pipeline = Pipeline([("select", quick()), ("classify", LogisticRegression())])
    search = GridSearchCV(pipeline, {"select__n_features_to_select": [1, 2, 4]}, cv=2).fit(moons, y)
    assert search.best_params_["select__n_features_to_select"] in (1, 2, 4)
    make_pipeline(quick(n_features_to_select=1), LogisticRegression()).fit(moons, y).predict(moons)


def _fit_mu(selector, X):
    return fit_quietly(selector, X).mu_


def _fit_scores(selector, X):
    return fit_quietly(selector, X).scores_


def test_joblib_workers_and_read_only_memmaps(moons, tmp_path):
    """Every kind of selector in processes, on a file that cannot be written to."""
    path = tmp_path / "X.npy"
    np.save(path, moons)
    X = np.load(path, mmap_mode="r")
    short_path = LambdaPath(quick(), lams=[0.1], n_splits=1, n_permutations=9, random_state=0)
    selectors = [quick(), quick(), quick(engine="streaming"), quick(batch_size=20), short_path]
    selectors += [LaplacianScore(), MCFS(n_clusters=2), NDFS(n_clusters=2, random_state=0), SRCFS(random_state=0)]
    selectors += [LLCFS(n_clusters=2, max_iter=2), ConcreteAutoencoder(max_iter=3, random_state=0)]
    found = joblib.Parallel(n_jobs=2, max_nbytes=1)(joblib.delayed(_fit_scores)(clone(s), X) for s in selectors)
    for selector, there in zip(selectors, found, strict=True):
        here = _fit_scores(clone(selector), X if selector.get_params().get("batch_size") else moons)
        if isinstance(selector, (DUFS, LambdaPath)):
            np.testing.assert_array_equal(there, here)
        else:  # threads of BLAS differ
            np.testing.assert_allclose(there, here, rtol=1e-9)


def test_two_threads_at_once(moons):
    expected = _fit_mu(quick(), moons)
    results = [None] * 4
    threads = [threading.Thread(target=lambda i=i: results.__setitem__(i, quick().fit(moons).mu_)) for i in range(4)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DufsWarning)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for mu in results:
        np.testing.assert_array_equal(mu, expected)


def test_blas_threads_are_restored_after_concurrent_fits(moons):
    from threadpoolctl import threadpool_info

    def counts():
        return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]

    _fit_mu(quick(max_iter=1), moons)  # every library is loaded
    before, during = counts(), []
    fit_quietly(quick(max_iter=2, callbacks=[lambda info: during.append(counts())]), moons)
    assert {count for each in during for count in each} == {1}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DufsWarning)
        threads = [threading.Thread(target=quick(max_iter=steps).fit, args=(moons,)) for steps in (3, 9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert counts() == before


@pytest.mark.parametrize(
    "layout",
    [
        np.asfortranarray,
        lambda X: np.repeat(X, 2, axis=0)[::2],
        lambda X: np.ascontiguousarray(X[:, ::-1])[:, ::-1],
        lambda X: X.astype(">f8"),
    ],
    ids=["fortran", "strided", "reversed", "big-endian"],
)
def test_layout_does_not_matter(layout, moons):
    assert_same_fit(fit_quietly(quick(), layout(moons)), fit_quietly(quick(), moons))


@pytest.mark.parametrize("shape", [(1, 5), (0, 5), (5, 0), (5,)])
def test_unusable_shapes(shape):
    with pytest.raises(ValueError, match=r"minimum of|Expected 2D array"):
        quick().fit(np.ones(shape))


def test_one_column_and_wrong_width(moons):
    selector = fit_quietly(quick(), moons[:, :1])
    assert selector.mu_.shape == (1,)
    with pytest.raises(ValueError, match="expecting 1 features"):
        selector.transform(moons)


@pytest.mark.parametrize("noise", ["batch", "sample"])
def test_same_seed_same_bits_whatever_the_threads(noise, moons):
    first = fit_quietly(quick(gate_noise=noise, n_jobs=1), moons)
    assert_same_fit(first, fit_quietly(quick(gate_noise=noise, n_jobs=4), moons))
    again = fit_quietly(quick(gate_noise=noise), moons[:, :3])
    assert_same_fit(fit_quietly(again, moons), first)


def test_engines_agree(moons):
    fits = [fit_quietly(quick(engine=engine, dtype="float64"), moons) for engine in ENGINES]
    for other in fits[1:]:
        np.testing.assert_allclose(other.mu_, fits[0].mu_, rtol=1e-9)
    assert [fit.engine_ for fit in fits] == list(ENGINES)


# --- parameters -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lam": -1}, "lam must be None"),
        ({"lam": "auto"}, "lam must be None"),
        ({"power": 0}, "power must be a whole number of at least 1; got 0"),
        ({"bandwidth": "mean"}, "bandwidth must be"),
        ({"bandwidth": 0.0}, "bandwidth must be"),
        ({"bandwidth_factor": np.nan}, "bandwidth_factor must be a positive number"),
        ({"gate_sigma": 0}, "gate_sigma must be a positive number"),
        ({"gate_noise": "row"}, "gate_noise must be one of"),
        ({"n_draws": 3}, 'n_draws must be "auto", 1 or an even number'),
        ({"optimizer": "lbfgs"}, "optimizer must be"),
        ({"learning_rate": 0}, "learning_rate must be a positive number"),
        ({"momentum": 1.0}, "GatedLaplacian has no parameter 'momentum': leave it out"),
        ({"bandwidth_gradient": False}, "has no parameter 'bandwidth_gradient': leave it out"),
        ({"fdr": 0.1}, "has no parameter 'fdr'.*DUFS"),
        ({"graph": "local"}, "graph must be a Graph, as in graph=Graph"),
        ({"conventions": "mine"}, "conventions must be a Conventions"),
        ({"max_iter": 0}, "max_iter must be a whole number"),
        ({"tol": 1}, "tol is a share"),
        ({"max_runs": 0}, "max_runs must be a whole number"),
        ({"batch_size": 3}, r"at least n_neighbors \+ 2 = 4; got 3"),
        ({"scaling": "rows"}, "scaling must be one of"),
        ({"engine": "fast"}, "engine must be"),
        ({"backend": "torch"}, "backend must be"),
        ({"dtype": "float16"}, "dtype must be one of"),
        ({"n_jobs": 0}, "n_jobs must be"),
        ({"convention": "mine"}, r'preset\("authors_code"\)'),
    ],
)
def test_unusable_parameters_say_what_is_valid(changes, message, moons):
    with pytest.raises(ValueError, match=message):
        quick(**changes).fit(moons)


def test_gpu_asked_for_but_absent(moons):
    with pytest.raises(BackendUnavailableError, match=r'backend="cupy" cannot be used here: .*Use backend="numpy"'):
        quick(backend="cupy").fit(moons)


@pytest.mark.filterwarnings("ignore::dufs_core.errors.SelectionWarning")
def test_batch_larger_than_the_data_is_said_once(moons):
    with pytest.warns(DufsWarning, match="batch_size=100 exceeds the 60 rows") as caught:
        selector = quick(batch_size=100).fit(moons)
    assert sum("exceeds" in str(w.message) for w in caught) == 1
    assert_same_fit(selector, fit_quietly(quick(), moons))


def test_callbacks_see_every_step_and_can_stop(moons):
    seen = []
    selector = fit_quietly(quick(callbacks=[lambda info: seen.append(info) or info.step == 5]), moons)
    assert [info.step for info in seen] == [1, 2, 3, 4, 5]
    assert selector.n_iter_ == 5
    np.testing.assert_array_equal(seen[-1].mu, selector.mu_)


def test_unknown_preset():
    with pytest.raises(ValueError, match="'wide', 'paper', 'authors_code'; got 'mine'"):
        GatedLaplacian.preset("mine")


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_saturation_opens_some_columns_of_each_structure(seed):
    """Eight noisy copies and a weaker pair: without a limit copies alone open; with one, the pair and few copies."""
    rng = np.random.default_rng(seed)
    first, second = rng.integers(0, 2, (2, 120))
    X = rng.normal(size=(120, 20))
    X[:, :8] = 2 * first[:, None] + 0.3 * rng.normal(size=(120, 8))
    X[:, 8:10] = 2 * second[:, None] + 0.3 * rng.normal(size=(120, 2))
    how = {"max_runs": 1, "random_state": 0, "max_iter": 600, "learning_rate": 0.02}
    assert set(np.flatnonzero(fit_quietly(gated(**how), X).support_)) == set(range(8))
    limited = fit_quietly(gated(**how, saturation=0.3), X)
    chosen = set(np.flatnonzero(limited.support_))
    assert {8, 9} < chosen <= set(range(10))
    assert len(chosen) <= 5
    one_thread = fit_quietly(gated(**how, saturation=0.3, n_jobs=1), X)
    assert one_thread.mu_.tobytes() == fit_quietly(gated(**how, saturation=0.3, n_jobs=3), X).mu_.tobytes()


def test_an_unconverged_fit_says_so(moons):
    def said(**settings):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            gated(max_runs=1, **settings).fit(moons)
        return [str(w.message) for w in caught if w.category is UnconvergedWarning]

    (message,) = said(max_iter=20)
    assert "max_iter=20 steps with 100.0% of the gates undecided (tol is 1.0%)" in message
    assert not said(max_iter=20, tol=0.0)
    assert not said(callbacks=(lambda info: info.step == 20,))
    assert not said(random_state=0)


def test_noise_of_few_rows_is_not_taken_for_structure():
    """The data sets of 20 x 200, 30 x 200, 200 x 100 and 400 x 100 whose chance pairs have the largest gaps."""
    for n, gap in ((20, 0.46), (30, 0.37), (200, 0.102), (400, 0.055)):
        assert gap < excess_threshold(2, n)
    assert excess_threshold(2, 100) == excess_threshold(10, 100) == 0.18
    assert excess_threshold(40, 512) == excess_threshold(40, 10**6) == pytest.approx(0.09 * (100 / 512) ** 0.5)
    X = np.random.default_rng(5001).normal(size=(20, 30))
    with pytest.warns(SelectionWarning, match=r"None of 2 runs found convincing structure.*0\.602 is asked of so many"):
        GatedLaplacian(max_runs=2, random_state=1, max_iter=300, learning_rate=0.02).fit(X)


def test_a_gap_is_the_same_in_any_unit():
    """Columns of variance 9 in noise: scaled together, the gap is that of the same columns of variance 1."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 5)).astype(np.float32)
    X[:, 1] += X[:, 0]
    bk = get_backend("numpy")
    gaps = [permutation_test(bk, np.asfortranarray(X * scale), np.arange(5)).excess for scale in (1, 4)]
    assert gaps[0] == pytest.approx(gaps[1], rel=1e-5)
    assert permutation_test(bk, np.zeros((9, 3), np.float32), np.arange(3)).excess == 0


@pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")
@pytest.mark.parametrize(
    "make", [quick, lambda: LambdaPath(quick(), n_lams=3), LaplacianScore], ids=["DUFS", "path", "LS"]
)
def test_ranking_is_the_rank_of_every_column_and_order_their_positions(make):
    """As in scikit-learn's RFE: 1 is the best. `order_` holds column indices, best first."""
    fitted = make().fit(two_moons(60, 8, random_state=1).X)
    assert sorted(fitted.ranking_) == list(range(1, 9))
    np.testing.assert_array_equal(fitted.ranking_[fitted.order_], np.arange(1, 9))
    np.testing.assert_array_equal(np.flatnonzero(fitted.ranking_ <= 3), np.sort(fitted.order_[:3]))


# --- groups of parameters -------------------------------------------------------------------------------------------


def test_a_changed_part_of_all_parameters_is_kept():
    """Groups are set before their parts, as scikit-learn does it."""
    params = DUFS().get_params() | {"graph__power": 3}
    assert DUFS().set_params(**params).graph.power == 3
    with pytest.raises(ValueError, match="graph must be a Graph"):
        DUFS().set_params(graph="narrow", graph__power=2)


def test_a_preset_takes_parts_and_keeps_its_others():
    paper = GatedLaplacian.preset("paper", graph__power=3, random_state=1)
    assert (paper.graph.power, paper.graph.bandwidth_factor, paper.random_state) == (3, 5.0, 1)


def test_a_subclass_has_parameters_of_its_own():
    class Mine(DUFS):
        def __init__(self, extra=1, **others):
            super().__init__(**others)
            self.extra = extra

    assert (Mine(extra=2, fdr=0.2).fdr, Mine(extra=2).extra) == (0.2, 2)


def test_a_graph_is_its_random_walk(moons):
    """P of the rows as they are: rows sum to 1, nearer rows weigh more, no row is its own neighbour."""
    P = Graph()(moons)
    np.testing.assert_allclose(P.sum(axis=1), 1, rtol=1e-12)
    squared = ((moons[0] - moons) ** 2).sum(axis=1)
    assert (np.argsort(-P[0])[:-1] == np.argsort(squared)[1:]).all()
    assert np.diag(P).max() < 1e-9
    assert np.diag(Graph(self_loops=True)(moons)).min() > 0


def test_few_rows_lower_the_neighbours_of_the_default_alone():
    X = np.random.default_rng(0).normal(size=(5, 4))
    for selector in (DUFS(random_state=0), DUFS(graph=Graph(power=2), random_state=0)):
        fit_quietly(selector, X)
    with pytest.raises(ValueError, match="1 to 4 is valid"):
        DUFS(graph=Graph(n_neighbors=6)).fit(X)
    with pytest.raises(ValueError, match="1 to 511 is valid"):  # of the rows that are looked at
        DUFS(graph=Graph(n_neighbors=600)).fit(np.random.default_rng(0).normal(size=(700, 4)))


def test_a_report_is_of_the_rate_of_the_fit(moons):
    selector = fit_quietly(DUFS(random_state=0), moons)
    before = selector._explanation(60).reasons
    assert selector.set_params(fdr=0.01)._explanation(60).reasons == before
    assert selector.fdr_ == 0.1
