"""float32 against float64, judged by what the plain formulas lose in float32 at the same points.

The points have inputs that float32 holds exactly; the truth is the code under test in float64, which the
gradient checks verify. The error of a value or gradient is max |low - truth| / max |truth|. Over the examples,
the geometric mean of the errors may be at most 2 (value) or 3 (gradient) times that of the plain formulas;
an error below one rounding unit counts as one, and where a gradient is what is left of terms that cancel
(`Example.sizes`), its error is relative to the terms. A gradient of a float32 problem must be float32.
NumPy has no faster arithmetic of lower precision (TF32, half) to offer, so float32 is the lowest checked here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dufs_core.gradcheck.arrays import array_module, as_tuple, to_host
from dufs_core.gradcheck.check import Project
from dufs_core.gradcheck.suite.registry import Example

VALUE_FACTOR = 2.0
GRADIENT_FACTOR = 3.0
_UNIT = float(np.finfo(np.float32).eps) / 2


class Errors(NamedTuple):
    """Relative errors in float32 at one point."""

    value: float
    plain_value: float
    gradient: float
    plain_gradient: float
    problem: str = ""


def errors(example: Example) -> Errors | None:
    """The errors at one point; None where the example has no plain formula or is unusable in float32.

    Unusable: float32 cannot represent the inputs or lost every digit (plain error above 1 %), or the two precisions
    are on different sides of a kink.
    """
    if example.plain is None:
        return None
    low = tuple(_rounded(x) for x in example.inputs)
    high = tuple(_as_float64(x) for x in low)
    value = example.function(*high)
    cotangents = example.cotangents
    if cotangents is None:
        number = not isinstance(value, tuple) and np.ndim(value) == 0
        xp, rng = array_module(*low), np.random.default_rng(0)
        cotangents = () if number else tuple(xp.asarray(rng.standard_normal(np.shape(y))) for y in as_tuple(value))
    w_low = tuple(_rounded(c) for c in cotangents)
    w_high = tuple(_as_float64(c) for c in w_low)
    gradient = example.backward(*high, *w_high)
    if example.low_precision is not None:
        value_low, gradient_low = example.low_precision(*low)
    else:
        value_low, gradient_low = example.function(*low), example.backward(*low, *w_low)
    plain_value, plain_gradient = example.plain(*low, *w_low)
    project = example.project or {}
    found = Errors(
        _error(value_low, value),
        _error(plain_value, value),
        _error(gradient_low, gradient, project, example.sizes),
        _error(plain_gradient, gradient, project, example.sizes),
        _dtype_problem(gradient_low),
    )
    usable = np.isfinite(found.plain_value) and found.plain_value < 1e-2 and found.plain_gradient < 1e-2
    return found if usable or found.problem else None


def ratios(found: list[Errors]) -> tuple[float, float]:
    """Geometric mean of our error over that of the plain formulas: for values, for gradients."""
    table = np.array([e[:4] for e in found], dtype=np.float64)
    with np.errstate(invalid="ignore"):
        logs = np.log(np.maximum(table, _UNIT)).mean(axis=0)
    return float(np.exp(logs[0] - logs[1])), float(np.exp(logs[2] - logs[3]))


def _rounded(x: Any) -> Any:
    if hasattr(x, "dtype"):
        return x.astype(np.float32) if np.issubdtype(x.dtype, np.floating) else x
    return float(np.float32(x)) if isinstance(x, float) else x


def _as_float64(x: Any) -> Any:
    if hasattr(x, "dtype"):
        return x.astype(np.float64) if np.issubdtype(x.dtype, np.floating) else x
    return x


def _error(low: Any, truth: Any, project: Project | None = None, sizes: tuple[float, ...] = ()) -> float:
    """max over the parts of max |low - truth| / max |truth|; inf where the low one is not finite."""
    project = project or {}
    worst = 0.0
    for i, (a, b) in enumerate(zip(as_tuple(low), as_tuple(truth), strict=False)):
        if b is None:
            continue
        if i in project:
            a, b = project[i](a), project[i](b)
        a, b = to_host(a).astype(np.float64), to_host(b)
        gap, size = float(np.max(np.abs(a - b), initial=0.0)), float(np.max(np.abs(b), initial=0.0))
        size = max(size, sizes[i] if i < len(sizes) else 0.0)
        if not np.isfinite(gap):
            return float("inf")
        worst = max(worst, gap / size if size else float(gap > 0))
    return worst


def _dtype_problem(gradient: Any) -> str:
    for i, g in enumerate(as_tuple(gradient)):
        if g is not None and np.ndim(g) > 0 and g.dtype != np.float32:
            return f"input {i}: the gradient of a float32 problem is {g.dtype}"
    return ""
