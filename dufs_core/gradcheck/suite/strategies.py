"""Hypothesis strategies for awkward inputs; a thin layer over the seeded generators of examples.py.

Needs hypothesis (``pip install dufs-core[test]``). Every value is drawn from an integer seed and a kind, so a
failing example is reported as those two and can be drawn again without hypothesis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from dufs_core.gradcheck.suite import examples
from dufs_core.gradcheck.suite.examples import KINDS, Host, Noise, Problem

__all__ = ["KINDS", "affinities", "data_sets", "kinds", "problems", "seeds", "symmetric_matrices"]


def seeds() -> SearchStrategy[int]:
    """Seeds for NumPy's generator."""
    return st.integers(0, 2**32 - 1)


def kinds(*only: str) -> SearchStrategy[str]:
    """One of `examples.KINDS`, or of those named: duplicates, constant columns, near ties, extreme scales, ..."""
    unknown = set(only) - set(KINDS)
    if unknown:
        raise ValueError(f"unknown kind {sorted(unknown)[0]!r}; there are {', '.join(KINDS)}")
    return st.sampled_from(only or KINDS)


def data_sets(only: Sequence[str] = (), n: int | None = None, d: int | None = None) -> SearchStrategy[Host]:
    """Data (n, d) float64; 3 to 9 rows and 1 to 6 columns unless given (n = 2 and d = 1 are kinds of their own)."""

    def draw(seed: int, kind: str) -> Host:
        return examples.data(np.random.default_rng(seed), kind, n, d)

    return st.builds(draw, seeds(), kinds(*only))


def problems(
    only: Sequence[str] = (), noise: Noise | None = None, n: int | None = None, draws: int | None = None
) -> SearchStrategy[Problem]:
    """A whole problem: data, mu, eps away from the gates' kinks, neighbours and bandwidth factor."""

    def draw(seed: int, kind: str, which: Noise) -> Problem:
        return examples.problem(np.random.default_rng(seed), kind, which, n, draws)

    noises: SearchStrategy[Any] = st.sampled_from(("batch", "sample")) if noise is None else st.just(noise)
    return st.builds(draw, seeds(), kinds(*only), noises)


def affinities(only: Sequence[str] = (), n: int | None = None) -> SearchStrategy[tuple[Host, Host, float]]:
    """K, D (n, n) and b, as `examples.affinity`."""

    def draw(seed: int, kind: str) -> tuple[Host, Host, float]:
        return examples.affinity(np.random.default_rng(seed), kind, n)

    return st.builds(draw, seeds(), kinds(*only))


def symmetric_matrices(n: int | None = None) -> SearchStrategy[Host]:
    """Symmetric matrices with normal entries, 2 to 9 rows unless given."""

    def draw(seed: int) -> Host:
        rng = np.random.default_rng(seed)
        size = int(rng.integers(2, 10)) if n is None else n
        return np.asarray(examples.symmetric(rng.standard_normal((size, size))))

    return st.builds(draw, seeds())
