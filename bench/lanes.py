"""The vector code of the compiled kernels as plain Python, for the mutation run: one thread, LANES small.

The kernels' own source runs unchanged; only the functions that exist in compiled code alone (the intrinsics of
`dufs_core.kernels.vector`, `tile` and `barrier`) are replaced, by NumPy on arrays of LANES numbers. What several
threads would share in a call of `dufs_core.kernels.panels` is done share by share: a wrong share is a wrong result.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from dufs_core.kernels import arrays, barrier, native, noise, panels, sparse, steps, streaming, tile, vector
from dufs_core.objective.engines import cpu_dense as dense
from dufs_core.objective.engines import cpu_streaming

LANES, ROWS = 4, 2
DEPTH = 8  # two panels
GATHERED, PARTS, FEW_ROWS = 2, 2, 8  # more than 2 open columns: partial sums up to 8 rows, chunks of columns above
BLOCK, GROUP = 2, 2
MEMBERS = 2  # shares of a call
STALE = np.nan  # what the work arrays hold before a call: what another problem left there must not be read


_NUMBERS = np.arange(LANES)


def _part(array: Any, offset: int, count: int) -> Any:
    """That many numbers from `offset` on, to read or write. Raises IndexError where that leaves the array."""
    if not 0 <= offset <= array.size - count:
        raise IndexError(f"{count} numbers from {offset} on, of {array.size}")
    return array.reshape(-1)[offset : offset + count]


def load(array: Any, offset: int) -> Any:
    return _part(array, offset, LANES).copy()


def load_below(array: Any, offset: int, count: int) -> Any:
    numbers = np.zeros(LANES, array.dtype)
    count = min(LANES, count)
    numbers[:count] = _part(array, offset, count)
    return numbers


def store(array: Any, offset: int, value: Any) -> None:
    if value.dtype != array.dtype:
        raise TypeError(f"{value.dtype} numbers stored as {array.dtype}")
    _part(array, offset, LANES)[:] = value


def get(array: Any, offset: int) -> Any:
    if offset < 0:
        raise IndexError(f"number {offset}")
    return array.flat[offset]


def put(array: Any, offset: int, value: Any) -> None:
    if offset < 0:
        raise IndexError(f"number {offset}")
    array.flat[offset] = value


def transpose(X: Any, rows: Any, first: int, start: int, out: Any, offset: int) -> None:
    n = X.shape[1]
    columns = np.stack([load_below(X, get(rows, first + lane) * n + start, n - start) for lane in range(LANES)])
    _part(out, offset, LANES * LANES)[:] = columns.T.reshape(-1)


def transpose_tile(array: Any, offset: int, out: Any, to: int) -> None:
    tile = _part(array, offset, LANES * LANES).reshape(LANES, LANES)
    _part(out, to, LANES * LANES)[:] = tile.T.reshape(-1)


def spread(value: Any) -> Any:
    """A NumPy number: it stands for as many lanes as it meets."""
    return value if isinstance(value, np.generic) else np.float64(value)


def constant(array: Any, value: Any) -> Any:
    return array.dtype.type(value)


def distance(gi: Any, gj: Any, Gij: Any) -> Any:
    return np.maximum(gi + gj - 2 * Gij, Gij.dtype.type(0))


def total(value: Any) -> Any:
    return sum(value, start=value.dtype.type(0))


def widen(value: Any) -> Any:
    return value.astype(np.float64)


def in_lane(lane: int, inside: Any, outside: Any) -> Any:
    return np.where(lane == _NUMBERS, inside, outside)


def below_lane(lane: int, inside: Any, outside: Any) -> Any:
    return np.where(lane > _NUMBERS, inside, outside)


def where_positive(condition: Any, value: Any) -> Any:
    return np.where(condition > 0, value, value.dtype.type(0))


def exp_nonpositive(x: Any) -> Any:
    lowest = x.dtype.type(-87.0 if x.dtype == np.float32 else -708.0)
    return np.where(x >= lowest, np.exp(np.maximum(x, lowest)), x.dtype.type(0))


def _tile(L: Any, l0: int, R: Any, r0: int, length: int) -> Any:
    """sum over `length` rows of L' R, (ROWS, LANES): row k of each factor is LANES numbers on from row k - 1."""
    if length <= 0:
        return np.zeros((ROWS, LANES), L.dtype)
    first = l0 % LANES
    if first > LANES - ROWS:
        raise IndexError(f"a tile of {ROWS} rows from lane {first} on, of {LANES}")
    left = _part(L, l0 - first, length * LANES).reshape(length, LANES)[:, first : first + ROWS]
    return left.T @ _part(R, r0, length * LANES).reshape(length, LANES)


def tile_(L: Any, l0: int, R: Any, r0: int, C: Any, c0: int, length: int, two: bool, add: bool) -> None:
    for panel in range(1 + two):
        there = _part(C, c0 + panel * C.shape[1] * LANES, ROWS * LANES)
        if not add:
            there[:] = 0
        there += _tile(L, l0, R, r0 + panel * R.shape[1] * LANES, length).reshape(-1)


def nothing(*_: Any) -> None:
    """One thread has nobody to wait for, and there is no code to keep small."""


_FUNCTIONS = (
    load, load_below, store, get, put, transpose, transpose_tile, spread, constant, distance, total, widen, in_lane,
    below_lane, where_positive, exp_nonpositive,
)  # fmt: skip
_OTHERS = {
    "larger": np.maximum, "smaller": np.minimum, "affinity_of": exp_nonpositive, "slope_of": np.positive,
    "wait_for_all": nothing, "small_code": nothing, "tile": tile_,
}  # fmt: skip
_SIZES = {
    "LANES": LANES, "ROWS": ROWS, "DEPTH": DEPTH, "GATHERED": GATHERED, "PARTS": PARTS, "FEW_ROWS": FEW_ROWS,
    "_RUN": DEPTH, "_BLOCK": BLOCK, "PANELS": GROUP, "BLOCK": LANES, "GROUP": GROUP, "FLUSH": 4 * LANES,
}  # fmt: skip


@cache
def _is_shared(name: str) -> bool:
    return list(inspect.signature(getattr(panels, name)).parameters)[-2:] == ["part", "parts"]


class _Shared:
    """dufs_core.kernels.panels, its functions called once for each member of a team of MEMBERS."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(panels, name)

        def all_members(*args: Any) -> None:
            for member in range(MEMBERS):
                function(*args[:-2], member, MEMBERS)

        return all_members if _is_shared(name) else function


def install() -> None:
    """Put the functions and the small sizes into every module that has one of that name; spoil the work arrays."""
    replaced = {function.__name__: function for function in _FUNCTIONS} | _OTHERS | _SIZES
    for module in (arrays, vector, tile, barrier, noise, panels, steps, streaming, sparse, dense, cpu_streaming):
        for name in replaced.keys() & vars(module).keys():
            setattr(module, name, replaced[name])
    steps.panels = sparse.panels = _Shared()
    native.Kernel.__call__ = lambda kernel, *args: kernel.py_func(*args)  # type: ignore[method-assign]
    right = dense.DenseEngine.plan

    def stale(*args: Any) -> Any:
        plan = right(*args)
        for array in (part for work in plan.works for part in (*work.draw, *work.mine)):
            if array.dtype.kind == "f":
                array[:] = STALE
        return plan

    dense.DenseEngine.plan = stale  # type: ignore[method-assign]
