"""The functions of functions.py with the faults of faults.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

from bench.faults import replaced
from bench.gradcheck_contest import points, precise
from bench.gradcheck_contest.problem import OFF, RIGHT, Array, Problem, spoiled

HERE = Path(__file__).parent
SEEDS_FOR_FAULTS = 2
precisely = cache(precise.load)


@cache
def texts() -> tuple[str, dict[str, list[tuple[str, str, str]]]]:
    """The source of the functions, and what is replaced there."""
    faults = tomllib.loads((HERE / "faults.toml").read_text(encoding="utf-8"))
    return (HERE / "functions.py").read_text(encoding="utf-8"), faults


class Functions:
    """One of the functions."""

    def __init__(self, name: str, seeds: int) -> None:
        self.name, self._seeds = name, seeds
        outputs = len(points.point(name, "plain", 0).inputs)
        self._spoils = {f"{fault}, gradient {i}": (i, by) for fault, by in OFF.items() for i in range(outputs)}
        self._texts = {fault: (old, new) for fault, old, new in texts()[1][name]}
        self.faults = (*self._texts, *self._spoils)

    def labels(self) -> list[str]:
        return [f"{kind} {seed}" for seed in range(self._seeds) for kind in points.kinds(self.name)]

    def trials(self) -> list[str]:
        return self.labels()[: SEEDS_FOR_FAULTS * len(points.kinds(self.name))]

    @contextmanager
    def planted(self, fault: str) -> Iterator[Callable[[str], Problem]]:
        source, backward = texts()[0], f"{self.name}_backward"
        if fault in self._texts:
            _, source = replaced(source, backward, *self._texts[fault])
        names: dict[str, Any] = {}
        exec(compile(source, f"<{fault or 'right'}>", "exec"), names)
        right = names[backward]

        def off(*args: Any, **settings: Any) -> Any:
            part, by = self._spoils[fault]
            return tuple(spoiled(g, by) if i == part else g for i, g in enumerate(right(*args, **settings)))

        def problem(label: str) -> Problem:
            inputs, settings = self._point(label)
            gradients = off if fault in self._spoils else right
            return Problem(partial(names[self.name], **settings), partial(gradients, **settings), inputs)

        assert fault == RIGHT or fault in self.faults
        yield problem

    def slopes(self, label: str, w: tuple[Array, ...], v: tuple[Array, ...]) -> tuple[float, float]:
        inputs, settings = self._point(label)
        return precise.slopes(partial(precisely()[self.name], **settings), inputs, w, v)

    def _point(self, label: str) -> points.Point:
        kind, _, seed = label.rpartition(" ")
        return points.point(self.name, kind, int(seed))
