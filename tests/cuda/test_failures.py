"""A GPU that is not there, not whole, or full: what is said, and what goes on working."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor

import fake_cupy
import generators as gen
import numpy as np
import pytest
from generators import gated

from dufs_core import GatedLaplacian
from dufs_core.backend import cupy as cupy_backend
from dufs_core.errors import BackendFallbackWarning, BackendUnavailableError, MemoryLimitError
from dufs_core.kernels import cuda
from dufs_core.objective.chain import Objective
from dufs_core.objective.engines.gpu_dense import CudaEngine

pytestmark = pytest.mark.cuda_launch

FIT = "GatedLaplacian(backend={!r}, max_iter=2, max_runs=1, n_draws=2, random_state=0).fit(X)"
FIT_GIVEN = FIT.replace("{!r}", "backend")
ON_CPU, ON_GPU, ON_ANY = (FIT.format(backend) for backend in ("numpy", "cupy", "auto"))
PREAMBLE = """
import os, sys, warnings
warnings.simplefilter("ignore", ImportWarning)
import numpy as np
import dufs_core
from dufs_core.errors import BackendUnavailableError, BackendFallbackWarning, SelectionWarning
X = np.random.default_rng(0).normal(size=(8, 3))
warnings.simplefilter("ignore", SelectionWarning)
"""


def run(code, *folders, **variables):
    """Standard output of a fresh interpreter that finds modules in `folders` first."""
    path = os.pathsep.join([*map(str, folders), os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = os.environ | variables | {"PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", PREAMBLE + code], capture_output=True, text=True, env=variables)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


TRY_ALL = f"""
assert "cupy" not in sys.modules
from dufs_core import GatedLaplacian
{ON_CPU}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        assert {ON_ANY}.backend_ == "numpy"
for warning in caught:
    if issubclass(warning.category, BackendFallbackWarning):
        print("auto:", warning.message)
try:
    {ON_GPU}
except BackendUnavailableError as error:
    print("cupy:", error)
"""
ASK = """
from dufs_core.backend import get_backend
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        assert get_backend("auto").name == "numpy"
for warning in caught:
    print("auto:", warning.message)
try:
    get_backend("cupy")
except BackendUnavailableError as error:
    print("cupy:", error)
"""
BROKEN = {
    "an import that fails": ("raise ImportError('libcuda.so.1: cannot open shared object file')",
                             "importing CuPy failed (ImportError: libcuda.so.1: cannot open shared object file)"),
    "an import that fails oddly": ("import numpy\nnumpy.this_name_was_removed",
                                   "importing CuPy failed (AttributeError: module 'numpy' has no attribute"),
    "no driver": ("import fake_runtime as cuda", "CuPy finds no driver or device (RuntimeError: "
                  "cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version)"),
    "no device": ("import types\ncuda = types.SimpleNamespace(runtime=types.SimpleNamespace(getDeviceCount=lambda: 0))",
                  "there is no CUDA device"),
    "no library": ("import types\ncuda = types.SimpleNamespace(runtime=types.SimpleNamespace(getDeviceCount=lambda: 1))"
                   "\ndef ones(shape): raise OSError('libcublas.so.13 is missing.\\nLooked in /lib')",
                   "a first computation on the device failed (OSError: libcublas.so.13 is missing)"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_cupy_that_cannot_compute(tmp_path, name):
    """Import and CPU fits work; "auto" says once what is wrong; "cupy" raises one clear error with the cause.

    Whole fits with the first fault; the backend alone, which fits ask, with the others.
    """
    text, cause = BROKEN[name]
    package = tmp_path / "cupy"
    package.mkdir()
    (package / "__init__.py").write_text(text)
    (tmp_path / "fake_runtime.py").write_text(
        "def getDeviceCount():\n    raise RuntimeError('cudaErrorInsufficientDriver: CUDA driver version is "
        "insufficient for CUDA runtime version')\nimport sys\nruntime = sys.modules[__name__]\n"
    )
    for module in ("cupyx", "cupyx/scipy"):
        (tmp_path / module).mkdir()
        (tmp_path / module / "__init__.py").write_text("")
    (tmp_path / "cupyx" / "scipy" / "special.py").write_text("erf = None")
    lines = run(TRY_ALL if name == next(iter(BROKEN)) else ASK, tmp_path).splitlines()
    assert [line.split(":")[0] for line in lines] == ["auto", "cupy"]
    for line, start in zip(lines, ("CuPy cannot be used here, computing with NumPy: ",
                                   'backend="cupy" cannot be used here: '), strict=True):  # fmt: skip
        assert line.split(": ", 1)[1].startswith(start + cause)
    assert lines[1].endswith('Use backend="numpy" (or "auto").')


def test_without_cupy_nothing_is_said():
    out = run("sys.modules['cupy'] = None\n" + ASK)
    (line,) = out.splitlines()
    assert "CuPy is not installed: pip install 'dufs-core[cuda13]'" in line


def test_the_cupy_of_this_environment_without_a_gpu():
    pytest.importorskip("cupy", reason="CuPy is not installed (it is for Linux, in the extra `test`)")
    if isinstance(cupy_backend.cupy_backend(), str):
        lines = run(ASK).splitlines()
        assert [line.split(":")[0] for line in lines] == ["auto", "cupy"]
        assert "CuPy finds no driver or device" in lines[1]
    else:
        assert run(f"from dufs_core import GatedLaplacian\nprint({ON_GPU}.backend_)") == "cupy\n"


def test_a_cache_of_cupy_that_cannot_be_written(tmp_path):
    """CuPy refuses to be imported then: the CPU computes, and the path is named."""
    pytest.importorskip("cupy", reason="CuPy is not installed (it is for Linux, in the extra `test`)")
    (tmp_path / "file").write_text("")
    lines = run(ASK, CUPY_CACHE_DIR=str(tmp_path / "file" / "cache")).splitlines()
    assert [line.split(":")[0] for line in lines] == ["auto", "cupy"]
    assert all("importing CuPy failed (NotADirectoryError" in line and "file" in line for line in lines)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_fork_after_import():
    """Importing starts neither CUDA nor threads, so a child can fit. After a fit, it can on the CPU."""
    out = run(
        "from dufs_core import GatedLaplacian\n"
        "def child(backend):\n"
        "    sys.stdout.flush()\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        f"        print({FIT_GIVEN}.backend_, flush=True)\n"
        "        os._exit(0)\n"
        "    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])\n"
        "warnings.simplefilter('ignore')\n"
        "assert 'cupy' not in sys.modules\n"
        "print(child('auto'))\n"
        f"{ON_ANY}\n"
        "print(child('numpy'))"
    )
    assert [line for line in out.splitlines() if line in ("0", "numpy", "cupy")][1::2] == ["0", "0"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_fork_after_cuda_was_started(device, monkeypatch):
    """CUDA does not survive a fork: the child is told so, instead of failing somewhere inside."""
    from dufs_core.backend import get_backend

    monkeypatch.setattr(cupy_backend, "_found", {os.getpid() + 1: device})  # as a child finds it
    monkeypatch.setattr(cupy_backend, "_try", lambda: pytest.fail("CUDA was touched"))
    with pytest.raises(BackendUnavailableError, match="CUDA was started before this process was forked"):
        get_backend("cupy")
    with pytest.warns(BackendFallbackWarning, match='start processes with the method "spawn"'):
        assert get_backend("auto").name == "numpy"


def test_a_device_that_was_full_is_asked_again(device, monkeypatch):
    answers = ["a first computation on the device failed (OutOfMemoryError: ...)", device]
    monkeypatch.setattr(cupy_backend, "_found", {})
    monkeypatch.setattr(cupy_backend, "_try", lambda: answers.pop(0))
    assert isinstance(cupy_backend.cupy_backend(), str)
    assert cupy_backend.cupy_backend() is device
    assert cupy_backend.cupy_backend() is device


def test_two_threads_compile_a_kernel_once():
    made = []

    class RawModule:
        def __init__(self, **how):
            time.sleep(0.05)
            made.append(how)

        def get_function(self, name):
            return lambda *arguments: None

    runtime = types.SimpleNamespace(getDevice=lambda: 0)
    kernels = cuda.Kernels(types.SimpleNamespace(RawModule=RawModule, cuda=types.SimpleNamespace(runtime=runtime)))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: kernels.launch("symmetrise<T>", "float32", 1), range(8)))
    assert len(made) == 1
    runtime.getDevice = lambda: 1  # another device has modules of its own
    kernels.launch("symmetrise<T>", "float32", 1)
    assert len(made) == 2


def test_two_fits_in_two_threads(device):
    """Each thread has its own streams and arrays: the same numbers as one after the other."""
    problems = [
        [device.xp.asarray(a) for a in (np.full(3, 0.5), gen.draws(n, 3, count=2), gen.noise(n, 3))] for n in (7, 12)
    ]

    def steps(arrays):
        engine = CudaEngine()
        return [engine(device, Objective(), *arrays)[1].get() for _ in range(4)]

    alone = [steps(arrays) for arrays in problems]
    barrier = threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda arrays: (barrier.wait(), steps(arrays))[1], problems))
    np.testing.assert_array_equal(together[0], alone[0])
    np.testing.assert_array_equal(together[1], alone[1])


@pytest.fixture
def on_gpu(device, monkeypatch):
    monkeypatch.setattr(cupy_backend, "cupy_backend", lambda: device)
    return device


@pytest.mark.filterwarnings("ignore::dufs_core.errors.SelectionWarning")
def test_a_device_that_fills_up(on_gpu, monkeypatch):
    """Memory that others take after the check: one clear error, and the next smaller fit works."""
    pytest.importorskip("cupy", reason="CuPy is not installed (it is for Linux, in the extra `test`)")
    X = gen.noise(60, 3)
    monkeypatch.setitem(fake_cupy.limits, "array", 60 * 60 * 4)
    settings = {"backend": "cupy", "max_iter": 2, "max_runs": 1, "n_draws": 2, "random_state": 0}
    with pytest.raises(
        MemoryLimitError, match=r"no memory left for steps over 60 rows and 3 columns with 2 draws \(Ou"
    ):
        gated(**settings).fit(X)
    assert gated(**settings, batch_size=10).fit(X).n_iter_ == 2


def test_a_device_with_too_little_memory(on_gpu):
    """Refused before anything is allocated there, with the numbers of that device."""
    pytest.importorskip("cupy", reason="CuPy is not installed (it is for Linux, in the extra `test`)")
    on_gpu.xp.free_memory = 8000
    with pytest.raises(MemoryLimitError, match=r"32-bit numbers.*8 kB are available"):
        GatedLaplacian(backend="cupy", random_state=0).fit(gen.noise(50, 3))
    on_gpu.xp.free_memory = 800_000
    with pytest.raises(MemoryLimitError, match=r"engine 'cuda', 32-bit numbers.*800 kB are available.*batch_size="):
        GatedLaplacian(backend="cupy", engine="cuda", random_state=0).fit(gen.noise(50, 3))
    assert on_gpu.xp.launches == []
