"""What makes a fit the same fit: its settings, its data, its seed, the version."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from dufs_core._version import __version__

_DIGITS = 16  # of the hash: two of a million fits share one with probability 3e-8


def without_free(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without the limit on memory: a sweep whose fits failed at it goes on with a higher one."""
    return {name: value for name, value in settings.items() if name != "max_memory"}


@dataclass(frozen=True)
class DataSet:
    """A file, or two moons, and how it is read."""

    name: str
    path: str  # absolute, or "two-moons"
    reading: tuple[
        tuple[str, Any], ...
    ]  # options of dufs_core.data.files.arrays.read_table, or of dufs_core.datasets.two_moons
    sha256: str  # of the file, or of the array

    def described(self) -> dict[str, Any]:
        """What a result depends on; where the file lies and what it is called is not part of it."""
        return {"reading": dict(self.reading), "sha256": self.sha256}


@dataclass(frozen=True)
class Fit:
    """One fit of a sweep."""

    data: DataSet
    settings: Mapping[str, Any]  # every parameter that changes results, with its default
    seed: int
    threads: int

    @property
    def id(self) -> str:
        """The first digits of the SHA-256 of everything that the result depends on."""
        text = json.dumps(
            {
                "settings": without_free(self.settings), "seed": self.seed, "threads": self.threads,
                "data": self.data.described(), "version": __version__,
            },
            sort_keys=True,
        )  # fmt: skip
        return sha256(text.encode()).hexdigest()[:_DIGITS]
