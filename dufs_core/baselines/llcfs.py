"""Feature selection for local-learning-based clustering."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.sparse import eye_array

from dufs_core.backend import Array
from dufs_core.baselines.base import Baseline, too_large
from dufs_core.baselines.graphs import (
    CANCELLED,
    blocks,
    directed_graph,
    is_large,
    lowest_eigenvectors,
    lowest_right_singular,
    neighbours,
)
from dufs_core.errors import SelectionWarning, user_stacklevel

_LOST = 1e-3  # share of the ridge that rounding may take
_ROUNDING = 1e-9  # weights of this size, relative to what they are computed from, are 0


class LocalModels(NamedTuple):
    """The local ridge regressions of all rows."""

    indices: Array  # (n, k) the neighbours of each row
    alpha: Array  # (n, k) prediction of row i = alpha_i' (values at its neighbours)
    R: Array  # (n, k, k) beta C [I - (I / beta + C K C)^(-1) C K C]: weights tau * X_Ni' R_i y_Ni


def local_models(X: Array, tau: Array, k: int, beta: float) -> LocalModels:
    """alpha_i' = beta (k_i' - 1'K_i / k) C [I - (I/beta + C K_i C)^(-1) C K_i C] + 1'/k for every row i.

    K_i = X_Ni diag(tau) X_Ni' between the k nearest neighbours N_i in the tau-weighted distance, k_i between row i
    and them, C = I - 1 1'/k. It predicts y_i by the regression min_{w,b} beta sum_j (x_j'w + b - y_j)^2 +
    w' diag(tau)^(-1) w on the neighbours, whose w is diag(tau) X_Ni' R_i y_Ni.
    """
    Xt = X * np.sqrt(tau)
    norms, n = np.einsum("ij,ij->i", Xt, Xt), len(X)
    squares = np.einsum("ij,ij->j", Xt, Xt)
    order = np.argsort(squares)
    felt = np.sort(order[np.cumsum(squares[order]) > np.finfo(float).eps * norms.min()])  # the others are rounding
    W = Xt if len(felt) == len(tau) else Xt.take(felt, axis=1)
    gram = W @ W.T
    indices = neighbours(Xt, k, gram).indices
    S, cross = np.empty((n, k, k)), np.empty((n, k))
    for rows in blocks(n, k * k):
        near = indices[rows]
        K = gram[near[:, :, None], near[:, None, :]]
        mean = K.mean(axis=2)
        S[rows] = K - mean[:, :, None] - (mean - mean.mean(axis=1, keepdims=True))[:, None, :]  # C K_i C
        cross[rows] = gram[near, np.arange(n)[rows, None]] - mean
    cross -= cross.mean(axis=1, keepdims=True)  # C (k_i - K_i 1 / k)
    close = np.flatnonzero(np.einsum("ijj->ij", S).min(axis=1) <= CANCELLED * norms[indices].max(axis=1))
    for some in blocks(len(close), k * X.shape[1]):  # where the differences of entries of gram have lost digits
        i = close[some]
        local = Xt[indices[i]]  # (rows, k, d)
        middle = local.mean(axis=1, keepdims=True)
        local -= middle
        S[i] = local @ local.transpose(0, 2, 1)
        cross[i] = (local @ (Xt[i] - middle[:, 0])[:, :, None])[:, :, 0]
    if (largest := float(S.max(initial=0))) * beta * np.finfo(float).eps > _LOST:
        squared = f"beside squared distances between neighbours of up to {largest:.3g}"
        raise too_large(X, f"{squared} the ridge 1 / beta = {1 / beta:.3g} is lost in rounding", "a smaller beta")
    C = np.eye(k) - 1.0 / k
    R = beta * (C - C @ np.linalg.solve(np.eye(k) / beta + S, S))
    return LocalModels(indices, np.einsum("ij,ijl->il", cross, R) + 1.0 / k, R)


def label_eigenvectors(models: LocalModels, c: int, X: Array) -> Array:
    """The c eigenvectors of (I - A)'(I - A) with the smallest eigenvalues; row i of A holds alpha_i on N_i.

    Their basis does not matter to the weights.
    """
    n = len(X)
    E = (eye_array(n, format="csr") - directed_graph(models.indices, models.alpha)).tocsr()
    Y = lowest_right_singular(E, c) if is_large(n, c) else None
    return lowest_eigenvectors((E.T @ E).toarray(), c, X) if Y is None else Y


def feature_weights(X: Array, tau: Array, models: LocalModels, Y: Array) -> Array | None:
    """tau_l = sqrt(sum_ic v_icl^2) / (the same summed over l),  v_ic = diag(tau) X_Ni' R_i y_c,Ni.      (d,).

    None where every v is 0 within rounding: no neighbourhood holds different labels, so no column has predicted any.
    """
    n, k = models.indices.shape
    labels, squares = Y[models.indices], np.einsum("ij,ij->i", X, X)
    P = models.R @ labels  # (n, k, c)
    rounding = squares[models.indices].sum(axis=1) * np.square(models.R).sum(axis=(1, 2))
    rounding *= np.square(labels).sum(axis=(1, 2))
    if P.shape[2] > k:  # k columns with the same P P'
        P = np.asarray(np.linalg.qr(P.transpose(0, 2, 1), mode="r")).transpose(0, 2, 1)
    total = np.zeros(len(tau))
    for rows in blocks(n, X.shape[1] * k):
        v = P[rows].transpose(0, 2, 1) @ X[models.indices[rows]]  # (rows, c, d), without diag(tau)
        total += np.einsum("icl,icl->l", v, v)
    if total.sum() <= _ROUNDING**2 * rounding.sum():
        return None
    size = tau * np.sqrt(total)
    return np.asarray(size / size.sum())


@dataclass(kw_only=True, eq=False, repr=False)
class LLCFS(Baseline):
    """Column weights tau under which each row's cluster label is best predicted from its neighbours.

        A: row i predicts its label from those of its k nearest neighbours by local ridge regression (`local_models`)
        Y: the c eigenvectors of (I - A)'(I - A) with the smallest eigenvalues
        tau_l = sqrt(sum_ic v_icl^2) / (summed over l),   v_ic the weights of the regression at row i for label c

    starting from tau = 1/d and repeated, with neighbours in the tau-weighted distance, until the changes of tau sum to
    at most tol; score = tau.

    Source: Zeng and Cheung, "Feature Selection and Kernel Learning for Local Learning-Based Clustering", IEEE
    Transactions on Pattern Analysis and Machine Intelligence 33, 2011.

    Departures. From the paper: neighbours are the k nearest rows, not only mutual ones, so that every row has a model;
    where all weights v are 0 (no neighbourhood mixes clusters) tau stays, with a warning. From the MATLAB code in use:
    its k is 30 by default, and it always runs 50 iterations. The paper proves no descent: the two halves of a step
    minimise different objectives, and tau can cycle (converged_ says so).

    The method needs the number of clusters. More labels than clusters vary within a cluster, where a column that tells
    clusters apart says nothing: of 120 rows in two groups, 6 apart in two of 20 columns, a noise column came first in
    50 of 50 random matrices with c = 5, in none with c = 2.

    Memory: dense n x n matrices, one in most steps and three where the graph has several parts.

    Parameters
    ----------
    n_clusters : int or None, default None
        c. None: 5 (n - 1 for n <= 5 rows).
    n_neighbors : int, default 5
    beta : float, default 1.0
        Weight of the fit in the local regressions.
    max_iter : int, default 30
    tol : float, default 1e-4
    {parameters}

    Attributes
    ----------
    {attributes}
    n_iter_ : int
    converged_ : bool
    """

    n_clusters: int | None = None
    n_neighbors: int = 5
    beta: float = 1.0
    max_iter: int = 30
    tol: float = 1e-4

    def _squares(self) -> int:
        return 3

    def _score(self, X: Array, columns: Array, n_selected: int, seed: int) -> Array:
        tau = np.full(X.shape[1], 1.0 / X.shape[1])
        self.converged_ = False
        for step in range(1, self.max_iter + 1):
            models = local_models(X, tau, self.n_neighbors, float(self.beta))
            Y = label_eigenvectors(models, self._clusters(len(X)), X)
            self.n_iter_ = step
            found = feature_weights(X, tau, models, Y)
            if found is None:
                warnings.warn(
                    f"No row has neighbours with different labels, so the {self.n_neighbors} neighbours say nothing "
                    f"about the columns: their scores stay as they were before step {step} (at first all equal). Use "
                    f"a larger n_neighbors (at most {len(X) - 1}) or n_clusters.",
                    SelectionWarning, stacklevel=user_stacklevel(),
                )  # fmt: skip
                break
            change, tau = float(np.abs(found - tau).sum()), found
            if change <= self.tol:
                self.converged_ = True
                break
        return tau
