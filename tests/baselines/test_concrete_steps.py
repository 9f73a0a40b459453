"""Compiled steps of the concrete autoencoder beside the plain ones: the same bits."""

from __future__ import annotations

import numpy as np
import pytest

from dufs_core.backend import get_backend
from dufs_core.backend.random import Stream, uniforms
from dufs_core.baselines.concrete_autoencoder import initial_parameters
from dufs_core.baselines.concrete_steps import _BLOCK, CompiledSteps, PlainSteps
from dufs_core.kernels import concrete as kernels

bk = get_backend("numpy")
SHAPES = [(1, 1, ()), (3, 17, ()), (6, 33, (5,)), (9, _BLOCK // 4, ()), (2, _BLOCK + 5, ()), (5, 16, (4, 3))]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("k", "d", "hidden"), SHAPES)
def test_compiled_steps_are_the_plain_ones(k, d, hidden, dtype):
    """Odd sizes, one and many blocks of rows, hot and cold, moderate and huge logits, a seed of 64 bits."""
    rng = np.random.default_rng(d)
    seed, columns = 2**63 + 12345, rng.permutation(2 * d)[:d]
    start = initial_parameters(bk, seed, k, columns, hidden, dtype)
    start[0][k // 2] *= dtype(1e4)
    before = [p.copy() for p in start]
    plain, compiled = (kind(bk, start, columns, seed, 0.05) for kind in (PlainSteps, CompiledSteps))
    for temperature in (10.0, 0.5, 0.01):
        X = rng.normal(size=(7, d)).astype(dtype)
        assert plain.advance(X, temperature) == compiled.advance(X, temperature)
        for a, b in zip(plain.parameters, compiled.parameters, strict=True):
            assert a.dtype == b.dtype == dtype
            np.testing.assert_array_equal(a, b)
    for a, b in zip(start, before, strict=True):
        np.testing.assert_array_equal(a, b)
    for moved, given in zip(compiled.parameters[1:], start[1:], strict=True):  # the logits of one column never move
        assert (moved != given).any()


def test_uniforms_of_every_draw():
    """1 to 9 draws, and the bound where it bites."""
    columns = np.array([0, 3, 2**31, 2**32 - 1], np.uint64)
    for k in range(1, 10):
        expected = uniforms(bk, 7, Stream.GUMBEL, 11, k, columns)
        for bound in (0.5, 1.0):
            out, words = np.empty((k, 4)), np.empty((4, 4), np.uint32)
            kernels.uniforms(
                np.uint64(7), np.uint64(Stream.GUMBEL), np.uint64(11), columns, np.float64(bound), words, out
            )
            np.testing.assert_array_equal(out, np.minimum(expected, bound))
