"""The rows of a fit: which of them may be exchanged, and which are looked at.

Decoys and permutation tests compare a column with the same column in another order of the rows. That is fair where
every order is as likely as the one there is. Rows of groups (batches, donors, plates, repeated measurements) may be
exchanged within their group alone; a function of a column that treats the rows of a group alike is then fair as well.
`Rows` is what is known before any value is read, and the one place that chooses orders and samples.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dufs_core.backend import Array, Backend, get_backend, random
from dufs_core.data.groups import Told, accept_groups
from dufs_core.errors import RowsWarning
from dufs_core.significance.covariates import accept_covariates
from dufs_core.significance.series import long_enough

_TOGETHER = 16  # rows of a group at least, where it has so many, are sampled or left together
_FEWEST_OF_SERIES = 20  # rows: fewer say nothing about a past
_LARGE = 0.25  # of the rows: a larger group is halved, a smaller one goes to one half as a whole


class RowsUsed(NamedTuple):
    """How rows took part in a fit.

    Attributes
    ----------
    n_rows : int
        Rows that took part.
    n_groups : int or None
        Groups within which rows were exchanged, or series; None: all rows are one.
    n_left_out : int
        Rows that took no part: alone in their group, or of a series too short to tell its past.
    n_covariates : int
        Covariates whose part was taken out of the columns.
    n_averaged : int
        Consecutive rows of a series whose means were taken, 1: each row is one; 0: rows are no series.
    n_not_drawn : int
        Rows beyond `max_rows`, which were left out at random.
    n_on_graphs : int
        Rows, or means of rows, whose graphs gave the scores.
    n_compared : int
        Those that columns were compared on by functions other than linear ones.
    """

    n_rows: int
    n_groups: int | None
    n_left_out: int
    n_covariates: int
    n_averaged: int
    n_not_drawn: int
    n_on_graphs: int
    n_compared: int

    @property
    def sentence(self) -> str | None:
        """What was done to rows; None where nothing was."""
        count = 1 if self.n_groups is None else self.n_groups
        said = []
        if self.n_averaged:
            series = "one series" if count == 1 else f"{count:,} series"
            means = f", means of {self.n_averaged} at a time" if self.n_averaged > 1 else ""
            said.append(f"{self.n_rows:,} rows were taken as {series}, evenly spaced{means}")
            said.append("columns were freed of what their own past says of them, which is approximate")
        elif self.n_groups is not None:
            groups = f"{count:,} group{'s' * (count != 1)}"
            said.append(f"columns were centred and scaled, and rows exchanged, within {groups} of {self.n_rows:,} rows")
        if self.n_covariates:
            explained = "1 covariate explains" if self.n_covariates == 1 else f"{self.n_covariates} covariates explain"
            said.append(f"what {explained} was taken out, and similar rows were exchanged, which is approximate")
        if self.n_not_drawn:
            said.append(f"{self.n_rows:,} of {self.n_rows + self.n_not_drawn:,} rows, drawn at random, took part")
        if self.n_compared < self.n_rows and not self.n_averaged:
            some = f"{self.n_on_graphs:,} rows" if self.n_on_graphs < self.n_rows else "all"
            curves = f"dependence that is not linear on {self.n_compared:,}" if self.n_compared else "no curves"
            said.append(f"correlations are those of {self.n_rows:,} rows, scores were taken on {some}, {curves}")
        if self.n_left_out:
            said.append(left_out_text(self.n_left_out, bool(self.n_averaged)))
        text = "; ".join(said)
        return f"{text[0].upper()}{text[1:]}." if said else None


def left_out_text(count: int, is_series: bool) -> str:
    """That so many rows took no part."""
    rows = "1 row" if count == 1 else f"{count:,} rows"
    if is_series:
        return f"{rows} of series too short to tell their past took no part"
    return f"{rows} alone in {'its' if count == 1 else 'their'} group took no part"


class RowSample(NamedTuple):
    """Rows that are looked at."""

    rows: Any  # a slice (all), or positions where the backend computes: (n',), or (n', k), whose means are taken
    group: Array | None  # (n',) of each of them, as in `Rows`; NumPy
    positions: Array  # (n',) or (n', k) of them; NumPy

    @property
    def first(self) -> Array:
        """The position (n',) of each, or of the first of those whose means are taken."""
        return self.positions if self.positions.ndim == 1 else self.positions[:, 0]

    def of(self, values: Array) -> Array:
        """Values (n, c) of all rows, or their means, on these (n', c); NumPy."""
        taken: Array = values[self.positions]
        return taken if self.positions.ndim == 1 else taken.mean(axis=1)


class Rows(NamedTuple):
    """The n rows of a fit."""

    n: int
    group: Array | None = None  # (n,) NumPy int, the number of each row's group; None: all may be exchanged
    covariates: Array | None = None  # (n, c) NumPy
    is_series: bool = False  # whether rows of a group are in the order of time
    kept: Array | None = None  # (n,) NumPy, positions in the user's table; None: all of it
    n_left_out: int = 0

    @classmethod
    def of(cls, n: int, told: Told, is_series: bool = False) -> Rows:
        """The n rows of a table, of which users say these things (`accept_groups`, `accept_covariates`)."""
        Z = None if told.covariates is None else accept_covariates(told.covariates, n)
        group = kept = None
        if told.groups is not None:
            group, kept = accept_groups(told.groups, n)
        if is_series:
            group, kept = _long_series(n, group, kept)
        if kept is None or len(kept) == n:
            return cls(n, group, Z, is_series)
        return cls(len(kept), group, None if Z is None else Z[kept], is_series, kept, n - len(kept))

    @property
    def used(self) -> RowsUsed:
        """The counts, for the result of a fit."""
        n_groups = None if self.group is None else len(np.unique(self.group))
        n_covariates = 0 if self.covariates is None else self.covariates.shape[1]
        count = averaged(self.n) if self.is_series else 0
        values = self.n // max(count, 1)
        return RowsUsed(self.n, n_groups, self.n_left_out, n_covariates, count, 0, values, values)

    def doubts(self) -> tuple[RowsWarning, ...]:
        """What the user did not ask for."""
        if not self.n_left_out:
            return ()
        text = left_out_text(self.n_left_out, self.is_series)
        advice = "join small groups that are alike, if that is right"
        return (RowsWarning(f"{text[0].upper()}{text[1:]}" + ("." if self.is_series else f": {advice}.")),)

    def take(self, rows: Array) -> Rows:
        """Some of the rows (NumPy positions), which are a table of their own then."""
        group = None if self.group is None else self.group[rows]
        covariates = None if self.covariates is None else self.covariates[rows]
        return Rows(len(rows), group, covariates, self.is_series)

    def sample(self, bk: Backend, seed: int, stream: random.Stream, step: int, most: int) -> RowSample:
        """All rows, or, where they are more than `most`, about that many drawn without replacement.

        Of groups 16 rows and more are drawn together, and all of a smaller one, so that there is something to exchange.
        Series are never drawn from: they come one after the other, as means of consecutive rows where they are long.
        """
        if self.is_series:
            return self._in_order(bk)
        if self.group is None or self.n <= most:
            rows = random.sample(bk, seed, stream, step, self.n, most)
            return RowSample(rows, self.group, np.arange(self.n) if isinstance(rows, slice) else bk.to_host(rows))
        order, ends = _parts(self.group, seed, stream, step)
        rows = np.sort(order[: ends[np.searchsorted(ends, most, side="right") - 1]])
        return RowSample(bk.xp.asarray(rows), self.group[rows], rows)

    def blocks(self, seed: int, stream: random.Stream, step: int, most: int) -> tuple[Array, Array]:
        """About `most` rows in random order, (n',) positions, and where each block of at most 512 of them ends, (B,).

        Every block mixes rows of the whole table, wherever they are in it: of rows that are sorted by class contiguous
        blocks would show no structure. Of groups 16 rows and more are in a block together, and all of a smaller one.
        """
        if self.group is None:
            order = random.permutation(get_backend("numpy"), seed, stream, step, self.n)[:most]
            parts = np.arange(1, len(order) + 1)
        else:
            order, parts = _parts(self.group, seed, stream, step)
            parts = parts[: max(1, np.searchsorted(parts, most, side="right"))]
        n = int(parts[-1])
        largest = int(np.diff(parts, prepend=0).max())
        count = -(-n // (random.MOST_ROWS - largest + 1))
        ends = parts[np.searchsorted(parts, n * np.arange(1, count + 1) // count)]
        return order[:n], ends

    def _in_order(self, bk: Backend) -> RowSample:
        """All rows, series by series, or the means of as many consecutive ones as leave at most 512."""
        together = averaged(self.n)
        group = np.zeros(self.n, dtype=np.intp) if self.group is None else self.group
        order = np.argsort(group, kind="stable")
        ends = np.cumsum(np.bincount(group))
        parts = [part[: len(part) // together * together] for part in np.split(order, ends[:-1])]
        positions = np.concatenate(parts).reshape(-1, together)
        if together == 1:
            positions = positions[:, 0]
        sample = RowSample(bk.xp.asarray(positions), None, positions)
        return sample if self.group is None else sample._replace(group=self.group[sample.first])

    def halves(self, seed: int, number: int) -> tuple[Half, Half]:
        """Random halves of the rows; groups go as a whole, unless one is very large.

        A group with more than a quarter of the rows is halved itself. Sizes are as equal as that allows. Of a series
        one half is a stretch that begins anywhere, the other what is before and what is after it.
        """
        host = get_backend("numpy")
        order = random.permutation(host, seed, random.Stream.PARTITION, number, self.n)
        if self.is_series:
            return self._stretches(order)
        if self.group is None:
            return Half(np.sort(order[: self.n // 2]), None), Half(np.sort(order[self.n // 2 :]), None)

        # a large group: the half of it that comes first in the random order
        size = np.bincount(self.group)
        is_large = size > _LARGE * self.n
        by_group = order[np.argsort(self.group[order], kind="stable")]
        of = self.group[by_group]
        number_in_group = np.arange(self.n) - (np.cumsum(size) - size)[of]
        in_first = np.zeros(self.n, dtype=bool)
        in_first[by_group] = is_large[of] & (number_in_group < size[of] // 2)

        # the others, in random order, up to the middle of their rows
        small = self.group[order[~is_large[self.group[order]]]]
        small = small[np.sort(np.unique(small, return_index=True)[1])]
        middle = np.cumsum(size[small]) - size[small] / 2
        in_first |= np.isin(self.group, small[middle <= size[small].sum() / 2])
        first = np.flatnonzero(in_first)
        second = np.flatnonzero(~in_first)
        return Half(first, self.group[first]), Half(second, self.group[second])

    def _stretches(self, order: Array) -> tuple[Half, Half]:
        """A stretch of half of each series, and what is left of it: one piece, or two that are series of their own."""
        group = np.zeros(self.n, dtype=np.intp) if self.group is None else self.group
        size = np.bincount(group)
        position = np.empty(self.n, dtype=np.intp)  # of each row in its series
        by_series = np.argsort(group, kind="stable")
        position[by_series] = np.arange(self.n) - (np.cumsum(size) - size)[group[by_series]]

        # where the stretch of each series begins: at a row that comes first in the random order
        begin = position[order[np.unique(group[order], return_index=True)[1]]] % (size - size // 2 + 1)
        end = begin + size // 2
        inside = (position >= begin[group]) & (position < end[group])
        first = np.flatnonzero(inside)
        second = np.flatnonzero(~inside)
        after = position[second] >= end[group[second]]
        return Half(first, group[first]), Half(second, 2 * group[second] + after)


class Half(NamedTuple):
    """Half of the rows."""

    rows: Array  # positions, NumPy, increasing
    group: Array | None  # (n',) of each: groups, or pieces of series


def _parts(group: Array, seed: int, stream: random.Stream, step: int) -> tuple[Array, Array]:
    """All rows (n,) in parts of 16 to 31 of one group, or of a smaller group, in random order; where each ends."""
    host = get_backend("numpy")

    # rows in random order within their groups
    drawn = random.words(host, seed, stream, step, 0, np.arange(len(group)), 0)
    order = np.lexsort((drawn, group))
    size = np.bincount(group)
    parts = np.maximum(size // _TOGETHER, 1)
    first = np.cumsum(size) - size
    of = group[order]
    part = (np.cumsum(parts) - parts)[of] + (np.arange(len(group)) - first[of]) * parts[of] // size[of]

    # parts in random order
    shuffled = random.permutation(host, seed, stream, step, int(parts.sum()), draw=1)
    place = np.argsort(shuffled)[part]
    rows_of = np.bincount(part, minlength=len(shuffled))
    return order[np.argsort(place, kind="stable")], np.cumsum(rows_of[shuffled])


def averaged(n: int) -> int:
    """How many consecutive rows of series of n rows are one value: so many that at most 512 are left."""
    return -(-n // random.MOST_ROWS)


def _long_series(n: int, group: Array | None, kept: Array | None) -> tuple[Array | None, Array | None]:
    """Groups and positions of the rows whose series can tell their past. Raises ValueError if there are none."""
    labels = np.zeros(n, dtype=np.intp) if group is None or kept is None else group
    size = np.bincount(labels)
    lengths = size // averaged(len(labels))
    is_long = long_enough(lengths)
    if not is_long.any() or lengths[is_long].sum() < _FEWEST_OF_SERIES:
        raise ValueError(
            f'rows="series" needs {_FEWEST_OF_SERIES} rows in series that are long enough to tell their past; the '
            f"longest of {len(size):,} has {size.max():,} rows"
        )
    if group is None or kept is None:
        return None, None
    long_rows = is_long[labels]
    return np.unique(labels[long_rows], return_inverse=True)[1], kept[long_rows]
