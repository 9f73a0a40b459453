"""dufs-core sweep."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import Any

from dufs_core.cli.common import DONE, FAILED, UsageError, single_line

INTERRUPTED = 3
EXAMPLES = """\
examples:
  dufs-core sweep job.toml --dry-run
  dufs-core sweep job.toml --out result --resume --workers 4
  dufs-core sweep job.toml --out result --resume --scheduler tcp://node1:8786

exit codes: 0 done, 2 bad usage or input, 3 interrupted (--resume goes on), 1 anything else, such as fits that failed
"""


def add_arguments(sweep: argparse.ArgumentParser) -> None:
    sweep.add_argument("job", metavar="JOB.toml", help="data sets, settings, grid and seeds (docs/batch-jobs.md)")
    sweep.add_argument("--out", metavar="DIR", help="for the results, and the state of unfinished fits")
    sweep.add_argument("--resume", action="store_true", help="go on with the sweep in DIR, or start it")
    where = sweep.add_mutually_exclusive_group()
    where.add_argument("--workers", type=int, default=1, metavar="N", help="processes (default: 1, this one)")
    where.add_argument("--scheduler", metavar="ADDRESS", help="compute on the workers of this Dask scheduler")
    sweep.add_argument("--dry-run", action="store_true", help="list the fits and their memory; compute nothing")
    sweep.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    sweep.add_argument("-q", "--quiet", action="store_true", help="no progress bar, no counts")


def run(args: argparse.Namespace) -> int:
    """Run the command. Raises UsageError if the user has to change something."""
    from dufs_core.training.progress import stage

    shown = not args.quiet and sys.stderr.isatty()
    with stage(shown, f"reading {args.job}"):
        from dufs_core.cli.sweep import pool, results, runner
        from dufs_core.cli.sweep.job_file import read_job

        if args.workers < 1:
            raise UsageError(f"--workers must be at least 1; got {args.workers}")
        job = read_job(args.job)
    if args.dry_run:
        return _dry_run(job, args)
    if args.out is None:
        raise UsageError("sweep needs --out DIR for results and the state of the fits (or --dry-run)")
    if args.scheduler is not None:
        workers = pool.cluster(args.scheduler)
    else:
        workers = pool.processes(args.workers) if args.workers > 1 else pool.this_process()
    store = results.Store(args.out)
    report = runner.run(job, store, workers, args.resume, shown)
    if report.failed:
        _say(f"{report.failed} fits failed, the first by {report.first_error}; the table has their errors")
    if args.json:
        print(json.dumps({"out": str(store.directory), **asdict(report)}, allow_nan=False))
    elif not args.quiet:
        counts = f"{report.done} done, {report.failed} failed, {report.pending} not computed"
        print(f"{counts}, in {report.seconds:.1f} s; results in {single_line(store.directory)}/results.csv")
    kept = f"{report.done} of {report.fits} fits are complete and kept"
    again = f"dufs-core sweep {args.job} --out {args.out} --resume goes on"
    if report.stopped is not None:
        _say(f"the sweep stopped ({report.stopped}); {kept}. When that is mended, {again}")
        return FAILED
    if report.interrupted is not None:
        _say(f"interrupted: {kept}; {report.interrupted}. {again}")
        return INTERRUPTED
    return FAILED if report.failed else DONE


def _say(message: str) -> None:
    print(f"dufs-core: {single_line(message)}", file=sys.stderr)


def _dry_run(job: Any, args: argparse.Namespace) -> int:
    from dufs_core.cli.sweep.worker import predict

    predicted = predict(job.fits)
    rows = [fit.names() | {name: fit.settings[name] for name in job.varied} | predicted[fit.id] for fit in job.fits]
    if args.json:
        print(json.dumps({"fits": rows}, allow_nan=False))
        return DONE
    for row in rows:
        memory = row["error"] if "error" in row else f"{row['bytes'] / 1e6:,.1f} MB, {row['together']} together"
        settings = ", ".join(f"{name} {row[name]}" for name in ("seed", *job.varied))
        print(f"{row['id']}  {row['data']}, {settings}: {memory}")
    print(f"{len(rows)} fits; memory: the data, and one step of the fits computed together")
    return DONE
