"""Mistakes that must not pass, and messages that are true and say what to do."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

from dufs_core.gradcheck import Constant, assert_gradient, check_batched, check_complex_step, check_gradient
from tests.generators import product, product_backward, square, square_backward

rng = np.random.default_rng
X, W = rng(0).standard_normal((4, 3)), rng(1).standard_normal((3, 2))
A = rng(2).standard_normal((4, 4))
S = A @ A.T + np.eye(4)


def nothing(*args):
    """A backward whose `return` was forgotten."""


# --- what must not pass -----------------------------------------------------------------------------------------------

NOT_CONFIRMED = {
    "one gradient of two": (product, lambda x, w, y: y @ w.T, [X, W], "gives 1 gradient for 2 inputs"),
    "no return": (product, nothing, [X, W], "gives None for 2 inputs"),
    "no return, one input": (square, nothing, [X], "input 0 has the gradient None, but the function changes with it"),
    "None": (product, lambda x, w, y: (None, x.T @ y), [X, W], "input 0 has the gradient None, but"),
    "left out of a dict": (lambda p: p["a"] ** 2, lambda p, w: {}, [{"a": X}], "input 0['a'] has the gradient None"),
    "a list for one input": (lambda p: p[0] * p[1], lambda p, w: [p[1] * w, p[0] * w], [[X, X]], r"in a tuple: (g,)"),
    "arguments in the wrong order": (np.tanh, lambda w, x: w / np.cosh(x) ** 2, [X], "worst coordinate"),
}


@pytest.mark.parametrize("case", NOT_CONFIRMED)
def test_what_is_not_confirmed(case):
    function, backward, inputs, words = NOT_CONFIRMED[case]
    report = check_gradient(function, backward, inputs)
    assert report.status == "failed"
    assert words in report.message()


def test_nothing_compared_is_not_confirmed():
    assert not check_gradient(square, square_backward, [X], directions=0, every_coordinate=0)
    assert not check_complex_step(square, nothing, [X])
    assert not check_batched(square, nothing, [X])
    for x in (np.arange(3), np.zeros((0, 3)), Constant(X)):
        report = check_gradient(lambda x: np.sum(x) * 1.0, lambda x: None, [x])
        assert report
        assert "nothing to compare, no input is a floating-point array with entries" in report.message()


def test_none_and_constant():
    """None says that the function does not depend on an input, which is checked; a Constant is not looked at."""
    mask = (X > 0) * 1.0

    def backward(x, mask, w):
        return w * mask, None

    assert "1 input" not in check_gradient(np.multiply, backward, [X, mask]).message()
    for check in (assert_gradient, check_complex_step):
        assert check(np.multiply, backward, [X, Constant(mask)])
        assert check(lambda x, unused: x**2, lambda x, unused, w: (2 * x * w, None), [X, rng(3).random(5)])
    assert check_batched(np.multiply, backward, [X, Constant(mask)])
    rounds = check_gradient(lambda x, k: x[k.astype(int)], lambda x, k, w: (w, None), [X[:3, 0], np.arange(3.0)])
    assert rounds.status == "kink"
    assert "what is passed as Constant(x) is not: input 1" in rounds.message()


# --- what is refused --------------------------------------------------------------------------------------------------

REFUSED = {
    "not in a list": (square, square_backward, X[:1], {}, r"inputs must be a list, \[x\].*: got a ndarray"),
    "a dict": (product, product_backward, {"x": X, "w": W}, {}, "inputs must be a list, .*got a dict"),
    "no inputs": (lambda: 1.0, lambda: (), [], {}, "inputs must be a list .*got 0 entries"),
    "project of no input": (
        square,
        square_backward,
        [X],
        {"project": {5: lambda v: v}},
        "by number of the input, 0 to 0: got .5",
    ),
    "no projection": (
        square,
        square_backward,
        [A],
        {"project": {0: lambda v: v + v.T}},
        "changes what it has projected",
    ),
    "another shape": (square, square_backward, [A], {"project": {0: lambda v: v[0]}}, r"shape \(4,\) for \(4, 4\)"),
    "project is a function": (square, square_backward, [A], {"project": lambda v: v}, "project must be a dict"),
    "cotangents": (square, square_backward, [X], {"cotangents": X}, "cotangents must be a list"),
    "a cotangent's shape": (square, square_backward, [X], {"cotangents": [W]}, r"shape \(3, 2\), .* value \(4, 3\)"),
    "scales": (product, product_backward, [X, W], {"scales": [1.0]}, "scales must be a list .*got 1 entries for 2"),
    "no cotangent": (square, lambda x: 2 * x, [X], {}, r"called with \(input 0, cotangent 0\) .*: too many positional"),
    "a cotangent": (lambda x: x.sum(), square_backward, [X], {}, r"called with \(input 0\) \(.* none if .*missing"),
    "no wanted": (product, product_backward, [X, W], {"subsets": True}, "unexpected keyword argument 'wanted'"),
    "f(x)": (square(X), square_backward, [X], {}, r"must be a function, f and not f\(x\): got a ndarray"),
    "f without return": (nothing, square_backward, [X], {}, "returns no value: is its `return` missing"),
    "a string": (lambda x: (x, "info"), square_backward, [X], {}, "value 1 of the function is <U4"),
    "Series": (square, square_backward, [pd.Series([1.0, 2.0])], {}, r"Series of pandas: .*\.to_numpy\(\)"),
    "DataFrame": (square, square_backward, [pd.DataFrame(X)], {}, r"DataFrame of pandas: .*\.to_numpy\(\)"),
    "objects": (square, square_backward, [X.astype(object)], {}, r"\.astype\(float\)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_advice(case):
    function, backward, inputs, options, words = REFUSED[case]
    with pytest.raises((TypeError, ValueError), match=words):
        check_gradient(function, backward, inputs, **options)


@pytest.mark.parametrize("function", [np.abs, lambda x: float((x * x).sum().real)])
def test_a_complex_step_that_loses_its_imaginary_part(function):
    with pytest.raises(TypeError, match="real at complex inputs, as after abs"):
        check_complex_step(function, lambda x, *w: x, [X])


def test_a_list_is_no_array():
    report = check_gradient(np.square, lambda x, w: 2 * np.asarray(x) * w, [[1.0, 2.0]])
    assert "input 0: a ndarray in the place of a list): nest it alike, or give np.array(x)" in report.message()


# --- what is printed --------------------------------------------------------------------------------------------------


def test_the_numbers_are_those_of_the_gradients_entry():
    report = check_gradient(lambda x: float((x**2).sum()), lambda x: 3 * x, [np.array([1.0, 10.0, 100.0])])
    assert re.search(
        r"coordinate \(2,\): the backward gives 300, finite differences give (200|199.9|200.0)", str(report)
    )
    entries = {c.where: c.analytic for c in report.comparisons if "coordinate" in c.where}
    assert list(entries.values()) == pytest.approx([3, 30, 300], rel=1e-14)
    assert "input 0: the backward gives 2, finite" in check_gradient(lambda a: a, lambda a: 2.0, [4.0]).message()


def test_every_wrong_input_is_named():
    p, h = {"W": W, "b": rng(3).random(2)}, rng(4).random((4, 2))

    def function(p, x, h):
        return np.tanh(x @ p["W"] + p["b"]) * h

    def backward(p, x, h, w):
        y = np.tanh(x @ p["W"] + p["b"])
        dz = w * h * (1 - y**2)
        return {"W": 2 * x.T @ dz, "b": dz.sum(axis=0)}, dz @ p["W"].T, w * h

    text = check_gradient(function, backward, [p, X, h]).message()
    assert "wrong: input 0['W'], input 2; right: input 0['b'], input 1" in text
    assert len(text.splitlines()) <= 4


@pytest.mark.parametrize("sign", [1, -1])
def test_a_symmetric_input_is_a_hint_at_project(sign):
    def log_determinant(S):
        return float(2 * np.log(np.diag(np.linalg.cholesky(S))).sum())

    pair = log_determinant, lambda S: sign * np.linalg.inv(S)
    report = check_gradient(*pair, [S])
    assert report.status == "failed"
    assert ("pass project={0: lambda v: (v + v.T) / 2}" in report.message()) == (sign > 0)
    assert check_gradient(*pair, [S], project={0: lambda v: (v + v.T) / 2}).passed == (sign > 0)


EDGES = {
    "log": (np.log, lambda x, w: w / x, [1e-9, 0.5, 0.9999]),
    "logit": (lambda p: np.log(p / (1 - p)), lambda p, w: w / (p * (1 - p)), [1e-12, 0.5, 0.9999]),
}


@pytest.mark.parametrize("case", EDGES)
def test_near_the_edge_of_the_domain(case):
    function, backward, x = EDGES[case]
    for seed in range(20):
        assert_gradient(function, backward, [np.array(x)], seed=seed)
        wrong = check_gradient(function, lambda x, w: 1.1 * backward(x, w), [np.array(x)], seed=seed)
        assert wrong.status == "failed"
    assert "backward / slope = 1.1" in wrong.message()


def test_beside_the_edge_of_the_domain():
    """The moved inputs are rounded, to 1e-10 of their distance from the edge: a right gradient is not accused."""
    for seed in range(60):
        x = np.array([1 - 1e-6 * rng(seed).uniform(1, 9), 0.5, 0.3])
        assert check_gradient(lambda x: np.log(1 - x), lambda x, w: -w / (1 - x), [x], seed=seed).status != "failed"


def test_at_the_edge_of_the_domain():
    def root(x):
        if x.min() < 0:
            raise ValueError("negative speed")
        return x**1.5

    for function, words in ((root, "ValueError: negative speed"), (lambda x: x**1.5, "not finite")):
        report = check_gradient(function, lambda x, w: 1.5 * w * np.sqrt(x), [np.array([0.0, 1.0])])
        assert report.status == "kink"
        assert "leave the function's domain: pass scales=[...]" in report.message()
        assert words in report.message()
        assert "nan" not in report.message()


def test_a_report_prints_its_message():
    report = check_gradient(square, lambda x, w: x * w, [X])
    assert repr(report) == str(report) == report.message()
    assert not re.search("along|Richardson|five-point", report.message())
