"""Files of arrays: .npy and .npz, MATLAB's .mat, HDF5. Which array is the table, and which holds labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
from scipy import sparse

from dufs_core.backend import Array
from dufs_core.backend.memory import byte_text, check_room
from dufs_core.data.files import mat
from dufs_core.data.files.headers import MOST_INFLATED, check_heaps, check_members, check_npy
from dufs_core.data.files.table import MISSING, Table
from dufs_core.data.sparse import checked
from dufs_core.errors import FileFormatError

_HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_MARKS = ("MATLAB_class", "MATLAB_sparse")  # attributes
_LABEL_NAMES = ("Y", "y", "labels", "label", "target")  # taken for labels where nothing is said


def read_npy(path: Path, transpose: bool, on_disk: bool) -> Table:
    """The table of an .npy file, or a numpy.memmap of it."""
    with path.open("rb") as file:
        check_npy(file, path.stat().st_size, in_memory=not on_disk)
    X = np.load(path, mmap_mode="r" if on_disk else None, allow_pickle=False)
    _check("the array", X)
    return Table(X.T if transpose else X, {"format": "npy", "transposed": transpose})


def read_arrays(
    path: Path,
    head: bytes,
    variable: str | None,
    labels: str | None,
    groups: str | None,
    covariates: Sequence[str],
    transpose: bool,
    on_disk: bool,
) -> Table:
    """The table of an .npz, MATLAB or HDF5 file that begins with `head`; on_disk: of HDF5 as an open dataset."""
    with ExitStack() as stack:
        form, stored = _contents(path, head, stack)
        on_disk = on_disk and form == "hdf5"
        asked = (variable, labels, groups, *covariates)
        for name in asked:
            if name is not None and name not in stored:
                held = shorten(", ".join(stored) or "nothing", 500, placeholder=" ...")
                raise FileFormatError(f'it has no variable "{name}"; it holds {held}')
        arrays = {}
        for name, read in stored.items():
            if variable is not None and name not in (*asked, *_LABEL_NAMES):
                continue
            try:
                array = read()
            except ValueError as error:
                if name in (*asked, "X") or "allow_pickle" not in str(error):
                    raise
                continue
            if array is not None:
                arrays[name] = checked(array) if sparse.issparse(array) else array
        table = _choose(path, form, arrays, variable, labels, groups, covariates, transpose, on_disk)
        if on_disk:
            stack.pop_all()  # the file closes with the dataset that is handed out
        return table


def _contents(path: Path, head: bytes, stack: ExitStack) -> tuple[str, dict[str, Callable[[], Any]]]:
    """The format of a file, and what reads each of its arrays while the stack is open."""
    if path.suffix.lower() == ".npz":
        archive = stack.enter_context(np.load(stack.enter_context(path.open("rb")), allow_pickle=False))
        check_members(archive.zip, path.stat().st_size)
        if {"format", "shape", "data"} <= set(archive.files):
            return "npz", {"X": partial(sparse.load_npz, path)}
        return "npz", {name: partial(archive.__getitem__, name) for name in archive.files}
    if _HDF5_SIGNATURE in (head[:8], head[512:520]):
        try:
            import h5py
        except ImportError:
            matlab = ", or save it in MATLAB with save(name, vars, '-v7')" if path.suffix.lower() == ".mat" else ""
            raise FileFormatError(f"it is HDF5, which needs h5py: pip install h5py{matlab}") from None
        file = stack.enter_context(h5py.File(path, "r"))
        names = (name for name in file if name[0] != "#")  # "#refs#" is MATLAB's
        return "hdf5", {name: partial(_hdf5_array, file, name) for name in names}
    if path.suffix.lower() != ".mat":
        raise FileFormatError("it is not an HDF5 file, whatever its ending says")
    if 0 in head[:4]:  # version 4
        from scipy import io

        whole = io.loadmat(path)
        return "mat", {name: partial(whole.get, name) for name in whole if name[0] != "_"}
    return "mat", {name: found.value for name, found in mat.variables(path).items()}


def _hdf5_array(file: Any, name: str) -> Any:
    """A dataset, or one of MATLAB's arrays, which are stored transposed; None for what is neither."""
    item = file[name]
    marks = {k: item.attrs[k] for k in _MARKS if k in item.attrs and item.attrs.get_id(k).dtype.kind != "O"}
    matlab_class = marks.get("MATLAB_class")
    if "MATLAB_sparse" in marks:
        data, ir = (_whole(item[part]) if part in item else np.empty(0) for part in ("data", "ir"))  # or all are 0
        jc = _whole(item["jc"])
        return sparse.csc_array((data, ir, jc), shape=(int(marks["MATLAB_sparse"]), len(jc) - 1))
    if not hasattr(item, "dtype") or matlab_class in (b"char", "char"):
        return None
    return item if matlab_class is None else _whole(item).T


def _whole(X: Any) -> Array:
    """The entries of a dataset."""
    if not isinstance(X, np.ndarray):
        _check_promise(X)
        check_room(_size(X), math.prod(X.shape) * X.dtype.itemsize)
    return np.asarray(X[()])


def _check_promise(X: Any) -> None:
    """Raise ValueError for a dataset beyond what its file can hold: HDF5 would make up what is not there."""
    needed, size = math.prod(X.shape) * X.dtype.itemsize, Path(X.file.filename).stat().st_size
    if needed > MOST_INFLATED * size:
        raise ValueError(f"{X.name} ({_size(X)}) would take {byte_text(needed)}, and the file has {byte_text(size)}")


def _choose(
    path: Path, form: str, arrays: Mapping[str, Any], variable: str | None, labels: str | None, groups: str | None,
    covariates: Sequence[str], transpose: bool, on_disk: bool,
) -> Table:  # fmt: skip
    """Pick the table, the labels, the groups and the covariates."""
    name = _default_table(arrays, (labels, groups, *covariates)) if variable is None else variable
    X = _check(name, arrays.get(name))
    shape = X.shape[::-1] if transpose else X.shape
    sizes = {k: math.prod(array.shape) for k, array in arrays.items() if k != name}
    for what, given in (("labels", labels), ("groups", groups)):
        if given is None:
            continue
        if given == name:
            raise FileFormatError(f'"{given}" cannot be the table and its {what} at once')
        if given not in sizes:
            raise FileFormatError(f"{given} is not an array, and cannot hold {what}")
        if (size := sizes[given]) != shape[0]:
            hint = f" (it has {shape[1]} features; are they samples? see --transpose)" if size == shape[1] else ""
            raise FileFormatError(f"{what} {given} have {size} entries, but {name} has {shape[0]} samples{hint}")
    for given in covariates:
        if given in (name, groups):
            raise FileFormatError(f'"{given}" cannot hold covariates and be the table or the groups at once')
    told = [_covariates(path, given, arrays.get(given), shape[0], name) for given in covariates]
    if labels is None:
        apart = (groups, *covariates)
        labels = next((k for k in _LABEL_NAMES if k not in apart and sizes.get(k) == shape[0]), None)
    notes = []
    if len(arrays) > 1 and variable is None:
        left_out = ", ".join(k for k in arrays if k not in (name, labels, groups, *covariates))
        note = f"{path.name}: {name} ({_size(X)}) is the table{f', {labels} are labels and not used' * bool(labels)}"
        note += f", {groups} are groups" * bool(groups)
        note += f", {', '.join(covariates)} are covariates" * bool(covariates)
        notes.append(note + (f", left out: {left_out}" if left_out else ""))
    if hasattr(X, "toarray"):
        notes.append(
            f"{path.name}: {name} is sparse and is made dense here, {math.prod(shape):,} numbers; in Python "
            f"DUFS().fit takes it sparse, read by scipy.sparse.load_npz (.npz) or scipy.io.loadmat (.mat)"
        )
        X = _dense(path, name, X)
    elif on_disk:
        _check_promise(X)
    else:
        X = _whole(X)
    read_as: dict[str, Any] = {"format": form, "variable": name, "labels": labels, "transposed": transpose}
    if groups is not None:
        read_as["groups"] = groups
    if covariates:
        read_as["covariates"] = list(covariates)
    found = None if labels is None else _flat_labels(path, arrays[labels])
    found_groups = None if groups is None else _flat_groups(path, arrays[groups])
    found_covariates = np.concatenate(told, axis=1) if told else None
    return Table(X.T if transpose else X, read_as, None, found, tuple(notes), found_groups, found_covariates)


def _default_table(arrays: Mapping[str, Any], apart: tuple[str | None, ...]) -> str:
    """X, or else the only table: of several columns and rows, of one, or at last with a name of labels.

    apart: the labels, groups and covariates that were named, if any.
    """
    if "X" in arrays and "X" not in apart:
        return "X"
    numeric = [k for k, v in arrays.items() if v.dtype.kind in "biuf" and len(v.shape) == 2 and k not in apart]
    tables = [k for k in numeric if k not in _LABEL_NAMES]
    for group in ([k for k in tables if min(arrays[k].shape) > 1], tables, numeric):
        if len(group) == 1:
            return group[0]
        if group:
            listed = _listed({k: arrays[k] for k in group})
            example = f"choose one with --variable, as in --variable {group[0]}"
            raise FileFormatError(f"it holds several tables, {listed}; {example}")
    raise FileFormatError(f"it holds no two-dimensional array of numbers, but {_listed(arrays)}")


def _check(name: str, X: Any) -> Any:
    """X, if it is a two-dimensional array of numbers."""
    if X is None or X.dtype.kind not in "biuf":
        raise FileFormatError(f"{name} holds {_kind(X)}, not real numbers")
    if len(X.shape) != 2:
        raise FileFormatError(
            f"{name} ({_size(X)}) has {len(X.shape)} dimension{'s' * (len(X.shape) != 1)}; a table needs 2, "
            f"samples and features. Images become rows of pixels by X.reshape(len(X), -1)"
        )
    return X


def _dense(path: Path, name: str, X: Any) -> Array:
    """The entries of a sparse array. Raises MemoryLimitError if there is no room for them."""
    check_room(f"{path}: {name} ({_size(X)}), made dense,", math.prod(X.shape) * X.dtype.itemsize)
    return np.asarray(X.toarray())


def _size(X: Any) -> str:
    return " x ".join(map(str, X.shape)) or "one number"


def _kind(X: Any) -> str:
    kinds = {"U": "text", "S": "text", "V": "records", "O": "objects"}
    return "a group or text" if X is None else kinds.get(X.dtype.kind, str(X.dtype))


def _listed(arrays: Mapping[str, Any]) -> str:
    listed = ", ".join(f"{name} ({_size(X)}, {_kind(X)})" for name, X in arrays.items())
    return shorten(listed or "nothing", 800, placeholder=" ...")


def _flat_labels(path: Path, values: Any) -> Array:
    """One entry per sample; MATLAB's cells of text, and HDF5's text, become text."""
    if hasattr(values, "asstr") and values.dtype.kind == "O":
        check_heaps(path)
        values = values.asstr(errors="replace")
    flat = np.asarray(values[()]).ravel()
    if flat.dtype.kind == "S":
        return np.char.decode(flat, "utf-8", "replace")
    return np.array([str(np.squeeze(v)) for v in flat]) if flat.dtype.kind == "O" else flat


def _flat_groups(path: Path, values: Any) -> Array:
    """Labels, in which None stands for texts that say that a value is missing, and for MATLAB's empty cells."""
    flat = _flat_labels(path, values)
    if flat.dtype.kind != "U":
        return flat
    texts = flat.tolist()
    return np.array([None if text.lower() in (*MISSING, "[]") else text for text in texts], dtype=object)


def _covariates(path: Path, name: str, values: Any, n: int, table: str) -> Array:
    """Covariates (n, c), float64, of the n samples of a table."""
    if values is None or values.dtype.kind not in "biuf":
        raise FileFormatError(
            f"{name} holds {_kind(values)}, and covariates are numbers: a class (batch, donor) belongs into --groups"
        )
    shape = values.shape[1:] if len(values.shape) == 2 and values.shape[0] == 1 else values.shape  # MATLAB's rows
    if len(shape) not in (1, 2) or shape[0] != n or 0 in shape:
        raise FileFormatError(
            f"covariates {name} ({_size(values)}) need one number or more for each of the {n} samples of {table}, as "
            f"{n} or {n} x c values"
        )
    found = _dense(path, name, values) if hasattr(values, "toarray") else _whole(values)
    return np.asarray(found, dtype=np.float64).reshape(n, -1)
