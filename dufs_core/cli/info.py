"""dufs-core info: versions, linear algebra libraries, threads and devices."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from dufs_core.cli.common import DONE, machine, versions


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    import numba
    import numpy  # noqa: F401  (loads its BLAS, for threadpoolctl to see)
    import scipy.linalg  # noqa: F401  (and SciPy's)
    from threadpoolctl import threadpool_info

    from dufs_core.backend import get_backend
    from dufs_core.errors import BackendUnavailableError

    gpu: dict[str, Any] = {"usable": True}
    try:
        get_backend("cupy")
    except BackendUnavailableError as error:
        gpu = {"usable": False, "reason": str(error)}
    blas = [
        {
            "library": library["internal_api"],
            "version": library.get("version"),
            "threads": library["num_threads"],
            "file": Path(library["filepath"]).name,
        }
        for library in threadpool_info()
        if library["user_api"] == "blas"
    ]
    document: dict[str, Any] = {
        "versions": versions(optional=True),
        "machine": machine(),
        "blas": blas,
        "numba_threads": numba.get_num_threads(),
        "devices": {"cpu": {"usable": True}, "gpu": gpu},
    }
    if args.json:
        print(json.dumps(document, allow_nan=False))
        return DONE
    lines = [f"{name:<14} {version}" for name, version in versions(optional=True).items()]
    lines += ["", f"{'system':<14} {document['machine']['system']}", f"{'cpus':<14} {document['machine']['cpus']}"]
    lines += [f"{'blas':<14} {b['library']} {b['version']}, {b['threads']} threads ({b['file']})" for b in blas]
    lines += [f"{'numba':<14} {document['numba_threads']} threads"]
    lines += [f"{'gpu':<14} {'usable' if gpu['usable'] else gpu['reason']}"]
    print("\n".join(lines))
    return DONE
