"""The CUDA kernels: their sources, their names, and how one is compiled (lazily, by NVRTC through CuPy) and launched.

The `.cu` files beside this one hold templates over the element type. `KERNELS` names every instance; nothing else in
the library spells a C++ type.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from math import prod
from threading import Lock
from typing import Any

import numpy as np

ELEMENT = {"float32": "float", "float64": "double"}  # the one map from dtype to C++ type
KERNELS = {  # file: the kernels in it, each for the element type T
    "gates.cu": (
        "words",
        "normals<T>",
        "gate_noise<T>",
        "gated<T>",
        "column_dots<T>",
        "loss<T>",
        "update<T>",
        "record<T>",
    ),
    "distances.cu": ("diagonal<T>", "distances<T>", "bandwidth<T>"),
    "affinity.cu": ("affinity<T>", "affinity_from_data<T>", "symmetrise<T>", "score<T>", "totals<T>"),
    "product.cu": ("product<T, true>", "product<T, false>", "add_parts<T>", "combine<T>"),
    "backward.cu": ("degree_terms<T>", "backward<T>", "finish<T>"),
    "sparse.cu": ("sparse_means<T>", "sparse_gram<T>", "sparse_dots<T>", "written_out<T>"),
    "streaming.cu": ("nearest<T>", "degrees<T>", "walk<T>", "pull<T>"),
    "streaming_rows.cu": ("norms<T>", "tile_nearest<T>", "tile_affinity<T>", "tile_pull<T>"),
    "streaming_terms.cu": ("gated_columns<T>", "divided<T>", "row_terms<T>", "summary<T>", "gate_dots<T>"),
}
OPTIONS = ("-std=c++17",)
THREADS = 256  # of every block, as in common.cuh
_MOST_BLOCKS = 1 << 20  # the loops inside stride over what a smaller grid leaves
_NULL = np.uint64(0)  # the bytes of a null pointer: CuPy has no argument that stands for one
RULES = {"sgd": 0, "adam": 1, "normalized": 2}  # as in gates.cu


def instances(file: str, dtype: str) -> tuple[str, ...]:
    """The C++ names of the kernels of a file for one element type."""
    return tuple(name.replace("<T", f"<{ELEMENT[dtype]}") for name in KERNELS[file])


def source(file: str) -> str:
    """A file's text with its headers in their place, so that a compiler's cache sees every change."""
    folder = files("dufs_core.kernels")
    lines = []
    for number, line in enumerate(folder.joinpath(file).read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("#include"):
            header = line.split('"')[1]
            lines += [f'#line 1 "{header}"', source(header), f'#line {number + 1} "{file}"']
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def file_of(kernel: str) -> str:
    """The file that holds a kernel, given as in `KERNELS`. Raises KeyError for an unknown name."""
    for file, names in KERNELS.items():
        if kernel in names:
            return file
    raise KeyError(kernel)


@cache
def _name(dtype: Any) -> str:
    """str(dtype), which costs more than a launch."""
    return str(dtype)


def blocks_for(entries: int) -> int:
    """The number of blocks that give every entry a thread."""
    return -(-entries // THREADS)


class Kernels:
    """The kernels on the devices of `cupy`, compiled at their first launch on a device and for an element type."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._lock = Lock()
        self._modules: dict[tuple[int, str, str], Any] = {}
        self._functions: dict[tuple[int, str, str], Any] = {}

    def launch(self, kernel: str, dtype: Any, blocks: int, *arguments: Any) -> None:
        """Queue `kernel` (as in `KERNELS`) on the current stream, on at most `blocks` blocks; no blocks, no launch.

        Arguments are C-contiguous arrays of exactly the kernel's types, NumPy scalars, or None for a null pointer.
        """
        if blocks > 0:
            passed = tuple(_NULL if a is None else a for a in arguments)
            self._function(kernel, _name(dtype))((min(blocks, _MOST_BLOCKS),), (THREADS,), passed)

    def _function(self, kernel: str, dtype: str) -> Any:
        device = self._cupy.cuda.runtime.getDevice()
        found = self._functions.get((device, kernel, dtype))
        if found is None:
            file = file_of(kernel)
            names = instances(file, dtype)
            with self._lock:  # two threads compile once
                module = self._modules.get((device, file, dtype))
                if module is None:
                    module = self._cupy.RawModule(code=source(file), options=OPTIONS, name_expressions=names)
                    self._modules[device, file, dtype] = module
                found = module.get_function(names[KERNELS[file].index(kernel)])
            self._functions[device, kernel, dtype] = found
        return found

    def words(self, seed: int, stream: int, step: int, draw: Any, row: Any, column: Any) -> Any:
        """`dufs_core.backend.random.words` in one launch."""
        xp = self._cupy
        counters = xp.broadcast_arrays(*(xp.asarray(c, dtype=xp.uint64) for c in (draw, row, column)))
        shape = counters[0].shape
        out = xp.empty(shape, dtype=xp.uint64)
        count = prod(shape)
        self.launch(
            "words", "float64", blocks_for(count), *(xp.ascontiguousarray(c) for c in counters), np.int64(count),
            *map(np.uint64, (seed, stream, step)), out,
        )  # fmt: skip
        return out

    def normals(
        self, seed: int, stream: int, step: int, n_draws: int, rows: Any | None, columns: Any, dtype: Any
    ) -> Any:
        """`dufs_core.backend.random.normals` in one launch."""
        xp = self._cupy
        columns = xp.ascontiguousarray(xp.asarray(columns, dtype=xp.uint64))
        if rows is not None:
            rows = xp.ascontiguousarray(xp.asarray(rows, dtype=xp.uint64))
        shape = (n_draws, len(columns)) if rows is None else (n_draws, len(rows), len(columns))
        out = xp.empty(shape, dtype=dtype)
        entries = prod(shape[1:])
        self.launch(
            "normals<T>", out.dtype, blocks_for(-(-n_draws // 4) * entries), rows, columns, np.int64(n_draws),
            np.int64(1 if rows is None else len(rows)), np.int64(len(columns)),
            *map(np.uint64, (seed, stream, step)), out,
        )  # fmt: skip
        return out

    def update(
        self, rule: str, grad: Any, params: Any, first: Any | None, second: Any | None, rate: float, momentum: float,
        t: int,
    ) -> tuple[Any, Any | None, Any | None]:  # fmt: skip
        """Step t of a rule of `dufs_core.training.optimizers`: the next params, first and second (float64), in
        one launch."""
        xp = self._cupy
        d = len(params)

        def next_of(before: Any | None, size: int) -> Any:
            return xp.zeros(size, dtype=xp.float64) if before is None else before.copy()

        params = params.copy()
        first = next_of(first, d) if rule == "adam" or momentum else None
        second = next_of(second, d if rule == "adam" else 1) if rule != "sgd" else None
        clock = xp.full(1, t - 1, dtype=xp.int64)
        self.launch(
            "update<T>", params.dtype, 1, grad, clock, xp.zeros(1, dtype=xp.int64), np.int64(1), np.int64(d),
            np.int32(RULES[rule]), np.float64(rate), np.float64(momentum), params, first, second,
        )  # fmt: skip
        return params, first, second
