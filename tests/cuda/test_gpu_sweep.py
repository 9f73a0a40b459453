"""On a machine with a GPU: sweeps as populations on the card, killed and asked to stop in processes of their own.

The tests of the stand-in device run here on the real one as well.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import test_population_sweep
from test_gpu import device, on_gpu
from test_population_sweep import rows_and_bits

from dufs_core.cli.sweep import read_job
from dufs_core.cli.sweep.worker import size_of_stack

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::dufs_core.errors.SelectionWarning")]
__all__ = ["device", "on_gpu"]
globals().update({
    name: value for name, value in vars(test_population_sweep).items()
    if name.startswith("test_") or name in ("job", "sizes", "undisturbed")
})  # fmt: skip
ROOT = Path(__file__).resolve().parents[2]
LONG = """
seeds = [0, 1, 2, 3, 4]
checkpoint_seconds = 0
[[data]]
path = "two-moons"
samples = 100
features = 50
[[data]]
path = "two-moons"
name = "in minibatches"
samples = 90
features = 10
settings = {batch_size = 40, max_iter = 100}
[settings]
method = "gates"
backend = "cupy"
max_runs = 2
max_iter = 6000
tol = 0
learning_rate = 1e-4
[grid]
lam = ["none", 0.01, 0.1]
"""


def sweep(job, out):
    command = "import sys; from dufs_core.cli.main import main; sys.exit(main())"
    return subprocess.Popen(
        [sys.executable, "-c", command, "sweep", str(job), "--out", str(out), "--resume", "--json"], cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def alone(device, tmp_path_factory):
    """The long job in one go: its file, and what it found."""
    folder = tmp_path_factory.mktemp("alone")
    (folder / "job.toml").write_text(LONG)
    began = time.monotonic()
    process = sweep(folder / "job.toml", folder / "out")
    said, complained = process.communicate(timeout=300)
    assert process.returncode == 0, complained
    print(f"30 fits in {time.monotonic() - began:.1f} s, without a disturbance")
    found = rows_and_bits(folder / "out")
    assert json.loads(said)["done"] == len(found) == 30
    assert {(row["data"], row["together"], row["backend"]) for row, _ in found.values()} == {
        ("two-moons", 15, "cupy"), ("in minibatches", 1, "cupy"),
    }  # fmt: skip
    return folder / "job.toml", found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_sweep_that_is_ended_goes_on_with_the_same_bits(alone, tmp_path, number):
    """Ended as soon as there are states of the population, and again later, inside a save as likely as not."""
    job, undisturbed = alone
    ends = []
    for wait in (0.0, 0.3, 1.0):
        process = sweep(job, tmp_path)
        end = time.monotonic() + 60
        while process.poll() is None and len(list(tmp_path.glob("checkpoints/*.ckpt"))) < 15:
            assert time.monotonic() < end, "there are no checkpoints"
            time.sleep(0.01)
        time.sleep(wait)
        process.send_signal(number)
        _, complained = process.communicate(timeout=60)
        ends.append(process.returncode)
        assert process.returncode in (0, -9 if number == signal.SIGKILL else 3), complained
    assert ends[0] != 0
    process = sweep(job, tmp_path)
    said, complained = process.communicate(timeout=300)
    assert process.returncode == 0, complained
    assert json.loads(said)["done"] == 30
    found = rows_and_bits(tmp_path)
    assert found.keys() == undisturbed.keys()
    assert {fit: arrays for fit, (_, arrays) in found.items()} == {fit: a for fit, (_, a) in undisturbed.items()}


def test_what_cublas_multiplies_is_computed_one_by_one(device, tmp_path):
    """Its rounding may depend on how many matrices there are; then a fit's company would change its bits."""
    (tmp_path / "job.toml").write_text(LONG.replace("features = 50", "features = 5000"))
    fits = read_job(tmp_path / "job.toml").fits[:15]
    assert size_of_stack(fits) == 1


def test_a_dry_run_on_the_card(device, tmp_path, capsys):
    from dufs_core.cli.main import main

    (tmp_path / "job.toml").write_text(LONG)
    assert main(["sweep", str(tmp_path / "job.toml"), "--dry-run", "--json"]) == 0
    fits = json.loads(capsys.readouterr().out)["fits"]
    assert [(fit["together"], fit.get("error")) for fit in fits] == [(15, None)] * 15 + [(1, None)] * 15
    assert all(fit["bytes"] > 0 for fit in fits)
    assert fits[0]["bytes"] > 10 * fits[-1]["bytes"]
