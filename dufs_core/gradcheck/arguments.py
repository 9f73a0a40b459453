"""What the caller gives, looked at before any difference is taken: what cannot be checked is refused with advice."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dufs_core.gradcheck.arrays import Array, array_module, is_float, largest


@dataclass(frozen=True)
class Constant:
    """An input that is not differentiated, ``[x, Constant(mask)]``: the function gets ``mask``, and whatever gradient
    the backward gives for it is not looked at.
    """

    value: Any


def listed(what: str, such: str, given: Any, count: int = -1) -> None:
    """Raise TypeError or ValueError unless `given` is a list or tuple with `count` entries (or at least one)."""
    if not isinstance(given, (list, tuple)):
        raise TypeError(f"{what} must be a list, {such}: got a {type(given).__name__}")
    if not given or count not in (len(given), -1):
        raise ValueError(
            f"{what} must be a list like {such}: got {len(given)} entries" + f" for {count}" * (count >= 0)
        )


def refuse_others(x: Any, where: str) -> None:
    """Raise TypeError for what is an array, or holds one, in a form that NumPy's functions do not take."""
    if hasattr(x, "tocsr"):
        raise TypeError(
            f"{where} is sparse: check the function of its entries instead, "
            "lambda data: f(csr_array((data, indices, indptr))), whose gradient has an entry for each of them"
        )
    if hasattr(x, "to_numpy"):
        raise TypeError(f"{where} is a {type(x).__name__} of {_library(x)}: give its numbers, .to_numpy()")
    if isinstance(x, np.ndarray) and x.dtype.kind == "O":
        raise TypeError(f"{where} is an array of Python objects: give numbers, .astype(float)")
    if hasattr(x, "__dlpack__") and not (isinstance(x, np.ndarray) or hasattr(x, "get")):
        raise TypeError(f"{where} is an array of {_library(x)}: dufs_core.gradcheck.adapters takes it to the checker")


def _library(x: Any) -> str:
    return type(x).__module__.partition(".")[0]


def refuse_call(f: Any, who: str, arguments: Sequence[Any], inputs: int, **options: Any) -> None:
    """Raise TypeError where f does not take the arguments: so many inputs, then cotangents."""
    if not callable(f):
        raise TypeError(f"the {who} must be a function, f and not f(x): got a {type(f).__name__}")
    try:
        inspect.signature(f).bind(*arguments, **options)
    except TypeError as error:
        names = ", ".join(f"input {i}" if i < inputs else f"cotangent {i - inputs}" for i in range(len(arguments)))
        why = " (a cotangent for each value, none if that is one number)" if who == "backward" else ""
        raise TypeError(f"the {who} is called with ({names}){why}: {error}") from None
    except ValueError:  # a builtin that does not tell
        pass


def refuse_values(values: Sequence[Array]) -> None:
    """Raise TypeError for what is no number."""
    if not values:
        raise TypeError("the function returns no value: is its `return` missing?")
    for k, y in enumerate(values):
        if y.dtype.kind not in "biufc" and not is_float(y):
            raise TypeError(f"value {k} of the function is {y.dtype}: it must give numbers, or arrays of them")


def refuse_project(project: Mapping[int, Callable[[Array], Array]], inputs: int) -> None:
    """Raise TypeError for what is not a dict of some of the inputs' numbers."""
    if not (isinstance(project, Mapping) and set(project) <= set(range(inputs))):
        raise TypeError(f"project must be a dict by number of the input, 0 to {inputs - 1}: got {project!r}")


def refuse_projected(project: Callable[[Array], Array], v: Array, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless v, which `project` has given, has this shape and is given again for itself."""
    if np.shape(v) != shape:
        raise ValueError(f"project gives shape {np.shape(v)} for {shape}: it must keep the shape")
    xp = array_module(v)
    if not largest(xp, project(v) - v) <= 1e-5 * largest(xp, v):
        raise ValueError("project changes what it has projected: symmetric matrices need lambda v: (v + v.T) / 2")
