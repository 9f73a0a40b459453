"""All six baselines: scikit-learn's contract, the inputs that broke comparable software, selection and invariances."""

from __future__ import annotations

import pickle
import threading
import warnings

import joblib
import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from dufs_core import baselines
from dufs_core.baselines import LLCFS, MCFS, NDFS, SRCFS, ConcreteAutoencoder, LaplacianScore
from dufs_core.errors import DufsWarning, SelectionWarning

QUICK = {
    "LaplacianScore": lambda **changes: LaplacianScore(**changes),
    "random walk": lambda **changes: LaplacianScore(**({"variant": "random_walk"} | changes)),
    "MCFS": lambda **changes: MCFS(**({"n_clusters": 2} | changes)),
    "NDFS": lambda **changes: NDFS(**({"n_clusters": 2, "random_state": 0} | changes)),
    "LLCFS": lambda **changes: LLCFS(**({"n_clusters": 2, "max_iter": 4} | changes)),
    "SRCFS": lambda **changes: SRCFS(**({"n_partitions": 4, "n_subspaces": 3, "random_state": 0} | changes)),
    "ConcreteAutoencoder": lambda **changes: ConcreteAutoencoder(
        **({"max_iter": 5, "dtype": "float64", "random_state": 0} | changes)
    ),
}
WITH_GRAPH = [name for name in QUICK if name != "ConcreteAutoencoder"]
every = pytest.mark.parametrize("make", QUICK.values(), ids=QUICK)


def fit(selector, X):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DufsWarning)
        return selector.fit(X)


@pytest.fixture(scope="module")
def X():
    """40 x 6, two overlapping clusters in columns 1 and 4."""
    rng = np.random.default_rng(7)
    X = rng.normal(size=(40, 6))
    X[:, [1, 4]] += 3.0 * (np.arange(40)[:, None] % 2)
    return X


def assert_same(a, b):
    np.testing.assert_array_equal(a.scores_, b.scores_)
    np.testing.assert_array_equal(a.order_, b.order_)
    np.testing.assert_array_equal(a.support_, b.support_)


def assert_consistent(fitted):
    """What holds for every fit: all columns scored, ranked by score and then index, the best selected."""
    d = fitted.n_features_in_
    assert fitted.scores_.shape == (d,)
    assert np.isfinite(fitted.scores_).all()
    np.testing.assert_array_equal(fitted.order_, np.argsort(-fitted.scores_, kind="stable"))
    assert set(np.flatnonzero(fitted.support_)) == set(fitted.order_[: fitted.support_.sum()])


def test_every_baseline_is_here():
    assert {type(make()).__name__ for make in QUICK.values()} == set(baselines.__all__)
    assert set(baselines.__all__) <= set(dir(baselines))
    with pytest.raises(AttributeError, match="no attribute 'UDFS'"):
        baselines.UDFS  # noqa: B018


@pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")
@pytest.mark.filterwarnings("ignore:No features were selected:UserWarning")
@parametrize_with_checks([make(n_neighbors=2) if name in WITH_GRAPH else make() for name, make in QUICK.items()])
def test_scikit_learn_contract(estimator, check):
    check(estimator)


# --- selection ------------------------------------------------------------------------------------------------------


GOOD = {
    "MCFS": {"n_clusters": 1},  # two blobs have one eigenvector that tells them apart
    "LLCFS": {"n_neighbors": 20, "max_iter": 30},
    "ConcreteAutoencoder": {"max_iter": 150, "learning_rate": 0.05},
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", QUICK)
def test_informative_columns_come_first(name, seed):
    """Two blobs in columns 3 and 7 of 12, one of them mirrored, noise elsewhere."""
    rng = np.random.default_rng(seed)
    labels = np.arange(80) % 2
    X = rng.normal(size=(80, 12))
    X[:, 3] += 3.5 * labels
    X[:, 7] -= 3.5 * labels
    options = {"n_features_to_select": 2, "random_state": seed} | GOOD.get(name, {})
    if name == "ConcreteAutoencoder":  # it looks for columns that tell the others: noise tells only itself
        X[:, [0, 1, 2, 4, 5]] = X[:, [3]] + 0.3 * rng.normal(size=(80, 5))
        X[:, [6, 8, 9, 10, 11]] = X[:, [7]] + 0.3 * rng.normal(size=(80, 5))
        X[:, [3, 7]] = np.column_stack([X[:, [0, 1, 2, 4, 5]].mean(axis=1), X[:, [6, 8, 9, 10, 11]].mean(axis=1)])
    fitted = QUICK[name](**options).fit(X)
    assert_consistent(fitted)
    assert set(fitted.order_[:2]) == {3, 7}
    assert set(np.flatnonzero(fitted.support_)) == {3, 7}


@every
def test_identical_columns_give_exactly_the_number_wanted(make):
    rng = np.random.default_rng(0)
    X = np.hstack([np.tile(rng.normal(size=(30, 1)), (1, 200)), rng.normal(size=(30, 5))])
    first = fit(make(n_features_to_select=50), X)
    assert first.support_.sum() == 50
    assert_consistent(first)
    for _ in range(3):
        assert_same(fit(make(n_features_to_select=50), X), first)


@every
def test_exact_ties_go_by_column_index(make, X):
    fitted = fit(make(n_features_to_select=2), np.hstack([X, X[:, ::-1]]))
    assert_consistent(fitted)
    assert fitted.support_.sum() == 2


@every
@pytest.mark.parametrize("wanted", [0, -1, 7, 1000, 0.0, 1.0, 1.5, "all", True])
def test_unusable_number_of_features_names_both_numbers(make, wanted, X):
    with pytest.raises(ValueError, match=r"from 1 to the 6 features"):
        make(n_features_to_select=wanted).fit(X)


@every
@pytest.mark.parametrize(("wanted", "number"), [(1, 1), (6, 6), (0.5, 3), (0.01, 1), (np.int64(2), 2), (None, 3)])
def test_number_of_features_is_exact(make, wanted, number, X):
    fitted = fit(make(n_features_to_select=wanted), X)
    assert fitted.transform(X).shape == (40, number)
    assert_consistent(fitted)


# --- invariances ----------------------------------------------------------------------------------------------------


@every
def test_negated_columns_change_no_ranking(make, X):
    a, b = fit(make(), X), fit(make(), X * [1, -1, 1, 1, -1, 1])
    np.testing.assert_allclose(a.scores_, b.scores_, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("name", WITH_GRAPH)
def test_permuted_rows_change_only_rounding(name, X):
    order = np.random.default_rng(0).permutation(len(X))
    a, b = fit(QUICK[name](), X), fit(QUICK[name](), X[order])
    np.testing.assert_allclose(a.scores_, b.scores_, rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("name", ["LaplacianScore", "random walk", "MCFS", "NDFS", "LLCFS"])
def test_permuted_columns_permute_the_scores(name, X):
    order = np.random.default_rng(0).permutation(6)
    a, b = fit(QUICK[name](), X), fit(QUICK[name](), X[:, order])
    np.testing.assert_allclose(a.scores_[order], b.scores_, rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("name", ["SRCFS", "ConcreteAutoencoder"])
def test_permuted_columns_with_their_draws_permute_the_scores(name, X):
    """Draws belong to column positions, which `_score` is given: permuted alike, they give the permuted scores."""
    order = np.random.default_rng(0).permutation(6)
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    a = QUICK[name]()._score(Z, np.arange(6), 2, 5)
    b = QUICK[name]()._score(np.ascontiguousarray(Z[:, order]), np.arange(6)[order], 2, 5)
    np.testing.assert_allclose(a[order], b, rtol=1e-7, atol=1e-12)


@every
@pytest.mark.parametrize("scaling", ["columns", "global", "none"])
def test_an_appended_constant_column_changes_no_other_score(make, scaling, X):
    a = fit(make(scaling=scaling, n_features_to_select=2), X)
    b = fit(make(scaling=scaling, n_features_to_select=2), np.hstack([X, np.full((len(X), 1), 7.0)]))
    np.testing.assert_allclose(a.scores_, b.scores_[:-1], rtol=1e-9)
    assert b.order_[-1] == 6
    np.testing.assert_array_equal(b.constant_features_, [6])


# --- numerics -------------------------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize("scaling", ["columns", "global", "none"])
def test_constant_columns_rank_last(make, scaling):
    X = np.random.default_rng(0).normal(size=(11, 5))
    X[:, 1] = 0.3  # its computed variance is not 0
    X[:, 3] = 1e9
    fitted = fit(make(scaling=scaling), X)
    assert_consistent(fitted)
    np.testing.assert_array_equal(fitted.constant_features_, [1, 3])
    np.testing.assert_array_equal(fitted.order_[-2:], [1, 3])
    assert fitted.support_.sum() == 2
    exactly = fit(make(scaling=scaling, n_features_to_select=4), X)
    assert exactly.support_.sum() == 4


@every
def test_all_columns_constant(make):
    with pytest.warns(SelectionWarning, match="All 3 columns of X are constant"):
        fitted = make().fit(np.ones((10, 3)))
    assert not fitted.support_.any()
    np.testing.assert_array_equal(fitted.order_, [0, 1, 2])


@every
def test_many_identical_rows(make):
    rng = np.random.default_rng(1)
    X = np.vstack([np.tile(rng.normal(size=(1, 5)), (40, 1)), rng.normal(size=(10, 5))])
    assert_consistent(fit(make(), X))


@every
def test_two_components(make):
    """Blobs so far apart that the graph falls into two parts: finite, the same each time, and for permuted rows."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(40, 6))
    X[:, [1, 4]] += 200.0 * (np.arange(40)[:, None] % 2)
    options = {"n_features_to_select": 2} | ({"n_clusters": 1} if make is QUICK["MCFS"] else {})
    first = fit(make(**options), X)
    assert_consistent(first)
    assert_same(fit(make(**options), X), first)
    if make not in (QUICK["ConcreteAutoencoder"], QUICK["LLCFS"]):
        assert first.order_[0] in {1, 4}
        if make is not QUICK["MCFS"]:  # a sparse regression needs one of two equal columns
            assert set(first.order_[:2]) == {1, 4}
        again = fit(make(**options), X[::-1])
        np.testing.assert_allclose(again.scores_, first.scores_, rtol=1e-5, atol=1e-8)


def test_neighbourhoods_that_never_mix_are_reported():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(40, 6))
    X[:, [1, 4]] += 200.0 * (np.arange(40)[:, None] % 2)
    with pytest.warns(SelectionWarning, match=r"the 10 neighbours say nothing about the columns.*at most 39"):
        fitted = LLCFS(n_clusters=2, n_neighbors=10, scaling="none").fit(X)
    np.testing.assert_allclose(fitted.scores_, 1 / 6)
    assert not fitted.converged_


@pytest.mark.parametrize("name", WITH_GRAPH)
@pytest.mark.parametrize(("n", "k"), [(2, 2), (3, 3), (10, 10), (10, 11), (10, 0)])
def test_too_many_neighbours_name_the_valid_range(name, n, k):
    X = np.random.default_rng(0).normal(size=(n, 3))
    with pytest.raises(ValueError, match=rf"1 to {n - 1} is valid|at least 1; got 0"):
        QUICK[name](n_neighbors=k).fit(X)


@every
@pytest.mark.parametrize("n", [2, 3, 4])
def test_fewest_rows(make, n):
    X = np.random.default_rng(0).normal(size=(n, 3))
    options = {} if make is QUICK["ConcreteAutoencoder"] else {"n_neighbors": n - 1}
    if "n_clusters" in make().get_params():
        options["n_clusters"] = None
    assert_consistent(fit(make(**options), X))


@every
def test_one_column_and_one_more_than_rows(make):
    rng = np.random.default_rng(0)
    assert_consistent(fit(make(), rng.normal(size=(12, 1))))
    assert_consistent(fit(make(), rng.normal(size=(8, 9))))


@every
@pytest.mark.parametrize(
    ("column", "container"),
    [(np.array([1, 2, 3] * 10) * 1e20, np.float32), (np.array([1, 2, 3] * 10) * 1e200, np.float64)],
)
@pytest.mark.parametrize("scaling", ["columns", "global", "none"])
def test_huge_columns_give_finite_results_or_name_the_column(make, column, container, scaling):
    X = np.random.default_rng(0).normal(size=(30, 4))
    X[:, 2] = column
    single = make is QUICK["ConcreteAutoencoder"]
    selector = make(scaling=scaling, **({"dtype": "float32"} if single else {}))
    too_large = 1e20 if single else 1e200
    if scaling == "none" and column.max() >= too_large:
        with pytest.raises(ValueError, match=r"Column 2 reaches .* from its mean"):
            selector.fit(X.astype(container))
        return
    assert_consistent(fit(selector, X.astype(container)))


def hostile(seed):
    """2 to 8 rows of 1 to 30 columns: sizes from 1e-300 to 1e300, integers, offsets, equal rows, constant columns."""
    rng = np.random.default_rng(seed)
    n, d = rng.integers(2, 9), rng.integers(1, 31)
    X = rng.normal(size=(n, d))
    X = [
        X, X * 10.0 ** rng.uniform(-300, 300, d), X * 10.0 ** rng.uniform(-300, 300), rng.integers(-3, 4, (n, d)),
        X + 10.0 ** rng.uniform(0, 16, d), 10.0 ** rng.uniform(-300, 300, (n, d)),
        np.where(rng.random((n, d)) < 0.5, 0.0, X * 10.0 ** rng.uniform(-300, 300, (n, d))),
        np.round(2 * X) * 10.0 ** rng.uniform(-20, 20),
    ][rng.integers(8)]  # fmt: skip
    if rng.random() < 0.4:
        X = X[rng.integers(0, n, n)]
    if rng.random() < 0.3:
        X[:, rng.random(d) < 0.4] = X[0, 0]
    if rng.random() < 0.2:
        X[:, rng.integers(0, d)] = X[:, 0]
    return X


@every
def test_hostile_matrices_give_finite_scores_or_a_sentence(make):
    refused = []
    for seed in range(80):
        X, rng = hostile(seed), np.random.default_rng([seed, 1])
        options = {
            "scaling": str(rng.choice(["columns", "global", "none"])), "dtype": str(rng.choice(["float32", "float64"])),
            "n_neighbors": int(rng.integers(1, len(X))), "n_clusters": int(rng.integers(1, len(X))),
            "n_subspaces": int(rng.integers(1, 21)), "max_iter": 3,
        }  # fmt: skip
        selector = make(**{name: options[name] for name in options.keys() & make().get_params()})
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", RuntimeWarning)
                assert_consistent(fit(selector, X))
        except ValueError as error:
            refused.append((selector.scaling, "Use scaling='columns' or 'global'" in str(error)))
    assert set(refused) == {("none", True)}
    assert len(refused) < 40


@every
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_bad_cell_is_counted_and_located(make, bad):
    X = np.random.default_rng(0).normal(size=(20, 7))
    X[3, 5] = X[4, 6] = bad
    with pytest.raises(ValueError, match=r"NaN or infinity: 2 of 140 values, the first in column 5"):
        make().fit(X)


@every
@pytest.mark.parametrize("dtype", [np.int8, np.uint16, bool, np.float16, ">f8"])
def test_other_dtypes_are_cast_before_subtracting(make, dtype):
    X = np.random.default_rng(0).integers(0, 2 if dtype is bool else 100, size=(30, 4)).astype(dtype)
    assert_same(fit(make(), X), fit(make(), X.astype(np.float64)))


# --- contract -------------------------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize("order", ["C", "F"])
def test_input_is_not_written_to_and_layout_does_not_matter(make, order, X):
    given = np.array(X, order=order)
    before = given.tobytes(order="A")
    given.flags.writeable = False
    fitted = fit(make(), given)
    fitted.transform(given)
    assert given.tobytes(order="A") == before
    assert_same(fit(make(), np.repeat(X, 2, axis=0)[::2]), fitted)


@every
def test_sparse_input_is_refused(make, X):
    with pytest.raises(TypeError, match="dense data is required"):
        make().fit(csr_array(X))


@every
@pytest.mark.parametrize("shape", [(1, 5), (0, 5), (5, 0), (5,)])
def test_unusable_shapes(make, shape):
    with pytest.raises(ValueError, match=r"minimum of|Expected 2D array"):
        make().fit(np.ones(shape))


@every
def test_names_masks_order_and_frames_agree(make, X):
    frame = pd.DataFrame(X, columns=["z", "m", "a", "k", "b", "c"]).astype({"z": np.float32})
    fitted = fit(make(n_features_to_select=2).set_output(transform="pandas"), frame)
    names = [frame.columns[i] for i in np.flatnonzero(fitted.support_)]
    assert list(fitted.get_feature_names_out()) == names
    pd.testing.assert_frame_equal(fitted.transform(frame), frame[names])


@every
def test_clone_and_pickle(make, X):
    selector = make(n_features_to_select=2)
    assert clone(selector).get_params() == selector.get_params()
    fit(selector, X)
    assert_same(pickle.loads(pickle.dumps(selector)), selector)
    assert_same(fit(pickle.loads(pickle.dumps(clone(selector))), X), selector)
    with pytest.raises(NotFittedError):
        clone(selector).transform(X)


@every
def test_same_seed_same_bits_and_no_memory_of_an_earlier_fit(make, X):
    first = fit(make(), X)
    again = fit(make(), X[:, :3])
    assert_same(fit(again, X), first)


@pytest.mark.parametrize("name", ["NDFS", "SRCFS", "ConcreteAutoencoder"])
def test_random_state_matters_and_accepts_generators(name, X):
    a, b = fit(QUICK[name](), X), fit(QUICK[name](random_state=1), X)
    if name != "NDFS":  # k-means mostly ends in the same clusters
        assert (a.scores_ != b.scores_).any()
    assert_same(
        *(fit(QUICK[name](random_state=np.random.RandomState(3)), X) for _ in range(2)),
    )
    assert_consistent(fit(QUICK[name](random_state=None), X))
    assert_consistent(fit(QUICK[name](random_state=2**40 + 1), X))


@every
def test_read_only_memmaps_in_workers(make, X, tmp_path):
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    expected = fit(make(), X)
    for fitted in joblib.Parallel(n_jobs=2, max_nbytes=1, backend="threading")(
        joblib.delayed(make().fit)(mapped) for _ in range(2)
    ):
        assert_same(fitted, expected)


@every
def test_threads_at_once(make, X):
    expected = fit(make(), X)
    fits = [make() for _ in range(3)]
    threads = [threading.Thread(target=selector.fit, args=(X,)) for selector in fits]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for selector in fits:
        assert_same(selector, expected)


@every
def test_grid_search_over_a_pipeline(make, X):
    pipeline = Pipeline([("select", make()), ("classify", LogisticRegression())])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DufsWarning)
        search = GridSearchCV(pipeline, {"select__n_features_to_select": [1, 2]}, cv=2).fit(X, np.arange(40) % 2)
    assert search.best_params_["select__n_features_to_select"] in (1, 2)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("LaplacianScore", {"variant": "mine"}, "variant must be one of 'laplacian', 'random_walk'; got 'mine'"),
        ("LaplacianScore", {"power": 0}, "power must be a whole number of at least 1; got 0"),
        ("LaplacianScore", {"bandwidth": "mean"}, "bandwidth must be"),
        ("LaplacianScore", {"bandwidth": -1.0}, "bandwidth must be"),
        ("LaplacianScore", {"bandwidth_factor": 0}, "bandwidth_factor must be a positive number"),
        ("LaplacianScore", {"scaling": "rows"}, "scaling must be one of"),
        ("MCFS", {"n_clusters": 40}, "from 1 to the number of rows minus 1, 39; got 40"),
        ("MCFS", {"n_clusters": 0}, "from 1 to the number of rows minus 1, 39; got 0"),
        ("MCFS", {"bandwidth": np.nan}, "bandwidth must be"),
        ("NDFS", {"alpha": 0}, "alpha must be a positive number"),
        ("NDFS", {"gamma": np.inf}, "gamma must be a positive number"),
        ("NDFS", {"max_iter": 0}, "max_iter must be a whole number"),
        ("NDFS", {"tol": 0}, "tol must be a positive number"),
        ("LLCFS", {"beta": -1}, "beta must be a positive number"),
        ("LLCFS", {"n_clusters": 2.5}, "n_clusters must be None or a whole number"),
        ("SRCFS", {"n_partitions": 0}, "n_partitions must be a whole number"),
        ("SRCFS", {"n_subspaces": 1.5}, "n_subspaces must be a whole number"),
        ("ConcreteAutoencoder", {"hidden": (0,)}, "hidden must hold whole numbers"),
        ("ConcreteAutoencoder", {"temperatures": (1.0,)}, "temperatures must be two positive numbers"),
        ("ConcreteAutoencoder", {"temperatures": (1.0, 0.0)}, "temperatures must be two positive numbers"),
        ("ConcreteAutoencoder", {"learning_rate": 0}, "learning_rate must be a positive number"),
        ("ConcreteAutoencoder", {"batch_size": 0}, "batch_size must be a whole number"),
        ("ConcreteAutoencoder", {"dtype": "float16"}, "dtype must be one of"),
    ],
)
def test_unusable_parameters_say_what_is_valid(name, changes, message, X):
    with pytest.raises(ValueError, match=message):
        QUICK[name](**changes).fit(X)
