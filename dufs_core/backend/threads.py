"""Work on the parts of arrays in several threads: NumPy releases the interpreter's lock."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dufs_core.backend.types import Backend


def mapped(bk: Backend, function: Callable[[Any], Any], parts: Iterable[Any], threads: int) -> list[Any]:
    """function(part) for every part, in order; one after the other on a GPU, which shares out the work itself."""
    if threads == 1 or bk.name != "numpy":
        return [function(part) for part in parts]
    with ThreadPoolExecutor(threads) as executor:
        return list(executor.map(function, parts))
