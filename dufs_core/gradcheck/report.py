"""What a check found, in numbers and in sentences."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

Status = Literal["passed", "failed", "kink"]
JVP, LOOP = "jvp", "loop over examples"
NOTHING = "no input is a floating-point array with entries (or all are Constant)"
_WRONG = {JVP: "WRONG JVP, while the backward agrees with finite differences", LOOP: "BATCH AND LOOP DIFFER"}


class GradientError(AssertionError):
    """A backward does not belong to its function; ``report`` has all that was measured."""

    def __init__(self, report: Report) -> None:
        super().__init__(report.message())
        self.report = report


@dataclass(frozen=True)
class Comparison:
    """One directional derivative, by the backward under test and by differences.

    ``relative_error`` is |numeric - analytic| / max(|numeric|, |analytic|, ||g * direction||, rounding floor).
    """

    where: str  # "direction 2", "input 0, coordinate (3, 1)"
    status: Status
    analytic: float
    numeric: float
    relative_error: float
    tolerance: float
    step: float
    method: str  # "five-point", "Richardson", "one-sided", "complex step", "jvp", "loop over examples"
    left_slope: float | None = None  # at a kink: the two one-sided slopes
    right_slope: float | None = None
    size: float = 0.0  # what the error is relative to
    outside: str = ""  # what the function says where a step leaves its domain; status "kink"

    def sentence(self) -> str:
        """The place, both numbers and their difference in one line."""
        if self.outside:
            return f"{self.where}: the function within the step: {self.outside}"
        ours = "the batch" if self.method == LOOP else "the backward"
        theirs = f"the {self.method} gives" if self.method in (JVP, LOOP, "complex step") else "finite differences give"
        line = (
            f"{self.where}: {ours} gives {self.analytic:.12g}, {theirs} {self.numeric:.12g}; "
            f"relative difference {self.relative_error:.2e}, tolerance {self.tolerance:.0e}"
        )
        if self.left_slope is not None and self.right_slope is not None:
            line += f"; KINK: slope {self.left_slope:.8g} on the left, {self.right_slope:.8g} on the right"
        return line

    def over(self, scale: float) -> Comparison:
        """The same comparison along a direction shorter by that factor."""
        left, right = (None if s is None else s / scale for s in (self.left_slope, self.right_slope))
        numbers = {name: getattr(self, name) / scale for name in ("analytic", "numeric", "size")}
        return replace(self, left_slope=left, right_slope=right, **numbers)


@dataclass(frozen=True, repr=False)
class Report:
    """The result of one check; true where it passed. Printed it is its message."""

    name: str
    comparisons: tuple[Comparison, ...]
    problems: tuple[str, ...] = ()  # wrong shape or dtype, not finite, input overwritten: wrong whatever the numbers
    worst_coordinate: Comparison | None = None  # filled in on failure
    attempts: int = 1  # examples drawn until one was free of kinks
    unseen: tuple[float, ...] = ()  # for each random direction: the error that it may miss, see `chance_of_miss`
    hints: tuple[str, ...] = ()  # which inputs are wrong, and what may be the reason
    nothing: str = ""  # why nothing was compared, where nothing could be

    @property
    def status(self) -> Status:
        """ "failed" if anything failed, else "kink" if a kink kept a direction from being judged, else "passed"."""
        found = {c.status for c in self.comparisons}
        if self.problems or "failed" in found or not (found or self.nothing):
            return "failed"
        return "kink" if "kink" in found else "passed"

    @property
    def passed(self) -> bool:
        return self.status == "passed"

    def __bool__(self) -> bool:
        return self.passed

    @property
    def worst(self) -> Comparison | None:
        return max(self.comparisons, key=lambda c: c.relative_error, default=None)

    @property
    def worst_relative_error(self) -> float:
        if self.problems:
            return float("inf")
        return 0.0 if self.worst is None else self.worst.relative_error

    def chance_of_miss(self, error: float) -> float:
        """At most the chance that a gradient with this error, relative to the gradient's norm, passes every direction.

        For errors spread over any number of coordinates; one in a single coordinate, larger than about ten tolerances,
        is seen by every direction. It includes what rounding of the function's value hides.
        """
        return math.prod(min(1.0, unseen / error) for unseen in self.unseen)

    def message(self) -> str:
        """What happened, for a reader who sees only this text."""
        count, error = len(self.comparisons), self.worst_relative_error
        found = [c for c in self.comparisons if c.status == self.status]
        if self.passed and not count:
            return f"{self.name}: nothing to compare, {self.nothing}"
        if self.passed:
            agree = "batch and loop agree in" if found[0].method == LOOP else "gradient confirmed by"
            line = f"{self.name}: {agree} {count} comparisons, worst relative error {error:.2e}"
            if self.unseen:
                line += f"; an error of 1e-4 of its norm is missed with a chance below {self.chance_of_miss(1e-4):.0e}"
            return line
        if self.status == "kink":
            drawn = f" of each of {self.attempts} examples" if self.attempts > 1 else ""
            why = f"a kink of the function is within the step{drawn}: choose another point"
            if any(c.outside for c in found):
                why = (
                    "steps from the point leave the function's domain: pass scales=[...], for each input the size of "
                    "changes that it can bear, or a smaller step="
                )
            lines = [f"{self.name}: NOT JUDGED, {why}"]
        elif found:
            wrong = {_WRONG.get(c.method, "WRONG GRADIENT") for c in found}
            what = wrong.pop() if len(wrong) == 1 else "WRONG GRADIENT"
            lines = [f"{self.name}: {what}, {len(found)} of {count} comparisons disagree"]
        else:
            lines = [f"{self.name}: FAILED" + ("" if self.problems else ", nothing was compared")]
        lines += [f"  {line}" for line in (*self.problems, *self.hints)]
        if self.worst_coordinate is not None:
            lines += [f"  worst coordinate: {self.worst_coordinate.sentence()}", _ratio(self.worst_coordinate)]
        else:
            found.sort(key=lambda c: ("coordinate" not in c.where, -c.relative_error))
            lines += [f"  {c.sentence()}" for c in found[:3]]
        return "\n".join(lines)

    __repr__ = message

    def raise_if_failed(self) -> Report:
        """Return the report itself if it passed, else raise GradientError."""
        __tracebackhide__ = True
        if not self.passed:
            raise GradientError(self)
        return self


def _ratio(c: Comparison) -> str:
    """A hint from the ratio of the two numbers: a sign, a factor of two."""
    if c.numeric == 0 or c.analytic == 0:
        return f"    the {'backward' if c.numeric else 'slope'} is zero, the other one is not"
    ratio, hints = c.analytic / c.numeric, {-1: ": the sign is wrong", 2: ": twice the slope", 0.5: ": half the slope"}
    return f"    backward / slope = {ratio:.9g}" + next((h for r, h in hints.items() if abs(ratio / r - 1) < 1e-6), "")
