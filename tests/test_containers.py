"""Every container with every operation; docs/array-support.md is what these cells come to.

``python tests/test_containers.py`` writes the table anew; the tests compare it with the committed one.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from pathlib import Path

import generators as gen
import numpy as np
import pandas as pd
import pytest
from generators import gated
from scipy import sparse

from dufs_core import DUFS, GatedLaplacian, LambdaPath, fit_many, report
from dufs_core.anndata import select_features
from dufs_core.baselines import LaplacianScore
from dufs_core.cli.main import main
from dufs_core.selection.fit import FitTask

pytestmark = pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")
DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "array-support.md"
NAMES = [f"g{k}" for k in range(8)]
SETTINGS = {
    "max_iter": 6, "max_runs": 1, "n_draws": 2, "random_state": 0, "backend": "numpy", "n_features_to_select": 3,
}  # fmt: skip
OF_DECOYS = {"random_state": 0, "backend": "numpy", "n_features_to_select": 3}  # of an AnnData
OPERATIONS = (
    "`fit`",
    "`transform` gives",
    "`fit` with `batch_size`",
    "`fit_many`",
    "`sweep` reads",
    "baselines",
    "`report`",
)


def table():
    """Clusters, two of five entries of which are 0."""
    X = np.ascontiguousarray(gen.three_clusters(60, 8).X)
    X[abs(X) < 0.5] = 0
    return X


class DLPack:
    """An array of a library that NumPy knows nothing of."""

    def __init__(self, X):
        self._X = X

    def __dlpack__(self, **how):
        return self._X.__dlpack__(**how)

    def __dlpack_device__(self):
        return self._X.__dlpack_device__()


def package(name):
    return pytest.importorskip(name, reason=f"{name} is not installed: its containers are not tested")


def polars_frame(X, folder):
    return package("polars").DataFrame({name: X[:, k] for k, name in enumerate(NAMES)})


def memmap(X, folder):
    np.save(folder / "X.npy", X)
    return np.load(folder / "X.npy", mmap_mode="r")


def h5py_dataset(X, folder):
    return package("h5py").File(folder / "X.h5", "w").create_dataset("X", data=X)  # stays open as long as its dataset


def zarr_array(X, folder):
    array = package("zarr").create_array(store=str(folder / "X.zarr"), shape=X.shape, chunks=(7, 8), dtype=X.dtype)
    array[:] = X
    return array


def anndata_object(X, folder):
    return package("anndata").AnnData(X, var=pd.DataFrame(index=NAMES))


def backed(X, folder):
    anndata_object(X, folder).write(folder / "X.h5ad")
    return package("anndata").read_h5ad(folder / "X.h5ad", backed="r")


CONTAINERS = {  # label: how to make it, the file that sweep reads
    "`numpy.ndarray`": (lambda X, folder: X, ".npy"),
    "lists of lists": (lambda X, folder: X.tolist(), None),
    "`pandas.DataFrame`": (lambda X, folder: pd.DataFrame(X, columns=NAMES), ".csv"),
    "`polars.DataFrame`": (polars_frame, ".csv"),
    "`scipy.sparse.csr_array`": (lambda X, folder: sparse.csr_array(X), ".npz"),
    "`scipy.sparse.csc_array`": (lambda X, folder: sparse.csc_array(X), ".npz"),
    "`scipy.sparse.coo_array`": (lambda X, folder: sparse.coo_array(X), ".npz"),
    "`scipy.sparse.csr_matrix`": (lambda X, folder: sparse.csr_matrix(X), ".npz"),
    "`scipy.sparse.csc_matrix`": (lambda X, folder: sparse.csc_matrix(X), ".npz"),
    "`numpy.memmap`": (memmap, ".npy"),
    "`h5py.Dataset`": (h5py_dataset, ".h5"),
    "`zarr.Array`": (zarr_array, None),
    "any with `__dlpack__`, on the CPU": (lambda X, folder: DLPack(X), None),
    "`AnnData`, in memory": (anndata_object, None),
    "`AnnData`, backed": (backed, None),
    "`AnnData`, sparse and backed": (lambda X, folder: backed(sparse.csr_matrix(X), folder), None),
    "`.X` of a backed `AnnData`": (lambda X, folder: backed(X, folder).X, None),
    "`.X` of a sparse and backed `AnnData`": (lambda X, folder: backed(sparse.csr_matrix(X), folder).X, None),
}


def refusal(call):
    """What a container that is refused is told to be used as."""
    with pytest.raises(TypeError) as caught:
        call()
    said = str(caught.value)
    return next(f"no, use `{remedy}`" for remedy in ("adata.X", ".toarray()") if remedy in said)


def short_path():
    return LambdaPath(
        GatedLaplacian(max_iter=2, max_runs=1, n_draws=2, backend="numpy"),
        lams=[0.1], n_splits=1, n_permutations=3, n_features_to_select=3, random_state=0,
    )  # fmt: skip


def cells(label, folder):
    """What a row of the table says, each cell run and its numbers compared with those of the plain array."""
    X = table()
    make, file = CONTAINERS[label]
    data = make(X, folder)
    is_anndata = hasattr(data, "uns")

    def plain_fit(**more):
        return (DUFS(**OF_DECOYS, **more) if is_anndata else gated(**SETTINGS, **more)).fit(X)

    def fit(**more):
        if is_anndata:
            return select_features(data, scaling="columns", **OF_DECOYS, **more)
        return gated(**SETTINGS, **more).fit(data)

    found, plain = fit(), plain_fit()
    rows = {"`transform` gives": transformed(data, found, plain, X), "`sweep` reads": file or "-"}
    if is_anndata:
        np.testing.assert_allclose(found.evidence_, plain.evidence_, atol=1e-3)
        rows["`fit`"] = "`select_features`"
        rows["`fit` with `batch_size`"] = "-"
        rows["`fit_many`"] = refusal(lambda: fit_many([gated(**SETTINGS)], data))
        rows["baselines"] = refusal(lambda: LaplacianScore().fit(data))
        rows["`report`"] = refusal(lambda: report(found, data))
    else:
        np.testing.assert_allclose(found.mu_, plain.mu_, atol=1e-5)
        by_batches = fit(batch_size=20)
        np.testing.assert_allclose(by_batches.mu_, plain_fit(batch_size=20).mu_, atol=1e-5)
        on_disk = FitTask.begin(by_batches, data).accepted.kind == "on disk"
        rows["`fit`"] = f"{found.engine_} engine"
        rows["`fit` with `batch_size`"] = "batches read from disk" if on_disk else "batches taken in memory"
        together = fit_many([gated(**SETTINGS), gated(**SETTINGS | {"random_state": 1})], data)
        np.testing.assert_allclose(together[0].mu_, plain.mu_, atol=1e-5)
        rows["`fit_many`"] = "yes"
        if found.engine_ == "sparse":
            rows["baselines"] = refusal(lambda: LaplacianScore().fit(data))
        else:
            scored, baseline = (LaplacianScore(n_features_to_select=3).fit(given) for given in (X, data))
            np.testing.assert_allclose(baseline.scores_, scored.scores_)
            np.testing.assert_array_equal(baseline.transform(data), X[:, scored.support_])
            rows["baselines"] = "yes"
        for row, want in zip(*(report(*fit, names=NAMES).rows for fit in ((found, data), (plain, X))), strict=True):
            numbers = [name for name, value in want.items() if isinstance(value, float)]
            for name in numbers:  # engines add up in different orders
                np.testing.assert_allclose(row.pop(name), want.pop(name), rtol=1e-5, err_msg=name)
            assert {"score", "mu", "probability"} == set(numbers)
            assert row == want
        rows["`report`"] = "yes"
    return [rows[name] for name in OPERATIONS]


def transformed(data, found, plain, X):
    """The type that transform gives, its values compared."""
    right = X[:, plain.support_]
    if hasattr(data, "uns"):
        part = data[:, data.var["dufs_selected"]].to_memory()
        values = part.X.toarray() if sparse.issparse(part.X) else part.X
        np.testing.assert_array_equal(values, right)
        return 'an `AnnData`: `adata[:, adata.var["dufs_selected"]]`'
    out = found.transform(data)
    np.testing.assert_array_equal(out.toarray() if sparse.issparse(out) else out, right)
    kinds = [f"`{type(out).__name__}`"]
    module = type(data).__module__.split(".")[0]
    if module in ("pandas", "polars"):
        frame = gated(**SETTINGS).set_output(transform=module).fit(data).transform(data)
        assert list(frame.columns) == [NAMES[k] for k in np.flatnonzero(plain.support_)]
        np.testing.assert_array_equal(frame.to_numpy(), right)
        kinds.append(f"`{type(frame).__name__}` after `set_output`")
    return ", ".join(kinds)


def row_of(label, found):
    return f"| {label} | {' | '.join(found)} |"


def committed():
    if not DOCUMENT.exists():
        pytest.skip("docs/array-support.md is not beside these tests")
    return [line for line in DOCUMENT.read_text("utf-8").splitlines() if line.startswith("|")]


@pytest.fixture(scope="module")
def plain_path():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return short_path().fit(table())


@pytest.mark.parametrize("label", [label for label in CONTAINERS if not label.startswith("`AnnData`")])
def test_a_path_takes_what_a_fit_takes(label, tmp_path, plain_path):
    X = table()
    data = CONTAINERS[label][0](X, tmp_path)
    found = short_path().fit(data)
    np.testing.assert_allclose(found.mu_, plain_path.mu_, atol=1e-5)
    out = found.transform(data)
    np.testing.assert_array_equal(out.toarray() if sparse.issparse(out) else out, X[:, plain_path.support_])


@pytest.mark.parametrize("label", CONTAINERS)
def test_every_cell(label, tmp_path):
    assert row_of(label, cells(label, tmp_path)) in committed()


def test_the_table_has_every_row():
    labels = [line.split("|")[1].strip() for line in committed()]
    assert labels == ["X", "---", *CONTAINERS]


def test_files_that_sweep_reads(tmp_path, capsys):
    X = table()
    np.save(tmp_path / "X.npy", X)
    sparse.save_npz(tmp_path / "S.npz", sparse.csr_array(X))
    pd.DataFrame(X, columns=NAMES).to_csv(tmp_path / "F.csv", index=False)
    with package("h5py").File(tmp_path / "H.h5", "w") as file:
        file["X"] = X
    entries = "".join(f'[[data]]\npath = "{name}"\n' for name in ("X.npy", "S.npz", "F.csv", "H.h5"))
    settings = "\n".join(f"{name} = {value!r}" for name, value in SETTINGS.items() if name != "random_state")
    (tmp_path / "job.toml").write_text(f'seeds = [0]\n{entries}[settings]\nmethod = "gates"\n{settings}\n')
    assert main(["sweep", str(tmp_path / "job.toml"), "--out", str(tmp_path / "out"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["done"] == 4
    assert {file for _, file in CONTAINERS.values() if file} == {".npy", ".npz", ".csv", ".h5"}


HEAD = """\
# Containers

What X may be, and what each operation does with it. Every cell is run by `tests/test_containers.py`, which compares the
numbers with those of the plain array, and this table with what it finds. `python tests/test_containers.py` writes it
anew. Its fits are those of `GatedLaplacian`, and of `DUFS` for an `AnnData`, which makes some rows dense.

"""
TAIL = """
Arrays on a GPU (CuPy, PyTorch, JAX) are used where they lie ([On a GPU](gpu.md)); matrices of cupyx.scipy.sparse are
copied to the host and scaled there. Their tests are in `tests/cuda/`. Data on disk: [large-data.md](large-data.md).
Columns of frames that hold anything but numbers are named in the error. `dufs-core fit` reads .txt, .tsv and .mat, too.
"""


def write_document():
    lines = [row_of("X", OPERATIONS), f"|{'---|' * (len(OPERATIONS) + 1)}"]
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, label in enumerate(CONTAINERS):
            own = Path(folder) / str(number)
            own.mkdir()
            lines.append(row_of(label, cells(label, own)))
    DOCUMENT.write_text(HEAD + "\n".join(lines) + "\n" + TAIL, "utf-8")


if __name__ == "__main__":
    write_document()
