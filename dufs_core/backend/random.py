"""Counter-based random numbers: every draw is a pure function of where it is used.

Philox-4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011) turns a 128-bit
counter and a 64-bit key, the seed, into four independent 32-bit words. The counter says which number is wanted:

    word 0: column       word 1: row, or 0 where rows do not matter
    word 2: step         word 3: stream (4 bits, what the number is for) and draw // 4 (28 bits)

so draw r of column j at step s is the same number whatever else is drawn, before or after, on whatever machine:
appending a column changes no other column's draws, and a resumed run needs no generator state.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

import numpy as np

from dufs_core.backend.threads import mapped
from dufs_core.backend.types import Array, Backend

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIXING = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_DRAWS_PER_COUNTER = 4
MOST_ROWS = 512  # of `orders`
WORDS = 1 << 17  # drawn at a time: temporaries stay in the cache

Stream = IntEnum(  # what a random number is for; streams never overlap
    "Stream", "GATES SHUFFLE INITIAL_MU PERMUTATION RESTART PARTITION LOGITS DECODER GUMBEL DECOYS", start=0
)


def philox(bk: Backend, counter: tuple[Any, Any, Any, Any], seed: int) -> tuple[Array, Array, Array, Array]:
    """Four 32-bit words, as uint64 arrays, from a counter of four integer arrays, broadcast together, and a seed."""
    xp = bk.xp
    c0, c1, c2, c3 = (xp.asarray(c, dtype=xp.uint64) for c in counter)
    k0, k1 = seed & _MASK, (seed >> 32) & _MASK
    mask, shift = xp.uint64(_MASK), xp.uint64(32)
    m0, m1 = (xp.uint64(m) for m in _MULTIPLIERS)
    for _ in range(10):
        p0, p1 = m0 * c0, m1 * c2
        c0, c1, c2, c3 = (p1 >> shift) ^ c1 ^ xp.uint64(k0), p1 & mask, (p0 >> shift) ^ c3 ^ xp.uint64(k1), p0 & mask
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def words(bk: Backend, seed: int, stream: Stream, step: int, draw: Any, row: Any, column: Any) -> Array:
    """One 64-bit word for each (draw, row, column), arrays broadcast together; uint64."""
    xp = bk.xp
    tag = (int(stream) << 28) | xp.asarray(draw, dtype=xp.uint64)
    w0, w1, _, _ = philox(bk, (column, row, step, tag), seed)
    return (w0 << xp.uint64(32)) | w1


def quick_words(bk: Backend, seed: int, stream: Stream, step: int, draw: Any, row: Any, column: Any) -> Array:
    """As `words`, a tenth of the time: a SplitMix64 sequence over the rows, from a word for each (draw, column).

    Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    xp = bk.xp
    w = words(bk, seed, stream, step, draw, 0, column) + (xp.asarray(row, dtype=xp.uint64) + xp.uint64(1)) * _GOLDEN
    for shift, multiplier in _MIXING:
        w ^= w >> xp.uint64(shift)
        w *= xp.uint64(multiplier)
    w ^= w >> xp.uint64(31)
    return w


def normals(
    bk: Backend, seed: int, stream: Stream, step: int, n_draws: int, rows: Array | None, columns: Array, dtype: Any
) -> Array:
    """Standard normals of shape (n_draws, columns), or (n_draws, rows, columns) where `rows` is given.

    rows, columns: 1-d integer arrays, the positions in the data that the numbers belong to.

    Box-Muller on the four words of one counter gives draws 4i..4i+3:
    sqrt(-2 log u) cos(2 pi v) and sqrt(-2 log u) sin(2 pi v), u = (w + 1/2) / 2^32, v = w' / 2^32.
    Computed in float64, then cast, so that float32 and float64 runs replay the same stream.
    """
    if bk.kernels is not None and rows is None:
        return bk.kernels.normals(seed, int(stream), step, n_draws, columns, dtype)
    xp = bk.xp
    w0, w1, w2, w3 = _draws(bk, seed, stream, step, n_draws, rows, columns)
    out = xp.empty((len(w0), _DRAWS_PER_COUNTER, *w0.shape[1:]), dtype=dtype)
    for i, (w, v) in enumerate(((w0, w1), (w2, w3))):
        radius = xp.sqrt(-2.0 * xp.log((w.astype(xp.float64) + 0.5) * 2.0**-32))
        angle = v.astype(xp.float64) * (2.0**-32 * 2.0 * xp.pi)
        out[:, 2 * i] = radius * xp.cos(angle)
        out[:, 2 * i + 1] = radius * xp.sin(angle)
    return out.reshape(len(w0) * _DRAWS_PER_COUNTER, *w0.shape[1:])[:n_draws]


def uniforms(bk: Backend, seed: int, stream: Stream, step: int, n_draws: int, columns: Array) -> Array:
    """Uniforms in (0, 1) of shape (n_draws, columns), float64: u = (w + 1/2) / 2^32, never 0 or 1.

    columns: 1-d integer array, the positions that the numbers belong to. The words of one counter are draws 4i..4i+3.
    """
    w = bk.xp.stack(_draws(bk, seed, stream, step, n_draws, None, columns), axis=1)  # (groups, 4, columns)
    return (w.reshape(len(w) * _DRAWS_PER_COUNTER, -1)[:n_draws].astype(bk.xp.float64) + 0.5) * 2.0**-32


def _draws(bk: Backend, seed: int, stream: Stream, step: int, n_draws: int, rows: Array | None, columns: Array) -> Any:
    """The four words of every counter, each (draws / 4, [rows,] columns)."""
    xp = bk.xp
    column = xp.asarray(columns, dtype=xp.uint64)
    tag = (int(stream) << 28) | xp.arange(-(-n_draws // _DRAWS_PER_COUNTER), dtype=xp.uint64)
    if rows is None:
        return philox(bk, (column, 0, step, tag[:, None]), seed)
    return philox(bk, (column, xp.asarray(rows, dtype=xp.uint64)[:, None], step, tag[:, None, None]), seed)


def permutation(bk: Backend, seed: int, stream: Stream, step: int, n: int, draw: int = 0) -> Array:
    """A uniformly random permutation of range(n), int64 (n,), from the order of n random words."""
    xp = bk.xp
    drawn = xp.empty(n, dtype=xp.uint64)
    for start in range(0, n, WORDS):
        rows = xp.arange(start, min(start + WORDS, n))
        drawn[start : start + len(rows)] = words(bk, seed, stream, step, draw, rows, 0)
    return xp.argsort(drawn, kind="stable")


def sample(bk: Backend, seed: int, stream: Stream, step: int, n: int, most: int) -> Any:
    """All of n rows, as a slice, or, where they are more than `most`, that many drawn without replacement."""
    return slice(None) if n <= most else permutation(bk, seed, stream, step, n)[:most]


def orders(
    bk: Backend, seed: int, stream: Stream, step: int, count: int, n: int, keys: Array, threads: int = 1,
    group: Array | None = None, words: Callable[..., Array] = words,
) -> Array:  # fmt: skip
    """Independent permutations of n <= 512 rows, (count, len(keys), n) int; number c of a key is always the same.

    The order of n random numbers of 23 bits with the row in the 9 bits below them: sorting both in one word is several
    times faster than sorting indices. One random word serves two permutations. With group (n,), the number of each
    row's group (NumPy), rows are exchanged within their groups: the group stands above the random bits. words: that, or
    `quick_words`.
    """
    xp = bk.xp
    pairs = xp.arange(-(-count // 2))[:, None, None]
    row = xp.arange(n, dtype=xp.uint32)
    low = xp.uint32(MOST_ROWS - 1)

    def of(start: int) -> Array:
        drawn = words(bk, seed, stream, step, pairs, row, keys[start : start + together, None])
        drawn = xp.stack([drawn >> xp.uint64(32), drawn & xp.uint64(_MASK)], axis=1).astype(xp.uint32)
        drawn = (drawn.reshape(-1, *drawn.shape[2:])[:count] & ~low) | row
        if group is None:
            return xp.sort(drawn, axis=2) & low
        in_groups = xp.sort(drawn | above, axis=2).astype(xp.uint32) & low
        out = xp.empty_like(in_groups)
        out[:, :, places] = in_groups
        return out

    if group is not None:
        above = xp.asarray(group, dtype=xp.uint64) << xp.uint64(32)
        places = xp.argsort(xp.asarray(group), kind="stable")  # in which the sorted rows of the groups go
    together = max(1, WORDS // (n * len(pairs)) if bk.name == "numpy" else len(keys))
    return xp.concatenate(mapped(bk, of, range(0, max(1, len(keys)), together), threads), axis=1)


def derived_seed(bk: Backend, seed: int, index: int) -> int:
    """An independent 64-bit seed for run number `index` of a family of runs (restarts)."""
    return int(words(bk, seed, Stream.RESTART, 0, 0, 0, index)) if index else seed
