"""The Gram form on a CUDA device for sparse data: only G and the quadratic forms read X, and both take sparse columns.

Thin columns are scattered (kernels/sparse.cu); spread ones are written out, some hundred at a time, for products of
matrices. What lies between G and M is the launches of `dufs_core.objective.engines.gpu_dense`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dufs_core.backend import Array, Backend
from dufs_core.data.sparse import ScaledSparseMatrix
from dufs_core.errors import MemoryLimitError
from dufs_core.objective.chain import Objective, Scores, Value
from dufs_core.objective.engines.gpu_dense import Plan, entries_needed
from dufs_core.objective.protocol import Engine, StepSize

COLUMNS = 512  # spread columns that are written out at once
_PLANS = 2  # near-equal minibatches come in two sizes
_WARPS = 8  # of a block, as in common.cuh


class CudaSparseEngine(Engine):
    """evaluate(bk, objective, mu, eps, X) for a `ScaledSparseMatrix` in columns (CSC); one gate a column.

    The columns go to the device when a table is first seen, and stay there until the next one. The same bits at every
    call. Raises MemoryLimitError where the device has no memory left.
    """

    name = "cuda_sparse"

    def __init__(self) -> None:
        self._plans: dict[tuple[Any, ...], Plan] = {}
        self._columns: _Columns | None = None

    def __call__(self, bk: Backend, objective: Objective, mu: Array, eps: Array, X: Any) -> tuple[Value, Array]:
        try:
            value, dmu = objective.value_and_grad(bk, mu, eps, X, self._scores_and_grad)
        except MemoryError as error:
            n, d = X.shape
            raise MemoryLimitError(
                f"The device has no memory left for steps over {n:,} rows and {d:,} sparse columns with {len(eps)} "
                f"draws ({str(error).strip().rstrip('.')}): set batch_size to fewer rows than {n:,}, fewer n_draws, "
                f"or free what else is on the device"
            ) from error
        S, b, degenerate = map(bk.to_host, (value.score, value.bandwidth, value.degenerate))
        return Value(value.loss, S, b, degenerate, value.isolated), dmu

    def bytes_needed(self, size: StepSize) -> int:
        """As `Engine.bytes_needed`."""
        gates = size.d * size.draws * (4 + 3 * 8 // size.itemsize)  # z, eps and what is kept; the sums, in double
        vectors = size.draws * size.n * (6 + 6 * 8 // size.itemsize)
        written_out = 3 * min(size.dense_columns, COLUMNS) * size.n
        return (entries_needed(size._replace(d=0)) + gates + vectors + written_out) * size.itemsize

    def _scores_and_grad(
        self, bk: Backend, objective: Objective, X: ScaledSparseMatrix, z: Array, undecided: Array
    ) -> Scores:
        plan, columns = self._plan(bk, objective, X, len(z)), self._on_device(bk, X)
        dz = bk.xp.zeros(z.shape, dtype=bk.xp.float64)
        for start in range(0, plan.R, plan.together):
            draws = slice(start, min(start + plan.together, plan.R))
            columns.gram(plan, z[draws], plan.G[: draws.stop - start])
            columns.dots(plan, z[draws], plan.sweep(draws.stop - start, draws, None), dz[draws])
        return Scores(plan.S.copy(), plan.b.copy(), plan.degenerate != 0, plan.isolated.copy(), dz)

    def _plan(self, bk: Backend, objective: Objective, X: ScaledSparseMatrix, draws: int) -> Plan:
        key = (X.shape[0], draws, str(X.dtype), objective, bk.xp.cuda.runtime.getDevice())
        if key not in self._plans:
            while len(self._plans) >= _PLANS:
                del self._plans[next(iter(self._plans))]
            self._plans[key] = Plan(bk, [objective], (X.shape[0], 0), (draws, 0), X.dtype)
        return self._plans[key]

    def _on_device(self, bk: Backend, X: ScaledSparseMatrix) -> _Columns:
        if self._columns is None or self._columns.table is not X:
            self._columns = None  # before the next one takes its memory
            self._columns = _Columns(bk, X)
        return self._columns


class _Columns:
    """The columns of a table on the device: thin ones also by rows."""

    def __init__(self, bk: Backend, table: ScaledSparseMatrix) -> None:
        self.bk, self.table, self.dtype = bk, table, table.dtype
        self.n, _ = table.shape
        thin, spread = np.flatnonzero(table.sparse_columns), np.flatnonzero(~table.sparse_columns)
        self.n_thin, self.spread = len(thin), spread
        xp, columns = bk.xp, table.matrix[:, thin]
        self.thin, self.m = xp.asarray(thin), xp.asarray(table.shift[thin])
        self.by_columns, self.by_rows = self._moved(columns), self._moved(columns.tocsr())
        self.written = (*self._moved(table.matrix[:, spread]), xp.asarray(table.shift[spread]))

    def _moved(self, matrix: Any) -> tuple[Array, Array, Array]:
        """Values, rows or columns, starts."""
        asarray = self.bk.xp.asarray
        return (
            asarray(matrix.data),
            asarray(matrix.indices.astype(np.int32, copy=False)),
            asarray(matrix.indptr.astype(np.int64, copy=False)),
        )

    def _launch(self, kernel: str, blocks: int, *arguments: Any) -> None:
        self.bk.kernels.launch(kernel, self.dtype, blocks, *arguments)

    def gram(self, plan: Plan, z: Array, G: Array) -> None:
        """G = sum_k z_k^2 x_k x_k' for every draw, x_k centred.      z (r, d), G (r, n, n)."""
        xp, r = self.bk.xp, len(z)
        gates = xp.ascontiguousarray(z[:, self.thin])
        sizes = tuple(map(np.int64, (r, self.n_thin, self.n)))
        c = xp.square(gates.astype(xp.float64) * self.m).sum(axis=1)
        a = xp.empty((r, self.n), dtype=xp.float64)
        self._launch("sparse_means<T>", -(-r * self.n // _WARPS), *self.by_rows, self.m, gates, c, *sizes, a)
        self._launch("sparse_gram<T>", r * self.n, *self.by_rows, *self.by_columns, gates, a, *sizes, G)
        if not len(self.spread):
            return
        some = self.bk.to_host(z) > 0
        for draw in range(r):
            for columns, X in self._written_out(some[draw]):
                Xt = X * z[draw, columns][:, None]
                self._add_product(plan, Xt, G[draw])

    def _add_product(self, plan: Plan, Xt: Array, G: Array) -> None:
        product = plan.T[:1]  # not in use before the sweep
        plan.product(True, Xt[None], Xt[None], product)
        G += product[0]

    def dots(self, plan: Plan, z: Array, M: Array, dz: Array) -> None:
        """dz_k = 2 z_k x_k' M x_k for every draw and undecided gate, x_k centred; others are left.      dz (r, d)."""
        xp, r = self.bk.xp, len(z)
        gates = xp.ascontiguousarray(z[:, self.thin])
        M1 = M.sum(axis=2, dtype=xp.float64)
        out = xp.empty((r, self.n_thin), dtype=xp.float64)
        sizes = map(np.int64, (r, self.n_thin, self.n))
        self._launch(
            "sparse_dots<T>", -(-r * self.n_thin // _WARPS), *self.by_columns, self.m, gates, M, M1, M1.sum(axis=1),
            *sizes, out,
        )  # fmt: skip
        dz[:, self.thin] = out
        if not len(self.spread):
            return
        host = self.bk.to_host(z)
        undecided = (host > 0) & (host < 1)
        for draw in range(r):
            for columns, X in self._written_out(undecided[draw]):
                MX = xp.empty((1, *X.shape), dtype=self.dtype)
                plan.product(False, X[None], M[draw : draw + 1], MX)
                MX *= X
                dz[draw, columns] = 2 * z[draw, columns] * MX[0].sum(axis=1, dtype=xp.float64)

    def _written_out(self, wanted: Array) -> Iterator[tuple[Array, Array]]:
        """Some spread columns at a time that are `wanted`, bool (d,) on the host: their positions, and X (count, n)."""
        xp, listed = self.bk.xp, np.flatnonzero(wanted[self.spread])
        for start in range(0, len(listed), COLUMNS):
            some = listed[start : start + COLUMNS]
            X = xp.empty((len(some), self.n), dtype=self.dtype)
            self._launch(
                "written_out<T>", len(some), *self.written, xp.asarray(some), np.int64(len(some)), np.int64(self.n), X
            )  # fmt: skip
            yield xp.asarray(self.spread[some]), X
