"""How kernels are compiled by Numba: lazily, once for each signature, to machine code that any process can call.

Numba's own way, `njit`, optimises and translates every function that another one calls by itself, too, and passes a
named tuple as all its numbers. Here functions are parts of one whole, which LLVM optimises once, and a named tuple is
passed as one pointer, to where its numbers are in the table of arguments (`dufs_core.kernels.native`).
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import isfunction
from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.core import typed_passes, untyped_passes
from numba.core.codegen import CPUCodeLibrary
from numba.core.compiler import CompilerBase, Flags, compile_extra
from numba.core.compiler_lock import global_compiler_lock
from numba.core.compiler_machinery import PassManager
from numba.core.registry import cpu_target
from numba.core.typing.templates import AbstractTemplate, AttributeTemplate, infer_getattr, infer_global, signature
from numba.extending import lower_builtin, lower_getattr_generic, models, register_model

from dufs_core.kernels import arrays
from dufs_core.kernels.native import Kernel, formats
from dufs_core.objective import rules

_NUMBER = ir.IntType(64)  # an entry of the table


class Record(types.Type):  # type: ignore[misc]
    """A named tuple of `dufs_core.kernels.arrays`, as a pointer to its first number in the table of arguments."""

    def __init__(self, given: Any) -> None:
        name, parts = given
        fields = getattr(arrays, name)._fields
        sizes = [len("".join(formats(part))) for part in parts]
        self.places = {field: sum(sizes[:i]) for i, field in enumerate(fields)}
        self.fields = {field: _type_of(part) for field, part in zip(fields, parts, strict=True)}
        super().__init__(str(given))


@register_model(Record)
class _RecordModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager, record) -> None:
        super().__init__(manager, record, _NUMBER.as_pointer())


@infer_getattr
class _Fields(AttributeTemplate):  # type: ignore[misc]
    key = Record

    def generic_resolve(self, record, name):
        return record.fields.get(name)


@lower_getattr_generic(Record)
def _field(context, builder, record, value, name):
    kind = record.fields[name]
    place = builder.gep(value, [ir.Constant(_NUMBER, record.places[name])])
    return place if isinstance(kind, Record) else _loaded(builder, place, context.get_value_type(kind))


def _loaded(builder, place, kind):
    """The value of this kind in the table, which no kernel writes to."""
    if kind == ir.IntType(1):
        return builder.trunc(_loaded(builder, place, _NUMBER), kind)
    value = builder.load(builder.bitcast(place, kind.as_pointer()))
    value.set_metadata("invariant.load", builder.module.add_metadata([]))
    return value


def _type_of(given: Any) -> types.Type:
    """Numba's type for a part of a signature (`native.signature_of`)."""
    if isinstance(given, str):
        return getattr(types, given)
    if len(given) == 3:
        layout, dtype, dimensions = given
        return types.Array(getattr(types, dtype), dimensions, layout)
    return Record(given)


class _Part(CPUCodeLibrary):  # type: ignore[misc]
    """The code of one function, which is linked and optimised with the whole alone."""

    def _optimize_functions(self, ll_module) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def finalize(self) -> None:
        self._finalized = True

    def parts(self) -> list[Any]:
        """This library and all whose functions its own one calls."""
        return list(dict.fromkeys((self, *self._linking_libraries)))


class _Compiler(CompilerBase):  # type: ignore[misc]
    """Numba's passes but for those that look for what no kernel has: closures, array expressions, literal types."""

    def define_pipelines(self):
        manager = PassManager("kernel")
        for one in (
            untyped_passes.TranslateByteCode, untyped_passes.FixupArgs, untyped_passes.IRProcessing,
            untyped_passes.GenericRewrites, typed_passes.NopythonTypeInference,
            typed_passes.PreLowerStripPhis, typed_passes.IRLegalization, typed_passes.AnnotateTypes,
            typed_passes.NativeLowering, typed_passes.NoPythonBackend,
        ):  # fmt: skip
            manager.add_pass(one, one.__name__)
        manager.finalize()
        return [manager]


def _compiled(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Numba's result for a function and the types of its arguments: its signature, and its code as a `_Part`."""
    context, flags = cpu_target.target_context, Flags()
    flags.error_model = "numpy"
    flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True  # nobody calls it but the whole
    library = _Part(context.codegen(), function.__name__)
    return compile_extra(cpu_target.typing_context, context, function, args, None, flags, {}, library, _Compiler)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Without Python's search for cycles, which takes a fifth of the time: almost all that Numba makes, it keeps."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@global_compiler_lock
@_no_collection()
def machine_code(function: Callable[..., None], given: Any) -> bytes:
    """The function, compiled for a signature, behind an entry that takes its arguments from a table.

    A line of JSON says the entry's name and the functions of the C library that are called; the object file follows.
    """
    context = cpu_target.target_context
    context.refresh()
    args = tuple(map(_type_of, given[1]))
    compiled = _compiled(function, args)
    name = compiled.fndesc.llvm_func_name
    kind = context.call_conv.get_function_type(types.none, args)
    whole = _Part(context.codegen(), "whole")
    whole.add_ir_module(_entry(name, kind, args, given[1]).module)
    module = whole._final_module
    for part in compiled.library.parts():
        module.link_in(part._get_module_for_linking(), preserve=True)
    whole._optimize_final_module()
    calls = [f.name for f in module.functions if f.is_declaration and not f.name.startswith("llvm.")]
    data: bytes = context.codegen()._tm.emit_object(module)
    return json.dumps({"entry": f"entry.{name}", "calls": calls}).encode() + b"\n" + data


def _entry(name: str, kind: ir.FunctionType, args: tuple[Any, ...], given: Any) -> ir.Function:
    """int32 entry(int64 *table): the function with the arguments in the table; its status, 0."""
    module = ir.Module()
    module.triple = binding.get_process_triple()
    target = ir.Function(module, kind, name)
    entry = ir.Function(module, ir.FunctionType(ir.IntType(32), [_NUMBER.as_pointer()]), f"entry.{name}")
    builder = ir.IRBuilder(entry.append_basic_block())
    values = [builder.alloca(kind.args[0].pointee), builder.alloca(kind.args[1].pointee)]  # a result, an exception
    at = 0
    for part, arg in zip(given, args, strict=True):
        size = len("".join(formats(part)))
        for i in range(1 if isinstance(arg, Record) else size):
            wanted = kind.args[len(values)]
            place = builder.gep(entry.args[0], [ir.Constant(_NUMBER, at + i)])
            values.append(place if isinstance(arg, Record) else _loaded(builder, place, wanted))
        at += size
    builder.ret(builder.call(target, values))
    return entry


def kernel(function: Callable[..., None]) -> Kernel:
    """A function that Python calls: `dufs_core.kernels.native.Kernel`."""
    return Kernel(function.__module__.rpartition(".")[2], function.__name__, function)


def inner(function: Callable[..., Any]):
    """A function for compiled code alone, compiled once for each tuple of types."""
    found: dict[Any, Any] = {}

    def compiled(args: tuple[Any, ...]) -> Any:
        args = tuple(map(types.unliteral, args))
        if args not in found:
            found[args] = _compiled(function, args)
        return found[args]

    class Typing(AbstractTemplate):  # type: ignore[misc]
        key = function

        def generic(self, args, kws):
            return signature(compiled(args).signature.return_type, *map(types.unliteral, args))

    infer_global(function, types.Function(Typing))

    @lower_builtin(function, types.VarArg(types.Any))
    def codegen(context, builder, sig, args):
        one = compiled(sig.args)
        for part in one.library.parts():
            context.active_code_library.add_linking_library(part)
        return context.call_internal(builder, one.fndesc, sig, args)

    return function


for _rule in filter(isfunction, vars(rules).values()):  # kernels call them as Python does
    inner(_rule)
