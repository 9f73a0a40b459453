"""Pictures: what is drawn is what was fitted, on the axes given, and pyplot knows nothing of it."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import sparse

from dufs_core import DUFS, GatedLaplacian, Graph, LambdaPath, Trajectory
from dufs_core.baselines import LaplacianScore
from dufs_core.datasets import two_moons
from dufs_core.inspection import plotting
from dufs_core.inspection.plotting import canvas
from dufs_core.inspection.plotting.data import _graph as graph_of
from dufs_core.selection.decoys.explanation import rate_text

pytest.importorskip("matplotlib", reason="matplotlib is not installed: there are no pictures")
pytestmark = pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")
MOONS = two_moons(60, 6, random_state=0)


@pytest.fixture(scope="module")
def fitted():
    trajectory = Trajectory(every=10)
    return GatedLaplacian(random_state=0, callbacks=[trajectory]).fit(MOONS.X), trajectory


@pytest.fixture(scope="module")
def path():
    return LambdaPath(n_lams=3, n_splits=1, n_permutations=19, random_state=0).fit(MOONS.X)


def drawn(ax):
    ax.figure.canvas.draw()
    return ax


def line(ax, label):
    return next(found for found in ax.get_lines() if found.get_label() == label)


def test_loss_and_gates(fitted):
    selector, _ = fitted
    ax = drawn(plotting.loss_and_gates(selector))
    np.testing.assert_array_equal(ax.get_lines()[0].get_ydata(), selector.history_["loss"])
    twin = next(other for other in ax.figure.axes if other is not ax)
    np.testing.assert_array_equal(twin.get_lines()[0].get_ydata(), selector.history_["open_gates"])


def test_ranked_scores_and_their_cut(fitted):
    selector, _ = fitted
    _, ax = canvas.figure()
    assert drawn(plotting.ranked_scores(selector, ax)) is ax
    chosen, others = (collection.get_offsets() for collection in ax.collections)
    np.testing.assert_allclose(chosen[:, 1], selector.mu_[[0, 1]][np.argsort(-selector.mu_[[0, 1]])], rtol=1e-6)
    assert len(others) == 4
    assert line(ax, r"cut, $\mu = 0$").get_ydata()[0] == 0
    baseline = LaplacianScore(n_features_to_select=2).fit(MOONS.X)
    assert line(drawn(plotting.ranked_scores(baseline)), "cut after rank 2").get_xdata()[0] == 2.5


def test_gate_trajectories(fitted):
    selector, trajectory = fitted
    ax = drawn(plotting.gate_trajectories(trajectory, selector))
    for k in (0, 1):
        assert line(ax, f"x{k}").get_ydata()[-1] == selector.mu_[k]
    (others,) = (found for found in ax.collections if found.get_label() == "4 not selected")
    assert len(others.get_segments()) == 4
    np.testing.assert_array_equal(others.get_segments()[0][-1], [selector.n_iter_, selector.mu_[2]])
    other = GatedLaplacian(random_state=1, max_iter=3, max_runs=1).fit(MOONS.X)
    with pytest.raises(ValueError, match=r"None of the trajectory's runs \(\d\).*callbacks=\[trajectory\]"):
        plotting.gate_trajectories(trajectory, other)


@pytest.fixture(scope="module")
def many():
    """Twelve columns that share something among noise, a constant column and one that differs in one row."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 60))
    X[:, :12] += 2 * rng.normal(size=(80, 1))
    X[:, 40], X[:, 50], X[3, 50] = 1, 0, 1
    return DUFS(random_state=0).fit(X), X


def test_evidence_of_columns_and_decoys(many):
    selector, X = many
    found = selector.q_values_ <= 0.1
    assert found[:12].all()
    ax = drawn(plotting.ranked_scores(selector))
    chosen, others, band = ax.collections
    by_evidence = np.argsort(-selector.evidence_, kind="stable")
    ranks = np.arange(1, 61)
    drawn_others = [(rank, k) for rank, k in zip(ranks, by_evidence, strict=True) if not found[k] and k not in (40, 50)]
    np.testing.assert_allclose(others.get_offsets(), [(rank, selector.evidence_[k]) for rank, k in drawn_others])
    np.testing.assert_allclose(np.sort(chosen.get_offsets()[:, 1]), np.sort(selector.evidence_[found]))
    assert line(ax, f"cut at fdr 0.1: {found.sum()} found").get_ydata()[0] == selector.evidence_[found].min()
    assert line(ax, "not drawn: 2 constant or not judged")
    decoys = np.sort(np.delete(selector.decoy_evidence_, [40, 50], axis=1), axis=1)[:, ::-1]
    assert band.get_label() == f"decoys: {len(decoys)} shuffled copies, sorted"
    corners = band.get_paths()[0].vertices
    for edge in (decoys.min(axis=0), decoys.max(axis=0)):
        assert {(x + 1, y) for x, y in enumerate(edge)} <= set(map(tuple, corners))
    assert (ax.get_ylabel(), ax.get_xlabel()) == ("evidence", "rank by evidence")
    nothing = DUFS(random_state=0, fdr=0.001).fit(X)
    texts = [text.get_text() for text in drawn(plotting.ranked_scores(nothing)).get_legend().get_texts()]
    assert f"none found at fdr 0.001 (smallest q = {rate_text(nothing.q_values_.min())})" in texts
    pixels = drawn(plotting.selected_pixels(selector, (6, 10)))
    shown = pixels.images[0].get_array()
    assert np.flatnonzero(shown.mask).tolist() == [40, 50]
    np.testing.assert_allclose(shown.compressed(), np.delete(selector.evidence_, [40, 50]))
    assert pixels.get_title().endswith("(grey: 2 constant or not judged)")


def test_the_walk_is_that_of_the_fit(many, fitted):
    """Its rules depend on whether there are decoys; a path has none."""
    wide = GatedLaplacian().graph
    other = Graph(n_neighbors=9, self_loops=True)
    assert graph_of(many[0], 80) == Graph()
    assert graph_of(DUFS(graph=other), 80) == other
    assert graph_of(fitted[0], 60) == wide
    assert graph_of(LambdaPath(), 60) == wide
    narrow = wide.with_parts({"bandwidth": "q90"})
    assert graph_of(LambdaPath(GatedLaplacian(graph=narrow)), 60) == narrow


def test_a_trajectory_keeps_every_run_and_its_columns():
    trajectory = Trajectory(every=4)
    selector = GatedLaplacian(random_state=0, max_iter=10, max_runs=2, n_draws=2, callbacks=[trajectory])
    selector.fit(np.column_stack([np.random.default_rng(0).normal(size=(40, 25)), np.ones(40)]))
    assert [list(run.steps) for run in trajectory.runs] == [[4, 8, 10], [4, 8, 10]]
    assert [len(run.columns) for run in trajectory.runs] == [25, 20]
    kept = next(run for run in trajectory.runs if np.array_equal(run.mu[-1], selector.mu_[run.columns]))
    aside = set(range(25)) - set(kept.columns.tolist())
    assert aside | {25} == set(np.flatnonzero(np.isnan(selector.mu_)).tolist())
    with pytest.raises(ValueError, match="every must be a whole number of at least 1"):
        Trajectory(every=0)


def test_paths(path):
    ax = drawn(plotting.lambda_path(path))
    for k in path.get_support(indices=True):
        np.testing.assert_array_equal(line(ax, f"x{k}").get_ydata(), path.mu_[:, k])
    closed = path.mu_[:, path.mu_[path.best_index_] <= 0]
    (others,) = ax.collections
    assert others.get_label() == f"{closed.shape[1]} closed there"
    np.testing.assert_array_equal(others.get_segments()[-1][:, 1], closed[:, -1])
    ax = drawn(plotting.path_criterion(path))
    np.testing.assert_array_equal(ax.get_lines()[0].get_ydata(), path.held_out_z_)
    assert f"{path.lams_[path.best_index_]:.3g}" in ax.get_legend().get_texts()[-1].get_text()


def test_names_are_no_mathematics_and_do_not_vanish(path):
    names = [f"_gene{k} $x^" for k in range(6)]
    k = int(path.get_support(indices=True)[0])
    entries = drawn(plotting.lambda_path(path, names=names)).get_legend().get_texts()
    assert f"\u200b_gene{k} \\$x^" in [entry.get_text() for entry in entries]
    assert canvas.escape_mathtext("a_b") == "a_b"
    named = LambdaPath(n_lams=2, n_splits=1, n_permutations=19, random_state=0)
    named.fit(pytest.importorskip("pandas", reason="pandas is not installed").DataFrame(MOONS.X, columns=names))
    entries = drawn(plotting.lambda_path(named)).get_legend().get_texts()
    assert any("_gene" in entry.get_text() for entry in entries)


def test_class_labels_are_text(fitted):
    labels = np.where(MOONS.labels == 0, "_$one$ $^", "two")
    axes = plotting.embedding(fitted[0], MOONS.X, labels)
    assert [text.get_text() for text in drawn(axes[0]).get_legend().get_texts()] == ["\u200b_\\$one\\$ \\$^", "two"]


def test_missing_labels_and_many_labels(fitted):
    labels = np.where(MOONS.labels == 0, "B cell", "T cell").astype(object)
    labels[:3] = [np.nan, None, float("nan")]  # as .obs holds cells without a type
    axes = plotting.embedding(fitted[0], MOONS.X, labels)
    assert [text.get_text() for text in drawn(axes[1]).get_legend().get_texts()] == ["B cell", "T cell", "no label"]
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    for values, expected in (
        (np.where(np.arange(60) < 40, np.nan, 1.0), ["1.0", "no label"]),
        (pd.Series([1] * 40 + [None] * 20), ["1.0", "no label"]),
        (pd.Series([10, 9, None] * 20, dtype="Int64"), ["9", "10", "no label"]),
        (pd.Series(pd.to_datetime(["2020-01-01", None] * 30)), ["2020-01-01 00:00:00", "no label"]),
        (["None", None] * 30, ["None", "no label"]),
        (["a", 2, np.nan] * 20, ["2", "a", "no label"]),
    ):
        axes = plotting.embedding(fitted[0], MOONS.X, values)
        assert [text.get_text() for text in drawn(axes[1]).get_legend().get_texts()] == expected
        assert sum(len(points.get_offsets()) for points in axes[1].collections) == 60
    axes = plotting.embedding(fitted[0], MOONS.X, np.arange(len(MOONS.X)) % 16)
    assert [text.get_text() for text in drawn(axes[1]).get_legend().get_texts()] == [str(k) for k in range(16)]
    assert axes[0].get_legend() is None
    axes = plotting.embedding(fitted[0], MOONS.X, np.arange(len(MOONS.X)) % 25)
    assert axes[1].get_legend() is None


def test_precision_and_recall_by_rank():
    selector = SimpleNamespace(order_=np.array([2, 0, 1, 3]), support_=np.array([True, False, True, False]))
    ax = drawn(plotting.precision_recall(selector, np.array([1, 2])))
    np.testing.assert_allclose(line(ax, "precision").get_ydata(), [1, 1 / 2, 2 / 3, 1 / 2])
    np.testing.assert_allclose(line(ax, "recall").get_ydata(), [1 / 2, 1 / 2, 1, 1])
    assert line(ax, "2 selected").get_xdata()[0] == 2
    for wrong in ([], [4], [-1], [0.5]):
        with pytest.raises(ValueError, match=r"at least one, whole numbers from 0 to 3; got \["):
            plotting.precision_recall(selector, wrong)


@pytest.mark.parametrize("image", [None, np.arange(6.0)])
def test_selected_pixels(fitted, image):
    selector, _ = fitted
    ax = drawn(plotting.selected_pixels(selector, (2, 3), image))
    np.testing.assert_array_equal(ax.collections[0].get_offsets(), [[0, 0], [1, 0]])
    shown = selector.scores_ if image is None else image
    np.testing.assert_allclose(ax.images[0].get_array(), shown.reshape(2, 3))
    with pytest.raises(ValueError, match=r"height \* width = 6.*got \(2, 2\)"):
        plotting.selected_pixels(selector, (2, 2))
    with pytest.raises(ValueError, match="image must have 6 numbers, one for each feature; got 5"):
        plotting.selected_pixels(selector, (2, 3), np.ones(5))


@pytest.mark.parametrize("container", [np.array, sparse.csr_array, list])
def test_the_walk_before_and_after(fitted, container):
    selector, _ = fitted
    ax = drawn(plotting.spectrum(selector, container(MOONS.X), n_values=5))
    before, after = (found.get_ydata() for found in ax.get_lines())
    assert after[0] == pytest.approx(1)
    assert before[0] == pytest.approx(1)
    assert after[1] > 0.8 > 0.4 > before[1]  # the moons are far from each other along the walk
    axes = plotting.embedding(selector, container(MOONS.X), MOONS.labels)
    assert [drawn(ax).get_title() for ax in axes] == ["all 6 features", "the 2 selected"]
    points = np.concatenate([collection.get_offsets() for collection in axes[1].collections])
    assert points.shape == (60, 2)


def test_rows_are_drawn_from_many(fitted, monkeypatch):
    monkeypatch.setattr("dufs_core.inspection.plotting.data._MOST_ROWS", 40)
    ax = drawn(plotting.spectrum(fitted[0], MOONS.X))
    assert "40 of 60 rows" in ax.get_title()
    plotting.embedding(fitted[0], MOONS.X, MOONS.labels)


def test_what_cannot_be_drawn(fitted):
    selector, _ = fitted
    with pytest.raises(ValueError, match=r"the 6 features that the selector was fitted on; its shape is \(60, 5\)"):
        plotting.spectrum(selector, MOONS.X[:, :5])
    with pytest.raises(ValueError, match="one for each of the 60 rows of X; got 59"):
        plotting.embedding(selector, MOONS.X, MOONS.labels[:-1])
    nothing = SimpleNamespace(support_=np.zeros(6, dtype=bool), scaling="columns")
    with pytest.raises(ValueError, match="No feature is selected"):
        plotting.spectrum(nothing, MOONS.X)


def test_matplotlib_loads_with_the_first_picture_and_pyplot_never(tmp_path):
    code = (
        "import sys, types, numpy as np\nfrom dufs_core.inspection import plotting\n"
        "assert 'matplotlib' not in sys.modules\n"
        "fitted = types.SimpleNamespace(order_=np.arange(2), support_=np.arange(2) < 1)\n"
        "plotting.precision_recall(fitted, [0]).figure.savefig(sys.argv[1])\n"
        "print('matplotlib.pyplot' in sys.modules)"
    )
    picture = str(tmp_path / "picture.png")
    assert subprocess.check_output([sys.executable, "-c", code, picture], text=True).strip() == "False"


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'dufs-core\[plot\]'"):
        canvas.figure()


def test_columns_that_took_no_part_are_not_drawn():
    X = np.column_stack([MOONS.X[:, :4], np.full((60, 2), 3.0)])
    for selector in (
        GatedLaplacian(n_features_to_select=2, max_runs=1, max_iter=5, random_state=0).fit(X),
        LaplacianScore(n_features_to_select=2).fit(X),
    ):
        ax = drawn(plotting.ranked_scores(selector))
        chosen, others = (collection.get_offsets() for collection in ax.collections)
        assert (len(chosen), len(others)) == (2, 2)
        assert line(ax, "not drawn: 2 constant")
        ax = drawn(plotting.selected_pixels(selector, (2, 3)))
        assert ax.images[0].get_array().mask.tolist() == [[False] * 3, [False, True, True]]
        assert ax.get_title().endswith("(grey: 2 constant)")
    path = LambdaPath(
        GatedLaplacian(max_runs=1, max_iter=5), n_lams=2, n_splits=1, n_permutations=3, random_state=0
    ).fit(X)
    np.testing.assert_array_equal(path.constant_features_, [4, 5])
    assert line(drawn(plotting.lambda_path(path)), "not drawn: 2 constant")


def test_lambdas_over_a_few_powers_of_ten_have_labels():
    path = LambdaPath(GatedLaplacian(max_runs=1, max_iter=3), lams=[0.0148, 0.1, 0.44], n_splits=1, n_permutations=3)
    ax = drawn(plotting.lambda_path(path.fit(MOONS.X)))
    low, high = ax.get_xlim()
    shown = [tick.get_text() for x, tick in zip(ax.get_xticks(), ax.get_xticklabels(), strict=True) if low < x < high]
    assert shown == ["0.03", "0.1", "0.3"]
