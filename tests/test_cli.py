"""The command line: what it prints and writes, what it refuses, and with which exit code."""

from __future__ import annotations

import argparse
import csv
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest

import dufs_core
import dufs_core.backend.cupy
from dufs_core import DUFS, GatedLaplacian, Graph
from dufs_core.cli import info, output
from dufs_core.cli.main import main
from dufs_core.cli.parser import OPTIONS, build_parser
from dufs_core.data.dense import FILL
from dufs_core.data.files import read_table
from dufs_core.data.fingerprint import file_fingerprint
from dufs_core.datasets import two_moons
from dufs_core.errors import FileFormatError, SelectionWarning
from dufs_core.inspection import html
from dufs_core.inspection.metrics import precision_recall
from dufs_core.selection import base, gated_selector
from dufs_core.selection.atomic_io import json_value
from dufs_core.selection.decoys.explanation import rate_text
from dufs_core.selection.settings import Conventions, flat_settings

GATES = ["--method", "gates", "--max-runs", "1", "--n-draws", "2", "--max-iter", "20"]
ELSEWHERE = os.environ | {"PYTHONPATH": str(Path(dufs_core.__file__).parents[1])}  # for processes of their own
MOONS = ["fit", "two-moons", "--samples", "40", "--features", "4"]


def strict(text: str) -> dict:
    """JSON without NaN and infinities, on one line."""

    def no_constants(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    assert text.count("\n") == 1
    return json.loads(text, parse_constant=no_constants)


def run(capsys: pytest.CaptureFixture, *argv: str) -> dict:
    """The object that `fit ... --json` prints."""
    assert main([*argv, "--json"]) == 0
    return strict(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture, *argv: str) -> str:
    """The sentence of a run that ends with code 2 and prints nothing else."""
    assert main(list(argv)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = [line for line in captured.err.splitlines() if not line.startswith("dufs-core: warning: ")]
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("dufs-core: ")
    return lines[0].removeprefix("dufs-core: ")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A CSV file with names, identifiers and labels; its features c0 and c1 are two moons."""
    X, labels, _ = two_moons(40, 5)
    path = tmp_path / "table.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["sample", *(f"c{j}" for j in range(5)), "kind"])
        writer.writerows([f"s{i}", *row.tolist(), "ab"[labels[i]]] for i, row in enumerate(X))
    return path


# --- options ---------------------------------------------------------------------------------------------------------


NOT_OFFERED = {"callbacks", *Conventions().get_params()}


def test_every_constructor_parameter_is_an_option():
    parameters = flat_settings(DUFS()).keys() | flat_settings(GatedLaplacian()).keys()
    assert set(OPTIONS) == parameters - NOT_OFFERED
    parser = build_parser("fit")
    flags = {flag for action in parser._subparsers._group_actions[0].choices["fit"]._actions
             for flag in action.option_strings}  # fmt: skip
    assert {"--" + name.replace("_", "-") for name in OPTIONS} <= flags


def test_help_shows_the_constructors_defaults():
    """Those of decoys, and after a semicolon those of gates where they are others."""

    def text(value: object) -> str:
        if isinstance(value, bool):
            return "yes" if value else "no"
        return f"{value:g}" if isinstance(value, (int, float)) else str(value).lower()

    defaults: dict[str, list[str]] = {}
    for selector in (DUFS(), GatedLaplacian()):
        for name, value in flat_settings(selector).items():
            defaults.setdefault(name, []).append(text(value))
    expected = {name: "; ".join(dict.fromkeys(defaults[name])) for name in OPTIONS}
    expected |= {"random_state": "that of --seed", "verbose": "0; on a terminal 1, unless --quiet"}
    assert {name: option.default for name, option in OPTIONS.items()} == expected


def test_choices_are_the_constructors():
    known = vars(base) | vars(gated_selector) | {"Conventions": Conventions}
    of_selectors = [get_type_hints(kind, known) for kind in (DUFS, GatedLaplacian)]
    of_graph = get_type_hints(Graph, known)
    for name, option in OPTIONS.items():
        allowed = []
        for hints in (*of_selectors, of_graph):
            hint = hints.get(name)
            literals = [part for part in (hint, *get_args(hint)) if get_origin(part) is Literal]
            allowed += get_args(literals[0]) if literals else ()
        free = option.type is not str  # a rule or a number
        assert option.choices == (tuple(dict.fromkeys(allowed)) if allowed and not free else None), name


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ("--fdr 0.25", "fdr", 0.25),
        ("--lam 0.25 --method gates --max-iter 2", "lam", 0.25),
        ("--lam none --method gates --max-iter 2", "lam", None),
        ("--n-features-to-select 2", "n_features_to_select", 2),
        ("--n-features-to-select 0.5", "n_features_to_select", 0.5),
        ("--n-features-to-select none", "n_features_to_select", None),
        ("--rows series", "rows", "series"),
        ("--ranking evidence", "ranking", "evidence"),
        ("--ranking gates --method gates --max-iter 2", "ranking", "gates"),
        ("--bandwidth median", "bandwidth", "median"),
        ("--bandwidth 3", "bandwidth", 3.0),
        ("--bandwidth-factor 3", "bandwidth_factor", 3.0),
        ("--self-loops", "self_loops", True),
        ("--no-self-loops --method gates --max-iter 2", "self_loops", False),
        ("--batch-size 30 --method gates --max-iter 2", "batch_size", 30),
        ("--batch-size None --method gates --max-iter 2", "batch_size", None),
        ("--scaling none", "scaling", "none"),
        ("--dtype float64", "dtype", "float64"),
        ("--n-jobs 1", "n_jobs", 1),
        ("--power 3 --n-neighbors 1", "power", 3),
        ("--engine dense --optimizer adam --method gates --max-iter 2", "optimizer", "adam"),
        ("--n-draws 4 --method gates --max-iter 2", "n_draws", 4),
        ("--max-runs 1 --method gates --max-iter 2", "max_runs", 1),
        ("--random-state 7", "random_state", 7),
    ],
)
def test_options_reach_the_fit(capsys, given, name, value):
    settings = run(capsys, *MOONS, *given.split())["settings"]
    assert settings[name] == value
    assert type(settings[name]) is type(value)


@pytest.mark.parametrize("preset", ["wide", "paper", "authors_code"])
def test_presets_with_changes(capsys, preset):
    result = run(capsys, *MOONS, "--preset", preset, "--n-draws", "1", "--max-runs", "1", "--max-iter", "20")
    expected = flat_settings(GatedLaplacian.preset(preset, max_iter=20, n_draws=1, max_runs=1, random_state=0))
    assert (result["preset"], result["method"]) == (preset, "gates")
    assert result["settings"] == {k: v for k, v in expected.items() if k not in ("callbacks", "verbose")}


# --- results ---------------------------------------------------------------------------------------------------------


def test_two_moons_as_json(capsys):
    result = run(capsys, "fit", "two-moons", "--features", "5", "--seed", "3", *GATES)
    X = two_moons(100, 5, 0.1, 3).X
    fitted = GatedLaplacian(max_runs=1, max_iter=20, n_draws=2, random_state=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted.fit(X)
    assert result["selected"] == [j for j in fitted.order_.tolist() if fitted.support_[j]]
    np.testing.assert_array_equal(np.float32(result["scores"]), fitted.scores_)
    assert (result["n_iter"], result["converged"]) == (20, False)
    assert (result["method"], result["excess_score"]) == ("gates", fitted.excess_score_)
    assert not {"q_values", "evidence", "fdr", "smallest_fdr", "lam"} & set(result)
    assert result["seconds"] == result["timings"]["fit"]
    found = len(set(result["selected"]) & {0, 1})
    assert result["precision"] == found / len(result["selected"])
    assert result["recall"] == found / 2
    assert (result["seed"], result["input"]["seed"]) == (3, 3)
    assert len(result["input"]["sha256"]) == 64


def test_two_moons_with_decoys(capsys):
    """As a table and as JSON, at two rates."""
    argv = ["fit", "two-moons", "--backend", "numpy"]
    fitted = DUFS(random_state=0, backend="numpy").fit(two_moons(100, 10, 0.1, 0).X)
    result = run(capsys, *argv)
    assert (result["method"], result["fdr"]) == ("decoys", 0.1)
    found = np.flatnonzero(fitted.q_values_ <= 0.1)
    assert {0, 1} <= set(result["selected"]) == set(found.tolist())
    for name, values in (("scores", fitted.scores_), ("q_values", fitted.q_values_), ("evidence", fitted.evidence_)):
        np.testing.assert_array_equal(result[name], values)
    assert result["smallest_fdr"] == fitted.q_values_.min()
    assert not {"loss", "n_iter", "converged", "engine"} & set(result)  # nothing was trained
    assert (result["n_found"], result["n_decoys"]) == (len(found), 5)
    assert (result["precision"], result["recall"]) == (2 / len(found), 1)
    assert not {"excess_score", "p_value", "stopped_by_hsic"} & set(result)
    assert main(argv) == 0
    printed = capsys.readouterr().out
    best, q = fitted.order_[0], rate_text(fitted.q_values_.min())
    assert f"   1  {best:>6}  x{best}    {fitted.evidence_[best]:>8.2f}  {q:>7}  yes" in printed.splitlines()
    assert f"{len(found)} features are found at a false discovery rate of 0.1: " in printed
    assert f"(the smallest q-value is {q}, from a competition with 5 shuffled copies of each feature)" in printed
    assert f"precision {2 / len(found):.2f}, recall 1.00\n" in printed
    more = run(capsys, *argv, "--fdr", "0.5")
    assert sorted(more["selected"]) == np.flatnonzero(fitted.q_values_ <= 0.5).tolist()
    assert more["q_values"] == result["q_values"]
    assert len(more["selected"]) == more["n_found"] >= len(found)
    few = run(capsys, *argv, "--n-features-to-select", "1")
    assert (len(few["selected"]), few["n_found"]) == (1, len(found))


def test_nothing_found_and_nothing_judged(capsys, tmp_path):
    noise = np.random.default_rng(1).standard_normal((40, 20))
    noise[:, 1] += 0.8 * noise[:, 0]  # a tie that shuffled columns have, too
    np.save(tmp_path / "noise.npy", noise)
    assert main(["fit", str(tmp_path / "noise.npy"), "--backend", "numpy"]) == 0
    out, err = capsys.readouterr()
    with pytest.warns(SelectionWarning):
        smallest = DUFS(random_state=0, backend="numpy").fit(noise).q_values_.min()
    assert smallest > 0.1
    assert "No feature is found at a false discovery rate of 0.1 (the smallest rate that finds any is" in out
    assert f"{rate_text(smallest)}), in a competition with 5 shuffled copies of each feature." in out
    assert "warning: No feature was found at a false discovery rate of 0.1." in err
    noise[2:] = noise[0]  # two rows differ: too few to tell a column from its copies
    np.save(tmp_path / "noise.npy", noise)
    assert main(["fit", str(tmp_path / "noise.npy"), "--backend", "numpy"]) == 0
    assert "0 of 20 features selected in " in (out := capsys.readouterr().out)
    assert "Nothing was judged: a competition needs two features that vary in enough rows." in out


@pytest.mark.parametrize(
    ("rate", "text"), [(0.1, "0.1"), (1.0, "1"), (0.1004, "0.101"), (2 / 15, "0.134"), (1 / 2000, "0.0005")]
)
def test_rates_are_rounded_up(rate, text):
    """What is not found at 0.1 does not look as if it were."""
    assert rate_text(rate) == text


def test_agreement_with_the_answer():
    assert precision_recall([1, 2], [0, 1]) == (0.5, 0.5)
    assert precision_recall([], [0, 1]) == (0, 0)


def test_seeds(capsys):
    plain = run(capsys, *MOONS)
    assert plain["scores"] == run(capsys, *MOONS, "--seed", "0")["scores"]
    other_draws = run(capsys, *MOONS, "--random-state", "1")
    assert other_draws["input"] == plain["input"]
    assert other_draws["scores"] != plain["scores"]
    other_data = run(capsys, *MOONS, "--seed", "1", "--random-state", "0")
    assert other_data["input"]["sha256"] != plain["input"]["sha256"]


def test_a_file_without_out_prints_a_table_and_writes_nothing(capsys, table, monkeypatch):
    monkeypatch.chdir(table.parent)
    assert main(["fit", "table.csv", "--index-column", "sample", "--labels", "kind"]) == 0
    printed = capsys.readouterr().out
    assert "table.csv: 40 samples, 5 features" in printed
    assert all(f" c{j} " in printed for j in range(5))
    assert "precision" not in printed
    assert sorted(p.name for p in table.parent.iterdir()) == ["table.csv"]


def with_batches(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """A CSV file of two moons whose rows belong to batches of other levels, one row alone in its batch."""
    X, _, _ = two_moons(60, 6, random_state=2)
    batches = np.array([*"pqr" * 19, "p", "q", "alone"])
    X = X + 3 * (batches == "q")[:, None]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["batch", *(f"c{j}" for j in range(6))])
        writer.writerows([batch, *row] for batch, row in zip(batches.tolist(), X.tolist(), strict=True))
    return X, batches


@pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")
@pytest.mark.parametrize("method", [DUFS, GatedLaplacian])
def test_groups(capsys, tmp_path, method):
    """As those of the same fit in Python, and said in what is printed and written."""
    path = tmp_path / "cells.csv"
    X, batches = with_batches(path)
    options = {"random_state": 0}
    if method is GatedLaplacian:
        options |= {"max_runs": 1, "n_draws": 2, "max_iter": 20}
    fitted = method(**options).fit(X, groups=batches)
    without = method(**options).fit(X)
    argv = ["fit", str(path), "--groups", "batch", *([] if method is DUFS else GATES)]
    result = run(capsys, *argv)
    np.testing.assert_array_equal(np.asarray(result["scores"], dtype=fitted.scores_.dtype), fitted.scores_)
    assert (fitted.scores_ != without.scores_).any()
    if method is DUFS:
        assert result["q_values"] == fitted.q_values_.tolist()
    else:
        assert result["loss"] == fitted.history_["loss"][-1]
    known = {"n_rows": 59, "n_groups": 3, "n_left_out": 1, "n_covariates": 0, "n_averaged": 0}
    assert result["rows"] == known | {"n_not_drawn": 0, "n_on_graphs": 59, "n_compared": 59}
    assert result["input"]["groups"] == "batch"
    assert main([*argv, "--out", str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().out.splitlines()
    sentence = (
        "Columns were centred and scaled, and rows exchanged, within 3 groups of 59 rows; 1 row alone in its group "
        "took no part."
    )
    findings = [finding.sentence for finding in fitted.diagnosis_]
    at = lines.index(sentence)
    assert lines[at + 1 : at + 1 + len(findings)] == findings
    assert lines[at + 1 + len(findings)].startswith("written to")
    document = json.loads((tmp_path / "out" / "result.json").read_text())
    assert (document["rows"], document["input"]["groups"]) == (result["rows"], "batch")
    assert sentence in (tmp_path / "out" / "report.html").read_text()


def test_without_groups_all_rows_are_exchanged(capsys):
    result = run(capsys, *MOONS)
    known = {"n_rows": 40, "n_groups": None, "n_left_out": 0, "n_covariates": 0, "n_averaged": 0}
    assert result["rows"] == known | {"n_not_drawn": 0, "n_on_graphs": 40, "n_compared": 40}
    assert main(MOONS) == 0
    assert "exchanged" not in capsys.readouterr().out


def with_ages(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """A CSV file of two moons whose rows depend on an age and a depth in its columns 2 and "depth"."""
    X, _, _ = two_moons(60, 6, random_state=2)
    Z = np.random.default_rng(0).normal(50, 9, (60, 2))
    X = X + 0.3 * Z[:, :1]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["c0", "c1", "age", *(f"c{j}" for j in range(2, 6)), "depth"])
        rows = zip(X.tolist(), Z.tolist(), strict=True)
        writer.writerows([*row[:2], age, *row[2:], depth] for row, (age, depth) in rows)
    return X, Z


@pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")
def test_covariates(capsys, tmp_path):
    """As those of the same fit in Python, and said in what is printed and written."""
    path = tmp_path / "cells.csv"
    X, Z = with_ages(path)
    fitted = DUFS(random_state=0).fit(X, covariates=Z)
    without = DUFS(random_state=0).fit(X)
    argv = ["fit", str(path), "--covariates", "2", "--covariates", "depth"]
    result = run(capsys, *argv)
    np.testing.assert_array_equal(np.asarray(result["scores"], dtype=fitted.scores_.dtype), fitted.scores_)
    assert (fitted.scores_ != without.scores_).any()
    assert result["q_values"] == fitted.q_values_.tolist()
    assert result["rows"] == fitted.rows_._asdict()
    assert result["rows"]["n_covariates"] == 2
    assert result["input"]["covariates"] == ["age", "depth"]
    assert main([*argv, "--out", str(tmp_path / "out")]) == 0
    assert fitted.rows_.sentence in capsys.readouterr().out.splitlines()
    document = json.loads((tmp_path / "out" / "result.json").read_text())
    assert document["input"]["covariates"] == ["age", "depth"]


@pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")
def test_series(capsys, tmp_path):
    """Two of them, by groups; as the same fit in Python."""
    path = tmp_path / "cells.csv"
    X = np.cumsum(np.random.default_rng(0).normal(size=(80, 5)), axis=0)
    place = np.repeat(["here", "there"], 40)
    lines = [",".join([name, *map(repr, row)]) for name, row in zip(place.tolist(), X.tolist(), strict=True)]
    path.write_text("\n".join(["place,a,b,c,d,e", *lines]))
    fitted = DUFS(random_state=0, rows="series").fit(X, groups=place)
    without = DUFS(random_state=0).fit(X, groups=place)
    result = run(capsys, "fit", str(path), "--groups", "place", "--rows", "series")
    np.testing.assert_array_equal(np.asarray(result["scores"], dtype=fitted.scores_.dtype), fitted.scores_)
    assert (fitted.scores_ != without.scores_).any()
    assert result["settings"]["rows"] == "series"
    assert result["rows"] == fitted.rows_._asdict()
    assert (result["rows"]["n_groups"], result["rows"]["n_averaged"]) == (2, 1)


def test_covariates_that_are_none(capsys, tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("kind,age,c,a,b\n" + "".join(f"k,{i},7,{i % 3},{i % 5}\n" for i in range(20)))
    told = ["fit", str(path), "--covariates"]
    assert "it has no column 'depth'" in refused(capsys, *told, "depth")
    assert 'line 2: column "kind" (number 0) holds text ("k")' in refused(capsys, *told, "kind")
    rest = ["--index-column", "kind"]
    assert "covariate 1 has one value in all rows: leave it out" in refused(
        capsys, *told, "age", "--covariates", "c", *rest
    )
    said = refused(capsys, *told, "age", *rest, "--batch-size", "10")
    assert "has no parameter 'batch_size': it is one of method" in said
    assert "GatedLaplacian takes no covariates: use DUFS" in refused(capsys, *told, "age", *rest, *GATES)
    np.savez(tmp_path / "x.npz", X=two_moons(20, 3).X, age=np.array([*range(19), np.nan]))
    said = refused(capsys, "fit", str(tmp_path / "x.npz"), "--variable", "X", "--covariates", "age")
    assert "covariates are missing or infinite in 1 of 20 rows" in said


def test_groups_are_said_where_nothing_was_judged(capsys, tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("plate,a,b\n" + "".join(f"p{i % 2},{i % 2},{i % 2}\n" for i in range(20)))
    assert main(["fit", str(path), "--groups", "plate"]) == 0
    printed = capsys.readouterr().out
    assert "Nothing was judged" in printed
    assert "within 2 groups of 20 rows." in printed


def test_groups_that_are_none(capsys, tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("age,a,b\n" + "".join(f"{i},{i % 3},{i % 5}\n" for i in range(20)))
    assert "Each of the 20 rows is a group of its own" in refused(capsys, "fit", str(path), "--groups", "age")
    assert "it has no column 'donor'" in refused(capsys, "fit", str(path), "--groups", "donor")
    path.write_text("donor,a,b\nd1,1,2\n,3,4\nd1,5,6\n")
    assert 'line 3: column "donor" (number 0) has no group' in refused(capsys, "fit", str(path), "--groups", "donor")
    np.savez(tmp_path / "x.npz", X=two_moons(20, 3).X, donor=np.array([*["a"] * 10, *["b"] * 9, ""]))
    said = refused(capsys, "fit", str(tmp_path / "x.npz"), "--variable", "X", "--groups", "donor")
    assert "1 of the 20 labels in groups are missing, the first that of row 19" in said


def test_the_table_of_many_features(capsys, tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((20, 60)))
    assert main(["fit", str(tmp_path / "x.npy"), "--n-features-to-select", "30"]) == 0
    assert "...  40 more, 10 of them selected" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore::dufs_core.errors.SelectionWarning")
@pytest.mark.parametrize("method", [DUFS, GatedLaplacian])
def test_out_receives_complete_files(capsys, table, tmp_path, method):
    directory = tmp_path / "new" / "result"
    argv = ["fit", str(table), "--index-column", "sample", "--labels", "kind", "--n-features-to-select", "2"]
    assert main([*argv, *([] if method is DUFS else GATES), "--out", str(directory)]) == 0
    assert "written to" in capsys.readouterr().out
    history = [] if method is DUFS else ["history.csv"]
    files = [*history, "report.html", "result.json", "selection.csv", "selection.png"]
    assert sorted(p.name for p in directory.iterdir()) == files
    assert sorted(p.name for p in directory.parent.iterdir()) == ["result"]

    with (directory / "selection.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    numbers = ["q_value", "evidence"] if method is DUFS else ["mu", "probability"]
    assert list(rows[0]) == ["index", "name", "rank", "score", *numbers, "selected"]
    assert [int(row["rank"]) for row in rows] == [1, 2, 3, 4, 5]
    assert [row["name"] for row in rows] == [f"c{row['index']}" for row in rows]
    assert [row["selected"] for row in rows] == ["true", "true", "false", "false", "false"]

    result = json.loads((directory / "result.json").read_text())
    assert result["selected"] == [int(row["index"]) for row in rows[:2]]
    assert result["selected_names"] == [row["name"] for row in rows[:2]]
    assert result["input"]["sha256"] == file_fingerprint(table)
    assert (result["input"]["labels"], result["input"]["index_columns"]) == ("kind", ["sample"])
    assert {"dufs-core", "python", "numpy", "scipy", "numba", "scikit-learn"} <= set(result["versions"])
    assert set(result["timings"]) == {"read", "fit", "total"}
    assert result["seed"] == 0
    assert result["method"] == ("decoys" if method is DUFS else "gates")
    assert (result["n_samples"], result["n_features"]) == (40, 5)

    assert (directory / "selection.png").read_bytes().startswith(b"\x89PNG")
    of_gates = {} if method is DUFS else {"max_runs": 1, "n_draws": 2, "max_iter": 20}
    fitted = method(n_features_to_select=2, random_state=0, **of_gates).fit(two_moons(40, 5).X)
    by_index = sorted(rows, key=lambda row: int(row["index"]))
    if method is GatedLaplacian:
        with (directory / "history.csv").open(newline="") as file:
            history = list(csv.DictReader(file))
        assert [int(row["step"]) for row in history] == list(range(1, 21))
        assert float(history[-1]["loss"]) == result["loss"]
        assert (result["n_iter"], result["converged"], result["engine"]) == (20, False, fitted.engine_)
        np.testing.assert_array_equal(np.float32([row["mu"] or "nan" for row in by_index]), fitted.mu_)
        assert result["excess_score"] == pytest.approx(fitted.excess_score_)
        return
    for column, values in (("score", fitted.scores_), ("q_value", fitted.q_values_), ("evidence", fitted.evidence_)):
        np.testing.assert_array_equal([float(row[column]) for row in by_index], values)
    assert (result["q_values"], result["evidence"]) == (fitted.q_values_.tolist(), fitted.evidence_.tolist())
    assert (result["fdr"], result["smallest_fdr"]) == (0.1, fitted.q_values_.min())


@pytest.mark.parametrize(("more", "bar"), [([], 1), (["--json"], 1), (["--quiet"], 0), (["--verbose", "0"], 0)])
def test_progress_bar_on_a_terminal_only(monkeypatch, more, bar):
    seen = []

    def fit(self: DUFS, X: np.ndarray, *, groups: None, covariates: None) -> DUFS:
        seen.append(self.verbose)
        raise ValueError

    monkeypatch.setattr(DUFS, "fit", fit)
    main([*MOONS, *more])
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    main([*MOONS, *more])
    assert seen == [0, bar]


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
@pytest.mark.parametrize(
    "command", [["fit", "two-moons", "--json"], ["gradcheck", "--only", "gates", "--examples", "2"]]
)
def test_a_terminal_sees_signs_of_life(tmp_path, command):
    """From the start, without a cache of kernels and where the terminal has no size; stdout is clean."""
    import pty

    ours, theirs = pty.openpty()
    began = time.monotonic()
    environment = ELSEWHERE | {"NUMBA_CACHE_DIR": str(tmp_path)}
    argv = [sys.executable, "-m", "dufs_core", *command]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=theirs, text=True, env=environment) as process:
        os.close(theirs)
        seen, pauses, last = "", [], began
        with suppress(OSError):  # the other end is closed
            while part := os.read(ours, 4096):
                pauses.append(time.monotonic() - last)
                seen, last = seen + part.decode(), time.monotonic()
        out, _ = process.communicate()
    os.close(ours)
    assert process.returncode == 0, seen
    assert pauses[0] < 2  # measured: 0.3 s on two cores with forty processes
    assert max(pauses) < 4
    if "--json" in command:
        assert strict(out)["selected"] == [1, 0]
        for what in ("reading two-moons", "fit of 100 x 10", "decoys", "dependence", "ranking"):
            assert f"\r{what}" in seen
    else:
        assert "checking" in seen
        assert out.startswith("operation ")


def test_quiet(capsys, tmp_path):
    assert main([*MOONS, "--quiet", "--out", str(tmp_path / "a"), "--n-features-to-select", "1"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert all(line.startswith("dufs-core: warning: ") for line in err.splitlines())
    assert main([*MOONS, "--quiet", "--n-features-to-select", "1"]) == 0
    assert "rank" in capsys.readouterr().out


def test_without_matplotlib_there_is_no_picture(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setattr(html, "find_spec", lambda name: None)
    assert main([*MOONS, "--out", str(tmp_path / "a")]) == 0
    there = ["report.html", "result.json", "selection.csv"]
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == there
    assert "selection.png could not be made: pictures need matplotlib: pip install" in capsys.readouterr().err


def test_a_picture_that_fails_does_not_cost_the_fit(capsys, tmp_path, monkeypatch):
    def fail(*_: object) -> None:
        raise RuntimeError("no fonts")

    monkeypatch.setattr(output, "draw", fail)
    assert main([*MOONS, "--out", str(tmp_path / "a")]) == 0
    assert "dufs-core: warning: selection.png could not be made: no fonts\n" in capsys.readouterr().err
    assert len(list((tmp_path / "a").iterdir())) == 3


@pytest.mark.parametrize("number", [5, 28])
def test_a_report_that_cannot_be_written_is_no_file(capsys, tmp_path, monkeypatch, number):
    """A failure costs a warning, a full disk ends the command; the tables are there in either case."""
    directory, real = tmp_path / "a", output.write_bytes

    def fail(path: Path, data: bytes) -> None:
        if path.name == "report.html":
            raise OSError(number, "it broke", str(path))
        real(path, data)

    assert main([*MOONS, "--out", str(directory)]) == 0  # an earlier result, with a report
    capsys.readouterr()
    monkeypatch.setattr(output, "write_bytes", fail)
    full = number == 28
    assert main([*MOONS, "--out", str(directory), "--force"]) == int(full)
    said = capsys.readouterr().err
    assert ("cannot write" if full else "warning: report.html could not be made") in said
    assert sorted(path.name for path in directory.iterdir()) == sorted([*output.TABLES, "selection.png"])


def test_an_interruption_while_the_report_is_made_keeps_the_tables(capsys, tmp_path, monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(output, "report", interrupted)
    assert main([*MOONS, "--out", str(tmp_path / "a")]) == 130
    kept = {path.name for path in (tmp_path / "a").iterdir()}
    assert set(output.TABLES) <= kept <= {*output.TABLES, "selection.png"}
    names = ", ".join([*output.TABLES, *(kept - set(output.TABLES))])
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == f"dufs-core: interrupted, {names} are written to {tmp_path / 'a'}, the rest is not"


def test_pictures_of_many_features_and_of_none():
    def fitted(mu: np.ndarray, history: dict[str, np.ndarray]) -> GatedLaplacian:
        selector = GatedLaplacian()
        selector._keep({"history_": history, "mu_": mu, "scores_": mu, "order_": np.argsort(-mu), "support_": mu > 0,
                        "constant_features_": np.zeros(0, dtype=int)})  # fmt: skip
        return selector

    steps = np.arange(1, 4)
    history = {"step": steps, "loss": -steps / 3, "open_gates": steps}
    assert output.draw(fitted(np.linspace(2, -2, 500), history)).startswith(b"\x89PNG")
    nothing = dict.fromkeys(history, np.zeros(0))
    assert output.draw(fitted(np.array([-2.0]), nothing)).startswith(b"\x89PNG")


def test_json_is_strict():
    value = {"a": np.float32("nan"), "b": [np.int64(3), float("inf"), np.bool_(True)], 1: np.arange(2), "p": Path("x")}
    assert json_value(value) == {"a": None, "b": [3, None, True], "1": [0, 1], "p": "x"}


# --- directories -----------------------------------------------------------------------------------------------------


def test_a_directory_that_is_not_empty(capsys, tmp_path):
    directory = tmp_path / "out"
    directory.mkdir()
    (directory / "mine.txt").write_text("keep")
    (directory / "selection.png").write_text("of an earlier run")
    assert "not empty" in refused(capsys, *MOONS, "--out", str(directory))
    assert sorted(p.name for p in directory.iterdir()) == ["mine.txt", "selection.png"]
    assert main([*MOONS, "--out", str(directory), "--force"]) == 0
    assert (directory / "mine.txt").read_text() == "keep"
    assert (directory / "selection.png").read_bytes().startswith(b"\x89PNG")
    assert len(list(directory.iterdir())) == 5


def test_an_empty_directory_is_used(tmp_path):
    directory = tmp_path / "out"
    directory.mkdir()
    assert main([*MOONS, "--out", str(directory)]) == 0
    assert len(list(directory.iterdir())) == 4


def test_directories_that_cannot_be(capsys, tmp_path, monkeypatch):
    def no_fit(*_: object) -> None:
        raise AssertionError("checked too late")

    monkeypatch.setattr(DUFS, "fit", no_fit)
    (tmp_path / "file").write_text("")
    assert "not a directory" in refused(capsys, *MOONS, "--out", str(tmp_path / "file"))
    assert "not a directory" in refused(capsys, *MOONS, "--out", str(tmp_path / "file" / "out"))
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    assert "not a directory" in refused(capsys, *MOONS, "--out", str(tmp_path / "link"))
    assert "--out" in refused(capsys, *MOONS, "--force")

    def denied(**_: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(output.tempfile, "mkdtemp", denied)
    sentence = refused(capsys, *MOONS, "--out", str(tmp_path / "a" / "b"))
    assert sentence == f"cannot write to {tmp_path / 'a' / 'b'}: {tmp_path}: permission denied"
    assert not (tmp_path / "a").exists()


def test_bad_input_leaves_no_directory(capsys, tmp_path):
    refused(capsys, "fit", str(tmp_path / "no.csv"), "--out", str(tmp_path / "out"))
    assert list(tmp_path.iterdir()) == []


HOSTILE = ["\x1b[31mred", "=1+1", "+cmd", "-1", "@sum", "'quoted", "\u202ename", "\x9b2J", "<b>"]


def test_names_neither_steer_a_terminal_nor_run_in_a_spreadsheet(capsys, tmp_path):
    X = two_moons(40, len(HOSTILE), random_state=0).X
    with (tmp_path / "data.csv").open("w", newline="") as file:
        csv.writer(file).writerows([HOSTILE, *X])
    argv = ["fit", str(tmp_path / "data.csv"), "--out", str(tmp_path / "out")]
    assert main(argv) == 0
    said = capsys.readouterr()
    assert all(c.isprintable() or c == "\n" for c in said.out + said.err)
    assert "\\x1b[31mred" in said.out
    with (tmp_path / "out" / "selection.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows if row["name"].lstrip()[0] in "=+-@"] == []
    names = {row["name"].removeprefix("'"): int(row["index"]) for row in rows}
    assert {name: j for j, name in enumerate(HOSTILE)} == names
    assert "<b>" not in (tmp_path / "out" / "report.html").read_text().partition("<body>")[2]
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert set(result["selected_names"]) <= set(HOSTILE)


def test_errors_and_paths_do_not_steer_a_terminal(capsys, tmp_path):
    path = tmp_path / "\x1b]0;title\x07.csv"
    path.write_text("a,\x1b[2Jb\n1,2\n3,x\n")
    for argv in ([str(path)], [str(path), "--labels", "c"], [str(path), "--seed", "\x1b[1m"], [f"{path}.xls"]):
        said = refused(capsys, "fit", *argv)
        assert said.strip().isprintable()
    with pytest.raises(FileFormatError) as caught:
        read_table(path)
    assert str(caught.value).isprintable()


def test_a_full_disk(capsys, tmp_path, monkeypatch):
    def full(path: Path, *_: object) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(output, "write_bytes", full)
    assert main([*MOONS, "--out", str(tmp_path / "out")]) == 1
    assert "No space left" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("", "a command is needed"),
        ("fitt", "invalid choice: 'fitt'"),
        ("fit", "required: FILE|two-moons"),
        ("fit two-moons --power two", "argument --power: invalid whole number value: 'two'"),
        ("fit two-moons --engine fast", "argument --engine: invalid choice: 'fast'"),
        ("fit two-moons --pow 2", "unrecognized arguments: --pow"),
        ("fit two-moons --power 0", "power must be a whole number of at least 1; got 0"),
        ("fit two-moons --bandwidth wide", "got 'wide'"),
        ("fit two-moons --method gates --lam -1", "lam must be"),
        ("fit two-moons --method gates --lam nan", "lam must be"),
        ("fit two-moons --n-features-to-select 11", "1 to the 10 features of X"),
        ("fit two-moons --n-features-to-select 1.5", "got 1.5"),
        ("fit two-moons --method gates --batch-size 3", "at least n_neighbors + 2 = 4"),
        ("fit two-moons --method gates --n-draws 3", "even number"),
        ("fit two-moons --backend cupy", 'backend="cupy" cannot be used here'),
        ("fit two-moons --samples 1", "at least 2 samples"),
        ("fit two-moons --n-neighbors 2 --samples 2", "n_neighbors=2 for 2 rows"),
        ("fit two-moons --fdr 0", "fdr is a false discovery rate, above 0 and below 1"),
        ("fit two-moons --fdr nan", "fdr is a false discovery rate"),
        ("fit two-moons --method gates --ranking evidence", "ranking must be one of"),
        ("fit two-moons --fdr some", "argument --fdr: must be a number above 0 and below 1; got 'some'"),
        ("fit two-moons --fdr none", "got 'none'; the gates without decoys are --method gates"),
        ("fit two-moons --n-draws 4", 'method "decoys" has no parameter \'n_draws\': it is one of method "gates"'),
        ("fit two-moons --preset paper --fdr 0.2", "method \"gates\" has no parameter 'fdr': it is one of method"),
        ("fit two-moons --preset paper --method decoys", "preset 'paper' has settings of method \"gates\""),
        ("fit two-moons --lam 0.1", 'method "decoys" has no parameter \'lam\': it is one of method "gates"'),
        ("fit two-moons --noise -1", "noise"),
        ("fit two-moons --noise nan", "NaN or infinity"),
        ("fit two-moons --seed -1", "argument --seed: must be 0 or larger; got -1"),
        ("fit two-moons --labels Y", "--labels is for data files"),
        ("fit two-moons --groups 0", "--groups is for data files; two-moons is generated, not read"),
        ("fit two-moons --covariates 0", "--covariates is for data files; two-moons is generated, not read"),
        ("fit two-moons --method gates --rows series", "method \"gates\" has no parameter 'rows'"),
        ("fit two-moons --no-header", "--header is for data files"),
        ("fit x.csv --samples 3", "--samples is for two-moons"),
        ("fit missing.csv", "missing.csv does not exist"),
        ("fit x.csv --variable X", "does not exist"),
    ],
)
def test_bad_usage(capsys, argv, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert said in refused(capsys, *argv.split())


def test_cells_that_are_not_finite(capsys, tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("a,b,c\n1,2,3\n4,,6\n7,inf,NA\n8,9,10\n")
    assert refused(capsys, "fit", str(path)) == (
        f'{path}: 3 of 12 values are missing or infinite, the first in column "b", sample 1 (from 0). {FILL}'
    )
    np.save(tmp_path / "x.npy", np.array([[1.0, 2], [3, np.nan], [5, 6]]))
    assert "1 of 6 values is missing or infinite, the first in column 1, sample 1" in refused(
        capsys, "fit", str(tmp_path / "x.npy")
    )


@pytest.mark.parametrize(("shape", "said"), [((1, 5), "sample"), ((0, 5), "sample"), ((5, 0), "feature"), ((5,), "5")])
def test_shapes_without_enough_in_them(capsys, tmp_path, shape, said):
    np.save(tmp_path / "x.npy", np.ones(shape))
    assert said in refused(capsys, "fit", str(tmp_path / "x.npy"))


def test_one_column_works(capsys, tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((5, 1)))
    assert run(capsys, "fit", str(tmp_path / "x.npy"))["n_features"] == 1


def test_constant_columns_only(capsys, tmp_path):
    np.savetxt(tmp_path / "x.csv", np.ones((6, 3)), delimiter=",")
    assert main(["fit", str(tmp_path / "x.csv"), "--json", "--out", str(tmp_path / "out")]) == 0
    captured = capsys.readouterr()
    result = strict(captured.out)
    assert (result["selected"], result["constant_features"]) == ([], [0, 1, 2])
    assert "columns of X are constant" in captured.err
    assert len(list((tmp_path / "out").iterdir())) == 4


def test_no_feature_selected_says_what_to_try(capsys):
    argv = [*MOONS, *GATES, "--lam", "50", "--max-iter", "400", "--learning-rate", "0.01"]
    assert main(argv) == 0
    captured = capsys.readouterr()
    assert "0 of 4 features selected" in captured.out
    assert "dufs-core: warning: The fit selected no feature with lam=50.0: try a smaller lam" in captured.err


def test_seed_and_random_state_of_a_file_must_agree(capsys, table):
    argv = ["fit", str(table), "--index-column", "sample", "--labels", "kind"]
    assert "--random-state" in refused(capsys, *argv, "--seed", "1", "--random-state", "2")
    assert run(capsys, *argv, "--seed", "2")["scores"] == run(capsys, *argv, "--random-state", "2")["scores"]


def test_warnings_are_sentences_told_once(capsys, monkeypatch):
    def fit(self: DUFS, X: np.ndarray, *, groups: None, covariates: None) -> DUFS:
        for _ in range(3):
            warnings.warn("The data\n  are odd.", UserWarning, stacklevel=1)
        warnings.warn("for developers", DeprecationWarning, stacklevel=1)
        raise ValueError("in\nthe end")

    monkeypatch.setattr(DUFS, "fit", fit)
    assert main(MOONS) == 2
    assert capsys.readouterr().err == "dufs-core: warning: The data are odd.\ndufs-core: in the end\n"


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "dufs-core: interrupted, nothing was written"),
        (MemoryError("2 TiB"), 1, "dufs-core: out of memory (2 TiB)"),
        (ZeroDivisionError("a fault"), 1, "dufs-core: unexpected ZeroDivisionError: a fault"),
    ],
)
def test_other_endings(capsys, tmp_path, monkeypatch, raised, code, said):
    def fit(self: DUFS, X: np.ndarray, *, groups: None, covariates: None) -> DUFS:
        raise raised

    monkeypatch.setattr(DUFS, "fit", fit)
    assert main([*MOONS, "--out", str(tmp_path / "out")]) == code
    captured = capsys.readouterr()
    assert captured.err.splitlines()[-1] == said
    assert ("Traceback" in captured.err) == isinstance(raised, ZeroDivisionError)
    assert (captured.out, list(tmp_path.iterdir())) == ("", [])


# --- real files ------------------------------------------------------------------------------------------------------


def test_real_mat_file(capsys, shared_data):
    path = shared_data("lung_small.mat")
    assert main(["fit", str(path), "--json", *GATES, "--n-features-to-select", "10"]) == 0
    captured = capsys.readouterr()
    result = strict(captured.out)
    assert len(result["selected"]) == 10
    assert (result["n_samples"], result["n_features"]) == (73, 325)
    assert result["input"] == {
        "source": str(path), "format": "mat", "variable": "X", "labels": "Y", "transposed": False,
        "sha256": file_fingerprint(path),
    }  # fmt: skip
    said = captured.err.splitlines()
    assert said[0] == "dufs-core: lung_small.mat: X (73 x 325) is the table, Y are labels and not used"
    assert [line[:44] for line in said[1:]] == [
        "dufs-core: warning: The fit ended after max_",
        "dufs-core: warning: The run has not found co",
    ]


def test_real_features_as_rows(capsys, shared_data):
    argv = ["fit", str(shared_data("CITEseq.mat")), "--transpose"]
    result = run(capsys, *argv, "--n-features-to-select", "5")
    assert (result["n_samples"], result["n_features"]) == (8617, 500)


# --- other commands, and the program itself --------------------------------------------------------------------------


def test_info(capsys):
    assert main(["info", "--json"]) == 0
    found = strict(capsys.readouterr().out)
    assert found["versions"]["numpy"] == np.__version__
    assert found["blas"]
    assert all(library["num_threads"] >= 1 for library in found["blas"])
    assert found["machine"]["cpus"] >= 1
    gpu = found["gpu"]
    assert gpu["reason"].startswith("used: " if gpu["usable"] else "not used: ")
    assert main(["info"]) == 0
    printed = capsys.readouterr().out
    assert "scikit-learn" in printed
    assert "threads" in printed


@pytest.mark.parametrize("sparse", [[], ["--sparse", "0.2"]])
def test_what_a_fit_takes_is_predicted(capsys, sparse):
    assert main(["info", "--predict", "60", "12", *sparse]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed] == ["fit", "seconds", "memory", "rows"]
    assert "DUFS() of 60 rows and 12 columns, " in printed[0]
    assert ("sparse" in printed[0]) == bool(sparse)
    assert "structure that is found changes the time" in printed[1]
    assert printed[3].endswith("60 of 60 take part")
    assert main(["info", "--json", "--predict", "60", "12", *sparse]) == 0
    found = strict(capsys.readouterr().out)
    assert (found["rows"], found["columns"], found["rows_used"]) == (60, 12, 60)
    assert 0 < found["seconds"] < 60
    assert 10**6 < found["bytes"] < 10**9


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--predict", "1", "5"], "ROWS must be at least 2; got 1"),
        (["--predict", "5", "0"], "COLUMNS must be at least 1; got 0"),
        (["--predict", "5", "5", "--sparse", "0"], "DENSITY must be above 0 and at most 1; got 0"),
        (["--predict", "5", "5", "--sparse", "1.5"], "DENSITY must be above 0 and at most 1; got 1.5"),
        (["--predict", "5", "5", "--sparse", "nan"], "DENSITY must be above 0 and at most 1; got nan"),
        (["--predict", "5", "5", "--sparse", "few"], "argument --sparse: invalid number value: 'few'"),
        (["--predict", "many", "5"], "argument --predict: invalid whole number value: 'many'"),
        (["--sparse", "0.1"], "--sparse DENSITY belongs to --predict ROWS COLUMNS"),
    ],
)
def test_what_cannot_be_predicted(capsys, wrong, said):
    assert main(["info", *wrong]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith(f"dufs-core: {said}")
    assert err.count("\n") == 1


NOT_FOUND = "cannot open shared object file: No such file or directory"
COMPUTING, SEEING = "a first computation on the device failed", "CuPy finds no driver or device"
NO_GPU = {  # what CuPy says, its packages, the driver's CUDA: what a user is told, and to do
    "no driver": (f"{SEEING} (CUDARuntimeError: cudaErrorInsufficientDriver: ...)", "cupy-cuda13x", None,
                  "there is no NVIDIA driver; if this machine has an NVIDIA GPU, install its driver"),
    "an old driver": (f"{SEEING} (CUDARuntimeError: cudaErrorInsufficientDriver: ...)", "cupy-cuda12x", 11_040,
                      "NVIDIA's driver runs CUDA 11.4, and CuPy needs 12.0 or later; install a newer driver"),
    "no CuPy": ("importing CuPy failed (ModuleNotFoundError: No module named 'cupy')", "", 12_080,
                "CuPy is not installed; NVIDIA's driver runs CUDA 12.8: pip install 'cupy-cuda12x[ctk]'"),
    "several CuPys": (f"importing CuPy failed (ImportError: libcublas.so.12: {NOT_FOUND})", "cupy-cuda12x cupy-cuda13x",
                      13_000, "pip uninstall cupy-cuda12x cupy-cuda13x, then pip install 'cupy-cuda13x[ctk]'"),
    "no libraries": (f"{COMPUTING} (OSError: libnvrtc.so.13: {NOT_FOUND})", "cupy-cuda13x", 13_020,
                     f"libraries: {COMPUTING} (OSError: libnvrtc.so.13: {NOT_FOUND}); pip install 'cupy-cuda13x[ctk]'"),
    "no libraries on Windows": (f"{COMPUTING} (FileNotFoundError: Could not find module 'nvrtc64_120_0.dll')",
                                "cupy-cuda12x", 12_060, "pip install 'cupy-cuda12x[ctk]' brings them"),
    "a CuPy for a later driver": (f"{SEEING} (CUDARuntimeError: cudaErrorInsufficientDriver: ...)", "cupy-cuda13x",
                                  12_090, "driver runs CUDA 12.9; pip uninstall cupy-cuda13x, then pip install "
                                  "'cupy-cuda12x[ctk]', or install a newer driver"),
    "full": (f"{COMPUTING} (OutOfMemoryError: Out of memory allocating 512 bytes)", "cupy-cuda13x", 13_000,
             "the GPU's memory is full; end what fills it (nvidia-smi lists it)"),
    "full from the start": (f"{SEEING} (CUDARuntimeError: cudaErrorMemoryAllocation: out of memory)", "cupy-cuda13x",
                            13_000, "the GPU's memory is full"),
    "a GPU that CUDA has left": (f"{COMPUTING} (CompileException: nvrtc: error: invalid value for --gpu-architecture "
                                 "(-arch))", "cupy-cuda13x", 13_000,
                                 "7.5 on); pip uninstall cupy-cuda13x, then pip install 'cupy-cuda12x[ctk]'"),
    "no GPU": (f"{SEEING} (CUDARuntimeError: cudaErrorNoDevice: no CUDA-capable device is detected)", "cupy-cuda13x",
               13_000, "the driver shows no GPU, where CUDA_VISIBLE_DEVICES is '': unset it"),
    "something else": (f"{COMPUTING} (CUDARuntimeError: cudaErrorECCUncorrectable: uncorrectable ECC error)", "cupy",
                       13_000, "uncorrectable ECC error); see nvidia-smi"),
}  # fmt: skip


def about_gpu(capsys, monkeypatch, device, packages, driver):
    """What `dufs-core info` prints of the GPU, and its JSON, where this is found."""
    monkeypatch.setattr(dufs_core.backend.cupy, "cupy_backend", lambda: device)
    monkeypatch.setattr(info, "versions", lambda optional: dict.fromkeys(["numpy", *packages.split()], "1"))
    monkeypatch.setattr(info, "_driver", lambda: driver)
    assert main(["info"]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("gpu "))
    assert main(["info", "--json"]) == 0
    found = strict(capsys.readouterr().out)["gpu"]
    assert line.split(maxsplit=1)[1] == found["reason"]
    return found


@pytest.mark.parametrize("fault", NO_GPU)
def test_why_the_gpu_is_not_used(capsys, monkeypatch, fault):
    cause, packages, driver, said = NO_GPU[fault]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = about_gpu(capsys, monkeypatch, cause, packages, driver)
    assert not found["usable"]
    assert found["reason"].startswith("not used: ")
    assert said in found["reason"]
    if fault == "no GPU":
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
        assert about_gpu(capsys, monkeypatch, cause, packages, driver)["reason"].endswith("nvidia-smi must list one")


@pytest.mark.parametrize(
    ("major", "packages", "said"),
    [(9, "cupy-cuda13x", ""), (7, "cupy-cuda12x", "; below 7.5 nothing is tested"),
     (9, "cupy cupy-cuda13x", "pip uninstall cupy cupy-cuda13x, then pip install 'cupy-cuda13x[ctk]'")],
)  # fmt: skip
def test_the_gpu_that_is_used(capsys, monkeypatch, major, packages, said):
    runtime = SimpleNamespace(
        getDevice=lambda: 0, memGetInfo=lambda: (3 << 30, 4 << 30),
        getDeviceProperties=lambda device: {"name": b"NVIDIA T", "major": major, "minor": 0},
    )  # fmt: skip
    device = SimpleNamespace(xp=SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)))
    found = about_gpu(capsys, monkeypatch, device, packages, 13_000)
    assert found["usable"]
    assert found["reason"].startswith(f"used: NVIDIA T, compute capability {major}.0, 3.0 of 4.0 GiB free")
    assert said in found["reason"]
    assert ("; " in found["reason"]) == bool(said)


def test_the_driver_is_asked_without_cupy(monkeypatch):
    def libcuda(version):
        def get(pointer):
            pointer._obj.value = version

        return lambda name: SimpleNamespace(cuDriverGetVersion=get)

    for version, found in ((13_000, 13_000), (0, None)):
        monkeypatch.setattr(info.ctypes, "CDLL", libcuda(version))
        assert info._driver() == found
    monkeypatch.setattr(info.ctypes, "CDLL", lambda name: SimpleNamespace())
    assert info._driver() is None


def test_gradcheck(capsys):
    assert main(["gradcheck", "--examples", "0"]) == 2
    assert main(["gradcheck", "--only", "gates", "--examples", "1"]) == 0
    assert "gates" in capsys.readouterr().out


def offered(command: str) -> dict[str, argparse.Action]:
    """The options and arguments of a subcommand."""
    return {
        flag: action
        for action in build_parser(command)._subparsers._group_actions[0].choices[command]._actions
        for flag in action.option_strings
    }


@pytest.mark.parametrize("command", ["", "fit", "sweep", "gradcheck", "info"])
def test_help(capsys, command):
    assert main([*command.split(), "--help"]) == 0
    printed = capsys.readouterr().out
    assert f"usage: dufs-core {command}".strip() in printed
    examples = [line.split() for line in printed.splitlines() if line.startswith(f"  dufs-core {command}".rstrip())]
    assert len(examples) >= 2
    for _, name, *rest in examples:
        assert {word for word in rest if word.startswith("-")} <= set(offered(name))
        build_parser(name).parse_args([name, *rest])
    assert "exit codes: 0 " in printed
    assert "2 bad usage" in printed
    if command == "fit":
        assert "false discovery rate, with decoys alone (default: 0.1)" in " ".join(printed.split())
        assert "dufs-core fit two-moons" in printed


def test_help_and_version_import_nothing_heavy():
    code = (
        "import sys; from dufs_core.cli.main import main; "
        "codes = [main(['--help']), main(['fit', '--help']), main(['--version']), main(['fit', '--power', 'x'])]; "
        "import dufs_core.cli.fit; "  # what a terminal waits for before the first sign of life
        "heavy = {'numpy', 'scipy', 'sklearn', 'numba', 'matplotlib'} & set(sys.modules); "
        "sys.exit(f'{codes} {heavy}')"
    )
    ended = subprocess.run([sys.executable, "-c", code], env=ELSEWHERE, capture_output=True, text=True, check=False)
    assert ended.stderr.splitlines()[-1] == "[0, 0, 0, 2] set()"
    assert "dufs-core 0." in ended.stdout


def test_output_that_nobody_reads():
    process = subprocess.Popen(
        [sys.executable, "-m", "dufs_core", "info"],
        env=ELSEWHERE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == 1


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_interrupt(tmp_path):
    argv = [sys.executable, "-m", "dufs_core", "fit", "two-moons", "--features", "50", *GATES, "--max-iter", "1000000",
            "--learning-rate", "1e-9", "--verbose", "1", "--out", str(tmp_path / "out")]  # fmt: skip
    process = subprocess.Popen(
        argv, env=ELSEWHERE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored by what is run in the background
    )  # fmt: skip
    assert process.stderr is not None
    try:
        seen = ""
        while "undecided=" not in seen:  # the progress bar: the fit is under way
            seen += process.stderr.read(1)
            assert process.poll() is None, seen
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130
    assert out == ""
    assert err.splitlines()[-1].endswith("dufs-core: interrupted, nothing was written")
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []
