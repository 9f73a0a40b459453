"""One gradient step of the same objective by four programs: ours, featselectlib, PyTorch autograd, JAX.

Parameter-free loss, t = 2, one draw of the gates for the batch, median of the distances to the nearest other row as
bandwidth, factor 2, gradient through the bandwidth, plain SGD, float32, noise drawn anew in every step, gates at 1/2
(the learning rate is too small to move them). Each `*_stepper(n, d)` returns a function that takes `count` steps.

The two autograd programs are as good as we could make them: no n^3 product with a diagonal matrix (featselectlib's
has two, with their derivatives), G = (X w) X' with w = z^2, so that only one factor carries a derivative, and the
score in whichever form needs fewer multiply-adds:

    Gram    sum(G * (P P)')         3 n^3 + 2 n^2 d       (P P: one product forward, two backward)
    narrow  sum((P Xt) * (P' Xt))   8 n^2 d               (two forward, four backward, two for G)
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import distribution
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

import numpy as np

Stepper = Callable[[int], None]
SIGMA, FACTOR, RATE = 0.5, 2.0, 1e-9


def problem(n: int, d: int) -> np.ndarray[Any, Any]:
    """Standard normal data (n, d), float32."""
    return np.random.default_rng(0).normal(size=(n, d)).astype(np.float32)


def narrow(n: int, d: int) -> bool:
    """Which form of the score needs fewer multiply-adds."""
    return 8 * d < 3 * n + 2 * d


def multiply_adds(program: str, n: int, d: int) -> float:
    """What the products of one step need, counted by hand from the program.

    Ours: half of n^2 for each open column in G (84% of the gates at the start) and for each undecided one in the
    gradient (68%), half of n^3 in A^2, n^3 in A H + H A, or 4 n^2 for each open column where these are below n / 3.
    featselectlib: forward D^-1 K, P P, P^2 Xt and Xt Xt', and two products backward for each.
    """
    if program == "ours":
        inside = 4 * n**2 * 0.841 * d if 3 * 0.841 * d < n else 1.5 * n**3
        return inside + 0.5 * n**2 * d * (0.841 + 0.683)
    if program == "featselectlib":
        return 6.0 * n**3 + 6.0 * n**2 * d
    return 8.0 * n**2 * d if narrow(n, d) else 3.0 * n**3 + 2.0 * n**2 * d


def ours_problem(d: int, seed: int = 0) -> Any:
    """The same settings as a `dufs_core.training.loop.RunSpec`."""
    from dufs_core.objective.chain import Objective
    from dufs_core.objective.optimizers import get_optimizer
    from dufs_core.objective.protocol import RunSpec, Schedule

    objective = Objective(bandwidth="median", n_neighbors=1, bandwidth_factor=FACTOR)
    schedule = Schedule(n_draws=1, max_iter=1 << 40, tol=0.0)
    return RunSpec(objective, get_optimizer("sgd", RATE), schedule, seed, np.arange(d))


def ours_stepper(n: int, d: int, threads: int) -> Stepper:
    """The engine that `GatedLaplacian` uses, as its trainer calls it."""
    from dufs_core.backend import get_backend
    from dufs_core.objective.engines.cpu_dense import DenseEngine

    X, task = np.asfortranarray(problem(n, d)), ours_problem(d)
    steps = DenseEngine(threads).steps(get_backend("numpy"), [task], np.full((1, d), 0.5, np.float32))
    assert steps is not None

    def step(count: int) -> None:
        steps.advance(X, np.arange(n), 1, count)

    return step


def gated_laplacian() -> Any:
    """featselectlib's module of that name, loaded by path, for the package does not import as installed."""
    files = distribution("featselectlib").files or []
    path = next(f for f in files if f.name == "gated_laplacian.py").locate()
    spec = spec_from_file_location("gated_laplacian", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def featselectlib_model(d: int, rate: float) -> Any:
    """GatedLaplacianModel. The package does not import as installed: its module is loaded alone."""
    return gated_laplacian().GatedLaplacianModel(input_dim=d, fac=FACTOR, knn=2, learning_rate=rate, verbose=False)


def featselectlib_stepper(n: int, d: int, threads: int, device: str = "cpu") -> Stepper:
    """GatedLaplacianModel.train_step. (Its noise is drawn on the default device, which is set for the process.)"""
    import torch

    torch.set_num_threads(threads)
    torch.set_default_device(device)
    model = featselectlib_model(d, RATE).to(device)
    X = torch.from_numpy(problem(n, d)).to(device)

    def step(count: int) -> None:
        for _ in range(count):
            model.train_step(X)

    return step


def torch_stepper(n: int, d: int, threads: int, compiled: bool, device: str = "cpu") -> Stepper:
    """Autograd as good as we can make it; `compiled`: through torch.compile."""
    import torch

    torch.set_num_threads(threads)
    X = torch.from_numpy(problem(n, d)).to(device)
    Xt = X.T.contiguous()
    mu = torch.full((d,), 0.5, requires_grad=True, device=device)
    use_narrow, root = narrow(n, d), SIGMA * 2**0.5

    def loss(mu: Any, eps: Any) -> Any:
        z = torch.clamp(mu + SIGMA * eps, 0, 1)
        G = (X * (z * z)) @ Xt
        g = torch.diagonal(G)
        D = torch.relu(g[:, None] + g[None, :] - 2 * G)
        nearest = torch.topk(D.detach(), 2, dim=1, largest=False).indices[:, 1]
        distance = torch.gather(D, 1, nearest[:, None])[:, 0]
        ordered = torch.sort(distance).values
        s = 0.5 * (ordered[(n - 1) // 2] + ordered[n // 2])
        K = torch.exp(D * (-1 / (FACTOR * s)))
        deg = K.sum(dim=1)
        if use_narrow:
            gated = X * z
            score = torch.sum((K @ gated / deg[:, None]) * (K @ (gated / deg[:, None])))
        else:
            P = K / deg[:, None]
            score = torch.sum(G * (P @ P))  # G is symmetric
        sum_p = 0.5 * (1 + torch.erf(mu / root)).sum()
        return -score / (n * sum_p + 1e-6)

    run = torch.compile(loss) if compiled else loss

    def step(count: int) -> None:
        for _ in range(count):
            mu.grad = None
            run(mu, torch.randn(d, device=device)).backward()
            with torch.no_grad():
                mu.sub_(mu.grad, alpha=RATE)

    return step


def keops_stepper(n: int, d: int, threads: int) -> Stepper:
    """The score and its gradient through pykeops: lazy products, autograd, O(n d) memory, the bandwidth given."""
    import torch
    from pykeops.torch import LazyTensor

    torch.set_num_threads(threads)
    X = torch.from_numpy(problem(n, d))
    mu = torch.full((d,), 0.5, requires_grad=True)

    def step(count: int) -> None:
        for _ in range(count):
            mu.grad = None
            z = torch.clamp(mu + SIGMA * torch.randn(d), 0, 1)
            Xt = X * z
            b = 2.0 * (z.detach() ** 2).sum()
            K = (-((LazyTensor(Xt[:, None, :]) - LazyTensor(Xt[None, :, :])) ** 2).sum(-1) / b).exp()
            deg = K.sum(1)
            score = ((K @ Xt / deg) * (K @ (Xt / deg))).sum()
            (-score / (n * 0.5 * (1 + torch.erf(mu / (SIGMA * 2**0.5))).sum())).backward()
            with torch.no_grad():
                mu.sub_(mu.grad, alpha=RATE)

    return step


def jax_stepper(n: int, d: int, threads: int) -> Stepper:
    """The same program in JAX, jitted, noise and update included. (XLA takes all cores; run it on as many.)"""
    import jax
    import jax.numpy as jnp

    X = jnp.asarray(problem(n, d))
    use_narrow = narrow(n, d)

    def loss(mu: Any, eps: Any) -> Any:
        z = jnp.clip(mu + SIGMA * eps, 0, 1)
        G = (X * (z * z)) @ X.T
        g = jnp.diagonal(G)
        D = jnp.maximum(g[:, None] + g[None, :] - 2 * G, 0)
        others = jax.lax.stop_gradient(D) + jnp.where(jnp.eye(n, dtype=bool), jnp.inf, 0)
        distance = jnp.take_along_axis(D, jnp.argmin(others, axis=1)[:, None], axis=1)[:, 0]
        ordered = jnp.sort(distance)
        s = 0.5 * (ordered[(n - 1) // 2] + ordered[n // 2])
        K = jnp.exp(D * (-1 / (FACTOR * s)))
        deg = K.sum(axis=1)
        if use_narrow:
            gated = X * z
            score = jnp.sum((K @ gated / deg[:, None]) * (K @ (gated / deg[:, None])))
        else:
            P = K / deg[:, None]
            score = jnp.sum(G * (P @ P))
        sum_p = jax.scipy.stats.norm.cdf(mu / SIGMA).sum()
        return -score / (n * sum_p + 1e-6)

    gradient = jax.grad(loss)

    @jax.jit
    def one(mu: Any, key: Any) -> Any:
        key, used = jax.random.split(key)
        return mu - RATE * gradient(mu, jax.random.normal(used, (d,))), key

    state = [jnp.full(d, 0.5, jnp.float32), jax.random.key(0)]

    def step(count: int) -> None:
        for _ in range(count):
            state[:] = one(*state)
        state[0].block_until_ready()

    return step
