"""Every warning points to the line of the user, whatever stands between it and the package."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dufs_core import GatedLaplacian, LambdaPath, fit_many, stability_selection
from dufs_core.backend import _warn_once
from dufs_core.baselines import LLCFS, MCFS, LaplacianScore
from dufs_core.data.accept import check_scales
from dufs_core.errors import DufsWarning

X = np.random.default_rng(0).normal(size=(30, 5))
SCALES = X * [1e3, 1, 1, 1, 1]
ISOLATED = GatedLaplacian(max_iter=1, max_runs=1, n_draws=2, batch_size=99, random_state=0).set_params(
    graph__bandwidth=1e-06
)
UNSCALED = clone(ISOLATED).set_params(scaling="none")
WALK = LaplacianScore(variant="random_walk", bandwidth=1e-6)


@pytest.mark.parametrize(
    "call",
    [
        lambda: clone(ISOLATED).fit(X),
        lambda: clone(ISOLATED).fit_transform(X),
        lambda: make_pipeline(StandardScaler(), clone(ISOLATED)).fit_transform(X),
        lambda: fit_many([clone(UNSCALED)], SCALES),
        lambda: clone(UNSCALED).fit(SCALES),
        lambda: LambdaPath(ISOLATED, lams=[0.1], n_splits=1, n_permutations=3).fit(X),
        lambda: stability_selection(ISOLATED, X, n_subsamples=2),
        lambda: clone(WALK).fit(X),
        lambda: make_pipeline(StandardScaler(), clone(WALK)).fit(X),
        lambda: MCFS(n_clusters=2, bandwidth=1e-6).fit(X),
        lambda: LLCFS(n_clusters=2).fit_transform(np.ones((9, 3))),
        lambda: check_scales(SCALES),
        lambda: _warn_once("for a test"),
    ],
)
def test_warnings_point_to_the_line_of_the_user(call):
    _warn_once.cache_clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    said = [w for w in caught if issubclass(w.category, DufsWarning)]  # scikit-learn has one of its own
    assert said
    assert {(w.filename, w.lineno) for w in said} == {(__file__, call.__code__.co_firstlineno)}
