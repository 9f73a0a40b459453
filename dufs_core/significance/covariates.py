"""Columns that depend on measured covariates (age, depth, library size): what is left of them, and who is alike.

What a spline of each covariate explains is taken out of every column, as least squares do. That is not enough: if the
variance depends on the covariate, residuals in another order are told from residuals in place. So they are exchanged
among rows of similar covariates alone, in strata of some eight rows, and what the splines explain of the shuffled ones
is taken out again.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dufs_core.backend import Array, random

STRATUM = 8  # rows at least; of 20 rows strata are too coarse for the size of cells
_KNOTS = 4
_FEW_VALUES = 3  # of a covariate that is a class rather than a number
_MOST_EXPLAINED = 0.5  # splines, in rows
_SINGULAR = 1e-6


def accept_covariates(covariates: Any, n: int) -> Array:
    """Covariates of n rows as float64 (n, c). Raises ValueError if they are no finite numbers for each row."""
    kind = getattr(np.asarray(covariates), "dtype", np.dtype(object)).kind
    if kind in "mMc":
        raise ValueError("covariates must be real numbers, not times or complex ones: give days since a date, say")
    try:
        Z = np.asarray(covariates, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"covariates must be numbers (n_samples, c): {error}. A class (batch, donor) belongs into groups"
        ) from error
    Z = Z[:, None] if Z.ndim == 1 else Z
    if Z.ndim != 2 or len(Z) != n or not Z.shape[1]:
        raise ValueError(
            f"covariates have shape {np.shape(covariates)}, and X {n:,} rows: give one number or more a row"
        )
    if not np.isfinite(Z).all():
        missing = int((~np.isfinite(Z)).any(axis=1).sum())
        raise ValueError(
            f"covariates are missing or infinite in {missing:,} of {n:,} rows: leave these rows out of X, too"
        )
    Z = Z / np.maximum(abs(Z).max(axis=0), np.finfo(np.float64).tiny)  # squares of 1e300 would overflow
    constant = np.flatnonzero((Z[0] == Z).all(axis=0))
    if len(constant):
        raise ValueError(f"covariate {constant[0]} has one value in all rows: leave it out")
    functions = (3 + _KNOTS) * Z.shape[1]
    if functions > _MOST_EXPLAINED * min(n, random.MOST_ROWS):
        raise ValueError(
            f"covariates have {functions} splines in all, more than half of the {min(n, random.MOST_ROWS)} rows that "
            f"they are taken out of at a time: give fewer covariates"
        )
    return Z


def directions(Z: Array, group: Array | None) -> Array:
    """An orthonormal basis (n, m) of cubic splines of each covariate, centred within groups (n,)."""
    basis = np.concatenate([_splines(z) for z in Z.T], axis=1)
    labels = np.zeros(len(Z), dtype=np.intp) if group is None else group
    sums = np.zeros((labels.max() + 1, basis.shape[1]))
    np.add.at(sums, labels, basis)
    before = np.sqrt((basis * basis).sum(axis=0))
    basis -= (sums / np.maximum(np.bincount(labels), 1)[:, None])[labels]
    length = np.sqrt((basis * basis).sum(axis=0))
    varies = length > _SINGULAR * before  # within some group
    basis = basis[:, varies] / length[varies]
    u, s, _ = np.linalg.svd(basis, full_matrices=False)
    return np.asarray(u[:, s > _SINGULAR * s.max(initial=0.0)])


def _splines(z: Array) -> Array:
    """Cubic splines (n, 7) of a covariate with four knots at its quantiles; of two or three values the values."""
    values = np.unique(z)
    if len(values) > 1:
        z = (z - z.mean()) / z.std()
        values = np.unique(z)
    if len(values) <= _FEW_VALUES:
        return (z[:, None] == values[1:]).astype(np.float64)
    knots = np.quantile(z, np.linspace(0, 1, _KNOTS + 2)[1:-1])
    return np.column_stack([z, z**2, z**3, *(np.maximum(z - knot, 0) ** 3 for knot in knots)])


def strata(Z: Array, group: Array | None) -> Array:
    """Numbers (n,) of strata of 8 to 15 rows with similar covariates, each within one group.

    Rows are halved at the median of the covariate that varies most among them, until fewer than 16 are left.
    """
    labels = np.zeros(len(Z), dtype=np.intp) if group is None else group
    scaled = (Z - Z.mean(axis=0)) / np.maximum(Z.std(axis=0), np.finfo(np.float64).tiny)
    number = np.empty(len(Z), dtype=np.intp)
    open_parts = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    count = 0
    while open_parts:
        rows = open_parts.pop()
        if len(rows) < 2 * STRATUM:
            number[rows] = count
            count += 1
            continue
        widest = int(np.argmax(scaled[rows].std(axis=0)))
        rows = rows[np.argsort(scaled[rows, widest], kind="stable")]
        open_parts += [rows[: len(rows) // 2], rows[len(rows) // 2 :]]
    return number


def residuals(x: Array, Q: Array) -> Array:
    """Columns x (d, n) less what the orthonormal Q (n, m) explains."""
    return x - (x @ Q) @ Q.T
