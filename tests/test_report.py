"""Reports: reasons, groups, and a page that no name can break."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from dufs_core import DUFS, GatedLaplacian, LambdaPath, report
from dufs_core.baselines import LaplacianScore
from dufs_core.datasets import two_moons
from dufs_core.errors import DufsWarning
from dufs_core.inspection import html as report_page
from dufs_core.inspection import plotting
from dufs_core.selection.decoys.explanation import _told_apart, rate_text
from dufs_core.selection.stability import Stability

pytestmark = pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")
MOONS = two_moons(100, 10, random_state=0)
NASTY = '<script>alert("x")</script> & $x'


@pytest.fixture(scope="module")
def data():
    """Two moons; column 10 is nearly column 0, turned over; column 11 is constant."""
    near = -2 * MOONS.X[:, :1] + 1e-3 * np.random.default_rng(0).normal(size=(100, 1))
    return np.hstack([MOONS.X, near, np.full((100, 1), 0.3)])


@pytest.fixture(scope="module")
def selector(data):
    return GatedLaplacian(random_state=0).fit(data)


def by_index(found):
    return {row["index"]: row for row in found.rows}


def test_every_feature_has_a_row_and_a_reason(selector, data):
    found = report(selector, data)
    rows = by_index(found)
    assert [row["index"] for row in found.rows] == selector.order_.tolist()
    assert [row["rank"] for row in found.rows] == list(range(1, 13))
    assert {k for k, row in rows.items() if row["selected"]} == {0, 1, 10}
    assert rows[0]["reason"] == f"gate open: mu = {selector.mu_[0]:.2f} > 0, P(z > 0) = 1.000"
    assert rows[2]["reason"].startswith(f"gate closed: mu = {selector.mu_[2]:.2f}, P")
    assert rows[11]["reason"] == "constant: all its values are equal"
    assert rows[1]["score"] == selector.scores_[1]
    assert rows[1]["probability"] == selector.gate_probabilities_[1]
    assert found.settings["random_state"] == 0
    assert "Converged" in found.notes[0]
    assert "1 feature is constant." in found.notes


def test_correlated_features_are_a_group(selector, data):
    found = report(selector, data)
    (group,) = found.groups
    assert set(group) == {0, 10}
    assert group == [k for k in selector.order_ if k in (0, 10)]
    assert set(np.flatnonzero(found.one_per_group)) == {1, group[0]}
    rows = by_index(found)
    assert rows[0]["group"] == rows[10]["group"] != rows[1]["group"]
    assert (rows[group[0]]["group_best"], rows[group[1]]["group_best"]) == (True, False)
    assert not report(selector, data, correlated=1.0).groups
    assert any("1 of the selected features correlate with a better one" in note for note in found.notes)


@pytest.mark.parametrize("block", [3, 256])
def test_the_best_of_all_groups_are_uncorrelated_and_the_others_near_one(block, monkeypatch):
    monkeypatch.setattr("dufs_core.inspection.report._BLOCK", block)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 4))[:, rng.integers(0, 4, 30)] + 0.3 * rng.normal(size=(50, 30))
    selector = LaplacianScore(n_features_to_select=20).fit(X)
    found = report(selector, X, correlated=0.8)
    r = abs(np.corrcoef(X.T))
    leaders = np.flatnonzero(found.one_per_group)
    assert (r[np.ix_(leaders, leaders)] - np.eye(len(leaders)) < 0.8).all()
    for k in np.flatnonzero(selector.support_ & ~found.one_per_group):
        better = [j for j in selector.order_[: list(selector.order_).index(k)] if j in leaders and r[k, j] >= 0.8]
        assert next(group for group in found.groups if k in group)[0] == better[0]


@pytest.fixture(scope="module")
def judged():
    """Two moons, noise, a constant column 10 and a column 11 that differs in one row."""
    rare = np.zeros((100, 1))
    rare[3] = 1
    X = np.hstack([MOONS.X, np.full((100, 1), 0.3), rare])
    return DUFS(random_state=0).fit(X), X


def test_with_decoys_reasons_are_of_the_competition(judged):
    selector, X = judged
    found = report(selector, X)
    rows, decoys = by_index(found), selector.decoy_evidence_.max(axis=0)
    chosen = {k for k, row in rows.items() if row["selected"]}
    assert {0, 1} <= chosen == set(np.flatnonzero(selector.q_values_ <= 0.1).tolist())
    for k in range(10):
        row, q = rows[k], selector.q_values_[k]
        assert (row["q_value"], row["evidence"], row["score"]) == (q, selector.evidence_[k], selector.scores_[k])
        numbers = re.search(r"evidence (\S+), its decoys (at most|up to) (\S+)$", row["reason"])
        assert float(numbers[1]) == pytest.approx(selector.evidence_[k], rel=5e-3)
        assert float(numbers[3]) == pytest.approx(decoys[k], rel=5e-3)
        beaten = selector.evidence_[k] <= decoys[k]
        begins = f"found, q = {rate_text(q)}: " if q <= 0.1 else f"not found at fdr 0.1, q = {rate_text(q)}: "
        assert row["reason"].startswith("beaten by a decoy: " if beaten else begins)
    assert {"found,", "beaten", "not", "constant:"} >= {row["reason"].partition(" ")[0] for row in rows.values()}
    assert rows[10]["reason"] == "constant: all its values are equal"
    assert rows[11]["reason"].startswith("not judged: in too few rows it differs from its median")
    assert (rows[11]["q_value"], rows[11]["evidence"], rows[10]["q_value"]) == (None, None, None)
    assert selector.in_graph_[:2].all()
    begins = f"{len(chosen)} features are found at a false discovery rate of 0.1: in expectation at most this share"
    assert found.notes[0].startswith(begins)
    smallest = rate_text(selector.q_values_.min())
    assert f"(the smallest q-value is {smallest}, from a competition with 5 shuffled copies of" in found.notes[0]
    assert f"Scores are those on the graph of {selector.in_graph_.sum()} features." in found.notes
    assert any(note.startswith("1 feature is not judged") for note in found.notes)
    assert not any("excess score" in note for note in found.notes)
    page = Page(found.html())
    assert {"q-value", "evidence"} <= set(page.texts)
    assert page.tags.count("img") == 2


def test_with_decoys_a_number_of_features(judged):
    X = judged[1]
    selector = DUFS(random_state=0, n_features_to_select=6, ranking="evidence").fit(X)
    found = report(selector, X)
    sixth, seventh = found.rows[5:7]
    assert sixth["selected"]
    assert sixth["q_value"] > 0.1
    assert sixth["reason"].endswith("; rank 6 is among the best 6")
    assert seventh["reason"].endswith("; rank 7 is beyond the best 6")
    more = 6 - (selector.q_values_ <= 0.1).sum()
    alone = (
        f"{more} of the 6 selected features are so for n_features_to_select=6 alone: at this rate they are not found."
    )
    assert alone in found.notes
    assert not any("ranked by" in note for note in found.notes)


def test_nothing_found_and_nothing_judged():
    X = np.random.default_rng(1).normal(size=(40, 20))
    X[:, 1] += X[:, 0]  # a tie that shuffled columns have, too
    selector = DUFS(random_state=0).fit(X)
    found = report(selector, X)
    smallest = selector.q_values_.min()
    assert not selector.support_.any()
    assert 0.1 < smallest < 1
    assert f"(the smallest rate that finds any is {rate_text(smallest)})" in found.notes[0]
    best = next(row for row in found.rows if row["q_value"] == smallest)
    assert best["reason"].startswith(f"not found at fdr 0.1, q = {rate_text(smallest)}: evidence ")
    X[2:] = X[0]
    with pytest.warns(DufsWarning, match="No feature was judged: fewer than two of 20 differ from their median"):
        selector.fit(X)
    found = report(selector, X)
    assert {row["reason"] for row in found.rows} == {"not judged: fewer than two features vary in enough rows"}
    assert found.notes[0].startswith("Nothing was judged")
    assert Page(found.html()).open == []


def test_numbers_are_told_apart():
    assert _told_apart(7.0312, 7.0334) == ("7.0312", "7.0334")
    assert _told_apart(7.0, 2.5) == ("7", "2.5")
    assert _told_apart(2.0, 2.0) == ("2", "2")


def test_ranks_ties_and_undecided_gates():
    X = np.repeat(MOONS.X[:, :3], 2, axis=1)
    tied = GatedLaplacian(random_state=0, n_features_to_select=3, max_iter=5, max_runs=1).fit(X)
    tied.scores_ = tied.mu_ = np.array([3, 3, 2, 2, 0.1, 0.1])
    tied.order_, tied.support_ = np.arange(6), np.arange(6) < 3
    rows = by_index(report(tied, X))
    tie = "by a tie at the cut: of equal scores the lower column index comes first"
    assert rows[2]["reason"].endswith(f"among the best 3, {tie}")
    assert "beyond the best 3, by a tie at the cut" in rows[3]["reason"]
    assert "tie" not in rows[0]["reason"] + rows[4]["reason"]
    assert ", undecided; rank 5 is beyond the best 3" in rows[4]["reason"]
    assert "Not converged" in report(tied, X).notes[0]


def test_columns_that_took_no_part():
    X = np.random.default_rng(0).normal(size=(40, 25))
    selector = GatedLaplacian(random_state=0, max_iter=10, max_runs=2, n_draws=2).fit(X)
    selector.mu_[4] = np.nan  # as after a later run
    assert by_index(report(selector, X))[4]["reason"].startswith("took no part in the run that was kept")


def test_paths_baselines_and_stability(data, monkeypatch):
    path = LambdaPath(n_lams=3, n_splits=1, n_permutations=19, random_state=0).fit(MOONS.X)
    found = report(path, MOONS.X, stability=Stability(np.linspace(0, 1, 10), np.ones(4)))
    assert by_index(found)[9]["stability"] == 1
    assert found.notes[0] == f"lam = {path.lams_[path.best_index_]:.3g} is the best of 3 values."
    lowest = "It is the lowest of them: lower ones (lams=...) may be better, and keep more features."
    assert (lowest in found.notes) == (path.best_index_ == 0)
    path.best_index_ = 0
    assert lowest in report(path, MOONS.X).notes
    assert found.html().count("<img ") == 2
    seen = []
    monkeypatch.setattr(plotting, "lambda_path", lambda path, ax, names: seen.extend(names))
    report(path, MOONS.X, names=list("abcdefghij")).html()
    assert seen == list("abcdefghij")
    baseline = LaplacianScore(n_features_to_select=2).fit(data)
    reason = report(baseline, data).rows[0]["reason"]
    assert reason == f"score {baseline.scores_.max():.4g}; rank 1 is among the best 2"


def test_frame_and_text(selector, data):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed: there are no frames")
    found = report(selector, data)
    frame = found.frame()
    assert isinstance(frame, pandas.DataFrame)
    assert frame["feature"].tolist() == [row["feature"] for row in found.rows]
    assert frame["group"].isna().sum() == 9
    text = found.text(most=2)
    assert str(found) == found.text()
    assert "GatedLaplacian: 3 of 12 features selected from 100 samples" in text
    assert "... and 1 more, lower in rank" in text
    assert "groups of correlated features, best first:" in text


def test_a_frame_without_pandas(selector, data, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"pip install pandas; report.rows has the same rows"):
        report(selector, data).frame()


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.sources, self.texts = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.sources += [value for name, value in attributes if name in ("src", "href")]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def test_the_page_is_whole_and_escapes_what_users_write(selector, data):
    page = Page(report(selector, data, names=[NASTY, *"bcdefghijkl"], labels=MOONS.labels).html())
    assert page.open == []
    assert "script" not in page.tags
    assert NASTY in page.texts
    assert [source[:22] for source in page.sources] == ["data:image/png;base64,"] * 2


def test_of_many_selected_features_the_best_are_compared(monkeypatch):
    monkeypatch.setattr("dufs_core.inspection.report._MOST_COLUMNS", 3)
    X = np.repeat(MOONS.X[:, :3], 2, axis=1)
    selector = LaplacianScore(n_features_to_select=6).fit(X)
    found = report(selector, X)
    best = selector.order_[:3].tolist()
    assert {row["index"] for row in found.rows if row["group"] is not None} == set(best)
    assert found.groups == [best[:2]]
    assert np.flatnonzero(found.one_per_group).tolist() == sorted([best[0], best[2]])
    assert "Only the best 3 of the 6 selected features were compared with each other" in found.notes[-1]
    np.testing.assert_array_equal(X, np.repeat(MOONS.X[:, :3], 2, axis=1))  # not written to


def test_small_numbers_are_not_zeros_in_the_page():
    assert [report_page._cell(value) for value in (3.2e-6, 0.5, 12, None)] == ["3.2e-06", "0.5", "12", ""]


def test_a_page_of_nothing_and_of_many():
    with pytest.warns(DufsWarning):
        selector = GatedLaplacian(max_iter=3, random_state=0).fit(np.ones((5, 600)))
    found = report(selector, np.ones((5, 600)))
    assert "Nothing is selected" in found.text()
    page = Page(found.html())
    assert page.tags.count("tr") == 501
    assert any("and 100 more" in text for text in page.texts)


def test_a_page_without_matplotlib_or_with_a_picture_that_fails(selector, data, monkeypatch):
    found = report(selector, data)
    monkeypatch.setattr("dufs_core.inspection.html.find_spec", lambda name: None)
    assert re.search(r"Pictures need matplotlib: pip install", found.html())
    monkeypatch.undo()
    monkeypatch.setattr("dufs_core.inspection.plotting.spectrum", lambda *_: 1 / 0)
    with pytest.warns(DufsWarning, match="a picture of the report could not be drawn: division by zero"):
        page = found.html()
    assert page.count("<img ") == 1


def test_what_cannot_be_reported(selector, data):
    with pytest.raises(NotFittedError):
        report(GatedLaplacian(), data)
    with pytest.raises(ValueError, match=r"X must have the 12 features .*\(100, 7\)"):
        report(selector, data[:, :7])
    with pytest.raises(ValueError, match="names must have 12 entries, one for each feature; got 2"):
        report(selector, data, names=["a", "b"])
    with pytest.raises(ValueError, match="stability must have 12 entries"):
        report(selector, data, stability=np.ones(3))
    with pytest.raises(ValueError, match="size of a correlation, above 0 and at most 1; got 90"):
        report(selector, data, correlated=90)
