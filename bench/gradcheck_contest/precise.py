"""functions.py on numbers of 100 digits: its derivatives to 40 digits, on both sides of a point."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from mpmath import MPContext

Array = Any
mp = MPContext()
mp.dps = 100
STEP = mp.mpf(10) ** -40  # of the largest input


def _each(name: str) -> Any:
    return np.frompyfunc(getattr(mp, name), 1, 1)


def _matrix(A: Array) -> Any:
    return mp.matrix(A.tolist())


def _array(M: Any, shape: tuple[int, ...]) -> Array:
    return np.array(M.tolist(), dtype=object).reshape(shape)


def _rfft(x: Array, axis: int) -> Array:
    n = x.shape[axis]
    waves = [[mp.expjpi(mp.mpf(-2 * j * k) / n) for k in range(n // 2 + 1)] for j in range(n)]
    return x @ np.array(waves, dtype=object)


def _log_determinants(A: Array) -> tuple[None, Array]:
    return None, np.array([mp.log(abs(mp.det(_matrix(a)))) for a in A] or np.zeros(0), dtype=object)


class _Numpy:
    """NumPy with what is missing for arrays of objects."""

    exp, log, log1p, sqrt, cos, sin, floor = map(_each, ("exp", "log", "log1p", "sqrt", "cos", "sin", "floor"))
    fft = SimpleNamespace(rfft=_rfft)
    linalg = SimpleNamespace(
        inv=lambda A: _array(mp.inverse(_matrix(A)), A.shape) if A.size else A,
        solve=lambda A, b: _array(mp.lu_solve(_matrix(A), _matrix(b)), b.shape) if A.size else b,
        cholesky=lambda A: _array(mp.cholesky(_matrix(A)), A.shape) if A.size else A,
        slogdet=_log_determinants,
    )

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


def load() -> dict[str, Any]:
    """The functions of functions.py for arrays of numbers of 100 digits."""
    names: dict[str, Any] = {}
    path = Path(__file__).with_name("functions.py")
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), names)
    names.update(np=_Numpy(), erf=_each("erf"))
    return names


def exact(x: Array) -> Array:
    return np.frompyfunc(mp.mpf, 1, 1)(np.asarray(x, dtype=object)) if np.size(x) else np.asarray(x, dtype=object)


def slopes(function: Any, inputs: tuple[Array, ...], w: tuple[Array, ...], v: tuple[Array, ...]) -> tuple[float, float]:
    """One-sided slopes of sum(w f) along v."""
    largest = max((float(np.abs(x).max(initial=0.0)) for x in inputs), default=0.0) or 1.0
    h, values = STEP * largest, []
    for t in (-h, mp.mpf(0), h):
        y = function(*(exact(x) + t * exact(u) for x, u in zip(inputs, v, strict=True)))
        y = y if isinstance(y, tuple) else (y,)
        values.append(sum((mp.mpf(np.sum(exact(c) * part)) for c, part in zip(w, y, strict=True)), mp.mpf(0)))
    return float((values[1] - values[0]) / h), float((values[2] - values[1]) / h)
