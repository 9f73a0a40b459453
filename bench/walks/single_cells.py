"""The numbers and pictures of docs/walks/single-cells.md: 2,100 cells of a mouse bladder, 16 types, 20,670 genes.

    python -m bench.walks.single_cells --out DIR [fit] [stability]

Needs anndata, scanpy, h5py and matplotlib, and mouse_bladder_cell_select_2100.h5 in DUFS_DATA.
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from bench.common import required
from bench.walks import clusters, run
from dufs_core import DUFS, report, stability_selection
from dufs_core.anndata import select_features
from dufs_core.errors import DufsWarning
from dufs_core.inspection import plotting
from dufs_core.inspection.metrics import clustering_accuracy


def cells() -> Any:
    """Logarithms of normalised counts, the 2,000 most variable genes marked; the types in .obs, for the end."""
    import anndata
    import h5py
    import scanpy

    with h5py.File(*required("mouse_bladder_cell_select_2100.h5")) as file:
        adata = anndata.AnnData(sparse.csr_matrix(file["X"][:].astype(np.float32)))
        adata.obs["type"] = file["Y"][:].astype(int)
    adata.obs_names = [f"cell{i}" for i in range(adata.n_obs)]
    adata.var_names = [f"gene{i}" for i in range(adata.n_vars)]  # the file has no names
    scanpy.pp.filter_genes(adata, min_cells=3)
    adata.layers["counts"] = adata.X.copy()
    scanpy.pp.normalize_total(adata, target_sum=1e4)
    scanpy.pp.log1p(adata)
    scanpy.pp.highly_variable_genes(adata, n_top_genes=2000)
    return adata


def judged(what: str, X: Any, labels: Any) -> None:
    """Accuracy and adjusted Rand index of k-means, k the number of types: means and spreads of five starts."""
    from sklearn.metrics import adjusted_rand_score

    found = clusters(X.toarray(), labels)
    accuracy = [clustering_accuracy(labels, each) for each in found]
    rand = [adjusted_rand_score(labels, each) for each in found]
    print(
        f"| {what} | {X.shape[1]} | {np.mean(accuracy):.2f} ± {np.std(accuracy):.2f} "
        f"| {np.mean(rand):.2f} ± {np.std(rand):.2f} |",
        flush=True,
    )


def fit(adata: Any, out: Path) -> None:
    genes = adata[:, adata.var["highly_variable"]].copy()
    labels = genes.obs["type"].to_numpy()
    rankings = {
        "highly variable": np.argsort(-genes.var["dispersions_norm"].to_numpy()),
        "largest variance": np.argsort(-genes.X.toarray().var(axis=0)),
    }
    fits = {}
    for scaling in ("columns", "global"):
        start = time.perf_counter()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", DufsWarning)
            fits[scaling] = select_features(genes, key_added=scaling, scaling=scaling, random_state=0)
        print(f"\nscaling={scaling!r}, {time.perf_counter() - start:.0f} s", *(w.message for w in caught), sep="\n")
        print(genes.uns[scaling] | {"params": "..."})
    selector = fits["global"]
    print("\n" + genes.var.sort_values("global_rank").filter(like="global").head().to_string())
    found = report(selector, genes.X, labels=labels)
    print("\n" + found.text(5))
    (out / "report.html").write_text(found.html())
    print("\n| genes | number | accuracy | ARI |\n|---|---|---|---|")
    judged("all", adata.X, labels)
    judged("highly variable", genes.X, labels)
    for number in (50, 100, 200):
        for what, ranking in (rankings | {f"scaling={name!r}": each.order_ for name, each in fits.items()}).items():
            judged(f"first {number}, {what}", genes.X[:, ranking[:number]], labels)
    for ax, name in (
        (plotting.ranked_scores(selector), "scores"),
        (plotting.embedding(selector, genes.X, labels)[0], "embedding"),
        (plotting.spectrum(selector, genes.X), "spectrum"),
    ):
        ax.figure.savefig(out / f"cells-{name}.png", dpi=80)


def stability(adata: Any, out: Path) -> None:
    X, start = adata.X[:, adata.var["highly_variable"].to_numpy()], time.perf_counter()
    selector = DUFS(scaling="global", n_features_to_select=50)
    often = stability_selection(selector, X, n_subsamples=6, random_state=0)
    print(f"\nstability, {time.perf_counter() - start:.0f} s: of 50 genes on each of 6 halves")
    print(*(f"{int((often.frequencies >= share).sum())} on {share:.0%}" for share in (1, 0.5)), sep=", ")


PARTS = {"fit": fit, "stability": stability}

if __name__ == "__main__":
    run(__doc__ or "", {name: lambda out, part=part: part(cells(), out) for name, part in PARTS.items()})
