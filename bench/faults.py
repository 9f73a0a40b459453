"""The chosen faults of the mutation run, and the proofs for the mutants that are no faults.

A chosen fault is a piece of source replaced by another (it must occur, or the run stops: a stale fault proves
nothing), or a correct result spoiled on its way out: one coordinate by 1e-6 of itself, or rounded to float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import numpy as np

from bench.mutants import Mutant, install, source_of

OPS, KERNELS, ENGINES = "dufs_core.ops.", "dufs_core.kernels.", "dufs_core.engines."

# module, function it belongs to, what the fault is, source, replacement
REPLACED: tuple[tuple[str, str, str, str, str], ...] = (
    # gates
    (OPS + "gates", "forward", "wrong side of the kink at u = 0", "(u > 0) &", "(u >= 0) &"),
    (OPS + "gates", "forward", "wrong side of the kink at u = 1", "(u < 1)", "(u <= 1)"),
    (OPS + "gates", "backward", "decided gates keep a slope", "bk.xp.where(saved.undecided, dz, 0)", "dz * 1.0"),
    (OPS + "gates", "backward", "mean over draws for the sum", "dmu.sum(axis=", "dmu.mean(axis="),
    (
        OPS + "gates",
        "backward",
        "every draw but the first dropped",
        "return dmu.sum(axis=tuple(range(dmu.ndim - 1)))",
        "return dmu.reshape(-1, dmu.shape[-1])[0].copy()",
    ),
    (
        OPS + "gates",
        "backward",
        "open gates keep a slope",
        "bk.xp.where(saved.undecided,",
        "bk.xp.where(saved.undecided | (dz > 1.5),",
    ),
    # gram
    (OPS + "gram", "backward", "factor 2 dropped, batch", "= 2 * z[columns]", "= z[columns]"),
    (OPS + "gram", "backward", "factor 2 dropped, sample", "dG + dG.T", "dG"),
    (OPS + "gram", "backward", "gate dropped, sample", "(rows * z.T[columns])", "rows"),
    (OPS + "gram", "backward", "dG transposed for dG + dG', sample", "dG + dG.T", "2 * dG.T"),
    (OPS + "gram", "backward", "last wanted column forgotten", "xp.flatnonzero(wanted)", "xp.flatnonzero(wanted)[:-1]"),
    (OPS + "gram", "backward", "unwanted columns not zero", "xp.zeros_like(z)", "xp.full_like(z, 1e-8)"),
    # distances
    (OPS + "distances", "forward", "wrong side of the clamp", "Saved(D > 0)", "Saved(D >= 0)"),
    (OPS + "distances", "backward", "clamp ignored", "xp.where(saved.positive, dD, 0)", "dD * 1.0"),
    (
        OPS + "distances",
        "backward",
        "rows summed twice, columns never",
        "E.sum(axis=-1) + E.sum(axis=-2)",
        "2 * E.sum(axis=-1)",
    ),
    (OPS + "distances", "backward", "diagonal term dropped", "dG[..., i, i] += ", "dG[..., i, i] += 0 * "),
    (OPS + "distances", "backward", "diagonal term of the wrong sign", "dG[..., i, i] += ", "dG[..., i, i] -= "),
    # bandwidth
    (
        OPS + "bandwidth",
        "forward",
        "factor C missing in the derivative",
        "weights.astype(D.dtype) * factor",
        "weights.astype(D.dtype)",
    ),
    (
        OPS + "bandwidth",
        "forward",
        "derivative to the next column",
        "gap.argmin(axis=-1)",
        "(gap.argmin(axis=-1) + 1) % n",
    ),
    (
        OPS + "bandwidth",
        "forward",
        "a substituted constant keeps a derivative",
        "weights = xp.where(substituted[..., None], 0, weights)",
        "weights = weights * 1.0",
    ),
    (
        OPS + "bandwidth",
        "backward",
        "the two middle rows' weights exchanged",
        "saved.weights * db",
        "saved.weights[..., ::-1] * db",
    ),
    (
        OPS + "bandwidth",
        "backward",
        "one of the two middle rows dropped",
        "saved.weights * db[..., None]",
        "saved.weights * db[..., None] * [1, 0]",
    ),
    (OPS + "bandwidth", "add_entries", "entries overwrite", "] += values", "] = values"),
    (
        OPS + "bandwidth",
        "add_entries",
        "written to the transposed place",
        "rows.ravel(), columns.ravel()]",
        "rows.ravel(), rows.ravel()]",
    ),
    (OPS + "bandwidth", "add_entries", "input written to", "total = dD.copy()", "total = dD"),
    # gaussian
    (OPS + "gaussian", "backward", "factor K dropped", "dD = dK * K", "dD = dK * 1.0"),
    (OPS + "gaussian", "backward", "bandwidth path missing", "-(dD * D)", "-0.0 * (dD * D)"),
    (OPS + "gaussian", "backward", "1/b for 1/b^2 in db", "axis=(-2, -1)) / b", "axis=(-2, -1))"),
    (OPS + "gaussian", "backward", "sign of db", "-(dD * D)", "(dD * D)"),
    (
        OPS + "gaussian",
        "backward",
        "db summed over rows only, then spread",
        "-(dD * D).sum(axis=(-2, -1))",
        "-(dD * D).sum(axis=-1).max(axis=-1)",
    ),
    # normalise
    (
        OPS + "normalise",
        "backward",
        "normalisation term missing",
        "ddeg - (C.sum(axis=-1) + C.sum(axis=-2)) / (2 * deg)",
        "ddeg * 1.0",
    ),
    (
        OPS + "normalise",
        "backward",
        "right only where C is symmetric",
        "(C.sum(axis=-1) + C.sum(axis=-2)) / (2 * deg)",
        "C.sum(axis=-1) / deg",
    ),
    (OPS + "normalise", "backward", "degree term transposed", "through_deg[..., :, None]", "through_deg[..., None, :]"),
    (OPS + "normalise", "backward", "other uses of the degrees forgotten", "through_deg = ddeg -", "through_deg = -"),
    (
        OPS + "normalise",
        "backward",
        "row normalised twice, column never",
        "dK *= q[..., None, :]",
        "dK *= q[..., :, None]",
    ),
    # power
    (OPS + "power", "backward_half", "power off by one", "powers[a - 1], dAt", "powers[max(a - 2, 0)], dAt"),
    (OPS + "power", "backward_half", "right factor off by one", "powers[b - 1])", "powers[max(b - 2, 0)])"),
    (OPS + "power", "backward_half", "middle term counted twice", "term * 0.5", "term * 1.0"),
    (OPS + "power", "backward_half", "middle term dropped", "term * 0.5", "term * 0.0"),
    (
        OPS + "power",
        "backward",
        "transposed half replaced by the half",
        "half + bk.xp.swapaxes(half, -1, -2)",
        "half + half",
    ),
    (
        OPS + "power",
        "backward_half",
        "only the last term of the sum",
        "T = term if T is None else T + term",
        "T = term",
    ),
    # score
    (OPS + "score", "backward", "q squared for q cubed", "q**3", "q**2"),
    (OPS + "score", "backward", "degrees' own path missing", "* (q * Wq - q**3 * Wr) * 0.5", "* (q * Wq - q * Wq)"),
    (OPS + "score", "backward", "one of the two degree terms dropped", "(q * Wq - q**3 * Wr)", "(q * Wq)"),
    (OPS + "score", "backward", "R not symmetrised", "(R + xp.swapaxes(R, -1, -2)) * scale", "(R + R) * scale"),
    (OPS + "score", "backward", "G and A^t exchanged", "return G * R, At * R", "return At * R, G * R"),
    # regulariser
    (OPS + "regulariser", "backward", "width of the density", "(-2 * sigma * sigma)", "(-1 * sigma * sigma)"),
    (OPS + "regulariser", "backward", "1/sigma forgotten", "(sqrt(2 * pi) * sigma)", "sqrt(2 * pi)"),
    (OPS + "regulariser", "backward", "upstream derivative ignored", "(dsum / (", "(1.0 / ("),
    (OPS + "regulariser", "backward", "the density's argument", "mu * mu /", "(mu - 1e-4) ** 2 /"),
    (OPS + "regulariser", "backward", "pi a little wrong", "sqrt(2 * pi)", "sqrt(2 * 3.14159265)"),
    # loss
    (OPS + "loss", "backward", "quotient rule without the square", "denominator**2", "denominator"),
    (OPS + "loss", "backward", "n forgotten in the quotient rule", "mean * n /", "mean /"),
    (OPS + "loss", "backward", "mean over draws forgotten", "dS / len(S)", "dS"),
    (
        OPS + "loss",
        "backward",
        "delta forgotten in the derivative",
        "denominator = n * sum_p + delta",
        "denominator = n * sum_p",
    ),
    (OPS + "loss", "backward", "price not passed on", "-1.0 / n, lam", "-1.0 / n, 0.0"),
    # the layers of the concrete autoencoder
    (OPS + "concrete", "backward", "softmax coupling dropped", "(dS - (dS * S).sum(axis=-1, keepdims=True))", "dS"),
    (OPS + "concrete", "backward", "temperature forgotten", "keepdims=True)) / temperature", "keepdims=True))"),
    (OPS + "concrete", "backward", "mean for the weighted sum", "(dS * S).sum(axis=-1", "dS.mean(axis=-1"),
    (OPS + "affine", "backward", "W not transposed back", "dV @ W.T, U.T @ dV", "dV @ (0.5 * W.T), U.T @ dV"),
    (OPS + "affine", "backward", "mean over rows in the offset", "dV.sum(axis=0)", "dV.mean(axis=0)"),
    (OPS + "leaky_relu", "forward", "wrong side of the bend", "positive = V > 0", "positive = V >= 0"),
    (OPS + "leaky_relu", "backward", "bend ignored", "bk.xp.where(saved.positive, dH, saved.slope * dH)", "dH * 1.0"),
    (OPS + "leaky_relu", "backward", "no slope below the bend", "saved.slope * dH", "0 * dH"),
    (OPS + "squared_error", "backward", "factor 2 dropped", "2.0 / saved", "1.0 / saved"),
    (OPS + "squared_error", "backward", "mean over rows alone", "saved.residual.size", "len(saved.residual)"),
    (
        "dufs_core.baselines.concrete_network",
        "value_and_grad",
        "bend of another layer",
        "bends.pop()",
        "bends.pop(0)",
    ),
    # the chain through the operations
    (
        "dufs_core.objective",
        "_stacked_scores_and_grad",
        "bandwidth path missing",
        "dD = bandwidth.add_entries(bk, dD, bandwidth.backward(bk, f.saved_b, db))",
        "dD = dD * 1.0",
    ),
    (
        "dufs_core.objective",
        "_stacked_scores_and_grad",
        "a held bandwidth is not held",
        "if objective.bandwidth_gradient:",
        "if True:",
    ),
    (
        "dufs_core.objective",
        "_stacked_scores_and_grad",
        "the score's own use of G dropped",
        "dG = dG + distances.backward",
        "dG = distances.backward",
    ),
    (
        "dufs_core.objective",
        "_stacked_scores_and_grad",
        "the distances' use of G dropped",
        "dG = dG + distances.backward(bk, f.saved_D, dD)",
        "dG = dG * 1.0",
    ),
    (
        "dufs_core.objective",
        "_stacked_scores_and_grad",
        "columns undecided in some rows only are left out",
        "undecided.any(axis=1)",
        "undecided.all(axis=1)",
    ),
    (
        "dufs_core.objective",
        "value_and_grad",
        "regulariser's gradient dropped",
        " + regulariser.backward(bk, saved_p, dsum_p)",
        "",
    ),
    # the dense engine
    (ENGINES + "dense", "_scores_and_gram_gradients", "normalisation term missing", "- 0.5 * C * q * q", ""),
    (
        ENGINES + "dense",
        "_scores_and_gram_gradients",
        "row half of the normalisation term twice",
        "C = by_row + by_column.reshape(R, -1, n).sum(axis=1)",
        "C = 2 * by_row",
    ),
    (
        ENGINES + "dense",
        "_scores_and_gram_gradients",
        "columns of the first tile row only",
        "by_column.reshape(R, -1, n).sum(axis=1)",
        "by_column.reshape(R, -1, n)[:, 0]",
    ),
    (
        ENGINES + "dense",
        "_scores_and_gram_gradients",
        "row sums of the first tile row only",
        "row_sums.reshape(R, -1, n).sum(axis=1)",
        "row_sums.reshape(R, -1, n)[:, 0].copy()",
    ),
    (ENGINES + "dense", "_scores_and_gram_gradients", "1/b for 1/b^2 in db", ".sum(axis=1) / b", ".sum(axis=1)"),
    (
        ENGINES + "dense",
        "_scores_and_gram_gradients",
        "a held bandwidth is not held",
        "if not objective.bandwidth_gradient:",
        "if False:",
    ),
    (ENGINES + "dense", "_scores_and_gram_gradients", "q squared for q cubed", "q**3 * Wr", "q**2 * Wr"),
    (ENGINES + "dense", "_scores_and_grad", "the first draw's gradient for all of a chunk", "M[r - start]", "M[0]"),
    (
        ENGINES + "dense",
        "_scores_and_grad",
        "columns undecided in some rows only are left out",
        "undecided.any(axis=1)",
        "undecided.all(axis=1)",
    ),
    # its passes
    (
        KERNELS + "sweeps",
        "backward",
        "tiles off the diagonal counted once in db",
        "db_i if j0 == i0 else db_i + db_i",
        "db_i",
    ),
    (KERNELS + "sweeps", "backward", "mirrored row sums dropped", "sums[j] += dD", "pass"),
    (
        KERNELS + "sweeps",
        "backward",
        "mirrored tile not turned",
        "M[draw, j, i] = turned[i - i0, j - j0]",
        "M[draw, j, i] = turned[min(j - j0, i1 - i0 - 1), min(i - i0, j1 - j0 - 1)]",
    ),
    (KERNELS + "sweeps", "backward", "half of T + T' dropped", "(t[j] + turn[j - j0])", "(t[j] + t[j])"),
    (KERNELS + "sweeps", "backward", "one of the two degree shares dropped", "+ si + shares[j])", "+ si + si)"),
    (KERNELS + "sweeps", "backward", "distances once for twice", "- dD - dD", "- dD"),
    (KERNELS + "sweeps", "finish", "bandwidth path missing", "value = 0.5 *", "value = 0.0 *"),
    (KERNELS + "sweeps", "finish", "bandwidth entries not mirrored", "M[draw, j, i] -= 2 * value", "pass"),
    (KERNELS + "sweeps", "finish", "second middle row forgotten", "range(2)", "range(1)"),
)

# module, function, which value of a tuple
SPOILED: tuple[tuple[str, str, int], ...] = (
    (OPS + "gates", "backward", 0),
    (OPS + "gram", "backward", 0),
    (OPS + "distances", "backward", 0),
    (OPS + "bandwidth", "add_entries", 0),
    (OPS + "gaussian", "backward", 0),
    (OPS + "gaussian", "backward", 1),
    (OPS + "normalise", "backward", 0),
    (OPS + "power", "backward", 0),
    (OPS + "score", "backward", 0),
    (OPS + "score", "backward", 2),
    (OPS + "regulariser", "backward", 0),
    (OPS + "loss", "backward", 0),
    (OPS + "loss", "backward", 1),
    (OPS + "concrete", "backward", 0),
    (OPS + "affine", "backward", 0),
    (OPS + "affine", "backward", 1),
    (OPS + "affine", "backward", 2),
    (OPS + "leaky_relu", "backward", 0),
    (OPS + "squared_error", "backward", 0),
    ("dufs_core.objective", "_stacked_scores_and_grad", 4),
    (ENGINES + "dense", "DenseEngine._scores_and_grad", 4),
)

ENGINES_OF = {
    "dufs_core.objective": ("operations",),
    ENGINES + "dense": ("dense",),
    KERNELS + "sweeps": ("dense",),
}

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

# function, change, how the line starts, proof
EQUIVALENT: tuple[tuple[str, str, str, str], ...] = (
    (OPS + "distances.backward", "-1  ->  -2", "i = xp.arange(dG.shape[-1])", _SQUARE),
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
        ENGINES + "dense._scores_and_gram_gradients",
        "At if objective.power > 1 else work('At')  ->  work('At') if objective.power > 1 else At",
        'M = At if objective.power > 1 else work("At"',
        _ALIAS,
    ),
    (
        ENGINES + "dense._scores_and_gram_gradients",
        "objective.power > 1  ->  objective.power >= 1",
        'M = At if objective.power > 1 else work("At"',
        _ALIAS,
    ),
    (ENGINES + "dense._scores_and_gram_gradients", "1  ->  2", 'M = At if objective.power > 1 else work("At"', _ALIAS),
    (KERNELS + "sweeps.score", "1  ->  2", "n = G.shape[1]", _SQUARE),
    (KERNELS + "sweeps.row_terms", "1  ->  2", "n = T.shape[1]", _SQUARE),
    (KERNELS + "sweeps.backward", "1  ->  2", "n = T.shape[1]", _SQUARE),
    (KERNELS + "sweeps.finish", "1  ->  2", "R, n = M.shape[0], M.shape[1]", _SQUARE),
    (KERNELS + "sweeps.backward", "j0 > i0  ->  j0 >= i0", "if j0 > i0:", _TILE),
    (KERNELS + "sweeps.backward", "d[j] > zero  ->  d[j] >= zero", "E = E if d[j] > zero else zero", _ZERO),
    (
        KERNELS + "sweeps.finish",
        "0  ->  1",
        "best, j = np.inf, 0",
        "j is overwritten: with n >= 2 some other row has a finite gap, which is below infinity",
    ),
    (KERNELS + "sweeps.finish", "(draw, i, j)  ->  (draw, j, i)", "M[draw, i, j] -= 2 * value", _SYMMETRIC),
    (KERNELS + "sweeps.finish", "(draw, j, i)  ->  (draw, i, j)", "M[draw, j, i] -= 2 * value", _SYMMETRIC),
    (
        KERNELS + "sweeps.finish",
        "gap < best  ->  gap <= best",
        "if c != i and gap < best:",
        (
            "differs only where two neighbours are exactly as near: a kink, where any one of the tied pairs "
            "is right by documentation, or twin rows, for which both choices have the same derivative"
        ),
    ),
    (
        KERNELS + "sweeps.finish",
        "(draw, i, c)  ->  (draw, c, i)",
        "gap = abs(D[draw, i, c] - kth[draw, i])",
        "D is symmetric",
    ),
)
"""Mutants that compute the same function."""


def proof_of(mutant: Mutant) -> str:
    """The proof that the mutant is no fault; "" if there is none."""
    for function, change, line, proof in EQUIVALENT:
        if f"{mutant.target}.{mutant.function}" == function and mutant.fault.startswith(f"{change}   in   {line}"):
            return proof
    return ""


def chosen() -> Iterator[tuple[Mutant, Callable[[], None]]]:
    """Every chosen fault with the function that plants it. Raises LookupError where a source line has changed."""
    for module, function, fault, old, new in REPLACED:
        source = source_of(module)
        line = _line(source, function, old)
        mutant = Mutant(module, function, "chosen", fault, ENGINES_OF.get(module, ()), line)
        yield mutant, _replacer(module, source, line, old, new)
    for module, function, part in SPOILED:
        for fault, spoil in (("one coordinate off by 1e-6", one_coordinate), ("float32 leak", through_float32)):
            text = f"{fault}, output {part}"
            yield (
                Mutant(module, function, "chosen", text, ENGINES_OF.get(module, ())),
                _spoiler(module, function, part, spoil),
            )


def _line(source: str, function: str, old: str) -> int:
    """The first line of the function where the text starts."""
    lines = source.splitlines()
    start = next((i for i, text in enumerate(lines) if text.strip().startswith(f"def {function}(")), None)
    offset = -1 if start is None else source.find(old, len("\n".join(lines[:start])))
    if offset < 0:
        raise LookupError(f"the fault is stale: {function} no longer holds {old!r}")
    return source.count("\n", 0, offset) + 1


def _replacer(module: str, source: str, line: int, old: str, new: str) -> Callable[[], None]:
    def plant() -> None:
        head = len("".join(source.splitlines(keepends=True)[: line - 1]))
        install(module, source[:head] + source[head:].replace(old, new, 1))

    return plant


def one_coordinate(value: Any) -> Any:
    """One coordinate, not zero, times 1 + 1e-6."""
    if isinstance(value, float):
        return value * (1 + 1e-6)
    spoiled = value.copy()
    places = np.flatnonzero(spoiled)
    if len(places):
        spoiled.reshape(-1)[places[len(places) // 2]] *= 1 + 1e-6
    return spoiled


def through_float32(value: Any) -> Any:
    """Rounded to float32 and back."""
    if isinstance(value, float):
        return float(np.float32(value))
    return value.astype(np.float32).astype(value.dtype)


def _spoiler(module: str, function: str, part: int, spoil: Callable[[Any], Any]) -> Callable[[], None]:
    def plant() -> None:
        owner, _, name = function.rpartition(".")
        place: Any = getattr(import_module(module), owner) if owner else import_module(module)
        right = getattr(place, name)

        def wrong(*args: Any) -> Any:
            value = right(*args)
            if hasattr(value, "_replace"):
                return value._replace(**{value._fields[part]: spoil(value[part])})
            if isinstance(value, tuple):
                return tuple(spoil(v) if i == part else v for i, v in enumerate(value))
            return spoil(value)

        setattr(place, name, wrong)

    return plant
