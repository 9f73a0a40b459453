"""The chosen faults of the mutation run, from bench/faults.toml.

A chosen fault is a piece of source replaced by another (it must occur, or the run stops: a stale fault proves
nothing), or a correct result spoiled on its way out: one coordinate by 1e-6 of itself, or rounded to float32.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from bench.planting import Mutant, install, source_of


def chosen() -> Iterator[tuple[Mutant, Callable[[], None]]]:
    """Every chosen fault with the function that plants it. Raises LookupError where a source line has changed."""
    for module, table in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).items():
        engines, spoiled = tuple(table.pop("engines", ())), table.pop("spoiled", {})
        for function, faults in table.items():
            for fault, old, new in faults:
                line, mutated = replaced(source_of(module), function, old, new)
                yield Mutant(module, function, fault, engines, line), _installer(module, mutated)
        for function, parts in spoiled.items():
            for part in parts:
                for fault, spoil in (("one coordinate off by 1e-6", one_coordinate), ("float32 leak", through_float32)):
                    mutant = Mutant(module, function, f"{fault}, output {part}", engines)
                    yield mutant, _spoiler(module, function, part, spoil)


def replaced(source: str, function: str, old: str, new: str) -> tuple[int, str]:
    """The line of the function where the old text starts, and the source with the new one there."""
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name == function:
            start = len("".join(lines[: node.lineno - 1]))
            at = source.find(old, start, len("".join(lines[: node.end_lineno])))
            if at >= 0:
                return source.count("\n", 0, at) + 1, source[:at] + new + source[at + len(old) :]
    raise LookupError(f"the fault is stale: {function} no longer holds {old!r}")


def _installer(module: str, source: str) -> Callable[[], None]:
    def plant() -> None:
        install(module, source)

    return plant


def one_coordinate(value: Any) -> Any:
    """One coordinate, not zero, times 1 + 1e-6."""
    if isinstance(value, float):
        return value * (1 + 1e-6)
    spoiled = value.copy()
    places = np.flatnonzero(spoiled)
    if len(places):
        spoiled.reshape(-1)[places[len(places) // 2]] *= 1 + 1e-6
    return spoiled


def through_float32(value: Any) -> Any:
    """Rounded to float32 and back."""
    if isinstance(value, float):
        return float(np.float32(value))
    return value.astype(np.float32).astype(value.dtype)


def _spoiler(module: str, function: str, part: int, spoil: Callable[[Any], Any]) -> Callable[[], None]:
    def plant() -> None:
        owner, _, name = function.rpartition(".")
        place: Any = getattr(import_module(module), owner) if owner else import_module(module)
        right = getattr(place, name)

        def wrong(*args: Any) -> Any:
            value = right(*args)
            if hasattr(value, "_replace"):
                return value._replace(**{value._fields[part]: spoil(value[part])})
            if isinstance(value, tuple):
                return tuple(spoil(v) if i == part else v for i, v in enumerate(value))
            return spoil(value)

        setattr(place, name, wrong)

    return plant
