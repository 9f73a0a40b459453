"""A fit in which shuffled copies of the columns (decoys) compete: which columns matter, at a false discovery rate.

A set of columns with structure is found; it may hold decoys. Its columns have an open gate, all others a closed one.
Every column is scored on the graph of the open ones, and competes with its decoys. `DecoyCompetition.run` has the
phases of docs/guide.md, by their numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dufs_core.backend import Array, random
from dufs_core.data.scaling import ScaledData
from dufs_core.errors import DufsWarning
from dufs_core.objective.ops.bandwidth import check_n_neighbors
from dufs_core.selection import diverse_ranking
from dufs_core.selection.decoys.explanation import doubt_of_decoys, doubts_of_graph
from dufs_core.selection.memory import decoy_bytes
from dufs_core.selection.parameters import check_choice, check_rate, graph_for
from dufs_core.selection.procedure import FitSize, Found, Training
from dufs_core.selection.trainer import FitContext
from dufs_core.significance import structure
from dufs_core.significance.decoys import q_values
from dufs_core.significance.exchange import Exchange
from dufs_core.significance.rows import Rows
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

    def size(self, n: int, d: int, itemsize: int, threads: int) -> FitSize:
        """The rows of the pool; no gates are trained."""
        return FitSize(min(n, structure.ROWS), 0, decoy_bytes(n, d, itemsize, threads))

    def run(self, data: ScaledData, rows: Rows, context: FitContext, threads: int, first: Run | None) -> Found:
        """Draw decoys, find a set with structure, score all columns on its graph and let them compete.

        At most 512 rows are read.
        """
        bk = context.bk
        X = data.X
        columns = np.flatnonzero(~data.constant)

        # 1: rows and decoys
        with stage(context.verbose, "decoys") as bar:
            exchange = Exchange.of(bk, rows, context.seed, threads)
            pools = structure.build_pools(bk, X, columns, exchange, self._settings.scaling == "columns")
            pool = pools[0]
            if len(pool.columns) < 2 or pool.X.shape[1] < 3:
                return self._nothing(context, X, rows, pool)

            # 2 and 3: dependence between columns, and the set whose graph shows the structure, with all scores on it
            bar.set_description_str("dependence, and scores on graphs")
            found = []
            for each in pools:
                context.poll()
                found.append(structure.find_structure(bk, each, threads, context.objective))

        # 4: the competition of every column with its decoys, by what the views of the rows say together
        best = max(found, key=lambda view: view.above_chance)
        evidence = np.max([view.evidence for view in found], axis=0)
        evidence = evidence[: pool.competing].reshape(-1, len(pool.columns))
        q = q_values(evidence, np.exp(-evidence.max(axis=0)))
        context.poll()
        return self._found(context, X, rows, pool, best, evidence, q)

    def _nothing(self, context: FitContext, X: Any, rows: Rows, pool: structure.Pool) -> Found:
        """The result where fewer than two columns can compete."""
        count = len(pool.columns)
        evidence = np.full((1 + pool.n_decoys, count), np.nan)
        evidence[0] = 0.0
        nothing = structure.Structure(np.zeros(0, dtype=np.intp), np.zeros(count), evidence[0], 0.0)
        return self._found(context, X, rows, pool, nothing, evidence, np.ones(count))

    def _read(self, context: FitContext, X: Any, rows: Rows, pool: structure.Pool) -> Callable[[Array], Array]:
        """How the diverse order reads columns: on more rows than the pool, where they are drawn."""
        bk = context.bk
        sample = rows.sample(bk, 0, random.Stream.PERMUTATION, 1, diverse_ranking.ROWS)
        exchange = pool.exchange if rows.is_series else Exchange(bk, rows, sample, context.seed)
        return partial(exchange.unclipped, X, self._settings.scaling == "columns")

    def _found(
        self, context: FitContext, X: Any, rows: Rows, pool: structure.Pool, best: structure.Structure,
        evidence: Array, q: Array,
    ) -> Found:  # fmt: skip
        """The result for all columns of X; those that could not compete have less evidence than any that could."""
        d = X.shape[1]

        def of_all(values: Array, others: float) -> Array:
            out = np.full((*values.shape[:-1], d), others)
            out[..., pool.columns] = values
            return out

        least = float(evidence[0].min()) - 1.0 if len(pool.columns) > 1 else 0.0
        of_columns = of_all(evidence[0], least)
        own = best.members[best.members < len(pool.columns)]
        in_graph = np.zeros(d, dtype=bool)
        in_graph[pool.columns[own]] = True
        doubts: list[DufsWarning] = []
        if len(best.members):
            graph = structure.graph_of(context.bk, pool, best.members, context.objective)
            doubts += doubts_of_graph(context.objective, graph)
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
            support=support,
            judged=judged,
            doubts=doubts,
            doubt=doubt_of_decoys(judged),
            read=self._read(context, X, rows, pool),
        )
