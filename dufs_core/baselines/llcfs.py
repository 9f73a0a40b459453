"""Feature selection for local-learning-based clustering."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array, eye_array

from dufs_core.backend import Array
from dufs_core.baselines.base import Baseline
from dufs_core.baselines.graphs import blocks, lowest_eigenvectors, neighbours
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
    indices = neighbours(Xt, k).indices
    n = len(X)
    S, cross = np.empty((n, k, k)), np.empty((n, k))
    for rows in blocks(n, k * X.shape[1]):
        local = Xt[indices[rows]]  # (rows, k, d)
        mean = local.mean(axis=1, keepdims=True)
        local = local - mean
        S[rows] = local @ local.transpose(0, 2, 1)  # C K_i C
        cross[rows] = (local @ (Xt[rows] - mean[:, 0])[:, :, None])[:, :, 0]  # C (k_i - K_i 1 / k)
    if (largest := float(S.max(initial=0))) * beta * np.finfo(float).eps > _LOST:
        column = int((peak := abs(X).max(axis=0)).argmax())
        raise ValueError(
            f"Column {column} reaches {peak[column]:.3g} from its mean; beside squared distances between neighbours of "
            f"up to {largest:.3g} the ridge 1 / beta = {1 / beta:.3g} is lost in rounding. Use scaling='columns' or "
            f"'global', a smaller beta, or divide X first."
        )
    C = np.eye(k) - 1.0 / k
    R = beta * (C - C @ np.linalg.solve(np.eye(k) / beta + S, S))
    return LocalModels(indices, np.einsum("ij,ijl->il", cross, R) + 1.0 / k, R)


def label_eigenvectors(models: LocalModels, c: int, X: Array) -> Array:
    """The c eigenvectors of (I - A)'(I - A) with the smallest eigenvalues; row i of A holds alpha_i on N_i."""
    n, k = models.indices.shape
    A = csr_array((models.alpha.ravel(), models.indices.ravel(), np.arange(0, n * k + 1, k)), shape=(n, n))
    E = (eye_array(n, format="csr") - A).tocsr()
    return lowest_eigenvectors((E.T @ E).toarray(), c, X)


def feature_weights(X: Array, tau: Array, models: LocalModels, Y: Array) -> Array | None:
    """tau_l = sqrt(sum_ic v_icl^2) / (the same summed over l),  v_ic = diag(tau) X_Ni' R_i y_c,Ni.      (d,).

    None where every v is 0 within rounding: no neighbourhood holds different labels, so no column has predicted any.
    """
    total, rounding = np.zeros(len(tau)), 0.0
    for rows in blocks(len(X), X.shape[1] * max(Y.shape[1], models.indices.shape[1])):
        local = X[models.indices[rows]].transpose(0, 2, 1)  # (rows, d, k)
        labels = Y[models.indices[rows]]
        v = local @ (models.R[rows] @ labels)  # (rows, d, c), without diag(tau)
        total += np.einsum("ilc,ilc->l", v, v)
        rounding += float(
            np.prod([np.square(a).sum(axis=(1, 2)) for a in (local, models.R[rows], labels)], axis=0).sum()
        )
    if total.sum() <= _ROUNDING**2 * rounding:
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

    Memory: two dense n x n matrices.

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
