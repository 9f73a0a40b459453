"""The lambda path and stability selection."""

import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.feature_selection import SelectKBest
from sklearn.utils.estimator_checks import parametrize_with_checks

from dufs_core import LambdaPath, Trajectory, stability_selection
from dufs_core.backend import get_backend
from dufs_core.datasets import two_moons
from dufs_core.errors import SelectionWarning
from dufs_core.selection.checkpoint import Checkpoint
from dufs_core.selection.fit import FitTask
from dufs_core.selection.gates.lambda_grid import geometric_grid, lambda_range, refine_grid, stationary_lambdas
from dufs_core.selection.gates.lambda_path import agreement, best_index, fit_lams, group_equal
from dufs_core.significance.permutation import aggregate_p_values, max_t_test, shuffled_scores
from tests.generators import gated, noise, standardise

NUMPY = get_backend("numpy")


def short(**changes):
    return gated(**{"max_iter": 150, "learning_rate": 0.02, "max_runs": 1, "n_draws": 4} | changes)


def quick(selector=None, **changes):
    settings = {"n_lams": 3, "n_splits": 1, "n_permutations": 99, "random_state": 1}
    return LambdaPath(short() if selector is None else selector).set_params(**(settings | changes))


@pytest.fixture(scope="module")
def moons():
    return two_moons(100, 6, noise=0.05, random_state=0).X


@pytest.fixture(scope="module")
def path(moons):
    return quick().fit(moons)


@pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")
@pytest.mark.filterwarnings("ignore:No features were selected:UserWarning")
@parametrize_with_checks([LambdaPath(short(max_iter=2), n_lams=2, n_splits=1, n_permutations=3, random_state=0)])
def test_scikit_learn_contract(estimator, check):
    check(estimator)


def test_the_moons_are_chosen_and_their_p_value_is_small(path):
    np.testing.assert_array_equal(path.get_support(indices=True), [0, 1])
    assert path.p_value_[path.best_index_] <= 0.05
    assert path.mu_.shape == (3, 6)
    np.testing.assert_array_equal(path.n_selected_, (path.mu_ > 0).sum(axis=1))
    np.testing.assert_array_equal(path.scores_, path.mu_[path.best_index_])
    assert path.held_out_z_[path.best_index_] == path.held_out_z_.max()
    assert (np.diff(path.lams_) > 0).all()


def test_noise_is_reported():
    with pytest.warns(SelectionWarning, match="treat the .* features selected as noise"):
        found = quick().fit(noise(60, 8))
    assert found.p_value_.min() > 0.05


def test_a_point_of_the_path_is_the_fit_at_its_lambda(path, moons):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SelectionWarning)
        alone = short(lam=float(path.lams_[1]), random_state=1).fit(moons)
    np.testing.assert_array_equal(path.mu_[1], alone.mu_)


def test_all_that_varies_is_everything():
    X = two_moons(60, 2, random_state=0).X
    X = np.column_stack([np.ones(60), X])
    with pytest.warns(SelectionWarning, match="selected all 2 features that are not constant: try larger lams"):
        LambdaPath(short(max_iter=20), lams=[1e-9], n_splits=1, n_permutations=9, random_state=0).fit(X)
    with pytest.warns(SelectionWarning, match="X has a single column that is not constant"):
        short(max_iter=5).fit(X[:, :2])


def test_lambdas_that_open_nothing_is_refused(moons):
    selector = short(power=1, self_loops=False, bandwidth_factor=1e6)
    with pytest.raises(ValueError, match=r"No lambda opens a gate: .*power=1, self_loops=False.*even power"):
        LambdaPath(selector, n_splits=1, n_permutations=3, random_state=0).fit(moons)


@pytest.mark.filterwarnings("ignore::dufs_core.errors.SelectionWarning")
def test_the_lowest_lambda_is_a_tenth_of_the_median_at_the_start():
    X = two_moons(n_features=40).X
    stationary = stationary_lambdas(FitTask.begin(short(), X))
    low, high = lambda_range(FitTask.begin(short(), X))
    assert low == pytest.approx(0.1 * np.median(stationary[stationary > 0]))
    assert low < 1e-3 * high  # the other rule, where few columns have most of the variance, does not decide here
    assert high == pytest.approx(1)


@pytest.mark.filterwarnings("ignore::dufs_core.errors.SelectionWarning")  # of fits as short as these
def test_every_half_has_draws_of_its_own(moons, monkeypatch):
    """With the same draws all halves would err alike, and their p-values say less."""
    seeds = []

    def seen(task, lams, seed, bar):
        seeds.append(seed)
        return fit_lams(task, lams, seed, bar)

    monkeypatch.setattr("dufs_core.selection.gates.lambda_path.fit_lams", seen)
    LambdaPath(short(max_iter=5), lams=[1e-4], n_splits=2, n_permutations=3, random_state=0).fit(moons)
    assert len(seeds) == 5  # all rows, and four halves
    assert len(set(seeds)) == 5


@pytest.mark.filterwarnings("ignore::dufs_core.errors.SelectionWarning")  # ten steps close no gate
def test_a_path_without_self_loops_is_of_such_fits(moons):
    found = quick(short(self_loops=False, max_iter=10), n_lams=2, n_permutations=3).fit(moons)
    low, high = lambda_range(FitTask.begin(short(self_loops=False, max_iter=10), moons))
    assert (
        stationary_lambdas(FitTask.begin(short(self_loops=False), moons))
        != stationary_lambdas(FitTask.begin(short(), moons))
    ).all()
    np.testing.assert_allclose(found.lams_, [low, np.sqrt(low * high)])
    alone = short(self_loops=False, max_iter=10, lam=float(found.lams_[0]))
    seed = int(np.random.RandomState(0).randint(2**31))
    first = LambdaPath(short(self_loops=False, max_iter=10), lams=[alone.lam], n_splits=1, n_permutations=3,
                       random_state=seed).fit(moons)  # fmt: skip
    np.testing.assert_array_equal(first.mu_[0], alone.set_params(random_state=seed).fit(moons).mu_)


@pytest.mark.filterwarnings("ignore::dufs_core.errors.SelectionWarning")
def test_the_number_of_features_is_exact_and_what_is_judged(moons):
    frame = pd.DataFrame(moons, columns=list("zambxy"))
    found = quick(n_features_to_select=3, lams=[1e-3, 100.0], n_permutations=5).fit(frame)
    assert list(found.n_selected_) == [3, 3]
    assert found.support_.sum() == 3
    assert set(found.get_feature_names_out()) >= {"z", "a"}
    np.testing.assert_array_equal(found.lams_, [1e-3, 100.0])


@pytest.mark.filterwarnings("ignore::dufs_core.errors.RowsWarning")  # rows of few entries repeat
def test_sparse_rows_give_what_dense_rows_give(moons):
    X = np.where(abs(moons) < 0.7, 0, moons)
    settings = {"n_lams": 2, "n_permutations": 9}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SelectionWarning)
        a, b = (quick(**settings).fit(container) for container in (X, sparse.csr_array(X)))
    np.testing.assert_allclose(a.lams_, b.lams_, rtol=1e-4)
    np.testing.assert_array_equal(a.support_, b.support_)


def test_at_its_stationary_lambda_a_gate_stands_still(moons):
    settings = {"n_draws": 512, "optimizer": "sgd", "learning_rate": 1e-2, "max_iter": 1, "random_state": 0}
    stationary = stationary_lambdas(FitTask.begin(short(**settings), np.column_stack([moons, np.ones(100)])))
    assert stationary[6] == 0  # constant
    assert stationary[1] > 0
    steps = []
    for lam in (0.8 * stationary[1], 1.2 * stationary[1]):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SelectionWarning)
            steps.append(short(lam=float(lam), **settings).fit(moons).mu_[1] - 0.5)
    assert steps[0] > 0 > steps[1]


def test_the_ends_of_the_grid(moons):
    X = np.column_stack([moons * [1, 1, 1, 4, 1, 1], np.ones(100)])
    for scaling in ("columns", "global", "none"):
        selector = short(scaling=scaling)
        low, high = lambda_range(FitTask.begin(selector, X))
        start = stationary_lambdas(FitTask.begin(selector, X))
        variances = X.var(axis=0)
        variances = {"columns": np.ones(1), "global": variances / variances[:6].mean(), "none": variances}[scaling]
        assert high == pytest.approx(variances.max(), rel=1e-5)
        assert low == min(0.1 * np.median(start[start > 0]), high / 1000)
    shrunk = lambda_range(FitTask.begin(selector, X / 64))
    np.testing.assert_allclose(shrunk, (low / 64**2, high / 64**2), rtol=1e-4)
    stored = sparse.csr_array(np.where(abs(X) < 0.7, 0, X))
    np.testing.assert_allclose(
        lambda_range(FitTask.begin(selector, stored)),
        lambda_range(FitTask.begin(selector, stored.toarray())),
        rtol=1e-4,
    )


def test_lambdas_where_the_number_of_columns_changes():
    np.testing.assert_allclose(geometric_grid(1e-4, 1.0, 8), [1e-4, 1e-3, 1e-2, 1e-1])
    np.testing.assert_allclose(geometric_grid(1e-4, 1.0, 1), [1e-4])
    lams, n_open = np.array([1e-4, 1e-3, 1e-2, 1e-1]), np.array([50, 50, 4, 0])
    steepest, after, both_halves = (refine_grid(lams, n_open, 1.0, count) for count in (1, 2, 4))
    np.testing.assert_allclose(steepest, [10**-2.5])  # log(51 / 5) is more than log(5)
    np.testing.assert_allclose(after, [10**-2.5, 10**-1.5])
    np.testing.assert_allclose(both_halves, [10**-2.75, 10**-2.5, 10**-2.25, 10**-1.5])
    np.testing.assert_allclose(refine_grid(lams, np.full(4, 2), 1.0, 1), [10**-0.5])  # up to where nothing is open
    np.testing.assert_allclose(refine_grid(np.array([1e-4, 1e-1]), np.zeros(2), 1.0, 1), [10**-2.5])  # the widest


@pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")
@pytest.mark.parametrize(("scaling", "different"), [("columns", 2), ("global", 3)])
def test_most_lambdas_keep_columns_whatever_their_variances(scaling, different):
    """Twelve columns follow two clusters, with variances over four powers of ten."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 24))
    X[:30, :12] += 3
    X *= np.geomspace(1, 100, 12)[np.arange(24) % 12]
    found = quick(n_lams=6, selector__scaling=scaling).fit(X)
    assert (found.n_selected_ == 0).sum() <= 2
    assert len(np.unique(found.n_selected_[found.n_selected_ > 1])) >= different
    assert (np.diff(found.lams_) > 0).all()


def test_judgement_is_the_definition():
    X = standardise(two_moons(60, 5, random_state=0).X)
    selections = [np.array([2]), np.array([0, 1]), np.array([2, 3, 4])]
    judged = max_t_test(NUMPY, X, selections, 19, 3)
    (a, null_a), (b, null_b) = (shuffled_scores(NUMPY, X, selection, 19, 3) for selection in selections[1:])
    z = [(a - null_a.mean()) / null_a.std(), (b - null_b.mean()) / null_b.std()]
    np.testing.assert_allclose(judged.z, [0, *z])
    together = np.stack([np.append(null_a, a), np.append(null_b, b)])
    together = (together - together.mean(axis=1, keepdims=True)) / together.std(axis=1, keepdims=True)
    highest = together[:, :-1].max(axis=0)
    np.testing.assert_allclose(
        judged.p_values, [1, *((1 + (highest >= value).sum()) / 20 for value in together[:, -1])]
    )


def test_the_level_of_the_judgement(monkeypatch):
    """Scores of noise at 8 lambdas, 19 shuffles: the smallest p-value is at most 0.05 in one of twenty data sets."""
    rng = np.random.default_rng(0)
    monkeypatch.setattr(
        "dufs_core.significance.permutation.shuffled_scores", lambda *_, **__: (rng.normal(), rng.normal(size=19))
    )
    selections = [np.arange(2)] * 8
    smallest = np.array([max_t_test(NUMPY, None, selections, 19, 0).p_values.min() for _ in range(2000)])
    assert (smallest <= 0.05).mean() == pytest.approx(0.05, abs=0.015)


def test_p_values_of_halves_are_combined():
    two_of_eight = np.ones((8, 2))
    two_of_eight[:, 0] = [1, 1, 0.005, 1, 0.01, 1, 1, 1]
    np.testing.assert_allclose(aggregate_p_values(two_of_eight), [0.04, 1])
    np.testing.assert_allclose(aggregate_p_values(np.array([[0.02], [0.3]])), [0.04])
    np.testing.assert_allclose(aggregate_p_values(np.full((2, 1), 1 / 100)), 0.02)
    np.testing.assert_allclose(aggregate_p_values(np.full((8, 1), 1 / 200)), 0.02)


@pytest.mark.parametrize("halves", [2, 4, 8])
def test_the_level_of_combined_p_values(halves):
    """Uniform p-values that depend on one another in the worst way are below 0.05 together in one of twenty cases."""
    rng = np.random.default_rng(0)
    share, cases = max(1, halves // 4), 20_000
    p = rng.uniform(0.05 * share / halves, 1, size=(cases, halves))
    small = rng.random(cases) < 0.05  # then a quarter of them (one of two) is small, so that each is in 1 of 80 cases
    order = rng.permuted(np.tile(np.arange(halves), (cases, 1)), axis=1)
    p[small[:, None] & (order < share)] = rng.uniform(0, 0.05 * share / halves, size=small.sum() * share)
    assert (p.ravel() <= 0.01).mean() == pytest.approx(0.01 if share / halves >= 0.25 else 0, abs=0.002)
    assert (aggregate_p_values(p.T) <= 0.05).mean() == pytest.approx(0.05, abs=0.006)


def test_lambdas_that_select_the_same_are_judged_once():
    a, b, one, nothing = np.array([0, 1]), np.array([1, 2]), np.array([1]), np.array([], dtype=int)
    group, lowest = group_equal([a, a, a, b, a, one, nothing])
    np.testing.assert_array_equal(group, [0, 0, 0, 1, 0, -1, -1])
    np.testing.assert_array_equal(lowest, [0, 3])
    group, lowest = group_equal([nothing])
    assert (list(group), len(lowest)) == ([-1], 0)


def test_columns_that_no_shuffle_changes():
    """Whole blocks of them, at the end too: they say nothing, and stop nothing."""
    X = np.column_stack([two_moons(60, 2, random_state=0).X, np.ones((60, 1000))])
    observed, shuffled = shuffled_scores(NUMPY, X, np.arange(len(X[0])), 3)
    assert np.isfinite([observed, *shuffled]).all()
    judged = max_t_test(NUMPY, np.ones((20, 4)), [np.arange(4)], 39, 0)
    assert (judged.z, judged.p_values) == ([0], [1])


def test_a_lambda_better_than_chance_is_chosen_before_a_lucky_one():
    assert best_index(np.array([20.0, 4.0]), np.array([0.06, 0.02])) == 1
    assert best_index(np.array([20.0, 4.0]), np.array([0.06, 0.07])) == 0


def test_of_equal_lambdas_the_middle_is_chosen():
    assert best_index(np.array([1.0, 4.0, 4.0, 4.0, 1.0]), np.full(5, 0.04)) == 2


def test_batches_that_only_the_halves_do_not_fill(moons):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        quick(short(batch_size=60, max_iter=3), n_lams=1, n_permutations=3).fit(moons)
    assert not [w for w in caught if "batch_size" in str(w.message)]


class Counter:
    """Stands for a bar."""

    def __init__(self, verbose, total, unit):
        assert unit == "fit"
        self.verbose, self.first_total, self.total, self.n, self.said = verbose, total, total, 0, []

    def update(self, count=1):
        self.n += count

    def set_postfix_str(self, text):
        self.said.append(text)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass


@pytest.mark.filterwarnings("ignore::dufs_core.errors.SelectionWarning")
def test_the_bar_counts_fits(moons, monkeypatch):
    bars = []

    def bar(*arguments):
        bars.append(Counter(*arguments))
        return bars[-1]

    monkeypatch.setattr("dufs_core.selection.gates.lambda_path.progress_bar", bar)
    monkeypatch.setattr("dufs_core.selection.stability.progress_bar", bar)
    found = quick(lams=[0.01, 1e3, 0.011], n_splits=2, verbose=1, n_permutations=3).fit(moons)
    np.testing.assert_array_equal(found.n_selected_, [2, 2, 0])
    assert (bars[0].verbose, bars[0].first_total) == (1, 3 * 5)
    assert bars[0].n == bars[0].total == 3 + 4  # the first two lambdas are one on halves, the third is none
    assert bars[0].said == ["all rows", "split 1 of 2", "split 2 of 2"]
    quick(lams=[1e3], n_permutations=3).fit(moons)
    assert (bars[1].verbose, bars[1].n, bars[1].total) == (0, 1, 1)
    stability_selection(short(max_iter=2), moons, n_subsamples=3, verbose=1)
    assert (bars[2].verbose, bars[2].n, bars[2].total) == (1, 3, 3)


@pytest.mark.filterwarnings("ignore::dufs_core.errors.SelectionWarning")
@pytest.mark.parametrize("verbose", [0, 1])
def test_the_bar_is_seen_on_standard_error(moons, capsys, verbose):
    quick(selector=short(max_iter=2, verbose=1), n_lams=1, n_permutations=3, verbose=verbose).fit(moons)
    stability_selection(short(max_iter=2), moons, n_subsamples=2, verbose=verbose)
    out, err = capsys.readouterr()
    assert out == ""
    assert [text in err for text in ("0/3 [", "0/2 [", "fit", "all rows")] == [bool(verbose)] * 4
    assert "step" not in err  # those of the fits would write over it


@pytest.mark.parametrize(
    ("a", "b", "expected"), [([0, 1], [0, 1], 1), ([], [1], 0), (range(10), range(10), 0), ([0, 1], [2, 3], -0.25)]
)
def test_agreement(a, b, expected):
    assert agreement(np.array(a, dtype=int), np.array(b, dtype=int), 10) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"n_lams": 0}, "n_lams must be"), ({"n_splits": 0}, "n_splits must be"), ({"lams": []}, "lams must be"),
     ({"lams": 0.1}, "lams must be None or a sequence of numbers"), ({"lams": [[0.1, 0.2]]}, "lams must be"),
     ({"lams": ["a"]}, r"lams must be .* at least 0; got \['a'\]"), ({"random_state": 0.5}, "random_state must be"),
     ({"lams": [-1.0]}, "lams must be"), ({"n_features_to_select": 7}, "6 features")],
)  # fmt: skip
def test_bad_parameters(changes, message, moons):
    with pytest.raises(ValueError, match=message):
        quick(**changes).fit(moons)


def test_too_few_rows_for_halves(moons):
    with pytest.raises(ValueError, match="X has 7"):
        quick().fit(moons[:7])


def test_samples_and_features_swapped(path, moons):
    with pytest.raises(ValueError, match=r"X has 100 features, but LambdaPath is expecting 6 .* Use X\.T"):
        path.transform(moons.T)
    with pytest.raises(ValueError, match=r"X has 6 rows and 100 columns, and y 100 entries.* Use X\.T"):
        quick().fit(moons.T, np.zeros(100))


def test_data_on_disk_are_to_be_read_first(moons, tmp_path):
    np.save(tmp_path / "X.npy", moons)
    stored = np.load(tmp_path / "X.npy", mmap_mode="r")
    with pytest.raises(ValueError, match=r"read it into memory first, numpy.array\(X\)"):
        LambdaPath(short(batch_size=20)).fit(stored)


def test_a_checkpoint_saves_one_fit(moons, tmp_path):
    saving = short(callbacks=[Checkpoint(tmp_path / "state")])
    with pytest.raises(ValueError, match=r"A path fits copies .* what Checkpoint keeps .* out of callbacks"):
        LambdaPath(saving).fit(moons)
    with pytest.raises(ValueError, match=r"stability_selection fits copies .* out of callbacks"):
        stability_selection(saving, moons)
    with pytest.raises(ValueError, match="take it out of selector__callbacks"):
        stability_selection(LambdaPath(saving), moons)


@pytest.mark.filterwarnings("ignore::dufs_core.errors.SelectionWarning")
def test_a_trajectory_of_copies_is_refused(moons):
    keeping = short(callbacks=[Trajectory()])
    with pytest.raises(ValueError, match=r"A path fits copies .* what Trajectory keeps would be lost"):
        LambdaPath(keeping).fit(moons)
    with pytest.raises(ValueError, match=r"what Trajectory keeps would be lost .* out of selector__callbacks"):
        stability_selection(LambdaPath(keeping), moons)
    steps = []
    LambdaPath(short(callbacks=[steps.append], max_iter=2), n_lams=1, n_splits=1, n_permutations=1).fit(moons)
    assert [info.step for info in steps] == [1, 2] * 3  # all rows, and both halves


def test_frequencies_are_counts_over_complementary_halves():
    X = np.zeros((20, 3))
    X[:, 0] = 1.0
    X[:10, 1] = np.arange(10)  # varies on every half that has two of these rows
    X[0, 2] = 1000.0  # varies on the one half of each pair that has row 0
    picky = SelectKBest(lambda X, y=None: X.var(axis=0), k=1)
    found = stability_selection(picky, X, n_subsamples=10, random_state=0)
    np.testing.assert_allclose(found.frequencies, [0, 0.5, 0.5])
    np.testing.assert_array_equal(found.n_selected, np.ones(10))
    np.testing.assert_array_equal(found.support(0.6), [False, False, False])
    assert found.false_selections(0.75) == pytest.approx(1 / (0.5 * 3))


def test_every_subsample_of_dufs_gives_the_number_asked_for(moons):
    selector = short(n_features_to_select=2, max_iter=20)
    found = stability_selection(selector, moons, n_subsamples=4, random_state=1)
    again = stability_selection(selector, moons, n_subsamples=4, random_state=1)
    np.testing.assert_array_equal(found.n_selected, [2, 2, 2, 2])
    np.testing.assert_array_equal(found.frequencies, again.frequencies)
    with pytest.raises(ValueError, match="n_subsamples"):
        stability_selection(selector, moons, n_subsamples=1)
    with pytest.raises(ValueError, match="random_state must be None, a whole number"):
        stability_selection(selector, moons, random_state=0.5)
    with pytest.raises(ValueError, match=r"needs n_neighbors \+ 2 = 4; X has 7 rows, and 8 are needed"):
        stability_selection(short(n_features_to_select=2, n_neighbors=2), moons[:7])
    with pytest.raises(ValueError, match="threshold"):
        found.false_selections(0.5)
