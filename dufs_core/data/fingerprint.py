"""SHA-256 of data, whatever holds them: an array, a sparse matrix, rows on a disk, a file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from dufs_core.backend import Array, Backend
from dufs_core.data.on_disk import as_array, blocks, is_on_disk


def describe(bk: Backend, X: Any) -> dict[str, Any]:
    """Kind, shape, dtype and SHA-256 of X (n, d), as `dufs_core.DUFS.fit` has accepted it.

    The kind is a part: an array, the same numbers in a sparse matrix, and the same numbers on a disk are scaled in
    different orders, and rounding differs. CSR and CSC are one kind, with one fingerprint; big-endian and native too.
    """
    kind = "sparse" if sparse.issparse(X) else "on disk" if is_on_disk(X) else "array"
    if kind == "sparse":
        csr = sparse.csr_array(X, copy=True)
        csr.sum_duplicates()
        digest = _digest(csr, (csr.indptr.astype(np.int64), csr.indices.astype(np.int64), csr.data))
    else:
        digest = array_fingerprint(bk.to_host(X) if kind == "array" else X)
    dtype = np.dtype(X.dtype).newbyteorder("=")
    return {"kind": kind, "shape": [int(s) for s in X.shape], "dtype": str(dtype), "sha256": digest}


def file_fingerprint(path: str | Path) -> str:
    """SHA-256 of a file's bytes, as hexadecimal digits."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def array_fingerprint(X: Any) -> str:
    """SHA-256 of dtype, shape and entries, in C order and little-endian, of any X (n, d) that gives slices of rows."""
    return _digest(X, map(as_array, blocks(X, np.arange(X.shape[0]))))


def _digest(X: Any, parts: Iterable[Array]) -> str:
    dtype = np.dtype(X.dtype).newbyteorder("<")
    digest = hashlib.sha256(f"{dtype.str} {tuple(map(int, X.shape))} ".encode())
    for part in parts:
        digest.update(np.ascontiguousarray(part, dtype=part.dtype.newbyteorder("<")).data)
    return digest.hexdigest()
