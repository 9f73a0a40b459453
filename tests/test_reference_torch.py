"""Where PyTorch is installed: autograd of an independent program of the same loss, against library and reference."""

from __future__ import annotations

import generators as gen
import numpy as np
import pytest
import reference

from dufs_core import GatedLaplacian
from dufs_core.backend import get_backend, random
from dufs_core.objective.chain import Objective
from dufs_core.objective.engines.choose import ENGINES, get_engine
from dufs_core.training.loop import initial_mu

torch = pytest.importorskip("torch", reason="PyTorch is not installed: the comparison with its autograd is left out")
bk = get_backend("numpy")
engines = pytest.mark.parametrize("engine", ENGINES)


def torch_loss(X, mu, eps, *, lam, delta, rule, k, C, t, count_self=False, tiny=None):
    """One draw, from direct differences, with whatever autograd makes of sort, median, max and clamp."""
    n = X.shape[0]
    Xt = X * torch.clamp(mu + 0.5 * eps, 0.0, 1.0)
    D = (Xt[:, None, :] - Xt[None, :, :]).square().sum(dim=2)
    if rule == "fixed":
        b = torch.as_tensor(C, dtype=X.dtype)
    else:
        others = D + torch.diag(torch.full((n,), 0.0 if count_self else torch.inf, dtype=X.dtype))
        kth = torch.sort(others, dim=1).values[:, k - 1]
        if rule == "max":
            s = kth.max()
        else:
            ordered = torch.sort(kth).values
            s = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
        if tiny is not None and s < tiny:
            s = torch.ones((), dtype=X.dtype)
        b = C * s
    K = torch.exp(-D / b)
    P = K / K.sum(dim=1, keepdim=True)
    S = (torch.linalg.matrix_power(P, t) @ Xt * Xt).sum()
    total = torch.distributions.Normal(0.0, 1.0, validate_args=False).cdf(mu / 0.5).sum()
    return -S / (n * total + delta) if lam is None else -S / n + lam * total


def torch_value_and_grad(X, mu, draws, **settings):
    """Mean over draws."""
    mu = torch.tensor(mu, requires_grad=True)
    X, draws = torch.tensor(np.ascontiguousarray(X)), torch.tensor(draws)
    loss = sum(torch_loss(X, mu, eps, **settings) for eps in draws) / len(draws)
    loss.backward()
    return loss.item(), mu.grad.numpy()


CASES = [  # rule, k, C, t, lam
    ("max", 2, 5.0, 2, None),
    ("max", 1, 2.0, 3, 0.2),
    ("median", 1, 1.0, 2, None),
    ("median", 3, 5.0, 1, 0.05),
    ("fixed", 2, 1.3, 5, None),
]


@pytest.mark.parametrize(("engine", "per_sample"), [*((name, False) for name in ENGINES), ("reference", True)])
@pytest.mark.parametrize(("n", "d"), [(60, 20), (41, 7)])
@pytest.mark.parametrize(("rule", "k", "C", "t", "lam"), CASES)
def test_library_against_autograd(engine, per_sample, n, d, rule, k, C, t, lam):
    rng = np.random.default_rng(n + t)
    X, mu = gen.noise(n, d, n), rng.normal(0.5, 0.3, size=d)
    eps = gen.draws(t, d, n if per_sample else None, count=2)
    objective = Objective(
        lam=lam, delta=1e-3, power=t, bandwidth=C if rule == "fixed" else rule, n_neighbors=k, bandwidth_factor=C,
    )  # fmt: skip
    evaluate = get_engine(engine, bk, 1)
    value, dmu = evaluate(bk, objective, mu, eps, X)
    want, want_dmu = torch_value_and_grad(X, mu, eps, lam=lam, delta=1e-3, rule=rule, k=k, C=C, t=t)
    assert value.loss == pytest.approx(want, rel=1e-12)
    gen.assert_close(dmu, want_dmu, 1e-11)


@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize(("rule", "k", "C", "t", "lam"), CASES)
def test_reference_against_autograd(per_sample, rule, k, C, t, lam):
    n, d = 11, 4
    X, mu = gen.noise(n, d, 3), np.random.default_rng(t).normal(0.5, 0.3, size=d)
    eps = gen.draws(t, d, n if per_sample else None, count=2)
    value, gradient = reference.mean_value_and_grad(
        X, mu, eps, lam=lam, delta=1e-3, rule=rule, k=k, C=C, t=t,
        fixed=C if rule == "fixed" else None,
    )  # fmt: skip
    want, want_dmu = torch_value_and_grad(X, mu, eps, lam=lam, delta=1e-3, rule=rule, k=k, C=C, t=t)
    assert value == pytest.approx(want, rel=1e-13)
    gen.assert_close(gradient, want_dmu, 1e-12)


@pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")
@pytest.mark.parametrize(
    ("preset", "engine"),
    [*(("paper", engine) for engine in ENGINES), ("authors_code", "reference")],  # one gate a sample: that one alone
)
@pytest.mark.parametrize("lam", [None, 0.1])
def test_presets_against_torch_sgd(engine, preset, lam):
    """Steps of torch.optim.SGD on the same draws: the published loss, with its own scaling and neighbour count."""
    n, d, steps, authors = 40, 8, 40, preset == "authors_code"
    X, columns = gen.three_clusters(n, d, seed=2).X, np.arange(d)
    rate = 0.1 if lam is not None and not authors else 0.5
    path = []
    GatedLaplacian.preset(
        preset,
        lam=lam,
        learning_rate=rate,
        engine=engine,
        dtype="float64",
        random_state=5,
        max_iter=steps,
        tol=0.0,
        callbacks=[lambda info: path.append(info.mu.copy())],
    ).fit(X)

    mu = torch.tensor(initial_mu(bk, 5, columns, np.float64, noisy_start=authors), requires_grad=True)
    optimizer = torch.optim.SGD([mu], lr=rate)
    data = torch.tensor(np.ascontiguousarray(X))
    settings = (
        dict(rule="median", k=2, count_self=True, C=1.0, delta=1e-6 * n * d, tiny=1e-8)
        if authors
        else dict(rule="max", k=2, C=5.0, delta=1e-6)
    )
    rows = np.arange(n) if authors else None
    for step, after in enumerate(path, start=1):
        eps = random.normals(bk, 5, random.Stream.GATES, step, 1, rows, columns, np.float64)[0]
        loss = torch_loss(data, mu, torch.tensor(eps), lam=lam, t=2, **settings)
        if authors and lam is not None:
            loss = loss / d
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        gen.assert_close(after, mu.detach().numpy(), 1e-10, f"mu after step {step}")
    assert len(path) >= 15
    assert np.abs(path[-1] - 0.5).max() > 0.05
