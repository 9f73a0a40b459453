"""The whole chain once more, slow and plain: float64, Python loops, direct differences, nothing from the library.

    u = mu + sigma eps,  z = clip(u, 0, 1),  Xt = X z,  D = squared differences,  b = C s,  K = exp(-D / b),
    P = K / rowsums,  S = sum_ij (P^t)_ij Xt_i . Xt_j,  p = Phi(mu / sigma)
    with a saturation: S = sum_ij (P^t)_ij Y_i . Xt_j,  (G + nu I) Y = nu Xt,  G = Xt Xt',  nu = n saturation

The only derivation is the forward pass. Its derivative is taken by the complex step: mu_k is replaced by
mu_k + 1e-30 i and the imaginary part of the loss is read off, which is the derivative to rounding, without a
difference and without a formula for it. Comparisons (clip, neighbours, the middle of a sorted list, floors) look
at real parts only, so the slope is that of the piece on which the point lies; inside a kink it is 0.

Two trainers stand at the end, one per preset. They take their noise, start and rows as arrays and return every mu.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

STEP = 1e-30
EPSILON, TINY = 2.0**-52, 2.0**-511


class Chain(NamedTuple):
    """Every intermediate of one evaluation, as nested lists of Python complex numbers."""

    z: list  # (n, d) gates, one row per sample even when the rows are equal
    Xt: list  # (n, d)
    D: list  # (n, n)
    s: complex
    b: complex
    K: list  # (n, n)
    P: list  # (n, n)
    Pt: list  # (n, n)
    S: complex
    p: list  # (d,)
    loss: complex


def real(values):
    """The real part of a nested list, as a float64 array."""
    return np.real(np.array(values, dtype=np.complex128))


# --- the operations, in order ---------------------------------------------------------------------------------------


def gate(mu: complex, eps: float, sigma: float) -> complex:
    """clip(mu + sigma eps, 0, 1); a clipped gate is a constant, at the kinks too."""
    u = mu + sigma * eps
    if u.real <= 0.0:
        return 0.0
    if u.real >= 1.0:
        return 1.0
    return u


def gates(mu: Sequence, eps: np.ndarray, sigma: float, n: int) -> list:
    """eps (d,): the same noise for every sample; eps (n, d): each sample its own."""
    d = len(mu)
    rows = []
    for i in range(n):
        noise = eps if np.ndim(eps) == 1 else eps[i]
        rows.append([gate(mu[k], float(noise[k]), sigma) for k in range(d)])
    return rows


def squared_distances(X: list) -> list:
    """D_ij = sum_k (X_ik - X_jk)^2 by differences; the diagonal is 0 by construction."""
    n = len(X)
    D = [[0.0] * n for _ in range(n)]
    for i in range(n):
        for j in range(i + 1, n):
            total = 0.0
            for a, b in zip(X[i], X[j], strict=True):
                total += (a - b) * (a - b)
            D[i][j] = D[j][i] = total
    return D


def kth_neighbour(D: list, i: int, k: int, count_self: bool) -> int:
    """Index of row i's k-th neighbour. The point itself is known by its index, never by its distance.

    count_self: the point is its own first neighbour, so the k-th is the (k-1)-th other one.
    """
    n = len(D)
    others = sorted((j for j in range(n) if j != i), key=lambda j: (D[i][j].real, j))
    order = [i, *others] if count_self else others
    if not 1 <= k <= len(order):
        raise ValueError(f"k = {k} is outside 1..{len(order)}")
    return order[k - 1]


def kth_distances(D: list, k: int, count_self: bool = False) -> list:
    return [D[i][kth_neighbour(D, i, k, count_self)] for i in range(len(D))]


def middle(values: list) -> complex:
    """Median by sorting; an even list gives the mean of the two middle values."""
    order = sorted(values, key=lambda v: v.real)
    n = len(order)
    if n % 2 == 1:
        return order[n // 2]
    return (order[n // 2 - 1] + order[n // 2]) / 2.0


def upper_decile(values: list) -> complex:
    """The 0.9 quantile: position 0.9 (n - 1) of the sorted list, linear between the two entries around it."""
    order = sorted(values, key=lambda v: v.real)
    position = 0.9 * (len(order) - 1)
    low = math.floor(position)
    high = min(low + 1, len(order) - 1)
    return order[low] + (position - low) * (order[high] - order[low])


def scale(D: list, rule: str, k: int, count_self: bool = False, degenerate_rule: str = "ours") -> complex:
    """s from the k-th neighbours' squared distances.

    ours: where s <= max(4 eps max(D), sqrt(smallest normal number)), the smallest k-th distance above that floor,
    else the floor, else (every distance 0) 1.
    authors: s < 1e-8 becomes 1.
    """
    kth = kth_distances(D, k, count_self)
    if rule == "median":
        s = middle(kth)
    elif rule == "max":
        s = max(kth, key=lambda v: v.real)
    elif rule == "q90":
        s = upper_decile(kth)
    else:
        raise ValueError(rule)
    if degenerate_rule == "authors":
        return 1.0 if s.real < 1e-8 else s
    largest = max(entry.real for row in D for entry in row)
    floor = max(4.0 * EPSILON * largest, TINY)
    if s.real > floor:
        return s
    above = [v for v in kth if v.real > floor]
    if above:
        return min(above, key=lambda v: v.real)
    return floor if largest > 0.0 else 1.0


def kernel(D: list, b: complex) -> list:
    """K_ij = exp(-D_ij / b)."""
    return [[cmath.exp(-entry / b) for entry in row] for row in D]


def normalise(K: list) -> list:
    """P_ij = K_ij / sum_j K_ij."""
    P = []
    for row in K:
        total = sum(row)
        P.append([entry / total for entry in row])
    return P


def matmul(A: list, B: list) -> list:
    columns = list(zip(*B, strict=True))
    return [[sum(a * b for a, b in zip(row, column, strict=True)) for column in columns] for row in A]


def power(P: list, t: int) -> list:
    """P multiplied by itself t - 1 times."""
    Pt = P
    for _ in range(t - 1):
        Pt = matmul(Pt, P)
    return Pt


def saturated(Xt: list, nu: float) -> list:
    """Y with (Xt Xt' + nu I) Y = nu Xt, by elimination."""
    n = len(Xt)
    rows = []
    for i in range(n):
        left = [sum(a * b for a, b in zip(Xt[i], Xt[j], strict=True)) + (nu if i == j else 0.0) for j in range(n)]
        rows.append(left + [nu * a for a in Xt[i]])
    for p in range(n):
        rows[p] = [entry / rows[p][p] for entry in rows[p]]
        for i in range(n):
            if i != p:
                factor = rows[i][p]
                rows[i] = [a - factor * b for a, b in zip(rows[i], rows[p], strict=True)]
    return [row[n:] for row in rows]


def score(Pt: list, Xt: list, Y: list | None = None) -> complex:
    """S = Tr(Y' P^t Xt) = sum_ij (P^t)_ij Y_i . Xt_j; without a saturation Y is Xt."""
    total = 0.0
    Y = Xt if Y is None else Y
    for i, row in enumerate(Pt):
        for j, weight in enumerate(row):
            dot = 0.0
            for a, b in zip(Y[i], Xt[j], strict=True):
                dot += a * b
            total += weight * dot
    return total


def erf(x: complex) -> complex:
    """erf on the real axis, with its slope 2 exp(-x^2) / sqrt(pi) times the (infinitesimal) imaginary part."""
    x = complex(x)
    return complex(math.erf(x.real), 2.0 / math.sqrt(math.pi) * math.exp(-(x.real**2)) * x.imag)


def probabilities(mu: Sequence, sigma: float) -> list:
    """p_k = P(Z_k > 0) = 1/2 + erf(mu_k / (sqrt(2) sigma)) / 2."""
    return [0.5 + 0.5 * erf(m / (math.sqrt(2.0) * sigma)) for m in mu]


def loss_of(S: complex, p: list, n: int, lam: float | None, delta: float) -> complex:
    """lam a number: -S / n + lam sum(p).  lam None: -S / (n sum(p) + delta)."""
    if lam is None:
        return -S / (n * sum(p) + delta)
    return -S / n + lam * sum(p)


# --- the chain ------------------------------------------------------------------------------------------------------


def chain(
    X,
    mu,
    eps,
    *,
    lam: float | None = None,
    delta: float = 0.0,
    sigma: float = 0.5,
    rule: str = "max",
    k: int = 2,
    count_self: bool = False,
    C: float = 5.0,
    t: int = 2,
    fixed: float | None = None,
    through_bandwidth: bool = True,
    degenerate_rule: str = "ours",
    own: float = 1.0,
    saturation: float | None = None,
) -> Chain:
    """One evaluation. rule "fixed" uses b = fixed and ignores k and C."""
    X = [[float(v) for v in row] for row in np.asarray(X, dtype=np.float64)]
    n = len(X)
    z = gates(mu, np.asarray(eps, dtype=np.float64), sigma, n)
    Xt = [[x * g for x, g in zip(X[i], z[i], strict=True)] for i in range(n)]
    D = squared_distances(Xt)
    if rule == "fixed":
        s, b = fixed, fixed
    else:
        s = scale(D, rule, k, count_self, degenerate_rule)
        if not through_bandwidth:
            s = s.real
        b = C * s
    K = kernel(D, b)
    for i in range(n):
        K[i][i] = own
    P = normalise(K)
    Pt = power(P, t)
    S = score(Pt, Xt, None if saturation is None else saturated(Xt, n * saturation))
    p = probabilities(mu, sigma)
    return Chain(z, Xt, D, s, b, K, P, Pt, S, p, loss_of(S, p, n, lam, delta))


def value_and_grad(X, mu, eps, **settings) -> tuple[float, np.ndarray]:
    """Loss and its gradient in mu for one draw of the noise."""
    mu = [float(m) for m in mu]
    value = complex(chain(X, mu, eps, **settings).loss).real
    gradient = np.empty(len(mu))
    for k in range(len(mu)):
        shifted: list = list(mu)
        shifted[k] = complex(mu[k], STEP)
        gradient[k] = complex(chain(X, shifted, eps, **settings).loss).imag / STEP
    return value, gradient


def mean_value_and_grad(X, mu, draws, **settings) -> tuple[float, np.ndarray]:
    """The average over several draws of the noise; draws (m, d) or (m, n, d)."""
    results = [value_and_grad(X, mu, eps, **settings) for eps in draws]
    return sum(v for v, _ in results) / len(results), sum(g for _, g in results) / len(results)


# --- the two published set-ups, step by step ------------------------------------------------------------------------


class Run(NamedTuple):
    mu: np.ndarray  # (steps + 1, d), the start first
    loss: np.ndarray  # (steps,), each before its step


def train_paper(X, noise, rows, *, rate, lam=None, delta=0.0, C=5.0, k=2) -> Run:
    """The paper: one noise vector for the batch, the farthest k-th other neighbour, plain gradient descent from 0.5.

    noise (steps, d); rows: the row indices of every step's batch.
    """
    X = np.asarray(X, dtype=np.float64)
    mu = [0.5] * X.shape[1]
    path, losses = [list(mu)], []
    for eps, batch in zip(noise, rows, strict=True):
        value, gradient = value_and_grad(
            X[batch], mu, eps, lam=lam, delta=delta, sigma=0.5, rule="max", k=k, count_self=False, C=C, t=2
        )
        mu = [m - rate * g for m, g in zip(mu, gradient, strict=True)]
        path.append(list(mu))
        losses.append(value)
    return Run(np.array(path), np.array(losses))


def train_authors_code(X, noise, start, rows, *, rate, lam=None, C=1.0, k=2) -> Run:
    """The published program: noise per sample, median bandwidth counting the point itself, losses averaged over d.

    regularised: (-S / n + lam sum p) / d;  parameter-free: -(S / (n d)) / (mean(p) + 1e-6).
    noise (steps, m, d); start (d,); rows: wrapping_rows(...), every batch of the same size.
    """
    X = np.asarray(X, dtype=np.float64)
    d = X.shape[1]
    mu = [float(m) for m in start]
    path, losses = [list(mu)], []

    def loss(point, eps, batch):
        c = chain(
            X[batch], point, eps, sigma=0.5, rule="median", k=k, count_self=True, C=C, t=2, degenerate_rule="authors"
        )
        mean_score = -c.S / (len(batch) * d)
        mean_p = sum(c.p) / d
        if lam is None:
            return complex(mean_score / (mean_p + 1e-6))
        return complex(mean_score + lam * mean_p)

    for eps, batch in zip(noise, rows, strict=True):
        gradient = []
        for j in range(d):
            shifted: list = list(mu)
            shifted[j] = complex(mu[j], STEP)
            gradient.append(loss(shifted, eps, batch).imag / STEP)
        losses.append(loss(mu, eps, batch).real)
        mu = [m - rate * g for m, g in zip(mu, gradient, strict=True)]
        path.append(list(mu))
    return Run(np.array(path), np.array(losses))


def wrapping_rows(shuffles, size: int, steps: int) -> list[np.ndarray]:
    """Batches cut one after another from the endless list of shuffles, so that each has exactly `size` rows.

    A batch that meets the end of one shuffle takes its remaining rows from the start of the next.
    """
    endless = np.concatenate([np.asarray(s) for s in shuffles])
    if endless.size < size * steps:
        raise ValueError("too few shuffles")
    return [endless[i * size : (i + 1) * size] for i in range(steps)]


def truncated_start(attempts) -> np.ndarray:
    """0.5 + 0.01 g, where g_k is the first entry of column k of attempts (m, d) within two standard deviations."""
    start = []
    for column in np.asarray(attempts, dtype=np.float64).T:
        kept = [g for g in column if abs(g) <= 2.0]
        if not kept:
            raise ValueError("too few attempts")
        start.append(0.5 + 0.01 * kept[0])
    return np.array(start)
