"""The straightforward PyTorch program for the same loss: Gram distances, autograd, draws stacked. A peer, not a part.

What is missing is said by name: without PyTorch, or without its CUDA, the functions return that sentence.
"""

from __future__ import annotations

import time
from importlib.util import find_spec
from statistics import median
from typing import Any


def _torch() -> Any:
    """The module, or why it cannot be a peer here."""
    if find_spec("torch") is None:
        return "left out: PyTorch is not installed"
    import torch

    return torch if torch.cuda.is_available() else "left out: this PyTorch has no CUDA"


def loss(torch: Any, X: Any, mu: Any, eps: Any, C: float = 5.0, k: int = 2, sigma: float = 0.5) -> Any:
    """-mean S / (n sum p) with t = 2 and the largest k-th neighbour's bandwidth; eps (R, d)."""
    n = X.shape[0]
    Xt = X * torch.clamp(mu + sigma * eps, 0.0, 1.0)[:, None, :]  # (R, n, d)
    G = Xt @ Xt.transpose(1, 2)
    g = torch.diagonal(G, dim1=1, dim2=2)
    D = torch.clamp(g[:, :, None] + g[:, None, :] - 2 * G, min=0.0)
    eye = torch.eye(n, dtype=torch.bool, device=X.device)
    D = D.masked_fill(eye, 0.0)
    kth = torch.kthvalue(D.masked_fill(eye, torch.inf), k, dim=2).values
    b = C * kth.max(dim=1).values
    K = torch.exp(-D / b[:, None, None])
    P = K / K.sum(dim=2, keepdim=True)
    S = ((P @ (P @ Xt)) * Xt).sum(dim=(1, 2))
    p = 0.5 + 0.5 * torch.erf(mu / (2**0.5 * sigma))
    return -S.mean() / (n * p.sum() + 1e-6)


def step_times(mu: Any, eps: Any, X: Any, repeats: int) -> dict[str, Any] | str:
    """Median milliseconds of one loss and gradient between CUDA events."""
    torch = _torch()
    if isinstance(torch, str):
        return torch
    device = torch.device("cuda")
    X, eps = (torch.tensor(a.copy(), device=device) for a in (X, eps))
    mu = torch.tensor(mu, device=device, requires_grad=True)

    def step() -> None:
        mu.grad = None
        loss(torch, X, mu, eps).backward()

    for _ in range(3):
        step()
    times = []
    for _ in range(repeats):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        first.record()
        step()
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last))
    return {"median": median(times), "repeats": repeats, "version": torch.__version__}


def fit_seconds(X: Any, steps: int, draws: int, rate: float = 0.005) -> dict[str, Any] | str:
    """Seconds of a plain training loop of so many steps, antithetic draws, gradient divided by its running size."""
    torch = _torch()
    if isinstance(torch, str):
        return torch
    device = torch.device("cuda")
    torch.manual_seed(0)
    start = time.perf_counter()
    X = torch.tensor(X, dtype=torch.float32, device=device)
    X = (X - X.mean(dim=0)) / X.std(dim=0, correction=0)
    mu = torch.full((X.shape[1],), 0.5, device=device, requires_grad=True)
    size = torch.zeros((), device=device)
    for t in range(1, steps + 1):
        half = torch.randn(draws // 2, X.shape[1], device=device)
        mu.grad = None
        loss(torch, X, mu, torch.cat([half, -half]), C=2.0).backward()
        with torch.no_grad():
            size = 0.9 * size + 0.1 * mu.grad.square().mean()
            mu -= rate * mu.grad / torch.sqrt(size / (1 - 0.9**t) + 1e-30)
    torch.cuda.synchronize()
    return {
        "seconds": time.perf_counter() - start,
        "top": torch.argsort(-mu)[:2].tolist(),
        "version": torch.__version__,
    }
