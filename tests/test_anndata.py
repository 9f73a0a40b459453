"""Selection in AnnData objects: what is written, and that files can hold it."""

from __future__ import annotations

import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from dufs_core import DUFS, report
from dufs_core.anndata import _storable, select_features
from dufs_core.datasets import two_moons
from dufs_core.errors import DufsWarning, SelectionWarning

anndata = pytest.importorskip("anndata", reason="anndata is not installed: its objects are not tested")
pytestmark = pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")
QUICK = {"random_state": 0, "backend": "numpy"}
X = two_moons(60, 6, random_state=0).X


def test_what_is_written_survives_a_file(tmp_path):
    adata = anndata.AnnData(np.zeros_like(X), layers={"scaled": X})
    selector = select_features(adata, layer="scaled", n_features_to_select=2, **QUICK)
    plain = DUFS(n_features_to_select=2, scaling="global", **QUICK).fit(X)
    np.testing.assert_array_equal(selector.evidence_, plain.evidence_)
    adata.write(tmp_path / "a.h5ad")
    found = anndata.read_h5ad(tmp_path / "a.h5ad")
    np.testing.assert_array_equal(found.var["dufs_score"], plain.scores_)
    np.testing.assert_array_equal(found.var["dufs_selected"], plain.support_)
    np.testing.assert_array_equal(np.argsort(found.var["dufs_rank"]), plain.order_)
    written = found.uns["dufs"]
    assert written["params"]["layer"] == "scaled"
    assert written["params"]["max_memory"] == "none"
    assert written["params"]["fdr"] == 0.1
    assert (written["params"]["n_neighbors"], written["params"]["bandwidth"]) == (5, "median")
    assert written["n_selected"] == 2
    assert written["params"]["scaling"] == "global"
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # scikit-learn warns of an array where a fit had names
        assert selector.transform(adata.layers["scaled"]).shape == (60, 2)
    assert not hasattr(selector.fit(X[:, :4]), "var_names_")
    selector = select_features(adata, layer="scaled", n_features_to_select=2, **QUICK)
    best = report(selector, adata.layers["scaled"]).rows[0]["feature"]  # with the names of the genes
    assert best == adata.var_names[plain.order_[0]]
    assert list(selector.get_feature_names_out()) == list(adata.var_names[plain.support_])


def test_with_decoys_q_values_and_evidence_are_written(tmp_path):
    adata = anndata.AnnData(two_moons(100, 10, random_state=0).X)
    selector = select_features(adata, random_state=0, backend="numpy", scaling="columns")
    assert selector.support_[:2].all()
    adata.write(tmp_path / "a.h5ad")
    found = anndata.read_h5ad(tmp_path / "a.h5ad")
    for name, values in (
        ("q_value", selector.q_values_), ("evidence", selector.evidence_), ("score", selector.scores_),
        ("selected", selector.q_values_ <= 0.1),
    ):  # fmt: skip
        np.testing.assert_array_equal(found.var[f"dufs_{name}"], values)
    written = found.uns["dufs"]
    assert written["params"]["fdr"] == 0.1
    other = select_features(adata, fdr=0.3, **QUICK)  # what an earlier call wrote is replaced
    assert adata.uns["dufs"]["params"]["fdr"] == 0.3
    np.testing.assert_array_equal(adata.var["dufs_score"], other.scores_)


@pytest.mark.parametrize("container", [np.array, sparse.csr_matrix, sparse.csc_matrix])
def test_subset(container):
    adata = anndata.AnnData(container(X), layers={"double": container(2 * X)})
    selector = select_features(adata, subset=True, key_added="gates", n_features_to_select=3, **QUICK)
    assert adata.shape == (60, 3)
    dense = adata.layers["double"].toarray() if sparse.issparse(adata.X) else adata.layers["double"]
    np.testing.assert_array_equal(dense, 2 * X[:, selector.support_])
    assert adata.var["gates_selected"].all()
    assert "gates" in adata.uns


@pytest.mark.parametrize("container", [np.array, sparse.csr_matrix])
def test_backed(container, tmp_path):
    anndata.AnnData(container(X)).write(tmp_path / "a.h5ad")
    adata = anndata.read_h5ad(tmp_path / "a.h5ad", backed="r+")
    with pytest.raises(ValueError, match=r'use adata.to_memory\(\) first, or subset=False and then .*"dufs_selected"'):
        select_features(adata, subset=True, **QUICK)
    assert "dufs" not in adata.uns
    selector = select_features(adata, **QUICK)
    np.testing.assert_allclose(selector.evidence_, DUFS(scaling="global", **QUICK).fit(X).evidence_, atol=1e-3)
    adata.write()
    adata.file.close()
    np.testing.assert_array_equal(anndata.read_h5ad(tmp_path / "a.h5ad").var["dufs_selected"], selector.support_)


def test_what_cannot_be_selected_from():
    adata = anndata.AnnData(X, layers={"counts": X})
    with pytest.raises(ValueError, match="adata has no layer 'scaled'; its layers are 'counts'"):
        select_features(adata, layer="scaled")
    with pytest.raises(TypeError, match=r"must be an AnnData object; got ndarray. Other data go to DUFS\(\).fit"):
        select_features(X)
    with pytest.raises(ValueError, match=r"adata has no .X: name one of its layers, 'counts'"):
        select_features(anndata.AnnData(layers={"counts": X}))
    with pytest.raises(ValueError, match="fdr is a false discovery rate"):
        select_features(adata, fdr=0)
    with pytest.raises(TypeError, match="has no parameter 'n_top_genes'; it is n_features_to_select here"):
        select_features(adata, n_top_genes=2)
    with pytest.raises(TypeError, match="parameter 'n_feature_to_select'; did you mean 'n_features_to_select'"):
        select_features(adata, n_feature_to_select=2)
    assert "dufs" not in adata.uns


@pytest.mark.parametrize("keys", ["depth", ["depth", "age"]])
def test_covariates_of_cells(keys, tmp_path):
    Z = np.random.default_rng(0).normal(50, 9, (60, 2))
    drifting = X + 0.3 * Z[:, :1]
    adata = anndata.AnnData(drifting)
    adata.obs["depth"] = Z[:, 0]
    adata.obs["age"] = np.rint(Z[:, 1]).astype(int)
    adata.obs["batch"] = list("ab") * 30
    selector = select_features(adata, batch_key="batch", covariate_keys=keys, **QUICK)
    told = adata.obs[[keys] if isinstance(keys, str) else keys].to_numpy()
    plain = DUFS(scaling="global", **QUICK).fit(drifting, groups=adata.obs["batch"], covariates=told)
    np.testing.assert_array_equal(selector.evidence_, plain.evidence_)
    assert not np.array_equal(selector.evidence_, select_features(adata, batch_key="batch", **QUICK).evidence_)
    assert adata.uns["dufs"]["params"]["covariate_keys"] == "none"
    select_features(adata, covariate_keys=keys, **QUICK)
    adata.write(tmp_path / "a.h5ad")
    written = anndata.read_h5ad(tmp_path / "a.h5ad").uns["dufs"]["params"]["covariate_keys"]
    assert written == ("depth" if keys == "depth" else "depth, age")


def test_covariates_that_cells_do_not_have():
    adata = anndata.AnnData(X)
    adata.obs["age"] = pd.array([30, None, *range(58)], dtype="Int64")
    adata.obs["plate"] = pd.Categorical(["1", "2"] * 30)
    with pytest.raises(ValueError, match=r"adata\.obs has no column 'depth'; its columns are 'age', 'plate'"):
        select_features(adata, covariate_keys=["age", "depth"], **QUICK)
    with pytest.raises(ValueError, match=r"adata\.obs has no column 'depth'"):
        select_features(adata, batch_key="plate", covariate_keys="depth", **QUICK)
    with pytest.raises(ValueError, match=r"adata\.obs\['plate'\] holds category, and covariates are numbers: a class"):
        select_features(adata, covariate_keys="plate", **QUICK)
    with pytest.raises(ValueError, match="covariates are missing or infinite in 1 of 60 rows"):
        select_features(adata, covariate_keys="age", **QUICK)
    assert "dufs" not in adata.uns


@pytest.mark.parametrize("container", [np.array, sparse.csr_matrix])
@pytest.mark.parametrize("backed", [False, True])
def test_raw_counts_are_noticed(container, backed, tmp_path):
    counts = np.random.default_rng(0).poisson(3.0, (30, 5)).astype(np.float32)
    counts[0, 0] = 345
    adata = anndata.AnnData(container(counts), layers={"logs": container(np.log1p(counts))})
    if backed:
        adata.write(tmp_path / "a.h5ad")
        adata = anndata.read_h5ad(tmp_path / "a.h5ad", backed="r")
    with pytest.warns(DufsWarning, match="adata.X seems to hold raw counts: whole numbers up to 345"):
        select_features(adata, **QUICK)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what is refused is not judged
        with pytest.raises(ValueError, match="fdr is a false discovery rate"):
            select_features(adata, **QUICK, fdr=0)
    for harmless in (adata.layers["logs"], container(np.minimum(counts, 1)), container(counts - 9)):
        with warnings.catch_warnings():
            warnings.filterwarnings("error", ".*raw counts.*")
            select_features(anndata.AnnData(harmless), **QUICK)


def test_warnings_point_to_the_line_of_the_user():
    adata = anndata.AnnData(np.random.default_rng(0).normal(size=(30, 5)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        select_features(adata, scaling="columns", **QUICK)
    said = [w for w in caught if issubclass(w.category, SelectionWarning)]
    assert said
    assert {w.filename for w in said} == {__file__}


def test_numbers_of_numpy_stay_numbers():
    for value in (np.int64(3), np.float32(0.5), np.bool_(True)):
        assert type(_storable(value)) is type(value.item())
        assert _storable(value) == value
    assert _storable(None) == "none"


def test_its_module_does_not_hide_the_package():
    code = (
        "import sys, dufs_core.anndata\n"
        "before = 'anndata' in sys.modules\n"
        "import anndata\n"
        "print(before, hasattr(anndata, 'AnnData'))"
    )
    assert subprocess.check_output([sys.executable, "-W", "ignore", "-c", code], text=True).strip() == "False True"


def test_single_cells(shared_data):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the file is of an old format
        adata = anndata.read_h5ad(shared_data("10x_pbmc68k_reduced.h5ad"))
    selector = select_features(adata, n_features_to_select=50, random_state=0)
    assert adata.var["dufs_selected"].sum() == 50
    assert selector.n_features_in_ == adata.n_vars == 765
