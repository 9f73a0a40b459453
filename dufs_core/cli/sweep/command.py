"""dufs-core sweep."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

DONE, FAILED, INTERRUPTED = 0, 1, 3
EXAMPLES = """\
examples:
  dufs-core sweep job.toml --dry-run
  dufs-core sweep job.toml --out result --resume --workers 4
  dufs-core sweep job.toml --out result --resume --scheduler tcp://node1:8786

exit codes: 0 done, 2 bad usage or input, 3 interrupted (--resume goes on), 1 anything else, such as fits that failed
(their errors are in the table) or a full disk (what is complete is kept)
"""


def add_arguments(sweep: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    sweep.add_argument("job", metavar="JOB.toml", help="data sets, settings, grid and seeds (docs/batch-jobs.md)")
    sweep.add_argument("--out", metavar="DIR", help="where the results go, and what is needed to go on")
    sweep.add_argument(
        "--resume", action="store_true", help="go on with the sweep in DIR (or start it, if there is none)"
    )
    where = sweep.add_mutually_exclusive_group()
    where.add_argument(
        "--workers", type=_positive, metavar="N", help="fits at the same time, in processes (default: 1, in this one)"
    )
    where.add_argument("--scheduler", metavar="ADDRESS", help="compute on the workers of this Dask scheduler")
    sweep.add_argument(
        "--dry-run",
        action="store_true",
        help="list the fits with predicted memory and time (from a few measured steps); compute and write nothing",
    )
    sweep.add_argument("--json", action="store_true", help="print one JSON object instead of the tables")
    sweep.add_argument("-q", "--quiet", action="store_true", help="no progress bar, no table")


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1; got {number}")
    return number


_positive.__name__ = "whole number"


def run(args: argparse.Namespace) -> int:
    """Run the command. Raises JobError for what the user has to change."""
    from dufs_core.cli.sweep.job_file import JobError, read_job

    job = read_job(args.job)
    if args.dry_run:
        return _dry_run(job, args)
    if args.out is None:
        raise JobError("sweep needs --out DIR, where results and the state of the fits are kept (or --dry-run)")
    return _sweep(job, args)


def _say(message: str) -> None:
    print(f"dufs-core: {message}", file=sys.stderr)


# --- sweep -----------------------------------------------------------------------------------------------------------


def _sweep(job: Any, args: argparse.Namespace) -> int:
    from dufs_core.cli.sweep import pool as spread
    from dufs_core.cli.sweep import runner as runner
    from dufs_core.cli.sweep.results import Store

    pool = None
    if args.scheduler is not None:
        pool = spread.cluster(args.scheduler)
    elif args.workers is not None and args.workers > 1:
        pool = spread.processes(args.workers)
    store = Store(args.out)
    document: dict[str, Any] = {}
    lines: list[str] = []

    def describe(report: Any) -> None:
        document.update(_document(report, store))
        if report.disk_full is None:
            lines.extend(_tables(job, store, document))

    with _Bar(len(job.fits), hidden=args.json or args.quiet or not sys.stderr.isatty()) as bar:
        report = runner.run(job, store, pool, args.resume, bar.update, describe)
    for fit, error in list(report.errors.items())[:5]:
        _say(f"fit {fit} failed: {error}")
    if report.failed > 5:
        _say(f"{report.failed - 5} more fits failed; the table has their errors")
    if args.json:
        print(json.dumps(document, allow_nan=False))
    elif not args.quiet:
        print("\n".join([*lines, _ending(report, store)]))
    again = f"dufs-core sweep {args.job} --out {args.out} --resume goes on"
    if report.disk_full is not None:
        _say(
            f"nothing more can be written to {store.directory} ({report.disk_full}): {report.done} of {len(job.fits)} "
            f"fits are complete and kept. Make room, then {again}"
        )
        return FAILED
    if report.cause is not None:
        _say(f"interrupted: {report.done} of {len(job.fits)} fits are done; {report.cause.rstrip('.')}. {again}")
        return INTERRUPTED
    return FAILED if report.failed or document["not_written"] else DONE


def _document(report: Any, store: Any) -> dict[str, Any]:
    return {
        "out": str(store.directory),
        "fits": report.done + report.failed + report.pending,
        "done": report.done,
        "failed": report.failed,
        "pending": report.pending,
        "resumed": report.resumed,
        "seconds": report.seconds,
        "interrupted": report.interrupted,
        "disk_full": report.disk_full,
        "errors": report.errors,
        "written": [],
        "not_written": None,
    }


def _tables(job: Any, store: Any, document: dict[str, Any]) -> list[str]:
    """Write the tables and pictures; returns the summary's lines.

    What could not be written is said, and in document["not_written"]; the fits are safe.
    """
    from dufs_core.cli.sweep import tables as table

    rows = table.rows(job, store.row)
    if not rows:
        return []
    fits = {fit.id: fit for fit in job.fits}
    summary = table.summary(job, rows, lambda identity: store.arrays(fits[identity])["support"])
    document["summary"] = summary

    def write(what: str, paths: Iterator[Path]) -> None:
        try:
            for path in paths:
                document["written"].append(str(path.relative_to(store.directory)))
        except OSError as error:
            document["not_written"] = f"{what}: {(error.strerror or str(error)).lower()}"
            _say(f"{what} in {store.directory} cannot all be written: {(error.strerror or str(error)).lower()}")

    write("the tables", _written_tables(store.directory, rows, summary))
    if find_spec("matplotlib") is not None and document["not_written"] is None:
        write("the plots", _pictures(job, store.directory / "plots", rows))
    return table.text(summary).splitlines()


def _written_tables(folder: Path, rows: Sequence[Any], summary: Sequence[Any]) -> Iterator[Path]:
    from dufs_core.cli.sweep import tables as table

    yield table.write(folder, "results", rows)
    yield table.write_csv(folder / "summary.csv", summary)


def _pictures(job: Any, folder: Path, rows: Sequence[Mapping[str, Any]]) -> Iterator[Path]:
    from dufs_core.cli.sweep import plots

    try:
        yield from plots.draw(folder, job, rows)
    except OSError:
        raise
    except Exception as error:  # a picture is not worth losing a sweep for
        _say(f"the plots could not be drawn: {error}")


def _ending(report: Any, store: Any) -> str:
    parts = [f"{report.done} done", *([f"{report.failed} FAILED"] if report.failed else [])]
    parts += [f"{report.pending} not computed"] if report.pending else []
    return f"\n{', '.join(parts)} in {report.seconds:.1f} s; results in {store.directory}"


class _Bar:
    """A progress bar on standard error, or nothing."""

    def __init__(self, total: int, hidden: bool) -> None:
        from tqdm import tqdm

        self._bar = tqdm(total=total, unit="fit", disable=hidden, smoothing=0.1)
        self._begun = False

    def update(self, over: int, failed: int, total: int) -> None:
        if not self._begun:
            self._bar.initial = self._bar.n = over  # the rate is of this job's fits
            self._begun = True
        self._bar.set_postfix(failed=failed, refresh=False)
        self._bar.update(over - self._bar.n)

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.close()


# --- dry run ---------------------------------------------------------------------------------------------------------


def _dry_run(job: Any, args: argparse.Namespace) -> int:
    from dufs_core.cli.sweep.estimate import predict

    workers = args.workers or 1
    predicted = predict(job, in_this_process=workers == 1 and args.scheduler is None)
    known = [p["seconds"] for p in predicted if p.get("seconds") is not None]
    total = sum(known) / workers if known else None
    if args.json:
        fits = [
            {"data": fit.data.name, "seed": fit.seed} | {name: fit.settings[name] for name in job.mentioned} | p
            for fit, p in zip(job.fits, predicted, strict=True)
        ]
        document = {
            "fits": fits, "seconds": total, "seconds_from": "a measured probe: steps of one run of max_iter steps",
            "not_counted": len(predicted) - len(known),
            "bytes": max((p["bytes"] for p in predicted if "bytes" in p), default=None), "workers": workers,
        }  # fmt: skip
        print(json.dumps(document, allow_nan=False))
        return DONE
    from dufs_core.cli.sweep.tables import text

    rows = [
        {"fit": fit.id, "data": fit.data.name, "seed": fit.seed}
        | {name: fit.settings[name] for name in job.mentioned}
        | ({"together": p["together"]} if any(p["together"] > 1 for p in predicted) else {})
        | {"memory": _memory(p.get("bytes")), "one run": _time(p.get("seconds"))}
        | ({"problem": p.get("error", "")} if any("error" in p for p in predicted) else {})
        for fit, p in zip(job.fits, predicted, strict=True)
    ]
    print(text(rows))
    uncounted = len(predicted) - len(known)
    left_out = f"; {uncounted} of the fits {'is' if uncounted == 1 else 'are'} not counted, no time is known for them"
    print(
        f"\n{len(job.fits)} fits, {_time(total)} with {workers} worker{'' if workers == 1 else 's'} if every fit is "
        f"one run of max_iter steps (the time of a step was measured on each data set); converged runs end sooner, and "
        f"with fdr none a search over max_runs runs takes as many times longer{left_out if uncounted else ''}"
    )
    return DONE


def _memory(count: int | None) -> str:
    return "?" if count is None else f"{count / 1e6:,.1f} MB"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
