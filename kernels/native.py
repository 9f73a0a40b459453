"""Compiled kernels by name: machine code from the cache where it is there, else compiled by Numba and kept.

A process that finds its kernels in the cache loads neither Numba nor a compiler: code is called through one pointer to
a table of 8-byte numbers, its arguments. The cache is NUMBA_CACHE_DIR where that is set, else a directory of the user
for all environments. A file holds the code for one signature; its name has the hash of all that the code depends on:
sources, versions, processor. Files that another user can have written are not executed.
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import cache
from hashlib import sha256
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from dufs_core.backend.threads import fork_safe_lock
from dufs_core.objective import rules

_NAMES = {bool: "boolean", int: "int64", float: "float64"}
_FORMATS = {"boolean": "q", "int64": "q", "uint64": "Q", "float64": "d"}
_OPTIONS = tuple(f"NUMBA_{name}" for name in ("CPU_NAME", "CPU_FEATURES", "OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE"))
_DAY, _KEPT_DAYS = 86400, 90
_lock = fork_safe_lock()  # of compiling and loading
_engines: list[Any] = []  # of LLVM, which own loaded code


class Kernel:
    """The function of this name in `dufs_core.kernels`, for arguments that are numbers, arrays and tuples of these.

    Compiled for each signature at its first call, without Python objects, exceptions or the GIL; returns nothing.
    """

    def __init__(self, module: str, name: str, function: Callable[..., None] | None = None) -> None:
        self._module, self._name, self._function = module, name, function
        self._codes: dict[Any, Any] = {}

    @property
    def py_func(self) -> Callable[..., None]:
        """What is compiled."""
        if self._function is None:
            self._function = getattr(import_module(f"dufs_core.kernels.{self._module}"), self._name).py_func
        return self._function

    def __call__(self, *args: Any) -> None:
        """Call the code, compiled here and now where it is nowhere yet. Raises RuntimeError if it cannot be run."""
        signature = signature_of(args)
        code, table = self._codes.get(signature) or self._get(signature)
        numbers: list[Any] = []
        _flatten(args, numbers)
        if status := code(table.pack(*numbers)):
            raise RuntimeError(f"the kernel {self._module}.{self._name} ended with status {status}: please report it")

    def _file(self, signature: Any) -> Path | None:
        folder = cache_directory()
        key = sha256(f"{_build()} {self._module}.{self._name}{signature}".encode()).hexdigest()
        return None if folder is None else folder / f"{self._module}.{self._name}-{key[:32]}.kernel"

    def _get(self, signature: Any) -> Any:
        with _lock:
            if signature not in self._codes:
                data = self.compiled(signature, self._file(signature))
                self._codes[signature] = _load(data), struct.Struct("".join(formats(signature)))
            return self._codes[signature]

    def compiled(self, signature: Any, path: Path | None) -> bytes:
        """The code, from its file if that is there, else compiled, by one process alone, and written to it."""
        data = None if path is None else read(path)
        if data is None:
            _say(f"compiling {self._module}.{self._name}, once for this processor: this takes some seconds")
            with nullcontext() if path is None else _alone(path):
                data = None if path is None else read(path)  # another process may have been faster
                if data is None:
                    from dufs_core.kernels.compile import machine_code

                    data = machine_code(self.py_func, signature)
                    if path is not None:
                        write(path, data)
        return data


def _say(text: str) -> None:
    """A line on standard error, between the bars that are there, where that is a terminal."""
    with suppress(AttributeError, OSError, ValueError):  # there is none, or it is closed
        if sys.stderr.isatty():
            from tqdm import tqdm

            tqdm.write(text, file=sys.stderr)


@cache
def cache_directory() -> Path | None:
    """Where kernels are kept, perhaps by the administrator alone; None where there is no such directory to read."""
    homes = {"darwin": "~/Library/Caches", "win32": os.environ.get("LOCALAPPDATA", "~")}
    home = os.environ.get("XDG_CACHE_HOME") or homes.get(sys.platform, "~/.cache")
    given = os.environ.get("NUMBA_CACHE_DIR")
    try:
        folder = Path(given) if given else Path(home).expanduser() / "dufs-core"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder if os.access(folder, os.R_OK | os.X_OK) else None
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        return None


def _digest(path: Path, data: bytes) -> bytes:
    return sha256(path.name.encode() + data).digest()


def read(path: Path) -> bytes | None:
    """The code in a file; None if it is not there, damaged, another's code, or what another user can have written."""
    with suppress(OSError), path.open("rb") as file:
        about = os.fstat(file.fileno())
        mine = not hasattr(os, "geteuid") or (about.st_uid in (0, os.geteuid()) and not about.st_mode & 0o022)
        data = file.read() if mine else b""
        if data[:32] == _digest(path, data[32:]):
            if time.time() - about.st_mtime > _DAY:  # the time of the last use, to a day
                with suppress(OSError):  # another user's
                    os.utime(path)
            return data[32:]
    return None


def write(path: Path, data: bytes) -> None:
    """Keep the code in a file, whole or not at all; files that nobody has used for 90 days are removed."""
    with suppress(OSError):
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_digest(path, data) + data)
            os.replace(name, path)
        except OSError:
            os.unlink(name)
    for old in path.parent.glob("*.kernel"):  # of sources or libraries that are gone; who is reading one has it open
        with suppress(OSError):  # another process was faster, or may remove it and this one may not
            if time.time() - old.stat().st_mtime > _KEPT_DAYS * _DAY:
                old.unlink()


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold a lock beside a file, where the system has such locks: elsewhere two processes may compile the same."""
    lock = path.with_suffix(".lock")
    with ExitStack() as stack:
        with suppress(ImportError, OSError):
            file = stack.enter_context(lock.open("w"))
            import_module("fcntl").flock(file, 2)  # LOCK_EX
        yield
        with suppress(OSError):  # not there, or open, where open files cannot be removed
            lock.unlink()


def signature_of(value: Any) -> Any:
    """The type of an argument: a name, (layout, dtype, dimensions) of an array or (class, types) of a tuple."""
    if isinstance(value, np.ndarray):
        return "C" if value.flags.c_contiguous else "A", value.dtype.name, value.ndim
    if isinstance(value, tuple):
        return type(value).__name__, tuple(map(signature_of, value))
    return _NAMES.get(type(value)) or value.dtype.name


def _flatten(value: Any, numbers: list[Any]) -> None:
    """The numbers of an argument, in the order of Numba's data model."""
    if isinstance(value, np.ndarray):
        numbers += (0, 0, value.size, value.itemsize, value.ctypes.data, *value.shape, *value.strides)
    elif isinstance(value, tuple):
        for part in value:
            _flatten(part, numbers)
    else:
        numbers.append(value)


def formats(signature: Any) -> list[str]:
    """How `struct` packs these numbers."""
    if isinstance(signature, str):
        return [_FORMATS[signature]]
    if len(signature) == 3:
        return ["qqqqQ" + "qq" * signature[2]]
    return [part for one in signature[1] for part in formats(one)]


@cache
def _build() -> str:
    """All that machine code depends on beside the signature."""
    with _lock:
        from llvmlite import binding

        processor = binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()
        triple = binding.get_process_triple()
    sources = (*sorted(Path(__file__).parent.glob("*.py")), Path(rules.__file__))
    digest = sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    options = sorted(item for item in os.environ.items() if item[0] in _OPTIONS)
    return f"{digest} {version('numba')} {version('llvmlite')} {triple} {processor} {options}"


def _load(data: bytes) -> Any:
    """The function from the code that `dufs_core.kernels.compile.machine_code` gave."""
    from llvmlite import binding

    header, code = data.split(b"\n", 1)
    about = json.loads(header)
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine()
    # an engine for each: the names inside are unique within one file alone. With it LLVM knows the process's symbols
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine)
    if any(binding.address_of_symbol(name) is None for name in about["calls"]):
        import_module("numba.core.registry").cpu_target.target_context  # noqa: B018 - makes them known to LLVM
    engine.add_object_file(binding.object_file.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _engines.append(engine)
    return ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_char_p)(engine.get_function_address(about["entry"]))
