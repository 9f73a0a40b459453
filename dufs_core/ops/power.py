"""Power of the symmetric affinity: A -> A^t.

Chain:  normalise.py (A)  ->  power.py (A^t)  ->  score.py (S)
"""

from __future__ import annotations

from typing import NamedTuple

from dufs_core.backend import Array, Backend


class Saved(NamedTuple):
    """What forward keeps for backward."""

    powers: list[Array]  # A^1 .. A^(t-1), each (..., n, n); empty when t = 1


def forward(bk: Backend, A: Array, t: int) -> tuple[Array, Saved]:
    """A^t, t >= 1.

    A (..., n, n) symmetric. Returns A^t (..., n, n), symmetric. Raises ValueError when t < 1.
    """
    if t < 1:
        raise ValueError(f"power must be a whole number of at least 1; got {t}")
    powers = [A]
    while len(powers) < t:
        powers.append(bk.xp.matmul(powers[-1], bk.xp.swapaxes(A, -1, -2)))
    return powers[-1], Saved(powers[:-1])


def backward(bk: Backend, saved: Saved, dAt: Array) -> Array:
    """dA = sum over a + b = t - 1 of A^a dAt A^b  (A symmetric; t = 2: A dAt + dAt A).

    dAt (..., n, n) symmetric, so the terms (a, b) and (b, a) are transposes: half of them are computed.
    Returns dA (..., n, n), symmetric.
    """
    xp = bk.xp
    powers = saved.powers
    t = len(powers) + 1
    if t == 1:
        return dAt.copy()
    dA = xp.zeros_like(dAt)
    for a in range((t + 1) // 2, t):  # a > b
        b = t - 1 - a
        term = xp.matmul(powers[a - 1], dAt)
        if b:
            term = xp.matmul(term, powers[b - 1])
        dA += term
    dA = dA + xp.swapaxes(dA, -1, -2)
    if t % 2:  # a = b
        middle = powers[t // 2 - 1]
        dA += xp.matmul(xp.matmul(middle, dAt), middle)
    return dA
