"""The Gram form on a CUDA device: fused kernels (`dufs_core.kernels.cuda`) with products between them."""

from __future__ import annotations

from collections.abc import Sequence

from dufs_core.backend import Array, Backend
from dufs_core.objective.chain import Objective, Value
from dufs_core.objective.engines.gpu_plan import Plan, memory_errors, step_bytes
from dufs_core.objective.engines.gpu_steps import CudaSteps
from dufs_core.objective.protocol import Engine, RunSpec, Steps, StepSize


class CudaEngine(Engine):
    """One fit's draws, one gate per column, on the device that X lives on and its current stream."""

    name = "cuda"
    keeps_arrays = True

    def bytes_needed(self, size: StepSize) -> int:
        return step_bytes(size)

    def __call__(self, bk: Backend, objective: Objective, mu: Array, eps: Array, X: Array) -> tuple[Value, Array]:
        """The loss and its gradient, on the device; the parts of Value on the host."""
        with memory_errors("steps", X.shape, len(eps)):
            plan = Plan(bk, [objective], X.shape, len(eps), X.dtype)
        a = plan.arrays
        a.mu[0] = mu
        a.eps[...] = eps
        plan.load(X)
        plan.run()
        loss, mean_isolated, S, b, degenerate = map(bk.to_host, (a.loss, a.mean_isolated, a.S, a.b, a.degenerate))
        return Value(float(loss[0]), S, b, degenerate != 0, float(mean_isolated[0])), a.dmu[0]

    def steps(self, bk: Backend, specs: Sequence[RunSpec], mu: Array) -> Steps | None:
        """Whole steps of one or several runs on the device, one gate per column."""
        return CudaSteps(bk, specs, mu)
