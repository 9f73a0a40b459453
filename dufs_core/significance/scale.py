"""The scale on which columns compete: within groups, and such that one or two far cells decide nothing.

A far cell (a glitch, a -9999) inflates a column's own deviation, and a far row is shared by all columns, so that
independent ones look dependent. Every column is therefore measured by a scale that a cell cannot move. Its two farthest
cells are drawn anew from its other cells where they are farther than 4 of the scale, or than 1.5 of the third farthest
cell; other cells beyond 4 are moved to 4. Twenty rows that lie far out together remain; docs/guide.md has the curve
between. All this is done to each column by itself, and
treats the rows of a group alike, so that a column and its decoys stay exchangeable.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import ndtri
from scipy.stats import rankdata

from dufs_core.backend import Array, Backend, get_backend, random
from dufs_core.backend.threads import mapped
from dufs_core.data.groups import Within

FAR = 4.0  # scales from the median
MOST_FAR = 2  # cells of a column that are drawn anew
_GAP = 1.5  # times the third farthest cell of a column: a 2 among zeros and ones is far
_SHARE_FAR = 0.1  # of the rows at most are
_LEAST = 0.42  # of the scale by the median: at 0.22 the ones of a word that few texts have would be far
_NORMAL = 1.4826  # deviation of a normal column by its median distance from the median
_OWN_SCALE = 10  # rows of a group that has a scale of its own; of fewer a cell could move it
CLIP = 2.0  # standard deviations: a few far rows that two columns share by chance make them dependent
_TIE = 0.01  # sizes that differ by less are equally far: which of them is drawn anew is random
_STEP = 5  # of the random numbers
_KURTOSIS = 3.0  # of a normal column; clipped at 2 deviations it has 2.45
_COLUMNS = 256  # that are ranked at a time


class Tamed(NamedTuple):
    """Columns without far cells."""

    z: Array  # (d, n) in units of the scale, from the medians of the groups, at most 4
    scale: Array  # (d,)


def spread(bk: Backend, size: Array) -> Array:
    """A deviation (..., 1) that two cells do not move, from distances `size` (..., n) to the median.

    That of all cells but the two farthest, and within 0.42 and 1 of 1.4826 median of the distances. Distances of 0 have
    no part in the median: a column that is mostly one value (counts, words) has about the scale of its other values.
    """
    xp = bk.xp
    n = size.shape[-1]
    in_order = xp.sort(size, axis=-1)
    zeros = (in_order == 0).sum(axis=-1, keepdims=True)
    middle = xp.minimum((zeros + n) // 2, n - 1)
    of_median = _NORMAL * xp.take_along_axis(in_order, middle, axis=-1)
    near = in_order[..., : max(1, n - MOST_FAR)]
    of_most = xp.sqrt((near * near).mean(axis=-1, keepdims=True))
    return xp.clip(of_most, _LEAST * of_median, of_median)


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
    if not count:
        return xp.clip(z, -FAR, FAR)
    third = xp.partition(abs(z), n - 1 - MOST_FAR, axis=1)[:, n - 1 - MOST_FAR]
    limit = xp.minimum(FAR, _GAP * third).astype(z.dtype)  # third is 0 where a column is judged nowhere
    some = np.flatnonzero(bk.to_host((abs(z) > limit[:, None]).any(axis=1)))
    together = max(1, random.WORDS // n)
    for start in range(0, len(some), together):
        block = slice(start, start + together)
        columns = xp.asarray(some[block])
        own = z[columns]
        size = abs(own)
        far = limit[columns]
        each = xp.arange(len(own))
        at_random = xp.asarray(keys[some[block]])[:, None]
        drawn = random.words(bk, seed, random.Stream.DECOYS, _STEP, 0, xp.arange(n), at_random)
        rank = size * (1 + _TIE * (drawn >> xp.uint64(40)).astype(size.dtype) / 2**24)
        for _ in range(count):
            at = rank.argmax(axis=1)
            source = (drawn[each, at] % xp.uint64(n)).astype(xp.int64)
            new = xp.where(size[each, source] > far, 0, own[each, source])  # 0: the median
            own[each, at] = xp.where(size[each, at] > far, new, own[each, at])
            rank[each, at] = 0
        z[columns] = own
    return xp.clip(z, -FAR, FAR)


def with_normal_scores(bk: Backend, within: Within, z: Array, threads: int) -> Array:
    """Tamed z (d, n) with normal scores in place of columns that have far values still.

    These are columns whose kurtosis, clipped at 2 deviations, exceeds that of a normal one. The normal score of a cell
    is Phi^(-1)((r - 1/2) / n), r its rank among all rows, the mean one of equal cells. Few rows with large values that
    two columns share by chance make them dependent; by their scores as much as any other rows.
    """
    x = clipped(within, z)
    square = x * x
    far = np.flatnonzero(bk.to_host((square * square).mean(axis=1)) > _KURTOSIS)
    n = z.shape[1]

    def of(start: int) -> Array:
        part = bk.to_host(z[bk.xp.asarray(far[start : start + _COLUMNS])])
        return ndtri((rankdata(part, axis=1) - 0.5) / n).astype(part.dtype)

    if len(far):
        scores = np.concatenate(mapped(get_backend("numpy"), of, range(0, len(far), _COLUMNS), threads))
        z = z.copy()
        z[bk.xp.asarray(far)] = bk.to_device(scores)
    return z


def scaled(within: Within, z: Array) -> Array:
    """z (d, n) with mean 0 and one deviation in each group, and variance 1."""
    xp = within.xp
    z = within.levelled(z)
    deviation = xp.sqrt((z * z).mean(axis=1, keepdims=True))
    return z / xp.where(deviation > 0, deviation, 1)


def clipped(within: Within, z: Array) -> Array:
    """Tamed z (d, n), `scaled`, clipped at 2, and `scaled` again."""
    return scaled(within, within.xp.clip(scaled(within, z), -CLIP, CLIP))
