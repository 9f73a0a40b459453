"""Run what the registry lists: gradients, kinks by name, expectations."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import numpy as np

from dufs_core.backend import Backend
from dufs_core.gradcheck.arrays import as_tuple, to_host
from dufs_core.gradcheck.check import check_complex_step, check_gradient
from dufs_core.gradcheck.suite import expectation
from dufs_core.gradcheck.suite.registry import OPS, Example, Operation, engines, operations
from dufs_core.objective.chain import Evaluate

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


def run_suite(
    bk: Backend,
    *,
    engine: str | None = None,
    only: str = "",
    kinds: tuple[str, ...] = KINDS,
    seed: int = 0,
    examples: int = 12,
    first_failure: bool = False,
) -> Iterator[Result]:
    """Every registered operation, and every chain through every engine (or the one named), one Result at a time.

    only: a part of the names to run. first_failure: stop a check at its first failure, and the whole run after it.
    Raises ValueError for an engine that is not registered or does not run on the backend.
    """
    usable = {e.name: e for e in engines().values() if bk.name in e.backends}
    if engine is not None and engine not in usable:
        raise ValueError(f"engine must be one of {', '.join(usable)} on backend {bk.name!r}; got {engine!r}")
    chosen = [engine] if engine else list(usable)
    loaded = {name: usable[name].load() for name in chosen}
    checks: dict[str, Callable[..., Result]] = {"gradient": check_gradients, "statistical": check_expectation}
    for operation in operations():
        if only not in operation.name:
            continue
        for name in filter(operation.runs_on, [*chosen, OPS]):
            for kind in kinds:
                if kind == "statistical" and operation.expectation is None:
                    continue
                start = time.perf_counter()
                result = checks[kind](bk, operation, name, loaded.get(name), seed, examples, first_failure)
                result.seconds = time.perf_counter() - start
                yield result
                if result.failures and first_failure:
                    return


def check_gradients(
    bk: Backend, operation: Operation, engine: str, evaluate: Any, seed: int, examples: int, first_failure: bool = False
) -> Result:
    """Five-point and complex-step checks, the value against the plain formula, and the kinks by name."""
    result = Result(operation.name, engine, "gradient", examples, tolerance=operation.rtol)
    for index in range(examples):
        if result.failures and first_failure:
            return result
        try:
            _one_example(bk, operation, evaluate, seed, index, result)
        except Exception as error:  # a backward that raises is a wrong backward, whatever it raises
            result.failures.append(f"{operation.name}, seed {seed}, example {index}: {type(error).__name__}: {error}")
    for kink in operation.kinks:
        try:
            got = to_host(np.asarray(kink.gradient(bk, evaluate), dtype=np.float64))
            if not np.allclose(got, kink.expected, rtol=1e-12, atol=1e-14):
                result.failures.append(f"{operation.name}, kink {kink.name!r}: got {got.tolist()}, not {kink.expected}")
        except Exception as error:
            result.failures.append(f"{operation.name}, kink {kink.name!r}: {type(error).__name__}: {error}")
    if result.failures:
        result.worst_relative_error = max(result.worst_relative_error, result.tolerance)
    return result


def _generator(operation: Operation, *numbers: int) -> np.random.Generator:
    """The same examples for every engine, others for every operation."""
    return np.random.default_rng([crc32(operation.name.encode()), *numbers])


def _one_example(bk: Backend, operation: Operation, evaluate: Evaluate, seed: int, index: int, result: Result) -> None:
    """Draw until free of kinks, then judge; everything found goes to `result`."""
    for attempt in range(RETRIES):
        example = operation.example(bk, evaluate, _generator(operation, seed, index, attempt), index)
        case = f"{example.note}; seed {seed}, example {index}" + (f", draw {attempt}" if attempt else "")
        name = f"{operation.name} at {case}"
        options: Any = {
            "name": name, "seed": seed + index,
            "cotangents": example.cotangents, "scales": example.scales, "project": example.project,
        }  # fmt: skip
        report = check_gradient(
            example.function, example.backward, example.inputs, rtol=operation.rtol, fresh=True, **options
        )
        if report.status == "failed" or (report.passed and report.worst_relative_error <= operation.rtol):
            break
        result.redrawn += 1  # a kink, or a point where rounding hides the digits that are asked for
    if report.status != "passed":
        result.failures.append(report.message())
        return
    if report.worst_relative_error > operation.rtol:
        result.failures.append(f"{name}: none of {RETRIES} examples could be judged to {operation.rtol:g}")
        return
    result.note(report.worst_relative_error, case)
    broken = _lopsided(example) or ("" if operation.is_chain else _not_float32(example))
    if broken:
        result.failures.append(f"{name}: {broken}")
        return
    if example.analytic is None:
        return
    gap = _value_gap(example)
    if gap > operation.complex_rtol:
        result.failures.append(f"{name}: the value differs from the plain formula's by {gap:.1e} of its size")
        return
    smooth = check_complex_step(
        example.function,
        example.backward,
        example.inputs,
        rtol=operation.complex_rtol,
        analytic_function=example.analytic,
        **options,
    )
    worst = max(result.measured.get("worst_complex_step_error", 0.0), smooth.worst_relative_error)
    result.measured["worst_complex_step_error"] = worst
    if not smooth.passed:
        result.failures.append(smooth.message())


def _lopsided(example: Example) -> str:
    """What is wrong with gradients that are promised to be symmetric; "" if nothing."""
    if not example.symmetric:
        return ""
    gradients = as_tuple(example.backward(*example.inputs, *(example.cotangents or ())))
    for i in example.symmetric:
        g = to_host(gradients[i])
        if not np.max(np.abs(g - g.swapaxes(-1, -2)), initial=0.0) <= 1e-12 * np.max(np.abs(g), initial=0.0):
            return f"input {i}: the gradient is not symmetric"
    return ""


def _not_float32(example: Example) -> str:
    """Which gradient at float32 inputs is of another dtype; "" if none."""

    def rounded(x: Any) -> Any:
        return x.astype(np.float32) if hasattr(x, "dtype") and np.issubdtype(x.dtype, np.floating) else x

    low = [rounded(x) for x in example.inputs]
    with np.errstate(all="ignore"):  # the values may leave float32's range
        values = as_tuple(example.function(*low)) if example.cotangents is None else example.cotangents
        number = len(values) == 1 and np.ndim(values[0]) == 0 and example.cotangents is None
        gradients = as_tuple(example.backward(*low, *(() if number else (rounded(w) for w in values))))
    for i, g in enumerate(gradients):
        if np.ndim(g) > 0 and g.dtype != np.float32:
            return f"input {i}: the gradient of a float32 problem is {g.dtype}"
    return ""


def _value_gap(example: Example) -> float:
    """max |function - plain formula| / max |plain formula| at the example's inputs."""
    assert example.analytic is not None
    worst = 0.0
    pairs = zip(as_tuple(example.function(*example.inputs)), as_tuple(example.analytic(*example.inputs)), strict=True)
    for value, plain_value in pairs:
        a, b = to_host(value), to_host(plain_value)
        size = float(np.max(np.abs(b), initial=0.0))
        gap = float(np.max(np.abs(a - b), initial=0.0))
        worst = max(worst, gap / size if size else float(gap > 0))
    return worst


def check_expectation(
    bk: Backend, operation: Operation, engine: str, evaluate: Any, seed: int, examples: int, first_failure: bool = False
) -> Result:
    """The mean gradient over many draws against the closed form; see expectation.py."""
    assert operation.expectation is not None
    result = Result(operation.name, engine, "statistical", expectation.GROUPS, tolerance=expectation.STANDARD_ERRORS)
    try:
        samples = operation.expectation(bk, evaluate, _generator(operation, seed))
        standard_errors, relative = expectation.judge(samples)
    except Exception as error:
        result.failures.append(f"{operation.name}, expectation: {type(error).__name__}: {error}")
        return result
    result.note(relative, f"{standard_errors:.1f} standard errors from the closed form")
    result.measured["standard_errors"] = standard_errors
    if not standard_errors <= expectation.STANDARD_ERRORS:
        result.failures.append(
            f"{operation.name}: the mean gradient is {standard_errors:.1f} standard errors from the closed form "
            f"(limit {expectation.STANDARD_ERRORS:g}), {relative:.1e} relative"
        )
    return result
