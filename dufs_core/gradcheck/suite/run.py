"""Run what the registry lists: gradients, kinks by name, expectations."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import numpy as np

from dufs_core.backend import Backend
from dufs_core.gradcheck.arrays import change, in_precision, to_host
from dufs_core.gradcheck.check import check_complex_step, check_gradient
from dufs_core.gradcheck.problem import Problem
from dufs_core.gradcheck.suite import expectation
from dufs_core.gradcheck.suite.entries import OPS, Example, Operation
from dufs_core.gradcheck.suite.registry import engines, operations
from dufs_core.gradcheck.trees import as_tuple

RTOL = 1e-9
COMPLEX_RTOL = 1e-10  # for the complex step, and for the value against the plain formula
RETRIES = 10  # examples drawn in place of one that cannot be judged: its kink is within the step
KINDS = ("gradient", "statistical")


@dataclass
class Result:
    """One line of the table."""

    name: str
    engine: str
    kind: str  # of KINDS
    examples: int
    worst_relative_error: float = 0.0
    worst_case: str = ""
    tolerance: float = 0.0
    seconds: float = 0.0
    redrawn: int = 0  # examples replaced because of a kink
    failures: list[str] = field(default_factory=list)
    measured: dict[str, float] = field(default_factory=dict)

    def note(self, error: float, case: str) -> None:
        """Keep the largest error and where it was."""
        if error > self.worst_relative_error or not self.worst_case:
            self.worst_relative_error, self.worst_case = max(error, self.worst_relative_error), case

    @contextmanager
    def failing(self, where: str) -> Iterator[None]:
        """Note an exception as a failure: a backward that raises is wrong, whatever it raises."""
        try:
            yield
        except Exception as error:
            self.failures.append(f"{where}: {type(error).__name__}: {error}")


def run_suite(
    bk: Backend,
    *,
    engine: str | None = None,
    only: str = "",
    kinds: tuple[str, ...] = KINDS,
    seed: int = 0,
    examples: int = 12,
) -> Iterator[Result]:
    """Check every registered operation with `only` in its name, chains through every engine (or the one named).

    Raises ValueError for an engine that is not registered or not for the backend.
    """
    usable = {name: e for name, e in engines().items() if bk.name in e.backends}
    if engine is not None and engine not in usable:
        raise ValueError(f"engine must be one of {', '.join(usable)} on backend {bk.name!r}; got {engine!r}")
    loaded = {name: usable[name].load() for name in ([engine] if engine else usable)}
    for operation in operations():
        if only not in operation.name:
            continue
        for name in filter(operation.runs_on, [*loaded, OPS]):
            for kind in kinds:
                if kind == "statistical" and operation.expectation is None:
                    continue
                check = check_gradients if kind == "gradient" else check_expectation
                start = time.perf_counter()
                result = check(bk, operation, name, loaded.get(name), seed, examples)
                result.seconds = time.perf_counter() - start
                yield result


def check_gradients(
    bk: Backend, operation: Operation, engine: str, evaluate: Any, seed: int, examples: int, first_failure: bool = False
) -> Result:
    """Five-point and complex-step checks, the value against the plain formula, and the kinks by name."""
    result = Result(operation.name, engine, "gradient", examples, tolerance=RTOL)
    for index in range(examples):
        if result.failures and first_failure:
            return result
        with result.failing(f"{operation.name}, seed {seed}, example {index}"):
            _one_example(bk, operation, evaluate, seed, index, result)
    for kink in operation.kinks:
        where = f"{operation.name}, kink {kink.name!r}"
        with result.failing(where):
            got = to_host(np.asarray(kink.gradient(bk, evaluate), dtype=np.float64))
            if not np.allclose(got, kink.expected, rtol=1e-12, atol=1e-14):
                result.failures.append(f"{where}: got {got.tolist()}, not {kink.expected}")
    if result.failures:
        result.worst_relative_error = max(result.worst_relative_error, result.tolerance)
    return result


def check_expectation(bk: Backend, operation: Operation, engine: str, evaluate: Any, seed: int, *_: Any) -> Result:
    """The mean gradient over many draws against the closed form; see expectation.py."""
    assert operation.expectation is not None
    limit = expectation.STANDARD_ERRORS
    result = Result(operation.name, engine, "statistical", expectation.GROUPS, tolerance=limit)
    with result.failing(f"{operation.name}, expectation"):
        standard_errors, relative = expectation.judge(*operation.expectation(bk, evaluate, _generator(operation, seed)))
        result.note(relative, f"{standard_errors:.1f} standard errors from the closed form")
        result.measured["standard_errors"] = standard_errors
        if not standard_errors <= limit:
            result.failures.append(
                f"{operation.name}: the mean gradient is {standard_errors:.1f} standard errors from the closed form "
                f"(limit {limit:g}), {relative:.1e} relative"
            )
    return result


def _generator(operation: Operation, *numbers: int) -> np.random.Generator:
    """The same examples for every engine, others for every operation."""
    return np.random.default_rng([crc32(operation.name.encode()), *numbers])


def _one_example(bk: Backend, operation: Operation, evaluate: Any, seed: int, index: int, result: Result) -> None:
    """Draw until free of kinks, then judge; everything found goes to `result`."""
    for attempt in range(RETRIES):
        example = operation.example(bk, evaluate, _generator(operation, seed, index, attempt), index)
        case = f"{example.note}; seed {seed}, example {index}" + (f", draw {attempt}" if attempt else "")
        name = f"{operation.name} at {case}"
        options: Any = {key: getattr(example, key) for key in ("cotangents", "project")}
        options |= {"name": name, "seed": seed + index}
        report = check_gradient(example.function, example.backward, example.inputs, rtol=RTOL, fresh=True, **options)
        precise = report.worst_relative_error <= RTOL
        if report.status == "failed" or (report.passed and precise):
            break
        result.redrawn += 1  # a kink, or a point where rounding hides the digits that are asked for
    if not report.passed:
        result.failures.append(report.message())
        return
    if not precise:
        result.failures.append(f"{name}: none of {RETRIES} examples could be judged to {RTOL:g}")
        return
    result.note(report.worst_relative_error, case)
    broken = _broken(bk, operation, example)
    if broken:
        result.failures.append(f"{name}: {broken[0]}")
    elif example.analytic is not None:
        smooth = check_complex_step(example.analytic, example.backward, example.inputs, rtol=COMPLEX_RTOL, **options)
        worst = max(result.measured.get("worst_complex_step_error", 0.0), smooth.worst_relative_error)
        result.measured["worst_complex_step_error"] = worst
        if not smooth.passed:
            result.failures.append(smooth.message())


def _broken(bk: Backend, operation: Operation, example: Example) -> list[str]:
    """What is wrong with an example beyond its slopes, in words."""
    point, w, found = (example.function, example.backward, example.inputs), example.cotangents, list[str]()
    if example.symmetric:
        gradients = as_tuple(example.backward(*example.inputs, *(w or ())))
        lopsided = [i for i in example.symmetric if change(gradients[i], gradients[i].swapaxes(-1, -2)) > 1e-12]
        found += [f"input {i}: the gradient is not symmetric" for i in lopsided]
    if not operation.is_chain:
        with np.errstate(all="ignore"):  # the values may leave float32's range
            low = None if w is None else [in_precision(bk.xp, c, np.float32) for c in w]
            mistakes = Problem(*point, cotangents=low, dtype=np.float32).mistakes
        found += [mistake for mistake in mistakes if "went in as" in mistake]
    if example.analytic is not None:
        values, plain = (as_tuple(f(*example.inputs)) for f in (example.function, example.analytic))
        worst = max(change(right, y) for y, right in zip(values, plain, strict=True))
        if not worst <= COMPLEX_RTOL:
            found.append(f"the value differs from the plain formula's by {worst:.1e} of its size")
    return found
