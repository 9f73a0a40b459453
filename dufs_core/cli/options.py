"""The parameters of `DUFS` as options of the command line."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple


def _or_none(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    def converted(text: str) -> Any:
        return None if text.lower() == "none" else convert(text)

    converted.__name__ = f"{convert.__name__} or none"
    return converted


def whole_number(text: str) -> int:
    """The text as an int; its name is for argparse's errors."""
    return int(text)


whole_number.__name__ = "whole number"  # argparse: invalid whole number value: 'a'


def seed(text: str) -> int:
    """The text as an int that is not negative."""
    if (number := int(text)) < 0:
        raise argparse.ArgumentTypeError(f"must be 0 or larger; got {number}")
    return number


seed.__name__ = "whole number"


def _count_or_fraction(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)


_count_or_fraction.__name__ = "count or fraction"


def _rule_or_number(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


class Option(NamedTuple):
    """How a constructor parameter is given on the command line; its default is the constructor's."""

    help: str
    type: Callable[[str], Any] = str
    choices: tuple[str, ...] | None = None
    metavar: str | None = None


OPTIONS: dict[str, Option] = {
    "fdr": Option(
        "false discovery rate: the expected share of nuisance among the selected features; none: no rate, but every "
        "feature whose gate ends open",
        _or_none(float),
        metavar="RATE|none",
    ),
    "lam": Option(
        "price of an open gate, in units of one feature's score; none: one that keeps shuffled features shut, with "
        "--fdr none the loss without parameter",
        _or_none(float),
        metavar="NUMBER|none",
    ),
    "n_features_to_select": Option(
        "this many features by rank, or this fraction of them; none: those that --fdr says",
        _or_none(_count_or_fraction),
        metavar="COUNT|FRACTION|none",
    ),
    "ranking": Option(
        "order of the selected features: by evidence, by their gates, or so that the first few complement each other "
        "(the default, with --fdr none by their gates)",
        choices=("evidence", "gates", "diverse"),
    ),
    "power": Option(
        "t, the number of steps of the random walk; none: 1, with --fdr none 2",
        _or_none(whole_number),
        metavar="T|none",
    ),
    "bandwidth": Option(
        "rule for the kernel's bandwidth b in exp(-D / b): median, q90, max, or the number b itself; none: median, "
        "with --fdr none max",
        _or_none(_rule_or_number),
        metavar="RULE|NUMBER|none",
    ),
    "n_neighbors": Option(
        "k of the bandwidth's rule, counting other samples; none: 5, with --fdr none 2",
        _or_none(whole_number),
        metavar="K|none",
    ),
    "bandwidth_factor": Option(
        "C, by which the rule's squared distance is multiplied; none: 1, with --fdr none 2",
        _or_none(float),
        metavar="C|none",
    ),
    "bandwidth_gradient": Option("whether the gradient flows through the bandwidth", bool),
    "self_loops": Option("whether a row is its own neighbour; not given: no, with --fdr none yes", bool),
    "gate_sigma": Option("standard deviation of the gate noise", float, metavar="SIGMA"),
    "gate_noise": Option("one vector of noise for the whole batch, or one per sample", choices=("batch", "sample")),
    "n_draws": Option("draws of the noise in a step, in pairs of opposite sign unless 1", whole_number, metavar="N"),
    "optimizer": Option("rule of the steps", choices=("normalized", "sgd", "adam")),
    "learning_rate": Option("size of a step", float, metavar="RATE"),
    "momentum": Option("share of the last step that is kept", float, metavar="SHARE"),
    "max_iter": Option("most steps of a run", whole_number, metavar="STEPS"),
    "tol": Option("stop when at most this share of the gates is undecided", float, metavar="SHARE"),
    "max_runs": Option(
        "with --fdr none: most runs; the one with the largest permutation gap counts, a convincing one ends the search",
        whole_number,
        metavar="N",
    ),
    "batch_size": Option("samples in a step; none: all", _or_none(whole_number), metavar="N|none"),
    "scaling": Option(
        "columns: mean 0 and variance 1 each; global: centred, one common scale; none: centred",
        choices=("columns", "global", "none"),
    ),
    "engine": Option(
        "way of evaluating the objective", choices=("auto", "reference", "dense", "streaming", "sparse", "cuda")
    ),
    "backend": Option("array library to compute with", choices=("auto", "numpy", "cupy")),
    "dtype": Option("precision", choices=("float32", "float64")),
    "max_memory": Option(
        "bytes that the fit may allocate; none: what is available", _or_none(whole_number), metavar="BYTES|none"
    ),
    "n_jobs": Option(
        "threads of the engine on the CPU; none: all cores",
        _or_none(whole_number),
        metavar="N|none",
    ),
    "random_state": Option("seed of the fit's draws (default: that of --seed)", seed, metavar="SEED"),
    "verbose": Option(
        "1: a progress bar (on a terminal it is on, unless --json or --quiet)", whole_number, metavar="LEVEL"
    ),
    "convention": Option(
        "authors_code: as the published code where it departs from the paper", choices=("standard", "authors_code")
    ),
}
_UNLISTED = ("callbacks",)  # parameters that no text can give


def constructor_defaults() -> dict[str, str]:
    """The constructor's defaults as text, read from its source: importing it takes seconds, and help should not."""
    spec = find_spec("dufs_core.selection.dufs")
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return {}
    for item in ast.walk(ast.parse(Path(spec.origin).read_text("utf-8"))):
        if isinstance(item, ast.ClassDef) and item.name == "DUFS":
            for method in item.body:
                if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                    pairs = zip(method.args.kwonlyargs, method.args.kw_defaults, strict=True)
                    return {a.arg: ast.unparse(d).strip("'").lower() for a, d in pairs if d is not None}
    return {}
