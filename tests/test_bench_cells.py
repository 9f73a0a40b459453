"""bench.cells: what is ranked and judged."""

import json

import numpy as np
import pytest
from scipy import sparse

from bench import cells


@pytest.fixture
def blood(monkeypatch):
    """90 cells of three types; of 150 genes the first 60 are the types' own, the others are expressed at random."""
    rng = np.random.default_rng(0)
    types = np.arange(90) % 3
    rates = np.full((90, 150), 0.5)
    for k in range(3):
        rates[types == k, 20 * k : 20 * k + 20] = 6
    found = cells.normalised(rng.poisson(rates), types)
    names = [*cells.PBMC_MARKERS[:10], *(f"gene{i}" for i in range(found.X.shape[1] - 10))]
    monkeypatch.setattr(cells, "SETS", {"blood": lambda: found._replace(names=names)})
    monkeypatch.setattr(cells, "find_spec", lambda name: None)  # as without scanpy
    return found


def test_counts_become_logarithms_of_shares():
    counts = np.array([[5, 0, 5, 1], [1, 0, 3, 0], [2, 8, 2, 0], [0, 0, 9, 0]])
    found = cells.normalised(counts, np.arange(4))
    assert found.counts.toarray().tolist() == counts[:, [0, 2]].tolist()  # genes of three cells
    assert isinstance(found.X, sparse.csr_matrix)
    np.testing.assert_allclose(np.expm1(found.X.toarray()).sum(axis=1), 1e4, rtol=1e-5)


def test_dufs_finds_the_genes_of_the_types(blood, tmp_path, monkeypatch):
    """Its clusters are the types, those of random genes less so; a second call computes nothing."""
    file = tmp_path / "cells.json"
    cells.main(["--json", str(file)])
    records = {(r["ranking"], r["genes"]): r for r in json.loads(file.read_text())["records"]}
    size = blood.X.shape[1]
    assert set(records) == {*((m, n) for m in ("DUFS", "variance", "random") for n in cells.SIZES), ("all genes", size)}
    ours, chance = records["DUFS", 50], records["random", 50]
    assert ours["k-means ARI"] > 90
    assert ours["markers"] > 70 > 45 > chance["markers"] > 20  # ten of the 60 genes that count, of 150
    assert chance["k-means ARI"] < chance["k-means best"] <= 100
    assert records["all genes", size]["markers"] == 100
    assert not any("leiden ARI" in r for r in records.values())
    table = file.with_suffix(".md").read_text()
    assert f"| blood | DUFS | 50 | {ours['k-means ARI']} | {ours['k-means NMI']} | - | - | {ours['markers']} |" in table
    monkeypatch.setattr(cells, "RANKINGS", dict.fromkeys(cells.RANKINGS))
    cells.main(["--json", str(file)])


def test_a_flavor_needs_scanpy_and_the_third_raw_counts(blood, monkeypatch):
    monkeypatch.setattr(cells, "find_spec", lambda name: name)
    assert cells.rankings(blood) == list(cells.RANKINGS)
    assert set(cells.RANKINGS) - set(cells.rankings(blood._replace(counts=None))) == {"seurat_v3"}
