"""Exceptions and warnings. Every message says what was wrong, with the numbers, and what to do."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

_NOT_THE_USER = (__name__.split(".")[0], "sklearn", "joblib", "contextlib", "functools")  # packages that stand between


def printable(text: object) -> str:
    """The text with escapes in place of what no terminal should be sent: control characters, marks of direction.

    Names of columns and files may hold any.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


class _Sentence(Exception):
    """What is said is `printable`."""

    def __str__(self) -> str:
        return printable(super().__str__())


class DufsError(_Sentence):
    """Base class of the errors that are neither a bad value nor a bad type."""


class BackendUnavailableError(DufsError, RuntimeError):
    """The array backend asked for cannot compute on this machine."""

    def __init__(self, name: str, cause: str) -> None:
        super().__init__(f'backend="{name}" cannot be used here: {cause}. Use backend="numpy" (or "auto").')


class FileFormatError(DufsError, ValueError):
    """A data file cannot be read as a table of numbers."""


class MemoryLimitError(DufsError, MemoryError):
    """A computation would need more memory than there is, or than it was allowed."""


class DamagedFileError(DufsError, ValueError):
    """A file that this package wrote does not hold what was written."""


class CheckpointError(DufsError, ValueError):
    """A fit cannot be continued from a checkpoint, or would overwrite one."""


class InterruptedFit(DufsError):
    """A fit was asked to stop; the message says whether its checkpoint was written."""


class DufsWarning(_Sentence, UserWarning):
    """Base class of the warnings."""


class BackendFallbackWarning(DufsWarning):
    """CuPy is installed but cannot compute, so NumPy does."""


class IsolatedRowsWarning(DufsWarning):
    """The bandwidth is so small that many rows have no neighbour left in the kernel."""


def isolated_rows(said: str, rule: str | float, factor: float, n_neighbors: int) -> IsolatedRowsWarning:
    """The warning, with advice for a larger bandwidth than `factor` times this rule gives."""
    if rule == "max":
        advice = f"a bandwidth_factor of more than {factor:g}"
    else:
        advice = f'bandwidth="max" gives every row {n_neighbors} neighbours'
        advice += f", if bandwidth_factor (now {factor:g}) is not far below 1" * (factor < 1)
    return IsolatedRowsWarning(f"{said}. Use a larger bandwidth: {advice}.")


class DegenerateBandwidthWarning(DufsWarning):
    """The bandwidth rule gave zero (duplicate rows) and a documented substitute was used."""


class SelectionWarning(DufsWarning):
    """The fit ended with no feature selected, or with all of them."""


def all_constant(d: int) -> SelectionWarning:
    """The warning for d columns that are all constant."""
    return SelectionWarning(f"All {d} columns of X are constant: nothing can be selected. Check that samples are rows.")


class RowsWarning(DufsWarning):
    """The rows may not be exchanged: columns that are independent of all others can have been selected."""


class UnconvergedWarning(DufsWarning):
    """The fit ended at max_iter with gates that are still undecided."""


class CheckpointWarning(DufsWarning):
    """A checkpoint could not be written, or the one before it is used."""


def invalid_choice(name: str, value: Any, choices: Iterable[str]) -> ValueError:
    """The error for a parameter that is none of the names it can be."""
    listed = ", ".join(map(repr, choices))
    return ValueError(f"{name} must be one of {listed}; got {value!r}{did_you_mean(value, choices)}")


def did_you_mean(value: Any, choices: Iterable[str]) -> str:
    """The end of a sentence that refuses `value`: the choice that was probably meant, or nothing."""
    text = value if isinstance(value, str) else getattr(value, "__name__", "")
    close = get_close_matches(text.lower(), list(choices), 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def user_stacklevel() -> int:
    """The stacklevel of a warning that points to the first line outside this package and the libraries around it.

    Python shows equal warnings of one line once: a line in here would be silent when a fit is repeated.
    """
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).split(".")[0] in _NOT_THE_USER:
        frame, level = frame.f_back, level + 1
    return level
