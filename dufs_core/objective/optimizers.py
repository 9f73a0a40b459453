"""Gradient steps as pure functions: (params, grad, state) -> (params, state).

Every rule has the learning rate in the units of the gates (a gate is open or closed at a distance of about
1 from its start), except SGD, where the step is the rate times the gradient itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from dufs_core.backend import Array, Backend
from dufs_core.errors import did_you_mean

_DECAY = 0.9  # memory of the running gradient size: ten steps
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


class State(NamedTuple):
    """What a rule remembers between steps; unused fields stay None."""

    step: int = 0
    first: Array | None = None  # (d,) velocity or mean of the gradient
    second: Array | None = None  # (d,) mean of the squared gradient (adam), or its mean over columns (normalized)


Step = Callable[[Backend, Array, Array, State], tuple[Array, State]]


def _fused(
    rule: str, bk: Backend, params: Array, grad: Array, state: State, rate: float, momentum: float
) -> tuple[Array, State]:
    """The same step in one launch, where the backend has a kernel for it."""
    t = state.step + 1
    params, first, second = bk.kernels.update(rule, grad, params, state.first, state.second, rate, momentum, t)
    return params, State(t, first, second)


def sgd(learning_rate: float, momentum: float = 0.0) -> Step:
    """v <- momentum v + grad;  params <- params - learning_rate v.      (Polyak 1964)."""

    def step(bk: Backend, params: Array, grad: Array, state: State) -> tuple[Array, State]:
        if bk.kernels is not None:
            return _fused("sgd", bk, params, grad, state, learning_rate, momentum)
        velocity = grad if state.first is None or momentum == 0 else momentum * state.first + grad
        kept = velocity if momentum else None
        return params - params.dtype.type(learning_rate) * velocity, State(state.step + 1, kept)

    return step


def adam(learning_rate: float) -> Step:
    """m <- b1 m + (1 - b1) g, v <- b2 v + (1 - b2) g^2, params <- params - rate m^ / (sqrt(v^) + eps).

    m^ and v^ are corrected for their start at 0; b1 = 0.9, b2 = 0.999, eps = 1e-8.
    Source: Kingma and Ba 2015, algorithm 1. Every gate moves by about the rate, however small its gradient.
    """

    def step(bk: Backend, params: Array, grad: Array, state: State) -> tuple[Array, State]:
        if bk.kernels is not None:
            return _fused("adam", bk, params, grad, state, learning_rate, 0.0)
        xp = bk.xp
        t = state.step + 1
        first = xp.zeros_like(grad) if state.first is None else state.first
        second = xp.zeros_like(grad) if state.second is None else state.second
        first = BETA1 * first + (1 - BETA1) * grad
        second = BETA2 * second + (1 - BETA2) * grad * grad
        update = (first / (1 - BETA1**t)) / (xp.sqrt(second / (1 - BETA2**t)) + EPSILON)
        return (params - learning_rate * update).astype(params.dtype), State(t, first, second)

    return step


def normalized(learning_rate: float, momentum: float = 0.0) -> Step:
    """The gradient divided by its running root mean square over all gates, then a step as in SGD.

    v <- 0.9 v + 0.1 mean_k g_k^2 (corrected for its start at 0);  step = learning_rate g / sqrt(v^).

    The loss' gradient shrinks like 1/d^2 and again as gates are decided, so no fixed rate serves two data
    sets; here the average gate moves by the rate whatever d, and gates keep their relative sizes (Adam,
    which equalises them, turns noise in the gradient of an indifferent gate into steps of full size).
    A gradient of exactly 0 gives no step.
    """

    def step(bk: Backend, params: Array, grad: Array, state: State) -> tuple[Array, State]:
        if bk.kernels is not None:
            return _fused("normalized", bk, params, grad, state, learning_rate, momentum)
        xp = bk.xp
        t = state.step + 1
        grad = grad.astype(xp.float64)  # squares of small float32 gradients underflow
        mean_square = (grad * grad).mean()
        second = (1 - _DECAY) * mean_square + (0 if state.second is None else _DECAY * state.second)
        corrected = second / (1 - _DECAY**t)
        direction = grad / xp.sqrt(xp.where(corrected > 0, corrected, 1))
        if momentum and state.first is not None:
            direction = momentum * state.first + direction
        kept = direction if momentum else None
        return (params - learning_rate * direction).astype(params.dtype), State(t, kept, second)

    return step


NAMES = ("normalized", "sgd", "adam")


@dataclass(frozen=True)
class Optimizer:
    """A rule with its numbers, called like the step function that it is."""

    name: str
    learning_rate: float
    momentum: float
    step: Step

    def __call__(self, bk: Backend, params: Array, grad: Array, state: State) -> tuple[Array, State]:
        return self.step(bk, params, grad, state)


def get_optimizer(name: str, learning_rate: float, momentum: float) -> Optimizer:
    """The rule called `name`: "normalized", "sgd" or "adam". Raises ValueError for any other, or a bad rate."""
    if not learning_rate > 0:
        raise ValueError(f"learning_rate must be positive; got {learning_rate}")
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum must be at least 0 and below 1; got {momentum}")
    if name == "adam":
        if momentum:
            raise ValueError(f"momentum is for the normalized and sgd optimizers; adam has its own (got {momentum})")
        step = adam(learning_rate)
    elif name == "sgd":
        step = sgd(learning_rate, momentum)
    elif name == "normalized":
        step = normalized(learning_rate, momentum)
    else:
        raise ValueError(f'optimizer must be "normalized", "sgd" or "adam"; got {name!r}{did_you_mean(name, NAMES)}')
    return Optimizer(name, learning_rate, momentum, step)
