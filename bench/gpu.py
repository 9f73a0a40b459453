"""Everything that needs a GPU, in one command that fits the minutes for which a card is lent.

python -m bench.gpu [--minutes M] [--only SLICE ...] --json FILE

Slices are taken in the order of what would be missed most. Every number is written to FILE as soon as it is there, and
a table of what must be shown, with target and measured value, beside it with the ending .md. What would not fit into
the minutes left is skipped by name; the next call takes it, and then what failed. FILE keeps the numbers of other cards
and of other states of the code apart. Every slice has a process of its own, which is ended where it hangs.

Exit codes: 0; 1 where a test or a measurement failed; 2 without a GPU, with the cause.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from bench import gpu_report
from bench.common import Records
from bench.gpu_slices import SLICES, area_fingerprint, card, files, fingerprint
from dufs_core.backend import get_backend
from dufs_core.errors import BackendUnavailableError

START = 30.0  # seconds for a process to begin with nothing compiled
CODE = ("dufs_core/**/*.py", "kernels/*.*")
clock = time.monotonic


def serve(pipe: Any) -> None:
    """The process of a Worker: answers, and whether the next call is safe, for an error may have broken the device."""
    os.setsid()  # ended together with what it starts
    with suppress(EOFError):
        while True:
            function, arguments = pipe.recv()
            try:
                said, goes_on = {"found": function(*arguments)}, True
            except Exception as error:
                line = (str(error).strip().splitlines() or [""])[0]
                said, goes_on = {"failed": f"{type(error).__name__}: {line}"}, isinstance(error, ImportError)
            pipe.send((said, goes_on))


class Worker:
    """A process that calls functions, one after the other; a new one after a call that failed or took too long."""

    def __init__(self) -> None:
        self._process: Any = None

    def ask(self, seconds: float, function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
        """{"found": what the function returned} or {"failed": why it did not}, with "late" where it took too long."""
        if self._process is None:
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=serve, args=(theirs,))
            self._process.start()
            theirs.close()
        said, goes_on = {"failed": f"ended after {seconds:.0f} s", "late": True}, False
        try:
            self._pipe.send((function, arguments))
            if self._pipe.poll(seconds):
                said, goes_on = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(10)
            said = {"failed": f"its process ended with {self._process.exitcode}"}
        if not goes_on:
            self.end()
        return said

    def end(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()
            self._process.join()
            self._process = None


def measured(name: str, case: tuple[Any, ...]) -> Any:
    return SLICES[name].measure(get_backend("cupy"), *case)


def key(record: dict[str, Any]) -> tuple[Any, ...]:
    return (record["card"], record["code"], record["slice"], *record["case"])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=math.inf, metavar="M", help="that this call may take")
    parser.add_argument("--only", nargs="+", choices=SLICES, default=list(SLICES), metavar="SLICE")
    parser.add_argument("--json", metavar="FILE", required=True)
    args = parser.parse_args(arguments)
    end = clock() + 60 * args.minutes
    try:
        about = {"card": card(get_backend("cupy"))["name"], "code": fingerprint(files(CODE))}
    except BackendUnavailableError as error:
        print(f"bench.gpu measures on a GPU only, and there is none to use: {error}", file=sys.stderr)
        return 2
    skipped: dict[tuple[Any, ...], str] = {}

    def present() -> dict[tuple[Any, ...], dict[str, Any]]:
        return {key(r)[2:]: r for r in records.kept.values() if about.items() <= r.items()}

    def save() -> None:
        records.save(skipped={gpu_report.label(*case): why for case, why in skipped.items()})

    records = Records(args.json, key, lambda _: gpu_report.tables(present(), skipped))
    passed = {r["found"]["of"] for r in records.kept.values() if r.get("found", {}).get("failed") == 0}
    todo = []
    for name in args.only:
        cases = list(SLICES[name].cases.items())
        if name == "tests":  # first what has not passed as it is now
            cases.sort(key=lambda item: area_fingerprint(item[0][0]) in passed)
        todo += [(name, case, seconds) for case, seconds in cases if "found" not in present().get((name, *case), {})]
    todo.sort(key=lambda item: (item[0], *item[1]) in present())  # what failed comes last
    worker, at = Worker(), ""
    try:
        for name, case, seconds in todo:
            left = end - clock()
            if seconds > left:
                skipped[name, *case] = f"skipped: it may take {seconds:g} s, {max(left, 0):.0f} s are left"
                print(f"{gpu_report.label(name, *case)}: {skipped[name, *case]}", flush=True)
                continue
            if name != at:
                worker.end()
                at = name
            start = clock()
            said = worker.ask(min(3 * seconds + START, left), measured, name, case)
            if said.pop("late", False) and clock() >= end:
                skipped[name, *case] = "skipped: the minutes were over before it ended"
            else:
                records.add(about | {"slice": name, "case": case, "seconds": round(clock() - start, 1)} | said)
            save()
    finally:
        worker.end()
        save()
    print(records.table)
    wrong = [r for r in present().values() if "failed" in r or (r["slice"] == "tests" and r["found"]["failed"])]
    return 1 if wrong else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that its processes end and leave the card
    sys.exit(main())
