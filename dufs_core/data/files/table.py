"""One table out of the arrays of a file: which of them it is, and which of them holds labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple

import numpy as np

from dufs_core.backend import Array
from dufs_core.errors import FileFormatError

_LABEL_NAMES = ("Y", "y", "labels", "label", "target")  # taken for labels where nothing is said


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


class Variable(NamedTuple):
    """A named array of a file, not loaded yet."""

    name: str
    shape: tuple[int, ...]
    kind: str  # dtype or MATLAB class, for messages; "object" for what only unpickling can read
    numeric: bool
    load: Callable[[], Array]

    @property
    def size_text(self) -> str:
        return " x ".join(map(str, self.shape)) or "one number"

    def __str__(self) -> str:
        return f"{self.name} ({self.size_text}, {self.kind})"


def choose(
    path: Path, form: str, variables: Sequence[Variable], variable: str | None, labels: str | None, transpose: bool
) -> Table:
    """Pick the table and the labels out of a file's variables, and load them."""
    chosen = _default_table(path, variables, labels) if variable is None else _find(path, variables, variable)
    require_table(path, chosen)
    found = _find_labels(path, variables, labels, chosen, *(chosen.shape[::-1] if transpose else chosen.shape))
    notes = []
    if len(variables) > 1 and variable is None:
        note = f"{path.name}: {chosen.name} ({chosen.size_text}) is the table"
        note += f", {found.name} are labels and not used" if found else ""
        left_out = ", ".join(v.name for v in variables if v is not chosen and v is not found)
        notes.append(note + (f", left out: {left_out}" if left_out else ""))
    if chosen.kind.startswith("sparse"):
        notes.append(
            f"{path.name}: {chosen.name} is sparse and is made dense here, {math.prod(chosen.shape):,} numbers; in "
            f"Python DUFS().fit takes it sparse, read by scipy.sparse.load_npz (.npz) or scipy.io.loadmat (.mat)"
        )
    X, flat = chosen.load(), _flat_labels(found.load()) if found else None
    read_as = {"format": form, "variable": chosen.name, "labels": found and found.name, "transposed": transpose}
    return Table(X.T if transpose else X, labels=flat, read_as=read_as, notes=tuple(notes))


def require_table(path: Path, v: Variable) -> None:
    """Raise FileFormatError unless the variable is a two-dimensional array of numbers."""
    if not v.numeric:
        raise _no_numbers(path, v)
    if len(v.shape) != 2:
        raise FileFormatError(
            f"{path}: {v} has {len(v.shape)} dimension{'s' * (len(v.shape) != 1)}; a table needs 2, samples and "
            f"features. "
            f"Images become rows of pixels by X.reshape(len(X), -1)"
        )


def _no_numbers(path: Path, v: Variable) -> FileFormatError:
    pickled = (
        ": only unpickling can read Python objects, and unpickling runs code from the file; save plain numbers "
        "instead, numpy.save(path, numpy.asarray(X, dtype=float))"
    )
    return FileFormatError(f"{path}: {v.name} holds {v.kind}, not real numbers{pickled * (v.kind == 'object')}")


def _listed(variables: Sequence[Variable]) -> str:
    return shorten(", ".join(map(str, variables)) or "nothing", 800, placeholder=" ...")


def _find(path: Path, variables: Sequence[Variable], name: str) -> Variable:
    for v in variables:
        if v.name == name:
            return v
    raise FileFormatError(f'{path} has no variable "{name}"; it holds {_listed(variables)}')


def _default_table(path: Path, variables: Sequence[Variable], labels: str | None) -> Variable:
    """X, or else the only table: of several columns and rows, of one, or at last with a name of labels."""
    if labels != "X" and any(v.name == "X" for v in variables):
        return _find(path, variables, "X")
    numeric = [v for v in variables if v.numeric and len(v.shape) == 2 and v.name != labels]
    tables = [v for v in numeric if v.name not in _LABEL_NAMES]
    for group in ([v for v in tables if min(v.shape) > 1], tables, numeric):
        if len(group) == 1:
            return group[0]
        if group:
            example = f"choose one with --variable, as in --variable {group[0].name}"
            raise FileFormatError(f"{path} holds several tables, {_listed(group)}; {example}")
    raise FileFormatError(f"{path} holds no two-dimensional array of numbers, but {_listed(variables)}")


def _find_labels(
    path: Path, variables: Sequence[Variable], name: str | None, table: Variable, n: int, d: int
) -> Variable | None:
    """The variable called `name`, or one of the usual names that has an entry per sample."""
    if name is None:
        usual = (v for usual in _LABEL_NAMES for v in variables if v.name == usual and v is not table)
        return next((v for v in usual if v.kind != "object" and math.prod(v.shape) == n), None)
    found = _find(path, variables, name)
    size = math.prod(found.shape)
    if found is table:
        raise FileFormatError(f'{path}: "{name}" cannot be the table and its labels at once')
    if found.kind == "object":
        raise _no_numbers(path, found)
    if size != n:
        hint = f" (it has {d} features; are they samples? see --transpose)" if size == d else ""
        raise FileFormatError(f"{path}: labels {name} have {size} entries, but {table.name} has {n} samples{hint}")
    return found


def _flat_labels(values: Array) -> Array:
    """One entry per sample; MATLAB's cells of text, and the bytes of HDF5's text, become text."""
    flat = np.asarray(values).ravel()
    if flat.dtype.kind == "S":
        return np.char.decode(flat, "utf-8", "replace")
    return np.array([str(np.squeeze(v)) for v in flat]) if flat.dtype.kind == "O" else flat
