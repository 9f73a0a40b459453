"""How kernels are compiled by Numba: lazily, once for each signature, to machine code that any process can call."""

from __future__ import annotations

import json
from collections.abc import Callable
from inspect import isfunction
from typing import Any

from llvmlite import binding, ir
from numba import njit, types
from numba.core.compiler import Flags, compile_extra
from numba.core.registry import cpu_target
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import lower_builtin, register_jitable

from dufs_core.kernels import arrays
from dufs_core.kernels.native import Kernel
from dufs_core.objective import rules

for _rule in filter(isfunction, vars(rules).values()):  # kernels call them as Python does
    register_jitable(error_model="numpy")(_rule)


def kernel(function: Callable[..., None]) -> Kernel:
    """A function that Python calls: `dufs_core.kernels.native.Kernel`."""
    return Kernel(function.__module__.rpartition(".")[2], function.__name__, function)


def _flags() -> Flags:
    flags = Flags()
    flags.error_model = "numpy"
    flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True  # Kernel calls the code itself
    return flags


def _type_of(given: Any) -> types.Type:
    """Numba's type for a part of a signature (`native.signature_of`)."""
    if isinstance(given, str):
        return getattr(types, given)
    if len(given) == 3:
        layout, dtype, dimensions = given
        return types.Array(getattr(types, dtype), dimensions, layout)
    name, parts = given
    return types.BaseTuple.from_types(tuple(map(_type_of, parts)), getattr(arrays, name))


def machine_code(function: Callable[..., None], given: Any) -> bytes:
    """The function, compiled for a signature, and an entry that takes its arguments from a table.

    A line of JSON says the entry's name, the sizes of the two object files that follow, and the functions of the C
    library that they call.
    """
    context, typing = cpu_target.target_context, cpu_target.typing_context
    context.refresh()
    typing.refresh()
    compiled = compile_extra(typing, context, function, tuple(map(_type_of, given[1])), None, _flags(), {})
    kind = context.call_conv.get_function_type(types.none, compiled.signature.args)
    whole: bytes = compiled.library.serialize_using_object_code()[2][0]
    calls = [f.name for f in compiled.library._final_module.functions if f.is_declaration]
    entry = _entry(compiled.fndesc.llvm_func_name, kind)
    module = binding.parse_assembly(str(entry.module))
    small: bytes = context.codegen()._tm.emit_object(module)
    known = [call for call in calls if not call.startswith("llvm.")]
    about = {"entry": entry.name, "sizes": [len(whole), len(small)], "calls": known}
    return json.dumps(about).encode() + b"\n" + whole + small


def _entry(name: str, kind: ir.FunctionType) -> ir.Function:
    """int32 entry(int64 *table): the function with the arguments in the table; its status, 0."""
    module = ir.Module()
    module.triple = binding.get_process_triple()
    target = ir.Function(module, kind, name)
    number = ir.IntType(64)
    entry = ir.Function(module, ir.FunctionType(ir.IntType(32), [number.as_pointer()]), f"entry.{name}")
    builder = ir.IRBuilder(entry.append_basic_block())
    args = [builder.alloca(kind.args[0].pointee), builder.alloca(kind.args[1].pointee)]  # for a result and an exception
    for i, wanted in enumerate(kind.args[2:]):
        value = builder.load(builder.gep(entry.args[0], [ir.Constant(number, i)]))
        if isinstance(wanted, ir.PointerType):
            value = builder.inttoptr(value, wanted)
        elif isinstance(wanted, ir.DoubleType):
            value = builder.bitcast(value, wanted)
        elif wanted != number:
            value = builder.trunc(value, wanted)
        args.append(value)
    builder.ret(builder.call(target, args))
    return entry


def inner(function: Callable[..., Any], returns: Callable[..., Any] = lambda *args: types.void):
    """A function for compiled code alone, compiled once for each tuple of types, without an executable of its own.

    (njit would build one, and would compile a function anew for every literal argument.) `returns` gives the type of
    the result from those of the arguments.
    """

    class Typing(AbstractTemplate):  # type: ignore[misc]
        key = function

        def generic(self, args, kws):
            args = tuple(types.unliteral(arg) for arg in args)
            return signature(returns(*args), *args)

    infer_global(function, types.Function(Typing))

    @lower_builtin(function, types.VarArg(types.Any))
    def codegen(context, builder, sig, args):
        compiled = context.compile_subroutine(builder, function, sig, flags=_flags())
        return context.call_internal(builder, compiled.fndesc, sig, args)

    return function


def returning(returns: Callable[..., Any]) -> Callable[..., Any]:
    """`inner` for a function with a result."""
    return lambda function: inner(function, returns)


def inlined(function: Callable[..., Any]):
    """A function that is called at one place of compiled code: compiled as part of it."""
    return njit(inline="always", error_model="numpy", _nrt=False)(function)
