"""What `bench.gpu` measures, in the order of what would be missed most, and how long each is expected to take.

Times of steps are medians between CUDA events on the current stream, in milliseconds; those of fits are the host's.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse as host_sparse
from sklearn.datasets import make_blobs

from bench import steps as programs
from bench.common import ROOT
from bench.planted import Planted, plant
from dufs_core import DUFS, fit_many
from dufs_core.backend import Array, Backend, get_backend
from dufs_core.data.sparse import scale_sparse
from dufs_core.objective.chain import Objective
from dufs_core.objective.engines import gpu_plan
from dufs_core.objective.engines.choose import predicted_bytes
from dufs_core.objective.engines.cpu_sparse import SparseEngine
from dufs_core.objective.engines.gpu_dense import CudaEngine
from dufs_core.objective.engines.gpu_sparse import CudaSparseEngine
from dufs_core.objective.engines.gpu_streaming import CudaStreamingEngine
from dufs_core.objective.protocol import StepSize

# rows, columns of single training steps beside the peers'
STEPS = [(100, 20), (100, 5966), (72, 7129), (1000, 1024), (1560, 617), (2000, 1024), (4000, 1024), (6000, 4955)]
POPULATION = (100, 5966)
PLANTED = (300, 20, 2000)  # rows, real columns, shuffled ones
# rows, columns, draws of single evaluations: two moons, images, a minibatch of text, and what fills a card
SIZES = [(100, 50, 16), (500, 1024, 4), (1000, 784, 4), (1000, 10_000, 4), (5000, 1000, 2)]
GRAM_ROWS = 20_000  # up to so many the Gram form is timed beside the streaming one
REPEATS, TOGETHER = 9, 100.0  # of timings; milliseconds of the steps that are timed together

# Words in the names of tests: the files that these run beside what all run. Tests without such a word: "dense".
AREAS = {
    "dense": (),
    "fit": ("dufs_core/selection/**/*.py", "dufs_core/training/*.py", "dufs_core/significance/*.py"),
    "sweep": ("dufs_core/selection/**/*.py", "dufs_core/training/*.py", "dufs_core/cli/sweep/*.py"),
    "sparse": ("kernels/sparse.cu", "dufs_core/data/sparse.py", "dufs_core/objective/engines/gpu_sparse.py"),
    "streaming": ("dufs_core/objective/engines/gpu_streaming.py",),
}
ALL_RUN = (
    "kernels/*.cu*",
    "kernels/cuda.py",
    "dufs_core/backend/*.py",
    "dufs_core/objective/**/*.py",
    "tests/cuda/*.py",
)


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


def files(patterns: Iterable[str]) -> set[Path]:
    return {path for pattern in patterns for path in ROOT.glob(pattern)}


def fingerprint(paths: Iterable[Path]) -> str:
    """Of the contents of files."""
    found = hashlib.sha256()
    for path in sorted(paths):
        found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()[:12]


def area_fingerprint(area: str) -> str:
    """Of what the tests of an area run: files of its own, and those that belong to no area."""
    return fingerprint(files(AREAS[area]) | (files(ALL_RUN) - files(chain.from_iterable(AREAS.values()))))


def words(area: str) -> str:
    """pytest's expression for the tests of an area; one with the words of two belongs to the later one."""
    later = list(AREAS)[list(AREAS).index(area) + 1 :]
    return " and ".join([area, *(f"not {word}" for word in later)]).removeprefix("dense and ")


def tests(bk: Backend, area: str, limit: float) -> dict[str, Any]:
    """The tests marked gpu of an area: each kernel, engine and fit against float64 on the CPU. `limit`: seconds."""
    command = [sys.executable, "-m", "pytest", "-v", "-m", "gpu", "tests/cuda", "-k", words(area), "--tb=line"]
    command += ["-p", "no:cacheprovider", "-p", "no:benchmark"]  # the latter refuses to run beside xdist
    if find_spec("xdist"):
        command += ["-n", str(min(8, os.cpu_count() or 1))]
    with tempfile.TemporaryFile("w+") as out:
        try:
            code = subprocess.run(command, stdout=out, stderr=out, cwd=ROOT, timeout=limit).returncode
        except subprocess.TimeoutExpired:
            code = -1
        out.seek(0)
        lines = out.read().splitlines()
    outcomes = [(said[1], line) for line in lines if "::" in line and (said := re.search(OUTCOME, line))]
    counts = Counter(outcome.lower() for outcome, _ in outcomes)
    failed = counts["failed"] + counts["error"]
    return {
        "passed": counts["passed"],
        "failed": failed or int(code != 0),
        "skipped": counts["skipped"],
        "ended": f"after {limit:.0f} s, not all ran" if code < 0 else lines[-1].strip(" ="),
        "failures": [line for outcome, line in outcomes if outcome in ("FAILED", "ERROR")],
        "of": area_fingerprint(area),
    }


# pytest -v: "tests/...::name[...] PASSED   [ 12%]", with xdist "[gw0] [ 12%] PASSED tests/...::name[...]"
OUTCOME = re.compile(r"(?=.*%\]).*?\b(PASSED|FAILED|ERROR|SKIPPED)\b")


def _timed(bk: Backend, function: Callable[[], Any], repeats: int) -> dict[str, Any]:
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


def _step_times(bk: Backend, step: Callable[[int], Any]) -> dict[str, Any]:
    """Milliseconds of one training step, from as many together as take about TOGETHER."""
    one = _timed(bk, lambda: step(1), 3)["median"]
    count = max(2, min(200, int(TOGETHER / one)))
    times = _timed(bk, lambda: step(count), REPEATS)
    return {"median": times["median"] / count, "quartiles": [q / count for q in times["quartiles"]], "together": count}


# --- what people wait for


def planted_problem(rows: int, r: int, n_nuisance: int) -> Planted:
    """r columns in which five groups of rows differ, among shuffled ones of the same kind."""
    X, groups = make_blobs(rows, r + n_nuisance, centers=5, cluster_std=4, center_box=(-5, 5), random_state=0)
    return plant(X, groups, r, n_nuisance, 0)


def planted(bk: Backend, rows: int, r: int, n_nuisance: int, fits: int, backend: str) -> dict[str, Any]:
    """Seconds of fits with decoys, one or many seeds by `fit_many`, and what is selected; on the card or on the CPU."""
    p, times = planted_problem(rows, r, n_nuisance), []
    with warnings.catch_warnings(action="ignore"):
        for _ in range(2 if fits > 1 else 4):
            selectors = [DUFS(backend=backend, random_state=seed) for seed in range(fits)]
            start = time.perf_counter()
            fit_many(selectors, p.X) if fits > 1 else selectors[0].fit(p.X)
            times.append(time.perf_counter() - start)
    support = np.array([selector.support_ for selector in selectors])
    return {
        "seconds": median(times[1:]),
        "first": times[0],
        "real": float((support & p.truth).sum(axis=1).mean()),
        "false": float((support & ~p.truth).sum(axis=1).mean()),
        "selected": np.flatnonzero(support[0]).tolist(),
    }


def first_call(bk: Backend) -> dict[str, float]:
    """Seconds of the first short fit of a process: with nothing compiled yet, and with CuPy's cache on disk filled."""
    code = (
        "import time; start = time.perf_counter()\n"
        "import warnings; warnings.simplefilter('ignore')\n"
        "from dufs_core import GatedLaplacian\nfrom dufs_core.datasets import two_moons\n"
        "GatedLaplacian(backend='cupy', max_iter=3, max_runs=1, random_state=0).fit(two_moons(100, 10).X)\n"
        "print(time.perf_counter() - start)"
    )
    with tempfile.TemporaryDirectory() as folder:
        process = partial(
            subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT,
            env=os.environ | {"CUPY_CACHE_DIR": folder},
        )  # fmt: skip
        cold, warm = (float(process().stdout) for _ in range(2))
    return {"cold": cold, "warm": warm}


# --- steps


def _ours(bk: Backend, n: int, d: int, fits: int = 1) -> Callable[[int], Any]:
    """Training steps of `fits` fits on the same data, all in one stack."""
    problems = [programs.ours_problem(d, seed) for seed in range(fits)]
    X = bk.xp.asarray(np.asfortranarray(programs.problem(n, d)))
    steps = CudaEngine().steps(bk, problems, bk.xp.full((fits, d), 0.5, dtype=np.float32))
    assert steps is not None
    return lambda count: steps.advance(X, None, 1, count)


def _products(bk: Backend, n: int, d: int) -> Callable[[int], Any]:
    """What cuBLAS would do in steps at power 2 over the open columns at the start, as full products.

    G from 84% of the columns, A A, A H, and M X for the 68% that are undecided.
    """
    xp = bk.xp
    shapes = [(n, int(0.841 * d), n), (n, n, n), (n, n, n), (n, n, int(0.683 * d))]
    made = [[xp.ones(shape, dtype=np.float32) for shape in ((p, m), (m, q), (p, q))] for p, m, q in shapes]

    def run(count: int) -> None:
        for _ in range(count):
            for A, B, C in made:
                xp.matmul(A, B, out=C)

    return run


def _peer(n: int, d: int, program: str) -> Callable[[int], Any]:
    import torch

    if not torch.cuda.is_available():
        raise ImportError(f"PyTorch {torch.__version__} has no CUDA")
    threads = os.cpu_count() or 1
    if program == "featselectlib":
        step = programs.featselectlib_stepper(n, d, threads, "cuda")
    else:
        torch._dynamo.reset()  # or it compiles for any size from the second on, and not at all from the ninth
        step = programs.torch_stepper(n, d, threads, program.endswith("compiled"), "cuda")
    return lambda count: (step(count), torch.cuda.synchronize())


def steps(bk: Backend, n: int, d: int, program: str) -> dict[str, Any]:
    """A training step of one draw: ours, the peers' on the same card, the products alone."""
    made = {"ours": _ours, "products": _products}
    return _step_times(bk, made[program](bk, n, d) if program in made else _peer(n, d, program))


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


@contextlib.contextmanager
def _without_graphs() -> Iterator[None]:
    """Inside, no step is captured: the launches of one that would be are made one by one."""
    capture = gpu_plan.Replay._capture
    gpu_plan.Replay._capture = lambda self, run: setattr(self, "refused", "switched off")  # type: ignore[method-assign]
    try:
        yield
    finally:
        gpu_plan.Replay._capture = capture  # type: ignore[method-assign]


def choices(bk: Backend, n: int, d: int, choice: str) -> dict[str, Any]:
    """Our step as another choice of `dufs_core.objective.engines.gpu_plan` would make it."""
    limit = {"own products": 1 << 62, "library products": 0}.get(choice, gpu_plan.CAPTURED_WORK)
    with (
        changed(gpu_plan, CAPTURED_WORK=limit),
        _without_graphs() if choice == "no graph" else contextlib.nullcontext(),
    ):
        return _step_times(bk, _ours(bk, n, d))


def population(bk: Backend, n: int, d: int, fits: int) -> dict[str, Any]:
    """One step of many fits on the same data."""
    return _step_times(bk, _ours(bk, n, d, fits))


def _arrays(bk: Backend, n: int, d: int, draws: int) -> list[Array]:
    rng = np.random.default_rng(0)
    made = np.full(d, 0.5), rng.normal(size=(draws, d)), np.asfortranarray(rng.normal(size=(n, d)))
    return [bk.xp.asarray(a.astype(np.float32)) for a in made]


def sparse(bk: Backend, n: int, d: int, density: float) -> dict[str, Any]:
    """A step of two draws on sparse data, on the card and on the CPU, and how far apart their gradients are."""
    X, cpu = host_sparse.random(n, d, density, "csr", np.float32, random_state=0), get_backend("numpy")
    rng = np.random.default_rng(0)
    mu, eps = np.full(d, 0.5, np.float32), rng.normal(size=(2, d)).astype(np.float32)

    def step(bk: Backend, engine: Any) -> Callable[[], Any]:
        table = scale_sparse(X, "columns", "float32", by_rows=False, bk=bk).X
        return partial(engine, bk, Objective(), bk.xp.asarray(mu), bk.xp.asarray(eps), table)

    there, here = step(bk, CudaSparseEngine()), step(cpu, SparseEngine(os.cpu_count() or 1))
    (_, got), (_, want) = there(), here()
    start = time.perf_counter()
    here()
    on_cpu = 1e3 * (time.perf_counter() - start)
    apart = float(abs(bk.to_host(got) - want).max() / abs(want).max())
    return _timed(bk, there, REPEATS) | {"on_cpu": on_cpu, "apart": apart}


def product_rate(bk: Backend, side: int, dtype: str) -> float:
    """Multiply-adds a second of a product, as CuPy reaches them."""
    a = bk.xp.ones((side, side), dtype=dtype)
    out = bk.xp.empty_like(a)
    return side**3 / (1e-3 * _timed(bk, lambda: bk.xp.matmul(a, a, out=out), REPEATS)["median"])


def streaming(bk: Backend, n: int, d: int, side: int) -> dict[str, Any]:
    """A step's time beside its floor and the Gram form's, its bytes beside the prediction; all gates undecided.

    The floor: 13 n^2 d multiply-adds (see dufs_core/objective/engines/gpu_streaming.py) at the rate of a product.
    """
    pool, floor = bk.xp.get_default_memory_pool(), 1e3 * 13 * n * n * d / product_rate(bk, side, "float32")
    mu, eps, X = _arrays(bk, n, d, 1)
    moved = [mu, eps * 0, X]
    pool.free_all_blocks()
    before, engine = pool.total_bytes(), CudaStreamingEngine()
    engine(bk, Objective(), *moved)
    found = {"bytes": int(pool.total_bytes() - before)}
    found |= {"predicted": predicted_bytes("cuda_streaming", StepSize(n, d, 1, 4)), "floor": floor}
    repeats = 3 if n > GRAM_ROWS else REPEATS
    found |= _timed(bk, partial(engine, bk, Objective(), *moved), repeats)
    found["over_floor"] = found["median"] / floor
    if n <= GRAM_ROWS:
        found["gram_form"] = _timed(bk, partial(CudaEngine(), bk, Objective(), *moved), repeats)["median"]
    return found


# --- the card itself, and the parts of a step


def machine(bk: Backend, side: int) -> dict[str, Any]:
    """What the card is, and its limits as CuPy reaches them: multiply-adds a second, bytes a second of a copy."""
    found = card(bk)
    for dtype in ("float32", "float64"):
        found[f"product_{dtype}"] = product_rate(bk, side, dtype)
        a = bk.xp.ones((side, side), dtype=dtype)
        out = bk.xp.empty_like(a)
        seconds = 1e-3 * _timed(bk, lambda a=a, out=out: bk.xp.copyto(out, a), REPEATS)["median"]
        found[f"copy_{dtype}"] = 2 * a.nbytes / seconds
    return found


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


def kernels(bk: Backend, n: int, d: int, draws: int) -> dict[str, float]:
    """Milliseconds of every kernel in an uncaptured step; what is missing to the step's is products and copies."""
    timing = _Timing(bk)
    timed, moved, engine = replace(bk, kernels=timing), _arrays(bk, n, d, draws), CudaEngine()
    with _without_graphs():
        for _ in range(REPEATS):
            engine(timed, Objective(), *moved)
    bk.synchronize()
    elapsed = bk.xp.cuda.get_elapsed_time
    return {name: median(float(elapsed(*pair)) for pair in pairs) for name, pairs in timing.events.items()}


def memory(bk: Backend, n: int, d: int, draws: int) -> dict[str, int]:
    """Bytes that a step takes from the device, beside what was predicted."""
    pool, moved = bk.xp.get_default_memory_pool(), _arrays(bk, n, d, draws)
    pool.free_all_blocks()
    before, engine = pool.total_bytes(), CudaEngine()
    for _ in range(2):
        engine(bk, Objective(), *moved)
    return {
        "bytes": int(pool.total_bytes() - before),
        "predicted": predicted_bytes("cuda", StepSize(n, d, draws, 4)),
    }


class Slice(NamedTuple):
    """A measurement, and its arguments with the seconds that each is expected to take (estimates)."""

    measure: Callable[..., Any]
    cases: dict[tuple[Any, ...], float]


def beside(*seconds_of_programs: tuple[str, float]) -> dict[tuple[Any, ...], float]:
    return {(n, d, program): seconds for program, seconds in seconds_of_programs for n, d in STEPS}


SLICES = {
    "tests": Slice(tests, {("dense", 150): 50, ("fit", 90): 30, ("sweep", 90): 30, ("sparse", 60): 20,
                           ("streaming", 60): 20}),
    "planted": Slice(planted, {(*PLANTED, 1, "cupy"): 15, (*PLANTED, 64, "cupy"): 30, (*PLANTED, 1, "numpy"): 20}),
    "steps": Slice(steps, beside(("ours", 3), ("featselectlib", 3), ("torch compiled", 15), ("torch", 2),
                                 ("products", 2))),
    "population": Slice(population, {(*POPULATION, 1): 3, (*POPULATION, 64): 5, (*POPULATION, 16): 3,
                                     (*POPULATION, 256): 10, (100, 20, 1): 2, (100, 20, 256): 3, (1000, 1024, 1): 3,
                                     (1000, 1024, 16): 5, (1000, 1024, 64): 10}),
    "sparse": Slice(sparse, {(1747, 47_236, 0.0016): 10, (2100, 20_670, 0.05): 15}),
    "streaming": Slice(streaming, {(5000, 50, 8192): 5, (5000, 256, 8192): 5, (20_000, 50, 8192): 5,
                                   (20_000, 256, 8192): 10, (100_000, 50, 8192): 15, (100_000, 256, 8192): 40}),
    "first_call": Slice(first_call, {(): 30}),
    "machine": Slice(machine, {(8192,): 5}),
    "kernels": Slice(kernels, dict.fromkeys(SIZES, 4)),
    "memory": Slice(memory, dict.fromkeys(SIZES, 3)),
    "choices": Slice(choices, {(n, d, choice): 2 for n, d in STEPS[:-1]
                               for choice in ("no graph", "own products", "library products")}),
}  # fmt: skip
