"""Where a wrong gradient is wrong: the inputs, one coordinate, and a guess at the reason."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dufs_core.gradcheck import differences
from dufs_core.gradcheck.arrays import magnitude, to_host
from dufs_core.gradcheck.compare import compare, coordinate
from dufs_core.gradcheck.problem import Line, Problem
from dufs_core.gradcheck.report import Comparison, Report, Status


def located(problem: Problem, report: Report, rtol: float, step: float) -> Report:
    """The report with the worst coordinate, each input judged along a direction of its own, and what that suggests."""
    v = problem.random_vector(3)
    places = np.repeat(problem.active, np.diff([0, *problem.ends]))
    leaf, worst = _worst_coordinate(problem, rtol, step)

    def judge(i: int, symmetric: bool = False) -> Status:
        direction = problem.direction(np.where(places == i, v, 0.0))
        if symmetric and (part := direction[i]) is not None:
            direction[i] = (part + part.T) / 2
        return compare(problem, direction, "", rtol, step, magnitude(problem.xp, problem.gradients, direction)).status

    judged: dict[int, Status] = {i: "failed" if i == leaf else judge(i) for i in problem.active}
    words = {"failed": "wrong", "passed": "right", "kink": "not judged"}
    named = {w: ", ".join(problem.where[i] for i, s in judged.items() if s == status) for status, w in words.items()}
    hints = ["; ".join(f"{word}: {where}" for word, where in named.items() if where)] if len(judged) > 1 else []
    for i in (i for i, status in judged.items() if status == "failed"):
        x, k, where = to_host(problem.inputs[i]), problem.number[i], problem.where[i]
        if i in problem.nones:
            hints.append(
                f"{where} has the gradient None, but the function changes with it: give its gradient, or pass "
                "Constant(x) as the input if it is not to be differentiated"
            )
        elif x.ndim == 2 and np.array_equal(x, x.T) and k not in problem.project and judge(i, True) == "passed":
            hints.append(
                f"{where} is symmetric, and its gradient is right along symmetric directions: if it is for these "
                f"alone, pass project={{{k}: lambda v: (v + v.T) / 2}}"
            )
    return replace(report, worst_coordinate=worst, hints=tuple(hints))


def _worst_coordinate(problem: Problem, rtol: float, step: float) -> tuple[int, Comparison | None]:
    """A coordinate with a wrong derivative and its leaf, by halving the range that disagrees most; -1 if none is."""
    v = problem.random_vector(2)

    def gap(low: int, high: int) -> float:
        part = np.zeros_like(v)
        part[low:high] = v[low:high]
        direction = problem.direction(part)
        slope = differences.richardson(Line(problem, direction), step)[0]
        if not np.isfinite(slope):
            slope = compare(problem, direction, "", rtol, step, 0.0).numeric
        return abs(slope - problem.analytic(direction))

    low, high = 0, problem.size
    while high - low > 8:
        middle = (low + high) // 2
        low, high = (middle, high) if gap(middle, high) > gap(low, middle) else (low, middle)
    found = {c: coordinate(problem, c, rtol, step) for c in range(low, high)}
    gaps = {c: abs(f.numeric - f.analytic) for c, f in found.items() if f.status == "failed"}
    worst = max(gaps, key=lambda c: gaps[c], default=-1)
    return (problem.coordinate(worst)[0], found[worst]) if gaps else (-1, None)
