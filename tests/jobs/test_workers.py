"""Sweeps over worker processes: the same bits as in one process, whatever happens to a worker."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import Future
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from test_sweep import bits

from dufs_core.cli.main import main
from dufs_core.cli.sweep import JobError, read_job
from dufs_core.cli.sweep import pool as pools
from dufs_core.cli.sweep.results import Result, Store
from dufs_core.cli.sweep.runner import run
from dufs_core.cli.sweep.worker import Task
from dufs_core.errors import InterruptedFit

JOB = """
seeds = [0, 1, 2, 3, 4, 5, 6, 7]
checkpoint_seconds = 0
[[data]]
path = "two-moons"
samples = 100
features = 8
[settings]
method = "gates"
backend = "numpy"
engine = "reference"
n_draws = 2
max_runs = 1
max_iter = 60
"""
SPAWN = Path(__file__).resolve().parents[2]


@pytest.fixture
def job(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(JOB)
    return path


@pytest.fixture(scope="module")
def in_one_process(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serial")
    (folder / "job.toml").write_text(JOB)
    assert main(["sweep", str(folder / "job.toml"), "--out", str(folder / "out"), "-q"]) == 0
    return bits(folder / "out")


def test_processes(job, tmp_path, in_one_process):
    environment = dict(os.environ)
    report = run(read_job(job), Store(tmp_path / "out"), pools.processes(2), False)
    assert report.done == 8
    assert bits(tmp_path / "out") == in_one_process
    assert dict(os.environ) == environment


@pytest.mark.slow
def test_processes_of_which_one_is_killed(job, tmp_path, in_one_process, monkeypatch):
    out = tmp_path / "out"
    killed, save = [], Store.save

    def kill_one(*arguments):
        save(*arguments)
        if not killed:
            killed.extend(children_of_joblib(os.getpid()))
            os.kill(killed[0], signal.SIGKILL)

    monkeypatch.setattr(Store, "save", kill_one)
    report = run(read_job(job), Store(out), pools.processes(2), False)
    assert (report.done, len(killed)) == (8, 2)
    assert bits(out) == in_one_process
    assert not any(running(pid) for pid in killed)


@pytest.mark.slow
def test_processes_killed_workers_and_a_killed_leader(job, tmp_path, in_one_process):
    """One worker is killed, later the process that leads; its orphans end, and the sweep goes on to the same bits."""
    out = tmp_path / "out"
    command = [
        sys.executable, "-c",
        f"import sys; sys.path.insert(0, {str(SPAWN)!r}); from dufs_core.cli.main import main; sys.exit(main())",
        "sweep", str(job), "--out", str(out), "--workers", "2", "--resume", "--json",
    ]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(SPAWN)}
    leader = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def over():
        return len(list((out / "fits").glob("*.npz"))) if (out / "fits").is_dir() else 0

    wait_for(lambda: over() >= 1 or leader.poll() is not None)
    os.kill(children_of_joblib(leader.pid)[0], signal.SIGKILL)
    wait_for(lambda: over() >= 4 or leader.poll() is not None)
    orphans = children(leader.pid)
    leader.kill()
    leader.communicate()
    assert 4 <= over() < 8
    wait_for(lambda: not any(running(pid) for pid in orphans))
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["done"] == 8
    assert bits(out) == in_one_process


def wait_for(condition, seconds=90):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def children(pid):
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def children_of_joblib(pid):
    return [child for child in children(pid) if b"popen_loky" in Path(f"/proc/{child}/cmdline").read_bytes()]


def running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def computed(fit):
    return Result({"status": "done"}, {"support": np.ones(2, dtype=bool)})


def dying(deadly, died_of):
    """Stands for a pool whose workers die of fits with these seeds, and take with them what others have in hand."""
    broken = False

    class TerminatedWorkerError(RuntimeError):
        pass

    def submit(task):
        nonlocal broken
        future = Future()
        if killing := {fit.seed for fit in task.fits} & deadly:
            broken = len(task.fits) > 1 or killing not in map(set, died_of)
            died_of.append(sorted(killing))
            future.set_exception(TerminatedWorkerError("killed"))
        elif broken and task.fits[0].seed == max(deadly) + 1:  # begun beside the last one
            broken = False
            future.set_exception(TerminatedWorkerError("killed"))
        else:
            future.set_result(list(map(computed, task.fits)))
        return future

    return nullcontext((submit, 3))


def test_a_fit_that_kills_its_workers_is_given_up_alone(job, tmp_path):
    died_of, found = [], read_job(job)
    store = Store(tmp_path / "out")
    report = run(found, store, dying({2, 5}, died_of), False)
    assert (report.done, report.failed) == (6, 2)
    assert sorted(died_of) == [[2], [2], [5], [5]]
    errors = {fit.seed: row["error"] for fit in found.fits if (row := store.row(fit))["status"] == "failed"}
    assert errors == dict.fromkeys((2, 5), "TerminatedWorkerError: killed")


def test_a_stack_that_kills_its_workers_is_computed_one_by_one(job, tmp_path, monkeypatch):
    """Of its fits only the deadly one is given up."""
    monkeypatch.setattr("dufs_core.cli.sweep.runner.group_fits", lambda fits: [list(fits[:5]), list(fits[5:])])
    died_of = []
    report = run(read_job(job), Store(tmp_path / "out"), dying({2}, died_of), False)
    assert (report.done, report.failed) == (7, 1)
    assert died_of == [[2], [2]]


class ByHand:
    """Stands for a Dask cluster: two futures that the test ends once both are in hand."""

    def __init__(self, end=lambda task, future: None):
        self.futures, self.end = [], end

    def submit(self, task):
        self.futures.append((task, Future()))
        if len(self.futures) == 2:
            for each, future in self.futures:
                self.end(each, future)
        return self.futures[-1][1]

    def pool(self):
        return self.submit, 2


def in_workers_by_hand(job, end, n_fits):
    """What a sweep yields when it is asked to stop once two fits are in hand, and `end` says how each ends."""
    workers = ByHand(end)
    tasks = [Task((f,), Store("nowhere"), 60) for f in read_job(job).fits[:n_fits]]
    return list(pools.in_workers(tasks, workers.pool(), lambda: len(workers.futures) == 2))


def test_what_runs_is_not_cancelled_but_waited_for(job):
    results = in_workers_by_hand(job, lambda task, future: future.set_result(list(map(computed, task.fits))), 4)
    assert sorted(fit.seed for fit, _ in results) == [0, 1]


@pytest.mark.parametrize("complete", [True, False])
def test_a_stop_during_the_last_fits_that_complete_is_no_interruption(job, tmp_path, monkeypatch, complete):
    """With fewer results than fits it is one."""
    store = Store(tmp_path / "out")

    def end(task, future):
        store.working.unlink(missing_ok=True)
        future.set_result(list(map(computed, task.fits)) if complete else [])

    job.write_text(JOB.replace("2, 3, 4, 5, 6, 7", "").replace("1, ]", "1]"))
    report = run(read_job(job), store, nullcontext(ByHand(end).pool()), False)
    assert (report.interrupted is None, report.done) == ((True, 2) if complete else (False, 0))


def test_workers_elsewhere_are_told_when_a_disk_is_full(job, tmp_path, monkeypatch):
    """They see the end of their own job, also when a later one works in the directory."""

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    def one_ends(in_hand, return_when):
        assert not any(task.store.is_to_end() for task, _ in workers.futures)
        next(iter(in_hand)).set_result([Result({"status": "done"}, {})])
        return [next(iter(in_hand))], None

    workers, found = ByHand(), read_job(job)
    with monkeypatch.context() as patch:
        patch.setattr(Store, "save", full)
        patch.setattr(pools, "wait", one_ends)
        report = run(found, Store(tmp_path / "out"), nullcontext(workers.pool()), False)
    assert report.stopped == "OSError: [Errno 28] No space left on device"
    with Store(tmp_path / "out").locked(True):
        assert all(task.store.is_to_end() for task, _ in workers.futures)


def test_workers_elsewhere_of_a_leader_that_was_killed(job, tmp_path):
    """They see the end of their job when the next one begins; those that do not see the directory see none."""
    killed = Store(tmp_path / "out")
    killed.directory.mkdir()
    killed.begin(read_job(job))
    killed.working.touch()
    assert not killed.is_to_end()
    with Store(tmp_path / "out").locked(True):
        assert killed.is_to_end()
    assert not Store(tmp_path / "elsewhere").is_to_end()


def test_a_scheduler_that_dies_is_an_interruption(job):
    def cancelled(task, future):  # as Dask's executor does
        future.cancel()
        future.set_running_or_notify_cancel()

    with pytest.raises(InterruptedFit, match="scheduler is gone"):
        in_workers_by_hand(job, cancelled, 2)


def test_modules_of_the_working_directory_are_not_run(job, tmp_path):
    folder, script = tmp_path / "data", tmp_path / "dufs-core.py"
    folder.mkdir()
    (folder / "json.py").write_text("raise SystemExit(9)")
    script.write_text("from dufs_core.cli.main import main\nif __name__ == '__main__':\n    raise SystemExit(main())\n")
    job.write_text(JOB.replace("2, 3, 4, 5, 6, 7", "").replace("1, ]", "1]"))
    ended = subprocess.run(
        [sys.executable, script, "sweep", job, "--out", tmp_path / "out", "--workers", "2", "-q"], cwd=folder,
        env=os.environ | {"PYTHONPATH": str(SPAWN)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, "")


def in_a_process(*arguments):
    command = [
        sys.executable, "-c",
        f"import sys; sys.path.insert(0, {str(SPAWN)!r}); from dufs_core.cli.main import main; sys.exit(main())",
        "sweep", *map(str, arguments),
    ]  # fmt: skip
    return subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(SPAWN)}, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_signal_to_a_sweep_in_processes_saves_exits_3_and_resumes(job, tmp_path):
    job.write_text(JOB.replace("max_iter = 60", "max_iter = 3000").replace("2, 3, 4, 5, 6, 7", "2"))
    out = tmp_path / "out"
    command = [
        sys.executable, "-c",
        f"import sys; sys.path.insert(0, {str(SPAWN)!r}); from dufs_core.cli.main import main; sys.exit(main())",
        "sweep", str(job), "--workers", "2", "--resume", "-q", "--out",
    ]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(SPAWN)}
    leader = subprocess.Popen([*command, str(out)], env=environment, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: len(list(out.glob("checkpoints/*.ckpt"))) == 2 or leader.poll() is not None)
    leader.send_signal(signal.SIGTERM)
    _, complained = leader.communicate()
    assert leader.returncode == 3, complained
    assert list(out.glob("checkpoints/*.ckpt"))
    assert not list(out.glob("job.*"))
    for directory in (out, tmp_path / "undisturbed"):
        subprocess.run([*command, str(directory)], env=environment, check=True)
    assert bits(out) == bits(tmp_path / "undisturbed")
    assert len(bits(out)) == 3


def test_nobody_answers(monkeypatch):
    pytest.importorskip("distributed", reason="Dask is not installed: pip install distributed")
    monkeypatch.setattr(pools, "_PATIENCE", 0.3)
    with pytest.raises(JobError, match="no Dask scheduler answers at"), pools.cluster("tcp://127.0.0.1:1"):
        pass


def test_without_dask(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(JobError, match=r"pip install 'dufs-core\[cluster\]'"), pools.cluster("tcp://127.0.0.1:1"):
        pass


@pytest.fixture(scope="module")
def dask_cluster():
    distributed = pytest.importorskip("distributed", reason="Dask is not installed: pip install distributed")
    settings = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with distributed.LocalCluster(**settings, silence_logs=50) as cluster:
            yield cluster


@pytest.mark.filterwarnings("ignore")  # of Dask's own
@pytest.mark.slow
def test_a_dask_cluster_of_two_processes(job, tmp_path, in_one_process, dask_cluster):
    assert main(["sweep", str(job), "--out", str(tmp_path), "--scheduler", dask_cluster.scheduler_address, "-q"]) == 2
    out = tmp_path / "out"
    assert main(["sweep", str(job), "--out", str(out), "--scheduler", dask_cluster.scheduler_address, "-q"]) == 0
    assert bits(out) == in_one_process


@pytest.mark.filterwarnings("ignore")  # of Dask's own
def test_a_dask_worker_that_is_killed(job, tmp_path, in_one_process, dask_cluster):
    """While it has a fit in hand: another one starts it again."""
    from distributed import Client

    killed = {}

    def kill_one():
        with Client(dask_cluster.scheduler_address) as client:
            wait_for(lambda: any(tmp_path.glob("out/fits/*.npz")))
            wait_for(lambda: any(client.processing().values()))
            address, tasks = next((a, t) for a, t in client.processing().items() if t)
            os.kill(client.run(os.getpid, workers=[address])[address], signal.SIGKILL)
            killed[address] = tasks

    killer = threading.Thread(target=kill_one)
    killer.start()
    arguments = ["sweep", str(job), "--out", str(tmp_path / "out"), "--scheduler", dask_cluster.scheduler_address]
    assert main([*arguments, "-q"]) == 0
    killer.join()
    (tasks,) = killed.values()
    assert tasks
    assert bits(tmp_path / "out") == in_one_process


@pytest.mark.filterwarnings("ignore")  # of Dask's own
def test_a_signal_to_a_sweep_on_dask_saves_exits_3_and_resumes(job, tmp_path, dask_cluster):
    """Its workers save; what they saved goes on without them, with the bits of a sweep that was left alone."""
    text = JOB.replace("max_iter = 60", "max_iter = 1500").replace("_seconds = 0", "_seconds = 0.1")
    job.write_text(text.replace("2, 3, 4, 5, 6, 7", "2").replace("n_draws = 2", "n_draws = 1"))
    out = tmp_path / "out"
    leader = in_a_process(job, "--out", out, "--scheduler", dask_cluster.scheduler_address, "-q")
    wait_for(lambda: list(out.glob("checkpoints/*.ckpt")) or leader.poll() is not None)
    leader.send_signal(signal.SIGTERM)
    _, complained = leader.communicate(timeout=60)
    assert leader.returncode == 3, complained
    saved = list(out.glob("checkpoints/*.ckpt"))
    assert saved
    assert not list(out.glob("job.*"))
    assert main(["sweep", str(job), "--out", str(out), "--resume", "-q"]) == 0
    assert main(["sweep", str(job), "--out", str(tmp_path / "undisturbed"), "-q"]) == 0
    assert bits(out) == bits(tmp_path / "undisturbed")
    assert len(bits(out)) == 3
