"""What is predicted is what is taken; what does not fit is refused before it is allocated."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
import tempfile
import tracemalloc

import generators as gen
import numpy as np
import pytest
from generators import decoys, gated
from scipy import sparse

from dufs_core import GatedLaplacian
from dufs_core.backend import get_backend
from dufs_core.backend.memory import available_bytes
from dufs_core.data.dense import scale_columns
from dufs_core.errors import DufsError, MemoryLimitError
from dufs_core.objective.chain import Objective
from dufs_core.objective.engines.choose import ENGINES, get_engine, predicted_bytes
from dufs_core.objective.protocol import StepSize
from dufs_core.selection.diverse_ranking import diverse_order
from dufs_core.selection.fit import FitTask
from dufs_core.selection.memory import (
    Stored,
    block_bytes,
    check_memory,
    decoy_bytes,
    diverse_order_bytes,
    hsic_bytes,
    plan_of,
    scaling_bytes,
)
from dufs_core.significance.blocks import BlockPools, Blocks
from dufs_core.significance.exchange import Exchange
from dufs_core.significance.hsic import PairwiseHSIC
from dufs_core.significance.rows import Rows
from dufs_core.significance.structure import Sources, build_pools, find_structure

bk = get_backend("numpy")
GB = 10**9


@pytest.mark.parametrize(("engine", "per_sample"), [*((name, False) for name in ENGINES), ("reference", True)])
@pytest.mark.parametrize(
    ("n", "d", "draws", "power"), [(500, 20, 4, 2), (150, 1500, 4, 2), (500, 40, 2, 4), (700, 5, 1, 1)]
)
@pytest.mark.parametrize("saturation", [None, 0.3])
def test_prediction_holds(engine, per_sample, n, d, draws, power, saturation):
    """Traced peaks stay below the prediction, which is at most about twice too large."""
    X, mu = gen.noise(n, d).astype(np.float32), np.full(d, 0.5, np.float32)
    eps = gen.draws(0, d, n if per_sample else None, draws).astype(np.float32)
    evaluate = get_engine(engine, bk, 1)
    small = [a[..., :3] for a in (mu, eps[:, :9] if per_sample else eps)]
    objective = Objective(power=power, saturation=saturation)
    evaluate(bk, objective, *small, np.asfortranarray(X[:9, :3]))  # compiles
    tracemalloc.start()
    try:
        for _ in range(2):
            evaluate(bk, objective, mu, eps, X)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    size = StepSize(n, d, draws, 4, power, False, per_sample, saturating=saturation is not None)
    predicted = predicted_bytes(engine, size)
    assert peak <= 1.1 * predicted
    assert predicted <= 2.2 * peak + 1e6


@pytest.mark.parametrize(("n", "d", "dtype"), [(128, 450, np.float32), (300, 400, np.float64), (60, 200, np.float32)])
def test_the_screening_of_pairs_is_counted(n, d, dtype):
    """Of the pairs themselves, and of shuffled ones; where no run can follow it does not happen."""
    screening = PairwiseHSIC(bk, gen.noise(n, d).astype(dtype), np.arange(d))
    tracemalloc.start()
    try:
        assert len(screening.strongest) == min(d, 400)
        screening.all_dependent(np.arange(2))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    size = np.dtype(dtype).itemsize
    assert abs(hsic_bytes(n, d, size) / peak - 1) < 0.15


@pytest.mark.parametrize(
    ("n", "d"), [(100, 6000), (1100, 300), (700, 9000), (60, 200), (3, 20_000)]
)  # 1,100 rows and 20,000 columns are cut
def test_the_order_of_representatives_is_counted(n, d):
    X = np.random.default_rng(0).normal(size=(n, d)).astype(np.float32)
    tracemalloc.start()
    try:
        diverse_order(bk, X, np.full(d, 2.0), 40)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert -0.05 < diverse_order_bytes(n, d) / peak - 1 < 0.3


def peak_of_a_search(n, d, threads, sources_of):
    """Bytes traced while a set is looked for among columns with more than 64 partners each."""
    X = np.random.default_rng(0).normal(size=(n, d)).astype(np.float32)
    X[:, : d // 2] += 3 * X[:, :1]
    objective = Objective(power=1, bandwidth="median", n_neighbors=5, bandwidth_factor=1.0, self_loops=False)
    tracemalloc.start()
    try:
        find_structure(bk, sources_of(X), threads, objective)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("n", "d"), [(100, 3000), (600, 300), (512, 2000), (60, 100), (200, 25), (30, 3000)])
@pytest.mark.parametrize("threads", [1, 2])
def test_decoys_and_their_pairs_are_counted(n, d, threads):
    def of_table(X):
        pools = build_pools(bk, X, np.arange(d), Exchange.of(bk, Rows(n), 0, threads))
        return Sources.of_table(bk, *pools, threads)

    peak = peak_of_a_search(n, d, threads, of_table)
    assert peak <= decoy_bytes(n, d, 4, threads) <= 2.5 * peak + 2e7


@pytest.mark.parametrize(("n", "d"), [(600, 100), (2000, 60), (600, 700)])
@pytest.mark.parametrize("threads", [1, 2])
def test_decoys_in_blocks_are_counted(n, d, threads):
    """Some of them with more columns than rows; the time for functions of columns is spent on some of the blocks."""

    def of_blocks(X):
        pools = BlockPools(bk, Blocks(bk, X, Rows(n), 0, threads, n), np.arange(d), True, 0)
        return Sources.of_blocks(bk, pools, threads, lambda done: None)

    peak = peak_of_a_search(n, d, threads, of_blocks)
    assert peak <= block_bytes(n, n, d, 4, threads) <= 2.5 * peak + 2e7


@pytest.mark.parametrize(("n", "d"), [(3000, 100), (100, 20_000), (100_000, 60)])
def test_the_scaling_of_an_array_is_counted(n, d):
    X = np.random.default_rng(0).normal(size=(n, d)).astype(np.float32)
    tracemalloc.start()
    try:
        scaled = scale_columns(X, "columns", np.float32, is_calm=True)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert abs((scaling_bytes(n, d) + scaled.X.nbytes) / peak - 1) < 0.1


def test_sparse_data_are_counted_without_them():
    """From their density, as from the matrix."""
    X = sparse.random_array((400, 300), density=0.05, format="csr", dtype=np.float32, rng=0)
    there = FitTask.begin(decoys(backend="numpy"), X, threads=2)
    told = Stored.evenly(400, 300, 0.05)
    step, kept = plan_of(there.settings, there.procedure, 400, 300, 2, told)
    assert told.entries == X.nnz
    assert (step.after, kept) == (there.memory[0].after, there.memory[1])


def test_an_impossible_fit_is_refused_before_it_allocates():
    """60,000 rows in the dense form: 14.4 GB for each n x n array. Peak memory is measured, not the message."""
    code = (
        "import resource, numpy as np\n"
        "from dufs_core import GatedLaplacian\n"
        "from dufs_core.errors import MemoryLimitError\n"
        "X = np.random.default_rng(0).normal(size=(60_000, 50)).astype(np.float32)\n"
        "GatedLaplacian(max_iter=1, max_runs=1, random_state=0, n_draws=2, backend='numpy').fit(X[:20])\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n"
        "    GatedLaplacian(engine='dense', backend='numpy', max_memory=20 * 10**9, random_state=0).fit(X)\n"
        "except MemoryLimitError as error:\n"
        "    print(error)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    message, grown = out.splitlines()
    assert "60,000 rows and 50 columns" in message
    assert "one n x n array takes 14.4 GB); 20 GB are allowed by max_memory" in message
    assert re.search(r'engine="streaming" would need \d+ MB', message)
    kilobytes = 1 if sys.platform != "darwin" else 1000  # macOS counts bytes
    assert int(grown) / kilobytes < 60_000  # the copy of X alone would be 12,000


@pytest.mark.parametrize("settings", [{}, {"batch_size": 100}])
def test_what_follows_the_steps_is_named_where_no_step_would_help(settings):
    X = np.zeros((3000, 100), np.float32)
    with pytest.raises(MemoryLimitError, match=r"^What comes before and after .* need \d\d MB .* 30 MB are allowed by"):
        gated(max_memory=30_000_000, **settings).fit(X)


@pytest.mark.filterwarnings("ignore::dufs_core.errors.SelectionWarning")
def test_the_advice_fits():
    X = gen.noise(300, 4)
    settings = {"max_iter": 1, "max_runs": 1, "random_state": 0, "n_draws": 2, "engine": "dense", "backend": "numpy"}
    step, data = FitTask.begin(gated(**settings), X, threads=1).memory
    limit = data + step.after + 500_000
    with pytest.raises(MemoryLimitError, match=r"Set batch_size=\d+ or less") as caught:
        gated(**settings, max_memory=limit).fit(X)
    assert isinstance(caught.value, MemoryError)
    assert isinstance(caught.value, DufsError)
    size = int(str(caught.value).split("batch_size=")[1].split()[0])
    assert 10 <= size < 300
    assert gated(**settings, max_memory=limit, batch_size=size).fit(X).n_iter_ == 1
    with pytest.raises(MemoryLimitError):
        gated(**settings, max_memory=limit, batch_size=2 * size).fit(X)


@pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")
@pytest.mark.parametrize(("shape", "limit"), [((2000, 300), 45), ((2000, 300), 60), ((1000, 1500), 80)])
def test_the_advice_fits_whatever_the_number_of_draws(shape, limit):
    """More draws are taken on up to 256 rows, and a batch in hand is kept beside the data."""
    X = gen.noise(*shape)
    how = {"max_iter": 1, "random_state": 0, "backend": "numpy", "max_memory": limit * 10**6}
    said = ""
    try:
        gated(**how).fit(X)
    except MemoryLimitError as error:
        said = str(error)
    if found := re.search(r"batch_size=(\d+)", said):
        assert gated(**how, batch_size=int(found[1])).fit(X).n_iter_ <= 1
    else:
        assert not said or "use fewer" in said


@pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")
def test_a_fit_without_steps_is_refused_with_what_it_needs():
    X = gen.noise(600, 2000)
    said = r"A fit of 600 rows and 2,000 columns would need .*, 4.8 MB of it for the data; 30 MB are allowed"
    with pytest.raises(MemoryLimitError, match=said):
        decoys(random_state=0, backend="numpy", max_memory=30 * 10**6).fit(X)


def test_where_no_batch_fits_the_data_are_named():
    size = StepSize(1000, 1000, 4, 4)
    with pytest.raises(MemoryLimitError, match=r"The data alone take 400 MB: use fewer rows or columns"):
        check_memory(bk, "dense", size, 400_000_000, 300_000_000, lambda n: (size._replace(n=n), 400_000_000))


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "8GB", True])
def test_a_limit_that_is_no_number_of_bytes(wrong):
    with pytest.raises(ValueError, match="max_memory must be None or a positive number of bytes"):
        GatedLaplacian(max_memory=wrong).fit(gen.noise(10, 3))


def test_available_memory():
    available = available_bytes(bk)
    if not sys.platform.startswith("linux"):
        assert available is None
    else:
        assert 10**7 < available < 2**46


def test_a_limit_of_the_process_counts():
    """As of ulimit -v: what is left below it, and no data file that would not fit is begun."""
    if not hasattr(resource, "RLIMIT_AS"):
        pytest.skip("this system cannot limit a process's memory")
    code = (
        "import resource, scipy.sparse, sys\n"
        "from dufs_core.backend import get_backend\n"
        "from dufs_core.backend.memory import available_bytes\n"
        "from dufs_core.cli.main import main\n"
        "resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))\n"
        "assert 1 << 29 < available_bytes(get_backend('numpy')) < 4 << 30\n"
        "scipy.sparse.save_npz(sys.argv[1], scipy.sparse.csr_array((10**4, 10**5)))\n"
        "sys.exit(main(['fit', sys.argv[1]]))\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/wide.npz"
        run = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
    assert run.returncode == 2, run.stderr
    assert "made dense, would take 8 GB;" in run.stderr


def test_a_failed_allocation_leaves_the_next_fit_whole():
    """The limit of the process instead of ours: NumPy's MemoryError, then a smaller fit in the same process."""
    if not hasattr(resource, "RLIMIT_AS"):
        pytest.skip("this system cannot limit a process's memory")
    code = (
        "import resource, numpy as np\n"
        "from dufs_core import GatedLaplacian\n"
        "settings = dict(max_iter=1, max_runs=1, random_state=0, n_draws=2, backend='numpy', n_jobs=1)\n"
        "settings |= dict(engine='dense')\n"
        "X = np.random.default_rng(0).normal(size=(6000, 3)).astype(np.float32)\n"
        "GatedLaplacian(**settings).fit(X[:20])\n"
        "pages = int(open('/proc/self/statm').read().split()[0])\n"
        "limit = pages * resource.getpagesize() + 300_000_000\n"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        "try:\n"
        "    GatedLaplacian(**settings, max_memory=10**12).fit(X)\n"
        "except MemoryError as error:\n"
        "    print(type(error).__name__)\n"
        "print(GatedLaplacian(**settings, batch_size=500).fit(X).n_iter_)"
    )
    if not sys.platform.startswith("linux"):
        pytest.skip("/proc/self/statm is Linux's")
    out = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert out.split()[1:] == ["1"]
    assert "MemoryError" in out.split()[0]
