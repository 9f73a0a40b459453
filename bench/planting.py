"""A mutant, and how its source takes the place of the right one."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType

from dufs_core.kernels.native import Kernel


@dataclass
class Mutant:
    """One fault and what became of it."""

    target: str  # module
    function: str
    fault: str
    engines: tuple[str, ...]
    line: int = 0
    killed_by: str = ""
    message: str = ""
    seconds: float = 0.0

    @property
    def key(self) -> str:
        return f"{self.target}.{self.function}: {self.fault}"


@cache
def source_of(module: str) -> str:
    return Path(str(import_module(module).__file__)).read_text(encoding="utf-8")


def install(module: str, source: str) -> None:
    """Give the loaded module the functions of another source, so that everyone who calls them meets the fault."""
    loaded = import_module(module)
    replacement = ModuleType(module)
    replacement.__dict__["__file__"] = loaded.__file__
    exec(compile(source, f"<mutant of {module}>", "exec"), replacement.__dict__)
    for name, value in replacement.__dict__.items():
        if isinstance(value, Kernel):
            function = _in_module(value.py_func, loaded)
            for user in list(sys.modules.values()):  # each has a Kernel of its own for the same function
                for thing in vars(user).values() if getattr(user, "__name__", "").startswith("dufs_core") else ():
                    if isinstance(thing, Kernel) and (thing._module, thing._name) == (value._module, name):
                        thing._function = function
        if getattr(value, "__module__", None) != module:
            continue
        if isinstance(value, type):
            for method, body in vars(value).items():
                if isinstance(body, FunctionType) and body.__code__.co_filename.startswith("<mutant"):
                    setattr(getattr(loaded, name), method, _in_module(body, loaded))
        elif isinstance(value, FunctionType):
            old, rebound = loaded.__dict__.get(name), _in_module(value, loaded)
            loaded.__dict__[name] = rebound
            for other in list(sys.modules.values()):  # also where it was imported by name
                if getattr(other, "__name__", "").startswith("dufs_core") and other is not loaded:
                    for alias, thing in list(vars(other).items()):
                        if thing is old and old is not None:
                            setattr(other, alias, rebound)


def _in_module(function: FunctionType, module: ModuleType) -> FunctionType:
    """The function with the names of another module."""
    return FunctionType(
        function.__code__, module.__dict__, function.__name__, function.__defaults__, function.__closure__
    )
