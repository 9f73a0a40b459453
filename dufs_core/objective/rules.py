"""Scalar rules of a step: `ops` and `optimizers` apply them to arrays, the Numba kernels compile them.

CUDA takes the constants from here; kernels/gates.cu has the rules for the loss and the update in C++.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

import numpy as np

SGD, ADAM, NORMALIZED = 0, 1, 2
OPTIMIZERS = {"sgd": SGD, "adam": ADAM, "normalized": NORMALIZED}
DECAY = 0.9  # memory of the running gradient size: ten steps
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # of Adam
DECIDED_MARGIN = 1.2  # in units of sigma: beyond it the noise moves a gate in 1 draw of 9, too rarely to turn it
HISTORY = ("step", "loss", "score", "bandwidth", "open_gates", "undecided_gates")
RECORD = (*HISTORY[1:], "isolated", "degenerate")  # what a step reports, in this order
QUANTILES = {"median": 0.5, "q90": 0.9, "max": 1.0}  # of the neighbour distances
AUTHORS_ZERO = 1e-8  # bandwidths below it are replaced by 1 in the authors' code
ROOT_2, ROOT_2_PI = sqrt(2), sqrt(2 * np.pi)


def loss(mean: Any, sum_p: Any, n: Any, lam: Any, delta: Any) -> Any:
    """L, dL/dmean and dL/dsum_p, with mean = mean_r S_r.

    L = -mean / n + lam sum_p, or parameter-free (lam NaN) L = -mean / (n sum_p + delta).
    """
    if np.isnan(lam):
        denominator = n * sum_p + delta
        return -mean / denominator, -1.0 / denominator, mean * n / denominator**2
    return -mean / n + lam * sum_p, -1.0 / n, lam


def gate_probability(mu: Any, sigma: float, erf: Callable[[Any], Any]) -> Any:
    """P(z > 0) = Phi(mu / sigma)."""
    return 0.5 + 0.5 * erf(mu / (ROOT_2 * sigma))


def gate_density(mu: Any, sigma: float, exp: Callable[[Any], Any]) -> Any:
    """exp(-mu^2 / (2 sigma^2)), not normalised: divided by sqrt(2 pi) sigma it is dP(z > 0)/dmu."""
    return exp(mu * mu / (-2 * sigma * sigma))


def adam(first: Any, second: Any, gradient: Any, t: Any) -> Any:
    """Both running means after step t = 1, 2, ..., and the direction of the step."""
    first = BETA1 * first + (1 - BETA1) * gradient
    second = BETA2 * second + (1 - BETA2) * gradient * gradient
    return first, second, (first / (1 - BETA1**t)) / (np.sqrt(second / (1 - BETA2**t)) + EPSILON)


def mean_square(running: Any, now: Any) -> Any:
    """The running mean of the squared gradient."""
    return (1 - DECAY) * now + DECAY * running


def gradient_size(running: Any, t: Any) -> Any:
    """Root mean square of the gradient from its running mean after step t; 1 where it is 0."""
    corrected = running / (1 - DECAY**t)
    return np.sqrt(corrected) if corrected > 0 else 1.0


def is_decided(mu: Any, margin: float) -> Any:
    """Whether a gate is beyond 0 or 1 by more than the margin; NaN is not."""
    return abs(mu - 0.5) > 0.5 + margin


def quantile_ranks(quantile: float, n: int) -> Any:
    """The two ranks (from 0) between which a quantile of n values lies, and the weight of the upper one."""
    position = quantile * (n - 1)
    low = int(position)
    return low, min(low + 1, n - 1), position - low
