"""Fits on the same data that differ in lam and seed, together.

On a GPU their first runs, which look at the same columns, advance as one: the draws of all fits are one stack of
matrices (`dufs_core.objective.engines.gpu_steps`). On the CPU they are tasks of joblib. A fit has the numbers that it
has alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from joblib.parallel import get_active_backend

from dufs_core.backend import random
from dufs_core.backend.memory import available_bytes
from dufs_core.data.groups import NOTHING_TOLD, Told
from dufs_core.data.matrix import take_columns
from dufs_core.data.scaling import ScaledData
from dufs_core.errors import DufsWarning, InterruptedFit, user_stacklevel
from dufs_core.objective.engines.choose import predicted_bytes
from dufs_core.objective.protocol import Engine, RunState
from dufs_core.selection import checkpoint
from dufs_core.selection.fit import FitTask
from dufs_core.selection.gated_selector import GatedSelector
from dufs_core.selection.parameters import n_threads
from dufs_core.selection.result import FitResult
from dufs_core.selection.trainer import Progress
from dufs_core.training.loop import Run, train

# may differ between fits
_FREE = frozenset({"lam", "random_state", "n_features_to_select", "ranking", "callbacks", "verbose"})
_MOST_TOGETHER = 256  # fits in one stack


class Cancelled(Exception):
    """Another fit failed, or the user ended all."""


def fit_many(
    selectors: Sequence[GatedSelector], X: Any, *, groups: Any = None, covariates: Any = None
) -> list[GatedSelector]:
    """Fit selectors that differ in random_state, or in lam, on the same data, together.

    Parameters
    ----------
    selectors : sequence of DUFS, or of GatedLaplacian
        They may differ in random_state, n_features_to_select, ranking and verbose, and `GatedLaplacian` in lam and
        callbacks. X is checked and scaled once. On the CPU, n_jobs is the number of concurrent fits. Each selector is
        fitted, in place.
    X : array-like (n_samples, n_features)
        As in `DUFS.fit`.
    groups, covariates : array-like, optional
        As in `DUFS.fit`.

    Returns
    -------
    list
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
    On the CPU the fits are tasks of joblib: threads, unless the caller has chosen another backend. Under one of other
    processes (`joblib.parallel_config(backend="dask")` with a Dask client, "loky") each has n_jobs threads of its own.

    A fit has the numbers that it has alone: to the bit on the CPU, and on a GPU where steps are captured (small
    problems without saturation); within rounding on a GPU where cuBLAS multiplies. On a GPU the first runs of
    `GatedLaplacian` are a stack, and later ones are trained one after the other. So are fits with minibatches, one gate
    per sample or callbacks, and, where cuBLAS multiplies, those with a Checkpoint. Fits of `DUFS` are computed one
    after the other.
    """
    selectors = list(selectors)
    results = fit_results(selectors, X, Told(groups, covariates))
    for selector, result in zip(selectors, results, strict=True):
        selector._keep(result.attributes())
    for doubt in (doubt for result in results for doubt in result.doubts):
        warnings.warn(doubt, stacklevel=user_stacklevel())
    return selectors


def fit_results(selectors: Sequence[GatedSelector], X: Any, told: Told = NOTHING_TOLD) -> list[FitResult]:
    """The results of `fit_many`; no selector is touched."""
    if not selectors:
        return []
    tasks = _tasks(selectors, X, told)
    if tasks[0].bk.name == "cupy":
        return _on_gpu(tasks)
    chosen = get_active_backend(prefer="threads")[0]  # threads, unless the caller has chosen otherwise
    return _in_threads(tasks) if getattr(chosen, "supports_sharedmem", False) else _in_processes(tasks)


def stack_size(selector: GatedSelector, X: Any, count: int, told: Told = NOTHING_TOLD) -> int:
    """How many of `count` fits like this one advance as one stack on X, each with the bits that it has alone.

    1 where they cannot, or where cuBLAS would multiply: its rounding may depend on how many matrices there are.
    """
    task = FitTask.begin(selector, X, told=told, threads=1)
    if task.bk.name == "numpy" or not _can_stack(task):
        return 1
    with task.accepted.device():
        engine = task.engine_name()
        while count > 1 and not _keeps_bits(task, count):
            count //= 2
        return max_concurrent(task, engine, count) if engine == "cuda" else 1


def max_concurrent(task: FitTask, engine: str | None, count: int) -> int:
    """How many of `count` fits like this one are computed at once: cores on the CPU, what has room on a GPU."""
    bk = task.bk
    if bk.name == "numpy":
        most = min(count, n_threads(task.settings.n_jobs))
    else:
        most = min(count, _MOST_TOGETHER if task.procedure.training else 1)
    available = task.settings.max_memory or available_bytes(bk)
    while available is not None and most > 1 and bytes_together(task, engine, most) > available:
        most -= -(-most // 8)
    return most


def bytes_together(task: FitTask, engine: str | None, fits: int) -> int:
    """Bytes that so many fits at once allocate by this engine; None: without one."""
    step, data = task.memory
    n, d = task.X.shape
    if engine is None:
        return data + fits * step.after
    own = step.after + n * d * step.itemsize  # the columns of a later run
    if task.bk.name == "numpy":
        steps = fits * predicted_bytes(engine, step)
    else:
        steps = predicted_bytes(engine, step._replace(draws=fits * step.draws, fits=fits))
    return int(data + fits * own + steps)


def _tasks(selectors: Sequence[GatedSelector], X: Any, told: Told) -> list[FitTask]:
    """A task for each selector. Raises ValueError if they cannot be fitted together."""
    for selector in selectors:
        if not isinstance(selector, GatedSelector):
            raise ValueError(f"fit_many fits DUFS or GatedLaplacian selectors; got {type(selector).__name__}")
    if len({id(selector) for selector in selectors}) < len(selectors):
        raise ValueError("One selector is given twice: give each fit an object of its own (sklearn.base.clone)")
    kind = type(selectors[0])
    expected = selectors[0].get_params(deep=False)
    for position, selector in enumerate(selectors):
        if type(selector) is not kind:
            raise ValueError(
                f"Number {position} is a {type(selector).__name__}, the first a {kind.__name__}: fit it apart"
            )
        for name, value in selector.get_params(deep=False).items():
            if name not in _FREE and value != expected[name]:
                free = ", ".join(sorted(_FREE & expected.keys()))
                raise ValueError(
                    f"Selectors that are fitted together differ in {free} alone; {name} is "
                    f"{expected[name]!r} in the first and {value!r} in number {position}. Fit those apart."
                )
    first = FitTask.begin(selectors[0], X, told=told, threads=1)
    _refuse_shared_callbacks(selectors)
    tasks = [first, *(first.for_selector(selector) for selector in selectors[1:])]
    for task in tasks:
        _ = task.seed  # in this order, where selectors share a RandomState
    return tasks


def _refuse_shared_callbacks(selectors: Sequence[GatedSelector]) -> None:
    """Raise ValueError if what two fits keep would be mixed."""
    saved = [found.path for found in (checkpoint.find(checkpoint.callbacks_of(one)) for one in selectors) if found]
    if len(set(saved)) < len(saved):
        raise ValueError("Two selectors save their state to the same path: give each Checkpoint a path of its own")
    everything = [callback for selector in selectors for callback in checkpoint.callbacks_of(selector)]
    keeping = [callback for callback in everything if checkpoint.keeps(callback)]
    for callback in keeping:
        if sum(other is callback for other in keeping) > 1:
            raise ValueError(f"Two selectors share one {type(callback).__name__}: give each fit an object of its own")


def _largest(tasks: Sequence[FitTask]) -> FitTask:
    """One that needs the most memory: what they share is read from it."""
    return max(tasks, key=lambda task: task.memory[0].after)


def _in_threads(tasks: Sequence[FitTask]) -> list[FitResult]:
    """Fit all by threads of this process; the first error, or Ctrl-C, ends all of them."""
    shared = _largest(tasks)
    concurrent = max_concurrent(shared, shared.engine_name(), len(tasks))
    data = shared.data
    looks_at_all = shared.rows.n <= random.MOST_ROWS  # else each fit looks at rows of its own
    findings = shared.findings(data) if looks_at_all else None
    causes: list[BaseException] = []

    def fit(task: FitTask) -> FitResult | None:
        is_saved = checkpoint.find(checkpoint.callbacks_of(task.settings)) is not None

        def check() -> None:  # one that is saved will be asked to end as well, and saves itself then
            if causes and not (is_saved and isinstance(causes[0], InterruptedFit)):
                raise Cancelled

        try:
            check()
            return task.run(data=data, poll=check, findings=findings)
        except BaseException as error:
            causes.append(error)
            return None

    try:
        results: list[FitResult] = Parallel(n_jobs=concurrent, prefer="threads")(delayed(fit)(task) for task in tasks)
    except BaseException as error:  # Ctrl-C, in this thread
        causes.append(error)
        raise
    if causes:
        raise causes[0]
    return results


def _in_processes(tasks: Sequence[FitTask]) -> list[FitResult]:
    """Fit all as tasks of the joblib backend that the caller has chosen."""
    for callback in (callback for task in tasks for callback in checkpoint.callbacks_of(task.settings)):
        if not isinstance(callback, checkpoint.Checkpoint):
            called = getattr(callback, "__name__", type(callback).__name__)
            raise ValueError(
                f"Fits in other processes call copies of callbacks, and what {called} keeps or does would stay there: "
                f"take it out of callbacks, or fit in threads (joblib.parallel_config(backend='threading'))"
            )
    jobs = (delayed(_fit_there)(task.settings, task.accepted.given, task.told, task.seed) for task in tasks)
    results: list[FitResult] = Parallel()(jobs)
    return results


def _fit_there(settings: Any, X: Any, told: Told, seed: int) -> FitResult:
    """A fit in a process of its own, whose warnings are in its result."""
    with warnings.catch_warnings(action="ignore", category=DufsWarning):
        return FitTask.begin(settings.set_params(random_state=seed), X, told=told).run()


def _on_gpu(tasks: Sequence[FitTask]) -> list[FitResult]:
    """Fit all on a GPU, first runs as stacks, the rest one after the other."""
    shared = _largest(tasks)
    with shared.accepted.device():
        engine = shared.engine()
        concurrent = max_concurrent(shared, None if engine is None else engine.name, len(tasks))
        data = shared.data
        results: list[FitResult] = []
        for start in range(0, len(tasks), concurrent):
            some = tasks[start : start + concurrent]
            savers = [task.saver(engine) for task in some]
            runs = _first_runs(some, savers, engine, data)
            for i, (task, saver) in enumerate(zip(some, savers, strict=True)):
                results.append(task.run(engine, data, saver, first=runs.get(i)))
    return results


def _can_stack(task: FitTask) -> bool:
    training = task.procedure.training
    if training is None:
        return False
    return training.conventions.gate_noise == "batch" and task.step_rows == task.X.shape[0]


def _first_runs(
    tasks: Sequence[FitTask], savers: Sequence[Any], engine: Engine | None, data: ScaledData
) -> dict[int, Run]:
    """Train the first runs that can be stacked, save them, and return them by task number."""
    first = tasks[0]
    columns = np.flatnonzero(~data.constant)
    if engine is None or engine.name != "cuda" or not _can_stack(first) or not len(columns):
        return {}

    # runs that stand at the same step are a stack
    runs = [task.trainer(engine, len(columns), saver).run(columns) for task, saver in zip(tasks, savers, strict=True)]
    stacks: dict[int, list[int]] = {}
    for i, (run, saver) in enumerate(zip(runs, savers, strict=True)):
        in_later_run = saver is not None and saver.start.finished
        if not (in_later_run or run.callbacks or run.is_over):
            stacks.setdefault(run.start.step if run.start else 0, []).append(i)
    X = data.X if len(columns) == data.X.shape[1] else take_columns(first.bk, data.X, columns)
    trained: dict[int, Run] = {}
    for members in stacks.values():
        if len(members) > 1 and (_keeps_bits(first, len(members)) or not any(runs[i].save for i in members)):
            trained |= zip(members, train(first.bk, X, engine, [runs[i] for i in members]), strict=True)

    # the fits go on one by one, so that one that is stopped cannot ask the others to save
    for i, end in trained.items():
        if savers[i] is not None:
            state = RunState(end.n_iter, {"mu": first.bk.to_host(end.mu)}, end.records)
            savers[i].save_now(Progress([], state))
    return trained


def _keeps_bits(task: FitTask, fits: int) -> bool:
    """Whether so many runs have in a stack the bits that each has alone, as one that is resumed is promised."""
    from dufs_core.objective.engines.gpu_plan import is_captured

    step, _ = task.memory
    return is_captured(task.X.shape, fits * step.draws, fits, step.saturating)
