"""The Gram form on the CPU for sparse data: only G and the quadratic forms read X, and both take sparse columns.

Everything between them is the dense engine's compiled code, one draw at a time, with all threads at each.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dufs_core.backend import Array, Backend
from dufs_core.data.sparse import ScaledSparseMatrix
from dufs_core.objective.chain import Objective, Scores, Value
from dufs_core.objective.engines.cpu_dense import DenseEngine, kernel_settings
from dufs_core.objective.protocol import RECORD


class SparseEngine:
    """evaluate(bk, objective, mu, eps, X) for a `ScaledSparseMatrix` in columns (CSC); one gate a column.

    The result does not depend on the number of threads.
    """

    def __init__(self, threads: int) -> None:
        self._dense = DenseEngine(threads)

    def __call__(self, bk: Backend, objective: Objective, mu: Array, eps: Array, X: Any) -> tuple[Value, Array]:
        return objective.value_and_grad(bk, mu, eps, X, self._scores_and_grad)

    def _scores_and_grad(
        self, bk: Backend, objective: Objective, X: ScaledSparseMatrix, z: Array, undecided: Array
    ) -> Scores:
        from dufs_core.kernels import sparse

        n = X.shape[0]
        columns = sparse.Columns(X.matrix.data, X.matrix.indices, X.matrix.indptr.astype(np.int64), X.shift)
        work = self._dense.arrays(1, max(1, int((~X.thin).sum())), n, X.dtype, objective, per_row=False)
        settings = kernel_settings(objective, X.dtype, n, per_row=False, only_scores=True, given=True)
        scores, dz = np.empty((4, len(z))), np.zeros(z.shape, X.dtype)
        for draw in range(len(z)):
            self._gram(work, columns, z[draw], X.thin, n)
            self._derivative(work, settings, n, X.dtype)
            scores[:, draw] = work.shared.scores[:, 0]
            self._dots(work, columns, z[draw], undecided[draw], X.thin, n, dz[draw])
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
