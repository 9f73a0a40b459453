"""Where the functions are tried: plain points and awkward ones, drawn from a seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

Array = Any
BY_SIZE = "plain tiny huge mixed zeros ties one empty large"


class Point(NamedTuple):
    inputs: tuple[Array, ...]
    settings: dict[str, Array]


@dataclass(frozen=True)
class Draw:
    """Numbers of one kind."""

    rng: np.random.Generator
    kind: str

    @property
    def many(self) -> int:
        """The length of the axis that may have length 0, 1 or 25."""
        return {"one": 1, "empty": 0, "large": 25}.get(self.kind, int(self.rng.integers(2, 5)))

    def __call__(self, *shape: int) -> Array:
        x, scale = self.rng.standard_normal(shape), {"tiny": 1e-12, "huge": 1e12, "extreme": 1e3}.get(self.kind, 1.0)
        if self.kind == "mixed":
            return x * 10.0 ** self.rng.uniform(-6, 6, shape)
        if self.kind == "zeros":
            return x * (self.rng.random(shape) < 0.5)
        return np.round(x) if self.kind == "ties" else x * scale

    def index(self, below: int, count: int) -> Array:
        return self.rng.integers(0, below, count)

    def beside(self, kinks: Array, *shape: int) -> Array:
        """Numbers at, or so far above, or below some of the kinks."""
        x = self.rng.choice(kinks, shape)
        return x + self.rng.choice([-1, 1], shape) * {"kink": 0.0, "near": 1e-5, "nearer": 1e-10}[self.kind]

    def matrix(self, n: int) -> Array:
        """An invertible matrix; singular values from 1 to 1e-2 or 1e-5 where it is to be nearly singular."""
        U, _, V = np.linalg.svd(self.rng.standard_normal((n, n)))
        smallest = 10.0 ** -self.rng.uniform(2, 5) if self.kind == "near-singular" and n > 1 else 0.3
        values = np.geomspace(1, smallest, n)
        return (U * values) @ V * {"tiny": 1e-12, "huge": 1e12}.get(self.kind, 1.0)


def _rows(x: Draw, columns: int = 0) -> Point:
    return Point((x(x.many, columns or (1 if x.kind == "one" else 4)),), {})


def _cross_entropy(x: Draw) -> Point:
    z = x(x.many, 4)
    return Point((z,), {"labels": x.index(4, len(z))})


def _normalised(x: Draw) -> Point:
    rows = x.many
    return Point((x(rows, 5), x.rng.standard_normal(5), x.rng.standard_normal(5)), {})


def _batch(x: Draw) -> Point:
    columns = 0 if x.kind == "empty" else 3
    return Point((x(x.many or 4, columns), x.rng.standard_normal(columns), x.rng.standard_normal(columns)), {})


def _linear(x: Draw) -> Point:
    return Point((x(x.many, 3), x(3, 2), x(2)), {})


def _convolution(x: Draw) -> Point:
    k = x(1, 1) if x.kind == "one" else x(2, 3)
    return Point((x(1, 1) if x.kind == "one" else x(4, 5), k), {})


def _attention(x: Draw) -> Point:
    return Point((x(x.many, 2), x(3, 2), x(3, 2)), {})


def _solve(x: Draw) -> Point:
    A = x.matrix(x.many)
    return Point((A @ A.T, x(len(A))), {})


def _triangular(x: Draw) -> Point:
    L = np.tril(x.matrix(x.many))
    d = np.diagonal(L)
    return Point((L + np.diag(np.copysign(0.1 * np.abs(L).max(initial=0.0), d)), x(len(L))), {})


def _matrix(x: Draw) -> Point:
    return Point((x.matrix(x.many),), {})


def _matrices(x: Draw) -> Point:
    n = x.many
    return Point((np.stack([x.matrix(n or 2) for _ in range(2)])[: None if n else 0],), {})


def _clip(x: Draw) -> Point:
    near = x.kind in ("kink", "near", "nearer")
    return Point((x.beside([-1.0, 1.0], 3, 2) if near else x(x.many, 4),), {})


def _pairs(x: Draw) -> Point:
    a = x(x.many, 3)
    return Point((a, 2 * a + 1e-6 * x.rng.standard_normal(a.shape) if x.kind == "parallel" else x(*a.shape)), {})


def _scatter(x: Draw) -> Point:
    values = x(2 * x.many)
    return Point((values,), {"index": x.index(3, len(values))})


def _gather(x: Draw) -> Point:
    return Point((x(4),), {"index": x.index(3, 2 * x.many)})


def _interpolate(x: Draw) -> Point:
    v = x(5)
    near = x.kind in ("kink", "near", "nearer")
    return Point((x.beside([1.0, 2.0, 3.0], 4) if near else x.rng.uniform(0, 4, x.many), v), {})


def _power(x: Draw) -> Point:
    base = np.abs(x(x.many))
    return Point((np.where(base > 0, base, 1), 2 * x.rng.standard_normal(base.shape) * (x.kind != "zeros")), {})


def _polar(x: Draw) -> Point:
    r = x(x.many)
    return Point((r, x(len(r))), {})


_DRAWS: dict[str, tuple[Callable[[Draw], Point], str]] = {
    "softmax_cross_entropy": (_cross_entropy, f"{BY_SIZE} extreme"),
    "log_sum_exp": (_rows, f"{BY_SIZE} extreme"),
    "layer_norm": (_normalised, BY_SIZE),
    "batch_norm": (_batch, BY_SIZE),
    "linear": (_linear, BY_SIZE),
    "convolution": (_convolution, "plain tiny huge mixed zeros ties one"),
    "attention": (_attention, f"{BY_SIZE} extreme"),
    "cholesky_solve": (_solve, "plain tiny huge near-singular one empty"),
    "triangular_solve": (_triangular, "plain tiny huge near-singular one empty"),
    "inverse": (_matrix, "plain tiny huge near-singular one empty"),
    "log_determinant": (_matrices, "plain tiny huge near-singular one empty"),
    "sort": (_rows, BY_SIZE),
    "clip": (_clip, f"{BY_SIZE} kink near nearer"),
    "max_pool": (partial(_rows, columns=6), BY_SIZE),
    "norm": (_rows, BY_SIZE),
    "cosine_similarity": (_pairs, "plain tiny huge mixed one empty large parallel"),
    "scatter_add": (_scatter, BY_SIZE),
    "gather": (_gather, BY_SIZE),
    "cumulative_product": (_rows, BY_SIZE),
    "fft_magnitude": (partial(_rows, columns=6), BY_SIZE),
    "interpolate": (_interpolate, f"{BY_SIZE} kink near nearer"),
    "gelu": (_rows, f"{BY_SIZE} extreme"),
    "softplus": (_rows, f"{BY_SIZE} extreme"),
    "huber": (_clip, f"{BY_SIZE} kink near nearer"),
    "power": (_power, BY_SIZE),
    "polar": (_polar, BY_SIZE),
}
NAMES = tuple(_DRAWS)


def kinds(name: str) -> tuple[str, ...]:
    return tuple(_DRAWS[name][1].split())


def point(name: str, kind: str, seed: int) -> Point:
    return _DRAWS[name][0](Draw(np.random.default_rng([crc32(f"{name} {kind}".encode()), seed]), kind))
