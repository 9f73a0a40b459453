"""Every name of CuPy that the library or the stand-in uses is there in the real CuPy, which can be asked anywhere."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import fake_cupy
import pytest

import dufs_core

pytestmark = pytest.mark.cuda_launch
ROOT = Path(dufs_core.__file__).parent


@pytest.fixture(scope="module")
def cupy():
    return pytest.importorskip("cupy", reason="CuPy is not installed (it is for Linux, in the extra `test`)")


def test_the_stand_in_has_only_what_cupy_has(cupy):
    missing = [name for name in fake_cupy.FUNCTIONS | fake_cupy.CONSTANTS if not hasattr(cupy, name)]
    missing += [f"ndarray.{name}" for name in fake_cupy.METHODS if not hasattr(cupy.ndarray, name)]
    assert not missing


def used_names():
    """Dotted names after xp., cupy. or cuda. in the files that compute on either backend."""
    found = set()
    for path in [*ROOT.rglob("*.py"), ROOT / "kernels" / "cuda.py"]:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute):
                parts = []
                while isinstance(node, ast.Attribute):
                    parts.insert(0, node.attr)
                    node = node.value
                base = node.id if isinstance(node, ast.Name) else None
                if base in ("self", "bk") and "xp" in parts:
                    parts = parts[parts.index("xp") + 1 :]
                elif base == "self" and "_cupy" in parts:
                    parts = parts[parts.index("_cupy") + 1 :]
                elif base == "cuda" and path.parent.name == "engines":
                    parts = ["cuda", *parts]
                elif base not in ("xp", "cupy"):
                    continue
                if parts:
                    found.add((path.name, ".".join(parts)))
    return found


def test_every_name_that_is_used_exists(cupy):
    names = used_names()
    assert {"RawModule", "cuda.Stream", "cuda.runtime.getDevice", "take_along_axis"} <= {name for _, name in names}
    missing = []
    for file, name in names:
        owner = cupy
        for part in name.split("."):
            if not hasattr(owner, part):
                missing.append((file, name))
                break
            owner = getattr(owner, part)
            if not inspect.ismodule(owner) and not inspect.isclass(owner):
                break
    assert not missing


def test_sparse_matrices(cupy):
    """What the library uses of a matrix on the device; what the stand-in for one offers, no more."""
    from test_sparse_engine import OnDevice

    csr = pytest.importorskip("cupyx.scipy.sparse", reason="CuPy has no sparse matrices here")
    offered = [name for name in vars(OnDevice) if not name.startswith("_")] + ["format", "shape", "dtype"]
    for kind in (csr.csr_matrix, csr.csc_matrix):
        assert kind.__module__.split(".")[0] == "cupyx"
        assert not [name for name in [*offered, "__getitem__"] if not hasattr(kind, name)]


def test_streams_graphs_and_modules(cupy):
    """The methods of CuPy's objects that the engine calls, and the parameters of the module it makes."""
    for owner, names in (
        (cupy.cuda.Stream, ("begin_capture", "end_capture", "wait_event", "record", "synchronize")),
        (cupy.cuda.graph.Graph, ("launch",)),
        (cupy.ndarray, ("device", "get", "__dlpack_device__")),
        (cupy.cuda.runtime, ("memGetInfo", "CUDARuntimeError", "getDeviceProperties", "driverGetVersion")),
        (cupy.cuda.Event, ("record", "synchronize")),
        (cupy.cuda, ("get_elapsed_time",)),
        (cupy.cuda.memory, ("OutOfMemoryError",)),
        (cupy.cuda.MemoryPool, ("free_bytes", "total_bytes", "free_all_blocks")),
    ):
        assert not [name for name in names if not hasattr(owner, name)], owner
    assert issubclass(cupy.cuda.runtime.CUDARuntimeError, RuntimeError)
    assert issubclass(cupy.cuda.memory.OutOfMemoryError, MemoryError)
    document = inspect.getdoc(cupy.RawModule)
    assert all(name in document for name in ("code", "options", "name_expressions"))
