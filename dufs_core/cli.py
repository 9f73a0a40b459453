"""The command line: dufs-core fit, sweep, gradcheck, info.

Results go to stdout; notes, warnings and errors to stderr, one sentence each. Exit codes: 0 done, 2 bad usage or
input, 3 interrupted and resumable (sweep), 130 interrupted, 1 anything else. Nothing heavy is imported before the
arguments are understood.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from dufs_core._version import __version__

DONE, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
_ROWS_SHOWN = 20  # of the table of features


class UsageError(Exception):
    """What the user asked for cannot be done; the message is the sentence to show."""


# --- the constructor's parameters as options -------------------------------------------------------------------------


def _or_none(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    def converted(text: str) -> Any:
        return None if text.lower() == "none" else convert(text)

    converted.__name__ = f"{convert.__name__} or none"
    return converted


def _whole_number(text: str) -> int:
    return int(text)


_whole_number.__name__ = "whole number"  # argparse: invalid whole number value: 'a'


def _seed(text: str) -> int:
    if (seed := int(text)) < 0:
        raise argparse.ArgumentTypeError(f"must be 0 or larger; got {seed}")
    return seed


_seed.__name__ = "whole number"


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
    "lam": Option(
        "price of an open gate, in units of one feature's score; none: the loss without parameter",
        _or_none(float),
        metavar="NUMBER|none",
    ),
    "n_features_to_select": Option(
        "this many features by rank, or this fraction of them; none: every feature with mu > 0",
        _or_none(_count_or_fraction),
        metavar="COUNT|FRACTION|none",
    ),
    "power": Option("t, the number of steps of the random walk", _whole_number, metavar="T"),
    "bandwidth": Option(
        "rule for the kernel's bandwidth b in exp(-D / b): median, q90, max, or the number b itself",
        _rule_or_number,
        metavar="RULE|NUMBER",
    ),
    "n_neighbors": Option("k of the bandwidth's rule, counting other samples", _whole_number, metavar="K"),
    "bandwidth_factor": Option("C, by which the rule's squared distance is multiplied", float, metavar="C"),
    "bandwidth_gradient": Option("whether the gradient flows through the bandwidth", bool),
    "gate_sigma": Option("standard deviation of the gate noise", float, metavar="SIGMA"),
    "gate_noise": Option("one vector of noise for the whole batch, or one per sample", choices=("batch", "sample")),
    "n_draws": Option("draws of the noise in a step, in pairs of opposite sign unless 1", _whole_number, metavar="N"),
    "optimizer": Option("rule of the steps", choices=("normalized", "sgd", "adam")),
    "learning_rate": Option("size of a step", float, metavar="RATE"),
    "momentum": Option("share of the last step that is kept", float, metavar="SHARE"),
    "max_iter": Option("most steps of a run", _whole_number, metavar="STEPS"),
    "tol": Option("stop when at most this share of the gates is undecided", float, metavar="SHARE"),
    "n_restarts": Option(
        "most runs; the one with the largest permutation gap counts, a convincing one ends the search",
        _whole_number,
        metavar="N",
    ),
    "batch_size": Option("samples in a step; none: all", _or_none(_whole_number), metavar="N|none"),
    "scaling": Option(
        "columns: mean 0 and variance 1 each; global: centred, one common scale; none: centred",
        choices=("columns", "global", "none"),
    ),
    "engine": Option(
        "way of evaluating the objective", choices=("auto", "operations", "dense", "streaming", "sparse", "cuda")
    ),
    "backend": Option("array library to compute with", choices=("auto", "numpy", "cupy")),
    "dtype": Option("precision", choices=("float32", "float64")),
    "max_memory": Option(
        "bytes that the fit may allocate; none: what is available", _or_none(_whole_number), metavar="BYTES|none"
    ),
    "n_jobs": Option(
        "threads of the engine on the CPU; none: all cores",
        _or_none(_whole_number),
        metavar="N|none",
    ),
    "random_state": Option("seed of the fit's draws (default: that of --seed)", _seed, metavar="SEED"),
    "verbose": Option(
        "1: a progress bar (on a terminal it is on, unless --json or --quiet)", _whole_number, metavar="LEVEL"
    ),
    "convention": Option(
        "authors_code: as the published code where it departs from the paper", choices=("standard", "authors_code")
    ),
}
_UNLISTED = ("callbacks",)  # parameters that no text can give


def _constructor_defaults() -> dict[str, str]:
    """The constructor's defaults as text, read from its source: importing it takes seconds, and help should not."""
    spec = find_spec("dufs_core.estimator")
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return {}
    for item in ast.walk(ast.parse(Path(spec.origin).read_text("utf-8"))):
        if isinstance(item, ast.ClassDef) and item.name == "DUFS":
            for method in item.body:
                if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                    pairs = zip(method.args.kwonlyargs, method.args.kw_defaults, strict=True)
                    return {a.arg: ast.unparse(d).strip("'").lower() for a, d in pairs if d is not None}
    return {}


# --- arguments -----------------------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """Errors are one sentence; `--help` of fit is completed with the constructor's defaults."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"dufs-core: {message} (see {self.prog} --help)\n")

    def format_help(self) -> str:
        if self.prog.endswith(" fit"):
            defaults = _constructor_defaults()
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
"""


def _build_parser(command: str | None) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="dufs-core",
        description="Differentiable unsupervised feature selection.",
        epilog="example:\n  dufs-core fit two-moons\n\n'dufs-core COMMAND --help' describes a command.",
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
        from dufs_core.jobs import command as sweep_command

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
        from dufs_core.gradcheck import command as gradcheck_command

        gradcheck_command.add_arguments(gradcheck)

    info = commands.add_parser(
        "info",
        help="show versions, linear algebra libraries, threads and devices",
        description="Show versions, linear algebra libraries, threads and devices.",
        epilog="example:\n  dufs-core info --json",
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
    moons.add_argument("--samples", type=_whole_number, metavar="N", help="number of samples (default: 100)")
    moons.add_argument("--features", type=_whole_number, metavar="D", help="number of features (default: 10)")
    moons.add_argument("--noise", type=float, metavar="SD", help="standard deviation of the noise (default: 0.1)")

    method = fit.add_argument_group("method (parameters of dufs_core.DUFS)")
    method.add_argument("--preset", choices=("paper", "authors_code"), help="defaults of a published experiment")
    method.add_argument(
        "--seed",
        type=_seed,
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


# --- fit -----------------------------------------------------------------------------------------------------------


class _Source(NamedTuple):
    """The data of a fit and where it came from."""

    X: Any  # (n, d) array
    names: tuple[str, ...] | None
    informative: Sequence[int] | None  # the true answer, where it is known
    labels: Any  # (n,) or None; for colours alone
    described: dict[str, Any]
    notes: tuple[str, ...]


@contextmanager
def _as_usage_errors() -> Iterator[None]:
    """Errors that speak of the user's data or settings, as one sentence."""
    from dufs_core.errors import DufsError

    try:
        yield
    except (ValueError, TypeError, DufsError) as error:
        raise UsageError(_sentence(error)) from error
    except OSError as error:
        if error.errno is not None and error.strerror:
            raise UsageError(f"{error.filename}: {error.strerror.lower()}") from error
        raise UsageError(_sentence(error)) from error


def _sentence(message: object) -> str:
    return " ".join(str(message).split())


def _load(args: argparse.Namespace, seed: int) -> _Source:
    moons = {"samples": args.samples, "features": args.features, "noise": args.noise}
    reading = {
        "--variable": args.variable is not None,
        "--labels": args.labels is not None,
        "--transpose": args.transpose,
        "--header": args.header is not None,
        "--index-column": bool(args.index_column),
    }
    if args.file == "two-moons":
        misplaced = [option for option, given in reading.items() if given]
        if misplaced:
            raise UsageError(f"{misplaced[0]} is for data files; two-moons is made, not read")
        from dufs_core.datasets import two_moons
        from dufs_core.io import array_fingerprint

        settings = {"samples": 100, "features": 10, "noise": 0.1} | {k: v for k, v in moons.items() if v is not None}
        with _as_usage_errors():
            X, labels, informative = two_moons(settings["samples"], settings["features"], settings["noise"], seed)
        described = {"source": "two-moons", **settings, "seed": seed, "sha256": array_fingerprint(X)}
        return _Source(X, None, informative.tolist(), labels, described, ())

    misplaced = [f"--{name}" for name, value in moons.items() if value is not None]
    if misplaced:
        raise UsageError(f"{misplaced[0]} is for two-moons, not for a file")
    from dufs_core.io import file_fingerprint, read_table
    from dufs_core.source import is_source

    with _as_usage_errors():
        table = read_table(
            args.file,
            variable=args.variable,
            labels=args.labels,
            transpose=args.transpose,
            header=args.header,
            index_column=args.index_column,
            on_disk=getattr(args, "batch_size", None) is not None,
        )
        if not is_source(table.X):  # the fit checks those as it reads them
            _check_finite(args.file, table.X, table.feature_names)
        described = {"source": args.file, **table.read_as, "sha256": file_fingerprint(args.file)}
    return _Source(table.X, table.feature_names, None, table.labels, described, table.notes)


def _check_finite(path: str, X: Any, names: tuple[str, ...] | None) -> None:
    """Refuse NaN and infinity with the name of the first column; one column's copy at a time."""
    import numpy as np

    if X.dtype.kind != "f":
        return
    count, first = 0, -1
    for j in range(X.shape[1]):
        bad = X.shape[0] - int(np.isfinite(X[:, j]).sum())
        first = j if bad and first < 0 else first
        count += bad
    if count:
        row = int(np.flatnonzero(~np.isfinite(X[:, first]))[0])
        called = f'"{names[first]}"' if names else f"{first}"
        raise ValueError(
            f"{path}: {count} of {X.size} values {'is' if count == 1 else 'are'} missing or infinite, the first in "
            f"column {called}, sample {row} (from 0); impute them, or drop those samples or features"
        )


def _fit(args: argparse.Namespace) -> int:
    began = time.perf_counter()
    if args.force and args.out is None:
        raise UsageError("--force needs --out DIR")
    if args.out is not None:
        from dufs_core import output

        with _as_usage_errors():
            output.check_directory(args.out, args.force)
    seed = 0 if args.seed is None else args.seed
    source = _load(args, seed)
    read = time.perf_counter()
    notes = () if args.quiet else source.notes
    for note in notes:
        print(f"dufs-core: {note}", file=sys.stderr)

    given = {name: getattr(args, name) for name in OPTIONS if hasattr(args, name)}
    if args.seed is not None and args.file != "two-moons" and given.get("random_state", seed) != seed:
        raise UsageError("--seed and --random-state say the same of a file; give one of them")
    given.setdefault("random_state", seed)
    if not (args.json or args.quiet) and sys.stderr.isatty():
        given.setdefault("verbose", 1)
    from dufs_core.estimator import DUFS

    with _as_usage_errors():
        estimator = DUFS(**given) if args.preset is None else DUFS.preset(args.preset, **given)
        started = time.perf_counter()
        estimator.fit(source.X)
    ended = time.perf_counter()

    rows = _feature_rows(estimator, source.names)
    result = _result(args, estimator, source, {"read": read - began, "fit": ended - started, "total": ended - began})
    written: list[str] = []
    if args.out is not None:
        document = {key: value for key, value in result.items() if key != "scores"}  # selection.csv has them
        try:
            written = output.save(args.out, rows, document, estimator, source.X, source.names, source.labels)
        except OSError as error:
            print(f"dufs-core: cannot write {args.out}: {_sentence(error)}", file=sys.stderr)
            return FAILED
    if args.json:
        from dufs_core.output import plain

        print(json.dumps(plain(result), allow_nan=False))
    elif not (args.quiet and args.out is not None):
        print(_summary(result, rows, args.out, written))
    return DONE


def _feature_rows(estimator: Any, names: tuple[str, ...] | None) -> list[dict[str, Any]]:
    """One row per feature, best first."""
    return [
        {
            "index": int(j),
            "name": names[j] if names else f"x{j}",
            "rank": rank,
            "score": estimator.scores_[j],
            "mu": estimator.mu_[j],
            "probability": estimator.gate_probabilities_[j],
            "selected": bool(estimator.support_[j]),
        }
        for rank, j in enumerate(estimator.ranking_, start=1)
    ]


def _result(args: argparse.Namespace, estimator: Any, source: _Source, seconds: dict[str, float]) -> dict[str, Any]:
    """What --json prints and result.json keeps."""
    n, d = source.X.shape
    settings = {k: v for k, v in estimator.get_params(deep=False).items() if k not in ("callbacks", "verbose")}
    selected = [int(j) for j in estimator.ranking_ if estimator.support_[j]]
    result: dict[str, Any] = {
        "selected": selected,
        "scores": estimator.scores_,
        "seconds": seconds["fit"],
        "n_iter": estimator.n_iter_,
        "converged": estimator.converged_,
        "loss": estimator.loss_,
        "bandwidth": estimator.bandwidth_,
        "permutation_gap": estimator.permutation_gap_,
        "p_value": estimator.p_value_,
        "n_runs": estimator.n_runs_,
        "n_samples": n,
        "n_features": d,
        "constant_features": estimator.constant_features_,
    }
    if source.names:
        result["selected_names"] = [source.names[j] for j in selected]
    if source.informative is not None:
        result |= _agreement(selected, source.informative, estimator.gate_probabilities_)
    return result | {
        "seed": settings.get("random_state"),
        "settings": settings,
        "preset": args.preset,
        "backend": estimator.backend_,
        "engine": estimator.engine_,
        "input": source.described,
        "timings": seconds,
        "versions": _versions(),
        "machine": _machine(),
    }


def _agreement(selected: Sequence[int], informative: Sequence[int], probability: Any) -> dict[str, float]:
    """Precision and recall of the selected set, and, with gate probabilities for membership, their soft forms."""
    found = len(set(selected) & set(informative))
    mass = float(probability[list(informative)].sum())
    total = float(probability.sum())
    return {
        "precision": found / len(selected) if selected else 0.0,
        "recall": found / len(informative),
        "soft_precision": mass / total if total > 0 else 0.0,
        "soft_recall": mass / len(informative),
    }


def _summary(result: dict[str, Any], rows: Sequence[dict[str, Any]], out: str | None, written: Sequence[str]) -> str:
    """The result for reading: a table of the best features, and what there is to know about the fit."""
    n_selected, d = len(result["selected"]), result["n_features"]
    shown = rows[: min(_ROWS_SHOWN, max(n_selected + 3, 10))]
    width = min(40, max(4, *(len(row["name"]) for row in shown)))
    lines = [
        f"{result['input']['source']}: {result['n_samples']} samples, {d} features",
        "",
        f"rank   index  {'name':<{width}}       mu   P(open)  selected",
    ]
    for row in shown:
        name = row["name"] if len(row["name"]) <= width else row["name"][: width - 3] + "..."
        lines.append(
            f"{row['rank']:>4}  {row['index']:>6}  {name:<{width}}  {row['mu']:>7.3f}  "
            f"{row['probability']:>8.4f}  {'yes' if row['selected'] else 'no'}"
        )
    if len(rows) > len(shown):
        hidden = n_selected - len(shown)
        more = f", {hidden} of them selected" if hidden > 0 else ""
        lines.append(f" ...  {len(rows) - len(shown)} more{more}")
    if not result["n_iter"]:
        ending = "every feature is constant"
    elif result["converged"]:
        ending = "converged"
    else:
        ending = "NOT converged: some gates are undecided, see --max-iter"
    lines += [
        "",
        f"{n_selected} of {d} features selected in {result['n_iter']} steps, {result['seconds']:.2f} s; {ending}",
    ]
    lines.append(
        f"permutation gap {result['permutation_gap']:.3f}, p = {result['p_value']:.2g}, "
        f"best of {result['n_runs']} run{'' if result['n_runs'] == 1 else 's'}"
    )
    if "precision" in result:
        lines.append(
            "precision {precision:.2f}, recall {recall:.2f}, soft precision {soft_precision:.2f}, "
            "soft recall {soft_recall:.2f}".format(**result)
        )
    if out is not None:
        lines.append(f"written to {out}: {', '.join(written)}")
    return "\n".join(lines)


# --- info ----------------------------------------------------------------------------------------------------------

_LIBRARIES = ("numpy", "scipy", "numba", "scikit-learn")
_OPTIONAL = ("matplotlib", "h5py", "tqdm", "threadpoolctl", "cupy", "cupy-cuda11x", "cupy-cuda12x", "cupy-cuda13x")


def _versions(optional: bool = False) -> dict[str, str]:
    import platform
    from importlib.metadata import PackageNotFoundError, version

    found = {"dufs-core": __version__, "python": platform.python_version()}
    for name in _LIBRARIES + (_OPTIONAL if optional else ()):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            if name in _LIBRARIES:
                found[name] = "not installed"
    return found


def _machine() -> dict[str, Any]:
    import platform

    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"system": platform.platform(), "cpus": cpus}


def _info(args: argparse.Namespace) -> int:
    import numba
    import numpy  # noqa: F401  (loads its BLAS, for threadpoolctl to see)
    import scipy.linalg  # noqa: F401  (and SciPy's)
    from threadpoolctl import threadpool_info

    from dufs_core.backend import get_backend
    from dufs_core.errors import BackendUnavailableError

    gpu: dict[str, Any] = {"usable": True}
    try:
        get_backend("cupy")
    except BackendUnavailableError as error:
        gpu = {"usable": False, "reason": str(error)}
    blas = [
        {
            "library": library["internal_api"],
            "version": library.get("version"),
            "threads": library["num_threads"],
            "file": Path(library["filepath"]).name,
        }
        for library in threadpool_info()
        if library["user_api"] == "blas"
    ]
    document: dict[str, Any] = {
        "versions": _versions(optional=True),
        "machine": _machine(),
        "blas": blas,
        "numba_threads": numba.get_num_threads(),
        "devices": {"cpu": {"usable": True}, "gpu": gpu},
    }
    if args.json:
        print(json.dumps(document, allow_nan=False))
        return DONE
    lines = [f"{name:<14} {version}" for name, version in _versions(optional=True).items()]
    lines += ["", f"{'system':<14} {document['machine']['system']}", f"{'cpus':<14} {document['machine']['cpus']}"]
    lines += [f"{'blas':<14} {b['library']} {b['version']}, {b['threads']} threads ({b['file']})" for b in blas]
    lines += [f"{'numba':<14} {document['numba_threads']} threads"]
    lines += [f"{'gpu':<14} {'usable' if gpu['usable'] else gpu['reason']}"]
    print("\n".join(lines))
    return DONE


# --- the entry -----------------------------------------------------------------------------------------------------


@contextmanager
def _clean_warnings() -> Iterator[None]:
    """Warnings for users as one sentence on stderr, each once; those for developers are dropped."""
    seen: set[str] = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        sentence = _sentence(message)
        if sentence not in seen:
            seen.add(sentence)
            print(f"dufs-core: warning: {sentence}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for category in (UserWarning, RuntimeWarning):
            warnings.simplefilter("always", category)
        warnings.showwarning = show
        yield


def _sweep(args: argparse.Namespace) -> int:
    from dufs_core.jobs import JobError, command

    try:
        return int(command.run(args))
    except JobError as error:
        raise UsageError(_sentence(error)) from error


def _gradcheck(args: argparse.Namespace) -> int:
    from dufs_core.gradcheck import command

    return int(command.run(args))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments, without the program's name; by default the process's own.

    Returns
    -------
    int
        0 done, 2 bad usage or input, 3 interrupted and resumable, 130 interrupted, 1 anything else.
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a feature's name is not worth losing the result for
    try:
        with _clean_warnings():
            args = _build_parser(argv[0] if argv else None).parse_args(argv)
            if args.command is None:
                raise UsageError("a command is needed: fit, sweep, gradcheck or info (see dufs-core --help)")
            code = {"fit": _fit, "sweep": _sweep, "gradcheck": _gradcheck, "info": _info}[args.command](args)
            sys.stdout.flush()
            return code
    except SystemExit as end:  # argparse, after --help or an error it has told
        return end.code if isinstance(end.code, int) else DONE if end.code is None else FAILED
    except UsageError as error:
        print(f"dufs-core: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("dufs-core: interrupted, nothing was written", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of stdout has gone, as in a pipe to head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except MemoryError as error:
        print(f"dufs-core: out of memory ({_sentence(error) or 'no more is known'})", file=sys.stderr)
        return FAILED
    except Exception as error:
        traceback.print_exc()
        print(f"dufs-core: unexpected {type(error).__name__}: {_sentence(error)}", file=sys.stderr)
        return FAILED
