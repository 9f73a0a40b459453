"""exp(x) for x <= 0 as range reduction plus a polynomial, in a form that LLVM vectorises.

Numba's own exp is a scalar library call unless Intel's SVML is installed. This one is straight-line code:

    x = m ln 2 + r,  |r| <= ln(2) / 2,   exp(x) = 2^m p(r),

with ln 2 split in two so that r is exact, p the Taylor polynomial of degree 7 (float32) or 13 (float64),
whose truncation error is below half a unit in the last place, and 2^m built from its bits. Below -87
(float32) or -708 (float64) the result is 0.
"""

from __future__ import annotations

from math import factorial, floor
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload, register_jitable


@intrinsic
def _float32_from_bits(typingctx: Any, bits: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.int32), codegen


@intrinsic
def _float64_from_bits(typingctx: Any, bits: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.int64), codegen


_F = [1.0 / factorial(i) for i in range(14)]
_C2, _C3, _C4, _C5, _C6, _C7 = (np.float32(c) for c in _F[2:8])
_D2, _D3, _D4, _D5, _D6, _D7, _D8, _D9, _D10, _D11, _D12, _D13 = _F[2:14]
_LOG2E_32, _HALF_32, _ONE_32 = np.float32(1.4426950408889634), np.float32(0.5), np.float32(1)
_HIGH_32, _LOW_32, _LOWEST_32 = np.float32(0.693359375), np.float32(-2.12194440e-4), np.float32(-87)
_HIGH_64, _LOW_64, _LOWEST_64 = 6.93147180369123816490e-01, 1.90821492927058770002e-10, -708.0


@register_jitable
def _exp32(x: Any) -> Any:
    y = max(x, _LOWEST_32)
    m = np.float32(floor(y * _LOG2E_32 + _HALF_32))
    r = (y - m * _HIGH_32) - m * _LOW_32
    p = _C6 + r * _C7
    p = _C5 + r * p
    p = _C4 + r * p
    p = _C3 + r * p
    p = _C2 + r * p
    p = _ONE_32 + r * (_ONE_32 + r * p)
    value = p * _float32_from_bits((np.int32(m) + np.int32(127)) << np.int32(23))
    return value if x >= _LOWEST_32 else np.float32(0)


@register_jitable
def _exp64(x: Any) -> Any:
    y = max(x, _LOWEST_64)
    m = floor(y * 1.4426950408889634 + 0.5)
    r = (y - m * _HIGH_64) - m * _LOW_64
    p = _D12 + r * _D13
    p = _D11 + r * p
    p = _D10 + r * p
    p = _D9 + r * p
    p = _D8 + r * p
    p = _D7 + r * p
    p = _D6 + r * p
    p = _D5 + r * p
    p = _D4 + r * p
    p = _D3 + r * p
    p = _D2 + r * p
    p = 1.0 + r * (1.0 + r * p)
    value = p * _float64_from_bits((np.int64(m) + np.int64(1023)) << np.int64(52))
    return value if x >= _LOWEST_64 else 0.0


def exp_nonpositive(x: Any) -> Any:
    """exp(x) for x <= 0, in the dtype of x (callable from Numba code)."""
    return np.exp(x)


@overload(exp_nonpositive, inline="always")
def _exp_nonpositive(x):  # Numba compares the signature, annotations included
    if x is types.float32:
        return lambda x: _exp32(x)
    return lambda x: _exp64(x)
