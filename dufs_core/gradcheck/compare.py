"""One directional derivative, by the backward under test and by differences: do they agree?"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from dufs_core.gradcheck import differences
from dufs_core.gradcheck.arrays import dot, largest, magnitude, to_host
from dufs_core.gradcheck.problem import Direction, Function, Line, Problem
from dufs_core.gradcheck.report import Comparison
from dufs_core.gradcheck.trees import as_tuple, leaves

_WIDER = 32.0  # Richardson's tables start at 32 steps, 1 step, 1/32 step, 32^-2 and 32^-3 steps
_NARROWEST = -8  # and at ones down to 32^-8 steps, where the function has no values at larger ones
_ROUNDING = 64.0  # units in the last place of |w||f| granted to the function, divided by the widest step


def judged(
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


def compare(problem: Problem, v: Direction, where: str, rtol: float, step: float, scale: float) -> Comparison:
    """Judge one direction; `scale` is the size below which its derivative counts as cancelled."""
    phi, analytic = Line(problem, v), problem.analytic(v)
    precision, rounding = problem.precision, problem.rounding
    scale = max(scale, _ROUNDING * rounding / (_WIDER * step) / rtol)
    best = judged(where, analytic, differences.five_point(phi, step), scale, rtol, step, "five-point")
    trusted = best.status == "passed"
    smallest = step * _WIDER**-3
    for power in range(1, _NARROWEST - 1, -1):
        h = step * _WIDER**power
        if best.status == "passed" or (h < smallest and phi.inside(h * _WIDER**2)):
            break
        slope, error = differences.richardson(phi, h)
        uncertainty = 4 * max(error, 2 * rounding * _WIDER / h)
        resolved = uncertainty <= precision.resolved * max(scale, abs(slope), abs(analytic))
        found = judged(where, analytic, slope, scale, rtol, h, "Richardson", uncertainty if resolved else 0.0)
        gap = abs(slope - analytic)
        clear = gap > 32 * error and gap > 2 * problem.displaced * _WIDER / h
        refutes = clear and (resolved or (h < smallest and gap > 32 * uncertainty))
        if found.status == "passed" or refutes:  # of tables that differ, the smaller step saw more
            best, trusted = found, True
        elif gap <= uncertainty < abs(slope - best.numeric) / 4:  # even if it cannot confirm what it saw
            trusted = False
    size = max(scale, abs(best.numeric), abs(analytic))
    if best.status == "failed" and _turns_sooner(phi, best, rounding + precision.eps * size):
        trusted = False
    if best.status == "passed" and differences.kink_residual(phi, step) <= precision.kink_residual * size:
        return best
    jump = precision.kink_jump if best.status == "passed" else 10 * precision.resolved
    kink = _one_sided(phi, step, jump * size, certain=not trusted)  # no table sees a slope: a kink nearby
    if kink is not None:
        slopes = [judged(where, analytic, s, size, precision.resolved, step, "one-sided") for s in kink]
        if not trusted and all(s.status == "passed" for s in slopes):  # no kink, but a bend of the slope
            return max(slopes, key=lambda s: s.relative_error)
        edge = "" if phi.inside(step) and phi.inside(2 * step) else phi.outside or "its value is not finite"
        return replace(best, status="kink", left_slope=kink[0], right_slope=kink[1], outside=edge)
    return best


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


def adjoint(problem: Problem, jvp: Function, v: Direction, where: str, rtol: float) -> Comparison:
    """<w, jvp(v)> against <g, v>."""
    values = as_tuple(jvp(*problem.arguments(problem.inputs), *problem.arguments(v)))
    tangents = [y for _, y in leaves(values)]
    if [np.shape(y) for y in tangents] != [np.shape(y) for y in problem.values]:
        shapes = [[np.shape(y) for y in ys] for ys in (tangents, problem.values)]
        raise ValueError(f"the jvp gives shapes {shapes[0]}, the function {shapes[1]}")
    numeric = dot(problem.xp, problem.cotangents, tangents)
    scale = magnitude(problem.xp, problem.gradients, v)
    return judged(where, problem.analytic(v), numeric, scale, rtol, 0.0, "jvp")


def coordinate(problem: Problem, c: int, rtol: float, step: float) -> Comparison:
    """Judge one real coordinate; the numbers are those of the gradient's entry."""
    i, where = problem.coordinate(c)
    g = np.abs(to_host(problem.xp.asarray(problem.gradients[i])))
    top = largest(np, g) or 1.0
    rms = float(np.sqrt(np.mean((g / top) ** 2))) * top  # scaled first: squares may leave the range of float64
    unit = np.zeros(problem.size)
    unit[c] = 1.0
    scale = problem.scales[i]
    return compare(problem, problem.direction(unit), where, rtol, step, rms / 100 * scale).over(scale)
