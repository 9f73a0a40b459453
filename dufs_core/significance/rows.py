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
from dufs_core.data.groups import accept_groups
from dufs_core.errors import RowsWarning

_TOGETHER = 16  # rows of a group at least, where it has so many, are sampled or left together
_LARGE = 0.25  # of the rows: a larger group is halved, a smaller one goes to one half as a whole


class RowsUsed(NamedTuple):
    """How rows took part in a fit.

    Attributes
    ----------
    n_rows : int
        Rows that took part.
    n_groups : int or None
        Groups within which rows were exchanged; None: all rows were exchanged with one another.
    n_left_out : int
        Rows that were alone in their group, and took no part.
    """

    n_rows: int
    n_groups: int | None
    n_left_out: int

    @property
    def sentence(self) -> str | None:
        """What groups did; None where there are none."""
        if self.n_groups is None:
            return None
        said = (
            f"Columns were centred and scaled, and rows exchanged, within {self.n_groups:,} group"
            f"{'s' * (self.n_groups != 1)} of {self.n_rows:,} rows"
        )
        return f"{said}; {left_out_text(self.n_left_out)}." if self.n_left_out else f"{said}."


def left_out_text(count: int) -> str:
    """That so many rows are alone in their group."""
    if count == 1:
        return "1 row alone in its group took no part"
    return f"{count:,} rows, each alone in its group, took no part"


class RowSample(NamedTuple):
    """Rows that are looked at."""

    rows: Any  # a slice (all), or their positions, where the backend computes
    group: Array | None  # (n',) of each of them, as in `Rows`; NumPy


class Rows(NamedTuple):
    """The n rows of a fit."""

    n: int
    group: Array | None = None  # (n,) NumPy int, the number of each row's group; None: all may be exchanged
    kept: Array | None = None  # (n,) NumPy, positions in the user's table; None: all of it
    n_left_out: int = 0

    @classmethod
    def of(cls, groups: Any, n: int) -> Rows:
        """The n rows of a table; groups: as users give them (`dufs_core.data.groups.accept_groups`), or None."""
        if groups is None:
            return cls(n)
        number, kept = accept_groups(groups, n)
        return cls(len(kept), number, kept if len(kept) < n else None, n - len(kept))

    @property
    def used(self) -> RowsUsed:
        """The counts, for the result of a fit."""
        n_groups = None if self.group is None else len(np.unique(self.group))
        return RowsUsed(self.n, n_groups, self.n_left_out)

    def doubts(self) -> tuple[RowsWarning, ...]:
        """What the user did not ask for."""
        if not self.n_left_out:
            return ()
        advice = "such rows cannot be exchanged with any other: join small groups that are alike, if that is right"
        text = left_out_text(self.n_left_out)
        return (RowsWarning(f"{text[0].upper()}{text[1:]}: {advice}."),)

    def take(self, rows: Array) -> Rows:
        """Some of the rows (NumPy positions), which are a table of their own then."""
        return Rows(len(rows), None if self.group is None else self.group[rows])

    def sample(self, bk: Backend, seed: int, stream: random.Stream, step: int, most: int) -> RowSample:
        """All rows, or, where they are more than `most`, about that many drawn without replacement.

        Of groups 16 rows and more are drawn together, and all of a smaller one, so that there is something to exchange.
        """
        if self.group is None or self.n <= most:
            return RowSample(random.sample(bk, seed, stream, step, self.n, most), self.group)
        host = get_backend("numpy")

        # rows in random order within their groups, and parts of 16 to 31 of them
        drawn = random.words(host, seed, stream, step, 0, np.arange(self.n), 0)
        order = np.lexsort((drawn, self.group))
        size = np.bincount(self.group)
        parts = np.maximum(size // _TOGETHER, 1)
        first = np.cumsum(size) - size
        of = self.group[order]
        part = (np.cumsum(parts) - parts)[of] + (np.arange(self.n) - first[of]) * parts[of] // size[of]

        # parts in random order, as many as there is room for
        shuffled = random.permutation(host, seed, stream, step, int(parts.sum()), draw=1)
        rows_of = np.bincount(part, minlength=len(shuffled))
        taken = np.zeros(len(shuffled), dtype=bool)
        taken[shuffled] = np.cumsum(rows_of[shuffled]) <= most
        rows = np.sort(order[taken[part]])
        return RowSample(bk.xp.asarray(rows), self.group[rows])

    def halves(self, seed: int, number: int) -> tuple[Array, Array]:
        """Random halves of the rows, positions (NumPy, increasing); groups go as a whole, unless one is very large.

        A group with more than a quarter of the rows is halved itself. Sizes are as equal as that allows.
        """
        host = get_backend("numpy")
        order = random.permutation(host, seed, random.Stream.PARTITION, number, self.n)
        if self.group is None:
            first, second = order[: self.n // 2], order[self.n // 2 :]
            return np.sort(first), np.sort(second)

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
        return np.flatnonzero(in_first), np.flatnonzero(~in_first)
