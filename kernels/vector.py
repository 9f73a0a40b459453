"""LANES numbers at once, as one value in compiled code.

Numba compiles loops over arrays and hopes that LLVM vectorises them: where it does, it takes seconds of compile time,
and sums over lanes go through memory. `Lanes` is LLVM's own vector type with the few operations that the kernels
need, so each is one instruction to compile, and LLVM fits it to the registers that the processor has.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from math import factorial
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model

LANES = 16  # one AVX-512 register of float32, two AVX2 registers


class Lanes(types.Type):  # type: ignore[misc]
    """LANES numbers of a floating-point type."""

    def __init__(self, number: Any) -> None:
        self.number = number
        super().__init__(name=f"Lanes({number})")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, lanes: Any) -> None:
        number = manager.lookup(lanes.number).get_value_type()
        super().__init__(manager, lanes, ir.VectorType(number, LANES))


def splat(builder: Any, value: Any, number: Any) -> Any:
    """The IR of a vector that holds `value` in every lane."""
    kind = ir.VectorType(number, LANES)
    if isinstance(value, int | float):
        return ir.Constant(kind, [value] * LANES)
    undefined, first = ir.Constant(kind, ir.Undefined), ir.Constant(ir.IntType(32), 0)
    everywhere = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    return builder.shuffle_vector(builder.insert_element(undefined, value, first), undefined, everywhere)


def call(builder: Any, name: str, result: Any, *args: Any) -> Any:
    """The IR of a call to the LLVM intrinsic llvm.<name> for the type of the arguments."""
    kind = args[-1].type
    bits = 32 if kind.element == ir.FloatType() else 64
    function = ir.FunctionType(result, [a.type for a in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, function, f"llvm.{name}.v{LANES}f{bits}"), args)


def element(context: Any, builder: Any, array_type: Any, array: Any, offset: Any) -> Any:
    """The IR of a pointer to a number of an array, counted through the flat array."""
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [offset])


def _number(lanes: Any) -> Any:
    return ir.FloatType() if lanes.number is types.float32 else ir.DoubleType()


def _size(array: Any) -> int:
    return int(array.dtype.bitwidth) // 8


@intrinsic
def small_code(typingctx: Any) -> Any:
    """Ask LLVM not to unroll or copy the function around it: its loops are vectors already, and compile time counts."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.function.attributes.add("optsize")
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def load(typingctx: Any, array: Any, offset: Any) -> Any:
    """The LANES numbers from position `offset` of the flat array on."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = element(context, builder, array, *args)
        kind = ir.VectorType(place.type.pointee, LANES)
        return builder.load(builder.bitcast(place, kind.as_pointer()), align=_size(array))

    return Lanes(array.dtype)(array, types.intp), codegen


@intrinsic
def store(typingctx: Any, array: Any, offset: Any, value: Any) -> Any:
    """Write LANES numbers from position `offset` of the flat array on."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = element(context, builder, array, *args[:2])
        builder.store(args[2], builder.bitcast(place, args[2].type.as_pointer()), align=_size(array))
        return context.get_dummy_value()

    return types.void(array, types.intp, value), codegen


@intrinsic
def get(typingctx: Any, array: Any, offset: Any) -> Any:
    """The number at position `offset` of the flat array."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(element(context, builder, array, *args))

    return array.dtype(array, types.intp), codegen


@intrinsic
def put(typingctx: Any, array: Any, offset: Any, value: Any) -> Any:
    """Write one number at position `offset` of the flat array. (An indexed write costs its bounds arithmetic.)"""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[2], element(context, builder, array, *args[:2]))
        return context.get_dummy_value()

    return types.void(array, types.intp, array.dtype), codegen


@intrinsic
def transpose(typingctx: Any, X: Any, rows: Any, first: Any, start: Any, out: Any, offset: Any) -> Any:
    """Columns start to start + LANES of the LANES rows rows[first], ... of X (d, n), as the columns of out at `offset`.

    Four rounds of perfect shuffles: as many instructions as numbers / 4, instead of two for each number.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        index = args[2].type
        n = builder.extract_value(context.make_array(X)(context, builder, args[0]).shape, 1)
        vectors = []
        for lane in range(LANES):
            row = builder.load(element(context, builder, rows, args[1], builder.add(args[2], ir.Constant(index, lane))))
            place = element(context, builder, X, args[0], builder.add(builder.mul(row, n), args[3]))
            kind = ir.VectorType(place.type.pointee, LANES)
            vectors.append(builder.load(builder.bitcast(place, kind.as_pointer()), align=_size(X)))
        half = LANES // 2
        halves = [
            ir.Constant(
                ir.VectorType(ir.IntType(32), LANES), [i // 2 + (LANES if i % 2 else 0) + k for i in range(LANES)]
            )
            for k in (0, half)
        ]
        for _ in range(LANES.bit_length() - 1):
            vectors = [
                builder.shuffle_vector(vectors[i], vectors[i + half], mask) for i in range(half) for mask in halves
            ]
        for lane, vector in enumerate(vectors):
            place = element(context, builder, out, args[4], builder.add(args[5], ir.Constant(index, lane * LANES)))
            builder.store(vector, builder.bitcast(place, kind.as_pointer()), align=_size(X))
        return context.get_dummy_value()

    return types.void(X, rows, types.intp, types.intp, out, types.intp), codegen


@intrinsic
def spread(typingctx: Any, value: Any) -> Any:
    """`value` in every lane."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return splat(builder, args[0], args[0].type)

    return Lanes(value)(value), codegen


@intrinsic
def constant(typingctx: Any, array: Any, value: Any) -> Any:
    """`value` (float64) in every lane, in the dtype of the array."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = context.get_value_type(signature.args[0].dtype)
        number = args[1] if kind == ir.DoubleType() else builder.fptrunc(args[1], kind)
        return splat(builder, number, kind)

    return Lanes(array.dtype)(array, types.float64), codegen


@intrinsic
def distance(typingctx: Any, gi: Any, gj: Any, Gij: Any) -> Any:
    """D_ij = max(g_i + g_j - 2 G_ij, 0)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        flags, number = ("contract",), _number(gi)
        product = builder.fmul(splat(builder, 2.0, number), args[2], flags=flags)
        D = builder.fsub(builder.fadd(*args[:2], flags=flags), product, flags=flags)
        zero = splat(builder, 0.0, number)
        return builder.select(builder.fcmp_ordered(">", D, zero), D, zero)

    return gi(gi, gj, Gij), codegen


@intrinsic
def total(typingctx: Any, value: Any) -> Any:
    """The sum over the lanes, in their order."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        number = _number(value)
        sum_ = ir.Constant(number, 0.0)
        for lane in range(LANES):
            sum_ = builder.fadd(sum_, builder.extract_element(args[0], ir.Constant(ir.IntType(32), lane)))
        return sum_

    return value.number(value), codegen


@intrinsic
def widen(typingctx: Any, value: Any) -> Any:
    """The same numbers in float64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if value.number is types.float64:
            return args[0]
        return builder.fpext(args[0], ir.VectorType(ir.DoubleType(), LANES))

    return Lanes(types.float64)(value), codegen


def _select(predicate: str) -> Callable[..., Any]:
    """An intrinsic: `inside` in the lanes whose number is `predicate` to `lane`, `outside` in the others."""

    def typed(typingctx: Any, lane: Any, inside: Any, outside: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            index = args[0].type
            numbers = ir.Constant(ir.VectorType(index, LANES), list(range(LANES)))
            chosen = builder.icmp_signed(predicate, numbers, splat(builder, args[0], index))
            return builder.select(chosen, args[1], args[2])

        return inside(types.intp, inside, outside), codegen

    return typed


@intrinsic
def in_lane(typingctx: Any, lane: Any, inside: Any, outside: Any) -> Any:
    """`inside` in one lane (none, where there is no lane of that number), `outside` in the others."""
    return _select("==")(typingctx, lane, inside, outside)


@intrinsic
def below_lane(typingctx: Any, lane: Any, inside: Any, outside: Any) -> Any:
    """`inside` in the lanes below `lane`, `outside` in the others."""
    return _select("<")(typingctx, lane, inside, outside)


@intrinsic
def where_positive(typingctx: Any, condition: Any, value: Any) -> Any:
    """`value` in the lanes where condition > 0, else 0."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        zero = splat(builder, 0.0, _number(condition))
        return builder.select(builder.fcmp_ordered(">", args[0], zero), args[1], zero)

    return value(condition, value), codegen


def _by_comparison(predicate: str) -> Callable[..., Any]:
    def typed(typingctx: Any, a: Any, b: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.select(builder.fcmp_ordered(predicate, *args), *args)

        return a(a, b), codegen

    return typed


@intrinsic
def larger(typingctx: Any, a: Any, b: Any) -> Any:
    """a where a > b, else b."""
    return _by_comparison(">")(typingctx, a, b)


@intrinsic
def smaller(typingctx: Any, a: Any, b: Any) -> Any:
    """a where a < b, else b."""
    return _by_comparison("<")(typingctx, a, b)


def _arithmetic(function: Any, instruction: str) -> None:
    """Let compiled code apply a Python operator to two vectors. (An overload would compile a function each time.)"""

    @infer_global(function)
    class Typing(AbstractTemplate):  # type: ignore[misc]
        def generic(self, args: Any, kws: Any) -> Any:
            if len(args) == 2 and isinstance(args[0], Lanes) and args[0] == args[1]:
                return signature(args[0], *args)
            return None

    @lower_builtin(function, Lanes, Lanes)
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return getattr(builder, instruction)(*args, flags=("contract",))  # a * b + c may become one instruction


_arithmetic(operator.add, "fadd")
_arithmetic(operator.sub, "fsub")
_arithmetic(operator.mul, "fmul")


_FLOAT32 = (32, 23, 127, -87.0, 1.4426950408889634, 0.693359375, -2.12194440e-4, 7)
_FLOAT64 = (64, 52, 1023, -708.0, 1.4426950408889634, 6.93147180369123816490e-01, 1.90821492927058770002e-10, 13)


@intrinsic
def exp_nonpositive(typingctx: Any, x: Any) -> Any:
    """exp(x) for x <= 0, lane by lane: x = m ln 2 + r with |r| <= ln(2) / 2, exp(x) = 2^m p(r).

    ln 2 is split in two so that r is exact; p is the Taylor polynomial of degree 7 (float32) or 13 (float64), whose
    truncation error is below half a unit in the last place; 2^m is built from its bits. Below -87 (float32) or -708
    (float64) the result is 0.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        number = _number(x)
        bits, mantissa, bias, lowest, log2e, high, low, degree = _FLOAT32 if x.number is types.float32 else _FLOAT64
        integers, kind = ir.VectorType(ir.IntType(bits), LANES), args[0].type

        def constant(value: float) -> Any:
            return splat(builder, value, number)

        def fused(a: Any, b: Any, c: Any) -> Any:
            return call(builder, "fmuladd", kind, a, b, c)

        y = builder.select(builder.fcmp_ordered(">", args[0], constant(lowest)), args[0], constant(lowest))
        m = call(builder, "floor", kind, fused(y, constant(log2e), constant(0.5)))
        r = fused(m, constant(-low), fused(m, constant(-high), y))
        p = constant(1 / factorial(degree))
        for power in range(degree - 1, -1, -1):
            p = fused(r, p, constant(1 / factorial(power)))
        exponent = builder.add(builder.fptosi(m, integers), ir.Constant(integers, [bias] * LANES))
        scale = builder.bitcast(builder.shl(exponent, ir.Constant(integers, [mantissa] * LANES)), kind)
        return builder.select(
            builder.fcmp_ordered(">=", args[0], constant(lowest)), builder.fmul(p, scale), constant(0.0)
        )

    return x(x), codegen
