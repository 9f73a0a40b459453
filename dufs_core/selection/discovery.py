"""A fit in which shuffled copies of the columns (decoys) compete: which columns matter, at a false discovery rate.

A set of columns with structure is found first; it may hold decoys. Gates are trained on this set, all others are
closed. Every column is scored on the graph of the open columns, and competes with its decoys.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from dufs_core.backend import Array, Backend, random
from dufs_core.data.matrix import dense_block
from dufs_core.selection.search import Outcome, ProgressSaver, Search
from dufs_core.significance import structure
from dufs_core.significance.decoys import q_values
from dufs_core.significance.pairs import pair_dependence_bytes
from dufs_core.training.progress import stage

_QUANTILE, _SMALLEST_LAM = 0.99, 1e-3  # lambda closes this share of the calibration columns


class Discovery(NamedTuple):
    """The result for all columns; those that could not compete (near constant) have score 0 and q-value 1.

    All but the outcome become attributes of the selector.
    """

    outcome: Outcome  # of the gates that are columns
    scores: Array  # (d,) gated Laplacian score
    evidence: Array  # (d,)
    decoy_evidence: Array  # (M, d), NaN for columns that did not compete
    q_values: Array  # (d,)
    smallest_fdr: float  # at which something is found
    lam: float | None
    n_gates: int  # of columns and decoys
    repeated_rows: float  # share of rows that are copies


def discover(
    bk: Backend, X: Any, columns: Array, seed: int, search: Search, saver: ProgressSaver | None, threads: int
) -> Discovery:
    """Find a set of columns with structure, train their gates, score all columns and let them compete.

    Parameters
    ----------
    X : (n, d)
        Scaled data, where the backend computes, or a `dufs_core.data.matrix.ScaledMatrix`. At most 512 rows are read;
        with a batch size also the others, for the columns that have gates.
    columns : (d',) int, NumPy
        Those that are not constant.
    search : Search
        With lam=None lambda is the 0.99 quantile of the calibration columns' scores. With a batch size gates are
        trained on all rows, else on those that the structure was found on.
    """
    d = X.shape[1]
    with stage(search.verbose, "decoys") as bar:
        pool = structure.build_pool(bk, X, columns, seed, threads)
        n_columns = len(pool.columns)
        evidence_of_all = np.full((1 + pool.n_decoys, d), np.nan)
        if n_columns < 2 or pool.X.shape[1] < 3:
            nothing, _ = search.run(bk, X, columns[:0], seed, saver)
            zero, lam = np.zeros(d), search.objective.lam
            return Discovery(nothing, zero, zero, evidence_of_all[1:], np.ones(d), 1.0, lam, 0, 0.0)
        objective = replace(search.objective, n_neighbors=min(search.objective.n_neighbors, pool.X.shape[1] - 1))
        bar.set_description_str("dependence of pairs")
        found = structure.find_structure(bk, pool, threads, objective)
        members, scales = found.members, pool.scales(found.members)
        at_start = structure.scores(bk, pool, members, scales**2, objective, threads)
        if objective.lam is None:
            lam = float(np.quantile(at_start[pool.competing :], _QUANTILE))
            objective = replace(objective, lam=max(lam, _SMALLEST_LAM))
    if search.schedule.batch_size is not None:
        data = _on_all_rows(bk, X, pool, members)
    else:
        data = (pool.X[bk.xp.asarray(members)] * bk.xp.asarray(scales.astype(X.dtype))[:, None]).T
    own = members < n_columns
    positions = np.where(own, pool.columns[members % n_columns], d + members)  # decoys: beyond the data
    gates, _ = replace(search, objective=objective, max_runs=1, tested=False).run(bk, data, positions, seed, saver)
    mu = bk.to_host(gates.run.mu)
    is_open, weights = mu > 0, (np.clip(mu, 0, 1) * scales) ** 2
    if is_open.sum() < 2:  # a graph of one column shows only itself
        is_open, weights = np.ones(len(members), dtype=bool), scales**2
    with stage(search.verbose, "scores"):
        score = structure.scores(bk, pool, members[is_open], weights[is_open], objective, threads)
    before = structure.evidence_of(pool, at_start, found.dependence)
    evidence = structure.evidence_of(pool, score, before)[: pool.competing].reshape(-1, n_columns)
    q = q_values(evidence, np.exp(-evidence.max(axis=0)))

    def of_all(values: Array, others: float) -> Array:
        out = np.full(d, others)
        out[pool.columns] = values
        return out

    run = gates.run._replace(mu=bk.xp.asarray(mu[own]))
    evidence_of_all[:, pool.columns] = evidence
    return Discovery(
        outcome=gates._replace(run=run, columns=pool.columns[members[own]], passed=True),
        scores=of_all(score[:n_columns], 0.0),
        evidence=of_all(evidence[0], float(evidence[0].min()) - 1.0),
        decoy_evidence=evidence_of_all[1:],
        q_values=of_all(q, 1.0),
        smallest_fdr=float(q.min()),
        lam=objective.lam,
        n_gates=len(members),
        repeated_rows=structure.repeated_rows(bk, pool),
    )


def discovery_bytes(n: int, d: int, itemsize: int, threads: int) -> int:
    """Bytes that the decoys of d columns, their pairs and their scores take."""
    rows, copies = min(n, structure.ROWS), structure.n_decoys(d) + -(-structure.n_calibration(d) // max(d, 1))
    D = d * (1 + structure.n_decoys(d)) + structure.n_calibration(d)
    pool = D * rows * itemsize
    drawn = d * rows * (copies + 1) * 8 + threads * random.WORDS * 80  # the orders, and random words
    return max(drawn + 2 * pool, pool + pair_dependence_bytes(D, rows, itemsize, threads))


def _on_all_rows(bk: Backend, X: Any, pool: structure.Pool, members: Array) -> Array:
    """The members on all rows (n, m), in Fortran order, standardised by the rows of the pool.

    A decoy's rows that are not in the pool are shuffled among themselves.
    """
    xp = bk.xp
    source, copy = members % len(pool.columns), members // len(pool.columns)
    columns = pool.columns[source]
    x = xp.ascontiguousarray(dense_block(bk, X, slice(None), columns).T)
    rows = xp.arange(X.shape[0]) if isinstance(pool.rows, slice) else pool.rows
    x = structure.standardised(bk, x, rows)
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
