"""The streaming form on a CUDA device: exact scores and gradients in O(n d) memory, never an n x n array.

The equations stand in kernels/streaming.cu. P = diag(1 / deg) K is applied t times to Xt and to Xt / deg; whatever is
needed of K is formed again in every pass and used at once: in the registers of one kernel where the open columns are
few (`_Fused`), else in some rows at a time by library products with our kernels between them (`_RowTiles`).

Multiply-adds of a draw with m open and w undecided columns, a squared gap counting as one: n^2 m for every two
neighbours, n^2 m for the degrees, n^2 (3 t m - m + w) for the walks, n^2 (m + 2 t m + w) for the pull: 14 n^2 m for
t = 2 and w = m. `_RowTiles` finds all neighbours in one pass. The Gram form takes 1.5 n^3 + 1.5 n^2 d, and O(n^2)
memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dufs_core.backend import Array, Backend
from dufs_core.errors import MemoryLimitError
from dufs_core.kernels.cuda import blocks_for
from dufs_core.objective.chain import Objective, Value
from dufs_core.objective.ops import loss, regulariser
from dufs_core.objective.ops.bandwidth import check_n_neighbors, noise_level, quantile_of
from dufs_core.objective.ops.normalise import lone_degree
from dufs_core.objective.protocol import Engine, StepSize

# Both limits are estimates from operation counts; neither was measured on a device.
FUSED_COLUMNS = 64  # up to so many open columns, tiles of K are formed in registers
TILE_ELEMENTS = 1 << 27  # entries of some rows of an n x n matrix, of which two are kept for more columns
_MOST_ROWS = 4096  # of such a tile: library products are near their limit

_TILE = 64  # as in tiles.cuh


def tile_rows(n: int) -> int:
    """How many rows of an n x n matrix are formed at once where library products form them."""
    return max(1, min(n, _MOST_ROWS, TILE_ELEMENTS // n))


class CudaStreamingEngine(Engine):
    """evaluate(bk, objective, mu, eps, X) on the device that X lives on, on the current stream.

    Takes every power, both losses, both kinds of noise and every bandwidth rule of
    `dufs_core.objective.chain.Objective`; its
    numbers are those of the operations within rounding, the same bits at every call. Draws are evaluated one after the
    other, each over its open columns alone; the gradient is computed for its undecided ones.

    Raises ValueError on a bad number of neighbours, MemoryLimitError where the device has no memory left.
    """

    name = "cuda_streaming"

    def bytes_needed(self, size: StepSize) -> int:
        """As `Engine.bytes_needed`."""
        column, double = size.n * size.d, 8 // size.itemsize
        kept = (2 * (size.power + 1) + 2) * column  # the walks, B Xt, and the data once more
        kept += size.n * (4 + 5 * double) + size.draws * size.d * double
        moving = 0
        if size.d > FUSED_COLUMNS:  # two tiles of rows; the operands of their products, and a product
            rows = tile_rows(size.n)
            kept += 2 * rows * size.n
            moving = (2 * size.power + 2) * size.d * rows
        if size.per_sample:  # the noise; the gates of one draw, and whether each is open and undecided
            kept += size.draws * column
            moving = max(moving, 2 * column + 4 * column // size.itemsize)
        return (kept + moving) * size.itemsize

    def __call__(self, bk: Backend, objective: Objective, mu: Array, eps: Array, X: Array) -> tuple[Value, Array]:
        try:
            return _Step(bk, objective, mu, eps, X).evaluate()
        except MemoryError as error:
            n, d = X.shape
            raise MemoryLimitError(
                f"The device has no memory left for streaming steps over {n:,} rows and {d:,} columns "
                f"({str(error).strip().rstrip('.')}): set batch_size to fewer rows than {n:,}, or free what else is on "
                f"the device"
            ) from error


class _Step:
    """The arrays of one evaluation. Those of n d entries are reused by its draws."""

    def __init__(self, bk: Backend, objective: Objective, mu: Array, eps: Array, X: Array) -> None:
        xp, f8 = bk.xp, bk.xp.float64
        self.bk, self.objective, self.dtype = bk, objective, X.dtype
        self.n, self.d = n, d = X.shape
        self.t, self.R, self.own = objective.power, len(eps), np.float64(objective.self_weight)
        self.per_sample = eps.ndim == 3
        self.fixed = not isinstance(objective.bandwidth, str)
        if not self.fixed:
            check_n_neighbors(objective.n_neighbors, n)
        self.X, self.mu, self.eps = (xp.ascontiguousarray(a) for a in (X.T, mu, eps))
        self.walks = xp.empty(2 * (self.t + 1) * d * n, dtype=X.dtype)
        self.BX = xp.empty(d * n, dtype=X.dtype)
        shape = (2, tile_rows(n), n) if d > FUSED_COLUMNS else (2, 0, n)
        self.tiles = xp.empty(shape, dtype=X.dtype)
        self.kth, self.largest, self.share, self.g = (xp.empty(n, dtype=X.dtype) for _ in range(4))
        self.deg, self.score, self.row_sums, self.slopes = (xp.empty(n, dtype=f8) for _ in range(4))
        self.neighbour = xp.empty(n, dtype=xp.int64)
        self.rows, self.weights, self.db = xp.zeros(2, dtype=xp.int64), xp.zeros(2, dtype=f8), xp.empty(1, dtype=f8)
        self.dots = xp.zeros((self.R, d), dtype=f8)
        self.report = xp.zeros((4, self.R), dtype=f8)  # one transfer to the host
        self.S, self.b, self.degenerate, self.isolated = self.report
        if self.fixed:
            self.b[...] = float(objective.bandwidth)

    def evaluate(self) -> tuple[Value, Array]:
        """The loss and its gradient, which stays on the device; the parts of Value on the host."""
        for draw in range(self.R):
            self._draw(draw)
        bk, o = self.bk, self.objective
        sum_p, saved_p = regulariser.forward(bk, self.mu, o.gate_sigma)
        L, saved_loss = loss.forward(bk, self.S, sum_p, self.n, o.lam, o.delta)
        dS, dsum_p = loss.backward(bk, saved_loss)
        dmu = (self.dots * dS[:, None]).sum(axis=0) + regulariser.backward(bk, saved_p, dsum_p)
        S, b, degenerate, isolated = bk.to_host(self.report)
        return Value(L, S, b, degenerate != 0, float(isolated.mean())), dmu.astype(self.dtype)

    def _columns(self, draw: int) -> tuple[Array, int]:
        """The columns that are open for some sample, first those that are undecided for some; the number of those."""
        xp = self.bk.xp
        u = self.mu + self.objective.gate_sigma * self.eps[draw]
        opened, undecided = u > 0, (u > 0) & (u < 1)
        if self.per_sample:
            opened, undecided = opened.any(axis=0), undecided.any(axis=0)
        wanted = xp.flatnonzero(undecided)
        return xp.concatenate([wanted, xp.flatnonzero(opened & ~undecided)]), len(wanted)

    def _draw(self, draw: int) -> None:
        columns, wanted = self._columns(draw)
        n, t, m, S, b = self.n, self.t, len(columns), self.S[draw : draw + 1], self.b[draw : draw + 1]
        walks = self.walks[: 2 * (t + 1) * m * n].reshape(t + 1, 2, m, n)
        BX = self.BX[: wanted * n].reshape(wanted, n)
        gates = (self.X, columns, self.mu, self.eps[draw], np.float64(self.objective.gate_sigma),
                 np.bool_(self.per_sample), *map(np.int64, (m, self.d, n)))  # fmt: skip
        self.launch("gated_columns<T>", blocks_for(m * n), *gates, walks[0, 0])
        passes = _Fused(self, walks, b) if m <= FUSED_COLUMNS else _RowTiles(self, walks, b)
        if not self.fixed:
            passes.nearest(self.objective.n_neighbors)
            self._bandwidth(draw)
        passes.degrees()
        self.launch(
            "divided<T>", blocks_for(m * n), walks[0, 0], self.deg, np.int64(m), np.int64(n), walks[0, 1]
        )  # fmt: skip
        for a in range(t):  # of C_t only the undecided columns are needed
            width = m + wanted if a == t - 1 else 2 * m
            passes.walk(walks[a].reshape(2 * m, n)[:width], walks[a + 1].reshape(2 * m, n)[:width])
        self.launch(
            "row_terms<T>", blocks_for(n), walks, *map(np.int64, (t, m, n)), self.score, self.share
        )  # fmt: skip
        if wanted:
            passes.pull(BX)
        alone = np.float64(lone_degree(self.objective.self_weight, float(np.finfo(self.dtype).eps)))
        self.launch(
            "summary<T>", 1, self.share, self.score, self.deg, self.slopes if wanted else None, b, alone, np.int64(n),
            S, self.isolated[draw : draw + 1], self.db,
        )  # fmt: skip
        self.launch(
            "gate_dots<T>", -(-wanted // 8), *gates, walks, np.int64(t), np.int64(wanted), self.deg, self.row_sums, BX,
            self.rows, self.weights, self.neighbour, self.db, self.dots[draw],
        )  # fmt: skip

    def launch(self, kernel: str, blocks: int, *arguments: Any) -> None:
        self.bk.kernels.launch(kernel, self.dtype, blocks, *arguments)

    def _bandwidth(self, draw: int) -> None:
        o, n = self.objective, self.n
        position = quantile_of(str(o.bandwidth)) * (n - 1)
        self.launch(
            "bandwidth<T>", 1, self.kth, self.largest, np.int64(1), np.int64(n), np.int64(int(position)),
            np.float64(position - int(position)), np.float64(o.bandwidth_factor), np.bool_(o.degenerate_rule == "one"),
            np.bool_(o.bandwidth_gradient), *map(np.float64, noise_level(np.finfo(self.dtype))),
            self.b[draw : draw + 1], self.degenerate[draw : draw + 1], self.rows, self.weights,
        )  # fmt: skip


class _Fused:
    """The passes over all pairs of rows, each one kernel."""

    def __init__(self, step: _Step, walks: Array, b: Array) -> None:
        self.step, self.walks, self.Xt, self.b = step, walks, walks[0, 0], b
        self.m, self.n = self.Xt.shape
        self.blocks = -(-self.n // _TILE)

    def nearest(self, k: int) -> None:
        s = self.step
        s.launch(
            "nearest<T>", self.blocks, self.Xt, *map(np.int64, (self.m, self.n, k)), s.kth, s.neighbour, s.largest
        )  # fmt: skip

    def degrees(self) -> None:
        s = self.step
        s.launch("degrees<T>", self.blocks, self.Xt, self.b, s.own, np.int64(self.m), np.int64(self.n), s.deg)

    def walk(self, Y: Array, out: Array) -> None:
        s, width = self.step, len(Y)
        s.launch(
            "walk<T>", self.blocks * -(-width // _TILE), self.Xt, self.b, s.own, s.deg, Y,
            *map(np.int64, (self.m, width, self.n)), out,
        )  # fmt: skip

    def pull(self, BX: Array) -> None:
        s, wanted = self.step, len(BX)
        s.launch(
            "pull<T>", self.blocks * -(-wanted // _TILE), self.walks, self.b, s.share,
            *map(np.int64, (s.t, self.m, wanted, self.n)), BX, s.row_sums, s.slopes,
        )  # fmt: skip


class _RowTiles:
    """The same passes, some rows of the matrix at a time: G by a library product, a kernel, and the next product."""

    def __init__(self, step: _Step, walks: Array, b: Array) -> None:
        self.step, self.walks, self.Xt, self.b = step, walks, walks[0, 0], b
        self.m, self.n = self.Xt.shape
        step.launch("norms<T>", blocks_for(self.n), self.Xt, np.int64(self.m), np.int64(self.n), step.g)

    def _grams(self) -> Iterator[tuple[slice, Array, tuple[Any, ...]]]:
        """Rows, their tile of G = Xt' Xt, and the sizes that the kernels take."""
        tiles = self.step.tiles[0]
        for start in range(0, self.n, len(tiles)):
            rows = slice(start, min(start + len(tiles), self.n))
            count = rows.stop - rows.start
            G = tiles[:count]
            self.step.bk.xp.matmul(self.Xt[:, rows].T, self.Xt, out=G)
            yield rows, G, tuple(map(np.int64, (start, count, self.n)))

    def _affinities(self) -> Iterator[tuple[slice, Array]]:
        """Rows and their tile of K; their degrees are written on the way."""
        s = self.step
        for rows, G, sizes in self._grams():
            s.launch("tile_affinity<T>", len(G), G, s.g, self.b, s.own, *sizes, s.deg)
            yield rows, G

    def nearest(self, k: int) -> None:
        s = self.step
        for _, G, sizes in self._grams():
            s.launch("tile_nearest<T>", len(G), G, s.g, *sizes, np.int64(k), s.kth, s.neighbour, s.largest)

    def degrees(self) -> None:
        for _ in self._affinities():
            pass

    def walk(self, Y: Array, out: Array) -> None:
        s, xp = self.step, self.step.bk.xp
        for rows, K in self._affinities():
            product = xp.matmul(Y, K.T)
            product *= (1 / s.deg[rows]).astype(s.dtype)
            out[:, rows] = product

    def pull(self, BX: Array) -> None:
        s, xp = self.step, self.step.bk.xp
        right = self.walks[: s.t].reshape(-1, self.n)  # F_0, C_0, F_1, ... meet C_(t-1), F_(t-1), C_(t-2), ...
        for rows, G, sizes in self._grams():
            left = xp.ascontiguousarray(self.walks[: s.t, :, :, rows][::-1, ::-1]).reshape(len(right), len(G))
            dots = s.tiles[1, : len(G)]
            xp.matmul(left.T, right, out=dots)
            s.launch("tile_pull<T>", len(G), G, dots, s.g, self.b, s.share, *sizes, s.row_sums, s.slopes)
            BX[:, rows] = xp.matmul(self.Xt[: len(BX)], G.T)
