"""The Gram form on a CUDA device: the arrays of one step, the launches over them, and their replay as a CUDA graph.

A step over few entries is all launches: it runs with our own product kernel and is captured once in a graph. A step
over many entries is all arithmetic: its products are cuBLAS's, over the open columns alone. (CuPy does not let cuBLAS
be captured, nor the solver of systems that saturation needs.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from dufs_core.backend import Array, Backend
from dufs_core.errors import MemoryLimitError
from dufs_core.kernels.cuda import SWEEP_TILE, TILE, blocks_for, warps_for
from dufs_core.objective.chain import Objective, Value
from dufs_core.objective.ops import saturate
from dufs_core.objective.ops.bandwidth import check_n_neighbors, noise_level, quantile_of
from dufs_core.objective.ops.normalise import isolated_degree
from dufs_core.objective.protocol import Engine, StepSize
from dufs_core.objective.rules import quantile_ranks

# Estimates: the first from steps timed on an H200 when it was 2^28 (bench/results/gpu.json), the second from operation
# counts. Neither was varied on a device.
CAPTURED_WORK = 1 << 31  # multiply-adds of a step: below it launches cost more than arithmetic
ELEMENTS_TOGETHER = 1 << 28  # entries of the stacked matrices and gated data: more draws are taken in turns
_BUSY = 128  # blocks that keep a device busy
Shapes = dict[str, tuple[int, ...]]


def is_captured(shape: tuple[int, int], draws: int, fits: int, saturating: bool = False) -> bool:
    """Whether a step is captured: the work of one fit is small, and the draws of all fits have room in one stack."""
    n, d = shape
    if saturating:
        return False
    work = draws // fits * n * n * (2 * d + 2 * n)
    return work <= CAPTURED_WORK and draws * n * max(n, d) <= ELEMENTS_TOGETHER


def parts_of_gram(n: int, d: int, draws: int) -> int:
    """In how many parts our own kernel sums the Gram matrices of one fit: enough blocks, of 64 terms or more each.

    One fit's draws alone decide, so that a fit in a stack gets the sums that it has by itself.
    """
    return max(1, min(_BUSY // (draws * (-(-n // TILE)) ** 2), d // TILE, d // n))


def layout(size: StepSize) -> list[tuple[str, Shapes]]:
    """The shapes of the arrays of a step, by dtype: F fits of R draws together, r of which are evaluated at once."""
    n, d, F, R, t = size.n, size.d, size.fits, size.draws, size.power
    captured = is_captured((n, d), R, F, size.saturating)
    r = R if captured else max(1, min(R, ELEMENTS_TOGETHER // (n * max(n, d))))
    parts = parts_of_gram(n, d, R // F) if captured else 1
    of_data: Shapes = {
        "X": (d, n),
        "mu": (F, d),
        "eps": (R, d),
        "dmu": (F, d),
        "columns": (r * d * n,),  # the gated data, later M X
        "G": (r, n, n),  # later H
        "T": (r, n, n),
        "D": (0 if size.fixed_bandwidth else r, n, n),
        "powers": (t, r, n, n),  # A, A^2, ...; the last is later M
        "terms": (2 if t > 2 else 0, r, n, n),  # products on the way to T
        "sums": (parts if parts > 1 else 0, r, n, n),  # parts of G
    }
    of_data |= dict.fromkeys(("g", "kth", "largest", "q", "r", "half_ddeg"), (r, n))
    in_double: Shapes = {
        "dots": (R, d),
        "db": (r, -(-n // SWEEP_TILE)),
        "weights": (r, 2),  # of the rows that b was read from
    }
    in_double |= dict.fromkeys(("deg", "Wq", "Wr", "row_sums"), (r, n))
    in_double |= dict.fromkeys(("S", "b", "degenerate", "isolated"), (R,))
    in_double |= dict.fromkeys(("loss", "mean_isolated"), (F,))
    places: Shapes = {"neighbour": (r, n), "rows": (r, 2)}
    return [(f"f{size.itemsize}", of_data), ("f8", in_double), ("i8", places)]


def step_bytes(size: StepSize) -> int:
    """Bytes that a step allocates beside the data, with every gate open."""
    groups = layout(size)
    kept = sum(int(kind[1]) * prod(shape) for kind, shapes in groups for shape in shapes.values())
    n, d = size.n, size.d
    if is_captured((n, d), size.draws, size.fits, size.saturating):
        return kept
    # the open and the undecided columns, the copies that a product makes of its operands, and those of a solver
    together = groups[0][1]["G"][0]
    solved = 5 * together * n * n * size.saturating
    return kept + (together * n * (n + d) + 2 * n * d + solved) * size.itemsize


@contextmanager
def memory_errors(what: str, shape: tuple[int, int], draws: int) -> Iterator[None]:
    """Inside, a full device raises MemoryLimitError with what it was needed for."""
    try:
        yield
    except MemoryError as error:
        n, d = shape
        raise MemoryLimitError(
            f"The device has no memory left for {what} over {n:,} rows and {d:,} columns with {draws} draws "
            f"({str(error).strip().rstrip('.')}): set batch_size to fewer rows than {n:,}, fewer n_draws, or free "
            f"what else is on the device"
        ) from error


def bandwidth_rule(objective: Objective, n: int, dtype: Any) -> Any:
    """What the kernel `bandwidth` takes for n rows; None where the bandwidth is a number. Raises ValueError on a bad k.

    The rank of the lower neighbour distance, the weight of the one above it, the factor; what replaces a zero.
    """
    if not isinstance(objective.bandwidth, str):
        return None
    check_n_neighbors(objective.n_neighbors, n)
    low, _, upper = quantile_ranks(quantile_of(objective.bandwidth), n)
    is_one = objective.degenerate_rule == "one"
    return low, upper, float(objective.bandwidth_factor), is_one, *noise_level(np.finfo(dtype))


class Replay:
    """Launches as `run` queues them: the first time one by one, then captured in a graph that is launched instead.

    `run` is given anew at every call, though it must queue the same: kept here it would make a cycle with what owns
    this object, and the device's memory would wait for Python's collector. `refused` says why there is no graph, if
    capturing failed: `run` then serves as well.
    """

    def __init__(self, bk: Backend, captured: bool) -> None:
        self._bk, self._captured = bk, captured
        self._warm = False
        self.graph: Any = None
        self.refused: str | None = None

    def __call__(self, run: Callable[[], None]) -> None:
        if self._captured and self._warm and self.graph is None and self.refused is None:
            self._capture(run)
        if self.graph is not None:
            self.graph.launch()
        else:
            run()
        self._warm = True  # every kernel is compiled: nothing but launches is left to capture

    def _capture(self, run: Callable[[], None]) -> None:
        cuda = self._bk.xp.cuda
        stream = cuda.Stream(non_blocking=True)
        stream.wait_event(cuda.get_current_stream().record())
        try:
            with stream:
                stream.begin_capture()
                try:
                    run()
                finally:
                    graph = stream.end_capture()
            self.graph = graph
        except RuntimeError as error:  # CUDA's and CuPy's refusals are RuntimeErrors; the launches serve as well
            self.refused = str(error)


class Columns(NamedTuple):
    """Some columns of the data, with their gates."""

    X: Array  # (d, n)
    mu: Array  # (fits, d)
    eps: Array  # (R, d)


class Plan:
    """The arrays of one step (`layout`), and the launches over them, for one shape of the problem.

    Several fits at once, which differ in lam alone, share the data: R draws of all fits, one fit after the other. Their
    draws are one stack of matrices. With d = 0, G is the caller's: `sweep` needs nothing else.
    """

    def __init__(
        self, bk: Backend, objectives: Sequence[Objective], shape: tuple[int, int], draws: int, dtype: Any
    ) -> None:
        self.bk = bk
        self.dtype = np.dtype(dtype)
        self.objective = objectives[0]
        self.n, self.d = shape
        self.R = draws
        self.fits = len(objectives)
        self.per_fit = draws // self.fits
        self.rule = bandwidth_rule(self.objective, self.n, dtype)
        saturating = self.objective.saturation is not None
        self.captured = is_captured(shape, draws, self.fits, saturating)
        self.loaded: Array | None = None  # the data that X holds, kept alive so that its identity means something

        size = StepSize(
            *shape,
            draws,
            self.dtype.itemsize,
            self.objective.power,
            self.rule is None,
            fits=self.fits,
            saturating=saturating,
        )
        arrays = {
            name: bk.xp.zeros(shape, dtype=kind) for kind, shapes in layout(size) for name, shape in shapes.items()
        }
        self.arrays = SimpleNamespace(**arrays)
        self.together = len(self.arrays.G)
        lams = [np.nan if o.lam is None else o.lam for o in objectives]
        self.arrays.lam = bk.xp.asarray(np.array(lams, dtype=np.float64))
        if self.rule is None:
            self.arrays.b[...] = float(self.objective.bandwidth)

    def load(self, X: Array) -> None:
        """Take over the data of the coming steps."""
        if X is not self.loaded:
            self.arrays.X[...] = X.T
            self.loaded = X

    # --- launches: what they compute is said in the .cu files --------------------------------------------------------

    def launch(self, kernel: str, blocks: int, *arguments: Any) -> None:
        self.bk.kernels.launch(kernel, self.dtype, blocks, *arguments)

    def run(self, keys: tuple[Any, ...] | None = None) -> None:
        """Queue everything from mu and eps to loss, mean_isolated and dmu.

        keys: the columns' numbers, seeds, clock and stream by which `eps` is drawn first, in mirrored pairs.
        """
        a = self.arrays
        if keys is not None:
            blocks = blocks_for(self.fits * -(-max(1, self.per_fit // 2) // 4) * self.d)
            self.launch("normals<T>", blocks, *keys, self.fits, self.per_fit, self.d, True, a.eps)
        self._from_gates_to_dots()
        sizes = (self.fits, self.per_fit, self.d, self.n)
        numbers = (float(self.objective.gate_sigma), float(self.objective.delta))
        scores = (a.S, a.isolated, a.dots, a.mu, a.lam)
        self.launch("loss<T>", self.fits, *scores, *sizes, *numbers, a.dmu, a.loss, a.mean_isolated)

    def _from_gates_to_dots(self) -> None:
        xp, a = self.bk.xp, self.arrays
        opened = undecided = Columns(a.X, a.mu, a.eps)
        if not self.captured:
            is_open, is_undecided = self._open_and_undecided()
            wanted = xp.flatnonzero(is_undecided)
            opened = self._some(xp.flatnonzero(is_open))
            undecided = self._some(wanted)
            a.dots[...] = 0
        for start in range(0, self.R, self.together):
            draws = slice(start, min(start + self.together, self.R))
            Xt = self._buffer(draws, opened)
            self.launch("gated<T>", blocks_for(Xt.size), *self._gates(draws, opened), Xt)
            self._gram(Xt, a.G[: len(Xt)])
            M = self.sweep(draws)

            MX = self._buffer(draws, undecided)
            self.product(False, undecided.X[None], M, MX)
            dots = a.dots[draws] if self.captured else xp.empty(MX.shape[:2], dtype=a.dots.dtype)
            X, *gates = self._gates(draws, undecided)
            self.launch("column_dots<T>", warps_for(dots.size), X, MX, *gates, dots)
            if not self.captured:
                a.dots[draws, wanted] = dots

    def _open_and_undecided(self) -> tuple[Array, Array]:
        """Whether a column is open, and whether its gate is undecided, in any draw of any fit: bool (d,)."""
        eps = self.arrays.eps.reshape(self.fits, -1, self.d)
        u = self.arrays.mu[:, None, :] + self.dtype.type(self.objective.gate_sigma) * eps
        return (u > 0).any(axis=(0, 1)), ((u > 0) & (u < 1)).any(axis=(0, 1))

    def _some(self, columns: Array) -> Columns:
        a, contiguous = self.arrays, self.bk.xp.ascontiguousarray
        return Columns(a.X[columns], contiguous(a.mu[:, columns]), contiguous(a.eps[:, columns]))

    def _buffer(self, draws: slice, columns: Columns) -> Array:
        """Room for these columns of these draws, (draws, columns, n)."""
        shape = (draws.stop - draws.start, *columns.X.shape)
        return self.arrays.columns[: prod(shape)].reshape(shape)

    def _gates(self, draws: slice, columns: Columns) -> tuple[Any, ...]:
        """What kernels that read gates take first."""
        sizes = (draws.stop - draws.start, draws.start, self.per_fit, *columns.X.shape)
        return columns.X, columns.mu, columns.eps[draws], float(self.objective.gate_sigma), *sizes

    def product(self, transposed: bool, A: Array, B: Array, out: Array) -> None:
        """out = A' B or A B for stacks of matrices; a stack of one A serves every B."""
        if self.captured:
            self._own_product(transposed, A, B, 1, out)
        elif B.shape[1] == 0:
            out[...] = 0
        elif len(out) == 1:  # one product takes A' as it is, a stack of them copies it first
            self.bk.xp.dot(A[0].T if transposed else A[0], B[0], out=out[0])
        elif out.size:
            self.bk.xp.matmul(A.swapaxes(1, 2) if transposed else A, B, out=out)

    def _own_product(self, transposed: bool, A: Array, B: Array, parts: int, out: Array) -> None:
        """`product` by our own kernel, as `parts` stacks of sums, one after the other, that are to be added."""
        (batch, m, q), p = B.shape, out.shape[-2]
        tiles = parts * batch * -(-p // TILE) * -(-q // TILE)
        strides = (0 if len(A) == 1 else m * p, m * q)
        name = "product<T, true>" if transposed else "product<T, false>"
        self.launch(name, tiles, A, B, batch, p, q, m, *strides, parts, out)

    def _gram(self, Xt: Array, G: Array) -> None:
        """G = Xt' Xt of every draw."""
        sums = self.arrays.sums
        if len(sums):
            self._own_product(True, Xt, Xt, len(sums), sums)
            self.launch("add_parts<T>", blocks_for(G.size), sums, len(sums), G.size, G)
        else:
            self.product(True, Xt, Xt, G)

    def sweep(self, draws: slice) -> Array:
        """From G of some draws to M = dS/dG; S, b, degenerate and isolated on the way."""
        a, o, n = self.arrays, self.objective, self.n
        count = draws.stop - draws.start
        rows = count * n
        tiles = count * -(-n // SWEEP_TILE)
        G, T, b = a.G[:count], a.T[:count], a.b[draws]
        powers = a.powers[:, :count]
        A, At = powers[0], powers[-1]

        # D, b, K and its degrees, A, and its powers
        self.launch("diagonal<T>", blocks_for(rows), G, count, n, a.g)
        if self.rule is not None:
            neighbours = (a.kth, a.neighbour, a.largest)
            self.launch("distances<T>", rows, G, a.g, 0, rows, n, o.n_neighbors, a.D, *neighbours)
            found = (b, a.degenerate[draws], a.rows, a.weights)
            self.launch("bandwidth<T>", count, a.kth, a.largest, count, n, *self.rule, *found)
        self.launch("affinity<T>", rows, G, a.g, b, o.self_weight, 0, rows, n, A, a.deg, a.q, a.r)
        self.launch("symmetrise<T>", rows, A, a.q, count, n)
        for i in range(1, o.power):
            self.product(True, powers[i - 1], A, powers[i])

        # the score, of G or of the saturated V; G becomes H, and A^t becomes M
        V, direct, through_V = G, At, None
        if o.saturation is not None:
            V, saved_V = saturate.forward(self.bk, G, o.nu(n))
            V = self.bk.xp.ascontiguousarray(V)
            through_V = saturate.backward(self.bk, saved_V, self._direct(At))
            direct = self.bk.xp.zeros_like(At)
        self.launch("score<T>", rows, At, V, a.q, a.r, count, n, G, a.Wq, a.Wr)
        self._power_backward(powers, G, T)
        self.launch("grad_degrees<T>", tiles, T, A, a.q, a.Wq, a.Wr, count, n, a.half_ddeg)
        D = None if self.rule is None else a.D
        swept = (At, a.row_sums, a.db)
        self.launch("backward<T>", tiles, T, A, D, direct, a.q, a.r, a.half_ddeg, b, count, n, *swept)
        entries = (a.neighbour, a.rows, a.weights, b, a.db)
        scored = (a.Wr, a.q, a.deg, isolated_degree(o.self_weight, float(np.finfo(self.dtype).eps)))
        finished = (a.row_sums, a.S[draws], a.isolated[draws])
        self.launch("finish<T>", count, At, *entries, *scored, count, n, *finished)
        if through_V is not None:
            At += through_V
        return At

    def _direct(self, At: Array) -> Array:
        """dS/dV = A^t R,  R_ij = (r_i q_j + q_i r_j) / 2."""
        q, r = self.arrays.q[: len(At)], self.arrays.r[: len(At)]
        half = r[:, :, None] * q[:, None, :] * 0.5
        return At * (half + half.swapaxes(1, 2))

    def _power_backward(self, powers: Array, H: Array, T: Array) -> None:
        """T with dA = T + T', as `dufs_core.objective.ops.power.backward_half`."""
        t = len(powers)
        if t == 2:
            self.product(True, powers[0], H, T)
            return
        kept = 0.0
        for a in range(t // 2, t):
            b = t - 1 - a
            term = H
            if a:
                term = self.arrays.terms[0, : len(H)]
                self.product(True, powers[a - 1], H, term)
            if b:
                left, term = term, self.arrays.terms[1, : len(H)]
                self.product(False, left, powers[b - 1], term)
            scale = 0.5 if a == b else 1.0
            self.launch("combine<T>", blocks_for(T.size), scale, term, kept, T if kept else term, T.size, T)
            kept = 1.0


class CudaScoresEngine(Engine):
    """An engine for scores and dS/dz on the device, one gate per column; the loss is the chain's.

    Raises MemoryLimitError where the device has no memory left.
    """

    what = "steps"

    def __call__(self, bk: Backend, objective: Objective, mu: Array, eps: Array, X: Any) -> tuple[Value, Array]:
        """The loss and its gradient, on the device; the parts of Value on the host."""
        with memory_errors(self.what, X.shape, len(eps)):
            value, dmu = super().__call__(bk, objective, mu, eps, X)
        S, b, degenerate = map(bk.to_host, (value.score, value.bandwidth, value.degenerate))
        return Value(value.loss, S, b, degenerate, value.isolated), dmu
