"""Fits on the same data that differ in lam and seed, together.

On a GPU their runs advance as one: the draws of all fits are one stack of matrices
(`dufs_core.objective.engines.gpu_steps`). On
the CPU every core computes a fit of its own, without barriers between threads. A fit gives what it gives alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from functools import partial
from queue import SimpleQueue
from threading import Condition
from time import perf_counter
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from joblib.parallel import get_active_backend
from sklearn.base import clone
from sklearn.utils.validation import validate_data

from dufs_core.backend import Array, Backend
from dufs_core.backend.memory import available_bytes
from dufs_core.data.accept import unwrap
from dufs_core.errors import DufsWarning, InterruptedFit, user_stacklevel
from dufs_core.objective.engines.choose import predicted_bytes
from dufs_core.objective.protocol import RECORD, Engine, RunSpec, RunState
from dufs_core.selection import checkpoint
from dufs_core.selection.dufs import DUFS
from dufs_core.selection.fit_warnings import warn_about_fit
from dufs_core.selection.graph_rules import order_of
from dufs_core.selection.parameters import check_parameters, n_threads, seed_of
from dufs_core.selection.search import Outcome
from dufs_core.training.loop import Run, StepInfo, Train, finished, initial_mu, train

# may differ between fits
_FREE = frozenset({"lam", "random_state", "n_features_to_select", "ranking", "callbacks", "verbose"})
_SECONDS_TOGETHER = 0.1  # between two looks at Ctrl-C
_MOST_TOGETHER = 256  # fits in one stack

_Fit = Callable[[int, Train, Engine], Outcome]  # the fit of one number, with this trainer and engine


def fit_many(selectors: Sequence[DUFS], X: Any) -> list[DUFS]:
    """Fit selectors that differ in lam and random_state on the same data, together.

    Parameters
    ----------
    selectors : sequence of DUFS
        They may differ in lam, random_state, n_features_to_select, ranking, callbacks and verbose. X is checked and
        scaled once. On the CPU, n_jobs is the number of fits in work at once. Each selector is fitted, in place.
    X : array-like (n_samples, n_features)
        As in `DUFS.fit`.

    Returns
    -------
    list of DUFS
        The selectors.

    Raises
    ------
    ValueError
        If the selectors differ in another parameter, if one that is to be fitted in another process has callbacks
        other than a Checkpoint, and as `DUFS.fit`.
    MemoryLimitError
        If one fit alone would need more memory than there is. Otherwise as many are in work at once as have room;
        max_memory holds for all of them together.

    Notes
    -----
    Under a joblib backend of other processes (`joblib.parallel_config(backend="dask")` with a Dask client, "loky") the
    fits are its tasks, each with n_jobs threads of its own.

    A fit has the numbers that it has alone: to the bit on the CPU, and on a GPU where steps are captured (small
    problems); within rounding on a GPU where cuBLAS multiplies. Minibatches, one gate per sample, and a selector with
    callbacks are trained apart from the stack on a GPU; one with a Checkpoint alone only where cuBLAS multiplies.
    """
    selectors = list(selectors)
    if not selectors:
        return []
    X = unwrap(X)
    bk, accepted, seeds = _accepted(selectors, X)
    chosen = get_active_backend(prefer="threads")[0]  # threads, unless the caller has chosen otherwise
    if bk.name == "numpy" and not getattr(chosen, "supports_sharedmem", False):
        for selector in selectors:
            checkpoint.refuse_in_processes(selector)
        return _in_other_processes(selectors, X, seeds)
    outcomes = _outcomes(selectors, X, bk, accepted, seeds)
    for selector, outcome in zip(selectors, outcomes, strict=True):
        warn_about_fit(selector, outcome, accepted.shape[0])
    return selectors


def fit_stack(selectors: Sequence[DUFS], X: Any) -> list[Callable[[], None]]:
    """`fit_many` in this process; what says the warnings of each fit is given back instead of called."""
    bk, accepted, seeds = _accepted(selectors, X)
    outcomes = _outcomes(selectors, X, bk, accepted, seeds)
    pairs = zip(selectors, outcomes, strict=True)
    return [partial(warn_about_fit, selector, outcome, accepted.shape[0]) for selector, outcome in pairs]


def stack_size(selector: DUFS, X: Any, count: int) -> int:
    """How many of `count` fits like this one advance as one stack on X, each with the bits that it has alone.

    1 where they cannot (each fit has decoys of its own), or where cuBLAS would multiply: its rounding may depend on how
    many matrices there are.
    """
    bk, accepted = selector._accept(X)
    n, d = accepted.shape
    alone = selector.fdr is not None or selector.gate_noise == "sample" or selector._step_rows(n) < n
    if bk.name == "numpy" or alone:
        return 1
    from dufs_core.objective.engines.gpu_dense import is_stacked_captured

    with selector._place(bk, X, accepted):
        selector._engine(bk, accepted, 1)
        draws = selector._step_draws(n)
        while count > 1 and not is_stacked_captured(n, d, count * draws, count):
            count //= 2
        return _at_once(bk, selector, accepted, count) if selector.engine_ == "cuda" else 1


def _accepted(selectors: Sequence[DUFS], X: Any) -> tuple[Backend, Any, list[int]]:
    """The backend, X as `DUFS.fit` accepts it, and the seeds. Raises ValueError if the fits cannot be together."""
    _check_alike(selectors)
    bk, accepted = selectors[0]._accept(X)
    for selector in selectors[1:]:
        validate_data(selector, X, skip_check_array=True)  # names and number of features
        check_parameters(selector, *accepted.shape)
    return bk, accepted, [seed_of(selector.random_state) for selector in selectors]


def _outcomes(selectors: Sequence[DUFS], X: Any, bk: Backend, accepted: Any, seeds: Sequence[int]) -> list[Outcome]:
    """Fit all, in this process."""
    # what they share is read from one that needs the most memory
    first = next((selector for selector in selectors if order_of(selector) == "diverse"), selectors[0])
    with first._place(bk, X, accepted):
        evaluate = first._engine(bk, accepted, 1)
        for selector in selectors:
            selector.engine_ = first.engine_
        at_once = _at_once(bk, first, accepted, len(selectors))
        data = first._prepare(bk, accepted)
        here = bk.xp.empty(0)  # on the device that is the current one of this thread

        def fit(index: int, train: Train, evaluate: Engine) -> Outcome:
            with bk.device_of(here):
                return selectors[index]._train(bk, accepted, data, evaluate, seeds[index], train)

        if bk.name == "numpy":
            return _side_by_side(fit, len(selectors), at_once, lambda: first._engine(bk, accepted, 1))
        outcomes: list[Outcome] = []
        bk.synchronize()  # other threads read what the caller's stream has still to compute
        for start in range(0, len(selectors), at_once):
            outcomes += _stacked(fit, range(start, min(start + at_once, len(selectors))), bk, evaluate)
        return outcomes


def _in_other_processes(selectors: Sequence[DUFS], X: Any, seeds: Sequence[int]) -> list[DUFS]:
    """Every fit a task of the joblib backend that the caller has chosen; what they warn of is said here."""
    tasks = (delayed(_fit_there)(selector, X, seed) for selector, seed in zip(selectors, seeds, strict=True))
    for selector, (fitted, said) in zip(selectors, Parallel()(tasks), strict=True):
        selector.__dict__.update({name: value for name, value in fitted.items() if name.endswith("_")})
        for warning in said:
            warnings.warn(warning, stacklevel=user_stacklevel())
    return list(selectors)


def _fit_there(selector: DUFS, X: Any, seed: int) -> tuple[dict[str, Any], list[Warning]]:
    selector = clone(selector).set_params(random_state=seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        selector.fit(X)
    return selector.__dict__, [w.message for w in caught if isinstance(w.message, DufsWarning)]


def _check_alike(selectors: Sequence[DUFS]) -> None:
    if len({id(selector) for selector in selectors}) < len(selectors):
        raise ValueError("One selector is given twice: give each fit an object of its own (sklearn.base.clone)")
    saved = [found.path for found in (checkpoint.find(selector.callbacks) for selector in selectors) if found]
    if len(set(saved)) < len(saved):
        raise ValueError("Two selectors save their state to the same path: give each Checkpoint a path of its own")
    expected = selectors[0].get_params()
    for position, selector in enumerate(selectors):
        for name, value in selector.get_params().items():
            if name not in _FREE and value != expected[name]:
                raise ValueError(
                    f"Selectors that are fitted together differ in {', '.join(sorted(_FREE))} alone; {name} is "
                    f"{expected[name]!r} in the first and {value!r} in number {position}. Fit those apart."
                )


def _at_once(bk: Backend, selector: DUFS, X: Any, count: int) -> int:
    """How many fits may be in work at once: cores on the CPU, draws that fit memory on a GPU; at least 1."""
    together = _MOST_TOGETHER if selector.fdr is None else 1  # each fit has decoys of its own
    most = min(count, n_threads(selector.n_jobs) if bk.name == "numpy" else together)
    available = selector.max_memory or available_bytes(bk)
    if available is None:
        return most
    while most > 1 and bytes_together(bk, selector, X, most) > available:
        most -= -(-most // 8)
    return most


def bytes_together(bk: Backend, selector: DUFS, X: Any, fits: int) -> int:
    """Bytes that so many fits at once allocate, by the engine that `selector` has chosen."""
    (n, d), (step, data) = X.shape, selector.memory_of(X, 1)
    own = step.after
    if selector.max_runs > 1:
        own += n * d * step.itemsize  # the columns of a later run
    if bk.name == "numpy":
        steps = fits * predicted_bytes(selector.engine_, step)
    else:
        steps = predicted_bytes(selector.engine_, step._replace(draws=fits * step.draws, fits=fits))
    return data + fits * own + steps


class _Stopped(Exception):
    """Another fit failed, or the user ended all."""


class _Stop:
    """Whether all fits are to end, and why."""

    def __init__(self) -> None:
        self.cause: BaseException | None = None

    def watched(self, train: Train) -> Train:
        """`train`, ended by _Stopped once there is a cause.

        A run that is kept goes on if the cause is that another was asked to save and end: it is asked as well.
        """

        def stoppable(*arguments: Any, progress: Any = None, **how: Any) -> Run:
            def look(info: StepInfo) -> None:
                if self.cause is not None and not (how["keep"] and isinstance(self.cause, InterruptedFit)):
                    raise _Stopped
                if progress is not None:
                    progress(info)

            return train(*arguments, progress=look, **how)

        return stoppable


def _run_all(
    member: Callable[[int], Outcome],
    indices: Sequence[int],
    threads: int,
    stop: _Stop,
    release: Callable[[], None] = lambda: None,
) -> list[Outcome]:
    """member(index) of all, in threads. The first error, or Ctrl-C, ends all, `release` being called, and is raised."""

    def guarded(index: int) -> Outcome:
        try:
            return member(index)
        except BaseException as error:
            if stop.cause is None and not isinstance(error, _Stopped):
                stop.cause = error
            release()
            raise

    with ThreadPoolExecutor(threads) as pool:
        futures: list[Future[Outcome]] = []
        try:
            futures += [pool.submit(guarded, index) for index in indices]
            wait(futures, return_when=FIRST_EXCEPTION)
        except BaseException as error:
            stop.cause = error
            raise
        finally:
            if stop.cause is not None:
                release()
                for future in futures:
                    future.cancel()
    if stop.cause is not None:
        raise stop.cause
    return [future.result() for future in futures]


def _side_by_side(fit: _Fit, count: int, at_once: int, engine: Callable[[], Engine]) -> list[Outcome]:
    """Every thread fits one after the other, with an engine of its own for all of them."""
    engines: SimpleQueue[Engine] = SimpleQueue()
    for _ in range(at_once):
        engines.put(engine())
    stop = _Stop()

    def member(index: int) -> Outcome:
        evaluate = engines.get()
        try:
            return fit(index, stop.watched(train), evaluate)
        finally:
            engines.put(evaluate)

    return _run_all(member, range(count), at_once, stop)


def _stacked(fit: _Fit, indices: range, bk: Backend, evaluate: Engine) -> list[Outcome]:
    """A thread for every fit; their training runs meet, and those on the same columns advance as one."""
    together, stop = _Together(bk, evaluate, len(indices)), _Stop()

    def member(index: int) -> Outcome:
        outcome = fit(index, stop.watched(together.train), evaluate)
        together.leave()
        return outcome

    return _run_all(member, indices, len(indices), stop, together.give_up)


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
        """Whether someone wants to see every step."""
        return bool(self.how["callbacks"])

    @property
    def over(self) -> bool:
        """Whether its start is its end."""
        start = self.how["start"]
        return start is not None and start.is_end(self.schedule, len(self.columns))

    @property
    def key(self) -> Any:
        """Runs with the same key can advance together; one that is watched, or over, stands alone."""
        alone = id(self) if self.watched or self.over else None
        step = self.how["start"].step if self.how["start"] is not None else 0
        optimizer = self.optimizer.name, self.optimizer.learning_rate
        return alone, step, self.columns.tobytes(), optimizer, self.how["noisy_start"]


class _Together:
    """Trains the runs of all members once every member waits for one, or has left. One that fails ends all."""

    def __init__(self, bk: Backend, evaluate: Engine, members: int) -> None:
        self._bk, self._evaluate, self._members = bk, evaluate, members
        self._given_up = False
        self._changed = Condition()
        self._waiting: list[_Request] = []

    def train(self, *arguments: Any, **how: Any) -> Run:
        """As `dufs_core.training.loop.train`."""
        request = _Request(arguments, how)
        self._bk.synchronize()  # another member's thread may compute the run
        with self._changed:
            self._waiting.append(request)
            self._start_if_complete()
            self._changed.wait_for(lambda: request.run is not None or request.error is not None or self._given_up)
        if request.error is not None:
            raise request.error
        if request.run is None:
            raise _Stopped
        return request.run

    def leave(self) -> None:
        """This member has no more runs."""
        with self._changed:
            self._members -= 1
            self._start_if_complete()

    def give_up(self) -> None:
        """Nobody waits any longer."""
        self._given_up = True
        with self._changed:
            self._changed.notify_all()

    def _start_if_complete(self) -> None:
        if self._given_up or not self._waiting or len(self._waiting) < self._members:
            return
        requests, self._waiting = self._waiting, []
        groups: dict[Any, list[_Request]] = {}
        for request in requests:
            groups.setdefault(request.key, []).append(request)
        try:
            for group in groups.values():
                for request, run in zip(group, self._runs(group), strict=True):
                    request.run = run
            self._bk.synchronize()
        except BaseException as error:
            self._given_up = True
            for request in requests:
                request.error = error
        self._changed.notify_all()

    def _runs(self, group: list[_Request]) -> list[Run]:
        first = group[0]
        problems = [RunSpec(r.objective, r.optimizer, r.schedule, r.seed, r.columns) for r in group]
        full = first.schedule.batch_size is None or first.schedule.batch_size >= first.X.shape[0]
        apart = any(r.watched for r in group) or (any(r.how["keep"] for r in group) and not _keeps_bits(group))
        if full and len(group) > 1 and not apart:
            progress, starts, keeps = ([r.how[name] for r in group] for name in ("progress", "start", "keep"))
            runs = train_together(
                self._bk, first.X, problems, self._evaluate, first.how["noisy_start"], progress, starts, keeps
            )
            if runs is not None:
                return runs
        return [
            train(r.bk, r.X, r.columns, r.objective, r.evaluate, r.optimizer, r.schedule, r.seed, **r.how)
            for r in group
        ]


def _keeps_bits(group: Sequence[_Request]) -> bool:
    """Whether each of these runs has in a stack the bits that it has alone, as one that is resumed is promised."""
    from dufs_core.objective.engines.gpu_dense import is_stacked_captured

    (n, d), draws = group[0].X.shape, group[0].schedule.n_draws
    return is_stacked_captured(n, d, len(group) * draws, len(group))


def train_together(
    bk: Backend,
    X: Array,
    problems: Sequence[RunSpec],
    evaluate: Any,
    noisy_start: bool,
    progress: Sequence[Callable[[StepInfo], None]],
    starts: Sequence[RunState | None],
    keeps: Sequence[Callable[[Callable[[], RunState]], None] | None],
) -> list[Run] | None:
    """`dufs_core.training.loop.train` of problems that differ in seed and lam, on all rows of X (n, d), at once.

    None if the engine cannot. Each of `progress` is called with what its own run has come to. `starts` are at the same
    step, and none is an end. Each of `keeps` is called for its run until all have ended, also with the end that one
    waits at. When one of them asks to stop, by InterruptedFit, the others are called before it is raised.
    """
    schedule, columns, fits = problems[0].schedule, problems[0].columns, len(problems)
    start = bk.xp.stack([initial_mu(bk, problem.seed, columns, X.dtype, noisy_start) for problem in problems])
    steps = evaluate.stacked_steps(bk, problems, start)
    if steps is None:
        return None
    rows = bk.xp.arange(X.shape[0])
    given = [start for start in starts if start is not None]
    records: list[list[Array]] = [[start.records] for start in given] or [[] for _ in problems]
    if given:
        steps.load([start.steps for start in given])
    step, together, running = given[0].step if given else 0, 1, fits
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
                columns,
            )
            running += info.undecided_gates > schedule.tol * len(columns)
            progress[fit](info)
        _keep_all(keeps, steps, records)
    mu = steps.mu
    return [finished(mu[fit], np.concatenate(records[fit]), schedule) for fit in range(fits)]


def _keep_all(
    keeps: Sequence[Callable[[Callable[[], RunState]], None] | None], steps: Steps,
    records: Sequence[Sequence[Array]],
) -> None:  # fmt: skip
    """Let every run be kept; then raise the InterruptedFit of one that was asked to stop."""
    asked: InterruptedFit | None = None
    for fit, keep in enumerate(keeps):
        if keep is None:
            continue
        try:
            keep(partial(_position, steps, fit, records[fit]))
        except InterruptedFit as error:
            asked = error
    if asked is not None:
        raise asked


def _position(steps: Steps, fit: int, records: Sequence[Array]) -> RunState:
    table = np.concatenate(records)
    return RunState(len(table), steps.save(fit), table)
