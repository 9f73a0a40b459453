"""Find the columns whose graph shows the structure: a small set, among all columns and decoys.

Nuisance columns hide the structure from a graph of all columns, and from gates that start half open. The dependence of
a pair of columns, or of a column on a product of few, does not see the others, and a graph of the few most dependent
columns shows the rest: their gates are open, all others closed. Columns and decoys are treated alike
(`dufs_core.significance.decoys`); the calibration columns, which are known to be shuffled, give the null distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from math import log
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils import gen_batches

from dufs_core.backend import Array, Backend, random
from dufs_core.backend.threads import mapped
from dufs_core.objective.chain import Objective, OpenGraph, open_graph
from dufs_core.objective.ops import bandwidth, distances, gaussian
from dufs_core.significance.blocks import BlockPools
from dufs_core.significance.correlations import Correlations
from dufs_core.significance.exchange import Exchange
from dufs_core.significance.pairs import n_functions, pair_dependence, rows_of_functions
from dufs_core.significance.pool import Pool, empty_pool, with_copies
from dufs_core.significance.products import product_dependence, rows_of_products

ROWS = random.MOST_ROWS  # more rows are sampled down to this many
_TAIL = 0.1  # share of the calibration columns that the tail of the null is read from
_ROUNDS = 3  # in which columns pass on what their partners have
MOST_GATES = 100  # columns of a set
_LESS_LIKELY = 10  # times, that a product says something than that a pair does
SHARES = (0.2, 0.1, 0.02)  # of a set may be chance, in the first rounds and at the end
_SETTLED = 0.05  # of a set may still change from one round to the next at the end
MOST_ROUNDS = 12
BLOCK = 1024  # columns that are scored at a time
_TOGETHER = 1 << 17  # entries of matrices that are handled together: of few rows the calls take longer than the work


class Structure(NamedTuple):
    """The set of columns found, and what its graph and their dependence say of every column."""

    members: Array  # (m,) positions in the pool, increasing
    score: Array  # (D,) of every column on the graph of the members
    evidence: Array  # (D,) of that score or of the strongest dependence on others, whichever says more
    above_chance: float  # sum of the members' evidence above chance
    graph: OpenGraph | None  # of the members, on a block of the rows; None: there are none


def build_pools(bk: Backend, X: Any, columns: Array, exchange: Exchange, one_scale: bool = False) -> list[Pool]:
    """The pool of some columns (positions, NumPy) of scaled X (n, d); those that cannot be judged are left out.

    They vary too little, or, of series, remember more than could be taken out. One for each view of the exchange, with
    the same columns and the same orders of their values. one_scale: whether columns weigh the same, whatever their
    deviation.
    """
    xp = bk.xp
    values, deviation, varies, remembers = exchange.prepared(exchange.read(X, columns), columns)

    # beside columns 1e20 times as large the squares of others vanish
    kept = varies & ~remembers & (deviation.astype(X.dtype) ** 2 > 0)
    columns, deviation, values = columns[kept], deviation[kept], values[xp.asarray(kept)]
    middle = float(np.median(deviation)) if len(columns) else 1.0
    pool = empty_pool(bk, columns, exchange.seed)._replace(exchange=exchange)
    pool = pool if one_scale else pool._replace(scale=deviation / middle)
    finishes = [partial(exchange.finished, view=view) for view in range(exchange.n_views)]
    return [pool._replace(X=X) for X in with_copies(bk, exchange, values, pool, *finishes)]


def find_structure(bk: Backend, sources: Sources, threads: int, objective: Objective) -> Structure:
    """The set of columns with the most evidence, from several starts: many dependent columns, or the most dependent.

    The evidence E_k of a column, given a set S, is the largest of that of its score on the graph of S (`scores`), of
    its correlations with S, where there are blocks (`Correlations.with_members`), and of its strongest dependence on
    another column or on a product of others (`dependence`). The next S holds the best columns and decoys, as many as
    keep the expected share of chance among them below a limit, and so on until S stays the same (large sets nearly). Of
    all ends the one with the largest sum over S of (E_k - log D)+ is taken.
    """
    pool = sources.pool
    pair = pool.best(sources.evidence[: pool.competing], 2)
    starts = [(_most_dependent(pool, graph), SHARES) for graph in sources.graphs] + [(pair, SHARES[-1:])]
    ends = [_settled(bk, sources, S, shares, objective, threads) for S, shares in starts]
    members, excess = max(ends, key=lambda end: end[1])
    members = np.sort(members)
    score = scores(bk, sources.scored(), members, pool.scales(members) ** 2, objective, threads)
    graph = graph_of(bk, sources.first, members, objective)
    return Structure(members, score, sources.evidence_of(score, members), excess, graph)


def _most_dependent(pool: Pool, graph: Any) -> Array:
    """Columns that many others depend on, which many depend on, and so on; graph (D, D): likely pairs."""
    v = np.asarray(graph.sum(axis=1)).ravel()
    for _ in range(_ROUNDS):
        v = graph @ v
        v = v / max(float(v.max(initial=0.0)), float(np.finfo(v.dtype).tiny))
    v = v[: pool.competing]
    return pool.best(v, min(MOST_GATES, max(2, int((v > 0).sum()))))


class Sources(NamedTuple):
    """What a set is looked for and judged by."""

    pool: Pool  # of the columns; X has values only where all rows are one table
    evidence: Array  # (D,) of every column's strongest dependence on others
    graphs: Sequence[Any]  # (D, D) sparse: the likely pairs, by each kind of dependence
    first: Pool  # on whose graph a set is looked for
    scored: Callable[[], Iterable[Sequence[Pool]]]  # on whose graphs it is judged
    correlations: Correlations | None  # on all rows, where there are blocks of them

    @classmethod
    def of_table(cls, bk: Backend, pool: Pool, threads: int) -> Sources:
        """Of at most 512 rows."""
        count = n_functions(*pool.X.shape)
        evidence, graph = dependence(bk, pool, pool.X, threads, count)
        return cls(pool, evidence, [graph], pool, lambda: [[pool]], None)

    @classmethod
    def of_blocks(cls, bk: Backend, pools: BlockPools, threads: int, poll: Callable[[int], None]) -> Sources:
        """Of more rows: linear dependence on all, the other functions and products on as many as their time allows.

        The evidence of either is less by log 2, as that of the larger of two is. Of very many columns there is time for
        the linear one alone.
        """
        pool = pools.pool
        n = pools.blocks.n
        correlations = pools.correlate(threads, poll)
        strongest, linear = correlations.partners(pool.competing)
        evidence = chance(strongest[pool.competing :])(strongest)
        graphs = [linear]
        count, rows = rows_of_functions(pool.size, n)
        if count > 1:
            more, other = dependence(bk, pool, pools.some(rows), threads, count)
            evidence = np.maximum(evidence, more) - log(2)
            graphs.append(other)
        return cls(pool, evidence, graphs, pools.first(), pools.scored, correlations)

    def evidence_of(self, score: Array, members: Array) -> Array:
        """Evidence E (D,) that each column is more than chance, from its score on the graph of the members."""
        start = self.pool.competing
        evidence = np.maximum(chance(score[start:])(score), self.evidence)
        if self.correlations is None:
            return evidence
        linear = self.correlations.with_members(members)
        return np.maximum(evidence, chance(linear[start:])(linear))


def dependence(bk: Backend, pool: Pool, X: Array, threads: int, count: int) -> tuple[Array, Any]:
    """The evidence of every column's strongest dependence on others, (D,), and the likely pairs as a graph (D, D).

    Products of two and three columns are asked where there are few enough. They have a null distribution of their own,
    and their evidence is less by log 10: the largest of all then exceeds a value by chance at most 1.2 times as often
    as pairs do. What products show is far above chance; what pairs show should not be lost among them.

    X (D, n): values of the pool; count: functions of a column that pairs are compared by.
    """
    strongest, graph = pair_dependence(bk, X, pool.competing, threads, count)
    evidence = chance(strongest[pool.competing :])(strongest)
    for size, rows in rows_of_products(pool.competing, X.shape[1]).items():
        of_products = product_dependence(bk, X, pool.competing, size, rows, threads)
        scored = len(of_products)
        more = chance(of_products[pool.competing :])(of_products)
        evidence[:scored] = np.maximum(evidence[:scored], more - log(_LESS_LIKELY))
    return evidence, graph


def chance(null: Array) -> Callable[[Array], Array]:
    """-log P(a shuffled column has more than s), as a function of s, from the values of shuffled columns.

    Beyond their 0.9 quantile the tail is exponential, with their mean excess.
    """
    null = np.sort(null.astype(np.float64))
    count = len(null)
    start = float(null[int((1 - _TAIL) * (count - 1))])
    rounding = 1e-9 * max(1.0, abs(start))  # of few rows many values are equal, but for the order of sums
    beyond = null > start + rounding
    mean_excess = max(float((null[beyond] - start).mean()) if beyond.any() else 0.0, rounding)
    below = null[~beyond]
    level = -np.log1p(-(np.arange(len(below)) + 0.5) / count)

    def evidence(s: Array) -> Array:
        inside = np.interp(s, below, level) - np.maximum(below[0] - s, 0)
        return np.where(s > start, level[-1] + (s - start) / mean_excess, inside)

    return evidence


def scores(
    bk: Backend,
    blocks: Iterable[Sequence[Pool]],
    members: Array,
    weights: Array,
    objective: Objective,
    threads: int = 1,
) -> Array:
    """The gated Laplacian score of every column, on the graph of the members without the column itself.

    s_k = x_k' P^t x_k / n, at most about 1. P is the random walk on the members times sqrt(weights), by the objective's
    rules; for a member k on the other members, so that scores compare, whether a column is in the graph or not. Of
    several blocks each has a graph of its own, and their x_k' P^t x_k are added up; of those that are given together
    several are computed at once.
    Returns (D,) float64, NumPy.
    """
    total: Any = 0.0
    n = 0
    for together in blocks:
        each = threads if len(together) == 1 else 1

        def of(pool: Pool, each: int = each) -> Array:
            return _scores_of_block(bk, pool, members, weights, objective, each)

        total = sum(mapped(bk, of, together, threads), total)
        n += sum(pool.X.shape[1] for pool in together)
    return np.asarray(total / n)


def _scores_of_block(
    bk: Backend, pool: Pool, members: Array, weights: Array, objective: Objective, threads: int
) -> Array:
    """x_k' P^t x_k of every column on the rows of a pool, (D,) float64, NumPy."""
    xp = bk.xp
    n = pool.X.shape[1]
    objective = replace(objective, n_neighbors=min(objective.n_neighbors, n - 1))
    w = xp.asarray(weights.astype(pool.X.dtype))[:, None]
    x = pool.X[xp.asarray(members)]
    G = (x * w).T @ x
    P = open_graph(bk, objective, G).P.T

    # with subnormal numbers products take thirty times as long
    smallest = float(np.finfo(P.dtype).tiny)
    P = xp.where(smallest <= P, P, xp.zeros_like(P))

    def of(block: slice) -> Array:
        y = part = pool.X[block]
        for _ in range(objective.power):
            y = y @ P
        return bk.to_host((y * part).sum(axis=1, dtype=np.float64))

    out: Array = np.concatenate(mapped(bk, of, gen_batches(len(pool.X), BLOCK), threads))
    if len(members) < 2:
        out[members] = 0.0
        return out
    D, _ = distances.forward(bk, G)
    zero = xp.zeros(n, dtype=x.dtype)  # a row: `maximum` with a number is several times slower

    def without_itself(some: slice) -> Array:
        own = x[some, :, None] - x[some, None, :]
        own *= own
        own *= w[some, :, None]
        K, degree = _affinity(bk, objective, xp.maximum(D - own, zero))
        y = x[some]
        for _ in range(objective.power):
            y = (K @ y[..., None])[..., 0] / degree
        return bk.to_host((y * x[some]).sum(axis=1, dtype=np.float64))

    together = max(1, _TOGETHER // (n * n))
    out[members] = np.concatenate(mapped(bk, without_itself, gen_batches(len(members), together), threads))
    return out


def graph_of(bk: Backend, pool: Pool, members: Array, objective: Objective) -> OpenGraph:
    """The graph of the members alone, with the weights that they have."""
    n = pool.X.shape[1]
    objective = replace(objective, n_neighbors=min(objective.n_neighbors, n - 1))
    x = pool.X[bk.xp.asarray(members)]
    w = bk.xp.asarray((pool.scales(members) ** 2).astype(x.dtype))[:, None]
    return open_graph(bk, objective, (x * w).T @ x)


def _affinity(bk: Backend, objective: Objective, D: Array) -> tuple[Array, Array]:
    """K (..., n, n) from squared distances D by the objective's rules, and its degrees (..., n)."""
    factor = objective.bandwidth_factor if isinstance(objective.bandwidth, str) else 1.0
    b, _, _ = bandwidth.forward(bk, D, objective.bandwidth, objective.n_neighbors, factor, objective.degenerate_rule)
    K, _ = gaussian.forward(bk, D, b, objective.self_weight)
    return K, K.sum(axis=-1, dtype=bk.xp.float64).astype(K.dtype)


def _settled(
    bk: Backend, sources: Sources, members: Array, shares: tuple[float, ...], objective: Objective, threads: int
) -> tuple[Array, float]:
    """The set that `members` lead to, and its evidence above chance."""
    pool = sources.pool
    objective = replace(objective, power=1)
    for turn in range(MOST_ROUNDS):
        share = shares[min(turn, len(shares) - 1)]
        score = scores(bk, [[sources.first]], members, pool.scales(members) ** 2, objective, threads)
        evidence = sources.evidence_of(score, members)
        order = pool.best(evidence[: pool.competing], MOST_GATES)
        by_chance = pool.competing * np.exp(-evidence[order]) / np.arange(1, len(order) + 1)
        enough = np.flatnonzero(by_chance <= share)
        before, members = members, order[: max(2, int(enough[-1]) + 1 if len(enough) else 2)]
        changed = max(len(before), len(members)) - len(np.intersect1d(before, members))
        if turn >= len(shares) and changed <= _SETTLED * len(members):
            break
    return members, float(np.maximum(evidence[members] - log(pool.competing), 0).sum())
