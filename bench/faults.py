"""The chosen faults of the mutation run.

A chosen fault is a piece of source replaced by another (it must occur, or the run stops: a stale fault proves
nothing), or a correct result spoiled on its way out: one coordinate by 1e-6 of itself, or rounded to float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import numpy as np

from bench.planting import Mutant, install, source_of

OPS, KERNELS, ENGINES = "dufs_core.objective.ops.", "dufs_core.kernels.", "dufs_core.objective.engines."

NETWORK = "dufs_core.baselines.concrete_network"

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
        "a degenerate constant keeps a derivative",
        "weights = xp.where(degenerate[..., None], 0, weights)",
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
    (NETWORK, "select_backward", "softmax coupling dropped", "(dS - (dS * S).sum(axis=-1, keepdims=True))", "dS"),
    (NETWORK, "select_backward", "temperature forgotten", "keepdims=True)) / temperature", "keepdims=True))"),
    (NETWORK, "select_backward", "mean for the weighted sum", "(dS * S).sum(axis=-1", "dS.mean(axis=-1"),
    (NETWORK, "affine_backward", "W not transposed back", "dV @ W.T, U.T @ dV", "dV @ (0.5 * W.T), U.T @ dV"),
    (NETWORK, "affine_backward", "mean over rows in the offset", "dV.sum(axis=0)", "dV.mean(axis=0)"),
    (NETWORK, "leaky_forward", "wrong side of the bend", "positive = V > 0", "positive = V >= 0"),
    (
        NETWORK,
        "leaky_backward",
        "bend ignored",
        "bk.xp.where(positive, dH, SLOPE * dH)",
        "dH * 1.0",
    ),
    (NETWORK, "leaky_backward", "no slope below the bend", "SLOPE * dH", "0 * dH"),
    (NETWORK, "error_backward", "factor 2 dropped", "2.0 / residual", "1.0 / residual"),
    (NETWORK, "error_backward", "mean over rows alone", "residual.size", "len(residual)"),
    (
        NETWORK,
        "value_and_grad",
        "bend of another layer",
        "bends.pop()",
        "bends.pop(0)",
    ),
    # the chain through the operations
    (
        "dufs_core.objective.chain",
        "_stacked_scores_and_grad",
        "bandwidth path missing",
        "dD = bandwidth.add_entries(bk, dD, bandwidth.backward(bk, f.saved_b, db))",
        "dD = dD * 1.0",
    ),
    (
        "dufs_core.objective.chain",
        "_stacked_scores_and_grad",
        "a held bandwidth is not held",
        "if objective.bandwidth_gradient:",
        "if True:",
    ),
    (
        "dufs_core.objective.chain",
        "_stacked_scores_and_grad",
        "the score's own use of G dropped",
        "dG = dG + distances.backward",
        "dG = distances.backward",
    ),
    (
        "dufs_core.objective.chain",
        "_stacked_scores_and_grad",
        "the distances' use of G dropped",
        "dG = dG + distances.backward(bk, f.saved_D, dD)",
        "dG = dG * 1.0",
    ),
    (
        "dufs_core.objective.chain",
        "_stacked_scores_and_grad",
        "columns undecided in some rows only are left out",
        "undecided.any(axis=1)",
        "undecided.all(axis=1)",
    ),
    (
        "dufs_core.objective.chain",
        "value_and_grad",
        "regulariser's gradient dropped",
        " + regulariser.backward(bk, saved_p, dsum_p)",
        "",
    ),
    # the dense engine
    (
        ENGINES + "cpu_dense",
        "_scores_and_grad",
        "the first draw's gradient for every draw",
        "work.shared.dz[:, :, 0] if",
        "work.shared.dz[:1, :, 0].repeat(len(z), axis=0) if",
    ),
    (ENGINES + "cpu_dense", "_scores_and_grad", "the last call's gradient left", "work.shared.dz[:] = 0", "pass"),
    # the streaming engine
    (ENGINES + "cpu_streaming", "scores", "1/b for 1/b^2 in db", "db = -weighted / b", "db = -weighted"),
    (
        ENGINES + "cpu_streaming",
        "scores",
        "the score's own derivative dropped",
        "dXt = S[:u] + squares",
        "dXt = squares",
    ),
    (ENGINES + "cpu_streaming", "scores", "one row statistic short", "F[t - a], dtype", "F[max(t - a - 1, 0)], dtype"),
    (ENGINES + "cpu_streaming", "scores", "the step through P' dropped", " + deg * B[t, :, :u]", ""),
    (
        ENGINES + "cpu_streaming",
        "scores",
        "row sums of C dropped",
        "by_row[:, None] * F[0, :, :u] - products",
        "-products",
    ),
    (ENGINES + "cpu_streaming", "scores", "a held bandwidth is not held", "self.objective.bandwidth_gradient", "True"),
    (KERNELS + "streaming", "gradient", "powers off by one", "F[t - 1 - a], slopes", "F[t - a], slopes"),
    # one draw in compiled code
    (KERNELS + "steps", "_draw", "a held bandwidth is not held", " or not settings.bandwidth_gradient:", ":"),
    (KERNELS + "steps", "_draw", "a given bandwidth keeps a derivative", "settings.quantile < 0 or ", ""),
    (KERNELS + "steps", "_draw", "gradient written to another draw", "        dz[draw], part", "        dz[0], part"),
    (KERNELS + "steps", "_draw", "1/b for 1/b^2 in db", "db / b, row_sums", "db, row_sums"),
    (KERNELS + "steps", "_draw", "db of the last panel only", "db += by_panel[1, p]", "db = by_panel[1, p]"),
    (KERNELS + "steps", "_draw", "halved where the whole is read", "row_sums, not settings.per_row", "row_sums, True"),
    (KERNELS + "steps", "_powers_and_derivative", "power off by one", "powers[a - 1], N", "powers[max(a - 2, 0)], N"),
    (KERNELS + "steps", "_powers_and_derivative", "first power off by one", "powers[t - 2], dA", "powers[t - 1], dA"),
    (
        KERNELS + "steps",
        "_powers_and_derivative",
        "right factor off by one",
        "powers[b - 1], dA",
        "powers[max(b - 2, 0)], dA",
    ),
    (KERNELS + "steps", "_powers_and_derivative", "middle term counted twice", "type(0.5)", "type(1.0)"),
    (KERNELS + "steps", "_powers_and_derivative", "middle term dropped", "type(0.5)", "type(0.0)"),
    (
        KERNELS + "steps",
        "_powers_and_derivative",
        "only the last term of the sum",
        "dA, n, n, True, True, last",
        "dA, n, n, True, False, last",
    ),
    (
        KERNELS + "steps",
        "_powers_and_derivative",
        "H A^(t - 1) without its transpose",
        "dA, n, n, True, False, t < 3",
        "dA, n, n, False, False, t < 3",
    ),
    (KERNELS + "steps", "_powers_and_derivative", "last pair dropped", "(t - 2) // 2, -1)", "(t - 2) // 2 + 1, -1)"),
    (
        KERNELS + "steps",
        "_powers_and_derivative",
        "upper panels left as they were",
        "last = a == (t - 2) // 2 + 1",
        "last = False",
    ),
    # its passes
    (KERNELS + "panels", "row_terms", "q squared for q cubed", "wide * wide * Wr", "wide * Wr"),
    (KERNELS + "panels", "row_terms", "degrees' own path missing", "(Wq - wide * wide * Wr)", "(Wq - Wq)"),
    (KERNELS + "panels", "row_terms", "one of the two degree terms dropped", "(Wq - wide * wide * Wr)", "Wq"),
    (KERNELS + "panels", "row_terms", "normalisation term missing", " - widen(half) * wide * wide * C", ""),
    (KERNELS + "panels", "row_terms", "row sums of the last block only", "= Wq + widen(part_q)", "= widen(part_q)"),
    (KERNELS + "panels", "row_terms", "last block's C forgotten", "C + widen(part_C)", "C if block else widen(part_C)"),
    (KERNELS + "panels", "row_terms", "padding read", "min(n, block + DEPTH)", "min(A.shape[1], block + DEPTH)"),
    (
        KERNELS + "panels",
        "row_terms",
        "last partial block dropped",
        "range(block, min(n, block + DEPTH))",
        "range(block, block + DEPTH if block + DEPTH <= n or block == 0 else block)",
    ),
    (
        KERNELS + "panels",
        "row_terms",
        "degree share of the first lane for a whole panel",
        "in_lane(l, value, spread(0.0))",
        "in_lane(0, value, spread(0.0))",
    ),
    (
        KERNELS + "panels",
        "backward",
        "one of the two degree shares twice",
        "(spread(get(half_ddeg, i)) + tj)",
        "(tj + tj)",
    ),
    (KERNELS + "panels", "backward", "factor K dropped", "+ tj)) * K", "+ tj))"),
    (KERNELS + "panels", "backward", "K taken for A", "load(A, at) * (spread(get(r, i)) * rj)", "load(A, at)"),
    (KERNELS + "panels", "backward", "K scaled by one row twice", "(spread(get(r, i)) * rj)", "(rj * rj)"),
    (KERNELS + "panels", "backward", "distances once for twice", "- two * dD", "- dD"),
    (
        KERNELS + "panels",
        "backward",
        "R not symmetrised",
        "spread(half * get(r, i)) * qj + spread(half * get(q, i)) * rj",
        "spread(get(r, i)) * qj",
    ),
    (
        KERNELS + "panels",
        "backward",
        "row sums of the last block only",
        "sums + widen(part_sums), weighted",
        "widen(part_sums), weighted",
    ),
    (
        KERNELS + "panels",
        "backward",
        "db of the last block only",
        "weighted + widen(part_weighted)",
        "widen(part_weighted)",
    ),
    (
        KERNELS + "panels",
        "backward",
        "db without the last partial panel",
        "below_lane(n - j0, weighted",
        "below_lane(LANES if n - j0 >= LANES or p == 0 else 0, weighted",
    ),
    (KERNELS + "panels", "finish", "bandwidth path missing", "number(db * weights[source])", "number(0.0)"),
    (KERNELS + "panels", "finish", "bandwidth entries not mirrored", "for _ in range(2)", "for _ in range(1)"),
    (KERNELS + "panels", "finish", "second middle row forgotten", "for source in range(2)", "for source in range(1)"),
    (
        KERNELS + "panels",
        "finish",
        "the two middle rows' weights exchanged",
        "db * weights[source]",
        "db * weights[1 - source]",
    ),
    (
        KERNELS + "panels",
        "finish",
        "bandwidth's share of the diagonal forgotten",
        "put(M, on_diagonal, get(M, on_diagonal) + value)",
        "pass",
    ),
    (KERNELS + "panels", "finish", "row sums once for twice", "+ 2 * get(row_sums, j)", "+ get(row_sums, j)"),
    (
        KERNELS + "panels",
        "finish",
        "diagonal of the last partial panel forgotten",
        "min(n, stop * LANES)",
        "min(max(LANES, n // LANES * LANES), n, stop * LANES)",
    ),
    (KERNELS + "panels", "finish", "tiles on the diagonal not halved", "if halve:", "if False:"),
    (
        KERNELS + "panels",
        "finish",
        "panels on the diagonal halved for tiles",
        "below_lane(first, row, below_lane(first + ROWS, row * half, row))",
        "row * half",
    ),
    (KERNELS + "panels", "column_dots", "gate dropped, batch", "4 * get(z, k) * get(sums", "4 * get(sums"),
    (KERNELS + "panels", "column_dots", "gate dropped, sample", "x * get(z, k + i) if per_row else x", "x"),
    (KERNELS + "panels", "column_dots", "lower half once for twice", "4 * get(z, k)", "2 * get(z, k)"),
    (
        KERNELS + "panels",
        "column_dots",
        "last wanted column forgotten",
        "n_open - first * LANES)):",
        "n_open - first * LANES - 1)):",
    ),
    (
        KERNELS + "panels",
        "column_dots",
        "last partial panel of columns dropped",
        "(n_open + LANES - 1) // LANES, part",
        "max(1, n_open // LANES), part",
    ),
    (
        KERNELS + "panels",
        "column_dots",
        "sums of a group written to the first columns",
        "get(open_, first * LANES + c)",
        "get(open_, c)",
    ),
    (
        KERNELS + "panels",
        "column_dots",
        "partial panel not transposed",
        "put(W, p * rows + i * LANES + l,",
        "put(W, p * rows + whole * LANES + l * LANES + (i - whole),",
    ),
    (
        KERNELS + "panels",
        "column_dots",
        "transposed panel written over the one before",
        "i, W, p * rows + i * LANES)",
        "i, W, p * rows + max(i - LANES, 0) * LANES)",
    ),
    (
        KERNELS + "panels",
        "quadratic_forms",
        "last tile of rows only",
        "load(sums, p * LANES) + widen(dots)",
        "widen(dots)",
    ),
    (KERNELS + "panels", "quadratic_forms", "padding of M read", "min(i + ROWS, n) - j)", "i + ROWS - j)"),
    (
        KERNELS + "panels",
        "column_dots",
        "a block of rows overwrites the ones before, sample",
        "get(dz, k + h) + value",
        "value",
    ),
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
    (NETWORK, "select_backward", 0),
    (NETWORK, "affine_backward", 0),
    (NETWORK, "affine_backward", 1),
    (NETWORK, "affine_backward", 2),
    (NETWORK, "leaky_backward", 0),
    (NETWORK, "error_backward", 0),
    ("dufs_core.objective.chain", "_stacked_scores_and_grad", 4),
    (ENGINES + "cpu_dense", "DenseEngine._scores_and_grad", 4),
)

ENGINES_OF = {
    "dufs_core.objective.chain": ("reference",),
    ENGINES + "cpu_dense": ("dense",),
    ENGINES + "cpu_streaming": ("streaming",),
    KERNELS + "streaming": ("streaming",),
    KERNELS + "steps": ("dense",),
    KERNELS + "panels": ("dense",),
}


def chosen() -> Iterator[tuple[Mutant, Callable[[], None]]]:
    """Every chosen fault with the function that plants it. Raises LookupError where a source line has changed."""
    for module, function, fault, old, new in REPLACED:
        source = source_of(module)
        line = _line(source, function, old)
        mutant = Mutant(module, function, fault, ENGINES_OF.get(module, ()), line)
        yield mutant, _replacer(module, source, line, old, new)
    for module, function, part in SPOILED:
        for fault, spoil in (("one coordinate off by 1e-6", one_coordinate), ("float32 leak", through_float32)):
            text = f"{fault}, output {part}"
            yield (
                Mutant(module, function, text, ENGINES_OF.get(module, ())),
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
