"""One package asked the questions of the comparison, in the interpreter that has it.

    python -m bench.comparison.probes PACKAGE inputs|recovery|memory

prints one JSON list of records: question, method, answer (what the page says), ran, came_back.
`memory` is a process of its own, for the peak of resident memory never falls.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
import time
import warnings
from importlib import import_module
from importlib.util import find_spec
from statistics import median
from typing import Any

import numpy as np

from bench.comparison.peers import SELECTORS, Select, Selection
from dufs_core.datasets import two_moons

LONG = "as in its experiments"  # some 12 s a fit: for `recovery` alone
Outcome = Selection | str


def attempt(select: Select, X: Any, k: int = 2, seed: int = 0) -> Outcome:
    """The selection, or the exception as text."""
    try:
        return select(X, k, seed)
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"


def shown(outcome: Outcome) -> str:
    """What came back, short."""
    if isinstance(outcome, str):
        return outcome[:160]
    text = f"columns {outcome.selected}"
    if outcome.scores is not None:
        with np.printoptions(precision=3, suppress=True, linewidth=200):
            text += f", scores {np.asarray(outcome.scores)}"
    return text[:220]


def refused_or(outcome: Outcome, answer: str) -> str:
    """The answer for a selection; of an exception what it is: a ValueError, or something else that broke inside."""
    return f"raises {outcome.split(':')[0]}" if isinstance(outcome, str) else answer


def answer(kind: str, outcome: Outcome, plain: Outcome) -> str:
    """What the page says of an outcome on changed data, in which column 5 is the changed one if one is."""
    if isinstance(outcome, str):
        return refused_or(outcome, "")
    finite = outcome.scores is None or bool(np.isfinite(outcome.scores).all())
    same = not isinstance(plain, str) and set(outcome.selected) == set(plain.selected)
    chosen = 5 in outcome.selected
    if kind == "missing":
        return f"no error; selects {'that column' if chosen else 'others'}" if finite else "no error; scores not finite"
    if kind == "same":
        return "works" if isinstance(plain, str) else "same columns" if same else "other columns"
    if kind == "constant":
        return "score not finite" if not finite else "selected" if chosen else "not selected"
    if kind == "scale":
        return "same columns" if same else "selects it" if chosen else "other columns"
    return "works" if finite else "scores not finite"


def sparse(X: Any) -> Any:
    """A CSR matrix, or None where SciPy is not among what the package brings."""
    return import_module("scipy.sparse").csr_matrix(X) if find_spec("scipy") else None


def frame(X: Any) -> Any:
    """A frame with names a to j, or None where pandas is not among what the package brings."""
    return import_module("pandas").DataFrame(X, columns=list("abcdefghij")) if find_spec("pandas") else None


def variants() -> list[tuple[str, str, Any, str]]:
    """Question, what is changed about the two moons (100 x 10, k = 2), the changed X, the kind of its `answer`."""
    X = two_moons(100, 10).X

    def changed(value: Any, row: Any = slice(None)) -> Any:
        Y = X.copy()
        Y[row, 5] = value
        return Y

    doubled = X.copy()
    doubled[:50] = doubled[0]
    return [
        ("constant column", "X[:, 5] = 0.3", changed(0.3), "constant"),
        ("NaN", "X[3, 5] = nan", changed(np.nan, 3), "missing"),
        ("infinity", "X[3, 5] = inf", changed(np.inf, 3), "missing"),
        ("sparse X", "csr_matrix(X)", sparse(X), "same"),
        ("half of the rows equal", "X[:50] = X[0]", doubled, "works"),
        ("one column of huge scale", "X[:, 5] *= 1e6", changed(X[:, 5] * 1e6), "scale"),
        ("three rows", "X[:3]", X[:3], "works"),
        ("integers", "np.round(100 * X).astype(int)", np.round(100 * X).astype(int), "same"),
        ("float32", "X.astype(np.float32)", X.astype(np.float32), "same"),
        ("DataFrame", "pandas.DataFrame(X, columns=a..j)", frame(X), "same"),
    ]


def record(question: str, method: str, answer: str, ran: str, came_back: str) -> dict[str, str]:
    return {"question": question, "method": method, "answer": answer, "ran": ran, "came_back": came_back}


def inputs(methods: dict[str, Select]) -> list[dict[str, str]]:
    """Every change of the input, asked of every method."""
    X, records = two_moons(100, 10).X, []
    for method, select in methods.items():
        if method == LONG:
            continue

        def add(question: str, said: str, ran: str, came_back: str, method: str = method) -> None:
            records.append(record(question, method, said, ran, came_back))

        plain = attempt(select, X.copy())
        add("fits", refused_or(plain, "yes"), "two moons, 100 x 10, k = 2", shown(plain))
        if isinstance(plain, str):
            continue
        for question, ran, Y, kind in variants():
            if Y is None:
                add(question, "not asked: not among its requirements", ran, "no such package here")
            else:
                outcome = attempt(select, Y.copy())
                add(question, answer(kind, outcome, plain), ran, shown(outcome))
        again = attempt(select, X.copy())
        same = not isinstance(again, str) and again.selected == plain.selected
        same = same and (plain.scores is None or np.array_equal(again.scores, plain.scores, equal_nan=True))
        add("same seed, same result", "yes" if same else "no", "twice, seed 0", shown(again))
        for k in (1, 3):
            found = attempt(select, X.copy(), k)
            count = 0 if isinstance(found, str) else len(set(found.selected))
            got = refused_or(found, "yes" if count == k else f"gives {count}")
            add(f"k = {k} gives {k} columns", got, f"k = {k}", shown(found))
        Y = X.copy()
        attempt(select, Y)
        kept, change = np.array_equal(X, Y), f"largest change {np.abs(X - Y).max():.3g}"
        add("X as it was afterwards", "yes" if kept else "no, overwritten", "X before and after", change)
        Y.flags.writeable = False
        outcome = attempt(select, Y)
        add("read-only X", answer("works", outcome, plain), "X.flags.writeable = False", shown(outcome))
    return records


def recovery(methods: dict[str, Select]) -> list[dict[str, str]]:
    """Two moons: of seeds 0 to 9, how often exactly columns 0 and 1; seconds of a fit. Columns scaled beforehand."""
    records = []
    for method, select in methods.items():
        if LONG in methods and method != LONG:
            continue
        for d in (10, 50):
            found, times = 0, []
            for seed in range(10):
                X = two_moons(100, d, random_state=seed).X
                X = (X - X.mean(axis=0)) / X.std(axis=0)
                start = time.perf_counter()
                outcome = attempt(select, X, 2, seed)
                times.append(time.perf_counter() - start)
                found += not isinstance(outcome, str) and set(outcome.selected) == {0, 1}
                if isinstance(outcome, str) or sum(times) > 55:
                    break
            ran = f"two_moons(100, {d}), {len(times)} seeds, columns scaled, k = 2"
            often, took = f"{found} of {len(times)}", f"{min(times):.3g} to {max(times):.3g} s"
            moons = (f"two moons found, 100 x {d}", method, refused_or(outcome, often), ran, f"last: {shown(outcome)}")
            seconds = (f"seconds, 100 x {d}", method, refused_or(outcome, f"{median(times):.2g}"), ran, took)
            records += [record(*moons), record(*seconds)]
    return records


def late(*_: Any) -> None:
    """A handler of SIGALRM."""
    raise TimeoutError("the fit was ended after 100 s")


def memory(methods: dict[str, Select]) -> list[dict[str, str]]:
    """Rise of the peak of resident memory in the first method's fit of 5000 x 50, after one of 50 x 10."""
    method, select = next(iter(methods.items()))
    attempt(select, two_moons(64, 10).X)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    signal.signal(signal.SIGALRM, late)
    signal.alarm(100)
    outcome = attempt(select, two_moons(5000, 50).X)
    signal.alarm(0)
    took = time.perf_counter() - start
    rise = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    ran = "two_moons(5000, 50), k = 2, after one small fit"
    said = refused_or(outcome, f"{rise:.0f} MiB")
    if said == "raises TimeoutError":
        said = f"{rise:.0f} MiB, not finished in 100 s"
    return [record("memory, 5000 x 50", method, said, ran, f"{took:.3g} s; {shown(outcome)}")]


def main() -> None:
    name, part = sys.argv[1:]
    warnings.simplefilter("ignore")
    methods = SELECTORS[name]()
    print(json.dumps({"inputs": inputs, "recovery": recovery, "memory": memory}[part](methods)))


if __name__ == "__main__":
    main()
