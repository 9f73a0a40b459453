"""The baselines beside skfeature-chappers 1.2.1: seconds and rank correlation.

python -m bench.baselines [--quick] [--only METHOD ...] [--data NAME ...] [--limit SECONDS] [--json FILE]

Scores are compared on the same scaled columns, graph and number of classes. `ours_s` is a fit from the raw columns.
`peer_s` is what a user of the package runs from there: StandardScaler, construct_W (5 neighbours, heat kernel;
`peer_graph_s` for both), the method's function (`peer_function_s`; its NDFS starts from its own k-means, since given a
start it fails). Both are medians of five, taken in turns in one process; of fewer where that takes a minute. The
process is ended after --limit seconds (then `peer_s` is null and `peer_s_at_least` the limit). Records of other methods
and data in FILE are kept. --quick: Isolet and pixraw10P, without NDFS.
The package: pip install skfeature-chappers==1.2.1
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from bench.common import Records, available, child, matlab, parser
from dufs_core.baselines import MCFS, NDFS, LaplacianScore, graphs
from dufs_core.data.dense import scale_columns

PEER = "skfeature-chappers"
DATA = ("COIL20", "Isolet", "Prostate-GE", "pixraw10P")
METHODS = ("LaplacianScore", "MCFS", "NDFS")
WANTED = 100


def selector(method: str, n_clusters: int) -> Any:
    """Our selector with the settings of the comparison."""
    if method == "LaplacianScore":
        return LaplacianScore(n_features_to_select=WANTED)
    kind = MCFS if method == "MCFS" else NDFS
    return kind(n_features_to_select=WANTED, n_clusters=n_clusters, random_state=0)


def inputs(name: str) -> tuple[Any, Any, int]:
    """Scaled columns without the constant ones, our graph, number of classes."""
    from scipy.sparse import csr_matrix

    raw, labels = matlab(name)
    data = scale_columns(raw, "columns", np.float64)
    X = np.ascontiguousarray(data.X[:, ~data.constant])
    c = len(np.unique(labels))
    W = csr_matrix(graphs.heat_kernel(graphs.neighbours(X, 5), "median"))
    return X, W, c


def run_peer(method: str, name: str) -> dict[str, Any]:
    """The package's function on one data set: scores (larger is better), and seconds of graph, function and ours."""
    from skfeature.utility.construct_W import construct_W
    from sklearn.preprocessing import StandardScaler

    raw = matlab(name)[0]
    X, W, c = inputs(name)

    def graph() -> None:
        scaled = StandardScaler().fit_transform(raw.astype(np.float64))
        construct_W(scaled, metric="euclidean", weight_mode="heat_kernel", k=5, t=scaled.shape[1] ** 0.5)

    def function() -> Any:
        if method == "LaplacianScore":
            from skfeature.function.similarity_based.lap_score import lap_score

            return lap_score(X, mode="index", W=W)
        if method == "MCFS":
            from skfeature.function.sparse_learning_based.MCFS import mcfs

            return mcfs(X, n_selected_features=WANTED, mode="raw", W=W, n_clusters=c)
        from skfeature.function.sparse_learning_based.NDFS import ndfs

        return np.asarray(ndfs(X, mode="raw", W=W, n_clusters=c, alpha=1.0, beta=1.0, gamma=1e8))

    def ours() -> Any:
        return selector(method, c).fit(raw)

    times, (_, scores, _) = in_turns(graph, function, ours)
    if method == "LaplacianScore":
        order, scores = scores, np.empty((X.shape[1], 1))
        scores[order, 0] = -np.arange(X.shape[1])
    return {"scores": np.asarray(scores).tolist(), "times": times}


def in_turns(*calls: Callable[[], Any]) -> tuple[list[float], list[Any]]:
    """Median seconds of each call over five rounds, or the rounds begun within a minute; what they returned last."""
    rounds: list[list[float]] = []
    while len(rounds) < 5 and np.sum(rounds) < 60:
        times, values = [], []
        for call in calls:
            start = time.perf_counter()
            values.append(call())
            times.append(time.perf_counter() - start)
        rounds.append(times)
    return [float(t) for t in np.median(rounds, axis=0)], values


def compare(method: str, name: str, limit: float) -> dict[str, Any]:
    """One record."""
    X, labels = matlab(name)
    c = len(np.unique(labels))
    (ours_s,), (fitted,) = in_turns(lambda: selector(method, c).fit(X))
    record = {
        "method": method, "data": name, "n": X.shape[0], "d": X.shape[1], "n_clusters": c,
        "ours_s": round(ours_s, 4), "peer": PEER, "peer_s": None, "rank_correlation": None,
    }  # fmt: skip
    if hasattr(fitted, "n_iter_"):
        record |= {"n_iter": fitted.n_iter_, "converged": bool(fitted.converged_)}
    if find_spec("skfeature") is None:
        return record | {"peer_missing": f"{PEER} is not installed"}
    try:
        peer = child("bench.baselines", method, name, timeout=limit)
    except subprocess.TimeoutExpired:
        return record | {"peer_s_at_least": limit, "times_faster_at_least": round(limit / record["ours_s"], 1)}
    except RuntimeError as error:
        return record | {"peer_failed": str(error)[:200]}
    theirs, (graph, function, ours_s) = np.array(peer["scores"]), peer["times"]
    ours = np.delete(fitted.scores_, fitted.constant_features_)
    record |= {
        "ours_s": round(ours_s, 4), "peer_s": round(graph + function, 4),
        "peer_graph_s": round(graph, 4), "peer_function_s": round(function, 4),
        "times_faster": round((graph + function) / ours_s, 1),
    }  # fmt: skip
    theirs = np.abs(theirs).max(axis=1) if method == "MCFS" else theirs
    record["rank_correlation"] = correlation(ours, np.linalg.norm(theirs, axis=1) if method == "NDFS" else theirs)
    return record


def correlation(a: Any, b: Any) -> float:
    return round(float(spearmanr(a, np.ravel(b)).statistic), 10)


def main() -> None:
    p = parser(__doc__)
    p.add_argument("--quick", action="store_true", help="Isolet and pixraw10P, Laplacian score and MCFS")
    p.add_argument("--only", nargs="+", choices=METHODS, default=None)
    p.add_argument("--data", nargs="+", choices=DATA, default=None)
    p.add_argument("--limit", type=float, default=300.0, help="seconds given to the package for one data set")
    a = p.parse_args()
    if a.one:
        print(json.dumps(run_peer(*a.one)))
        return
    here = find_spec("skfeature") is not None
    if not here:
        print(f"{PEER} is not installed: our times only", flush=True)
    peer_version = version(PEER) if here else "not installed"
    records = Records(a.json, lambda r: (r["method"], r["data"]), peer_version=peer_version)
    names, _ = available(a.data or (("Isolet", "pixraw10P") if a.quick else DATA))
    for method in a.only or (METHODS[:2] if a.quick else METHODS):
        for name in names:
            records.add(compare(method, name, a.limit))
            records.save()


if __name__ == "__main__":
    main()
