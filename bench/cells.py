"""Single cells: genes chosen by DUFS beside highly variable genes, at the same numbers of genes, by clusters of cells.

python -m bench.cells [--quick] [--json FILE]

Logarithms of normalised counts; by every ranking the first 50, 100 and 200 genes, their 50 leading principal
components, and on these k-means (k = number of labels, ten runs) and Leiden (scanpy's, resolution 1, five seeds),
against the given labels: adjusted Rand index and NMI. DUFS is as `dufs_core.anndata.select_features` leaves it: all
defaults, one scale for all genes. "seurat", "cell_ranger" and "seurat_v3" are scanpy's flavors of
highly_variable_genes, the last only where raw counts are there; without scanpy these and Leiden are left out. Random
genes: 20 draws, two runs of k-means each, Leiden on the first five. Leiden takes at most 5,000 cells. Where genes have
names, the share of known markers among those chosen. A ranking that FILE has is not computed again; a table is written
beside it (.md). --quick: the smallest set.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from scipy.io import loadmat
from sklearn.decomposition import PCA
from sklearn.utils.sparsefuncs import mean_variance_axis

from bench.common import Records, available, markdown, parser, required
from bench.paper.protocol import agreement, clusters
from dufs_core import DUFS
from dufs_core.errors import DufsWarning

Array = np.ndarray[Any, Any]
SIZES = (50, 100, 200)
COMPONENTS, RUNS, DRAWS, RUNS_OF_A_DRAW, LEIDEN_RUNS, MOST_CELLS = 50, 10, 20, 2, 5, 5000
FLAVORS = ("seurat", "cell_ranger", "seurat_v3")
# Seurat's guided tutorial of 2,700 PBMCs and scanpy's of the same cells ("Preprocessing and clustering 3k PBMCs")
PBMC_MARKERS = (
    "IL7R", "CCR7", "S100A4", "CD79A", "MS4A1", "CD8A", "CD8B", "LYZ", "CD14", "LGALS3", "S100A8", "GNLY", "NKG7",
    "KLRB1", "FCGR3A", "MS4A7", "FCER1A", "CST3", "PPBP",
)  # fmt: skip


class Cells(NamedTuple):
    X: Any  # (n, d) CSR, logarithms of normalised counts
    labels: Array  # (n,)
    counts: Any = None  # (n, d) CSR, raw
    names: Sequence[str] = ()  # of the genes


def normalised(counts: Any, labels: Array) -> Cells:
    """Counts scaled to 10,000 in each cell, log(1 + x), of the genes that at least three cells express."""
    counts = sparse.csr_matrix(counts, dtype=np.float32)
    counts = counts[:, np.flatnonzero(counts.getnnz(axis=0) >= 3)]
    X = sparse.csr_matrix(sparse.diags_array(1e4 / counts.sum(axis=1).A1, dtype=np.float32) @ counts)
    return Cells(X.log1p(), labels, counts)


def pbmc() -> Cells:
    import h5py

    with h5py.File(*required("10x_pbmc68k_reduced.h5ad")) as file:
        raw, names = file["raw.X"], [name.decode() for name in file["raw.var"]["index"]]
        labels = file["obs"]["bulk_labels"]
        X = sparse.csr_matrix((raw["data"][:], raw["indices"][:], raw["indptr"][:]), (len(labels), len(names)))
    return Cells(X, labels, names=names)


def cite() -> Cells:
    counts, labels = (loadmat(str(path)) for path in required("CITEseq.mat", "CITEseq-labels.mat"))
    return normalised(counts["G"].T, labels["labels"].ravel())


def bladder() -> Cells:
    import h5py

    with h5py.File(*required("mouse_bladder_cell_select_2100.h5")) as file:
        return normalised(file["X"][:], file["Y"][:].astype(int))


SETS: dict[str, Callable[[], Cells]] = {"blood": pbmc, "bladder": bladder, "CITE-seq": cite}


def dufs(data: Cells, draw: int) -> tuple[Array, dict[str, Any]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DufsWarning)
        fit = DUFS(scaling="global", random_state=0).fit(data.X)
    return fit.order_, {"selected": int(fit.support_.sum())}


def highly_variable(flavor: str) -> Callable[[Cells, int], tuple[Array, dict[str, Any]]]:
    def rank(data: Cells, draw: int) -> tuple[Array, dict[str, Any]]:
        import anndata
        import scanpy

        adata = anndata.AnnData(data.counts if flavor == "seurat_v3" else data.X)
        scanpy.pp.highly_variable_genes(adata, flavor=flavor, n_top_genes=max(SIZES))
        by = "variances_norm" if flavor == "seurat_v3" else "dispersions_norm"
        return np.argsort(-np.nan_to_num(adata.var[by].to_numpy(), nan=-np.inf), kind="stable"), {}

    return rank


RANKINGS: dict[str, Callable[[Cells, int], tuple[Array, dict[str, Any]]]] = {
    "DUFS": dufs,
    **{flavor: highly_variable(flavor) for flavor in FLAVORS},
    "variance": lambda data, draw: (np.argsort(-mean_variance_axis(data.X, axis=0)[1], kind="stable"), {}),
    "random": lambda data, draw: (np.random.default_rng(draw).permutation(data.X.shape[1]), {}),
    "all genes": lambda data, draw: (np.arange(data.X.shape[1]), {}),
}


def rankings(data: Cells) -> list[str]:
    """Those that can be computed."""
    without = set() if find_spec("scanpy") else set(FLAVORS)
    return [name for name in RANKINGS if name not in without | ({"seurat_v3"} if data.counts is None else set())]


def leiden(Z: Array, runs: int) -> list[Array]:
    """The clusters that scanpy finds on these coordinates with so many seeds; none without scanpy, or of many cells."""
    if not runs or len(Z) > MOST_CELLS or not find_spec("scanpy"):
        return []
    import anndata
    import scanpy

    adata = anndata.AnnData(Z)
    scanpy.pp.neighbors(adata, use_rep="X")
    found = []
    for seed in range(runs):
        scanpy.tl.leiden(adata, flavor="igraph", n_iterations=2, directed=False, random_state=seed)
        found.append(adata.obs["leiden"].cat.codes.to_numpy())
    return found


def measure(data: Cells, ranking: str) -> list[dict[str, Any]]:
    """A record for each number of genes: ARI and NMI in percent, means over runs and draws."""
    draws = DRAWS if ranking == "random" else 1
    sizes = [data.X.shape[1]] if ranking == "all genes" else SIZES
    if ranking in FLAVORS:
        import scanpy  # noqa: F401  (before the time is taken)
    start = time.process_time()
    orders, said = zip(*(RANKINGS[ranking](data, draw) for draw in range(draws)), strict=True)
    seconds = (time.process_time() - start) / draws
    k, records = len(np.unique(data.labels)), []
    for size in sizes:
        means, graphs = [], []
        for draw, order in enumerate(orders):
            X = data.X[:, order[:size]].toarray()
            Z = PCA(COMPONENTS, random_state=0).fit_transform(X) if size > COMPONENTS else X - X.mean(axis=0)
            runs = RUNS if draws == 1 else RUNS_OF_A_DRAW
            found = [clusters(Z, k, "greedy-k-means++", run) for run in range(runs)]
            means.append(np.mean([agreement(data.labels, c)[1:] for c in found], axis=0))
            found = leiden(Z, LEIDEN_RUNS if draws == 1 else int(draw < LEIDEN_RUNS))
            graphs += [agreement(data.labels, c)[1:] for c in found]
        record = {"ranking": ranking, "genes": size, "CPU seconds": round(seconds, 2)} | said[0]
        for name, values in (("k-means", means), ("leiden", graphs)):
            if values:
                nmi, ari = (100 * np.mean(values, axis=0)).round(1).tolist()
                best = round(100 * max(v[1] for v in values), 1)
                record |= {f"{name} NMI": nmi, f"{name} ARI": ari} | ({f"{name} best": best} if draws > 1 else {})
        if data.names:
            known = [i for i, name in enumerate(data.names) if name in PBMC_MARKERS]
            shares = [np.isin(known, order[:size]).mean() for order in orders]
            record |= {"known": len(known), "markers": round(100 * float(np.mean(shares)), 1)}
        records.append(record)
    return records


def table(records: list[dict[str, Any]]) -> str:
    """Percent; of random genes the best draw's ARI in brackets."""
    names = ("k-means ARI", "k-means NMI", "leiden ARI", "leiden NMI", "markers", "CPU seconds")
    rows = [
        [r["data"], r["ranking"], r["genes"],
         *(None if (v := r.get(name)) is None else f"{v} ({best})" if (best := r.get(name.replace("ARI", "best")))
           and name.endswith("ARI") else v for name in names)]
        for r in records
    ]  # fmt: skip
    return markdown(["cells", "genes by", "number", *names], rows)


def main(arguments: list[str] | None = None) -> None:
    made = parser(__doc__)
    made.add_argument("--quick", action="store_true")
    a = made.parse_args(arguments)
    records = Records(a.json, lambda r: (r["data"], r["ranking"], r["genes"]), table)
    for name in available(list(SETS)[:1] if a.quick else SETS, lambda name: SETS[name]())[0]:
        data = SETS[name]()
        for ranking in rankings(data):
            if not any(key[:2] == (name, ranking) for key in records.kept):
                for record in measure(data, ranking):
                    records.add({"data": name} | record)
                records.save()
    records.save()
    print(records.table)


if __name__ == "__main__":
    main()
