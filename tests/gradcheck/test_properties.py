"""What is checked beyond the slope: repeats, memory, adjoints, subsets, batches, nesting, precisions, sizes."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse
from hypothesis import assume, given
from hypothesis import strategies as st

from dufs_core.gradcheck import assert_gradient, check_batched, check_complex_step, check_gradient
from dufs_core.gradcheck.arrays import is_strided
from dufs_core.gradcheck.strategies import KINDS, points
from dufs_core.gradcheck.trees import leaves, matched, rebuilt
from tests.generators import product, product_backward, square, square_backward

rng = np.random.default_rng
X, W = rng(0).standard_normal((5, 3)), rng(1).standard_normal((3, 4))


def test_light_and_alone(capsys):
    """NumPy, the standard library and the checker's own modules: not this library's suite, and nothing to install."""
    code = (
        "import numpy, sys, time\n"
        "before, start = set(sys.modules), time.perf_counter()\n"
        "import dufs_core.gradcheck, dufs_core.gradcheck.adapters\n"
        "seconds = time.perf_counter() - start\n"
        "new = {m for m in set(sys.modules) - before if m.partition('.')[0] not in sys.stdlib_module_names}\n"
        "print(seconds, *sorted(new))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    seconds, *new = done.stdout.split()
    with capsys.disabled():
        print(f" [import of the checker beyond NumPy: {float(seconds):.3f} s]", end="")
    allowed = {"dufs_core", "dufs_core._version", "dufs_core.gradcheck"}
    assert {m for m in new if not m.startswith("dufs_core.gradcheck.")} == allowed, new
    assert not [m for m in new if ".suite" in m]


# --- repeats and memory -----------------------------------------------------------------------------------------------


def test_other_numbers_for_the_same_inputs():
    noise = rng(0)
    report = check_gradient(lambda x: x + noise.normal(size=3) * 1e-6, lambda x, w: 1 * w, [np.ones(3)])
    assert "the function gives another value for the same inputs" in report.message()
    report = check_gradient(square, lambda x, w: 2 * x * w + noise.normal(size=3) * 1e-6, [np.ones(3)])
    assert "the backward gives another gradient for the same inputs" in report.message()
    assert not report.comparisons

    def nearly(x, w):
        return 2 * x * w * (1 + noise.normal(size=3) * 1e-15)

    assert check_gradient(square, nearly, [np.ones(3)])
    assert not check_gradient(square, nearly, [np.ones(3)], repeat_rtol=0)


def test_who_wrote_into_what():
    def doubles(x):
        x *= 2
        return x**2 / 4

    def writes(x, w):
        w *= 2 * x
        return w

    assert "input 0 was overwritten by the function" in check_gradient(doubles, square_backward, [np.ones(3)]).message()
    assert "cotangent 0 was overwritten by the backward" in check_gradient(square, writes, [np.ones(3)]).message()


def test_a_work_array_that_is_given_again():
    """Values in the same memory at each call are compared all the same; a gradient there too."""
    out, g = np.empty(3), np.empty(3)
    assert_gradient(lambda x: np.square(x, out=out), lambda x, w: np.multiply(2 * x, w, out=g), [np.arange(3.0)])
    assert not check_gradient(lambda x: np.square(x, out=out), lambda x, w: 3 * x * w, [np.arange(1.0, 4)])


def test_memory_layouts():
    """Gaps, another order, no entries, no axis, not writeable: what assumes a layout is found."""

    def by_pointer(x):
        flat = np.frombuffer(x.base if x.base is not None else x, dtype=x.dtype)[: x.size]
        return flat.reshape(x.shape) ** 2

    strided, read_only = np.stack([X, X + 1], axis=-1)[..., 0], X.copy()
    read_only.flags.writeable = False
    for x in (strided, X.T, X[::-1], np.zeros((0, 2)), read_only):
        assert_gradient(square, square_backward, [x])
    for number in (np.array(0.7), np.float64(0.7), 0.7):
        assert_gradient(square, lambda x: 2 * x, [number])
    assert is_strided(strided)
    assert_gradient(by_pointer, square_backward, [X])
    assert (
        "now with the gaps that the input has in memory"
        in check_gradient(by_pointer, square_backward, [strided]).message()
    )


# --- adjoint, second order, subsets, batches --------------------------------------------------------------------------


def test_adjoint_identity():
    def jvp(x, w, dx, dw):
        return dx @ w + x @ dw

    report = check_gradient(product, product_backward, [X, W], jvp=jvp)
    assert report
    assert sum(c.method == "jvp" for c in report.comparisons) == 4
    wrong = check_gradient(product, product_backward, [X, W], jvp=lambda x, w, dx, dw: dx @ w)
    assert "WRONG JVP, while the backward agrees with finite differences, 4 of 8" in wrong.message()
    assert "the jvp gives" in wrong.message()
    assert wrong.worst_coordinate is None
    with pytest.raises(ValueError, match=r"the jvp gives shapes \[\(4, 5\)\], the function \[\(5, 4\)\]"):
        check_gradient(product, product_backward, [X, W], jvp=lambda x, w, dx, dw: (dx @ w + x @ dw).T)


def test_second_order():
    """The backward is a function of inputs and cotangents, and has a backward; what is linear in w has w's gradient."""

    def double_backward(x, w, u):
        return 2 * w * u, 2 * x * u

    x, w = rng(2).standard_normal((2, 6))
    assert_gradient(square_backward, double_backward, [x, w])
    assert not check_gradient(square_backward, lambda x, w, u: (2 * w * u, x * u), [x, w])


def test_every_subset_of_the_gradients():
    calls = []

    def backward(x, w, y, wanted=(True, True)):
        calls.append(wanted)
        return y @ w.T if wanted[0] else None, x.T @ y if wanted[1] else None

    assert_gradient(product, backward, [X, W], subsets=True)
    assert set(calls) == {(True, True), (True, False), (False, True)}

    def careless(x, w, y, wanted=(True, True)):
        both = product_backward(x, w, y)
        return both[0], both[1] if wanted[0] else 0 * both[1]

    report = check_gradient(product, careless, [X, W], subsets=True)
    assert "input 1: with wanted=(False, True), which asks for it, the gradient is another one" in report.message()
    lazy = check_gradient(
        product, lambda x, w, y, wanted=(1, 1): (y @ w.T, x.T @ y if wanted[0] else None), [X, W], subsets=True
    )
    assert "input 1: with wanted=(False, True), which asks for it, the gradient is None" in lazy.message()


def test_batched_against_looped():
    assert check_batched(product, product_backward, [X, W], shared=[1])
    mixes = check_batched(lambda x: x - x.mean(axis=0), lambda x, w: w - w.mean(axis=0), [X])
    assert "BATCH AND LOOP DIFFER, 2 of 2" in mixes.message()
    assert re.search(r"value 0 \(.*\): the batch gives .*, the loop over examples gives 0;", mixes.message())
    forgets = check_batched(product, lambda x, w, y: (y @ w.T, x[:1].T @ y[:1]), [X, W], shared=[1])
    assert "gradient of input 1, summed" in forgets.message()
    assert check_batched(lambda x: x * (1 + 1j), lambda x, w: (np.conj(1 + 1j) * w).real, [X])
    assert not check_batched(square, lambda x, w: x.T, [X])
    with pytest.raises(ValueError, match=r"shared=.*: got input 0 \(5, 3\), input 1 \(3, 4\), value 0 \(5, 4\)"):
        check_batched(product, product_backward, [X, W])
    assert not check_batched(square, lambda x, w: None, [X])
    assert "nothing to compare, there are no examples" in check_batched(square, square_backward, [X[:0]]).message()


# --- nested, complex, integers ----------------------------------------------------------------------------------------


def test_trees():
    tree = {"a": 1, "b": (2, [3, None])}
    assert leaves(tree, "x") == [("x['a']", 1), ("x['b'][0]", 2), ("x['b'][1][0]", 3)]
    assert rebuilt(tree, iter("abc")) == {"a": "a", "b": ("b", ["c", None])}
    assert matched(tree, {"b": (5, None)}, "x") == [None, 5, None]
    with pytest.raises(ValueError, match="x: a int in the place of a dict"):
        matched(tree, 3, "x")
    with pytest.raises(ValueError, match="'c'"):
        matched(tree, {"c": 3}, "x")


def layer(x, parameters):
    y = x @ parameters["W"] + parameters["shift"][0]
    return {"y": y, "norm": (y**2).sum(axis=1)}


def layer_backward(x, parameters, w):
    y = layer(x, parameters)["y"]
    dy = w["y"] + 2 * y * w["norm"][:, None]
    return dy @ parameters["W"].T, {"W": x.T @ dy, "shift": (dy.sum(axis=0),)}


def test_nested_inputs_and_values():
    parameters = {"W": W, "shift": (rng(2).standard_normal(4),), "name": "first", "steps": 3}
    assert_gradient(layer, layer_backward, [X, parameters])

    def wrong(x, parameters, w):
        dx, found = layer_backward(x, parameters, w)
        return dx, found | {"shift": (found["shift"][0] / 5,)}

    report = check_gradient(layer, wrong, [X, parameters])
    assert report.worst_coordinate.where.startswith("input 1['shift'][0], coordinate (")
    flat = check_gradient(layer, lambda x, p, w: (layer_backward(x, p, w)[1]["W"], None), [X, parameters])
    assert "the gradient has shape (3, 4), the input (5, 3)" in flat.message()
    other = check_gradient(layer, lambda x, p, w: (None, W), [X, parameters])
    assert "input 1: a ndarray in the place of a dict" in other.message()


def test_complex_inputs_and_values():
    """<a, b> = Re sum(conj(a) b): the gradient of |z|^2 is 2 z, that of a z is conj(a) w."""
    z = rng(0).standard_normal(4) + 1j * rng(1).standard_normal(4)
    a = rng(2).standard_normal((3, 4)) * (1 + 2j)
    assert_gradient(lambda z: float((np.abs(z) ** 2).sum()), lambda z: 2 * z, [z])
    assert_gradient(lambda z: a @ z, lambda z, w: a.conj().T @ w, [z])
    assert_gradient(lambda x: np.fft.fft(x), lambda x, w: (len(x) * np.fft.ifft(w)).real, [rng(0).standard_normal(8)])
    assert_gradient(lambda z: complex(z.sum() ** 2), lambda z, w: np.full(4, 2 * np.conj(z.sum()) * w), [z])
    report = check_gradient(lambda z: a @ z, lambda z, w: a.T @ w, [z])
    assert report.status == "failed"
    assert "part" in report.worst_coordinate.where
    real = check_gradient(lambda x: np.fft.fft(x), lambda x, w: len(x) * np.fft.ifft(w), [np.ones(8)])
    assert "the gradient is complex128, although the input went in as float64" in real.message()
    imaginary = check_gradient(square, lambda z, w: w.real, [z])
    assert "the gradient is float64, although the input went in as complex128" in imaginary.message()
    with pytest.raises(TypeError, match="the complex step is for functions from real inputs to real values"):
        check_complex_step(square, square_backward, [z])


def test_integers_and_booleans_are_left_alone():
    seen = set()

    def gather(x, index, mask):
        seen.add((index.dtype, mask.dtype))
        return np.where(mask, x[index], 0), index + 1, mask

    def backward(x, index, mask, w, none, nothing):
        assert none is None
        assert nothing is None
        g = np.zeros_like(x)
        np.add.at(g, index, np.where(mask, w, 0))
        return g, None, None

    inputs = [rng(0).standard_normal(3), np.array([0, 2, 2, 1]), np.array([True, False, True, True])]
    assert_gradient(gather, backward, inputs)
    assert seen == {(np.dtype(int), np.dtype(bool))}
    report = check_gradient(lambda x: float((x**2).sum()), lambda x: 2 * x, [np.array([1, 2])])
    assert "input 0 is int64 and has no derivative: give None, or make it a floating-point array" in report.message()


# --- precisions -------------------------------------------------------------------------------------------------------


def only_float32(x):
    assert x.dtype == np.float32
    return np.tanh(x)


def test_functions_that_take_float32_only():
    def backward(x, w):
        assert w.dtype == np.float32
        return w / np.cosh(x) ** 2

    for seed in range(50):
        x = rng(seed).standard_normal(30) * 10.0 ** rng(seed).uniform(-3, 0)
        report = check_gradient(only_float32, backward, [x], dtype=np.float32, seed=seed)
        assert report, report.message()
        assert not check_gradient(only_float32, lambda x, w: w / np.cosh(x), [x + 1], dtype=np.float32, seed=seed)
        assert not check_gradient(only_float32, lambda x, w: 1.01 * backward(x, w), [x], dtype=np.float32, seed=seed)
    assert "tolerance 1e-03" in check_gradient(only_float32, lambda x, w: -w, [x], dtype=np.float32).message()
    wide = check_gradient(only_float32, lambda x, w: backward(x, w).astype(float), [x], dtype=np.float32)
    assert "the gradient is float64, although the input went in as float32" in wide.message()


def test_kinks_in_float32():
    f, b = lambda x: np.maximum(x, np.float32(0)), lambda x, w: w * (x > 0)
    assert check_gradient(f, b, [np.array([0.0, 1.0])], dtype=np.float32).status == "kink"
    assert check_gradient(f, b, [np.array([-0.5, 1.0])], dtype=np.float32).passed


def test_narrow_types():
    """Inputs are converted; a value that loses the digits, and a check in such a type, are refused with advice."""
    x = rng(0).standard_normal(3)
    assert_gradient(square, square_backward, [x.astype(np.float16)])
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="bfloat16 arrays are ml_dtypes'")
    assert_gradient(square, square_backward, [x.astype(ml_dtypes.bfloat16)])
    for dtype in (np.float16, ml_dtypes.bfloat16):
        with pytest.raises(TypeError, match="hold too few digits: check with dtype float64 or float32"):
            check_gradient(square, square_backward, [x], dtype=dtype)
    for dtype in (np.float32, ml_dtypes.bfloat16):
        report = check_gradient(lambda x, to=dtype: (x**2).astype(to), square_backward, [x])
        assert "compute in the type of the inputs" in report.message()


def test_sparse_and_other_libraries_are_refused_with_advice():
    with pytest.raises(TypeError, match="input 1 is sparse: check the function of its entries instead"):
        check_gradient(product, product_backward, [X, scipy.sparse.csr_array(W)])
    A = scipy.sparse.csr_array(W * (W > 0))

    def f(data):
        return X @ scipy.sparse.csr_array((data, A.indices, A.indptr), shape=A.shape)

    def backward(data, w):
        return (X.T @ w)[A.nonzero()]

    assert_gradient(f, backward, [A.data])

    class Tensor:
        __dlpack__ = None

    with pytest.raises(TypeError, match=r"dufs_core\.gradcheck\.adapters"):
        check_gradient(square, square_backward, [Tensor()])


# --- sizes ------------------------------------------------------------------------------------------------------------


def test_infinite_inputs_do_not_set_the_step():
    x = np.array([-np.inf, 0.5, 1.0])  # a mask, as attention has them
    assert_gradient(lambda x: float(np.exp(x).sum()), lambda x: np.exp(x), [x])


@pytest.mark.parametrize("nonzero", [1, 2, 5, 50])
def test_the_stated_chance_of_a_miss_is_a_bound(nonzero):
    """Errors in one, some or all coordinates, one direction, a coarse tolerance: misses are no more than is said."""
    n, missed, stated = 50, 0, []
    x = np.ones(n)
    for seed in range(400):
        e = np.zeros(n)
        e[:nonzero] = rng(seed).choice([-1.0, 1.0], nonzero) * np.sqrt(n / nonzero) * 0.3
        options = {"rtol": 0.01, "directions": 1, "every_coordinate": 0, "seed": seed}
        wrong = check_gradient(lambda x: float(x.sum()), lambda x, e=e: x + e, [x], **options)
        missed += wrong.passed
        stated.append(wrong.chance_of_miss(0.3 / np.linalg.norm(x + e) * np.sqrt(n)))
    assert missed <= np.sum(stated)
    assert np.mean(stated) < 1
    assert nonzero > 1 or not missed


def test_very_large_inputs():
    """A million entries: along directions, in a few copies of memory; one wrong entry is seen and named."""
    x = rng(0).uniform(1, 2, 1_000_000)

    def backward(x, w):
        g = square_backward(x, w)
        g[765_432] *= 1.5
        return g

    report = check_gradient(square, square_backward, [x], directions=2)
    assert report
    assert report.chance_of_miss(1e-3) < 1e-4
    assert "is missed with a chance below" in report.message()
    report = check_gradient(square, backward, [x], directions=2, cotangents=[np.ones_like(x)])
    assert report.worst_coordinate.where == "input 0, coordinate (765432,)"


# --- strategies -------------------------------------------------------------------------------------------------------


@given(points((3, 4), (4,)))
def test_points(drawn):
    a, b = drawn
    assert a.shape == (3, 4)
    assert b.shape == (4,)
    assert a.dtype == b.dtype == np.float64
    assert np.isfinite(a).all()


@given(st.data())
def test_points_of_every_kind(data):
    for kind in KINDS:
        (x,) = data.draw(points((2, 3), kinds=(kind,)))
        assert x.flags.writeable != (kind == "read-only")
        assert is_strided(x) == (kind == "strided")
        assert (kind == "equal") <= (x.min() == x.max())


@given(points((4, 3), (3,)))
def test_an_operation_at_awkward_points(drawn):
    report = check_gradient(
        lambda x, b: np.maximum(x + b, 0), lambda x, b, w: (w * (x + b > 0), (w * (x + b > 0)).sum(axis=0)), drawn
    )
    assume(report.status != "kink")
    assert report.passed, report.message()
