"""The inner loop of every matrix product: a tile of C in registers, updated by one row of each factor at a time.

    C[i, j] (+)= sum_k L[k, i] R[k, j]        i < ROWS, j < LANES or 2 LANES

Matrices of an operation are held in panels, (number of panels, rows, LANES): panel p holds columns p * LANES to
(p + 1) * LANES. Row k of a panel is one run of LANES numbers, so the product needs no packing: it loads a run of one or
two panels of R, broadcasts ROWS numbers of a run of L, and multiplies and adds. The loop is written in LLVM's vector
types (Numba's own vectoriser does not keep a tile in registers). Two panels at once: every number of L that is loaded
is used twice, for loads are what limits a tile of one panel (float32 on one core of Zen 5: 110 and 134 G multiply-adds
a second, of 138 that the core can).
"""

from __future__ import annotations

from llvmlite import binding, ir
from numba.core import cgutils

from dufs_core.kernels.arrays import LANES
from dufs_core.kernels.vector import Code, operation

_REGISTERS = bool(binding.get_host_cpu_features().get("avx512f"))  # 32 of 64 bytes; else 16 of 32 bytes
ROWS = 8 if _REGISTERS else 4  # rows of a tile: as many as registers hold


def _loop(code: Code, width: int, left, right, r_stride, out, c_stride, length, add) -> None:
    """The product for `width` panels of R and C."""
    builder, number, index = code.builder, out.type.pointee, length.type
    vector = ir.VectorType(number, LANES)
    tile = [(i, j) for i in range(ROWS) for j in range(width)]

    def place(i: int, j: int):
        row = builder.gep(out, [ir.Constant(index, i * LANES)])
        return builder.gep(row, [c_stride]) if j else row

    start = [builder.select(add, code.load(place(i, j)), code.splat(0.0, number)) for i, j in tile]
    entry, loop, done = builder.block, builder.append_basic_block("rows"), builder.append_basic_block("done")
    nothing, one, run = ir.Constant(index, 0), ir.Constant(index, 1), ir.Constant(index, LANES)
    builder.cbranch(builder.icmp_signed(">", length, nothing), loop, done)

    builder.position_at_end(loop)
    k, a, b = builder.phi(index), builder.phi(left.type), builder.phi(right.type)
    sums, updated = [builder.phi(vector) for _ in tile], []
    columns = [code.load(builder.gep(b, [r_stride]) if j else b) for j in range(width)]
    for (i, j), before in zip(tile, sums, strict=True):
        if j == 0:
            value = code.splat(builder.load(builder.gep(a, [ir.Constant(index, i)])), number)
        updated.append(code.call("fmuladd", value, columns[j], before))
    following = builder.add(k, one)
    for phi, before, after in (
        (k, nothing, following),
        (a, left, builder.gep(a, [run])),
        (b, right, builder.gep(b, [run])),
        *zip(sums, start, updated, strict=True),
    ):
        phi.add_incoming(before, entry)
        phi.add_incoming(after, loop)
    builder.cbranch(builder.icmp_signed("<", following, length), loop, done)

    builder.position_at_end(done)
    results = [builder.phi(vector) for _ in tile]
    for result, before, after in zip(results, start, updated, strict=True):
        result.add_incoming(before, entry)
        result.add_incoming(after, loop)
    for result, (i, j) in zip(results, tile, strict=True):
        code.store(result, place(i, j))


def _function(code: Code, number, index):
    """One function of the module for all its tiles of a dtype: compiled once."""
    place, module = number.as_pointer(), code.builder.module
    kind = ir.FunctionType(ir.VoidType(), [place, place, index, place, index, index, ir.IntType(1), ir.IntType(1)])
    function = cgutils.get_or_insert_function(module, kind, f"dufs_tile_{number}")
    if function.is_declaration:
        function.linkage = "internal"
        function.attributes.add("noinline")
        inside = Code(code.context, ir.IRBuilder(function.append_basic_block()), (), ())
        left, right, r_stride, out, c_stride, length, two, add = function.args
        with inside.builder.if_else(two) as (both, one):
            with both:
                if _REGISTERS and number == ir.FloatType():
                    _loop(inside, 2, left, right, r_stride, out, c_stride, length, add)
                else:
                    second = inside.builder.gep(right, [r_stride]), inside.builder.gep(out, [c_stride])
                    for right_, out_ in ((right, out), second):
                        _loop(inside, 1, left, right_, r_stride, out_, c_stride, length, add)
            with one:
                _loop(inside, 1, left, right, r_stride, out, c_stride, length, add)
        inside.builder.ret_void()
    return function


@operation()
def tile(code, L, l0, R, r0, C, c0, length, two, add):
    """C = (with `add`: +=) sum over `length` rows of L' R, for a panel of R and C or `two`.

    l0, r0, c0: where in the flat arrays the tile's first numbers are.
    """
    left, right, out = code.pointer(0), code.pointer(2), code.pointer(4)
    run = ir.Constant(length.type, LANES)

    def stride(i: int):
        array = code.context.make_array(code.types[i])(code.context, code.builder, code.args[i])
        return code.builder.mul(code.builder.extract_value(array.shape, 1), run)

    arguments = left, right, stride(2), out, stride(4), length, two, add
    code.builder.call(_function(code, out.type.pointee, length.type), arguments)
