"""Select columns without labels, cluster the data by them, compare the clusters with the labels.

The paper's protocol: k-means with k = number of classes on the selected columns in the units of the file (selectors
scale the columns for themselves), accuracy under the best assignment of clusters to classes, mean of 20 runs of one
start each. Beside it normalised mutual information (NMI) and the adjusted Rand index (ARI). Of the three ways to start
plain k-means++ is the paper's as far as its column of all features tells (bench/paper/starts.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from sklearn.cluster import KMeans, kmeans_plusplus
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from bench.paper.data import Data, load
from dufs_core import GatedLaplacian, baselines
from dufs_core.data.dense import scale_columns
from dufs_core.inspection.metrics import clustering_accuracy
from dufs_core.selection.settings import set_flat

Array = np.ndarray[Any, Any]
COUNTS = (50, 100, 150, 200, 250, 300)
RUNS = 20
ALL = "all features"
STARTS = ("k-means++", "greedy-k-means++", "random rows")  # greedy: scikit-learn's, the best of several tries a centre
RANDOM, DRAWS = "random", 20
SIMPLE = ("variance", "correlation^4", "PCA")
SELECTORS: dict[str, type[Any]] = {
    "LS": baselines.LaplacianScore, "MCFS": baselines.MCFS, "NDFS": baselines.NDFS, "LLCFS": baselines.LLCFS,
    "SRCFS": baselines.SRCFS, "CAE": baselines.ConcreteAutoencoder, "DUFS": GatedLaplacian, "DUFS-R": GatedLaplacian,
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


def rank(data: str, method: str, settings: dict[str, Any], counts: list[int], seed: int) -> dict[str, Any]:
    """One selection: under "orders" the first columns of each of its rankings, what the method says of itself beside.

    A ranking is one list, or one for each of `counts` where it depends on how many columns are wanted. DUFS has two of
    one fit: "gates", by mu, and "diverse".
    """
    if method in (ALL, RANDOM):  # nothing to select, or DRAWS selections that the seed says
        return {"orders": {}}
    source = cached_load(data)
    counts = [min(count, source.X.shape[1]) for count in counts]
    if method in SIMPLE:
        return {"orders": {"order": [simple(source.X, method, **settings)[: max(counts)]]}}
    if method in _REFITTED:
        fits = [fitted(source, method, settings | {"n_features_to_select": c}, seed) for c in counts]
        return {"orders": {"order": [f.order_[:c] for f, c in zip(fits, counts, strict=True)]}} | said(fits[-1])
    fit = fitted(source, method, settings, seed)
    orders = {"order": fit.order_}
    if method == "DUFS":
        orders = {"gates": np.argsort(-fit.scores_, kind="stable"), "diverse": fit.order_}
    selected = {"selected": int((fit.mu_ > 0).sum())} if method == "DUFS" else {}
    return {"orders": {name: [order[: max(counts)]] for name, order in orders.items()}} | said(fit) | selected


def judge(
    data: str, method: str, settings: dict[str, Any], counts: list[int], runs: int, seed: int, start: str,
    orders: dict[str, list[list[int]]],
) -> dict[str, Any]:  # fmt: skip
    """One cell: lists over `counts` of the means of `judged`. Of DUFS by the gates, and the other under "diverse".

    Of all features the lists have one entry. Random columns are DRAWS times as many cells in one: the means over the
    draws, and the accuracy of each under "draws".
    """
    source = cached_load(data)
    d = source.X.shape[1]
    if method == ALL:
        return judged(source, [np.arange(d)], runs, seed, start)
    counts = [min(count, d) for count in counts]
    if method == RANDOM:
        permutations = [np.random.default_rng([seed, draw]).permutation(d) for draw in range(DRAWS)]
        each = [judged(source, [p[:c] for c in counts], runs, seed, start) for p in permutations]
        found = {key: np.mean([e[key] for e in each], axis=0).round(2).tolist() for key in each[0]}
        return found | {"draws": [e["accuracy"] for e in each]}
    found = {}
    for name, lists in orders.items():
        each = lists if len(lists) == len(counts) else lists * len(counts)
        found[name] = judged(source, [o[:c] for o, c in zip(each, counts, strict=True)], runs, seed, start)
    return found.pop("gates" if method == "DUFS" else "order") | found


def simple(X: Array, method: str, components: tuple[int, int] = (1, 5)) -> Array:
    """The columns, best first, by raw variance, by the sum over the others of abs(correlation)^4, or by PCA.

    PCA: by the share of a column's variance that the principal components of the z-scored columns from the first to
    the last of `components` explain, weighted with the columns' own variance of 1.
    """
    if method == "variance":
        return np.argsort(-X.var(axis=0), kind="stable")
    Z = scale_columns(X, "columns", np.float64).X / np.sqrt(len(X))  # columns of norm 1, or 0
    if method == "correlation^4":
        blocks = [np.arange(i, min(i + 1000, X.shape[1])) for i in range(0, X.shape[1], 1000)]
        return np.argsort(-np.concatenate([((Z[:, b].T @ Z) ** 4).sum(axis=1) for b in blocks]), kind="stable")
    vectors = np.linalg.eigh(Z @ Z.T)[1]
    first, last = components
    rows = vectors[:, ::-1][:, first - 1 : last]
    return np.argsort(-((rows.T @ Z) ** 2).sum(axis=0), kind="stable")


def fitted(data: Data, method: str, settings: dict[str, Any], seed: int) -> Any:
    """The selector, fitted."""
    settings = dict(settings)
    n, d = data.X.shape
    if method in _KNOW_CLASSES:
        settings.setdefault("n_clusters", len(np.unique(data.labels)))
    if method == "DUFS":
        settings["ranking"] = "diverse"  # the gates are the same, and scores_ has their order
        preset = settings.pop("preset", None)
        share = settings.pop("lam_share", None)
        if share is not None:
            settings["lam"] = lam_of_share(data.X, share, settings)
        settings.setdefault("max_runs", 1)  # a ranking of all columns is wanted
        settings |= {"backend": "numpy", "n_jobs": 1}
        X = data.X
        if settings.pop("unit_norm", False):  # before the selector centres them; its own scaling is then one for all
            X, settings["scaling"] = X / np.maximum(np.linalg.norm(X, axis=0), 1e-300), "global"
        if preset and "learning_rate" in settings:
            settings["learning_rate"] /= d  # the authors' loss is divided by d
        selector = GatedLaplacian.preset(preset) if preset else GatedLaplacian()
        return set_flat(selector, settings | {"random_state": seed}).fit(X)
    if method == "CAE":
        batch = max(16, n // 24)
        steps = settings.pop("steps", int(np.clip(_CAE_WORK / d, *_CAE_STEPS)))
        settings |= {"batch_size": batch, "max_iter": max(1, steps // -(-n // batch))}
    else:
        settings.setdefault("n_features_to_select", min(max(COUNTS), d))
    return SELECTORS[method](random_state=seed, **settings).fit(data.X)


def judged(data: Data, columns: Sequence[Array], runs: int, seed: int, start: str) -> dict[str, list[float]]:
    """k-means by each of some sets of columns: mean and deviation of the accuracy, mean NMI and ARI, in percent."""
    found = []
    for chosen in columns:
        X, k = np.ascontiguousarray(data.X[:, chosen]), len(np.unique(data.labels))
        values = [agreement(data.labels, clusters(X, k, start, seed + run)) for run in range(runs)]
        found.append([*np.mean(values, axis=0), np.std([v[0] for v in values])])
    names = ("accuracy", "nmi", "ari", "deviation")
    return {name: [round(100 * float(v[i]), 2) for v in found] for i, name in enumerate(names)}


def agreement(labels: Array, found: Array) -> tuple[float, float, float]:
    """Accuracy, NMI and ARI of clusters."""
    return (
        clustering_accuracy(labels, found),
        normalized_mutual_info_score(labels, found),
        adjusted_rand_score(labels, found),
    )


def clusters(X: Array, k: int, start: str, seed: int) -> Array:
    """The k clusters that one start of k-means finds, (n,)."""
    init: Any = {"greedy-k-means++": "k-means++", "random rows": "random"}.get(start)
    if init is None:
        init = kmeans_plusplus(X, k, random_state=seed, n_local_trials=1)[0]
    return KMeans(k, init=init, n_init=1, random_state=seed).fit_predict(X)


def said(fit: Any) -> dict[str, Any]:
    """What a fit says of itself, as far as its method has it."""
    names = ("n_iter_", "converged_", "lam", "excess_score_", "backend_")
    return {name.rstrip("_"): getattr(fit, name) for name in names if getattr(fit, name, None) is not None}
