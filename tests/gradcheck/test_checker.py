"""The checker itself: wrong gradients are caught, right ones at awkward points are not accused."""

from __future__ import annotations

import subprocess
import sys
import types

import numpy as np
import pytest

from dufs_core.gradcheck import GradientError, assert_gradient, check_complex_step, check_gradient, check_random
from dufs_core.gradcheck import differences as stencil
from dufs_core.gradcheck.arrays import array_module, magnitude, unit_vector

rng = np.random.default_rng


def product(x, y):
    return np.sin(x) @ y


def product_backward(x, y, w):
    return np.cos(x) * (w @ y.T), np.sin(x).T @ w


def inputs(seed=0, n=4, m=3):
    g = rng(seed)
    return g.standard_normal((n, m)), g.standard_normal((m, n))


# --- right gradients ------------------------------------------------------------------------------------------------


def test_right_gradient_passes_and_says_so():
    report = check_gradient(product, product_backward, inputs(), name="product")
    assert report
    assert report.status == "passed"
    assert report.worst_relative_error < 1e-11
    assert "product: gradient confirmed by" in report.message()
    assert report.raise_if_failed() is report


def test_complex_step_is_exact():
    assert check_complex_step(product, product_backward, inputs()).worst_relative_error < 5e-15


@pytest.mark.parametrize("scale", [1e-150, 1e-6, 1.0, 1e6, 1e140])
def test_scales(scale):
    x = rng(1).standard_normal(5) * scale
    assert_gradient(lambda x: float((x / scale) @ (x / scale)) * scale, lambda x: 2 * x / scale, [x])


AWKWARD = {
    "zero gradient": (lambda x: 3.0, np.zeros_like, np.ones(4)),
    "zero input": (lambda x: float(np.sin(x).sum()), np.cos, np.zeros(3)),
    "stationary point": (lambda x: float(np.cos(x).sum()), lambda x: -np.sin(x), np.zeros(3)),
    "large constant": (lambda x: 1e8 + float(x.sum()), np.ones_like, np.ones(3)),
    "stiff": (lambda x: float(np.exp(-1e4 * x).sum()), lambda x: -1e4 * np.exp(-1e4 * x), np.array([1e-4, 1.0])),
    "saturated": (lambda x: float(np.tanh(40 * x).sum()), lambda x: 40 / np.cosh(40 * x) ** 2, np.array([0.9, 1, 2])),
    "fast oscillation": (lambda x: float(np.sin(300 * x).sum()), lambda x: 300 * np.cos(300 * x), np.ones(3)),
    "steep power": (lambda x: float((x**9).sum()), lambda x: 9 * x**8, np.array([0.01, 1.0, 3.0])),
    "one number": (lambda x: x**3, lambda x: 3 * x * x, 0.7),
    "empty": (lambda x: float(x.sum()), np.ones_like, np.zeros((0, 3))),
    "mixed sizes": (lambda x: float((x**2).sum()), lambda x: 2 * x, np.array([1e-8, 1.0, 1e4])),
}


@pytest.mark.parametrize("name", AWKWARD)
def test_no_false_alarm_at_awkward_points(name):
    function, backward, x = AWKWARD[name]
    for seed in range(20):
        assert_gradient(function, backward, [x], name=name, seed=seed)


def test_no_false_alarm_on_random_functions():
    """Smooth functions of random inputs, magnitudes over twelve decades: none of two thousand is accused."""
    alarms = []
    for seed in range(2000):
        g = rng(seed)
        n, size = int(g.integers(1, 6)), 10.0 ** g.uniform(-6, 6)
        W, x = g.standard_normal((n, n)), g.standard_normal(n) * size

        def function(x, W=W, size=size):
            return np.exp(-((W @ x / size) ** 2)) * x

        def backward(x, w, W=W, size=size):
            v = W @ x / size
            e = np.exp(-(v**2))
            return w * e + W.T @ (w * x * e * -2 * v / size)

        report = check_gradient(function, backward, [x], seed=seed, directions=1, every_coordinate=0)
        if not report:
            alarms.append(report.message())
    assert not alarms, alarms[0]


def test_several_values_and_inputs_without_gradient():
    def function(x, k, y):
        return (x * y) ** k, y.sum()

    def backward(x, k, y, w, v):
        d = k * (x * y) ** (k - 1) * w
        return d * y, None, d * x + v

    assert_gradient(function, backward, [rng(0).uniform(1, 2, 3), 3, rng(1).uniform(1, 2, 3)])


def test_projection_judges_only_the_subspace():
    """A backward that is right only for symmetric matrices passes with the projection, not without."""
    A = rng(0).standard_normal((4, 4))
    A = A + A.T

    def backward(A, w):
        return A @ (w + w.T) / 2 + (w + w.T) / 2 @ A

    w = rng(1).standard_normal((4, 4))
    w = w + w.T
    options = {"cotangents": [w]}
    assert check_gradient(lambda A: A @ A.T, backward, [A], project={0: lambda v: (v + v.T) / 2}, **options)
    lopsided = A + rng(2).standard_normal((4, 4))
    assert not check_gradient(lambda A: A @ A.T, backward, [lopsided], **options)


def test_float32_inputs_are_checked_in_float64():
    x = rng(0).standard_normal(4).astype(np.float32)
    assert check_gradient(lambda x: np.tanh(x), lambda x, w: w / np.cosh(x) ** 2, [x]).worst_relative_error < 1e-10


# --- wrong gradients ------------------------------------------------------------------------------------------------


def one_bad_coordinate(x, y, w):
    dx, dy = product_backward(x, y, w)
    dx[1, 2] += 1e-6 * np.abs(dx).max()
    return dx, dy


def float32_leak(x, y, w):
    dx, dy = product_backward(x, y, w)
    return dx.astype(np.float32).astype(np.float64), dy


WRONG = {
    "missing factor": lambda x, y, w: (2 * product_backward(x, y, w)[0], product_backward(x, y, w)[1]),
    "sign": lambda x, y, w: tuple(-g for g in product_backward(x, y, w)),
    "transposed": lambda x, y, w: (np.cos(x) * (w @ y.T), (w.T @ np.sin(x)).T[:, ::-1]),
    "dropped term": lambda x, y, w: (w @ y.T, product_backward(x, y, w)[1]),
    "second input zero": lambda x, y, w: (product_backward(x, y, w)[0], np.zeros_like(y)),
    "one coordinate by 1e-6": one_bad_coordinate,
    "float32 inside": float32_leak,
    "tiny constant": lambda x, y, w: (product_backward(x, y, w)[0] + 1e-7, product_backward(x, y, w)[1]),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_gradients_are_caught(name):
    for seed in range(10):
        report = check_gradient(product, WRONG[name], inputs(seed), seed=seed)
        assert report.status == "failed", f"{name} passed with seed {seed}"


@pytest.mark.parametrize("name", WRONG)
def test_complex_step_catches_them_too(name):
    assert check_complex_step(product, WRONG[name], inputs()).status == "failed"


@pytest.mark.parametrize("size", [5, 300])
def test_the_bad_coordinate_is_named(size):
    """One coordinate of many, off by 1e-6: caught along random directions, then found by halving."""
    bad = size * 2 // 3

    def backward(x):
        g = 3 * x**2
        g[bad] *= 1 + 1e-6
        return g

    report = check_gradient(lambda x: float((x**3).sum()), backward, [rng(0).uniform(1, 2, size)], every_coordinate=0)
    assert report.status == "failed"
    assert report.worst_coordinate.where == f"input 0, coordinate ({bad},)"
    assert report.worst_coordinate.relative_error == pytest.approx(1e-6, rel=1e-2)


def test_message_holds_what_a_reader_needs():
    with pytest.raises(GradientError) as caught:
        assert_gradient(product, WRONG["sign"], inputs(), name="product")
    text = str(caught.value)
    for part in (
        "product: WRONG GRADIENT, 4 of 4 comparisons disagree",
        "wrong: input 0, input 1",
        "worst coordinate: input ",
        "the backward gives",
        "finite differences give",
        "tolerance 1e-09",
    ):
        assert part in text, text
    assert "the sign is wrong" in text
    assert caught.value.report.worst.relative_error > 1


def test_mistakes_that_need_no_numbers():
    x = np.ones((2, 3))
    square = lambda x: float((x**2).sum())  # noqa: E731
    shape = check_gradient(square, lambda x: (2 * x).T, [x])
    assert shape.status == "failed"
    assert "shape (3, 2)" in shape.message()
    assert "float32" in check_gradient(square, lambda x: (2 * x).astype(np.float32), [x]).message()
    assert "not finite" in check_gradient(square, lambda x: 2 * x + np.nan, [x]).message()
    assert "value is not finite" in check_gradient(lambda x: float(np.inf), lambda x: 2 * x, [x]).message()
    assert "3 gradients for 1 input" in check_gradient(square, lambda x: (2 * x, None, None), [x]).message()

    def overwrites(x):
        x *= 2
        return x

    report = check_gradient(square, overwrites, [x])
    assert "input 0 was overwritten" in report.message()
    assert report.worst_relative_error == np.inf
    same = check_gradient(lambda x: x * 1.0, lambda x, w: w, [x], fresh=True)
    assert "shares memory" in same.message()
    assert check_gradient(lambda x: x * 1.0, lambda x, w: w, [x]).passed


def test_ratio_hints():
    def square(x):
        return float((x**2).sum())

    x = rng(0).uniform(1, 2, 3)
    assert "twice the slope" in check_gradient(square, lambda x: 4 * x, [x]).message()
    assert "half the slope" in check_gradient(square, lambda x: x.copy(), [x]).message()
    assert "the backward is zero, the other one is not" in check_gradient(square, np.zeros_like, [x]).message()
    assert "backward / slope = 1.5" in check_gradient(square, lambda x: 3 * x, [x]).message()


# --- kinks ----------------------------------------------------------------------------------------------------------


def relu(x):
    return float(np.maximum(x, 0).sum())


def relu_backward(x):
    return (x > 0) * 1.0


@pytest.mark.parametrize("at", [0.0, 1e-9, -1e-6])
def test_kinks_are_seen_and_both_slopes_told(at):
    report = check_gradient(relu, relu_backward, [np.array([at, 1.0])], directions=6)
    assert report.status == "kink"
    coordinate = next(c for c in report.comparisons if c.where == "input 0, coordinate (0,)")
    assert abs(coordinate.left_slope) < 0.6 < coordinate.right_slope
    assert "KINK: slope" in report.message()
    with pytest.raises(GradientError, match="NOT JUDGED"):
        report.raise_if_failed()


def test_symmetric_kink_is_seen_although_the_stencil_agrees():
    """|x| at 0: the central slope is 0, and so is the gradient; only the residual tells."""
    report = check_gradient(lambda x: float(np.abs(x).sum()), np.sign, [np.array([0.0])])
    assert report.status == "kink"
    assert report.worst_relative_error == 0


def test_kink_within_the_wide_step_but_not_at_the_point():
    """2e-4 away, inside the stencil: smaller steps confirm the right slope and refuse the wrong one."""
    x = [np.array([1.5e-4, 1.0])]
    assert check_gradient(relu, relu_backward, x, every_coordinate=0).status in ("passed", "kink")
    assert check_gradient(relu, lambda x: 2 * relu_backward(x), [np.array([0.3, 1.0])]).status == "failed"


def test_a_wrong_gradient_is_not_excused_as_a_kink():
    """Smooth but steep, where the stencil's residual is large."""
    x = np.array([1e-4, 2e-4])
    report = check_gradient(lambda x: float(np.exp(-1e4 * x).sum()), lambda x: -1.001e4 * np.exp(-1e4 * x), [x])
    assert report.status == "failed"


def test_a_function_that_moves_faster_than_every_step_is_not_judged():
    """An angle of 1e12: its neighbours in float64 are 1e-4 apart, and no slope can be seen."""
    x = np.array([1.3e12, -2.1e12, 0.4e12])
    report = check_gradient(lambda x: np.cos(x), lambda x, w: -w * np.sin(x), [x])
    assert report.status == "kink"
    assert "NOT JUDGED" in report.message()


@pytest.mark.parametrize("wrong", [False, True])
def test_wide_steps_beyond_a_kink(wrong):
    """Both sides of a narrow tent look straight from afar; smaller steps, short of digits, see its right side."""

    def tent(x):
        return float(1e4 + np.where(np.abs(x) < 1e-4, 3 * x, -2 * x).sum())

    backward = (lambda x: np.full_like(x, 2.0)) if wrong else (lambda x: np.full_like(x, 3.0))
    statuses = {
        check_gradient(tent, backward, [np.array([2e-6, 1e-6])], scales=[1.0], seed=seed).status for seed in range(20)
    }
    assert statuses == {"failed" if wrong else "kink"}


def test_steps_that_leave_the_domain():
    """What the function refuses beyond a margin is judged within it, the right gradient and the wrong one."""

    def logarithm(x):
        if x.min() <= 0:
            raise ValueError("not positive")
        return np.log(x)

    x = np.array([1e-5, 1.0])
    assert_gradient(logarithm, lambda x, w: w / x, [x])
    assert check_gradient(logarithm, lambda x, w: 1.001 * w / x, [x]).status == "failed"


def test_retry_is_bounded_and_ends():
    def draw(generator, margin):
        x = np.array([0.0 if generator.random() < margin else 1.0, 2.0])
        return relu, relu_backward, [x]

    always = check_random(lambda g: draw(g, 2.0), retries=4)
    assert always.status == "kink"
    assert always.attempts == 4
    sometimes = [check_random(lambda g: draw(g, 0.5), seed=s) for s in range(20)]
    assert all(r.passed for r in sometimes)
    assert max(r.attempts for r in sometimes) > 1
    wrong = check_random(lambda g: (relu, lambda x: 2 * relu_backward(x), [np.array([1.0])]))
    assert wrong.status == "failed"
    assert wrong.attempts == 1


def test_the_checker_needs_numpy_alone():
    """Neither the suite nor what it needs is imported with the checker; a gradient is checked without any of it."""
    code = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(('scipy', 'numba', 'sklearn', 'hypothesis', 'cupy')))\n"
        "from dufs_core.gradcheck import assert_gradient, check_complex_step\n"
        "import numpy as np\n"
        "assert_gradient(lambda x: x**2, lambda x, w: 2 * x * w, [np.ones(3)])\n"
        "assert check_complex_step(lambda x: x**2, lambda x, w: 2 * x * w, [np.ones(3)])\n"
        "assert not [m for m in sys.modules if m.startswith('dufs_core.gradcheck.suite')]"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


# --- parts ----------------------------------------------------------------------------------------------------------


def test_stencils():
    assert stencil.five_point(np.expm1, 1e-3) == pytest.approx(1, abs=1e-12)
    slope, error = stencil.richardson(np.expm1, 0.1)
    assert slope == pytest.approx(1, abs=1e-12)
    assert error < 1e-10
    assert stencil.one_sided(abs, 1e-3)[0] == pytest.approx(1)
    assert stencil.one_sided(abs, -1e-3)[0] == pytest.approx(-1)
    assert stencil.kink_residual(abs, 1e-3) == pytest.approx(4)
    assert stencil.kink_residual(np.expm1, 1e-3) < 1e-8


def test_directions_keep_every_entry_visible():
    for seed in range(50):
        v = unit_vector(rng(seed), seed + 1)
        assert np.linalg.norm(v) == pytest.approx(1)
        assert np.abs(v).min() >= 0.1 / np.sqrt(len(v))


def test_array_module():
    assert array_module(np.ones(2), 1.0) is np
    device = type("Array", (), {"__cuda_array_interface__": {}, "dtype": np.float64, "shape": (2,), "ndim": 1})()
    with pytest.raises(TypeError, match="mix host"):
        array_module(np.ones(2), device)


def test_magnitude_survives_extremes():
    assert magnitude(np, [np.full(4, 1e200)], [np.full(4, 1e100)]) == pytest.approx(2e300)
    assert magnitude(np, [np.zeros(3), None], [np.ones(3), np.ones(2)]) == 0


def test_arrays_of_another_module(monkeypatch):
    """Everything is done with the functions of the inputs' own module; the host sees only what was fetched."""

    class DeviceArray(np.ndarray):
        __module__ = "fakecupy"
        __cuda_array_interface__ = {}  # noqa: RUF012
        fetched = 0

        def get(self):
            DeviceArray.fetched += 1
            return np.array(self, subok=False)

    def on_device(x, dtype=None):
        return np.array(x, dtype=dtype).view(DeviceArray)

    fake = types.ModuleType("fakecupy")
    fake.asarray = fake.array = on_device
    fake.__getattr__ = lambda name: getattr(np, name)
    monkeypatch.setitem(sys.modules, "fakecupy", fake)
    seen = []

    def function(x, y):
        seen.append((type(x), type(y)))
        return product(x, y)

    moved = [on_device(a) for a in inputs()]
    assert array_module(*moved) is fake
    assert_gradient(function, product_backward, moved)
    assert set(seen) == {(DeviceArray, DeviceArray)}
    assert DeviceArray.fetched > 0
    report = check_gradient(function, WRONG["one coordinate by 1e-6"], moved)
    assert report.worst_coordinate.where == "input 0, coordinate (1, 2)"
    assert check_complex_step(product, product_backward, moved)
    with pytest.raises(TypeError, match="mix host"):
        check_gradient(product, product_backward, [moved[0], inputs()[1]])
