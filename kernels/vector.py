"""LANES numbers at once, as one value in compiled code.

Numba compiles loops over arrays and hopes that LLVM vectorises them: where it does, it takes seconds of compile time,
and sums over lanes go through memory. `Lanes` is LLVM's own vector type with the few operations that the kernels
need, so each is one instruction to compile, and LLVM fits it to the registers that the processor has.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from inspect import Parameter, signature
from math import factorial
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import AbstractTemplate, Signature, infer_global
from numba.core.typing.templates import signature as call_signature
from numba.extending import intrinsic, lower_builtin, models, register_model

from dufs_core.kernels.arrays import LANES

CONTRACT = ("contract",)  # a * b + c may become one instruction


class Lanes(types.Type):  # type: ignore[misc]
    """LANES numbers of a floating-point type."""

    def __init__(self, number) -> None:
        self.number = number
        super().__init__(name=f"Lanes({number})")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager, lanes) -> None:
        number = manager.lookup(lanes.number).get_value_type()
        super().__init__(manager, lanes, ir.VectorType(number, LANES))


class Code:
    """What writes the instructions of an operation, with the arguments of this call of it."""

    def __init__(self, context, builder, types_, args) -> None:
        self.context, self.builder, self.types, self.args = context, builder, types_, args

    def pointer(self, i: int):
        """Where the number is that arguments i and i + 1 say: an array, and a position in the flat array."""
        array = self.context.make_array(self.types[i])(self.context, self.builder, self.args[i])
        return self.builder.gep(array.data, [self.args[i + 1]])

    def splat(self, value, number):
        """A vector that holds `value` in every lane."""
        kind = ir.VectorType(number, LANES)
        if isinstance(value, int | float):
            return ir.Constant(kind, [value] * LANES)
        undefined, first = ir.Constant(kind, ir.Undefined), ir.Constant(ir.IntType(32), 0)
        everywhere = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        return self.builder.shuffle_vector(self.builder.insert_element(undefined, value, first), undefined, everywhere)

    def load(self, place):
        """The vector from a pointer to its first number on."""
        kind = ir.VectorType(place.type.pointee, LANES)
        return self.builder.load(self.builder.bitcast(place, kind.as_pointer()), align=_size(place.type.pointee))

    def load_below(self, count, place):
        """The first `count` numbers from a pointer on, then zeros: what lies beyond is not read."""
        zeros = self.splat(0.0, place.type.pointee)
        numbers = ir.Constant(ir.VectorType(count.type, LANES), list(range(LANES)))
        mask = self.builder.icmp_signed("<", numbers, self.splat(count, count.type))
        place = self.builder.bitcast(place, zeros.type.as_pointer())
        kind = ir.FunctionType(zeros.type, [place.type, ir.IntType(32), mask.type, zeros.type])
        name = f"llvm.masked.load.v{LANES}f{8 * _size(zeros.type.element)}.p0"
        function = cgutils.get_or_insert_function(self.builder.module, kind, name)
        return self.builder.call(function, [place, ir.Constant(ir.IntType(32), _size(zeros.type.element)), mask, zeros])

    def store(self, vector, place) -> None:
        """Write a vector from a pointer to its first number on."""
        place_of_vector = self.builder.bitcast(place, vector.type.as_pointer())
        self.builder.store(vector, place_of_vector, align=_size(place.type.pointee))

    def call(self, name: str, *args):
        """LLVM's own function llvm.<name> for these numbers or vectors."""
        kind = args[-1].type
        function = ir.FunctionType(kind, [a.type for a in args])
        shape = f"v{LANES}f{8 * _size(kind.element)}" if isinstance(kind, ir.VectorType) else f"f{8 * _size(kind)}"
        declared = cgutils.get_or_insert_function(self.builder.module, function, f"llvm.{name}.{shape}")
        return self.builder.call(declared, args)


def _size(number) -> int:
    return 4 if number == ir.FloatType() else 8


def operation(typed: Callable[..., Any] = lambda *_: types.void) -> Callable[..., Any]:
    """Make emit(code, *values) an operation of compiled code.

    `typed` gives the type of the result from those of the arguments, of which whole numbers are positions, or a whole
    signature, where arguments are converted.
    """

    def decorate(emit: Callable[..., Any]):
        def definition(typingctx, *arguments):
            def codegen(context, builder, signature, args):
                result = emit(Code(context, builder, signature.args, args), *args)
                return context.get_dummy_value() if result is None else result

            given = [types.unliteral(argument) for argument in arguments]
            given = [types.intp if isinstance(argument, types.Integer) else argument for argument in given]
            found = typed(*given)
            return found if isinstance(found, Signature) else found(*given), codegen

        definition.__name__, definition.__doc__ = emit.__name__, emit.__doc__
        parameters = list(signature(emit).parameters.values())[1:]
        context = Parameter("typingctx", Parameter.POSITIONAL_OR_KEYWORD)
        definition.__signature__ = signature(emit).replace(parameters=[context, *parameters])  # type: ignore[attr-defined]
        return intrinsic(definition)

    return decorate


def _first(value, *_):
    """The result is of the type of the first argument."""
    return value


def _vector(array, *_):
    """The result is LANES numbers of an array."""
    return Lanes(array.dtype)


@operation()
def small_code(code):
    """Ask LLVM not to unroll or copy the function around it: its loops are vectors already, and compile time counts."""
    code.builder.function.attributes.add("optsize")
    code.builder.function.attributes.add("noinline")


@operation()
def in_line(code):
    """Make the function around it part of what calls it."""
    code.builder.function.attributes.add("alwaysinline")


@operation(_vector)
def load(code, array, offset):
    """The LANES numbers from position `offset` of the flat array on."""
    return code.load(code.pointer(0))


@operation(_vector)
def load_below(code, array, offset, count):
    """The first `count` numbers from position `offset` of the flat array on, then zeros."""
    return code.load_below(count, code.pointer(0))


@operation()
def store(code, array, offset, value):
    """Write LANES numbers from position `offset` of the flat array on."""
    code.store(value, code.pointer(0))


@operation(lambda array, offset: array.dtype)
def get(code, array, offset):
    """The number at position `offset` of the flat array."""
    return code.builder.load(code.pointer(0))


@operation(lambda array, offset, value: types.void(array, types.intp, array.dtype))
def put(code, array, offset, value):
    """Write one number at position `offset` of the flat array. (An indexed write costs its bounds arithmetic.)"""
    code.builder.store(value, code.pointer(0))


@operation()
def transpose(code, X, rows, first, start, out, offset):
    """Columns start to start + LANES of the LANES rows rows[first], ... of X (d, n), as the columns of out at `offset`.

    Zeros beyond n. Four rounds of perfect shuffles: as many instructions as numbers / 4, instead of two a number.
    """
    builder, index = code.builder, first.type
    data = code.context.make_array(code.types[0])(code.context, builder, X)
    n, listed, vectors = builder.extract_value(data.shape, 1), code.pointer(1), []
    for lane in range(LANES):
        row = builder.load(builder.gep(listed, [ir.Constant(index, lane)]))
        place = builder.gep(data.data, [builder.add(builder.mul(row, n), start)])
        vectors.append(code.load_below(builder.sub(n, start), place))
    _store_transposed(code, vectors, code.pointer(4))


@operation()
def transpose_tile(code, array, offset, out, to):
    """The LANES rows of LANES numbers from `offset` of the flat array on, as columns, from `to` of the other on."""
    rows = [code.builder.gep(code.pointer(0), [ir.Constant(ir.IntType(64), lane * LANES)]) for lane in range(LANES)]
    _store_transposed(code, [code.load(row) for row in rows], code.pointer(2))


def _store_transposed(code: Code, vectors, target) -> None:
    """LANES vectors as columns, from a pointer on."""
    half, kind = LANES // 2, ir.VectorType(ir.IntType(32), LANES)
    masks = [ir.Constant(kind, [i // 2 + (LANES if i % 2 else 0) + k for i in range(LANES)]) for k in (0, half)]
    for _ in range(LANES.bit_length() - 1):
        vectors = [
            code.builder.shuffle_vector(vectors[i], vectors[i + half], mask) for i in range(half) for mask in masks
        ]
    for lane, vector in enumerate(vectors):
        code.store(vector, code.builder.gep(target, [ir.Constant(ir.IntType(64), lane * LANES)]))


@operation(Lanes)
def spread(code, value):
    """`value` in every lane."""
    return code.splat(value, value.type)


@operation(lambda array, value: Lanes(array.dtype)(array, types.float64))
def constant(code, array, value):
    """`value` (float64) in every lane, in the dtype of the array."""
    number = code.context.get_value_type(code.types[0].dtype)
    return code.splat(value if number == value.type else code.builder.fptrunc(value, number), number)


@operation(_first)
def distance(code, gi, gj, Gij):
    """D_ij = max(g_i + g_j - 2 G_ij, 0)."""
    builder, number = code.builder, gi.type.element
    product = builder.fmul(code.splat(2.0, number), Gij, flags=CONTRACT)
    D, zero = builder.fsub(builder.fadd(gi, gj, flags=CONTRACT), product, flags=CONTRACT), code.splat(0.0, number)
    return builder.select(builder.fcmp_ordered(">", D, zero), D, zero)


@operation(lambda value: value.number)
def total(code, value):
    """The sum over the lanes, in their order."""
    result = ir.Constant(value.type.element, 0.0)
    for lane in range(LANES):
        result = code.builder.fadd(result, code.builder.extract_element(value, ir.Constant(ir.IntType(32), lane)))
    return result


@operation(lambda value: Lanes(types.float64))
def widen(code, value):
    """The same numbers in float64."""
    wide = ir.VectorType(ir.DoubleType(), LANES)
    return value if value.type == wide else code.builder.fpext(value, wide)


def _select(code: Code, predicate: str, lane, inside, outside):
    numbers = ir.Constant(ir.VectorType(lane.type, LANES), list(range(LANES)))
    chosen = code.builder.icmp_signed(predicate, numbers, code.splat(lane, lane.type))
    return code.builder.select(chosen, inside, outside)


@operation(lambda lane, inside, outside: inside)
def in_lane(code, lane, inside, outside):
    """`inside` in one lane (none, where there is no lane of that number), `outside` in the others."""
    return _select(code, "==", lane, inside, outside)


@operation(lambda lane, inside, outside: inside)
def below_lane(code, lane, inside, outside):
    """`inside` in the lanes below `lane`, `outside` in the others."""
    return _select(code, "<", lane, inside, outside)


@operation(_first)
def where_positive(code, condition, value):
    """`value` in the lanes where condition > 0, else 0."""
    zero = code.splat(0.0, condition.type.element)
    return code.builder.select(code.builder.fcmp_ordered(">", condition, zero), value, zero)


@operation(_first)
def larger(code, a, b):
    """a where a > b, else b."""
    return code.builder.select(code.builder.fcmp_ordered(">", a, b), a, b)


@operation(_first)
def smaller(code, a, b):
    """a where a < b, else b."""
    return code.builder.select(code.builder.fcmp_ordered("<", a, b), a, b)


def _arithmetic(function, instruction: str) -> None:
    """Let compiled code apply a Python operator to two vectors. (An overload would compile a function each time.)"""

    @infer_global(function)
    class Typing(AbstractTemplate):  # type: ignore[misc]
        def generic(self, args, kws):
            if len(args) == 2 and isinstance(args[0], Lanes) and args[0] == args[1]:
                return call_signature(args[0], *args)
            return None

    @lower_builtin(function, Lanes, Lanes)
    def codegen(context, builder, sig, args):
        return getattr(builder, instruction)(*args, flags=CONTRACT)


_arithmetic(operator.add, "fadd")
_arithmetic(operator.sub, "fsub")
_arithmetic(operator.mul, "fmul")


_FLOAT32 = (32, 23, 127, -87.0, 1.4426950408889634, 0.693359375, -2.12194440e-4, 7)
_FLOAT64 = (64, 52, 1023, -708.0, 1.4426950408889634, 6.93147180369123816490e-01, 1.90821492927058770002e-10, 13)


def emit_exp(code, x):
    """exp(x) for x <= 0, of one number or lane by lane: x = m ln 2 + r with |r| <= ln(2) / 2, exp(x) = 2^m p(r).

    ln 2 is split in two so that r is exact; p is the Taylor polynomial of degree 7 (float32) or 13 (float64), whose
    truncation error is below half a unit in the last place; 2^m is built from its bits. Below -87 (float32) or -708
    (float64) the result is 0.
    """
    builder, lanes = code.builder, isinstance(x.type, ir.VectorType)
    number = x.type.element if lanes else x.type
    bits, mantissa, bias, lowest, log2e, high, low, degree = _FLOAT32 if _size(number) == 4 else _FLOAT64
    integers = ir.VectorType(ir.IntType(bits), LANES) if lanes else ir.IntType(bits)

    def constant(value, kind=x.type):
        return ir.Constant(kind, [value] * LANES if lanes else value)

    def fused(a, b, c):
        return code.call("fmuladd", a, b, c)

    y = builder.select(builder.fcmp_ordered(">", x, constant(lowest)), x, constant(lowest))
    m = code.call("floor", fused(y, constant(log2e), constant(0.5)))
    r = fused(m, constant(-low), fused(m, constant(-high), y))
    p = constant(1 / factorial(degree))
    for power in range(degree - 1, -1, -1):
        p = fused(r, p, constant(1 / factorial(power)))
    exponent = builder.add(builder.fptosi(m, integers), constant(bias, integers))
    scale = builder.bitcast(builder.shl(exponent, constant(mantissa, integers)), x.type)
    return builder.select(builder.fcmp_ordered(">=", x, constant(lowest)), builder.fmul(p, scale), constant(0.0))


@operation(_first)
def exp_nonpositive(code, x):
    """exp(x) for x <= 0."""
    return emit_exp(code, x)


affinity_of = exp_nonpositive  # the kernel: K_ij from x = -D_ij / b


@operation(_first)
def slope_of(code, K):
    """dK/dx of K = exp(x) = `affinity_of` (x): K itself."""
    return K
