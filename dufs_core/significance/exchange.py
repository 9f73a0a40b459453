"""The values that columns compete with, and how decoys are made of them: the one place where rows become values.

    read       rows of X, or means of consecutive ones of a series
    prepared   what may be exchanged: columns without far cells, or normal scores where there are many, centred and with
               one deviation within groups; less what covariates explain; of series the innovations
    finished   what is scored, of prepared values in their order and in any other: series through the common filter,
               shuffled residuals without what covariates explain; clipped at 2 standard deviations, variance 1

A column and its decoys differ in the order of the prepared values alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import numpy as np

from dufs_core.backend import Array, Backend, random
from dufs_core.backend.threads import mapped
from dufs_core.data.groups import Within
from dufs_core.data.matrix import dense_block
from dufs_core.significance import series
from dufs_core.significance.covariates import directions, residuals, strata
from dufs_core.significance.rows import Rows, RowSample
from dufs_core.significance.scale import FAR, clipped, scaled, spread, tamed, with_normal_scores

_CHUNK = 1 << 22  # entries of rows that means are taken of at a time
_COLUMNS = 256  # that are whitened at a time
FEWEST_ROWS = 3  # that differ from a column's median: a rarer column cannot be told from its decoys


class Prepared(NamedTuple):
    """Columns as they may be exchanged."""

    values: Array  # (d, n')
    deviation: Array  # (d,) of the columns in the units of X, NumPy
    varies: Array  # (d,) bool, NumPy: whether a column differs from its median in three rows
    remembers: Array  # (d,) bool, NumPy: whether what is left of a series still depends on its past


class Exchange:
    """How the columns of a fit are read and exchanged.

    Parameters
    ----------
    sample : RowSample
        The rows that are read, in the order of the values.
    table : Rows
        What is known of all rows.
    seed, threads : int
    words : callable
        That random orders are made from.
    """

    def __init__(
        self, bk: Backend, table: Rows, sample: RowSample, seed: int, threads: int = 1,
        words: Callable[..., Array] = random.words,
    ) -> None:  # fmt: skip
        self._bk = bk
        self._words = words
        self._threads = threads
        self.seed = seed

        # What is read: the rows of the sample, in their groups.
        self.rows = sample.rows
        self.group = sample.group
        self.sampled = sample.first  # positions in X, NumPy
        self._read_within = Within(bk.xp, self.group, len(self.sampled))

        # What is exchanged: of each series the rows that have a past, of other rows all.
        self._pieces: series.Pieces | None = None
        self._lags = 0
        has_past = np.arange(len(self.sampled))
        if table.is_series:
            sizes = np.array([len(has_past)]) if self.group is None else np.bincount(self.group)
            self._pieces = series.Pieces.of_sizes(sizes)
            self._lags = series.n_lags(sizes)
            has_past = np.concatenate([rows[0, self._lags :] for rows in self._pieces.of(has_past[None])])
        positions = self.sampled[has_past]
        self.positions = positions if table.kept is None else table.kept[positions]  # in the user's table, (n',)
        self.exchanged: Array | None = None if self.group is None else self.group[has_past]
        self.within = Within(bk.xp, self.exchanged, len(has_past))

        # Of rows that differ by covariates those that are alike.
        self._explained: Any = None  # (n, m) orthonormal, where the rows are
        if table.covariates is not None:
            covariates = sample.of(table.covariates)
            self._explained = bk.xp.asarray(directions(covariates, self.group))
            self.exchanged = strata(covariates[has_past], self.exchanged)

    @classmethod
    def of(cls, bk: Backend, table: Rows, seed: int, threads: int = 1) -> Self:
        """Of the rows, at most 512, that a fit with this seed looks at."""
        sample = table.sample(bk, seed, random.Stream.DECOYS, 1, random.MOST_ROWS)
        return cls(bk, table, sample, seed, threads)

    @property
    def n(self) -> int:
        """Values of a column."""
        return len(self.positions)

    @property
    def is_plain(self) -> bool:
        """Whether prepared values are finished: a shuffle within groups leaves means and deviations as they are."""
        return self._pieces is None and self._explained is None

    def read(self, X: Any, columns: Array) -> Array:
        """Columns (positions, NumPy) of scaled X on the rows, (d, n)."""
        xp = self._bk.xp
        if isinstance(self.rows, slice) or self.rows.ndim == 1:
            return xp.ascontiguousarray(dense_block(self._bk, X, self.rows, columns).T)
        together = max(1, _CHUNK // max(1, len(columns) * self.rows.shape[1]))
        out = xp.empty((len(columns), len(self.rows)), dtype=X.dtype)
        for start in range(0, len(self.rows), together):
            some = self.rows[start : start + together]
            block = dense_block(self._bk, X, some.ravel(), columns)
            out[:, start : start + len(some)] = block.reshape(*some.shape, -1).mean(axis=1).T
        return out

    def freed(self, x: Array) -> Array:
        """Columns as `read` gives them, less the medians of groups, or less what covariates explain."""
        if self._explained is None:
            return x if self._read_within.is_one else self._read_within.from_medians(x)

        # a far cell would be spread over all rows
        x = self._read_within.from_medians(x)
        limit = FAR * spread(self._bk, abs(x))
        return residuals(self._bk.xp.clip(x, -limit, limit), self._explained.astype(x.dtype))

    def bounded(self, x: Array, low: Array, high: Array) -> Array:
        """Prepared values of columns (d, n), `freed`, brought between limits (d, 1)."""
        x = self._bk.xp.clip(x, low, high)
        if self._explained is not None:
            x = residuals(x, self._explained.astype(x.dtype))
        return self.within.levelled(x)

    def unbounded(self, values: Array) -> Array:
        """What is scored, from `bounded` values (d, n) in any order."""
        return values if self.is_plain else self.within.levelled(self._filtered(values))

    def prepared(self, x: Array, keys: Array) -> Prepared:
        """Columns as `read` gives them; keys: their positions in X, NumPy, that random numbers are drawn by."""
        bk = self._bk
        x = self._read_within.from_medians(x)
        varies = bk.to_host((x != 0).sum(axis=1) >= FEWEST_ROWS)
        within = self.within
        if self._pieces is not None:
            x = within.from_medians(self._without_past(x, keys, self._pieces))
        z, scale = tamed(bk, within, x, keys, self.seed)
        if self._explained is not None and self._pieces is None:
            left = residuals(z, self._explained.astype(z.dtype))
            z = tamed(bk, within, left, keys, self.seed).z
        centred = within.each(lambda part: part - part.mean(axis=2, keepdims=True), z)
        deviation = bk.to_host(scale).astype(np.float64) * bk.to_host(centred.std(axis=1))
        z = with_normal_scores(bk, within, z, self._threads)
        values = clipped(within, z) if self.is_plain else within.levelled(z)
        remembers = np.zeros(len(varies), dtype=bool)
        if self._pieces is not None:
            remembers = series.remembers(bk.to_host(values))
        return Prepared(values, deviation, varies, remembers)

    @property
    def n_views(self) -> int:
        """In how many ways values are finished: of series fast and slow."""
        return 1 if self._pieces is None else len(series.COLOURS)

    def finished(self, values: Array, view: int) -> Array:
        """What is scored, from prepared values (d, n') in any order."""
        if self.is_plain:
            return values
        return clipped(self.within, self._filtered(values, view))

    def unclipped(self, X: Any, one_scale: bool, columns: Array) -> Array:
        """Columns (positions, NumPy) of scaled X as they are scored, but for the clip, (d', n').

        one_scale: variance 1 for each, else in the units of X.
        """
        x = self.read(X, columns)
        if not self.is_plain:
            found = self.prepared(x, columns)
            z = scaled(self.within, self._filtered(found.values, 0))
            return z if one_scale else z * self._bk.xp.asarray(found.deviation.astype(z.dtype))[:, None]
        z, scale = tamed(self._bk, self.within, self.within.from_medians(x), columns, self.seed)
        return scaled(self.within, z) if one_scale else self.within.levelled(z) * scale[:, None]

    def orders(self, count: int, keys: Array) -> Array:
        """Orders of the values for `count` decoys of each column, (count, d, n')."""
        bk = self._bk
        stream = random.Stream.DECOYS
        on_device = bk.xp.asarray(keys)
        within = self.exchanged
        return random.orders(bk, self.seed, stream, 0, count, self.n, on_device, self._threads, within, self._words)

    def _filtered(self, values: Array, view: int = 0) -> Array:
        """Prepared values in some order, as their column would be."""
        if self._pieces is not None:
            pieces = self._pieces.shortened(self._lags)
            return series.coloured(self._bk.xp, values, pieces, series.COLOURS[view])
        return residuals(values, self._explained.astype(values.dtype))

    def _without_past(self, x: Array, keys: Array, pieces: series.Pieces) -> Array:
        """The innovations of x (d, n), less what covariates explain before; computed on the host."""
        bk = self._bk
        if self._explained is not None:
            x = residuals(x, self._explained.astype(x.dtype))
        host = bk.to_host(x)
        dtype = host.dtype
        largest = np.maximum(abs(host).max(axis=1, keepdims=True), np.finfo(dtype).tiny)

        def of(start: int) -> Array:
            block = slice(start, start + _COLUMNS)
            unit = host[block] / largest[block]
            e = series.whitened(unit, pieces, self._lags, keys[block], self.seed)
            return (e * largest[block]).astype(dtype)

        return bk.to_device(np.concatenate(mapped(bk, of, range(0, max(1, len(host)), _COLUMNS), self._threads)))
