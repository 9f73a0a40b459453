"""Progress bars."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import Any

_SECONDS = 0.5  # between two signs of life


@contextmanager
def progress_bar(verbose: int, total: int, unit: str, description: str | None = None, **options: Any) -> Iterator[Any]:
    """A tqdm bar on standard error, whose clock runs in long steps as well; nothing where `verbose` is 0."""
    if not verbose:
        yield _NoBar()
        return
    from tqdm import tqdm

    over = Event()

    def live() -> None:
        while not over.wait(_SECONDS):
            bar.refresh()

    settings: dict[str, Any] = {"total": total, "unit": unit, "desc": description, "leave": False, "mininterval": 0.2}
    with tqdm(**settings, **_terminal(), **options) as bar:
        clock = Thread(target=live, daemon=True)
        clock.start()
        try:
            yield bar
        finally:
            over.set()
            clock.join()


def _terminal() -> dict[str, int]:
    """A size for a terminal that has none, as in some containers: tqdm would print nothing."""
    with suppress(OSError):  # no terminal
        if not os.get_terminal_size(2).columns:
            return {"ncols": 80, "nrows": 24}
    return {}


def stage(verbose: int, description: str) -> Any:
    """A bar without an end: what is being done, and for how long."""
    return progress_bar(verbose, 0, "", description, bar_format="{desc} {elapsed}")


class _NoBar:
    """Stands for a bar, without tqdm and its locks."""

    n = 0

    def update(self, *values: Any, **named: Any) -> None:
        """Show nothing."""

    clear = close = set_postfix = set_postfix_str = set_description_str = update
