"""The end of a lasso path of many steps, for many columns.

min ||y - X a||^2 + beta ||a||_1. With lambda = beta / 2, c = X'(y - X a) and A the active columns with signs s,

    c_j = lambda s_j on A,   |c_j| <= lambda elsewhere;   a step: a column reaches its bound, where a_j = 0 or |c_j| =
    lambda, and leaves or enters A.

Between steps all is linear in lambda: z = q_1 - lambda q_2, where z_j is a_j on A and c_j elsewhere. A step changes q
by one pivot of the tableau F, the Gram matrix X'X swept at A (N the other columns, P = (X_A'X_A)^(-1)):

    F_AA = -P,   F_AN = P X_A'X_N,   F_NN = X_N'X_N - X_N'X_A P X_A'X_N

Steps are made in blocks, in the part of the tableau of a few columns, those nearest to their bounds; then the others
are checked, and the steps are kept up to the first at which one of them passed its bound. All columns take part in
products of matrices, once a block, where least angle regression has products with vectors at every step.
"""

from __future__ import annotations

import numpy as np

from dufs_core.backend import Array

_SHORTEST, _LONGEST, _SPARE = 16, 96, 2  # steps of a block; its columns for each
_FLOOR = 1.2e-7  # of lambda / n, where scikit-learn's lars_path ends as well
_EQUAL = 1e-9  # changes of c / lambda nearer to 1 belong to a column that equals an active one
_DEPENDENT = 1e-12  # share of a column's square that the active columns leave over, which is rounding
_TIE = 1e-11  # steps nearer than this are at one place: the first column first
_SLACK = 1e-9  # bounds passed by less are rounding
_DRIFT = 1e-10  # error of P at which it is computed again


def bounds(q: Array, s: Array) -> tuple[Array, Array]:
    """The lambda at which each z = q_1 - lambda q_2 reaches its bound as lambda falls, 0 for never; c's sign there."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        up = np.where(1 + q[:, 1] > _EQUAL, q[:, 0] / (1 + q[:, 1]), 0)
        down = np.where(1 - q[:, 1] > _EQUAL, -q[:, 0] / (1 - q[:, 1]), 0)
        leaves = np.where(s * q[:, 1] < 0, q[:, 0] / q[:, 1], 0)
    return np.where(s == 0, np.maximum(np.maximum(up, down), 0), leaves), np.where(up >= down, 1.0, -1.0)


def sweep(F: Array, changed: Array, turned: Array) -> None:
    """Pivot F, in place, on the columns `changed`; turned: 1 for those that enter A, -1 for those that leave."""
    part = F[:, changed]
    inverse = np.linalg.inv(part[changed])
    side = part @ inverse
    F -= side @ part.T
    F[:, changed] = side * turned
    F[changed] = F[:, changed].T
    F[np.ix_(changed, changed)] = -np.outer(turned, turned) * inverse


def block(
    F: Array, q: Array, s: Array, lam: float, floor: float, least: Array, steps: int
) -> tuple[Array, Array, Array]:
    """At most so many steps in the tableau F (m, m), q (m, 2) of some columns. Writes to F and q.

    least (m,): columns with a smaller square over cannot enter. Returns lambda (B,) and z (B, m) at the end of each
    step, and the signs (B + 1, m) during each and after the last.
    """
    lambdas: list[float] = []
    values, signs = [], [s]
    while len(lambdas) < steps and lam > floor:
        now = signs[-1].copy()
        at, sign = bounds(q, now)
        at[(now == 0) & (np.diag(F) <= least)] = 0
        j = int((at >= (1 - _TIE) * at.max()).argmax())
        lam = min(at[j], lam)
        lambdas.append(lam)
        values.append(q[:, 0] - lam * q[:, 1])
        if lam > floor:
            new, turned = (0.0, -1.0) if now[j] else (sign[j], 1.0)
            q[j, 1] += new
            top = q[j] / F[j, j]
            q -= np.outer(F[j], top)
            q[j] = turned * top
            q[j, 1] -= now[j]
            sweep(F, np.array([j]), np.array([turned]))
            now[j] = new
        signs.append(now)
    return np.array(lambdas), np.array(values), np.array(signs)


def nearest(q: Array, s: Array, scale: Array, steps: int) -> Array:
    """The columns with the least room to their bounds about so many steps ahead, in order.

    q (d, 2) and s (d,) of all columns; scale (d,): of z, so that room is in units of y.
    """
    width, steps = (min(count, len(s)) for count in (_SPARE * steps, steps))
    end = np.partition(bounds(q, s)[0], -steps)[-steps]
    z = q[:, 0] - end * q[:, 1]
    room = np.where(s == 0, end - np.abs(z), s * z) / scale
    room += np.linspace(0, _SLACK * np.abs(room).max(), len(s))  # of equal columns the first
    return np.sort(np.argpartition(room, width - 1)[:width])


def first_over(X: Array, R: Array, lambdas: Array, ends: Array, norms: Array) -> int:
    """The first of B steps at whose end a column has |c| > lambda; B for none.

    X (n, d); residuals R (n, B + 1) and lambdas (B + 1,) before each step and after the last; ends (d, 2): c at the
    first and the last of them; norms (d,), 0 for columns that are not asked for. A column with more room at both than
    its norm times the distance of the residuals from the straight line between cannot have passed: few are left.
    """
    share = (lambdas[0] - lambdas) / max(lambdas[0] - lambdas[-1], np.finfo(float).tiny)
    bend = np.linalg.norm(R - R[:, :1] * (1 - share) - R[:, -1:] * share, axis=0).max()
    room = (lambdas[[0, -1]] - np.abs(ends)).min(axis=1)
    asked = np.flatnonzero((room <= bend * norms) & (norms > 0))
    over = np.abs(X[:, asked].T @ R[:, 1:]) > lambdas[1:] * (1 + _SLACK) + _SLACK * _FLOOR * len(X)
    return int(np.append(over.any(axis=0), True).argmax())


def path_end(X: Array, y: Array, steps: int) -> Array:
    """a after so many steps of the path from a = 0.      X (n, d), y (n,) -> (d,).

    Among equal columns the first takes part. The path ends before where lambda falls below 1.2e-7 n.
    """
    n, d = X.shape
    squares = np.einsum("ij,ij->j", X, X)
    norms = np.sqrt(np.maximum(squares, np.finfo(float).tiny))
    s, a, c, residual = np.zeros(d), np.zeros(d), X.T @ y, y
    start = lam = float(np.abs(c).max())
    floor, left, length = n * _FLOOR, steps + 1, _SHORTEST  # the first column to enter makes no step
    A, rows, P, renewed = np.empty(0, dtype=np.intp), np.empty((0, n)), np.empty((0, 0)), True  # rows: X_A'
    while left and lam > floor:
        # q of all columns, where P s and a are improved by one step with their errors
        change = P @ s[A]
        pull = X.T @ (rows.T @ change)
        error = np.column_stack([c[A] - lam * s[A], s[A] - pull[A]])
        if (np.abs(error) > [_DRIFT * start, _DRIFT]).any() and not renewed:
            P, renewed = np.linalg.inv(rows @ rows.T), True
            continue
        q = np.column_stack([c - lam * pull, -pull])
        q[A] = (np.column_stack([a[A], change]) + P @ error) @ [[1.0, 0.0], [lam, 1.0]]

        # the tableau of A and of the columns nearest to their bounds, and a block of steps in the part of these
        scale = norms.copy()
        scale[A] = np.sqrt(np.abs(np.diag(P)))
        near = nearest(q, s, scale, length)
        others = near[s[near] == 0]
        columns = np.append(A, others)
        part = np.flatnonzero(np.isin(columns, near))
        rows = np.vstack([rows, X[:, others].T])
        gram = rows @ rows[len(A) :].T
        swept = P @ gram[: len(A)]
        F = np.block([[-P, swept], [swept.T, gram[len(A) :] - gram[: len(A)].T @ swept]])
        inside, least, was = columns[part], _DEPENDENT * squares, s[columns]
        done = block(F[np.ix_(part, part)], q[inside], s[inside], lam, floor, least[inside], min(left, length))
        lambdas, z, signs = done

        # a at the end of each step: of the other active columns by what the block did to them
        ends, now, before = lambdas[:, None], signs[:-1], s[inside]
        a_near = np.where(now == 0, 0, z)
        c_near = np.where(now == 0, z, ends * now)
        forces = np.where(before == 0, a_near, ends * before - c_near)
        values = q[columns, :1] - q[columns, 1:] * lambdas - F[:, part] @ forces.T
        passed = values * was[:, None] < 0
        passed[part] = False
        values[part] = a_near.T

        # the steps before a column outside the block passed its bound; rounding alone puts the first in doubt
        asked = np.where(s == 0, norms, 0)
        asked[near] = 0
        R = np.column_stack([residual, y[:, None] - rows.T @ values])
        last = X.T @ R[:, -1]
        kept = first_over(X, R, np.append(lam, lambdas), np.column_stack([c, last]), asked)
        kept = max(1, min([kept, *np.flatnonzero(passed.any(axis=0))[:1]]))
        length = min(_LONGEST, max(_SHORTEST, 2 * kept))
        left, lam, residual = left - kept, lambdas[kept - 1], R[:, kept]
        c = last if kept == len(lambdas) else X.T @ residual
        s[inside] = signs[kept]
        a[columns] = np.where(s[columns] == 0, 0, values[:, kept - 1])

        # P of the new A
        changed = np.flatnonzero((s[columns] != 0) != (was != 0))
        sweep(F, changed, np.where(was[changed] == 0, 1.0, -1.0))
        active = np.flatnonzero(s[columns])
        A, rows, P, renewed = columns[active], rows[active], -F[np.ix_(active, active)], False
    return a
