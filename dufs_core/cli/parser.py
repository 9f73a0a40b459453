"""The arguments of every subcommand, with examples and exit codes in their help."""

from __future__ import annotations

import argparse
from typing import NoReturn

from dufs_core._version import __version__
from dufs_core.cli.common import BAD_INPUT
from dufs_core.cli.options import OPTIONS, constructor_defaults, seed, whole_number


class _Parser(argparse.ArgumentParser):
    """Errors are one sentence; `--help` of fit is completed with the constructor's defaults."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"dufs-core: {message} (see {self.prog} --help)\n")

    def format_help(self) -> str:
        if self.prog.endswith(" fit"):
            defaults = constructor_defaults()
            for action in self._actions:
                if action.dest in defaults and action.help and "(default:" not in action.help:
                    action.help += f" (default: {defaults[action.dest]})"
        return super().format_help()


_FIT_EXAMPLES = """\
examples:
  dufs-core fit two-moons
  dufs-core fit two-moons --features 20 --noise 0.05 --seed 3 --json
  dufs-core fit measurements.csv --labels species --out result
  dufs-core fit cells.mat --variable G --transpose --batch-size 1000 --n-features-to-select 50
  dufs-core fit images.npy --scaling global --backend cupy --seed 1 --out result --force

exit codes: 0 done, 2 bad usage or input, 130 interrupted (what is written is said), 1 other errors, such as a full disk
"""
_EPILOG = """\
examples:
  dufs-core fit two-moons
  dufs-core fit data.csv --labels class --out result
  dufs-core sweep job.toml --out result --resume

'dufs-core COMMAND --help' describes a command, with examples.

exit codes: 0 done, 2 bad usage or input, 3 interrupted and resumable (sweep), 130 interrupted, 1 anything else
"""
_INFO_EPILOG = """\
examples:
  dufs-core info
  dufs-core info --json

exit codes: 0 done (also without a GPU: it says why), 2 bad usage, 1 anything else
"""


def build_parser(command: str | None) -> argparse.ArgumentParser:
    """The parser of `dufs-core`; sweep's and gradcheck's arguments are there if `command` names them."""
    parser = _Parser(
        prog="dufs-core",
        description="Differentiable unsupervised feature selection.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"dufs-core {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)

    fit = commands.add_parser(
        "fit",
        help="select features of a data file, or of noisy two moons",
        description="Select features of a data file, or of noisy two moons (made here; their answer is known).",
        epilog=_FIT_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_fit_arguments(fit)

    sweep = commands.add_parser(
        "sweep",
        help="run a batch job: many fits from a job file, resumable",
        description="Fit data sets with grids of settings and seeds, from a job file; resumable at any moment.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    if command == "sweep":
        from dufs_core.cli.sweep import command as sweep_command

        sweep.epilog = sweep_command.EXAMPLES
        sweep_command.add_arguments(sweep)

    gradcheck = commands.add_parser(
        "gradcheck",
        help="check hand-written gradients against finite differences",
        description="Check hand-written gradients against finite differences.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    if command == "gradcheck":
        from dufs_core.cli import gradcheck as gradcheck_command

        gradcheck.epilog = gradcheck_command.EXAMPLES
        gradcheck_command.add_arguments(gradcheck)

    info = commands.add_parser(
        "info",
        help="show versions, linear algebra libraries, threads and devices",
        description="Show versions, linear algebra libraries, threads and devices.",
        epilog=_INFO_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    info.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _add_fit_arguments(fit: argparse.ArgumentParser) -> None:
    fit.add_argument(
        "file",
        metavar="FILE|two-moons",
        help="table of numbers, samples in rows: .npy, .npz, .mat, .csv, .tsv, .txt (.h5 with h5py)",
    )
    out = fit.add_argument_group("output")
    out.add_argument(
        "--out",
        metavar="DIR",
        help="write selection.csv, history.csv, result.json and, with matplotlib, gates.png and report.html there; "
        "without it nothing is written",
    )
    out.add_argument("--force", action="store_true", help="replace the results of an earlier run in DIR")
    out.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    out.add_argument("-q", "--quiet", action="store_true", help="no progress bar, no notes; with --out no table either")

    data = fit.add_argument_group("reading FILE")
    data.add_argument("--variable", metavar="X", help="the table's name, where a file holds several arrays")
    data.add_argument(
        "--labels", metavar="Y", help="variable or column that holds labels: it is left out of the features"
    )
    data.add_argument("--transpose", action="store_true", help="the file holds features as rows")
    data.add_argument(
        "--header",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="whether a text file starts with names of columns (default: seen from its contents)",
    )
    data.add_argument(
        "--index-column",
        metavar="COL",
        action="append",
        default=[],
        help="column of a text file that identifies samples, by name or by number from 0: "
        "it is left out of the features; may be given several times",
    )

    moons = fit.add_argument_group("two-moons")
    moons.add_argument("--samples", type=whole_number, metavar="N", help="number of samples (default: 100)")
    moons.add_argument("--features", type=whole_number, metavar="D", help="number of features (default: 10)")
    moons.add_argument("--noise", type=float, metavar="SD", help="standard deviation of the noise (default: 0.1)")

    method = fit.add_argument_group("method (parameters of dufs_core.DUFS)")
    method.add_argument(
        "--preset",
        choices=("wide", "paper", "authors_code"),
        help="settings for more columns than rows, or of a published experiment",
    )
    method.add_argument(
        "--seed",
        type=seed,
        metavar="SEED",
        help="seed of the two moons and of the fit's draws (default: 0); --random-state sets the latter alone",
    )
    for name, option in OPTIONS.items():
        flag = "--" + name.replace("_", "-")
        if option.type is bool:
            method.add_argument(
                flag, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=option.help
            )
        else:
            method.add_argument(
                flag,
                type=option.type,
                choices=option.choices,
                metavar=option.metavar,
                default=argparse.SUPPRESS,
                help=option.help,
            )
