"""What several test files share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

from dufs_core.cli.warmup import compiled_kernels

# The same examples in every run, and how long one takes says nothing on a shared machine.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True, scope="session")
def compiled() -> None:
    """All kernels are in the cache: a fit that begins before they are has other last bits."""
    for _ in compiled_kernels():
        pass


@pytest.fixture(autouse=True)
def repeatable_draws() -> None:
    """random_state=None draws from NumPy's global generator: every run of a test sees the same."""
    np.random.seed(0)  # noqa: NPY002 - that very generator


@pytest.fixture(scope="session")
def shared_data() -> Callable[[str], Path]:
    """The path of a real data file: in $DUFS_DATA, or in ../shared/data beside the repository; skips without it."""
    given = os.environ.get("DUFS_DATA")
    directory = Path(given) if given else Path(__file__).resolve().parents[2] / "shared" / "data"

    def find(name: str) -> Path:
        if not directory.is_dir():
            pytest.skip("no real data: DUFS_DATA is not set and ../shared/data does not exist")
        if not (directory / name).exists():
            pytest.skip(f"no {name} in the directory of real data")
        return directory / name

    return find
