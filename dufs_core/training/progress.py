"""Progress bars."""

from __future__ import annotations

from typing import Any, Self


def progress_bar(verbose: int, total: int, unit: str, description: str | None = None, **options: Any) -> Any:
    """A tqdm bar on standard error, to be used in `with`; nothing is shown where `verbose` is 0."""
    if not verbose:
        return _NoBar()
    from tqdm import tqdm

    return tqdm(total=total, unit=unit, desc=description, leave=False, mininterval=0.2, **options)


class _NoBar:
    """Stands for a bar, without tqdm and its locks."""

    n = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def update(self, *values: Any, **named: Any) -> None:
        """Show nothing."""

    set_postfix = set_postfix_str = set_description_str = update
