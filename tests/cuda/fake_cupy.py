"""A stand-in for CuPy on a machine without a GPU: strict arrays over NumPy, and a device that emulates the kernels.

What CuPy refuses is refused here: implicit conversion to NumPy, mixing with NumPy arrays, indexing by them, and array
work on a stream that is being captured. Only names in `FUNCTIONS`, `CONSTANTS` and `METHODS` exist, each of which a
test finds in the real CuPy; keyword arguments are checked against the real function's where CuPy is installed.
Kernels run through the emulator, or are recorded while a stream is captured; every launch is kept in `launches`.
"""

from __future__ import annotations

import inspect
import threading
import time
import types
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from dufs_core.kernels import cuda

_LISTED = """
abs all any arange argsort array ascontiguousarray asfortranarray asarray bincount broadcast_arrays broadcast_to clip
concatenate copyto cos diagonal dot einsum empty empty_like exp eye flatnonzero full full_like imag
isfinite isinf lexsort linspace log matmul max maximum may_share_memory median minimum moveaxis
multiply nonzero ones ones_like outer partition power
put_along_axis quantile sin sort sqrt
cumsum square stack sum swapaxes take_along_axis where zeros zeros_like
/ bool_ finfo float32 float64 inf int32 int64 nan newaxis pi uint32 uint64
/ all any argmax argmin argsort astype conj copy fill max mean min ravel reshape std sum swapaxes transpose
/ add sub mul truediv floordiv mod pow matmul and or xor lshift rshift
/ lt le gt ge eq ne neg pos abs invert
"""
FUNCTIONS, CONSTANTS, METHODS, _BINARY, _OTHER = (frozenset(part.split()) for part in _LISTED.split("/"))
_SCALARS = (bool, int, float, complex, np.generic)


class _PerThread(threading.local):
    """The streams of a thread, as in CuPy: the current ones, and those being captured."""

    def __init__(self) -> None:
        self.current, self.capturing = [Stream()], []


class CUDARuntimeError(RuntimeError):
    """As in cupy.cuda.runtime."""


class OutOfMemoryError(MemoryError):
    """As in cupy.cuda.memory."""


@cache
def _parameters(name: str) -> frozenset[str] | None:
    """The parameters of the real function; None where they cannot be told."""
    if find_spec("cupy") is None:
        return None
    try:
        return frozenset(inspect.signature(getattr(import_module("cupy"), name)).parameters)
    except (ValueError, TypeError):  # a ufunc, or compiled
        return None


def _not_while_capturing() -> None:
    if streams.capturing:
        raise CUDARuntimeError("cudaErrorStreamCaptureUnsupported: operation not permitted when stream is capturing")


def _bare(value: Any) -> Any:
    """NumPy's form of an operand."""
    if isinstance(value, ndarray):
        return value._a
    if isinstance(value, np.ndarray):
        raise TypeError(f"Unsupported type {type(value)}")
    if isinstance(value, tuple | list):
        return type(value)(_bare(v) for v in value)
    return value


def _wrapped(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return ndarray(np.asarray(value))
    if isinstance(value, tuple | list):
        return type(value)(_wrapped(v) for v in value)
    return value


def _index(key: Any) -> Any:
    if isinstance(key, np.ndarray):
        raise TypeError("indexing with a numpy.ndarray")
    if isinstance(key, ndarray):
        _not_while_capturing()
        return key._a
    return tuple(_index(k) for k in key) if isinstance(key, tuple) else key


class ndarray:
    """An array on the pretended device."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, array: np.ndarray) -> None:
        self._a = array

    shape, dtype, ndim, size, nbytes, flags = (
        property(lambda self, name=name: getattr(self._a, name))
        for name in ("shape", "dtype", "ndim", "size", "nbytes", "flags")
    )

    @property
    def T(self) -> ndarray:
        return ndarray(self._a.T)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": self.shape, "version": 3}  # that it exists says that this is a device's array

    @property
    def real(self) -> ndarray:
        return ndarray(self._a.real)

    @property
    def imag(self) -> ndarray:
        return ndarray(self._a.imag)

    @property
    def device(self) -> Device:
        return Device(0)

    def item(self) -> Any:
        _not_while_capturing()
        return self._a.item()

    def get(self) -> np.ndarray:
        _not_while_capturing()
        return self._a.copy()

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`")

    def __array_function__(self, function: Any, types: Any, arguments: Any, kwargs: Any) -> Any:
        if function in (np.ndim, np.shape):  # CuPy has these, and they move nothing
            return function(_bare(arguments[0]))
        raise TypeError(f"numpy.{function.__name__} was called with an array of the device")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method != "__call__" or not all(isinstance(i, (ndarray, *_SCALARS)) for i in inputs):
            raise TypeError(f"Unsupported types in numpy.{ufunc.__name__}: {[type(i).__name__ for i in inputs]}")
        _not_while_capturing()
        return _wrapped(ufunc(*_bare(inputs), **_bare_keywords(kwargs)))

    def __getattr__(self, name: str) -> Any:
        if name not in METHODS:
            raise AttributeError(f"this stand-in for cupy.ndarray has no {name!r}")
        method = getattr(self._a, name)

        def call(*arguments: Any, **kwargs: Any) -> Any:
            if name not in ("reshape", "swapaxes", "transpose"):
                _not_while_capturing()
            return _wrapped(method(*_bare(arguments), **_bare_keywords(kwargs)))

        return call

    def __getitem__(self, key: Any) -> ndarray:
        return ndarray(np.asarray(self._a[_index(key)]))

    def __setitem__(self, key: Any, value: Any) -> None:
        _not_while_capturing()
        self._a[_index(key)] = _bare(value)

    def __len__(self) -> int:
        return len(self._a)

    def __iter__(self) -> Any:
        return (ndarray(np.asarray(row)) for row in self._a)

    def __bool__(self) -> bool:
        return bool(self._a)

    def __int__(self) -> int:
        return int(self._a)

    def __float__(self) -> float:
        return float(self._a)

    def __index__(self) -> int:
        return self._a.__index__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)

    def __dlpack__(self, **_: Any) -> np.ndarray:
        return self._a


def _bare_keywords(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: _bare(value) for name, value in kwargs.items()}


def _operator(name: str) -> Any:
    def call(self: ndarray, *others: Any) -> Any:
        _not_while_capturing()
        if not all(isinstance(o, (ndarray, *_SCALARS)) for o in others):
            raise TypeError(f"Unsupported types in {name}: {[type(o).__name__ for o in others]}")
        result = getattr(self._a, name)(*_bare(list(others)))
        if result is self._a:
            return self
        return _wrapped(result)

    return call


for _name in _BINARY:
    for _prefix in ("", "r", "i"):
        setattr(ndarray, f"__{_prefix}{_name}__", _operator(f"__{_prefix}{_name}__"))
for _name in _OTHER:
    setattr(ndarray, f"__{_name}__", _operator(f"__{_name}__"))


class Device:
    """Only device 0; `entered` counts how often it was made current."""

    entered = 0

    def __init__(self, index: int = 0) -> None:
        self.id = index

    def __enter__(self) -> Device:
        Device.entered += 1
        return self

    def __exit__(self, *_: Any) -> None:
        pass


class Launch(NamedTuple):
    """One launch as the device received it."""

    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    arguments: tuple[Any, ...]
    captured: bool


class Event:
    """A time on the host's clock."""

    time = 0.0

    def record(self) -> None:
        self.time = time.perf_counter()

    def synchronize(self) -> None:
        pass


class Graph:
    """Launches that a capture recorded."""

    def __init__(self, recorded: list[Any]) -> None:
        self._recorded, self.launched = recorded, 0

    def launch(self, stream: Any = None) -> None:
        self.launched += 1
        for run in self._recorded:
            run()


class Stream:
    """Runs everything at once; what is launched inside a capture is recorded instead."""

    refuse: str | None = None  # the message of a refused capture

    def __init__(self, non_blocking: bool = False) -> None:
        self._non_blocking, self._recorded = non_blocking, []
        self.waited = 0

    def wait_event(self, event: Any) -> None:
        self.waited += 1

    def record(self) -> object:
        return object()

    def synchronize(self) -> None:
        _not_while_capturing()

    def begin_capture(self) -> None:
        if Stream.refuse:
            raise CUDARuntimeError(Stream.refuse)
        if not self._non_blocking or self not in streams.current:
            raise CUDARuntimeError("the legacy stream cannot be captured, and the captured stream must be current")
        streams.capturing.append(self)

    def end_capture(self) -> Graph:
        if self not in streams.capturing:
            raise CUDARuntimeError("cudaErrorIllegalState: no capture has begun")
        streams.capturing.remove(self)
        return Graph(self._recorded)

    def __enter__(self) -> Stream:
        streams.current.append(self)
        return self

    def __exit__(self, *_: Any) -> None:
        streams.current.remove(self)


streams = _PerThread()
_emulating = threading.Lock()  # the emulator runs one launch at a time


# Bytes of a single array from which on allocating it fails; None: nothing fails.
limits: dict[str, int | None] = {"array": None}


def _function(name: str) -> Any:
    plain = getattr(np, name)

    def call(*arguments: Any, **kwargs: Any) -> Any:
        _not_while_capturing()
        known = _parameters(name)
        if known is not None and not set(kwargs) <= known:
            raise TypeError(f"cupy.{name} has no parameter {sorted(set(kwargs) - known)}")
        if name in ("empty", "zeros", "full") and limits["array"] is not None:
            shape = arguments[0] if isinstance(arguments[0], tuple) else (arguments[0],)
            wanted = float(np.prod(shape, dtype=np.float64)) * np.dtype(kwargs.get("dtype", np.float64)).itemsize
            if wanted > limits["array"]:
                raise OutOfMemoryError(f"Out of memory allocating {int(wanted):,} bytes")
        if name in ("asarray", "array") and isinstance(arguments[0], np.ndarray):
            return _wrapped(np.array(arguments[0], **_bare_keywords(kwargs)))  # a copy to the device
        if name == "asarray" and isinstance(arguments[0], ndarray) and set(kwargs) <= {"dtype"}:
            same = kwargs.get("dtype") in (None, arguments[0].dtype, arguments[0].dtype.type)
            return arguments[0] if same else arguments[0].astype(kwargs["dtype"])
        result = plain(*_bare(list(arguments)), **_bare_keywords(kwargs))
        if kwargs.get("out") is not None:
            return kwargs["out"]
        return _wrapped(result)

    return call


def _linalg(name: str) -> Any:
    def call(*arrays: ndarray) -> ndarray:
        _not_while_capturing()
        return _wrapped(np.asarray(getattr(np.linalg, name)(*_bare(arrays))))

    return call


linalg = types.SimpleNamespace(**{name: _linalg(name) for name in ("norm", "inv", "solve")})


def __getattr__(name: str) -> Any:
    """The array functions, for code that finds the module by the type of its arrays."""
    if name in FUNCTIONS:
        return _function(name)
    if name in CONSTANTS:
        return getattr(np, name)
    raise AttributeError(f"this stand-in for cupy has no {name!r}")


def make(libraries: dict[str, Any]) -> types.ModuleType:
    """A module to stand for cupy, whose kernels are those of the emulator's libraries (by file)."""
    xp = types.ModuleType("fake_cupy")
    xp.launches = []

    for name in FUNCTIONS:
        setattr(xp, name, _function(name))
    for name in CONSTANTS:
        setattr(xp, name, getattr(np, name))
    xp.ndarray = ndarray
    xp.linalg = linalg
    xp.asnumpy = lambda a: a.get() if isinstance(a, ndarray) else np.asarray(a)
    xp.from_dlpack = lambda tensor: ndarray(tensor.__dlpack__())

    class RawModule:
        def __init__(self, *, code: str, options: tuple[str, ...], name_expressions: tuple[str, ...]) -> None:
            self._library = next(l for f, l in libraries.items() if cuda.source(f) == code)
            self._names = name_expressions

        def get_function(self, name: str) -> Any:
            assert name in self._names

            def call(grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...]) -> None:
                xp.launches.append(Launch(name, grid, block, arguments, bool(streams.capturing)))
                assert block == (cuda.THREADS,)
                bare = [a._a if isinstance(a, ndarray) else a for a in arguments]

                def run() -> None:
                    with _emulating:
                        self._library.launch(name, grid[0], *bare)

                if streams.capturing:
                    streams.capturing[-1]._recorded.append(run)
                else:
                    run()

            return call

    xp.RawModule = RawModule
    runtime = types.SimpleNamespace(
        getDevice=lambda: 0,
        getDeviceCount=lambda: 1,
        memGetInfo=lambda: (xp.free_memory, 1 << 34),
        CUDARuntimeError=CUDARuntimeError,
    )
    xp.free_memory = 1 << 34
    xp.get_default_memory_pool = lambda: types.SimpleNamespace(
        free_bytes=lambda: 0, total_bytes=lambda: 0, free_all_blocks=lambda: None
    )
    xp.cuda = types.SimpleNamespace(
        Event=Event,
        get_elapsed_time=lambda first, last: 1e3 * (last.time - first.time),
        Stream=Stream,
        Device=Device,
        runtime=runtime,
        get_current_stream=lambda: streams.current[-1],
    )
    return xp


@contextmanager
def refusing_captures(message: str) -> Any:
    """Inside, no stream can be captured."""
    Stream.refuse = message
    try:
        yield
    finally:
        Stream.refuse = None
