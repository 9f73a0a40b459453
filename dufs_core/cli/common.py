"""What the subcommands share: exit codes, errors as sentences, versions and machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dufs_core._version import __version__

DONE, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
_LIBRARIES = ("numpy", "scipy", "numba", "scikit-learn")
_OPTIONAL = ("matplotlib", "h5py", "tqdm", "threadpoolctl", "cupy", "cupy-cuda11x", "cupy-cuda12x", "cupy-cuda13x")


class UsageError(Exception):
    """What the user asked for cannot be done; the message is the sentence to show."""


@contextmanager
def usage_errors() -> Iterator[None]:
    """Errors that speak of the user's data or settings, as one sentence."""
    from dufs_core.errors import DufsError

    try:
        yield
    except (ValueError, TypeError, DufsError) as error:
        raise UsageError(sentence(error)) from error
    except OSError as error:
        if error.errno is not None and error.strerror:
            raise UsageError(f"{error.filename}: {error.strerror.lower()}") from error
        raise UsageError(sentence(error)) from error


def sentence(message: object) -> str:
    """The message on one line."""
    return " ".join(str(message).split())


def versions(optional: bool = False) -> dict[str, str]:
    """Installed versions of this package, Python, the libraries, and on request of optional ones."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    found = {"dufs-core": __version__, "python": platform.python_version()}
    for name in _LIBRARIES + (_OPTIONAL if optional else ()):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            if name in _LIBRARIES:
                found[name] = "not installed"
    return found


def machine() -> dict[str, Any]:
    """The operating system, and how many processors this process may use."""
    import platform

    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"system": platform.platform(), "cpus": cpus}
