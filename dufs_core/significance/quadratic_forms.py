"""Quadratic forms of many rows in one matrix."""

from __future__ import annotations

from sklearn.utils import gen_batches

from dufs_core.backend import Array, Backend
from dufs_core.backend.threads import mapped

ROWS = 1024  # at a time
_PART = 128  # columns of the matrix whose products are added up at a time


def quadratic_forms(bk: Backend, X: Array, M: Array, threads: int) -> Array:
    """x_k' M x_k of every row of X (D, n), M (n, n); (D,) float64.

    x' M x = x' U x with U block by block upper triangular, little more than half of the products.
    """
    U, parts = M + M.T, list(gen_batches(len(M), _PART))
    for J in parts:
        U[J, J] /= 2

    def product(x: Array, J: slice) -> Array:
        y = x[:, : J.stop] @ U[: J.stop, J]
        y *= x[:, J]
        return y.sum(axis=1, dtype=bk.xp.float64)

    def of(block: slice) -> Array:
        return sum(product(X[block], J) for J in parts)

    return bk.xp.concatenate(mapped(bk, of, gen_batches(len(X), ROWS), threads))
