"""Find the columns that gates start from: a small set with structure, among all columns and decoys.

Nuisance columns hide the structure from gates that start half open. The dependence of a pair of columns does not see
the others, and a graph of the few most dependent columns shows the rest. Columns and decoys are treated alike
(`dufs_core.significance.decoys`); the calibration columns, which are known to be shuffled, give the null distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import log, pi, sqrt
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from scipy.stats import rankdata
from sklearn.utils import gen_batches

from dufs_core.backend import Array, Backend, random
from dufs_core.data.matrix import dense_block
from dufs_core.objective.chain import Objective, open_walk

ROWS = random.MOST_ROWS  # more rows are sampled down to this many
MOST_DECOYS = 5  # of a column: two columns can then be found at a rate of 0.1
_DECOYS = 8000  # of all columns, about
_CALIBRATION = (400, 1000)  # fewest and most calibration columns
_CLIP = 2.0  # standard deviations: a few far rows that two columns share by chance make them dependent
_COMPARED = 4096  # columns that rows are compared in
_FEWEST_ROWS = 3  # that differ from a column's median: a rarer column cannot be told from its decoys
_FUNCTIONS = 6  # most functions of a column that are correlated with those of another
_LEAST_LEFT = 1e-3  # of the mean square of a function, once it is orthogonal to those before
_PRODUCTS = 3e10  # multiply-adds that the pairs may take before fewer functions are used
_TAIL = 0.1  # share of the calibration columns that the tail of the null is read from
_LIKELY = 0.7  # a dependence counts that fewer than D^-0.7 of all shuffled pairs reach
MOST_PARTNERS = 64  # strongest dependences of a column that count
_ROUNDS = 3  # in which columns pass on what their partners have
MOST_GATES = 100  # columns of a set
_SHARES = (0.2, 0.1, 0.02)  # of a set may be chance, in the first rounds and at the end
_SETTLED = 0.05  # of a set may still change from one round to the next at the end
_MOST_ROUNDS = 12
BLOCK = 1 << 21  # entries of a block of pairs


class Pool(NamedTuple):
    """Columns, decoys and calibration columns on at most 512 rows, clipped at 2 standard deviations, variance 1.

    Row p of X is column p for p < d, decoy number p // d of column p % d for p < (1 + M) d, else calibration.
    """

    X: Array  # (D, n)
    columns: Array  # (d,) positions in the data, NumPy
    scale: Array  # (d,) standard deviation of each in the scaled data, its median taken as 1; NumPy
    n_decoys: int  # M
    rows: Array | slice  # of the data
    tiebreak: Array  # (D,) NumPy, random order of equal values: position must not favour columns over decoys
    seed: int

    @property
    def competing(self) -> int:
        """(1 + M) d, the columns that are not for calibration."""
        return len(self.columns) * (1 + self.n_decoys)

    def best(self, values: Array, count: int | None = None) -> Array:
        """The positions of the largest values."""
        return np.lexsort((self.tiebreak[: len(values)], -values))[:count]

    def scales(self, members: Array) -> Array:
        """`scale` of some of the columns and decoys."""
        return self.scale[members % len(self.columns)]


class Structure(NamedTuple):
    """The set of columns found, and the evidence of every column's strongest dependence on another one."""

    members: Array  # (m,) positions in the pool, increasing
    dependence: Array  # (D,) that evidence
    above_chance: float  # sum of the members' evidence above chance


def n_decoys(d: int) -> int:
    """M, the decoys of each of d columns: 5 of few, 1 of very many."""
    return int(np.clip(round(_DECOYS / max(d, 1)), 1, MOST_DECOYS))


def n_calibration(d: int) -> int:
    """The number of calibration columns beside d columns."""
    return int(np.clip(d, *_CALIBRATION))


def build_pool(bk: Backend, X: Any, columns: Array, seed: int) -> Pool:
    """The pool of some columns (positions, NumPy) of scaled X (n, d); those that vary in too few rows are left out."""
    xp = bk.xp
    rows = random.sample(bk, seed, random.Stream.DECOYS, 1, X.shape[0], ROWS)
    x = xp.ascontiguousarray(dense_block(bk, X, rows, columns).T)  # (d, n)
    differs = (x != xp.median(x, axis=1)[:, None].astype(x.dtype)).sum(axis=1)
    varies = bk.to_host(differs >= _FEWEST_ROWS)
    columns, x = columns[varies], x[xp.asarray(varies)]
    deviation = bk.to_host(x.std(axis=1))
    x = standardised(bk, x)
    d, n = x.shape
    M, C = n_decoys(d), n_calibration(d)
    copies = [x]
    if d:
        order = random.orders(bk, seed, random.Stream.DECOYS, 0, M + -(-C // d), n, xp.asarray(columns))
        copies += [xp.take_along_axis(x, order[m], axis=1) for m in range(M)]
        number = np.arange(C)  # calibration columns: of evenly spread columns, or of every column several times
        at, source = (M + number // d, number % d) if d <= C else (np.full(C, M), number * d // C)
        at, source = xp.asarray(at), xp.asarray(source)
        copies.append(xp.take_along_axis(x[source], order[at, source], axis=1))
    middle = float(np.median(deviation)) if d else 1.0
    tiebreak = random.permutation(bk, seed, random.Stream.DECOYS, 2, d * (1 + M) + C)
    return Pool(xp.concatenate(copies), columns, deviation / middle, M, rows, bk.to_host(tiebreak), seed)


def repeated_rows(bk: Backend, pool: Pool) -> float:
    """The share of rows that repeat an earlier one in up to 4,096 columns, less that share among their first decoys.

    Rows that are copies make columns depend on one another, and shuffling ends that: such columns are no nuisance for
    the competition. Few columns of few values repeat by chance, in decoys as well.
    """
    d = len(pool.columns)
    some = np.linspace(0, d - 1, min(d, _COMPARED)).astype(int)
    both = [bk.to_host(pool.X[bk.xp.asarray(which)]).T for which in (some, d + some)]
    distinct, in_decoys = (len({row.tobytes() for row in rows}) for rows in both)
    return (in_decoys - distinct) / len(both[0])


def standardised(bk: Backend, x: Array, rows: slice = slice(None)) -> Array:
    """x (d, n) by rows: mean 0, variance 1, clipped at 2, and mean 0, variance 1 again; statistics of `rows` alone."""
    xp = bk.xp
    for clip in (_CLIP, None):
        x = x - x[:, rows].mean(axis=1, keepdims=True)
        deviation = x[:, rows].std(axis=1, keepdims=True)
        x /= xp.where(deviation > 0, deviation, 1)
        x = x if clip is None else xp.clip(x, -clip, clip)
    return x


def find_structure(bk: Backend, pool: Pool, threads: int, objective: Objective) -> Structure:
    """The set of columns with the most evidence, from two starts: many dependent columns, or the most dependent pair.

    The evidence E_k of a column, given a set S, is that of its score on the graph of S (`scores`) or of its strongest
    dependence, whichever is larger. The next S holds the best columns and decoys, as many as keep the expected share of
    chance among them below a limit, and so on until S stays the same (large sets nearly). Of the two ends the one with
    the larger sum over S of (E_k - log D)+ is taken.
    """
    strongest, graph = _pair_dependence(bk, pool, threads)
    evidence = chance(strongest[pool.competing :])(strongest)
    v = np.asarray(graph.sum(axis=1)).ravel()
    for _ in range(_ROUNDS):
        v = graph @ v
        v = v / max(float(v.max(initial=0.0)), float(np.finfo(v.dtype).tiny))
    pair, v = pool.best(evidence[: pool.competing], 2), v[: pool.competing]
    several = pool.best(v, min(MOST_GATES, max(2, int((v > 0).sum()))))
    starts = (several, _SHARES), (pair, _SHARES[-1:])
    ends = [_settled(bk, pool, S, evidence, shares, objective, threads) for S, shares in starts]
    members, excess = max(ends, key=lambda end: end[1])
    return Structure(np.sort(members), evidence, excess)


def evidence_of(pool: Pool, score: Array, dependence: Array) -> Array:
    """Evidence E (D,) that each column is more than chance: of its score, or the other evidence if that is larger."""
    return np.maximum(chance(score[pool.competing :])(score), dependence)


def chance(null: Array) -> Callable[[Array], Array]:
    """-log P(a shuffled column has more than s), as a function of s, from the values of shuffled columns.

    Beyond their 0.9 quantile the tail is exponential, with their mean excess.
    """
    null = np.sort(null.astype(np.float64))
    count = len(null)
    start = float(null[int((1 - _TAIL) * (count - 1))])
    mean_excess = float((null[null > start] - start).mean()) if (null > start).any() else 0.0
    mean_excess = max(mean_excess, 1e-9 * max(1.0, abs(start)))
    below = null[null <= start]
    level = -np.log1p(-(np.arange(len(below)) + 0.5) / count)

    def evidence(s: Array) -> Array:
        inside = np.interp(s, below, level) - np.maximum(below[0] - s, 0)
        return np.where(s > start, level[-1] + (s - start) / mean_excess, inside)

    return evidence


def scores(bk: Backend, pool: Pool, members: Array, weights: Array, objective: Objective, threads: int = 1) -> Array:
    """The gated Laplacian score of every column of the pool, on the graph of the members without the column itself.

    s_k = x_k' P^t x_k / n, at most about 1. P is the random walk on the members times sqrt(weights), by the objective's
    rules; for a member k on the other members, so that scores compare, whether a column is in the graph or not.
    Returns (D,) float64, NumPy.
    """
    xp = bk.xp
    n = pool.X.shape[1]
    objective = replace(objective, n_neighbors=min(objective.n_neighbors, n - 1))
    w = xp.asarray(weights.astype(pool.X.dtype))[:, None]
    x = pool.X[xp.asarray(members)]
    G = (x * w).T @ x
    out = np.empty(len(pool.X))
    P = open_walk(bk, objective, G).T
    for block in gen_batches(len(pool.X), max(1, BLOCK // n)):
        y = part = pool.X[block]
        for _ in range(objective.power):
            y = y @ P
        out[block] = bk.to_host((y * part).sum(axis=1, dtype=np.float64)) / n
    if len(members) < 2:
        out[members] = 0.0
        return out

    def without(i: int) -> float:
        y, P = x[i], open_walk(bk, objective, G - w[i] * xp.outer(x[i], x[i]))
        for _ in range(objective.power):
            y = P @ y
        score: float = float((y * x[i]).sum(dtype=np.float64)) / n
        return score

    out[members] = list(_mapped(without, range(len(members)), threads if bk.name == "numpy" else 1))
    return out


def _settled(
    bk: Backend, pool: Pool, members: Array, pairs: Array, shares: tuple[float, ...], objective: Objective, threads: int
) -> tuple[Array, float]:
    """The set that `members` lead to, and its evidence above chance; pairs (D,): evidence of dependence."""
    objective = replace(objective, power=1)
    for turn in range(_MOST_ROUNDS):
        share = shares[min(turn, len(shares) - 1)]
        score = scores(bk, pool, members, pool.scales(members) ** 2, objective, threads)
        evidence = evidence_of(pool, score, pairs)
        order = pool.best(evidence[: pool.competing], MOST_GATES)
        by_chance = pool.competing * np.exp(-evidence[order]) / np.arange(1, len(order) + 1)
        enough = np.flatnonzero(by_chance <= share)
        before, members = members, order[: max(2, int(enough[-1]) + 1 if len(enough) else 2)]
        changed = max(len(before), len(members)) - len(np.intersect1d(before, members))
        if turn >= len(shares) and changed <= _SETTLED * len(members):
            break
    return members, float(np.maximum(evidence[members] - log(pool.competing), 0).sum())


def _pair_dependence(bk: Backend, pool: Pool, threads: int) -> tuple[Array, Any]:
    """The strongest dependence of every column, (D,), and the likely ones as a sparse matrix (D, D).

    The dependence of two columns is sum_ab w_a w_b (n r_ab^2 - 1), r_ab the correlation of function a of one with
    function b of the other, w_a = a^(-1/2) (`_functions`). As many functions as their products allow, 6 for small data:
    a ring or two moons need them, monotone dependence does not.
    """
    xp = bk.xp
    D, n = pool.X.shape
    count = int(np.clip(sqrt(_PRODUCTS / (n * D * D)), 1, _FUNCTIONS))
    functions, exist = _functions(bk, pool, count)
    weight = np.arange(1, count + 1) ** -0.5

    def dependence(block: slice) -> Array:
        Q = xp.zeros((block.stop - block.start, D), dtype=pool.X.dtype)
        for a in range(count):
            for b in range(count):
                r = functions[a][block] @ functions[b].T
                r *= r
                r -= exist[a][block, None] * exist[b]
                r *= pool.X.dtype.type(weight[a] * weight[b])
                Q += r
        Q[xp.arange(len(Q)), xp.arange(block.start, block.stop)] = -xp.inf
        return Q

    blocks = list(gen_batches(D, max(1, BLOCK // max(D, 1))))
    sample = dependence(slice(pool.competing, min(D, pool.competing + blocks[0].stop)))
    tail = D**-_LIKELY / sqrt(pi * max(_LIKELY * log(D), 1.0))
    likely = float(xp.quantile(sample[:, : pool.competing].ravel().astype(np.float32), 1 - tail))

    def strongest_and_likely(block: slice) -> tuple[Array, Array, Array, Array]:
        Q = dependence(block)
        strongest = bk.to_host(Q.max(axis=1))
        crowded = xp.flatnonzero((likely < Q).sum(axis=1) > MOST_PARTNERS)
        if len(crowded):  # column by column: its decoys may be in another block
            among = Q[crowded]
            least = xp.partition(among, D - MOST_PARTNERS, axis=1)[:, D - MOST_PARTNERS]
            Q[crowded] = xp.where(least[:, None] <= among, among, -xp.inf)
        row, column = xp.nonzero(likely < Q)
        return strongest, bk.to_host(row) + block.start, bk.to_host(column), bk.to_host(Q[row, column])

    parts = list(_mapped(strongest_and_likely, blocks, threads if bk.name == "numpy" else 1))
    strongest, row, column, value = (np.concatenate(part) for part in zip(*parts, strict=True))
    return strongest, sparse.csr_array((np.sqrt(value - likely), (row, column)), shape=(D, D))


def _functions(bk: Backend, pool: Pool, count: int) -> tuple[list[Array], list[Array]]:
    """Functions 1..count of every column, each (D, n), mean 0 and sum of squares sqrt(n); which of them exist, (D,).

    Function 1 is the column itself, function a > 1 cos(pi a u), u the rank / n, made orthogonal to those before it, and
    0 where little is left of it: a column of two values has one function.
    """
    n = pool.X.shape[1]
    size: float = n**-0.25  # a product of two is then sqrt(n) times their correlation
    functions, exist = [pool.X * pool.X.dtype.type(size)], [bk.xp.ones(len(pool.X), dtype=pool.X.dtype)]
    if count == 1:
        return functions, exist
    u = (rankdata(bk.to_host(pool.X), axis=1) - 0.5) / n
    basis = [bk.to_host(pool.X).astype(np.float64) / sqrt(n)]
    for a in range(2, count + 1):
        f = np.cos(pi * a * u)
        f -= f.mean(axis=1, keepdims=True)
        for before in basis + basis:  # once more, for what rounding leaves
            f -= (f * before).sum(axis=1, keepdims=True) * before
        square = (f * f).sum(axis=1, keepdims=True)
        f *= np.where(square > _LEAST_LEFT * n, 1 / np.sqrt(np.maximum(square, _LEAST_LEFT * n)), 0)
        basis.append(f)
        functions.append(bk.xp.asarray((f / size).astype(pool.X.dtype)))
        exist.append(bk.xp.asarray((square[:, 0] > _LEAST_LEFT * n).astype(pool.X.dtype)))
    return functions, exist


def _mapped(function: Callable[[Any], Any], blocks: Iterable[Any], threads: int) -> Iterable[Any]:
    """function(block) for every block, in order; the bits do not depend on the number of threads."""
    if threads == 1:
        return [function(block) for block in blocks]
    with ThreadPoolExecutor(threads) as executor:
        return list(executor.map(function, blocks))
