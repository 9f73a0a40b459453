"""Measures of a selection where the answer or labels are known."""

from __future__ import annotations

import numpy as np

from dufs_core.backend import Array


def clustering_accuracy(labels: Array, predicted: Array) -> float:
    """Largest share of samples on which `predicted` agrees with `labels` over all one-to-one matchings of clusters.

    labels, predicted (n,), any values. Solved exactly as an assignment problem. Returns a float in [0, 1].
    """
    from scipy.optimize import linear_sum_assignment

    _, rows = np.unique(labels, return_inverse=True)
    _, columns = np.unique(predicted, return_inverse=True)
    table = np.zeros((rows.max() + 1, columns.max() + 1), dtype=np.int64)
    np.add.at(table, (rows.ravel(), columns.ravel()), 1)
    return float(table[linear_sum_assignment(table, maximize=True)].sum() / len(rows))


def kmeans_accuracy(X: Array, labels: Array, n_runs: int = 20, random_state: int = 0) -> tuple[float, float]:
    """Mean and standard deviation of the clustering accuracy of k-means, k = number of classes, over n_runs starts."""
    from sklearn.cluster import KMeans

    k = len(np.unique(labels))
    starts = [KMeans(k, n_init=1, random_state=random_state + i) for i in range(n_runs)]
    accuracy = [clustering_accuracy(labels, start.fit_predict(X)) for start in starts]
    return float(np.mean(accuracy)), float(np.std(accuracy))


def soft_precision_recall(probabilities: Array, informative: Array) -> tuple[float, float]:
    """sum over informative of p / sum(p), and sum over informative of p / their number.      p = P(z > 0), (d,)."""
    total = float(probabilities[informative].sum())
    return total / max(float(probabilities.sum()), 1e-300), total / len(informative)


def precision_recall(selected: Array, informative: Array) -> tuple[float, float]:
    """Share of the selected columns that are informative (0 if none is selected), and of the informative selected."""
    hits = len(np.intersect1d(selected, informative))
    return hits / len(selected) if len(selected) else 0.0, hits / len(informative)
