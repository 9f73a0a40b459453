"""The checker: does this backward belong to this function?

For a function f of arrays x_1, x_2, ... with values y_1, y_2, ..., random cotangents w and a direction v,

    <w, df/dt f(x + t v) at t = 0>  =  <g, v>,      g = backward(x, w),      <a, b> = Re sum(conj(a) b),

must hold. The left side comes from differences, the right side from the backward under test.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dufs_core.gradcheck import differences
from dufs_core.gradcheck.arrays import Array, dot, is_complex, largest, magnitude, to_host
from dufs_core.gradcheck.problem import Direction, Function, Problem, Project
from dufs_core.gradcheck.report import Comparison, Report
from dufs_core.gradcheck.trees import as_tuple, leaves

_WIDER = 32.0  # Richardson's tables start at 32 steps, 1 step, 1/32 step, 32^-2 and 32^-3 steps
_CERTAIN = 1e-7  # relative difference below which the table of the smallest steps, confirmed by none, refutes nothing
_ROUNDING = 64.0  # units in the last place of |w||f| granted to the function, divided by the widest step


def check_gradient(
    function: Function,
    backward: Function,
    inputs: Sequence[Any],
    *,
    name: str = "gradient",
    rtol: float | None = None,
    step: float | None = None,
    directions: int = 4,
    every_coordinate: int = 12,
    seed: int = 0,
    cotangents: Sequence[Array] | None = None,
    scales: Sequence[float] | None = None,
    project: Project | None = None,
    fresh: bool = False,
    jvp: Function | None = None,
    subsets: bool = False,
    repeat_rtol: float = 1e-12,
    dtype: Any = np.float64,
) -> Report:
    """Compare a hand-written backward with five-point differences, along random directions and coordinates.

    Parameters
    ----------
    function
        ``function(*inputs)`` gives a number, an array, a dict, or a tuple of these, and always the same ones.
    backward
        ``backward(*inputs, *cotangents)``, one cotangent like each value (none if the function gives a real number;
        None for an integer): the derivative of Re sum(conj(w) f) with respect to each input, in its shape. One
        gradient, or a tuple in the inputs' order, None where an input has no derivative (None may be left off the end).
    inputs
        NumPy or CuPy arrays of any shape, numbers, or tuples, lists and dicts of them. Floating-point and complex
        arrays are converted to `dtype`; integers, booleans and everything else reach the function as they are.
    rtol
        Largest |numeric - analytic| relative to the largest of both numbers, ||g * v|| (random direction v) or rms of
        the input's gradient / 100 (coordinate), and what rounding of the function's value can do to the differences.
        Default: 1e-9, or 1e-3 with float32.
    step
        h of the stencil, in units of each input's scale along a unit vector. Default: 1e-3, or 0.03 with float32.
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
    jvp
        ``jvp(*inputs, *directions)``, one direction like each input (None for one that does not move), gives the
        derivative of the values: <w, jvp(v)> = <backward(w), v> is checked along the same directions.
    subsets
        Whether the backward takes a keyword ``wanted``, one boolean for each input, to compute some of the gradients:
        each subset must give the gradients that all together give.
    repeat_rtol
        Largest change of values and gradients, relative to their largest entry, when they are computed again; 0 asks
        for the same bits. The second time an input that has gaps in memory is passed with such gaps.
    dtype
        ``np.float32`` for functions that take nothing wider. TypeError for what is narrower.

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
    given: Any = {"cotangents": cotangents, "scales": scales, "project": project, "seed": seed, "dtype": dtype}
    problem = Problem(function, backward, inputs, **given)
    if not problem.mistakes:
        problem.check_repeats(repeat_rtol)
        if fresh:
            problem.check_memory()
        if subsets:
            problem.check_subsets(repeat_rtol)
    if problem.mistakes or not problem.size:
        return Report(name, (), tuple(problem.mistakes))
    rtol, step = rtol or problem.precision.rtol, step or problem.precision.step
    comparisons, unseen = list[Comparison](), list[float]()
    for k, v in enumerate(map(problem.direction, problem.random_vectors([seed, 1], directions))):
        found = _compare(problem, v, f"direction {k}", rtol, step, magnitude(problem.xp, problem.gradients, v))
        comparisons.append(found)
        if jvp is not None:
            comparisons.append(_adjoint(problem, jvp, v, f"direction {k}", rtol))
        # 1.3 bounds the chance that <e, v> is below a tolerance, in units of ||e|| / sqrt(n); see Report.chance_of_miss
        tolerance = 2 * max(rtol, problem.precision.resolved) * found.size
        unseen.append(1.3 * tolerance / problem.typical if problem.typical else math.inf)
    if problem.size <= every_coordinate:
        comparisons += [_coordinate(problem, c, rtol, step) for c in range(problem.size)]
    report = Report(name, tuple(comparisons), unseen=tuple(unseen))
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

    For functions that are analytic, of real inputs, and accept complex arrays (no abs, conj, max, comparison of
    values); ``analytic_function``, if given, is differentiated instead and must give the same values. Arguments and
    result otherwise as in `check_gradient`; the error left is the rounding of the two computations.
    """
    problem = Problem(function, backward, inputs, cotangents=cotangents, scales=scales, project=project, seed=seed)
    h, comparisons = 1e-30, []
    if any(map(is_complex, (*problem.inputs, *problem.values))):
        raise TypeError("the complex step is for functions from real inputs to real values: use check_gradient")
    if problem.mistakes or not problem.size:
        return Report(name, (), tuple(problem.mistakes))
    problem.function = analytic_function or function
    for k, v in enumerate(map(problem.direction, problem.random_vectors([seed, 1], directions))):
        moved = [x if u is None else x + 1j * h * u for x, u in zip(problem.inputs, v, strict=True)]
        slopes = [problem.xp.imag(y) for y in problem.values_at(moved)]
        numeric = dot(problem.xp, problem.cotangents, slopes) / h
        scale = magnitude(problem.xp, problem.gradients, v)
        found = _judged(f"direction {k}", problem.analytic(v), numeric, scale, rtol, h, "complex step")
        comparisons.append(replace(found, direction=_in_words(problem, v)) if found.status == "failed" else found)
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
    """`check_gradient`, raising GradientError unless it passed; pytest shows its message at the line of the test."""
    __tracebackhide__ = True
    return check_gradient(function, backward, inputs, **options).raise_if_failed()


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
    return Comparison(where, "passed" if passed else "failed", analytic, numeric, error, rtol, h, method, size=size)


def _compare(problem: Problem, v: Direction, where: str, rtol: float, step: float, scale: float) -> Comparison:
    """Judge one direction; `scale` is the size below which its derivative counts as cancelled."""
    phi, analytic = problem.line(v), problem.analytic(v)
    precision, rounding = problem.precision, problem.rounding
    scale = max(scale, _ROUNDING * rounding / (_WIDER * step) / rtol)
    best = _judged(where, analytic, differences.five_point(phi, step), scale, rtol, step, "five-point")
    trusted = best.status == "passed"
    smallest = step * _WIDER**-3
    for h in (step * _WIDER**power for power in (1, 0, -1, -2, -3)):
        if best.status == "passed":
            break
        slope, error = differences.richardson(phi, h)
        uncertainty = 4 * max(error, 2 * rounding * _WIDER / h)
        resolved = uncertainty <= precision.resolved * max(scale, abs(slope), abs(analytic))
        found = _judged(where, analytic, slope, scale, rtol, h, "Richardson", uncertainty if resolved else 0.0)
        refutes = resolved and abs(slope - analytic) > 32 * error and (h > smallest or found.relative_error > _CERTAIN)
        if found.status == "passed" or refutes:  # of tables that differ, the smaller step saw more
            best, trusted = found, True
    size = max(scale, abs(best.numeric), abs(analytic))
    if best.status == "failed" and _turns_sooner(phi, best, rounding + precision.eps * size):
        trusted = False
    if best.status == "passed" and differences.kink_residual(phi, step) <= precision.kink_residual * size:
        return best
    jump = precision.kink_jump if best.status == "passed" else 10 * precision.resolved
    kink = _one_sided(phi, step, jump * size, certain=not trusted)  # no table sees a slope: a kink nearby
    if kink is not None:
        slopes = [_judged(where, analytic, s, size, precision.resolved, step, "one-sided") for s in kink]
        if not trusted and all(s.status == "passed" for s in slopes):  # no kink, but a bend of the slope
            return max(slopes, key=lambda s: s.relative_error)
        return replace(best, status="kink", left_slope=kink[0], right_slope=kink[1], direction=_in_words(problem, v))
    return best if best.status == "passed" else replace(best, direction=_in_words(problem, v))


def _turns_sooner(phi: differences.Phi, found: Comparison, rounding: float) -> bool:
    """Whether the smallest steps see the backward's slope where larger ones do not: a short wave, as sin at 1e12."""
    t, gap = 2.0**-42, abs(found.numeric - found.analytic)
    return rounding / t < gap / 4 and abs(differences.five_point(phi, t) - found.analytic) < gap / 4


def _one_sided(phi: differences.Phi, step: float, jump: float, certain: bool) -> tuple[float, float] | None:
    """Both one-sided slopes, clearly different at two neighbouring ranges of steps (or `certain`); else None."""
    clear = False
    for h in (step, step / _WIDER, step / _WIDER**2):
        (left, left_error), (right, right_error) = differences.one_sided(phi, -h), differences.one_sided(phi, h)
        before, clear = clear, abs(right - left) > jump + 10 * (left_error + right_error)
        if before and clear:
            return left, right
    return (left, right) if certain else None


def _adjoint(problem: Problem, jvp: Function, v: Direction, where: str, rtol: float) -> Comparison:
    """<w, jvp(v)> against <g, v>."""
    values = as_tuple(jvp(*problem.arguments(problem.inputs), *problem.arguments(v)))
    tangents = [y for _, y in leaves(values)]
    if [np.shape(y) for y in tangents] != [np.shape(y) for y in problem.values]:
        shapes = [[np.shape(y) for y in ys] for ys in (tangents, problem.values)]
        raise ValueError(f"the jvp gives shapes {shapes[0]}, the function {shapes[1]}")
    numeric = dot(problem.xp, problem.cotangents, tangents)
    scale = magnitude(problem.xp, problem.gradients, v)
    return _judged(f"{where}, <w, jvp v> = <backward w, v>", problem.analytic(v), numeric, scale, rtol, 0.0, "jvp")


def _coordinate(problem: Problem, c: int, rtol: float, step: float) -> Comparison:
    """Judge one real coordinate."""
    i, where = problem.coordinate(c)
    g = np.abs(to_host(problem.xp.asarray(problem.gradients[i])))
    top = largest(np, g) or 1.0
    rms = float(np.sqrt(np.mean((g / top) ** 2))) * top  # scaled first: squares may leave the range of float64
    unit = np.zeros(problem.size)
    unit[c] = 1.0
    return _compare(problem, problem.direction(unit), where, rtol, step, rms / 100 * problem.scales[i])


def _worst_coordinate(problem: Problem, rtol: float, step: float, seed: int) -> Comparison | None:
    """Find a coordinate with a wrong derivative, by halving the range that disagrees most."""
    (v,) = problem.random_vectors([seed, 2], 1)

    def gap(low: int, high: int) -> float:
        part = np.zeros_like(v)
        part[low:high] = v[low:high]
        direction = problem.direction(part)
        return differences.richardson(problem.line(direction), step)[0] - problem.analytic(direction)

    low, high = 0, problem.size
    while high - low > 8:
        middle = (low + high) // 2
        low, high = (middle, high) if abs(gap(middle, high)) > abs(gap(low, middle)) else (low, middle)
    found = [_coordinate(problem, c, rtol, step) for c in range(low, high)]
    return max(found, key=lambda c: (c.status == "failed", abs(c.numeric - c.analytic)), default=None)


def _in_words(problem: Problem, v: Direction) -> str:
    """The three largest entries of a direction."""
    entries = []
    for where, part in (
        (where, to_host(part)) for where, part in zip(problem.where, v, strict=True) if part is not None
    ):
        size = np.abs(part).ravel()
        for flat in np.argpartition(size, -min(3, size.size))[-3:] if size.size else ():
            index = tuple(int(j) for j in np.unravel_index(flat, part.shape))
            entries.append((float(size[flat]), f"{where} {index} {part[index]:+.3g}"))
    return ", ".join(text for _, text in sorted(entries, reverse=True)[:3])
