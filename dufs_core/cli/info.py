"""dufs-core info: versions, linear algebra libraries, threads and devices."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from dufs_core.cli.common import DONE, machine, versions


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    import numpy  # noqa: F401  (loads its BLAS, which threadpoolctl then finds)
    import scipy.linalg  # noqa: F401
    from threadpoolctl import threadpool_info

    from dufs_core.backend import get_backend
    from dufs_core.errors import BackendUnavailableError
    from dufs_core.kernels.native import cache_directory

    gpu: dict[str, Any] = {"usable": True}
    try:
        get_backend("cupy")
    except BackendUnavailableError as error:
        gpu = {"usable": False, "reason": str(error)}
    keys = {"library": "internal_api", "version": "version", "threads": "num_threads", "file": "filepath"}
    found = [library for library in threadpool_info() if library["user_api"] == "blas"]
    blas = [{key: library.get(name) for key, name in keys.items()} for library in found]
    installed, about, folder = versions(optional=True), machine(), cache_directory()
    kernels = {"cache": folder and str(folder), "compiled": len(list(folder.glob("*.kernel"))) if folder else 0}
    if args.json:
        devices = {"cpu": {"usable": True}, "gpu": gpu}
        document = {"versions": installed, "machine": about, "blas": blas, "kernels": kernels, "devices": devices}
        print(json.dumps(document, allow_nan=False))
        return DONE
    lines = [
        *installed.items(),
        ("", ""),
        *about.items(),
        *(("blas", f"{b['library']} {b['version']}, {b['threads']} threads ({Path(b['file']).name})") for b in blas),
        ("kernels", f"{kernels['compiled']} compiled in {folder}" if folder else "compiled anew in every process"),
        ("gpu", gpu.get("reason", "usable")),
    ]
    print("\n".join(f"{name:<14} {value}".rstrip() for name, value in lines))
    return DONE
