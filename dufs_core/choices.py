"""Parameters that are one of several names: the sentence that refuses another, with the one that was probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any


def unknown(name: str, value: Any, choices: Iterable[str]) -> ValueError:
    """The error for a parameter that is none of the names it can be."""
    return ValueError(f"{name} must be one of {', '.join(map(repr, choices))}; got {value!r}{nearest(value, choices)}")


def nearest(value: Any, choices: Iterable[str]) -> str:
    """For the end of a sentence that refuses `value`: the choice that was probably meant, or nothing."""
    text = value if isinstance(value, str) else getattr(value, "__name__", "")
    close = get_close_matches(text.lower(), list(choices), 1)
    return f"; did you mean {close[0]!r}?" if close else ""
