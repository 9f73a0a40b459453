"""Multi-cluster feature selection."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Literal

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import lars_path

from dufs_core.backend import Array
from dufs_core.baselines.base import Baseline
from dufs_core.baselines.graphs import heat_kernel, neighbours, spectral_embedding
from dufs_core.baselines.lasso_path import path_end

_SMALL = 1 << 20  # entries of X up to which scikit-learn's path takes less time than ours


def sparse_coefficients(X: Array, Y: Array, n_nonzero: int) -> Array:
    """a_k of min ||y_k - X a_k||^2 + beta_k ||a_k||_1, beta_k reached after n_nonzero steps of the path from a_k = 0.

    Each step adds a column or drops one, so at most n_nonzero entries are not 0.
    X (n, d) centred, Y (n, K). Returns (d, K). Where columns of X are equal, the first of them takes part.
    """
    n, d = X.shape
    steps = min(n_nonzero, d, n)
    targets = (Y - Y.mean(axis=0)).T
    if X.size > _SMALL:
        return np.column_stack([path_end(X, y, steps) for y in targets])
    gram = X.T @ X if n > d else None
    X = np.asfortranarray(X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # equal columns: the path goes on without the second
        paths = [lars_path(X, y, Gram=gram, max_iter=steps, method="lasso", return_path=False) for y in targets]
    return np.column_stack([path[2] for path in paths])


@dataclass(kw_only=True, eq=False, repr=False)
class MCFS(Baseline):
    """Columns that the leading eigenvectors of the neighbour graph are sparse combinations of.

        L y = lambda Dg y: the K smallest non-trivial eigenvectors y_1 .. y_K of the graph of LaplacianScore
        min ||y_k - X a_k||^2 + beta_k ||a_k||_1, m steps of least angle regression;   score_j = max_k |a_kj|

    Source: Cai, Zhang and He, "Unsupervised Feature Selection for Multi-Cluster Data", KDD 2010. m is the number of
    columns to select, as there; columns that enter no path score 0 and rank by index.

    Departures. From the paper: none in the equations; the trivial eigenvector is deflated, and among equal eigenvalues
    (several components) the eigenvectors are those along which the data vary most. From scikit-feature: scores are
    absolute values (there the mirror image of a good column ranks below columns that were never used); the path is that
    of the L1-regularised problem (there plain "lar", whose correlations are no longer equal once a coefficient has
    passed 0); rows are not their own neighbours.

    Parameters
    ----------
    n_clusters : int or None, default None
        K. None: 5, the setting of the authors' code (n - 1 for n <= 5 rows).
    n_neighbors : int, default 5
    bandwidth : "median", "q90", "max" or float, default "median"
        t of the heat kernel, see LaplacianScore.
    {parameters}

    Attributes
    ----------
    {attributes}
    """

    n_clusters: int | None = None
    n_neighbors: int = 5
    bandwidth: Literal["median", "q90", "max"] | float = "median"

    def _score(self, X: Array, columns: Array, n_selected: int, seed: int) -> Array:
        W = heat_kernel(neighbours(X, self.n_neighbors), self.bandwidth)
        Y = spectral_embedding(W, self._clusters(len(X)), X)
        return np.abs(sparse_coefficients(X, Y, n_selected)).max(axis=1)
