"""The CUDA kernels: their sources, their names, and how one is compiled (lazily, by NVRTC through CuPy) and launched.

The `.cu` files beside this one hold templates over the element type. `KERNELS` names every instance; nothing else in
the library spells a C++ type.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from threading import Lock
from typing import Any

import numpy as np

from dufs_core.objective import rules

ELEMENT = {"float32": "float", "float64": "double"}  # the one map from dtype to C++ type
KERNELS = {  # file: the kernels in it, each for the element type T
    "gates.cu": ("normals<T>", "gated<T>", "column_dots<T>", "loss<T>", "advance<T>"),
    "distances.cu": ("diagonal<T>", "distances<T>", "affinity<T>", "grad_distances<T>", "bandwidth<T>"),
    "sweep.cu": ("symmetrise<T>", "score<T>", "grad_degrees<T>", "backward<T>", "finish<T>"),
    "product.cu": ("product<T, true>", "product<T, false>", "add_parts<T>", "combine<T>"),
    "sparse.cu": ("sparse_means<T>", "sparse_gram<T>", "sparse_dots<T>", "dense_columns<T>"),
}
FILES = {kernel: file for file, kernels in KERNELS.items() for kernel in kernels}
OPTIONS = ("-std=c++17",)
THREADS = 256  # of every block
WARPS = THREADS // 32
TILE, SWEEP_TILE = 64, 32  # rows and columns of the tiles of product.cu and sweep.cu
_MOST_BLOCKS = 1 << 20  # the loops inside stride over what a smaller grid leaves
_SCALARS: dict[type, Any] = {int: np.int64, float: np.float64, bool: np.bool_}
_NULL = np.uint64(0)  # the bytes of a null pointer: CuPy has no argument that stands for one


def constants() -> str:
    """The constants that Python and the kernels share, for the preprocessor."""
    names = ("DECAY", "BETA1", "BETA2", "EPSILON", "AUTHORS_ZERO", "ADAM", "NORMALIZED")
    values = {"THREADS": THREADS, "TILE": TILE, "SWEEP_TILE": SWEEP_TILE, "RECORD": len(rules.RECORD)}
    values |= {name.upper(): at for at, name in enumerate(rules.RECORD)}  # where a number stands in a record
    values |= {name: getattr(rules, name) for name in names}
    return "".join(f"#define {name} {value!r}\n" for name, value in values.items())


def instances(file: str, dtype: str) -> tuple[str, ...]:
    """The C++ names of the kernels of a file for one element type."""
    return tuple(name.replace("<T", f"<{ELEMENT[dtype]}") for name in KERNELS[file])


@cache
def source(file: str) -> str:
    """A file's text below the constants, its header in place, so that a compiler's cache sees every change."""
    folder = files("dufs_core.kernels")
    header, text = (folder.joinpath(name).read_text(encoding="utf-8") for name in ("common.cuh", file))
    head, rest = text.split('#include "common.cuh"\n')
    line = head.count("\n") + 2
    return f'{constants()}#line 1 "common.cuh"\n{header}#line {line} "{file}"\n{rest}'


@cache
def _name(dtype: Any) -> str:
    """str(dtype), which costs more than a launch."""
    return str(dtype)


def blocks_for(entries: int) -> int:
    """The number of blocks that give every entry a thread."""
    return -(-entries // THREADS)


def warps_for(entries: int) -> int:
    """The number of blocks that give every entry a warp."""
    return -(-entries // WARPS)


def passed(arguments: Iterable[Any]) -> tuple[Any, ...]:
    """Arguments of a launch with the types of a kernel's: int for Index, float for double, None for a null pointer."""
    return tuple(_NULL if a is None else _SCALARS[type(a)](a) if type(a) in _SCALARS else a for a in arguments)


class Kernels:
    """The kernels on the devices of `cupy`, compiled at their first launch on a device and for an element type."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._lock = Lock()
        self._functions: dict[tuple[int, str, str], Any] = {}

    def launch(self, kernel: str, dtype: Any, blocks: int, *arguments: Any) -> None:
        """Queue `kernel` (as in `KERNELS`) on the current stream, on at most `blocks` blocks; no blocks, no launch.

        Arguments are C-contiguous arrays of exactly the kernel's types, or as in `passed`.
        """
        if blocks > 0:
            self._function(kernel, _name(dtype))((min(blocks, _MOST_BLOCKS),), (THREADS,), passed(arguments))

    def _function(self, kernel: str, dtype: str) -> Any:
        device = self._cupy.cuda.runtime.getDevice()
        if (device, kernel, dtype) not in self._functions:
            with self._lock:  # two threads compile once
                if (device, kernel, dtype) not in self._functions:
                    file = FILES[kernel]
                    names = instances(file, dtype)
                    module = self._cupy.RawModule(code=source(file), options=OPTIONS, name_expressions=names)
                    for other, name in zip(KERNELS[file], names, strict=True):
                        self._functions[device, other, dtype] = module.get_function(name)
        return self._functions[device, kernel, dtype]

    def normals(self, seed: int, stream: int, step: int, n_draws: int, columns: Any, dtype: Any) -> Any:
        """`dufs_core.backend.random.normals` without rows in one launch."""
        xp, d = self._cupy, len(columns)
        columns = xp.ascontiguousarray(xp.asarray(columns, dtype=xp.uint64))
        keys = xp.asarray(np.array([seed], dtype=np.uint64)), xp.asarray(np.array([step - 1]))
        out = xp.empty((n_draws, d), dtype=dtype)
        blocks = blocks_for(-(-n_draws // 4) * d)
        self.launch("normals<T>", out.dtype, blocks, columns, *keys, stream, 1, n_draws, d, False, out)
        return out
