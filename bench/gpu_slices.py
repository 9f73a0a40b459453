"""What `bench.gpu` measures. Times are medians between CUDA events on the current stream, in milliseconds."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench import steps as programs
from dufs_core import DUFS
from dufs_core.backend import Array, Backend
from dufs_core.datasets import two_moons
from dufs_core.objective.chain import Objective
from dufs_core.objective.engines import gpu_plan
from dufs_core.objective.engines.choose import predicted_bytes
from dufs_core.objective.engines.gpu_dense import CudaEngine
from dufs_core.objective.protocol import StepSize

ROOT = Path(__file__).resolve().parents[1]
# rows, columns of single training steps beside the peers'
STEPS = [(100, 20), (100, 5966), (72, 7129), (1000, 1024), (1560, 617), (2000, 1024), (4000, 1024), (6000, 4955)]
QUICK_STEPS = [(100, 20), (1000, 1024)]
# rows, columns, numbers of fits in one population
POPULATIONS = [(100, 20, 256), (100, 5966, 256), (1000, 1024, 64)]
QUICK_POPULATIONS = [(100, 20, 4)]
# rows, columns, draws of single evaluations: two moons, images, a minibatch of text, and what fills a card
SIZES = [(100, 50, 16), (500, 1024, 4), (1000, 784, 4), (1000, 10_000, 4), (5000, 1000, 2)]
QUICK = [(100, 50, 16), (500, 200, 4)]
FITS = ((100, 50, 1000), (500, 1024, 200), (1000, 784, 200))  # rows, columns, steps
QUICK_FITS = ((100, 50, 200),)
OWN_WORK = 1 << 34  # multiply-adds up to which both kinds of products are timed
SIDE, QUICK_SIDE = 8192, 2048  # of the matrices whose product and copy are timed


def card(bk: Backend) -> dict[str, Any]:
    """Name, memory, and versions of the device that is measured."""
    runtime = bk.xp.cuda.runtime
    properties = runtime.getDeviceProperties(runtime.getDevice())
    return {
        "name": properties["name"].decode(),
        "compute_capability": f"{properties['major']}.{properties['minor']}",
        "memory_bytes": int(properties["totalGlobalMem"]),
        "driver": int(runtime.driverGetVersion()),
        "runtime": int(runtime.runtimeGetVersion()),
        "cupy": bk.xp.__version__,
    }


def correctness(bk: Backend, quick: bool) -> dict[str, Any]:
    """The tests marked gpu, each kernel and engine against float64 on the CPU; --quick leaves out the largest sizes."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests/cuda", "--tb=line", "-p", "no:cacheprovider"]
    command += ["-p", "no:benchmark"]  # it refuses to run beside xdist
    if find_spec("xdist"):
        command += ["-n", str(min(8, os.cpu_count() or 1))]
    done = subprocess.run(
        command + (["-k", "not 257"] if quick else []), capture_output=True, text=True, cwd=ROOT, timeout=580
    )
    lines = done.stdout.strip().splitlines()
    counts = {word: 0 for word in ("passed", "failed", "skipped", "errors")}
    for count, word in zip(lines[-1].split(), lines[-1].split()[1:], strict=False):
        if word.strip(",") in counts:
            counts[word.strip(",")] = int(count)
    counts["failed"] += counts.pop("errors") + (done.returncode != 0 and counts["failed"] == 0)
    return counts | {"said": lines[-1], "failures": [line for line in lines if line.startswith("FAILED")]}


def _timed(bk: Backend, function: Callable[[], Any], repeats: int) -> dict[str, float]:
    """Median and quartiles of the time on the device, and the median of the time until the call returned."""
    cuda = bk.xp.cuda
    for _ in range(3):
        function()
    device, host = [], []
    for _ in range(repeats):
        first, last = cuda.Event(), cuda.Event()
        bk.synchronize()
        start = time.perf_counter()
        first.record()
        function()
        last.record()
        host.append(1e3 * (time.perf_counter() - start))
        last.synchronize()
        device.append(float(cuda.get_elapsed_time(first, last)))
    device.sort()
    low, high = device[len(device) // 4], device[(3 * len(device)) // 4]
    return {"median": median(device), "quartiles": [low, high], "host_median": median(host), "repeats": repeats}


def machine(bk: Backend, quick: bool) -> dict[str, float]:
    """The card's own limits as CuPy reaches them: multiply-adds a second of a product, bytes a second of a copy."""
    xp, n = bk.xp, QUICK_SIDE if quick else SIDE
    rates = {}
    for dtype in ("float32", "float64"):
        a = xp.ones((n, n), dtype=dtype)
        out = xp.empty_like(a)
        rates[f"product_{dtype}"] = n**3 / (
            1e-3 * _timed(bk, lambda a=a, out=out: xp.matmul(a, a, out=out), 9)["median"]
        )
        seconds = 1e-3 * _timed(bk, lambda a=a, out=out: xp.copyto(out, a), 9)["median"]
        rates[f"copy_{dtype}"] = 2 * a.nbytes / seconds
    return rates


def _arrays(bk: Backend, n: int, d: int, draws: int, dtype: str = "float32") -> list[Array]:
    rng = np.random.default_rng(0)
    made = np.full(d, 0.5), rng.normal(size=(draws, d)), np.asfortranarray(rng.normal(size=(n, d)))
    return [bk.xp.asarray(a.astype(dtype)) for a in made]


class _Timing:
    """Kernels that note two events around every launch."""

    def __init__(self, bk: Backend) -> None:
        self._bk, self.events = bk, defaultdict(list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bk.kernels, name)

    def launch(self, kernel: str, dtype: Any, blocks: int, *arguments: Any) -> None:
        first, last = self._bk.xp.cuda.Event(), self._bk.xp.cuda.Event()
        first.record()
        self._bk.kernels.launch(kernel, dtype, blocks, *arguments)
        last.record()
        self.events[kernel].append((first, last))


def kernels(bk: Backend, quick: bool) -> list[dict[str, Any]]:
    """The share of every kernel in an uncaptured step; what is missing to the step's time is products and copies."""
    found = []
    for n, d, draws in QUICK if quick else SIZES:
        timing = _Timing(bk)
        timed = replace(bk, kernels=timing)
        moved, engine = _arrays(bk, n, d, draws), CudaEngine()
        with _without_graphs():
            for _ in range(3 if quick else 12):
                engine(timed, Objective(), *moved)
        bk.synchronize()
        elapsed = bk.xp.cuda.get_elapsed_time
        times = {name: median(float(elapsed(*pair)) for pair in pairs) for name, pairs in timing.events.items()}
        found.append({"n": n, "d": d, "draws": draws, "milliseconds": times})
    return found


@contextlib.contextmanager
def _without_graphs() -> Iterator[None]:
    """Inside, no step is captured: the launches of one that would be are made one by one."""
    capture = gpu_plan.Replay._capture
    gpu_plan.Replay._capture = lambda self, run: setattr(self, "refused", "switched off")  # type: ignore[method-assign]
    try:
        yield
    finally:
        gpu_plan.Replay._capture = capture  # type: ignore[method-assign]


@contextlib.contextmanager
def changed(module: Any, **limits: int) -> Iterator[None]:
    """Inside, other limits decide how steps are computed."""
    kept = {name: getattr(module, name) for name in limits}
    for name, value in limits.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(module, name, value)


def _products(bk: Backend, n: int, d: int) -> float:
    """Milliseconds that cuBLAS takes for the products of one step at power 2 over the open columns at the start.

    G from 84% of the columns, A A, A H, and M X for the 68% that are undecided; all as full products.
    """
    xp = bk.xp
    shapes = [(n, int(0.841 * d), n), (n, n, n), (n, n, n), (n, n, int(0.683 * d))]
    total = 0.0
    for p, m, q in shapes:
        A, B, C = (xp.ones(shape, dtype=np.float32) for shape in ((p, m), (m, q), (p, q)))
        total += _timed(bk, lambda A=A, B=B, C=C: xp.matmul(A, B, out=C), 9)["median"]
    return total


def _ours(bk: Backend, n: int, d: int, fits: int = 1) -> Callable[[int], Any]:
    """Training steps of `fits` fits on the same data, all in one stack."""
    problems = [programs.ours_problem(d, seed) for seed in range(fits)]
    X = bk.xp.asarray(np.asfortranarray(programs.problem(n, d)))
    steps = CudaEngine().steps(bk, problems, bk.xp.full((fits, d), 0.5, dtype=np.float32))
    assert steps is not None
    return lambda count: steps.advance(X, None, 1, count)


def _step_times(bk: Backend, step: Callable[[int], Any], quick: bool) -> dict[str, float]:
    """Milliseconds of one training step, from as many together as take about a tenth of a second."""
    one = _timed(bk, lambda: step(1), 3)["median"]
    count = 2 if quick else max(2, min(200, int(100 / one)))
    times = _timed(bk, lambda: step(count), 3 if quick else 9)
    return {"median": times["median"] / count, "quartiles": [q / count for q in times["quartiles"]], "together": count}


def _peer(bk: Backend, make: Callable[[], Callable[[int], Any]], quick: bool) -> dict[str, float] | str:
    """The same of a peer, or why it is left out."""
    try:
        import torch

        if not torch.cuda.is_available():
            return "left out: this PyTorch has no CUDA"
        step = make()
        return _step_times(bk, lambda count: (step(count), torch.cuda.synchronize()), quick)
    except (ImportError, RuntimeError) as error:  # not installed; or out of memory, or its own mistakes
        return f"left out: {type(error).__name__}: {str(error).splitlines()[0]}"


def steps(bk: Backend, quick: bool) -> list[dict[str, Any]]:
    """One training step of one draw: graphs on and off, its products alone, featselectlib and PyTorch on the card."""
    found = []
    for n, d in QUICK_STEPS if quick else STEPS:
        record: dict[str, Any] = {
            "n": n,
            "d": d,
            "captured": gpu_plan.is_captured((n, d), 1, 1),
            "products": _products(bk, n, d),
        }
        record["ours"] = _step_times(bk, _ours(bk, n, d), quick)
        with _without_graphs():
            record["without_graphs"] = _step_times(bk, _ours(bk, n, d), quick)
        for name, limit in (("own_products", 1 << 62), ("library_products", 0)):  # what CAPTURED_WORK decides between
            if n * n * (n + d) <= OWN_WORK:
                with changed(gpu_plan, CAPTURED_WORK=limit):
                    record[name] = _step_times(bk, _ours(bk, n, d), quick)
        record["featselectlib"] = _peer(
            bk, lambda n=n, d=d: programs.featselectlib_stepper(n, d, os.cpu_count() or 1, "cuda"), quick
        )
        record["torch"] = _peer(
            bk, lambda n=n, d=d: programs.torch_stepper(n, d, os.cpu_count() or 1, False, "cuda"), quick
        )
        ours = record["ours"]["median"]
        record["over_products"] = ours / record["products"]
        for peer in ("featselectlib", "torch"):
            if isinstance(record[peer], dict):
                record[f"times_faster_than_{peer}"] = record[peer]["median"] / ours
        found.append(record)
    return found


def population(bk: Backend, quick: bool) -> list[dict[str, Any]]:
    """One step of B = 1, 4, 16, ... fits on the same data, beside the step of one."""
    found = []
    for n, d, most in QUICK_POPULATIONS if quick else POPULATIONS:
        times: dict[int, float] = {}
        fits = 1
        while fits <= most:
            times[fits] = _step_times(bk, _ours(bk, n, d, fits), quick)["median"]
            bk.xp.get_default_memory_pool().free_all_blocks()
            fits *= 4
        ratios = {fits: time / times[1] for fits, time in times.items()}
        found.append({"n": n, "d": d, "milliseconds": times, "times_one": ratios})
    return found


def fits(bk: Backend, quick: bool) -> list[dict[str, Any]]:
    """Whole fits of a fixed number of steps, host clock, on the card and on the CPU of the same machine."""
    found = []
    for n, d, n_steps in QUICK_FITS if quick else FITS:
        X = two_moons(n_samples=n, n_features=d).X
        settings = {"max_iter": n_steps, "max_runs": 1, "tol": 0.0, "random_state": 0}
        record: dict[str, Any] = {"n": n, "d": d, "steps": n_steps}
        for backend in ("cupy", "numpy"):
            times = []
            for _ in range(3):
                start = time.perf_counter()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    selector = DUFS(fdr=None, backend=backend, **settings).fit(X)
                bk.synchronize()
                times.append(time.perf_counter() - start)
            record[backend] = {"seconds": median(times), "first": times[0], "top": selector.order_[:2].tolist()}
        found.append(record)
    return found


def memory(bk: Backend, quick: bool) -> list[dict[str, Any]]:
    """Bytes that a step takes from the device, beside what was predicted."""
    pool, found = bk.xp.get_default_memory_pool(), []
    for n, d, draws in QUICK if quick else SIZES:
        moved = _arrays(bk, n, d, draws)
        pool.free_all_blocks()
        before = pool.total_bytes()
        engine = CudaEngine()
        for _ in range(2):
            engine(bk, Objective(), *moved)
        taken = pool.total_bytes() - before
        predicted = predicted_bytes("cuda", StepSize(n, d, draws, 4))
        found.append({"n": n, "d": d, "draws": draws, "bytes": int(taken), "predicted": predicted})
        del engine
    return found


def first_call(bk: Backend, quick: bool) -> dict[str, float]:
    """Seconds of the first short fit of a process: with nothing compiled yet, and with CuPy's cache on disk filled."""
    code = (
        "import time; start = time.perf_counter()\n"
        "import warnings; warnings.simplefilter('ignore')\n"
        "from dufs_core import DUFS\nfrom dufs_core.datasets import two_moons\n"
        "DUFS(fdr=None, backend='cupy', max_iter=3, max_runs=1, random_state=0).fit(two_moons(100, 10).X)\n"
        "print(time.perf_counter() - start)"
    )
    with tempfile.TemporaryDirectory() as folder:
        seconds = [
            float(
                subprocess.run(
                    [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT, timeout=280,
                    env=os.environ | {"CUPY_CACHE_DIR": folder},
                ).stdout
            )
            for _ in range(2)
        ]  # fmt: skip
    return {"cold": seconds[0], "warm": seconds[1]}
