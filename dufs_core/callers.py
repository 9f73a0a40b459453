"""Whose line a warning points to."""

from __future__ import annotations

import sys

_BETWEEN = (__name__.split(".")[0], "sklearn", "joblib", "contextlib")  # packages between the user and a warning


def user_stacklevel() -> int:
    """The stacklevel with which a warning of the caller points to the user's line.

    That is the first one outside this package and those that call it for the user: pipelines, fit_transform, tasks.
    Python shows equal warnings of one line once: those of a line in here would be silent when a fit is repeated.
    """
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).split(".")[0] in _BETWEEN:
        frame, level = frame.f_back, level + 1
    return level
