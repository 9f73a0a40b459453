"""The Gram form on a CUDA device: fused kernels (`dufs_core.kernels.cuda`) with products between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dufs_core.backend import Array, Backend
from dufs_core.objective.chain import Objective, Value
from dufs_core.objective.engines.gpu_plan import Plan, entries_needed, memory_errors, plan_for
from dufs_core.objective.engines.gpu_steps import CudaSteps
from dufs_core.objective.protocol import Engine, RunSpec, Steps, StepSize


class CudaEngine(Engine):
    """One fit's draws, one gate per column, on the device that X lives on and its current stream.

    Arrays are kept from step to step. The result does not depend on whether a graph could be captured.
    """

    name = "cuda"
    keeps_arrays = True

    def __init__(self) -> None:
        self._plans: dict[Any, Plan] = {}

    def bytes_needed(self, size: StepSize) -> int:
        return entries_needed(size) * size.itemsize

    def __call__(self, bk: Backend, objective: Objective, mu: Array, eps: Array, X: Array) -> tuple[Value, Array]:
        """The loss and its gradient, a fresh array on the device; the parts of Value on the host."""
        with memory_errors("steps", X.shape, len(eps)):
            plan = plan_for(self._plans, bk, objective, X.shape, len(eps), X.dtype)
        plan.mu[0], plan.eps[...] = mu, eps
        plan.load(X)
        plan.replay(plan.run)
        loss, mean_isolated, *of_draws = bk.to_host(plan.report)
        S, b, degenerate = np.reshape(of_draws, (3, len(eps)))
        return Value(float(loss), S, b, degenerate != 0, float(mean_isolated)), plan.dmu[0].copy()

    def steps(self, bk: Backend, specs: Sequence[RunSpec], mu: Array) -> Steps | None:
        """Whole steps of one or several runs on the device, one gate per column."""
        return CudaSteps(bk, specs, mu)
