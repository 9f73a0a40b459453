"""Hypothesis strategies for the awkward inputs of examples.py (``pip install dufs-core[test]``).

Every value is drawn from an integer seed and a kind: a failing example can be drawn again without hypothesis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from dufs_core.gradcheck.suite import examples
from dufs_core.gradcheck.suite.examples import KINDS, Host, Noise, Problem


def kinds(*only: str) -> SearchStrategy[str]:
    """One of `examples.KINDS`, or of those named."""
    unknown = set(only) - set(KINDS)
    if unknown:
        raise ValueError(f"unknown kind {sorted(unknown)[0]!r}; there are {', '.join(KINDS)}")
    return st.sampled_from(only or KINDS)


def _seeded(make: Callable[..., Any], *arguments: SearchStrategy[Any]) -> SearchStrategy[Any]:
    """make(generator, ...) with what the strategies give."""
    return st.builds(make, st.builds(np.random.default_rng, st.integers(0, 2**32 - 1)), *arguments)


def data_sets(only: Sequence[str] = (), n: int | None = None, d: int | None = None) -> SearchStrategy[Host]:
    """Data (n, d) float64; 3 to 9 rows and 1 to 6 columns unless given (n = 2 and d = 1 are kinds of their own)."""
    return _seeded(partial(examples.data, n=n, d=d), kinds(*only))


def problems(
    only: Sequence[str] = (), noise: Noise | None = None, n: int | None = None, draws: int | None = None
) -> SearchStrategy[Problem]:
    """A whole problem: data, mu, eps away from the gates' kinks, neighbours and bandwidth factor."""
    noises = st.sampled_from(("batch", "sample") if noise is None else (noise,))
    return _seeded(partial(examples.problem, n=n, draws=draws), kinds(*only), noises)


def affinities(only: Sequence[str] = (), n: int | None = None) -> SearchStrategy[tuple[Host, Host, float]]:
    """K, D (n, n) and b, as `examples.affinity`."""
    return _seeded(partial(examples.affinity, n=n), kinds(*only))


def symmetric_matrices(n: int | None = None) -> SearchStrategy[Host]:
    """Symmetric matrices with normal entries, 2 to 9 rows unless given."""

    def draw(rng: np.random.Generator) -> Host:
        size = int(rng.integers(2, 10)) if n is None else n
        return np.asarray(examples.symmetric(rng.standard_normal((size, size))))

    return _seeded(draw)
