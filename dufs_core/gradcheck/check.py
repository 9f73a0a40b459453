"""The checker: does this backward belong to this function?

For a function f of arrays x_1, x_2, ... with values y_1, y_2, ..., random cotangents w and a direction v,

    <w, df/dt f(x + t v) at t = 0>  =  <g, v>,      g = backward(x, w),

must hold. The left side comes from differences in float64, the right side from the backward under test.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from dufs_core.backend import Array
from dufs_core.gradcheck import differences
from dufs_core.gradcheck.arrays import array_module, as_tuple, dot, magnitude, size_of, to_host, unit_directions
from dufs_core.gradcheck.report import Comparison, Report

Function = Callable[..., Any]
Project = Mapping[int, Callable[[Array], Array]]
Direction = list[Array | None]  # one entry for each input, None where it does not move

_WIDER = 32.0  # Richardson's tables start at 32 steps, 1 step, 1/32 step, 32^-2 and 32^-3 steps
_ROUNDING = 64.0  # units in the last place of |w||f| granted to the function, divided by the widest step
_RESOLVED = 1e-8  # a table whose slope is known no better than this (relative) neither confirms nor refutes
_KINK_RESIDUAL = 1e-3  # fourth difference / step, relative to the slope, above which one-sided slopes are compared
_KINK_JUMP = 1e-5  # relative jump of the slope that is called a kink


@dataclass
class _Problem:
    """Function, backward and inputs in the form every part below uses."""

    xp: Any
    function: Function
    inputs: tuple[Array, ...]
    values: tuple[Array, ...]
    cotangents: tuple[Array, ...]
    gradients: tuple[Array | None, ...]
    scales: tuple[float, ...]
    project: Project
    weight: float  # sum |w||f|: what rounding is relative to

    @cached_property
    def active(self) -> list[int]:
        """The inputs with a gradient."""
        return [i for i, g in enumerate(self.gradients) if g is not None]

    @cached_property
    def coordinates(self) -> list[tuple[int, int]]:
        """(input, flat index) of every coordinate with a derivative."""
        return [(i, k) for i in self.active for k in range(size_of(self.inputs[i]))]

    def line(self, direction: Direction) -> differences.Phi:
        """phi(t) = <w, f(x + t v) - f(x)>, each value computed once."""
        known: dict[float, float] = {0.0: 0.0}

        def phi(t: float) -> float:
            if t not in known:
                moved = [x if v is None else x + t * v for x, v in zip(self.inputs, direction, strict=True)]
                values = as_tuple(self.function(*moved))
                change = [self.xp.asarray(y) - y0 for y, y0 in zip(values, self.values, strict=True)]
                known[t] = float(dot(self.xp, self.cotangents, change))
            return known[t]

        return phi

    def analytic(self, direction: Direction) -> float:
        return float(dot(self.xp, self.gradients, direction))

    def direction(self, parts: Mapping[int, Any]) -> Direction:
        """Host arrays for some of the inputs, in units of each input's scale, projected."""
        v: Direction = [None] * len(self.inputs)
        for i, part in parts.items():
            v[i] = self.projected(i, self.xp.asarray(part * self.scales[i]))
        return v

    def projected(self, i: int, v: Array) -> Array:
        return self.project[i](v) if i in self.project else v

    def random_directions(self, seed: Sequence[int], count: int) -> Iterator[Direction]:
        """Seeded unit vectors over all inputs with a gradient."""
        rng = np.random.default_rng(seed)
        for _ in range(count):
            parts = unit_directions(rng, [np.shape(self.inputs[i]) for i in self.active])
            yield self.direction(dict(zip(self.active, parts, strict=True)))


def check_gradient(
    function: Function,
    backward: Function,
    inputs: Sequence[Any],
    *,
    name: str = "gradient",
    rtol: float = 1e-9,
    step: float = 1e-3,
    directions: int = 4,
    every_coordinate: int = 12,
    seed: int = 0,
    cotangents: Sequence[Array] | None = None,
    scales: Sequence[float] | None = None,
    project: Project | None = None,
    fresh: bool = False,
) -> Report:
    """Compare a hand-written backward with five-point differences, along random directions and coordinates.

    Parameters
    ----------
    function
        ``function(*inputs)`` gives a number, an array, or a tuple of arrays, and always the same ones.
    backward
        ``backward(*inputs, *cotangents)``, one cotangent in the shape of each value (none if the function gives a
        number): the derivative of sum(w f) with respect to each input, in its shape. One array, or a tuple in the
        inputs' order, None where an input has no derivative (None may be left off the end).
    inputs
        NumPy or CuPy arrays of any shape, or numbers. Floating-point ones are converted to float64.
    rtol
        Largest |numeric - analytic| relative to the largest of both numbers, ||g * v|| (random direction v) or rms of
        the input's gradient / 100 (coordinate), and what rounding of the function's value can do to the differences.
    step
        h of the stencil, in units of each input's scale along a unit vector.
    directions, every_coordinate
        Number of random unit vectors, each entry at least 0.1 / sqrt(number of entries) in size; and number of
        coordinates up to which each is checked by itself as well.
    cotangents
        Weights of the values, always passed to the backward; default: seeded normal numbers, 1 for a number.
    scales
        The size of each input that the step refers to; default: its largest absolute value, 1 if that is 0.
    project
        ``{input number: linear orthogonal projection}`` for inputs in a subspace (symmetric matrices): directions
        are projected, and only the projected gradient is judged.
    fresh
        Whether the gradients must be arrays of their own, never an input's or a cotangent's memory.

    Returns
    -------
    Report
        ``report.raise_if_failed()`` raises GradientError with the readable message. Status "kink": the function has
        no derivative within the step; both one-sided slopes are in the report.

    Notes
    -----
    A direction passes where D(h) = (f(-2h) - 8 f(-h) + 8 f(h) - f(2h)) / 12h agrees, or else central differences
    extrapolated (Richardson) from any of 32 h, h, h / 32, h / 1024 and h / 32768: a wrong gradient agrees with none.
    (The smallest steps lose digits; there the table's estimated error replaces `rtol`, up to 1e-8.) Where none agrees,
    or the fourth difference shows a jump of the slope, the one-sided slopes decide between kink and wrong gradient.
    """
    problem, mistakes = _prepare(function, backward, inputs, cotangents, scales, project, seed, fresh)
    if mistakes or not problem.active:
        return Report(name, (), mistakes)
    comparisons = []
    for k, v in enumerate(problem.random_directions([seed, 1], directions)):
        scale = magnitude(problem.xp, problem.gradients, v)
        comparisons.append(_compare(problem, v, f"direction {k}", rtol, step, scale))
    if len(problem.coordinates) <= every_coordinate:
        comparisons += [_coordinate(problem, i, k, rtol, step) for i, k in problem.coordinates]
    report = Report(name, tuple(comparisons))
    if report.status == "failed":
        report = replace(report, worst_coordinate=_worst_coordinate(problem, rtol, step, seed))
    return report


def check_complex_step(
    function: Function,
    backward: Function,
    inputs: Sequence[Any],
    *,
    name: str = "gradient (complex step)",
    rtol: float = 1e-13,
    directions: int = 4,
    seed: int = 0,
    cotangents: Sequence[Array] | None = None,
    scales: Sequence[float] | None = None,
    project: Project | None = None,
    analytic_function: Function | None = None,
) -> Report:
    """The same comparison with <w, Im f(x + i h v)> / h, h = 1e-30: no truncation, no cancellation.

    For functions that are analytic and accept complex arrays (no abs, conj, max, comparison of values);
    ``analytic_function``, if given, is differentiated instead and must give the same values. Arguments and
    result otherwise as in `check_gradient`; the error left is the rounding of the two computations.
    """
    problem, mistakes = _prepare(function, backward, inputs, cotangents, scales, project, seed, False)
    h, comparisons = 1e-30, []
    if mistakes or not problem.active:
        return Report(name, (), mistakes)
    for k, v in enumerate(problem.random_directions([seed, 1], directions)):
        moved = [x if u is None else x + 1j * h * u for x, u in zip(problem.inputs, v, strict=True)]
        values = as_tuple((analytic_function or function)(*moved))
        numeric = complex(dot(problem.xp, problem.cotangents, values)).imag / h
        scale = magnitude(problem.xp, problem.gradients, v)
        found = _judged(f"direction {k}", problem.analytic(v), numeric, scale, rtol, h, "complex step")
        comparisons.append(replace(found, direction=_in_words(v)) if found.status == "failed" else found)
    return Report(name, tuple(comparisons))


def check_random(
    draw: Callable[[np.random.Generator], tuple[Function, Function, Sequence[Any]]],
    *,
    seed: int = 0,
    retries: int = 10,
    **options: Any,
) -> Report:
    """Draw ``(function, backward, inputs)`` until one is free of kinks, at most `retries` times, and check it.

    The options are `check_gradient`'s. Where every example has a kink, the last report is returned, status "kink".
    """
    for attempt in range(retries):
        function, backward, inputs = draw(np.random.default_rng([seed, attempt]))
        report = check_gradient(function, backward, inputs, seed=seed, **options)
        if report.status != "kink":
            break
    return replace(report, attempts=attempt + 1)


def assert_gradient(function: Function, backward: Function, inputs: Sequence[Any], **options: Any) -> Report:
    """`check_gradient`, raising GradientError unless it passed."""
    return check_gradient(function, backward, inputs, **options).raise_if_failed()


def _prepare(
    function: Function,
    backward: Function,
    inputs: Sequence[Any],
    cotangents: Sequence[Array] | None,
    scales: Sequence[float] | None,
    project: Project | None,
    seed: int,
    fresh: bool,
) -> tuple[_Problem, tuple[str, ...]]:
    """Run function and backward once; what is wrong already without any difference is listed."""
    xp = array_module(*inputs)
    xs = tuple(_in_float64(xp, x) for x in inputs)
    before = [to_host(x).copy() for x in xs]
    result = function(*xs)
    values = tuple(xp.asarray(y) for y in as_tuple(result))
    number = not isinstance(result, (tuple, list)) and values[0].ndim == 0
    pass_cotangents = cotangents is not None or not number
    if cotangents is None:
        rng = np.random.default_rng([seed, 0])
        cotangents = [1.0 if number else rng.standard_normal(y.shape) for y in values]
    w = tuple(xp.asarray(c) for c in cotangents)
    w_before = [to_host(c).copy() for c in w]
    gradients = as_tuple(backward(*xs, *w) if pass_cotangents else backward(*xs))
    gradients += (None,) * (len(xs) - len(gradients))

    mistakes = []
    if len(gradients) > len(xs):
        mistakes.append(f"the backward gives {len(gradients)} gradients for {len(xs)} inputs")
    for i, (g, x) in enumerate(zip(gradients, xs, strict=False)):
        if g is None:
            continue
        if np.shape(g) != np.shape(x):
            mistakes.append(f"input {i}: the gradient has shape {np.shape(g)}, the input {np.shape(x)}")
        elif hasattr(g, "dtype") and g.dtype != np.float64:
            mistakes.append(f"input {i}: the gradient is {g.dtype} although everything that went in is float64")
        elif not bool(xp.all(xp.isfinite(xp.asarray(g)))):
            mistakes.append(f"input {i}: the gradient is not finite")
        elif fresh and np.ndim(g) and any(xp.may_share_memory(g, other) for other in (*xs, *w) if np.ndim(other)):
            mistakes.append(f"input {i}: the gradient shares memory with an input or a cotangent")
    for what, old, new in (("input", before, xs), ("cotangent", w_before, w)):
        for i, (a, b) in enumerate(zip(old, new, strict=True)):
            if not np.array_equal(a, to_host(b), equal_nan=True):
                mistakes.append(f"{what} {i} was overwritten")
    if not all(bool(xp.all(xp.isfinite(y))) for y in values):
        mistakes.append("the function's value is not finite")
    if scales is None:
        scales = [_largest(xp, x) for x in xs]
    weight = float(dot(xp, [xp.abs(c) for c in w], [xp.abs(y) for y in values]))
    return _Problem(xp, function, xs, values, w, gradients, tuple(scales), project or {}, weight), tuple(mistakes)


def _in_float64(xp: Any, x: Any) -> Any:
    """Floating-point arrays and numbers as float64, a copy; everything else unchanged."""
    if hasattr(x, "dtype"):
        return xp.array(x, dtype=xp.float64) if np.issubdtype(x.dtype, np.floating) else x
    return float(x) if isinstance(x, (int, float)) and not isinstance(x, bool) else x


def _largest(xp: Any, x: Any) -> float:
    return (float(xp.max(xp.abs(xp.asarray(x)))) if size_of(x) else 0.0) or 1.0


def _judged(
    where: str, analytic: float, numeric: float, scale: float, rtol: float, h: float, method: str, slack: float = 0.0
) -> Comparison:
    """Compare the two numbers, relative to the largest of both and `scale`; `slack` is an absolute tolerance."""
    size = max(scale, abs(numeric), abs(analytic))
    if numeric == analytic:
        error = 0.0
    elif math.isfinite(numeric) and math.isfinite(analytic) and size > 0:
        error = abs(numeric - analytic) / size
    else:
        error = math.inf
    passed = error <= max(rtol, slack / size if size > 0 else 0.0)
    return Comparison(where, "passed" if passed else "failed", analytic, numeric, error, rtol, h, method)


def _compare(problem: _Problem, v: Direction, where: str, rtol: float, step: float, scale: float) -> Comparison:
    """Judge one direction; `scale` is the size below which its derivative counts as cancelled."""
    phi, analytic = problem.line(v), problem.analytic(v)
    rounding = float(np.finfo(np.float64).eps) * problem.weight
    scale = max(scale, _ROUNDING * rounding / (_WIDER * step) / rtol)
    best = _judged(where, analytic, differences.five_point(phi, step), scale, rtol, step, "five-point")
    trusted = best.status == "passed"
    for h in (step * _WIDER**power for power in (1, 0, -1, -2, -3)):
        if best.status == "passed":
            break
        slope, uncertainty = differences.richardson(phi, h)
        uncertainty = 4 * max(uncertainty, 2 * rounding * _WIDER / h)
        resolved = uncertainty <= _RESOLVED * max(scale, abs(slope), abs(analytic))
        found = _judged(where, analytic, slope, scale, rtol, h, "Richardson", uncertainty if resolved else 0.0)
        if found.status == "passed" or resolved:  # of tables that differ, the smaller step saw more
            best, trusted = found, True
    size = max(scale, abs(best.numeric), abs(analytic))
    if best.status == "passed" and differences.kink_residual(phi, step) <= _KINK_RESIDUAL * size:
        return best
    kink = _one_sided(phi, step, size, certain=not trusted)  # no table at all sees a slope: a kink nearby
    if kink is not None:
        return replace(best, status="kink", left_slope=kink[0], right_slope=kink[1], direction=_in_words(v))
    return best if best.status == "passed" else replace(best, direction=_in_words(v))


def _one_sided(phi: differences.Phi, step: float, size: float, certain: bool) -> tuple[float, float] | None:
    """Both one-sided slopes, where they differ clearly at two ranges of steps (or `certain`); else None."""
    for h in (step, step / _WIDER):
        (left, left_error), (right, right_error) = differences.one_sided(phi, -h), differences.one_sided(phi, h)
        if not certain and not abs(right - left) > _KINK_JUMP * size + 10 * (left_error + right_error):
            return None
    return left, right


def _coordinate(problem: _Problem, i: int, flat: int, rtol: float, step: float) -> Comparison:
    """Judge one coordinate of one input."""
    g = to_host(problem.xp.asarray(problem.gradients[i]))
    largest = _largest(np, g)
    rms = float(np.sqrt(np.mean((g / largest) ** 2))) * largest  # scaled first: squares may leave the range of float64
    index = tuple(int(j) for j in np.unravel_index(flat, g.shape))
    unit = np.zeros(g.shape)
    unit[index] = 1.0
    v = problem.direction({i: unit})
    return _compare(problem, v, f"input {i}, coordinate {index}", rtol, step, rms / 100 * problem.scales[i])


def _worst_coordinate(problem: _Problem, rtol: float, step: float, seed: int) -> Comparison | None:
    """Find a coordinate with a wrong derivative, by halving the set that disagrees most."""
    group = problem.coordinates
    (v,) = problem.random_directions([seed, 2], 1)
    while len(group) > 8:
        halves = group[: len(group) // 2], group[len(group) // 2 :]
        gaps = []
        for half in halves:
            masked = list(v)
            for i in problem.active:
                mask = np.zeros(np.shape(problem.inputs[i]))
                mask.reshape(-1)[[k for j, k in half if j == i]] = 1.0
                masked[i] = problem.projected(i, v[i] * problem.xp.asarray(mask))
            gaps.append(abs(differences.richardson(problem.line(masked), step)[0] - problem.analytic(masked)))
        group = halves[int(gaps[1] > gaps[0])]
    found = [_coordinate(problem, i, k, rtol, step) for i, k in group]
    return max(found, key=lambda c: (c.status == "failed", abs(c.numeric - c.analytic)), default=None)


def _in_words(v: Direction) -> str:
    """The three largest entries of a direction."""
    entries = []
    for i, part in ((i, to_host(part)) for i, part in enumerate(v) if part is not None):
        for flat in np.argsort(-np.abs(part), axis=None)[:3]:
            index = tuple(int(j) for j in np.unravel_index(flat, part.shape))
            entries.append((abs(float(part[index])), f"input {i} {index} {float(part[index]):+.3g}"))
    return ", ".join(text for _, text in sorted(entries, reverse=True)[:3])
