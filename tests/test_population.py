"""Fits on the same data together: each has the numbers that it has alone."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from joblib import parallel_config
from scipy.sparse import csr_array
from sklearn.base import clone

from dufs_core import GatedLaplacian, Trajectory, fit_many
from dufs_core.datasets import two_moons
from dufs_core.errors import MemoryLimitError, SelectionWarning
from dufs_core.selection.checkpoint import Checkpoint
from tests.generators import gated

pytestmark = pytest.mark.filterwarnings("ignore::dufs_core.errors.SelectionWarning")
FITTED = ("mu_", "order_", "support_", "gate_probabilities_")
X = two_moons(n_samples=60, n_features=6).X


def selectors(**how):
    settings = {"max_iter": 60, "max_runs": 2} | how
    return [gated(lam=lam, random_state=seed, **settings) for lam in (None, 0.05, 0.5) for seed in (0, 1)]


def assert_same(got, want):
    for name in FITTED:
        np.testing.assert_array_equal(getattr(got, name), getattr(want, name), err_msg=name)
    for name, values in want.history_.items():
        np.testing.assert_array_equal(got.history_[name], values, err_msg=name)
    for name in ("n_iter_", "n_runs_", "converged_", "excess_score_", "p_value_", "engine_", "backend_"):
        assert getattr(got, name) == getattr(want, name), name


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"n_jobs": 3},
        {"batch_size": 25},
        {"gate_noise": "sample"},
        {"engine": "reference", "max_iter": 10},
        {"self_loops": False, "max_iter": 10},
        {"saturation": 0.3, "max_iter": 10},
    ],
)
def test_each_as_alone(how):
    together = fit_many(selectors(**how), X)
    for got, want in zip(together, selectors(**how), strict=True):
        assert_same(got, want.fit(X))


def test_what_is_the_users():
    """Names, callbacks, the number wanted; a RandomState is drawn from in order."""
    pd = pytest.importorskip("pandas", reason="frames need pandas")
    frame = pd.DataFrame(X, columns=list("abcdef"))
    seen = []
    state = np.random.RandomState(3)
    given = [
        GatedLaplacian(random_state=state, max_iter=5, max_runs=1, n_features_to_select=2),
        GatedLaplacian(random_state=state, max_iter=5, max_runs=1, n_features_to_select=3, callbacks=[seen.append]),
    ]
    fit_many(given, frame)
    state = np.random.RandomState(3)
    for selector in given:
        want = GatedLaplacian(random_state=state, max_iter=5, max_runs=1).fit(X)
        np.testing.assert_array_equal(selector.mu_, want.mu_)
        assert list(selector.feature_names_in_) == list("abcdef")
    assert [s.support_.sum() for s in given] == [2, 3]
    assert [info.step for info in seen] == [1, 2, 3, 4, 5]


def test_nothing_to_fit():
    assert fit_many([], X) == []


def test_others_are_refused():
    with pytest.raises(ValueError, match=r"graph is Graph\(power=2.* in the first and Graph\(power=3.* in number 1"):
        fit_many([GatedLaplacian(), GatedLaplacian().set_params(graph__power=3)], X)
    with pytest.raises(ValueError, match="lam must be None"):
        fit_many([GatedLaplacian(), GatedLaplacian(lam=-1.0)], X)
    with pytest.raises(MemoryLimitError):
        fit_many([GatedLaplacian(max_memory=10000), GatedLaplacian(max_memory=10000)], X)


@pytest.mark.parametrize("position", [0, 1, 2])
def test_an_error_in_one_ends_all(position):
    """The others would take years, and are told."""

    def fail(info):
        raise RuntimeError("broken callback")

    given = [gated(random_state=i, max_iter=10**12, tol=0.0, max_runs=1, n_jobs=3) for i in range(3)]
    given[position].callbacks = [fail]
    with pytest.raises(RuntimeError, match="broken callback"):
        fit_many(given, X)


def test_what_cannot_share_is_refused(tmp_path):
    selector = GatedLaplacian()
    with pytest.raises(ValueError, match="One selector is given twice"):
        fit_many([selector, selector], X)
    saving = [GatedLaplacian(callbacks=[Checkpoint(tmp_path / "state")]) for _ in range(2)]
    with pytest.raises(ValueError, match="to the same path"):
        fit_many(saving, X)


@pytest.mark.parametrize("callback", [Trajectory(), lambda info: None])
def test_callbacks_in_other_processes_are_refused(callback):
    with parallel_config(backend="loky"), pytest.raises(ValueError, match="in other processes call copies"):
        fit_many([GatedLaplacian(), GatedLaplacian(callbacks=[callback])], X)


def test_sparse_data():
    table = csr_array(X * (abs(X) > 0.5))
    settings = {"max_iter": 30, "max_runs": 1, "random_state": 0}
    together = fit_many([gated(lam=lam, **settings) for lam in (None, 0.1)], table)
    for got, lam in zip(together, (None, 0.1), strict=True):
        assert_same(got, gated(lam=lam, **settings).fit(table))


def test_a_dask_cluster_carries_the_fits():
    """Two worker processes: the bits of one fit after the other, and what the fits warn of."""
    distributed = pytest.importorskip("distributed", reason="Dask is not installed (it is in the extra `cluster`)")
    settings = {"max_iter": 20, "max_runs": 1, "learning_rate": 0.1, "backend": "numpy"}
    given = [gated(lam=lam, random_state=seed, **settings) for lam in (None, 1e6) for seed in (0, 1)]
    how = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
    with (
        distributed.LocalCluster(**how) as cluster,
        distributed.Client(cluster),
        parallel_config(backend="dask"),
        pytest.warns(SelectionWarning, match="no feature with lam=1000000"),
    ):
        together = fit_many(given, X)
    for got in together:
        assert_same(got, clone(got).fit(X))
    assert [selector.random_state for selector in together] == [0, 1, 0, 1]


def test_what_two_fits_would_mix_is_refused():
    shared = Trajectory()
    with pytest.raises(ValueError, match="Two selectors share one Trajectory"):
        fit_many([GatedLaplacian(callbacks=[shared]), GatedLaplacian(callbacks=[shared])], X)
    with pytest.raises(ValueError, match="fit_many fits DUFS or GatedLaplacian selectors; got str"):
        fit_many(["DUFS"], X)


def test_all_are_fitted_before_any_warns():
    given = [GatedLaplacian(lam=1e6, max_iter=20, max_runs=1, learning_rate=0.1, random_state=seed) for seed in (0, 1)]
    with warnings.catch_warnings(action="error", category=SelectionWarning), pytest.raises(SelectionWarning):
        fit_many(given, X)
    assert all(hasattr(selector, "mu_") for selector in given)
