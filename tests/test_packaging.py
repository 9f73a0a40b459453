"""What importing costs, and what an installation contains."""

import subprocess
import sys
from importlib.resources import files

import pytest


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_import_pulls_in_nothing_heavy():
    code = (
        "import sys, dufs_core\n"
        "heavy = ('numba', 'cupy', 'sklearn', 'scipy', 'pandas', 'matplotlib', 'hypothesis')\n"
        "print([m for m in heavy if m in sys.modules])"
    )
    assert run(code).strip() == "[]"


def test_public_names_load_at_first_use():
    import dufs_core

    assert dufs_core.DUFS.__name__ == "DUFS"
    assert "DUFS" in dir(dufs_core)
    with pytest.raises(AttributeError, match="no attribute 'DUF'"):
        dufs_core.DUF  # noqa: B018


def test_kernels_are_part_of_the_package():
    import dufs_core.kernels.sweeps as sweeps

    assert sweeps.__name__ == "dufs_core.kernels.sweeps"
    assert files("dufs_core").joinpath("py.typed").is_file()


def test_cuda_sources_are_part_of_the_package():
    from dufs_core.kernels import cuda

    for file in cuda.KERNELS:
        text = cuda.source(file)
        assert "#include" not in text
        assert "__global__" in text


def test_kernels_compile_where_no_cache_can_be_written():
    code = (
        "import numpy, numba.core.caching as caching\n"
        "caching.CacheImpl._locator_classes = []  # no directory is writable\n"
        "from dufs_core.kernels import sweeps\n"
        "K = numpy.ones((1, 2, 2))\n"
        "sweeps.symmetrise(K, numpy.full((1, 2), 0.5), 0, 2)\n"
        "print(K.sum())"
    )
    assert run(code).strip() == "1.0"
