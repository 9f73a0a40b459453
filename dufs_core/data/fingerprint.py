"""What tells one table from another, whatever holds it: an array, a sparse matrix, or rows on a disk."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from scipy import sparse

from dufs_core.backend import Array, Backend
from dufs_core.data.files.arrays import array_fingerprint
from dufs_core.data.on_disk import CHUNK_BYTES, is_on_disk


def described(bk: Backend, X: Any) -> dict[str, Any]:
    """Kind, shape, dtype and SHA-256 of X (n, d), as `dufs_core.DUFS.fit` has accepted it.

    The kind is a part: an array, the same numbers in a sparse matrix, and the same numbers on a disk are scaled in
    different orders, and rounding differs. CSR and CSC are one kind, with one fingerprint; big-endian and native too.
    """
    if sparse.issparse(X):
        kind, digest = "sparse", sparse_fingerprint(X)
    elif is_on_disk(X):
        kind, digest = "on disk", _source_fingerprint(X)
    else:
        X = bk.to_host(X)
        kind, digest = "array", array_fingerprint(X)
    return {"kind": kind, "shape": [int(s) for s in X.shape], "dtype": str(_native(X.dtype)), "sha256": digest}


def sparse_fingerprint(X: Any) -> str:
    """SHA-256 of a sparse matrix's shape and of its CSR arrays, with sorted columns and duplicates added up."""
    rows = sparse.csr_array(X, copy=True)
    rows.sum_duplicates()
    digest = hashlib.sha256(f"{rows.shape} ".encode())
    for part, dtype in ((rows.indptr, np.dtype("<i8")), (rows.indices, np.dtype("<i8")), (rows.data, None)):
        digest.update(array_fingerprint(part if dtype is None else part.astype(dtype)).encode())
    return digest.hexdigest()


def _source_fingerprint(X: Any) -> str:
    """SHA-256 of dtype, shape and rows, read a chunk at a time (sparse rows are made dense)."""
    n, d = X.shape
    step = max(1, CHUNK_BYTES // max(1, 8 * d))
    digest = hashlib.sha256(f"{_native(X.dtype).str} {(n, d)} ".encode())
    for start in range(0, n, step):
        digest.update(array_fingerprint(_dense(X[start : start + step])).encode())
    return digest.hexdigest()


def _dense(rows: Any) -> Array:
    return np.asarray(rows.toarray() if sparse.issparse(rows) else rows)


def _native(dtype: Any) -> np.dtype[Any]:
    native: np.dtype[Any] = np.dtype(dtype).newbyteorder("=")
    return native
