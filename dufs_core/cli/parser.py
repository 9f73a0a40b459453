"""The arguments of every subcommand, with examples and exit codes in their help."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any, NamedTuple, NoReturn

from dufs_core._version import __version__
from dufs_core.cli.common import BAD_INPUT, single_line

COMMANDS = {
    "fit": "select features of a data file, or of noisy two moons",
    "sweep": "run a batch job: many fits from a job file, resumable",
    "warmup": "compile all kernels of the CPU once, as for an image or a cluster",
    "gradcheck": "check hand-written gradients against finite differences",
    "info": "show versions, linear algebra libraries, threads and devices; predict time and memory of a fit",
}
_EPILOG = """\
examples:
  dufs-core fit two-moons
  dufs-core fit data.csv --labels class --out result
  dufs-core sweep job.toml --out result --resume

'dufs-core COMMAND --help' describes a command, with examples.

exit codes: 0 done, 2 bad usage or input, 3 interrupted and resumable (sweep), 130 interrupted, 1 anything else
"""
_FIT_EPILOG = """\
examples:
  dufs-core fit two-moons
  dufs-core fit two-moons --features 20 --noise 0.05 --seed 3 --json
  dufs-core fit measurements.csv --labels species --out result
  dufs-core fit cells.csv --groups donor --covariates age
  dufs-core fit cells.mat --variable G --transpose --n-features-to-select 50
  dufs-core fit images.npy --scaling global --backend cupy --seed 1 --out result --force

exit codes: 0 done, 2 bad usage or input, 130 interrupted, 1 anything else, such as a full disk
"""
_INFO_EPILOG = """\
examples:
  dufs-core info
  dufs-core info --json
  dufs-core info --predict 100000 200
  dufs-core info --predict 2000 20000 --sparse 0.05

exit codes: 0 done, 2 bad usage, 1 anything else
"""


def _converter(name: str, *types: Callable[[str], Any]) -> Callable[[str], Any]:
    """Converts text to the first of `types` that accepts it, and "none" to None if the name, for errors, says so."""

    def convert(text: str) -> Any:
        if name.endswith(" or none") and text.lower() == "none":
            return None
        for convert_to in types:
            with suppress(ValueError):
                return convert_to(text)
        raise ValueError(text)

    convert.__name__ = name  # argparse: invalid whole number value: 'a'
    return convert


def _seed(text: str) -> int:
    if (number := int(text)) < 0:
        raise argparse.ArgumentTypeError(f"must be 0 or larger; got {number}")
    return number


def _rate(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        hint = "; the gates without decoys are --method gates" if text.lower() == "none" else ""
        raise argparse.ArgumentTypeError(f"must be a number above 0 and below 1; got {text!r}{hint}") from None


class Option(NamedTuple):
    """A parameter of a selector on the command line."""

    default: str  # for the help alone: options not given are not passed on
    help: str
    type: Callable[[str], Any] = str
    metavar: str | None = None
    choices: tuple[str, ...] | None = None


_INT = _converter("whole number", int)
_INT_OR_NONE = _converter("whole number or none", int)
_NUMBER = _converter("float or none", float)
_SIZE = _converter("count or fraction or none", int, float)
_LAM = _converter("number or none", float)
_RULE = _converter("rule or number", float, str)
_DRAWS = _converter("whole number or auto", int, str)
_SHARE = _converter("number", float)
_SEED = _converter("whole number", _seed)
_RANKINGS = ("diverse", "evidence", "gates")
_SCALINGS = ("columns", "global", "none")
_ENGINES = ("auto", "reference", "dense", "streaming", "sparse", "cuda")
_ORDER = "order of the selected features: evidence with decoys alone, gates with --method gates alone"
_ROWS = "with decoys alone; series: rows are in the order of time, evenly spaced"
_PRICE = "gates alone: cost of an open gate; none: the loss without lambda"
_B = "b of the kernel exp(-D / b): the rule median, q90 or max, or a number"
OPTIONS = {  # defaults: with decoys; with --method gates
    "fdr": Option("0.1", "false discovery rate, with decoys alone", _rate, "RATE"),
    "rows": Option("independent", _ROWS, choices=("independent", "series")),
    "max_rows": Option(
        "none", "with decoys alone: rows that take part at most; none: all that time allows", _INT_OR_NONE, "N|none"
    ),
    "lam": Option("none", _PRICE, _LAM, "NUMBER|none"),
    "saturation": Option(
        "none", "gates alone: most that a direction of the rows adds to the score", _NUMBER, "NUMBER|none"
    ),
    "n_features_to_select": Option("none", "a number or fraction of features; none: all found", _SIZE, "COUNT|none"),
    "ranking": Option("diverse; gates", _ORDER, choices=_RANKINGS),
    "power": Option("1; 2", "t, the steps of the random walk", _INT, "T"),
    "bandwidth": Option("median; max", _B, _RULE, "RULE|NUMBER"),
    "n_neighbors": Option("5; 2", "k of that rule", _INT, "K"),
    "bandwidth_factor": Option("1; 2", "C, the factor of that rule", float, "C"),
    "self_loops": Option("no; yes", "whether a row is its own neighbour", bool),
    "gate_sigma": Option("0.5", "gates alone: standard deviation of the gate noise", float, "SIGMA"),
    "n_draws": Option("auto", "gates alone: draws of the noise in a step, in pairs unless 1", _DRAWS, "N|auto"),
    "optimizer": Option("normalized", "gates alone: update rule", choices=("normalized", "sgd", "adam")),
    "learning_rate": Option("0.005", "gates alone: size of a step", float, "RATE"),
    "max_iter": Option("2000", "gates alone: most steps of a run", _INT, "STEPS"),
    "tol": Option("0.01", "gates alone: stop when at most this share of them is undecided", float, "SHARE"),
    "max_runs": Option("6", "gates alone: most runs of the search for structure", _INT, "N"),
    "batch_size": Option("none", "gates alone: samples in a step; none: all", _INT_OR_NONE, "N|none"),
    "scaling": Option("columns", "centre, and scale each column, or all by one constant, or none", choices=_SCALINGS),
    "engine": Option("auto", "gates alone: implementation of the objective", choices=_ENGINES),
    "backend": Option("auto", "array library to compute with", choices=("auto", "numpy", "cupy")),
    "dtype": Option("float32", "precision", choices=("float32", "float64")),
    "max_memory": Option("none", "bytes to allocate at most; none: what is available", _INT_OR_NONE, "BYTES|none"),
    "n_jobs": Option("none", "threads of the engine on the CPU; none: all cores", _INT_OR_NONE, "N|none"),
    "random_state": Option("that of --seed", "seed of the fit", _SEED, "SEED"),
    "verbose": Option("0; on a terminal 1, unless --quiet", "1: a progress bar", _INT, "LEVEL"),
}


class _Parser(argparse.ArgumentParser):
    """Errors are one sentence, and options are written out."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"dufs-core: {single_line(message)} (see {self.prog} --help)\n")


def build_parser(command: str | None) -> argparse.ArgumentParser:
    """Build the parser of `dufs-core`; it has the arguments of sweep or gradcheck if `command` names them."""
    parser = _Parser(prog="dufs-core", description="Differentiable unsupervised feature selection.", epilog=_EPILOG)
    parser.add_argument("--version", action="version", version=f"dufs-core {__version__}")
    added = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    commands = {name: added.add_parser(name, help=s, description=s.capitalize() + ".") for name, s in COMMANDS.items()}
    commands["fit"].epilog, commands["info"].epilog = _FIT_EPILOG, _INFO_EPILOG
    _add_fit_arguments(commands["fit"])
    _add_info_arguments(commands["info"])
    if command in ("sweep", "gradcheck"):
        module = import_module(f"dufs_core.cli.{'sweep.command' if command == 'sweep' else 'gradcheck'}")
        commands[command].epilog = module.EXAMPLES
        module.add_arguments(commands[command])
    return parser


def _add_info_arguments(info: argparse.ArgumentParser) -> None:
    info.add_argument("--json", action="store_true", help="print one JSON object")
    predict = "seconds and memory of a default fit of such data on this machine, measured in seconds"
    info.add_argument("--predict", nargs=2, type=_INT, metavar=("ROWS", "COLUMNS"), help=predict)
    sparse = "with --predict: the data are sparse, and this share of them is stored"
    info.add_argument("--sparse", type=_SHARE, metavar="DENSITY", help=sparse)


def _add_fit_arguments(fit: argparse.ArgumentParser) -> None:
    fit.add_argument("file", metavar="FILE|two-moons", help="samples in rows: .npy, .npz, .mat, .csv, .tsv, .txt, .h5")
    out = fit.add_argument_group("output")
    out.add_argument("--out", metavar="DIR", help="write tables, result.json, a report and, with matplotlib, pictures")
    out.add_argument("--force", action="store_true", help="replace the results of an earlier fit in DIR")
    out.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    out.add_argument("-q", "--quiet", action="store_true", help="no progress bar, no notes; with --out no table either")

    data = fit.add_argument_group("reading FILE")
    index = "column of a text file with names of samples, by name or number from 0; may be repeated"
    data.add_argument("--variable", metavar="X", help="name of the table in a file with several arrays")
    data.add_argument("--labels", metavar="Y", help="variable or column of labels, which is no feature")
    groups = "variable or column of the batch, donor or plate of each row; rows are exchanged within it alone"
    data.add_argument("--groups", metavar="COL", help=groups)
    covariates = "variable or column of numbers (age, depth) whose part is taken out of the features; may be repeated"
    data.add_argument("--covariates", metavar="COL", action="append", default=[], help=covariates)
    data.add_argument("--transpose", action="store_true", help="the file holds features as rows")
    header = "a first line of names (default: detected)"
    data.add_argument("--header", action=argparse.BooleanOptionalAction, help=header)
    data.add_argument("--index-column", metavar="COL", action="append", default=[], help=index)

    moons = fit.add_argument_group("two-moons (generated data with a known answer)")
    moons.add_argument("--samples", type=_INT, metavar="N", help="number of samples (default: 100)")
    moons.add_argument("--features", type=_INT, metavar="D", help="number of features (default: 10)")
    moons.add_argument("--noise", type=float, metavar="SD", help="standard deviation of the noise (default: 0.1)")

    method = fit.add_argument_group("method (parameters of dufs_core.DUFS and dufs_core.GatedLaplacian)")
    methods = "decoys: what beats its shuffled copies, at a rate; gates: the published gates (default: decoys)"
    method.add_argument("--method", choices=("decoys", "gates"), help=methods)
    presets = ("wide", "paper", "authors_code")
    about = "settings of the gates: for more columns than rows, of the paper, of its code; needs no --method"
    method.add_argument("--preset", choices=presets, help=about)
    method.add_argument("--seed", type=_SEED, metavar="SEED", help="seed of two-moons and of the fit (default: 0)")
    for name, option in OPTIONS.items():
        flag, said = "--" + name.replace("_", "-"), f"{option.help} (default: {option.default})"
        how: dict[str, Any] = {"type": option.type, "choices": option.choices, "metavar": option.metavar}
        if option.type is bool:
            how = {"action": argparse.BooleanOptionalAction}
        method.add_argument(flag, default=argparse.SUPPRESS, help=said, **how)
