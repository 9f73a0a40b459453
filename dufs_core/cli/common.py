"""Shared by the subcommands: exit codes, errors as sentences, versions and machine."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from dufs_core._version import __version__

DONE, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
_COMPUTED = re.compile(r"\s*['=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r\n]")  # the last four: as wide as Chinese characters
_REQUIRED = ("numpy", "scipy", "numba", "scikit-learn")
_OPTIONAL = ("matplotlib", "h5py", "tqdm", "threadpoolctl", "cupy", "cupy-cuda11x", "cupy-cuda12x", "cupy-cuda13x")


class UsageError(Exception):
    """The user has to change something; the message is the sentence to print."""


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turn errors in the user's data, settings or files into a UsageError."""
    from dufs_core.errors import DufsError

    try:
        yield
    except (ValueError, TypeError, DufsError) as error:
        raise UsageError(single_line(error)) from error
    except OSError as error:
        cause = f"{error.filename}: {error.strerror.lower()}" if error.errno and error.strerror else single_line(error)
        raise UsageError(cause) from error


def single_line(message: object) -> str:
    from dufs_core.errors import printable

    return printable(" ".join(str(message).split()))


def csv_cell(value: Any) -> Any:
    """The value of a table's cell; text that a spreadsheet would compute, or that begins with ', gets a ' in front."""
    return f"'{value}" if isinstance(value, str) and _COMPUTED.match(value) else value


def versions(optional: bool = False) -> dict[str, str]:
    """Installed versions of this package, Python and its libraries, with the optional ones if asked for."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    found = {"dufs-core": __version__, "python": platform.python_version()}
    for name in _REQUIRED + (_OPTIONAL if optional else ()):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def machine() -> dict[str, Any]:
    """The operating system, and the number of processors available to this process."""
    import platform

    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"system": platform.platform(), "cpus": cpus}
