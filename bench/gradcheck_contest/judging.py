"""What is true at every point, and what a checker says about it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.gradcheck_contest.checkers import Checker, Verdict, verdict
from bench.gradcheck_contest.problem import RIGHT, Contestants, Problem, tuple_of

KINK = 1e-12  # relative difference of the slopes on both sides that makes a kink
RIGHTLY = 1e-10  # the right backward's own error, relative to its size, above which a point is left out
FAULTY = 1e-9  # relative error of a coordinate that shows a fault
LARGE = 0.01  # of the gradient's largest coordinate: the error that makes a fault a large one
Record = dict[str, Any]


def weights(problem: Problem) -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    return tuple(rng.standard_normal(np.shape(y)) for y in tuple_of(problem.function(*problem.inputs)))


def kind_of_point(group: Contestants, label: str, problem: Problem) -> str:
    """ "smooth", "kink" or "left out", by the slopes along a random direction."""
    rng, w = np.random.default_rng(1), weights(problem)
    v = tuple(rng.standard_normal(x.shape) * (np.abs(x).max(initial=0.0) or 1.0) for x in problem.inputs)
    left, right = group.slopes(label, w, v)
    products = [g * u for g, u in zip(problem.backward(*problem.inputs, *w), v, strict=True)]
    size = max(abs(left), abs(right), float(np.sqrt(sum(np.sum(p * p) for p in products))))
    if abs(right - left) > KINK * size:
        return "kink"
    return "smooth" if abs(float(sum(np.sum(p) for p in products)) - left) <= RIGHTLY * size else "left out"


def true_gradients(group: Contestants, label: str, problem: Problem) -> list[Any]:
    w, gradients = weights(problem), [np.zeros(x.shape) for x in problem.inputs]
    for i, x in enumerate(problem.inputs):
        for place in np.ndindex(*x.shape):
            v = [np.zeros(u.shape) for u in problem.inputs]
            v[i][place] = 1.0
            gradients[i][place] = group.slopes(label, w, tuple(v))[0]
    return gradients


def error(problem: Problem, right: list[Any]) -> tuple[float, str]:
    """The largest error of the backward, relative to the gradient's largest coordinate, and a place where it shows, in
    words; (0.0, "") if it is right.
    """
    try:
        w = weights(problem)
        inputs, cotangents = ([a.copy() for a in arrays] for arrays in (problem.inputs, w))
        gradients = problem.backward(*inputs, *cotangents)
    except Exception as reason:
        return np.inf, f"raises {type(reason).__name__}"
    if not all(map(np.array_equal, (*inputs, *cotangents), (*problem.inputs, *w))):
        return np.inf, "an input or a cotangent is written to"
    size, words = 0.0, ""
    for i, (g, true) in enumerate(zip(gradients, right, strict=True)):
        if np.shape(g) != true.shape:
            return np.inf, f"input {i}: shape {np.shape(g)} for {true.shape}"
        off, largest = np.abs(g - true), np.abs(true).max(initial=0.0)
        wrong = ~(off <= FAULTY * np.maximum(np.abs(true), 1e-3 * largest))
        if wrong.any():
            place = tuple(int(k) for k in np.argwhere(wrong)[0])
            words = words or f"input {i} {place}: {np.asarray(g)[place]:.12g}, truly {true[place]:.12g}"
            size = max(size, float(np.nan_to_num(np.max(off) / largest, nan=np.inf)))
    return size, words


def truth(group: Contestants) -> Record:
    """What kind of point every one is; where every fault shows, and whether its error is large anywhere."""
    with group.planted(RIGHT) as problem:
        points = {label: kind_of_point(group, label, problem(label)) for label in group.labels()}
        smooth = [label for label in group.trials() if points[label] == "smooth"]
        right = {label: true_gradients(group, label, problem(label)) for label in smooth}
        smooth = [label for label in smooth if not error(problem(label), right[label])[1]]
    faults = {}
    for fault in group.faults:
        with group.planted(fault) as problem:
            errors = {label: error(problem(label), right[label]) for label in smooth}
        where = next((f"{label}: {words}" for label, (_, words) in errors.items() if words), "")
        faults[fault] = {"shown": where, "large": max(size for size, _ in errors.values()) >= LARGE}
    kinks, left_out = ([label for label, kind in points.items() if kind == word] for word in ("kink", "left out"))
    return {"points": len(points), "kinks": kinks, "left_out": left_out, "faults": faults}


def trial(group: Contestants, check: Checker, known: Record) -> Record:
    """One checker on everything of one function."""
    start, verdicts = time.perf_counter(), {}
    with group.planted(RIGHT) as problem:
        for label in group.labels():
            if label not in known["left_out"]:
                verdicts[label] = verdict(check, problem(label))
    middle, found = time.perf_counter(), {}
    for fault in (fault for fault, about in known["faults"].items() if about["shown"]):
        with group.planted(fault) as problem:
            found[fault] = first_objection(group.trials(), verdicts, check, problem)
    said: dict[str, list[str]] = {word: [] for word in ("kink", "wrong", "raised")}
    for label, answer in verdicts.items():
        if answer.word != "passed":
            said[answer.word].append(label)
    seconds = [round(middle - start, 3), round(time.perf_counter() - middle, 3)]
    first = next((f"{label}: {v.message[:400]}" for label, v in verdicts.items() if v.word == "wrong"), "")
    return {"points": len(verdicts), "said": said, "first": first, "found": found, "seconds": seconds}


def first_objection(
    labels: list[str], right: dict[str, Verdict], check: Checker, problem: Callable[[str], Problem]
) -> str:
    for label in labels:
        before = right[label].word if label in right else "left out"
        if before in ("passed", "kink") and verdict(check, problem(label)).word in ("wrong", "raised"):
            return label
    return ""
