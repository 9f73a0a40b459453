"""A fit in which shuffled copies of the columns (decoys) compete: which columns matter, at a false discovery rate.

A set of columns with structure is found; it may hold decoys. Its columns have an open gate, all others a closed one.
Every column is scored on the graph of the open ones, and competes with its decoys. `DecoyCompetition.run` has the
phases of docs/guide.md, by their numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dufs_core.backend import Array, random
from dufs_core.data.scaling import ScaledData
from dufs_core.objective.ops.bandwidth import check_n_neighbors
from dufs_core.selection import diverse_ranking
from dufs_core.selection.decoys.explanation import doubt_of_decoys, doubts_of_graph
from dufs_core.selection.memory import block_bytes, decoy_bytes
from dufs_core.selection.parameters import check_choice, check_rate, check_whole, graph_for
from dufs_core.selection.procedure import FitSize, Found, Training
from dufs_core.selection.trainer import FitContext
from dufs_core.significance import structure
from dufs_core.significance.blocks import BlockPools, Blocks, most_rows
from dufs_core.significance.decoys import q_values
from dufs_core.significance.diagnosis import SELECTED_SHARE
from dufs_core.significance.exchange import Exchange
from dufs_core.significance.pairs import rows_of_functions
from dufs_core.significance.pool import Pool
from dufs_core.significance.rows import Rows, RowsUsed
from dufs_core.training.loop import Run
from dufs_core.training.progress import stage

if TYPE_CHECKING:
    from dufs_core.selection.decoys.dufs import DUFS

RANKINGS = ("diverse", "evidence")
ROWS = ("independent", "series")


class Judgement(NamedTuple):
    """What the competition says of all d columns; attributes of `dufs_core.DUFS`.

    Columns that could not compete (near constant) have q-value 1.
    """

    q_values: Array  # (d,)
    evidence: Array  # (d,)
    decoy_evidence: Array  # (M, d), NaN for columns that did not compete
    in_graph: Array  # (d,) bool: whose gate is open
    fdr: float  # the rate asked for


class LookedAt(NamedTuple):
    """The rows of a fit, as columns compete on them."""

    pool: Pool
    sources: Sequence[Callable[[], structure.Sources]]  # of each view of the rows; empty: too few columns can compete
    rows: RowsUsed
    blocks: BlockPools | None


class DecoyCompetition:
    """The procedure of `dufs_core.DUFS` (`dufs_core.selection.procedure.Procedure`)."""

    training: Training | None = None
    rows_in_hand: int | None = structure.ROWS
    scales_groups = False  # the columns that are read are scaled within groups, together with their decoys

    def __init__(self, settings: DUFS) -> None:
        self._settings = settings

    def check(self, n: int, d: int, is_sparse: bool) -> None:
        settings = self._settings
        check_choice("rows", settings.rows, ROWS)
        check_rate(settings.fdr)
        check_choice("ranking", settings.ranking, RANKINGS)
        check_n_neighbors(graph_for(settings, n).n_neighbors, min(n, structure.ROWS))
        if settings.max_rows is not None:
            check_whole("max_rows", settings.max_rows, least=structure.ROWS)

    def size(self, n: int, d: int, itemsize: int, threads: int) -> FitSize:
        """The rows that are looked at; no gates are trained."""
        rows = self._most_rows(n, d)
        if rows <= structure.ROWS:
            return FitSize(min(n, rows), 0, decoy_bytes(n, d, itemsize, threads))
        return FitSize(rows, 0, block_bytes(n, rows, d, itemsize, threads))

    def run(self, data: ScaledData, rows: Rows, context: FitContext, threads: int, first: Run | None) -> Found:
        """Draw decoys, find a set with structure, score all columns on its graph and let them compete."""
        X = data.X
        columns = np.flatnonzero(~data.constant)

        # 1: rows and decoys
        with stage(context.verbose, "decoys") as bar:
            look_at = self._blocks if self._most_rows(rows.n, X.shape[1]) > structure.ROWS else self._table
            looked_at = look_at(context, X, rows, columns, threads, bar.set_description_str)
            pool = looked_at.pool
            if not looked_at.sources:
                return self._nothing(context, X, rows, looked_at)

            # 2 and 3: dependence between columns, and the set whose graph shows the structure, with all scores on it
            found = []
            for sources in looked_at.sources:
                bar.set_description_str("dependence, and scores on graphs")
                context.poll()
                found.append(structure.find_structure(context.bk, sources(), threads, context.objective))

        # 4: the competition of every column with its decoys, by what the views of the rows say together
        best = max(found, key=lambda view: view.above_chance)
        evidence = np.max([view.evidence for view in found], axis=0)
        evidence = evidence[: pool.competing].reshape(-1, len(pool.columns))
        q = q_values(evidence, np.exp(-evidence.max(axis=0)))
        context.poll()
        return self._found(context, X, rows, looked_at, best, evidence, q)

    def _most_rows(self, n: int, d: int) -> int:
        """Rows that take part, at most; series are one table, of means where they are long."""
        wanted = self._settings.max_rows
        if self._settings.rows == "series":
            return structure.ROWS
        return min(n, most_rows(d) if wanted is None else wanted)

    def _table(
        self, context: FitContext, X: Any, rows: Rows, columns: Array, threads: int, say: Callable[[str], Any]
    ) -> LookedAt:
        """At most 512 rows, or values of a series."""
        bk = context.bk
        exchange = Exchange.of(bk, rows, context.seed, threads)
        pools = structure.build_pools(bk, X, columns, exchange, self._settings.scaling == "columns")
        can_compete = len(pools[0].columns) > 1 and exchange.n > 2
        sources = [partial(structure.Sources.of_table, bk, each, threads) for each in pools]
        used = rows.used
        if not rows.is_series and rows.n > exchange.n:
            used = used._replace(
                n_rows=exchange.n,
                n_not_drawn=rows.n - exchange.n,
                n_on_graphs=exchange.n,
                n_compared=exchange.n,
            )
        return LookedAt(pools[0], sources if can_compete else [], used, None)

    def _blocks(
        self, context: FitContext, X: Any, rows: Rows, columns: Array, threads: int, say: Callable[[str], Any]
    ) -> LookedAt:
        """More than 512 rows, in blocks."""
        bk = context.bk
        blocks = Blocks(bk, X, rows, context.seed, threads, self._most_rows(rows.n, X.shape[1]))
        pools = BlockPools(bk, blocks, columns, self._settings.scaling == "columns", context.seed)

        def poll(done: int) -> None:
            context.poll()
            say(f"correlations of {done:,} of {blocks.n:,} rows")

        _, compared = rows_of_functions(pools.pool.size, blocks.n)
        used = rows.used._replace(
            n_rows=blocks.n,
            n_not_drawn=rows.n - blocks.n,
            n_on_graphs=pools.n_scored,
            n_compared=blocks.n_rows(blocks.holding(compared)),
        )
        sources = [partial(structure.Sources.of_blocks, bk, pools, threads, poll)]
        return LookedAt(pools.pool, sources if len(pools.pool.columns) > 1 else [], used, pools)

    def _nothing(self, context: FitContext, X: Any, rows: Rows, looked_at: LookedAt) -> Found:
        """The result where fewer than two columns can compete."""
        pool = looked_at.pool
        count = len(pool.columns)
        evidence = np.full((1 + pool.n_decoys, count), np.nan)
        evidence[0] = 0.0
        nothing = structure.Structure(np.zeros(0, dtype=np.intp), np.zeros(count), evidence[0], 0.0, None)
        return self._found(context, X, rows, looked_at, nothing, evidence, np.ones(count))

    def _read(self, context: FitContext, X: Any, rows: Rows, pool: Pool) -> Callable[[Array], Array]:
        """How the diverse order reads columns: on more rows than the pool, where they are drawn."""
        bk = context.bk
        sample = rows.sample(bk, 0, random.Stream.PERMUTATION, 1, diverse_ranking.ROWS)
        exchange = pool.exchange if pool.exchange and rows.is_series else Exchange(bk, rows, sample, context.seed)
        return partial(exchange.unclipped, X, self._settings.scaling == "columns")

    def _found(
        self, context: FitContext, X: Any, rows: Rows, looked_at: LookedAt, best: structure.Structure,
        evidence: Array, q: Array,
    ) -> Found:  # fmt: skip
        """The result for all columns of X; those that could not compete have less evidence than any that could."""
        d = X.shape[1]
        pool = looked_at.pool

        def of_all(values: Array, others: float) -> Array:
            out = np.full((*values.shape[:-1], d), others)
            out[..., pool.columns] = values
            return out

        least = float(evidence[0].min()) - 1.0 if len(pool.columns) > 1 else 0.0
        of_columns = of_all(evidence[0], least)
        own = best.members[best.members < len(pool.columns)]
        in_graph = np.zeros(d, dtype=bool)
        in_graph[pool.columns[own]] = True
        doubts = [] if best.graph is None else list(doubts_of_graph(context.objective, best.graph))
        judged = Judgement(
            q_values=of_all(q, 1.0),
            evidence=of_columns,
            decoy_evidence=of_all(evidence[1:], np.nan),
            in_graph=in_graph,
            fdr=float(self._settings.fdr),
        )
        support = judged.q_values <= judged.fdr
        return Found(
            gates=None,
            scores=of_all(best.score[: len(pool.columns)], 0.0),
            order_by=of_columns,
            weights=np.where(support, 1 + of_columns - of_columns.min(), -1),
            findings=() if looked_at.blocks is None else looked_at.blocks.findings(support.mean() > SELECTED_SHARE),
            rows=looked_at.rows,
            support=support,
            judged=judged,
            doubts=doubts,
            doubt=doubt_of_decoys(judged),
            read=self._read(context, X, rows, pool),
        )
