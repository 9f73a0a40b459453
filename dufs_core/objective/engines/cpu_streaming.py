"""The streaming form on the CPU in compiled code (`dufs_core.kernels.streaming`): O(n d) memory, never an n x n array.

Blocks of K = exp(-D / b) are computed from the gated data whenever they are needed. With P = diag(1/deg) K:

    pass 1          D -> k-th neighbour distances -> b                       pass 2    K -> deg
    passes 3 to t+2 F_a = P^a Xt,  B_a = P^a (Xt / deg),  so (P')^a Xt = deg B_a
    rho_i = sum over a + b = t, b >= 1, of B_a,i . F_b,i = sum_j P_ij (dS/dP)_ij / deg_i
    last pass       C_ij = dS/dD_ij + dS/dD_ji = -(K_ij / b) (sum over a + b = t - 1 of B_a,i . F_b,j + F_b,i . B_a,j
                           - rho_i - rho_j)
                    dS/db = -sum_ij C_ij D_ij / (2 b),   dS/dXt = F_t + deg B_t + 2 (rowsum(C) Xt - C Xt)

As in FlashAttention, the row statistic rho is there before dS/dP is. Only the sums z_k dS/dz_k = Xt_k . (dS/dXt)_k are
wanted: K and C are symmetric, so pass 2 and the last one visit every pair once, and Xt_k . (deg B_t)_k = Xt_k . F_t,k.
Multiply-adds for t = 2, with m columns open and u of them undecided:
n^2 (m + m/2 + 3 m + 2 m + (5 m + u) / 2) <= 9.5 n^2 m.

With saturation the score is that of Y and Xt, Y = nu Xt (Xt' Xt + nu I)^(-1), S = sum_k Y_k . (F_t)_k: everything
starts with B_0 = Y / deg in place of Xt / deg and stays as it is, but for what S takes from Xt without the graph,
z_k dS/dz_k = 2 Y_k . (deg B_t)_k + ..., for which B_t is formed: n^2 m more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Event, Lock
from time import perf_counter
from typing import Any

import numpy as np

from dufs_core.backend import Array, Backend
from dufs_core.kernels.arrays import BLOCK, FLUSH, GROUP, LANES, Gated, Span, ThreadBlocks
from dufs_core.kernels.native import Kernel
from dufs_core.objective.chain import Objective, Scores
from dufs_core.objective.engines.cpu_dense import kernel_settings
from dufs_core.objective.ops import saturate
from dufs_core.objective.protocol import Engine, StepSize

_squared_norms, _neighbours, _bandwidth = (Kernel("streaming", n) for n in ("squared_norms", "neighbours", "bandwidth"))
_degrees, _apply, _gradient = (Kernel("streaming", name) for name in ("degrees", "apply", "gradient"))
CHUNKS = 32  # groups of rows are dealt out to so many sums over pairs, which any number of threads adds up alike
_CALL = 1 << 33  # multiply-adds of one compiled call: 0.1 to 0.3 s, after which Ctrl-C is heard
_REPORT = 0.5  # seconds between two reports of progress


class StreamingEngine(Engine):
    """The draws one after the other, each by all threads. The result does not depend on the number of threads.

    Compiled calls take a fraction of a second, so that a step of minutes can be interrupted; `progress`, if set, is
    called between them.
    """

    name = "streaming"

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._done, self._reported = 0.0, 0.0
        self._pool = ThreadPoolExecutor(threads)

    def bytes_needed(self, size: StepSize) -> int:
        double = 8 // size.itemsize
        rows, wide = -(-size.n // LANES) * LANES, -(-size.d // LANES) * LANES
        groups = -(-rows // (GROUP * LANES))
        kept = rows * wide * (2 * size.power + 3)  # F_a, B_a, and two as factors
        sums = rows * (min(CHUNKS, groups) * double + 8 * double)
        thread = min(GROUP * LANES, rows) * (2 * BLOCK + 2 * wide * (1 + double) + 3) + BLOCK * LANES
        buffers = (1 << 18) // size.itemsize  # of NumPy, where it sums float32 numbers in float64
        if size.saturating:  # B_t, and Xt and Y with a system of the smaller of both sizes
            kept += 4 * rows * wide + 3 * min(rows, wide) ** 2
        return (kept + sums + buffers + min(size.threads, groups) * thread) * size.itemsize

    def _scores_and_grad(self, bk: Backend, objective: Objective, X: Array, z: Array, undecided: Array) -> Scores:
        dz = np.zeros_like(z)
        self._done, self._reported = 0.0, perf_counter()
        draws = zip(z, undecided, dz, strict=True)
        results = [_Draw(self, bk, objective, X, z_r, wanted, len(z)).scores(dz_r) for z_r, wanted, dz_r in draws]
        S, b, degenerate, isolated = np.array(results).T
        return Scores(S, b, degenerate > 0, isolated, dz)

    def in_threads(self, count: int, work: Callable[[int, Any], Iterator[float]], mine: list[Any]) -> None:
        """work(0), ..., work(count - 1), each by one thread with its arrays.

        They yield the share of the step that they have done since; there they can be stopped.
        """
        numbers, lock, stopped = iter(range(count)), Lock(), Event()

        def run(thread: int) -> None:
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
            others += [self._pool.submit(run, thread) for thread in range(1, len(mine))]
            run(0)
            for other in others:
                other.result()
        except BaseException:
            stopped.set()
            wait(others)
            raise


class _Draw:
    """One draw: the arrays of O(n d), and the passes over them in order."""

    def __init__(
        self, engine: StreamingEngine, bk: Backend, objective: Objective, X: Array, z: Array, undecided: Array,
        draws: int,
    ) -> None:  # fmt: skip
        n, t, dtype = len(X), objective.power, X.dtype
        self.engine, self.bk, self.objective, self.z = engine, bk, objective, z
        self.n, self.t = n, t
        self.settings = kernel_settings(objective, dtype, n)
        self.undecided = np.flatnonzero(undecided & (z > 0))
        columns = np.concatenate([self.undecided, np.flatnonzero((z > 0) & ~undecided)])  # wanted ones first
        m = max(1, len(columns))  # all gates closed: one column of zeros
        P = -(-n // LANES)
        self.wide = wide = -(-m // LANES) * LANES  # columns in full panels
        self.groups, group = -(-P // GROUP), min(GROUP, P)
        blocks, sums = (group, BLOCK, LANES), (group, 2 * wide, LANES)
        self.mine = [
            ThreadBlocks(
                block=np.zeros(blocks, dtype),
                slopes=np.zeros(blocks, dtype),
                side=np.zeros((BLOCK, LANES), dtype),
                sums=np.zeros(sums, dtype),
                out=np.zeros(sums),
                best=np.zeros((group, objective.n_neighbors + 1, LANES), dtype),
            )
            for _ in range(min(engine.threads, self.groups))
        ]
        F = np.zeros((t + 1, P, wide, LANES), dtype)
        self.B = np.zeros((t if objective.saturation is None else t + 1, P, wide, LANES), dtype)
        self.gated = Gated(F, self.B[:t], np.zeros(P * LANES, dtype), n, m, 0.0, objective.self_weight)
        passes = isinstance(objective.bandwidth, str) + 0.5 + t + 0.5  # two visit every pair once
        self.whole = draws * n * P * passes  # of the step
        for k, column in enumerate(columns):
            gated = np.zeros(P * LANES, dtype)
            np.multiply(X[:, column], z[column], out=gated[:n])
            F[0, :, k] = gated.reshape(P, LANES)

    def scores(self, dz: Array) -> tuple[float, float, bool, float]:
        """S, b, degenerate and isolated; dS/dz goes to dz."""
        n, t, X, F, B = self.n, self.t, self.gated, self.gated.F, self.B
        lanes, u = F.shape[-1], len(self.undecided)
        for number in range(self.groups):
            _squared_norms(X, *self.group(number), self.mine[0].block)
        b, degenerate, rows, weights = self.bandwidth()
        self.gated = X._replace(minus_inverse=max(-1.0 / b, -float(np.finfo(F.dtype).max)))

        deg = self.degrees()
        isolated = float((deg[:n] <= self.settings.isolated_degree).mean())
        self.inverse = np.where(np.arange(len(deg)) < n, 1 / deg, 0).reshape(-1, 1, lanes)
        if self.objective.saturation is None:
            np.multiply(F[0], self.inverse, out=B[0], casting="same_kind")
        else:
            np.multiply(self.saturated(), self.inverse, out=B[0], casting="same_kind")
        for a in range(t):
            self.apply(a)

        rho = np.zeros(X.g.shape, np.float64).reshape(-1, lanes)
        for a in range(t):
            rho += np.einsum("pkl,pkl->pl", B[a], F[t - a], dtype=np.float64)
        if self.objective.saturation is None:
            S = direct = np.einsum("pkl,pkl->k", F[0], F[t], dtype=np.float64)
        else:
            by_lane = np.where(np.arange(len(deg)) < n, deg, 0).reshape(-1, lanes)
            S = np.einsum("pl,pkl,pkl->k", by_lane, B[0], F[t], dtype=np.float64)
            direct = np.einsum("pl,pkl,pkl->k", by_lane**2, B[0], B[t], dtype=np.float64)
        by_row, weighted, dots = self.gradient(rho.ravel().astype(F.dtype))
        squares = np.einsum("pl,pkl,pkl->k", by_row.reshape(-1, lanes), F[0, :, :u], F[0, :, :u], dtype=np.float64)
        half_z_dz = direct[:u] + squares - 2 * dots
        self.through_bandwidth(rows, weights * (-weighted / b), half_z_dz)
        dz[self.undecided] = 2 * half_z_dz / self.z[self.undecided]
        return float(S.sum()), b, degenerate, isolated

    def group(self, number: int) -> tuple[int, int]:
        """The first panel of a group, and how many there are in it."""
        first = number * GROUP
        return first, min(GROUP, self.gated.F.shape[1] - first)

    def spans(self, group: int, start: int, cost: float) -> Iterator[Any]:
        """Ranges of rows i from `start` on for one group, each for one compiled call; `cost` is that of a pair."""
        rows = max(1, int(_CALL // (256 * max(cost, 16) * FLUSH))) * FLUSH
        for i in range(start, self.n, rows):
            yield Span(*self.group(group), i, min(self.n, i + rows))

    def share(self, span: Any) -> float:
        """The share of the step that a call was."""
        return float((span.stop - span.start) * span.size / self.whole)

    def bandwidth(self) -> tuple[float, bool, Array, Array]:
        """b, whether a substitute was used, and the rows and weights that it was read from."""
        objective, k, X = self.objective, self.objective.n_neighbors, self.gated
        rows, weights = np.zeros(2, np.int64), np.zeros(2)
        if not isinstance(objective.bandwidth, str):
            return float(objective.bandwidth), False, rows, weights
        self.kth, largest = np.zeros_like(X.g), np.zeros_like(X.g)

        def work(number: int, mine: Any) -> Iterator[float]:
            mine.best[:, :k] = np.inf
            mine.best[:, k] = 0
            for span in self.spans(number, 0, X.m):
                _neighbours(X, k, span, mine)
                yield self.share(span)
            (first, count), lanes = self.group(number), mine.best.shape[-1]
            here = slice(first * lanes, (first + count) * lanes)
            self.kth[here], largest[here] = mine.best[:count, k - 1].ravel(), mine.best[:count, k].ravel()

        self.engine.in_threads(self.groups, work, self.mine)
        scratch = np.zeros(self.n, X.g.dtype)
        found = np.zeros(2)
        _bandwidth(self.settings, self.kth, largest, self.n, scratch, rows, weights, found)
        return float(found[0]), found[1] > 0, rows, weights

    def chunked(self, cost: float, call: Callable[[int, Any, Any], None]) -> None:
        """call(chunk, span, mine) for the pairs i > j, in the order of each chunk's groups."""

        def work(chunk: int, mine: Any) -> Iterator[float]:
            for number in range(chunk, self.groups, CHUNKS):
                for span in self.spans(number, self.group(number)[0] * self.gated.F.shape[-1], cost):
                    call(chunk, span, mine)
                    yield self.share(span)

        self.engine.in_threads(min(CHUNKS, self.groups), work, self.mine)

    def degrees(self) -> Array:
        """deg_i = sum_j K_ij, float64."""
        X = self.gated
        sums = np.zeros((min(CHUNKS, self.groups), len(X.g)))
        self.chunked(X.m, lambda chunk, span, mine: _degrees(X, span, mine, sums[chunk]))
        return sums.sum(axis=0) + self.objective.self_weight

    def rows_of(self, *panels: Array) -> Array:
        """(panels of columns, rows, LANES) from one or more (panels of rows, columns, LANES)."""
        P, wide, lanes = panels[0].shape
        out = np.empty((len(panels) * wide // lanes, P * lanes, lanes), panels[0].dtype)
        for i, panel in enumerate(panels):
            here = out[i * wide // lanes : (i + 1) * wide // lanes]
            here.reshape(-1, P, lanes, lanes)[:] = panel.reshape(P, -1, lanes, lanes).transpose(1, 0, 3, 2)
        return out

    def saturated(self) -> Array:
        """Y in the panels of Xt."""
        Xt, m, n = self.gated.F[0], self.gated.m, self.n
        P, wide, lanes = Xt.shape
        Y = np.zeros((wide, P * lanes), Xt.dtype)
        rows = np.ascontiguousarray(Xt.transpose(1, 0, 2).reshape(wide, -1)[:m, :n])
        Y[:m, :n] = saturate.columns(self.bk, rows, self.objective.nu(n))
        return Y.reshape(wide, P, lanes).transpose(1, 0, 2)

    def apply(self, a: int) -> None:
        """F_(a+1) = P F_a and, where there is room for it, B_(a+1) = P B_a."""
        X, wide, both = self.gated, self.wide, a + 1 < len(self.B)
        F, B, m = X.F, self.B, X.m
        R = self.rows_of(F[a], B[a]) if both else self.rows_of(F[a])
        columns = wide + m if both else m  # those of B begin with a new panel

        def work(number: int, mine: Any) -> Iterator[float]:
            mine.out[:] = 0
            for span in self.spans(number, 0, m + columns):
                _apply(X, R, columns, span, mine)
                yield self.share(span)
            first, count = self.group(number)
            here = slice(first, first + count)
            F[a + 1, here] = mine.out[:count, :wide] * self.inverse[here]
            if both:
                B[a + 1, here] = mine.out[:count, wide:] * self.inverse[here]

        self.engine.in_threads(self.groups, work, self.mine)

    def gradient(self, rho: Array) -> tuple[Array, float, Array]:
        """rowsum(C), half of sum(C * D), and half the sums of Xt C Xt of the undecided columns."""
        X, u, chunks = self.gated, len(self.undecided), min(CHUNKS, self.groups)
        by_row, weighted = np.zeros((chunks, len(X.g))), np.zeros((chunks, X.F.shape[-1]))
        dots, R = np.zeros((chunks, self.wide)), self.rows_of(X.F[0])

        def call(chunk: int, span: Any, mine: Any) -> None:
            _gradient(X, rho, R, u, span, mine, by_row[chunk], weighted[chunk], dots[chunk])

        self.chunked((1 + 2 * self.t) * X.m + u, call)
        return by_row.sum(axis=0), float(weighted.sum()), dots.sum(axis=0)[:u]

    def through_bandwidth(self, rows: Array, values: Array, half_z_dz: Array) -> None:
        """Add the derivative through b: values_l of D_ij, with i = rows_l and j the neighbour read there."""
        F, g, u = self.gated.F[0], self.gated.g, len(half_z_dz)
        lanes = F.shape[-1]
        for i, value in zip(rows, values, strict=True):
            if value == 0:
                continue
            own = F[i // lanes, :, i % lanes]
            D = g[i] + g - 2 * np.einsum("pkl,k->pl", F, own).ravel()
            gap = abs(np.maximum(D[: self.n], 0).astype(np.float64) - self.kth[i])
            gap[i] = np.inf
            j = int(gap.argmin())
            half_z_dz += value * (own[:u].astype(np.float64) - F[j // lanes, :u, j % lanes]) ** 2
