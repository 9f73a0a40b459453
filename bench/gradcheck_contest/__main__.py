"""Checkers of gradients on the same right and faulty backwards: faults found, false alarms, seconds.

    python -m bench.gradcheck_contest [--quick] [--only TEXT] [--again] [--json FILE]

The backwards are those of 26 functions (functions.py, faults.toml) and of the operations of this library
(bench/faults.toml). A fault counts where it is shown to be one: at one of the points, all of which are smooth there,
the true derivative, by differences of numbers of 100 digits (for the library by a complex step of another formula),
is not what the faulty backward gives. It is found where a checker objects at one of the points at which it does not
object to the right backward. Objecting to the right backward is a false alarm, at a kink as well: there a checker may
say that there is one. Points where rounding alone spoils the right backward by more than 1e-10 are left out.

Every checker runs with its own defaults; torch and jax call the same NumPy code from an autograd.Function and from a
custom_vjp. All is seeded. With FILE every part is kept as it ends, and a second call goes on from there.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Iterator

import numpy as np

from bench.common import Records, markdown, parser
from bench.gradcheck_contest.checkers import CHECKERS, Checker
from bench.gradcheck_contest.judging import Record, trial, truth
from bench.gradcheck_contest.library import Operations, modules
from bench.gradcheck_contest.planted import Functions
from bench.gradcheck_contest.points import NAMES
from bench.gradcheck_contest.problem import Contestants

TRUTH = "truth"
OURS = "dufs_core.gradcheck"
HEADER = (
    "checker", "functions: large faults found", "small", "operations of this library: large", "small",
    "false alarms", "at kinks", "says kink where there is none", "at kinks", "no answer", "seconds: right", "faulty",
)  # fmt: skip


def contestants(quick: bool, only: str) -> Iterator[Contestants]:
    yield from (Functions(name, 2 if quick else 13) for name in NAMES if only in name)
    yield from (Operations(module, 4 if quick else 24) for module in modules() if only in module)


def installed() -> dict[str, Checker]:
    """The checkers that can be loaded; the others are named."""
    loaded = {}
    for name, load in CHECKERS.items():
        try:
            loaded[name] = load()
        except ModuleNotFoundError as error:
            print(f"{name}: left out, {error}", flush=True)
    return loaded


def table(records: list[Record]) -> str:
    """One line for each checker."""
    known = {r["group"]: r for r in records if r["checker"] == TRUTH}
    lines = []
    for name in CHECKERS:
        mine = [(r, known[r["group"]]) for r in records if r["checker"] == name]
        cells = [name]
        for library, large in ((False, True), (False, False), (True, True), (True, False)):
            found = [
                bool(where)
                for r, true in mine
                for fault, where in r["found"].items()
                if ("." in r["group"]) == library and true["faults"][fault]["large"] == large
            ]
            cells.append(f"{sum(found)} of {len(found)}")
        said = Counter(
            (word, label in true["kinks"]) for r, true in mine for word in r["said"] for label in r["said"][word]
        )
        cells += [str(said[word, at_kink]) for word in ("wrong", "kink") for at_kink in (False, True)]
        cells.append(str(said["raised", False] + said["raised", True]))
        lines.append(cells + [f"{sum(r['seconds'][part] for r, _ in mine):.1f}" for part in (0, 1)])
    return markdown(HEADER, lines)


def main(argv: list[str] | None = None) -> int:
    """Every checker that is installed on everything that FILE does not have yet."""
    p = parser(__doc__)
    p.add_argument("--quick", action="store_true", help="few points")
    p.add_argument("--only", default="", metavar="TEXT", help="only functions and modules whose name contains TEXT")
    p.add_argument("--again", action="store_true", help="this library's checker again, the others as FILE has them")
    args = p.parse_args(argv)
    records = Records(args.json, lambda record: (record["group"], record["checker"]), table)
    if args.again:
        records.kept = {key: record for key, record in records.kept.items() if key[1] != OURS}
    checkers = installed()
    for group in contestants(args.quick, args.only):
        for name, run in {TRUTH: None, **checkers}.items():
            if (group.name, name) in records.kept:
                continue
            known = records.kept.get((group.name, TRUTH), {})
            with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
                found = truth(group) if run is None else trial(group, run, known)
            records.kept[group.name, name] = {"group": group.name, "checker": name, **found}
            records.save()
        print(group.name, flush=True)
    print(records.table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
