"""Steps of training of the concrete autoencoder: noise, gradient (`concrete_network`), Adam.

`PlainSteps` is written in the operations of any backend, and runs where it is not NumPy. `CompiledSteps` is for NumPy:
the random bits and the update in compiled code (`dufs_core.kernels.concrete`), everything of the size of the logits in
memory that is kept, some rows at a time so that they stay in the cache. Both give the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dufs_core.backend import Array, Backend
from dufs_core.backend.random import Stream, uniforms
from dufs_core.baselines.concrete_network import reconstruction, value_and_grad
from dufs_core.objective.optimizers import BETA1, BETA2, EPSILON, State, adam

_BLOCK = 1 << 15  # numbers in hand at once: 128 KiB in float32


class PlainSteps:
    """advance(batch, temperature) -> loss: a step from `parameters`, which are the moved ones then."""

    def __init__(
        self, bk: Backend, parameters: Sequence[Array], columns: Array, seed: int, learning_rate: float
    ) -> None:
        self.parameters = list(parameters)
        self._bk, self._columns, self._seed = bk, columns, seed
        self._update, self._states, self._step = adam(learning_rate), [State() for _ in parameters], 0

    def advance(self, X: Array, temperature: float) -> float:
        """g = -log(-log u), u uniform; the gradient at the batch X (rows, d); a step of Adam."""
        bk, xp = self._bk, self._bk.xp
        u = uniforms(bk, self._seed, Stream.GUMBEL, self._step, len(self.parameters[0]), self._columns).astype(X.dtype)
        gumbel = -xp.log(-xp.log(xp.minimum(u, 1 - xp.finfo(X.dtype).epsneg)))
        loss, gradients = value_and_grad(bk, self.parameters, X, gumbel, temperature)
        moved = [self._update(bk, *these) for these in zip(self.parameters, gradients, self._states, strict=True)]
        self.parameters, self._states = [p for p, _ in moved], [s for _, s in moved]
        self._step += 1
        return loss


class CompiledSteps:
    """The same for NumPy. `parameters` are changed in place, those given are not."""

    def __init__(
        self, bk: Backend, parameters: Sequence[Array], columns: Array, seed: int, learning_rate: float
    ) -> None:
        self.parameters = [np.array(p, order="C") for p in parameters]
        self._bk, self._columns = bk, np.asarray(columns, np.uint64)
        self._seed = np.uint64(seed & 0xFFFFFFFFFFFFFFFF)
        self._rate, self._step = learning_rate, 0
        self._memory = [(np.zeros(p.size, p.dtype), np.zeros(p.size, p.dtype)) for p in parameters]
        logits = self.parameters[0]
        k, d = logits.shape
        self._S, self._dS, self._words = np.empty_like(logits), np.empty_like(logits), np.empty((4, d), np.uint32)
        self._rows = max(1, _BLOCK // d)
        self._blocks = [slice(first, first + self._rows) for first in range(0, k, self._rows)]

    def advance(self, X: Array, temperature: float) -> float:
        """As in `PlainSteps`."""
        from dufs_core.kernels import concrete

        self._select(temperature)
        loss, dU, gradients = reconstruction(self._bk, self.parameters[1:], X @ self._S.T, X)
        np.matmul(dU.T, X, out=self._dS)
        differentiate(self._S, self._dS, temperature, self._rows)
        self._step += 1
        for p, g, memory in zip(self.parameters, [self._dS, *gradients], self._memory, strict=True):
            flat = p.reshape(-1), np.ascontiguousarray(g).reshape(-1)
            concrete.adam(self._rate, BETA1, BETA2, EPSILON, self._step, *flat, *memory)
        return loss

    def _select(self, temperature: float) -> None:
        """S = softmax((l + g) / T): noise, then `dufs_core.baselines.layers.concrete.softmax`."""
        from dufs_core.kernels import concrete

        S = self._S
        largest = 1 - np.finfo(S.dtype).epsneg
        concrete.uniforms(
            self._seed, np.uint64(Stream.GUMBEL), np.uint64(self._step), self._columns, largest, self._words, S
        )
        for block in self._blocks:
            s = S[block]
            np.negative(np.log(s, out=s), out=s)
            np.negative(np.log(s, out=s), out=s)
            s += self.parameters[0][block]
            s /= temperature
            s -= s.max(axis=1, keepdims=True)
            np.exp(s, out=s)
            s /= s.sum(axis=1, keepdims=True)


def differentiate(S: Array, dS: Array, temperature: float, rows: int) -> None:
    """dS (k, d) becomes dl, as in `dufs_core.baselines.layers.concrete.backward`, so many rows at a time; S (k,
    d) the softmax."""
    for first in range(0, len(S), rows):
        s, ds = S[first : first + rows], dS[first : first + rows]
        ds -= (ds * s).sum(axis=1, keepdims=True)
        ds *= s
        ds /= temperature
