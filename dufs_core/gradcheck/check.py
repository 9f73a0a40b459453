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

from dufs_core.gradcheck.arrays import Array, dot, is_complex, magnitude
from dufs_core.gradcheck.compare import adjoint, compare, coordinate, judged
from dufs_core.gradcheck.locate import located
from dufs_core.gradcheck.problem import Function, Problem, Project
from dufs_core.gradcheck.report import JVP, NOTHING, Comparison, Report


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
        gradient for each input, None where there is no derivative: for integers, and for floating-point inputs on
        which the values do not depend, which is checked.
    inputs
        A list of NumPy or CuPy arrays of any shape, numbers, or tuples, lists and dicts of them. Floating-point and
        complex arrays are converted to `dtype`; integers, booleans and everything else reach the function as they are.
        ``Constant(x)`` reaches it as x, and is not differentiated.
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
        The size of each input that the step refers to; default: its largest absolute value, 1 if that is 0. Smaller
        where the function is defined near the point only.
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
        no derivative, or no value, within the step; both one-sided slopes are in the report.

    Notes
    -----
    A direction passes where D(h) = (f(-2h) - 8 f(-h) + 8 f(h) - f(2h)) / 12h agrees, or else central differences
    extrapolated (Richardson) from any of 32 h, h, h / 32, h / 1024 and h / 32768: a wrong gradient agrees with none.
    (The smallest steps lose digits; there the table's estimated error replaces `rtol`, up to 1e-8.) Where the function
    raises ValueError or ArithmeticError at these, or is not finite, smaller ones are tried. Where none agrees,
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
    rtol, step = rtol or problem.precision.rtol, step or problem.precision.step
    if problem.mistakes:
        return Report(name, (), tuple(problem.mistakes))
    comparisons, unseen = list[Comparison](), list[float]()
    for k, v in enumerate(problem.directions(directions)):
        found = compare(problem, v, f"direction {k}", rtol, step, magnitude(problem.xp, problem.gradients, v))
        comparisons.append(found)
        if jvp is not None:
            comparisons.append(adjoint(problem, jvp, v, f"direction {k}", rtol))
        # 1.3 bounds the chance that <e, v> is below a tolerance, in units of ||e|| / sqrt(n); see Report.chance_of_miss
        tolerance = 2 * max(rtol, problem.precision.resolved) * found.size
        unseen.append(1.3 * tolerance / problem.typical if problem.typical else math.inf)
    if problem.size <= every_coordinate:
        comparisons += [coordinate(problem, c, rtol, step) for c in range(problem.size)]
    report = Report(name, tuple(comparisons), unseen=tuple(unseen), nothing="" if problem.size else NOTHING)
    if any(c.status == "failed" and c.method != JVP for c in comparisons):
        return located(problem, report, rtol, step)
    moved = ", ".join(problem.where[i] for i in problem.nones)
    hint = f"what has the gradient None is moved as well, what is passed as Constant(x) is not: {moved}"
    return replace(report, hints=(hint,)) if moved and report.status == "kink" else report


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
) -> Report:
    """The same comparison with <w, Im f(x + i h v)> / h, h = 1e-30: no truncation, no cancellation.

    For functions that are analytic, of real inputs, and accept complex arrays (no abs, conj, max, comparison of
    values). Arguments and result otherwise as in `check_gradient`; the error left is the rounding of the two
    computations.
    """
    problem = Problem(function, backward, inputs, cotangents=cotangents, scales=scales, project=project, seed=seed)
    h, comparisons = 1e-30, list[Comparison]()
    if any(map(is_complex, (*problem.inputs, *problem.values))):
        raise TypeError("the complex step is for functions from real inputs to real values: use check_gradient")
    if problem.mistakes:
        return Report(name, (), tuple(problem.mistakes))
    for k, v in enumerate(problem.directions(directions)):
        moved = [x if u is None else x + 1j * h * u for x, u in zip(problem.inputs, v, strict=True)]
        values = problem.values_at(moved)
        numeric = dot(problem.xp, problem.cotangents, [problem.xp.imag(y) for y in values]) / h
        scale = magnitude(problem.xp, problem.gradients, v)
        comparisons.append(judged(f"direction {k}", problem.analytic(v), numeric, scale, rtol, h, "complex step"))
        if comparisons[-1].status == "failed" and not any(map(is_complex, values)):
            raise TypeError(
                "the function's values are real at complex inputs, as after abs(), float() or .real: the complex step "
                "is for analytic functions, use check_gradient"
            )
    return Report(name, tuple(comparisons), nothing="" if problem.size else NOTHING)


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
