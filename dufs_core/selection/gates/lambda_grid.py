"""A grid of lambdas that are worth a fit, found from the data."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, log
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils import gen_batches

from dufs_core.backend import Array, Backend
from dufs_core.data.matrix import dense_block, take_columns, take_rows
from dufs_core.objective.ops import regulariser
from dufs_core.selection.fit import FitTask
from dufs_core.selection.parameters import graph_for
from dufs_core.training.loop import INITIAL_MU, batches, gate_noise

_START_STEPS = 4  # steps whose draws the stationary lambdas are averaged over
_SHARE_OF_STATIONARY = 0.1  # of the positive median: most gates that open, open below it
_SHARE_OF_HIGHEST = 1e-3  # where few columns have most of the variance, the others ask for far lower lambdas
_FLAT = 0.1  # weight of an interval in which the number of columns stays the same
_BLOCK = 1 << 20  # entries of X at a time


def lambda_range(task: FitTask) -> tuple[float, float]:
    """A lambda at which most gates that open stay open, and one at which none does.

    The upper one is the largest variance of a scaled column, the most that an open gate adds to S / n. The lower one is
    a tenth of the median of the positive `stationary_lambdas`, or a thousandth of the upper one if that is less.
    Raises ValueError if every gate that opens lowers the score.
    """
    stationary = stationary_lambdas(task)
    if stationary.any() and stationary.max() <= 0:
        graph = graph_for(task.settings, task.X.shape[0])
        raise ValueError(
            f"No lambda opens a gate: at the start every gate that opens lowers the score (power={graph.power}, "
            f"self_loops={graph.self_loops}). Use an even power, self_loops=True or a smaller bandwidth"
        )
    least = float(np.finfo(np.float32).tiny)  # a smaller lambda is none in float32
    high = max(_largest_variance(task.bk, task.data.X), least / _SHARE_OF_HIGHEST)
    positive = stationary[stationary > 0]
    low = _SHARE_OF_STATIONARY * float(np.median(positive)) if len(positive) else high
    return max(min(low, _SHARE_OF_HIGHEST * high), least), high


def geometric_grid(low: float, high: float, n_lams: int) -> Array:
    """The first half of `n_lams` lambdas: equal ratios from `low` to below `high`, where nothing is open."""
    count = ceil(n_lams / 2)
    return low * (high / low) ** (np.arange(count) / count)


def refine_grid(lams: Array, n_open: Array, high: float, count: int) -> Array:
    """`count` further lambdas where the number of columns changes most, increasing.

    Each halves (on a logarithmic scale) the interval between neighbouring lambdas a < b with the largest
    log(b / a) (|log((1 + n_a) / (1 + n_b))| + 0.1); the new point takes the mean of the two logarithms.

    Parameters
    ----------
    lams : (m,) increasing
        Fitted lambdas.
    n_open : (m,) int
        Columns that each keeps; at `high`, above all, none.
    """
    edges = [*(log(lam) for lam in lams), log(high)]
    values = [*np.log1p(n_open), 0.0]
    new = []
    for _ in range(count):
        weights = np.diff(edges) * (abs(np.diff(values)) + _FLAT)
        at = int(weights.argmax()) + 1
        new.append((edges[at - 1] + edges[at]) / 2)
        edges.insert(at, new[-1])
        values.insert(at, (values[at - 1] + values[at]) / 2)
    return np.exp(np.sort(new))


def stationary_lambdas(task: FitTask) -> Array:
    """The lambda at which each gate stands still in the first step, (d,), NumPy; constant columns have 0.

    lam_k = (1/n dS/dmu_k) / (dp_k/dmu_k) at mu = 1/2, averaged over draws, with S and p as in `GatedLaplacian`. Unlike
    a fixed range, the largest lies where gates begin to close for good, whatever the bandwidth and the number of
    columns.
    """
    bk, data = task.bk, task.data
    columns = np.flatnonzero(~data.constant)
    stationary = np.zeros(task.X.shape[1])
    if not len(columns):
        return stationary
    settings = clone(task.settings).set_params(lam=0.0)
    task = replace(task, settings=settings, procedure=settings._procedure())
    trainer = task.trainer(task.engine(), len(columns))
    varying = take_columns(bk, data.X, columns)
    mu = bk.xp.full(len(columns), INITIAL_MU, dtype=varying.dtype)
    rows = batches(bk, 0, 0, task.X.shape[0], trainer.schedule)[0]
    batch = varying if len(rows) == task.X.shape[0] else take_rows(varying, rows)
    for step in range(_START_STEPS):
        noise_rows = rows if trainer.schedule.gate_noise == "sample" else None
        eps = gate_noise(bk, 0, step + 1, trainer.schedule.n_draws, noise_rows, columns, varying.dtype)
        _, dmu = trainer.engine(bk, trainer.objective, mu, eps, batch)
        stationary[columns] -= bk.to_host(dmu) / _START_STEPS
    _, saved = regulariser.forward(bk, mu, settings.gate_sigma)
    return stationary / float(regulariser.backward(bk, saved, 1.0)[0])


def _largest_variance(bk: Backend, X: Any) -> float:
    """Of the columns of scaled, centred X (n, d)."""
    n, d = X.shape
    blocks = (dense_block(bk, X, slice(None), np.arange(d)[block]) for block in gen_batches(d, max(1, _BLOCK // n)))
    return max(float(bk.xp.square(block).sum(axis=0, dtype=np.float64).max() / n) for block in blocks)
