"""Laplacian score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dufs_core.backend import Array, get_backend
from dufs_core.baselines.base import Baseline
from dufs_core.baselines.graphs import blocks, heat_kernel, neighbours, warn_isolated
from dufs_core.objective.ops import bandwidth, distances, gaussian, normalise
from dufs_core.selection.parameters import check_choice

_SMALLEST = 1e-200  # weighted variances below have lost digits


def locality(X: Array, W: Any) -> Array:
    """1 - LS(f) = f~' W f~ / f~' Dg f~ of every column f of X, f~ = f - (f' Dg 1 / 1' Dg 1) 1.      (d,) in [-1, 1].

    X (n, d) without constant columns; W (n, n) sparse, symmetric, positive degrees. A column that scaling has left
    nothing of, beside others of 1e300 times its size, scores -1.
    """
    deg, scores = W.sum(axis=1), np.empty(X.shape[1])
    for columns in blocks(X.shape[1], len(X)):
        F = X[:, columns]
        F = F - np.einsum("i,ij->j", deg, F) / deg.sum()  # a BLAS thread takes longer to wake than this product
        denominator = np.einsum("ij,ij->j", F, deg[:, None] * F)
        if not (denominator > _SMALLEST * deg.sum()).all():  # squares of tiny columns underflow: scale them
            peaks = np.abs(F).max(axis=0)
            F /= np.where(peaks > 0, peaks, 1)
            denominator = np.einsum("ij,ij->j", F, deg[:, None] * F)
        numerator, given = np.einsum("ij,ij->j", F, W @ F), denominator > 0
        scores[columns] = np.divide(numerator, denominator, out=np.full(len(given), -1.0), where=given)
    return scores


@dataclass(kw_only=True, eq=False, repr=False)
class LaplacianScore(Baseline):
    """Columns that vary little between neighbouring rows, for their variance.

        W_ij = exp(-||x_i - x_j||^2 / t) between nearest neighbours (either way),  Dg = diag(W 1),  L = Dg - W
        f~ = f - (f' Dg 1 / 1' Dg 1) 1,   LS(f) = f~' L f~ / f~' Dg f~  (small is good),   score = 1 - LS(f)

    Source: He, Cai and Niyogi, "Laplacian Score for Feature Selection", NIPS 2005. ``variant="random_walk"`` is the
    form in which arXiv 2007.04728 (section 4) motivates its loss: score = f' P^t f / n on all columns, with the full
    kernel K_ij = exp(-||x_i - x_j||^2 / b) and P = diag(K 1)^(-1) K.

    Departures. From the paper: t, which it leaves to the user, is read from the neighbour distances, and scores are
    1 - LS so that larger is better. From scikit-feature: a constant column ranks last (there before structureless
    ones); rows are not their own neighbours; sparse products instead of dense n x n ones.

    Parameters
    ----------
    variant : "laplacian" or "random_walk", default "laplacian"
    power : int, default 2
        Of the random walk; the other variant has none.
    n_neighbors : int, default 5
        Other rows that a row is joined to, and that the bandwidth is read from.
    bandwidth : "median", "q90", "max" or float, default "median"
        t (or b) is bandwidth_factor times the median, the 0.9 quantile or the maximum over the rows of the squared
        distance to the n_neighbors-th other row, or times this number; DUFS's rules.
    bandwidth_factor : float, default 1.0
    {parameters}

    Attributes
    ----------
    {attributes}
    """

    _many_products = False

    variant: Literal["laplacian", "random_walk"] = "laplacian"
    power: int = 2
    n_neighbors: int = 5
    bandwidth: Literal["median", "q90", "max"] | float = "median"
    bandwidth_factor: float = 1.0

    def _squares(self) -> int:
        return 4 if self.variant == "random_walk" else 0

    def _check(self, n: int) -> None:
        super()._check(n)
        check_choice("variant", self.variant, ("laplacian", "random_walk"))

    def _score(self, X: Array, columns: Array, n_selected: int, seed: int) -> Array:
        if self.variant == "laplacian":
            return locality(X, heat_kernel(neighbours(X, self.n_neighbors), self.bandwidth, self.bandwidth_factor))
        bk = get_backend("numpy")
        D, _ = distances.forward(bk, X @ X.T)
        b, _, _ = bandwidth.forward(bk, D, self.bandwidth, self.n_neighbors, self.bandwidth_factor)
        A, deg, _ = normalise.forward(bk, gaussian.forward(bk, D, b)[0])
        isolated = deg <= normalise.isolated_degree(1.0, float(np.finfo(deg.dtype).eps))
        effect = f"(b = {float(b):.3g}), which turns the score into plain variance"
        warn_isolated(isolated, effect, self.bandwidth, self.bandwidth_factor, self.n_neighbors)
        right = X * np.sqrt(deg)[:, None]  # P^t = deg^(-1/2) A^t deg^(1/2)
        for _ in range(self.power):
            right = A @ right
        return np.asarray(np.einsum("ij,ij->j", X / np.sqrt(deg)[:, None], right) / len(X))
