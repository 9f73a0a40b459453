"""Concrete autoencoder, the selector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from dufs_core.backend import Array, get_backend
from dufs_core.backend.random import Stream, normals, permutation, uniforms
from dufs_core.baselines.base import Baseline
from dufs_core.baselines.concrete_network import softmax, value_and_grad
from dufs_core.baselines.graphs import part_of_eigh
from dufs_core.objective.optimizers import State, adam
from dufs_core.selection.parameters import check_choice, check_whole, is_whole

bk = get_backend("numpy")
_LARGE = 20  # gradients of data beyond 2^20 are divided by a power of 4: Adam's steps stay, its squares are finite
CERTAIN = 0.998  # mean over the nodes of the largest probability, from which on the choice counts as made


def initial_parameters(seed: int, k: int, columns: Array, hidden: Sequence[int], dtype: Any) -> list[Array]:
    """Logits (k, d) ~ N(0, 2 / (k + d)), W_m (a, b) uniform within sqrt(6 / (a + b)), c_m = 0 (Glorot and Bengio 2010).

    Every number is a function of (seed, layer, row, column), the column given by its position in the user's data.
    """
    d = len(columns)
    parameters = [normals(bk, seed, Stream.LOGITS, 0, k, None, columns, dtype) * dtype((2.0 / (k + d)) ** 0.5)]
    widths = [k, *hidden, d]
    for layer, (a, b) in enumerate(pairwise(widths)):
        positions = columns if layer == len(hidden) else np.arange(b)
        W = (2 * uniforms(bk, seed, Stream.DECODER, layer, a, positions) - 1) * (6.0 / (a + b)) ** 0.5
        parameters += [W.astype(dtype), np.zeros(b, dtype=dtype)]
    return parameters


def aligned(X: Array) -> Array:
    """The columns of X (n, d), some times -1: none correlates negatively with the first left singular vector of X.

    That vector has its largest entry positive. The problem of reconstruction is the same for every choice of signs.
    """
    Z = X.astype(np.float64)
    n, d = Z.shape
    last = min(n, d) - 1
    u = part_of_eigh(Z @ Z.T, last, last)[1] if n <= d else Z @ part_of_eigh(Z.T @ Z, last, last)[1]
    u = u[:, 0] * (-1 if u[np.abs(u).argmax(), 0] < 0 else 1)
    return X * np.where(u @ Z < 0, -1, 1).astype(X.dtype)


def train(
    parameters: list[Array],
    X: Array,
    columns: Array,
    seed: int,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    temperatures: tuple[float, float],
) -> tuple[list[Array], dict[str, Array]]:
    """The parameters after Adam on shuffled, near-equal batches, and records of every epoch.

    T falls geometrically between the temperatures; the noise of a step is g = -log(-log u), u uniform, held below 1.
    """
    n, step = len(X), 0
    update, states = adam(learning_rate), [State() for _ in parameters]
    largest = 1 - np.finfo(X.dtype).epsneg
    shrink = 2.0 ** (2 * min(0, _LARGE - int(np.frexp(float(abs(X).max()))[1])))
    start, end = temperatures
    history: dict[str, list[float]] = {"loss": [], "temperature": [], "mean_max_probability": []}
    for epoch in range(epochs):
        T = start * (end / start) ** (epoch / max(epochs - 1, 1))
        total = 0.0
        for rows in np.array_split(permutation(bk, seed, Stream.SHUFFLE, epoch, n), -(-n // batch_size)):
            u = uniforms(bk, seed, Stream.GUMBEL, step, len(parameters[0]), columns).astype(X.dtype)
            gumbel = -np.log(-np.log(np.minimum(u, largest)))
            loss, gradients = value_and_grad(bk, parameters, X[rows], gumbel, T)
            if shrink < 1:
                gradients = [gradient * shrink for gradient in gradients]
            moved = [update(bk, *these) for these in zip(parameters, gradients, states, strict=True)]
            parameters, states = [p for p, _ in moved], [s for _, s in moved]
            total += loss * len(rows)
            step += 1
        history["loss"].append(total / n)
        history["temperature"].append(T)
        history["mean_max_probability"].append(float(softmax(bk, parameters[0], 1.0).max(axis=1).mean()))
    return parameters, {name: np.asarray(values) for name, values in history.items()}


def distinct_choice(logits: Array) -> Array:
    """One column for each node (k, d), no two the same, k <= d: the surest node first, each its best free logit."""
    P = softmax(bk, logits, 1.0)
    chosen = np.full(len(logits), -1)
    free = np.ones(logits.shape[1], dtype=bool)
    for node in np.argsort(-P.max(axis=1), kind="stable"):
        chosen[node] = np.where(free, logits[node], -np.inf).argmax()
        free[chosen[node]] = False
    return chosen


@dataclass(kw_only=True, eq=False, repr=False)
class ConcreteAutoencoder(Baseline):
    """Columns from which a small network reconstructs all columns, chosen by annealed soft choices.

        u_i = X softmax((l_i + Gumbel noise) / T),  i = 1 .. k;   Xhat = decoder(u);   minimise mean (Xhat - X)^2

    by Adam with hand-written gradients, T falling geometrically from `temperatures[0]` to `temperatures[1]` over the
    epochs. Node i chooses argmax l_i; where two nodes choose the same column, the surer one keeps it and the other
    takes its next best. score_j = max_i softmax(l_i)_j, plus 1 for the k chosen columns, so that they rank first.

    Source: Abid, Balin and Zou, "Concrete Autoencoders: Differentiable Feature Selection and Reconstruction", ICML 2019
    (arXiv 1901.09346).

    Departures. From the paper: distinct columns; columns are first turned to one side (`aligned`), because mixtures of
    columns that are each other's mirror images cancel. From the published code: one fit (there again with twice the
    epochs, up to five times, until the choice is sure); T ends at 0.01 as in the paper (there 0.1) and falls by epoch
    (there by step); near-equal batches; no dropout, which belongs to the decoder of its example.

    k is n_features_to_select: memory and time grow with k times the number of columns. The error is measured on the
    scaled columns. Start, batches and noise are functions of (random_state, step, node, column).

    Parameters
    ----------
    hidden : sequence of int, default ()
        Widths of the decoder's hidden layers (leaky rectifier, slope 0.2); none: a linear decoder.
    temperatures : (float, float), default (10.0, 0.01)
        First and last T.
    learning_rate : float, default 0.001
    max_iter : int, default 300
        Epochs.
    batch_size : int or None, default None
        Rows per step, near-equal. None: the larger of 16 and n // 256, the rule of the published code.
    dtype : "float32" or "float64", default "float32"
    {parameters}

    Attributes
    ----------
    {attributes}
    n_duplicates_ : int
        Nodes that had to take a column that was not their first choice.
    history_ : dict of ndarray (n_iter_,)
        loss, temperature, mean_max_probability of every epoch.
    loss_ : float
        The loss of the last epoch.
    n_iter_ : int
    converged_ : bool
        Whether the nodes are sure: mean_i max_j softmax(l_i)_j > 0.998 at the end.
    """

    hidden: Sequence[int] = ()
    temperatures: tuple[float, float] = (10.0, 0.01)
    learning_rate: float = 0.001
    max_iter: int = 300
    batch_size: int | None = None
    dtype: Literal["float32", "float64"] = "float32"

    def _check(self, n: int) -> None:
        super()._check(n)
        if self.batch_size is not None:
            check_whole("batch_size", self.batch_size)
        if any(not is_whole(width) or width < 1 for width in self.hidden):
            raise ValueError(f"hidden must hold whole numbers of at least 1; got {self.hidden!r}")
        if len(self.temperatures) != 2 or not all(0 < float(T) < float("inf") for T in self.temperatures):
            raise ValueError(f"temperatures must be two positive numbers, first and last; got {self.temperatures!r}")
        check_choice("dtype", self.dtype, ("float32", "float64"))

    def _score(self, X: Array, columns: Array, n_selected: int, seed: int) -> Array:
        dtype, n = np.dtype(self.dtype).type, len(X)
        start = initial_parameters(seed, n_selected, columns, self.hidden, dtype)
        parameters, self.history_ = train(
            start, aligned(X), columns, seed,
            epochs=self.max_iter,
            batch_size=min(n, max(16, n // 256) if self.batch_size is None else self.batch_size),
            learning_rate=float(self.learning_rate),
            temperatures=(float(self.temperatures[0]), float(self.temperatures[1])),
        )  # fmt: skip
        logits = parameters[0].astype(np.float64)
        chosen = distinct_choice(logits)
        self.n_duplicates_ = int((chosen != logits.argmax(axis=1)).sum())
        self.loss_, self.n_iter_ = float(self.history_["loss"][-1]), self.max_iter
        self.converged_ = bool(self.history_["mean_max_probability"][-1] > CERTAIN)
        scores = softmax(bk, logits, 1.0).max(axis=0)
        scores[chosen] += 1.0
        return scores
