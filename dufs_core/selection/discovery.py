"""A fit in which shuffled copies of the columns compete: which columns matter, at a false discovery rate.

A start from structure, gates on the few columns that it names (decoys among them, all others closed), the score of
every column on the graph of the open ones, and the competition.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from dufs_core.backend import Array, Backend, random
from dufs_core.data.matrix import dense_block
from dufs_core.selection.search import Outcome, ProgressSaver, Search
from dufs_core.significance.decoys import q_values
from dufs_core.significance.structure import (
    BLOCK,
    MOST_PARTNERS,
    ROWS,
    Pool,
    build_pool,
    evidence_of,
    find_structure,
    n_calibration,
    n_decoys,
    scores,
    standardised,
)
from dufs_core.training.progress import progress_bar

_PRICE = 0.99  # share of the calibration columns that the price of an open gate keeps shut
_LOWEST_PRICE = 1e-3


class Discovery(NamedTuple):
    """Of all columns; those that were not judged (constant, or as good as) have score 0 and q-value 1."""

    outcome: Outcome  # of the gates that are columns
    scores: Array  # (d,) gated Laplacian score
    evidence: Array  # (d,)
    decoy_evidence: Array  # (M, d), NaN for columns that were not judged
    q_values: Array  # (d,)
    smallest_rate: float  # at which something is found
    lam: float | None  # the price of an open gate
    n_gates: int  # of columns and decoys


def discover(
    bk: Backend,
    X: Any,
    columns: Array,
    seed: int,
    search: Search,
    saver: ProgressSaver | None,
    threads: int,
    all_rows: bool,
) -> Discovery:
    """Start, gates, scores and competition.

    Parameters
    ----------
    X : (n, d)
        Scaled data, where the backend computes, or a `dufs_core.data.matrix.ScaledMatrix`. At most 512 rows are read,
        but
        for the
        columns that have gates where all rows are trained on.
    columns : (d',) int, NumPy
        Those that are not constant.
    search : Search
        With lam=None the price of an open gate is the 0.99 quantile of the calibration columns' scores.
    all_rows : bool
        Whether gates are trained on all rows, in batches, or on those that the structure was found on.
    """
    d = X.shape[1]
    with progress_bar(search.verbose, 0, "", "decoys", bar_format="{desc} {elapsed}") as bar:
        pool = build_pool(bk, X, columns, seed)
        judged = len(pool.columns)
        if judged < 2 or pool.X.shape[1] < 3:
            nothing, _ = search.run(bk, X, columns[:0], seed, saver)
            decoys = np.full((pool.n_decoys, d), np.nan)
            return Discovery(nothing, np.zeros(d), np.zeros(d), decoys, np.ones(d), 1.0, search.objective.lam, 0)
        objective = replace(search.objective, n_neighbors=min(search.objective.n_neighbors, pool.X.shape[1] - 1))
        bar.set_description_str("dependence of pairs")
        structure = find_structure(bk, pool, threads, objective)
        members = structure.members
        at_start = scores(bk, pool, members, pool.scales(members) ** 2, objective, threads)
        if objective.lam is None:
            price = float(np.quantile(at_start[pool.competing :], _PRICE))
            objective = replace(objective, lam=max(price, _LOWEST_PRICE))
    if all_rows:
        data = _on_all_rows(bk, X, pool, members)
    else:
        data = (pool.X[bk.xp.asarray(members)] * bk.xp.asarray(pool.scales(members).astype(X.dtype))[:, None]).T
    own = members < judged
    positions = np.where(own, pool.columns[members % judged], d + members)  # decoys: beyond the data
    gates, _ = replace(search, objective=objective, max_runs=1, tested=False).run(bk, data, positions, seed, saver)
    mu = bk.to_host(gates.run.mu)
    is_open = mu > 0
    weights = (np.clip(mu, 0, 1) * pool.scales(members)) ** 2
    if is_open.sum() < 2:  # a graph of one column shows only itself
        is_open, weights = np.ones(len(members), dtype=bool), pool.scales(members) ** 2
    score = scores(bk, pool, members[is_open], weights[is_open], objective, threads)
    evidence = evidence_of(pool, score, evidence_of(pool, at_start, structure.dependence))
    evidence = evidence[: pool.competing].reshape(-1, judged)
    q = q_values(evidence, np.exp(-evidence.max(axis=0)))

    outcome = gates._replace(
        run=gates.run._replace(mu=bk.xp.asarray(mu[own])), columns=pool.columns[members[own]], passed=True
    )
    decoys = np.full((pool.n_decoys, d), np.nan)
    decoys[:, pool.columns] = evidence[1:]
    lowest = float(evidence[0].min()) - 1.0
    return Discovery(
        outcome, _spread(d, pool, score[:judged], 0.0), _spread(d, pool, evidence[0], lowest), decoys,
        _spread(d, pool, q, 1.0), float(q.min()), objective.lam, len(members),
    )  # fmt: skip


def discovery_bytes(n: int, d: int, itemsize: int, threads: int) -> int:
    """Bytes that the decoys of d columns, their pairs and their scores take."""
    rows, copies = min(n, ROWS), n_decoys(d) + -(-n_calibration(d) // max(d, 1))
    D = d * (1 + n_decoys(d)) + n_calibration(d)
    pool = D * rows * itemsize
    drawn = d * rows * (-(-copies // 2) * 56 + copies * 8)  # the words of `random.orders`, and the orders
    pairs = threads * min(D * D, BLOCK) * 16 + D * MOST_PARTNERS * 24
    return max(drawn + 2 * pool, 3 * pool + pairs)


def _spread(d: int, pool: Pool, values: Array, others: float) -> Array:
    """The values of the judged columns among those of all."""
    out = np.full(d, others)
    out[pool.columns] = values
    return out


def _on_all_rows(bk: Backend, X: Any, pool: Pool, members: Array) -> Array:
    """The members on all rows (n, m), in Fortran order, standardised by the rows of the pool.

    A decoy's rows that are not in the pool are shuffled among themselves.
    """
    xp = bk.xp
    source, copy = members % len(pool.columns), members // len(pool.columns)
    columns = pool.columns[source]
    x = xp.ascontiguousarray(dense_block(bk, X, slice(None), columns).T)
    rows = xp.arange(X.shape[0]) if isinstance(pool.rows, slice) else pool.rows
    x = standardised(bk, x, rows)
    x *= xp.asarray(pool.scale[source].astype(x.dtype))[:, None]
    others = xp.ones(X.shape[0], dtype=bool)
    others[rows] = False
    others = xp.flatnonzero(others)
    order = random.orders(bk, pool.seed, random.Stream.DECOYS, 0, pool.n_decoys, len(rows), xp.asarray(columns))
    for i in np.flatnonzero(copy > 0):
        own = x[i].copy()
        x[i, rows] = own[rows][order[int(copy[i]) - 1, i]]
        drawn = random.words(
            bk, pool.seed, random.Stream.DECOYS, 3, int(copy[i]), xp.arange(len(others)), int(columns[i])
        )
        x[i, others] = own[others][xp.argsort(drawn, kind="stable")]
    return x.T
