"""Reading data files: formats, choices among variables, text in all its dialects, and what is refused."""

from __future__ import annotations

import builtins
import csv
import io
import re
import struct
import time
import tracemalloc
import warnings
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from dufs_core.data.files import mat, read_table
from dufs_core.data.fingerprint import array_fingerprint, file_fingerprint
from dufs_core.errors import DufsWarning, FileFormatError, MemoryLimitError

X = np.array([[1.0, 2.5, -3.0], [4.0, 5.0, 6.25], [7.0, 8.0, 9.0], [0.5, 1e-3, 2e6]])
Y = np.array([[0], [1], [1], [0]])


def refused(path: Path, **options: object) -> str:
    """The sentence with which the file is refused; it names the file and is one line."""
    with pytest.raises(FileFormatError) as caught:
        read_table(path, **options)  # type: ignore[arg-type]
    sentence = str(caught.value)
    assert path.name in sentence
    assert "\n" not in sentence
    return sentence


def text_file(directory: Path, content: str, name: str = "data.csv", encoding: str = "utf-8") -> Path:
    path = directory / name
    path.write_bytes(content.encode(encoding))
    return path


# --- real files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [
        ("COIL20.mat", (1440, 1024), "float64"),
        ("TOX-171.mat", (171, 5748), "float64"),  # Y comes before X
        ("ORL.mat", (400, 1024), "uint8"),
        ("colon.mat", (62, 2000), "int16"),
        ("pixraw10P.mat", (100, 10000), "uint8"),
    ],
)
def test_mat_with_X_and_two_dimensional_Y(shared_data, name, shape, dtype):
    table = read_table(shared_data(name))
    assert table.X.shape == shape
    assert table.X.dtype == dtype
    assert table.labels.shape == (shape[0],)
    assert table.read_as == {"format": "mat", "variable": "X", "labels": "Y", "transposed": False}
    assert "Y are labels and not used" in table.notes[0]


def test_features_stored_as_rows(shared_data):
    path = shared_data("CITEseq.mat")
    table = read_table(path, transpose=True)
    assert table.X.shape == (8617, 500)
    assert table.read_as["variable"] == "G"
    np.testing.assert_array_equal(table.X, read_table(path, variable="G").X.T)


def test_npz_of_real_images(shared_data):
    table = read_table(shared_data("coil100_partial17_gray32.npz"))
    assert table.X.shape == (1224, 1024)
    assert len(np.unique(table.labels)) == 17
    assert "left out: angle" in table.notes[0]


def test_plain_hdf5(shared_data):
    pytest.importorskip("h5py")
    table = read_table(shared_data("mouse_bladder_cell_select_2100.h5"))
    assert table.X.shape == (2100, 20670)
    assert table.labels.shape == (2100,)


# --- arrays: which variable, which labels --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int8", "uint16", "bool", ">f8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_of_every_dtype(tmp_path, dtype, order):
    values = np.array([[1, 0, 3], [0, 5, 6]]).astype(dtype, order=order)
    np.save(tmp_path / "x.npy", values)
    table = read_table(tmp_path / "x.npy")
    assert table.X.dtype == values.dtype
    np.testing.assert_array_equal(table.X, values)
    np.testing.assert_array_equal(read_table(tmp_path / "x.npy", transpose=True).X, values.T)


def test_single_column(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((5, 1)))
    scipy.io.savemat(tmp_path / "x.mat", {"column": np.ones((5, 1))})
    assert read_table(tmp_path / "x.npy").X.shape == (5, 1)
    assert read_table(tmp_path / "x.mat").X.shape == (5, 1)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed, lambda p, **v: scipy.io.savemat(p, v)])
def test_the_only_table_is_taken(tmp_path, save):
    path = tmp_path / ("a.mat" if "lambda" in save.__name__ else "a.npz")
    save(path, measured=X, Y=Y, when=np.arange(3.0))
    table = read_table(path)
    np.testing.assert_array_equal(table.X, X)
    np.testing.assert_array_equal(table.labels, Y.ravel())


@pytest.mark.parametrize("ending", ["npz", "mat"])
def test_several_tables_are_listed(tmp_path, ending):
    path = tmp_path / f"a.{ending}"
    arrays = {"first": X, "second": X.T, "Y": Y}
    np.savez(path, **arrays) if ending == "npz" else scipy.io.savemat(path, arrays)
    sentence = refused(path)
    assert "first (4 x 3" in sentence
    assert "second (3 x 4" in sentence
    assert "--variable" in sentence
    np.testing.assert_array_equal(read_table(path, variable="second").X, X.T)
    assert 'no variable "third"; it holds first, second, Y' in refused(path, variable="third")


def test_labels_by_name_by_default_and_of_wrong_length(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, X=X, groups=np.array(list("abba")), y=np.arange(3))
    assert read_table(path).labels is None  # y has 3 entries, X 4 samples
    assert read_table(path, labels="groups").labels.tolist() == list("abba")
    assert "3 entries, but X has 4 samples" in refused(path, labels="y")
    assert "see --transpose" in refused(path, labels="y")
    np.testing.assert_array_equal(read_table(path, transpose=True).labels, np.arange(3))
    assert "at once" in refused(path, variable="X", labels="X")


def test_groups_of_arrays(tmp_path):
    path = tmp_path / "a.npz"
    donors = np.array(list("abba"))
    np.savez(path, X=X, donor=donors, kind=Y, short=np.arange(3), wide=np.arange(8).reshape(4, 2))
    table = read_table(path, groups="donor")
    assert table.groups.tolist() == list("abba")
    assert read_table(path, variable="X", groups="donor").groups.tolist() == list("abba")
    np.testing.assert_array_equal(table.X, X)
    assert table.read_as == {"format": "npz", "variable": "X", "labels": None, "transposed": False, "groups": "donor"}
    assert table.notes == ("a.npz: X (4 x 3) is the table, donor are groups, left out: kind, short, wide",)
    both = read_table(path, variable="X", labels="kind", groups="kind")
    assert both.labels.tolist() == both.groups.tolist() == [0, 1, 1, 0]
    plain = read_table(path)
    assert plain.groups is None
    assert "groups" not in plain.read_as
    assert "groups short have 3 entries, but X has 4 samples (it has 3 features" in refused(path, groups="short")
    assert "groups wide have 8 entries, but X has 4 samples" in refused(path, groups="wide")
    assert '"X" cannot be the table and its groups at once' in refused(path, variable="X", groups="X")
    assert 'no variable "plate"; it holds X, donor' in refused(path, groups="plate")
    np.save(tmp_path / "x.npy", X)
    assert "--groups is for files that end with .npz, .mat" in refused(tmp_path / "x.npy", groups="donor")


def test_groups_are_not_the_table_nor_the_labels(tmp_path):
    """Where nothing else is said: the only table beside them, and no labels of that name."""
    path = tmp_path / "a.npz"
    np.savez(path, measured=X, batch=np.array([[3, 1], [1, 2], [0, 0], [5, 5]])[:, :1], Y=Y)
    np.testing.assert_array_equal(read_table(path, groups="batch").X, X)
    table = read_table(path, groups="Y")
    assert (table.labels, table.groups.tolist()) == (None, [0, 1, 1, 0])
    np.savez(path, measured=X, X=Y)
    np.testing.assert_array_equal(read_table(path, groups="X").X, X)


def test_groups_in_matlab_cells_and_hdf5(tmp_path):
    """Empty cells and texts are missing, so that the fit can say it."""
    cells = np.empty((4, 1), dtype=object)
    cells[:, 0] = ["d1", "", "NA", "d1"]
    scipy.io.savemat(tmp_path / "a.mat", {"X": X, "donor": cells})
    assert read_table(tmp_path / "a.mat", groups="donor").groups.tolist() == ["d1", None, None, "d1"]
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["X"], file["donor"] = X, np.array(["d1", "d2", "", "d1"], dtype=h5py.string_dtype())
        file.create_group("obs")
    assert read_table(tmp_path / "a.h5", groups="donor").groups.tolist() == ["d1", "d2", None, "d1"]
    for what in ("groups", "labels"):
        assert f"obs is not an array, and cannot hold {what}" in refused(tmp_path / "a.h5", **{what: "obs"})


def test_covariates_of_arrays(tmp_path):
    path = tmp_path / "a.npz"
    ages = np.array([30, 41, 52, 63])
    both = np.arange(8.0).reshape(4, 2)
    np.savez(path, X=X, age=ages, both=both, kind=np.array(list("abba")), y=Y, short=ages[:3], cube=np.ones((4, 1, 2)))
    table = read_table(path, covariates="age")
    assert table.covariates.dtype == np.float64
    assert table.covariates.tolist() == [[30], [41], [52], [63]]
    table = read_table(path, variable="X", covariates=["both", "age"])
    np.testing.assert_array_equal(table.covariates, np.column_stack([both, ages]))
    np.testing.assert_array_equal(table.X, X)
    assert table.read_as["covariates"] == ["both", "age"]
    (note,) = read_table(path, groups="kind", covariates=("age", "y")).notes
    assert note == "a.npz: X (4 x 3) is the table, kind are groups, age, y are covariates, left out: both, short, cube"
    plain = read_table(path)
    assert plain.covariates is None
    assert "covariates" not in plain.read_as
    said = refused(path, covariates="short")
    assert "covariates short (3) need one number or more for each of the 4 samples of X, as 4 or 4 x c values" in said
    assert "covariates cube (4 x 1 x 2) need one number or more" in refused(path, covariates="cube")
    said = refused(path, covariates="kind")
    assert "kind holds text, and covariates are numbers: a class (batch, donor) belongs into --groups" in said
    for others in ({"variable": "X", "covariates": "X"}, {"covariates": "kind", "groups": "kind"}):
        assert "cannot hold covariates and be the table or the groups at once" in refused(path, **others)
    assert 'no variable "depth"; it holds X, age' in refused(path, covariates=["age", "depth"])
    np.save(tmp_path / "x.npy", X)
    assert "--covariates is for files that end with .npz, .mat" in refused(tmp_path / "x.npy", covariates="age")


def test_covariates_are_not_the_table_nor_the_labels(tmp_path):
    """Where nothing else is said: the only table beside them, and no labels of that name."""
    path = tmp_path / "a.npz"
    np.savez(path, measured=X, Z=np.arange(8.0).reshape(4, 2), Y=Y)
    np.testing.assert_array_equal(read_table(path, covariates="Z").X, X)
    table = read_table(path, covariates=["Z", "Y"])
    assert table.labels is None
    assert table.covariates[:, 2].tolist() == [0, 1, 1, 0]
    np.savez(path, measured=X, X=np.arange(8.0).reshape(4, 2))
    np.testing.assert_array_equal(read_table(path, covariates="X").X, X)


def test_covariates_in_matlab_and_hdf5(tmp_path):
    """MATLAB's rows and sparse arrays are read; missing values are left to the fit, which says it."""
    ages = np.array([30.5, np.nan, 52, 63])
    both = np.arange(8.0).reshape(4, 2)
    scipy.io.savemat(tmp_path / "a.mat", {"X": X, "age": ages[None, :], "both": scipy.sparse.csc_array(both)})
    found = read_table(tmp_path / "a.mat", variable="X", covariates=["age", "both"]).covariates
    np.testing.assert_array_equal(found, np.column_stack([ages, both]))
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["X"], file["age"] = X, ages
        file.create_group("obs")
    for on_disk in (False, True):
        table = read_table(tmp_path / "a.h5", covariates="age", on_disk=on_disk)
        np.testing.assert_array_equal(table.covariates[:, 0], ages)
        np.testing.assert_array_equal(table.X[:], X)
    assert "obs holds a group or text, and covariates are numbers" in refused(tmp_path / "a.h5", covariates="obs")


def test_labels_in_a_matlab_cell(tmp_path):
    cells = np.empty((4, 1), dtype=object)
    cells[:, 0] = ["lung", "skin", "skin", "lung"]
    scipy.io.savemat(tmp_path / "a.mat", {"X": X, "kind": cells})
    assert read_table(tmp_path / "a.mat", labels="kind").labels.tolist() == ["lung", "skin", "skin", "lung"]


def test_labels_that_are_text_in_hdf5(tmp_path):
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    kinds = ["lung", "skin", "Zürich", "lung"]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["X"], file["fixed"] = X, np.array([kind.encode() for kind in kinds])
        file["any_length"] = np.array(kinds, dtype=h5py.string_dtype())
    for name in ("fixed", "any_length"):
        assert read_table(tmp_path / "a.h5", labels=name).labels.tolist() == kinds
    assert "any_length holds objects, not real numbers" in refused(tmp_path / "a.h5", variable="any_length")


def test_sparse_matrices_become_dense(tmp_path):
    scipy.sparse.save_npz(tmp_path / "s.npz", scipy.sparse.csr_array(X))
    scipy.io.savemat(tmp_path / "s.mat", {"X": scipy.sparse.csc_array(X), "Y": Y})
    np.testing.assert_array_equal(read_table(tmp_path / "s.npz").X, X)
    np.testing.assert_array_equal(read_table(tmp_path / "s.mat").X, X)
    for name in ("s.npz", "s.mat"):
        assert "X is sparse and is made dense here, 12 numbers; in Python" in read_table(tmp_path / name).notes[-1]


def test_a_heap_that_hdf5_would_read_for_ever(tmp_path):
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["X"], file["labels"] = X, np.array(["lung", "skin"] * 2, dtype=h5py.string_dtype())
    assert read_table(tmp_path / "a.h5").labels.tolist() == ["lung", "skin"] * 2
    content = (tmp_path / "a.h5").read_bytes()
    last = max(map(content.rindex, (b"lung", b"skin"))) + 8  # then what is left of the heap: object 0
    (tmp_path / "a.h5").write_bytes(content[:last] + bytes(16) + content[last + 16 :])
    assert "an object of no size" in refused(tmp_path / "a.h5")


class Harmful:
    def __reduce__(self):
        return (builtins.exec, ("raise SystemExit('code from the file ran')",))


def test_pickles_are_refused_and_not_opened(tmp_path):
    objects = np.array([[1, None], [Harmful(), 2]], dtype=object)
    np.save(tmp_path / "p.npy", objects)
    np.savez(tmp_path / "p.npz", X=objects)
    np.savez(tmp_path / "q.npz", X=X, extra=objects, Y=objects[:, 0])
    for name in ("p.npy", "p.npz"):
        sentence = refused(tmp_path / name)
        assert "unpickling runs code" in sentence
        assert "numpy.save(path, numpy.asarray(X, dtype=float))" in sentence
    np.testing.assert_array_equal(read_table(tmp_path / "q.npz").X, X)  # what is not asked for does no harm
    assert "unpickling" in refused(tmp_path / "q.npz", variable="extra")
    np.savez(tmp_path / "q.npz", X=X, Y=np.array([Harmful()] * len(X), dtype=object))
    assert "Only unpickling can read Python objects" in refused(tmp_path / "q.npz", labels="Y")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (np.ones(5), "(5) has 1 dimension;"),
        (np.ones((2, 3, 4)), "(2 x 3 x 4) has 3 dimensions;"),
        (np.float64(3), "(one number) has 0 dimensions;"),
        (np.ones((2, 2), dtype=complex), "complex128, not real numbers"),
        (np.array([["a", "b"]]), "text, not real numbers"),
        (np.zeros((2, 2), dtype=[("a", float)]), "records, not real numbers"),
        (np.zeros((2, 2), dtype="datetime64[s]"), "datetime64[s], not real numbers"),
    ],
)
def test_arrays_that_are_no_tables(tmp_path, values, said):
    np.save(tmp_path / "x.npy", values)
    np.savez(tmp_path / "x.npz", X=values)
    assert said in refused(tmp_path / "x.npy")
    assert said in refused(tmp_path / "x.npz")


def test_mat_variables_that_are_no_tables(tmp_path):
    path = tmp_path / "s.mat"
    scipy.io.savemat(path, {"s": {"a": 1}, "c": np.array([[1 + 2j, 3]]), "name": "text"})
    assert "it holds s, c, name" in refused(path, variable="zzz")
    assert "records, not real numbers" in refused(path, variable="s")
    assert "complex" in refused(path, variable="c")
    scipy.io.savemat(path, {"s": {"a": 1}})
    assert "no two-dimensional array of numbers, but s" in refused(path)


def test_matlab_files_read_as_by_scipy(tmp_path, shared_data):
    """Numbers of every type and layout, text, cells; big-endian and compressed files; those that SciPy tests with."""
    values = {f"v{i}": X.astype(t) for i, t in enumerate(["?", *"bBhHiIqQfdD"])}
    values |= {"t": "hellö", "c": np.array(["a", "bb", 3.0], dtype=object), "names": np.array(["ab", "cde"])}
    values |= {"S": scipy.sparse.csc_array(X > 1), "Z": scipy.sparse.csc_array((3, 4)), "e": np.zeros((0, 3))}
    values |= {"s": {"a": 1}, "cube": np.ones((2, 3, 4))}
    paths = [tmp_path / "plain.mat", tmp_path / "packed.mat"]
    for path in paths:
        scipy.io.savemat(path, values, do_compression=path.name == "packed.mat", oned_as="column")
    theirs = Path(scipy.io.matlab.__file__).parent / "tests" / "data"
    paths += [path for path in theirs.glob("*.mat") if path.read_bytes()[:19] == b"MATLAB 5.0 MAT-file"]
    compared = 0
    for path in paths:
        try:
            expected = scipy.io.loadmat(path)
        except Exception:
            if "name" not in path.name:  # they are refused for a name beyond ASCII
                with pytest.raises((ValueError, zlib.error)):
                    [variable.value() for variable in mat.variables(path).values()]
            continue
        for name, found in mat.variables(path).items():
            want, got = expected[name], found.value()
            if want.dtype.kind in "OVc":
                continue  # cells of text are what labels need; complex numbers are refused
            if scipy.sparse.issparse(want):
                want, got = want.toarray(), got.toarray()
            assert got.dtype.newbyteorder("=") == want.dtype.newbyteorder("="), (path, name)
            np.testing.assert_array_equal(got, want)
            compared += 1
    assert compared >= 18
    assert mat.variables(paths[0])["c"].value().tolist() == [["a"], ["bb"], ["3.0"]]


def edited(path: Path, old: bytes, new: bytes) -> Path:
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new))
    return path


def test_damaged_sparse_matrices_are_refused_before_compiled_code_sees_them(tmp_path):
    h5py = pytest.importorskip("h5py")
    for bad in ({"indices": [1 << 30]}, {"indices": [-1]}, {"indptr": [0, 1 << 30, 1, 1, 1]}, {"indptr": [1] * 5}):
        parts = {"data": np.ones(1), "indices": [0], "indptr": [0, 0, 1, 1, 1]} | bad
        parts = {name: np.asarray(part) for name, part in parts.items()}
        for kind, shape in (("csr", (4, 3)), ("csc", (3, 4))):
            np.savez(tmp_path / "a.npz", format=np.array(kind), shape=shape, **parts)
            assert "it is damaged" in refused(tmp_path / "a.npz")
        with h5py.File(tmp_path / "a.h5", "w") as file:
            group = file.create_group("S")
            group.attrs["MATLAB_sparse"] = 3
            group["data"], group["ir"], group["jc"] = parts["data"], parts["indices"], parts["indptr"]
        assert "it is damaged" in refused(tmp_path / "a.h5")
    whole = scipy.sparse.csc_array(np.eye(5))
    for part, at, value in (("indices", 3, 1 << 20), ("indptr", 2, 4)):
        scipy.io.savemat(tmp_path / "a.mat", {"X": whole})
        before = getattr(whole, part).astype("i4").tobytes()
        after = getattr(whole, part).astype("i4")
        after[at] = value
        assert "damaged index arrays" in refused(edited(tmp_path / "a.mat", before, after.tobytes()))
    np.savez(tmp_path / "a.npz", format=np.array("coo"), shape=(3, 3), data=np.ones(1), row=[7], col=[0])
    assert "it is damaged" in refused(tmp_path / "a.npz")


def test_headers_that_promise_too_much_are_refused_before_anything_is_allocated(tmp_path):
    h5py = pytest.importorskip("h5py")
    np.save(tmp_path / "a.npy", np.ones((3, 3)))
    for shape in (b"(3, 1000000000000), }", b"(-3, -3), }", b"(3, 4), }"):
        np.save(tmp_path / "a.npy", np.ones((3, 3)))
        sentence = refused(edited(tmp_path / "a.npy", b"(3, 3), }".ljust(len(shape)), shape))
        assert "its header says" in sentence
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.write(tmp_path / "a.npy", "X.npy")
    assert "its header says" in refused(tmp_path / "a.npz")
    with zipfile.ZipFile(tmp_path / "b.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("X.npy", bytes(100))
    inflated = edited(tmp_path / "b.npz", struct.pack("<I", 100), struct.pack("<I", 10**9))
    assert "cannot hold 1 GB in" in refused(inflated)
    scipy.io.savemat(tmp_path / "a.mat", {"X": X})
    tag = struct.pack("<II", 9, X.nbytes)
    assert "bytes where" in refused(edited(tmp_path / "a.mat", tag, struct.pack("<II", 9, 1 << 31)))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("X", shape=(10**6, 10**7), chunks=(100, 100), dtype="f8")
    scipy.sparse.save_npz(tmp_path / "s.npz", scipy.sparse.csr_array((10**6, 10**7)))
    tracemalloc.start()
    for on_disk in (False, True):
        assert "X (1000000 x 10000000) would take 80 TB, and the file has" in refused(
            tmp_path / "a.h5", on_disk=on_disk
        )
    with pytest.raises(MemoryLimitError, match=r"would take 80 TB; .* are available"):
        read_table(tmp_path / "s.npz")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50e6


# --- MATLAB 7.3 ----------------------------------------------------------------------------------------------------


def matlab73(path: Path) -> None:
    """A file as MATLAB 7.3 writes it: a block of 512 bytes, then HDF5 with every array transposed."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w", userblock_size=512) as file:
        for name, values in {"X": X, "Y": Y.astype(float), "other": X[:, :2]}.items():
            file.create_dataset(name, data=values.T).attrs["MATLAB_class"] = np.bytes_("double")
        sparse = scipy.sparse.csc_array(X)
        group = file.create_group("S")
        group.attrs["MATLAB_class"] = np.bytes_("double")
        group.attrs["MATLAB_sparse"] = np.uint64(X.shape[0])
        group["data"], group["ir"], group["jc"] = sparse.data, sparse.indices, sparse.indptr
        group = file.create_group("nothing")  # a sparse matrix of zeros has no data and ir
        group.attrs["MATLAB_class"] = np.bytes_("double")
        group.attrs["MATLAB_sparse"] = np.uint64(4)
        group["jc"] = np.zeros(6, dtype=np.uint64)
        file.create_group("struct").attrs["MATLAB_class"] = np.bytes_("struct")
        file.create_group("#refs#")
        text = file.create_dataset("text", data=np.array([[72, 105]], dtype=np.uint16))
        text.attrs["MATLAB_class"] = np.bytes_("char")
        empty = file.create_dataset("empty", data=np.array([0, 3], dtype=np.uint64))
        empty.attrs["MATLAB_class"] = np.bytes_("double")
        empty.attrs["MATLAB_empty"] = np.uint8(1)
    with path.open("r+b") as raw:
        raw.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\x00\x02IM")


def test_matlab_73(tmp_path):
    path = tmp_path / "new.mat"
    matlab73(path)
    table = read_table(path)
    np.testing.assert_array_equal(table.X, X)
    np.testing.assert_array_equal(table.labels, Y.ravel())
    np.testing.assert_array_equal(read_table(path, variable="S").X, X)
    np.testing.assert_array_equal(read_table(path, variable="nothing").X, np.zeros((4, 5)))
    np.testing.assert_array_equal(read_table(path, variable="other", transpose=True).X, X[:, :2].T)
    assert "empty (2) has 1 dimension" in refused(path, variable="empty")
    assert "a group or text, not real numbers" in refused(path, variable="struct")
    assert "a group or text, not real numbers" in refused(path, variable="text")
    assert "#refs#" not in refused(path, variable="zzz")


def test_matlab_73_without_h5py(tmp_path, monkeypatch):
    path = tmp_path / "new.mat"
    path.write_bytes(b"MATLAB 7.3 MAT-file".ljust(512) + b"\x89HDF\r\n\x1a\n" + bytes(100))
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    sentence = refused(path)
    assert "pip install h5py" in sentence
    assert "-v7" in sentence


# --- text ----------------------------------------------------------------------------------------------------------

cells = st.floats(allow_nan=False, allow_infinity=False, width=64) | st.integers(-999, 999).map(float)


@given(
    values=st.integers(1, 6).flatmap(
        lambda d: st.lists(st.lists(cells, min_size=d, max_size=d), min_size=2, max_size=30)
    ),
    delimiter=st.sampled_from([",", ";", "\t", "|", " "]),
    decimal=st.sampled_from([".", ","]),
    header=st.booleans(),
    newline=st.sampled_from(["\n", "\r\n", "\r"]),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
    ending=st.booleans(),
)
def test_every_dialect_reads_back(
    tmp_path_factory, values, delimiter, decimal, header, newline, quoting, encoding, ending
):
    d = len(values[0])
    if decimal == "," and (delimiter == "," or d == 1):
        decimal = "."  # 1,5 in a single column is two columns to anybody
    if delimiter == " ":
        quoting = csv.QUOTE_NONE
    names = [f"gene {chr(97 + j)}é".replace(" ", "_" if delimiter == " " else " ") for j in range(d)]
    rows = [[repr(v).replace(".", decimal) for v in row] for row in values]
    buffer = io.StringIO()
    writer = csv.writer(buffer, delimiter=delimiter, lineterminator=newline, quoting=quoting)
    writer.writerows([names, *rows] if header else rows)
    content = buffer.getvalue() if ending else buffer.getvalue().removesuffix(newline)
    path = text_file(tmp_path_factory.mktemp("dialect"), content, "x.txt", encoding)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DufsWarning)  # a comma that might separate thousands
        table = read_table(path, header=header)
    np.testing.assert_array_equal(table.X, np.array(values))
    assert table.feature_names == (tuple(names) if header else None)


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ("a,b,c\n1,2,3\n4,5,6\n", ("a", "b", "c")),
        ("1,2,3\n4,5,6\n", None),
        ("1.5,2,3\n4,5,6\n", None),
        (",0,1,2\n0,1,2,3\n1,4,5,6\n", ("0", "1", "2")),  # a frame without names
        ("1999,2000,2001\n4,5,6\n", None),
        ('"a" "b" "c"\n"r1" 1 2 3\n"r2" 4 5 6\n', ('"a"', '"b"', '"c"')),  # R's write.table
        ("a;b;c\n1;2;3\n4;5;6\n", ("a", "b", "c")),
        ("# a,b,c\n1,2,3\n4,5,6\n", ("a", "b", "c")),  # numpy.savetxt
        ("# two\n# lines\n1,2,3\n4,5,6\n", None),
        ("a,a,\n1,2,3\n4,5,6\n", ("a", "a", "x2")),
        ("\n\na,b,c\n\n1,2,3\n   \n4,5,6\n\n", ("a", "b", "c")),
        ("a,b,c\nNA,2,3\n4,5,6\n", ("a", "b", "c")),
        ("a,b,c,\n1,2,3,\n4,5,6,\n", ("a", "b", "c")),  # a delimiter at every line's end
        ("a,b,c\n1,2,3,\n4,5,6,\n", ("a", "b", "c")),
    ],
)
def test_header_is_seen(tmp_path, content, names):
    path = text_file(tmp_path, content)
    if content.startswith('"a"'):
        path = text_file(tmp_path, content.replace(" ", ","))
        names = ("a", "b", "c")
    table = read_table(path)
    assert table.feature_names == names
    assert table.X[-1].tolist() == [4, 5, 6]
    assert table.X.shape[1] == 3
    assert table.read_as["header"] == (names is not None and not content.startswith("#"))


def test_header_can_be_said(tmp_path):
    path = text_file(tmp_path, "1,2\n3,4\n5,6\n")
    assert read_table(path).X.shape == (3, 2)
    assert read_table(path, header=True).feature_names == ("1", "2")
    path = text_file(tmp_path, "a,b\n1,2\n")
    assert "line 1" in refused(path, header=False)
    assert "no rows of numbers" in refused(text_file(tmp_path, "a,b\n"))


def test_a_row_that_counts_the_columns(tmp_path):
    counted = ",".join(map(str, range(12)))
    assert read_table(text_file(tmp_path, f"{counted}\n{counted.replace('0', '5')}\n")).X.shape == (1, 12)
    assert read_table(text_file(tmp_path, "0,1,2\n3,4,5\n")).X.shape == (2, 3)
    assert read_table(text_file(tmp_path, "0,1,2\n3,4,5\n"), header=True).X.shape == (1, 3)
    assert read_table(text_file(tmp_path, "0,1,2\n3,4,5\n"), header=False).X.shape == (2, 3)


def test_one_bad_cell_in_the_first_row_is_not_a_header(tmp_path):
    sentence = refused(text_file(tmp_path, "1,2,x7\n4,5,6\n7,8,9\n"))
    assert "line 1" in sentence
    assert "x7" in sentence


IRIS = "id,sepal,petal,species\n1001,5.1,1.4,setosa\n1002,4.9,1.3,setosa\n1003,6.3,6.0,virginica\n"


def test_text_columns_are_named(tmp_path):
    path = text_file(tmp_path, IRIS)
    with pytest.warns(DufsWarning, match='column "id" is used as a feature'):
        sentence = refused(path)
    assert 'line 2: column "species" (number 3) holds text ("setosa")' in sentence
    assert '--labels "species"' in sentence
    assert '--index-column "species"' in sentence
    assert '--groups "species"' in sentence


@pytest.mark.parametrize(("labels", "index"), [("species", "id"), ("3", "0"), ("-1", ("id",))])
def test_labels_and_identifiers_are_left_out(tmp_path, labels, index):
    table = read_table(text_file(tmp_path, IRIS), labels=labels, index_column=index)
    assert table.feature_names == ("sepal", "petal")
    assert table.X.tolist() == [[5.1, 1.4], [4.9, 1.3], [6.3, 6.0]]
    assert table.labels.tolist() == ["setosa", "setosa", "virginica"]
    assert (table.read_as["labels"], table.read_as["index_columns"]) == ("species", ["id"])


def test_columns_that_do_not_exist(tmp_path):
    path = text_file(tmp_path, IRIS)
    listed = 'give a number from 0 to 3, or a name; it has "id", "sepal", "petal", "species"'
    assert f"no column 'kind'; {listed}" in refused(path, labels="kind")
    assert f"no column '4'; {listed}" in refused(path, labels="4")
    assert "at once" in refused(path, labels="species", index_column="3")
    assert "no header" in refused(text_file(tmp_path, "1,2\n3,4\n"), labels="kind")
    assert "(0, 1)" in refused(text_file(tmp_path, "a,a\n3,4\n"), labels="a")
    assert "no columns left" in refused(text_file(tmp_path, "a,b\n3,4\n"), labels="a", index_column="b")


def test_a_numeric_label_column_does_not_pass_in_silence(tmp_path):
    path = text_file(tmp_path, "a,b,Class\n1,2,0\n3,4,1\n")
    with pytest.warns(DufsWarning, match='leave it out with --labels "Class"'):
        assert read_table(path).X.shape == (2, 3)
    table = read_table(path, labels="Class")
    assert table.labels.tolist() == [0, 1]
    assert table.labels.dtype.kind == "i"


DONORS = "id,donor,a,kind,b\ns1,01,1,x,2\ns2,1,3,y,4\ns3,01,5,x,6\n"


@pytest.mark.parametrize("groups", ["donor", "1", "-4"])
def test_groups_of_a_text_file(tmp_path, groups):
    path = text_file(tmp_path, DONORS)
    table = read_table(path, groups=groups, labels="kind", index_column="id")
    assert table.groups.tolist() == ["01", "1", "01"]  # as they are written
    assert table.feature_names == ("a", "b")
    assert table.X.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert (table.read_as["groups"], table.read_as["labels"]) == ("donor", "kind")
    both = read_table(path, groups=groups, labels="donor", index_column=["id", "kind"])
    assert both.groups.tolist() == ["01", "1", "01"]
    assert both.labels.tolist() == [1, 1, 1]


def test_groups_that_a_text_file_cannot_give(tmp_path):
    path = text_file(tmp_path, DONORS)
    assert "no column 'batch'; give a number from 0 to 4" in refused(path, groups="batch")
    said = refused(path, groups="id", index_column=["id", "kind"])
    assert '"id" cannot hold groups and identifiers at once' in said
    for missing in ("", "NA", "nan"):
        path = text_file(tmp_path, f"a,b,donor\n1,2,d1\n3,4,{missing}\n5,6,d1\n")
        said = refused(path, groups="donor")
        assert f'line 3: column "donor" (number 2) has no group ("{missing}"); leave such rows out' in said
    path = text_file(tmp_path, "gene,s1,s2\nplate,p1,\nTP53,1,2\n")
    assert 'column 3: column "plate" (number 1) has no group' in refused(
        path, transpose=True, groups="plate", index_column="gene"
    )


AGES = "id;age;a;kind;b\ns1;30,5;1;x;2\ns2;41;3;y;4\ns3;7,25;5;x;6\n"


@pytest.mark.parametrize("covariates", ["age", "1", "-4", ["age"]])
def test_covariates_of_a_text_file(tmp_path, covariates):
    path = text_file(tmp_path, AGES)
    table = read_table(path, covariates=covariates, groups="kind", index_column="id")
    assert table.covariates.dtype == np.float64
    assert table.covariates.tolist() == [[30.5], [41], [7.25]]
    assert table.groups.tolist() == ["x", "y", "x"]
    assert table.feature_names == ("a", "b")
    assert table.X.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert (table.read_as["covariates"], table.read_as["groups"]) == (["age"], "kind")
    several = read_table(path, covariates=["b", "age"], labels="b", index_column=["id", "kind"])
    assert several.covariates.tolist() == [[2, 30.5], [4, 41], [6, 7.25]]
    assert several.labels.tolist() == [2, 4, 6]
    assert several.feature_names == ("a",)
    plain = read_table(path, groups="kind", index_column="id")
    assert plain.covariates is None
    assert "covariates" not in plain.read_as


def test_covariates_that_a_text_file_cannot_give(tmp_path):
    path = text_file(tmp_path, AGES)
    assert "no column 'depth'; give a number from 0 to 4" in refused(path, covariates=["age", "depth"])
    said = refused(path, covariates="kind", index_column="id")
    assert 'line 2: column "kind" (number 3) holds text ("x"), and covariates are numbers' in said
    assert 'belongs into --groups "kind"' in said
    said = refused(path, covariates="age", index_column=["id", "age"])
    assert '"age" cannot hold covariates and identifiers at once' in said
    said = refused(path, covariates=["age", "3"], groups="kind", index_column="id")
    assert '"3" cannot hold covariates and groups at once' in said
    for missing in ("", "NA", "nan"):
        path = text_file(tmp_path, f"a,b,age\n1,2,30\n3,4,{missing}\n5,6,32\n")
        said = refused(path, covariates="age")
        assert f'line 3: column "age" (number 2) has no number ("{missing}"), and is a covariate' in said
    path = text_file(tmp_path, "gene,s1,s2\nage,30,\nTP53,1,2\n")
    said = refused(path, transpose=True, covariates="age", index_column="gene")
    assert 'column 3: column "age" (number 1) has no number' in said


def test_first_column_as_covariate_needs_no_name(tmp_path):
    table = read_table(text_file(tmp_path, ",a,b\n7,1,2\n8,3,4\n"), covariates="0")
    assert (table.covariates.tolist(), table.notes) == ([[7], [8]], ())


def test_first_column_as_groups_needs_no_name(tmp_path):
    table = read_table(text_file(tmp_path, ",a,b\nr1,1,2\nr1,3,4\n"), groups="0")
    assert (table.groups.tolist(), table.notes) == (["r1", "r1"], ())


@pytest.mark.parametrize("name", ["batch", "Donor", "plate", "subject", "patient", "group", "groups"])
def test_a_numeric_group_column_does_not_pass_in_silence(tmp_path, name):
    path = text_file(tmp_path, f"a,{name},b\n1,1,2\n3,1,4\n")
    with pytest.warns(DufsWarning, match=f'if rows belong together by it, leave it out with --groups "{name}"'):
        assert read_table(path).X.shape == (2, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_table(path, groups=name).X.shape == (2, 2)


def test_first_column_without_a_name_is_the_index(tmp_path):
    for content in (",a,b\n0,1,2\n1,3,4\n", '"","a","b"\n"r1",1,2\n"r2",3,4\n', "a\tb\nr1\t1\t2\nr2\t3\t4\n"):
        table = read_table(text_file(tmp_path, content))
        assert table.feature_names == ("a", "b")
        assert table.X.tolist() == [[1, 2], [3, 4]]
        assert "left out as the names of the samples" in table.notes[0]


def test_features_as_rows_in_text(tmp_path):
    path = text_file(tmp_path, "gene,s1,s2,s3\nTP53,1,2,3\nMYC,4,5,6\n")
    table = read_table(path, transpose=True, index_column="gene")
    assert table.feature_names == ("TP53", "MYC")
    assert table.X.tolist() == [[1, 4], [2, 5], [3, 6]]
    sentence = refused(text_file(tmp_path, ",s1,s2,s3\nTP53,1,2,3\nMYC,4,?!,6\n"), transpose=True)
    assert 'column 3: column "MYC" (number 2) holds text ("?!")' in sentence
    table = read_table(text_file(tmp_path, "kind,a,b,a\nTP53,1,2,3\nMYC,4,5,6\n"), transpose=True, labels="kind")
    assert table.labels.tolist() == ["a", "b", "a"]


def test_decimal_commas(tmp_path):
    table = read_table(text_file(tmp_path, "a;b\n1,5;2\n-0,25;1,2e3\n"))
    assert table.X.tolist() == [[1.5, 2], [-0.25, 1200]]
    assert table.read_as["decimal_mark"] == ","
    whole = "\n".join(f"{i}\t{i}" for i in range(40))
    assert read_table(text_file(tmp_path, f"{whole}\n1,5\t2\n", "x.tsv")).X[-1].tolist() == [1.5, 2]
    with pytest.warns(DufsWarning, match="comma of 1,234 is read as a decimal mark"):
        assert read_table(text_file(tmp_path, "1,234;2,345\n3,456;4,567\n")).X[0, 0] == 1.234
    assert "1.234,5" in refused(text_file(tmp_path, "1.234,5;2\n3;4,5\n"))


def test_missing_values_become_nan(tmp_path):
    assert np.isnan(read_table(text_file(tmp_path, "1,2,\n4,5,\n7,8,9\n")).X[:, 2]).tolist() == [True, True, False]
    table = read_table(text_file(tmp_path, "a,b,c,d,e\n1,,NA,nan,?\n1,2,3,4,5\n"))
    assert np.isnan(table.X[0]).tolist() == [False, True, True, True, True]


def test_numbers_as_python_reads_them_only(tmp_path):
    sentence = refused(text_file(tmp_path, "a,b\n1,2\n3,1_0\n"))
    assert 'line 3: column "b" (number 1) holds text ("1_0")' in sentence
    without_header = text_file(tmp_path, "1_0,2,3\n4,5,6\n7,8,9\n")
    assert 'line 1: column number 0 holds text ("1_0")' in refused(without_header)
    assert 'column 1: column number 0 holds text ("1_0")' in refused(without_header, transpose=True, header=False)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("1,2,3\n4,5\n", "line 2: 2 values where the lines above have 3 (delimiter: comma)"),
        ("a;b\n1;2\n\n1;2;3\n", "line 4: 3 values where the lines above have 2 (delimiter: semicolon)"),
        ("1 2 3\n4 5 6\n7\n", "line 3: 1 value where"),
        ("# note\n1,2,3\n4,5,6\n7,8\n", "line 4: 2 values"),
        ("", "is empty"),
        ("\n  \n\n", "is empty"),
        ("# only\n", "comments only"),
        ("a\x00b", "not text"),
    ],
)
def test_broken_text(tmp_path, content, said):
    assert said in refused(text_file(tmp_path, content))


def test_dates_are_no_numbers(tmp_path):
    assert 'column number 1 holds text ("2020-01-01")' in refused(text_file(tmp_path, "1,2020-01-01\n2,2020-01-02\n"))
    assert 'column number 1 holds text ("NaT")' in refused(text_file(tmp_path, "1,2\n2,3\n3,NaT\n4,5\n"))
    h5py = pytest.importorskip("h5py")
    for kind in ("M8[s]", "m8[s]"):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["X"] = np.arange(6).reshape(3, 2).astype(kind).astype(h5py.opaque_dtype(np.dtype(kind)))
        for on_disk in (False, True):
            assert "not real numbers" in refused(tmp_path / "a.h5", on_disk=on_disk)


def test_a_quotation_mark_that_is_never_closed(tmp_path):
    body = "".join(f"{i},2,3\n" for i in range(20))
    assert re.search(r"line 12\b", refused(text_file(tmp_path, body.replace("11,2,3", '11,"2,3'))))
    long = "".join(f"{i},2,3\n" for i in range(40000)).replace("\n11,2,3", '\n11,"2,3')
    assert "quotation mark" in refused(text_file(tmp_path, long))


def test_twenty_thousand_columns_fast(tmp_path):
    values = np.random.default_rng(0).integers(-999, 999, (50, 20000)) / 64
    names = [f"gene_{j}" for j in range(20000)]
    rows = "\n".join(f"sample_{i}," + ",".join(map(str, row)) for i, row in enumerate(values.tolist()))
    path = text_file(tmp_path, ",".join(["id", *names]) + "\n" + rows)
    started = time.perf_counter()
    table = read_table(path, index_column="id")
    assert time.perf_counter() - started < 10
    np.testing.assert_array_equal(table.X, values)
    assert table.feature_names == tuple(names)


@pytest.mark.parametrize("line", ["1," * 300_000, "1 " * 300_000, ",".join(str(i % 97) for i in range(300_000))])
def test_the_memory_for_one_endless_line_is_bounded_by_its_length(tmp_path, line):
    path = text_file(tmp_path, line + "\n")
    tracemalloc.start()
    assert read_table(path).X.shape == (1, 300_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 35 * path.stat().st_size


# --- files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["npy", "npz", "mat", "csv", "h5"])
def test_empty_damaged_and_wrong_files(tmp_path, ending):
    path = tmp_path / f"x.{ending}"
    path.write_bytes(b"")
    assert "is empty" in refused(path)
    path.write_bytes(b"\x80\x04\x95\x00\x01\x02\x03 not what the ending says")
    assert refused(path)


@pytest.mark.parametrize("ending", ["npy", "npz", "mat"])
def test_files_cut_short(tmp_path, ending):
    path = tmp_path / f"x.{ending}"
    big = np.random.default_rng(0).standard_normal((50, 40))
    {"npy": np.save, "npz": lambda p, x: np.savez_compressed(p, X=x)}.get(
        ending, lambda p, x: scipy.io.savemat(p, {"X": x})
    )(path, big)
    whole = path.read_bytes()
    for keep in (20, 100, len(whole) // 2, len(whole) - 10):
        path.write_bytes(whole[:keep])
        assert refused(path)


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        read_table(tmp_path / "x.csv")
    with pytest.raises(IsADirectoryError, match="is a directory"):
        read_table(tmp_path)
    (tmp_path / "x.xlsx").write_bytes(b"PK")
    assert 'ending ".xlsx"; the formats known are .npy' in refused(tmp_path / "x.xlsx")
    (tmp_path / "x.h5ad").write_bytes(b"HDF")
    assert "dufs_core.anndata.select_features" in refused(tmp_path / "x.h5ad")


def test_an_npz_called_npy(tmp_path):
    np.savez(tmp_path / "x.npz", X=X)
    (tmp_path / "x.npz").rename(tmp_path / "x.npy")
    assert "rename it" in refused(tmp_path / "x.npy")


def test_options_of_other_formats(tmp_path):
    np.save(tmp_path / "x.npy", X)
    assert "--variable" in refused(tmp_path / "x.npy", variable="X")
    assert "--header" in refused(tmp_path / "x.npy", header=True)
    assert "--index-column" in refused(tmp_path / "x.npy", index_column="a")
    assert "--variable" in refused(text_file(tmp_path, "1,2\n"), variable="X")


def test_fingerprints(tmp_path):
    path = text_file(tmp_path, "abc")
    assert file_fingerprint(path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert array_fingerprint(X) == array_fingerprint(np.asfortranarray(X)) == array_fingerprint(X.astype(">f8"))
    assert len({array_fingerprint(v) for v in (X, X.T, X.reshape(2, 6), X.astype("f4"), X + 1)}) == 5
