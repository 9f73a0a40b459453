"""The cache of compiled kernels, calls of them, and fits that have to compile them."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from dufs_core.backend import get_backend
from dufs_core.cli.main import main
from dufs_core.kernels import arrays, native
from dufs_core.objective.chain import Objective
from dufs_core.objective.engines import cpu_dense
from dufs_core.objective.optimizers import normalized
from dufs_core.objective.protocol import RunSpec, Schedule
from dufs_core.training import loop

NORMS = native.Kernel("streaming", "squared_norms")  # the one that is compiled fastest


def problem():
    """A panel of 16 rows with 3 columns, and the arguments of NORMS."""
    F = np.random.default_rng(0).normal(size=(1, 1, 16, 16)).astype(np.float32)
    gated = arrays.Gated(F, np.zeros_like(F), np.zeros(16, np.float32), 16, 3, -1.0, 1.0)
    return gated, (gated, 0, 1, np.zeros((1, arrays.BLOCK, 16), np.float32))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, and a kernel that nobody has called."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    native.cache_directory.cache_clear()
    yield tmp_path / "cache"
    native.cache_directory.cache_clear()


def fresh():
    return native.Kernel("streaming", "squared_norms")


def test_a_kernel_is_compiled_kept_and_loaded(cache):
    gated, args = problem()
    fresh()(*args)
    np.testing.assert_allclose(gated.g, (gated.F[0, 0, :3] ** 2).sum(axis=0), rtol=1e-6)
    (file,) = cache.iterdir()
    when = file.stat().st_mtime_ns
    again, args = problem()
    fresh()(*args)
    np.testing.assert_array_equal(again.g, gated.g)
    assert file.stat().st_mtime_ns == when


def test_a_second_dtype_is_a_second_file(cache):
    _, args = problem()
    wide = args[0]._replace(F=args[0].F.astype(float), B=args[0].B.astype(float), g=args[0].g.astype(float))
    kernel = fresh()
    kernel(*args)
    kernel(wide, 0, 1, args[3].astype(float))
    np.testing.assert_allclose(wide.g, args[0].g, rtol=1e-6)
    assert len(list(cache.iterdir())) == len(kernel._codes) == 2


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "another's"])
def test_a_file_that_cannot_be_trusted_is_made_anew(cache, damage):
    gated, args = problem()
    fresh()(*args)
    (file,) = cache.iterdir()
    good = file.read_bytes()
    if damage == "another's":
        if not hasattr(os, "geteuid"):
            pytest.skip("this system knows no owners of files")
        file.chmod(0o666)
    else:
        file.write_bytes({"cut": good[:-9], "flipped": good[:99] + b"x" + good[100:], "empty": b""}[damage])
    again, args = problem()
    fresh()(*args)
    np.testing.assert_array_equal(again.g, gated.g)
    (file,) = cache.iterdir()
    assert native.read(file) is not None
    assert not hasattr(os, "geteuid") or file.stat().st_mode & 0o022 == 0


def test_code_under_another_name_is_not_run(cache):
    _, args = problem()
    fresh()(*args)
    (file,) = cache.iterdir()
    file.rename(other := file.with_name("other.kernel"))
    assert native.read(other) is None
    assert native.read(file) is None


def test_a_change_of_any_source_version_or_option_is_another_file(cache, tmp_path, monkeypatch):
    signature = native.signature_of(problem()[1])
    before = NORMS._file(signature)
    for path in Path(native.__file__).parent.glob("*.py"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(native, "__file__", str(tmp_path / "native.py"))

    def file():
        native._build.cache_clear()
        return NORMS._file(signature)

    assert file() == before
    (tmp_path / "panels.py").write_text((tmp_path / "panels.py").read_text() + "# changed\n")
    assert file() != before
    monkeypatch.undo()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(cache))
    native.cache_directory.cache_clear()
    assert file() == before
    monkeypatch.setenv("NUMBA_NUM_THREADS", "1")  # as joblib's workers have it
    assert file() == before
    monkeypatch.setenv("NUMBA_CPU_NAME", "generic")
    assert file() != before
    monkeypatch.undo()
    native._build.cache_clear()


def test_files_that_were_not_used_for_90_days_are_removed(cache):
    cache.mkdir(exist_ok=True)
    old, used, kept, other = (cache / name for name in ("a.kernel", "b.kernel", "c.kernel", "numba.nbi"))
    days = 86400
    for path in (old, used, kept, other):
        native.write(path, b"code")
    for path, age in ((old, 91), (used, 200), (kept, 89), (other, 900)):
        os.utime(path, (time.time() - age * days,) * 2)
    assert native.read(used) == b"code"
    assert time.time() - used.stat().st_mtime < days / 2
    native.write(cache / "new.kernel", b"code")
    assert {path.name for path in cache.iterdir()} == {"b.kernel", "c.kernel", "numba.nbi", "new.kernel"}


def test_signatures_tell_what_code_depends_on():
    signature = native.signature_of((1, 2.0, True, np.uint64(3), np.zeros((2, 3)), np.zeros((4, 6))[:, ::2]))
    array = ("float64", 2)
    assert signature == ("tuple", ("int64", "float64", "boolean", "uint64", ("C", *array), ("A", *array)))


COLD = """
import sys, numpy as np
from dufs_core import GatedLaplacian
from dufs_core.datasets import two_moons
selector = GatedLaplacian(random_state=0, max_runs=1, backend="numpy", **eval(sys.argv[1]))
fit = selector.fit(two_moons(n_features=6, random_state=0).X)
print(fit.n_iter_, fit.engine_, int("numba" in sys.modules), *fit.mu_, *fit.order_)
"""


def cold(folder, settings="{}"):
    """A fit in a new process with the cache in `folder`: steps, engine, whether Numba was loaded, mu and order."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(folder)}
    command = [sys.executable, "-c", COLD, settings]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()
    return int(shown[0]), shown[1], shown[2] == "1", np.array(shown[3:9], float), [int(k) for k in shown[9:]]


def test_the_first_fit_compiles_and_has_the_bits_of_later_ones(tmp_path):
    steps, engine, numba, mu, order = cold(tmp_path)
    assert (engine, numba) == ("dense", True)
    assert [path.name.split("-")[0] for path in tmp_path.iterdir()] == ["steps.run_narrow"]
    again = cold(tmp_path)
    assert again[:3] == (steps, "dense", False)
    assert again[4] == order
    np.testing.assert_array_equal(again[3], mu)


def test_nothing_of_the_working_directory_is_executed(tmp_path):
    """Also where kernels have to be compiled, and something there has the name of a module of Python."""
    for name in ("json", "pathlib", "gc", "struct"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('executed')")
    (tmp_path / "fit.py").write_text(COLD)
    here = {"cwd": tmp_path, "env": os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}}
    subprocess.run([sys.executable, "-P", "fit.py", "{}"], check=True, capture_output=True, **here)
    assert list((tmp_path / "cache").glob("*.kernel"))


@pytest.mark.parametrize(("name", "power", "columns"), [("_run_direct", 1, 40), ("_run_narrow", 2, 21)])
def test_smaller_kernels_give_the_bits_of_the_whole_one(name, power, columns, monkeypatch):
    X = np.asfortranarray(np.random.default_rng(0).normal(size=(64, columns)))
    schedule = Schedule(n_draws=2, max_iter=9, tol=0.0)
    spec = RunSpec(Objective(power=power), normalized(0.02), schedule, 3, np.arange(columns))
    found = loop.train(get_backend("numpy"), X, cpu_dense.DenseEngine(1), [loop.TrainingRun(spec)])[0]
    monkeypatch.setattr(cpu_dense, name, cpu_dense._run)
    want = loop.train(get_backend("numpy"), X, cpu_dense.DenseEngine(1), [loop.TrainingRun(spec)])[0]
    np.testing.assert_array_equal(found.mu, want.mu)
    np.testing.assert_array_equal(found.records, want.records)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "said"),
    [(Terminal(), "compiling streaming.squared_norms, once for this processor"), (io.StringIO(), ""), (None, "")],
)
def test_a_wait_is_said_where_a_terminal_listens(stream, said, cache, monkeypatch):
    monkeypatch.setattr(sys, "stderr", stream)
    _, args = problem()
    fresh()(*args)
    assert said in (stream.getvalue() if stream else "")
    assert bool(said) == bool(stream and stream.getvalue())


def test_warmup(capsys, tmp_path, monkeypatch):
    assert main(["warmup"]) == 0
    *steps, last = capsys.readouterr().out.splitlines()
    assert len(steps) == 6
    assert last.startswith(f"all kernels are in {native.cache_directory()}")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file" / "cache"))
    native.cache_directory.cache_clear()
    assert main(["warmup"]) == 1
    assert "name a directory that can be written in NUMBA_CACHE_DIR" in capsys.readouterr().err
    native.cache_directory.cache_clear()
