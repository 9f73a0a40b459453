"""A batch in one call against a loop of calls."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from dufs_core.gradcheck.arrays import Array, largest, to_host
from dufs_core.gradcheck.problem import Function, Problem
from dufs_core.gradcheck.report import LOOP, Comparison, Report, Status


def check_batched(
    function: Function,
    backward: Function,
    inputs: Sequence[Any],
    *,
    shared: Collection[int] = (),
    name: str = "batched against looped",
    rtol: float = 1e-10,
    seed: int = 0,
) -> Report:
    """Compare one call of function and backward for all examples with calls for one example each.

    The examples lie along the first axis of every value and of every input but numbers and those whose positions are
    in `shared`, whose gradient is the sum over the examples. Each entry is compared relative to its array's largest.
    Arguments and result otherwise as in `check_gradient`, whose question (is it the gradient?) is not asked here.

    Raises ValueError where the inputs, or inputs and values, have not the same number of examples.
    """
    problem = Problem(function, backward, inputs, seed=seed)
    compared = [i for i in problem.active if i not in problem.nones]
    if problem.active and not compared:
        problem.note("the backward gives None for every input: there is no gradient to compare")
    if problem.mistakes:
        return Report(name, (), tuple(problem.mistakes))
    split = [number not in shared and np.ndim(x) > 0 for number, x in zip(problem.number, problem.inputs, strict=True)]
    batched = {w: x for w, x, each in zip(problem.where, problem.inputs, split, strict=True) if each}
    shapes = {w: np.shape(a) for w, a in batched.items()} | {
        f"value {k}": y.shape for k, y in enumerate(problem.values)
    }
    counts = {shape[:1] for shape in shapes.values()}
    if len(counts) != 1 or counts == {()}:
        raise ValueError(
            "inputs and values must have one number of examples along their first axis, and inputs without examples "
            "their positions in shared=[...]: got " + ", ".join(f"{w} {shape}" for w, shape in shapes.items())
        )
    values, gradients = list[list[Array]](), list[list[Array | None]]()
    for b in range(counts.pop()[0]):
        one = [x[b : b + 1] if each else x for x, each in zip(problem.inputs, split, strict=True)]
        values.append(problem.values_at(one))
        gradients.append(problem.gradients_at(one, [None if w is None else w[b : b + 1] for w in problem.cotangents]))
    comparisons = []
    for k, y in enumerate(problem.values if values else ()):
        looped = np.concatenate([to_host(one[k]) for one in values])
        comparisons.append(_compare(f"value {k}", y, looped, rtol))
    for i in compared if values else ():
        parts = [to_host(g[i]) for g in gradients]
        looped = np.concatenate(parts) if split[i] else np.sum(parts, axis=0)
        where = f"gradient of {problem.where[i]}" + ("" if split[i] else ", summed")
        comparisons.append(_compare(where, problem.gradients[i], looped, rtol))
    return Report(name, tuple(comparisons), tuple(problem.mistakes), nothing="there are no examples")


def _compare(where: str, together: Array, looped: Any, rtol: float) -> Comparison:
    """The entry that differs most."""
    together = to_host(together)
    if not together.size:
        return Comparison(where, "passed", 0.0, 0.0, 0.0, rtol, 0.0, LOOP)
    size, gap = largest(np, together), np.abs(looped - together)
    worst = np.unravel_index(int(np.argmax(gap)), gap.shape)
    error = float(gap[worst]) / (size or 1.0)
    in_batch, alone = (float(np.abs(a[worst]) if np.iscomplexobj(a) else a[worst]) for a in (together, looped))
    status: Status = "passed" if error <= rtol else "failed"
    where = f"{where} {tuple(map(int, worst))}"
    return Comparison(where, status, in_batch, alone, error, rtol, 0.0, LOOP, size=size)
