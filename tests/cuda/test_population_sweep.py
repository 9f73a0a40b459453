"""Sweeps on a GPU: fits of one data set are populations, with the bits of each alone, whatever stops them."""

from __future__ import annotations

import importlib.util
import json
import warnings
from dataclasses import replace

import pytest

from dufs_core.cli.main import main
from dufs_core.cli.sweep import read_job
from dufs_core.cli.sweep.pool import this_process
from dufs_core.cli.sweep.results import Store
from dufs_core.cli.sweep.runner import run
from dufs_core.cli.sweep.selector import new_selector
from dufs_core.cli.sweep.worker import size_of_stack
from dufs_core.datasets import two_moons
from dufs_core.errors import SelectionWarning
from dufs_core.objective.engines.gpu_steps import CudaSteps
from dufs_core.selection import atomic_io
from dufs_core.selection import fit_many as population
from dufs_core.selection.checkpoint import Checkpoint
from dufs_core.training import loop

pytestmark = [pytest.mark.cuda_launch, pytest.mark.filterwarnings("ignore::dufs_core.errors.SelectionWarning")]
JOB = """
seeds = [0, 1]
checkpoint_seconds = 0
[[data]]
path = "two-moons"
samples = 8
features = 3
[settings]
method = "gates"
backend = "cupy"
n_draws = 2
max_runs = 2
learning_rate = 0.3
tol = 0.3
max_iter = 8
[grid]
lam = ["none", 0.3]
"""


def pretend(device, monkeypatch):
    """Every backend that is asked for is the stand-in, except by the name "numpy"."""
    import dufs_core.backend.cupy

    monkeypatch.setattr(dufs_core.backend.cupy, "cupy_backend", lambda: device)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: find("numpy" if name == "cupy" else name))


def written(folder):
    (folder / "job.toml").write_text(JOB)
    return read_job(folder / "job.toml")


def counted_sizes(monkeypatch):
    """How many fits every stack has that advances, one step at a time, in order."""
    monkeypatch.setattr(loop, "_CALL_SECONDS", 0.0)
    found, advance = [], CudaSteps.advance

    def counted(self, *arguments):
        found.append(len(self._specs))
        return advance(self, *arguments)

    monkeypatch.setattr(CudaSteps, "advance", counted)
    return found


@pytest.fixture
def on_gpu(device, monkeypatch):
    pretend(device, monkeypatch)
    return device


@pytest.fixture
def job(tmp_path):
    return written(tmp_path)


@pytest.fixture
def sizes(monkeypatch):
    return counted_sizes(monkeypatch)


def swept(job, directory, resume=False):
    return run(job, Store(directory), this_process(), resume)


def rows_and_bits(directory):
    found = {}
    for path in directory.glob("fits/*.npz"):
        arrays = atomic_io.unpack_npz(path.read_bytes(), path)
        row = json.loads(str(arrays.pop("row")))
        found[path.stem] = row, {name: array.tobytes() for name, array in arrays.items()}
    return found


@pytest.fixture(scope="module")
def whole(new_device, tmp_path_factory):
    """A sweep that nothing stops: its report, the sizes of its stacks, its rows and arrays.

    Once for all tests, since every step of the stand-in takes long.
    """
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as monkeypatch, warnings.catch_warnings():
        warnings.simplefilter("ignore", SelectionWarning)
        pretend(new_device(), monkeypatch)
        sizes = counted_sizes(monkeypatch)
        report = swept(written(folder), folder / "out")
    return report, sizes, rows_and_bits(folder / "out")


@pytest.fixture(scope="module")
def undisturbed(whole):
    """The arrays of every fit of the job."""
    return {fit: arrays for fit, (_, arrays) in whole[2].items()}


def test_fits_of_a_data_set_are_one_population(on_gpu, job, whole):
    """And each is what it is outside of any sweep."""
    report, sizes, found = whole
    assert (report.done, report.failed) == (4, 0)
    assert sizes[0] == 4
    X = two_moons(8, 3, random_state=0).X
    for fit in job.fits:
        row, arrays = found[fit.id]
        alone = new_selector(fit).fit(X)
        assert (row["status"], row["together"]) == ("done", 4)
        assert (row["n_iter"], row["n_runs"], row["loss"]) == (alone.n_iter_, alone.n_runs_, alone.history_["loss"][-1])
        assert arrays["mu"] == alone.mu_.tobytes()
        assert arrays["history/loss"] == alone.history_["loss"].tobytes()
    assert len({row["n_iter"] for row, _ in found.values()}) > 1


def assert_undisturbed(directory, undisturbed):
    assert {fit: arrays for fit, (_, arrays) in rows_and_bits(directory).items()} == undisturbed


@pytest.mark.parametrize("looks", [6, 10])
def test_a_population_is_stopped_and_goes_on(on_gpu, job, tmp_path, sizes, monkeypatch, undisturbed, looks):
    """All states are saved, those of fits that have ended too; one is lost, and goes on from the state before it."""
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr("dufs_core.cli.sweep.results.Store.is_to_end", lambda self: len(sizes) >= looks)
        assert swept(job, out).interrupted
    assert len(sizes) == looks
    saved = [atomic_io.unpack_npz(path.read_bytes(), path) for path in out.glob("checkpoints/*.ckpt")]
    assert len(saved) == 4
    steps = [len(state["records"]) for state in saved]
    assert looks != 6 or len(set(steps)) > 1, "no fit had ended before the others"
    last = Checkpoint(next(out.glob("checkpoints/*.ckpt")))
    last.path.write_bytes(b"half")
    report = swept(job, out, resume=True)
    assert report.done == 4
    assert_undisturbed(out, undisturbed)
    assert all("The state before it is used" in row["warnings"] for row, _ in rows_and_bits(out).values())


def test_a_population_that_fails_is_computed_one_by_one(on_gpu, job, tmp_path, sizes, monkeypatch, undisturbed):
    monkeypatch.setattr(population, "train", lambda *arguments: 1 / 0)
    assert swept(job, tmp_path / "out").done == 4
    assert set(sizes) == {1}
    assert all(row["together"] == 1 for row, _ in rows_and_bits(tmp_path / "out").values())
    assert_undisturbed(tmp_path / "out", undisturbed)


def test_memory_and_cublas_limit_a_population(on_gpu, job, monkeypatch):
    """As many as there is room for; one where products are not our own, whose rounding depends on their number."""
    assert size_of_stack(job.fits) == 4
    sizes = []
    for limit in range(20_000, 200_000, 10_000):
        sizes.append(size_of_stack([replace(fit, settings=fit.settings | {"max_memory": limit}) for fit in job.fits]))
    assert sizes == sorted(sizes)
    assert {1, 2, 4} <= set(sizes)
    monkeypatch.setattr("dufs_core.objective.engines.gpu_plan.CAPTURED_WORK", 0)
    assert size_of_stack(job.fits) == 1


def test_a_dry_run_predicts_populations(on_gpu, job, tmp_path, capsys):
    arguments = ["sweep", str(tmp_path / "job.toml"), "--dry-run"]
    assert main([*arguments, "--json"]) == 0
    fits = json.loads(capsys.readouterr().out)["fits"]
    assert [(fit["together"], fit.get("error")) for fit in fits] == [(4, None)] * 4
    (tmp_path / "job.toml").write_text(JOB.replace("[0, 1]", "[0]").replace('"none", 0.3', "0.3"))
    assert main([*arguments, "--json"]) == 0
    (alone,) = json.loads(capsys.readouterr().out)["fits"]
    assert 2 * alone["bytes"] < fits[0]["bytes"] < 4 * alone["bytes"]
    assert alone["together"] == 1
