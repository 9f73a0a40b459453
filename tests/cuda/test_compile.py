"""Every CUDA kernel, compiled by NVRTC for every architecture without a warning or a spilled register."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nvrtc
import pytest

from dufs_core.kernels import cuda

pytestmark = pytest.mark.cuda_compile
RECORD = Path(__file__).resolve().parents[2] / "bench" / "results" / "cuda_resources.json"


@pytest.fixture(scope="module")
def compiler():
    library = nvrtc.library()
    if library is None:
        pytest.skip(f"{nvrtc.PACKAGE} is not installed (it is for Linux, in the extra `test`)")
    return library


@pytest.fixture(scope="module")
def compiled(compiler):
    """Every file for every architecture, being compiled two at a time."""
    with ThreadPoolExecutor(2) as pool:
        yield {
            (file, architecture): pool.submit(nvrtc.compile_for, compiler, file, architecture)
            for architecture in nvrtc.ARCHITECTURES
            for file in cuda.KERNELS
        }


@pytest.mark.parametrize("file", cuda.KERNELS)
@pytest.mark.parametrize("architecture", nvrtc.ARCHITECTURES)
def test_every_kernel_compiles(compiled, file, architecture):
    for name, resources in compiled[file, architecture].result().items():
        assert resources.spill_bytes == 0, f"{name} spills {resources.spill_bytes} bytes"
        assert 0 < resources.registers <= 65536 // (2 * cuda.THREADS), f"{name}: {resources.registers} registers"
        assert resources.shared_bytes <= 48 * 1024


def test_a_warning_is_an_error(compiler):
    text = cuda.source("product.cu") + "\n__device__ int unused() { int never_read = 1; return 0; }\n"
    with pytest.raises(RuntimeError, match="never_read"):
        nvrtc.compile_for(compiler, "product.cu", "sm_80", text)


def test_a_spill_is_seen(compiler):
    """A kernel told to live with few registers: the numbers are read, not assumed."""
    text = cuda.source("product.cu").replace("RESIDENT = 2", "RESIDENT = 8")
    found = nvrtc.compile_for(compiler, "product.cu", "sm_80", text)
    assert found["product<double, true>"].registers <= 32
    assert found["product<double, true>"].spill_bytes > 0


def test_the_record_is_of_these_kernels():
    if not RECORD.is_file():
        pytest.skip("no bench/results beside the tests")
    record = json.loads(RECORD.read_text())
    kernels = {f"{f}: {name}" for f in cuda.KERNELS for dtype in cuda.ELEMENT for name in cuda.instances(f, dtype)}
    assert set(record["kernels"]) == kernels
    for name, architectures in record["kernels"].items():
        assert set(architectures) == set(nvrtc.ARCHITECTURES)
        assert all(resources["spill_bytes"] == 0 for resources in architectures.values()), name
