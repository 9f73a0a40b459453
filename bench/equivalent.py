"""The mechanical mutants that are no faults, each with its proof."""

from __future__ import annotations

from bench.planting import Mutant

OPS, KERNELS = "dufs_core.objective.ops.", "dufs_core.kernels."

_SQUARE = "the matrices are square: every axis of a matrix has length n"
_OUT = (
    "`out` only names the memory that the product is written to, and no product written there is alive when the next "
    "is: for t = 2 there is one product, for t > 2 all but the last (a = t - 1, b = 0) are multiplied on into others"
)
_ALIAS = (
    "M may share A's memory: `backward` reads A_ij only for tiles on or above the diagonal, writes M_ij after that row "
    "of the tile was read, and writes below the diagonal only what no tile row reads; other choices are other memory"
)
_TILE = "a tile on the diagonal is symmetric, so writing it once more, transposed, writes the same numbers"
_ZERO = (
    "where D_ij = 0 the gated rows are equal, and the derivative 2 (x_i - x_j) of D_ij is 0: whatever E_ij is, "
    "its share of M_ij, M_ji, M_ii and M_jj cancels in x' M x; on the diagonal -2 dD and 2 row sums cancel"
)
_SYMMETRIC = "gram.backward reads M only as x' M x or M + M': the two entries may share their sum in any way"

_PADDING = (
    "q_j = r_j = 0 in the lanes beyond n, so the terms are 0 there, and the lane where the sum ends may lie anywhere "
    "beyond the last row"
)
_COPIED = (
    "copies the lower panels of an unfinished sum to the upper ones for t = 3: the last product reads neither and "
    "copies the finished ones over them"
)
_LEFT = (
    "the condition spares work: from row j0 + LANES on every lane lies left of the diagonal and none is set to 0, and "
    "in the rows before it still holds"
)

# function, change, how the line starts, proof
EQUIVALENT: tuple[tuple[str, str, str, str], ...] = (
    (OPS + "distances.backward", "-1  ->  -2", "i = xp.arange(dG.shape[-1])", _SQUARE),
    (OPS + "gaussian.backward", "-1  ->  -2", "i = bk.xp.arange(K.shape[-1])", _SQUARE),
    (
        OPS + "power.backward_half",
        "2  ->  3",
        "for a in range(t // 2, t):",
        "t // 3 <= t // 2, and the values of a that are added have a < t - 1 - a: the loop skips them",
    ),
    (
        OPS + "power.backward_half",
        "out if t == 2 else None  ->  None if t == 2 else out",
        "term = xp.matmul(powers[a - 1], dAt, out=out",
        _OUT,
    ),
    (OPS + "power.backward_half", "t == 2  ->  t != 2", "term = xp.matmul(powers[a - 1], dAt, out=out", _OUT),
    (OPS + "power.backward_half", "2  ->  3", "term = xp.matmul(powers[a - 1], dAt, out=out", _OUT),
    (
        KERNELS + "steps._powers_and_derivative",
        "t < 3  ->  t <= 3",
        "panels.symmetric_product(H, powers[t - 2], dA,",
        _COPIED,
    ),
    (KERNELS + "steps._powers_and_derivative", "3  ->  4", "panels.symmetric_product(H, powers[t - 2], dA,", _COPIED),
    (KERNELS + "panels.row_terms", "n - p * LANES  ->  n + p * LANES", "S[p] = total(below_lane(", _PADDING),
    (KERNELS + "panels.row_terms", "p * LANES  ->  p / LANES", "S[p] = total(below_lane(", _PADDING),
    (KERNELS + "panels.backward", "n - j0  ->  n + j0", "db[p] = total(below_lane(", _PADDING),
    (
        KERNELS + "panels.backward",
        "i - j0  ->  i + j0",
        "d = in_lane(i - j0, zero, d)",
        (
            "the first panel has j0 = 0; in the others i + j0 >= LANES is no lane, and D_ii = g_i + g_i - 2 G_ii is 0 "
            "without being set: twice and half a number are exact"
        ),
    ),
    (
        KERNELS + "streaming._slopes",
        "i0 + i - j0  ->  i0 + i + j0",
        "d = in_lane(i0 + i - j0, zero, d)",
        (
            "the first panel has j0 = 0; in the others i0 + i + j0 >= LANES is no lane, and D_ii = g_i + g_i - 2 G_ii "
            "is 0 without being set: g_i is summed as G_ii is"
        ),
    ),
    (
        KERNELS + "streaming._slopes",
        "i0 + i < j0 + LANES  ->  i0 + i <= j0 + LANES",
        "if half and i0 + i < j0 + LANES:",
        _LEFT,
    ),
    (KERNELS + "streaming._slopes", "i0 + i  ->  i0 - i", "if half and i0 + i < j0 + LANES:", _LEFT),
    (
        KERNELS + "panels.finish",
        "0  ->  1",
        "best, j = np.inf, 0",
        "j is overwritten: with n >= 2 some other row has a finite gap, which is below infinity",
    ),
    (
        KERNELS + "panels.finish",
        "gap < best  ->  gap <= best",
        "if c != i and gap < best:",
        (
            "differs only where two neighbours are exactly as near: a kink, where any one of the tied pairs "
            "is right by documentation, or twin rows, for which both choices have the same derivative"
        ),
    ),
    (
        KERNELS + "panels.column_dots",
        "n_open - first * LANES  ->  n_open + first * LANES",
        "for c in range(min(count * LANES,",
        (
            "goes on through the columns that fill up the last panel: column 0 each time, which gets its own right "
            "derivative once more, and where its gate is decided gates.backward discards it"
        ),
    ),
)
"""Mutants that compute the same function."""


def proof_of(mutant: Mutant) -> str:
    """The proof that the mutant is no fault; "" if there is none."""
    for function, change, line, proof in EQUIVALENT:
        if f"{mutant.target}.{mutant.function}" == function and mutant.fault.startswith(f"{change}   in   {line}"):
            return proof
    return ""
