"""Columns in the order of time: what each has beyond its own past, and decoys with the same memory.

Independent columns that remember their past look dependent, and no shuffle that imitates a column's memory is fair for
every kind of memory. So columns are whitened instead: detrended, and each less what its own past says of it, an
autoregression of up to 12 lags whose order AICc chooses, fitted by least squares and freed of the bias that such fits
have, as it is seen in copies of the column that are simulated with the fit (Kilian, Review of Economics and Statistics
80, 1998). What is left, the innovations, may be exchanged within a series. All innovations, shuffled or not, then pass
a common filter, y_t = e_t + c y_{t-1}: without it slow structure, which is small in every single innovation, is lost.
With c = 0.5 columns are found that change together within some rows, with c = 0.9 those that do so within a hundred,
and both are tried. Errors of the whitening reach the rate in second order alone.

The first p rows of a series have no past and are dropped: starts that are made up would be shared by all columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.ndimage import median_filter

from dufs_core.backend import Array, get_backend, random

MOST_LAGS = 12
COLOURS = (0.5, 0.9)  # of the common filters
_ROUNDING = 1e-7  # of float32
_MIRRORED = 60  # rows before the first
_ROWS_A_LAG = 8
_FEWEST_PASTS = 3  # rows of a series, in lags: shorter ones are left out
_TREND_ROWS = 40  # fewer have no trend that could be told from a slow swing
_COPIES = 6
_STEP = 8  # of the random numbers of the copies, and those after it
_WINDOW = 11  # rows that a glitch is told from
_GLITCH = 5.0  # local deviations
_MOST_GLITCHES = 5
_MEMORY = 3.5  # standard errors
_REMEMBERED = 3  # lags


class Pieces(NamedTuple):
    """Series, one after the other."""

    starts: tuple[int, ...]
    sizes: tuple[int, ...]

    @classmethod
    def of_sizes(cls, sizes: Array) -> Pieces:
        """Series of these lengths."""
        ends = np.cumsum(sizes)
        return cls(tuple(map(int, ends - sizes)), tuple(map(int, sizes)))

    def of(self, x: Array) -> list[Array]:
        """Views of the series in x (d, n)."""
        return [x[:, start : start + size] for start, size in zip(self.starts, self.sizes, strict=True)]

    def shortened(self, lags: int) -> Pieces:
        """Where the innovations of the series are, one after the other."""
        return Pieces.of_sizes(np.array(self.sizes) - lags)


def n_lags(sizes: Array) -> int:
    """The most lags of an autoregression of series with these lengths: an eighth of that of the middle row's series."""
    by_row = np.sort(np.repeat(sizes, sizes))
    return int(np.clip(by_row[len(by_row) // 2] // _ROWS_A_LAG, 1, MOST_LAGS))


def long_enough(sizes: Array) -> Array:
    """Which series have a past that can be told, bool."""
    return sizes >= _FEWEST_PASTS * n_lags(sizes) + 1


def whitened(x: Array, pieces: Pieces, lags: int, keys: Array, seed: int) -> Array:
    """The innovations (d, n - pieces * lags) of columns x (d, n), float64, on the host.

    keys (d,): positions of the columns in the data, which the simulated copies are drawn by.
    """
    cleaned = [_without_glitches(part) for part in pieces.of(x)]
    series = [detrended(np, part) for part, _ in cleaned]

    # what its past says of each column
    coefficients, order = _autoregression(series, lags, None)
    innovations = [_innovations(part, coefficients) for part in series]

    # the bias: how far fits to copies are from what the copies were made with
    bias = np.zeros_like(coefficients)
    for copy in range(_COPIES):
        copies = [
            _simulated(part, own, coefficients, keys, seed, _STEP + 2 * copy, number)
            for number, (part, own) in enumerate(zip(series, innovations, strict=True))
        ]
        bias += (_autoregression(copies, lags, order)[0] - coefficients) / _COPIES
    has_lag = np.arange(lags) < order[:, None]
    coefficients = _stationary(np.where(has_lag, coefficients - bias, 0.0))
    parts = []
    for number, (part, (_, is_glitch)) in enumerate(zip(series, cleaned, strict=True)):
        e = _drawn_anew(_innovations(part, coefficients), is_glitch[:, lags:], keys, seed, number)
        parts.append(e - e.mean(axis=1, keepdims=True))
    return np.concatenate(parts, axis=1)


def _drawn_anew(e: Array, is_glitch: Array, keys: Array, seed: int, number: int) -> Array:
    """Innovations e (d, n) with those of glitches drawn from the others: all columns may have them in the same rows."""
    column, row = np.nonzero(is_glitch)
    if not len(column):
        return e
    bk = get_backend("numpy")
    step = _STEP + 2 * _COPIES
    drawn = random.words(bk, seed, random.Stream.DECOYS, step, number, row, keys[column]) % np.uint64(e.shape[1])
    e[column, row] = e[column, drawn.astype(np.intp)]
    return e


def coloured(xp: Any, e: Array, pieces: Pieces, colour: float) -> Array:
    """Innovations e (d, n) through y_t = e_t + colour y_(t-1), each series by itself, started by a mirror; detrended.

    The trend is taken out as it was of the columns, so that shuffled innovations have no more slow swings than others.
    """
    out = xp.empty_like(e)
    for part, target in zip(pieces.of(e), pieces.of(out), strict=True):
        start = min(_MIRRORED, part.shape[1])
        y = xp.concatenate([part[:, :start][:, ::-1], part], axis=1)
        lag = 1
        while lag < y.shape[1] and colour**lag > _ROUNDING:  # twice as many terms of the sum by each turn
            y[:, lag:] += colour**lag * y[:, :-lag]
            lag *= 2
        target[:] = detrended(xp, y[:, start:])
    return out


def remembers(e: Array) -> Array:
    """Which innovations e (d, n), NumPy, are not free of the past, bool (d,).

    Ranks of the innovations, or of their sizes, at lags of one to three rows: correlations beyond 3.5 of their standard
    error. Sizes follow the past where columns have few values, hold them, or swing more at times than at others.
    """
    n = e.shape[1]
    found = np.zeros(len(e), dtype=bool)
    for values, sign in ((e, 1), (e, -1), (abs(e - np.median(e, axis=1, keepdims=True)), 1)):
        ranks = values.argsort(axis=1).argsort(axis=1) - (n - 1) / 2
        variance = (n * n - 1) / 12
        for lag in range(1, min(_REMEMBERED, n - 1) + 1):
            correlation = (ranks[:, lag:] * ranks[:, :-lag]).mean(axis=1) / variance
            found |= sign * correlation * np.sqrt(n - lag) > _MEMORY
    return found


def _without_glitches(x: Array) -> tuple[Array, Array]:
    """x (d, n), float64, with the cells farthest from the median around them put there, if they are far; which, (d, n).

    At most five of a column, also in a row: an outage of a logger.
    """
    x = x.astype(np.float64)
    is_glitch = np.zeros(x.shape, dtype=bool)
    if x.shape[1] < 2 * _WINDOW:
        return x, is_glitch
    around = median_filter(x, size=(1, _WINDOW), mode="nearest")
    distance = abs(x - around)
    scale = np.quantile(distance, 0.75, axis=1) / 0.9  # of white noise about its deviation
    each = np.arange(len(x))
    for _ in range(_MOST_GLITCHES):
        at = distance.argmax(axis=1)
        is_glitch[each, at] |= distance[each, at] > _GLITCH * scale
        distance[each, at] = 0
    return np.where(is_glitch, around, x), is_glitch


def detrended(xp: Any, x: Array) -> Array:
    """x (d, n) with mean 0 and, of more than 40 rows, no linear trend."""
    x = x - x.mean(axis=1, keepdims=True)
    n = x.shape[1]
    if n <= _TREND_ROWS:
        return x
    time = np.arange(n) - (n - 1) / 2
    direction = xp.asarray((time / np.sqrt((time * time).sum())).astype(x.dtype))
    return x - (x @ direction)[:, None] * direction


def _innovations(x: Array, coefficients: Array) -> Array:
    """x_t - sum_k a_k x_(t-k) of columns x (d, n), for t >= p; coefficients a (d, p)."""
    p = coefficients.shape[1]
    n = x.shape[1]
    e = x[:, p:].copy()
    for k in range(1, p + 1):
        e -= coefficients[:, k - 1 : k] * x[:, p - k : n - k]
    return e


def _autoregression(series: Sequence[Array], p: int, order: Array | None) -> tuple[Array, Array]:
    """Coefficients (d, p) by least squares over all series, and the order (d,), by AICc where it is not given."""
    d = len(series[0])
    moments = np.zeros((d, p + 1, p + 1))
    count = 0
    for x in series:
        lagged = np.stack([x[:, p - k : x.shape[1] - k] for k in range(p + 1)], axis=1)  # (d, p + 1, n - p)
        lagged -= lagged.mean(axis=2, keepdims=True)
        moments += lagged @ lagged.transpose(0, 2, 1)
        count += lagged.shape[2]

    # The order with the least AICc, or the one that is given.
    chosen = np.zeros(d, dtype=int) if order is None else order
    least = np.full(d, np.inf)
    coefficients = np.zeros((d, p))
    variance = np.maximum(moments[:, 0, 0], np.finfo(np.float64).tiny)
    for q in range(p + 1):
        if order is not None and not (order == q).any():
            continue
        of_past = moments[:, 1 : q + 1, 1 : q + 1] + 1e-9 * variance[:, None, None] * np.eye(q)
        fitted = np.linalg.solve(of_past, moments[:, 1 : q + 1, :1])[:, :, 0] if q else np.zeros((d, 0))
        if order is None:
            left = variance - (fitted * moments[:, 1 : q + 1, 0]).sum(axis=1)
            parameters = q + 1 + len(series)
            penalty = 2 * parameters * (1 + (parameters + 1) / max(count - parameters - 1, 1))
            criterion = count * np.log(np.maximum(left / variance, 1e-12)) + penalty
            better = criterion < least
            least[better] = criterion[better]
            chosen[better] = q
        else:
            better = order == q
        coefficients[better] = 0.0
        coefficients[better, :q] = fitted[better]
    return _stationary(coefficients), chosen


def _stationary(coefficients: Array) -> Array:
    """Coefficients (d, p) whose roots are not beyond the unit circle: those of others are scaled onto it."""
    d, p = coefficients.shape
    companion = np.zeros((d, p, p))
    companion[:, 0] = coefficients
    i = np.arange(1, p)
    companion[:, i, i - 1] = 1.0
    radius = abs(np.linalg.eigvals(companion)).max(axis=1)
    factor = np.where(radius > 1, 1 / np.maximum(radius, 1e-12), 1.0)
    return coefficients * factor[:, None] ** np.arange(1, p + 1)


def _simulated(x: Array, e: Array, coefficients: Array, keys: Array, seed: int, step: int, number: int) -> Array:
    """A copy of a series x (d, n): its innovations e in random order, after a stretch of it as the past."""
    bk = get_backend("numpy")
    p = coefficients.shape[1]
    n = x.shape[1]

    # A past that the column has had, and its own innovations after it.
    drawn = random.words(bk, seed, random.Stream.DECOYS, step, number, 0, keys)
    start = (drawn % np.uint64(n - p + 1)).astype(np.intp)
    past = np.take_along_axis(x, start[:, None] + np.arange(p), axis=1)
    at_random = random.words(bk, seed, random.Stream.DECOYS, step + 1, number, np.arange(n - p), keys[:, None])
    y = np.concatenate([past, np.take_along_axis(e, np.argsort(at_random, axis=1), axis=1)], axis=1)
    backwards = coefficients[:, ::-1]
    for t in range(p, n):
        y[:, t] += (backwards * y[:, t - p : t]).sum(axis=1)
    return y
