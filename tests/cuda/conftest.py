"""The CUDA sources built once for the CPU."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import emulator
import fake_cupy
import pytest
from scipy import special

from dufs_core.backend.cupy import make_backend
from dufs_core.kernels import cuda


@pytest.fixture(scope="session")
def build_folder(tmp_path_factory):
    """Where sources are built for the CPU. Skips where g++ is not installed."""
    if emulator.COMPILER is None:
        pytest.skip("g++, which builds the CUDA sources for the CPU, is not installed")
    folder = tmp_path_factory.mktemp("cuda")
    emulator.prepare(folder)
    return folder


@pytest.fixture(scope="session")
def libraries(build_folder):
    """Every source, built by g++: a dict from file to emulator.Library."""
    with ThreadPoolExecutor(2) as pool:
        built = pool.map(lambda file: emulator.Library(file, build_folder), cuda.KERNELS)
        return dict(zip(cuda.KERNELS, built, strict=True))


@pytest.fixture(scope="session")
def run(libraries):
    """run(kernel, dtype, grid, *arguments, **how): one launch of a kernel named as in cuda.KERNELS.

    Arguments as for `cuda.Kernels.launch`.
    """

    def launch(kernel, dtype, grid, *arguments, **how):
        file = cuda.FILES[kernel]
        name = cuda.instances(file, str(dtype))[cuda.KERNELS[file].index(kernel)]
        libraries[file].launch(name, grid, *cuda.passed(arguments), **how)

    return launch


@pytest.fixture(scope="session")
def new_device(libraries):
    """Makes the CuPy backend over the stand-in of fake_cupy.py; its module is `new_device().xp`."""

    def erf(x):
        return fake_cupy.ndarray(special.erf(x._a))

    return lambda: make_backend(fake_cupy.make(libraries), erf)


@pytest.fixture
def device(new_device):
    return new_device()
