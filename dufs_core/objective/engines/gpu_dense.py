"""The Gram form on a CUDA device: fused kernels (`dufs_core.kernels.cuda`) with products between them.

A step over few entries is all launches: it runs with our own product kernel and is captured once in a CUDA graph that
replays it. A step over many is all arithmetic: its products are cuBLAS's, over the open columns alone. (CuPy does not
let cuBLAS be captured.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dufs_core.backend import Array, Backend
from dufs_core.errors import MemoryLimitError
from dufs_core.kernels.cuda import blocks_for
from dufs_core.objective.chain import Objective, Value
from dufs_core.objective.ops.bandwidth import check_n_neighbors, noise_level, quantile_of
from dufs_core.objective.ops.normalise import lone_degree
from dufs_core.objective.protocol import Engine, RunSpec, Steps, StepSize

# Estimates: the first two from steps timed on an H200 when they were 2^28 and 0 (bench/results/gpu.json), the others
# from operation counts. None of them was varied on a device.
CAPTURED_WORK = 1 << 31  # multiply-adds of a step: below it launches cost more than arithmetic
SELECTED_WORK = 1 << 33  # multiply-adds of a product: below it, finding the open columns costs more than it saves
ELEMENTS_TOGETHER = 1 << 28  # entries of the stacked matrices and gated data: more draws are taken in turns
FUSED_COLUMNS = 64  # up to so many, distances are formed in registers where the bandwidth is known
_PLANS = 2  # near-equal minibatches come in two sizes

_TILE, _BACKWARD_TILE = 64, 32  # as in tiles.cuh and backward.cu
_BUSY = 128  # blocks that keep a device busy


def is_captured(n: int, d: int, draws: int) -> bool:
    """Whether a step of this size runs as a CUDA graph."""
    return draws * n * n * (2 * d + 2 * n) <= CAPTURED_WORK


def is_stacked_captured(n: int, d: int, draws: int, fits: int) -> bool:
    """Whether a step of the draws of several fits is captured: each alone would be, and all together have room."""
    return is_captured(n, d, draws // fits) and draws * n * max(n, d) <= ELEMENTS_TOGETHER


def parts_of_gram(n: int, d: int, draws: int) -> int:
    """In how many parts our own kernel sums the Gram matrices of one fit: enough blocks, of 64 terms or more each.

    It depends on one fit's draws alone, so that a fit in a population gets the sums that it has by itself.
    """
    return max(1, min(_BUSY // (draws * (-(-n // _TILE)) ** 2), d // _TILE, d // n))


def draws_together(n: int, d: int, draws: int) -> int:
    """How many draws are evaluated at once."""
    return max(1, min(draws, ELEMENTS_TOGETHER // (n * max(n, d))))


def n_matrices(power: int, with_distances: bool) -> int:
    """How many (draws, n, n) arrays a step keeps: G, A, T, the powers of A, the distances, and products on the way."""
    return 3 + with_distances + (power - 1) + (2 if power > 2 else 0)


def entries_needed(size: StepSize) -> int:
    """Array entries that a step allocates beside the data, with every gate open."""
    n, d, draws = size.n, size.d, size.draws
    fused = size.fixed_bandwidth and 0 < d <= FUSED_COLUMNS
    captured = is_stacked_captured(n, d, draws, size.fits)
    together = draws if captured else draws_together(n, d, draws)
    kept = together * (n_matrices(size.power, not fused) * n * n + (1 + size.per_sample) * n * d) + n * d
    if size.per_sample:
        kept += 2 * draws * n * d  # the noise, given and kept
    parts = parts_of_gram(n, d, draws // size.fits) if captured else 1
    if parts > 1:
        kept += parts * together * n * n
    if not captured:  # the open and the undecided columns, and the copies that a product makes of its operands
        kept += together * (n * n + n * d) + n * d * (2 + (3 * draws if size.per_sample else 0))
    return kept


class CudaEngine(Engine):
    """evaluate(bk, objective, mu, eps, X) for one fit on the device that X lives on, on the current stream.

    Arrays are kept from step to step. The result does not depend on whether a graph could be captured.
    """

    name = "cuda"
    keeps_arrays = True

    def __init__(self) -> None:
        self._plans: dict[tuple[Any, ...], Plan] = {}

    def bytes_needed(self, size: StepSize) -> int:
        """As `Engine.bytes_needed`."""
        return entries_needed(size) * size.itemsize

    def __call__(self, bk: Backend, objective: Objective, mu: Array, eps: Array, X: Array) -> tuple[Value, Array]:
        key = (X.shape, eps.shape, str(X.dtype), objective, bk.xp.cuda.runtime.getDevice())
        plan = self._plans.get(key)
        if plan is None:
            while len(self._plans) >= _PLANS:
                del self._plans[next(iter(self._plans))]
            plan = self._plans[key] = new_plan(bk, [objective], X, eps.shape)
        return plan.evaluate(mu, eps, X)

    def steps(self, bk: Backend, specs: Sequence[RunSpec], mu: Array) -> Steps | None:
        """Whole steps of one or several runs on the device; None with one gate per sample (noise drawn outside)."""
        from dufs_core.objective.engines.gpu_steps import CudaSteps

        return None if specs[0].schedule.gate_noise == "sample" else CudaSteps(bk, specs, mu)


def new_plan(bk: Backend, objectives: Sequence[Objective], X: Array, eps_shape: tuple[int, ...]) -> Plan:
    """A plan. Raises MemoryLimitError where the device has no memory left for it."""
    try:
        return Plan(bk, objectives, X.shape, eps_shape, X.dtype)
    except MemoryError as error:
        n, d = X.shape
        fits = f"{len(objectives):,} fits at once" if len(objectives) > 1 else "steps"
        raise MemoryLimitError(
            f"The device has no memory left for {fits} over {n:,} rows and {d:,} columns with {eps_shape[0]} draws "
            f"({str(error).strip().rstrip('.')}): set batch_size to fewer rows than {n:,}, fewer n_draws, or free "
            f"what else is on the device"
        ) from error


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


class Plan:
    """The arrays of one step, and the launches over them, for one shape of the problem.

    Several fits at once, which differ in lam alone, share the data: mu (fits, d), eps (fits * R, d) or, for one fit,
    (R, n, d). Their draws are one stack of matrices. With d = 0, G is the caller's: `sweep` needs nothing else.
    """

    def __init__(
        self, bk: Backend, objectives: Sequence[Objective], shape: tuple[int, int], eps_shape: tuple[int, ...],
        dtype: Any,
    ) -> None:  # fmt: skip
        self.bk, self.objective, self.dtype = bk, objectives[0], dtype
        objective = self.objective
        self.fits = F = len(objectives)
        self.n, self.d = n, d = shape
        self.R = R = eps_shape[0]
        self.per_fit = R // F
        self.per_sample = len(eps_shape) == 3
        rule = objective.bandwidth
        self.fixed = not isinstance(rule, str)
        self.k = 1 if self.fixed else objective.n_neighbors
        check_n_neighbors(self.k, n)
        self.captured = is_stacked_captured(n, d, R, F)
        self.together = r = R if self.captured else draws_together(n, d, R)
        self.whole = self.captured or R * n * n * d <= SELECTED_WORK  # all columns take part in every step
        self.parts = parts_of_gram(n, d, self.per_fit) if self.captured else 1
        self.replay = Replay(bk, self.captured)
        self._loaded: Array | None = None  # the data that X holds, kept alive so that its identity means something

        xp, f8 = bk.xp, bk.xp.float64
        self.fused = self.fixed and 0 < d <= FUSED_COLUMNS
        self.X = xp.empty((d, n), dtype=dtype)
        self.mu, self.eps = xp.empty((F, d), dtype=dtype), xp.empty(eps_shape, dtype=dtype)
        self.lam = xp.asarray(np.array([np.nan if o.lam is None else o.lam for o in objectives], dtype=np.float64))
        self.columns = xp.empty(r * d * n, dtype=dtype)  # the gated data
        # M X in the same place, M Xt (one gate a sample) beside them
        self.moved = xp.empty(r * d * n, dtype=dtype) if self.per_sample else self.columns
        matrices = [xp.empty((r, n, n), dtype=dtype) for _ in range(n_matrices(objective.power, not self.fused))]
        self.G, self.T, *rest = matrices
        self.powers, rest = rest[: objective.power], rest[objective.power :]
        self.D = None if self.fused else rest.pop()
        self.terms = rest
        self.g, self.kth, self.largest, self.q, self.r, self.share = (xp.empty((r, n), dtype=dtype) for _ in range(6))
        self.deg, self.Wq, self.Wr, self.row_sums = (xp.empty((r, n), dtype=f8) for _ in range(4))
        self.sums = xp.empty((self.parts, r, n, n), dtype=dtype) if self.parts > 1 else None
        self.db = xp.empty((r, -(-n // _BACKWARD_TILE)), dtype=f8)
        self.rows, self.weights = xp.zeros((r, 2), dtype=xp.int64), xp.zeros((r, 2), dtype=f8)
        self.dots, self.isolated = xp.zeros((R, d), dtype=f8), xp.empty(R, dtype=f8)
        self.dmu = xp.empty((F, d), dtype=dtype)
        self.report = xp.zeros(2 * F + 3 * R, dtype=f8)  # one transfer to the host
        self.loss, self.alone = self.report[:F], self.report[F : 2 * F]
        self.S, self.b, self.degenerate = (self.report[2 * F + i * R : 2 * F + (i + 1) * R] for i in range(3))
        if self.fixed:
            self.b[...] = float(rule)

    def load(self, X: Array) -> None:
        """Take over the data of the coming steps."""
        if X is not self._loaded:
            self.X[...] = X.T
            self._loaded = X

    def evaluate(self, mu: Array, eps: Array, X: Array) -> tuple[Value, Array]:
        """The loss of one fit and its gradient, a fresh array on the device; the parts of Value on the host."""
        self.mu[0] = mu
        self.eps[...] = eps
        self.load(X)
        self.replay(self.run)
        dmu, host, R = self.dmu[0].copy(), self.bk.to_host(self.report), self.R
        S, b, degenerate = (host[2 + i * R : 2 + (i + 1) * R] for i in range(3))
        return Value(float(host[0]), S, b, degenerate != 0, float(host[1])), dmu

    # --- launches: what they compute is said in the .cu files --------------------------------------------------------

    def _launch(self, kernel: str, blocks: int, *arguments: Any) -> None:
        self.bk.kernels.launch(kernel, self.dtype, blocks, *arguments)

    def run(self) -> None:
        """Queue everything from mu and eps to loss, alone and dmu."""
        if self.whole:
            X_open, mu_open, eps_open, wanted = self.X, self.mu, self.eps, None
            X_wanted, mu_wanted, eps_wanted = X_open, mu_open, eps_open
        else:
            xp = self.bk.xp
            is_open, is_wanted = self._open_and_undecided()
            X_open, mu_open, eps_open = self._some(xp.flatnonzero(is_open))
            wanted = xp.flatnonzero(is_wanted)
            X_wanted, mu_wanted, eps_wanted = self._some(wanted)
            self.dots[...] = 0
        for start in range(0, self.R, self.together):
            draws = slice(start, min(start + self.together, self.R))
            r = draws.stop - draws.start
            Xt = self._gated(draws, X_open, mu_open, eps_open)
            self._gram(Xt, self.G[:r])
            M = self.sweep(r, draws, Xt)
            d = len(X_wanted)
            left = X_wanted[None]
            if self.per_sample:
                left = Xt if wanted is None else self._gated(draws, X_wanted, mu_wanted, eps_wanted)
            Y = self.moved[: r * d * self.n].reshape(r, d, self.n)
            self.product(False, left, M, Y)
            dots = self.dots[draws] if wanted is None else self.bk.xp.empty((r, d), dtype=self.dots.dtype)
            self._launch(
                "column_dots<T>", -(-r * d // 8), X_wanted, Y, mu_wanted, eps_wanted[draws], *self._gate(draws, d), dots
            )
            if wanted is not None:
                self.dots[draws, wanted] = dots
        o = self.objective
        sizes = map(np.int64, (self.fits, self.per_fit, self.d, self.n))
        self._launch(
            "loss<T>", self.fits, self.S, self.isolated, self.dots, self.mu, self.lam, *sizes,
            np.float64(o.gate_sigma), np.float64(o.delta), self.dmu, self.loss, self.alone,
        )  # fmt: skip

    def _open_and_undecided(self) -> tuple[Array, Array]:
        """Whether a column is open, and whether its gate is undecided, in any draw of any fit: bool (d,)."""
        eps = self.eps.reshape(self.fits, -1, self.d)
        u = self.mu[:, None, :] + self.dtype.type(self.objective.gate_sigma) * eps
        return (u > 0).any(axis=(0, 1)), ((u > 0) & (u < 1)).any(axis=(0, 1))

    def _some(self, columns: Array) -> tuple[Array, Array, Array]:
        """Data, mu and noise of some columns."""
        contiguous = self.bk.xp.ascontiguousarray
        return self.X[columns], contiguous(self.mu[:, columns]), contiguous(self.eps[..., columns])

    def _gate(self, draws: slice, d: int) -> tuple[Any, ...]:
        """What kernels need to know of the gates of some draws on d columns."""
        sizes = map(np.int64, (draws.stop - draws.start, draws.start, self.per_fit, d, self.n))
        return np.float64(self.objective.gate_sigma), np.bool_(self.per_sample), *sizes

    def _gated(self, draws: slice, X: Array, mu: Array, eps: Array) -> Array:
        (d, n), r = X.shape, draws.stop - draws.start
        Xt = self.columns[: r * d * n].reshape(r, d, n)
        self._launch("gated<T>", blocks_for(r * d * n), X, mu, eps[draws], *self._gate(draws, d), Xt)
        return Xt

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
        tiles = parts * batch * -(-p // _TILE) * -(-q // _TILE)
        strides = (0 if len(A) == 1 else m * p, m * q)
        name = "product<T, true>" if transposed else "product<T, false>"
        self._launch(name, tiles, A, B, *map(np.int64, (batch, p, q, m, *strides, parts)), out)

    def _gram(self, Xt: Array, G: Array) -> None:
        """G = Xt' Xt of every draw."""
        if self.sums is None:
            self.product(True, Xt, Xt, G)
        else:
            self._own_product(True, Xt, Xt, self.parts, self.sums)
            self._launch("add_parts<T>", blocks_for(G.size), self.sums, np.int64(self.parts), np.int64(G.size), G)

    def sweep(self, r: int, draws: slice, Xt: Array) -> Array:
        """From G and the gated data of some draws to M = dS/dG; S, b, degenerate and isolated on the way."""
        n = self.n
        size = (np.int64(r), np.int64(n))
        rows, tiles = r * n, r * -(-n // _BACKWARD_TILE)
        G, A, At, T, b = self.G[:r], self.powers[0][:r], self.powers[-1][:r], self.T[:r], self.b[draws]
        D, own = None if self.D is None else self.D[:r], np.float64(self.objective.self_weight)
        if D is None:
            self._launch(
                "affinity_from_data<T>", r * -(-n // _TILE), Xt, b, own, np.int64(r), np.int64(Xt.shape[1]),
                np.int64(n), A, self.deg, self.q, self.r,
            )  # fmt: skip
        else:
            self._launch("diagonal<T>", blocks_for(rows), G, *size, self.g)
            self._launch("distances<T>", rows, G, self.g, *size, np.int64(self.k), D, self.kth, self.largest)
            if not self.fixed:
                self._bandwidth(r, draws)
            self._launch("affinity<T>", rows, D, b, own, *size, A, self.deg, self.q, self.r)
        self._launch("symmetrise<T>", rows, A, self.q, *size)
        for lower, higher in zip(self.powers, self.powers[1:], strict=False):
            self.product(True, lower[:r], A, higher[:r])

        H = G
        self._launch("score<T>", rows, At, G, self.q, self.r, *size, H, self.Wq, self.Wr)
        alone = np.float64(lone_degree(self.objective.self_weight, float(np.finfo(self.dtype).eps)))
        self._launch("totals<T>", r, self.Wr, self.q, self.deg, alone, *size, self.S[draws], self.isolated[draws])
        self._power_backward(r, H, T)
        self._launch("degree_terms<T>", tiles, T, A, self.q, self.Wq, self.Wr, *size, self.share)
        M = At
        self._launch(
            "backward<T>", tiles, T, A, None if self.fixed else D, At, self.q, self.r, self.share, b, *size, M,
            self.row_sums, self.db,
        )  # fmt: skip
        self._launch(
            "finish<T>", r, M, D, self.kth, self.rows, self.weights, b, self.db, *size, self.row_sums
        )  # fmt: skip
        return M

    def _bandwidth(self, r: int, draws: slice) -> None:
        o, n = self.objective, self.n
        position = quantile_of(str(o.bandwidth)) * (n - 1)
        self._launch(
            "bandwidth<T>", r, self.kth, self.largest, np.int64(r), np.int64(n), np.int64(int(position)),
            np.float64(position - int(position)), np.float64(o.bandwidth_factor), np.bool_(o.degenerate_rule == "one"),
            np.bool_(o.bandwidth_gradient), *map(np.float64, noise_level(np.finfo(self.dtype))), self.b[draws],
            self.degenerate[draws], self.rows, self.weights,
        )  # fmt: skip

    def _power_backward(self, r: int, H: Array, T: Array) -> None:
        """T with dA = T + T', as `dufs_core.objective.ops.power.backward_half`."""
        t = self.objective.power
        if t == 2:
            self.product(True, self.powers[0][:r], H, T)
            return
        first = True
        for a in range(t // 2, t):
            b = t - 1 - a
            if a < b:
                continue
            term, scale = H, np.float64(0.5 if a == b else 1.0)
            if a:
                term = self.terms[0][:r]
                self.product(True, self.powers[a - 1][:r], H, term)
            if b:
                self.product(False, term, self.powers[b - 1][:r], self.terms[1][:r])
                term = self.terms[1][:r]
            kept = np.float64(0.0 if first else 1.0)
            self._launch("combine<T>", blocks_for(T.size), scale, term, kept, term if first else T, np.int64(T.size), T)
            first = False
