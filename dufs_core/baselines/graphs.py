"""Neighbour graphs of the rows of X (n, d), float64, scaled: weights, eigenvectors, k-means indicators."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import LinAlgError, eigh
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from sklearn.cluster import KMeans
from sklearn.neighbors import NearestNeighbors
from sklearn.utils import gen_batches

from dufs_core.backend import Array, get_backend
from dufs_core.backend.memory import check_squares
from dufs_core.errors import isolated_rows, user_stacklevel
from dufs_core.objective.ops.bandwidth import quantile_of

Rule = str | float
_DENSE_ROWS = 800  # up to so many rows all distances are computed, and the whole matrix is decomposed
_TREE_COLUMNS = 15  # up to so many columns scikit-learn's search uses a tree, which loses no digits
_BLOCK_ELEMENTS = 1 << 17  # entries of one block of differences: 1 MiB, which stays in cache
CANCELLED = 1e-3  # squared distances below this share of the squared norms have lost digits
_LARGEST_EXPONENT = 650.0  # exp(-650) = 5e-283: its square root and ratios stay finite
_ISOLATED_WEIGHT, _ISOLATED_SHARE = 1e-12, 0.1  # a row whose every weight is below; the share worth a warning
_SAME = 1e-11  # eigenvalues (of size 1) nearer than this count as equal
_RESTARTS = 60  # of ARPACK, after which LAPACK takes over
_ROUGHLY = 1e-6  # error of an eigenvalue that decides only whether there is a vector between others


class Neighbours(NamedTuple):
    """The k nearest other rows of every row, nearest first."""

    indices: Array  # (n, k) int
    squared: Array  # (n, k) squared distances


def neighbours(X: Array, k: int, gram: Array | None = None) -> Neighbours:
    """The k nearest other rows; a row is excluded by its index, so that equal rows find each other.

    Squared distances that are small beside the rows' norms, where the search's expanded form loses digits, are summed
    again from differences: exactly 0 between equal rows. gram: X X', where it is there.
    """
    n, d = X.shape
    norms = np.einsum("ij,ij->i", X, X)
    if n > _DENSE_ROWS and (gram is None or d <= _TREE_COLUMNS):
        distances, indices = NearestNeighbors(n_neighbors=k).fit(X).kneighbors()
        squared = distances * distances
    else:
        indices, squared = _nearest(X @ X.T if gram is None else gram, norms, k)
    row, place = np.nonzero(squared <= CANCELLED * (norms[:, None] + norms[indices]))
    for pairs in blocks(len(row), d):
        i, p = row[pairs], place[pairs]
        difference = X[i] - X[indices[i, p]]
        squared[i, p] = np.einsum("ij,ij->i", difference, difference)
    return Neighbours(indices, squared)


def _nearest(gram: Array, norms: Array, k: int) -> tuple[Array, Array]:
    """Indices and squared distances (n, k) of the k nearest other rows, from X X' and its diagonal; ties by index."""
    n = len(gram)
    indices, squared = np.empty((n, k), dtype=np.intp), np.empty((n, k))
    for rows in blocks(n, n):
        D = gram[rows] * -2.0
        D += norms[rows, None]
        D += norms
        np.maximum(D, 0, out=D)
        own = np.arange(len(D))
        D[own, own + rows.start] = np.inf
        furthest = np.partition(D, k - 1, axis=1)[:, k - 1 : k]
        row, column = np.nonzero(furthest >= D)
        near = D[row, column]
        first = np.searchsorted(row, own)[:, None] + np.arange(k)
        chosen = np.lexsort((near, row))[first]
        indices[rows], squared[rows] = column[chosen], near[chosen]
    return indices, squared


def blocks(n: int, width: int) -> list[slice]:
    """n rows in blocks of about `_BLOCK_ELEMENTS` entries, `width` entries to a row."""
    return list(gen_batches(n, max(1, _BLOCK_ELEMENTS // width))) if n else []


def directed_graph(indices: Array, weights: Array) -> Any:
    """The weights (n, k) of lists of neighbours as a matrix, row i the list of row i.      csr (n, n)."""
    n, k = indices.shape
    return csr_array((weights.ravel(), indices.ravel(), np.arange(0, n * k + 1, k)), shape=(n, n))


def symmetric_graph(near: Neighbours, weights: Array) -> Any:
    """W = max(W, W') of the weights (n, k) of the neighbour lists: the union of the lists.      csr (n, n)."""
    W = directed_graph(near.indices, weights)
    W.sort_indices()
    return W.maximum(W.T).tocsr()


def kernel_weights(squared: Array, t: float) -> Array:
    """exp(-squared / t), each exponent at least -650, so that no row loses all its weight; t a normal number."""
    return np.exp(np.minimum(squared, _LARGEST_EXPONENT * t) / -t)


def heat_kernel(near: Neighbours, rule: Rule, factor: float = 1.0) -> Any:
    """W_ij = exp(-||x_i - x_j||^2 / t) between neighbours, 0 elsewhere; symmetric, zero diagonal.      csr (n, n).

    t = factor times the median, 0.9 quantile or maximum over the rows of the squared distance to the k-th neighbour,
    or factor times the number given; where the rule gives 0 (duplicates), the smallest positive distance, or 1. A row
    without a weight above 1e-12 is isolated.
    """
    if isinstance(rule, str):
        furthest = near.squared[:, -1]
        t = float(np.quantile(furthest, quantile_of(rule)))
        positive = near.squared[near.squared > 0]
        t = t or (float(positive.min()) if positive.size else 1.0)
    else:
        t = float(rule)
    t = max(factor * t, np.finfo(float).tiny)
    weights = kernel_weights(near.squared, t)
    effect = f"(t = {t:.3g}): the graph says little about them"
    warn_isolated(weights[:, 0] < _ISOLATED_WEIGHT, effect, rule, factor, near.indices.shape[1])
    return symmetric_graph(near, weights)


def warn_isolated(isolated: Array, effect: str, rule: Rule, factor: float, n_neighbors: int) -> None:
    """Warn (IsolatedRowsWarning) if more than a tenth of the rows are isolated, bool (n,)."""
    if (share := float(isolated.mean())) > _ISOLATED_SHARE:
        said = f"{share:.0%} of the rows have no neighbour within the bandwidth {effect}"
        warnings.warn(isolated_rows(said, rule, factor, n_neighbors), stacklevel=user_stacklevel())


def is_large(n: int, k: int) -> bool:
    """Whether a Krylov method is to look for k of n eigenvectors."""
    return n > _DENSE_ROWS and k + 20 < n


def normalised(W: Any) -> Any:
    """A = Dg^(-1/2) W Dg^(-1/2), so that the normalised Laplacian is I - A.      csr (n, n)."""
    q = W.sum(axis=1) ** -0.5
    return W.multiply(q[:, None]).multiply(q).tocsr()


def spectral_embedding(W: Any, k: int, X: Array) -> Array:
    """The k non-trivial eigenvectors of L y = lambda Dg y with the smallest eigenvalues.      (n, k).

    y = Dg^(-1/2) u from the largest eigenvalues of A = Dg^(-1/2) W Dg^(-1/2). The trivial u = Dg^(1/2) 1 is deflated,
    not dropped: in a graph of several components it is one of several vectors with eigenvalue 0. Scaled so that
    y' Dg y = 1' Dg 1 (entries of size 1, whatever the scale of W). X decides between equal eigenvalues, see `distinct`.
    Where ARPACK ends early, or k is nearly n, LAPACK takes over; raises MemoryLimitError if its n x n arrays exceed
    what is available.
    """
    n = W.shape[0]
    A, root = normalised(W), np.sqrt(W.sum(axis=1))
    trivial = root / np.linalg.norm(root)
    U = _largest_sparse(A, root, k, X) if is_large(n, k) else None
    if U is None:
        check_squares(get_backend("numpy"), "A dense eigen-decomposition", n, 3)  # its matrix, and two on the way to it
        U = lowest_eigenvectors(np.eye(n) - A.toarray() + 3.0 * np.outer(trivial, trivial), k, X)
    return U * (np.linalg.norm(root) / root)[:, None]


def _largest_sparse(A: Any, root: Array, k: int, X: Array) -> Array | None:
    """The k leading eigenvectors of A without the trivial one; None where ARPACK gives up.

    Those with eigenvalue 1 indicate the components of the graph; a Krylov method, which would find them unreliably,
    computes the others from a fixed start vector.
    """
    n = len(root)
    q, component = connected_components(A > _ISOLATED_WEIGHT, directed=False)
    null = np.zeros((n, q))
    null[np.arange(n), component] = root
    null /= np.linalg.norm(null, axis=0)
    within = np.linalg.qr(np.column_stack([null.T @ root, np.eye(q)]))[0][:, 1:q]  # orthogonal to the trivial one
    flat = distinct(np.ones(q - 1), null @ within, X)
    if q - 1 >= k:
        return fixed_sign(flat[:, :k])

    def deflated(v: Array) -> Array:
        v = v.ravel()
        return np.asarray(A @ v - null @ (2.0 * (null.T @ v)))

    m = k - (q - 1)
    start = np.cos(np.arange(n, dtype=np.float64))  # any fixed vector that is orthogonal to no eigenvector
    try:
        values, U = eigsh(LinearOperator((n, n), deflated, dtype=np.float64), k=m + 1, which="LA", v0=start, tol=0)
    except ArpackNoConvergence:
        return None
    order = np.argsort(-values, kind="stable")
    U = distinct(-values[order], U[:, order], X)[:, :m]
    return fixed_sign(np.hstack([flat, U]))


def lowest_eigenvectors(M: Array, k: int, X: Array) -> Array:
    """The k eigenvectors of the smallest eigenvalues of a dense symmetric M (n, n), signs fixed.      (n, k)."""
    n = len(M)
    size = min(n, k + 4)
    while True:
        values, V = part_of_eigh(M, 0, size - 1)
        if size == n or values[-1] > values[k - 1] + _SAME:  # the eigenspace that the cut touches is complete
            return fixed_sign(distinct(values, V, X)[:, :k])
        size = min(n, 2 * size)


def part_of_eigh(M: Array, first: int, last: int) -> tuple[Array, Array]:
    """Eigenvalues `first` to `last` of a symmetric M, from the lowest, and their vectors."""
    try:
        return eigh(M, subset_by_index=(first, last))  # type: ignore[no-any-return]
    except LinAlgError:  # LAPACK's method for a part gives up on some matrices, the one for all does not
        values, V = eigh(M, driver="evd")
        return values[first : last + 1], V[:, first : last + 1]


def lowest_right_singular(E: Any, k: int) -> Array | None:
    """An orthonormal basis of the right singular vectors of the k smallest singular values of a sparse E (n, n).

    None where Lanczos takes long or may have missed one of several vectors of one value: where more than one component
    of the graph of E has no way out (each gives a 0), the value after the k-th is as small as that or nearly 0, or a
    second run, without the vectors found, finds a smaller one.
    """
    n, (i, j) = E.shape[0], E.nonzero()
    components, label = connected_components(E, connection="strong")
    if components - len(np.unique(label[i[label[i] != label[j]]])) > 1:
        return None
    transposed, found = E.T.tocsr(), np.empty((n, 0))

    def lowered(v: Array) -> Array:
        v = v.ravel()
        return np.asarray(v - transposed @ (E @ v) - found @ (2.0 * (found.T @ v)))

    operator, angles = LinearOperator((n, n), lowered, dtype=np.float64), np.arange(n, dtype=np.float64)
    try:
        values, V = eigsh(
            operator, k=k + 1, which="LA", v0=np.cos(angles), tol=0, ncv=max(40, 4 * k), maxiter=_RESTARTS
        )
        following, last = np.sort(values)[:2]
        found = V[:, values > following]
        missed = eigsh(operator, k=1, which="LA", v0=np.sin(angles), tol=_ROUGHLY, return_eigenvectors=False)[0]
    except ArpackNoConvergence:
        return None
    unsure = last - following <= _SAME or following > 1 - 10 * _ROUGHLY or missed > following + _ROUGHLY
    return None if unsure else found


def distinct(values: Array, V: Array, X: Array) -> Array:
    """V with a basis of each eigenspace that depends on X alone, not on the solver or the order of the rows.

    Among equal eigenvalues any rotation is as good; here the basis is the one that diagonalises V' X X' V, the
    directions along which the data vary most first. values ascending, X centred.
    """
    V = V.copy()
    ends = np.flatnonzero(np.append(np.diff(values) > _SAME, True)) + 1
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        if end - start > 1:
            Z = V[:, start:end].T @ X
            V[:, start:end] = V[:, start:end] @ np.linalg.eigh(Z @ Z.T)[1][:, ::-1]
    return V


def fixed_sign(V: Array) -> Array:
    """Each column with the sign that makes its largest entry positive: the first of those equal within 1e-6 of it."""
    size = np.abs(V)
    largest = (size >= (1 - 1e-6) * size.max(axis=0)).argmax(axis=0)
    return V * np.where(V[largest, np.arange(V.shape[1])] < 0, -1.0, 1.0)


def cluster_indicators(X: Array, k: int, seed: int) -> Array:
    """Y (Y'Y)^(-1/2) of the k-means clusters of the rows, the best of ten starts.      (n, c), c <= k, c' c = I.

    Clusters that stay empty (fewer distinct rows than k) are left out.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Number of distinct clusters")
        labels = KMeans(k, n_init=10, random_state=seed % 2**32).fit_predict(X)
    found, labels = np.unique(labels, return_inverse=True)
    Y = np.eye(len(found))[labels]
    return np.asarray(Y / np.sqrt(Y.sum(axis=0)))
