"""Files of arrays: .npy and .npz, MATLAB's .mat, HDF5. What an array is like is read first, its numbers when chosen."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dufs_core.backend import Array
from dufs_core.data.files.table import Table, Variable, choose, require_table
from dufs_core.errors import FileFormatError

_MATLAB_NUMERIC = {
    "double", "single", "logical", "sparse", *(f"{u}int{b}" for u in ("", "u") for b in (8, 16, 32, 64)),
}  # fmt: skip


@contextmanager
def _reading(path: Path, form: str) -> Iterator[None]:
    """Turn whatever the reader of a format raises, led astray by damaged bytes, into one sentence."""
    try:
        yield
    except (FileFormatError, MemoryError):
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise FileFormatError(f"{path} cannot be read as {form}; it is damaged or something else ({reason})") from error


def _is_numeric(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "biuf" and dtype.names is None


def _kind(dtype: np.dtype[Any]) -> str:
    if dtype.names is not None:
        return "records"
    return "text" if dtype.kind in "US" else "object" if dtype.hasobject else dtype.name


def load_npy(path: Path, on_disk: bool) -> Array:
    """The table of an .npy file, or a numpy.memmap of it."""
    with _reading(path, "an .npy array"), path.open("rb") as file:
        if zipfile.is_zipfile(file):
            raise FileFormatError(f"{path} is an .npz file by its contents; rename it")
        file.seek(0)
        load = partial(np.load, path, mmap_mode="r" if on_disk else None, allow_pickle=False)
        table = _npy_variable("the array", file, load)
        require_table(path, table)
        return table.load()


def npz_variables(path: Path) -> list[Variable]:
    """The arrays of an .npz file; the one of scipy.sparse.save_npz."""
    variables = []
    with _reading(path, "an .npz archive"), zipfile.ZipFile(path) as archive:
        for member in archive.namelist():
            if member.endswith(".npy"):
                with archive.open(member) as file:
                    variables.append(_npy_variable(member[:-4], file, partial(_load_npz, path, member[:-4])))
        if {"format", "shape", "data"} <= {v.name for v in variables}:
            from scipy import sparse

            X = sparse.load_npz(path)
            return [Variable("X", X.shape, f"sparse {X.dtype.name}", _is_numeric(X.dtype), X.toarray)]
    return variables


def _load_npz(path: Path, name: str) -> Array:
    with _reading(path, f"an .npz archive, member {name}"), np.load(path, allow_pickle=False) as archive:
        return archive[name]


def _npy_variable(name: str, file: Any, load: Any) -> Variable:
    if np.lib.format.read_magic(file) == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    else:  # 2.0 has a longer header; 3.0 differs from it in the names of records only
        shape, _, dtype = np.lib.format.read_array_header_2_0(file)
    return Variable(name, shape, _kind(dtype), _is_numeric(dtype), load)


def mat_variables(path: Path) -> list[Variable]:
    """The arrays of a .mat file up to version 7."""
    from scipy import io

    def load(name: str) -> Array:
        with _reading(path, "a MATLAB file"):
            values = io.loadmat(path, variable_names=[name])[name]
        if np.iscomplexobj(values):
            raise FileFormatError(f"{path}: {name} holds complex numbers, not real ones")
        return values.toarray() if hasattr(values, "toarray") else values

    with _reading(path, "a MATLAB file"):
        found = io.whosmat(path)
    return [Variable(name, shape, kind, kind in _MATLAB_NUMERIC, partial(load, name)) for name, shape, kind in found]


def read_hdf5(path: Path, variable: str | None, labels: str | None, transpose: bool, on_disk: bool) -> Table:
    """The table of an HDF5 file, MATLAB's of version 7.3 too; on_disk: as an open dataset."""
    try:
        import h5py
    except ImportError:
        matlab = ", or save it in MATLAB with save(name, vars, '-v7')" if path.suffix.lower() == ".mat" else ""
        raise FileFormatError(f"{path} is HDF5, which needs h5py: pip install h5py{matlab}") from None
    with _reading(path, "HDF5"):
        opened = h5py.File(path, "r")  # left open, it closes with the dataset that is handed out
        with nullcontext(opened) if on_disk else opened as file:
            variables = [_hdf5_variable(name, file[name], on_disk) for name in file if not name.startswith("#")]
            return choose(path, "hdf5", variables, variable, labels, transpose)


def _hdf5_variable(name: str, item: Any, on_disk: bool) -> Variable:
    """A dataset, or MATLAB's group of a sparse matrix. MATLAB's arrays are stored transposed."""
    matlab_class = item.attrs.get("MATLAB_class")
    if "MATLAB_sparse" in item.attrs:
        shape = int(item.attrs["MATLAB_sparse"]), len(item["jc"]) - 1
        return Variable(name, shape, "sparse", True, lambda: _matlab_sparse(item, shape))
    if not hasattr(item, "dtype"):
        return Variable(name, (), "a group", False, lambda: item)
    if matlab_class is not None:
        kind = matlab_class.decode() if isinstance(matlab_class, bytes) else str(matlab_class)
        numeric = _is_numeric(item.dtype) and kind in _MATLAB_NUMERIC
        return Variable(name, item.shape[::-1], kind, numeric, lambda: item[()].T)
    if item.dtype.hasobject:
        return Variable(name, item.shape, "text", False, lambda: item.asstr(errors="replace")[()])
    numeric = _is_numeric(item.dtype)
    return Variable(
        name, item.shape, _kind(item.dtype), numeric, lambda: item if on_disk and item.ndim == 2 else item[()]
    )


def _matlab_sparse(group: Any, shape: tuple[int, int]) -> Array:
    from scipy import sparse

    parts = [group[part][()] if part in group else np.empty(0) for part in ("data", "ir")]  # missing if all are zero
    dense: Array = sparse.csc_array((*parts, group["jc"][()]), shape=shape).toarray()
    return dense
