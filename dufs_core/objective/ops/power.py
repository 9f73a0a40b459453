"""Power of the symmetric affinity: A -> A^t."""

from __future__ import annotations

from typing import NamedTuple

from dufs_core.backend import Array, Backend


class Saved(NamedTuple):
    powers: list[Array]  # A^1 .. A^(t-1), each (..., n, n); empty when t = 1


def forward(bk: Backend, A: Array, t: int) -> tuple[Array, Saved]:
    """A^t, t >= 1.

    A (..., n, n) symmetric. Returns A^t (..., n, n), symmetric. Raises ValueError when t < 1.
    """
    if t < 1:
        raise ValueError(f"power must be a whole number of at least 1; got {t}")
    powers = [A]
    while len(powers) < t:  # times A': the same matrix, but BLAS then knows that the square is symmetric
        powers.append(bk.xp.matmul(powers[-1], bk.xp.swapaxes(A, -1, -2)))
    return powers[-1], Saved(powers[:-1])


def backward(bk: Backend, saved: Saved, dAt: Array) -> Array:
    """dA = sum over a + b = t - 1 of A^a dAt A^b  (A symmetric; t = 2: A dAt + dAt A).

    dAt (..., n, n) symmetric. Returns dA (..., n, n), symmetric.
    """
    half = backward_half(bk, saved, dAt)
    return half + bk.xp.swapaxes(half, -1, -2)


def backward_half(bk: Backend, saved: Saved, dAt: Array) -> Array:
    """T with dA = T + T': the terms a > b, whose transposes are those with a < b, and half the term a = b."""
    powers, t, T = saved.powers, len(saved.powers) + 1, None
    for a in range(t // 2, t):
        b = t - 1 - a  # at most a
        term = bk.xp.matmul(powers[a - 1], dAt) if a else dAt
        if b:
            term = bk.xp.matmul(term, powers[b - 1])
        if a == b:
            term = term * 0.5
        T = term if T is None else T + term
    return T
