"""What a check found, in numbers and in sentences."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Status = Literal["passed", "failed", "kink"]


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
    method: str  # "five-point", "Richardson", "complex step", "jvp"
    direction: str = ""  # the largest entries, in words
    left_slope: float | None = None  # at a kink: the two one-sided slopes
    right_slope: float | None = None
    size: float = 0.0  # what the error is relative to

    def sentence(self) -> str:
        """The place, both numbers and their difference in one line."""
        line = (
            f"{self.where}: backward gives {self.analytic:.12g}, {self.method} gives {self.numeric:.12g}; "
            f"relative difference {self.relative_error:.2e}, tolerance {self.tolerance:.0e}, step {self.step:.1e}"
        )
        if self.left_slope is not None and self.right_slope is not None:
            line += f"; KINK: slope {self.left_slope:.8g} on the left, {self.right_slope:.8g} on the right"
        return line


@dataclass(frozen=True)
class Report:
    """The result of one check; true where it passed."""

    name: str
    comparisons: tuple[Comparison, ...]
    problems: tuple[str, ...] = ()  # wrong shape or dtype, not finite, input overwritten: wrong whatever the numbers
    worst_coordinate: Comparison | None = None  # filled in on failure
    attempts: int = 1  # examples drawn until one was free of kinks
    unseen: tuple[float, ...] = ()  # for each random direction: the error that it may miss, see `chance_of_miss`

    @property
    def status(self) -> Status:
        """ "failed" if anything failed, else "kink" if a kink kept a direction from being judged, else "passed"."""
        found = {c.status for c in self.comparisons}
        if self.problems or "failed" in found:
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
        if self.passed:
            line = f"{self.name}: gradient confirmed by {count} comparisons, worst relative error {error:.2e}"
            if self.unseen:
                line += f"; an error of 1e-4 of its norm is missed with a chance below {self.chance_of_miss(1e-4):.0e}"
            return line
        found = [c for c in self.comparisons if c.status == "failed"]
        if self.status == "failed":
            disagree = f", {len(found)} of {count} comparisons disagree" if count else ""
            lines = [f"{self.name}: WRONG GRADIENT{disagree}"]
        else:
            lines = [f"{self.name}: NOT JUDGED, a kink of the function is within the step ({self.attempts} examples)"]
        lines += [f"  {problem}" for problem in self.problems]
        if self.worst_coordinate is not None:
            lines += [f"  worst coordinate: {self.worst_coordinate.sentence()}", *_ratio(self.worst_coordinate)]
        found = found or [c for c in self.comparisons if c.status == "kink"]
        for c in sorted(found, key=lambda c: -c.relative_error)[:3]:
            lines += [f"  {c.sentence()}", f"    along {c.direction}"] if c.direction else [f"  {c.sentence()}"]
        return "\n".join(lines)

    def raise_if_failed(self) -> Report:
        """Return the report itself if it passed, else raise GradientError."""
        __tracebackhide__ = True
        if not self.passed:
            raise GradientError(self)
        return self


def _ratio(c: Comparison) -> list[str]:
    """A hint from the ratio of the two numbers: a sign, a factor of two."""
    if c.numeric == 0 or c.analytic == 0:
        return ["    the backward is zero where the function has a slope"] if c.numeric else []
    ratio = c.analytic / c.numeric
    for value, words in ((-1.0, "the sign is wrong"), (2.0, "twice the slope"), (0.5, "half the slope")):
        if abs(ratio / value - 1) < 1e-6:
            return [f"    backward / numeric = {value:g}: {words}"]
    return [f"    backward / numeric = {ratio:.9g}"]
