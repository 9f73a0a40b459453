"""dufs-core info: versions, linear algebra libraries, threads, and whether a GPU computes or what keeps it from it.

With --predict ROWS COLUMNS: the seconds and the bytes of a fit of such data on this machine.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import warnings
from collections.abc import Sequence
from typing import Any

from dufs_core.cli.common import DONE, UsageError, machine, versions

_TESTED = 7.5  # the lowest compute capability that the kernels are compiled for in tests


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    if args.predict is not None:
        return _predicted(args.predict, args.sparse, args.json)
    if args.sparse is not None:
        raise UsageError("--sparse DENSITY belongs to --predict ROWS COLUMNS")
    import numpy  # noqa: F401  (loads its BLAS, which threadpoolctl then finds)
    import scipy.linalg  # noqa: F401
    from threadpoolctl import threadpool_info

    from dufs_core.backend.cupy import cupy_backend
    from dufs_core.kernels.native import cache_directory

    installed, about, folder = versions(optional=True), machine(), cache_directory()
    blas = [library for library in threadpool_info() if library["user_api"] == "blas"]
    packages = [name for name in installed if name.startswith("cupy")]
    with warnings.catch_warnings(action="ignore"):  # CuPy's, about several packages of it: said below
        device = cupy_backend()
    gpu = not_used(device, packages, _driver()) if isinstance(device, str) else used(device.xp, packages)
    if args.json:
        document = {"versions": installed, "machine": about, "blas": blas, "kernels": folder and str(folder)}
        print(json.dumps(document | {"gpu": {"usable": not isinstance(device, str), "reason": gpu}}, allow_nan=False))
        return DONE
    lines = [
        *installed.items(),
        ("", ""),
        *about.items(),
        *(("blas", f"{b['internal_api']} {b['version']}, {b['num_threads']} threads ({b['filepath']})") for b in blas),
        ("kernels", f"kept in {folder}" if folder else "compiled anew in every process"),
        ("gpu", gpu),
    ]
    print("\n".join(f"{name:<14} {value}".rstrip() for name, value in lines))
    return DONE


def _predicted(shape: Sequence[int], density: float | None, as_json: bool) -> int:
    """Print what a fit of data of this shape takes."""
    n, d = shape
    if n < 2:
        raise UsageError(f"ROWS must be at least 2; got {n}")
    if d < 1:
        raise UsageError(f"COLUMNS must be at least 1; got {d}")
    if density is not None and not 0 < density <= 1:
        raise UsageError(f"DENSITY must be above 0 and at most 1; got {density:g}")

    from dufs_core.backend.memory import byte_text
    from dufs_core.selection.prediction import predict

    found = predict(n, d, density)
    if as_json:
        about = {"rows": n, "columns": d, "density": density, "seconds": found.seconds, "bytes": found.bytes}
        print(json.dumps(about | {"rows_used": found.rows, "threads": found.threads}, allow_nan=False))
        return DONE
    data = "float32 in memory" if density is None else f"sparse float32 in memory, {density:g} of it stored"
    seconds = float(f"{found.seconds:.2g}")
    drawn = "" if found.rows == n else "; max_rows=N sets another number"
    lines = [
        ("fit", f"DUFS() of {n:,} rows and {d:,} columns, {data}, on the CPU"),
        ("seconds", f"{seconds:,g}, with {found.threads} threads; structure that is found changes the time"),
        ("memory", f"{byte_text(found.bytes)} at most, beside the data themselves"),
        ("rows", f"{found.rows:,} of {n:,} take part{drawn}"),
    ]
    print("\n".join(f"{name:<14} {value}" for name, value in lines))
    return DONE


def used(cupy: Any, packages: Sequence[str]) -> str:
    """What `DUFS()` computes on, and what may go wrong there."""
    runtime = cupy.cuda.runtime
    about, (free, total) = runtime.getDeviceProperties(runtime.getDevice()), runtime.memGetInfo()
    said = (
        f"used: {about['name'].decode()}, compute capability {about['major']}.{about['minor']}, "
        f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free"
    )
    if about["major"] + about["minor"] / 10 < _TESTED:
        said += f'; below {_TESTED} nothing is tested: if a fit fails, use DUFS(backend="numpy")'
    if len(packages) > 1:
        said += f"; but several CuPy packages are installed, of which files may be mixed: {_anew(packages, None)}"
    return said


def not_used(cause: str, packages: Sequence[str], driver: int | None) -> str:
    """Why `DUFS()` computes on the CPU, and what to do. driver: as `_driver` finds it."""
    if driver is None:
        return (
            "not used: there is no NVIDIA driver; if this machine has an NVIDIA GPU, install its driver "
            "(in a container: start that with --gpus all), then run dufs-core info again"
        )
    runs = f"NVIDIA's driver runs CUDA {driver // 1000}.{driver % 1000 // 10}"
    suited = f"cupy-cuda{min(driver // 1000, 13)}x"
    if driver < 12_000:
        return f"not used: {runs}, and CuPy needs 12.0 or later; install a newer driver"
    if len(packages) > 1:
        return f"not used: several CuPy packages are installed, of which files may be mixed; {_anew(packages, suited)}"
    if "No module named 'cupy'" in cause:
        return f"not used: CuPy is not installed; {runs}: pip install '{suited}[ctk]'"
    if re.search("OutOfMemory|MemoryAllocation", cause):
        return (
            "not used: the GPU's memory is full; end what fills it (nvidia-smi lists it), or choose another GPU "
            "(CUDA_VISIBLE_DEVICES=1)"
        )
    if "gpu-architecture" in cause:
        return (
            f"not used: this CuPy's CUDA cannot compile for this GPU (13 can from compute capability 7.5 on); "
            f"{_anew(packages, 'cupy-cuda12x')}"
        )
    if re.search("InsufficientDriver|UNSUPPORTED_PTX", cause):
        return f"not used: this CuPy needs a later CUDA, {runs}; {_anew(packages, suited)}, or install a newer driver"
    if re.search("NoDevice|there is no CUDA device", cause):
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        hidden = "" if visible is None else f", where CUDA_VISIBLE_DEVICES is {visible!r}: unset it"
        return f"not used: the driver shows no GPU{hidden or '; nvidia-smi must list one'}"
    if re.search(r"\.so|\.dll|failed to load", cause):
        return f"not used: CuPy does not find CUDA's libraries: {cause}; pip install '{suited}[ctk]' brings them"
    return f"not used: {cause}; see nvidia-smi, and python -c 'import cupy; cupy.show_config()'"


def _anew(packages: Sequence[str], suited: str | None) -> str:
    return f"pip uninstall {' '.join(packages) or 'cupy'}, then pip install '{suited or packages[-1]}[ctk]'"


def _driver() -> int | None:
    """The latest CUDA that NVIDIA's driver runs, as 13000 for 13.0; None without a driver. Needs no CuPy."""
    version = ctypes.c_int()
    try:
        ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return version.value or None
