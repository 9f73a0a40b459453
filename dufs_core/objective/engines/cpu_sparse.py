"""The Gram form on the CPU for sparse data: only G and the quadratic forms read X, and both take sparse columns.

Everything between them is the dense engine's compiled code, one draw at a time, with all threads at each.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dufs_core.backend import Array, Backend
from dufs_core.data.sparse import ScaledSparseMatrix, sparse_columns
from dufs_core.objective.chain import Objective, Scores, Value
from dufs_core.objective.engines.cpu_dense import DenseEngine, kernel_settings, layout_bytes
from dufs_core.objective.protocol import RECORD, Engine, StepSize

_PREPARATION = 1 << 25  # bytes of the float64 blocks that data are scaled in


class SparseEngine(Engine):
    """evaluate(bk, objective, mu, eps, X) for a `ScaledSparseMatrix` in columns (CSC); one gate a column.

    The result does not depend on the number of threads.
    """

    name = "sparse"
    keeps_arrays = True

    def __init__(self, threads: int) -> None:
        self._dense = DenseEngine(threads)

    def __call__(self, bk: Backend, objective: Objective, mu: Array, eps: Array, X: Any) -> tuple[Value, Array]:
        return objective.value_and_grad(bk, mu, eps, X, self._scores_and_grad)

    def bytes_needed(self, size: StepSize) -> int:
        """As `Engine.bytes_needed`."""
        noise = size.d * (size.draws * (4 * size.itemsize + 2) + -(-size.draws // 8) * 120)  # z, eps, random words
        return layout_bytes(size, 1, max(1, size.dense_columns)) + noise

    def _scores_and_grad(
        self, bk: Backend, objective: Objective, X: ScaledSparseMatrix, z: Array, undecided: Array
    ) -> Scores:
        from dufs_core.kernels import sparse

        n = X.shape[0]
        columns = sparse.Columns(X.matrix.data, X.matrix.indices, X.matrix.indptr.astype(np.int64), X.shift)
        work = self._dense.arrays(1, max(1, int((~X.sparse_columns).sum())), n, X.dtype, objective, per_row=False)
        settings = kernel_settings(objective, X.dtype, n, per_row=False, only_scores=True, given=True)
        scores, dz = np.empty((4, len(z))), np.zeros(z.shape, X.dtype)
        for draw in range(len(z)):
            self._gram(work, columns, z[draw], X.sparse_columns, n)
            self._derivative(work, settings, n, X.dtype)
            scores[:, draw] = work.shared.scores[:, 0]
            self._dots(work, columns, z[draw], undecided[draw], X.sparse_columns, n, dz[draw])
        S, b, degenerate, isolated = scores
        return Scores(S, b, degenerate > 0, isolated, dz)

    def _gram(self, work: Any, X: Any, z: Array, thin: Array, n: int) -> None:
        from dufs_core.kernels import sparse

        listed = np.flatnonzero((z > 0) & thin), np.flatnonzero((z > 0) & ~thin)
        rest = n, work.team.G[0], work.team.W, work.team.row_sums[0], work.shared.barriers
        self._dense.in_team(work, lambda part, parts: sparse.gram(X, z, *listed, *rest, part, parts))

    def _derivative(self, work: Any, settings: Any, n: int, dtype: Any) -> None:
        """From G to M, in the arrays of `work`."""
        nothing = np.zeros(0)
        self._dense.together(
            work, settings, np.zeros((1, n), dtype), np.zeros(0, np.uint64), np.zeros(0, dtype), nothing, nothing,
            nothing, 0, np.zeros((1, len(RECORD))), np.zeros(1),
        )  # fmt: skip

    def _dots(self, work: Any, X: Any, z: Array, undecided: Array, thin: Array, n: int, dz: Array) -> None:
        from dufs_core.kernels import sparse

        listed, others = np.flatnonzero(undecided & thin), np.flatnonzero(undecided & ~thin)
        cost = np.cumsum(np.diff(X.indptr)[listed] ** 2)
        total = cost[-1] if len(cost) else 0
        cuts = np.searchsorted(cost, [total * part / work.threads for part in range(work.threads)])
        cuts = np.append(cuts, len(listed))
        cuts[0] = 0
        mine = work.mine
        rest = n, work.team.dA[0], work.team.row_sums[0]

        def member(part: int, parts: int) -> None:
            sparse.dots(
                X, z, listed, cuts, others, *rest, mine.W[part], mine.tile[part], mine.sums[part],
                work.shared.barriers, dz, part, parts,
            )  # fmt: skip

        self._dense.in_team(work, member)


def sparse_step_size(size: StepSize, X: Any) -> tuple[StepSize, int]:
    """The step on sparse X (CSR or CSC), and the bytes that its scaled copies take beside the steps.

    Kept: stored values and their rows, once more without the columns that take no part. On the way to them, before any
    step: X in columns, its scaled values, and the blocks that they are computed in.
    """
    size = size._replace(dense_columns=int((~sparse_columns(X)).sum()))
    kept = 2 * X.nnz * (size.itemsize + 4)
    on_the_way = X.nnz * (X.dtype.itemsize + X.indices.itemsize + size.itemsize) + _PREPARATION
    return size, max(kept, on_the_way - SparseEngine(size.threads).bytes_needed(size))
