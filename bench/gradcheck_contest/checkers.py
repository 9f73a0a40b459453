"""The checkers, each with its own defaults: (problem) -> Verdict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from bench.gradcheck_contest.problem import Array, Problem, tuple_of
from dufs_core.gradcheck import check_gradient


class Verdict(NamedTuple):
    word: str  # "passed", "wrong", "kink", "raised"
    message: str = ""


Checker = Callable[[Problem], Verdict]


def ours() -> Checker:
    def check(problem: Problem) -> Verdict:
        report = check_gradient(problem.function, problem.backward, problem.inputs)
        return Verdict({"failed": "wrong"}.get(report.status, report.status), report.message())

    return check


def central_difference() -> Checker:
    """Every coordinate by (f(x + h) - f(x - h)) / 2h, h = 1e-6, with np.allclose at rtol 1e-3, as in many tests."""
    h = 1e-6

    def check(problem: Problem) -> Verdict:
        rng = np.random.default_rng(0)
        w = [rng.standard_normal(y.shape) for y in tuple_of(problem.function(*problem.inputs))]

        def value(i: int, x: Array) -> float:
            values = problem.function(*problem.inputs[:i], x, *problem.inputs[i + 1 :])
            return sum(float(np.sum(c * y)) for c, y in zip(w, tuple_of(values), strict=True))

        for i, (x, g) in enumerate(zip(problem.inputs, problem.backward(*problem.inputs, *w), strict=True)):
            numeric = np.zeros(x.shape)
            for place in np.ndindex(*x.shape):
                step = np.zeros(x.shape)
                step[place] = h
                numeric[place] = (value(i, x + step) - value(i, x - step)) / (2 * h)
            if np.shape(g) != x.shape or not np.allclose(numeric, g, rtol=1e-3):
                return Verdict("wrong", f"input {i}: {numeric} and {g}")
        return Verdict("passed")

    return check


def torch_gradcheck(fast: bool) -> Checker:
    import torch
    from torch.autograd.gradcheck import GradcheckError

    def pair(problem: Problem) -> Any:
        class Pair(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *xs: Any) -> Any:
                ctx.save_for_backward(*xs)
                values = problem.function(*(x.detach().numpy() for x in xs))
                return tuple(map(torch.tensor, values)) if isinstance(values, tuple) else torch.tensor(values)

            @staticmethod
            def backward(ctx: Any, *w: Any) -> Any:
                gradients = problem.backward(*(x.detach().numpy() for x in (*ctx.saved_tensors, *w)))
                return tuple(torch.tensor(np.array(g)) for g in gradients)

        return Pair.apply

    def check(problem: Problem) -> Verdict:
        inputs = tuple(torch.tensor(x, requires_grad=True) for x in problem.inputs)
        try:
            torch.autograd.gradcheck(pair(problem), inputs, fast_mode=fast)
        except GradcheckError as error:
            return Verdict("wrong", str(error))
        return Verdict("passed")

    return check


def jax_check_grads() -> Checker:
    import jax
    from jax.test_util import check_grads

    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_platforms", "cpu")

    place: list[Problem] = []  # one callback for all problems: it is compiled once for every shape

    def forward(*xs: Any) -> Any:
        return place[0].function(*map(np.asarray, xs))

    def backward(*args: Any) -> Any:
        return place[0].backward(*map(np.asarray, args))

    def like(arrays: Any) -> Any:
        return jax.tree.map(lambda a: jax.ShapeDtypeStruct(np.shape(a), np.float64), arrays)

    def check(problem: Problem) -> Verdict:
        place[:] = [problem]
        values = like(problem.function(*problem.inputs))
        pair = jax.custom_vjp(lambda *xs: jax.pure_callback(forward, values, *xs))

        def gradients(xs: Any, w: Any) -> Any:
            return jax.pure_callback(backward, like(problem.inputs), *xs, *tuple_of(w))

        pair.defvjp(lambda *xs: (pair(*xs), xs), gradients)
        try:
            check_grads(pair, problem.inputs, order=1, modes=["rev"])
        except AssertionError as error:
            return Verdict("wrong", str(error))
        return Verdict("passed")

    return check


CHECKERS: dict[str, Callable[[], Checker]] = {
    "dufs_core.gradcheck": ours,
    "torch gradcheck": lambda: torch_gradcheck(False),
    "torch gradcheck, fast": lambda: torch_gradcheck(True),
    "jax check_grads": jax_check_grads,
    "central difference": central_difference,
}


def verdict(checker: Checker, problem: Problem) -> Verdict:
    """What the checker says; what else it raises is an answer as well."""
    with np.errstate(all="ignore"):
        try:
            return checker(problem)
        except Exception as error:
            return Verdict("raised", f"{type(error).__name__}: {error}")
