"""The CUDA kernels: their sources, their names, and how one is compiled (lazily, by NVRTC through CuPy) and launched.

The `.cu` files beside this one hold templates over the element type. `KERNELS` names every instance; nothing else in
the library spells a C++ type.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from threading import Lock
from typing import Any

ELEMENT = {"float32": "float", "float64": "double"}  # the one map from dtype to C++ type
KERNELS = {  # file: the kernels in it, each for the element type T
    "gates.cu": ("words", "normals<T>", "gated<T>", "column_dots<T>", "loss<T>", "update<T>"),
    "distances.cu": ("diagonal<T>", "distances<T>", "bandwidth<T>"),
    "affinity.cu": ("affinity<T>", "affinity_from_data<T>", "symmetrise<T>", "score<T>", "totals<T>"),
    "product.cu": ("product<T, true>", "product<T, false>", "combine<T>"),
    "backward.cu": ("degree_terms<T>", "backward<T>", "finish<T>"),
}
OPTIONS = ("-std=c++17",)
THREADS = 256  # of every block, as in common.cuh
_MOST_BLOCKS = 1 << 20  # the loops inside stride over what a smaller grid leaves


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


class Kernels:
    """The kernels on the current device of `cupy`, compiled at their first launch for each element type."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._lock = Lock()
        self._module = cache(self._compile)
        self._function = cache(self._get)

    def _compile(self, file: str, dtype: str) -> Any:
        return self._cupy.RawModule(code=source(file), options=OPTIONS, name_expressions=instances(file, dtype))

    def _get(self, kernel: str, dtype: str) -> Any:
        with self._lock:  # two threads compile once
            file = file_of(kernel)
            position = KERNELS[file].index(kernel)
            return self._module(file, dtype).get_function(instances(file, dtype)[position])

    def launch(self, kernel: str, dtype: Any, blocks: int, *arguments: Any) -> None:
        """Queue `kernel` (as in `KERNELS`) on the current stream, on at most `blocks` blocks; no work, no launch.

        Arguments are arrays of exactly the kernel's types, C-contiguous, or NumPy scalars, or None for a null pointer.
        """
        if blocks > 0:
            function = self._function(kernel, str(dtype))
            function((min(blocks, _MOST_BLOCKS),), (THREADS,), tuple(arguments))
