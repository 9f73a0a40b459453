"""What reading a file gives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dufs_core.backend import Array


@dataclass(frozen=True)
class Table:
    """What a file held.

    Attributes
    ----------
    X : ndarray (n, d)
        Numbers, in the file's own dtype (float64 from text); NaN where text says that a value is missing.
    feature_names : tuple of str, or None
        The header's names, d of them.
    labels : ndarray (n,) or None
        The labels that were left out of X.
    read_as : dict
        How the file was understood (variable, delimiter, header, ...), ready for JSON.
    notes : tuple of str
        Decisions that were taken without being asked, one sentence each.
    """

    X: Array
    feature_names: tuple[str, ...] | None = None
    labels: Array | None = None
    read_as: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
