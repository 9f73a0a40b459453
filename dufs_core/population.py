"""Fits on the same data that differ in lam and seed, together.

On a GPU their runs advance as one: the draws of all fits are one stack of matrices (`dufs_core.engines.cuda_steps`). On
the CPU every core computes a fit of its own, without barriers between threads. A fit gives what it gives alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from queue import SimpleQueue
from threading import Condition, Event
from time import perf_counter
from typing import Any

import numpy as np
from scipy.sparse import issparse

from dufs_core.backend import Array, Backend, on_device
from dufs_core.engines import get_engine
from dufs_core.estimator import DUFS
from dufs_core.memory import available_bytes, predicted_bytes
from dufs_core.objective import Evaluate
from dufs_core.search import Outcome
from dufs_core.trainer import RECORD, Problem, Run, StepInfo, Train, finished, initial_mu, train
from dufs_core.validation import n_threads

_FREE = frozenset({"lam", "random_state", "n_features_to_select", "callbacks", "verbose"})  # may differ between fits
_SECONDS_TOGETHER = 0.1  # between two looks at Ctrl-C
_MOST_TOGETHER = 256  # fits in one stack

_Fit = Callable[[int, Train, Evaluate], Outcome]  # the fit of one number, with this trainer and engine


def fit_population(selectors: Sequence[DUFS], X: Any) -> list[DUFS]:
    """Fit selectors that differ in lam and random_state on the same data, together.

    Parameters
    ----------
    selectors : sequence of DUFS
        They may differ in lam, random_state, n_features_to_select, callbacks and verbose. X is checked and scaled
        once. On the CPU, n_jobs is the number of fits in work at once. Each selector is fitted, in place.
    X : array-like (n_samples, n_features)
        As in `DUFS.fit`.

    Returns
    -------
    list of DUFS
        The selectors.

    Raises
    ------
    ValueError
        If the selectors differ in another parameter, and as `DUFS.fit`.
    MemoryLimitError
        If one fit alone would need more memory than there is. Otherwise as many are in work at once as have room.

    Notes
    -----
    A fit has the numbers that it has alone: to the bit on the CPU, and on a GPU where steps are captured (small
    problems); within rounding on a GPU where cuBLAS multiplies. Minibatches, one gate per sample, and selectors with
    callbacks are trained one after the other on a GPU.
    """
    selectors = list(selectors)
    if not selectors:
        return []
    _check_alike(selectors)
    first = selectors[0]
    bk, accepted = first._accept(X)
    for selector in selectors[1:]:
        selector._accept(X)
    seeds = [selector._seed() for selector in selectors]
    with bk.device_of(accepted) if on_device(accepted) else nullcontext():
        name, evaluate = get_engine(first.engine, bk, 1, issparse(accepted))

        def engine() -> Evaluate:
            return get_engine(name, bk, 1, issparse(accepted))[1]

        for selector in selectors:
            selector.engine_ = name
        first._check_memory(bk, accepted, 1)
        at_once = _at_once(bk, first, accepted)
        data = first._prepare(bk, accepted)

        def fit(index: int, train: Train, evaluate: Evaluate) -> Outcome:
            with bk.device_of(data.X):
                return selectors[index]._train(bk, accepted, data, evaluate, seeds[index], train)

        if bk.name == "numpy":
            outcomes = _side_by_side(fit, len(selectors), at_once, engine)
        else:
            outcomes = []
            bk.synchronize()  # other threads read what the caller's stream has still to compute
            for start in range(0, len(selectors), at_once):
                outcomes += _stacked(fit, range(start, min(start + at_once, len(selectors))), bk, evaluate)
    for selector, outcome in zip(selectors, outcomes, strict=True):
        selector._warn(outcome, accepted.shape[0])
    return selectors


def _check_alike(selectors: Sequence[DUFS]) -> None:
    expected = selectors[0].get_params()
    for position, selector in enumerate(selectors):
        for name, value in selector.get_params().items():
            if name not in _FREE and value != expected[name]:
                raise ValueError(
                    f"Selectors that are fitted together differ in {', '.join(sorted(_FREE))} alone; {name} is "
                    f"{expected[name]!r} in the first and {value!r} in number {position}. Fit those apart."
                )


def _at_once(bk: Backend, selector: DUFS, X: Any) -> int:
    """How many fits may be in work at once: cores on the CPU, draws that fit memory on a GPU; at least 1."""
    most = n_threads(selector.n_jobs) if bk.name == "numpy" else _MOST_TOGETHER
    available = selector.max_memory or available_bytes(bk)
    if available is None:
        return most
    step, _ = selector.memory_of(X, 1)
    if bk.name == "numpy":
        return max(1, min(most, available // (2 * max(1, predicted_bytes(selector.engine_, step)))))
    while most > 1:
        if 2 * predicted_bytes(selector.engine_, step._replace(draws=most * step.draws)) <= available:
            break
        most //= 2
    return most


def _wait(futures: Sequence[Future[Outcome]], stopped: Event) -> list[Outcome]:
    """The results in order. An error, or Ctrl-C, ends all."""
    try:
        return [future.result() for future in futures]
    except BaseException:
        stopped.set()
        for future in futures:
            future.cancel()
        raise


class _Stopped(Exception):
    """Another fit failed, or the user ended all."""


def _stoppable(train: Train, stopped: Event) -> Train:
    def stoppable(*arguments: Any, progress: Any = None, **how: Any) -> Run:
        def look(info: StepInfo) -> None:
            if stopped.is_set():
                raise _Stopped
            if progress is not None:
                progress(info)

        return train(*arguments, progress=look, **how)

    return stoppable


def _side_by_side(fit: _Fit, count: int, at_once: int, engine: Callable[[], Evaluate]) -> list[Outcome]:
    """Every thread fits one after the other, with an engine of its own for all of them."""
    engines: SimpleQueue[Evaluate] = SimpleQueue()
    for _ in range(at_once):
        engines.put(engine())
    stopped = Event()

    def member(index: int) -> Outcome:
        evaluate = engines.get()
        try:
            return fit(index, _stoppable(train, stopped), evaluate)
        finally:
            engines.put(evaluate)

    with ThreadPoolExecutor(at_once) as pool:
        return _wait([pool.submit(member, index) for index in range(count)], stopped)


def _stacked(fit: _Fit, indices: range, bk: Backend, evaluate: Evaluate) -> list[Outcome]:
    """A thread for every fit; their training runs meet, and those on the same columns advance as one."""
    together, stopped = _Together(bk, evaluate, len(indices)), Event()

    def member(index: int) -> Outcome:
        try:
            return fit(index, _stoppable(together.train, stopped), evaluate)
        finally:
            together.leave()

    with ThreadPoolExecutor(len(indices)) as pool:
        return _wait([pool.submit(member, index) for index in indices], stopped)


class _Request:
    """A training run that a member waits for."""

    def __init__(self, arguments: tuple[Any, ...], how: dict[str, Any]) -> None:
        self.bk, self.X, self.columns, self.objective, self.evaluate, self.optimizer, self.schedule, self.seed = (
            arguments
        )
        self.how = how
        self.run: Run | None = None
        self.error: BaseException | None = None

    @property
    def watched(self) -> bool:
        """Whether someone wants to see every step, or to keep the state of this run alone."""
        return bool(self.how["callbacks"]) or self.how["start"] is not None or self.how["keep"] is not None

    @property
    def key(self) -> Any:
        """Runs with the same key can advance together."""
        return self.columns.tobytes(), self.optimizer.name, self.optimizer.learning_rate, self.how["jitter"]


class _Together:
    """Trains the runs of all members once every member waits for one, or has left."""

    def __init__(self, bk: Backend, evaluate: Evaluate, members: int) -> None:
        self._bk, self._evaluate, self._members = bk, evaluate, members
        self._changed = Condition()
        self._waiting: list[_Request] = []

    def train(self, *arguments: Any, **how: Any) -> Run:
        """As `dufs_core.trainer.train`."""
        request = _Request(arguments, how)
        with self._changed:
            self._waiting.append(request)
            self._start_if_complete()
            self._changed.wait_for(lambda: request.run is not None or request.error is not None)
        if request.error is not None:
            raise request.error
        assert request.run is not None
        return request.run

    def leave(self) -> None:
        """This member has no more runs."""
        with self._changed:
            self._members -= 1
            self._start_if_complete()

    def _start_if_complete(self) -> None:
        if not self._waiting or len(self._waiting) < self._members:
            return
        requests, self._waiting = self._waiting, []
        groups: dict[Any, list[_Request]] = {}
        for request in requests:
            groups.setdefault(request.key, []).append(request)
        for group in groups.values():
            try:
                for request, run in zip(group, self._runs(group), strict=True):
                    request.run = run
            except BaseException as error:
                for request in group:
                    request.error = error
        self._changed.notify_all()

    def _runs(self, group: list[_Request]) -> list[Run]:
        first = group[0]
        problems = [Problem(r.objective, r.optimizer, r.schedule, r.seed, r.columns) for r in group]
        full = first.schedule.batch_size is None or first.schedule.batch_size >= first.X.shape[0]
        if full and len(group) > 1 and hasattr(self._evaluate, "population") and not any(r.watched for r in group):
            runs = train_together(
                self._bk, first.X, problems, self._evaluate, first.how["jitter"], [r.how["progress"] for r in group]
            )
            if runs is not None:
                return runs
        return [
            train(r.bk, r.X, r.columns, r.objective, r.evaluate, r.optimizer, r.schedule, r.seed, **r.how)
            for r in group
        ]


def train_together(
    bk: Backend,
    X: Array,
    problems: Sequence[Problem],
    evaluate: Any,
    jitter: bool,
    progress: Sequence[Callable[[StepInfo], None]],
) -> list[Run] | None:
    """`dufs_core.trainer.train` of problems that differ in seed and lam, on all rows of X (n, d), at once.

    None if the engine cannot. Each of `progress` is called with what its own run has come to.
    """
    schedule, columns, fits = problems[0].schedule, problems[0].columns, len(problems)
    start = bk.xp.stack([initial_mu(bk, problem.seed, columns, X.dtype, jitter) for problem in problems])
    steps = evaluate.population(bk, problems, start)
    if steps is None:
        return None
    rows = bk.xp.arange(X.shape[0])
    records: list[list[Array]] = [[] for _ in problems]
    step, together, running = 0, 1, fits
    while running and step < schedule.max_iter:
        started, count = perf_counter(), min(together, schedule.max_iter - step)
        parts = steps.advance(X, rows, step + 1, count)
        step += count
        if perf_counter() - started < _SECONDS_TOGETHER:
            together *= 2
        mu = steps.mu
        running = 0
        for fit, part in enumerate(parts):
            if not len(part):
                continue
            records[fit].append(part)
            last = dict(zip(RECORD, part[-1], strict=True))
            info = StepInfo(
                sum(map(len, records[fit])),
                mu[fit],
                last["loss"],
                int(last["open_gates"]),
                int(last["undecided_gates"]),
            )
            running += info.undecided_gates > schedule.tol * len(columns)
            progress[fit](info)
    mu = steps.mu
    return [finished(mu[fit], np.concatenate(records[fit]), schedule) for fit in range(fits)]
