"""Functions of other array libraries, for the checker: each adapter gives function, backward and inputs on NumPy.

    assert_gradient(*from_torch(MyFunction.apply, [x, y]))
    assert_gradient(*from_jax(my_custom_vjp, [x, y]))
    assert_gradient(*from_dlpack(forward, backward, [x, y], cupy.from_dlpack))

The checker converts floating-point inputs to float64: a function that takes nothing wider needs ``dtype=np.float32``.
CuPy arrays need no adapter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from dufs_core.gradcheck.arguments import Constant
from dufs_core.gradcheck.arrays import moves
from dufs_core.gradcheck.problem import Function
from dufs_core.gradcheck.trees import as_tuple, leaves, matched, rebuilt

Checked = tuple[Function, Function, list[Any]]


def _mapped(f: Callable[[Any], Any], tree: Any) -> Any:
    return rebuilt(tree, (f(x) for _, x in leaves(tree)))


def from_torch(function: Function, inputs: Sequence[Any]) -> Checked:
    """A function of PyTorch tensors, with the backward that ``torch.autograd.grad`` runs: an ``autograd.Function``'s.

    Tensors that require a gradient are checked (as by ``torch.autograd.gradcheck``), on the devices they are on. The
    backward takes the keyword ``wanted``: with ``subsets=True`` each subset of them requires a gradient once.
    """
    torch = import_module("torch")
    tree, n = tuple(inputs), len(inputs)
    given = [(i, x) for i, part in enumerate(tree) for _, x in leaves(part)]
    if not any(isinstance(x, torch.Tensor) and x.requires_grad for _, x in given):
        raise ValueError("no input requires a gradient: x.requires_grad_() says which ones to check")

    def host(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        if x.layout is not torch.strided:
            raise TypeError("a sparse tensor: check the function of its values() instead")
        x = x.detach().cpu().resolve_conj().resolve_neg()
        return (x.float() if x.dtype in (torch.bfloat16, torch.float16) else x).numpy()

    def run(arrays: Sequence[Any], wanted: Sequence[bool]) -> tuple[list[Any], Any]:
        tensors = []
        for (i, x), (_, a) in zip(given, leaves(tuple(arrays)), strict=True):
            if isinstance(x, torch.Tensor):  # memory is shared on the CPU: what is written into an input is seen
                a = torch.as_tensor(a, device=x.device).requires_grad_(x.requires_grad and wanted[i])
            tensors.append(a)
        return tensors, function(*rebuilt(tree, iter(tensors)))

    def forward(*arrays: Any) -> Any:
        return _mapped(host, run(arrays, [True] * n)[1])

    def backward(*arrays: Any, wanted: Sequence[bool] = (True,) * n) -> Any:
        tensors, values = run(arrays[:n], wanted)
        of = [k for k, x in enumerate(tensors) if isinstance(x, torch.Tensor) and x.requires_grad]
        cotangents = matched(as_tuple(values), arrays[n:], "cotangents") if len(arrays) > n else [1.0]
        pairs = [
            (y, torch.as_tensor(w, dtype=y.dtype, device=y.device))
            for (_, y), w in zip(leaves(as_tuple(values)), cotangents, strict=True)
            if isinstance(y, torch.Tensor) and y.requires_grad
        ]
        found = [None] * len(of)
        if pairs and of:
            ys, ws = zip(*pairs, strict=True)
            found = torch.autograd.grad(ys, [tensors[k] for k in of], ws, allow_unused=True)
        gradients: list[Any] = [None] * len(tensors)
        for k, g in zip(of, found, strict=True):  # None is a gradient of zero, and judged as such
            gradients[k] = host(torch.zeros_like(tensors[k]) if g is None else g)
        return rebuilt(tree, iter(gradients))

    def taken(x: Any) -> Any:
        checked = isinstance(x, torch.Tensor) and x.requires_grad
        return Constant(host(x)) if moves(host(x)) and not checked else host(x)

    return forward, backward, list(_mapped(taken, tree))


def from_jax(function: Function, inputs: Sequence[Any]) -> Checked:
    """A function of JAX arrays, with the backward that ``jax.vjp`` runs: a ``custom_vjp``'s, or JAX's own.

    Floating-point and complex arrays are checked; to leave one out, bind it: ``lambda x: f(x, mask)``. In float64 JAX
    must be told so: ``jax.config.update("jax_enable_x64", True)``. Its cotangents and gradients of complex numbers are
    conjugate to the checker's, and are conjugated here. The backward takes the keyword ``wanted``.
    """
    jax, jnp = import_module("jax"), import_module("jax.numpy")
    tree, n = tuple(inputs), len(inputs)
    given = [(i, x) for i, part in enumerate(tree) for _, x in leaves(part)]
    checked = [hasattr(x, "dtype") and bool(jnp.issubdtype(x.dtype, jnp.inexact)) for _, x in given]

    def array(x: Any) -> Any:
        if not hasattr(x, "dtype"):
            return x
        found = jnp.asarray(x)
        if x.dtype.itemsize > found.dtype.itemsize and x.dtype.kind in "fc":
            raise TypeError(
                f'JAX makes {found.dtype} of {x.dtype}: jax.config.update("jax_enable_x64", True) before its first '
                "array, or check with dtype=np.float32"
            )
        return found

    def host(x: Any) -> Any:
        return np.asarray(x) if isinstance(x, jax.Array) else x

    def forward(*arrays: Any) -> Any:
        return _mapped(host, function(*_mapped(array, arrays)))

    def backward(*arrays: Any, wanted: Sequence[bool] = (True,) * n) -> Any:
        xs = [array(x) for _, x in leaves(arrays[:n])]
        of = [k for k, (i, _) in enumerate(given) if checked[k] and wanted[i]]

        def moved(*new: Any) -> Any:
            at = dict(zip(of, new, strict=True))
            return function(*rebuilt(tree, (at.get(k, x) for k, x in enumerate(xs))))

        values, vjp = jax.vjp(moved, *(xs[k] for k in of))
        cotangents = matched(as_tuple(values), arrays[n:], "cotangents") if len(arrays) > n else [1.0]
        weights = (
            np.zeros(y.shape, jax.dtypes.float0) if w is None else jnp.conj(jnp.asarray(w, dtype=y.dtype))
            for (_, y), w in zip(leaves(as_tuple(values)), cotangents, strict=True)
        )
        gradients: list[Any] = [None] * len(xs)
        for k, g in zip(of, vjp(rebuilt(values, weights)), strict=True):
            gradients[k] = host(jnp.conj(g))
        return rebuilt(tree, iter(gradients))

    def taken(x: Any) -> Any:
        return host(x) if hasattr(x, "dtype") or not moves(x) else Constant(x)

    return forward, backward, [_mapped(taken, x) for x in tree]


def from_dlpack(
    function: Function, backward: Function, inputs: Sequence[Any], from_numpy: Callable[[Any], Any]
) -> Checked:
    """A hand-written function and backward of any library's arrays, which are exchanged by DLPack.

    ``from_numpy`` makes an array of the library: ``torch.from_dlpack``, ``jax.dlpack.from_dlpack``. The library's
    arrays must be on the CPU.
    """

    def host(x: Any) -> Any:
        return np.from_dlpack(x) if hasattr(x, "__dlpack__") else x

    def own(x: Any) -> Any:
        return from_numpy(x) if isinstance(x, np.ndarray) else x

    def on_numpy(f: Function) -> Function:
        return lambda *arrays, **options: _mapped(host, f(*_mapped(own, arrays), **options))

    return on_numpy(function), on_numpy(backward), [_mapped(host, x) for x in inputs]
