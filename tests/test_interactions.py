"""bench.interactions: one smoke test."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("bench.interactions", reason="bench is not beside the tests")
from bench import interactions


def test_one_cell_of_each_kind(tmp_path, capsys):
    file = tmp_path / "found.json"
    argv = ["--quick", "--sets", "1", "--nulls", "2", "--json", str(file)]
    interactions.main(argv)
    records = json.loads(file.read_text())["records"]
    assert [record["kind"] for record in records] == [*interactions.KINDS, "none"]
    assert all(record["recall"][0] == 1 for record in records if record["kind"].startswith("parity"))
    assert "| parity of two | 100 | 10 | 1 |" in file.with_suffix(".md").read_text()
    capsys.readouterr()
    interactions.main(argv)  # everything is there
    assert "{" not in capsys.readouterr().out
