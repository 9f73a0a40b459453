"""bench.felt: what is measured, with which package, and what is kept and printed."""

import json
import subprocess

import numpy as np
import pytest
from scipy import sparse

from bench import felt, planted
from bench.felt import Package

LEAVES_ONE = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(0.6)'])"


@pytest.fixture
def package(tmp_path):
    """A checkout of another dufs_core, and an empty folder for its kernels."""
    (tmp_path / "dufs_core").mkdir()
    (tmp_path / "dufs_core" / "__init__.py").write_text("other = 17")
    (tmp_path / "kernels").mkdir()
    return Package(tmp_path, str(tmp_path / "kernels"))


def test_a_process_has_the_package_and_the_kernels_of_its_checkout(package):
    code = "import os, dufs_core; print(dufs_core.other, os.environ['NUMBA_CACHE_DIR'])"
    seconds, line, _ = felt.process(package, "-c", code)
    assert line == f"17 {package.kernels}"
    assert seconds > 0


def test_gates_of_a_checkout_with_one_selector_are_dufs_without_a_rate(package):
    (package.root / "dufs_core" / "__init__.py").write_text("def DUFS(**settings): return settings")
    code = "from dufs_core import GatedLaplacian, Graph; print(GatedLaplacian(max_iter=1, graph=Graph(power=2)))"
    assert felt.process(package, "-c", felt.EARLIER + code)[1] == "{'fdr': None, 'power': 2, 'max_iter': 1}"


def test_a_failure_is_told_by_its_last_line(package):
    with pytest.raises(RuntimeError, match=r"^ValueError: no such luck$"):
        felt.process(package, "-c", "raise ValueError('no such luck')")
    with pytest.raises(RuntimeError, match=r"^ended with 3$"):
        felt.process(package, "-c", "import os; os._exit(3)")


def test_what_a_process_leaves_is_waited_for_but_not_counted(package):
    seconds, _, left = felt.process(package, "-c", LEAVES_ONE)
    assert left > 0.3
    assert seconds < 0.6 + left


def test_a_program_is_run_again_where_it_compiled(package, monkeypatch):
    calls = []

    def process(package, *arguments, timeout):
        calls.append(json.loads(arguments[-1]))
        if len(calls) < 3:
            (package.root / "kernels" / str(len(calls))).touch()
        return 1.0, str(len(calls)), 0.0

    monkeypatch.setattr(felt, "process", process)
    assert felt.inside(package, "felt.baseline", "LS", "data") == 3
    assert calls == [["felt.baseline", "LS", "data"]] * 3


def test_a_program_that_is_ended_has_the_limit_as_its_seconds(package, monkeypatch):
    def process(package, *arguments, timeout):
        raise subprocess.TimeoutExpired("python", timeout)

    monkeypatch.setattr(felt, "process", process)
    assert felt.inside(package, "felt.baseline", timeout=90.0) == {"seconds": 90.0}


def test_packages_take_turns_and_medians_are_compared(package):
    taken = []

    def run(package, turn):
        taken.append((package.kernels, turn))
        return {"seconds": [1.0, 5.0, 2.0][turn] * (3 if package.kernels == "old" else 1)} | (
            {} if turn else {"x": 7.0}
        )

    packages = [package._replace(kernels="new"), package._replace(kernels="old")]
    (record,) = felt.measured("fits", "this", run, 3, packages)
    assert taken == [(kernels, turn) for turn in range(3) for kernels in ("new", "old")]
    numbers = {"seconds": 2.0, "x": 7.0, "before_seconds": 6.0, "before_x": 7.0, "faster": 3.0}
    assert record == {"part": "fits", "what": "this"} | numbers
    (record,) = felt.measured("fits", "this", run, 1, packages[:1])
    assert record == {"part": "fits", "what": "this", "seconds": 1.0, "x": 7.0}


def test_what_is_long_is_measured_once_and_planted_problems_are_averaged(package):
    def run(package, turn):
        return {name: {"seconds": 30.0 * (turn + 1)} for name in ("DUFS", "LS")}

    assert [r["seconds"] for r in felt.measured("fits", "", run, 3, [package])] == [30, 30]
    records = list(felt.measured("planted", "", run, 3, [package]))
    assert [(r["what"], r["seconds"]) for r in records] == [("DUFS", 60), ("LS", 60)]


def test_who_reaches_the_selection_of_a_whole_fit(monkeypatch):
    rng = np.random.default_rng(1)
    truth = np.arange(30) < 4
    X = rng.normal(size=(60, 30)) + 4 * truth * (np.arange(60) % 2)[:, None]
    p = planted.Planted(
        ((X - X.mean(axis=0)) / X.std(axis=0)).astype(np.float32), truth, np.arange(60) % 2, np.ones(30)
    )
    monkeypatch.setattr(planted, "planted", lambda *problem: p)
    monkeypatch.setattr(planted, "warm_up", lambda method, n: None)
    rows = felt.same_selection(["DUFS", "variance"], "this", 4, 26, 0)
    assert set(rows) == {"DUFS", "variance"}
    assert (rows["DUFS"]["top_r"], rows["DUFS"]["reached"]) == (1.0, 1.0)
    monkeypatch.setitem(planted.METHODS, "variance", planted.Method(lambda *_: planted.ordered(np.arange(30.0))))
    row = felt.same_selection(["DUFS", "variance"], "this", 4, 26, 0)["variance"]
    assert (row["top_r"], row["reached"]) == (0.0, 0.0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", ["decoys", "gates"])
def test_shares_of_a_fit(method, monkeypatch):
    monkeypatch.setitem(felt.DATA, "this", lambda: np.random.default_rng(0).normal(size=(50, 30)) ** 3)
    numbers = felt.whole_fit("this", method, {}, True)
    assert numbers["seconds"] > 0
    assert (numbers["training"] > 0) == (method == "gates")
    assert 0 < numbers["rest_of_search"] < 1 - numbers["training"]


def test_columns_of_largest_deviation_keep_their_order():
    X = np.arange(12.0).reshape(4, 3) * [2, 1, 3]
    np.testing.assert_array_equal(felt.deviating(sparse.csr_array(X), 2), X[:, [0, 2]])


def test_more_columns_are_shuffled_ones(monkeypatch):
    pixels = np.random.default_rng(0).integers(0, 255, (3500, 4, 4))
    monkeypatch.setattr(felt, "required", lambda name: [name])
    monkeypatch.setattr(felt, "read_idx", lambda name: pixels)
    X = felt.images(10)
    np.testing.assert_array_equal(X[:, :16], pixels[:3000].reshape(3000, 16))
    np.testing.assert_array_equal(np.sort(X[:, 16:], axis=0), np.sort(X[:, :10], axis=0))
    assert (X[:, 16:] != X[:, :10]).any(axis=0).all()


def test_a_folder_without_the_package_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        felt.main(["--against", str(tmp_path)])
    assert "has none" in capsys.readouterr().err


def test_records_of_other_parts_stay_and_failures_are_kept(tmp_path, monkeypatch, capsys):
    def run(package, turn):
        raise RuntimeError("PCMAC.mat not in DUFS_DATA")

    old = [{"part": part, "what": "old", "seconds": 1.0} for part in ("fits", "start")]
    (tmp_path / "felt.json").write_text(json.dumps({"records": old}))
    monkeypatch.setattr(felt, "cases", lambda parts, quick: [("fits", "PCMAC", run, 3)])
    felt.main(["--only", "fits", "--json", str(tmp_path / "felt.json")])
    kept = json.loads((tmp_path / "felt.json").read_text())["records"]
    failed = {"part": "fits", "what": "PCMAC", "failed": "PCMAC.mat not in DUFS_DATA"}
    assert kept == [old[1], failed]
    assert "| fits | PCMAC | - | - | - | failed PCMAC.mat not in DUFS_DATA |" in (tmp_path / "felt.md").read_text()
