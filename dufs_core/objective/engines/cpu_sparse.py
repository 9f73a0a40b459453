"""The Gram form on the CPU for sparse data: only G and the quadratic forms read X, and both take sparse columns.

Everything between them is the dense engine's compiled code, one draw at a time, with all threads at each; with
saturation it is the operations.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dufs_core.backend import Array, Backend
from dufs_core.data.sparse import ScaledSparseMatrix
from dufs_core.kernels.arrays import Columns
from dufs_core.kernels.native import Kernel
from dufs_core.objective.chain import Objective, Scores, scores_of_gram
from dufs_core.objective.engines.cpu_dense import DenseEngine, kernel_settings, layout_bytes
from dufs_core.objective.engines.reference import operations_bytes
from dufs_core.objective.protocol import Engine, StepSize

_gram, _dots, _from_gram = Kernel("sparse", "gram"), Kernel("sparse", "dots"), Kernel("steps", "from_gram")
_halved = Kernel("steps", "halved")


class SparseEngine(Engine):
    """Takes a `ScaledSparseMatrix` in columns (CSC). The result does not depend on the number of threads."""

    name = "sparse"
    keeps_arrays = True

    def __init__(self, threads: int) -> None:
        self._dense = DenseEngine(threads)

    def bytes_needed(self, size: StepSize) -> int:
        noise = size.d * (size.draws * (4 * size.itemsize + 2) + -(-size.draws // 8) * 120)  # z, eps, random words
        operations = operations_bytes(size._replace(d=0, draws=1)) if size.saturating else 0
        return layout_bytes(size, 1, max(1, size.dense_columns)) + noise + operations

    def _scores_and_grad(self, bk: Backend, objective: Objective, X: Any, z: Array, undecided: Array) -> Scores:
        scores, dz = np.empty((4, len(z))), np.zeros(z.shape, X.dtype)
        for draw in range(len(z)):
            scores[:, draw] = self._draw(bk, objective, X, z[draw], undecided[draw], dz[draw])
        S, b, degenerate, isolated = scores
        return Scores(S, b, degenerate > 0, isolated, dz)

    def _draw(
        self, bk: Backend, objective: Objective, X: ScaledSparseMatrix, z: Array, undecided: Array, dz: Array
    ) -> Array:
        """The entries of `Scores` for one draw; its derivative goes to dz."""
        n, is_sparse, in_threads = X.shape[0], X.sparse_columns, self._dense.in_threads
        columns = Columns(X.matrix.data, X.matrix.indices, X.matrix.indptr.astype(np.int64), X.shift)
        plan = self._dense.plan(1, max(1, int((~is_sparse).sum())), n, X.dtype, objective)
        settings = kernel_settings(objective, X.dtype, n)
        listed = np.flatnonzero((z > 0) & is_sparse), np.flatnonzero((z > 0) & ~is_sparse)
        in_threads(plan, lambda work: _gram(columns, z, *listed, n, work))
        if objective.saturation is None:
            in_threads(plan, lambda work: _from_gram(settings, n, work))
        else:
            self._saturated(bk, objective, n, plan)
        wanted = np.flatnonzero(undecided & is_sparse), np.flatnonzero(undecided & ~is_sparse)
        cuts = _equal_cuts(np.diff(columns.indptr)[wanted[0]] ** 2, len(plan.works))
        in_threads(plan, lambda work: _dots(columns, z, *wanted, cuts, n, work, dz))
        return plan.shared.scores[:, 0]

    def _saturated(self, bk: Backend, objective: Objective, n: int, plan: Any) -> None:
        """What the kernel `from_gram` leaves, by the operations."""
        draw = plan.works[0].draw
        P, rows, lanes = draw.G.shape
        G = draw.G.transpose(1, 0, 2).reshape(rows, rows)[:n, :n]
        scores = scores_of_gram(bk, objective, G[None])
        plan.shared.scores[:, 0] = scores.S[0], scores.b[0], scores.degenerate[0], scores.isolated[0]
        M = (scores.dz[0] + scores.dz[0].T) * G.dtype.type(0.5)
        draw.dA.transpose(1, 0, 2)[:n] = np.pad(M, ((0, 0), (0, rows - n))).reshape(n, P, lanes)
        self._dense.in_threads(plan, lambda work: _halved(n, work))


def _equal_cuts(costs: Array, parts: int) -> Array:
    """Where to cut a list into so many parts of about equal cost, (parts + 1,)."""
    total = np.cumsum(costs)
    most = total[-1] if len(total) else 0
    cuts = np.searchsorted(total, [most * part / parts for part in range(parts)])
    cuts[0] = 0
    return np.append(cuts, len(costs))
