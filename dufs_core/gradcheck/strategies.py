"""Awkward points for hypothesis (``pip install hypothesis``)."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

KINDS = ("plain", "zeros", "ones", "ties", "equal", "large", "small", "decades", "one large", "strided", "read-only")


@st.composite
def points(draw: st.DrawFn, *shapes: tuple[int, ...], kinds: tuple[str, ...] = KINDS) -> tuple[Any, ...]:
    """float64 arrays of these shapes, each of its own kind; hypothesis finds the simplest kinds and seed that fail.

    "ties": few values, many times; "equal": one value; "large", "small": times 1e6, 1e-6; "decades": 1e-6 to 1e6 side
    by side; "one large": one entry a million times the others; "strided": with gaps in memory. A function that has a
    kink at such a point gets the status "kink" from `check_gradient`; ``hypothesis.assume`` skips it.
    """
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return tuple(_array(rng, draw(st.sampled_from(kinds)), shape) for shape in shapes)


def _array(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> Any:
    x = rng.standard_normal(shape)
    if kind in ("zeros", "ones"):
        return np.full(shape, float(kind == "ones"))
    if kind == "ties":
        return np.asarray(rng.integers(-1, 2, shape) * 0.5)
    if kind == "equal":
        return np.full(shape, rng.standard_normal())
    if kind == "decades":
        return np.asarray(x * 10.0 ** rng.uniform(-6, 6, shape))
    if kind == "strided":
        return np.stack([x, x], axis=-1)[..., 0]
    x = np.asarray(x * {"large": 1e6, "small": 1e-6}.get(kind, 1.0))
    if kind == "one large" and x.size:
        x.reshape(-1)[int(rng.integers(x.size))] *= 1e6
    x.flags.writeable = kind != "read-only"
    return x
