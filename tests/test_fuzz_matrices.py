"""Hostile matrices by seed (bench/fuzz/matrices.py): a few of them, and what is called a failure."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from dufs_core.errors import SelectionWarning

matrices = pytest.importorskip("bench.fuzz.matrices", reason="bench is not beside the tests")


def test_hostile_matrices(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["matrices", "40", "3"])
    matrices.main()
    out, err = capsys.readouterr()
    counts = json.loads(out.splitlines()[-1])
    assert counts["sound"] + counts.get("refused", 0) == 3 * len(matrices.SELECTORS), err
    assert counts["sound"]
    assert err == ""


def test_a_matrix_part_of_whose_eigenvectors_lapack_does_not_find():
    X, _ = matrices.matrix(223)
    with pytest.warns(SelectionWarning, match="No row has neighbours with different labels"):
        assert matrices.judge(matrices.SELECTORS["LLCFS"], X) == ("sound", "")


def test_a_seed_is_one_matrix():
    (X, said), (again, _) = matrices.matrix(7), matrices.matrix(7)
    np.testing.assert_array_equal(X, again)
    assert said.startswith(f"{X.shape[0]} x {X.shape[1]}")


@pytest.mark.parametrize(
    ("scores", "ranking", "end"),
    [([1.0, 0.0], [1, 2], "sound"), ([np.nan, 0.0], [1, 2], "NaN"), ([1.0, 0.0], [1, 1], "no ranking"),
     (None, None, "traceback")],
)  # fmt: skip
def test_how_a_fit_ends(scores, ranking, end):
    class Selector:
        def fit(self, X):
            if scores is None:
                raise ValueError("shapes (3,4) and (5,) are not aligned")
            return SimpleNamespace(scores_=np.array(scores), ranking_=np.array(ranking))

    assert matrices.judge(Selector, np.zeros((3, 2)))[0] == end
