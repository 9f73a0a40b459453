"""The streaming form on the CPU in compiled code (`dufs_core.kernels.streaming`): O(n d) memory, never an n x n array.

Blocks of K = exp(-D / b) are computed from the gated data whenever they are needed. With P = diag(1/deg) K:

    pass 1          D -> k-th neighbour distances -> b                       pass 2    K -> deg
    passes 3 to t+2 F_a = P^a Xt,  B_a = P^a (Xt / deg),  so (P')^a Xt = deg B_a
    rho_i = sum over a + b = t of B_a,i . F_b,i = sum_j P_ij (dS/dP)_ij / deg_i
    last pass       C_ij = dS/dD_ij + dS/dD_ji = -(K_ij / b) (sum over a + b = t - 1 of B_a,i . F_b,j + F_b,i . B_a,j
                           - rho_i - rho_j)
                    dS/db = -sum_ij C_ij D_ij / (2 b),   dS/dXt = F_t + deg B_t + 2 (rowsum(C) Xt - C Xt)

As in FlashAttention, the row statistic rho is there before dS/dP is. With one gate vector for the batch, only the sums
z_k dS/dz_k = Xt_k . (dS/dXt)_k are wanted: K and C are symmetric, so pass 2 and the last one visit every pair once, and
Xt_k . (deg B_t)_k = Xt_k . F_t,k. Multiply-adds for t = 2, with m columns open and u of them undecided:
n^2 (m + m/2 + 3 m + 2 m + (5 m + u) / 2) <= 9.5 n^2 m.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Event, Lock
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from dufs_core.backend import Array, Backend
from dufs_core.objective.chain import Objective, Scores, Value
from dufs_core.objective.engines.cpu_dense import kernel_settings
from dufs_core.objective.ops.normalise import isolated_degree
from dufs_core.objective.protocol import Engine, StepSize

CHUNKS = 32  # groups of rows are dealt out to so many sums over pairs, which any number of threads adds up alike
_CALL = 1 << 33  # multiply-adds of one compiled call: 0.1 to 0.3 s, after which Ctrl-C is heard
_REPORT = 0.5  # seconds between two reports of progress


class _Mine(NamedTuple):
    """What every thread has for itself."""

    block: Array  # (GROUP, BLOCK, LANES)
    slopes: Array  # (GROUP, BLOCK, LANES)
    side: Array  # (BLOCK, LANES)
    sums: Array  # (GROUP, 2 columns, LANES)
    out: Array  # (GROUP, 2 columns, LANES) float64
    best: Array  # (GROUP, k + 1, LANES)


class StreamingEngine(Engine):
    """evaluate(bk, objective, mu, eps, X): the draws one after the other, each by all threads.

    The result does not depend on the number of threads. Compiled calls take a fraction of a second, so that a step of
    minutes can be interrupted; `progress`, if set, is called between them with the share of a step that is done.
    """

    name = "streaming"

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._done, self._reported = 0.0, 0.0
        self._pool = ThreadPoolExecutor(threads)

    def __call__(self, bk: Backend, objective: Objective, mu: Array, eps: Array, X: Array) -> tuple[Value, Array]:
        return objective.value_and_grad(bk, mu, eps, X, self._scores_and_grad)

    def bytes_needed(self, size: StepSize) -> int:
        """As `Engine.bytes_needed`."""
        from dufs_core.kernels.streaming import BLOCK, GROUP
        from dufs_core.kernels.vector import LANES

        n, d, t, double = size.n, size.d, size.power, 8 // size.itemsize
        rows, wide = -(-n // LANES) * LANES, -(-d // LANES) * LANES
        groups = -(-rows // (GROUP * LANES))
        kept = rows * wide * (2 * t + 1 + size.per_sample + 2)  # F_a, B_a, and two as factors
        sums = rows * (min(CHUNKS, groups) * double + 8 * double)
        thread = min(GROUP * LANES, rows) * (2 * BLOCK + 2 * wide * (1 + double) + 3) + BLOCK * LANES
        last = rows * d * 4 * double + n * d * 4 * size.draws if size.per_sample else 0  # C Xt and dS/dXt in float64
        buffers = (1 << 18) // size.itemsize  # of NumPy, where it sums float32 numbers in float64
        return (kept + sums + buffers + min(size.threads, groups) * thread + last) * size.itemsize

    def _scores_and_grad(self, bk: Backend, objective: Objective, X: Array, z: Array, undecided: Array) -> Scores:
        n = len(X)
        kernel_settings(objective, X.dtype, n)  # refuses what n rows cannot have
        dz = np.zeros_like(z)
        results = []
        self._done, self._reported = 0.0, perf_counter()
        for draw in range(len(z)):
            results.append(_Draw(self, objective, X, z[draw], undecided[draw], len(z)).scores(dz[draw]))
        S, b, degenerate, isolated = np.array(results).T
        return Scores(S, b, degenerate > 0, isolated, dz)

    def together(self, count: int, work: Callable[[int, _Mine], Iterator[float]], mine: list[_Mine]) -> None:
        """work(0), ..., work(count - 1), each by one thread.

        They yield the share of the step that they have done since; there they can be stopped.
        """
        numbers, lock, stopped = iter(range(count)), Lock(), Event()

        def member(thread: int) -> None:
            while True:
                with lock:
                    number = next(numbers, None)
                if number is None:
                    return
                for share in work(number, mine[thread]):
                    with lock:
                        self._done += share
                    if stopped.is_set():
                        return
                    if thread == 0 and self.progress and perf_counter() - self._reported > _REPORT:
                        self._reported = perf_counter()
                        self.progress(min(self._done, 1.0))

        others: list[Any] = []
        try:
            others += [self._pool.submit(member, thread) for thread in range(1, len(mine))]
            member(0)
            for other in others:
                other.result()
        except BaseException:
            stopped.set()
            wait(others)
            raise


class _Draw:
    """One draw: the arrays of O(n d), and the passes over them in order."""

    def __init__(
        self, engine: StreamingEngine, objective: Objective, X: Array, z: Array, undecided: Array, draws: int
    ) -> None:
        from dufs_core.kernels import streaming as kernels
        from dufs_core.kernels.vector import LANES

        self.engine, self.objective, self.kernels, self.X, self.z = engine, objective, kernels, X, z
        self.n, self.t, self.per_row = len(X), objective.power, z.ndim == 2
        self.dtype = X.dtype
        is_open = undecided.any(axis=0) if self.per_row else undecided
        active = (z > 0).any(axis=0) if self.per_row else z > 0
        self.undecided = undecided
        self.open = np.flatnonzero(is_open & active)
        self.columns = np.concatenate([self.open, np.flatnonzero(active & ~is_open)])  # wanted ones first
        self.m = max(1, len(self.columns))  # all gates closed: one column of zeros
        P = -(-self.n // LANES)
        self.wide = -(-self.m // LANES) * LANES  # columns in full panels
        t, wide = self.t, self.wide
        self.F = np.zeros((t + 1, P, wide, LANES), self.dtype)
        self.B = np.zeros((t + self.per_row, P, wide, LANES), self.dtype)
        self.g = np.zeros(P * LANES, self.dtype)
        self.groups = -(-P // kernels.GROUP)
        group = min(kernels.GROUP, P)
        self.mine = [
            _Mine(
                np.zeros((group, kernels.BLOCK, LANES), self.dtype),
                np.zeros((group, kernels.BLOCK, LANES), self.dtype),
                np.zeros((kernels.BLOCK, LANES), self.dtype),
                np.zeros((group, 2 * wide, LANES), self.dtype),
                np.zeros((group, 2 * wide, LANES)),
                np.zeros((group, objective.n_neighbors + 1, LANES), self.dtype),
            )
            for _ in range(min(engine.threads, self.groups))
        ]
        m, u, rule = self.m, len(self.open), isinstance(objective.bandwidth, str)
        last = (1 + 2 * t) * m + u if self.per_row else ((1 + 2 * t) * m + u) / 2
        applied = 3 * m * t if self.per_row else 3 * m * t - m
        self.whole = draws * self.n * P * (m * rule + m / 2 + applied + last)  # in multiply-adds of LANES
        for k, column in enumerate(self.columns):
            gated = np.zeros(P * LANES, self.dtype)
            np.multiply(X[:, column], z[:, column] if self.per_row else z[column], out=gated[: self.n])
            self.F[0, :, k] = gated.reshape(P, LANES)

    def group(self, number: int) -> tuple[int, int]:
        """The first panel of a group, and how many there are in it."""
        first = number * self.kernels.GROUP
        return first, min(self.kernels.GROUP, self.F.shape[1] - first)

    def spans(self, start: int, columns: int) -> Iterator[tuple[int, int]]:
        """Ranges of rows i, each for one compiled call, in which `columns` multiply-adds are spent on a pair."""
        flush = self.kernels.FLUSH
        rows = max(1, _CALL // (256 * max(columns, 16) * flush)) * flush
        for first in range(start, self.n, rows):
            yield first, min(self.n, first + rows)

    def scores(self, dz: Array) -> tuple[float, float, bool, float]:
        """S, b, degenerate and isolated; dS/dz goes to dz."""
        n, t, F, B = self.n, self.t, self.F, self.B
        for number in range(self.groups):
            self.kernels.squared_norms(F[0], self.m, *self.group(number), self.mine[0].block, self.g)
        b, degenerate, rows, weights = self.bandwidth()
        limit = float(np.finfo(self.dtype).max)
        self.minus_inverse = max(-1.0 / b, -limit)

        deg = self.degrees()
        alone = isolated_degree(self.objective.self_weight, float(np.finfo(self.dtype).eps))
        isolated = float((deg[:n] <= alone).mean())
        self.inverse = np.where(np.arange(len(deg)) < n, 1 / deg, 0).reshape(-1, 1, F.shape[-1])
        np.multiply(F[0], self.inverse, out=B[0], casting="same_kind")
        for a in range(t):
            self.apply(a, both=a < t - 1 or self.per_row)

        rho = np.zeros(self.g.shape, np.float64).reshape(-1, F.shape[-1])
        for a in range(t):
            rho += np.einsum("pkl,pkl->pl", B[a], F[t - a], dtype=np.float64)
        S = np.einsum("pkl,pkl->k", F[0], F[t], dtype=np.float64)
        by_row, weighted, products = self.gradient(rho.ravel().astype(self.dtype))
        db = -weighted / b
        by_row = by_row.reshape(-1, F.shape[-1])
        u = len(self.open)
        if self.per_row:
            deg = deg.reshape(-1, 1, F.shape[-1])
            dXt = F[t, :, :u] + deg * B[t, :, :u] + 2 * (by_row[:, None] * F[0, :, :u] - products)
            dXt = dXt.swapaxes(0, 1).reshape(u, len(self.g))[:, :n]
        else:
            squares = np.einsum("pl,pkl,pkl->k", by_row, F[0, :, :u], F[0, :, :u], dtype=np.float64)
            dXt = S[:u] + squares - 2 * products  # summed over the rows, times Xt: z dS/dz / 2
        if self.objective.bandwidth_gradient:
            self.through_bandwidth(rows, weights * db, dXt)
        if self.per_row:
            dz.T[self.open] = np.where(self.undecided.T[self.open], self.X.T[self.open] * dXt, 0)
        else:
            dz[self.open] = 2 * dXt / self.z[self.open]
        return float(S.sum()), b, degenerate, isolated

    def bandwidth(self) -> tuple[float, bool, Array, Array]:
        """b, whether a substitute was used, and the rows and weights that it was read from."""
        objective, n, k = self.objective, self.n, self.objective.n_neighbors
        rows, weights = np.zeros(2, np.int64), np.zeros(2)
        if not isinstance(objective.bandwidth, str):
            return float(objective.bandwidth), False, rows, weights
        self.kth, largest = np.zeros_like(self.g), np.zeros_like(self.g)

        def work(number: int, mine: _Mine) -> Iterator[float]:
            first, count = self.group(number)
            mine.best[:, :k] = np.inf
            mine.best[:, k] = 0
            for start, stop in self.spans(0, self.m):
                self.kernels.neighbours(
                    self.F[0], self.g, self.m, k, first, count, start, stop, mine.block, mine.best
                )  # fmt: skip
                yield (stop - start) * count * self.m / self.whole
            here = slice(first * mine.best.shape[-1], (first + count) * mine.best.shape[-1])
            self.kth[here], largest[here] = mine.best[:count, k - 1].ravel(), mine.best[:count, k].ravel()

        self.engine.together(self.groups, work, self.mine)
        b, degenerate = self.kernels.bandwidth(
            kernel_settings(objective, self.dtype, n), self.kth, largest, n, np.zeros(n, self.dtype), rows, weights
        )  # fmt: skip
        return b, degenerate, rows, weights

    def chunked(self, columns: int, call: Callable[..., None]) -> None:
        """call(chunk, mine, first, count, start, stop) for the pairs i > j, in the order of each chunk's groups."""

        def work(chunk: int, mine: _Mine) -> Iterator[float]:
            for number in range(chunk, self.groups, CHUNKS):
                first, count = self.group(number)
                for start, stop in self.spans(first * self.F.shape[-1], columns):
                    call(chunk, mine, first, count, start, stop)
                    yield (stop - start) * count * columns / self.whole

        self.engine.together(min(CHUNKS, self.groups), work, self.mine)

    def degrees(self) -> Array:
        """deg_i = sum_j K_ij, float64."""
        sums = np.zeros((min(CHUNKS, self.groups), len(self.g)))

        def call(chunk: int, mine: _Mine, *where: int) -> None:
            self.kernels.degrees(
                self.F[0], self.g, self.m, self.minus_inverse, *where, mine.block, mine.side, sums[chunk]
            )  # fmt: skip

        self.chunked(self.m, call)
        return sums.sum(axis=0) + self.objective.self_weight

    def rows_of(self, *panels: Array) -> Array:
        """(panels of columns, rows, LANES) from one or more (panels of rows, columns, LANES)."""
        P, wide, lanes = panels[0].shape
        out = np.empty((len(panels) * wide // lanes, P * lanes, lanes), self.dtype)
        for i, panel in enumerate(panels):
            here = out[i * wide // lanes : (i + 1) * wide // lanes]
            here.reshape(-1, P, lanes, lanes)[:] = panel.reshape(P, -1, lanes, lanes).transpose(1, 0, 3, 2)
        return out

    def apply(self, a: int, both: bool) -> None:
        """F_(a+1) = P F_a and, with `both`, B_(a+1) = P B_a."""
        F, B, wide = self.F, self.B, self.wide
        R = self.rows_of(F[a], B[a]) if both else self.rows_of(F[a])
        columns = wide + self.m if both else self.m  # those of B begin with a new panel

        def work(number: int, mine: _Mine) -> Iterator[float]:
            first, count = self.group(number)
            mine.out[:] = 0
            for start, stop in self.spans(0, self.m + columns):
                self.kernels.apply(
                    F[0], self.g, self.m, self.minus_inverse, self.objective.self_weight, R, columns, first, count,
                    start, stop, mine.block, mine.sums, mine.out,
                )  # fmt: skip
                yield (stop - start) * count * (2 + both) * self.m / self.whole
            here = slice(first, first + count)
            inverse = self.inverse[here]
            F[a + 1, here] = mine.out[:count, :wide] * inverse
            if both:
                B[a + 1, here] = mine.out[:count, wide:] * inverse

        self.engine.together(self.groups, work, self.mine)

    def gradient(self, rho: Array) -> tuple[Array, float, Array]:
        """rowsum(C), half of sum(C * D), and C Xt in panels, or with one gate vector half the sums of Xt C Xt."""
        n, m, t, u, half = self.n, self.m, self.t, len(self.open), not self.per_row
        chunks = min(CHUNKS, self.groups) if half else 1
        by_row = np.zeros((chunks, len(self.g)))
        weighted = np.zeros((chunks if half else self.groups, self.F.shape[-1]))
        dots = np.zeros((chunks, self.wide))
        R = self.rows_of(self.F[0])

        def call(chunk: int, group: int, mine: _Mine, *where: int) -> None:
            self.kernels.gradient(
                self.F, self.B, self.g, rho, n, m, t, self.minus_inverse, R, u, half, *where,
                mine.block, mine.slopes, mine.side, mine.sums, by_row[chunk], weighted[group], dots[chunk], mine.out,
            )  # fmt: skip

        if half:
            self.chunked((1 + 2 * t) * m + u, lambda chunk, mine, *where: call(chunk, chunk, mine, *where))
            return by_row.sum(axis=0), float(weighted.sum()), dots.sum(axis=0)[:u]

        products = np.zeros((self.F.shape[1], u, self.F.shape[-1]))

        def work(number: int, mine: _Mine) -> Iterator[float]:
            first, count = self.group(number)
            mine.out[:] = 0
            for start, stop in self.spans(0, (1 + 2 * t) * m + u):
                call(0, number, mine, first, count, start, stop)
                yield (stop - start) * count * ((1 + 2 * t) * m + u) / self.whole
            products[first : first + count] = mine.out[:count, :u]

        self.engine.together(self.groups, work, self.mine)
        return by_row[0], float(weighted.sum()) / 2, products

    def through_bandwidth(self, rows: Array, values: Array, dXt: Array) -> None:
        """Add the derivative through b to dXt: values_l of D_ij, with i = rows_l and j the neighbour read there."""
        F, lanes, u = self.F[0], self.F.shape[-1], len(self.open)
        for i, value in zip(rows, values, strict=True):
            if value == 0:
                continue
            mine = F[i // lanes, :, i % lanes]
            D = self.g[i] + self.g - 2 * np.einsum("pkl,k->pl", F, mine).ravel()
            gap = abs(np.maximum(D[: self.n], 0).astype(np.float64) - self.kth[i])
            gap[i] = np.inf
            j = int(gap.argmin())
            difference = mine[:u].astype(np.float64) - F[j // lanes, :u, j % lanes]
            if self.per_row:
                dXt[:, i] += 2 * value * difference
                dXt[:, j] -= 2 * value * difference
            else:
                dXt += value * difference**2
