"""Spectra of a dense affinity matrix K (n, n), in float64 by LAPACK's symmetric solver."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.linalg import eigh

from dufs_core.backend import Array, get_backend
from dufs_core.baselines.graphs import fixed_sign
from dufs_core.objective.ops import bandwidth as bandwidth_rule
from dufs_core.objective.ops import distances, gaussian
from dufs_core.objective.ops.normalise import SELF_WEIGHT
from dufs_core.selection.parameters import check_positive

_SYMMETRY = 1e-9  # relative difference between K and its transpose that counts as rounding


class Spectrum(NamedTuple):
    """The largest eigenvalues of the random walk, and their right eigenvectors."""

    values: Array  # (m,) lambda_1 = 1 >= lambda_2 >= ...
    vectors: Array  # (n, m) psi_1 (constant), psi_2, ..., unit length each


def affinity(
    X: Array,
    bandwidth: bandwidth_rule.Rule = "max",
    n_neighbors: int = 2,
    bandwidth_factor: float = 2.0,
    self_loops: bool = True,
) -> Array:
    """K_ij = exp(-||x_i - x_j||^2 / b) (n, n), the affinity of DUFS, for X as it is: neither scaled nor gated.

    Raises ValueError if X is not a finite table, its squared distances overflow, or a parameter is out of range.

    Parameters
    ----------
    X : array-like (n, d)
    bandwidth : "max", "median", "q90" or float
        b is bandwidth_factor times this statistic of the rows' squared distances to a neighbour; a number is b itself.
    n_neighbors : int from 1 to n - 1
        Which neighbour: 1 is the nearest other row.
    bandwidth_factor : float above 0
    self_loops : bool
        Whether K_ii is 1 or as good as 0 (`dufs_core.objective.ops.normalise.SELF_WEIGHT`).
    """
    X = np.asarray(X, dtype=np.float64)
    if X.ndim != 2 or len(X) < 2:
        raise ValueError(f"X must be a table of at least 2 rows; its shape is {X.shape}")
    if not np.isfinite(X).all():
        raise ValueError(f"X has {int((~np.isfinite(X)).sum())} values that are NaN or infinite; fill or remove them")
    bandwidth_rule.check_bandwidth(bandwidth)
    check_positive("bandwidth_factor", bandwidth_factor)
    bk = get_backend("numpy")
    with np.errstate(over="ignore", invalid="ignore"):  # overflow is refused in the next lines
        centred = X - X.mean(axis=0)  # distances stay, rounding shrinks
        D, _ = distances.forward(bk, centred @ centred.T)
    if not np.isfinite(D).all():
        overflow = f"Squared distances between rows of X overflow float64 (entries reach {abs(X).max():.3g})"
        raise ValueError(f"{overflow}: divide X by a constant first")
    factor = bandwidth_factor if isinstance(bandwidth, str) else 1.0
    b, _, _ = bandwidth_rule.forward(bk, D, bandwidth, n_neighbors, factor)
    return np.asarray(gaussian.forward(bk, D, b, 1.0 if self_loops else SELF_WEIGHT)[0])


def random_walk_spectrum(K: Array, n_vectors: int = 2) -> Spectrum:
    """The `n_vectors` largest eigenvalues of P = diag(K 1)^(-1) K, and its right eigenvectors.

        P psi = lambda psi,   through the symmetric A = deg^(-1/2) K deg^(-1/2):  A u = lambda u,  psi = deg^(-1/2) u

    lambda_1 = 1 with psi_1 constant. If lambda_2 is close to 1, the walk hardly leaves two groups of rows, and psi_2
    separates them (arXiv 2007.04728, section 3). With several components lambda_2 = 1, and psi_1 and psi_2 are some
    basis of the vectors that are constant on each. Vectors have unit length; their largest entry in size is positive.

    K (n, n) symmetric, non-negative, with positive row sums; n_vectors from 1 to n; else ValueError.
    """
    K = np.asarray(K, dtype=np.float64)
    if K.ndim != 2 or K.shape[0] != K.shape[1] or not len(K):
        raise ValueError(f"K must be a square matrix; its shape is {K.shape}")
    if not np.isfinite(K).all() or (K < 0).any():
        raise ValueError(f"K must be finite and not negative; {int((~(K >= 0) | np.isinf(K)).sum())} entries are not")
    gap = abs(K - K.T).max()
    if gap > _SYMMETRY * K.max():
        raise ValueError(f"K must be symmetric; K and its transpose differ by up to {gap:.3g}. Use (K + K.T) / 2")
    empty = np.flatnonzero(K.sum(axis=1) <= 0)
    if len(empty):
        raise ValueError(f"{len(empty)} rows of K have sum 0, the first is {empty[0]}: remove rows without neighbours")
    n = len(K)
    if not 1 <= n_vectors <= n:
        raise ValueError(f"n_vectors must be from 1 to the number of rows, {n}; got {n_vectors}")
    q = K.sum(axis=1) ** -0.5
    values, U = eigh(q[:, None] * K * q, subset_by_index=(n - n_vectors, n - 1))
    psi = q[:, None] * U[:, ::-1]
    psi /= np.linalg.norm(psi, axis=0)
    return Spectrum(values[::-1], fixed_sign(psi))
