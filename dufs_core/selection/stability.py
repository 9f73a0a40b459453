"""Stability selection: how often a selector takes each column of half of the rows."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.base import clone
from sklearn.utils.validation import check_array

from dufs_core.backend import Array, get_backend, random
from dufs_core.data.accept import check_values, unwrap
from dufs_core.data.groups import Told
from dufs_core.selection import checkpoint
from dufs_core.selection.decoys.dufs import DUFS
from dufs_core.selection.gated_selector import GatedSelector
from dufs_core.selection.gates.lambda_path import LambdaPath, one_of_each
from dufs_core.selection.parameters import check_whole, graph_for, is_whole, seed_of
from dufs_core.significance.rows import Rows
from dufs_core.training.progress import progress_bar


class Stability(NamedTuple):
    """Result of `stability_selection`."""

    frequencies: Array  # (d,) share of the subsamples that the column was selected on
    n_selected: Array  # (n_subsamples,) columns selected on each

    def support(self, threshold: float = 0.9) -> Array:
        """Columns with at least this frequency, bool (d,)."""
        return self.frequencies >= threshold

    def false_selections(self, threshold: float = 0.9) -> float:
        """Bound q^2 / ((2 threshold - 1) d) on the expected number of nuisance columns in `support`.

        q is the mean number of columns selected on a subsample, nuisance columns are assumed exchangeable, and selected
        no more often than by guessing (Meinshausen and Buehlmann, JRSS B 72, 2010, theorem 1). Raises ValueError unless
        1/2 < threshold <= 1.
        """
        if not 0.5 < threshold <= 1:
            raise ValueError(f"threshold must be above 0.5 and at most 1 for the bound to hold; got {threshold!r}")
        return float(self.n_selected.mean() ** 2 / ((2 * threshold - 1) * len(self.frequencies)))


def stability_selection(
    selector: Any, X: Any, *, groups: Any = None, covariates: Any = None, n_subsamples: int = 50,
    random_state: Any = None, verbose: int = 0,
) -> Stability:  # fmt: skip
    """Fit a selector on random halves of the rows, and count how often it selects each column.

    The halves come in complementary pairs (Shah and Samworth, JRSS B 75, 2013), the last of an odd number alone; each
    fit has a seed of its own.

    Parameters
    ----------
    selector : DUFS, GatedLaplacian, LambdaPath, a baseline, or any scikit-learn selector
        Not changed. Half of the rows show weaker structure: a DUFS that finds columns at its fdr on all of them may
        find none on any half; with n_features_to_select every fit takes exactly that many.
    X : array-like or sparse matrix (n_samples, n_features)
    groups, covariates : array-like, optional
        As in `DUFS.fit`. Halves take whole groups; one with more than a quarter of the rows is halved. Of a series one
        half is a stretch of consecutive rows, the other what is before and after it.
    n_subsamples : int, default 50
    random_state : int, RandomState instance or None, default None
    verbose : int, default 0
        1: a progress bar on standard error that counts fits.

    Returns
    -------
    Stability

    Raises
    ------
    ValueError
        If n_subsamples is below 2, X has fewer than 4 rows, a half fewer than n_neighbors + 2, the selector a callback
        that keeps something, and as the selector's fit.
    """
    check_whole("n_subsamples", n_subsamples, 2)
    checkpoint.refuse(selector, "stability_selection")
    X = check_array(
        unwrap(X), accept_sparse=("csr", "csc"), dtype="numeric", ensure_all_finite=False, ensure_min_samples=4
    )
    check_values(X)
    X = X.tocsr() if sparse.issparse(X) else X
    seed = seed_of(random_state)
    if groups is not None and not isinstance(selector, (GatedSelector, LambdaPath)):
        raise ValueError(f"groups are used by DUFS, GatedLaplacian and LambdaPath; got {type(selector).__name__}")
    if covariates is not None and not isinstance(selector, DUFS):
        raise ValueError(f"covariates are used by DUFS; got {type(selector).__name__}")
    table = Rows.of(X.shape[0], Told(groups, covariates), getattr(selector, "rows", "independent") == "series")
    X = X if table.kept is None else X[table.kept]
    n = X.shape[0]
    bk = get_backend("numpy")
    graph = graph_for(selector, n // 2) if isinstance(selector, GatedSelector) else selector
    neighbors: Any = getattr(graph, "n_neighbors", None)
    if is_whole(neighbors) and n // 2 < neighbors + 2:
        raise ValueError(
            f"stability_selection fits halves of the rows, and each needs n_neighbors + 2 = {neighbors + 2}; X has {n} "
            f"rows, and {2 * (neighbors + 2)} are needed"
        )
    seeded = "random_state" in inspect.signature(type(selector)).parameters
    supports = []
    with one_of_each(), progress_bar(verbose, n_subsamples, "fit") as bar:
        for i in range(n_subsamples):
            rows, group = table.halves(seed, i // 2)[i % 2]
            own = {} if group is None else {"groups": group}
            if table.covariates is not None:
                Z = table.covariates[rows]
                varies = (Z[0] != Z).any(axis=0)  # in this half
                if varies.any():
                    own["covariates"] = Z[:, varies]
            fit = clone(selector)
            if seeded:
                fit.set_params(random_state=random.derived_seed(bk, seed, i + 1) >> 32)
            supports.append(fit.fit(X[rows], **own).get_support())
            bar.update()
    selected = np.array(supports)
    return Stability(selected.mean(axis=0), selected.sum(axis=1))
