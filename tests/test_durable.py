"""Files that are whole or not there, and the fingerprints of tables."""

import errno
import os

import numpy as np
import pytest
from scipy import sparse

from dufs_core.backend import get_backend
from dufs_core.data.fingerprint import describe
from dufs_core.selection import atomic_io


def failing(monkeypatch, name, number, when=lambda *args: True):
    """Let a function of the module os fail."""
    function = getattr(os, name)

    def call(*args, **kwargs):
        if when(*args):
            raise OSError(number, os.strerror(number))
        return function(*args, **kwargs)

    monkeypatch.setattr(os, name, call)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    return path


def test_the_old_file_stays_if_the_last_rename_fails(path, monkeypatch):
    failing(monkeypatch, "replace", errno.EIO, lambda source, target: str(target) == str(path))
    failing(monkeypatch, "rename", errno.EIO)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        atomic_io.write_bytes(path, b"new", path.with_name("b"))
    assert {p.name: p.read_bytes() for p in path.parent.iterdir()} == {"a": b"old", "b": b"old"}


@pytest.mark.parametrize("links", [True, False])
def test_the_file_before_is_kept(path, monkeypatch, links):
    if not links:
        failing(monkeypatch, "link", errno.EPERM)
    for data in (b"new", b"newer"):
        atomic_io.write_bytes(path, data, path.with_name("b"))
    assert {p.name: p.read_bytes() for p in path.parent.iterdir()} == {"a": b"newer", "b": b"new"}


@pytest.mark.parametrize(("number", "fails"), [(errno.EINVAL, False), (errno.EACCES, False), (errno.EIO, True)])
def test_a_directory_that_cannot_be_flushed(path, monkeypatch, number, fails):
    failing(monkeypatch, "open", number, lambda name, *args: str(name) == str(path.parent))
    if fails:
        with pytest.raises(OSError, match=os.strerror(number)):
            atomic_io.write_bytes(path, b"new")
    else:
        atomic_io.write_bytes(path, b"new")
    assert path.read_bytes() == b"new"


def test_temporaries_of_other_files_are_left(tmp_path):
    kept = {".fit.ckpt.1.0123abcd.tmp", ".fit.1.0123.tmp", ".fi[t].1.0123abcd.tmp"}
    for name in (*kept, ".fit.12.0123abcd.tmp"):
        (tmp_path / name).touch()
    atomic_io.remove_temporaries(tmp_path / "fit")
    assert {p.name for p in tmp_path.iterdir()} == kept
    atomic_io.remove_temporaries(tmp_path / "fi[t]")
    assert not (tmp_path / ".fi[t].1.0123abcd.tmp").exists()


def test_archives(tmp_path):
    arrays = {"a/b": np.arange(3.0), "text": np.array("x"), "none": np.zeros((0, 2))}
    data = atomic_io.pack_npz(arrays)
    assert data == atomic_io.pack_npz(arrays)
    found = atomic_io.unpack_npz(data, "it")
    assert found.keys() == arrays.keys()
    assert all(np.array_equal(found[name], array) for name, array in arrays.items())
    with pytest.raises(ValueError, match="allow_pickle"):
        atomic_io.pack_npz({"a": np.array([object()])})


def test_fingerprints():
    bk = get_backend("numpy")
    X = np.random.default_rng(0).integers(0, 3, (30, 7)).astype(float)
    array = describe(bk, X)
    assert describe(bk, X.astype(">f8")) == array
    rows = sparse.csr_array(X)
    reversed_ = rows.copy()
    for start, stop in zip(rows.indptr, rows.indptr[1:], strict=False):
        for part in (reversed_.indices, reversed_.data):
            part[start:stop] = part[start:stop][::-1].copy()
    reversed_.has_sorted_indices = False
    before = reversed_.indices.copy()
    found = [describe(bk, form) for form in (rows, sparse.csc_matrix(X), reversed_)]
    assert found[0] == found[1] == found[2] != array
    assert np.array_equal(reversed_.indices, before)  # not written to
    rows.data[3] += 1
    assert describe(bk, rows) != found[0]


def test_fingerprints_on_disk(tmp_path, monkeypatch):
    bk = get_backend("numpy")
    np.save(tmp_path / "X.npy", np.arange(70.0).reshape(10, 7))
    X = np.load(tmp_path / "X.npy", mmap_mode="c")
    monkeypatch.setattr("dufs_core.data.on_disk.CHUNK_BYTES", 3 * 7 * 8)
    before = describe(bk, X)
    assert before["kind"] == "on disk"
    assert describe(bk, X) == before
    X[9, 6] += 1
    assert describe(bk, X)["sha256"] != before["sha256"]
