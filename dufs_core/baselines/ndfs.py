"""Non-negative discriminative feature selection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.linalg import cho_factor, cho_solve, cholesky, solve_triangular
from scipy.linalg.lapack import dpotri

from dufs_core.backend import Array
from dufs_core.baselines.base import Baseline, too_large
from dufs_core.baselines.graphs import cluster_indicators, heat_kernel, neighbours, normalised

_OFFSET = 0.02  # added to the k-means indicators: a multiplicative step never leaves 0


def objective(L: Array, X: Array, F: Array, B: Array, alpha: float, beta: float, gamma: float) -> float:
    """tr(F' Ln F) + alpha (||F - X B||^2 + beta ||B||_{2,1}) + (gamma / 2) ||F' F - I||^2."""
    fit = np.sum((F - X @ B) ** 2) + beta * np.linalg.norm(B, axis=1).sum()
    return float(np.sum(F * (L @ F)) + alpha * fit + gamma / 2 * not_orthogonal(F))


def not_orthogonal(F: Array) -> float:
    """||F' F - I||^2."""
    return float(np.sum((F.T @ F - np.eye(F.shape[1])) ** 2))


Solve = Callable[[Array], Array]


def ridge(X: Array, beta: float) -> Callable[[Array], tuple[Array, Solve]]:
    """The weighted ridge regressions of F on X: a function of theta that gives residual matrix and solution.

    With Theta = diag(theta): residual R = I - X (X'X + beta Theta^(-1))^(-1) X', (n, n), and solve(F) = B =
    (X'X + beta Theta^(-1))^(-1) X' F. theta_j = 0 holds row j of B at 0. In the smaller of two forms, neither of
    which divides by theta: Z = X Theta^(1/2),

        d > n:  R = beta (Q + beta I)^(-1),  Q = Z Z',  B = Theta^(1/2) Z' (Q + beta I)^(-1) F   (Woodbury: no d x d)
        else:   C = Z'Z + beta I,  R = I - Z C^(-1) Z',  B = Theta^(1/2) C^(-1) Z' F
    """
    n, d = X.shape

    def by_rows(theta: Array) -> tuple[Array, Solve]:
        root = np.sqrt(theta)
        Z = X * root
        Q = Z @ Z.T
        Q[np.diag_indices(n)] += beta
        factor = cho_factor(Q.T, lower=True, overwrite_a=True)  # LAPACK's order: no copy
        R = np.tril(dpotri(factor[0], lower=True)[0])  # a third of the operations of solving for I
        R *= beta
        R += np.tril(R, -1).T
        return R, lambda F: root[:, None] * (Z.T @ cho_solve(factor, F))

    if d > n:
        return by_rows
    gram = X.T @ X

    def by_columns(theta: Array) -> tuple[Array, Solve]:
        root = np.sqrt(theta)
        C = gram * root * root[:, None]
        C[np.diag_indices(d)] += beta
        C = cholesky(C, lower=True, overwrite_a=True)
        T = solve_triangular(C, (X * root).T, lower=True)
        R = T.T @ T
        np.negative(R, out=R)
        R[np.diag_indices(n)] += 1
        return R, lambda F: root[:, None] * solve_triangular(C.T, T @ F, lower=False)

    return by_columns


def indicator_step(M: Array, F: Array, gamma: float) -> Array:
    """A non-negative F (n, c) with a lower tr(F' M F) + (gamma / 2) ||F'F - I||^2, M symmetric of any sign.

    With M = M+ - M-, both non-negative, ratio = (M- F + gamma F) / (M+ F + gamma F F'F). The paper's step is
    F <- F * ratio, columns then scaled to norm 1 (it divides by M F, which can be negative). Where that raises the
    value, F <- F * ratio^(1/4) without the scaling, which cannot: it minimises the bound in which M+ and the quartic
    term are majorised by fourth powers and the concave terms by logarithms (Ding, Li and Jordan 2010).
    """

    def value(F: Array, MF: Array) -> float:
        return float(np.sum(F * MF) + gamma / 2 * not_orthogonal(F))

    MF = M @ F
    negative = (np.abs(M) @ F - MF) / 2
    denominator = negative + MF + gamma * (F @ (F.T @ F))
    ratio = np.divide(negative + gamma * F, denominator, out=np.zeros_like(F), where=denominator > 0)
    step = F * ratio
    norms = np.linalg.norm(step, axis=0)
    step /= np.where(norms > 0, norms, 1)
    if value(step, M @ step) <= value(F, MF):
        return step
    return np.asarray(F * np.sqrt(np.sqrt(ratio)))


@dataclass(kw_only=True, eq=False, repr=False)
class NDFS(Baseline):
    """Columns whose weights predict non-negative cluster indicators, learned together.

        min  tr(F' Ln F) + alpha (||F - X B||^2 + beta ||B||_{2,1}) + (gamma / 2) ||F' F - I||^2     over F >= 0, B

    F (n, c) cluster indicators, B (d, c), Ln = I - Dg^(-1/2) W Dg^(-1/2) of the graph of LaplacianScore; score_j =
    ||b_j||. From F = Y (Y'Y)^(-1/2) + 0.02 of k-means clusters Y, repeat

        Theta_jj = 2 ||b_j||,   R = I - X (X'X + beta Theta^(-1))^(-1) X',   M = Ln + alpha R
        F <- F * (M- F + gamma F) / (M+ F + gamma F F'F),   columns scaled to norm 1      (see `indicator_step`)
        B = (X'X + beta Theta^(-1))^(-1) X' F

    until the objective changes by less than tol of itself.

    Source: Li, Yang, Liu, Zhou and Lu, "Unsupervised Feature Selection Using Nonnegative Spectral Analysis", AAAI 2012.

    Departures. From the paper: M has entries of both signs, for which its quotient can be negative, so M is split; a
    step that would raise the objective is replaced by one that cannot (history_); B follows F within an iteration, the
    order that the proof for ||.||_{2,1} needs. From scikit-feature: its "Laplacian" is the row of degrees, broadcast
    over all rows, minus W; it inverts a d x d matrix at every iteration; its stopping rule leaves out the regression.

    Memory: two dense n x n matrices. random_state draws the k-means starts.

    Parameters
    ----------
    n_clusters : int or None, default None
        c. None: 5 (n - 1 for n <= 5 rows).
    n_neighbors : int, default 5
    bandwidth : "median", "q90", "max" or float, default "median"
        t of the heat kernel, see LaplacianScore.
    alpha, beta : float, default 1.0
        Weights of the regression and of its sparsity.
    gamma : float, default 1e8
        Weight of orthogonality.
    max_iter : int, default 50
    tol : float, default 1e-4
    {parameters}

    Attributes
    ----------
    {attributes}
    history_ : dict of ndarray (n_iter_,)
        objective after each iteration.
    n_iter_ : int
    converged_ : bool
    """

    n_clusters: int | None = None
    n_neighbors: int = 5
    bandwidth: Literal["median", "q90", "max"] | float = "median"
    alpha: float = 1.0
    beta: float = 1.0
    gamma: float = 1e8
    max_iter: int = 50
    tol: float = 1e-4

    def _squares(self) -> int:
        return 4

    def _score(self, X: Array, columns: Array, n_selected: int, seed: int) -> Array:
        n = len(X)
        L = np.eye(n) - normalised(heat_kernel(neighbours(X, self.n_neighbors), self.bandwidth)).toarray()
        F = cluster_indicators(X, self._clusters(n), seed) + _OFFSET
        try:
            return self._iterate(X, L, F)
        except np.linalg.LinAlgError:
            lost = f"beside its squares the ridge of beta = {self.beta:.3g} is lost in rounding"
            raise too_large(X, lost, "a larger beta") from None

    def _iterate(self, X: Array, L: Array, F: Array) -> Array:
        """||b_j|| at the end; sets history_, n_iter_ and converged_."""
        weights = alpha, beta, gamma = float(self.alpha), float(self.beta), float(self.gamma)
        regression = ridge(X, beta)
        B = regression(np.ones(X.shape[1]))[1](F)
        values, self.converged_ = [objective(L, X, F, B, *weights)], False
        while len(values) <= self.max_iter and not self.converged_:
            M, solve = regression(2 * np.linalg.norm(B, axis=1))
            M *= alpha
            M += L
            F = indicator_step(M, F, gamma)
            B = solve(F)
            values.append(objective(L, X, F, B, *weights))
            self.converged_ = abs(values[-2] - values[-1]) <= self.tol * abs(values[-1])
        self.history_ = {"objective": np.asarray(values[1:])}
        self.n_iter_ = len(values) - 1
        return np.linalg.norm(B, axis=1)
