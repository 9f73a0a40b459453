"""Whose line a warning points to."""

from __future__ import annotations

import sys


def users_level() -> int:
    """The stacklevel with which a warning of the caller points to the first line outside this package.

    Python shows equal warnings of one line once: those of a line in here would be silent when a fit is repeated.
    """
    package, frame, level = __name__.split(".")[0], sys._getframe(1), 1
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).split(".")[0] == package:
        frame, level = frame.f_back, level + 1
    return level
