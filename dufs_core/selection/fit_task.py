"""One fit of a `dufs_core.DUFS`, from X to the fitted attributes: memory plan, engine, search, result."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import validate_data

from dufs_core.backend import Array, Backend, get_backend
from dufs_core.backend.blas import one_blas_thread
from dufs_core.backend.memory import step_limit
from dufs_core.backend.threads import lazy
from dufs_core.data.accept import Accepted, accept
from dufs_core.data.on_disk import chunked_bytes
from dufs_core.data.scaling import ScaledData
from dufs_core.objective.chain import Objective
from dufs_core.objective.engines.choose import check_memory, get_engine
from dufs_core.objective.engines.cpu_sparse import sparse_step_size
from dufs_core.objective.ops import regulariser
from dufs_core.objective.optimizers import get_optimizer
from dufs_core.objective.protocol import Engine, Schedule, StepSize
from dufs_core.selection import checkpoint
from dufs_core.selection.discovery import discover, discovery_bytes
from dufs_core.selection.diverse_ranking import diverse_order, diverse_ranking_bytes
from dufs_core.selection.parameters import check_parameters, n_threads, n_wanted, seed_of
from dufs_core.selection.presets import graph_rules, order_of
from dufs_core.selection.search import Outcome, ProgressSaver, Search
from dufs_core.significance.hsic import hsic_bytes
from dufs_core.significance.permutation_test import permutation_test_bytes
from dufs_core.significance.structure import MOST_GATES, ROWS
from dufs_core.training.loop import Run
from dufs_core.training.progress import stage

_MANY_DRAWS, _FEW_DRAWS = 16, 4  # more rows average over more of the data, and cost more per draw
_SMALL_ROWS = 256
_DELTA = 1e-6  # that the authors add to mean(p): 1e-6 n d in sums
_BELOW = 2.5  # columns that took no part: this many gate_sigma below every gate that did
_DIVERSE = 300  # columns in that order where no number of columns is asked for
_SPREAD = 0.5  # times gate_sigma: the range below the gates in which columns without one keep their order
_LASTING = ("n_features_in_", "feature_names_in_", "engine_")  # attributes that are set before the search


@dataclass(frozen=True)
class FitTask:
    """What one fit computes with."""

    selector: Any  # whose parameters are read, and whose fitted attributes are set
    accepted: Accepted
    threads: int

    @classmethod
    def begin(cls, selector: Any, X: Any, y: Any = None, threads: int | None = None) -> Self:
        """Check X (n, d), labels y, and the parameters; threads: by default those of n_jobs.

        Raises ValueError or TypeError for what cannot be computed with.
        """
        accepted = accept(selector, X, y, backend=selector.backend, batch_size=selector.batch_size)
        if accepted.is_sparse and selector.gate_noise == "sample":
            raise ValueError(
                'gate_noise="sample" cannot take sparse X, because one gate a sample leaves no zeros after centring: '
                'use gate_noise="batch", or X.toarray() if it fits in memory'
            )
        check_parameters(selector, *accepted.X.shape)
        return cls(selector, accepted, n_threads(selector.n_jobs) if threads is None else threads)

    def for_selector(self, selector: Any) -> Self:
        """The same data for another selector."""
        validate_data(selector, self.accepted.given, skip_check_array=True)  # names and number of features
        check_parameters(selector, *self.X.shape)
        return replace(self, selector=selector)

    @property
    def bk(self) -> Backend:
        """Where the fit computes."""
        return self.accepted.bk

    @property
    def X(self) -> Any:
        """The accepted data (n, d), not scaled."""
        return self.accepted.X

    @lazy
    def seed(self) -> int:
        """The 64 bits that all draws are functions of; a RandomState is asked once."""
        return seed_of(self.selector.random_state)

    @lazy
    def data(self) -> ScaledData:
        """The data scaled, where the backend computes."""
        by_rows = self.step_rows < self.X.shape[0]
        return self.accepted.scaled(self.selector.scaling, self.selector.dtype, by_rows)

    @property
    def step_rows(self) -> int:
        """Rows of a step."""
        n: int = self.X.shape[0]
        return min(n, int(self.selector.batch_size or (n if self.selector.fdr is None else ROWS)))

    @property
    def step_draws(self) -> int:
        """Noise draws of a step."""
        return int(self.selector.n_draws or (_MANY_DRAWS if self.step_rows <= _SMALL_ROWS else _FEW_DRAWS))

    @lazy
    def memory(self) -> tuple[StepSize, int]:
        """What the time and the memory of one step depend on, and the bytes kept beside it."""
        selector, (n, d) = self.selector, self.X.shape
        rules, decoys, itemsize = graph_rules(selector, n), selector.fdr is not None, np.dtype(selector.dtype).itemsize
        gates, is_fixed = min(d, MOST_GATES) if decoys else d, not isinstance(rules.bandwidth, str)
        per_sample, rows = selector.gate_noise == "sample", self.step_rows
        step = StepSize(rows, gates, self.step_draws, itemsize, rules.power, is_fixed, per_sample, self.threads)
        if self.accepted.is_sparse:
            sparse_step, data = sparse_step_size(step, self.X)
            step = step if decoys else sparse_step
        else:
            data = chunked_bytes(step.n, d, itemsize) if self.accepted.kind == "on disk" else n * d * itemsize
        if step.n < n:
            data += step.n * step.d * itemsize  # the batch in hand
        after = [diverse_ranking_bytes(n, d)] if order_of(selector) == "diverse" else []
        if decoys:
            data += n * step.d * itemsize if selector.batch_size is not None else 0
            after.append(discovery_bytes(n, d, itemsize, self.threads))
        else:
            after.append(permutation_test_bytes(n, d, itemsize))
            if selector.max_runs > 1:  # pairs of columns are screened before another run
                after.append(hsic_bytes(n, d, itemsize))
        return step._replace(after=max(after)), data

    def engine(self) -> Engine:
        """A new engine, the selector's or the fastest. Raises MemoryLimitError if the fit would not fit."""
        selector, (step, data) = self.selector, self.memory
        limit = step_limit(self.bk, data, selector.max_memory)
        as_sparse, name = self.accepted.is_sparse and selector.fdr is None, selector.engine
        if selector.fdr is not None and name in ("auto", "sparse"):  # few columns have gates, and they are dense
            few_rows = self.bk.name == "numpy" and step.n <= ROWS and not step.per_sample
            name = "dense" if few_rows else "auto"
        engine = get_engine(name, self.bk, self.threads, step, limit, as_sparse)
        selector.engine_ = engine.name
        check_memory(self.bk, engine.name, step, data, selector.max_memory)
        return engine

    def search(self, engine: Engine, d: int, poll: Callable[[], None] | None = None) -> Search:
        """The search that the parameters describe, for d columns that are not constant."""
        s, draws, rate = self.selector, self.step_draws, self.selector.learning_rate
        rules = graph_rules(s, self.X.shape[0])._asdict()
        objective = Objective(lam=s.lam, gate_sigma=s.gate_sigma, **rules)
        schedule = Schedule(draws, s.max_iter, s.tol, s.batch_size, s.gate_noise)
        if s.convention == "authors_code":
            objective = replace(objective, delta=_DELTA * self.step_rows * d, degenerate_rule="one")
            schedule = replace(schedule, batches="wrap", noisy_start=True)
            rate = rate if s.lam is None else rate / max(d, 1)
        callbacks = tuple(c for c in s.callbacks if not isinstance(c, checkpoint.Checkpoint))
        optimizer = get_optimizer(s.optimizer, rate)
        return Search(objective, engine, optimizer, schedule, s.max_runs, callbacks, s.verbose, poll=poll)

    @lazy
    def saver(self) -> ProgressSaver | None:
        """What saves the progress of the fit, where the selector has a Checkpoint."""
        saving = checkpoint.find(self.selector.callbacks)
        return None if saving is None else saving.begin(self.bk, self.selector, self.seed, self.X)

    def run(
        self, engine: Engine, data: ScaledData | None = None, poll: Callable[[], None] | None = None,
        first: Run | None = None,
    ) -> Outcome:  # fmt: skip
        """Search, and set the fitted attributes.

        data: of another task with the same X, by default scaled here; poll: called several times a second; first: the
        first run of the search, if it has been trained already.
        """
        selector, bk, data = self.selector, self.bk, self.data if data is None else data
        columns = np.flatnonzero(~data.constant)
        search, saver = self.search(engine, len(columns), poll), self.saver
        with_blas = selector.engine_ == "reference" and self.step_rows > _SMALL_ROWS
        with nullcontext() if with_blas else one_blas_thread():
            if selector.fdr is None:
                best, n_runs = search.run(bk, data.X, columns, self.seed, saver, first)
                excess, p_value = best.test
                judged = {"excess_score_": excess, "p_value_": p_value, "stopped_by_hsic_": best.tied}
            else:
                found = discover(bk, data.X, columns, self.seed, search, saver, self.threads)
                best, n_runs = found.outcome._replace(order_by=found.evidence[columns]), 1
                judged = {f"{name}_": value for name, value in found._asdict().items() if name != "outcome"}
            gates = gate_attributes(selector, bk, data.constant, best)
            fitted = {"n_runs_": n_runs, "backend_": bk.name, "scores_": gates["mu_"].copy(), **gates, **judged}
            for name in ("mu_", "bandwidth_", "evidence_"):
                if not np.isfinite(fitted.get(name, 0.0)).all():
                    raise ValueError(
                        f"{name} would not be a finite number: with gate_sigma={selector.gate_sigma!r}, "
                        f"bandwidth={selector.bandwidth!r} and bandwidth_factor={selector.bandwidth_factor!r} numbers "
                        f'leave the range of {selector.dtype}. Use values nearer to 1, or dtype="float64"'
                    )
            with stage(selector.verbose, "ranking"):
                fitted |= order_attributes(selector, bk, data.X, fitted, self.threads)
        for name in [name for name in vars(selector) if name.endswith("_") and name not in _LASTING]:
            delattr(selector, name)  # of an earlier fit
        vars(selector).update(fitted)
        return best


def gate_attributes(selector: Any, bk: Backend, constant: Array, best: Outcome) -> dict[str, Any]:
    """The gates of all d columns and the history of the run that was kept; constant (d,) bool."""
    run, sigma = best.run, selector.gate_sigma
    lowest = float(run.mu.min()) if len(run.mu) else 0.0
    aside = min(lowest, 0.0) - _BELOW * sigma
    mu = np.full(len(constant), aside, dtype=selector.dtype)
    mu[constant] = aside - sigma
    if best.order_by is not None:  # without an order of their own they would be selected by column index
        order = np.argsort(-bk.to_host(best.order_by), kind="stable")
        mu[np.flatnonzero(~constant)[order]] -= _SPREAD * sigma * np.arange(len(order)) / len(order)
    mu[best.columns] = bk.to_host(run.mu)
    return {
        "mu_": mu,
        "gate_probabilities_": np.asarray(regulariser.probabilities(get_backend("numpy"), mu, sigma)),
        "history_": run.history,
        "n_iter_": run.n_iter,
        "converged_": run.converged,
        "bandwidth_": float(run.history["bandwidth"][-1]) if run.n_iter else 1.0,
        "loss_": float(run.history["loss"][-1]) if run.n_iter else 0.0,
        "constant_features_": np.flatnonzero(constant),
        "excluded_features_": np.setdiff1d(np.flatnonzero(~constant), best.columns),
    }


def order_attributes(selector: Any, bk: Backend, X: Any, fitted: dict[str, Any], threads: int = 1) -> dict[str, Array]:
    """The order of the columns, and the selection; X (n, d) scaled."""
    mu, ranking = fitted["mu_"], order_of(selector)
    count = None if selector.n_features_to_select is None else n_wanted(selector.n_features_to_select, len(mu))
    if selector.fdr is None:
        by, candidates, support = mu, mu, mu > 0
    else:
        by, support = mu if ranking == "gates" else fitted["evidence_"], fitted["q_values_"] <= selector.fdr
        candidates = np.where(support, 1 + by - by.min(), -1)
    order = np.argsort(-by, kind="stable")
    if ranking == "diverse":
        first = diverse_order(bk, X, candidates, count or _DIVERSE, threads)
        order = np.concatenate([first, order[~np.isin(order, first)]])
    if count is not None:
        support = np.zeros(len(mu), dtype=bool)
        support[order[:count]] = True
    return {"order_": order, "support_": support}
