"""A fit in which shuffled copies of the columns (decoys) compete: which columns matter, at a false discovery rate.

A set of columns with structure is found first; it may hold decoys. Gates are trained on this set, all others are
closed. Every column is scored on the graph of the open columns, and competes with its decoys. `DecoyCompetition.run`
has the phases of docs/guide.md, by their numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dufs_core.backend import Array, Backend, random
from dufs_core.data.scaling import ScaledData
from dufs_core.objective.chain import Objective
from dufs_core.objective.ops.bandwidth import check_n_neighbors
from dufs_core.selection import diverse_ranking
from dufs_core.selection.decoys.explanation import doubt_of_decoys
from dufs_core.selection.memory import decoy_bytes
from dufs_core.selection.parameters import check_choice, check_rate, check_regularisation, graph_for
from dufs_core.selection.procedure import FitSize, Found
from dufs_core.selection.settings import Conventions
from dufs_core.selection.trainer import FinishedRun, GateTrainer
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
_QUANTILE = 0.99  # lambda closes this share of the calibration columns
_SMALLEST_LAM = 1e-3


class Judgement(NamedTuple):
    """What the competition says of all d columns; attributes of `dufs_core.DUFS`.

    Columns that could not compete (near constant) have q-value 1.
    """

    q_values: Array  # (d,)
    evidence: Array  # (d,)
    decoy_evidence: Array  # (M, d), NaN for columns that did not compete
    fdr: float  # the rate asked for
    lam: float  # NaN where nothing was calibrated


class Start(NamedTuple):
    """What the gates start from."""

    members: Array  # (m,) positions in the pool of the columns and decoys that get gates
    scales: Array  # (m,) standard deviation of each in the scaled data
    score: Array  # (D,) of every column of the pool, on the graph of the members
    dependence: Array  # (D,) evidence of every column's strongest dependence on another one
    above_chance: float  # the members' evidence above chance


class DecoyCompetition:
    """The procedure of `dufs_core.DUFS` (`dufs_core.selection.procedure.Procedure`)."""

    stacks = False  # each fit has decoys of its own
    on_sparse = False  # few columns have gates, and they are dense
    scales_groups = False  # the columns that are read are scaled within groups, together with their decoys
    optimizer = "normalized"
    n_draws: int | str = "auto"
    conventions = Conventions()
    saturation: float | None = None

    def __init__(self, settings: DUFS) -> None:
        self._settings = settings

    def check(self, n: int, d: int, is_sparse: bool) -> None:
        settings = self._settings
        check_choice("rows", settings.rows, ROWS)
        check_rate(settings.fdr)
        check_choice("ranking", settings.ranking, RANKINGS)
        check_regularisation(settings.lam, settings.dtype, "calibrated")
        check_n_neighbors(graph_for(settings, n).n_neighbors, min(n, structure.ROWS))

    def size(self, n: int, d: int, itemsize: int, threads: int) -> FitSize:
        """Steps on the rows of the pool, or on batches of all; the gates of a set."""
        rows = min(n, self._settings.batch_size or structure.ROWS)
        gates = min(d, structure.MOST_GATES)
        kept = 0 if self._settings.batch_size is None else n * gates * itemsize
        return FitSize(rows, gates, kept, decoy_bytes(n, d, itemsize, threads))

    def run(self, data: ScaledData, rows: Rows, trainer: GateTrainer, threads: int, first: Run | None) -> Found:
        """Draw decoys, find a set with structure, train its gates, score all columns and let them compete.

        At most 512 rows are read; with a batch size also the others, for the columns that have gates.
        """
        bk, X, columns = trainer.bk, data.X, np.flatnonzero(~data.constant)

        # 1: rows and decoys
        with stage(trainer.verbose, "decoys") as bar:
            exchange = Exchange.of(bk, rows, trainer.seed, threads)
            pools = structure.build_pools(bk, X, columns, exchange, self._settings.scaling == "columns")
            pool = pools[0]
            if len(pool.columns) < 2 or pool.X.shape[1] < 3:
                return self._nothing(trainer, X, rows, pool)

            # 2 and 3: pairs of columns, which need no gates to see each other; the set that structure is found among
            bar.set_description_str("dependence of pairs")
            objective = trainer.objective
            starts = [find_start(bk, each, objective, threads) for each in pools]
            before = np.max([evidence_at_start(*each) for each in zip(pools, starts, strict=True)], axis=0)
            pool, start = max(zip(pools, starts, strict=True), key=lambda each: each[1].above_chance)

        # 4: gates of this set, at a price that keeps shuffled columns shut
        if self._settings.lam == "calibrated":
            objective = replace(objective, lam=calibrated_lam(pool, start))
        trainer = replace(trainer, objective=objective)
        run = train_gates(trainer, X, rows, pool, start)

        # 5: every column on the graph of the open ones
        with stage(trainer.verbose, "scores"):
            score = score_columns(bk, pool, start, bk.to_host(run.mu), objective, threads)

        # 6: the competition of every column with its decoys
        evidence = structure.evidence_of(pool, score, before)[: pool.competing].reshape(-1, len(pool.columns))
        q = q_values(evidence, np.exp(-evidence.max(axis=0)))
        return self._found(trainer, X, rows, pool, start.members, run, score[: len(pool.columns)], evidence, q)

    def _nothing(self, trainer: GateTrainer, X: Any, rows: Rows, pool: structure.Pool) -> Found:
        """The result where fewer than two columns can compete."""
        members = np.zeros(0, dtype=np.intp)
        run = _trained(trainer, np.empty((0, 0), self._settings.dtype), members)
        count = len(pool.columns)
        evidence = np.full((1 + pool.n_decoys, count), np.nan)
        evidence[0] = 0.0
        return self._found(trainer, X, rows, pool, members, run, np.zeros(count), evidence, np.ones(count))

    def _read(self, trainer: GateTrainer, X: Any, rows: Rows, pool: structure.Pool) -> Callable[[Array], Array]:
        """How the diverse order reads columns: on more rows than the pool, where they are drawn."""
        bk = trainer.bk
        sample = rows.sample(bk, 0, random.Stream.PERMUTATION, 1, diverse_ranking.ROWS)
        exchange = pool.exchange if rows.is_series else Exchange(bk, rows, sample, trainer.seed)
        return partial(exchange.unclipped, X, self._settings.scaling == "columns")

    def _found(
        self, trainer: GateTrainer, X: Any, rows: Rows, pool: structure.Pool, members: Array, run: Run, score: Array,
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
        lam = np.nan if trainer.objective.lam is None else float(trainer.objective.lam)
        fdr = float(self._settings.fdr)
        judged = Judgement(of_all(q, 1.0), of_columns, of_all(evidence[1:], np.nan), fdr, lam)
        support = judged.q_values <= fdr
        own = members < len(pool.columns)
        return Found(
            run=run,
            columns=pool.columns[members[own]],
            mu=trainer.bk.to_host(run.mu)[own],
            scores=of_all(score, 0.0),
            order_by=of_columns,
            weights=np.where(support, 1 + of_columns - of_columns.min(), -1),
            support=support,
            judged=judged,
            doubt=doubt_of_decoys(judged),
            read=self._read(trainer, X, rows, pool),
        )


def find_start(bk: Backend, pool: structure.Pool, objective: Objective, threads: int) -> Start:
    """The columns and decoys that structure is found among, and the score of all on their graph."""
    found = structure.find_structure(bk, pool, threads, objective)
    scales = pool.scales(found.members)
    score = structure.scores(bk, pool, found.members, scales**2, objective, threads)
    return Start(found.members, scales, score, found.dependence, found.above_chance)


def calibrated_lam(pool: structure.Pool, start: Start) -> float:
    """The 0.99 quantile of the scores of the calibration columns, which are known to be shuffled."""
    return max(float(np.quantile(start.score[pool.competing :], _QUANTILE)), _SMALLEST_LAM)


def train_gates(trainer: GateTrainer, X: Any, table: Rows, pool: structure.Pool, start: Start) -> Run:
    """The run of the gates of the members of the start.

    Without a batch size they are trained on the rows of the pool, with one on all rows. Decoys have positions beyond
    the data.
    """
    bk, members = trainer.bk, start.members
    if trainer.schedule.batch_size is None:
        weight = bk.xp.asarray(start.scales.astype(X.dtype))[:, None]
        data = (pool.X[bk.xp.asarray(members)] * weight).T
    else:
        data = structure.on_all_rows(bk, X, table, pool, members)
    d = len(pool.columns)
    positions = np.where(members < d, pool.columns[members % d], X.shape[1] + members)
    return _trained(trainer, data, positions)


def _trained(trainer: GateTrainer, data: Array, positions: Array) -> Run:
    """The one run of a fit, unless an earlier process has finished it."""
    saved = trainer.saved_run(0, lambda before: np.array_equal(before, positions))
    run = saved.run if saved else trainer.train(data, positions)
    trainer.finish([FinishedRun(run, positions)])
    return run


def score_columns(
    bk: Backend, pool: structure.Pool, start: Start, mu: Array, objective: Objective, threads: int
) -> Array:
    """The score (D,) of every column of the pool on the graph of the open ones; of all where fewer than two are."""
    is_open, weights = mu > 0, (np.clip(mu, 0, 1) * start.scales) ** 2
    if is_open.sum() < 2:  # a graph of one column shows only itself
        is_open, weights = np.ones(len(mu), dtype=bool), start.scales**2
    return structure.scores(bk, pool, start.members[is_open], weights[is_open], objective, threads)


def evidence_at_start(pool: structure.Pool, start: Start) -> Array:
    """Evidence (D,) of the first graph or of pairs, whichever says more."""
    return structure.evidence_of(pool, start.score, start.dependence)
