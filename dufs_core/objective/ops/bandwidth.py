"""Bandwidth of the Gaussian kernel, read from the nearest-neighbour distances: D -> b."""

from __future__ import annotations

from numbers import Real
from typing import Any, Literal, NamedTuple, cast

from dufs_core.backend import Array, Backend
from dufs_core.errors import did_you_mean
from dufs_core.objective.rules import AUTHORS_ZERO, QUANTILES, quantile_ranks

Rule = Literal["median", "q90", "max"] | float


class Saved(NamedTuple):
    """What forward keeps for backward: b = sum_l weights_l D[rows_l, columns_l]."""

    rows: Array  # (..., 2) int
    columns: Array  # (..., 2) int
    weights: Array  # (..., 2), all 0 where b does not depend on D


def quantile_of(rule: str) -> float:
    """The quantile of the neighbour distances that a rule takes: "median" 0.5, "q90" 0.9, "max" 1; else ValueError."""
    if rule not in QUANTILES:
        hint = did_you_mean(rule, QUANTILES)
        raise ValueError(f'bandwidth must be "median", "q90", "max" or a positive number; got {rule!r}{hint}')
    return QUANTILES[rule]


def check_bandwidth(rule: Any) -> None:
    """Raise ValueError unless rule is "median", "q90", "max" or a positive finite number."""
    if isinstance(rule, str):
        quantile_of(rule)
    elif not isinstance(rule, Real) or isinstance(rule, bool) or not 0 < cast(Any, rule) < float("inf"):
        raise ValueError(f'bandwidth must be "median", "q90", "max" or a positive number; got {rule!r}')


def noise_level(finfo: Any) -> tuple[float, float]:
    """Distances up to tiny = max(4 eps max(D), sqrt(smallest normal number)) are taken for 0.

    They are rounding of a Gram matrix, or so small that 1 / b would overflow. Returns the two factors.
    """
    return 4 * float(finfo.eps), float(finfo.tiny) ** 0.5


def neighbour_distances(bk: Backend, D: Array, k: int) -> Array:
    """Squared distance from every row to its k-th nearest OTHER row (self is excluded by index).

    D (..., n, n). Returns (..., n). Raises ValueError unless 1 <= k <= n - 1.
    """
    xp = bk.xp
    n = D.shape[-1]
    check_n_neighbors(k, n)
    others = D.copy()
    i = xp.arange(n)
    others[..., i, i] = xp.inf
    return others.min(axis=-1) if k == 1 else xp.partition(others, k - 1, axis=-1)[..., k - 1]


def check_n_neighbors(k: int, n: int) -> None:
    """Raise ValueError unless 1 <= k <= n - 1."""
    if not 1 <= k <= n - 1:
        raise ValueError(
            f"n_neighbors must be between 1 and the number of rows minus 1 (a row is not its own neighbour); "
            f"got n_neighbors={k} for {n} rows, where 1 to {n - 1} is valid"
        )


def forward(
    bk: Backend, D: Array, rule: Rule | Array, k: int, factor: float, degenerate_rule: Literal["data", "one"] = "data"
) -> tuple[Array, Array, Saved]:
    """b = factor * s, with s from s_i, the squared distance of row i to its k-th nearest other row.

    * "median": s = median_i s_i (even n: mean of the two middle values);
    * "max": s = max_i s_i, so that every row reaches k neighbours;
    * "q90": the 0.9 quantile of s_i, linear between the two nearest, which no single outlier moves;
    * a number, or an array with one per matrix: s is that number.

    Where the rule gives s <= tiny(max D) (duplicate rows, all gates closed), s is replaced. degenerate_rule "data": by
    the smallest s_i above tiny, else by tiny, else (all distances 0) by 1; degenerate_rule "one": by 1 wherever
    s < 1e-8 (the authors' published code).

    D (..., n, n). Returns b (...), degenerate (...) bool (False where all distances are 0: b is of no
    consequence there), and Saved. Raises ValueError on a bad k.
    Source: arXiv 2007.04728, appendix (max), and its published code (median).
    """
    xp = bk.xp
    batch, n = D.shape[:-2], D.shape[-1]
    rows = xp.zeros((*batch, 2), dtype=xp.int64)
    if not isinstance(rule, str):
        s = xp.broadcast_to(xp.asarray(rule, dtype=D.dtype), batch)
        return s * factor, xp.zeros(batch, dtype=bool), Saved(rows, rows, xp.zeros((*batch, 2), dtype=D.dtype))

    relative, absolute = noise_level(xp.finfo(D.dtype))
    distance = neighbour_distances(bk, D, k)  # (..., n)
    order = xp.argsort(distance, axis=-1, kind="stable")
    low, high, upper = quantile_ranks(quantile_of(rule), n)
    rows = order[..., [low, high]]
    weights = xp.broadcast_to(xp.asarray([1 - upper, upper], dtype=D.dtype), (*batch, 2))
    s = (xp.take_along_axis(distance, rows, axis=-1) * weights).sum(axis=-1)

    if degenerate_rule == "one":
        degenerate = s < AUTHORS_ZERO
        s = xp.where(degenerate, 1, s).astype(D.dtype)
        weights = xp.where(degenerate[..., None], 0, weights)
    else:
        largest = D.max(axis=(-2, -1))
        tiny = xp.maximum(largest * D.dtype.type(relative), D.dtype.type(absolute))
        zero = s <= tiny
        candidates = xp.where(distance > tiny[..., None], distance, xp.inf)
        smallest, value = candidates.argmin(axis=-1), candidates.min(axis=-1)
        none_left = xp.isinf(value)
        value = xp.where(none_left, xp.where(largest > 0, tiny, 1), value)
        s = xp.where(zero, value, s).astype(D.dtype)
        rows = xp.where(zero[..., None], smallest[..., None], rows)
        one_pair = xp.stack([xp.where(none_left, 0, 1), xp.zeros_like(smallest)], axis=-1)
        weights = xp.where(zero[..., None], one_pair, weights)
        degenerate = zero & (largest > 0)
    weights = weights.astype(D.dtype) * factor

    lines = xp.take_along_axis(D, rows[..., None], axis=-2)  # (..., 2, n)
    gap = xp.abs(lines - xp.take_along_axis(distance, rows, axis=-1)[..., None])
    xp.put_along_axis(gap, rows[..., None], xp.inf, axis=-1)  # a row is not its own neighbour
    return s * D.dtype.type(factor), degenerate, Saved(rows, gap.argmin(axis=-1), weights)


def backward(bk: Backend, saved: Saved, db: Array) -> Saved:
    """dD[rows_l, columns_l] = weights_l db: the derivative reaches exactly the distances b was read from.

    Ties between neighbours at the same distance: any one of the tied pairs carries the derivative.
    db (...). Returns these entries, for `add_entries`, in place of the weights.
    """
    return saved._replace(weights=saved.weights * db[..., None])


def add_entries(bk: Backend, dD: Array, entries: Saved) -> Array:
    """Return dD (..., n, n) + the entries from `backward`, as a new array; equal positions add up."""
    xp = bk.xp
    total = dD.copy()
    flat = total.reshape(-1, *dD.shape[-2:])
    matrix = xp.arange(len(flat))
    for rows, columns, values in zip(*(xp.moveaxis(e, -1, 0) for e in entries), strict=True):
        flat[matrix, rows.ravel(), columns.ravel()] += values.ravel()
    return total
