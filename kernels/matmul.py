"""Small matrix products in compiled code, without BLAS: no thread pool to share, the same bits on every call.

Four rows of C and four terms of the sum are handled per sweep over the columns, so that sixteen fused
multiply-adds share four loads of B; LLVM vectorises the sweep. For the sizes of the small engine (up to 256
rows) B stays in the second-level cache.
"""

from __future__ import annotations

from typing import Any

from numba import njit

_FLAGS = {"contract"}  # fused multiply-add; keeps NaN and infinity as they are


@njit(cache=True, nogil=True, fastmath=_FLAGS, error_model="numpy")
def matmul(A: Any, B: Any, C: Any, symmetric: bool) -> None:
    """C = A B.      A (m, k) of any layout; B (k, n), C (m, n) in C order.

    symmetric: C is known to be symmetric (m = n); only its lower triangle is computed, then mirrored.
    """
    m, depth = A.shape
    n = B.shape[1]
    zero = C.dtype.type(0)
    i = 0
    while i < m:
        height = min(4, m - i)
        width = min(n, i + height) if symmetric else n
        for h in range(height):
            for j in range(width):
                C[i + h, j] = zero
        k = 0
        while k + 4 <= depth:
            B0, B1, B2, B3 = B[k], B[k + 1], B[k + 2], B[k + 3]
            if height == 4:
                a00, a01, a02, a03 = A[i, k], A[i, k + 1], A[i, k + 2], A[i, k + 3]
                a10, a11, a12, a13 = A[i + 1, k], A[i + 1, k + 1], A[i + 1, k + 2], A[i + 1, k + 3]
                a20, a21, a22, a23 = A[i + 2, k], A[i + 2, k + 1], A[i + 2, k + 2], A[i + 2, k + 3]
                a30, a31, a32, a33 = A[i + 3, k], A[i + 3, k + 1], A[i + 3, k + 2], A[i + 3, k + 3]
                C0, C1, C2, C3 = C[i], C[i + 1], C[i + 2], C[i + 3]
                for j in range(width):
                    b0, b1, b2, b3 = B0[j], B1[j], B2[j], B3[j]
                    C0[j] += a00 * b0 + a01 * b1 + a02 * b2 + a03 * b3
                    C1[j] += a10 * b0 + a11 * b1 + a12 * b2 + a13 * b3
                    C2[j] += a20 * b0 + a21 * b1 + a22 * b2 + a23 * b3
                    C3[j] += a30 * b0 + a31 * b1 + a32 * b2 + a33 * b3
            else:
                for h in range(height):
                    a0, a1, a2, a3 = A[i + h, k], A[i + h, k + 1], A[i + h, k + 2], A[i + h, k + 3]
                    C0 = C[i + h]
                    for j in range(width):
                        C0[j] += a0 * B0[j] + a1 * B1[j] + a2 * B2[j] + a3 * B3[j]
            k += 4
        while k < depth:
            for h in range(height):
                a0 = A[i + h, k]
                for j in range(width):
                    C[i + h, j] += a0 * B[k, j]
            k += 1
        i += 4
    if symmetric:
        for i in range(m):
            for j in range(i + 1, n):
                C[i, j] = C[j, i]
