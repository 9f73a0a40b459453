"""Fits on the same data that differ in lam and seed, together.

On a GPU their first runs, which look at the same columns, advance as one: the draws of all fits are one stack of
matrices (`dufs_core.objective.engines.gpu_steps`). On the CPU every core computes a fit of its own, without barriers
between threads. A fit gives what it gives alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from joblib.parallel import get_active_backend
from sklearn.base import clone

from dufs_core.backend.memory import available_bytes
from dufs_core.data.matrix import take_columns
from dufs_core.data.scaling import ScaledData
from dufs_core.errors import DufsWarning, user_stacklevel
from dufs_core.objective.engines.choose import predicted_bytes
from dufs_core.objective.protocol import Engine, RunState
from dufs_core.selection import checkpoint
from dufs_core.selection.dufs import DUFS
from dufs_core.selection.fit_task import FitTask
from dufs_core.selection.fit_warnings import warn_about_fit
from dufs_core.selection.parameters import n_threads
from dufs_core.selection.presets import order_of
from dufs_core.selection.search import Outcome, SearchState
from dufs_core.training.concurrent import Check, run_in_threads
from dufs_core.training.loop import Run, train

# may differ between fits
_FREE = frozenset({"lam", "random_state", "n_features_to_select", "ranking", "callbacks", "verbose"})
_MOST_TOGETHER = 256  # fits in one stack


def fit_many(selectors: Sequence[DUFS], X: Any) -> list[DUFS]:
    """Fit selectors that differ in lam and random_state on the same data, together.

    Parameters
    ----------
    selectors : sequence of DUFS
        They may differ in lam, random_state, n_features_to_select, ranking, callbacks and verbose. X is checked and
        scaled once. On the CPU, n_jobs is the number of concurrent fits. Each selector is fitted, in place.
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
        If one fit alone would need more memory than there is. Otherwise as many are computed at once as have room;
        max_memory holds for all of them together.

    Notes
    -----
    Under a joblib backend of other processes (`joblib.parallel_config(backend="dask")` with a Dask client, "loky") the
    fits are its tasks, each with n_jobs threads of its own.

    A fit has the numbers that it has alone: to the bit on the CPU, and on a GPU where steps are captured (small
    problems); within rounding on a GPU where cuBLAS multiplies. On a GPU the first runs of a search are stacked, and
    later ones are trained one after the other. So are fits with decoys, minibatches, one gate per sample or
    callbacks, and, where cuBLAS multiplies, those with a Checkpoint.
    """
    selectors = list(selectors)
    if not selectors:
        return []
    tasks = _tasks(selectors, X)
    chosen = get_active_backend(prefer="threads")[0]  # threads, unless the caller has chosen otherwise
    if tasks[0].bk.name == "numpy" and not getattr(chosen, "supports_sharedmem", False):
        _fit_in_processes(tasks)
    else:
        for warn in _fit(tasks):
            warn()
    return selectors


def fit_stack(selectors: Sequence[DUFS], X: Any) -> list[Callable[[], None]]:
    """`fit_many` in this process; the warnings of each fit are returned as a function instead of given."""
    return _fit(_tasks(selectors, X))


def stack_size(selector: DUFS, X: Any, count: int) -> int:
    """How many of `count` fits like this one advance as one stack on X, each with the bits that it has alone.

    1 where they cannot (each fit has decoys of its own), or where cuBLAS would multiply: its rounding may depend on how
    many matrices there are.
    """
    task = FitTask.begin(selector, X, threads=1)
    n = task.X.shape[0]
    if task.bk.name == "numpy" or selector.fdr is not None or selector.gate_noise == "sample" or task.step_rows < n:
        return 1
    with task.accepted.device():
        task.engine()
        while count > 1 and not _keeps_bits(task, count):
            count //= 2
        return max_concurrent(task, count) if selector.engine_ == "cuda" else 1


def max_concurrent(task: FitTask, count: int) -> int:
    """How many of `count` fits like this one are computed at once: cores on the CPU, what has room on a GPU."""
    selector, bk = task.selector, task.bk
    stacked = _MOST_TOGETHER if selector.fdr is None else 1  # each fit has decoys of its own
    most = min(count, n_threads(selector.n_jobs) if bk.name == "numpy" else stacked)
    available = selector.max_memory or available_bytes(bk)
    while available is not None and most > 1 and bytes_together(task, most) > available:
        most -= -(-most // 8)
    return most


def bytes_together(task: FitTask, fits: int) -> int:
    """Bytes that so many fits at once allocate, by the engine that the selector has chosen."""
    (n, d), (step, data), name = task.X.shape, task.memory, task.selector.engine_
    own = step.after
    if task.selector.max_runs > 1:
        own += n * d * step.itemsize  # the columns of a later run
    if task.bk.name == "numpy":
        steps = fits * predicted_bytes(name, step)
    else:
        steps = predicted_bytes(name, step._replace(draws=fits * step.draws, fits=fits))
    return data + fits * own + steps


def _tasks(selectors: Sequence[DUFS], X: Any) -> list[FitTask]:
    """A task for each selector. Raises ValueError if they cannot be fitted together."""
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
    first = FitTask.begin(selectors[0], X, threads=1)
    tasks = [first, *(first.for_selector(selector) for selector in selectors[1:])]
    for task in tasks:
        _ = task.seed  # in this order, where selectors share a RandomState
    return tasks


def _fit(tasks: Sequence[FitTask]) -> list[Callable[[], None]]:
    """Fit all in this process. Returns a function for each that gives its warnings."""
    # what they share is read from one that needs the most memory
    shared = next((task for task in tasks if order_of(task.selector) == "diverse"), tasks[0])
    with shared.accepted.device():
        engine = shared.engine()
        for task in tasks:
            task.selector.engine_ = engine.name
        concurrent = max_concurrent(shared, len(tasks))
        data = shared.data

        def fit(index: int, engine: Engine, check: Check) -> Outcome:
            is_saved = checkpoint.find(tasks[index].selector.callbacks) is not None
            return tasks[index].run(engine, data, poll=partial(check, is_saved))

        outcomes: list[Outcome] = []
        if shared.bk.name == "numpy":
            engines = [engine, *(shared.engine() for _ in range(concurrent - 1))]
            outcomes = run_in_threads(fit, len(tasks), engines)
        else:
            for start in range(0, len(tasks), concurrent):
                some = tasks[start : start + concurrent]
                runs = _first_runs(some, engine, data)
                outcomes += [task.run(engine, data, first=runs.get(i)) for i, task in enumerate(some)]
    n = shared.X.shape[0]
    return [partial(warn_about_fit, task.selector, found, n) for task, found in zip(tasks, outcomes, strict=True)]


def _first_runs(tasks: Sequence[FitTask], engine: Engine, data: ScaledData) -> dict[int, Run]:
    """Train the first runs that can be stacked, save them, and return them by task number."""
    first, columns = tasks[0], np.flatnonzero(~data.constant)
    if engine.name != "cuda" or first.selector.fdr is not None or first.step_rows < first.X.shape[0]:
        return {}
    runs = [
        task.search(engine, len(columns)).training_run(task.bk, columns, task.seed, [], task.saver) for task in tasks
    ]
    stacks: dict[int, list[int]] = {}
    for i, (task, run) in enumerate(zip(tasks, runs, strict=True)):
        in_later_run = task.saver is not None and task.saver.start.outcomes
        if len(columns) and not (in_later_run or run.callbacks or run.is_over):
            stacks.setdefault(run.start.step if run.start else 0, []).append(i)
    X = data.X if len(columns) == data.X.shape[1] else take_columns(first.bk, data.X, columns)
    trained: dict[int, Run] = {}
    for members in stacks.values():
        if len(members) > 1 and (_keeps_bits(first, len(members)) or not any(runs[i].save for i in members)):
            trained |= zip(members, train(first.bk, X, engine, [runs[i] for i in members]), strict=True)
    for i, end in trained.items():
        saver = tasks[i].saver
        if saver is not None:  # the fits go on one by one, so that one that is stopped cannot ask the others to save
            state = RunState(end.n_iter, {"mu": first.bk.to_host(end.mu)}, end.records)
            saver.save_now(SearchState([], state))
    return trained


def _keeps_bits(task: FitTask, fits: int) -> bool:
    """Whether so many runs have in a stack the bits that each has alone, as one that is resumed is promised."""
    from dufs_core.objective.engines.gpu_plan import is_captured

    return is_captured(task.X.shape, fits * task.step_draws, fits)


def _fit_in_processes(tasks: Sequence[FitTask]) -> None:
    """Fit all as tasks of the joblib backend that the caller has chosen, and give their warnings here."""
    for callback in (callback for task in tasks for callback in task.selector.callbacks):
        if not isinstance(callback, checkpoint.Checkpoint):
            called = getattr(callback, "__name__", type(callback).__name__)
            raise ValueError(
                f"Fits in other processes call copies of callbacks, and what {called} keeps or does would stay there: "
                f"take it out of callbacks, or fit in threads (joblib.parallel_config(backend='threading'))"
            )
    jobs = (delayed(_fit_there)(task.selector, task.accepted.given, task.seed) for task in tasks)
    for task, (fitted, caught) in zip(tasks, Parallel()(jobs), strict=True):
        task.selector.__dict__.update({name: value for name, value in fitted.items() if name.endswith("_")})
        for warning in caught:
            warnings.warn(warning, stacklevel=user_stacklevel())


def _fit_there(selector: DUFS, X: Any, seed: int) -> tuple[dict[str, Any], list[Warning]]:
    selector = clone(selector).set_params(random_state=seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        selector.fit(X)
    return selector.__dict__, [w.message for w in caught if isinstance(w.message, DufsWarning)]
