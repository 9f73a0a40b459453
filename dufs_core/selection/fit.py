"""One fit, from X to its result: the data are checked and scaled, an engine is chosen, the procedure runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import validate_data

from dufs_core.backend import Array, Backend
from dufs_core.backend.blas import one_blas_thread
from dufs_core.backend.threads import lazy
from dufs_core.data.accept import Accepted, accept
from dufs_core.data.groups import NOTHING_TOLD, Told
from dufs_core.data.scaling import ScaledData
from dufs_core.data.times import check_times
from dufs_core.objective.chain import Objective
from dufs_core.objective.engines.choose import get_engine
from dufs_core.objective.optimizers import get_optimizer
from dufs_core.objective.protocol import Engine, Schedule, StepSize
from dufs_core.selection import checkpoint, memory
from dufs_core.selection.base import names_of
from dufs_core.selection.parameters import SMALL_ROWS, check_shared, graph_for, n_threads, seed_of, step_draws
from dufs_core.selection.procedure import Procedure
from dufs_core.selection.result import FitResult, complete
from dufs_core.selection.trainer import FitContext, GateTrainer, ProgressSaver, go_on
from dufs_core.significance.diagnosis import Finding, findings
from dufs_core.significance.rows import Rows
from dufs_core.training.loop import Run


@dataclass(frozen=True)
class FitTask:
    """What one fit computes with."""

    settings: Any  # a copy of the selector: nothing that happens here changes the user's
    procedure: Procedure
    accepted: Accepted  # without rows that are alone in their group
    rows: Rows
    told: Told  # of all rows, as it was given
    threads: int

    @classmethod
    def begin(cls, selector: Any, X: Any, y: Any = None, told: Told = NOTHING_TOLD, threads: int | None = None) -> Self:
        """Check X (n, d), labels y, what is told of the rows, and the parameters; threads: by default those of n_jobs.

        Raises ValueError or TypeError for what cannot be computed with.
        """
        settings = copy(selector)
        procedure = settings._procedure()
        accepted = accept(settings, X, y, backend=settings.backend, rows=procedure.rows_in_hand)
        is_series = getattr(settings, "rows", "independent") == "series"
        if is_series:
            check_times(accepted.given, told.groups)
        rows = Rows.of(accepted.X.shape[0], told, is_series)
        if rows.kept is not None:
            accepted = accepted.rows(rows.kept)
        threads = n_threads(settings.n_jobs) if threads is None else threads
        return cls._checked(settings, procedure, accepted, rows, told, threads)

    def for_selector(self, selector: Any) -> Self:
        """The same data for another selector."""
        settings = copy(selector)
        validate_data(settings, self.accepted.given, skip_check_array=True)  # names and number of features
        return self._checked(settings, settings._procedure(), self.accepted, self.rows, self.told, self.threads)

    def part(self, rows: Array) -> Self:
        """The fit of some of the rows (NumPy positions, increasing)."""
        return replace(self, accepted=self.accepted.rows(rows), rows=self.rows.take(rows))

    @classmethod
    def _checked(
        cls, settings: Any, procedure: Procedure, accepted: Accepted, rows: Rows, told: Told, threads: int
    ) -> Self:
        n, d = accepted.X.shape
        check_shared(settings, n, d)
        procedure.check(n, d, accepted.is_sparse)
        if procedure.scales_groups:
            _check_rows(type(settings).__name__, accepted, rows)
        return cls(settings, procedure, accepted, rows, told, threads)

    @property
    def bk(self) -> Backend:
        """Where the fit computes."""
        return self.accepted.bk

    @property
    def X(self) -> Any:
        """The accepted data (n, d), not scaled."""
        return self.accepted.X

    @property
    def step_rows(self) -> int:
        """Rows that are in hand at once: those of a step."""
        return self.memory[0].n

    @lazy
    def seed(self) -> int:
        """The 64 bits that all draws are functions of; a RandomState is asked once."""
        return seed_of(self.settings.random_state)

    @lazy
    def data(self) -> ScaledData:
        """The data scaled, where the backend computes."""
        by_rows = self.procedure.training is not None and self.step_rows < self.X.shape[0]
        group = self.rows.group if self.procedure.scales_groups else None
        is_calm = not self.procedure.scales_groups
        return self.accepted.scaled(self.settings.scaling, self.settings.dtype, by_rows, group, is_calm)

    @lazy
    def memory(self) -> tuple[StepSize, int]:
        """What the time and the memory of one step depend on, and the bytes kept beside it."""
        return memory.plan(self.settings, self.procedure, self.accepted, self.threads)

    def engine(self) -> Engine | None:
        """A new engine, the selector's or the fastest; None where no gates are trained.

        Raises MemoryLimitError if the fit would not fit.
        """
        step, data = self.memory
        most = self.settings.max_memory
        if self.procedure.training is None:
            memory.check_memory_around(self.bk, self.X.shape, step, data, most)
            return None
        limit = memory.step_limit(self.bk, data, most)
        engine = get_engine(self.settings.engine, self.bk, self.threads, step, limit, self.accepted.is_sparse)
        memory.check_memory(self.bk, engine.name, step, data, most, self._memory_in_batches)
        return engine

    def engine_name(self) -> str | None:
        """The name of `engine`."""
        engine = self.engine()
        return None if engine is None else engine.name

    def _memory_in_batches(self, rows: int) -> tuple[StepSize, int]:
        """`memory` of the same fit with a batch size."""
        settings = copy(self.settings)
        settings.batch_size = rows
        return memory.plan(settings, settings._procedure(), self.accepted, self.threads)

    def saver(self, engine: Engine | None) -> ProgressSaver | None:
        """What saves the progress of the fit, where the selector has a Checkpoint."""
        saving = checkpoint.find(checkpoint.callbacks_of(self.settings))
        if saving is None or engine is None:
            return None
        return saving.begin(self.bk, self.settings, engine.name, self.seed, self.X, self.rows)

    def context(self, poll: Callable[[], None] = go_on) -> FitContext:
        """What a fit without gates computes with."""
        graph = graph_for(self.settings, self.X.shape[0])
        objective = Objective(**graph.get_params())
        return FitContext(bk=self.bk, objective=objective, seed=self.seed, verbose=self.settings.verbose, poll=poll)

    def trainer(
        self,
        engine: Engine | None,
        n_columns: int,
        saver: ProgressSaver | None = None,
        poll: Callable[[], None] = go_on,
    ) -> GateTrainer:
        """What trains the gates of so many columns that are not constant, as the parameters say."""
        settings = self.settings
        training = self.procedure.training
        if training is None or engine is None:
            raise TypeError(f"{type(settings).__name__} trains no gates")
        conventions = training.conventions
        graph = graph_for(settings, self.X.shape[0])
        objective = Objective(
            lam=settings.lam,
            gate_sigma=settings.gate_sigma,
            degenerate_rule=conventions.zero_bandwidth,
            saturation=training.saturation,
            **graph.get_params(),
        )
        if conventions.delta:  # of means; the objective has sums
            objective = replace(objective, delta=conventions.delta * self.step_rows * n_columns)
        rate = settings.learning_rate
        if conventions.rate_per_column and settings.lam is not None:
            rate /= max(n_columns, 1)
        schedule = Schedule(
            n_draws=step_draws(training.n_draws, self.step_rows),
            max_iter=settings.max_iter,
            tol=settings.tol,
            batch_size=settings.batch_size,
            gate_noise=conventions.gate_noise,
            batches=conventions.batches,
            noisy_start=conventions.noisy_start,
        )
        return GateTrainer(
            bk=self.bk,
            engine=engine,
            objective=objective,
            optimizer=get_optimizer(training.optimizer, rate),
            schedule=schedule,
            seed=self.seed,
            saver=saver,
            callbacks=[c for c in settings.callbacks if not isinstance(c, checkpoint.Checkpoint)],
            verbose=settings.verbose,
            poll=poll,
        )

    def run(
        self,
        engine: Engine | None = None,
        data: ScaledData | None = None,
        saver: ProgressSaver | None = None,
        poll: Callable[[], None] = go_on,
        first: Run | None = None,
        findings: tuple[Finding, ...] | None = None,
    ) -> FitResult:
        """The fit.

        data, findings: of another task with the same X, by default found here; saver: by default `saver`; poll: called
        several times a second; first: the first run of the gates, if it has been trained already.
        """
        with self.accepted.device():
            engine = self.engine() if engine is None else engine
            data = self.data if data is None else data
            if engine is None:
                context = self.context(poll)
            else:
                saver = self.saver(engine) if saver is None else saver
                context = self.trainer(engine, int((~data.constant).sum()), saver, poll)
            with_blas = engine is not None and engine.name == "reference" and self.step_rows > SMALL_ROWS
            with np.errstate(under="ignore"), nullcontext() if with_blas else one_blas_thread():
                found = self.procedure.run(data, self.rows, context, self.threads, first)
                findings = self.findings(data) if findings is None else findings
                return complete(self.settings, found, findings, data, self.rows, context, self.threads)

    def findings(self, data: ScaledData) -> tuple[Finding, ...]:
        """What says that the rows may not be exchanged."""
        return findings(self.bk, data.X, self.rows, self.seed, names_of(self.settings))


def _check_rows(who: str, accepted: Accepted, rows: Rows) -> None:
    """Raise ValueError for what a selector that trains gates cannot be told of rows; who: its name."""
    if rows.covariates is not None:
        raise ValueError(f"{who} takes no covariates: use DUFS, whose columns are freed of them")
    if rows.group is not None and not accepted.kind.startswith("dense"):
        raise ValueError(
            f"{who} takes groups with dense data in memory, whose columns it centres within groups; this X is "
            f"{accepted.kind}: use DUFS, which takes groups with any data, or X.toarray() or X[:]"
        )
