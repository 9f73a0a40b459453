"""From a file to a table of numbers. Messages name options of the command line, which `read_table` takes as well."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dufs_core.data.files.arrays import read_arrays, read_npy
from dufs_core.data.files.table import Table
from dufs_core.data.files.text import read_text
from dufs_core.errors import FileFormatError, MemoryLimitError

__all__ = ["Table", "read_table"]
_TEXT = (".csv", ".tsv", ".txt")
_FORMATS = (".npy", ".npz", ".mat", *_TEXT, ".h5", ".hdf5")


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Name the file in what is raised; whatever damaged bytes have led a reader to becomes one sentence."""
    try:
        yield
    except (MemoryLimitError, Warning):
        raise
    except FileFormatError as error:
        raise FileFormatError(f"{path}: {error}") from None
    except MemoryError as error:
        raise FileFormatError(
            f"{path} is damaged, or larger than the memory: {str(error) or 'no more is known'}"
        ) from error
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        reason = f"{type(error).__name__}: {reason}" if isinstance(error, LookupError) else reason
        sentence = f"{path} cannot be read; it is damaged, or something else than its ending says ({reason})"
        if "allow_pickle" in reason:
            sentence += (
                ". Only unpickling can read Python objects, and unpickling runs code from the file; save plain numbers "
                "instead, numpy.save(path, numpy.asarray(X, dtype=float))"
            )
        raise FileFormatError(sentence) from error


def read_table(
    path: str | Path,
    *,
    variable: str | None = None,
    labels: str | None = None,
    groups: str | None = None,
    covariates: str | Sequence[str] = (),
    transpose: bool = False,
    header: bool | None = None,
    index_column: str | Sequence[str] = (),
    on_disk: bool = False,
) -> Table:
    """Read a table of numbers from a file, rows samples and columns features; its ending says the format.

    Parameters
    ----------
    path : path
        .npy, .npz, .csv, .tsv, .txt, .mat; where h5py is installed also .mat of version 7.3, .h5 and .hdf5.
    variable : str, optional
        Name of the table in a file of several arrays. By default ``X``, or else the only two-dimensional one.
    labels : str, optional
        Variable, or column of a text file, that holds labels: it is not a feature. By default an array
        called Y, y, labels, label or target that has one entry per sample; text files have no default.
    groups : str, optional
        Variable, or column of a text file, that holds the group of each row (batch, donor, plate): it is not a
        feature. It may be that of the labels, and has no default.
    covariates : str or sequence of str
        Variables (n,) or (n, c), or columns of a text file, that hold numbers by which rows are known to differ (age,
        depth): they are not features.
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

    Raises
    ------
    FileFormatError
        If the file cannot be understood; the sentence says what was found and what to do.
    MemoryLimitError
        If its table is larger than the memory that is available.
    OSError
        If it cannot be opened.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory, not a data file")
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    if suffix not in _FORMATS:
        in_python = ". For AnnData objects: dufs_core.anndata.select_features" if suffix == ".h5ad" else ""
        known = ", ".join(_FORMATS) + in_python
        raise FileFormatError(f'{path} has the ending "{suffix}"; the formats known are {known}')
    with path.open("rb") as file:
        head = file.read(1024)
    if not head:
        raise FileFormatError(f"{path} is empty")
    for option, given, meant in (
        ("--variable", variable is not None, (".npz", ".mat", ".h5", ".hdf5")),
        ("--labels", labels is not None, (".npz", ".mat", ".h5", ".hdf5", *_TEXT)),
        ("--groups", groups is not None, (".npz", ".mat", ".h5", ".hdf5", *_TEXT)),
        ("--covariates", bool(covariates), (".npz", ".mat", ".h5", ".hdf5", *_TEXT)),
        ("--header or --index-column", header is not None or bool(index_column), _TEXT),
    ):
        if given and suffix not in meant:
            raise FileFormatError(f"{option} is for files that end with {', '.join(meant)}; got {path}")

    told = (covariates,) if isinstance(covariates, str) else tuple(covariates)
    with _reading(path):
        if suffix in _TEXT:
            columns = (index_column,) if isinstance(index_column, str) else tuple(index_column)
            return read_text(path, labels, groups, told, transpose, header, columns)
        if suffix != ".npy":
            return read_arrays(path, head, variable, labels, groups, told, transpose, on_disk and not transpose)
        if head[:2] == b"PK":
            raise FileFormatError("it is an .npz file by its contents; rename it")
        return read_npy(path, transpose, on_disk)
