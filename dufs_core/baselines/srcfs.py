"""Selection with multi-subspace randomisation and collaboration."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dufs_core.backend import Array, get_backend
from dufs_core.backend.random import Stream, words
from dufs_core.baselines.base import Baseline
from dufs_core.baselines.graphs import kernel_weights, neighbours, symmetric_graph
from dufs_core.baselines.laplacian_score import locality


def subspace_scores(X: Array, k: int) -> Array:
    """1 - LS of every column of X on the graph of these columns alone.      (n, m) -> (m,).

    W_ij = exp(-||x_i - x_j||^2 / (2 sigma^2)) between the k nearest neighbours (either way), sigma the mean distance
    to them; 1 everywhere where all these distances are 0.
    """
    near = neighbours(X, k)
    sigma = float(np.sqrt(near.squared).mean())
    t = max(2 * sigma * sigma, np.finfo(float).tiny)
    return locality(X, symmetric_graph(near, kernel_weights(near.squared, t)))


@dataclass(kw_only=True, eq=False, repr=False)
class SRCFS(Baseline):
    """Laplacian scores in random subspaces, averaged.

        m times: deal the columns at random into s subspaces; in each, the k-nearest-neighbour graph with weights
        exp(-||x_i - x_j||^2 / (2 sigma^2)), sigma = mean neighbour distance, W = max(W, W'); 1 - LS of its columns
        score_j = mean over the m partitions

    Source: Huang, Cai and Wang, "Unsupervised feature selection with multi-subspace randomization and collaboration",
    Knowledge-Based Systems 182, 2019.

    Departures. From the paper: none known in the equations; subspaces differ by at most one column in size (the
    authors' code fills them to ceil(d / s): 11 subspaces for 21 columns and s = 20), and with fewer columns than
    subspaces each column is a subspace of its own. From the authors' code: the draws are functions of (random_state,
    partition, column), and a constant column ranks last.

    Parameters
    ----------
    n_neighbors : int, default 5
        K of the paper.
    n_partitions : int, default 10
        m, the number of partitions.
    n_subspaces : int, default 20
        s, the number of subspaces of a partition.
    {parameters}

    Attributes
    ----------
    {attributes}
    """

    n_neighbors: int = 5
    n_partitions: int = 10
    n_subspaces: int = 20

    def _score(self, X: Array, columns: Array, n_selected: int, seed: int) -> Array:
        keys = words(get_backend("numpy"), seed, Stream.PARTITION, 0, np.arange(self.n_partitions)[:, None], 0, columns)
        total = np.zeros(X.shape[1])
        for order in np.argsort(keys, axis=1, kind="stable"):
            for subspace in np.array_split(order, min(self.n_subspaces, len(order))):
                total[subspace] += subspace_scores(np.ascontiguousarray(X[:, subspace]), self.n_neighbors)
        return total / self.n_partitions
