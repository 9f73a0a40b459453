"""dufs-core fit: read a table, fit, print and write the result."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dufs_core.cli.common import DONE, FAILED, UsageError, machine, single_line, usage_errors, versions
from dufs_core.cli.parser import OPTIONS
from dufs_core.training.progress import stage

if TYPE_CHECKING:
    from dufs_core.selection.base import Explanation

_ROWS_SHOWN = 20  # most rows of the printed table
_FITTED = ("scores", "constant_features")  # attributes of the result
_OF_GATES = ("n_iter", "converged", "engine")  # those of trained ones
_MOONS: dict[str, Any] = {"samples": 100, "features": 10, "noise": 0.1}  # arguments of two_moons, in order
_READING: dict[str, Any] = {
    "variable": None, "labels": None, "groups": None, "covariates": [], "transpose": False, "header": None,
    "index_column": [],
}  # fmt: skip
_UNSAID = ("callbacks", "verbose")  # parameters without influence on the result


class Data(NamedTuple):
    """The data and their source."""

    X: Any  # (n, d) array
    names: tuple[str, ...] | None
    informative: Sequence[int] | None  # ground truth, where known
    labels: Any  # (n,) or None; only colours of a picture
    groups: Any  # (n,) or None; rows are exchanged within them alone
    covariates: Any  # (n, c) or None; their part is taken out of the columns
    source: dict[str, Any]
    notes: tuple[str, ...]


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    began = time.perf_counter()
    shown = getattr(args, "verbose", int(not args.quiet and sys.stderr.isatty()))
    if args.force and args.out is None:
        raise UsageError("--force needs --out DIR")
    seed = 0 if args.seed is None else args.seed
    with usage_errors():
        if args.out is not None:
            from dufs_core.cli import output

            output.check_directory(args.out, args.force)
        with stage(shown, f"reading {args.file}"):
            data = _load(args, seed)
    read = time.perf_counter()
    if not args.quiet:
        for note in data.notes:
            print(f"dufs-core: {single_line(note)}", file=sys.stderr)

    given = {name: getattr(args, name) for name in OPTIONS if hasattr(args, name)}
    if args.seed is not None and args.file != "two-moons" and given.get("random_state", seed) != seed:
        raise UsageError("--seed and --random-state are the same for a file; give one of them")
    given = {"random_state": seed} | given
    given |= {"verbose": shown}
    with usage_errors(), stage(shown, "fit of {} x {}".format(*data.X.shape)):
        from dufs_core.selection.methods import make_selector

        selector = make_selector(args.method, args.preset, given)
        if data.names:  # for the sentences of the fit
            selector.var_names_ = data.names
        started = time.perf_counter()
        selector.fit(data.X, groups=data.groups, covariates=data.covariates)
    ended = time.perf_counter()

    explained = selector._explanation(data.X.shape[0])
    rows = _feature_rows(selector, explained, data.names or [f"x{j}" for j in range(data.X.shape[1])])
    result = _result(
        args, selector, explained, data, {"read": read - began, "fit": ended - started, "total": ended - began}
    )
    written: list[str] = []
    if args.out is not None:
        document = {key: value for key, value in result.items() if key != "scores"}  # selection.csv has them
        try:
            with stage(shown, f"writing {args.out}"):
                written = output.save(args.out, rows, document, selector, data.X, data.names, data.labels)
        except OSError as error:
            print(f"dufs-core: cannot write {args.out}: {single_line(error)}", file=sys.stderr)
            return FAILED
    if args.json:
        from dufs_core.selection.atomic_io import json_value

        print(json.dumps(json_value(result), allow_nan=False))
    elif not (args.quiet and args.out is not None):
        print(_summary(explained, result, rows))
        if written:
            print(f"written to {single_line(args.out)}: {', '.join(written)}")
    return DONE


def _load(args: argparse.Namespace, seed: int) -> Data:
    from dufs_core.data import fingerprint

    moons = {name: value for name in _MOONS if (value := getattr(args, name)) is not None}
    if args.file == "two-moons":
        if misplaced := [name for name, default in _READING.items() if getattr(args, name) != default]:
            raise UsageError(f"--{misplaced[0].replace('_', '-')} is for data files; two-moons is generated, not read")
        from dufs_core.datasets import two_moons

        moons = _MOONS | moons | {"seed": seed}
        X, labels, informative = two_moons(*moons.values())
        source = {"source": "two-moons", **moons, "sha256": fingerprint.array_fingerprint(X)}
        return Data(X, None, informative.tolist(), labels, None, None, source, ())
    if moons:
        raise UsageError(f"--{next(iter(moons))} is for two-moons, not for a file")
    import numpy as np

    from dufs_core.backend.random import MOST_ROWS
    from dufs_core.data.files import read_table
    from dufs_core.data.on_disk import is_on_disk

    # gates without batches need all rows at once; few rows are read in any case
    is_of_gates = args.method == "gates" or args.preset is not None
    on_disk = not is_of_gates or getattr(args, "batch_size", None) is not None
    table = read_table(args.file, **{name: getattr(args, name) for name in _READING}, on_disk=on_disk)
    if is_on_disk(table.X) and table.X.shape[0] <= MOST_ROWS:
        table = table._replace(X=np.asarray(table.X[:]))
    if not is_on_disk(table.X):  # the fit checks the others while it reads them
        _check_finite(args.file, table.X, table.feature_names)
    source = {"source": args.file, **table.read_as, "sha256": fingerprint.file_fingerprint(args.file)}
    return Data(table.X, table.feature_names, None, table.labels, table.groups, table.covariates, source, table.notes)


def _check_finite(path: str, X: Any, names: tuple[str, ...] | None) -> None:
    """Refuse NaN and infinity, naming the first column with any."""
    from dufs_core.data.dense import FILL, values_not_finite

    count, row, first = values_not_finite(X)
    if count:
        column = f'"{names[first]}"' if names else f"{first}"
        raise ValueError(
            f"{path}: {count} of {X.size} values {'is' if count == 1 else 'are'} missing or infinite, the first in "
            f"column {column}, sample {row} (from 0). {FILL}"
        )


def _feature_rows(selector: Any, explained: Explanation, names: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of selection.csv: one for each feature, best first; None where a feature has no such number."""
    numbers = {"score": selector.scores_, **explained.numbers}
    return [
        {"index": int(j), "name": names[j], "rank": rank}
        | {name: None if values[j] != values[j] else values[j] for name, values in numbers.items()}
        | {"selected": bool(selector.support_[j])}
        for rank, j in enumerate(selector.order_, start=1)
    ]


def _result(
    args: argparse.Namespace, selector: Any, explained: Explanation, data: Data, seconds: dict[str, float]
) -> dict[str, Any]:
    """The object printed by --json and kept in result.json."""
    from dufs_core.selection.methods import method_of
    from dufs_core.selection.settings import flat_settings

    selected = [int(j) for j in selector.order_ if selector.support_[j]]
    settings = {name: value for name, value in flat_settings(selector).items() if name not in _UNSAID}
    result: dict[str, Any] = {"method": method_of(selector), "selected": selected, "seconds": seconds["fit"]}
    result |= selector._facts() | {name: getattr(selector, f"{name}_") for name in _FITTED}
    if hasattr(selector, "history_"):
        result |= {name: getattr(selector, f"{name}_") for name in _OF_GATES}
        for name in ("loss", "bandwidth"):  # at the end
            result[name] = float(selector.history_[name][-1]) if selector.n_iter_ else None
    result["diagnosis"] = [finding._asdict() for finding in selector.diagnosis_]
    result["rows"] = selector.rows_._asdict()
    own = {"q_values": "q_value", "evidence": "evidence"}  # of decoys
    result |= {name: explained.numbers[key] for name, key in own.items() if key in explained.numbers}
    result |= dict(zip(("n_samples", "n_features"), data.X.shape, strict=True))
    if data.names:
        result["selected_names"] = [data.names[j] for j in selected]
    if data.informative is not None:
        from dufs_core.inspection.metrics import precision_recall

        result |= dict(zip(("precision", "recall"), precision_recall(selected, data.informative), strict=True))
    result |= {"seed": settings["random_state"], "settings": settings, "preset": args.preset}
    result |= {"backend": selector.backend_, "input": data.source}
    return result | {"timings": seconds, "versions": versions(), "machine": machine()}


def _summary(explained: Explanation, result: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    """The printed result: a table of the best features, and the notes of `dufs_core.report` on the fit."""
    from dufs_core.errors import printable
    from dufs_core.selection.decoys.explanation import rate_text

    n_selected, n, d = len(result["selected"]), result["n_samples"], result["n_features"]
    columns: dict[str, Any] = {"mu": ("     mu", "{:.3f}".format), "probability": (" P(open)", "{:.4f}".format)}
    if "q_value" in explained.numbers:
        columns = {"evidence": ("evidence", "{:.2f}".format), "q_value": ("q-value", rate_text)}
    shown = rows[: min(_ROWS_SHOWN, max(n_selected + 3, 10))]
    names = [printable(row["name"]) for row in shown]
    width = min(40, max(4, *map(len, names)))
    heads = "  ".join(head for head, _ in columns.values())
    lines = [f"{printable(result['input']['source'])}: {n} samples, {d} features", ""]
    lines.append(f"rank   index  {'name':<{width}}  {heads}  selected")
    for row, name in zip(shown, names, strict=True):
        name = name if len(name) <= width else name[: width - 3] + "..."
        numbers = "  ".join(
            f"{'' if row[key] is None else text(row[key]):>{len(head)}}" for key, (head, text) in columns.items()
        )
        chosen = "yes" if row["selected"] else "no"
        lines.append(f"{row['rank']:>4}  {row['index']:>6}  {name:<{width}}  {numbers}  {chosen}")
    if hidden := len(rows) - len(shown):
        selected = n_selected - len(shown)
        lines.append(f" ...  {hidden} more" + (f", {selected} of them selected" if selected > 0 else ""))
    lines += ["", f"{n_selected} of {d} features selected in {result['seconds']:.2f} s", *explained.notes]
    if "precision" in result:
        lines.append(f"precision {result['precision']:.2f}, recall {result['recall']:.2f}")
    return "\n".join(lines)
