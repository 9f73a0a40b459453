"""What `bench.gpu` must show, beside what it measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from bench.common import markdown
from bench.gpu_slices import PLANTED, POPULATION, SLICES, STEPS

Key = tuple[Any, ...]  # slice, arguments


class Target(NamedTuple):
    """A number that must be at least, or at most, so large, and what it is computed from."""

    what: str
    at_least: bool
    bound: float
    cases: list[Key]
    value: Callable[..., float]


def ratio(one: Any, other: Any) -> float:
    return float(one["median"] / other["median"])


def faster(peer: str, n: int, d: int, bound: float) -> Target:
    return Target(
        f"a step of {n} x {d}: {peer} over ours", True, bound, [("steps", n, d, peer), ("steps", n, d, "ours")], ratio
    )


TARGETS = [
    Target("tests marked gpu that fail", False, 0, [("tests", *case) for case in SLICES["tests"].cases],
           lambda *areas: sum(area["failed"] for area in areas)),
    Target("a fit with decoys, 20 of 2000 planted: seconds", False, 0.2, [("planted", *PLANTED, 1, "cupy")],
           lambda fit: fit["seconds"]),
    Target("64 seeds of it: seconds", False, 3, [("planted", *PLANTED, 64, "cupy")], lambda fits: fits["seconds"]),
    *(faster("torch compiled", n, d, 1.3) for n, d in STEPS),
    *(faster("featselectlib", n, d, 15) for n, d in STEPS[:3]),
    Target("a step of 64 fits of {} x {}: times that of one".format(*POPULATION), False, 4,
           [("population", *POPULATION, 64), ("population", *POPULATION, 1)], ratio),
    Target("a streaming step of 5000 x 50: times its floor", False, 3, [("streaming", 5000, 50, 8192)],
           lambda step: step["over_floor"]),
]  # fmt: skip


def label(name: str, *case: Any) -> str:
    return ", ".join([name, *map(str, case)])


def brief(value: Any) -> str:
    """A number or what is in a record, short."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {brief(part)}" for name, part in value.items())
    if isinstance(value, list):
        return f"[{' '.join(map(brief, value[:4]))}{' ...' * (len(value) > 4)}]"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def tables(records: Mapping[Key, Mapping[str, Any]], skipped: Mapping[Key, str]) -> str:
    """Targets, measured, met or missed; then everything that was measured, failed or skipped."""
    rows = []
    for what, at_least, bound, cases, value_of in TARGETS:
        why = {label(*case): records.get(case, {}).get("failed") or skipped.get(case, "not asked for")
               for case in cases if "found" not in records.get(case, {})}  # fmt: skip
        value = None if why else float(value_of(*(records[case]["found"] for case in cases)))
        if value is None:
            verdict = f"not measured: {'; '.join(f'{case}: {reason}' for case, reason in why.items())}"
        else:
            verdict = "met" if (value >= bound if at_least else value <= bound) else "missed"
        rows.append([what, f"{'>=' if at_least else '<='} {bound:g}", None if value is None else brief(value), verdict])
    said = {case: brief(record["found"]) if "found" in record else record["failed"] for case, record in records.items()}
    measured = [[label(*case), text] for case, text in (said | dict(skipped)).items()]
    shown = markdown(["what must be shown", "target", "measured", ""], rows)
    return f"{shown}\n\n{markdown(['slice, of', 'measured'], measured)}"
