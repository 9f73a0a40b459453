"""The counter-based draws: known answers, independence of everything around them, distribution."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dufs_core.backend import get_backend, random
from dufs_core.backend.random import Stream
from dufs_core.selection.parameters import seed_of

bk = get_backend("numpy")
some = settings(max_examples=25)
seeds = st.integers(0, 2**64 - 1)


def philox_plain(counter, key):
    """Philox-4x32-10 with Python integers, from the paper's description."""
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b % 2**32, (a >> 32) ^ c[3] ^ k[1], a % 2**32]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return c


KNOWN = [  # the published known-answer vectors of philox4x32-10: counter, key, words
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_philox_known_answers(counter, key, words):
    assert philox_plain(counter, key) == words
    got = random.philox(bk, tuple(counter), key[0] | key[1] << 32)
    assert [int(w) for w in got] == words


@some
@given(st.lists(st.integers(0, 2**32 - 1), min_size=4, max_size=4), seeds)
def test_philox(counter, seed):
    got = random.philox(bk, tuple(np.array([c]) for c in counter), seed)
    assert [int(w[0]) for w in got] == philox_plain(counter, [seed % 2**32, seed >> 32])


@pytest.mark.parametrize("rows", [None, [5, 0, 2**31]])
def test_normals_are_box_muller_of_the_documented_counter(rows):
    """Each number from its seed, stream, step, draw, row and column, written with Python integers and math."""
    import math

    seed, step, columns = 2**40 + 3, 7, [0, 9, 2**32 - 1]
    got = random.normals(
        bk, seed, Stream.PERMUTATION, step, 6, None if rows is None else np.array(rows), np.array(columns), np.float64
    )
    assert got.shape == ((6, 3) if rows is None else (6, 3, 3))
    for r in range(6):
        for i, row in enumerate([0] if rows is None else rows):
            for j, column in enumerate(columns):
                w = philox_plain([column, row, step, 3 << 28 | r // 4], [seed % 2**32, seed >> 32])
                u, v = w[2 * (r % 4 // 2) : 2 * (r % 4 // 2) + 2]
                radius, angle = math.sqrt(-2 * math.log((u + 0.5) / 2**32)), 2 * math.pi * v / 2**32
                want = radius * (math.sin(angle) if r % 2 else math.cos(angle))
                assert (got[r, j] if rows is None else got[r, i, j]) == pytest.approx(want, rel=1e-12, abs=1e-14)


@some
@given(seeds, st.integers(1, 9), st.integers(0, 10**6), st.permutations(list(range(7))), st.booleans())
def test_a_column_keeps_its_draws(seed, count, step, order, per_sample):
    """Permuting, dropping or appending columns moves their draws along and changes none, bit for bit."""
    rows = np.arange(4) if per_sample else None

    def draw(columns):
        return random.normals(bk, seed, Stream.GATES, step, count, rows, np.array(columns), np.float64)

    whole = draw(range(7))
    np.testing.assert_array_equal(draw(order), whole[..., order])
    np.testing.assert_array_equal(draw(order[:3]), whole[..., order[:3]])
    np.testing.assert_array_equal(draw(range(9))[..., :7], whole)


@some
@given(seeds, st.integers(1, 9), st.integers(1, 9))
def test_a_draw_does_not_depend_on_how_many_there_are(seed, few, more):
    columns = np.arange(5)
    a = random.normals(bk, seed, Stream.GATES, 1, few, None, columns, np.float64)
    b = random.normals(bk, seed, Stream.GATES, 1, few + more, None, columns, np.float64)
    np.testing.assert_array_equal(a, b[:few])


def test_a_row_keeps_its_draws():
    whole = random.normals(bk, 1, Stream.GATES, 1, 3, np.arange(10), np.arange(4), np.float64)
    some_rows = random.normals(bk, 1, Stream.GATES, 1, 3, np.array([7, 2]), np.arange(4), np.float64)
    np.testing.assert_array_equal(some_rows, whole[:, [7, 2]])


def test_float32_replays_the_float64_stream():
    args = (bk, 4, Stream.GATES, 3, 8, None, np.arange(100))
    single, double = random.normals(*args, np.float32), random.normals(*args, np.float64)
    assert single.dtype == np.float32
    np.testing.assert_array_equal(single, double.astype(np.float32))


def test_seed_stream_step_and_draw_all_matter():
    base = dict(seed=1, stream=Stream.GATES, step=5)
    kinds = [
        base,
        base | {"seed": 2},
        base | {"seed": 1 + 2**32},
        base | {"step": 6},
        *(base | {"stream": s} for s in Stream if s is not Stream.GATES),
    ]
    table = np.concatenate(
        [random.normals(bk, k["seed"], k["stream"], k["step"], 8, None, np.arange(50), np.float64) for k in kinds]
    )
    assert np.unique(table).size == table.size  # no number twice
    correlation = np.corrcoef(table) - np.eye(len(table))
    assert abs(correlation).max() < 5.5 / np.sqrt(50)


def test_normals_are_normal():
    x = random.normals(bk, 0, Stream.GATES, 1, 400, None, np.arange(500), np.float64)
    n = x.size
    assert np.isfinite(x).all()
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((x**power).mean() - moment) < 4.5 * np.sqrt(variance / n), power
    assert stats.kstest(x.ravel(), "norm").pvalue > 1e-3
    # neighbours in any direction are uncorrelated: draws, columns, the two halves of Box-Muller
    for a, b in ((x[1:], x[:-1]), (x[:, 1:], x[:, :-1]), (x[::2], x[1::2]), (abs(x[::2]), abs(x[1::2]))):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 4.5 / np.sqrt(a.size)


def test_rows_and_steps_are_independent():
    x = np.stack([random.normals(bk, 0, Stream.GATES, s, 4, np.arange(50), np.arange(20), np.float64) for s in (1, 2)])
    for axis in range(4):
        a, b = np.delete(x, 0, axis).ravel(), np.delete(x, -1, axis).ravel()
        assert abs(np.corrcoef(a, b)[0, 1]) < 4.5 / np.sqrt(a.size), axis


@some
@given(seeds, st.integers(1, 200), st.integers(0, 1000))
def test_permutation(seed, n, step):
    order = random.permutation(bk, seed, Stream.SHUFFLE, step, n)
    assert order.dtype == np.int64
    np.testing.assert_array_equal(np.sort(order), np.arange(n))
    np.testing.assert_array_equal(order, random.permutation(bk, seed, Stream.SHUFFLE, step, n))


def test_permutations_are_uniform():
    """2,400 permutations of 4: each of the 24 about 100 times, over steps and over draws alike."""
    for orders in (
        [random.permutation(bk, 3, Stream.SHUFFLE, i, 4) for i in range(2400)],
        [random.permutation(bk, 3, Stream.SHUFFLE, 0, 4, draw=i) for i in range(2400)],
    ):
        _, counts = np.unique(orders, axis=0, return_counts=True)
        assert counts.size == 24
        assert stats.chisquare(counts).pvalue > 1e-4


def test_derived_seeds():
    seeds = [random.derived_seed(bk, 11, i) for i in range(200)]
    assert seeds[0] == 11
    assert len(set(seeds)) == 200
    assert all(type(s) is int and 0 <= s < 2**64 for s in seeds)
    assert random.derived_seed(bk, 12, 5) != seeds[5]
    assert random.derived_seed(bk, 11, 5) == seeds[5]


@pytest.mark.parametrize("draws", [1, 4, 7])
def test_uniforms_are_the_words_of_the_documented_counter(draws):
    seed, step, columns = 2**40 + 3, 7, [0, 9, 2**32 - 1]
    found = random.uniforms(bk, seed, Stream.GUMBEL, step, draws, np.array(columns))
    assert found.shape == (draws, 3)
    for draw in range(draws):
        for place, column in enumerate(columns):
            counter = (column, 0, step, int(Stream.GUMBEL) << 28 | draw // 4)
            word = philox_plain(counter, (seed % 2**32, seed >> 32))[draw % 4]
            assert found[draw, place] == (word + 0.5) / 2**32


def test_uniforms_are_uniform():
    found = random.uniforms(bk, 3, Stream.DECODER, 0, 50, np.arange(400)).ravel()
    assert stats.kstest(found, "uniform").pvalue > 1e-3
    assert 0 < found.min() < found.max() < 1


def test_draws_of_no_seed_are_the_same_in_every_run_of_a_test():
    """tests/conftest.py sees to it: NumPy's global generator, which they come from, starts from 0."""
    assert seed_of(None) == seed_of(np.random.RandomState(0))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_orders_are_those_of_every_key_on_its_own(monkeypatch, count):
    keys = np.array([3, 0, 7, 100, 5])
    whole = random.orders(bk, 1, random.Stream.DECOYS, 2, count, 20, keys)
    np.testing.assert_array_equal(np.sort(whole, axis=2), np.broadcast_to(np.arange(20), whole.shape))
    monkeypatch.setattr(random, "WORDS", 50)
    for threads in (1, 3):
        got = random.orders(bk, 1, random.Stream.DECOYS, 2, count, 20, keys, threads)
        np.testing.assert_array_equal(got, whole)
