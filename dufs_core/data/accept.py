"""What users hold their data in: containers opened, and what is no table of numbers refused with a sentence."""

from __future__ import annotations

import reprlib
import warnings
from collections.abc import Mapping
from os import PathLike
from typing import Any

import numpy as np
from scipy import sparse

from dufs_core.backend import Array, get_backend, is_sparse_on_device, on_device
from dufs_core.data.dense import check_finite, check_stored, not_finite, too_many_dimensions
from dufs_core.data.on_disk import is_on_disk, slices
from dufs_core.errors import DufsWarning, user_stacklevel

_NAMED = 5  # columns in a message
_MOST = 0.9  # share of the squared distances
_SCALE_ROWS, _SCALE_ENTRIES = 512, 1 << 22  # that it is estimated from


def unwrap(X: Any) -> Any:
    """X as scikit-learn's checks and `dufs_core.data.on_disk` know it; most containers are returned as they are.

    An object that has DLPack alone becomes an array that shares its memory.

    Raises
    ------
    TypeError
        If X is a path, an AnnData object, a lazy frame, a list of sparse matrices, a mapping or None.
    ValueError
        If X has one dimension or more than two, rows of different lengths, texts, columns or entries that are no real
        numbers, or masked ones.
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
    if on_device(X) or is_sparse_on_device(X):
        return X
    if hasattr(X, "__dlpack__") and not hasattr(X, "__array__"):
        X = np.from_dlpack(X)
    if isinstance(X, (list, tuple)):
        _check_lists(X)
    elif hasattr(X, "ndim") and X.ndim == 1:
        if len(X) and all(isinstance(value, str) for value in X):
            raise _texts(X)
        raise _one_dimension(tuple(X.shape))
    elif hasattr(X, "ndim") and X.ndim > 2:
        raise too_many_dimensions(tuple(X.shape))
    if isinstance(X, np.ma.MaskedArray) and (masked := int(np.ma.getmaskarray(X).sum())):
        raise ValueError(
            f"X is a masked array, and {masked} of its {X.size} values are masked: impute them, or drop those rows or "
            f"columns first (X.data has what lies under the mask)"
        )
    module = type(X).__module__.split(".")[0]
    if module == "polars" and hasattr(X, "collect"):
        raise TypeError("X is a LazyFrame, which holds no values yet: call X.collect() first")
    if module == "polars" and len(X.shape) == 1:
        raise _one_dimension(X.shape)
    if module in ("pandas", "polars"):
        _check_frame(X, module)
    elif isinstance(X, np.ndarray) and X.dtype.kind in "SUT":
        raise ValueError(
            f"X holds text (dtype {X.dtype}): X.astype(float) if these are numbers, else encode them first"
        )
    elif getattr(getattr(X, "dtype", None), "kind", "") == "c":
        raise ValueError(
            f"Complex data not supported: X has dtype {X.dtype}. Use X.real, or both parts as columns, "
            f"numpy.hstack([X.real, X.imag])"
        )
    return X


def check_samples(X: Any, y: Any) -> None:
    """Raise ValueError if labels y, which are not used, have an entry for every column of X and not for every row."""
    if not hasattr(X, "shape") or len(X.shape) != 2:
        return
    n, d = X.shape
    shape = getattr(y, "shape", None)  # sparse y has no length, and 0-d arrays have one that raises
    entries = (shape[0] if shape else None) if isinstance(shape, tuple) else len(y) if hasattr(y, "__len__") else None
    if entries == d != n:
        raise ValueError(
            f"X has {n} rows and {d} columns, and y {d} entries: samples are rows, so X seems to be turned. Use X.T"
        )


def check_width(X: Any, d: int, who: str) -> None:
    """Raise ValueError, in scikit-learn's words, if X has not d columns but d rows."""
    if hasattr(X, "shape") and len(X.shape) == 2 and X.shape[0] == d != X.shape[1]:
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
    warnings.warn(
        f'scaling="none", and {few} of the {d} columns make{"s" if few == 1 else ""} {_MOST:.0%} or more of the '
        f"squared distances between rows (column {largest} has standard deviation {deviation[largest]:.3g}, the median "
        f'is {np.median(deviation):.3g}): use scaling="columns", or take logarithms of counts first, numpy.log1p(X).',
        DufsWarning, stacklevel=user_stacklevel(),
    )  # fmt: skip


def check_values(X: Any) -> None:
    """Raise ValueError, with their number and the first column, if any values of X are NaN or infinite.

    X: a table in the memory of the host; what holds no numbers passes.
    """
    if sparse.issparse(X):
        check_stored(X if X.format in ("csr", "csc") else X.tocsr())
        return
    try:
        values = np.asarray(X)
        values = values.astype(np.float64) if values.dtype.kind == "O" else values
    except (TypeError, ValueError):
        return
    if values.ndim == 2:
        check_finite(values)


def _check_lists(X: Any) -> None:
    if any(sparse.issparse(row) for row in X):
        raise TypeError(
            f"X is a {type(X).__name__} of {len(X)} sparse matrices: join them first, as rows by scipy.sparse.vstack(X)"
        )
    if X and all(isinstance(row, str) for row in X):
        raise _texts(X)
    inner = {getattr(row, "shape", ()) for row in X}
    if len(inner) == 1 and len(shape := inner.pop()) > 1:
        raise too_many_dimensions((len(X), *shape))
    if X and all(isinstance(row, (list, tuple)) and row and not _is_scalar(row[0]) for row in X):
        raise too_many_dimensions((len(X), len(X[0]), len(X[0][0])))
    lengths = [None if _is_scalar(row) else len(row) for row in X]
    if lengths and all(length is None for length in lengths):
        raise _one_dimension((len(X),))
    if len(set(lengths)) > 1:
        other = next(i for i, length in enumerate(lengths) if length != lengths[0])
        raise ValueError(
            f"The rows of X must have one length, a number for every feature; row 0 has {lengths[0]} and row {other} "
            f"has {lengths[other]}"
        )


def _is_scalar(row: Any) -> bool:
    return isinstance(row, str) or not hasattr(row, "__len__") or getattr(row, "ndim", 1) == 0


def _one_dimension(shape: tuple[int, ...]) -> ValueError:
    return ValueError(
        f"Expected 2D array, got 1D array instead (shape={shape}): X is a table (n_samples, n_features). Reshape your "
        f"data, X.reshape(-1, 1), if it is a single feature. If it is labels, give the data: fit(X) needs no labels"
    )


def _texts(X: Any) -> ValueError:
    return ValueError(
        f"X holds {len(X)} texts ({type(X).__name__}): make numbers of them first, as with "
        f"sklearn.feature_extraction.text.TfidfVectorizer().fit_transform(X), whose sparse matrix is taken as it is"
    )


def _check_frame(X: Any, module: str) -> None:
    """Raise ValueError, naming them, for columns of a frame that hold something else than real numbers."""
    if module == "pandas":
        from pandas.api import types

        kinds = {dtype: types.is_numeric_dtype(dtype) or types.is_bool_dtype(dtype) for dtype in set(X.dtypes)}
        unlike = [i for i, dtype in enumerate(X.dtypes) if not kinds[dtype]]
        bad = [i for i in unlike if not (X.dtypes.iloc[i].kind == "O" and _are_numbers(X.iloc[:, i].dropna()))]
        examples = [X.iloc[0, i] if len(X) else "" for i in bad[:1]]
    else:
        bad = [i for i, dtype in enumerate(X.dtypes) if not (dtype.is_numeric() or str(dtype) in ("Boolean", "Null"))]
        examples = [X[0, i] if len(X) else "" for i in bad[:1]]
    if bad:
        names = [repr(X.columns[i]) for i in bad[:_NAMED]] + ["..."] * (len(bad) > _NAMED)
        raise ValueError(
            f"{len(bad)} of the {X.shape[1]} columns of X do not hold numbers: {', '.join(names)} (the first begins "
            f"with {reprlib.repr(examples[0])}). Leave out what identifies samples or is their label, "
            f"X.drop(columns=[...]), and encode the others, as with sklearn.preprocessing.OneHotEncoder"
        )


def _are_numbers(column: Any) -> bool:
    return all(isinstance(value, (int, float, np.number, np.bool_)) for value in column)


# --- parts -----------------------------------------------------------------------------------------------------------


def host_array(X: Any) -> Any:
    """X with .shape and NumPy's slicing, in the memory of the host or on disk: array, CSR matrix, or source of rows."""
    X = unwrap(X)
    if is_sparse_on_device(X):
        X = X.get()
    if on_device(X):
        bk = get_backend("cupy")
        return bk.to_host(bk.to_device(X))
    if sparse.issparse(X):
        return X.tocsr()
    return X if is_on_disk(X) else np.asarray(X)


def some_rows(n: int, most: int) -> Array:
    """All rows, or `most` of them drawn without replacement (always the same), ascending."""
    return np.arange(n) if n <= most else np.sort(np.random.default_rng(0).choice(n, most, replace=False))


def dense_part(X: Any, rows: Array, columns: Array) -> Array:
    """Rows (ascending) and columns of X as a float64 array (len(rows), len(columns))."""
    X = host_array(X)
    if sparse.issparse(X):
        return np.asarray(X[rows][:, columns].toarray(), dtype=np.float64)
    if isinstance(X, np.ndarray):
        return np.asarray(X[np.ix_(rows, columns)], dtype=np.float64)
    out, done = np.empty((len(rows), len(columns))), 0
    for start, stop in slices(rows, X.shape[1]):
        last = int(np.searchsorted(rows, stop))
        block = X[start:stop]
        block = block.tocsr() if sparse.issparse(block) else np.asarray(block)
        part = block[rows[done:last] - start][:, columns]
        out[done:last] = part.toarray() if sparse.issparse(part) else part
        done = last
    return out


def stored_columns(X: Any, columns: Array) -> Any:
    """Columns of a source, read a chunk of rows at a time: an array, or a CSR matrix where X gives sparse rows.

    X has a row at least. Raises ValueError, with their number and the first column, if any values are NaN or infinite.
    """
    n, d = X.shape
    chunks: list[Any] = []
    bad, first_bad = 0, d
    for start, stop in slices(np.arange(n), d):
        block = X[start:stop]
        block = block.tocsr() if sparse.issparse(block) else np.asarray(block)
        strange = _columns_not_finite(block)
        if len(strange):
            bad, first_bad = bad + len(strange), min(first_bad, int(strange.min()))
        elif not bad:
            chunks.append(block[:, columns])
    if bad:
        raise not_finite(bad, n * d, first_bad)
    return sparse.vstack(chunks, format="csr") if sparse.issparse(chunks[0]) else np.concatenate(chunks)


def _columns_not_finite(block: Any) -> Array:
    """The column of every value that is NaN or infinite; block is an array or CSR."""
    if sparse.issparse(block):
        return block.indices[~np.isfinite(block.data)]
    return np.nonzero(~np.isfinite(block))[1]
