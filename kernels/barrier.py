"""A barrier for threads that compute one thing together in compiled code.

They are ordinary Python threads inside compiled code that has released the GIL. There is no
threading layer: nothing to clash with fork, with BLAS, or with another fit in the same process.
"""

from __future__ import annotations

from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dufs_core.kernels.compile import inner

SLOTS = 16  # int64 numbers of a barrier: two cache lines, so that barriers do not share one
ABANDONED = 2  # the number of a barrier that is not 0 once a member has failed
_SPINS = 2000  # some microseconds; then the processor is offered to whoever needs it
_CAN_YIELD = binding.address_of_symbol("sched_yield") is not None  # POSIX


def _pointer(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, args[0])
    return builder.gep(array.data, [args[1]])


@intrinsic
def _add(typingctx: Any, counters: Any, index: Any, value: Any) -> Any:
    """counters[index] += value as one indivisible operation; returns what was there before."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", _pointer(context, builder, signature, args), args[2], "seq_cst")

    return types.int64(counters, types.intp, types.int64), codegen


@intrinsic
def _load(typingctx: Any, counters: Any, index: Any) -> Any:
    """counters[index], read from memory."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_pointer(context, builder, signature, args), "seq_cst", 8)

    return types.int64(counters, types.intp), codegen


@intrinsic
def _offer_processor(typingctx: Any) -> Any:
    """Let another thread run."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if _CAN_YIELD:
            function_type = ir.FunctionType(ir.IntType(32), [])
            builder.call(cgutils.get_or_insert_function(builder.module, function_type, "sched_yield"), [])
        return context.get_dummy_value()

    return types.void(), codegen


@inner
def wait_for_all(counters: Any, first: int, members: int) -> None:
    """Return once `members` threads have called this with the same barrier (SLOTS zeros from counters[first] on).

    Everything that a member wrote before is then visible to every other. A member that will never come sets
    counters[first + ABANDONED]: nobody waits any longer, and what is computed from there on is void.
    """
    if members == 1:
        return
    generation = _load(counters, first + 1)
    if _add(counters, first, 1) == members - 1:
        _add(counters, first, -members)
        _add(counters, first + 1, 1)
        return
    spins = 0
    while _load(counters, first + 1) == generation:
        spins += 1
        if spins > _SPINS:
            if _load(counters, first + ABANDONED) != 0:
                return
            _offer_processor()
