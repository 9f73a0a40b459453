"""The gate noise of `dufs_core.backend.random`, number for number, in a form that LLVM vectorises.

Philox-4x32-10 words and Box-Muller, as there; logarithm, sine and cosine as range reduction plus series (Numba's own
are scalar library calls), within a few units in the last place of float64.
"""

from __future__ import annotations

from math import factorial, log, pi, sqrt

import numpy as np
from llvmlite import ir
from numba import types

from dufs_core.kernels.compile import inner
from dufs_core.kernels.vector import emit_exp, get, in_line, operation

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_MASK, _32 = np.uint64(0xFFFFFFFF), np.uint64(32)
_EIGHTH, _30, _3 = np.uint64(1 << 29), np.uint64(30), np.uint64(3)
_MANTISSA, _ONE_BITS, _52 = np.uint64((1 << 52) - 1), np.uint64(1023 << 52), np.uint64(52)
_LN2, _SQRT2, _TO_ANGLE = log(2.0), sqrt(2.0), 2 * pi / 2.0**32


_ERF = (
    1.28634166581727, -0.025471885548612516, -0.12735942774305664, 0.11341004764042037, -0.05412904408465198,
    0.0153815244931657, -0.0019191155836058016, -0.0002755877127988526, 0.00011950138815173262,
    3.7357799158144188e-06, -6.21621745722223e-06, -1.684781182120787e-07, 3.450554459050181e-07,
    2.7804799174191428e-08, -1.8584978533908726e-08, -3.6012352211400857e-09, 6.258233042899523e-10,
    3.492459654808041e-10, 3.055902197957039e-11, -2.3283064365386964e-11,
)  # fmt: skip


@operation(lambda x: types.uint64)
def _bits(code, x):
    return code.builder.bitcast(x, ir.IntType(64))


@operation(lambda bits: types.float64(types.uint64))
def _from_bits(code, bits):
    return code.builder.bitcast(bits, ir.DoubleType())


def _series(*coefficients: float):
    """The operation w -> sum_i coefficients[i] w^i, by Horner's rule."""

    @operation(lambda w: w)
    def polynomial(code, w):
        value, *others = (ir.Constant(ir.DoubleType(), c) for c in reversed(coefficients))
        for coefficient in others:
            value = code.builder.fadd(coefficient, code.builder.fmul(w, value))
        return value

    return polynomial


@operation(lambda x: x)
def erf(code, x):
    """erf(x), x float64, within 2e-15: 1 - exp(-a^2) p(t) / (1 + 2 a) for a = |x|, and 1 from a = 6 on.

    p is the polynomial through (1 + 2 a) exp(a^2) (1 - erf a) at the 20 Chebyshev points of t = 2 - 9 / (a + 3), which
    grows from -1 to 1.
    """
    builder, kind = code.builder, x.type

    def number(value: float):
        return ir.Constant(kind, value)

    a = code.call("fabs", x)
    a = builder.select(builder.fcmp_ordered(">", a, number(6.0)), number(6.0), a)  # NaN stays
    near, far = builder.fadd(builder.fmul(number(2.0), a), number(1.0)), builder.fadd(a, number(3.0))
    inverse = builder.fdiv(number(1.0), builder.fmul(near, far))  # one division for both
    t = builder.fsub(number(2.0), builder.fmul(number(9.0), builder.fmul(inverse, near)))
    p = number(_ERF[-1])
    for coefficient in reversed(_ERF[:-1]):
        p = code.call("fmuladd", t, p, number(coefficient))
    tail = builder.fmul(emit_exp(code, builder.fneg(builder.fmul(a, a))), builder.fmul(p, builder.fmul(inverse, far)))
    return code.call("copysign", builder.fsub(number(1.0), tail), x)


_artanh = _series(*(2.0 / i for i in range(3, 22, 2)))
_sine = _series(*((-1.0) ** (i // 2) / factorial(i) for i in range(3, 16, 2)))
_cosine = _series(*((-1.0) ** (i // 2) / factorial(i) for i in range(2, 17, 2)))


@inner
def _radius(word):
    """sqrt(-2 log((word + 1/2) / 2^32)): with word + 1/2 = m 2^e and s = (m - 1) / (m + 1), log m = 2 artanh(s)."""
    in_line()
    bits = _bits(np.float64(word) + 0.5)
    e = np.float64(np.int64(bits >> _52) - 1023)
    m = _from_bits((bits & _MANTISSA) | _ONE_BITS)
    large = m > _SQRT2
    m = 0.5 * m if large else m
    e = e + 1.0 if large else e
    s = (m - 1.0) / (m + 1.0)
    w = s * s
    return np.sqrt(-2.0 * ((e - 32.0) * _LN2 + (2.0 * s + s * w * _artanh(w))))


@inner
def _sine_and_cosine(word):
    """sin and cos of 2 pi word / 2^32: the angle is q quarter turns and a rest of at most an eighth."""
    in_line()
    quarters = (word + _EIGHTH) >> _30
    rest = np.float64(np.int64(word) - np.int64(quarters << _30)) * _TO_ANGLE
    w = rest * rest
    sine = rest + rest * w * _sine(w)
    cosine = 1.0 + w * _cosine(w)
    q = quarters & _3
    odd = (q & np.uint64(1)) == np.uint64(1)
    first = cosine if odd else sine
    second = sine if odd else cosine
    first = -first if q >= np.uint64(2) else first
    second = -second if (q == np.uint64(1)) or (q == np.uint64(2)) else second
    return first, second


@inner
def philox(column, step, group, k0, k1):
    """Philox-4x32-10 of the counter (column, 0, step, group)."""
    in_line()
    c0, c1, c2, c3 = column, np.uint64(0), step, group
    for _ in range(10):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (p1 >> _32) ^ c1 ^ k0, p1 & _MASK, (p0 >> _32) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
    return c0, c1, c2, c3


@inner
def gate_normals(seed, step, columns, first, count, n_draws, out):
    """out[r, c] = draw r of column columns[first + c] at `step`, stream 0, c < count.

    columns: uint64 positions; out (>= n_draws + 3, CHUNK) float64. The words of a counter are four draws, made in pairs
    (the last may write past n_draws).
    """
    k0, k1 = seed & _MASK, seed >> _32
    for group in range((n_draws + 3) // 4):
        for c in range(count):
            w0, w1, w2, w3 = philox(get(columns, first + c), step, np.uint64(group), k0, k1)
            radius = _radius(w0)
            sine, cosine = _sine_and_cosine(w1)
            out[4 * group, c] = radius * cosine
            out[4 * group + 1, c] = radius * sine
            if 4 * group + 2 < n_draws:
                radius = _radius(w2)
                sine, cosine = _sine_and_cosine(w3)
                out[4 * group + 2, c] = radius * cosine
                out[4 * group + 3, c] = radius * sine
