"""The end of a lasso path of many steps, for many columns.

min ||y - X a||^2 + beta ||a||_1. With lambda = beta / 2, c = X'(y - X a) and A the active columns with signs s,

    c_j = lambda s_j on A,   |c_j| <= lambda elsewhere;   a step: a column reaches its bound, where a_j = 0 or |c_j| =
    lambda, and leaves or enters A.

Between steps all is linear in lambda: z = q_1 - lambda q_2, where z_j is a_j on A and c_j elsewhere. A step changes q
by one pivot of the tableau F, the Gram matrix X'X swept at A (N the other columns, P = (X_A'X_A)^(-1)):

    F_AA = -P,   F_AN = P X_A'X_N,   F_NN = X_N'X_N - X_N'X_A P X_A'X_N

Steps are made in blocks, in the part of the tableau of a few columns, those nearest to their bounds; then the others
are checked, and from the first step on at which one of them passed its bound the steps are made again, with that
column. All columns take part in products of matrices, once a block, where least angle regression has products with
vectors at every step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from sklearn.utils import gen_batches

from dufs_core.backend import Array

_SHORTEST, _LONGEST, _SPARE = 16, 96, 3  # steps of a block; its columns for each
_CHUNK = 256  # rows of F that are changed at a time
_FLOOR = 1.2e-7  # of lambda / n, where scikit-learn's lars_path ends as well
_EQUAL = 1e-9  # changes of c / lambda nearer to 1 belong to a column that equals an active one
_DEPENDENT = 1e-12  # share of a column's square that the active columns leave over, which is rounding
_TIE = 1e-11  # steps nearer than this are at one place: the first column first
_SLACK = 1e-9  # bounds passed by less are rounding
_DRIFT = 1e-10  # error of the tableau at which it is computed again


class _Tableau:
    """F of the columns seen so far; s: their signs, 0 for those that are not active."""

    def __init__(self, X: Array) -> None:
        n, d = X.shape
        self.X, self.place = X, np.full(d, -1)  # where a column of X is among those seen
        self._start(np.empty(0, dtype=np.intp), np.empty(0), np.empty((0, n)), np.empty((0, 0)))

    def _start(self, columns: Array, s: Array, rows: Array, F: Array) -> None:
        self.columns, self.s, self._rows, self._F = columns, s, rows, F
        self.place[columns] = np.arange(len(columns))

    @property
    def rows(self) -> Array:
        """X' of the columns seen."""
        return self._rows[: len(self.s)]

    @property
    def F(self) -> Array:
        return self._F[: len(self.s), : len(self.s)]

    def see(self, new: Array) -> None:
        """Take columns of X in that are not active."""
        w, e = len(self.s), len(new)
        if w + e > len(self._rows):
            size = 2 * w + e
            rows, F = np.empty((size, len(self.X))), np.empty((size, size))
            rows[:w], F[:w, :w] = self.rows, self.F
            self._rows, self._F = rows, F
        self._rows[w : w + e] = self.X[:, new].T
        gram = self._rows[: w + e] @ self._rows[w : w + e].T
        active = (self.s != 0)[:, None]
        inside = np.where(active, gram[:w], 0)
        F = np.where(active, 0, gram[:w]) - self.F @ inside
        self._F[:w, w : w + e], self._F[w : w + e, :w] = F, F.T
        self._F[w : w + e, w : w + e] = gram[w:] - inside.T @ F
        self.place[new] = np.arange(w, w + e)
        self.columns, self.s = np.append(self.columns, new), np.append(self.s, np.zeros(e))

    def turn(self, changed: Array, part: Array) -> None:
        """Pivot on columns that have entered or left A, self.s already the new one; part = F[:, changed]."""
        F, sign = self.F, np.where(self.s[changed] != 0, 1.0, -1.0)
        inverse = np.linalg.inv(part[changed])
        side = part @ inverse
        for rows in gen_batches(len(F), _CHUNK):
            F[rows] -= side[rows] @ part.T
        F[:, changed], F[changed] = side * sign, (side * sign).T
        F[np.ix_(changed, changed)] = -sign[:, None] * inverse * sign

    def renew(self) -> None:
        """F from X again, of the active columns alone."""
        self.place[self.columns] = -1
        active = self.s != 0
        rows = self.rows[active]
        self._start(self.columns[active], self.s[active], rows, -np.linalg.inv(rows @ rows.T))


def bounds(q: Array, s: Array) -> tuple[Array, Array]:
    """The lambda at which each z = q_1 - lambda q_2 reaches its bound as lambda falls, 0 for never; c's sign there."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        up = np.where(1 + q[:, 1] > _EQUAL, q[:, 0] / (1 + q[:, 1]), 0)
        down = np.where(1 - q[:, 1] > _EQUAL, -q[:, 0] / (1 - q[:, 1]), 0)
        leaves = np.where(s * q[:, 1] < 0, q[:, 0] / q[:, 1], 0)
    return np.where(s == 0, np.maximum(np.maximum(up, down), 0), leaves), np.where(up >= down, 1.0, -1.0)


def first(at: Array) -> int:
    return int((at >= (1 - _TIE) * at.max()).argmax())


class Block(NamedTuple):
    """B steps of m columns."""

    lambdas: Array  # (B,) at their ends
    moves: Array  # (m, B) what changes a by -F moves: a_j of columns that have entered, forces on those that left
    signs: Array  # (B, m) during them
    left: int  # the column that leaves at the end of the last one, -1: none


def block(F: Array, q: Array, s: Array, lam: Array, least: Array, floor: float, steps: int) -> Block:
    """At most so many steps in the tableau F (m, m), q (m, 2) of some columns. Writes to F and q.

    least (m,): columns with a smaller square over cannot enter.
    """
    now, lambdas, moves, signs = s.copy(), [], [], []
    while True:
        at, sign = bounds(q, now)
        at[(now == 0) & (np.diag(F) <= least)] = 0
        j = first(at)
        lam = min(at[j], lam)
        entered, left = (now != 0) & (s == 0), (now == 0) & (s != 0)
        z = q[:, 0] - lam * q[:, 1]
        lambdas.append(lam)
        moves.append(np.where(entered, z, np.where(left, lam * s - z, lam * (s - now))))
        signs.append(now.copy())
        if len(signs) == steps or lam <= floor:
            leaving = j if now[j] and at[j] > 0 else -1
            return Block(np.array(lambdas), np.transpose(moves), np.array(signs), leaving)
        enters = now[j] == 0
        q[j, 1] += sign[j] if enters else 0.0
        row, pivot, top = F[j].copy(), F[j, j], q[j] / F[j, j]
        q -= np.outer(row, top)
        F -= np.outer(row / pivot, row)
        turned = 1.0 if enters else -1.0
        F[j] = F[:, j] = turned * row / pivot
        F[j, j] = -1 / pivot
        q[j] = turned * top
        q[j, 1] -= 0.0 if enters else now[j]
        now[j] = sign[j] if enters else 0.0


def nearest(q: Array, s: Array, scale: Array, steps: int) -> Array:
    """The columns with the least room to their bounds about so many steps ahead, and the next to reach one; in order.

    q (d, 2) and s (d,) of all columns; scale (d,): of z, so that room is in units of y.
    """
    at, _ = bounds(q, s)
    width = min(_SPARE * steps, len(s))
    end = np.partition(at, -min(steps, len(s)))[-min(steps, len(s))]
    z = q[:, 0] - end * q[:, 1]
    room = np.where(s == 0, end - np.abs(z), s * z) / scale
    room += np.linspace(0, _SLACK * np.abs(room).max(), len(s))  # of equal columns the first
    room[(s == 0) & (np.abs(np.abs(q[:, 1]) - 1) <= _EQUAL)] = np.inf
    room[first(at)] = -np.inf
    return np.sort(np.argpartition(room, width - 1)[:width])


def first_over(X: Array, R: Array, lambdas: Array, before: tuple[float, Array, Array], norms: Array) -> int:
    """The first of B steps at whose end a column has |c| > lambda; B for none.

    X (n, d); R (n, B) residuals at the ends; before: lambda, residual and |c| at the start; norms (d,), 0 for columns
    that are not asked for. A column with more room at both ends than its norm times the distance of the residuals from
    the straight line between the two cannot have passed: few are left to compute.
    """
    lam, r, c = before
    share = (lam - lambdas) / max(lam - lambdas[-1], np.finfo(float).tiny)
    bend = np.linalg.norm(R - r[:, None] * (1 - share) - R[:, -1:] * share, axis=0).max()
    room = np.minimum(lam - c, lambdas[-1] - np.abs(X.T @ R[:, -1]))
    asked = np.flatnonzero((room <= bend * norms) & (norms > 0))
    over = (np.abs(X[:, asked].T @ R) > lambdas * (1 + _SLACK) + _SLACK * _FLOOR * len(X)).any(axis=0)
    return int(over.argmax()) if over.any() else len(lambdas)


def path_end(X: Array, squares: Array, y: Array, steps: int) -> Array:
    """a after so many steps of the path from a = 0.      X (n, d), squares (d,) of its columns, y (n,) -> (d,).

    Among equal columns the first takes part. The path ends before where lambda falls below 1.2e-7 n.
    """
    n, d = X.shape
    norms, cov = np.sqrt(np.maximum(squares, np.finfo(float).tiny)), X.T @ y
    start = lam = float(np.abs(cov).max())
    floor, left, length = n * _FLOOR, steps + 1, _SHORTEST  # the first column to enter makes no step
    tableau, a = _Tableau(X), np.zeros(d)
    while lam > floor:
        active = (tableau.s != 0)[:, None]
        given = np.column_stack([cov[tableau.columns], tableau.s])
        solution = np.where(active, -tableau.F @ np.where(active, given, 0), 0)
        residual = np.column_stack([y, np.zeros(n)]) - tableau.rows.T @ solution
        q = X.T @ residual
        error = np.where(active, q[tableau.columns] + tableau.s[:, None] * [0.0, 1.0], 0)
        if (np.abs(error) > [_DRIFT * start, _DRIFT]).any() and not active.all():
            tableau.renew()
            continue
        before = lam, residual @ [1.0, -lam], np.abs(q @ [1.0, -lam])
        q[tableau.columns] = np.where(active, solution, q[tableau.columns]) - tableau.F @ error

        signs, scale = np.zeros(d), norms.copy()
        signs[tableau.columns] = tableau.s
        scale[tableau.columns[tableau.s != 0]] = np.sqrt(np.abs(np.diag(tableau.F)[tableau.s != 0]))
        near = nearest(q, signs, scale, length)
        tableau.see(near[tableau.place[near] < 0])
        columns, part = tableau.columns, tableau.place[near]
        F, s, q = tableau.F[:, part], tableau.s[:, None], q[columns]
        was = tableau.s[part]
        done = block(F[part], q[part], was, lam, _DEPENDENT * squares[near], floor, min(left, length))

        values = np.where(s != 0, q[:, :1] - q[:, 1:] * done.lambdas - F @ done.moves, 0)
        passed = values * s < 0
        passed[part] = False
        values[part] = np.where(done.signs.T == 0, 0, np.where(was[:, None] != 0, values[part], done.moves))
        if done.left >= 0:
            values[part[done.left], -1] = 0
        asked = np.where(signs == 0, norms, 0)
        asked[near] = 0
        n_done = len(done.lambdas)
        kept = first_over(X, y[:, None] - tableau.rows.T @ values, done.lambdas, before, asked)
        kept = max(1, min([kept, *np.flatnonzero(passed.any(axis=0))[:1]]))  # rounding alone puts the first in doubt
        if kept == n_done and (kept == left or done.lambdas[-1] <= floor):
            a[columns] = values[:, -1]
            break
        length = max(_SHORTEST, min(_LONGEST, 2 * length if kept == n_done else 3 * kept // 2))
        kept = min(kept, n_done - 1)  # the pivot after the last one has not been made
        left, lam = left - kept, done.lambdas[kept - 1]
        tableau.s[part] = now = done.signs[kept]
        changed = (now != 0) != (was != 0)
        tableau.turn(part[changed], F[:, changed])
    return a
