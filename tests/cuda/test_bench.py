"""The GPU benchmark runs through on the stand-in device, keeps what is done, and says why it cannot run without one."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from dufs_core.errors import BackendUnavailableError

gpu = pytest.importorskip("bench.gpu", reason="bench/ is not beside the tests")
gpu_slices = gpu.gpu_slices
pytestmark = pytest.mark.cuda_launch
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def pretended(device, monkeypatch):
    """bench.gpu with the stand-in for a card, tiny problems, and no slices that start other processes."""
    from dufs_core.backend import cupy as cupy_backend

    monkeypatch.setattr(cupy_backend, "cupy_backend", lambda: device)
    monkeypatch.setattr(gpu, "get_backend", lambda name: device)
    monkeypatch.setattr(gpu_slices, "card", lambda bk: {"name": "pretended"})
    monkeypatch.setattr(gpu_slices, "QUICK", [(6, 3, 2)])
    monkeypatch.setattr(gpu.gpu_streaming, "QUICK", [(6, 3)])
    monkeypatch.setattr(gpu_slices, "QUICK_SIDE", 64)
    monkeypatch.setattr(gpu_slices, "QUICK_STEPS", [(6, 3)])
    monkeypatch.setattr(gpu_slices, "QUICK_POPULATIONS", [(6, 3, 4)])
    monkeypatch.setattr(gpu_slices, "QUICK_FITS", ((8, 3, 2),))
    for name in ("correctness", "first_call"):
        monkeypatch.setitem(gpu.SLICES, name, lambda bk, quick: {"failed": 0})
    return device


def test_slices_are_kept_and_resumed(pretended, tmp_path, capsys, monkeypatch):
    file = tmp_path / "gpu.json"
    assert gpu.main(["--quick", "--json", str(file), "--only", "correctness", "kernels"]) == 0
    assert gpu.main(["--quick", "--json", str(file)]) == 0
    out = capsys.readouterr().out
    assert "kernels: done already" in out
    result = json.loads(file.read_text())
    assert list(result["slices"]) == [
        "correctness",
        "kernels",
        "machine",
        "steps",
        "population",
        "fits",
        "memory",
        "streaming",
        "first_call",
    ]
    assert all(found["card"] == "pretended" for found in result["slices"].values())
    (kernels,) = result["slices"]["kernels"]["found"]
    assert {"gated<T>", "distances<T>", "backward<T>", "loss<T>"} <= set(kernels["milliseconds"])
    (step,) = result["slices"]["steps"]["found"]
    assert step["ours"]["median"] > 0
    assert step["without_graphs"]["median"] > 0
    assert step["products"] > 0
    assert all(isinstance(step[peer], str | dict) for peer in ("featselectlib", "torch"))
    (population,) = result["slices"]["population"]["found"]
    assert list(population["times_one"]) == ["1", "4"]
    (step,) = result["slices"]["streaming"]["found"]["steps"]
    assert step["engine"]["median"] > 0
    assert step["gram_form"]["median"] > 0
    assert step["predicted"] > 0
    (fit,) = result["slices"]["fits"]["found"]
    assert fit["cupy"]["seconds"] > 0
    assert fit["cupy"]["top"] == fit["numpy"]["top"]
    monkeypatch.setattr(gpu_slices, "card", lambda bk: {"name": "another"})  # numbers of two cards are never mixed
    assert gpu.main(["--quick", "--json", str(file), "--only", "memory"]) == 0
    assert list(json.loads(file.read_text())["slices"]) == ["memory"]


def test_wrong_numbers_fail_the_command(pretended, tmp_path, monkeypatch):
    monkeypatch.setitem(gpu.SLICES, "correctness", lambda bk, quick: {"failed": 2})
    assert gpu.main(["--quick", "--json", str(tmp_path / "gpu.json"), "--only", "correctness"]) == 1


def test_without_a_gpu_it_says_why(tmp_path, monkeypatch):
    def none(name):
        raise BackendUnavailableError(name, "there is no CUDA device")

    monkeypatch.setattr(gpu, "get_backend", none)
    assert gpu.main(["--json", str(tmp_path / "gpu.json")]) == 2
    assert not (tmp_path / "gpu.json").exists()


def test_the_command_itself(tmp_path, device):
    if find_spec("cupy") is not None:
        from dufs_core.backend.cupy import _try

        if not isinstance(_try(), str):
            pytest.skip("this machine has a GPU: the command would measure on it")
    done = subprocess.run(
        [sys.executable, "-m", "bench.gpu", "--quick", "--json", str(tmp_path / "gpu.json")],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stderr.startswith(
        'bench.gpu measures on a GPU only, and there is none to use: backend="cupy" cannot be'
    )
