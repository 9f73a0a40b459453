"""dufs-core fit: read, fit, print, write."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from dufs_core.cli.common import DONE, FAILED, UsageError, sentence, usage_errors
from dufs_core.cli.fit_result import feature_rows, result_of, summary
from dufs_core.cli.options import OPTIONS


class Source(NamedTuple):
    """The data of a fit and where it came from."""

    X: Any  # (n, d) array
    names: tuple[str, ...] | None
    informative: Sequence[int] | None  # the true answer, where it is known
    labels: Any  # (n,) or None; for colours alone
    described: dict[str, Any]
    notes: tuple[str, ...]


def _load(args: argparse.Namespace, seed: int) -> Source:
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
        from dufs_core.data.files.arrays import array_fingerprint
        from dufs_core.datasets import two_moons

        settings = {"samples": 100, "features": 10, "noise": 0.1} | {k: v for k, v in moons.items() if v is not None}
        with usage_errors():
            X, labels, informative = two_moons(settings["samples"], settings["features"], settings["noise"], seed)
        described = {"source": "two-moons", **settings, "seed": seed, "sha256": array_fingerprint(X)}
        return Source(X, None, informative.tolist(), labels, described, ())

    misplaced = [f"--{name}" for name, value in moons.items() if value is not None]
    if misplaced:
        raise UsageError(f"{misplaced[0]} is for two-moons, not for a file")
    from dufs_core.data.files.arrays import file_fingerprint, read_table
    from dufs_core.data.on_disk import is_on_disk

    with usage_errors():
        table = read_table(
            args.file,
            variable=args.variable,
            labels=args.labels,
            transpose=args.transpose,
            header=args.header,
            index_column=args.index_column,
            on_disk=getattr(args, "batch_size", None) is not None,
        )
        if not is_on_disk(table.X):  # the fit checks those as it reads them
            _check_finite(args.file, table.X, table.feature_names)
        described = {"source": args.file, **table.read_as, "sha256": file_fingerprint(args.file)}
    return Source(table.X, table.feature_names, None, table.labels, described, table.notes)


def _check_finite(path: str, X: Any, names: tuple[str, ...] | None) -> None:
    """Refuse NaN and infinity with the name of the first column."""
    from dufs_core.data.dense import values_not_finite

    count, row, first = values_not_finite(X)
    if count:
        called = f'"{names[first]}"' if names else f"{first}"
        raise ValueError(
            f"{path}: {count} of {X.size} values {'is' if count == 1 else 'are'} missing or infinite, the first in "
            f"column {called}, sample {row} (from 0); impute them, or drop those samples or features"
        )


def run(args: argparse.Namespace) -> int:
    """Run the command. Raises UsageError for what the user has to change."""
    began = time.perf_counter()
    if args.force and args.out is None:
        raise UsageError("--force needs --out DIR")
    if args.out is not None:
        from dufs_core.cli import output

        with usage_errors():
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
    from dufs_core.selection.dufs import DUFS

    with usage_errors():
        estimator = DUFS(**given) if args.preset is None else DUFS.preset(args.preset, **given)
        started = time.perf_counter()
        estimator.fit(source.X)
    ended = time.perf_counter()

    rows = feature_rows(estimator, source.names)
    result = result_of(args, estimator, source, {"read": read - began, "fit": ended - started, "total": ended - began})
    written: list[str] = []
    if args.out is not None:
        document = {key: value for key, value in result.items() if key != "scores"}  # selection.csv has them
        try:
            written = output.save(args.out, rows, document, estimator, source.X, source.names, source.labels)
        except OSError as error:
            print(f"dufs-core: cannot write {args.out}: {sentence(error)}", file=sys.stderr)
            return FAILED
    if args.json:
        from dufs_core.selection.atomic_io import json_value

        print(json.dumps(json_value(result), allow_nan=False))
    elif not (args.quiet and args.out is not None):
        print(summary(result, rows, args.out, written))
    return DONE
