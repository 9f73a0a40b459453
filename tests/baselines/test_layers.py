"""The layers of the concrete autoencoder by hand; their gradients are checked with every other operation's."""

from __future__ import annotations

import numpy as np

from dufs_core.backend import get_backend
from dufs_core.baselines.concrete_autoencoder import aligned
from dufs_core.baselines.concrete_network import (
    affine_backward,
    affine_forward,
    error_backward,
    error_forward,
    leaky_backward,
    leaky_forward,
    select_backward,
    select_forward,
    softmax,
    value_and_grad,
)

bk = get_backend("numpy")


def test_selector_mixes_and_then_selects():
    X = np.array([[1.0, 2.0, 4.0], [0.0, 3.0, -1.0]])
    logits = np.log([[1.0, 1.0, 2.0]])
    U, saved = select_forward(bk, X, logits, np.zeros((1, 3)), 1.0)
    np.testing.assert_allclose(saved.S, [[0.25, 0.25, 0.5]])
    np.testing.assert_allclose(U, [[2.75], [0.25]])
    np.testing.assert_allclose(select_forward(bk, X, logits, np.zeros((1, 3)), 1e-3)[0], X[:, [2]])
    noise = np.array([[5.0, 0.0, 0.0]])
    np.testing.assert_allclose(select_forward(bk, X, logits, noise, 1e-3)[0], X[:, [0]])
    dU = np.array([[1.0], [0.0]])  # dS = X[0]; dl = s (x - <x, s>)
    np.testing.assert_allclose(select_backward(bk, saved, dU), [[0.25 * -1.75, 0.25 * -0.75, 0.5 * 1.25]])


def test_softmax_of_huge_logits_is_finite():
    S = softmax(bk, np.array([[1e4, 0.0, -1e4]]), 0.01)
    np.testing.assert_array_equal(S, [[1.0, 0.0, 0.0]])


def test_noise_gives_each_column_its_probability():
    """argmax(l + Gumbel) is column j with probability softmax(l)_j."""
    rng = np.random.default_rng(0)
    logits = np.log([[0.1, 0.2, 0.7]])
    picks = (logits + rng.gumbel(size=(40_000, 3))).argmax(axis=1)
    np.testing.assert_allclose(np.bincount(picks) / 40_000, [0.1, 0.2, 0.7], atol=0.01)


def test_dense_layer_bend_and_error():
    V, saved = affine_forward(bk, np.array([[1.0, 2.0]]), np.array([[3.0], [-2.0]]), np.array([0.5]))
    np.testing.assert_array_equal(V, [[-0.5]])
    dU, dW, dc = affine_backward(bk, saved, np.array([[2.0]]))
    np.testing.assert_array_equal(dU, [[6.0, -4.0]])
    np.testing.assert_array_equal(dW, [[2.0], [4.0]])
    np.testing.assert_array_equal(dc, [2.0])
    H, bent = leaky_forward(bk, np.array([-1.0, 2.0]))
    np.testing.assert_array_equal(H, [-0.2, 2.0])
    np.testing.assert_array_equal(leaky_backward(bk, bent, np.array([1.0, 1.0])), [0.2, 1.0])
    loss, saved_error = error_forward(bk, np.array([[1.0, 3.0]]), np.array([[0.0, 1.0]]))
    assert loss == 2.5
    np.testing.assert_array_equal(error_backward(bk, saved_error), [[1.0, 2.0]])


def test_network_keeps_float32():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(6, 4)).astype(np.float32)
    shapes = [(2, 4), (2, 3), (3,), (3, 4), (4,)]
    parameters = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    _, gradients = value_and_grad(bk, parameters, X, np.zeros((2, 4), dtype=np.float32), 0.5)
    assert [g.dtype for g in gradients] == [np.float32] * 5
    assert [g.shape for g in gradients] == shapes


def test_alignment_turns_mirror_images_to_one_side():
    rng = np.random.default_rng(0)
    for shape in ((30, 5), (5, 30)):
        X = rng.normal(size=(shape[0], 1)) + 0.3 * rng.normal(size=shape)
        X -= X.mean(axis=0)
        signs = np.where(rng.random(shape[1]) < 0.5, -1, 1)
        np.testing.assert_array_equal(aligned(X * signs), aligned(X))
        assert (np.corrcoef(aligned(X * signs).T) > 0).all()
        np.testing.assert_array_equal(np.abs(aligned(X)), np.abs(X))
    np.testing.assert_array_equal(aligned(np.array([[1.0], [-1.0]])), [[1.0], [-1.0]])
