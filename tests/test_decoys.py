"""The competition of columns with their decoys: q-values against a slow count, and the rate that they keep."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dufs_core.significance.decoys import q_values

RATES = (0.05, 0.1, 0.2, 0.5)


def winners(scores):
    """Which columns win their groups, and the best score of each group."""
    wins = [all(column > decoy for decoy in decoys) for column, *decoys in scores.T]
    return np.array(wins, dtype=bool), np.array([max(group) for group in scores.T])


def slow(wins, tau, M):
    """The least rate over all thresholds that a column passes, counted one group at a time."""
    q = np.ones(len(tau))
    for k in np.flatnonzero(wins):
        for t in tau[tau <= tau[k]]:
            found = sum(w for w, best in zip(wins, tau, strict=True) if best >= t)
            lost = sum(not w for w, best in zip(wins, tau, strict=True) if best >= t)
            q[k] = min(q[k], (1 + lost) / (M * found))
    return q


@st.composite
def scores_of_groups(draw, values=None):
    """(1 + M, d); by default few different values, so that ties of all kinds occur."""
    values = st.integers(-2, 3) if values is None else values
    M, d = draw(st.integers(1, 4)), draw(st.integers(1, 9))
    flat = draw(st.lists(values, min_size=(1 + M) * d, max_size=(1 + M) * d))
    return np.array(flat, dtype=np.float64).reshape(1 + M, d)


reals = st.floats(-1e6, 1e6)


@given(scores_of_groups() | scores_of_groups(reals))
def test_q_values_are_those_of_a_slow_count(scores):
    wins, tau = winners(scores)
    q = q_values(scores)
    np.testing.assert_allclose(q, slow(wins, tau, len(scores) - 1), rtol=1e-12)
    assert (q[~wins] == 1).all()
    order = np.argsort(tau[wins], kind="stable")
    assert (np.diff(q[wins][order]) <= 0).all()  # what wins by more is found at a smaller rate


@given(scores_of_groups())
def test_what_is_selected_at_a_rate_keeps_it(scores):
    """Every selection {q <= r} is {wins, tau >= t} for a t whose estimate is at most r."""
    wins, tau = winners(scores)
    q, M = q_values(scores), len(scores) - 1
    for rate in np.unique(q[q < 1]):
        chosen = q <= rate
        t = tau[chosen].min()
        np.testing.assert_array_equal(chosen, wins & (tau >= t))
        assert (1 + (~wins & (tau >= t)).sum()) / (M * chosen.sum()) <= rate * (1 + 1e-12)


@pytest.mark.parametrize(
    ("columns", "decoys", "expected"),
    [
        ([5.0, 4.0], [[1, 1]] * 5, [0.1, 0.1]),  # five decoys: two columns at 0.1
        ([5.0] * 10, [[1] * 10], [0.1] * 10),  # one: ten
        ([9, 8, 1, 7], [[0, 0, 7.5, 0]], [0.5, 0.5, 1, 2 / 3]),  # a decoy wins between the second and the third
        ([9, 8, 1, 7], [[0, 0, 9.5, 0]], [2 / 3, 2 / 3, 1, 2 / 3]),  # or before all
        ([9, 8, 1, 7], [[0, 0, 7, 0]], [0.5, 0.5, 1, 2 / 3]),  # of equal bests all or none: the decoy counts
        ([9, 8, 1, 8], [[0, 0, 8, 0]], [2 / 3, 2 / 3, 1, 2 / 3]),
        ([1.0], [[0.0]], [1.0]),  # one column, one decoy: no rate
        ([1.0], [[0.0]] * 4, [0.25]),
        ([0.0, 0.0], [[1, 1]] * 3, [1, 1]),
    ],
)
def test_known_answers(columns, decoys, expected):
    np.testing.assert_allclose(q_values(np.vstack([columns, decoys])), expected)


def test_no_columns():
    assert q_values(np.zeros((3, 0))).shape == (0,)


@given(scores_of_groups(), st.data())
def test_a_column_that_equals_a_decoy_never_wins(scores, data):
    k = data.draw(st.integers(0, scores.shape[1] - 1))
    scores[0, k] = scores[1:, k].max()
    assert q_values(scores)[k] == 1


@given(st.lists(st.floats(0.01, 100), min_size=2, max_size=24, unique=True), st.sampled_from(RATES))
def test_one_decoy_is_the_knockoff_filter(values, rate):
    """W = max(s, s') sign(s - s'), T = min{t: (1 + #{W <= -t}) / #{W >= t} <= rate}, selected W >= T."""
    scores = np.array(values[: len(values) // 2 * 2]).reshape(2, -1)
    W = scores.max(axis=0) * np.sign(scores[0] - scores[1])
    passing = [t for t in abs(W) if (1 + (-t >= W).sum()) / max(1, (t <= W).sum()) <= rate]
    np.testing.assert_array_equal(q_values(scores) <= rate, min(passing, default=np.inf) <= W)


@given(scores_of_groups(), st.data())
def test_swapping_a_column_with_a_decoy_changes_only_who_wins(scores, data):
    M, d = len(scores) - 1, scores.shape[1]
    k, m = data.draw(st.integers(0, d - 1)), data.draw(st.integers(1, M))
    wins, tau = winners(scores)
    swapped = scores.copy()
    swapped[[0, m], k] = scores[[m, 0], k]
    wins[k] = all(scores[m, k] > scores[other, k] for other in range(1 + M) if other != m)
    np.testing.assert_allclose(q_values(swapped), slow(wins, tau, M), rtol=1e-12)


@given(scores_of_groups(), st.randoms(use_true_random=False))
def test_the_order_of_decoys_and_of_columns_and_the_scale_do_not_matter(scores, rng):
    M, d = len(scores) - 1, scores.shape[1]
    decoys, columns = [0, *rng.sample(range(1, 1 + M), M)], rng.sample(range(d), d)
    q = q_values(scores)
    np.testing.assert_array_equal(q_values(scores[decoys]), q)
    np.testing.assert_array_equal(q_values(scores[:, columns]), q[columns])
    np.testing.assert_array_equal(q_values(np.exp(scores) - 7), q)


@pytest.mark.parametrize("values", ["real", "few"])
@pytest.mark.parametrize("M", [1, 2, 5])
@pytest.mark.parametrize("signals", [0, 15])
def test_the_false_discovery_rate_of_exchangeable_scores_is_kept(M, signals, values):
    """60 groups of unlike spread, the first with scores that decoys seldom reach; 600 times."""
    rng = np.random.default_rng([M, signals])
    spread = np.exp(rng.normal(size=60))
    false, recall = [], []
    for _ in range(600):
        scores = spread * rng.normal(size=(1 + M, 60))
        scores[0, :signals] += 6 * spread[:signals]
        q = q_values(scores.round() if values == "few" else scores)
        chosen = q[:, None] <= RATES
        false.append(chosen[signals:].sum(axis=0) / np.maximum(chosen.sum(axis=0), 1))
        recall.append(chosen[:signals].mean(axis=0) if signals else np.zeros(len(RATES)))
    rate, error = np.mean(false, axis=0), np.std(false, axis=0, ddof=1) / np.sqrt(len(false))
    assert (rate <= np.array(RATES) + 2 * error).all(), (rate, error)
    if signals and values == "real":
        assert np.mean(recall, axis=0)[2] > 0.4  # not by selecting nothing


@given(st.integers(0, 10_000))
def test_few_found_ask_for_more(seed):
    """With `chance`, the rate of the m best groups is at least d p / (m min(1, m / 20)^2): by hand, group by group."""
    rng = np.random.default_rng(seed)
    M, d = int(rng.integers(1, 6)), int(rng.integers(1, 60))
    scores = rng.exponential(size=(1 + M, d))
    scores[0, : d // 3] += rng.exponential(6, size=d // 3)
    tau = scores.max(axis=0)
    plain, q = q_values(scores), q_values(scores, np.exp(-tau))
    assert (q >= plain).all()
    wins = scores[0] > scores[1:].max(axis=0)
    for k in np.flatnonzero(wins):
        rates = []
        for t in tau[tau <= tau[k]]:
            m, found = (tau >= t).sum(), (wins & (tau >= t)).sum()
            knockoff = (1 + (~wins & (tau >= t)).sum()) / (M * max(found, 1))
            rates.append(max(knockoff, d * np.exp(-t) / (m * min(1, m / 20) ** 2)))
        assert q[k] == pytest.approx(min(1, *rates, 1))
