"""Rows that may be exchanged within groups alone: orders, samples, halves, fits."""

import warnings
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn import config_context
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from dufs_core import DUFS, Checkpoint, GatedLaplacian, LambdaPath, fit_many, stability_selection
from dufs_core.backend import get_backend, random
from dufs_core.data.groups import Within, accept_groups
from dufs_core.errors import CheckpointError, RowsWarning
from dufs_core.significance.hsic import PairwiseHSIC
from dufs_core.significance.rows import Rows

NUMPY = get_backend("numpy")
STREAM = random.Stream.DECOYS


def donors(n=120, d=30, count=6, offset=3.0, seed=0):
    """Noise with offsets and deviations of donors, two clusters in the first five columns, rows in random order."""
    rng = np.random.default_rng(seed)
    group = rng.permutation(np.arange(n) % count)
    X = rng.normal(size=(n, d))
    X[:, :5] += 2.5 * rng.choice([-1, 1], size=(n, 1))
    X *= rng.uniform(0.5, 2, size=(count, d))[group]
    X += offset * rng.normal(size=(count, d))[group]
    return X, group


def wins(selector, columns=slice(None)):
    """The share of some columns that beat all their decoys."""
    return (selector.evidence_ > selector.decoy_evidence_.max(axis=0))[columns].mean()


# --- labels


@pytest.mark.parametrize(
    "labels",
    [
        ["b", "a", "b", "a", "c", "c"],
        np.array(["b", "a", "b", "a", "c", "c"], dtype=object),
        [7, -1, 7, -1, 3, 3],
        np.array([2.5, 0.5, 2.5, 0.5, 1.5, 1.5]),
        pd.Series(["b", "a", "b", "a", "c", "c"], index=list("uvwxyz")),
        pd.Categorical(["b", "a", "b", "a", "c", "c"], categories=["c", "b", "a", "never"]),
        [("x", 1), ("x", 2), ("x", 1), ("x", 2), ("y", 1), ("y", 1)],
        [True, False, True, False, "c", "c"],
    ],
    ids=["texts", "objects", "numbers", "floats", "series", "categories", "tuples", "mixed"],
)
def test_labels_are_numbered_as_they_appear(labels):
    assert accept_groups(labels, 6).number.tolist() == [0, 1, 0, 1, 2, 2]


def test_rows_without_company_are_left_out():
    groups = accept_groups(list("abacada"), 7)
    assert groups.kept.tolist() == [0, 2, 4, 6]
    assert groups.number.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        (["a", "b"], "groups has 2 labels, and X 4 rows"),
        (["a", None, "a", float("nan")], "2 of the 4 labels in groups are missing, the first that of row 1"),
        (pd.Series(["a", pd.NA, "a", "b"], dtype="string"), "1 of the 4 labels in groups are missing"),
        (["a", "b", "c", "d"], "Each of the 4 rows is a group of its own"),
        (np.zeros((4, 1)), r"one-dimensional, a label for each row; got shape \(4, 1\)"),
        ([["a"], ["a"], ["b"], ["b"]], "one label for each row, a text or a number; got"),
    ],
)
def test_labels_that_are_none(labels, sentence):
    with pytest.raises(ValueError, match=sentence):
        DUFS().fit(np.random.default_rng(0).normal(size=(4, 3)), groups=labels)


# --- what is computed within groups


def test_levelled_by_hand():
    """Mean 0 in each group, and five rows more with the common variance."""
    group = np.array([0, 1, 0, 1, 1, 0])
    x = np.array([[1.0, 10, 2, 30, 20, 6]])
    squares = np.array([14.0, 200.0])
    common = squares.sum() / 4
    expected = np.empty((1, 6))
    for g, mean in enumerate((3.0, 20.0)):
        deviation = np.sqrt((squares[g] / common + 5) / (2 + 5))
        expected[0, group == g] = (x[0, group == g] - mean) / deviation
    np.testing.assert_allclose(Within(np, group, 6).levelled(x), expected, rtol=1e-14)


def test_one_group_is_no_group():
    x = np.random.default_rng(0).normal(size=(3, 9))
    one, none = Within(np, np.zeros(9, dtype=int), 9), Within(np, None, 9)
    np.testing.assert_array_equal(one.from_medians(x), none.from_medians(x))
    np.testing.assert_allclose(one.levelled(x), none.levelled(x) / np.sqrt(13 / 13), rtol=1e-14)


def test_what_is_constant_in_each_group():
    group = np.array([0, 0, 1, 1, 1])
    x = np.array([[1.0, 1, 2, 2, 2], [1, 1, 2, 2, 3], [0.1, 0.1, 0.3, 0.3, 0.3]])
    assert Within(np, group, 5).constant(x).tolist() == [True, False, True]


# --- orders


def test_orders_stay_within_groups():
    group = np.random.default_rng(1).integers(5, size=60)
    orders = random.orders(NUMPY, 3, STREAM, 0, 7, 60, np.arange(11), group=group)
    assert orders.shape == (7, 11, 60)
    assert (np.sort(orders, axis=2) == np.arange(60)).all()
    assert (group[orders] == group).all()
    assert len(np.unique(orders.reshape(-1, 60), axis=0)) == 77


def test_orders_of_one_group_are_the_orders():
    plain = random.orders(NUMPY, 3, STREAM, 0, 5, 40, np.arange(9))
    np.testing.assert_array_equal(
        random.orders(NUMPY, 3, STREAM, 0, 5, 40, np.arange(9), group=np.zeros(40, dtype=int)), plain
    )


def test_every_order_within_groups_is_as_likely():
    """Six orders of three rows beside two of two: twelve cells, chi-squared at most its 0.999 quantile, 31.3."""
    group = np.array([0, 1, 0, 1, 0])
    orders = random.orders(NUMPY, 0, STREAM, 0, 6000, 5, np.arange(2), group=group).reshape(-1, 5)
    counts = np.array(list(Counter(map(tuple, orders.tolist())).values()))
    assert len(counts) == 12
    assert ((counts - 1000) ** 2 / 1000).sum() < 31.3


def test_shuffles_of_pairs_of_columns_stay_within_groups():
    group = np.repeat([0, 1], 30)
    X = np.random.default_rng(0).normal(size=(60, 4)) + 100.0 * group[:, None]
    screening = PairwiseHSIC(NUMPY, X, np.arange(4), Rows(60, group))
    assert screening._group is not None
    shuffled = [screening._shuffled(b) for b in range(3)]
    assert all(((x > 50) == (X > 50)).all() for x in shuffled)
    assert all((np.sort(x, axis=0) == np.sort(X, axis=0)).all() and (x != X).any() for x in shuffled)


# --- samples and halves


def sizes_of(group):
    return np.bincount(group, minlength=group.max() + 1)


@pytest.mark.parametrize("size", [[5000, 5000], [20] * 500, [2] * 2000, [1000, 3, 40, 600, 2, 17], [100] * 6])
def test_samples_keep_rows_together(size):
    rng = np.random.default_rng(0)
    group = rng.permutation(np.repeat(np.arange(len(size)), size))
    rows, of_rows, positions = Rows(len(group), group).sample(NUMPY, 5, STREAM, 1, 512)
    np.testing.assert_array_equal(rows, positions)
    assert len(np.unique(rows)) == len(rows)
    assert 480 < len(rows) <= 512
    np.testing.assert_array_equal(of_rows, group[rows])
    taken = np.bincount(of_rows, minlength=len(size))
    whole, there = np.array(size), taken > 0
    assert ((taken >= np.minimum(whole, 16)) | ~there).all()
    assert (taken[(whole < 32) & there] == whole[(whole < 32) & there]).all()


def test_samples_take_large_groups_by_their_size():
    group = np.repeat([0, 1], [9000, 3000])
    counts = [np.bincount(Rows(12000, group).sample(NUMPY, seed, STREAM, 1, 512).group).tolist() for seed in range(20)]
    assert abs(np.mean(counts, axis=0)[0] / 512 - 0.75) < 0.05
    assert len({tuple(c) for c in counts}) > 1


def test_halves_take_whole_groups():
    group = np.random.default_rng(0).permutation(np.repeat(np.arange(9), 11))
    (first, in_first), (second, _) = Rows(99, group).halves(4, 0)
    np.testing.assert_array_equal(in_first, group[first])
    assert sorted([*first, *second]) == list(range(99))
    assert not set(group[first]) & set(group[second])
    assert min(len(first), len(second)) >= 44
    assert Rows(99, group).halves(4, 1)[0].rows.tolist() != first.tolist()


def test_halves_of_very_large_groups_are_halves_of_each():
    group = np.repeat([0, 1, 2], [50, 40, 10])
    first, second = (half.rows for half in Rows(100, group).halves(0, 0))
    assert np.bincount(group[first])[:2].tolist() == [25, 20]
    assert len(set(group[second]) & {2}) + len(set(group[first]) & {2}) == 1


def test_halves_without_groups_are_halves():
    first, second = (half.rows for half in Rows(11).halves(0, 3))
    assert (len(first), len(second)) == (5, 6)
    assert sorted([*first, *second]) == list(range(11))


# --- fits


def test_donors_untold_and_told():
    X, group = donors()
    with warnings.catch_warnings(action="ignore", category=RowsWarning):
        assert DUFS(random_state=0).fit(X).support_.sum() > 20
    told = DUFS(random_state=0).fit(X, groups=group)
    assert told.get_support(indices=True).tolist() == [0, 1, 2, 3, 4]
    assert told.rows_[:5] == (120, 6, 0, 0, 0)
    assert not told.diagnosis_


def test_offsets_and_names_of_groups_change_nothing():
    X, group = donors(offset=0.0)
    first = DUFS(random_state=0, dtype="float64").fit(X, groups=group)
    moved = X + np.random.default_rng(5).normal(size=(6, 30))[group]
    names = np.array(["f", "e", "d", "c", "b", "a"])[group]
    second = DUFS(random_state=0, dtype="float64").fit(moved, groups=names)
    np.testing.assert_allclose(second.evidence_, first.evidence_, rtol=1e-6)
    np.testing.assert_allclose(second.decoy_evidence_, first.decoy_evidence_, rtol=1e-6)
    np.testing.assert_array_equal(second.order_, first.order_)


@pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")
@pytest.mark.parametrize("size", [2, 3, 20])
def test_nuisance_wins_one_in_six(size):
    """Offsets and deviations of groups, 20 sets: 1 / (1 + 5), within three standard errors over sets."""
    shares = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        group = rng.permutation(np.arange(120) // size)
        X = rng.normal(size=(120, 40)) * rng.lognormal(size=(120 // size, 40))[group]
        X += 2 * rng.normal(size=(120 // size, 40))[group]
        shares.append(wins(DUFS(random_state=seed).fit(X, groups=group)))
    assert abs(np.mean(shares) - 1 / 6) < 3 * np.std(shares) / np.sqrt(20)


def test_every_layout_is_told_the_same(tmp_path):
    X, group = donors(n=200)
    X = (X * (np.random.default_rng(1).random(X.shape) < 0.7)).astype(np.float32)
    told = DUFS(random_state=0, backend="numpy").fit(X, groups=group)
    np.save(tmp_path / "X.npy", X)
    layouts = [
        pd.DataFrame(X),
        sparse.csr_array(X),
        sparse.csc_array(X),
        np.load(tmp_path / "X.npy", mmap_mode="r"),
    ]
    for layout in layouts:
        other = DUFS(random_state=0, backend="numpy").fit(layout, groups=list(group))
        np.testing.assert_array_equal(other.support_, told.support_)
        np.testing.assert_allclose(other.evidence_, told.evidence_, rtol=1e-3, atol=1e-3)


def test_more_rows_on_disk_are_told_the_same(tmp_path):
    X, group = donors(n=700)
    np.save(tmp_path / "X.npy", X)
    settings = {"random_state": 0, "backend": "numpy"}
    on_disk = DUFS(**settings).fit(np.load(tmp_path / "X.npy", mmap_mode="r"), groups=group)
    in_memory = DUFS(**settings).fit(X, groups=group)
    np.testing.assert_array_equal(on_disk.support_, in_memory.support_)
    assert on_disk.get_support(indices=True).tolist()[:5] == [0, 1, 2, 3, 4]
    assert on_disk.support_.sum() <= 6


@pytest.mark.parametrize("is_on_disk", [False, True])
def test_rows_alone_in_their_group_take_no_part(tmp_path, is_on_disk):
    X, group = donors()
    at = [0, 50, 122]
    more = np.insert(X, [0, 49, 120], 1e3, axis=0)
    labels = np.insert(group.astype(object), [0, 49, 120], ["x", "y", "z"])
    assert [labels[i] for i in at] == ["x", "y", "z"]
    expected = DUFS(random_state=0).fit(X, groups=group)
    if is_on_disk:
        np.save(tmp_path / "X.npy", more)
        more = np.load(tmp_path / "X.npy", mmap_mode="r")
    with pytest.warns(RowsWarning, match="3 rows alone in their group took no part: join small"):
        fitted = DUFS(random_state=0).fit(more, groups=labels)
    np.testing.assert_array_equal(fitted.support_, expected.support_)
    np.testing.assert_allclose(fitted.evidence_, expected.evidence_, rtol=1e-4, atol=1e-4)
    assert fitted.rows_[:5] == (120, 6, 3, 0, 0)


@pytest.mark.filterwarnings("ignore::dufs_core.errors.SelectionWarning")
def test_findings_name_rows_of_the_table():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 30))
    X[40] = 30.0
    labels = ["alone", "too", *(rng.permutation(98) % 4)]
    with pytest.warns(RowsWarning, match="took no part"):
        fitted = DUFS(random_state=0).fit(X, groups=labels)
    found = {finding.what: finding for finding in fitted.diagnosis_}
    assert found["far rows"].rows.tolist() == [40]


# --- gates without decoys


def test_gates_are_fitted_to_levelled_columns():
    X, group = donors()
    levelled = Within(np, group, len(X)).levelled(X.T).T
    settings = {"random_state": 0, "max_iter": 200, "max_runs": 1, "dtype": "float64"}
    told = GatedLaplacian(**settings).fit(X, groups=group)
    np.testing.assert_allclose(told.mu_, GatedLaplacian(**settings).fit(levelled).mu_, atol=1e-6)
    assert told.rows_.n_groups == 6
    assert "within 6 groups of 120 rows" in " ".join(told._explanation(120).notes)


@pytest.mark.filterwarnings("ignore::dufs_core.errors.SelectionWarning")
def test_a_column_that_is_constant_in_each_group_is_constant():
    X, group = donors()
    X[:, 7] = group
    fitted = GatedLaplacian(random_state=0, max_iter=50, max_runs=1).fit(X, groups=group)
    assert fitted.constant_features_.tolist() == [7]
    decoys = DUFS(random_state=0).fit(X, groups=group)
    assert np.isnan(decoys.decoy_evidence_[:, 7]).all()
    assert not decoys.support_[7]


@pytest.mark.parametrize("kind", ["sparse host", "on disk"])
def test_gates_take_groups_with_dense_data_alone(tmp_path, kind):
    X, group = donors()
    np.save(tmp_path / "X.npy", X)
    given = sparse.csr_array(X) if kind == "sparse host" else np.load(tmp_path / "X.npy", mmap_mode="r")
    with pytest.raises(ValueError, match=f"takes groups with dense data in memory.*this X is {kind}: use DUFS"):
        GatedLaplacian(batch_size=50).fit(given, groups=group)


# --- around fits


def test_together():
    X, group = donors()
    expected = [DUFS(random_state=seed).fit(X, groups=group) for seed in (0, 1)]
    together = fit_many([DUFS(random_state=seed) for seed in (0, 1)], X, groups=group)
    for one, other in zip(together, expected, strict=True):
        np.testing.assert_array_equal(one.evidence_, other.evidence_)


@pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")
def test_resumed(tmp_path):
    X, group = donors()
    settings = {"random_state": 0, "max_iter": 50, "max_runs": 1}
    path = tmp_path / "fit.ckpt"
    expected = GatedLaplacian(**settings, callbacks=[Checkpoint(path)]).fit(X, groups=group)
    resumed = GatedLaplacian.resume(path, X, groups=list(map(str, group)))
    np.testing.assert_array_equal(resumed.mu_, expected.mu_)
    with pytest.raises(CheckpointError, match="its groups are missing"):
        GatedLaplacian.resume(path, X)
    with pytest.raises(CheckpointError, match="its groups are others"):
        GatedLaplacian.resume(path, X, groups=np.roll(group, 1))


def test_in_other_processes():
    import joblib

    X, group = donors(n=60, d=10)
    expected = DUFS(random_state=0, n_jobs=1).fit(X, groups=group)
    with joblib.parallel_config(backend="loky", n_jobs=1):
        (there,) = fit_many([DUFS(random_state=0, n_jobs=1)], X, groups=group)
    np.testing.assert_array_equal(there.evidence_, expected.evidence_)


def test_subsamples_take_whole_groups(monkeypatch):
    X, group = donors(count=10)
    seen = []

    def fit(self, X, y=None, *, groups=None):
        seen.append(groups)
        self.support_ = np.ones(X.shape[1], dtype=bool)
        return self

    monkeypatch.setattr(DUFS, "fit", fit)
    stability_selection(DUFS(), X, groups=group, n_subsamples=4, random_state=0)
    assert len(seen) == 4
    assert not set(seen[0]) & set(seen[1])
    assert len(set(seen[0])) + len(set(seen[1])) == 10


def test_other_selectors_have_no_groups():
    from dufs_core.baselines import LaplacianScore

    with pytest.raises(ValueError, match="groups are used by DUFS, GatedLaplacian and LambdaPath; got LaplacianScore"):
        stability_selection(LaplacianScore(), np.eye(6), groups=[0, 0, 0, 1, 1, 1])


def test_a_path_is_told():
    X, group = donors(n=80, d=12, count=8)
    path = LambdaPath(GatedLaplacian(max_runs=1, max_iter=300), n_lams=3, n_splits=1, n_permutations=39, random_state=0)
    told = path.fit(X, groups=group)
    assert set(told.get_support(indices=True)) <= {0, 1, 2, 3, 4}
    assert told.support_.any()
    untold = LambdaPath(
        GatedLaplacian(max_runs=1, max_iter=300), n_lams=3, n_splits=1, n_permutations=39, random_state=0
    ).fit(X)
    assert set(untold.get_support(indices=True)) - {0, 1, 2, 3, 4}


def test_pipelines_route_groups():
    X, group = donors()
    expected = DUFS(random_state=0).fit(X, groups=group).support_
    with config_context(enable_metadata_routing=True):
        pipeline = make_pipeline(FunctionTransformer(), DUFS(random_state=0).set_fit_request(groups=True))
        np.testing.assert_array_equal(pipeline.fit(X, groups=group)[-1].support_, expected)
    reduced = DUFS(random_state=0).fit_transform(X, groups=group)
    assert reduced.shape == (120, expected.sum())


def test_batches_of_cells():
    anndata = pytest.importorskip("anndata", reason="anndata is not installed")
    from dufs_core.anndata import select_features

    X, group = donors()
    adata = anndata.AnnData(X.astype(np.float32))
    adata.obs["donor"] = [f"d{g}" for g in group]
    selector = select_features(adata, batch_key="donor", scaling="columns", random_state=0)
    assert selector.get_support(indices=True).tolist() == [0, 1, 2, 3, 4]
    assert adata.uns["dufs"]["params"]["batch_key"] == "donor"
    with pytest.raises(ValueError, match=r"adata\.obs has no column 'batch'; its columns are 'donor'"):
        select_features(adata, batch_key="batch")
