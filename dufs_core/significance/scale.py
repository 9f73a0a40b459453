"""The scale on which columns compete: within groups, and such that one or two far cells decide nothing.

A far cell (a glitch, a -9999) inflates a column's own deviation, and a far row is shared by all columns, so that
independent ones look dependent. Every column is therefore measured by a scale that a cell cannot move, its two farthest
cells, where they are farther than 4 of it, are drawn anew from its other cells, and others are moved to 4. Twenty rows
that lie far out together remain; docs/guide.md has the curve between. All this is done to each column by itself, and
treats the rows of a group alike, so that a column and its decoys stay exchangeable.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dufs_core.backend import Array, Backend, random
from dufs_core.data.groups import Within
from dufs_core.data.matrix import dense_block
from dufs_core.significance.rows import RowSample

FAR = 4.0  # scales from the median
MOST_FAR = 2  # cells of a column that are drawn anew
_SHARE_FAR = 0.1  # of the rows at most are
_NORMAL = 1.4826  # deviation of a normal column by its median distance from the median
_OWN_SCALE = 10  # rows of a group that has a scale of its own; of fewer a cell could move it
_CLIP = 2.0  # standard deviations: a few far rows that two columns share by chance make them dependent
_TIE = 0.01  # sizes that differ by less are equally far: which of them is drawn anew is random
_STEP = 5  # of the random numbers


class Tamed(NamedTuple):
    """Columns without far cells."""

    z: Array  # (d, n) in units of the scale, from the medians of the groups, at most 4
    scale: Array  # (d,)


def spread(bk: Backend, size: Array) -> Array:
    """A deviation (..., 1) that no single cell moves, from distances `size` (..., n): 1.4826 of their median.

    Distances of 0 are left out: a column that is mostly one value (counts) has the scale of its other values.
    """
    xp = bk.xp
    n = size.shape[-1]
    in_order = xp.sort(size, axis=-1)
    zeros = (in_order == 0).sum(axis=-1, keepdims=True)
    middle = xp.minimum((zeros + n) // 2, n - 1)
    return _NORMAL * xp.take_along_axis(in_order, middle, axis=-1)


def tamed(bk: Backend, within: Within, x: Array, keys: Array, seed: int) -> Tamed:
    """Columns x (d, n), given from the medians of their groups, without far cells.

    Groups of ten rows and more, of which half differ from their median, have a scale of their own. keys (d,): the
    positions of the columns in the data, NumPy; seed: of what is drawn anew.
    """
    xp = bk.xp
    scale = spread(bk, abs(x))
    z = x / xp.where(scale > 0, scale, 1)
    if within.is_one:
        return Tamed(_without_far(bk, z, keys, seed), scale[:, 0])

    def own_scale(part: Array) -> Array:
        size = abs(part)
        differ = (size > 0).sum(axis=2, keepdims=True)
        own = xp.where(2 * differ >= part.shape[2], spread(bk, size), 0)
        return xp.broadcast_to(xp.where((own > 0) & (part.shape[2] >= _OWN_SCALE), own, 1), part.shape)

    ratio = within.each(own_scale, z)
    return Tamed(_without_far(bk, z / ratio, keys, seed) * ratio, scale[:, 0])


def _without_far(bk: Backend, z: Array, keys: Array, seed: int) -> Array:
    """z (d, n) with the farthest cells of each column drawn anew from its other cells, and all of them at most 4."""
    xp = bk.xp
    n = z.shape[1]
    count = min(MOST_FAR, int(_SHARE_FAR * n))
    some = np.flatnonzero(bk.to_host((abs(z) > FAR).any(axis=1)))
    together = max(1, random.WORDS // n)
    for start in range(0, len(some) if count else 0, together):
        block = slice(start, start + together)
        columns = xp.asarray(some[block])
        own = z[columns]
        size = abs(own)
        each = xp.arange(len(own))
        at_random = xp.asarray(keys[some[block]])[:, None]
        drawn = random.words(bk, seed, random.Stream.DECOYS, _STEP, 0, xp.arange(n), at_random)
        rank = size * (1 + _TIE * (drawn >> xp.uint64(40)).astype(size.dtype) / 2**24)
        for _ in range(count):
            at = rank.argmax(axis=1)
            source = (drawn[each, at] % xp.uint64(n)).astype(xp.int64)
            new = xp.where(size[each, source] > FAR, 0, own[each, source])  # 0: the median
            own[each, at] = xp.where(size[each, at] > FAR, new, own[each, at])
            rank[each, at] = 0
        z[columns] = own
    return xp.clip(z, -FAR, FAR)


def scaled(within: Within, z: Array) -> Array:
    """z (d, n) with mean 0 and one deviation in each group, and variance 1."""
    xp = within.xp
    z = within.levelled(z)
    deviation = xp.sqrt((z * z).mean(axis=1, keepdims=True))
    return z / xp.where(deviation > 0, deviation, 1)


def standardised(within: Within, z: Array) -> Array:
    """Tamed z (d, n), `scaled`, clipped at 2, and `scaled` again."""
    return scaled(within, within.xp.clip(scaled(within, z), -_CLIP, _CLIP))


def tamed_columns(bk: Backend, X: Any, seed: int, one_scale: bool, sample: RowSample, columns: Array) -> Array:
    """Columns (positions, NumPy) of scaled X on some rows, (d', n'), tamed and centred within groups; not clipped.

    one_scale: variance 1 for each, else in the units of X.
    """
    x = dense_block(bk, X, sample.rows, columns).T
    within = Within(bk.xp, sample.group, x.shape[1])
    z, scale = tamed(bk, within, within.from_medians(x), columns, seed)
    return scaled(within, z) if one_scale else within.levelled(z) * scale[:, None]
