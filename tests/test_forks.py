"""Forks while another thread of the process fits, limits the BLAS or compiles: child and parent go on."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings

import pytest
from threadpoolctl import threadpool_info

from dufs_core import DUFS
from dufs_core.backend import blas
from dufs_core.backend.threads import lazy
from dufs_core.datasets import two_moons
from dufs_core.selection.gates import lambda_path

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
HEAD = """
import multiprocessing, os, sys, threading, time, warnings
import numpy as np
from dufs_core import DUFS, GatedLaplacian, LambdaPath
from dufs_core.backend.blas import one_blas_thread
warnings.simplefilter("ignore")
X = np.random.default_rng(0).normal(size=(40, 8))
def fit(_=None):
    return DUFS(random_state=0, backend="numpy").fit(X).order_.tolist()
def limit():
    with one_blas_thread():
        return X.T @ X
def path():
    LambdaPath(GatedLaplacian(max_runs=1, max_iter=3), lams=[0.1], n_splits=1, n_permutations=9).fit(X)
def forked(child):
    pid = os.fork()
    if not pid:
        try:
            child()
            os._exit(0)
        finally:
            os._exit(1)
    until = time.monotonic() + 60
    while time.monotonic() < until:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            assert status == 0, status
            return
        time.sleep(0.002)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    sys.exit("the child hangs")
over = False
def work(job):
    while not over:
        job()
def end(thread):
    global over
    over = True
    thread.join(60)
    sys.exit("the parent's thread hangs" if thread.is_alive() else 0)
"""
FORKS = """
fit(), limit(), path()
job, child, times = globals()[sys.argv[1]], globals()[sys.argv[2]], int(sys.argv[3])
thread = threading.Thread(target=work, args=(job,), daemon=True)
thread.start()
for i in range(times):
    time.sleep(0.002 * (i % 7))
    forked(child)
end(thread)
"""
POOL = """
expected = fit()
thread = threading.Thread(target=work, args=(fit,), daemon=True)
thread.start()
with multiprocessing.get_context("fork").Pool(2, maxtasksperchild=1) as pool:
    assert pool.map_async(fit, range(8), chunksize=1).get(90) == [expected] * 8
end(thread)
"""
COMPILER = """
from dufs_core.kernels import compile, native, streaming, vector
from dufs_core.kernels.arrays import BLOCK, Gated
begun = threading.Event()
kernel = native.Kernel("streaming", "squared_norms")
machine_code = compile.machine_code
def slow(*arguments):
    begun.set()
    return machine_code(*arguments)
compile.machine_code = slow
F = np.ones((1, 1, 16, 16), np.float32)
gated = Gated(F, np.zeros_like(F), np.zeros(16, np.float32), 16, 3, -1.0, 1.0)
def call():
    kernel(gated, 0, 1, np.zeros((1, BLOCK, 16), np.float32))
    assert (gated.g == 3).all()
thread = threading.Thread(target=call, daemon=True)
thread.start()
begun.wait()
forked(call)
end(thread)
"""


def run(code, *arguments, **environment):
    command = [sys.executable, "-W", "ignore", "-c", HEAD + code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("thread", "child", "times"), [("limit", "fit", 10), ("fit", "limit", 20), ("path", "path", 3)]
)
def test_a_fork_while_another_thread_computes(thread, child, times):
    run(FORKS, thread, child, times)


def test_a_pool_of_forks_while_a_fit_runs():
    run(POOL)


def test_a_fork_waits_for_a_compiler(tmp_path):
    """What LLVM holds while it compiles in another thread would be locked in the child for ever."""
    run(COMPILER, NUMBA_CACHE_DIR=str(tmp_path / "cache"))


def test_threads_do_not_wait_for_each_other_at_a_lazy_property():
    """Nor would a child for a thread that is not there."""
    both = threading.Barrier(2, timeout=30)

    class Task:
        @lazy
        def data(self):
            both.wait()
            return []

    tasks = Task(), Task()
    threads = [threading.Thread(target=getattr, args=(task, "data")) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not both.broken
    assert tasks[0].data is tasks[0].data is not tasks[1].data


def blas_threads():
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


def test_the_blas_is_held_to_one_thread_in_every_thread():
    """Whichever thread came first, and while the user's own limit is in force."""
    before, seen = blas_threads(), []

    def hold():
        with blas.one_blas_thread():
            seen.append(blas_threads())

    hold()
    thread = threading.Thread(target=hold)
    thread.start()
    thread.join()
    hold()
    assert seen == [[1] * len(before)] * 3
    assert blas_threads() == before


def test_a_child_has_its_own_state():
    """Of the fits that limit the BLAS only the one that forked; a free lock of warnings."""
    entered, left = threading.Event(), threading.Event()

    def other():
        with blas.one_blas_thread(), lambda_path.one_of_each():
            entered.set()
            left.wait()

    before = blas_threads()
    thread = threading.Thread(target=other)
    thread.start()
    entered.wait()
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # Python's, of threads
        pid = os.fork()
    if not pid:
        good = not blas._users and lambda_path._catching.acquire(blocking=False)
        DUFS(random_state=0, backend="numpy").fit(two_moons(n_features=4).X)
        os._exit(0 if good and blas_threads() == before else 1)
    left.set()
    thread.join()
    assert os.waitpid(pid, 0)[1] == 0
    assert blas_threads() == before
