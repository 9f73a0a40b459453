"""The step rules against scalar loops written from their papers, and what all of them promise."""

from __future__ import annotations

import math

import generators as gen
import numpy as np
import pytest

from dufs_core.backend import get_backend
from dufs_core.objective.optimizers import State, adam, get_optimizer, normalized, sgd

bk = get_backend("numpy")


def follow(step, start, grads):
    """Every position of a rule fed with a fixed list of gradients."""
    params, state, path = np.array(start, dtype=grads.dtype), State(), []
    for grad in grads:
        params, state = step(bk, params, grad, state)
        path.append(params)
    assert state.step == len(grads)
    return np.array(path)


def gradients(seed=0, steps=25, d=4, dtype=np.float64):
    """Gradients whose columns differ by orders of magnitude, with a column of zeros."""
    g = np.random.default_rng(seed).normal(size=(steps, d)) * np.array([1.0, 1e-3, 1e3, 0.0])
    return g.astype(dtype)


def plain_sgd(x, grads, rate):
    for g in grads:
        x = x - rate * g
        yield x


def plain_adam(x, grads, rate, beta1=0.9, beta2=0.999, epsilon=1e-8):
    m = v = 0.0
    for t, g in enumerate(grads, start=1):
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        x = x - rate * (m / (1 - beta1**t)) / (math.sqrt(v / (1 - beta2**t)) + epsilon)
        yield x


def by_column(rule, start, grads, *args):
    return np.array([list(rule(x, column.tolist(), *args)) for x, column in zip(start, grads.T, strict=True)]).T


START = [0.5, -1.0, 2.0, 0.25]


def test_sgd():
    grads = gradients()
    gen.assert_close(follow(sgd(0.03), START, grads), by_column(plain_sgd, START, grads, 0.03), 1e-14)


def test_adam():
    grads = gradients()
    path = follow(adam(0.02), START, grads)
    gen.assert_close(path, by_column(plain_adam, START, grads, 0.02), 1e-14)
    np.testing.assert_allclose(abs(path[0] - START)[:3], 0.02, rtol=1e-4)  # the first step has the rate's length


def test_normalized():
    """One running mean square for all columns; a column keeps its share of the step."""
    grads = gradients()
    mean_square, x, want = 0.0, list(START), []
    for t, g in enumerate(grads.tolist(), start=1):
        mean_square = 0.9 * mean_square + 0.1 * sum(v * v for v in g) / 4
        size = math.sqrt(mean_square / (1 - 0.9**t))
        x = [a - 0.05 * c / size for a, c in zip(x, g, strict=True)]
        want.append(list(x))
    gen.assert_close(follow(normalized(0.05), START, grads), want, 1e-14)


@pytest.mark.parametrize("factor", [1e-40, 1e-25, 1e-5, 1e12])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_normalized_does_not_see_the_gradients_scale(factor, dtype):
    """Down to gradients whose squares are far below float32's smallest number."""
    grads = np.random.default_rng(1).normal(size=(10, 4))
    a = follow(normalized(0.05), START, grads.astype(dtype))
    b = follow(normalized(0.05), START, (grads * factor).astype(dtype))
    # 1e-40 is denormal in float32: five digits are left
    gen.assert_close(b, a, 1e-3 if factor < 1e-30 and dtype is np.float32 else 1e-5 if dtype is np.float32 else 1e-13)
    assert abs(a[0] - np.array(START, dtype)).max() > 0.01


@pytest.mark.parametrize("rule", [sgd(0.1), adam(0.1), normalized(0.1)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
class TestEveryRule:
    def test_is_pure_and_keeps_the_dtype(self, rule, dtype):
        params, grad = np.array(START, dtype), gradients(dtype=dtype)[0]
        state = State()
        for _ in range(3):
            arrays = [a for a in (params, grad, state.first, state.second) if a is not None]
            before = [np.array(a).tobytes() for a in arrays]
            once, after = rule(bk, params, grad, state)
            twice, again = rule(bk, params, grad, state)
            assert [np.array(a).tobytes() for a in arrays] == before
            np.testing.assert_array_equal(once, twice)
            assert once.dtype == dtype
            assert after.step == again.step == state.step + 1
            params, state = once, after

    def test_a_gradient_of_zero_is_no_step(self, rule, dtype):
        params, state = np.array(START, dtype), State()
        for _ in range(3):
            after, state = rule(bk, params, np.zeros(4, dtype), state)
            np.testing.assert_array_equal(after, params)

    def test_goes_downhill(self, rule, dtype):
        """On (x - c)^2 / 2 every rule ends near c."""
        c = np.array([0.3, -0.2, 0.5, 0.1], dtype)
        params, state = np.zeros(4, dtype), State()
        for _ in range(60):
            params, state = rule(bk, params, params - c, state)
        assert abs(params - c).max() < 0.2

    def test_a_column_of_zeros_stays(self, rule, dtype):
        path = follow(rule, START, gradients(dtype=dtype))
        np.testing.assert_array_equal(path[:, 3], dtype(START[3]))


def test_get_optimizer():
    grads = gradients()
    for name, rule in (("sgd", sgd(0.1)), ("adam", adam(0.1)), ("normalized", normalized(0.1))):
        np.testing.assert_array_equal(follow(get_optimizer(name, 0.1), START, grads), follow(rule, START, grads))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("lbfgs", 0.1), "normalized.*sgd.*adam.*'lbfgs'"),
        (("sgd", 0.0), "learning_rate must be positive; got 0.0"),
        (("adam", -1.0), "learning_rate must be positive; got -1.0"),
        (("sgd", float("nan")), "learning_rate must be positive; got nan"),
    ],
)
def test_get_optimizer_refuses(args, message):
    with pytest.raises(ValueError, match=message):
        get_optimizer(*args)
