"""Gradient steps as pure functions: (params, grad, state) -> (params, state).

The learning rate is in the units of the gates (a gate is open or closed at a distance of about 1 from its start),
except for SGD, where the step is the rate times the gradient itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from dufs_core.backend import Array, Backend
from dufs_core.errors import did_you_mean
from dufs_core.objective import rules


class State(NamedTuple):
    """What a rule remembers between steps; unused fields stay None."""

    step: int = 0
    first: Array | None = None  # (d,) mean of the gradient (adam)
    second: Array | None = None  # (d,) mean of the squared gradient (adam)
    running: Any = None  # its mean over columns and steps (normalized)


@dataclass(frozen=True)
class Optimizer:
    """The rule called `name` with its rate: one step, optimizer(bk, params, grad, state) -> (params, state)."""

    name: str
    learning_rate: float

    def __call__(self, bk: Backend, params: Array, grad: Array, state: State) -> tuple[Array, State]:
        t, first, second, running = state
        t += 1
        direction = grad
        if self.name == "adam":
            zeros = bk.xp.zeros_like(grad)
            first = zeros if first is None else first
            second = zeros if second is None else second
            first, second, direction = rules.adam(first, second, grad, t)
        elif self.name == "normalized":
            grad = grad.astype(bk.xp.float64)  # squares of small float32 gradients underflow
            running = rules.mean_square(0.0 if running is None else running, (grad * grad).mean())
            direction = grad / rules.gradient_size(running, t)
        moved = (params - self.learning_rate * direction).astype(params.dtype)
        return moved, State(t, first, second, running)


def sgd(learning_rate: float) -> Optimizer:
    """params <- params - learning_rate grad."""
    return Optimizer("sgd", learning_rate)


def adam(learning_rate: float) -> Optimizer:
    """m <- b1 m + (1 - b1) g, v <- b2 v + (1 - b2) g^2, params <- params - rate m^ / (sqrt(v^) + eps).

    m^ and v^ are corrected for their start at 0; b1 = 0.9, b2 = 0.999, eps = 1e-8.
    Source: Kingma and Ba 2015, algorithm 1. Every gate moves by about the rate, however small its gradient.
    """
    return Optimizer("adam", learning_rate)


def normalized(learning_rate: float) -> Optimizer:
    """The gradient divided by its running root mean square over all gates, then a step as in SGD.

    v <- 0.9 v + 0.1 mean_k g_k^2 (corrected for its start at 0);  step = learning_rate g / sqrt(v^).

    The loss' gradient shrinks like 1/d^2 and again as gates are decided, so no fixed rate serves two data sets; here
    the average gate moves by the rate whatever d, and gates keep their relative sizes (Adam, which equalises them,
    turns noise in the gradient of an indifferent gate into steps of full size). A gradient of exactly 0 gives no step.
    """
    return Optimizer("normalized", learning_rate)


def get_optimizer(name: str, learning_rate: float) -> Optimizer:
    """The rule called `name`: "normalized", "sgd" or "adam". Raises ValueError for any other, or a bad rate."""
    if not learning_rate > 0:
        raise ValueError(f"learning_rate must be positive; got {learning_rate}")
    if name not in rules.OPTIMIZERS:
        hint = did_you_mean(name, rules.OPTIMIZERS)
        raise ValueError(f'optimizer must be "normalized", "sgd" or "adam"; got {name!r}{hint}')
    return Optimizer(name, learning_rate)
