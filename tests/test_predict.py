"""bench.predict: one smoke test."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("bench.predict", reason="bench is not beside the tests")
from bench import predict


def test_a_shape_is_measured_beside_its_prediction(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(predict, "QUICK", [(40, 6)])
    file = tmp_path / "found.json"
    predict.main(["--quick", "--json", str(file)])
    (record,) = json.loads(file.read_text())["records"]
    assert record["seconds"] > 0
    assert record["predicted_seconds"] > 0
    assert record["predicted_mib"] > 0
    assert "| 40 | 6 |" in file.with_suffix(".md").read_text()
    capsys.readouterr()
    predict.main(["--quick", "--json", str(file)])  # everything is there
    assert "{" not in capsys.readouterr().out
