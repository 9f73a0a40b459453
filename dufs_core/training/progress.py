"""A bar that counts fits."""

from __future__ import annotations

from typing import Any


def bar_of_fits(verbose: int, total: int) -> Any:
    """A tqdm bar on standard error, to be used in `with`; where `verbose` is 0 one that shows nothing."""
    from tqdm import tqdm

    return tqdm(total=total, unit="fit", leave=False, mininterval=0.2, smoothing=0.1, disable=not verbose)
