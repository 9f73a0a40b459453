"""A barrier for threads that compute one thing together in compiled code.

They are ordinary Python threads inside compiled code that has released the GIL. There is no threading layer: nothing to
clash with fork, with BLAS, or with another fit in the same process.
"""

from __future__ import annotations

import os

from llvmlite import ir
from numba import types
from numba.core import cgutils

from dufs_core.kernels.arrays import ABANDONED
from dufs_core.kernels.compile import inner
from dufs_core.kernels.vector import operation

_SPINS = 2000  # some microseconds; then the processor is offered to whoever needs it
_CAN_YIELD = hasattr(os, "sched_yield")  # POSIX


@operation(lambda counters, index, value: types.int64(counters, types.intp, types.int64))
def _add(code, counters, index, value):
    """counters[index] += value as one indivisible operation; returns what was there before."""
    return code.builder.atomic_rmw("add", code.pointer(0), value, "seq_cst")


@operation(lambda counters, index: types.int64(counters, types.intp))
def _load(code, counters, index):
    """counters[index], read from memory."""
    return code.builder.load_atomic(code.pointer(0), "seq_cst", 8)


@operation(lambda: types.void())
def _offer_processor(code):
    """Let another thread run."""
    if _CAN_YIELD:
        kind = ir.FunctionType(ir.IntType(32), [])
        code.builder.call(cgutils.get_or_insert_function(code.builder.module, kind, "sched_yield"), [])


@inner
def wait_for_all(counters, first, threads):
    """Return once `threads` threads have called this with the same barrier (SLOTS zeros from counters[first] on).

    Everything that a thread wrote before is then visible to every other. A thread that will never come sets
    counters[first + ABANDONED]: nobody waits any longer, and what is computed from there on is void.
    """
    if threads == 1:
        return
    generation = _load(counters, first + 1)
    if _add(counters, first, 1) == threads - 1:
        _add(counters, first, -threads)
        _add(counters, first + 1, 1)
        return
    spins = 0
    while _load(counters, first + 1) == generation:
        spins += 1
        if spins > _SPINS:
            if _load(counters, first + ABANDONED) != 0:
                return
            _offer_processor()
