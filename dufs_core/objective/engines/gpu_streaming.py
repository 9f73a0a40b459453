"""The streaming form on a CUDA device: exact scores and gradients in O(n d) memory, never an n x n array.

The equations and their letters stand in `dufs_core.objective.engines.cpu_streaming`. Whatever is needed of K is formed
again in every pass, some rows at a time: a library product gives rows of G, a kernel (kernels/distances.cu) turns them
in place into what the next product takes, and they are gone before the next ones are formed.

Multiply-adds of a draw with m open and u undecided columns: n^2 m for each of the t + 3 times that G is formed, 2 m for
each P (F, B) but the last, which takes m, and 2 t m + u in the last pass: 13 n^2 m for t = 2 and u = m. The Gram form
takes 1.5 n^3 + 1.5 n^2 d, and O(n^2) memory. With saturation B_t is formed too.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dufs_core.backend import Array, Backend
from dufs_core.objective.chain import Objective, Scores
from dufs_core.objective.engines.gpu_plan import CudaScoresEngine, bandwidth_rule
from dufs_core.objective.ops import saturate
from dufs_core.objective.ops.normalise import isolated_degree
from dufs_core.objective.protocol import StepSize

TILE_ELEMENTS = 1 << 27  # entries of some rows of an n x n matrix, of which two are kept
_MOST_ROWS = 4096  # of such a tile: library products are near their limit


def tile_rows(n: int) -> int:
    """How many rows of an n x n matrix are formed at once."""
    return max(1, min(n, _MOST_ROWS, TILE_ELEMENTS // n))


class CudaStreamingEngine(CudaScoresEngine):
    """Draws one after the other, each over its open columns alone, with the gradient in its undecided gates.

    The same bits at every call.
    """

    name = "cuda_streaming"
    what = "streaming steps"

    def bytes_needed(self, size: StepSize) -> int:
        column, rows, double = size.n * size.d, tile_rows(size.n), 8 // size.itemsize
        kept = (2 * size.power + 3) * column  # F_a, B_a, C Xt, and the data once more
        if size.saturating:  # B_t, and Y with a system of the smaller of both sizes
            kept += 3 * column + 3 * min(size.n, size.d) ** 2
        kept += size.n * (4 + 5 * double) + size.draws * size.d * 3 * double + 2 * rows * size.n
        moving = max(3 * column, (2 * size.power + 2) * size.d * rows)  # the operands of products; sums over columns
        return (kept + moving) * size.itemsize

    def _scores_and_grad(self, bk: Backend, objective: Objective, X: Array, z: Array, undecided: Array) -> Scores:
        passes = _Passes(bk, objective, X, len(z))
        dz = bk.xp.zeros(z.shape, dtype=bk.xp.float64)
        for draw in range(len(z)):
            passes.draw(draw, z[draw], undecided[draw], dz[draw])
        return Scores(passes.S, passes.b, passes.degenerate != 0, passes.isolated, dz)


class _Passes:
    """The arrays of one evaluation, those of n d entries reused by its draws, and the passes over them."""

    def __init__(self, bk: Backend, objective: Objective, X: Array, draws: int) -> None:
        xp, f8 = bk.xp, bk.xp.float64
        self.bk, self.objective, self.dtype = bk, objective, X.dtype
        (self.n, self.d), self.t = X.shape, objective.power
        self.rule = bandwidth_rule(objective, self.n, X.dtype)
        self.X = xp.ascontiguousarray(X.T)
        self.saturating = objective.saturation is not None
        self.count = 2 * self.t + 1 + self.saturating
        self.blocks = xp.empty(self.count * self.d * self.n, dtype=X.dtype)
        self.CX = xp.empty(self.d * self.n, dtype=X.dtype)
        self.tiles = xp.empty((2, tile_rows(self.n), self.n), dtype=X.dtype)
        self.kth, self.largest, self.g = xp.empty((3, self.n), dtype=X.dtype)
        self.deg, self.row_sums, self.slopes = xp.empty((3, self.n), dtype=f8)
        self.neighbour = xp.zeros(self.n, dtype=xp.int64)
        self.rows, self.weights = xp.zeros(2, dtype=xp.int64), xp.zeros(2, dtype=f8)
        self.S, self.b, self.degenerate, self.isolated = xp.zeros((4, draws), dtype=f8)
        if self.rule is None:
            self.b[...] = float(objective.bandwidth)

    def draw(self, draw: int, z: Array, undecided: Array, dz: Array) -> None:
        """S, b, degenerate and isolated of one draw; dS/dz, where a gate is undecided, goes to dz."""
        xp, f8, n, t = self.bk.xp, self.bk.xp.float64, self.n, self.t
        wanted = xp.flatnonzero(undecided)
        columns = xp.concatenate([wanted, xp.flatnonzero((z > 0) & ~undecided)])
        if not len(columns):
            columns = xp.zeros(1, dtype=xp.int64)  # all gates closed: one column of zeros
        m, u = len(columns), len(wanted)
        blocks = self.blocks[: self.count * m * n].reshape(self.count, m, n)  # F_0 = Xt, B_0, F_1, B_1, ... F_t
        Xt = blocks[0]
        Xt[...] = self.X[columns]
        Xt *= z[columns][:, None]
        self.g[...] = (Xt * Xt).sum(axis=0, dtype=f8)
        b = self.b[draw : draw + 1]
        if self.rule is not None:
            self._bandwidth(Xt, b, self.degenerate[draw : draw + 1])
        for _ in self._affinities(Xt, b):
            pass  # the degrees are written on the way
        isolated = isolated_degree(self.objective.self_weight, float(np.finfo(self.dtype).eps))
        self.isolated[draw] = (self.deg <= isolated).mean()
        inverse = (1 / self.deg).astype(self.dtype)
        Y = saturate.columns(self.bk, Xt, self.objective.nu(n)) if self.saturating else Xt
        blocks[1] = Y * inverse
        for a in range(t):  # of P^t, only F_t is needed without saturation
            width = min(2, self.count - 2 * (a + 1))
            FB, PFB = (blocks[2 * c : 2 * c + width].reshape(width * m, n) for c in (a, a + 1))
            for rows, K in self._affinities(Xt, b):
                PFB[:, rows] = xp.matmul(FB, K.T) * inverse[rows]
        S = direct = (Y * blocks[2 * t]).sum(axis=1, dtype=f8)
        if self.saturating:
            direct = (Y * blocks[2 * t + 1] * self.deg).sum(axis=1)
        self.S[draw] = S.sum()
        if u:
            rho = xp.zeros(n, dtype=f8)
            for a in range(t):
                rho += (blocks[2 * a + 1] * blocks[2 * (t - a)]).sum(axis=0, dtype=f8)
            dz[wanted] = 2 * (direct[:u] + self._through_distances(blocks, u, b, rho.astype(self.dtype))) / z[wanted]

    def _grams(self, Xt: Array) -> Iterator[tuple[slice, Array, tuple[int, int, int]]]:
        """Rows, their tile of G = Xt' Xt, and the sizes that the kernels take."""
        tiles = self.tiles[0]
        for start in range(0, self.n, len(tiles)):
            rows = slice(start, min(start + len(tiles), self.n))
            G = tiles[: rows.stop - start]
            self.bk.xp.matmul(Xt[:, rows].T, Xt, out=G)
            yield rows, G, (start, len(G), self.n)

    def _affinities(self, Xt: Array, b: Array) -> Iterator[tuple[slice, Array]]:
        """Rows and their tile of K."""
        for rows, G, sizes in self._grams(Xt):
            self._launch(
                "affinity<T>", len(G), G, self.g, b, self.objective.self_weight, *sizes, G, self.deg, None, None
            )
            yield rows, G

    def _bandwidth(self, Xt: Array, b: Array, degenerate: Array) -> None:
        k, found = self.objective.n_neighbors, (self.kth, self.neighbour, self.largest)
        for _, G, sizes in self._grams(Xt):
            self._launch("distances<T>", len(G), G, self.g, *sizes, k, G, *found)
        entries = (self.rows, self.weights)
        self._launch("bandwidth<T>", 1, self.kth, self.largest, 1, self.n, *self.rule, b, degenerate, *entries)

    def _through_distances(self, blocks: Array, u: int, b: Array, rho: Array) -> Array:
        """Half of sum_i Xt_ki (dS/dXt)_ki through D and b, for the first u columns: float64 (u,)."""
        xp, f8, Xt = self.bk.xp, self.bk.xp.float64, blocks[0]
        CX, right = self.CX[: u * self.n].reshape(u, self.n), blocks[: 2 * self.t].reshape(-1, self.n)
        for rows, G, sizes in self._grams(Xt):
            left = xp.ascontiguousarray(blocks[: 2 * self.t, :, rows][::-1]).reshape(
                len(right), len(G)
            )  # F_a meets B_(t-1-a)
            dots = self.tiles[1, : len(G)]
            xp.matmul(left.T, right, out=dots)
            sums = (self.row_sums, self.slopes)
            self._launch("grad_distances<T>", len(G), G, dots, self.g, b, rho, *sizes, *sums)
            CX[:, rows] = xp.matmul(Xt[:u], G.T)
        inside = (Xt[:u] * (self.row_sums.astype(self.dtype) * Xt[:u] - CX)).sum(axis=1, dtype=f8)
        gap = Xt[:u, self.rows] - Xt[:u, self.neighbour[self.rows]]
        db = self.slopes.sum() / (2 * b * b)
        return inside + (gap * gap * (self.weights * db)).sum(axis=1)

    def _launch(self, kernel: str, blocks: int, *arguments: object) -> None:
        self.bk.kernels.launch(kernel, self.dtype, blocks, *arguments)
