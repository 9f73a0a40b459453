"""SHA-256 of data, whatever holds them: an array, a sparse matrix, rows on a disk, a file."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from dufs_core.backend import Array, Backend
from dufs_core.data.on_disk import CHUNK_BYTES, is_on_disk


def describe(bk: Backend, X: Any) -> dict[str, Any]:
    """Kind, shape, dtype and SHA-256 of X (n, d), as `dufs_core.DUFS.fit` has accepted it.

    The kind is a part: an array, the same numbers in a sparse matrix, and the same numbers on a disk are scaled in
    different orders, and rounding differs. CSR and CSC are one kind, with one fingerprint; big-endian and native too.
    """
    kind = "sparse" if sparse.issparse(X) else "on disk" if is_on_disk(X) else "array"
    if kind == "sparse":
        csr = sparse.csr_array(X, copy=True)
        csr.sum_duplicates()
        digest = _digest(csr.dtype, csr.shape, (csr.indptr.astype(np.int64), csr.indices.astype(np.int64), csr.data))
    else:
        X = bk.to_host(X) if kind == "array" else X
        digest = array_fingerprint(X)
    dtype = np.dtype(X.dtype).newbyteorder("=")
    return {"kind": kind, "shape": [int(s) for s in X.shape], "dtype": str(dtype), "sha256": digest}


def file_fingerprint(path: str | Path) -> str:
    """SHA-256 of a file's bytes, as hexadecimal digits."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def array_fingerprint(X: Any) -> str:
    """SHA-256 of dtype, shape and entries, in C order and little-endian, of anything that gives slices of rows."""
    return _digest(np.dtype(X.dtype), X.shape, _chunks(X))


def _digest(dtype: np.dtype[Any], shape: tuple[int, ...], parts: Iterable[Array]) -> str:
    digest = hashlib.sha256(f"{dtype.newbyteorder('<').str} {tuple(map(int, shape))} ".encode())
    for part in parts:
        digest.update(np.ascontiguousarray(part, dtype=part.dtype.newbyteorder("<")).data)
    return digest.hexdigest()


def _chunks(X: Any) -> Iterator[Array]:
    rows = max(1, CHUNK_BYTES // max(1, np.dtype(X.dtype).itemsize * math.prod(X.shape[1:])))
    for start in range(0, X.shape[0], rows):
        part = X[start : start + rows]
        yield part.toarray() if sparse.issparse(part) else np.asarray(part)
