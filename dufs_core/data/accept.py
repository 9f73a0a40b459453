"""X as users hold it, accepted once: containers unwrapped, what is no table of real numbers refused with a sentence."""

from __future__ import annotations

import reprlib
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import date, timedelta
from numbers import Integral
from os import PathLike
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.utils.validation import validate_data

from dufs_core.backend import Array, Backend, get_backend, is_sparse_on_device, on_device, random
from dufs_core.data import dense
from dufs_core.data.on_disk import OnDiskMatrix, SomeRows, as_array, blocks, finite_blocks, is_on_disk
from dufs_core.data.scaling import ScaledData
from dufs_core.data.sparse import checked, scale_sparse
from dufs_core.errors import DufsWarning, user_stacklevel

_TIMES = (np.datetime64, np.timedelta64, date, timedelta)
_NAMED = 5  # columns in a message
_MOST = 0.9  # share of the squared distances
_SCALE_ROWS, _SCALE_ENTRIES = 512, 1 << 22  # that it is estimated from

Kind = Literal["dense host", "dense device", "sparse host", "sparse device", "on disk"]


class Accepted(NamedTuple):
    """X (n, d) as a fit takes it; later code asks its kind, not its type."""

    kind: Kind  # "on disk" only where batches are read from there
    X: Any  # an array on its side, CSR or CSC in the memory of the host, or rows on disk
    bk: Backend  # that computes
    given: Any  # the user's X, unwrapped

    @property
    def is_sparse(self) -> bool:
        """Whether X is a sparse matrix, on whichever side."""
        return self.kind.startswith("sparse")

    @property
    def is_on_disk(self) -> bool:
        """Whether batches are read from where X is stored."""
        return self.kind == "on disk"

    @property
    def xp(self) -> Any:
        """NumPy or CuPy: what X is indexed and scaled by."""
        return self.bk.xp if self.kind == "dense device" else np

    def rows(self, rows: Array) -> Accepted:
        """Some of the rows (NumPy indices, increasing)."""
        return self._replace(X=SomeRows(self.X, rows) if self.is_on_disk else self.X[self.xp.asarray(rows)])

    def device(self) -> AbstractContextManager[Any]:
        """Makes the device that X lives on the current one."""
        if self.kind == "sparse device":
            return self.bk.device_of(self.given.data)  # the matrix itself does not say where it is
        return self.bk.device_of(self.X) if self.kind == "dense device" else nullcontext()

    def scaled(
        self, scaling: str, dtype: Any, by_rows: bool = False, group: Array | None = None, is_calm: bool = False
    ) -> ScaledData:
        """The scaled data where the backend computes; by_rows: whether rows will be taken (minibatches).

        Of dense data in memory: group (n,), the number of each row's group, which they are scaled within then; is_calm:
        `dufs_core.data.dense.scale_columns`.
        """
        if self.is_on_disk:
            source = OnDiskMatrix(self.bk, self.X, scaling, dtype)
            data = ScaledData(source, source.constant)
        elif self.is_sparse:
            data = scale_sparse(self.X, scaling, dtype, by_rows=by_rows, bk=self.bk)
        else:
            X, constant = dense.scale_columns(self.X, scaling, dtype, self.xp, group, is_calm)
            data = ScaledData(self.bk.to_device(X), self.bk.to_host(constant))
        if scaling == "none" and self.xp is np:
            check_scales(self.X)
        return data


def kind_of(X: Any) -> Kind:
    """Where unwrapped X lives, and how it is stored."""
    if is_sparse_on_device(X):
        return "sparse device"
    if on_device(X):
        return "dense device"
    if sparse.issparse(X):
        return "sparse host"
    return "on disk" if is_on_disk(X) else "dense host"


def accept(
    selector: Any, X: Any, y: Any = None, *, backend: str = "numpy", rows: Any = None, takes_sparse: bool = True
) -> Accepted:
    """Check X (n, d), n >= 2, for a fit, and give `selector` the names and the number of its features.

    backend "auto": for sparse X the side that it lives on, else `dufs_core.backend.get_backend`. Data on disk are read
    into memory, unless the fit has fewer rows in hand at once: `rows` < n; None: it has all.

    Raises ValueError or TypeError, in scikit-learn's words where it has some, for what cannot be computed with.
    """
    given = X = unwrap(X)
    check_samples(X, y)
    kind = kind_of(X)
    if kind == "on disk" and not (isinstance(rows, Integral) and rows < X.shape[0]):
        X = unwrap(X[:])
        kind = "sparse host" if sparse.issparse(X) else "dense host"
    if backend == "auto" and kind.startswith("sparse"):
        backend = "cupy" if kind == "sparse device" else "numpy"
    bk = get_backend(backend)
    if kind.endswith("device") and bk.name == "numpy":
        raise ValueError(
            'X lives on a GPU, and the NumPy backend computes on the CPU: use backend="cupy" where CuPy works, or copy '
            "X to the host first (X.get() in CuPy, X.cpu() in PyTorch)"
        )
    if kind in ("on disk", "dense device"):
        X = bk.to_device(X) if kind == "dense device" else X
        dense.check_table(X)
        validate_data(selector, X, skip_check_array=True)  # names and number of features
    else:
        X = unwrap(X.get()) if kind == "sparse device" else X  # columns are scaled on the host
        formats = ("csr", "csc") if takes_sparse else False
        X = validate_data(
            selector, X, accept_sparse=formats, dtype="numeric", ensure_all_finite=False, ensure_min_samples=2
        )
    return Accepted(kind, X, bk, given)


def unwrap(X: Any) -> Any:
    """X as scikit-learn's checks and `dufs_core.data.on_disk` know it; most containers are returned as they are.

    An object that has DLPack alone becomes an array that shares its memory. Raises TypeError for what is no table (a
    path, an AnnData object, a lazy frame, a list of sparse matrices, a mapping, None), ValueError for another number of
    dimensions, rows of different lengths, texts, columns or entries that are no real numbers, or masked ones, and
    sparse matrices with damaged index arrays (`dufs_core.data.sparse.checked`).
    """
    if isinstance(X, (str, PathLike)):
        raise TypeError(
            f"X is a path, {str(X)!r}: read the file first, as in X = numpy.load(path) or pandas.read_csv(path), or "
            f"give it to the command line, dufs-core fit {X}"
        )
    if all(hasattr(X, name) for name in ("obs", "var", "uns", "X")) and not hasattr(X, "iloc"):  # frames have columns
        raise TypeError(
            "X is an AnnData object: use dufs_core.anndata.select_features(adata), or one of its matrices, adata.X"
        )
    if X is None or (isinstance(X, Mapping) and not sparse.issparse(X)):  # a dok_array is a mapping
        raise TypeError(
            f"X must be a table (n_samples, n_features), an array, frame or sparse matrix; got {type(X).__name__}"
        )
    is_on_device = on_device(X) or is_sparse_on_device(X)
    if hasattr(X, "__dlpack__") and not (is_on_device or hasattr(X, "__array__")):
        X = np.from_dlpack(X)
    module, kind = type(X).__module__.split(".")[0], getattr(getattr(X, "dtype", None), "kind", "")
    if module == "polars" and hasattr(X, "collect"):
        raise TypeError("X is a LazyFrame, which holds no values yet: call X.collect() first")
    _check_shape(X, _list_shape(X) if isinstance(X, (list, tuple)) else tuple(getattr(X, "shape", (0, 0))))
    if is_on_device:
        return X
    if isinstance(X, np.ma.MaskedArray) and (masked := int(np.ma.getmaskarray(X).sum())):
        raise ValueError(
            f"X is a masked array, and {masked} of its {X.size} values are masked. "
            f"{dense.FILL} (X.data has what lies under the mask)"
        )
    if module in ("pandas", "polars"):
        _check_frame(X, module)
    elif (time := _first_time(X)) is not None:
        raise ValueError(
            f"X holds times ({time}), and a number made of one depends on its unit: say which is meant, as by "
            f"(X - X.min()) / numpy.timedelta64(1, 'D') for days"
        )
    elif isinstance(X, np.ndarray) and kind in "SUT":
        raise ValueError(
            f"X holds text (dtype {X.dtype}): X.astype(float) if these are numbers, else encode them first"
        )
    elif kind == "c":
        raise ValueError(
            f"Complex data not supported: X has dtype {X.dtype}. Use X.real, or both parts as columns, "
            f"numpy.hstack([X.real, X.imag])"
        )
    return checked(X) if sparse.issparse(X) else X


def _first_time(X: Any) -> str | None:
    """The type of the first date or duration of an array or a list, which others take for a number."""
    if not isinstance(X, (np.ndarray, list, tuple)):
        return None
    array = np.asarray(X)
    if array.dtype.kind == "O":
        return next((type(value).__name__ for value in array.flat if isinstance(value, _TIMES)), None)
    return str(array.dtype) if array.dtype.kind in "mM" else None


def _list_shape(X: Any) -> tuple[int, ...]:
    """The shape of a list of rows."""
    if any(sparse.issparse(row) for row in X):
        raise TypeError(
            f"X is a {type(X).__name__} of {len(X)} sparse matrices: join them first, as rows by scipy.sparse.vstack(X)"
        )
    try:
        return np.shape(X)
    except ValueError:
        lengths = [len(row) if hasattr(row, "__len__") and not isinstance(row, str) else None for row in X]
    other = next((i for i, length in enumerate(lengths) if length != lengths[0]), 0)
    raise ValueError(
        f"The rows of X must have one length, a number for every feature; row 0 has {lengths[0]} and row {other} "
        f"has {lengths[other]}"
    )


def _check_shape(X: Any, shape: tuple[int, ...]) -> None:
    if len(shape) == 1 and shape[0] and all(isinstance(value, str) for value in X):
        raise ValueError(
            f"X holds {len(X)} texts ({type(X).__name__}): make numbers of them first, as with "
            f"sklearn.feature_extraction.text.TfidfVectorizer().fit_transform(X), whose sparse matrix is taken as it is"
        )
    if len(shape) == 1:
        raise ValueError(
            f"Expected 2D array, got 1D array instead (shape={shape}): X is a table (n_samples, n_features). Reshape "
            f"your data, X.reshape(-1, 1), if it is a single feature. If it is labels, give the data: fit(X) needs no "
            f"labels"
        )
    if len(shape) > 2:
        raise ValueError(
            f"Found array with dim {len(shape)}, while dim <= 2 is required; its shape is {shape}. X is a table "
            f"(n_samples, n_features): images become rows of pixels by X.reshape(len(X), -1)"
        )


def check_samples(X: Any, y: Any) -> None:
    """Raise ValueError if labels y, which are not used, have an entry for every column of X and not for every row."""
    shape = getattr(y, "shape", None)  # sparse y has no length, and 0-d arrays have one that raises
    entries = shape[:1] if isinstance(shape, tuple) else (len(y),) if hasattr(y, "__len__") else ()
    if len(getattr(X, "shape", ())) == 2 and entries == X.shape[1:] != X.shape[:1]:
        n, d = X.shape
        raise ValueError(
            f"X has {n} rows and {d} columns, and y {d} entries: samples are rows, so X seems to be turned. Use X.T"
        )


def check_width(X: Any, d: int, who: str) -> None:
    """Raise ValueError, in scikit-learn's words, if X has not d columns but d rows."""
    if len(getattr(X, "shape", ())) == 2 and X.shape[0] == d != X.shape[1]:
        raise ValueError(
            f"X has {X.shape[1]} features, but {who} is expecting {d} features as input. X has {d} rows: samples are "
            f"rows, so that X seems to be turned. Use X.T"
        )


def check_scales(X: Any) -> None:
    """Warn, for scaling="none", if a hundredth of the columns (at least one) make most of the squared distances."""
    n, d = X.shape
    rows = np.arange(min(n, _SCALE_ROWS, max(2, _SCALE_ENTRIES // d)))
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused elsewhere
        variances = dense_part(X, rows, np.arange(d)).var(axis=0)
        total = float(variances.sum())
    few, largest = max(1, d // 100), int(variances.argmax())
    if d < 3 or not np.isfinite(total) or np.sort(variances)[-few:].sum() <= _MOST * total:
        return
    deviation = np.sqrt(variances)
    said = (
        f'scaling="none", and {few} of the {d} columns make{"s" if few == 1 else ""} {_MOST:.0%} or more of the '
        f"squared distances between rows (column {largest} has standard deviation {deviation[largest]:.3g}, the median "
        f'is {np.median(deviation):.3g}): use scaling="columns", or take logarithms of counts first, numpy.log1p(X).'
    )
    warnings.warn(said, DufsWarning, stacklevel=user_stacklevel())


def check_values(X: Any) -> None:
    """Raise ValueError, with their number and the first column, if any values of X are NaN or infinite.

    X: a table in the memory of the host; what holds no numbers passes.
    """
    try:
        values = X if sparse.issparse(X) else np.asarray(X)
        values = values.astype(np.float64) if values.dtype.kind == "O" else values
    except (TypeError, ValueError):
        return
    if values.ndim == 2:
        dense.check_finite(values)


def _check_frame(X: Any, module: str) -> None:
    """Raise ValueError, naming them, for columns of a frame that hold something else than real numbers."""
    if module == "pandas":
        unlike = [i for i, dtype in enumerate(X.dtypes) if dtype.kind not in "iufbc"]
        bad = [i for i in unlike if X.dtypes.iloc[i].kind != "O" or not _are_numbers(X.iloc[:, i].dropna())]
    else:
        bad = [i for i, dtype in enumerate(X.dtypes) if not (dtype.is_numeric() or str(dtype) in ("Boolean", "Null"))]
    if bad:
        names = [repr(X.columns[i]) for i in bad[:_NAMED]] + ["..."] * (len(bad) > _NAMED)
        example = (X.iloc if module == "pandas" else X)[0, bad[0]] if len(X) else ""
        raise ValueError(
            f"{len(bad)} of the {X.shape[1]} columns of X do not hold numbers: {', '.join(names)} (the first begins "
            f"with {reprlib.repr(example)}). Leave out what identifies samples or is their label, "
            f"X.drop(columns=[...]), and encode the others, as with sklearn.preprocessing.OneHotEncoder (those of one "
            f"category depend on one another, and are found for that)"
        )


def _are_numbers(column: Any) -> bool:
    return all(isinstance(v, (int, float, np.number, np.bool_)) and not isinstance(v, np.timedelta64) for v in column)


# --- parts -----------------------------------------------------------------------------------------------------------


def host_array(X: Any) -> Any:
    """X with .shape and NumPy's slicing, in the memory of the host or on disk: array, CSR matrix, or source of rows."""
    X = unwrap(X)
    if is_sparse_on_device(X):
        X = unwrap(X.get())
    elif on_device(X):
        bk = get_backend("cupy")
        X = bk.to_host(bk.to_device(X))
    if sparse.issparse(X):
        return X.tocsr()
    return X if is_on_disk(X) else np.asarray(X)


def some_rows(n: int, most: int) -> Array:
    """All rows, or `most` of them drawn without replacement (always the same), ascending."""
    return np.sort(np.arange(n)[random.sample(get_backend("numpy"), 0, random.Stream.PERMUTATION, 1, n, most)])


def dense_part(X: Any, rows: Array, columns: Array) -> Array:
    """Rows (ascending) and columns of X as a float64 array (len(rows), len(columns))."""
    X = host_array(X)
    if isinstance(X, np.ndarray):
        return np.asarray(X[np.ix_(rows, columns)], dtype=np.float64)
    parts = [X[rows]] if sparse.issparse(X) else blocks(X, rows)
    return np.vstack([as_array(part[:, columns], np.float64) for part in parts])


def stored_columns(X: Any, columns: Array) -> Any:
    """Columns of a source, read a chunk of rows at a time: an array, or a CSR matrix where X gives sparse rows.

    X has a row at least. Raises ValueError, with their number and the first column, if any values are NaN or infinite.
    """
    parts = [block[:, columns] for block in finite_blocks(X)]
    return sparse.vstack(parts, format="csr") if sparse.issparse(parts[0]) else np.concatenate(parts)
