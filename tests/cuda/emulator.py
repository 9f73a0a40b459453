"""Builds the CUDA sources for the CPU with g++ and runs their kernels on NumPy arrays (see emulator.h)."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from enum import IntEnum
from pathlib import Path

import numpy as np

from dufs_core.kernels import cuda

THREADS = cuda.THREADS
COMPILER = shutil.which("g++")


class Order(IntEnum):
    """Which of a block's threads that can run does so next."""

    ROUNDS = 0  # one after another
    LOWEST_FIRST = 1
    HIGHEST_FIRST = 2
    SHUFFLED = 3


class KernelError(AssertionError):
    """What a GPU would not have noticed: an index outside its array, or a barrier that threads miss."""


class _Array(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_longlong), ("name", ctypes.c_char_p))


def _compile(*arguments: str | Path) -> None:
    if COMPILER is None:
        raise RuntimeError("the CUDA sources are built for the CPU by g++, which is not installed")
    flags = ["-std=c++17", "-O1", "-ffp-contract=off", "-fPIC", "-Wall", "-Werror", "-Wno-unknown-pragmas"]
    built = subprocess.run(
        [COMPILER, *flags, "-U_FORTIFY_SOURCE", *map(str, arguments)], capture_output=True, text=True
    )
    if built.returncode:
        raise RuntimeError(f"{arguments[-1]} does not compile for the CPU:\n{built.stderr[:4000]}")


def prepare(folder: Path) -> None:
    """Put emulator.h into a folder, compiled once for all the libraries that are built there."""
    header = Path(shutil.copy(Path(__file__).with_name("emulator.h"), folder))
    _compile("-Wno-unused-function", "-x", "c++-header", "-o", header.with_suffix(".h.gch"), header)


class Library:
    """The kernels of one source, as given or as in the package, for some element types.

    `folder` has been prepared (see `prepare`); the library is built in it.
    """

    def __init__(self, file: str, folder: Path, text: str | None = None, dtypes=tuple(cuda.ELEMENT)) -> None:
        text = cuda.source(file) if text is None else text
        names = sorted({name for dtype in dtypes for name in cuda.instances(file, dtype)})
        table = "".join(f'    emulator::kernel("{name}", {name}),\n' for name in names)
        stem = folder / f"{Path(file).stem}_{abs(hash((text, dtypes)))}"
        stem.with_suffix(".cpp").write_text(
            f'#include "emulator.h"\n{text}\nstd::vector<emulator::Kernel> kernels = {{\n{table}}};\n'
        )
        _compile("-shared", "-I", folder, "-o", stem.with_suffix(".so"), stem.with_suffix(".cpp"))
        self._library = ctypes.CDLL(str(stem.with_suffix(".so")))
        for function in (self._library.launch, self._library.parameter_types):
            function.restype = ctypes.c_char_p
        self._index = {name: i for i, name in enumerate(names)}
        self._parameters = {name: _parameter_names(text, name) for name in names}

    def types(self, name: str) -> str:
        """The types of a kernel's parameters: letters of NumPy dtypes, * before those of arrays."""
        return self._library.parameter_types(self._index[name]).decode()

    def launch(self, name: str, grid: int, *arguments, order=Order.ROUNDS, seed=0, blocks: range | None = None) -> None:
        """Run a kernel on a grid of blocks (or some blocks of that grid). Raises KernelError and TypeError."""
        kinds = re.findall(r"\*?.", self.types(name))
        if len(kinds) != len(arguments):
            raise TypeError(f"{name} has {len(kinds)} parameters, {len(arguments)} were given")
        kept = [
            _packed(kind, value, f"{name}: {parameter}")
            for kind, value, parameter in zip(kinds, arguments, self._parameters[name], strict=True)
        ]
        pointers = (ctypes.c_void_p * len(kept))(*(ctypes.addressof(k) for k in kept))
        blocks = range(grid) if blocks is None else blocks
        message = self._library.launch(
            self._index[name], grid, THREADS, pointers, blocks.start, blocks.stop, int(order), seed
        )
        if message is not None:
            raise KernelError(message.decode())


def _parameter_names(text: str, name: str) -> list[str]:
    found = re.search(rf"__global__ void [^;{{]*?\b{name.split('<')[0]}\(([^)]*)\)", text)
    return [parameter.split()[-1] for parameter in found[1].split(",")]


def _packed(kind: str, value, name: str):
    """One argument as the kernel reads it. Raises TypeError where a GPU would read other bytes than were meant."""
    dtype = np.dtype(kind[-1])
    if not kind.startswith("*"):
        if not isinstance(value, np.generic) or value.dtype != dtype:
            raise TypeError(f"{name} must be a NumPy scalar of {dtype}; got {type(value).__name__} {value!r}")
        return np.ctypeslib.as_ctypes_type(dtype)(value.item())
    label = name.split(": ")[1].encode()
    if value is None or (isinstance(value, np.uint64) and value == 0):  # a null pointer, or its bytes
        return _Array(None, 0, label)
    if value.dtype != dtype or not value.flags.c_contiguous:
        layout = "" if value.flags.c_contiguous else ", not contiguous"
        raise TypeError(f"{name} must be a contiguous array of {dtype}; got {value.dtype}{layout}")
    return _Array(value.ctypes.data, value.size, label)
