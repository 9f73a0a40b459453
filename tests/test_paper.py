"""The paper's experiments: cells are kept, whatever stops the run, and every experiment runs at its small size."""

import json

import pytest

from bench.paper import __main__ as command
from bench.paper.cells import Cells

CALLS = []


def square(x, fail=False):
    CALLS.append(x)
    if fail:
        raise RuntimeError("stopped")
    return {"square": x * x}


@pytest.fixture(autouse=True)
def calls():
    CALLS.clear()
    return CALLS


def test_finished_cells_are_not_computed_again(tmp_path, calls):
    path = tmp_path / "x.cells.jsonl"
    assert Cells(path).compute(square, [{"x": 2}, {"x": 3}, {"x": 2}]) == [{"square": 4}, {"square": 9}, {"square": 4}]
    assert calls == [2, 3]
    again = Cells(path)
    assert again.compute(square, [{"x": 3}, {"x": 4}]) == [{"square": 9}, {"square": 16}]
    assert calls == [2, 3, 4]
    assert again.asked == 2
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["settings"] for line in lines] == [{"x": 2}, {"x": 3}, {"x": 4}]
    assert all(line["seconds"] >= 0 and line["function"] == "square" for line in lines)


def test_an_error_keeps_what_was_done(tmp_path, calls):
    path = tmp_path / "x.cells.jsonl"
    with pytest.raises(RuntimeError, match="stopped"):
        Cells(path).compute(square, [{"x": 1}, {"x": 2, "fail": True}])
    assert Cells(path).compute(square, [{"x": 1}]) == [{"square": 1}]
    assert calls == [1, 2]


@pytest.mark.parametrize(("cut", "expected"), [(1, [1, 2]), (10, [1, 2, 2]), (40, [1, 2, 2])])
def test_a_line_cut_by_a_crash_is_computed_again(tmp_path, calls, cut, expected):
    path = tmp_path / "x.cells.jsonl"
    Cells(path).compute(square, [{"x": 1}, {"x": 2}])
    path.write_bytes(path.read_bytes()[:-cut])
    assert Cells(path).compute(square, [{"x": 1}, {"x": 2}]) == [{"square": 1}, {"square": 4}]
    assert Cells(path).compute(square, [{"x": 1}, {"x": 2}]) == [{"square": 1}, {"square": 4}]
    assert calls == expected  # a line that lacks its newline alone is whole


def test_workers_write_their_cells(tmp_path):
    path = tmp_path / "x.cells.jsonl"
    assert Cells(path, workers=2).compute(abs_difference, [{"a": a, "b": 3} for a in range(4)]) == [3, 2, 1, 0]
    assert len(path.read_text().splitlines()) == 4


def abs_difference(a, b):
    return abs(a - b)


def test_command_writes_table_picture_and_json(tmp_path, capsys):
    command.main(["gates", "--quick", "--out", str(tmp_path)])
    assert sorted(path.name for path in (tmp_path / "quick").iterdir()) == [
        "gates.cells.jsonl", "gates.json", "gates.md", "gates.png",
    ]  # fmt: skip
    result = json.loads((tmp_path / "quick" / "gates.json").read_text())
    assert {"command", "versions", "cpu", "seconds", "cells", "records"} <= set(result)
    assert result["quick"] is True
    assert (tmp_path / "quick" / "gates.png").read_bytes().startswith(b"\x89PNG")
    for record in result["records"]:
        assert record["drawn_at_0"] == pytest.approx(record["at_0"], abs=0.02)
    assert "| mu |" in capsys.readouterr().out


def test_unknown_experiment_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main(["nothing", "--out", str(tmp_path)])
    assert stopped.value.code == 2
    assert "gates" in capsys.readouterr().err
