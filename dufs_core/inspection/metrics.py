"""Measures of a selection with known informative features or labels."""

from __future__ import annotations

import numpy as np

from dufs_core.backend import Array


def clustering_accuracy(labels: Array, predicted: Array) -> float:
    """Share of samples with equal `labels` and `predicted` (n,), for the best one-to-one matching of clusters."""
    from scipy.optimize import linear_sum_assignment

    _, rows = np.unique(labels, return_inverse=True)
    _, columns = np.unique(predicted, return_inverse=True)
    table = np.zeros((rows.max() + 1, columns.max() + 1), dtype=np.int64)
    np.add.at(table, (rows.ravel(), columns.ravel()), 1)
    return float(table[linear_sum_assignment(table, maximize=True)].sum() / len(rows))


def kmeans_accuracy(X: Array, labels: Array, n_runs: int = 20, random_state: int = 0) -> tuple[float, float]:
    """Mean and standard deviation over n_runs starts of the accuracy of k-means, with k the number of classes."""
    from sklearn.cluster import KMeans

    k = len(np.unique(labels))
    starts = [KMeans(k, n_init=1, random_state=random_state + i) for i in range(n_runs)]
    accuracy = [clustering_accuracy(labels, start.fit_predict(X)) for start in starts]
    return float(np.mean(accuracy)), float(np.std(accuracy))


def precision_recall(selected: Array, informative: Array) -> tuple[float, float]:
    """Share of the selected columns that are informative (0 if none is selected), and of the informative selected."""
    hits = len(np.intersect1d(selected, informative))
    return hits / len(selected) if len(selected) else 0.0, hits / len(informative)
