"""The GPU benchmark on the stand-in device: no number is lost to the minutes, to errors or to what hangs."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_fit import on_gpu

from dufs_core.errors import BackendUnavailableError

gpu = pytest.importorskip("bench.gpu", reason="bench/ is not beside the tests")
report, slices = gpu.gpu_report, sys.modules["bench.gpu_slices"]
pytestmark = pytest.mark.cuda_launch
__all__ = ["on_gpu"]
ROOT = Path(__file__).resolve().parents[2]
TINY = {  # the arguments of every slice that starts no processes
    "planted": [(16, 3, 5, 1, "cupy"), (16, 3, 5, 2, "cupy"), (16, 3, 5, 1, "numpy")],
    "steps": [(6, 3, program) for program in ("ours", "featselectlib", "torch compiled", "torch", "products")],
    "population": [(6, 3, 1), (6, 3, 4)],
    "sparse": [(20, 30, 0.1)],
    "streaming": [(6, 3, 64)],
    "machine": [(64,)],
    "kernels": [(6, 3, 2)],
    "memory": [(6, 3, 2)],
    "choices": [(6, 3, choice) for choice in ("no graph", "own products", "library products")],
}


class Here:
    """A worker in this process; a call takes the seconds that its slice expects, on a clock of its own."""

    now, asked = 0.0, []

    def ask(self, seconds, function, name, case):
        Here.asked.append((name, *case))
        Here.now += gpu.SLICES[name].cases[case]
        try:
            return {"found": function(name, case)}
        except ImportError as error:
            return {"failed": str(error)}

    def end(self):
        pass


@pytest.fixture
def pretended(on_gpu, monkeypatch):
    """bench.gpu with the stand-in for a card and tiny problems, each expected to take 10 s."""
    monkeypatch.setattr(gpu, "get_backend", lambda name: on_gpu)
    for module in (gpu, slices):
        monkeypatch.setattr(module, "card", lambda bk: {"name": "pretended"})
    monkeypatch.setattr(gpu, "Worker", Here)
    monkeypatch.setattr(gpu, "clock", lambda: Here.now)
    monkeypatch.setattr(Here, "asked", [])
    monkeypatch.setattr(slices, "REPEATS", 2)
    monkeypatch.setattr(slices, "TOGETHER", 0.0)
    for name, cases in TINY.items():
        monkeypatch.setitem(gpu.SLICES, name, gpu.SLICES[name]._replace(cases=dict.fromkeys(cases, 10)))
    for name in ("tests", "first_call"):
        monkeypatch.setitem(
            gpu.SLICES, name, gpu.SLICES[name]._replace(measure=lambda bk, *case: {"failed": 0, "of": 0})
        )


def written(file):
    return {(r["slice"], *r["case"]): r for r in json.loads(file.read_text())["records"]}


@pytest.mark.usefixtures("pretended")
def test_the_clock_ends_it_at_every_slice(tmp_path, capsys):
    """Each call has time for one slice: what it measured is kept, and the next call begins where it ended."""
    file, names = tmp_path / "gpu.json", list(gpu.SLICES)
    for done, name in enumerate(names, 1):
        minutes = sum(gpu.SLICES[name].cases.values()) / 60
        assert gpu.main(["--minutes", str(minutes), "--json", str(file)]) == (done >= names.index("steps") + 1)
        assert {case[0] for case in written(file)} == set(names[:done])
        assert {said.split(",")[0] for said in json.loads(file.read_text())["skipped"]} >= set(names[done:])
        table = file.with_suffix(".md").read_text()
        assert all(f"| {other}" in table for other in names)
    assert "memory, 6, 3, 2: skipped: it may take 10 s, 0 s are left" in capsys.readouterr().out
    assert sorted(Here.asked, key=str) == sorted(written(file), key=str)  # each once
    failed = {case: r["failed"] for case, r in written(file).items() if "failed" in r}
    assert set(failed) <= {("steps", 6, 3, peer) for peer in ("featselectlib", "torch compiled", "torch")}
    found = {case: r["found"] for case, r in written(file).items() if case not in failed}
    selected = [found["planted", 16, 3, 5, 1, backend]["selected"] for backend in ("cupy", "numpy")]
    assert selected[0] == selected[1]
    assert {"gated<T>", "distances<T>", "backward<T>", "loss<T>"} <= set(found["kernels", 6, 3, 2])
    assert all(times["median"] > 0 for (name, *_), times in found.items() if name in ("steps", "population", "choices"))
    assert found["sparse", 20, 30, 0.1]["apart"] < 1e-4
    assert found["streaming", 6, 3, 64]["gram_form"] > 0
    assert found["memory", 6, 3, 2]["predicted"] > 0


@pytest.mark.usefixtures("pretended")
def test_what_failed_is_taken_again_after_all_others(tmp_path, monkeypatch):
    file, run = tmp_path / "gpu.json", ["--only", "machine", "memory", "--json", str(tmp_path / "gpu.json")]
    memory = gpu.SLICES["memory"]

    def fails(bk, *case):
        raise ImportError("no luck")

    monkeypatch.setitem(gpu.SLICES, "machine", gpu.SLICES["machine"]._replace(measure=fails))
    assert gpu.main([*run, "--minutes", "0.17"]) == 1  # 10 s
    assert written(file)["machine", 64]["failed"] == "no luck"
    monkeypatch.setitem(
        gpu.SLICES, "machine", memory._replace(measure=lambda bk, side: {"side": side}, cases={(64,): 10})
    )
    assert gpu.main(run) == 0
    assert [name for name, *_ in Here.asked] == ["machine", "memory", "machine"]
    assert written(file)["machine", 64]["found"] == {"side": 64}
    assert gpu.main(run) == 0
    assert len(Here.asked) == 3
    monkeypatch.setattr(gpu, "card", lambda bk: {"name": "another"})  # numbers of two cards are never mixed, or lost
    assert gpu.main([*run, "--minutes", "0.17"]) == 0
    assert len(json.loads(file.read_text())["records"]) == 3


@pytest.mark.usefixtures("pretended")
def test_tests_of_what_changed_come_first_and_fail_the_command(tmp_path, monkeypatch):
    run = ["--only", "tests", "--json", str(tmp_path / "gpu.json")]
    state = {area: area for area in slices.AREAS}
    monkeypatch.setattr(gpu, "area_fingerprint", state.get)
    measure = lambda bk, area, limit: {"failed": int(state[area] == "broken"), "of": state[area]}  # noqa: E731
    monkeypatch.setitem(gpu.SLICES, "tests", gpu.SLICES["tests"]._replace(measure=measure))
    assert gpu.main(run) == 0
    state |= {"sparse": "new", "streaming": "broken"}
    monkeypatch.setattr(gpu, "fingerprint", lambda paths: "new code")
    Here.asked.clear()
    assert gpu.main(run) == 1
    assert [area for _, area, _ in Here.asked] == ["sparse", "streaming", "dense", "fit", "sweep"]
    assert "| tests marked gpu that fail | <= 0 | 1 | missed |" in (tmp_path / "gpu.md").read_text()


def test_a_worker_outlives_what_fails_and_what_hangs(tmp_path):
    worker = gpu.Worker()
    try:
        assert worker.ask(60, math.sqrt, 4.0) == {"found": 2.0}
        first = worker.ask(60, os.getpid)["found"]
        assert worker.ask(60, importlib.import_module, "no_such_module")["failed"].startswith("ModuleNotFoundError: No")
        assert worker.ask(60, os.getpid)["found"] == first
        assert worker.ask(60, math.sqrt, -1.0)["failed"].startswith("ValueError: ")
        assert worker.ask(60, os._exit, 3) == {"failed": "its process ended with 3"}
        left = tmp_path / "left"  # would be written by what a process that is ended has started
        assert worker.ask(0.3, os.system, f"sleep 1; touch {left}") == {"failed": "ended after 0 s", "late": True}
        time.sleep(1.2)
        assert not left.exists()
        assert worker.ask(60, math.sqrt, 9.0) == {"found": 3.0}
    finally:
        worker.end()


def test_what_must_be_shown():
    """Every number has a target and is met, missed, or not measured for a stated reason."""
    found = {case: {"found": {"failed": 0, "seconds": 1.0, "median": 2.0, "over_floor": 3.0}}
             for target in report.TARGETS for case in target.cases}  # fmt: skip
    found["steps", 100, 20, "featselectlib"] = {"found": {"median": 31.0}}
    unfit = ("planted", *slices.PLANTED, 64, "cupy")
    del found[unfit]
    found["steps", 100, 5966, "torch compiled"] = {"failed": "ended after 75 s"}
    skipped = {unfit: "skipped: it may take 30 s, 2 s are left"}
    rows = [line.strip("| ").split(" | ") for line in report.tables(found, skipped).split("\n\n")[0].splitlines()[2:]]
    assert len(rows) == 16
    for row in (
        ["tests marked gpu that fail", "<= 0", "0", "met"],
        ["a fit with decoys, 20 of 2000 planted: seconds", "<= 0.2", "1", "missed"],
        ["64 seeds of it: seconds", "<= 3", "-", f"not measured: {report.label(*unfit)}: {skipped[unfit]}"],
        ["a step of 100 x 20: featselectlib over ours", ">= 15", "15.5", "met"],
        ["a step of 100 x 5966: torch compiled over ours", ">= 1.3", "-",
         "not measured: steps, 100, 5966, torch compiled: ended after 75 s"],
        ["a step of 64 fits of 100 x 5966: times that of one", "<= 4", "1", "met"],
        ["a streaming step of 5000 x 50: times its floor", "<= 3", "3", "met"],
    ):  # fmt: skip
        assert row in rows
    assert "| planted, 300, 20, 2000, 64, cupy | skipped: " in report.tables(found, skipped)


def test_all_fits_twelve_minutes():
    assert sum(seconds for _, cases in gpu.SLICES.values() for seconds in cases.values()) <= 12 * 60
    cases = {(name, *case) for name, (_, cases) in gpu.SLICES.items() for case in cases}
    assert cases >= {case for target in report.TARGETS for case in target.cases}


def test_every_test_of_a_card_is_in_one_area():
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-m", "gpu", "tests/cuda"]
    lines = subprocess.run(command, capture_output=True, text=True, cwd=ROOT).stdout.splitlines()
    names = [line.removeprefix("tests/cuda/") for line in lines if "::" in line]
    assert len(names) > 500
    assert len({slices.area_fingerprint(area) for area in slices.AREAS}) == 5
    areas = [slices.words(area).split(" and ") for area in slices.AREAS]
    for name in names:
        assert sum(all((w.removeprefix("not ") in name) != w.startswith("not ") for w in area) for area in areas) == 1


def test_outcomes_are_read_from_what_pytest_prints(monkeypatch, tmp_path):
    (tmp_path / "tests" / "cuda").mkdir(parents=True)
    (tmp_path / "tests" / "cuda" / "test_one.py").write_text(
        "import pytest, time\npytestmark = pytest.mark.gpu\ndef test_sparse_good(): pass\n"
        "@pytest.mark.parametrize('x', ['a b', 'c'])\ndef test_sparse_bad(x): assert x == 'c'\n"
        "def test_sparse_left_out(): pytest.skip('no')\ndef test_streaming_slow(): time.sleep(1000)\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    gpu\n")
    monkeypatch.setattr(slices, "ROOT", tmp_path)
    found = slices.tests(None, "sparse", 60)
    assert (found["passed"], found["failed"], found["skipped"]) == (2, 1, 1)
    assert "test_sparse_bad[a b]" in found["failures"][0]
    found = slices.tests(None, "streaming", 5)
    assert (found["passed"], found["failed"], found["ended"]) == (0, 1, "after 5 s, not all ran")


def test_without_a_gpu_it_says_why(tmp_path, monkeypatch):
    def none(name):
        raise BackendUnavailableError(name, "there is no CUDA device")

    monkeypatch.setattr(gpu, "get_backend", none)
    assert gpu.main(["--json", str(tmp_path / "gpu.json")]) == 2
    assert not (tmp_path / "gpu.json").exists()


def test_the_command_itself(tmp_path):
    if importlib.util.find_spec("cupy") is not None:
        from dufs_core.backend.cupy import _try

        if not isinstance(_try(), str):
            pytest.skip("this machine has a GPU: the command would measure on it")
    done = subprocess.run(
        [sys.executable, "-m", "bench.gpu", "--minutes", "12", "--json", str(tmp_path / "gpu.json")],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stderr.startswith(
        'bench.gpu measures on a GPU only, and there is none to use: backend="cupy" cannot be'
    )
