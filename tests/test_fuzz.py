"""bench.fuzz: it begins with files that are taken, and sees what it looks for."""

import os
import signal

import numpy as np
import pytest

fuzz = pytest.importorskip("bench.fuzz.__main__", reason="bench is not beside the tests")
from bench.fuzz.files import mutated, valid  # noqa: E402


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return valid(tmp_path_factory.mktemp("valid"))


@pytest.fixture
def unchanged(files, tmp_path, monkeypatch):
    """What becomes of the valid file of a name."""
    (tmp_path / "turned.npy").write_bytes(files["turned.npy"])
    monkeypatch.setattr(fuzz, "mutated", lambda random, name, files: files[name])
    return lambda name, turn=0: fuzz.outcome(list(files).index(name) + turn * len(files), files, tmp_path)[1]


def test_every_valid_file_is_taken(files, unchanged):
    for name in files:  # with some of the options: a turned text has its names in a column
        assert any(unchanged(name, turn) == "taken" for turn in range(4)), name


def test_a_number_always_gives_the_same_file(files):
    for number, name in enumerate(files):
        first, again = (mutated(fuzz.random.Random(number), name, files) for _ in range(2))
        assert first == again
        assert any(mutated(fuzz.random.Random(seed), name, files) != files[name] for seed in range(5))


def test_what_goes_wrong_is_seen(unchanged, monkeypatch):
    def fails(error):
        def raises(*args, **options):
            raise error

        return raises

    from dufs_core.cli import fit

    for error, what in ((KeyError("x"), "tracebacks"), (MemoryError(), "over_memory"), (ValueError("x"), "refused")):
        monkeypatch.setattr(fuzz.GatedLaplacian, "resume", fails(error))
        assert unchanged("dense.ckpt") == ("tracebacks" if what == "refused" else what)
        monkeypatch.setattr(fit, "_load", fails(error))
        assert unchanged("turned.npy") == what
    monkeypatch.undo()


def test_results_that_are_not_finite_are_seen(unchanged, monkeypatch):
    fitted = type("Fit", (), {"scores_": np.array([np.inf])})
    monkeypatch.setattr(fuzz.GatedLaplacian, "resume", lambda *a, **k: fitted)
    assert unchanged("dense.ckpt") == "nan"
    monkeypatch.setattr(fuzz, "command", lambda argv: print('{"scores": [1, null], "loss": 0, "bandwidth": 1}') or 0)
    assert unchanged("a.csv") == "nan"


def test_workers_that_die_or_hang_are_replaced(monkeypatch):
    """File 1 ends its worker by a signal, file 2 by the alarm; 0, 3 and 4 are taken."""
    script = (
        "import json, os, signal, sys\n"
        "for number in range(*json.loads(sys.argv[-1])):\n"
        "    print(json.dumps([number]), flush=True)\n"
        f"    number in (1, 2) and os.kill(os.getpid(), (0, {signal.SIGSEGV:d}, {signal.SIGALRM:d})[number])\n"
        "    print(json.dumps([number, 'a.csv', 'taken', '', 7]), flush=True)\n"
    )
    popen = fuzz.subprocess.Popen
    monkeypatch.setattr(fuzz.subprocess, "Popen", lambda argv, **o: popen([argv[0], "-c", script, argv[-1]], **o))
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    found = fuzz.run(5, 1.0)
    assert (found["inputs"], found["taken"], found["crashes"], found["hangs"], found["peak_mib"]) == (5, 3, 1, 1, 7)
    assert [one["number"] for one in found["bad"]] == [1, 2]
