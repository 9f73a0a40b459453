"""Functions of PyTorch, JAX and of any library with DLPack, right ones and wrong ones; each where it is installed."""

from __future__ import annotations

import numpy as np
import pytest

from dufs_core.gradcheck import assert_gradient, check_batched, check_gradient
from dufs_core.gradcheck.adapters import from_dlpack, from_jax, from_torch

X, W = np.random.default_rng(0).standard_normal((4, 3)), np.random.default_rng(1).standard_normal((3, 2))


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.fixture
def jax():
    found = pytest.importorskip("jax", reason="JAX is not installed")
    found.config.update("jax_enable_x64", True)
    yield found
    found.config.update("jax_enable_x64", False)


# --- PyTorch ----------------------------------------------------------------------------------------------------------


def tensors(torch, dtype=None, grad=(True, True)):
    return [torch.tensor(a, dtype=dtype).requires_grad_(g) for a, g in zip((X, W), grad, strict=True)]


def torch_function(torch, mistake=""):
    class Layer(torch.autograd.Function):
        """tanh(x W)."""

        @staticmethod
        def forward(ctx, x, w):
            if mistake == "writes":
                x *= 2
            y = torch.tanh(x @ w)
            ctx.save_for_backward(x, w, y)
            return y

        @staticmethod
        def backward(ctx, dy):
            x, w, y = ctx.saved_tensors
            dz = dy * (1 - y if mistake == "power" else 1 - y**2)
            dw = x.T @ dz if ctx.needs_input_grad[0] or mistake != "subset" else 0 * w
            return dz @ w.T, None if mistake == "none" else dw

    return Layer.apply


def test_torch(torch):
    assert_gradient(*from_torch(torch_function(torch), tensors(torch)), subsets=True)
    assert_gradient(*from_torch(torch_function(torch), tensors(torch, torch.bfloat16)))
    assert_gradient(*from_torch(torch_function(torch), tensors(torch, torch.float32)), dtype=np.float32)
    assert_gradient(*from_torch(torch_function(torch, "none"), tensors(torch, grad=(True, False))), subsets=True)
    assert check_batched(*from_torch(torch_function(torch), tensors(torch)), shared=[1])
    x, mask = tensors(torch)[0], torch.tensor(X > 0, dtype=torch.float64)
    assert_gradient(*from_torch(lambda x, k, mask: k * x * mask, [x, 2.0, mask]), subsets=True)


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ("power", "worst coordinate"),
        ("none", "the backward is zero, the other one is not"),
        ("subset", "input 1: with wanted=(False, True), which asks for it, the gradient is another one"),
        ("writes", "input 0 was overwritten by the function"),
    ],
)
def test_torch_mistakes(torch, mistake, words):
    report = check_gradient(*from_torch(torch_function(torch, mistake), tensors(torch)), subsets=True)
    assert words in report.message()


def test_torch_nested_complex_integers_and_second_order(torch):
    def f(p, k, z):
        return {"a": (p["w"] ** k).sum(dim=0), "b": (z * p["w"][0, 0], torch.argmax(p["w"]))}

    w, z = torch.tensor(W).requires_grad_(), torch.tensor([1 + 2j, 3 - 1j], dtype=torch.complex128).requires_grad_()
    assert_gradient(*from_torch(f, [{"w": w}, torch.tensor(3), z]))

    def gradient(x, w, dy):
        return torch.autograd.grad(torch.tanh(x @ w), (x, w), dy, create_graph=True)

    dy = torch.ones(4, 2, dtype=torch.float64, requires_grad=True)
    assert_gradient(*from_torch(gradient, [*tensors(torch), dy]))


def test_torch_refusals(torch):
    with pytest.raises(ValueError, match=r"x\.requires_grad_\(\) says which ones"):
        from_torch(torch_function(torch), [torch.tensor(X)])
    with pytest.raises(TypeError, match="values"):
        from_torch(lambda x: x, [torch.eye(3).to_sparse().requires_grad_()])
    with pytest.raises(TypeError, match="input 0 is an array of torch"):
        check_gradient(lambda x: x, lambda x, w: w, [torch.tensor(X)])
    rounded = check_gradient(*from_torch(lambda x, w: (x @ w).float(), tensors(torch)))
    assert "the function's value is float32" in rounded.message()


# --- JAX --------------------------------------------------------------------------------------------------------------


def jax_function(jax, power):
    """tanh(x W), its slope 1 - y^power."""

    @jax.custom_vjp
    def layer(x, w):
        return jax.numpy.tanh(x @ w)

    def forward(x, w):
        y = layer(x, w)
        return y, (x, w, y)

    def backward(saved, dy):
        x, w, y = saved
        dz = dy * (1 - y**power)
        return dz @ w.T, x.T @ dz

    layer.defvjp(forward, backward)
    return layer


def test_jax(jax):
    x, w = jax.numpy.asarray(X), jax.numpy.asarray(W)
    assert_gradient(*from_jax(jax_function(jax, 2), [x, w]), subsets=True)
    assert_gradient(*from_jax(jax_function(jax, 2), [x.astype("bfloat16"), w]))
    assert_gradient(*from_jax(jax_function(jax, 2), [x.astype("float32"), w.astype("float32")]), dtype=np.float32)
    assert "worst coordinate" in check_gradient(*from_jax(jax_function(jax, 1), [x, w])).message()
    assert check_batched(*from_jax(jax_function(jax, 2), [x, w]), shared=[1])
    assert_gradient(*from_jax(lambda x, k: k * x, [x, 2.0]), subsets=True)


def test_jax_nested_complex_integers(jax):
    def f(p, k, z):
        return {"a": (p["w"] ** k).sum(axis=0), "b": (z * z * p["w"][0, 0], jax.numpy.argmax(p["w"]))}

    assert_gradient(
        *from_jax(f, [{"w": jax.numpy.asarray(W)}, jax.numpy.asarray(3), jax.numpy.array([1 + 2j, 3 - 1j])])
    )


def test_jax_without_float64(jax):
    jax.config.update("jax_enable_x64", False)
    pair = from_jax(jax_function(jax, 2), [jax.numpy.asarray(X), jax.numpy.asarray(W)])
    with pytest.raises(TypeError, match="jax_enable_x64"):
        check_gradient(*pair)
    assert_gradient(*pair, dtype=np.float32)


# --- DLPack -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_dlpack(library, request):
    xp = request.getfixturevalue(library)
    from_numpy, tanh = (xp.from_dlpack, xp.tanh) if library == "torch" else (xp.dlpack.from_dlpack, xp.numpy.tanh)

    def forward(x, w):
        assert type(x).__module__.startswith(("torch", "jax"))
        return tanh(x @ w)

    def backward(x, w, dy):
        dz = dy * (1 - tanh(x @ w) ** 2)
        return dz @ w.T, x.T @ dz

    inputs = [from_numpy(X), from_numpy(W)]
    assert_gradient(*from_dlpack(forward, backward, inputs, from_numpy))
    wrong = check_gradient(*from_dlpack(forward, lambda x, w, dy: (dy @ w.T, x.T @ dy), inputs, from_numpy))
    assert wrong.status == "failed"
