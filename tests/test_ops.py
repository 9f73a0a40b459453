"""Every operation's value against the slow reference, its contract, and its kinks by name."""

from __future__ import annotations

import generators as gen
import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st

from dufs_core.backend import get_backend
from dufs_core.objective.ops import (
    bandwidth,
    distances,
    gates,
    gaussian,
    gram,
    loss,
    normalise,
    power,
    regulariser,
    saturate,
    score,
)

bk = get_backend("numpy")
some = settings(max_examples=25)
seeds = st.integers(0, 10**6)


def frozen(*arrays):
    """Read-only copies: an operation that writes to its input raises."""
    copies = tuple(np.array(a) for a in arrays)
    for a in copies:
        a.setflags(write=False)
    return copies if len(copies) > 1 else copies[0]


def chain(n=9, d=4, seed=0, dtype=np.float64):
    """G, D, K, A, deg of a generic problem, each read-only."""
    X = gen.noise(n, d, seed)
    D = np.array(reference.squared_distances(X.tolist()))
    K = np.exp(-D / 3.0)
    deg = K.sum(axis=1)
    A = K / np.sqrt(np.outer(deg, deg))
    return tuple(frozen(M.astype(dtype)) for M in (X @ X.T, D, K, A, deg))


# --- gates ----------------------------------------------------------------------------------------------------------


@some
@given(seeds, st.integers(1, 6), st.integers(1, 5), st.booleans(), st.floats(0.05, 2.0))
def test_gates(seed, d, n, per_sample, sigma):
    rng = np.random.default_rng(seed)
    mu = frozen(rng.normal(0.5, 1.0, size=d))
    eps = frozen(rng.normal(size=(n, d) if per_sample else d))
    z, saved = gates.forward(bk, mu, eps, sigma)
    want = np.real(reference.gates(mu.tolist(), eps, sigma, n))
    np.testing.assert_array_equal(z, want if per_sample else want[0])
    np.testing.assert_array_equal(saved.undecided, (z > 0) & (z < 1))
    dz = frozen(rng.normal(size=eps.shape))
    inside = np.where((z > 0) & (z < 1), dz, 0.0).reshape(-1, d).sum(axis=0)
    np.testing.assert_allclose(gates.backward(bk, saved, dz), inside, rtol=1e-15, atol=1e-15)


def test_gate_kinks():
    """At u = 0 and u = 1 exactly, and beyond, the slope is 0; next to them, inside, it is 1."""
    eps = np.array([-1.0, -1.0 + 1e-12, 1.0, 1.0 - 1e-12, -3.0, 3.0, 0.0])
    z, saved = gates.forward(bk, np.full(7, 0.5), eps, 0.5)
    np.testing.assert_array_equal(z[[0, 2, 4, 5, 6]], [0, 1, 0, 1, 0.5])
    np.testing.assert_array_equal(gates.backward(bk, saved, np.ones(7)), [0, 1, 0, 1, 0, 0, 1])


# --- gram -----------------------------------------------------------------------------------------------------------


@some
@given(seeds, st.integers(2, 9), st.integers(1, 6), st.booleans())
def test_gram(seed, n, d, per_sample):
    rng = np.random.default_rng(seed)
    X = frozen(rng.normal(size=(n, d)))
    z = frozen(np.clip(rng.normal(0.5, 0.8, size=(n, d) if per_sample else d), 0, 1))
    G, saved = gram.forward(bk, X, z)
    want = [[sum(a * b for a, b in zip(r, s, strict=True)) for s in (X * z).tolist()] for r in (X * z).tolist()]
    gen.assert_close(G, want, 1e-14)

    dG = frozen(rng.normal(size=(n, n)))  # not symmetric: the symmetric part counts
    dXt = (dG + dG.T) @ (X * z)
    undecided = (z > 0) & (z < 1)
    wanted = undecided if z.ndim == 1 else undecided.any(axis=0)
    dz = gram.backward(bk, saved, dG, wanted)
    full = X * dXt if per_sample else (X * dXt).sum(axis=0)
    gen.assert_close(dz, np.where(wanted, full, 0.0), 1e-13)


@pytest.mark.parametrize("per_sample", [False, True])
def test_closed_columns_are_left_out_exactly(per_sample):
    """What stands in a closed column is never read, forward or backward: not even a NaN."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(7, 5))
    z = rng.uniform(0.1, 0.9, size=(7, 5) if per_sample else 5)
    z[..., [1, 4]] = 0.0
    wanted = np.array([True, False, True, True, False])
    G, saved = gram.forward(bk, X, z)
    dz = gram.backward(bk, saved, G, wanted)
    X[:, [1, 4]] = np.nan
    G_again, saved = gram.forward(bk, X, z)
    np.testing.assert_array_equal(G_again, G)
    np.testing.assert_array_equal(gram.backward(bk, saved, G, wanted), dz)
    assert (dz[..., [1, 4]] == 0).all()


def test_saturated_columns_enter_forward_only():
    X, z = gen.noise(6, 3), np.array([1.0, 0.4, 1.0])
    G, saved = gram.forward(bk, X, z)
    gen.assert_close(G, (X * z) @ (X * z).T, 1e-15)
    dz = gram.backward(bk, saved, np.ones((6, 6)) + np.eye(6), np.array([False, True, False]))
    assert dz[0] == dz[2] == 0
    assert dz[1] != 0


# --- saturate -------------------------------------------------------------------------------------------------------


@some
@given(seeds, st.integers(2, 9), st.integers(1, 12), st.floats(1e-2, 1e2))
def test_saturate(seed, n, d, nu):
    """Value and derivative from their definitions; columns of Y that give V back; an eigenvalue is at most nu."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    G = frozen(X @ X.T)
    M = np.linalg.inv(G + nu * np.eye(n))
    V, saved = saturate.forward(bk, G, nu)
    gen.assert_close(V, nu * M @ G, 1e-10)
    gen.assert_close(V, V.T, 1e-11)
    assert np.linalg.eigvalsh(V).max() <= nu * (1 + 1e-12)
    dV = rng.normal(size=(n, n))
    dV = frozen(dV + dV.T)
    dG = saturate.backward(bk, saved, dV)
    gen.assert_close(dG, nu**2 * M @ dV @ M, 1e-9)
    gen.assert_close(dG, dG.T, 1e-10)
    Y = saturate.columns(bk, frozen(X.T), nu)
    gen.assert_close(Y.T @ X.T, V, 1e-9)


@some
@given(seeds, st.integers(2, 9), st.integers(1, 12), st.floats(1e-1, 1e2))
def test_the_saturated_score_along_a_gate(seed, n, d, nu):
    """With P fixed both ways to z dS/dz agree: x_k' dG x_k, from the Gram matrix, and y_k' P y_k, from the columns."""
    rng = np.random.default_rng(seed)
    X, P = rng.normal(size=(n, d)), rng.normal(size=(n, n))
    P = frozen((P + P.T) / 2)
    dG = saturate.backward(bk, saturate.forward(bk, frozen(X @ X.T), nu)[1], P)
    Y = saturate.columns(bk, frozen(X.T), nu)
    size = abs(P).max() * np.square(X).sum()
    assert abs(((Y @ P) * Y).sum(axis=1) - ((X.T @ dG) * X.T).sum(axis=1)).max() <= 1e-11 * size


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_inverse_of_what_rounding_made_indefinite(dtype):
    """An eigenvalue of 0 or below is raised to the rounding of the largest; others are inverted."""
    E, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(5, 5)))
    A = ((E * [100.0, 5.0, 2.0, 1.0, -1e-9]) @ E.T).astype(dtype)
    found = bk.inverse(np.stack([A, np.eye(5, dtype=dtype) * 4]))
    assert found.dtype == dtype
    assert np.isfinite(found).all()
    assert np.linalg.eigvalsh(found[0].astype(np.float64)).max() <= 2 / (100 * np.finfo(dtype).eps)
    np.testing.assert_array_equal(found[1], np.eye(5) / 4)


def test_copies_of_a_column_count_once():
    """Ten copies of a strong column are one direction: V of them is that of one column, scaled to at most nu."""
    x = gen.noise(8, 1)
    one, ten = (saturate.forward(bk, c * x @ x.T, 0.1)[0] for c in (1, 10))
    assert np.trace(one) == pytest.approx(8 / (1 + 8 / 0.1))
    assert np.trace(ten) == pytest.approx(80 / (1 + 80 / 0.1))
    assert np.trace(ten) < 1.02 * np.trace(one)


# --- distances ------------------------------------------------------------------------------------------------------


@some
@given(seeds, st.integers(2, 9), st.integers(1, 6))
def test_distances(seed, n, d):
    X = np.random.default_rng(seed).normal(size=(n, d))
    D, _ = distances.forward(bk, frozen(X @ X.T))
    gen.assert_close(D, reference.squared_distances(X.tolist()), 1e-13)
    assert (np.diag(D) == 0).all()
    assert (D >= 0).all()
    gen.assert_close(D, D.T, 1e-15)


def test_distances_are_clamped_and_flat_there():
    """A Gram matrix whose rounding would give -2e-3 off the diagonal: D is 0 there and passes no derivative."""
    G = np.array([[1.0, 1.001, 0.0], [1.001, 1.0, 0.0], [0.0, 0.0, 2.0]])
    D, saved = distances.forward(bk, G)
    assert D[0, 1] == D[1, 0] == 0
    dD = np.zeros((3, 3))
    dD[0, 1] = dD[1, 0] = 5.0
    assert (distances.backward(bk, saved, dD) == 0).all()
    dD = np.zeros((3, 3))
    dD[0, 2] = 5.0  # D_02 = G_00 + G_22 - 2 G_02
    np.testing.assert_array_equal(distances.backward(bk, saved, dD), [[5, 0, -10], [0, 0, 0], [0, 0, 5]])


# --- bandwidth ------------------------------------------------------------------------------------------------------


@some
@given(seeds, st.integers(2, 10), st.data(), st.sampled_from(["median", "q90", "max"]), st.floats(0.5, 5.0))
def test_bandwidth(seed, n, data, rule, C):
    k = data.draw(st.integers(1, n - 1))
    D = frozen(reference.squared_distances(np.random.default_rng(seed).normal(size=(n, 3)).tolist()))
    kth = reference.kth_distances(D.tolist(), k)
    np.testing.assert_array_equal(bandwidth.neighbour_distances(bk, D, k), kth)
    b, degenerate, saved = bandwidth.forward(bk, D, rule, k, C)
    assert b == pytest.approx(C * reference.scale(D.tolist(), rule, k), rel=1e-15)
    assert not degenerate
    # the entries it says it was read from: distances to another row, and their weighted sum is b
    entries = bandwidth.backward(bk, saved, np.array(1.0))
    assert (entries.rows != entries.columns).all()
    assert (entries.weights * D[entries.rows, entries.columns]).sum() == pytest.approx(b, rel=1e-14)
    for row, column, value in zip(*entries, strict=True):
        assert value == 0 or D[row, column] == kth[row]
    dD = bandwidth.add_entries(bk, frozen(np.zeros_like(D)), entries)
    assert dD.sum() == pytest.approx(C, rel=1e-14)
    assert np.count_nonzero(dD) <= 2


def test_the_authors_first_neighbour_is_the_point_itself():
    """Their k = 2, the point counted, is our k = 1, the point excluded."""
    D = reference.squared_distances(gen.noise(9, 3).tolist())
    theirs = reference.scale(D, "median", 2, count_self=True)
    b, _, _ = bandwidth.forward(bk, np.array(D), "median", 1, 1.0)
    assert b == theirs


def test_bandwidth_as_a_number():
    D = np.zeros((3, 4, 4))
    for rule in (0.7, np.array([0.7, 0.7, 0.7])):
        b, degenerate, saved = bandwidth.forward(bk, D, rule, 99, 1.0)
        np.testing.assert_array_equal(b, [0.7] * 3)
        assert not degenerate.any()
        assert (bandwidth.backward(bk, saved, np.ones(3)).weights == 0).all()


@pytest.mark.parametrize("rule", ["median", "q90", "max"])
@pytest.mark.parametrize(("n", "k"), [(2, 0), (2, 2), (3, 3), (3, 7), (5, -1)])
def test_bandwidth_neighbours_out_of_range(rule, n, k):
    with pytest.raises(ValueError, match=rf"got n_neighbors={k} for {n} rows, where 1 to {n - 1} is valid"):
        bandwidth.forward(bk, np.ones((n, n)) - np.eye(n), rule, k, 1.0)


@pytest.mark.parametrize("rule", ["median", "q90", "max"])
@pytest.mark.parametrize("n", [2, 3])
def test_bandwidth_smallest_problems(rule, n):
    D = np.array(reference.squared_distances(gen.noise(n, 2).tolist()))
    for k in range(1, n):
        b, _, _ = bandwidth.forward(bk, D, rule, k, 2.0)
        assert b == pytest.approx(2.0 * reference.scale(D.tolist(), rule, k), rel=1e-15)


def test_bandwidth_unknown_rule():
    with pytest.raises(ValueError, match=r"median.*max.*'mean'"):
        bandwidth.forward(bk, np.ones((3, 3)) - np.eye(3), "mean", 1, 1.0)


def zero_problems():
    few = np.zeros((6, 2))
    few[5] = 3.0  # one row apart: its k-th distance is the only positive one
    tiny = np.zeros((6, 1))
    tiny[5] = 1.0
    tiny[1] = 1e-9  # squared 1e-18, below 4 eps max(D): treated as 0
    return {
        "duplicates": gen.duplicates_and_others(8, 4),
        "one apart": few,
        "all equal": gen.identical_rows(),
        "below the floor": tiny,
        "two pairs far apart": np.array([[0.0], [0.0], [1.0], [1.0]]),
    }


@pytest.mark.parametrize("rule", ["median", "q90", "max"])
@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("name", list(zero_problems()))
@pytest.mark.parametrize(("degenerate_rule", "theirs"), [("data", "ours"), ("one", "authors")])
def test_bandwidth_zero_rules(name, k, rule, degenerate_rule, theirs):
    D = reference.squared_distances(zero_problems()[name].tolist())
    b, degenerate, saved = bandwidth.forward(bk, np.array(D), rule, k, 1.0, degenerate_rule)
    assert b == pytest.approx(reference.scale(D, rule, k, degenerate_rule=theirs), rel=1e-15)
    assert b > 0
    kth = sorted(reference.kth_distances(D, k))
    unaided = {"max": max, "median": reference.middle, "q90": reference.upper_decile}[rule](kth)
    if degenerate_rule == "one":
        assert degenerate == (unaided < 1e-8)
    else:  # where every distance is 0 nothing needs saying
        assert degenerate == (np.max(D) > 0 and unaided <= 4 * 2.0**-52 * np.max(D))
    entries = bandwidth.backward(bk, saved, np.array(1.0))
    read = (entries.weights * np.array(D)[entries.rows, entries.columns]).sum()
    assert read == pytest.approx(b, rel=1e-14) or (entries.weights == 0).all()


def test_bandwidth_zero_rule_expected_numbers():
    """Written out: five equal rows and one at squared distance 18."""
    D = np.array(reference.squared_distances(zero_problems()["one apart"].tolist()))
    for rule, k, want, replaced in (("median", 1, 18.0, True), ("max", 1, 18.0, False), ("median", 5, 18.0, False)):
        b, degenerate, _ = bandwidth.forward(bk, D, rule, k, 1.0)
        assert (b, bool(degenerate)) == (want, replaced)
    b, degenerate, _ = bandwidth.forward(bk, D, "median", 1, 1.0, "one")
    assert (b, bool(degenerate)) == (1.0, True)
    b, degenerate, _ = bandwidth.forward(bk, np.zeros((4, 4)), "median", 1, 3.0)
    assert (b, bool(degenerate)) == (3.0, False)
    for s, want, replaced in ((1.01e-8, 1.01e-8, False), (0.99e-8, 1.0, True)):
        b, degenerate, _ = bandwidth.forward(bk, s * (1 - np.eye(4)), "median", 1, 1.0, "one")
        assert (b, bool(degenerate)) == (want, replaced)
    # distances so small that 1 / b would overflow: the square root of the smallest normal number takes their place
    b, degenerate, _ = bandwidth.forward(bk, 1e-160 * (1 - np.eye(4)), "median", 1, 1.0)
    assert (b, bool(degenerate)) == (2.0**-511, True)


def test_bandwidth_each_matrix_of_a_stack_by_itself():
    """One matrix needs the substitute, its neighbours in the stack do not."""
    D = np.array([reference.squared_distances(gen.noise(6, 2, s).tolist()) for s in range(3)])
    D[1] = reference.squared_distances(zero_problems()["one apart"].tolist())
    for rule in ("median", "q90", "max"):
        b, degenerate, saved = bandwidth.forward(bk, D, rule, 1, 2.0)
        np.testing.assert_array_equal(degenerate, [False, rule == "median", False])
        dD = bandwidth.add_entries(bk, np.zeros_like(D), bandwidth.backward(bk, saved, np.array([1.0, 10.0, 100.0])))
        for i, scale in enumerate((1.0, 10.0, 100.0)):
            b_i, _, saved_i = bandwidth.forward(bk, D[i], rule, 1, 2.0)
            assert b_i == b[i]
            entries = bandwidth.backward(bk, saved_i, np.array(scale))
            np.testing.assert_array_equal(dD[i], bandwidth.add_entries(bk, np.zeros((6, 6)), entries))


def test_bandwidth_tied_neighbours():
    """A square: every k-th distance is tied; one tied pair carries the whole derivative."""
    D = np.array(reference.squared_distances([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]))
    for rule in ("median", "q90", "max"):
        b, _, saved = bandwidth.forward(bk, D, rule, 1, 1.0)
        assert b == 1
        entries = bandwidth.backward(bk, saved, np.array(1.0))
        assert entries.weights.sum() == 1
        assert (D[entries.rows, entries.columns] == 1).all()


# --- kernel, normalisation, power -----------------------------------------------------------------------------------


@some
@given(seeds, st.integers(2, 9), st.floats(0.01, 100.0))
def test_gaussian_normalise(seed, n, b):
    X = np.random.default_rng(seed).normal(size=(n, 3))
    D = reference.squared_distances(X.tolist())
    K, _ = gaussian.forward(bk, frozen(D), np.array(b))
    gen.assert_close(K, reference.real(reference.kernel(D, b)), 1e-14)
    assert (np.diag(K) == 1).all()
    assert ((K >= 0) & (K <= 1)).all()
    A, deg, _ = normalise.forward(bk, frozen(K))
    P = reference.real(reference.normalise(K.tolist()))
    gen.assert_close(K / deg[:, None], P, 1e-15)
    gen.assert_close(A * np.sqrt(deg)[None, :] / np.sqrt(deg)[:, None], P, 1e-14)
    assert (deg >= 1).all()


def test_doubling_the_bandwidth_increases_every_entry():
    _, D, *_ = chain()
    K, _ = gaussian.forward(bk, D, np.array(1.5))
    K2, _ = gaussian.forward(bk, D, np.array(3.0))
    off = ~np.eye(len(D), dtype=bool)
    assert (K2[off] > K[off]).all()
    gen.assert_close(K2**2, K, 1e-14)  # exp(-D / (2 b))^2 = exp(-D / b)


@pytest.mark.parametrize("t", [1, 2, 3, 4, 5, 6])
def test_power(t):
    *_, A, _ = chain()
    At, _ = power.forward(bk, A, t)
    gen.assert_close(At, np.real(reference.power(A.tolist(), t)), 1e-14)


@pytest.mark.parametrize("t", [1, 2, 3, 4, 5, 6])
def test_power_backward_is_the_sum_of_all_splits(t):
    *_, A, _ = chain()
    H = np.random.default_rng(t).normal(size=A.shape)
    H = frozen(H + H.T)
    _, saved = power.forward(bk, A, t)
    want = sum(np.linalg.matrix_power(A, a) @ H @ np.linalg.matrix_power(A, t - 1 - a) for a in range(t))
    gen.assert_close(power.backward(bk, saved, H), want, 1e-13)


@pytest.mark.parametrize("t", [0, -1])
def test_power_below_one(t):
    with pytest.raises(ValueError, match=f"at least 1; got {t}"):
        power.forward(bk, np.eye(2), t)


# --- score, regulariser, losses -------------------------------------------------------------------------------------


@pytest.mark.parametrize("t", [1, 2, 3])
@pytest.mark.parametrize(("n", "d"), [(2, 1), (7, 3), (10, 1)])
def test_score(n, d, t):
    X = gen.noise(n, d)
    K = np.exp(-np.array(reference.squared_distances(X.tolist())) / 2.0)
    A, deg, _ = normalise.forward(bk, K)
    At, _ = power.forward(bk, A, t)
    S, _ = score.forward(bk, frozen(At), frozen(X @ X.T), frozen(deg))
    want = reference.score(reference.power(reference.normalise(K.tolist()), t), X.tolist())
    assert pytest.approx(np.real(want), rel=1e-13) == S


@pytest.mark.parametrize("sigma", [0.1, 0.5, 2.0])
def test_regulariser(sigma):
    mu = frozen(np.array([-3.0, -0.5, 0.0, 0.2, 0.5, 1.7, 9.0]))
    p = regulariser.probabilities(bk, mu, sigma)
    gen.assert_close(p, np.real(reference.probabilities(mu.tolist(), sigma)), 1e-15)
    assert p[2] == 0.5
    total, saved = regulariser.forward(bk, mu, sigma)
    assert total == pytest.approx(p.sum(), rel=1e-15)
    slopes = [reference.probabilities([complex(m, 1e-30)], sigma)[0].imag / 1e-30 for m in mu.tolist()]
    gen.assert_close(regulariser.backward(bk, saved, 1.5), 1.5 * np.array(slopes), 1e-14)


@pytest.mark.parametrize("lam", [None, 0.0, 0.4])
def test_losses(lam):
    S, p = np.array([3.0, 5.0, 4.5]), [0.5, 0.25, 0.75]
    value, saved = loss.forward(bk, frozen(S), sum(p), 7, lam, 0.01)
    want = np.mean([reference.loss_of(s, p, 7, lam, 0.01) for s in S])
    assert value == pytest.approx(want, rel=1e-15)
    dS, dsum = loss.backward(bk, saved)
    for r in range(3):
        shifted = list(S)
        shifted[r] += 1e-30j
        slope = np.mean([complex(reference.loss_of(s, p, 7, lam, 0.01)).imag for s in shifted]) / 1e-30
        assert dS[r] == pytest.approx(slope, rel=1e-14)
    shifted_p = [p[0] + 1e-30j, *p[1:]]
    slope = np.mean([complex(reference.loss_of(s, shifted_p, 7, lam, 0.01)).imag for s in S]) / 1e-30
    assert dsum == pytest.approx(slope, rel=1e-14)


# --- what all operations promise ------------------------------------------------------------------------------------


def all_outputs(G, dtype):
    """Every array that the operations from G to dG return on the stack G (m, n, n), by name. Inputs are read-only."""
    one = np.ones(len(G))
    D, saved_D = distances.forward(bk, frozen(G))
    b, _, saved_b = bandwidth.forward(bk, frozen(D), "median", 2, 1.5)
    K, saved_K = gaussian.forward(bk, frozen(D), frozen(b))
    A, deg, saved_A = normalise.forward(bk, frozen(K))
    At, saved_At = power.forward(bk, frozen(A), 3)
    S, saved_S = score.forward(bk, frozen(At), frozen(G), frozen(deg))
    dAt, dG, ddeg = score.backward(bk, saved_S, frozen(one))
    dA = power.backward(bk, saved_At, frozen(dAt))
    dK = normalise.backward(bk, saved_A, frozen(dA), frozen(ddeg))
    dD, db = gaussian.backward(bk, saved_K, frozen(dK))
    total = bandwidth.add_entries(bk, frozen(dD), bandwidth.backward(bk, saved_b, frozen(db)))
    dG_D = distances.backward(bk, saved_D, frozen(total))
    arrays = dict(D=D, b=b, K=K, A=A, deg=deg, At=At, dAt=dAt, dG=dG, ddeg=ddeg, dA=dA, dK=dK, dD=dD, db=db,
                  total=total, dG_D=dG_D)  # fmt: skip
    assert S.dtype == np.float64
    for name, a in arrays.items():
        assert a.dtype == dtype, (name, a.dtype)
    return {**arrays, "S": S}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_stacks_equal_their_members_dtype_kept_inputs_unwritten(dtype):
    G = np.stack([chain(seed=s, dtype=dtype)[0] for s in range(3)])
    whole = all_outputs(G, dtype)
    for i in range(3):
        alone = all_outputs(G[i : i + 1], dtype)
        for name, values in whole.items():
            gen.assert_close(values[i], alone[name][0], 20 * np.finfo(dtype).eps, name)
