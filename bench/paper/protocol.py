"""Select columns without labels, cluster the data by them, compare the clusters with the labels.

The paper's protocol: k-means with k = number of classes on the selected columns in the units of the file (selectors
scale the columns for themselves), accuracy under the best assignment of clusters to classes, mean of 20 runs of one
start each.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from bench.paper.data import Data, load
from dufs_core import DUFS, baselines
from dufs_core.backend import get_backend
from dufs_core.data.dense import scale_columns
from dufs_core.inspection.metrics import kmeans_accuracy
from dufs_core.significance.permutation_test import permutation_test

Array = np.ndarray[Any, Any]
COUNTS = (50, 100, 150, 200, 250, 300)
RUNS = 20
ALL = "all features"
SELECTORS: dict[str, type[Any]] = {
    "LS": baselines.LaplacianScore, "MCFS": baselines.MCFS, "NDFS": baselines.NDFS, "LLCFS": baselines.LLCFS,
    "SRCFS": baselines.SRCFS, "CAE": baselines.ConcreteAutoencoder, "DUFS": DUFS, "DUFS-R": DUFS,
}  # fmt: skip
_KNOW_CLASSES = ("MCFS", "NDFS", "LLCFS")  # published comparisons give them the number of classes
DUFS_METHODS = {"DUFS": "gates", "DUFS-R": "diverse"}  # the same gates, two orders of the open columns
_REFITTED = ("MCFS", "CAE")  # the ranking depends on how many columns are wanted
_CAE_WORK, _CAE_STEPS = 3_000_000, (500, 3000)  # steps times columns; at least and at most so many steps

cached_load = lru_cache(maxsize=2)(load)


def lam_of_share(X: Array, share: float, settings: dict[str, Any]) -> float:
    """`share` of the largest score x' P^2 x / n of a column, on the graph of all columns that DUFS starts from."""
    rules = {"n_neighbors": 2, "bandwidth": "max", "bandwidth_factor": 2.0, "scaling": "columns"}
    rules |= {name: settings[name] for name in rules if name in settings}
    scorer = baselines.LaplacianScore(variant="random_walk", **rules)
    return share * float(scorer.fit(X).scores_.max())


def score(data: str, method: str, settings: dict[str, Any], counts: list[int], runs: int, seed: int) -> dict[str, Any]:
    """One cell: lists over `counts` of accuracy and its standard deviation in percent; what the method says of itself.

    A cell of DUFS has both orders of the columns of one fit: by the gates, and the other under "diverse".
    """
    if method == "DUFS-R":
        raise ValueError("DUFS-R has no cells of its own: those of DUFS have both orders")
    source = cached_load(data)
    if method == ALL:
        mean, deviation = kmeans_accuracy(source.X, source.labels, runs, seed)
        return {"accuracy": [round(100 * mean, 2)], "deviation": [round(100 * deviation, 2)]}
    counts = [min(count, source.X.shape[1]) for count in counts]
    if method in _REFITTED:
        fits = [fitted(source, method, settings | {"n_features_to_select": c}, seed) for c in counts]
        return judged(source, [fit.order_ for fit in fits], counts, runs, seed) | said(fits[-1])
    fit = fitted(source, method, settings, seed)
    if method != "DUFS":
        return judged(source, [fit.order_] * len(counts), counts, runs, seed) | said(fit)
    orders = {"gates": np.argsort(-fit.mu_, kind="stable"), "diverse": fit.order_}
    found = {
        name: judged(source, [order] * len(counts), counts, runs, seed) | {"gaps": gaps(source, order, counts)}
        for name, order in orders.items()
    }
    return found.pop("gates") | said(fit) | {"selected": int((fit.mu_ > 0).sum())} | found


def fitted(data: Data, method: str, settings: dict[str, Any], seed: int) -> Any:
    """The selector, fitted."""
    settings = dict(settings)
    n, d = data.X.shape
    if method in _KNOW_CLASSES:
        settings.setdefault("n_clusters", len(np.unique(data.labels)))
    if method == "DUFS":
        settings["ranking"] = "diverse"  # the gates are the same, and mu_ has their order
        preset = settings.pop("preset", None)
        share = settings.pop("lam_share", None)
        if share is not None:
            settings["lam"] = lam_of_share(data.X, share, settings)
        settings.setdefault("fdr", None)  # the paper's gates
        settings.setdefault("max_runs", 1)  # a ranking of all columns is wanted
        settings |= {"backend": "numpy", "n_jobs": 1}
        if preset:
            settings["learning_rate"] /= d  # the authors' loss is divided by d
            return DUFS.preset(preset, random_state=seed, **settings).fit(data.X)
    elif method == "CAE":
        batch = max(16, n // 24)
        steps = settings.pop("steps", int(np.clip(_CAE_WORK / d, *_CAE_STEPS)))
        settings |= {"batch_size": batch, "max_iter": max(1, steps // -(-n // batch))}
    else:
        settings.setdefault("n_features_to_select", min(max(COUNTS), d))
    return SELECTORS[method](random_state=seed, **settings).fit(data.X)


def judged(data: Data, rankings: Sequence[Array], counts: Sequence[int], runs: int, seed: int) -> dict[str, Any]:
    """k-means on the first columns of a ranking for each count."""
    values = [
        kmeans_accuracy(data.X[:, ranking[:count]], data.labels, runs, seed)
        for ranking, count in zip(rankings, counts, strict=True)
    ]
    return {
        "accuracy": [round(100 * mean, 2) for mean, _ in values],
        "deviation": [round(100 * deviation, 2) for _, deviation in values],
    }


def said(fit: Any) -> dict[str, Any]:
    """What a fit says of itself, as far as its method has it."""
    names = ("n_iter_", "converged_", "lam", "excess_score_", "backend_")
    return {name.rstrip("_"): getattr(fit, name) for name in names if getattr(fit, name, None) is not None}


def gaps(data: Data, ranking: Array, counts: list[int]) -> list[float]:
    """The excess score of the first columns of a ranking, columns scaled one by one: it needs no labels."""
    X = scale_columns(data.X[:, ranking[: max(counts)]], "columns", np.float32).X
    return [round(permutation_test(get_backend("numpy"), X, np.arange(c)).excess, 4) for c in counts]
