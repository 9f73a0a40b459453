"""Checkpoints: resumed fits end with the same bits; damaged files are found out; other fits are refused."""

import errno
import json
import os
import re
import resource
import signal
import subprocess
import sys
import textwrap
import warnings
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from dufs_core import Conventions, GatedLaplacian
from dufs_core.datasets import two_moons
from dufs_core.errors import CheckpointError, CheckpointWarning, DamagedFileError, DufsWarning, InterruptedFit
from dufs_core.selection import atomic_io, checkpoint
from dufs_core.selection.checkpoint import Checkpoint
from tests.generators import gated


@pytest.fixture(scope="module")
def moons():
    return two_moons(40, 8, random_state=0).X


def settings(**changes):
    return {"random_state": 5, "n_draws": 4, "max_iter": 30, "max_runs": 1, "backend": "numpy", "tol": 0.0} | changes


def fit(X, **changes):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DufsWarning)
        return gated(**settings(**changes)).fit(X)


class After:
    """Asks to stop the n-th time that it is asked."""

    def __init__(self, n):
        self.left = n

    def __call__(self):
        self.left -= 1
        return self.left == 0


def interrupted_and_resumed(X, path, every, **changes):
    """A fit that is stopped at every `every`-th place where it can be, and how often it was."""
    stops = 1
    with pytest.raises(InterruptedFit, match=r"GatedLaplacian\.resume\("):
        fit(X, callbacks=[Checkpoint(path, 3600, After(every))], **changes)
    while True:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DufsWarning)
                return GatedLaplacian.resume(path, X, callbacks=[Checkpoint(path, 3600, After(every))]), stops
        except InterruptedFit:
            stops += 1


def assert_same_bits(a, b):
    assert a.mu_.tobytes() == b.mu_.tobytes()
    assert a.order_.tobytes() == b.order_.tobytes()
    assert a.history_.keys() == b.history_.keys()
    for name, column in a.history_.items():
        assert column.tobytes() == b.history_[name].tobytes(), name
        assert column.dtype == b.history_[name].dtype, name
    for name in ("n_iter_", "n_runs_", "converged_", "excess_score_", "p_value_"):
        assert getattr(a, name) == getattr(b, name), name


OPTIMIZERS = (
    {"optimizer": "normalized"},
    {"optimizer": "sgd", "learning_rate": 2.0},
    {"optimizer": "adam", "learning_rate": 0.02},
)
OF_THE_CODE = Conventions(batches="wrap", noisy_start=True, rate_per_column=True, zero_bandwidth="one", delta=1e-6)


@pytest.mark.parametrize("engine", ["dense", "reference"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o["optimizer"])
@pytest.mark.parametrize("batches", [{}, {"batch_size": 15}, {"batch_size": 15, "conventions": OF_THE_CODE}])
def test_a_resumed_fit_has_the_bits_of_one_never_interrupted(moons, tmp_path, engine, optimizer, batches):
    changes = {"engine": engine, **optimizer, **batches}
    resumed, stops = interrupted_and_resumed(moons, tmp_path / "fit.ckpt", 3, **changes)
    assert_same_bits(resumed, fit(moons, **changes))
    assert stops >= (2 if engine == "dense" and not batches else 9)


def test_one_gate_per_sample(moons, tmp_path):
    changes = {"gate_noise": "sample", "engine": "reference"}
    resumed, stops = interrupted_and_resumed(moons, tmp_path / "fit.ckpt", 7, **changes)
    assert stops == 4
    assert_same_bits(resumed, fit(moons, **changes))


@pytest.mark.parametrize("engine", ["reference", "dense", "streaming"])
def test_a_saturating_score(moons, tmp_path, engine):
    changes = {"engine": engine, "saturation": 0.3}
    resumed, _ = interrupted_and_resumed(moons, tmp_path / "fit.ckpt", 7, **changes)
    assert_same_bits(resumed, fit(moons, **changes))
    assert resumed.saturation == 0.3
    assert (resumed.mu_ != fit(moons, engine=engine).mu_).any()


def test_a_graph_without_self_loops(moons, tmp_path):
    resumed, _ = interrupted_and_resumed(moons, tmp_path / "fit.ckpt", 3, self_loops=np.bool_(False))
    assert_same_bits(resumed, fit(moons, self_loops=False))
    assert (resumed.mu_ != fit(moons).mu_).any()


def test_a_search_over_several_runs(tmp_path):
    X = np.random.default_rng(0).normal(size=(30, 6))  # nothing to find: every run fails
    changes = {"max_iter": 400, "learning_rate": 0.02, "max_runs": 4, "tol": 0.01}
    straight = fit(X, **changes)
    assert straight.n_runs_ > 1
    resumed, stops = interrupted_and_resumed(X, tmp_path / "fit.ckpt", 4, **changes)
    assert stops > 2
    assert_same_bits(resumed, straight)


def test_how_steps_are_grouped_changes_no_bit(moons, tmp_path):
    one_by_one = []
    a = fit(moons, callbacks=[lambda info: one_by_one.append(info.step)])
    b = fit(moons, callbacks=[Checkpoint(tmp_path / "fit.ckpt", 0.0)])
    assert one_by_one == list(range(1, 31))
    assert_same_bits(a, b)


def test_a_checkpoint_leaves_steps_in_groups(moons, tmp_path, monkeypatch):
    from dufs_core.objective.engines import cpu_dense as dense

    counts = []
    advance = dense._CompiledSteps.advance
    monkeypatch.setattr(
        dense._CompiledSteps, "advance", lambda self, *args: counts.append(args[-1]) or advance(self, *args)
    )
    fit(moons, engine="dense", callbacks=[Checkpoint(tmp_path / "fit.ckpt")])
    assert counts[:3] == [1, 2, 4]


KILLED = """
import os, signal, sys
import numpy as np
from dufs_core import GatedLaplacian
from dufs_core.selection.checkpoint import Checkpoint
from dufs_core.datasets import two_moons

X = two_moons(40, 8, random_state=0).X
steps = 0

def count(info):  # callbacks are called after every step
    if info.step == 38:
        os.kill(os.getpid(), signal.SIGKILL)

GatedLaplacian(**{settings}, callbacks=[Checkpoint(sys.argv[1], 0.0), count]).fit(X)
"""


@pytest.mark.parametrize("engine", ["dense", "reference"])
def test_100_steps_are_37_and_a_kill_and_the_rest(moons, tmp_path, engine):
    path = tmp_path / "fit.ckpt"
    changes = {"max_iter": 100, "engine": engine, "batch_size": 15}
    code = KILLED.replace("{settings}", repr(settings(**changes)))
    killed = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    saved = atomic_io.unpack_npz(path.read_bytes(), path)
    assert len(saved["records"]) == 37
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DufsWarning)
        resumed = GatedLaplacian.resume(path, moons)
    assert resumed.n_iter_ == 100
    assert_same_bits(resumed, fit(moons, **changes))


# --- files ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(moons, tmp_path):
    """The path of a checkpoint in the middle of a fit, with the one before it, and the fit's end."""
    path = tmp_path / "fit.ckpt"
    with pytest.raises(InterruptedFit):
        fit(moons, engine="reference", callbacks=[Checkpoint(path, 0.0, After(11))])
    return path


def test_the_file_is_a_plain_archive_of_arrays(saved):
    with np.load(saved, allow_pickle=False) as archive:
        about = json.loads(str(archive["about"]))
        assert about["identity"]["settings"]["max_iter"] == 30
        assert archive["records"].shape == (11, 7)
        assert archive["steps/mu"].shape == (8,)
    assert sorted(p.name for p in saved.parent.iterdir()) == ["fit.ckpt", "fit.ckpt.previous"]


def test_a_file_cut_anywhere_or_with_a_wrong_bit_is_found_out(saved):
    data = saved.read_bytes()
    atomic_io.unpack_npz(data, saved)
    lengths = {0, 1, 63, 64, 65, 100, len(data) // 2, len(data) - 64, len(data) - 1, *range(1000, len(data), 997)}
    for length in lengths:
        with pytest.raises(DamagedFileError, match=f"{length:,} bytes"):
            atomic_io.unpack_npz(data[:length], saved)
    for position in {*range(0, len(data), 61), *range(len(data) - 100, len(data))}:
        flipped = bytearray(data)
        flipped[position] ^= 1 << (position % 8)
        with pytest.raises(DamagedFileError):
            atomic_io.unpack_npz(bytes(flipped), saved)
    with pytest.raises(DamagedFileError):
        atomic_io.unpack_npz(data + b"0", saved)


@pytest.mark.parametrize("harm", ["cut", "flip", "missing"])
def test_the_state_before_is_used_with_a_warning(saved, moons, harm):
    data = bytearray(saved.read_bytes())
    if harm == "missing":
        saved.unlink()
    else:
        data[len(data) // 3] ^= 16
        saved.write_bytes(data[: len(data) // 2] if harm == "cut" else data)
    checkpoint = Checkpoint(saved)
    with pytest.warns(CheckpointWarning, match="The state before it is used"):
        checkpoint.read()
    assert len(checkpoint._found["records"]) == 10
    assert saved.with_name("fit.ckpt.previous").exists()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DufsWarning)
        resumed = GatedLaplacian.resume(saved, moons)
    assert_same_bits(resumed, fit(moons, engine="reference"))
    atomic_io.unpack_npz(saved.read_bytes(), saved)


def test_both_states_damaged(saved, moons):
    for path in (saved, saved.with_name("fit.ckpt.previous")):
        path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(CheckpointError, match=r"fit\.ckpt is damaged.*previous is damaged.*must start anew"):
        GatedLaplacian.resume(saved, moons)


def test_no_checkpoint(moons, tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no checkpoint at"):
        GatedLaplacian.resume(tmp_path / "fit.ckpt", moons)
    with pytest.raises(CheckpointError, match="is not a directory"):
        fit(moons, callbacks=[Checkpoint(tmp_path / "missing" / "fit.ckpt")])


def test_another_fit_is_refused_with_what_differs(saved, moons):
    other = moons.copy()
    other[3, 4] += 1e-12
    with pytest.raises(CheckpointError, match=r"data sha256 was '.*' and is now"):
        GatedLaplacian.resume(saved, other)
    with pytest.raises(CheckpointError, match=r"data shape was \[40, 8\] and is now \[40, 7\]"):
        GatedLaplacian.resume(saved, moons[:, :7])
    with pytest.raises(CheckpointError, match=r"settings lam was None and is now 0\.5; settings max_iter was 30 .* 31"):
        GatedLaplacian.resume(saved, moons, max_iter=31, lam=0.5)
    with pytest.raises(CheckpointError, match="seed was 5 and is now 6"):
        GatedLaplacian.resume(saved, moons, random_state=6)
    with pytest.raises(CheckpointError, match="engine was 'reference' and is now 'dense'"):
        GatedLaplacian.resume(saved, moons, engine="dense")


def test_another_version_is_refused(saved, moons, monkeypatch):
    monkeypatch.setattr("dufs_core.selection.checkpoint.__version__", "99.0")
    with pytest.raises(CheckpointError, match=r"version was '.*' and is now '99\.0'"):
        GatedLaplacian.resume(saved, moons)


def test_an_earlier_checkpoint_is_not_overwritten(saved, moons):
    before = saved.read_bytes()
    with pytest.raises(CheckpointError, match=r"GatedLaplacian\.resume\(.*or delete it"):
        fit(moons, callbacks=[Checkpoint(saved)])
    assert saved.read_bytes() == before
    Checkpoint(saved).remove()
    assert list(saved.parent.iterdir()) == []


def test_a_finished_fit_is_given_back(moons, tmp_path):
    path = tmp_path / "fit.ckpt"
    a = fit(moons, random_state=np.random.RandomState(3), callbacks=[Checkpoint(path)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DufsWarning)
        b = GatedLaplacian.resume(path, moons, n_jobs=1, callbacks=[lambda info: pytest.fail("there is no step left")])
    assert_same_bits(a, b)


def test_settings_that_are_refused(tmp_path, moons):
    with pytest.raises(ValueError, match="every_seconds must be 0"):
        Checkpoint(tmp_path / "a", every_seconds=-1)
    with pytest.raises(ValueError, match="2 Checkpoints; a fit takes one"):
        fit(moons, callbacks=[Checkpoint(tmp_path / "a"), Checkpoint(tmp_path / "b")])


def test_what_killed_writers_left_is_removed(saved, moons):
    left = saved.with_name(".fit.ckpt.123.0123abcd.tmp")
    left.write_bytes(b"half")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DufsWarning)
        GatedLaplacian.resume(saved, moons)
    assert not left.exists()


@pytest.mark.parametrize("kind", ["sparse", "on disk"])
def test_data_that_are_no_array(moons, tmp_path, kind):
    if kind == "sparse":
        X = sparse.csr_array(np.where(np.abs(moons) < 0.5, 0, moons))
    else:
        np.save(tmp_path / "X.npy", moons)
        X = np.load(tmp_path / "X.npy", mmap_mode="r")
    changes = {"batch_size": 15, "engine": "auto", "max_iter": 12}
    resumed, stops = interrupted_and_resumed(X, tmp_path / "fit.ckpt", 5, **changes)
    assert stops == 2
    assert_same_bits(resumed, fit(X, **changes))


def test_a_state_that_cannot_be_read_is_not_deleted(saved, moons, monkeypatch):
    read = Path.read_bytes

    def unreadable(path):
        if path == saved:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", unreadable)
    with pytest.warns(CheckpointWarning, match="cannot be read"):
        Checkpoint(saved).read()
    with pytest.warns(CheckpointWarning), pytest.raises(CheckpointError, match="max_iter was"):
        GatedLaplacian.resume(saved, moons, max_iter=31)
    monkeypatch.undo()
    assert len(atomic_io.unpack_npz(saved.read_bytes(), saved)["records"]) == 11


def test_the_first_state_after_a_damaged_one_keeps_the_one_before(saved, moons):
    saved.write_bytes(saved.read_bytes()[:-7])
    before = saved.with_name("fit.ckpt.previous").read_bytes()
    with pytest.warns(CheckpointWarning), pytest.raises(InterruptedFit):
        GatedLaplacian.resume(saved, moons, callbacks=[Checkpoint(saved, 3600, After(1))])
    assert saved.with_name("fit.ckpt.previous").read_bytes() == before
    assert len(atomic_io.unpack_npz(saved.read_bytes(), saved)["records"]) == 11


def test_resuming_does_not_overwrite_the_checkpoint_of_another_fit(saved, moons, tmp_path):
    other = tmp_path / "other.ckpt"
    other.write_bytes(b"of another fit")
    with pytest.raises(CheckpointError, match="holds the checkpoint of an earlier fit"):
        GatedLaplacian.resume(saved, moons, callbacks=[Checkpoint(other)])
    assert other.read_bytes() == b"of another fit"


def test_an_archive_of_something_else(saved, moons):
    little = json.dumps({"format": checkpoint.FORMAT})
    for arrays in ({"mu": np.zeros(3)}, {"about": np.array("[1]")}, {"about": np.array(little)}):
        saved.write_bytes(atomic_io.pack_npz(arrays))
        with pytest.raises(CheckpointError, match="is not a checkpoint of a fit"):
            GatedLaplacian.resume(saved, moons)


@pytest.fixture(scope="module", params=["dense", "reference"])
def whole(request, tmp_path_factory):
    """The arrays of a checkpoint in the second run of a search, its data, and where to put others."""
    X = np.random.default_rng(0).normal(size=(30, 6))  # nothing to find: every run fails
    changes = {"max_iter": 400, "learning_rate": 0.02, "max_runs": 4, "tol": 0.01, "engine": request.param}
    path = tmp_path_factory.mktemp("whole") / "fit.ckpt"
    stop = iter(lambda: path.exists() and b"run0/mu" in path.read_bytes(), None)
    with pytest.raises(InterruptedFit):
        fit(X, callbacks=[Checkpoint(path, 0.0, lambda: next(stop))], **changes)
    return atomic_io.unpack_npz(path.read_bytes(), path), X, path


CRAFTED = {
    "mu too long": {"steps/mu": lambda a: np.append(a, a[:1])},
    "mu too short": {"steps/mu": lambda a: a[:-1]},
    "two gates more": {"steps/mu": lambda a: np.append(a, a[:2])},
    "mu of another dtype": {"steps/mu": lambda a: a.astype(np.float64)},
    "mu of two dimensions": {"steps/mu": lambda a: a[None]},
    "NaN in mu": {"steps/mu": lambda a: np.where(a == a.max(), np.nan, a).astype(a.dtype)},
    "no mu": {"steps/mu": None},
    "infinite memory": {"steps/running": lambda a: a + np.inf},
    "memory of another shape": {"steps/running": lambda a: np.zeros(3)},
    "no step": {"records": lambda a: a[:0]},
    "NaN in the records": {"records": lambda a: np.where(a > 0, np.nan, a)},
    "other records": {"records": lambda a: a[:, :-1]},
    "records that are text": {"records": lambda a: a.astype(str)},
    "an unknown part": {"steps/third": lambda a: np.zeros(1)},
    "columns beyond the data": {"run0/columns": lambda a: a + 1},
    "negative columns": {"run0/columns": lambda a: a - 1},
    "a column twice": {"run0/columns": lambda a: a * 0},
    "columns that are fractions": {"run0/columns": lambda a: a + 0.5},
    "no columns": {"run0/columns": None},
    "gates of a run too short": {"run0/mu": lambda a: a[:-1]},
    "NaN in a test": {"about": lambda a: np.array(re.sub('"runs": .*', '"runs": [[true, NaN, 0.5]]}', str(a)))},
    "runs that are none": {"about": lambda a: np.array(str(a).replace('"runs": [', '"runs": [3, '))},
    "an unknown setting": {"about": lambda a: np.array(str(a).replace('"max_iter"', '"max_itre"'))},
    "a dtype that is none": {"about": lambda a: np.array(str(a).replace('"float32"', '"float31"'))},
    "characters that are none": {"about": lambda a: np.frombuffer(
        a.tobytes().replace("columns".encode("utf-32-le"), b"\xff" * 28), a.dtype)[0]},
    "nested a thousand times": {"about": lambda a: np.array("[" * 100_000)},
}  # fmt: skip


@pytest.mark.parametrize("craft", CRAFTED)
def test_a_state_that_no_fit_wrote(whole, craft):
    """The checksum is right: someone made the file. Compiled code must not see it."""
    arrays, X, path = whole
    changes = {name: None if f is None else f(arrays.get(name)) for name, f in CRAFTED[craft].items()}
    path.with_name("fit.ckpt.previous").unlink(missing_ok=True)
    packed = atomic_io.pack_npz({name: a for name, a in (arrays | changes).items() if a is not None})
    path.write_bytes(packed)
    with pytest.raises(CheckpointError) as caught:
        GatedLaplacian.resume(path, X)
    assert "Traceback" not in str(caught.value)
    assert path.read_bytes() == packed


def test_bytes_with_the_right_checksum_that_are_no_archive(saved, moons):
    whole = atomic_io.pack_npz({"about": np.array("x"), "a": np.zeros(10**6)})
    for data in (b"nothing" * 20, whole[:500], whole.replace(b"(1000000,)", b"(9000000,)", 1)):
        saved.write_bytes(data[:-64] + sha256(data[:-64]).hexdigest().encode())
        saved.with_name("fit.ckpt.previous").unlink(missing_ok=True)
        with pytest.raises(CheckpointError, match="is no archive of arrays"):
            GatedLaplacian.resume(saved, moons)


def test_a_last_state_that_could_not_be_saved_is_not_promised(moons, tmp_path, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(atomic_io, "write_bytes", full)
    sentence = "could not be saved to .*the fit must start anew"
    with pytest.warns(CheckpointWarning, match="no space"), pytest.raises(InterruptedFit, match=sentence):
        gated(**settings(callbacks=[Checkpoint(tmp_path / "fit.ckpt", 3600, After(2))])).fit(moons)


def limit_of_file_size(size):
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def test_a_full_disk_is_a_warning_and_the_last_good_state_stays(tmp_path):
    """A limit on the size of files that the first checkpoints keep and later ones, with more history, exceed."""
    code = f"""
    import sys, warnings
    sys.path.insert(0, {os.path.dirname(os.path.dirname(__file__))!r})
    from dufs_core import GatedLaplacian
    from dufs_core.selection.checkpoint import Checkpoint
    from dufs_core.datasets import two_moons
    X = two_moons(40, 8, random_state=0).X
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        settings = {settings(max_iter=200, engine="reference")!r}
        GatedLaplacian(**settings, callbacks=[Checkpoint(sys.argv[1], 0.0)]).fit(X)
    print(*(w.message for w in caught if "cannot be written" in str(w.message)), sep="\\n")
    """
    path = tmp_path / "fit.ckpt"
    run = subprocess.run(
        [sys.executable, "-B", "-c", textwrap.dedent(code), str(path)],
        capture_output=True, text=True, check=True, preexec_fn=limit_of_file_size(8000),
    )  # fmt: skip
    assert run.stdout.count("cannot be written (file too large)") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["fit.ckpt", "fit.ckpt.previous"]
    assert 0 < len(atomic_io.unpack_npz(path.read_bytes(), path)["records"]) < 200


def test_a_saved_run_of_other_columns_is_refused(tmp_path):
    X = two_moons(80, 10, random_state=0).X
    path = tmp_path / "fit.ckpt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        GatedLaplacian(random_state=3, max_iter=5, max_runs=1, callbacks=[Checkpoint(path)]).fit(X)
    arrays = atomic_io.unpack_npz(path.read_bytes(), path)
    for fewer in (slice(-1), slice(None, None, -1)):
        changed = {name: arrays[name][fewer] for name in ("run0/columns", "run0/mu")}
        path.write_bytes(atomic_io.pack_npz(arrays | changed))
        with pytest.raises(CheckpointError, match="it has other columns in run 1"):
            GatedLaplacian.resume(path, X)


def test_the_checkpoint_of_another_selector_is_refused(saved, moons):
    arrays = atomic_io.unpack_npz(saved.read_bytes(), saved)
    about = json.loads(str(arrays["about"]))
    about["identity"]["selector"] = "DUFS"  # of a version that trained gates among decoys
    saved.write_bytes(atomic_io.pack_npz(arrays | {"about": np.array(json.dumps(about))}))
    with pytest.raises(CheckpointError, match="is the checkpoint of a DUFS, and this is GatedLaplacian: fit anew"):
        GatedLaplacian.resume(saved, moons)
