"""The Gram form on a CUDA device for sparse data: only G and the quadratic forms read X, and both take sparse columns.

Sparse columns are scattered (kernels/sparse.cu); dense ones are written out, some hundred at a time, for products of
matrices. What lies between G and M is `dufs_core.objective.engines.gpu_plan.Plan.sweep`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dufs_core.backend import Array, Backend
from dufs_core.data.sparse import ScaledSparseMatrix
from dufs_core.kernels.cuda import warps_for
from dufs_core.objective.chain import Objective, Scores
from dufs_core.objective.engines.gpu_plan import CudaScoresEngine, Plan, step_bytes
from dufs_core.objective.protocol import StepSize

COLUMNS = 512  # dense columns that are written out at once


class CudaSparseEngine(CudaScoresEngine):
    """Steps on a `ScaledSparseMatrix` in columns (CSC), which go to the device when a table is first seen.

    They stay there until the next one. The same bits at every call.
    """

    name = "cuda_sparse"
    what = "sparse steps"

    def __init__(self) -> None:
        self._columns: _Columns | None = None

    def bytes_needed(self, size: StepSize) -> int:
        gates = size.d * size.draws * (4 + 3 * 8 // size.itemsize)  # z, eps and what is kept; the sums, in double
        vectors = size.draws * size.n * (6 + 6 * 8 // size.itemsize)
        written_out = 3 * min(size.dense_columns, COLUMNS) * size.n
        return step_bytes(size._replace(d=0)) + (gates + vectors + written_out) * size.itemsize

    def _scores_and_grad(self, bk: Backend, objective: Objective, X: Any, z: Array, undecided: Array) -> Scores:
        plan = Plan(bk, [objective], (X.shape[0], 0), len(z), X.dtype)
        a = plan.arrays
        if self._columns is None or self._columns.table is not X:
            self._columns = None  # before the next one takes its memory
            self._columns = _Columns(bk, X)
        columns = self._columns
        dz = bk.xp.zeros(z.shape, dtype=bk.xp.float64)
        for start in range(0, plan.R, plan.together):
            draws = slice(start, min(start + plan.together, plan.R))
            columns.gram(plan, z[draws], a.G[: draws.stop - start])
            columns.dots(plan, z[draws], plan.sweep(draws), dz[draws])
        return Scores(a.S, a.b, a.degenerate != 0, a.isolated, dz)


class _Columns:
    """The columns of a table on the device: sparse ones also by rows."""

    def __init__(self, bk: Backend, table: ScaledSparseMatrix) -> None:
        self.bk, self.table, self.n = bk, table, table.shape[0]
        sparse, self.dense = np.flatnonzero(table.sparse_columns), np.flatnonzero(~table.sparse_columns)
        columns, asarray = table.matrix[:, sparse], bk.xp.asarray
        self.sparse, self.m = asarray(sparse), asarray(table.shift[sparse])
        self.by_columns, self.by_rows = self._moved(columns), self._moved(columns.tocsr())
        self.stored = (*self._moved(table.matrix[:, self.dense]), asarray(table.shift[self.dense]))

    def _moved(self, matrix: Any) -> tuple[Array, Array, Array]:
        """Values, rows or columns, starts."""
        indices, starts = matrix.indices.astype(np.int32, copy=False), matrix.indptr.astype(np.int64, copy=False)
        values, indices, starts = map(self.bk.xp.asarray, (matrix.data, indices, starts))
        return values, indices, starts

    def gram(self, plan: Plan, z: Array, G: Array) -> None:
        """G = sum_k z_k^2 x_k x_k' for every draw, x_k centred.      z (r, d), G (r, n, n)."""
        xp, r = self.bk.xp, len(z)
        gates = xp.ascontiguousarray(z[:, self.sparse])
        sizes = (r, len(self.sparse), self.n)
        c = xp.square(gates.astype(xp.float64) * self.m).sum(axis=1)
        a = xp.empty((r, self.n), dtype=xp.float64)
        plan.launch("sparse_means<T>", warps_for(a.size), *self.by_rows, self.m, gates, c, *sizes, a)
        plan.launch("sparse_gram<T>", a.size, *self.by_rows, *self.by_columns, gates, a, *sizes, G)
        for draw, columns, X in self._written_out(plan, self.bk.to_host(z) > 0):
            Xt = (X * z[draw, columns][:, None])[None]
            product = plan.arrays.T[:1]  # not in use before the sweep
            plan.product(True, Xt, Xt, product)
            G[draw] += product[0]

    def dots(self, plan: Plan, z: Array, M: Array, dz: Array) -> None:
        """dz_k = 2 z_k x_k' M x_k for every draw and undecided gate, x_k centred; others are left.      dz (r, d)."""
        xp, f8, r = self.bk.xp, self.bk.xp.float64, len(z)
        gates, out = xp.ascontiguousarray(z[:, self.sparse]), xp.empty((r, len(self.sparse)), dtype=f8)
        M1, sizes = M.sum(axis=2, dtype=f8), (r, len(self.sparse), self.n)
        sums = (M1, M1.sum(axis=1))
        plan.launch("sparse_dots<T>", warps_for(out.size), *self.by_columns, self.m, gates, M, *sums, *sizes, out)
        dz[:, self.sparse] = out
        host = self.bk.to_host(z)
        for draw, columns, X in self._written_out(plan, (host > 0) & (host < 1)):
            MX = xp.empty((1, *X.shape), dtype=plan.dtype)
            plan.product(False, X[None], M[draw : draw + 1], MX)
            MX *= X
            dz[draw, columns] = 2 * z[draw, columns] * MX[0].sum(axis=1, dtype=f8)

    def _written_out(self, plan: Plan, wanted: Array) -> Iterator[tuple[int, Array, Array]]:
        """Draw, positions and X (count, n) of some dense columns at a time that are `wanted`, bool (r, d), host."""
        xp = self.bk.xp
        for draw, listed in enumerate(map(np.flatnonzero, wanted[:, self.dense])):
            for start in range(0, len(listed), COLUMNS):
                some = listed[start : start + COLUMNS]
                X = xp.empty((len(some), self.n), dtype=plan.dtype)
                plan.launch("dense_columns<T>", len(some), *self.stored, xp.asarray(some), len(some), self.n, X)
                yield draw, xp.asarray(self.dense[some]), X
