"""Small problems on the CPU: one compiled call per step, draws spread over threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from dufs_core.backend import Array, Backend
from dufs_core.objective import Objective, Scores, Value
from dufs_core.ops.bandwidth import check_n_neighbors, noise_level, quantile_of


class SmallEngine:
    """evaluate(bk, objective, mu, eps, X) through `dufs_core.kernels.small`.

    Python threads, each on its own draws in code that releases the GIL: no compiled threading layer to clash
    with fork, with BLAS or with a second fit. A draw's result does not depend on the number of threads.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def __call__(self, bk: Backend, objective: Objective, mu: Array, eps: Array, X: Array) -> tuple[Value, Array]:
        return objective.value_and_grad(bk, mu, eps, X, self._scores_and_grad)

    def _scores_and_grad(self, bk: Backend, objective: Objective, X: Array, z: Array, undecided: Array) -> Scores:
        from dufs_core.kernels.small import scores_and_grad

        R, n = len(z), X.shape[0]
        if isinstance(objective.bandwidth, str):
            check_n_neighbors(objective.n_neighbors, n)
            quantile, k, factor = quantile_of(objective.bandwidth), objective.n_neighbors, objective.bandwidth_factor
        else:
            quantile, k, factor = -1.0, 1, objective.bandwidth
        shape = (R, 1 if z.ndim == 2 else n, z.shape[-1])
        gates, wanted, dz = np.ascontiguousarray(z).reshape(shape), undecided.reshape(shape), np.empty(shape, z.dtype)
        S, b, substituted, isolated = np.empty(R), np.empty(R), np.empty(R, dtype=bool), np.empty(R)
        relative, absolute = noise_level(np.finfo(z.dtype))
        columns = np.ascontiguousarray(X.T)

        def evaluate(r: slice) -> None:
            scores_and_grad(
                columns, gates[r], wanted[r], objective.power, quantile, k, float(factor), objective.bandwidth_gradient,
                objective.zero_rule == "one", relative, absolute,
                S[r], b[r], substituted[r], isolated[r], dz[r],
            )  # fmt: skip

        threads = min(self.threads, R)
        parts = [slice(R * i // threads, R * (i + 1) // threads) for i in range(threads)]
        if threads == 1:
            evaluate(parts[0])
        else:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(evaluate, parts))
        return Scores(S, b, substituted, isolated, dz.reshape(z.shape))
