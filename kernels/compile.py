"""How kernels are compiled: lazily, without the GIL, cached where a cache can be written."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from inspect import isfunction
from pathlib import Path
from typing import Any

from numba import config, njit, types
from numba.core.compiler import Flags
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import lower_builtin, register_jitable

from dufs_core.objective import rules

for _rule in filter(isfunction, vars(rules).values()):  # kernels call them as Python does
    register_jitable(error_model="numpy")(_rule)


def _sources() -> str:
    """A hash of all kernel sources: Numba looks at the file of a cached function alone, not at what it calls."""
    digest = sha256()
    for path in (*sorted(Path(__file__).parent.glob("*.py")), Path(rules.__file__)):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _compiled(function: Callable[..., Any], **options):
    options |= {"nogil": True, "error_model": "numpy", "_nrt": False}  # nothing here allocates arrays
    try:
        compiled = njit(cache=True, **options)(function)
        if not config.DISABLE_JIT:
            index = compiled._cache._cache_file
            index._source_stamp = (index._source_stamp, _sources())
        return compiled
    except RuntimeError as error:
        if "cannot cache" not in str(error):
            raise
        return njit(**options)(function)


def kernel(function: Callable[..., Any]):
    """njit for code that holds no Python objects. Compiled at the first call for each dtype, never at import.

    Where neither the package's nor the user's cache directory can be written (a read-only installation without a
    home), the kernel is compiled afresh in every process instead of failing.
    """
    return _compiled(function)


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
        flags = Flags()
        flags.error_model = "numpy"
        compiled = context.compile_subroutine(builder, function, sig, flags=flags)
        return context.call_internal(builder, compiled.fndesc, sig, args)

    return function


def returning(returns: Callable[..., Any]) -> Callable[..., Any]:
    """`inner` for a function with a result."""
    return lambda function: inner(function, returns)


def inlined(function: Callable[..., Any]):
    """A function that is called at one place of compiled code: compiled as part of it."""
    return _compiled(function, inline="always")
