"""Sweeps in this process and in others: results, resuming, signals, locks, full disks, fits that fail."""

import csv
import errno
import json
import os
import resource
import signal
import subprocess
import sys
import time
import warnings
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dufs_core import Checkpoint
from dufs_core.cli.main import main
from dufs_core.cli.sweep import JobError, read_job
from dufs_core.cli.sweep.pool import this_process
from dufs_core.cli.sweep.results import Result, Store
from dufs_core.cli.sweep.runner import run, until_signal
from dufs_core.cli.sweep.selector import new_selector
from dufs_core.cli.sweep.worker import Task, group_fits, load, work
from dufs_core.datasets import two_moons
from dufs_core.errors import DufsWarning, InterruptedFit
from dufs_core.selection import atomic_io
from dufs_core.significance import structure

JOB = """
seeds = [0, 1]
[[data]]
path = "two-moons"
samples = 40
features = 6
[settings]
method = "gates"
backend = "numpy"
n_draws = 2
max_runs = 1
max_iter = 30
tol = 0
[grid]
lam = ["none", 0.05]
"""
LONG = JOB.replace(
    "max_iter = 30", 'max_iter = 1000000\nlearning_rate = 1e-9\nengine = "reference"'
)  # nobody waits for its end
IMPORTS = str(Path(__file__).resolve().parents[2])
COMMAND = [
    sys.executable, "-c",
    f"import sys; sys.path.insert(0, {IMPORTS!r}); from dufs_core.cli.main import main; sys.exit(main())",
]  # fmt: skip


@pytest.fixture
def job(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(JOB)
    return path


def bits(directory):
    """The arrays of every fit, as bytes."""
    found = {}
    for path in Path(directory, "fits").glob("*.npz"):
        arrays = atomic_io.unpack_npz(path.read_bytes(), path)
        found[path.stem] = {name: array.tobytes() for name, array in arrays.items() if name != "row"}
    return found


def events(directory):
    return [json.loads(line) for line in Path(directory, "log.jsonl").read_text().splitlines()]


def started(directory):
    """How many fits were done at each start."""
    return [event["done"] for event in events(directory) if event["event"] == "started"]


def in_process(job, directory, *options, **changes):
    """A sweep in a process of its own, without anything around it that could keep it alive."""
    return subprocess.Popen(
        [*COMMAND, "sweep", str(job), "--out", str(directory), *options], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, **changes,
    )  # fmt: skip


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


# --- what comes out --------------------------------------------------------------------------------------------------


DECOYS = JOB.replace('method = "gates"', "fdr = 0.2").replace("n_draws = 2\nmax_runs = 1\nmax_iter = 30\ntol = 0\n", "")
DECOYS = DECOYS.replace('lam = ["none", 0.05]', "power = [1, 2]")


@pytest.mark.parametrize("text", [JOB, DECOYS], ids=["gates", "decoys"])
def test_results_are_those_of_the_same_fits_alone(job, tmp_path, capsys, text):
    job.write_text(text)
    assert main(["sweep", str(job), "--out", str(tmp_path / "out"), "--json"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert captured.err == ""  # no progress bar where nobody looks
    assert (document["fits"], document["done"], document["failed"]) == (4, 4, 0)
    X = two_moons(40, 6, random_state=0).X
    for fit in read_job(job).fits:
        with np.load(tmp_path / "out" / "fits" / f"{fit.id}.npz", allow_pickle=False) as archive:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DufsWarning)
                alone = new_selector(fit).fit(X)
            np.testing.assert_array_equal(archive["order"], alone.order_)
            row = json.loads(str(archive["row"]))
            assert row["seed"] == fit.seed
            if text is JOB:
                np.testing.assert_array_equal(archive["mu"], alone.mu_)
                np.testing.assert_array_equal(archive["history/loss"], alone.history_["loss"])
                assert (row["loss"], row["n_iter"]) == (alone.history_["loss"][-1], 30)
                assert (row["excess_score"], row["p_value"]) == (alone.excess_score_, alone.p_value_)
                assert "q_values" not in archive
                continue
            assert alone.fdr == 0.2
            for name in ("q_values", "evidence", "in_graph"):
                np.testing.assert_array_equal(archive[name], getattr(alone, f"{name}_"))
            assert row["n_found"] == (alone.q_values_ <= 0.2).sum()
            assert row["smallest_fdr"] == alone.q_values_.min()
            assert not {"excess_score", "loss", "n_iter"} & set(row)
    assert not list((tmp_path / "out" / "checkpoints").iterdir())
    assert [event["event"] for event in events(tmp_path / "out")] == ["started", *["done"] * 4, "finished"]


@pytest.fixture
def grouped(job):
    """X and the donors of its rows; the job file is of a CSV file of both, with decoys."""
    X = two_moons(60, 6, random_state=0).X
    donors = np.array(list("pqr") * 20)
    X[donors == "q"] += 3
    lines = [",".join([donor, *map(repr, row)]) for donor, row in zip(donors.tolist(), X.tolist(), strict=True)]
    (job.parent / "cells.csv").write_text("\n".join(["donor,a,b,c,d,e,f", *lines]))
    job.write_text(
        DECOYS.replace('path = "two-moons"\nsamples = 40\nfeatures = 6', 'path = "cells.csv"\ngroups = "donor"')
    )
    return X, donors


def of_gates(text):
    """The job with gates in place of decoys."""
    text = text.replace("fdr = 0.2", 'method = "gates"\nmax_runs = 1\nn_draws = 2\nmax_iter = 30')
    return text.replace("power = [1, 2]", 'lam = ["none", 0.05]')


@pytest.mark.parametrize("method", ["decoys", "gates"])
def test_fits_with_groups_are_those_of_the_same_fits_alone(job, grouped, tmp_path, method):
    X, donors = grouped
    if method == "gates":
        job.write_text(of_gates(job.read_text()))
    assert main(["sweep", str(job), "--out", str(tmp_path / "out"), "-q"]) == 0
    for fit in read_job(job).fits:
        with np.load(tmp_path / "out" / "fits" / f"{fit.id}.npz", allow_pickle=False) as archive:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DufsWarning)
                alone = new_selector(fit).fit(X, groups=donors)
                without = new_selector(fit).fit(X)
            np.testing.assert_array_equal(archive["order"], alone.order_)
            scores = "mu" if method == "gates" else "evidence"
            np.testing.assert_array_equal(archive[scores], getattr(alone, f"{scores}_"))
            assert not np.array_equal(archive[scores], getattr(without, f"{scores}_"))


@pytest.mark.parametrize("told", ["covariates", "rows"])
def test_fits_that_are_told_of_rows_are_those_of_the_same_fits_alone(job, tmp_path, told):
    """Covariates in two columns of a file, the first given by its number; and a series in the order of the file."""
    X = two_moons(60, 6, random_state=0).X
    Z = np.random.default_rng(0).normal(50, 9, (60, 2))
    X = X + 0.3 * Z[:, :1]
    lines = [",".join(map(repr, [*z, *row])) for z, row in zip(Z.tolist(), X.tolist(), strict=True)]
    (job.parent / "cells.csv").write_text("\n".join(["age,depth,a,b,c,d,e,f", *lines]))
    text = DECOYS.replace(
        'path = "two-moons"\nsamples = 40\nfeatures = 6',
        'path = "cells.csv"\n'
        + ('covariates = [0, "depth"]' if told == "covariates" else 'index_column = [0, "depth"]'),
    )
    job.write_text(text if told == "covariates" else text.replace("fdr = 0.2", 'fdr = 0.2\nrows = "series"'))
    assert main(["sweep", str(job), "--out", str(tmp_path / "out"), "-q"]) == 0
    for fit in read_job(job).fits:
        with np.load(tmp_path / "out" / "fits" / f"{fit.id}.npz", allow_pickle=False) as archive:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DufsWarning)
                alone = new_selector(fit).fit(X, covariates=Z if told == "covariates" else None)
                without = new_selector(fit).set_params(rows="independent").fit(X)
            np.testing.assert_array_equal(archive["evidence"], alone.evidence_)
            assert not np.array_equal(archive["evidence"], without.evidence_)


def test_a_dry_run_has_the_errors_of_covariates(job, capsys):
    (job.parent / "cells.csv").write_text("age,a,b,c\n" + "".join(f"5,{i},{i % 3},{i % 5}\n" for i in range(20)))
    text = DECOYS.replace('path = "two-moons"\nsamples = 40\nfeatures = 6', 'path = "cells.csv"\ncovariates = "age"')
    job.write_text(text)
    assert main(["sweep", str(job), "--dry-run", "--json"]) == 0
    fits = json.loads(capsys.readouterr().out)["fits"]
    assert all("covariate 0 has one value in all rows: leave it out" in fit["error"] for fit in fits)


def test_fits_that_may_be_a_stack_have_the_groups_as_well(job, grouped, tmp_path, monkeypatch):
    """As on a GPU, where several fits are computed together."""
    sizes = []

    def stack_size(selector, X, count, told):
        sizes.append((count, told.groups.tolist()))
        return count

    monkeypatch.setattr("dufs_core.cli.sweep.worker.stack_size", stack_size)
    job.write_text(of_gates(job.read_text()))
    found = read_job(job)
    whole = tmp_path / "whole"
    assert main(["sweep", str(job), "--out", str(whole), "-q"]) == 0
    store = Store(tmp_path / "out")
    with store.locked(False):
        store.begin(found)
        results = work(Task(found.fits, store, 60))
    assert sizes == [(4, grouped[1].tolist())]
    for fit, result in zip(found.fits, results, strict=True):
        assert (result.row["together"], result.row["status"]) == (4, "done")
        assert result.arrays["mu"].tobytes() == bits(whole)[fit.id]["mu"]


def test_a_fit_with_groups_goes_on_from_its_checkpoint(job, grouped, tmp_path):
    X, donors = grouped
    job.write_text(of_gates(job.read_text()))
    found = read_job(job)
    fit = found.fits[0]
    store = Store(tmp_path / "out")
    asked = iter([False] * 3)
    with store.locked(False), warnings.catch_warnings():
        warnings.simplefilter("ignore", DufsWarning)
        store.begin(found)
        saving = Checkpoint(store.checkpoint(fit).path, every_seconds=0, stop=lambda: next(asked, True))
        with pytest.raises(InterruptedFit):
            new_selector(fit, [saving]).fit(X, groups=donors)
        (result,) = work(Task((fit,), store, 60))
        alone = new_selector(fit).fit(X, groups=donors)
    assert result.row["status"] == "done", result.row["error"]
    assert "anew" not in result.row["warnings"]
    np.testing.assert_array_equal(result.arrays["mu"], alone.mu_)


def test_a_dry_run_has_the_errors_of_groups(job, grouped, capsys):
    assert main(["sweep", str(job), "--dry-run", "--json"]) == 0
    assert all(fit["bytes"] > 60 * 6 * 8 for fit in json.loads(capsys.readouterr().out)["fits"])
    text = job.read_text()
    job.write_text(text.replace('groups = "donor"', 'groups = "a"\nindex_column = "donor"'))
    assert main(["sweep", str(job), "--dry-run", "--json"]) == 0
    fits = json.loads(capsys.readouterr().out)["fits"]
    assert all("Each of the 60 rows is a group of its own" in fit["error"] for fit in fits)


def test_the_table_has_one_row_per_fit(job, tmp_path):
    assert main(["sweep", str(job), "--out", str(tmp_path / "out"), "-q"]) == 0
    with (tmp_path / "out" / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["lam"] for row in rows] == ["", "", "0.05", "0.05"]
    assert [row["id"] for row in rows] == [fit.id for fit in read_job(job).fits]
    assert {row["status"] for row in rows} == {"done"}


def test_methods_in_a_grid(job, tmp_path):
    """With decoys and without: each row has its own measures."""
    text = JOB.replace('method = "gates"\n', "").replace("n_draws = 2\nmax_runs = 1\nmax_iter = 30\ntol = 0\n", "")
    job.write_text(text.replace('lam = ["none", 0.05]', 'method = ["decoys", "gates"]'))
    assert main(["sweep", str(job), "--out", str(tmp_path / "out"), "-q"]) == 0
    with (tmp_path / "out" / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == ["decoys", "decoys", "gates", "gates"]
    assert [row["excess_score"] == "" for row in rows] == [True, True, False, False]
    assert [row["smallest_fdr"] == "" for row in rows] == [False, False, True, True]


def test_a_setting_with_the_name_of_a_result(job, tmp_path):
    job.write_text(JOB.replace('lam = ["none", 0.05]', 'bandwidth = ["max", 2.5]'))
    assert main(["sweep", str(job), "--out", str(tmp_path / "out"), "-q"]) == 0
    with (tmp_path / "out" / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["bandwidth_setting"] for row in rows] == ["max", "max", "2.5", "2.5"]
    assert [float(row["bandwidth"]) == 2.5 for row in rows] == [False, False, True, True]


@pytest.mark.parametrize("backend", ["cupy", "numpy"])
def test_with_decoys_every_fit_is_a_task_of_its_own(job, backend):
    """It has no steps that could advance together."""
    for text, sizes in ((JOB, [4] if backend == "cupy" else [1] * 4), (DECOYS, [1] * 4)):
        job.write_text(text)
        fits = [replace(fit, settings=dict(fit.settings) | {"backend": backend}) for fit in read_job(job).fits]
        assert [len(task) for task in group_fits(fits)] == sizes


def test_a_job_that_is_to_end_ends_a_fit_with_decoys(job, tmp_path, monkeypatch):
    """Between its phases: it has no checkpoint, and is computed anew."""
    job.write_text(DECOYS)
    found = read_job(job)
    store = Store(tmp_path / "out")
    asked = []
    monkeypatch.setattr(Store, "is_to_end", lambda self: bool(asked))
    build_pools = structure.build_pools

    def asked_meanwhile(*arguments):
        asked.append(True)
        return build_pools(*arguments)

    monkeypatch.setattr(structure, "build_pools", asked_meanwhile)
    with store.locked(False):
        store.begin(found)
        assert work(Task(found.fits[:2], store, 60)) == []
    assert len(asked) == 1


def test_a_disk_that_is_full_when_the_table_is_written(job, tmp_path, monkeypatch, capsys):
    write = atomic_io.write_bytes

    def full(path, data, previous=None):
        if path.name == "results.csv":
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, data, previous)

    monkeypatch.setattr(atomic_io, "write_bytes", full)
    assert main(["sweep", str(job), "--out", str(tmp_path / "out"), "--json"]) == 1
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert (document["done"], document["stopped"]) == (4, "OSError: [Errno 28] No space left on device")
    assert "4 of 4 fits are complete and kept. When that is mended" in captured.err


def test_a_table_that_may_not_be_written(job, tmp_path, monkeypatch, capsys):
    write = atomic_io.write_bytes

    def denied(path, data, previous=None):
        if path.name == "results.csv":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        write(path, data, previous)

    monkeypatch.setattr(atomic_io, "write_bytes", denied)
    assert main(["sweep", str(job), "--out", str(tmp_path / "out"), "-q"]) == 1
    (said,) = capsys.readouterr().err.splitlines()
    assert "the sweep stopped (PermissionError: [Errno 13] Permission denied: " in said
    assert "results.csv" in said
    assert said.endswith("--resume goes on")
    monkeypatch.undo()
    assert main(["sweep", str(job), "--out", str(tmp_path / "out"), "--resume", "-q"]) == 0
    assert started(tmp_path / "out") == [0, 4]


def test_workers_that_take_no_more_fits(job, tmp_path, monkeypatch, capsys):
    """A closed Dask client, or a broken pool."""

    def submit(task):
        raise RuntimeError("cannot schedule new futures after shutdown")

    monkeypatch.setattr("dufs_core.cli.sweep.pool.processes", lambda count: nullcontext((submit, count)))
    assert main(["sweep", str(job), "--out", str(tmp_path / "out"), "--workers", "2", "-q"]) == 1
    (said,) = capsys.readouterr().err.splitlines()
    assert "the sweep stopped (RuntimeError: cannot schedule new futures after shutdown)" in said


@pytest.mark.skipif(os.geteuid() == 0, reason="rights do not bind the superuser")
def test_a_directory_that_cannot_be_read(job, tmp_path, capsys):
    out = tmp_path / "out"
    out.mkdir(mode=0o000)
    assert main(["sweep", str(job), "--out", str(out), "-q"]) == 2
    assert f"{out} cannot be used: permission denied" in capsys.readouterr().err
    out.chmod(0o500)
    assert main(["sweep", str(job), "--out", str(out), "-q"]) == 2
    assert "lock cannot be used: permission denied" in capsys.readouterr().err
    out.chmod(0o700)


def test_a_result_that_cannot_be_read(job, tmp_path, capsys):
    out = tmp_path / "out"
    (out / "fits" / f"{read_job(job).fits[0].id}.npz").mkdir(parents=True)
    (out / "lock").touch()
    assert main(["sweep", str(job), "--out", str(out), "-q"]) == 1
    assert "the sweep stopped (IsADirectoryError: " in capsys.readouterr().err


def test_dry_run(job, tmp_path, capsys):
    assert main(["sweep", str(job), "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert all(fit.id in said for fit in read_job(job).fits)
    assert main(["sweep", str(job), "--dry-run", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["fits"]) == 4
    assert all(fit["bytes"] > 40 * 6 * 8 for fit in document["fits"])
    job.write_text(JOB.replace("[settings]", "[settings]\nn_neighbors = 40"))
    assert main(["sweep", str(job), "--dry-run"]) == 0
    assert "n_neighbors must be" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.toml"]


def test_a_dry_run_checks_every_fit(job, capsys):
    grid = "n_features_to_select = [100, 2]\nn_neighbors = [2, 60]"
    job.write_text(JOB.replace("[0, 1]", "[0]").replace('lam = ["none", 0.05]', grid))
    assert main(["sweep", str(job), "--dry-run", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    mistakes = [fit.get("error", "") for fit in document["fits"]]
    assert "got 100" in mistakes[0]
    assert mistakes[2] == ""
    assert all("n_neighbors=60" in mistake or "n_neighbors must be" in mistake for mistake in mistakes[1::2])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["missing.toml", "--out", "x"], "missing.toml cannot be read: no such file"),
        (["JOB"], "needs --out DIR"),
        (["JOB", "--out", "JOB"], "cannot be used: file exists"),
        (["JOB", "--out", "HERE"], "is not empty and holds no sweep"),
        (["JOB", "--out", "x", "--workers", "0"], "must be at least 1"),
        (["JOB", "--out", "x", "--workers", "2", "--scheduler", "tcp://a"], "not allowed with"),
    ],
)
def test_bad_usage(job, capsys, arguments, sentence, tmp_path):
    names = {"JOB": str(job), "HERE": str(tmp_path)}
    assert main(["sweep", *(names.get(argument, argument) for argument in arguments)]) == 2
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert captured.out == ""


# --- going on --------------------------------------------------------------------------------------------------------


def test_resume_computes_what_is_missing_or_damaged(job, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["sweep", str(job), "--out", str(out), "-q"]) == 0
    whole = bits(out)
    assert main(["sweep", str(job), "--out", str(out), "-q"]) == 2
    assert "--resume goes on" in capsys.readouterr().err
    first, second, third, *_ = sorted((out / "fits").iterdir())
    first.unlink()
    third.write_bytes(atomic_io.pack_npz({"row": np.array("[" * 10**5)}))  # the checksum is right, the row is none
    second.write_bytes(second.read_bytes()[:-1])
    (out / "fits" / ".x.npz.1.ab.tmp").write_bytes(b"half")
    with (out / "log.jsonl").open("a") as file:
        file.write('\n{"half a li')
    assert main(["sweep", str(job), "--out", str(out), "--resume", "-q"]) == 0
    assert bits(out) == whole
    text = (out / "log.jsonl").read_text().splitlines()
    assert text.pop(text.index('{"half a li'))
    assert [json.loads(line)["event"] for line in text].count("damaged") == 2


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("seeds = [0, 1]", "seeds = [0, 1, 2]", r"seeds was [0, 1] and is now [0, 1, 2]"),
        ("max_iter = 30", "max_iter = 31", "settings max_iter was 30 and is now 31"),
        ("samples = 40", "samples = 41", "data two-moons reading samples was 40 and is now 41"),
    ],
)
def test_another_job_is_refused(job, tmp_path, capsys, old, new, sentence):
    out = tmp_path / "out"
    Store(out).directory.mkdir()
    Store(out).begin(read_job(job))
    job.write_text(JOB.replace(old, new))
    assert main(["sweep", str(job), "--out", str(out), "--resume"]) == 2
    assert sentence in capsys.readouterr().err


def test_a_data_file_that_changed_is_refused(tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.eye(8))
    (tmp_path / "job.toml").write_text('[[data]]\npath = "x.npy"\n')
    job = read_job(tmp_path / "job.toml")
    Store(tmp_path / "out").directory.mkdir()
    Store(tmp_path / "out").begin(job)
    os.utime(tmp_path / "x.npy", (0, 0))
    Store(tmp_path / "out").begin(read_job(tmp_path / "job.toml"))  # touched, and the same
    np.save(tmp_path / "x.npy", 2 * np.eye(8))
    with pytest.raises(ValueError, match="has changed since the sweep was started"):
        load(job.fits[0])
    assert main(["sweep", str(tmp_path / "job.toml"), "--out", str(tmp_path / "out"), "--resume"]) == 2
    assert "data x sha256 was" in capsys.readouterr().err


def test_a_signal_saves_and_exits_3(job, tmp_path):
    job.write_text(LONG)
    out = tmp_path / "out"
    process = in_process(job, out, "--json")
    wait_for(lambda: (out / "log.jsonl").exists() and "started" in (out / "log.jsonl").read_text())
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    said, complained = process.communicate(timeout=60)
    assert process.returncode == 3, complained
    document = json.loads(said)
    assert (bool(document["interrupted"]), document["done"], document["failed"]) == (True, 0, 0)
    assert "goes on" in complained
    (saved,) = (out / "checkpoints").glob("*.ckpt")
    assert len(atomic_io.unpack_npz(saved.read_bytes(), saved)["records"]) > 0
    assert events(out)[-1]["event"] == "interrupted"
    assert not list(out.glob("job.*"))


def test_a_second_signal_ends_the_process_at_once_and_the_sweep_goes_on(job, tmp_path):
    """Here while the state of the fit is being saved, which takes long."""
    text = LONG.replace("max_iter = 1000000", "max_iter = 20")
    job.write_text("checkpoint_seconds = 0\n" + text)
    out, slow = (
        tmp_path / "out",
        "import time; from dufs_core.selection import checkpoint as c; w = c.atomic_io.write_bytes; ",
    )
    slow += "c.atomic_io.write_bytes = lambda *a: (w(*a), time.sleep(100 if a[0].suffix == '.ckpt' else 0))[0]; "
    process = subprocess.Popen([*COMMAND[:2], slow + COMMAND[2], "sweep", str(job), "--out", str(out)])
    wait_for(lambda: list(out.glob("checkpoints/*.ckpt")))
    process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == -signal.SIGTERM
    job.write_text(text)
    assert main(["sweep", str(job), "--out", str(out), "--resume", "-q"]) == 0
    assert not list(out.glob("job.*"))
    whole = tmp_path / "whole"
    assert main(["sweep", str(job), "--out", str(whole), "-q"]) == 0
    assert bits(out) == bits(whole)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_ends_the_job_and_the_second_the_process(number, tmp_path):
    before = signal.getsignal(number)
    (tmp_path / "job").touch()
    with until_signal(tmp_path / "job"):
        signal.raise_signal(number)
        assert not (tmp_path / "job").exists()
        assert signal.getsignal(signal.SIGTERM) is signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    assert signal.getsignal(number) is before


def test_one_job_in_a_directory_and_a_dead_owner(job, tmp_path, capsys):
    job.write_text(LONG)
    out = tmp_path / "out"
    process = in_process(job, out)
    wait_for(lambda: (out / "log.jsonl").exists())
    assert main(["sweep", str(job), "--out", str(out), "--resume"]) == 2
    assert f"another job is working in {out}: wait for it, or take another" in capsys.readouterr().err
    process.kill()
    process.communicate()
    again = Store(out)
    with Store(out).locked(True), pytest.raises(JobError, match="another job is working"), again.locked(True):
        pass
    with again.locked(True):
        assert again.working.exists()
    assert not list(out.glob("job.*"))


@pytest.mark.parametrize(
    ("number", "refused"), [(errno.EWOULDBLOCK, "another"), (errno.ENOLCK, "lock cannot be used: no locks available")]
)
def test_file_systems_and_locks(tmp_path, monkeypatch, number, refused):
    def flock(*args):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", flock)
    with pytest.raises(JobError, match=refused), Store(tmp_path).locked(False):
        pass


@pytest.mark.parametrize(("name", "code"), [("lock", 2), ("log.jsonl", 1)])
def test_links_that_were_planted_are_not_written_through(job, tmp_path, capsys, name, code):
    out, target = tmp_path / "out", tmp_path / "precious"
    target.write_text("precious")
    out.mkdir()
    (out / "lock").touch()
    (out / name).unlink(missing_ok=True)
    (out / name).symlink_to(target)
    assert main(["sweep", str(job), "--out", str(out), "--resume", "-q"]) == code
    assert "too many levels of symbolic links" in capsys.readouterr().err.lower()
    assert target.read_text() == "precious"


def test_dry_run_of_constant_data(tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.ones((20, 3)))
    (tmp_path / "job.toml").write_text('[[data]]\npath = "x.npy"\n[settings]\nbackend = "numpy"\n')
    assert main(["sweep", str(tmp_path / "job.toml"), "--dry-run"]) == 0
    assert "IndexError" not in capsys.readouterr().out


def test_more_memory_is_the_same_job(job):
    before = read_job(job)
    job.write_text(JOB.replace("tol = 0", "tol = 0\nmax_memory = 10000000000"))
    after = read_job(job)
    assert after.described == before.described
    assert [fit.id for fit in after.fits] == [fit.id for fit in before.fits]


# --- what goes wrong -------------------------------------------------------------------------------------------------


def test_fits_that_fail_do_not_stop_the_others(tmp_path, capsys):
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n3,nan\n5,6\n7,8\n")
    np.savez(tmp_path / "empty.npz", X=np.zeros((0, 3)))
    (tmp_path / "job.toml").write_text(
        JOB + '[[data]]\npath = "bad.csv"\n[[data]]\npath = "empty.npz"\n'
        '[[data]]\npath = "two-moons"\nname = "small"\nsettings = {max_memory = 10}\n'
    )
    out = tmp_path / "out"
    assert main(["sweep", str(tmp_path / "job.toml"), "--out", str(out), "--json"]) == 1
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert (document["done"], document["failed"]) == (4, 12)
    errors = " ".join(event["error"] for event in events(out) if event["event"] == "failed")
    assert "ValueError: Input X contains NaN" in errors
    assert "MemoryLimitError" in errors
    assert f"12 fits failed, the first by {document['first_error']}; the table" in captured.err
    assert main(["sweep", str(tmp_path / "job.toml"), "--out", str(out), "--resume", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["done"], document["failed"]) == (4, 12)  # tried again
    assert started(out) == [0, 4]


def test_data_of_fits_with_batches_stay_on_the_disk(tmp_path):
    np.save(tmp_path / "x.npy", two_moons(40, 6, random_state=0).X)
    text = JOB.replace('path = "two-moons"\nsamples = 40\nfeatures = 6', 'path = "x.npy"')
    (tmp_path / "job.toml").write_text(text)
    X, _ = load(read_job(tmp_path / "job.toml").fits[0])
    assert not isinstance(X, np.memmap)
    (tmp_path / "job.toml").write_text(text.replace("[settings]", "[settings]\nbatch_size = 20"))
    fit = read_job(tmp_path / "job.toml").fits[0]
    X, _ = load(fit)
    assert isinstance(X, np.memmap)


def test_the_state_of_a_fit_that_fails_is_kept(job, tmp_path):
    """What failed may be a limit on memory, or a file that is away: --resume goes on from the state."""
    store, found = Store(tmp_path / "out"), read_job(job)
    store.directory.mkdir()
    store.begin(found)
    fit = found.fits[0]
    store.checkpoint(fit).path.write_bytes(b"state")
    store.save(fit, Result({"id": fit.id, "status": "failed"}, {}))
    assert store.checkpoint(fit).path.read_bytes() == b"state"
    store.save(fit, Result({"id": fit.id, "status": "done"}, {}))
    assert not store.checkpoint(fit).exists()


@pytest.mark.parametrize("text", ["{}", "[1]", "1", '{"format": 1}', "{"])
def test_a_plan_that_is_none(job, tmp_path, capsys, text):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "sweep.json").write_text(text)
    assert main(["sweep", str(job), "--out", str(tmp_path / "out"), "--resume"]) == 2
    kept, other = "fits that are done are kept", "belongs to another job"
    assert (other if text.startswith('{"') or text == "{}" else kept) in capsys.readouterr().err


def test_a_file_that_is_missing(tmp_path, capsys):
    """Before the start it is a mistake in the job; gone while the sweep works, its fits fail and the others go on."""
    np.save(tmp_path / "x.npy", two_moons(30, 4).X)
    (tmp_path / "job.toml").write_text(JOB + '[[data]]\npath = "x.npy"\n')
    found = read_job(tmp_path / "job.toml")
    (tmp_path / "x.npy").unlink()
    report = run(found, Store(tmp_path / "out"), this_process(), False)
    assert (report.done, report.failed) == (4, 4)
    assert "FileNotFoundError" in report.first_error
    assert "x.npy" in report.first_error
    assert main(["sweep", str(tmp_path / "job.toml"), "--out", str(tmp_path / "out"), "--resume"]) == 2
    assert "x.npy cannot be read: no such file" in capsys.readouterr().err


def test_checkpoints_that_are_all_damaged(job, tmp_path):
    found = read_job(job)
    store = Store(tmp_path / "out")
    with store.locked(False):
        store.begin(found)
        store.checkpoint(found.fits[0]).path.write_bytes(b"nothing")
        (result,) = work(Task(found.fits[:1], store, 60))
    assert result.row["status"] == "done"
    assert "started anew" in result.row["warnings"]


def test_a_full_disk_ends_the_sweep_cleanly(job, tmp_path):
    """A limit on the size of files that the first results keep and the log exceeds."""
    out = tmp_path / "out"
    job.write_text(JOB.replace("[0, 1]", str(list(range(15)))))
    plan = 9_000  # bytes: more than sweep.json and a result have
    process = in_process(job, out, "--json", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (plan, plan)))
    said, complained = process.communicate(timeout=100)
    assert process.returncode == 1, complained
    document = json.loads(said)
    assert "File too large" in document["stopped"]
    assert f"{document['done']} of 30 fits are complete and kept. When that" in complained
    assert "Traceback" not in complained
    assert len(bits(out)) == document["done"] > 0
    assert main(["sweep", str(job), "--out", str(out), "--resume", "-q"]) == 0
    whole = tmp_path / "whole"
    assert main(["sweep", str(job), "--out", str(whole), "-q"]) == 0
    assert bits(out) == bits(whole)


def test_a_disk_that_is_full_in_the_middle_of_a_result(job, tmp_path, monkeypatch):
    import errno

    write = atomic_io.write_bytes

    def full(path, data, previous=None):
        if path.suffix == ".npz" and len(list(path.parent.glob("*.npz"))) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, data, previous)

    monkeypatch.setattr(atomic_io, "write_bytes", full)
    store = Store(tmp_path / "out")
    report = run(read_job(job), store, this_process(), False)
    assert (report.stopped, report.done, report.pending) == ("OSError: [Errno 28] No space left on device", 2, 2)
    assert len(list(store.checkpoints.glob("*.ckpt"))) == 1
    monkeypatch.undo()
    report = run(read_job(job), store, this_process(), True)
    assert (report.stopped, report.done) == (None, 4)


def test_killed_at_random_moments():
    """The benchmark's kills, a few of them."""
    ended = subprocess.run(
        [sys.executable, "-m", "bench.crash", "--kills", "3", "--terms", "1", "--seeds", "1"], capture_output=True,
        text=True, cwd=IMPORTS, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    result = json.loads(ended.stdout.splitlines()[-1])
    assert result["sigkill"] == 3
    assert (result["mismatches"], result["lost"], result["duplicated"], result["unexpected"]) == (0, 0, 0, 0)
