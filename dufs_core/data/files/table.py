"""What reading a file gives."""

from __future__ import annotations

from typing import Any, NamedTuple

from dufs_core.backend import Array

MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?", "-", "."})  # texts, in small letters


class Table(NamedTuple):
    """What a file held.

    Attributes
    ----------
    X : ndarray (n, d)
        Numbers, in the file's own dtype (float64 from text); NaN where text says that a value is missing.
    read_as : dict
        How the file was understood (variable, delimiter, header, ...), ready for JSON.
    feature_names : tuple of str, or None
        The header's names, d of them.
    labels : ndarray (n,) or None
        The labels that were left out of X.
    notes : tuple of str
        Decisions that were taken without being asked, one sentence each.
    groups : ndarray (n,) or None
        The group of each row, left out of X: text from text files; None for missing entries of a text array.
    covariates : ndarray (n, c) of float64, or None
        Numbers that were told to be covariates of the rows, left out of X.
    """

    X: Array
    read_as: dict[str, Any]
    feature_names: tuple[str, ...] | None = None
    labels: Array | None = None
    notes: tuple[str, ...] = ()
    groups: Array | None = None
    covariates: Array | None = None
