"""The Gram form on a CUDA device: the arrays of one step, the launches over them, and their replay as a CUDA graph.

A step over few entries is all launches: it runs with our own product kernel and is captured once in a graph. Where it
has few rows, one kernel goes from the noise to parts of G, and one from M to the columns' dots. A step over many
entries is all arithmetic: its products are cuBLAS's, over the open columns alone. (CuPy does not let cuBLAS be
captured.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from dufs_core.backend import Array, Backend
from dufs_core.errors import MemoryLimitError
from dufs_core.kernels.cuda import SHORT_ROWS, SWEEP_TILE, THREADS, TILE, WARPS, blocks_for, warps_for
from dufs_core.objective.chain import Objective, Value
from dufs_core.objective.ops.bandwidth import check_n_neighbors, noise_level, quantile_of
from dufs_core.objective.ops.normalise import isolated_degree
from dufs_core.objective.protocol import Engine, StepSize
from dufs_core.objective.rules import quantile_ranks

# Estimates: the first two from steps timed on an H200 when they were 2^28 and 0 (bench/results/gpu.json), the third
# from operation counts. None of them was varied on a device.
CAPTURED_WORK = 1 << 31  # multiply-adds of a step: below it launches cost more than arithmetic
SELECTED_WORK = 1 << 33  # multiply-adds of a product: below it, finding the open columns costs more than it saves
ELEMENTS_TOGETHER = 1 << 28  # entries of the stacked matrices and gated data: more draws are taken in turns
_PLANS = 2  # kept by an engine: near-equal minibatches come in two sizes
_BUSY = 128  # blocks that keep a device busy


def is_captured(shape: tuple[int, int], draws: int, fits: int) -> bool:
    """Whether a step is captured: the work of one fit is small, and the draws of all fits have room in one stack."""
    n, d = shape
    work = draws // fits * n * n * (2 * d + 2 * n)
    return work <= CAPTURED_WORK and draws * n * max(n, d) <= ELEMENTS_TOGETHER


def parts_of_gram(n: int, d: int, draws: int) -> int:
    """In how many parts our own kernel sums the Gram matrices of one fit: enough blocks, of 64 terms or more each.

    One fit's draws alone decide, so that a fit in a stack gets the sums that it has by itself.
    """
    return max(1, min(_BUSY // (draws * (-(-n // TILE)) ** 2), d // TILE, d // n))


def is_short(shape: tuple[int, int], draws: int, fits: int) -> bool:
    """Whether the kernels of short.cu take a step: it is captured, and a block has room for all its rows."""
    return shape[0] <= SHORT_ROWS and shape[1] > 0 and is_captured(shape, draws, fits)


def parts_of_short_gram(d: int, draws: int, fits: int) -> tuple[int, int]:
    """In how many parts short.cu sums the Gram matrices, and as how many sums it writes them.

    One fit's draws alone decide about the parts, as in `parts_of_gram`: 64 columns or more each, as many as a block has
    threads at most. Where there are many draws, their number keeps a device busy, and each is written as few sums.
    """
    parts = WARPS * max(min(d // TILE, _BUSY * fits // draws) // WARPS, -(-d // (WARPS * THREADS)), 1)
    return parts, WARPS if draws * WARPS >= _BUSY else parts


def draws_together(n: int, d: int, draws: int) -> int:
    """How many draws are evaluated at once."""
    return max(1, min(draws, ELEMENTS_TOGETHER // (n * max(n, d))))


def n_matrices(power: int, with_distances: bool) -> int:
    """How many (draws, n, n) arrays a step keeps: G, T, the powers of A, the distances, and products on the way."""
    return 2 + power + with_distances + (2 if power > 2 else 0)


def entries_needed(size: StepSize) -> int:
    """Array entries that a step allocates beside the data, with every gate open."""
    n, d, draws = size.n, size.d, size.draws
    captured = is_captured((n, d), draws, size.fits)
    together = draws if captured else draws_together(n, d, draws)
    matrices = together * n_matrices(size.power, not size.fixed_bandwidth) * n * n
    if is_short((n, d), draws, size.fits):
        return matrices + parts_of_short_gram(d, draws, size.fits)[1] * draws * n * n + n * d
    kept = matrices + together * n * d + n * d
    if not captured:  # the open and the undecided columns, and the copies that a product makes of its operands
        return kept + together * (n * n + n * d) + n * d * 2
    parts = parts_of_gram(n, d, draws // size.fits)
    return kept + (parts * together * n * n if parts > 1 else 0)


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


class BandwidthRule(NamedTuple):
    """The arguments of the kernel `bandwidth` that a step does not change."""

    low: int  # rank of the lower neighbour distance
    upper: float  # weight of the one above it
    factor: float
    degenerate_is_one: bool
    gradient: bool
    relative: float  # the noise level of distances
    absolute: float


def bandwidth_rule(objective: Objective, n: int, dtype: Any) -> BandwidthRule | None:
    """The rule of an objective for n rows; None where the bandwidth is a number. Raises ValueError on a bad k."""
    if not isinstance(objective.bandwidth, str):
        return None
    check_n_neighbors(objective.n_neighbors, n)
    low, _, upper = quantile_ranks(quantile_of(objective.bandwidth), n)
    factor, is_one = float(objective.bandwidth_factor), objective.degenerate_rule == "one"
    return BandwidthRule(low, upper, factor, is_one, objective.bandwidth_gradient, *noise_level(np.finfo(dtype)))


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
    """The arrays of one step, and the launches over them, for one shape of the problem.

    Several fits at once, which differ in lam alone, share the data: mu (fits, d), eps (R, d), R draws of all fits one
    fit after the other. Their draws are one stack of matrices. With d = 0, G is the caller's: `sweep` needs nothing
    else.
    """

    def __init__(
        self, bk: Backend, objectives: Sequence[Objective], shape: tuple[int, int], draws: int, dtype: Any
    ) -> None:
        xp, f8 = bk.xp, bk.xp.float64
        self.bk, self.objective, self.dtype = bk, objectives[0], dtype
        (n, d), F, R, t = shape, len(objectives), draws, self.objective.power
        self.n, self.d, self.R, self.fits, self.per_fit = n, d, R, F, R // F
        self.rule = bandwidth_rule(self.objective, n, dtype)
        self.captured = is_captured(shape, R, F)
        self.together = r = R if self.captured else draws_together(n, d, R)
        self.all_columns = self.captured or R * n * n * d <= SELECTED_WORK
        self.short = is_short(shape, R, F)
        self.parts = self.regions = parts_of_gram(n, d, self.per_fit) if self.captured else 1
        if self.short:
            self.parts, self.regions = parts_of_short_gram(d, R, F)
        self.replay = Replay(bk, self.captured)
        self._loaded: Array | None = None  # the data that X holds, kept alive so that its identity means something

        self.X = xp.empty((d, n), dtype=dtype)
        self.mu, self.eps = xp.empty((F, d), dtype=dtype), xp.empty((R, d), dtype=dtype)
        self.lam = xp.asarray(np.array([np.nan if o.lam is None else o.lam for o in objectives], dtype=np.float64))
        self.columns = xp.empty(0 if self.short else r * d * n, dtype=dtype)  # the gated data, later M X
        kept = n_matrices(t, self.rule is not None)
        self.G, self.T, *matrices = (xp.empty((r, n, n), dtype=dtype) for _ in range(kept))
        self.powers, self.terms = matrices[:t], matrices[t:]
        self.D = None if self.rule is None else self.terms.pop()
        self.g, self.kth, self.largest, self.q, self.r, self.half_ddeg = xp.empty((6, r, n), dtype=dtype)
        self.deg, self.Wq, self.Wr, self.row_sums = xp.empty((4, r, n), dtype=f8)
        self.sums = xp.empty((self.regions, r, n, n), dtype=dtype) if self.regions > 1 else None
        self.db = xp.empty((r, -(-n // SWEEP_TILE)), dtype=f8)
        self.neighbour = xp.empty((r, n), dtype=xp.int64)
        self.rows, self.weights = xp.zeros((r, 2), dtype=xp.int64), xp.zeros((r, 2), dtype=f8)
        self.dots, self.isolated = xp.zeros((R, d), dtype=f8), xp.empty(R, dtype=f8)
        self.dmu = xp.empty((F, d), dtype=dtype)
        self.report = xp.zeros(2 * F + 3 * R, dtype=f8)  # one transfer to the host
        self.loss, self.mean_isolated = self.report[:F], self.report[F : 2 * F]
        self.S, self.b, self.degenerate = self.report[2 * F :].reshape(3, R)
        if self.rule is None:
            self.b[...] = float(self.objective.bandwidth)

    def load(self, X: Array) -> None:
        """Take over the data of the coming steps."""
        if X is not self._loaded:
            self.X[...] = X.T
            self._loaded = X

    # --- launches: what they compute is said in the .cu files --------------------------------------------------------

    def launch(self, kernel: str, blocks: int, *arguments: Any) -> None:
        self.bk.kernels.launch(kernel, self.dtype, blocks, *arguments)

    def run(self, keys: tuple[Any, ...] | None = None) -> None:
        """Queue everything from mu and eps to loss, mean_isolated and dmu.

        keys: the columns' numbers, seeds, clock and stream by which `eps` is drawn first, in mirrored pairs.
        """
        if self.short:
            self._from_noise_to_dots(keys)
        else:
            if keys is not None:
                blocks = blocks_for(self.fits * -(-max(1, self.per_fit // 2) // 4) * self.d)
                self.launch("normals<T>", blocks, *keys, self.fits, self.per_fit, self.d, True, self.eps)
            self._from_gates_to_dots()
        o, sizes = self.objective, (self.fits, self.per_fit, self.d, self.n)
        scores = (self.S, self.isolated, self.dots, self.mu, self.lam)
        results = (self.dmu, self.loss, self.mean_isolated)
        self.launch("loss<T>", self.fits, *scores, *sizes, float(o.gate_sigma), float(o.delta), *results)

    def _from_noise_to_dots(self, keys: tuple[Any, ...] | None) -> None:
        R, sizes = self.R, (self.R, self.per_fit, self.d, self.n)
        sigma = float(self.objective.gate_sigma)
        columns = 256 // self.dtype.itemsize  # of G or of X, that a block takes
        drawn = (None, None, None, 0) if keys is None else keys
        parts = (self.parts, self.regions, self.eps, self.sums)
        blocks = self.regions * R * (SHORT_ROWS // columns)
        self.launch("short_gram<T>", blocks, self.X, self.mu, *drawn, sigma, *sizes, *parts)
        self.launch("short_sum<T>", -(-self.G.size // 32), self.sums, self.regions, R, self.n, self.G, self.g)
        M, gates = self.sweep(slice(0, R)), (self.mu, self.eps, sigma, *sizes)
        # The undecided ones of more columns fill their tiles better, where there are blocks enough.
        span = THREADS if R * blocks_for(self.d) >= 2 * _BUSY else columns
        self.launch("short_dots<T>", R * -(-self.d // span), self.X, M, *gates, span, self.dots)

    def _from_gates_to_dots(self) -> None:
        xp, wanted = self.bk.xp, None
        opened = undecided = Columns(self.X, self.mu, self.eps)
        if not self.all_columns:
            is_open, is_undecided = self._open_and_undecided()
            wanted = xp.flatnonzero(is_undecided)
            opened, undecided = self._some(xp.flatnonzero(is_open)), self._some(wanted)
            self.dots[...] = 0
        for start in range(0, self.R, self.together):
            draws = slice(start, min(start + self.together, self.R))
            Xt = self._buffer(draws, opened)
            self.launch("gated<T>", blocks_for(Xt.size), *self._gates(draws, opened), Xt)
            self._gram(Xt, self.G[: len(Xt)])
            M, MX = self.sweep(draws), self._buffer(draws, undecided)
            self.product(False, undecided.X[None], M, MX)
            dots = self.dots[draws] if wanted is None else xp.empty(MX.shape[:2], dtype=self.dots.dtype)
            X, *gates = self._gates(draws, undecided)
            self.launch("column_dots<T>", warps_for(dots.size), X, MX, *gates, dots)
            if wanted is not None:
                self.dots[draws, wanted] = dots

    def _open_and_undecided(self) -> tuple[Array, Array]:
        """Whether a column is open, and whether its gate is undecided, in any draw of any fit: bool (d,)."""
        eps = self.eps.reshape(self.fits, -1, self.d)
        u = self.mu[:, None, :] + self.dtype.type(self.objective.gate_sigma) * eps
        return (u > 0).any(axis=(0, 1)), ((u > 0) & (u < 1)).any(axis=(0, 1))

    def _some(self, columns: Array) -> Columns:
        contiguous = self.bk.xp.ascontiguousarray
        return Columns(self.X[columns], contiguous(self.mu[:, columns]), contiguous(self.eps[:, columns]))

    def _buffer(self, draws: slice, columns: Columns) -> Array:
        """Room for these columns of these draws, (draws, columns, n)."""
        shape = (draws.stop - draws.start, *columns.X.shape)
        return self.columns[: shape[0] * shape[1] * shape[2]].reshape(shape)

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
        if self.sums is None:
            self.product(True, Xt, Xt, G)
        else:
            self._own_product(True, Xt, Xt, self.parts, self.sums)
            self.launch("add_parts<T>", blocks_for(G.size), self.sums, self.parts, G.size, G)

    def sweep(self, draws: slice) -> Array:
        """From G of some draws to M = dS/dG; S, b, degenerate and isolated on the way."""
        o, n, count = self.objective, self.n, draws.stop - draws.start
        size, rows, tiles = (count, n), count * n, count * -(-n // SWEEP_TILE)
        G, T, A, At, b = self.G[:count], self.T[:count], self.powers[0][:count], self.powers[-1][:count], self.b[draws]
        g, q, r, deg, Wq, Wr = self.g, self.q, self.r, self.deg, self.Wq, self.Wr
        if not self.short:  # whose sums of G give it
            self.launch("diagonal<T>", blocks_for(rows), G, *size, g)
        if self.rule is not None:
            neighbours = (self.kth, self.neighbour, self.largest)
            self.launch("distances<T>", rows, G, g, 0, rows, n, o.n_neighbors, self.D, *neighbours)
            found = (b, self.degenerate[draws], self.rows, self.weights)
            self.launch("bandwidth<T>", count, self.kth, self.largest, *size, *self.rule, *found)
        self.launch("affinity<T>", rows, G, g, b, o.self_weight, 0, rows, n, A, deg, q, r)
        self.launch("symmetrise<T>", rows, A, q, *size)
        for lower, higher in zip(self.powers, self.powers[1:], strict=False):
            self.product(True, lower[:count], A, higher[:count])

        self.launch("score<T>", rows, At, G, q, r, *size, G, Wq, Wr)  # G becomes H
        self._power_backward(count, G, T)
        self.launch("grad_degrees<T>", tiles, T, A, q, Wq, Wr, *size, self.half_ddeg)
        swept = (At, self.row_sums, self.db)  # A^t becomes M
        self.launch("backward<T>", tiles, T, A, self.D, At, q, r, self.half_ddeg, b, *size, *swept)
        entries = (self.neighbour, self.rows, self.weights)
        scored = (Wr, q, deg, isolated_degree(o.self_weight, float(np.finfo(self.dtype).eps)))
        finished = (self.row_sums, self.S[draws], self.isolated[draws])
        self.launch("finish<T>", count, At, *entries, b, self.db, *scored, *size, *finished)
        return At

    def _power_backward(self, count: int, H: Array, T: Array) -> None:
        """T with dA = T + T', as `dufs_core.objective.ops.power.backward_half`."""
        t = self.objective.power
        if t == 2:
            self.product(True, self.powers[0][:count], H, T)
            return
        kept = 0.0
        for a in range(t // 2, t):
            b = t - 1 - a
            term, scale = H, 0.5 if a == b else 1.0
            if a:
                term = self.terms[0][:count]
                self.product(True, self.powers[a - 1][:count], H, term)
            if b:
                self.product(False, term, self.powers[b - 1][:count], self.terms[1][:count])
                term = self.terms[1][:count]
            self.launch("combine<T>", blocks_for(T.size), scale, term, kept, T if kept else term, T.size, T)
            kept = 1.0


def plan_for(
    plans: dict[Any, Plan], bk: Backend, objective: Objective, shape: tuple[int, int], draws: int, dtype: Any
) -> Plan:
    """The plan among those that an engine keeps, or a new one, for which the oldest may go."""
    key = (shape, draws, str(dtype), objective, bk.xp.cuda.runtime.getDevice())
    if key not in plans:
        while len(plans) >= _PLANS:
            del plans[next(iter(plans))]
        plans[key] = Plan(bk, [objective], shape, draws, dtype)
    return plans[key]


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
