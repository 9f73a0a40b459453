"""Whether the rows may be exchanged: what makes independent columns look dependent, seen in the rows themselves.

Decoys are columns whose rows were exchanged at random. That is fair only if any order of the rows is as likely as the
one there is. `diagnose` looks for six ways in which it is not. It reads n rows, in at most 1,024 columns, spread evenly
(row counters are looked for in all that it is given, and then left out), as z = (x - median) / scale: the scale is the
distance of the quantiles 0.1 and 0.9 by that of a normal, or, where these are equal, the median of the deviations that
are not 0. One row cannot move either. y is z / (1 + |z| / 3), with mean 0 and variance 1.

neighbours
    In windows of 5 rows, the mean product y_i y_j of the four pairs of neighbours less that of the other six, averaged
    over columns, median over windows; as z against 199 shuffles of the rows within their windows. Rows that are
    sorted by class in blocks of 12 and more do not raise it: a window lies in one block, with few exceptions.
one factor
    The share of the mean squared correlation beyond chance that is left without the first min(10, n / 20, d / 10)
    principal components, where the columns have this correlation about equally. It is asked only where more than half
    of the columns are selected.
copies
    Rows at a distance of at most e r, r the distance to the 10th other row. Of points that fill m dimensions evenly
    (r_10 / r_1)^m is the smallest of 9 uniforms (as in Facco et al., Sci. Rep. 7, 12140, 2017), so that
    e = (0.005 / 9)^(1/m) is passed by chance in 0.5% of the rows; m comes from r_20 / r_10, and e is at most 1/3.
    Values that are counted or rounded coincide by chance: their smallest step is added to every distance.
far rows
    |z| > 8 in a fifth of the columns and three, more than by chance, in few rows.
row counter
    All steps from row to row have one sign, and half of them or more are equal.
equal cells
    The commonest value of a column that has no other as common, the mean or median of the other values or far from all
    of them, is taken in the same rows by three columns or more; the largest such set of columns is named.

Of more rows than are looked at, far rows are looked for in all, and one factor in the correlations of all.

What is not seen: effects on the variance alone; series in few of many columns, or shorter than 25 rows; batches where
columns are few or depend little on them; values imputed by a model; copies with noise of half a standard deviation, or
with an identifier among few columns, or fewer than 5% of the rows; far rows beyond the rows that are read or in fewer
columns. What looks the same: clusters that nearly all columns tell, and batches; a group of up to ten rows far from all
others, and copies; a table sorted by class where classes have fewer than twelve rows, and one in the order of time.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import eigh
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import pdist, squareform
from scipy.special import bdtrc, gammaln

from dufs_core.backend import Array, Backend, get_backend, random
from dufs_core.errors import printable
from dufs_core.significance.exchange import Exchange
from dufs_core.significance.rows import Rows

DIAGNOSED = 1 << 22  # entries of a fit that are asked: of very many columns some, spread evenly
MOST_COLUMNS = 1024
_FEWEST_ROWS = 3  # that differ from a column's median
_BOUND = 3.0
_ROUNDING = 1e-9
_LEAST_SCALE = 1e-12  # of a column whose largest value is 1

WINDOW = 5
NEIGHBOURS_Z = 5.0
_FEWEST_WINDOWS = 5
_SHUFFLES = 199

SELECTED_SHARE = 0.5  # of the columns; below it one factor is not asked for
FACTOR_LEFT = 0.05
FACTOR_EVENNESS = 0.4
_MOST_FACTORS, _ROWS_A_FACTOR, _COLUMNS_A_FACTOR = 10, 20, 10
_LEAST_CORRELATION = 0.5  # mean squared correlation beyond chance, in units of chance, for there to be a factor

COPIED_SHARE = 0.05
_NEIGHBOUR = 10  # the scale of distances around a row; a row copied more often is seen only where copies are exact
_BY_CHANCE = 0.005  # of the rows are near another one
_MOST_RATIO = 1 / 3

FAR = 8.0  # standard deviations
FAR_COLUMNS = 0.2  # at a tenth, images of lit objects (COIL-100) raise it
_FEWEST_FAR_COLUMNS = 3
_MOST_FAR_ROWS = 0.05  # more of them are a group
_FAR_CHANCE = 1e-3

_FEWEST_COUNTED = 10  # rows: fewer increase evenly by chance
_FIRST_ROWS = 16  # that all columns are looked at in
_EVEN = 1e-3  # of a step, for float32
COUNTED_SHARE = 0.5

_EQUAL_COLUMNS, _EQUAL_ROWS = 3, 3
_MOST_EQUAL = 0.5  # of the rows: more of them are the background of pictures
_AGREEMENT = 0.95  # correlation of the rows at the commonest value
_COMMONER = 4.0  # than any other value
_OTHER_VALUES = 8
_MIDDLE = 0.15  # standard deviations from the mean or median of the other values, which a sample of rows moves
_APART = 10.0  # ranges of the other values: a value like -9999
_EQUAL_CHANCE = 1e-3
_MOST_COMPARED = 512

_MUCH_MEMORY = 0.1  # of the columns
_WITHIN = ("neighbours", "one factor")  # what groups or time, where they are told, may explain
_AS_GIVEN = ("copies", "far rows", "row counter", "equal cells")  # what they do not
_LISTED = 5


class Finding(NamedTuple):
    """One reason why the rows may not be exchanged.

    Attributes
    ----------
    what : {"neighbours", "one factor", "copies", "far rows", "row counter", "equal cells", "memory"}
    number : float
        What triggered it: z of neighbouring rows; share of the squared correlation that is left without few factors;
        share of the rows that repeat an earlier one; largest share of the columns in which a row is far; share of the
        steps that are equal; share of the rows that have the common value; share of the columns that remember.
    sentence : str
        With the number, and what to do.
    columns : ndarray of int
        Positions in X of the columns concerned, among those that were read; empty: all of them.
    rows : ndarray of int
        Positions in the user's table of the rows concerned; empty: all of them. Of copies, those that repeat an earlier
        row.
    """

    what: str
    number: float
    sentence: str
    columns: Array
    rows: Array


class _Rows(NamedTuple):
    """The rows in the user's order, in the columns that vary."""

    z: Array  # (d, n) robust standard deviations from the median
    y: Array  # (d, n) bounded, mean 0, variance 1
    sorted: Array  # (d, n) z, each column increasing
    gram: Array  # (n, n) y'y
    step: float  # of the median column: its smallest step, as y has it near the median
    columns: Array  # (d,) positions in X
    positions: Array  # (n,) in the user's table, increasing
    names: Sequence[str] | None  # of the columns of X


_NONE = np.zeros(0, dtype=np.intp)


def findings(bk: Backend, X: Any, table: Rows, seed: int, names: Sequence[Any] | None) -> tuple[Finding, ...]:
    """What says that the rows that a fit looks at may not be exchanged; of up to 512 rows the same for any seed.

    X: scaled, (n, d); names (d,) of the columns. What groups, covariates or time explain, where they are told, is taken
    out before it is asked what rows have in common. "one factor" is asked, whatever is selected.
    """
    d = X.shape[1]
    exchange = Exchange.of(bk, table, seed)
    most = min(d, DIAGNOSED // len(exchange.sampled))
    columns = np.arange(d) if d <= most else np.linspace(0, d - 1, most).astype(np.intp)
    called = None if names is None else [str(names[k]) for k in columns]
    x = exchange.read(X, columns)
    positions = exchange.sampled if table.kept is None else table.kept[exchange.sampled]
    found = diagnose(bk.to_host(x.T), positions, 1.0, names=called)
    if not (exchange.is_plain and exchange.group is None):
        some = np.linspace(0, len(columns) - 1, min(len(columns), MOST_COLUMNS)).astype(np.intp)
        freed = exchange.prepared(x[bk.xp.asarray(some)], columns[some])
        there = diagnose(bk.to_host(freed.values[bk.xp.asarray(~freed.remembers)].T), exchange.positions, 1.0)
        found = tuple(finding for finding in found if finding.what in _AS_GIVEN)
        found += tuple(
            _of_series(finding) if table.is_series else finding for finding in there if finding.what in _WITHIN
        )
        if freed.remembers.any():
            found += (_memory(some[freed.remembers], len(some), called),)
    return tuple(finding._replace(columns=columns[finding.columns]) for finding in found)


def _of_series(finding: Finding) -> Finding:
    """What is said of rows that were told to be series: the advice to do so is taken out."""
    if finding.what != "neighbours":
        return finding
    sentence = (
        f"Neighbouring rows are more alike than others (z = {finding.number:.1f}, limit {NEIGHBOURS_Z:g}) even after "
        f"each column was freed of its past: treat the selection as unproven."
    )
    return finding._replace(sentence=sentence)


def _memory(columns: Array, d: int, names: Sequence[str] | None) -> Finding:
    one = len(columns) == 1
    sentence = (
        f"{_columns(columns, names)} {'remembers' if one else 'remember'} more of the past than could be taken out "
        f"({len(columns)} of {d} columns: few values, values that are held, bursts) and "
        f"{'is' if one else 'are'} not judged"
    )
    share = len(columns) / d
    more = ", and others may be like them: treat the selection as unproven" if share > _MUCH_MEMORY else ""
    return Finding("memory", share, f"{sentence}{more}.", columns, _NONE)


def diagnose(
    X: Array,
    positions: Array | None = None,
    selected_share: float = 0.0,
    seed: int = 0,
    names: Sequence[str] | None = None,
) -> tuple[Finding, ...]:
    """What says that the rows of a table may not be exchanged.

    Parameters
    ----------
    X : (n, d) ndarray of float
        The rows that a fit looks at, some hundred of them: all of a small table, in its order, or a sample. Columns may
        be scaled in any way, each by itself.
    positions : (n,) ndarray of int, optional
        Where the rows of a sample are in the user's table, in any order. Rows are then compared in that order: a sample
        of distant rows is asked whether these depend on one another. None: the rows are the table.
    selected_share : float
        The share of the columns that the fit selects; up to a half, "one factor" is not asked for.
    seed : int
        Of the shuffles.
    names : sequence of str, optional
        The names of all columns of X, for the sentences; else their positions are named.

    Returns
    -------
    tuple of Finding
        In the order of the module's list; empty where nothing was found, or fewer than 3 rows are given.
    """
    X = np.asarray(X)
    positions = np.arange(len(X)) if positions is None else np.asarray(positions)
    order = np.argsort(positions, kind="stable")
    if (np.diff(order) != 1).any():
        X = X[order]
    positions = positions[order]
    if len(X) < _FEWEST_ROWS:
        return ()
    with np.errstate(under="ignore"):
        counter = _row_counter(X, positions, names)
        columns = np.arange(X.shape[1]) if counter is None else np.delete(np.arange(X.shape[1]), counter.columns)
        rows = _read(X, columns, positions, names)
        asked = [
            _neighbours(rows, seed),
            _one_factor(rows, seed) if selected_share > SELECTED_SHARE else None,
            _copies(rows),
            _far_rows(rows),
            counter,
            _equal_cells(rows),
        ]
    return tuple(finding for finding in asked if finding is not None)


def _read(X: Array, columns: Array, positions: Array, names: Sequence[str] | None) -> _Rows:
    n, d = len(X), len(columns)
    columns = columns[np.linspace(0, d - 1, min(d, MOST_COLUMNS)).astype(np.intp)]
    x = np.ascontiguousarray(X[:, columns].T, dtype=np.float64)

    # Columns to the unit of their largest value, so that no square overflows; those that do not vary are left out.
    peak = np.maximum(x.max(axis=1, initial=0.0), -x.min(axis=1, initial=0.0))
    there = peak > np.finfo(np.float64).tiny
    x /= np.where(there, peak, 1.0)[:, None]
    in_order = np.sort(x, axis=1)
    middle = (in_order[:, (n - 1) // 2] + in_order[:, n // 2]) / 2
    varies = there & ((x != middle[:, None]).sum(axis=1) >= _FEWEST_ROWS)
    varies &= in_order[:, -1] - in_order[:, 0] > 0
    x, in_order, middle = x[varies], in_order[varies], middle[varies, None]

    # The scale: of the quantiles, or of the deviations that are not 0.
    tail = n // 10
    scale = (in_order[:, n - 1 - tail] - in_order[:, tail]) / 2.563
    flat = np.flatnonzero(scale <= _LEAST_SCALE)
    deviation = np.sort(np.abs(x[flat] - middle[flat]), axis=1)
    count = (deviation > 0).sum(axis=1)
    scale[flat] = deviation[np.arange(len(flat)), n - count + (count - 1) // 2]

    scale = np.maximum(scale, _LEAST_SCALE)[:, None]
    z = (x - middle) / scale
    in_order = (in_order - middle) / scale
    y = _bounded(z)
    y -= y.mean(axis=1, keepdims=True)
    deviation = np.sqrt((y * y).mean(axis=1, keepdims=True))
    y /= deviation
    gaps = np.diff(in_order, axis=1)
    smallest = np.where(gaps > _ROUNDING, gaps, np.inf).min(axis=1)
    step = float(np.median(_bounded(smallest) / deviation[:, 0])) if len(smallest) else 0.0
    return _Rows(z, y, in_order, y.T @ y, step, columns[varies], positions, names)


def _bounded(z: Array) -> Array:
    """z, smoothly kept below 3: what differs still does."""
    return z / (1 + np.abs(z) / _BOUND)


# --- rows in an order


def _neighbours(rows: _Rows, seed: int) -> Finding | None:
    z = neighbours_z(rows.gram, seed)
    if z <= NEIGHBOURS_Z:
        return None
    sentence = (
        f"Neighbouring rows are more alike than rows two to four apart (z = {z:.1f} against shuffled rows, limit "
        f"{NEIGHBOURS_Z:g}): if the rows are in an order, of time or place, columns that are independent look "
        f'dependent, so fit rows in the order of time by DUFS(rows="series"), or take rows that are far enough apart '
        f"to be independent, or treat the selection as unproven."
    )
    return Finding("neighbours", z, sentence, _NONE, _NONE)


def neighbours_z(gram: Array, seed: int) -> float:
    """z of the module's first entry from the products of rows (n, n), in their order; 0 of fewer than 25 rows."""
    count = len(gram) // WINDOW
    if count < _FEWEST_WINDOWS:
        return 0.0
    at = np.arange(count * WINDOW).reshape(count, WINDOW)
    products = gram[at[:, :, None], at[:, None, :]]  # (windows, 5, 5)

    # Each order of a window and its reverse say the same; the first is the one there is.
    arrangements = np.array([p for p in permutations(range(WINDOW)) if p[0] < p[-1]])
    near = products[:, arrangements[:, 1:], arrangements[:, :-1]].sum(axis=2)  # (windows, 60)
    pairs = (products.sum(axis=(1, 2)) - np.trace(products, axis1=1, axis2=2))[:, None] / 2
    n_near, n_pairs = WINDOW - 1, WINDOW * (WINDOW - 1) // 2
    excess = near / n_near - (pairs - near) / (n_pairs - n_near)

    bk = get_backend("numpy")
    shuffles, windows = np.arange(_SHUFFLES)[:, None], np.arange(count)
    drawn = random.words(bk, seed, random.Stream.DECOYS, 3, 0, shuffles, windows) % np.uint64(len(arrangements))
    null = np.median(excess[windows, drawn.astype(np.intp)], axis=1)
    spread = float(null.std())
    if spread <= 1e-12 * float(np.abs(excess).max()):
        return 0.0
    return float((np.median(excess[:, 0]) - null.mean()) / spread)


def _row_counter(X: Array, positions: Array, names: Sequence[str] | None) -> Finding | None:
    n = len(X)
    if n < _FEWEST_COUNTED:
        return None

    # Of all columns the first rows, of those that go one way there all rows.
    first = X[:_FIRST_ROWS]
    up, down = (first[1:] > first[:-1]).all(axis=0), (first[1:] < first[:-1]).all(axis=0)
    columns = np.flatnonzero(up | down)
    x = X[:, columns].astype(np.float64)
    peak = np.maximum(np.abs(x).max(axis=0), np.finfo(np.float64).tiny)
    distance = np.maximum(np.diff(positions), 1)[:, None]
    steps = np.diff(x / peak, axis=0) / distance
    steps *= np.where(up[columns], 1.0, -1.0)
    step = np.median(steps, axis=0)
    rounding = 4 * np.finfo(X.dtype if X.dtype.kind == "f" else np.float64).eps / distance
    even = (np.abs(steps - step) <= _EVEN * step + rounding).mean(axis=0)
    counts = (steps > 0).all(axis=0) & (even >= COUNTED_SHARE) & (step > 4 * np.median(rounding))
    columns, even = columns[counts], even[counts]
    if not len(columns):
        return None
    number = float(even.min())
    one = len(columns) == 1
    sentence = (
        f"{_columns(columns, names)} {'counts' if one else 'count'} the rows ({number:.0%} of the steps from row to "
        f"row are equal): it depends on whatever the order of the rows depends on, so leave "
        f"{'this column' if one else 'these columns'} out, unless the order is a measurement."
    )
    return Finding("row counter", number, sentence, columns, _NONE)


# --- rows that have something in common


def _one_factor(rows: _Rows, seed: int) -> Finding | None:
    left, evenness = factor(rows.y, rows.gram, seed)
    return _said_of_factor(left, evenness, most_factors(*rows.y.shape))


def one_factor(r: Array, n: int, seed: int) -> Finding | None:
    """What is said of the correlations r (d, d) of columns on all of n rows, as `factor` of some rows."""
    d = len(r)
    count = most_factors(d, n)
    chance = d * (d - 1) / (n - 1)
    of_column = (r * r).sum(axis=1) - 1 - chance / d
    before = float(of_column.sum())
    if count < 1 or before < _LEAST_CORRELATION * chance:
        return None
    drawn = random.normals(get_backend("numpy"), seed, random.Stream.DECOYS, 4, d, None, np.arange(d), r.dtype)
    noise = np.triu(drawn, 1) / np.sqrt(n)
    noise += noise.T + np.eye(d)
    after = _left_of(r, count) - _left_of(noise, count)
    evenness = before**2 / (d * float((of_column * of_column).sum()))
    return _said_of_factor(max(after, 0.0) / before, evenness, count)


def _left_of(r: Array, count: int) -> float:
    """The sum of squared correlations r (d, d) without the largest components, of variance 1 again."""
    d = len(r)
    values, vectors = eigh(r, subset_by_index=(d - count, d - 1))
    rest = r - (vectors * values) @ vectors.T
    deviation = np.sqrt(np.maximum(np.diagonal(rest), np.finfo(np.float64).tiny))
    rest /= np.outer(deviation, deviation)
    return float((rest * rest).sum())


def _said_of_factor(left: float, evenness: float, count: int) -> Finding | None:
    if left >= FACTOR_LEFT or evenness < FACTOR_EVENNESS:
        return None
    sentence = (
        f"Few factors explain nearly all columns about equally (without {count} principal components {left:.1%} of "
        f"their squared correlation is left, limit {FACTOR_LEFT:.0%}): if it is a batch, a donor, an age or the total "
        f"of a row's counts, independent columns are selected for it, so give the batch or donor of each row as "
        f"groups, an age or a depth as covariates, scale counts to the median total, or treat the selection as "
        f"unproven."
    )
    return Finding("one factor", left, sentence, _NONE, _NONE)


def most_factors(d: int, n: int) -> int:
    """The number of components that are taken for one factor."""
    return min(_MOST_FACTORS, n // _ROWS_A_FACTOR, d // _COLUMNS_A_FACTOR)


def factor(y: Array, gram: Array, seed: int) -> tuple[float, float]:
    """What is left of the squared correlation of columns y (d, n) without few components; how evenly columns have it.

    The first is a share of the mean beyond chance. Chance is what independent normals have, without their own
    components too: of few columns these take much. The second is (sum c)^2 / (d sum c^2), c what a column has beyond
    chance: 1 where all have the same, 1 / d where one has all. (1, 0) where there is nothing to explain, in fewer than
    10 columns or 20 rows.
    """
    d, n = y.shape
    count = most_factors(d, n)
    if count < 1:
        return 1.0, 0.0
    of_column = ((y @ gram) * y).sum(axis=1) / n**2 - 1
    beyond = of_column - (d - 1) / (n - 1)
    before = float(beyond.sum())
    if before < _LEAST_CORRELATION * d * (d - 1) / (n - 1):
        return 1.0, 0.0
    noise = random.normals(get_backend("numpy"), seed, random.Stream.DECOYS, 4, n, None, np.arange(d), y.dtype).T
    after = _squares(_without_components(y, gram, count)) - _squares(_without_components(noise, noise.T @ noise, count))
    return max(after, 0.0) / before, before**2 / (d * float((beyond * beyond).sum()))


def _squares(products: Array) -> float:
    """The sum of the squared correlations of all columns, from products of rows (n, n)."""
    return float((products * products).sum()) / len(products) ** 2


def _without_components(y: Array, gram: Array, count: int) -> Array:
    """Products of rows (n, n) of the columns, with variance 1 again, less their largest principal components."""
    n = len(gram)
    vectors = eigh(gram, subset_by_index=(n - count, n - 1))[1]
    residual = y - (y @ vectors) @ vectors.T
    residual /= np.maximum(np.sqrt((residual * residual).mean(axis=1, keepdims=True)), 1e-6)
    return residual.T @ residual


def _copies(rows: _Rows) -> Finding | None:
    repeats = copied_rows(rows.y, rows.step)
    share = len(repeats) / len(rows.gram)
    if share < COPIED_SHARE or len(repeats) < 2:
        return None
    looked_at = " looked at" if len(rows.positions) <= rows.positions[-1] else ""
    sentence = (
        f"{share:.0%} of the rows{looked_at} repeat another row, exactly or nearly: copies of samples (a bootstrap "
        f"sample, repeated measurements, merged files) make independent columns dependent, so keep one row of each, of "
        f"the whole table, or give the sample of each row as groups, unless so few values are possible that rows of "
        f"different samples coincide."
    )
    return Finding("copies", share, sentence, _NONE, rows.positions[repeats])


def copied_rows(y: Array, step: float) -> Array:
    """The rows of y (d, n) that repeat an earlier one exactly or nearly; step: that values are rounded to."""
    d, n = y.shape
    number: dict[bytes, int] = {}
    which = np.array([number.setdefault(row.tobytes(), len(number)) for row in y.T])
    distinct = y.T[np.unique(which, return_index=True)[1]]
    near = min(_NEIGHBOUR, len(distinct) // 4)
    if d < 2 or near < 2:
        return _NONE
    D = squareform(pdist(distinct, "sqeuclidean"))  # by differences: products would lose what is near
    around = np.partition(D, (near, 2 * near), axis=1)
    r_near, r_far = around[:, near], around[:, 2 * near]

    # The dimension of what the rows fill, and how near a row can be by chance.
    apart = r_near > 0  # squares of the distances of tiny values vanish
    growth = float(np.median(np.log(r_far[apart] / r_near[apart]))) / 2 if apart.any() else 0.0
    ratio = min(_MOST_RATIO, (_BY_CHANCE / (near - 1)) ** (growth / np.log(2)))

    # Copies, as far as rows that differ by a step could not have come as near.
    limit = ratio**2 * np.minimum(r_near[:, None], r_near[None, :]) - step**2
    _, group = connected_components(limit >= D, directed=False)
    told_apart = np.diagonal(limit) < 0
    label = np.where(told_apart[which], len(distinct) + np.arange(n), group[which])
    return np.setdiff1d(np.arange(n), np.unique(label, return_index=True)[1])


def _far_rows(rows: _Rows) -> Finding | None:
    far = np.abs(rows.z) > FAR
    finding = far_rows(far.sum(axis=0), len(far), rows.positions)
    if finding is None:
        return None
    concerned = far[:, np.isin(rows.positions, finding.rows)].any(axis=1)
    return finding._replace(columns=rows.columns[concerned])


def far_rows(count: Array, d: int, positions: Array) -> Finding | None:
    """What is said of rows at these positions that are far, each in `count` of d columns."""
    n = len(count)
    enough = max(_FEWEST_FAR_COLUMNS, FAR_COLUMNS * d)
    found = count >= enough
    if not found.any() or found.sum() > max(2, _MOST_FAR_ROWS * n):
        return None
    chance = bdtrc(count[found] - 1.0, d, min(float(count.mean()) / d, 1.0))
    found[found] = n * chance < _FAR_CHANCE
    if not found.any():
        return None
    share = float(count[found].max()) / d
    at: Array = np.sort(positions[found])
    one = len(at) == 1
    named = _listed("row", at.tolist())
    sentence = (
        f"{named} {'lies' if one else 'lie'} more than {FAR:g} standard deviations from the others in "
        f"up to {share:.0%} of the columns: a glitch, or a number for missing? DUFS sets one or two aside, more make "
        f"independent columns dependent, and so does one without decoys: look at {'it' if one else 'them'}, and drop "
        f"{'it' if one else 'them'} unless what few rows say is wanted."
    )
    return Finding("far rows", share, sentence, _NONE, at)


def _equal_cells(rows: _Rows) -> Finding | None:
    d, n = rows.z.shape
    columns, at = common_values(rows.z, rows.sorted)
    if len(columns) < _EQUAL_COLUMNS:
        return None
    size = at.sum(axis=1)
    sure = _log_choose(n, size) > np.log(d**2 / _EQUAL_CHANCE)
    columns, at, size = columns[sure], at[sure].astype(np.float64), size[sure]
    if len(columns) < _EQUAL_COLUMNS:
        return None
    share = size / n
    agreement = (at @ at.T / n - np.outer(share, share)) / np.sqrt(np.outer(share * (1 - share), share * (1 - share)))
    _, group = connected_components(agreement >= _AGREEMENT, directed=False)
    largest = group == np.argmax(np.bincount(group))
    if largest.sum() < _EQUAL_COLUMNS:
        return None
    concerned = rows.columns[columns[largest]]
    same = np.flatnonzero(at[largest].mean(axis=0) > 0.5)
    number = len(same) / n
    sentence = (
        f"{_columns(concerned, rows.names)} have equal values in the same {len(same)} rows ({number:.0%}), as columns "
        f"have that were imputed together: that makes independent columns dependent, so drop these rows, or fill every "
        f"such cell with a value of its column that is drawn for it alone."
    )
    return Finding("equal cells", number, sentence, concerned, rows.positions[same])


def common_values(z: Array, in_order: Array) -> tuple[Array, Array]:
    """The columns, at most 512, of z (d, n) whose commonest value looks filled in; masks of the rows that have it."""
    n = z.shape[1]
    equal = in_order[:, 1:] == in_order[:, :-1]
    columns = np.flatnonzero(equal.sum(axis=1) >= _EQUAL_ROWS - 1)
    s, equal = in_order[columns], equal[columns]

    # Lengths of the runs of equal values, at the end of each.
    index = np.arange(n)
    is_start = np.concatenate([np.ones((len(s), 1), dtype=bool), ~equal], axis=1)
    is_end = np.concatenate([~equal, np.ones((len(s), 1), dtype=bool)], axis=1)
    start = np.maximum.accumulate(np.where(is_start, index, 0), axis=1)
    run = np.where(is_end, index - start + 1, 0)
    end = run.argmax(axis=1)
    each = np.arange(len(s))
    most = run[each, end]
    run[each, end] = 0
    begin = end - most + 1
    filled = (most >= _EQUAL_ROWS) & (most <= _MOST_EQUAL * n) & (most >= _COMMONER * run.max(axis=1, initial=0))
    filled &= (run > 0).sum(axis=1) >= _OTHER_VALUES

    # The other values: their mean, median, deviation and range.
    count = np.maximum(n - most, 1)
    value = s[each, end]
    mean = (s.sum(axis=1) - most * value) / count
    deviation = np.sqrt(np.maximum(((s - mean[:, None]) ** 2).sum(axis=1) - most * (value - mean) ** 2, 0) / count)
    half = count // 2
    median = s[each, np.minimum(np.where(half < begin, half, half + most), n - 1)]
    lowest = np.where(begin > 0, s[:, 0], s[each, np.minimum(end + 1, n - 1)])
    highest = np.where(end < n - 1, s[:, -1], s[each, np.maximum(begin - 1, 0)])

    # Filled in with one of the first two, or with what is far from all others.
    from_middle = np.minimum(np.abs(value - mean), np.abs(value - median))
    gap = np.maximum(lowest - value, value - highest)
    filled &= (from_middle <= _MIDDLE * deviation) | (gap > _APART * (highest - lowest))
    kept = np.flatnonzero(filled)
    kept = kept[np.linspace(0, len(kept) - 1, min(len(kept), _MOST_COMPARED)).astype(np.intp)]
    return columns[kept], z[columns[kept]] == value[kept, None]


def _log_choose(n: int, k: Array) -> Array:
    return gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)


# --- words


def _columns(columns: Array, names: Sequence[str] | None) -> str:
    return _listed("column", columns if names is None else [printable(names[k]) for k in columns])


def _listed(noun: str, items: Sequence[object]) -> str:
    """Row 3; Rows 3, 7; 12 rows (1, 2, 3, 4, 5, ...)."""
    some = ", ".join(str(item) for item in items[:_LISTED])
    if len(items) == 1:
        return f"{noun.capitalize()} {some}"
    if len(items) <= _LISTED:
        return f"{noun.capitalize()}s {some}"
    return f"{len(items)} {noun}s ({some}, ...)"
