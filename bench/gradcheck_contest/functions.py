"""Functions of many kinds with their backward written by hand, right ones; faults.toml says how they are spoiled.

`name_backward(*inputs, *cotangents, **settings)` gives one gradient for each input of `name(*inputs, **settings)`. The
functions, without the backwards, also run on arrays of numbers of 100 digits (truth.py), so zeros_like for zeros.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import erf

Array = Any
Gradients = tuple[Array, ...]
EPSILON = 1e-5  # added to a variance


def softmax(z: Array) -> Array:
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def softmax_cross_entropy(z: Array, *, labels: Array) -> Array:
    e = z - z.max(axis=1, keepdims=True)
    return np.log(np.exp(e).sum(axis=1)) - e[np.arange(len(e)), labels]


def softmax_cross_entropy_backward(z: Array, w: Array, *, labels: Array) -> Gradients:
    p = softmax(z)
    p[np.arange(len(p)), labels] -= 1
    return (p * w[:, None],)


def log_sum_exp(x: Array) -> Array:
    m = x.max(axis=1, keepdims=True)
    return m[:, 0] + np.log(np.exp(x - m).sum(axis=1))


def log_sum_exp_backward(x: Array, w: Array) -> Gradients:
    m = x.max(axis=1, keepdims=True)
    e = np.exp(x - m)
    return (w[:, None] * e / e.sum(axis=1, keepdims=True),)


def layer_norm(x: Array, g: Array, b: Array) -> Array:
    c = x - x.mean(axis=1, keepdims=True)
    return g * c / np.sqrt((c * c).mean(axis=1, keepdims=True) + EPSILON) + b


def layer_norm_backward(x: Array, g: Array, b: Array, w: Array) -> Gradients:
    c = x - x.mean(axis=1, keepdims=True)
    s = np.sqrt((c * c).mean(axis=1, keepdims=True) + EPSILON)
    h, dh = c / s, w * g
    dx = (dh - dh.mean(axis=1, keepdims=True) - h * (dh * h).mean(axis=1, keepdims=True)) / s
    return dx, (w * h).sum(axis=0), w.sum(axis=0)


def batch_norm(x: Array, g: Array, b: Array) -> Array:
    c = x - x.mean(axis=0)
    return g * c / np.sqrt((c * c).mean(axis=0) + EPSILON) + b


def batch_norm_backward(x: Array, g: Array, b: Array, w: Array) -> Gradients:
    c = x - x.mean(axis=0)
    s = np.sqrt((c * c).mean(axis=0) + EPSILON)
    h, dh = c / s, w * g
    dx = (dh - dh.mean(axis=0) - h * (dh * h).mean(axis=0)) / s
    return dx, (w * h).sum(axis=0), w.sum(axis=0)


def linear(x: Array, W: Array, b: Array) -> Array:
    return x @ W + b


def linear_backward(x: Array, W: Array, b: Array, w: Array) -> Gradients:
    return w @ W.T, x.T @ w, w.sum(axis=0)


def convolution(x: Array, k: Array) -> Array:
    m, n = x.shape[0] - k.shape[0] + 1, x.shape[1] - k.shape[1] + 1
    return sum(k[i, j] * x[i : i + m, j : j + n] for i, j in np.ndindex(*k.shape))


def convolution_backward(x: Array, k: Array, w: Array) -> Gradients:
    m, n = w.shape
    dx, dk = np.zeros_like(x), np.zeros_like(k)
    for i, j in np.ndindex(*k.shape):
        dx[i : i + m, j : j + n] += k[i, j] * w
        dk[i, j] = (x[i : i + m, j : j + n] * w).sum()
    return dx, dk


def attention(q: Array, k: Array, v: Array) -> Array:
    return softmax(q @ k.T / np.sqrt(q.shape[1])) @ v


def attention_backward(q: Array, k: Array, v: Array, w: Array) -> Gradients:
    A = softmax(q @ k.T / np.sqrt(q.shape[1]))
    dA = w @ v.T
    dS = A * (dA - (dA * A).sum(axis=1, keepdims=True)) / np.sqrt(q.shape[1])
    return dS @ k, dS.T @ q, A.T @ w


def cholesky_solve(A: Array, b: Array) -> Array:
    L = np.linalg.cholesky((A + A.T) / 2)
    return np.linalg.solve(L.T, np.linalg.solve(L, b))


def cholesky_solve_backward(A: Array, b: Array, w: Array) -> Gradients:
    y, s = cholesky_solve(A, b), cholesky_solve(A, w)
    return -(np.outer(s, y) + np.outer(y, s)) / 2, s


def triangular_solve(L: Array, b: Array) -> Array:
    return np.linalg.solve(np.tril(L), b)


def triangular_solve_backward(L: Array, b: Array, w: Array) -> Gradients:
    s = np.linalg.solve(np.tril(L).T, w)
    return -np.tril(np.outer(s, triangular_solve(L, b))), s


def inverse(A: Array) -> Array:
    return np.linalg.inv(A)


def inverse_backward(A: Array, w: Array) -> Gradients:
    Y = np.linalg.inv(A)
    return (-Y.T @ w @ Y.T,)


def log_determinant(A: Array) -> Array:
    return np.linalg.slogdet(A)[1]


def log_determinant_backward(A: Array, w: Array) -> Gradients:
    return (w[:, None, None] * np.linalg.inv(A).swapaxes(1, 2),)


def sort(x: Array) -> Array:
    return np.sort(x, axis=1)


def sort_backward(x: Array, w: Array) -> Gradients:
    dx = np.zeros_like(x)
    np.put_along_axis(dx, np.argsort(x, axis=1), w, axis=1)
    return (dx,)


def clip(x: Array) -> Array:
    return np.clip(x, -1, 1)


def clip_backward(x: Array, w: Array) -> Gradients:
    return (w * ((x > -1) & (x < 1)),)


def max_pool(x: Array) -> Array:
    return x.reshape(len(x), 2, 3).max(axis=2)


def max_pool_backward(x: Array, w: Array) -> Gradients:
    dx = np.zeros_like(x).reshape(len(x), 2, 3)
    best = x.reshape(dx.shape).argmax(axis=2)
    np.put_along_axis(dx, best[:, :, None], w[:, :, None], axis=2)
    return (dx.reshape(x.shape),)


def norm(x: Array) -> Array:
    return np.sqrt((x * x).sum(axis=1))


def norm_backward(x: Array, w: Array) -> Gradients:
    n = norm(x)[:, None]
    return (w[:, None] * x / np.where(n > 0, n, 1),)


def cosine_similarity(a: Array, b: Array) -> Array:
    return (a * b).sum(axis=1) / (norm(a) * norm(b))


def cosine_similarity_backward(a: Array, b: Array, w: Array) -> Gradients:
    p, q, c = norm(a)[:, None], norm(b)[:, None], cosine_similarity(a, b)[:, None]
    w = w[:, None]
    return w * (b / q - c * a / p) / p, w * (a / p - c * b / q) / q


def scatter_add(x: Array, *, index: Array) -> Array:
    y = np.zeros_like(x, shape=(5,))
    np.add.at(y, index, x)
    return y


def scatter_add_backward(x: Array, w: Array, *, index: Array) -> Gradients:
    return (w[index],)


def gather(x: Array, *, index: Array) -> Array:
    return x[index]


def gather_backward(x: Array, w: Array, *, index: Array) -> Gradients:
    dx = np.zeros_like(x)
    np.add.at(dx, index, w)
    return (dx,)


def cumulative_product(x: Array) -> Array:
    return np.cumprod(x, axis=1)


def cumulative_product_backward(x: Array, w: Array) -> Gradients:
    dx = np.zeros_like(x)
    for j in range(x.shape[1]):
        others = x.copy()
        others[:, j] = 1
        dx[:, j] = (w * np.cumprod(others, axis=1))[:, j:].sum(axis=1)
    return (dx,)


def fft_magnitude(x: Array) -> Array:
    return np.abs(np.fft.rfft(x, axis=1))


def fft_magnitude_backward(x: Array, w: Array) -> Gradients:
    F = np.fft.rfft(x, axis=1)
    size = np.abs(F)
    u = w * F / np.where(size > 0, size, 1)
    return (np.fft.fft(np.conj(u), n=x.shape[1], axis=1).real,)


def interpolate(q: Array, v: Array) -> Array:
    i = np.clip(np.floor(q), 0, len(v) - 2).astype(int)
    t = q - i
    return (1 - t) * v[i] + t * v[i + 1]


def interpolate_backward(q: Array, v: Array, w: Array) -> Gradients:
    i = np.clip(np.floor(q), 0, len(v) - 2).astype(int)
    t, dv = q - i, np.zeros_like(v)
    np.add.at(dv, i, w * (1 - t))
    np.add.at(dv, i + 1, w * t)
    return w * (v[i + 1] - v[i]), dv


def gelu(x: Array) -> Array:
    return x * (1 + erf(x / np.sqrt(2))) / 2


def gelu_backward(x: Array, w: Array) -> Gradients:
    return (w * ((1 + erf(x / np.sqrt(2))) / 2 + x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi)),)


def softplus(x: Array) -> Array:
    return np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0)


def softplus_backward(x: Array, w: Array) -> Gradients:
    e = np.exp(-np.abs(x))
    return (w * np.where(x > 0, 1, e) / (1 + e),)


def huber(x: Array) -> Array:
    return np.where(np.abs(x) < 1, x * x / 2, np.abs(x) - 0.5)


def huber_backward(x: Array, w: Array) -> Gradients:
    return (w * np.clip(x, -1, 1),)


def power(x: Array, p: Array) -> Array:
    return x**p


def power_backward(x: Array, p: Array, w: Array) -> Gradients:
    return w * p * x ** (p - 1), w * x**p * np.log(x)


def polar(r: Array, a: Array) -> tuple[Array, Array]:
    return r * np.cos(a), r * np.sin(a)


def polar_backward(r: Array, a: Array, w: Array, u: Array) -> Gradients:
    return w * np.cos(a) + u * np.sin(a), r * (u * np.cos(a) - w * np.sin(a))
