"""Far cells: a scale that one row cannot move, and what becomes of what lies far out."""

import numpy as np
import pytest
from scipy.special import ndtri
from scipy.stats import rankdata

from dufs_core import DUFS
from dufs_core.backend import get_backend
from dufs_core.data.groups import Within
from dufs_core.datasets import two_moons
from dufs_core.errors import RowsWarning
from dufs_core.significance.exchange import Exchange
from dufs_core.significance.rows import Rows
from dufs_core.significance.scale import FAR, clipped, spread, tamed, with_normal_scores

NUMPY = get_backend("numpy")


def tame(x, group=None, keys=None, seed=0):
    """Columns (d, n) without far cells."""
    within = Within(np, group, x.shape[1])
    keys = np.arange(len(x)) if keys is None else keys
    return tamed(NUMPY, within, within.from_medians(x), keys, seed)


# --- the scale


def test_the_scale_of_a_normal_column_is_its_deviation():
    x = np.random.default_rng(0).normal(size=(20, 10_000)) * 3
    np.testing.assert_allclose(spread(NUMPY, abs(x))[:, 0], 3.0, rtol=0.05)


def test_the_scale_by_hand():
    """By the three cells that are not farthest; never more than by the median, nor less than 0.42 of that."""
    size = np.array([[0.0, 1, 2, 3, 4], [0, 0, 0, 5, 7], [0, 0, 0, 0, 0], [0, 9, 9, 9, 9.0]])
    median = 1.4826 * np.array([3.0, 7.0, 0.0, 9.0])
    expected = [0.42 * median[0], 0.42 * median[1], 0.0, np.sqrt(54)]
    np.testing.assert_allclose(spread(NUMPY, size)[:, 0], expected)
    heavy = np.array([[0.0, 1, 1, 100, 100, 100, 100]])
    assert spread(NUMPY, heavy)[0, 0] < 1.4826 * 100


def test_a_column_of_counts_has_the_scale_of_its_counts():
    """95 zeros, four ones and a far one: the scale is that of a one, and the ones stay."""
    x = np.zeros((1, 100))
    x[0, :4] = 1.0
    x[0, 50] = 1e6
    z, scale = tame(x)
    np.testing.assert_allclose(scale, 0.42 * 1.4826)
    np.testing.assert_allclose(z[0, :4], 1 / scale[0])
    assert z[0, 50] in (0.0, z[0, 0])


@pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")
@pytest.mark.parametrize("kind", ["counts", "binary"])
def test_far_rows_of_counts_are_no_structure(kind):
    """Two rows that reach five deviations further, in all of 40 columns of low counts or of zeros and ones."""
    rng = np.random.default_rng(0)
    X = rng.poisson(0.3, size=(100, 40)) if kind == "counts" else rng.random((100, 40)) < 0.2
    X = X.astype(float)
    X[:2] += 5 * X.std()
    fitted = DUFS(random_state=0).fit(X)
    assert not fitted.support_.any()
    assert (fitted.evidence_ > fitted.decoy_evidence_.max(axis=0)).mean() < 0.35


# --- far cells


@pytest.mark.parametrize("value", [10.0, 1e3, -1e6, 1e30])
@pytest.mark.parametrize("count", [1, 2])
def test_one_or_two_far_cells_become_cells_like_others(value, count):
    x = np.random.default_rng(1).normal(size=(30, 100))
    plain = tame(x.copy())
    x[:, [3, 60][:count]] = value
    z, scale = tame(x)
    assert abs(z).max() <= FAR
    np.testing.assert_allclose(scale, plain.scale, rtol=0.15)
    # drawn from the other cells of each column: not one value, and of the size of the others
    drawn = z[:, [3, 60][:count]]
    assert drawn.std() > 0.5
    assert (abs(drawn) < 3.5).all()
    for k in range(30):
        others = np.delete(z[k], [3, 60][:count])
        assert np.isin(drawn[k], np.append(others, 0.0)).all()


def test_twenty_far_rows_remain():
    x = np.random.default_rng(2).normal(size=(10, 200))
    x[:, :20] += 50.0
    z, _ = tame(x)
    assert ((z[:, :20] == FAR).sum(axis=1) == 18).all()
    assert (abs(z[:, 20:]) < FAR).all()


def test_which_of_equally_far_cells_are_drawn_is_random():
    x = np.random.default_rng(3).normal(size=(200, 100))
    x[:, :4] = 1e3
    left = tame(x).z[:, :4] == FAR
    assert (left.sum(axis=1) == 2).all()
    assert (abs(left.mean(axis=0) - 0.5) < 0.15).all()


def test_few_rows_have_none_drawn():
    """Of nine rows none can be told from a tail; of 19 one."""
    for n, drawn in ((9, 0), (19, 1), (20, 2)):
        x = np.random.default_rng(4).normal(size=(50, n))
        x[:, :2] = 1e4
        assert ((tame(x).z[:, :2] != FAR).sum(axis=1) == drawn).all()


def test_every_column_by_itself():
    x = np.random.default_rng(5).standard_cauchy(size=(6, 80))
    together = tame(x)
    for k in range(6):
        alone = tame(x[k : k + 1], keys=np.array([k]))
        np.testing.assert_array_equal(alone.z[0], together.z[k])
    np.testing.assert_array_equal(tame(x[::-1], keys=np.arange(6)[::-1]).z[::-1], together.z)


def test_rows_of_a_group_are_treated_alike():
    """Another order of the rows within groups gives the same values in that order, where nothing is far."""
    rng = np.random.default_rng(6)
    group = np.repeat([0, 1, 2], [30, 12, 4])
    even = np.concatenate([np.linspace(-1, 1, size) for size in (30, 12, 4)])
    x = np.stack([even * slope + np.array([1.0, 20, 5])[group] for slope in (1, -2, 3, 0.5, 7)])
    order = np.concatenate([rng.permutation(30), 30 + rng.permutation(12), 42 + rng.permutation(4)])
    within = Within(np, group, 46)
    first = clipped(within, tame(x, group).z)
    second = clipped(within, tame(x[:, order], group).z)
    np.testing.assert_allclose(second, first[:, order], rtol=1e-10, atol=1e-10)


def test_a_far_cell_of_a_group_moves_no_other_cell():
    rng = np.random.default_rng(7)
    group = np.arange(60) % 20  # three rows each
    x = rng.normal(size=(40, 60))
    plain = tame(x, group).z
    far = x.copy()
    far[:, 5] = 1e5
    z = tame(far, group).z
    others = group != group[5]
    assert np.median(abs(z[:, others] - plain[:, others])) < 0.05
    assert abs(z).max() <= FAR


# --- fits


@pytest.mark.parametrize("value", [10.0, 30.0, 1e6])
def test_a_far_cell_does_not_hide_two_moons(value):
    for seed in range(3):
        X = two_moons(n_features=8, random_state=seed).X
        X[17, seed % 2] = value
        assert DUFS(random_state=seed, backend="numpy").fit(X).get_support(indices=True).tolist() == [0, 1]


@pytest.mark.parametrize("value", [1e9, 1e12, 1e30])
def test_a_row_beyond_the_digits_of_float32(value):
    """All other cells would be one value."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 20))
    X[:, :3] += 2.5 * rng.choice([-1, 1], size=(120, 1))
    X[5] = value
    with pytest.warns(RowsWarning, match="Row 5 lies more than 8 standard deviations"):
        fitted = DUFS(random_state=0).fit(X)
    assert fitted.get_support(indices=True).tolist() == [0, 1, 2]


@pytest.mark.parametrize("scaling", ["columns", "global"])
def test_a_far_cell_does_not_change_what_its_column_weighs(scaling):
    rng = np.random.default_rng(8)
    X = rng.normal(size=(150, 20))
    X[:, :4] += 2.5 * rng.choice([-1, 1], size=(150, 1))
    plain = DUFS(random_state=0, scaling=scaling).fit(X)
    X[9, 2] = 1e5
    assert plain.get_support(indices=True).tolist() == [0, 1, 2, 3]
    assert DUFS(random_state=0, scaling=scaling).fit(X).get_support(indices=True).tolist() == [0, 1, 2, 3]


@pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")
@pytest.mark.parametrize(("value", "count"), [(5.0, 2), (100.0, 1), (1e6, 2)])
def test_a_far_row_of_noise_is_no_structure(value, count):
    """Columns win one in six, within three standard errors over 12 sets, and next to none is selected."""
    shares = []
    selected = 0
    for seed in range(12):
        X = np.random.default_rng(seed).normal(size=(100, 40))
        X[:count] = value
        fitted = DUFS(random_state=seed, backend="numpy").fit(X)
        shares.append((fitted.evidence_ > fitted.decoy_evidence_.max(axis=0)).mean())
        selected += int(fitted.support_.sum())
    assert abs(np.mean(shares) - 1 / 6) < 3 * np.std(shares) / np.sqrt(12)
    assert selected < 12


# --- normal scores


def test_columns_with_far_values_get_normal_scores_and_others_stay():
    """By the ranks: any increasing function of such a column gives the same; the mean rank of equal cells."""
    rng = np.random.default_rng(0)
    x = np.stack([rng.normal(size=300), rng.standard_t(1, size=300), np.exp(rng.normal(size=300))])
    x[1, :4] = x[1, 4]
    z = tame(x).z
    found = with_normal_scores(NUMPY, Within(np, None, 300), z, 2)
    np.testing.assert_array_equal(found[0], z[0])
    for k in (1, 2):
        expected = ndtri((rankdata(z[k]) - 0.5) / 300)
        np.testing.assert_allclose(found[k], expected, rtol=1e-6)
    assert len(np.unique(found[1, :5])) == 1
    assert (z[0] == tame(x).z[0]).all()  # what is given is not written to


def test_normal_scores_are_those_of_the_same_cells_in_another_order():
    """So that a column and its decoys, which have its cells in other orders, stay alike."""
    rng = np.random.default_rng(1)
    z = tame(rng.standard_t(1, size=(5, 200))).z
    order = rng.permutation(200)
    within = Within(np, None, 200)
    np.testing.assert_array_equal(
        with_normal_scores(NUMPY, within, z[:, order], 1), with_normal_scores(NUMPY, within, z, 1)[:, order]
    )


def test_columns_compete_by_normal_scores():
    """What is exchanged is what is left of far values: ranks, by which no few rows stand out."""
    x = np.random.default_rng(2).standard_t(1, size=(120, 6))
    columns = np.arange(6)
    exchange = Exchange.of(NUMPY, Rows(120), 0)
    values = exchange.prepared(exchange.read(x, columns), columns).values
    within = Within(np, None, 120)
    scores = with_normal_scores(NUMPY, within, tame(x.T).z, 1)
    np.testing.assert_allclose(values, clipped(within, scores), atol=1e-12)
    assert abs(values - clipped(within, tame(x.T).z)).max() > 0.1
