"""From a file to a table of numbers: .npy, .npz, .mat and .h5 here, .csv, .tsv and .txt in io_text.py.

Rows are samples and columns are features; `transpose` is for files that hold them the other way round.
Messages name the options of the command line (``--variable``), which `read_table` takes under the same names.
"""

from __future__ import annotations

import hashlib
import math
import zipfile
import zlib
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dufs_core.backend import Array
from dufs_core.errors import FileFormatError

_LABEL_NAMES = ("Y", "y", "labels", "label", "target")  # taken for labels where nothing is said
_NUMERIC_KINDS = "biuf"  # bool, signed, unsigned, float
_HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_BLOCK_BYTES = 1 << 25  # of a copy, where one is needed
_PICKLE = (
    "it holds Python objects, which only unpickling can read, and unpickling runs code from the file; "
    "save plain numbers instead: numpy.save(path, numpy.asarray(X, dtype=float))"
)
FORMATS = (".npy", ".npz", ".mat", ".csv", ".tsv", ".txt", ".h5", ".hdf5")


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


class _Variable(NamedTuple):
    """A named array of a file, not loaded yet."""

    name: str
    shape: tuple[int, ...]
    kind: str  # dtype or MATLAB class, for messages
    numeric: bool
    load: Callable[[], Array]


def read_table(
    path: str | Path,
    *,
    variable: str | None = None,
    labels: str | None = None,
    transpose: bool = False,
    header: bool | None = None,
    index_column: str | Sequence[str] = (),
    on_disk: bool = False,
) -> Table:
    """Read a table of numbers from a file; its ending says the format.

    Parameters
    ----------
    path : path
        .npy, .npz, .csv, .tsv, .txt, .mat; where h5py is installed also .mat of version 7.3, .h5 and .hdf5.
    variable : str, optional
        Name of the table in a file of several arrays. By default ``X``, or else the only two-dimensional one.
    labels : str, optional
        Variable, or column of a text file, that holds labels: it is not a feature. By default an array
        called Y, y, labels, label or target that has one entry per sample; text files have no default.
    transpose : bool
        The file holds features as rows. A text file is turned first: its first column then is the header.
    header : bool, optional
        Whether a text file starts with the names of the columns. By default this is seen from its contents.
    index_column : str or sequence of str
        Columns of a text file that identify samples: they are not features. A column is given by its name
        or by its number, counted from 0.
    on_disk : bool
        Leave the table of an .npy or HDF5 file where it is: X is then a numpy.memmap or an open h5py dataset
        (`dufs_core.data.on_disk`). Other files, and HDF5 tables that would be turned, are read.

    Returns
    -------
    Table

    Raises
    ------
    FileFormatError
        If the file cannot be understood; the sentence says what was found and what to do.
    OSError
        If it cannot be opened.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory, not a data file")
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    if suffix not in FORMATS:
        found = f'the ending "{path.suffix}"' if path.suffix else "no ending"
        in_python = ". For AnnData objects: dufs_core.anndata.select_features" if suffix == ".h5ad" else ""
        raise FileFormatError(f"{path} has {found}; the formats known are {', '.join(FORMATS)}{in_python}")
    with path.open("rb") as file:
        head = file.read(1024)
    if not head:
        raise FileFormatError(f"{path} is empty")

    if suffix in (".csv", ".tsv", ".txt"):
        from dufs_core.data.files.text import read_text

        if variable is not None:
            raise FileFormatError(f"--variable is for .npz and .mat files; {path} is text")
        columns = (index_column,) if isinstance(index_column, str) else tuple(index_column)
        return Table(*read_text(path, labels, transpose, header, columns))
    if header is not None or index_column:
        raise FileFormatError(f"--header and --index-column are for text files (.csv, .tsv, .txt); {path} is not one")
    if suffix == ".npy":
        if variable is not None or labels is not None:
            raise FileFormatError(f"--variable and --labels are for files of several arrays; {path} holds one")
        X = _load_npy(path, on_disk)
        return Table(X.T if transpose else X, read_as={"format": "npy", "transposed": transpose})
    if suffix == ".npz":
        return _choose(path, "npz", _npz_variables(path), variable, labels, transpose)
    if _HDF5_SIGNATURE in (head[:8], head[512:520]):
        return _choose_hdf5(path, variable, labels, transpose, on_disk and not transpose)
    if suffix == ".mat":
        return _choose(path, "mat", _mat_variables(path), variable, labels, transpose)
    raise FileFormatError(f"{path} is not an HDF5 file, whatever its ending says")


def file_fingerprint(path: str | Path) -> str:
    """SHA-256 of a file's bytes, as hexadecimal digits."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def array_fingerprint(X: Array) -> str:
    """SHA-256 of an array's dtype, shape and bytes (in C order, little-endian), as hexadecimal digits."""
    dtype = X.dtype.newbyteorder("<")
    digest = hashlib.sha256(f"{dtype.str} {X.shape} ".encode())
    rows = max(1, _BLOCK_BYTES // max(1, X[:1].nbytes))
    for start in range(0, len(X), rows):
        digest.update(np.ascontiguousarray(X[start : start + rows], dtype=dtype).data)
    return digest.hexdigest()


def shape_text(shape: Sequence[int]) -> str:
    """As in 72 x 7129."""
    return " x ".join(map(str, shape)) if shape else "one number"


def _dimensions(shape: Sequence[int]) -> str:
    return f"{len(shape)} dimension{'' if len(shape) == 1 else 's'} ({shape_text(shape)})"


def _listed(variables: Sequence[_Variable], most: int = 12) -> str:
    """As in: X (72 x 7129, float64), Y (72 x 1, int32)."""
    shown = [f"{v.name} ({shape_text(v.shape)}, {v.kind})" for v in variables[:most]]
    if len(variables) > most:
        shown.append(f"and {len(variables) - most} more")
    return ", ".join(shown) if shown else "nothing"


def _find(path: Path, variables: Sequence[_Variable], name: str) -> _Variable:
    for v in variables:
        if v.name == name:
            return v
    raise FileFormatError(f'{path} has no variable "{name}"; it holds {_listed(variables)}')


def _require_table(path: Path, v: _Variable) -> _Variable:
    """The variable itself, if it is a two-dimensional array of numbers."""
    if v.kind == "object":
        raise FileFormatError(f"{path}: variable {v.name} is refused, because {_PICKLE}")
    if not v.numeric:
        raise FileFormatError(f"{path}: variable {v.name} holds {v.kind}, not real numbers")
    if len(v.shape) != 2:
        raise FileFormatError(
            f"{path}: variable {v.name} has {_dimensions(v.shape)}; a table needs 2, samples and features"
        )
    return v


def _the_table(path: Path, variables: Sequence[_Variable], labels: str | None) -> _Variable:
    """The variable to take where none is named: X, or else the only table."""
    if not variables:
        raise FileFormatError(f"{path} holds no arrays")
    named_X = [v for v in variables if v.name == "X" and labels != "X"]
    if named_X:
        return _require_table(path, named_X[0])
    numeric = [v for v in variables if v.numeric and len(v.shape) == 2 and v.name != labels]
    tables = [v for v in numeric if v.name not in _LABEL_NAMES]
    several_columns = [v for v in tables if min(v.shape) > 1]
    for group in (several_columns, tables, numeric):
        if len(group) == 1:
            return group[0]
        if group:
            raise FileFormatError(
                f"{path} holds several tables, {_listed(group)}; "
                f"choose one with --variable, as in --variable {group[0].name}"
            )
    if any(v.kind == "object" for v in variables):
        raise FileFormatError(f"{path} holds {_listed(variables)}; it is refused, because {_PICKLE}")
    raise FileFormatError(f"{path} holds no two-dimensional array of numbers, but {_listed(variables)}")


def _choose(
    path: Path, form: str, variables: Sequence[_Variable], variable: str | None, labels: str | None, transpose: bool
) -> Table:
    """Pick the table and the labels out of a file's variables, and load them."""
    if variable is not None:
        chosen = _require_table(path, _find(path, variables, variable))
    else:
        chosen = _the_table(path, variables, labels)
    n, other = reversed(chosen.shape) if transpose else chosen.shape

    label_variable = None
    if labels is not None:
        label_variable = _find(path, variables, labels)
        size = math.prod(label_variable.shape)
        if label_variable is chosen:
            raise FileFormatError(f'{path}: "{labels}" cannot be the table and its labels at once')
        if size != n:
            hint = f" (it has {other} features; are they samples? see --transpose)" if size == other else ""
            raise FileFormatError(
                f"{path}: labels {labels} have {size} entries, but {chosen.name} has {n} samples{hint}"
            )
        if label_variable.kind == "object":
            raise FileFormatError(f"{path}: labels {labels} are refused, because {_PICKLE}")
    else:
        for name in _LABEL_NAMES:
            fitting = [v for v in variables if v.name == name and v is not chosen and v.kind != "object"]
            if fitting and math.prod(fitting[0].shape) == n:
                label_variable = fitting[0]
                break

    X = chosen.load()
    notes = []
    if len(variables) > 1 and variable is None:
        left_out = ", ".join(v.name for v in variables if v is not chosen and v is not label_variable)
        used = f"{path.name}: {chosen.name} ({shape_text(chosen.shape)}) is the table"
        used += f", {label_variable.name} are labels and not used" if label_variable else ""
        notes.append(used + (f", left out: {left_out}" if left_out else ""))
    if chosen.kind.startswith("sparse"):
        notes.append(
            f"{path.name}: {chosen.name} is sparse and is made dense here, {math.prod(chosen.shape):,} numbers; in "
            f"Python DUFS().fit takes it sparse, read by scipy.sparse.load_npz (.npz) or scipy.io.loadmat (.mat)"
        )
    return Table(
        X.T if transpose else X,
        labels=None if label_variable is None else _flat_labels(label_variable.load()),
        read_as={
            "format": form,
            "variable": chosen.name,
            "labels": None if label_variable is None else label_variable.name,
            "transposed": transpose,
        },
        notes=tuple(notes),
    )


def _flat_labels(values: Array) -> Array:
    """One entry per sample; MATLAB's cells of text, and the bytes of HDF5's text (UTF-8), become text."""
    flat = np.asarray(values).ravel()
    if flat.dtype.kind == "S":
        return np.array([v.decode("utf-8", "replace") for v in flat.tolist()])
    return np.array([str(np.squeeze(v)) for v in flat]) if flat.dtype.kind == "O" else flat


def _damaged(path: Path, form: str, error: Exception) -> FileFormatError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return FileFormatError(f"{path} cannot be read as {form}; it is damaged or something else ({reason})")


def _is_numeric(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in _NUMERIC_KINDS and dtype.names is None


def _kind_text(dtype: np.dtype[Any]) -> str:
    if dtype.names is not None:
        return "records"
    if dtype.kind in "US":
        return "text"
    return "object" if dtype.hasobject else dtype.name


# --- NumPy ---------------------------------------------------------------------------------------------------------


def _npy_header(file: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    else:  # 2.0 has a longer header; 3.0 differs from it in the names of records only
        shape, _, dtype = np.lib.format.read_array_header_2_0(file)
    return shape, dtype


def _load_npy(path: Path, on_disk: bool) -> Array:
    with path.open("rb") as file:
        if file.read(2) == b"PK":
            raise FileFormatError(f"{path} is an .npz file by its contents; rename it")
        file.seek(0)
        try:
            shape, dtype = _npy_header(file)
        except (ValueError, EOFError, TypeError, SyntaxError) as error:
            raise _damaged(path, "an .npy array", error) from error

        def load() -> Array:
            file.seek(0)
            try:
                if on_disk:
                    return np.load(path, mmap_mode="r", allow_pickle=False)
                return np.lib.format.read_array(file, allow_pickle=False)
            except (ValueError, EOFError) as error:
                raise _damaged(path, "an .npy array", error) from error

        kind = _kind_text(dtype)
        if kind == "object":
            raise FileFormatError(f"{path} is refused, because {_PICKLE}")
        if not _is_numeric(dtype):
            raise FileFormatError(f"{path} holds {kind}, not real numbers")
        if len(shape) != 2:
            raise FileFormatError(
                f"{path} holds an array of {_dimensions(shape)}; a table needs 2, samples and features: images become "
                f"rows of pixels by X.reshape(len(X), -1)"
            )
        return load()


def _npz_variables(path: Path) -> list[_Variable]:
    variables = []
    try:
        with zipfile.ZipFile(path) as archive:
            members = [m for m in archive.namelist() if m.endswith(".npy")]
            for member in members:
                with archive.open(member) as file:
                    shape, dtype = _npy_header(file)
                variables.append(
                    _Variable(member[:-4], shape, _kind_text(dtype), _is_numeric(dtype), _npz_loader(path, member))
                )
    except (zipfile.BadZipFile, ValueError, EOFError, TypeError, SyntaxError, zlib.error) as error:
        raise _damaged(path, "an .npz archive", error) from error
    names = {v.name for v in variables}
    if {"format", "shape", "data"} <= names:  # written by scipy.sparse.save_npz
        return [_sparse_npz(path)]
    return variables


def _npz_loader(path: Path, member: str) -> Callable[[], Array]:
    def load() -> Array:
        try:
            with zipfile.ZipFile(path) as archive, archive.open(member) as file:
                return np.lib.format.read_array(file, allow_pickle=False)
        except (zipfile.BadZipFile, ValueError, EOFError, zlib.error) as error:
            raise _damaged(path, f"an .npz archive, member {member}", error) from error

    return load


def _sparse_npz(path: Path) -> _Variable:
    from scipy import sparse

    try:
        matrix = sparse.load_npz(path)
    except (ValueError, KeyError, OSError) as error:
        raise _damaged(path, "a sparse matrix", error) from error
    return _Variable("X", matrix.shape, f"sparse {matrix.dtype.name}", _is_numeric(matrix.dtype), matrix.toarray)


# --- MATLAB --------------------------------------------------------------------------------------------------------

_MAT_NUMERIC = {"double", "single", "logical", "sparse", *(f"{u}int{b}" for u in ("", "u") for b in (8, 16, 32, 64))}


def _mat_variables(path: Path) -> list[_Variable]:
    from scipy import io

    def loader(name: str) -> Callable[[], Array]:
        def load() -> Array:
            try:
                values = io.loadmat(path, variable_names=[name])[name]
            except Exception as error:  # scipy's reader raises whatever the damaged bytes lead it to
                raise _damaged(path, "a MATLAB file", error) from error
            values = values.toarray() if hasattr(values, "toarray") else values
            if np.iscomplexobj(values):
                raise FileFormatError(f"{path}: variable {name} holds complex numbers, not real ones")
            return values

        return load

    try:
        found = io.whosmat(path)
    except Exception as error:  # as above
        raise _damaged(path, "a MATLAB file", error) from error
    return [_Variable(name, tuple(shape), kind, kind in _MAT_NUMERIC, loader(name)) for name, shape, kind in found]


def _choose_hdf5(path: Path, variable: str | None, labels: str | None, transpose: bool, on_disk: bool) -> Table:
    """MATLAB 7.3 (arrays are stored transposed, which the attribute MATLAB_class gives away) and plain HDF5."""
    try:
        import h5py
    except ImportError:
        remedy = ", or save it in MATLAB with save(name, vars, '-v7')" if path.suffix.lower() == ".mat" else ""
        raise FileFormatError(
            f"{path} is HDF5{' (MATLAB 7.3)' if remedy else ''}, which needs h5py: pip install h5py{remedy}"
        ) from None
    try:
        opened = h5py.File(path, "r")  # left open, it closes with the dataset that is handed out
        with nullcontext(opened) if on_disk else opened as file:
            variables = [v for name in file if (v := _hdf5_variable(name, file[name], on_disk)) is not None]
            return _choose(path, "hdf5", variables, variable, labels, transpose)
    except FileFormatError:
        raise
    except (OSError, KeyError, RuntimeError) as error:
        raise _damaged(path, "HDF5", error) from error


def _hdf5_variable(name: str, item: Any, on_disk: bool) -> _Variable | None:
    """A dataset, or MATLAB's group of a sparse matrix; None for anything else."""
    import h5py

    if name.startswith("#"):  # MATLAB's own bookkeeping
        return None
    matlab_class = item.attrs.get("MATLAB_class")
    if isinstance(matlab_class, bytes):
        matlab_class = matlab_class.decode()
    if "MATLAB_sparse" in item.attrs:
        rows, columns = int(item.attrs["MATLAB_sparse"]), len(item["jc"]) - 1

        def load_sparse() -> Array:
            from scipy import sparse

            parts = tuple(item[part][()] if part in item else np.empty(0) for part in ("data", "ir"))
            matrix: Array = sparse.csc_array((*parts, item["jc"][()]), shape=(rows, columns)).toarray()
            return matrix

        return _Variable(name, (rows, columns), "sparse", True, load_sparse)
    if not hasattr(item, "dtype"):
        return _Variable(name, (), "a struct" if matlab_class == "struct" else "a group", False, lambda: item)
    if "MATLAB_empty" in item.attrs:
        shape = tuple(int(size) for size in item[()])
        return _Variable(name, shape, str(matlab_class), matlab_class in _MAT_NUMERIC, lambda: np.empty(shape))
    kind = matlab_class or ("text" if item.dtype.hasobject else _kind_text(item.dtype))
    numeric = _is_numeric(item.dtype) and (matlab_class is None or matlab_class in _MAT_NUMERIC)
    if matlab_class is None:
        if item.dtype.hasobject and h5py.check_string_dtype(item.dtype) is not None:
            return _Variable(name, item.shape, kind, False, lambda: item.asstr(errors="replace")[()])
        return _Variable(name, item.shape, kind, numeric, lambda: item if on_disk and item.ndim == 2 else item[()])
    return _Variable(name, item.shape[::-1], kind, numeric, lambda: item[()].T)
