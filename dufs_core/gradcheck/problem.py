"""One problem to check: the calls of function and backward, and what is wrong before any difference is taken."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np

from dufs_core.gradcheck import arguments, arrays
from dufs_core.gradcheck.arguments import Constant
from dufs_core.gradcheck.arrays import Array, change, dot, is_complex, magnitude, moves, size_of
from dufs_core.gradcheck.differences import precision_of
from dufs_core.gradcheck.trees import as_tuple, leaves, matched, rebuilt

Function = Callable[..., Any]
Project = Mapping[int, Callable[[Array], Array]]
Direction = list[Array | None]  # one entry for each leaf of the inputs, None where it does not move


class Problem:
    """Function, backward and inputs as flat lists of leaves, both called once.

    `mistakes` says what is wrong whatever the numbers are; without any, the attributes can be compared.
    """

    def __init__(
        self,
        function: Function,
        backward: Function,
        inputs: Sequence[Any],
        *,
        cotangents: Sequence[Array] | None = None,
        scales: Sequence[float] | None = None,
        project: Project | None = None,
        seed: int = 0,
        dtype: Any = np.float64,
    ) -> None:
        arguments.listed("inputs", "[x], with one entry for each argument of the function", inputs)
        self.tree = tuple(inputs)
        self.function, self.backward, self.seed = function, backward, seed
        self.precision, self.project, self.mistakes = precision_of(dtype), project or {}, list[str]()
        arguments.refuse_project(self.project, len(self.tree))
        found = [(i, *leaf) for i, x in enumerate(self.tree) for leaf in leaves(x, f"input {i}")]
        self.number, self.where = [i for i, _, _ in found], [where for _, where, _ in found]
        self.held = [isinstance(x, Constant) for _, _, x in found]
        self.given = [x.value if isinstance(x, Constant) else x for _, _, x in found]
        for x, where in zip(self.given, self.where, strict=True):
            arguments.refuse_others(x, where)
        self.xp = arrays.array_module(*self.given)
        self.inputs = [arrays.in_precision(self.xp, x, dtype) for x in self.given]

        result = self._call("function", function, self.inputs)
        self.values_tree = as_tuple(result)
        self.values = self._leaves_of(result)
        arguments.refuse_values(self.values)
        is_number = not isinstance(result, (tuple, list, dict)) and np.ndim(result) == 0
        self.pass_cotangents = cotangents is not None or not is_number or any(map(is_complex, self.values))
        self.cotangents = self._cotangents(cotangents, seed)
        self.gradients = self.gradients_at(self.inputs, self.cotangents)
        self.nones = list[int]()  # None says that the function does not depend on the input: a derivative of zero
        for i, (x, g) in enumerate(zip(self.inputs, self.gradients, strict=True)):
            if g is None and moves(x) and not self.held[i]:
                self.nones.append(i)
                self.gradients[i] = self.xp.zeros(np.shape(x), dtype=getattr(x, "dtype", type(x)))
        self.active = [i for i, g in enumerate(self.gradients) if g is not None]
        if scales is not None:
            arguments.listed("scales", "[1.0], with one number for each input", scales, len(self.tree))
        self.scales = [
            scales[i] if scales is not None else (moves(x) and arrays.largest(self.xp, x)) or 1.0
            for i, x in zip(self.number, self.inputs, strict=True)
        ]
        self._find_mistakes(np.dtype(dtype))
        if self.project and not self.mistakes:
            for i, part in enumerate(next(self.directions(1), [])):
                if part is not None and self.number[i] in self.project:
                    arguments.refuse_projected(self.project[self.number[i]], part, np.shape(self.inputs[i]))

    # --- calls ------------------------------------------------------------------------------------------------------

    def values_at(self, inputs: Sequence[Array]) -> list[Array]:
        return self._leaves_of(self.function(*self.arguments(inputs)))

    def gradients_at(
        self, inputs: Sequence[Array], cotangents: Sequence[Array | None], gaps: bool = False, **options: Any
    ) -> list[Array | None]:
        """Copies of the backward's results, in the order of the leaves."""
        given = self._call("backward", self.backward, inputs, cotangents, gaps, **options)
        result, n = as_tuple(given), len(self.tree)
        if len(result) != n:
            gives = "None" if given is None else f"{len(result)} gradient" + "s" * (len(result) != 1)
            hint = " (one that is itself a list in a tuple: (g,))" if n == 1 else ""
            self.note(f"the backward gives {gives} for {n} input{'s' * (n != 1)}, it must give one for each{hint}")
            return [None] * len(self.inputs)
        try:
            trees = enumerate(zip(self.tree, result, strict=True))
            found = [leaf for i, (x, g) in trees for leaf in matched(x, g, f"input {i}")]
        except ValueError as error:
            self.note(f"the gradient is nested otherwise than the input ({error}): nest it alike, or give np.array(x)")
            return [None] * len(self.inputs)
        pairs = zip(found, self.held, strict=True)
        return [None if g is None or held else arrays.copied(self.xp, g) for g, held in pairs]

    def arguments(self, inputs: Sequence[Array]) -> tuple[Any, ...]:
        new = iter(inputs)
        return tuple(rebuilt(x, new) for x in self.tree)

    def _leaves_of(self, result: Any) -> list[Array]:
        """Copies of the values: a function may give the same memory again."""
        return [self.xp.array(y) for _, y in leaves(as_tuple(result))]

    def _call(
        self,
        who: str,
        f: Function,
        inputs: Sequence[Array],
        cotangents: Sequence[Array | None] = (),
        gaps: bool = False,
        **options: Any,
    ) -> Any:
        """f on copies of its own, with the caller's gaps in memory if `gaps`; what it writes into is a mistake."""
        pairs = zip(inputs, self.given, strict=True)
        own = [arrays.copied(self.xp, x, gaps and arrays.is_strided(given)) for x, given in pairs]
        w = [arrays.copied(self.xp, c) for c in cotangents]
        new = iter(w)
        passed = self.arguments(own)
        if cotangents and self.pass_cotangents:
            passed += tuple(rebuilt(y, new) for y in self.values_tree)
        arguments.refuse_call(f, who, passed, len(self.tree), **options)
        result = f(*passed, **options)
        names = (*self.where, *(f"cotangent {k}" for k in range(len(w))))
        for name, old, now in zip(names, (*inputs, *cotangents), (*own, *w), strict=True):
            if hasattr(old, "dtype") and change(old, now):
                self.note(f"{name} was overwritten by the {who}: change a copy instead")
        self.memory = [x for x in (*own, *w) if np.ndim(x)], [g for _, g in leaves(result) if np.ndim(g)]
        return result

    def _cotangents(self, given: Sequence[Array] | None, seed: int) -> list[Array | None]:
        """Seeded normal numbers, 1 for a number; None for a value that is an integer."""
        if given is not None:
            arguments.listed("cotangents", "[w], with one entry for each value", given, len(self.values_tree))
            pairs = zip(self.values_tree, given, strict=True)
            found = [c for k, (y, c) in enumerate(pairs) for c in matched(y, c, f"cotangent {k}")]
            for k, (y, c) in enumerate(zip(self.values, found, strict=True)):
                if c is not None and np.shape(c) != y.shape:
                    raise ValueError(f"cotangent {k} has shape {np.shape(c)}, the function's value {y.shape}")
            return [None if c is None else self.xp.asarray(c) for c in found]
        rng, drawn = arrays.generator(seed, 0), list[Array | None]()
        for y in self.values:
            c = rng.standard_normal(y.shape) if self.pass_cotangents else np.ones(y.shape)
            if is_complex(y):
                c = c + 1j * rng.standard_normal(y.shape)
            drawn.append(self.xp.asarray(c, dtype=y.dtype) if moves(y) else None)
        return drawn

    # --- mistakes ---------------------------------------------------------------------------------------------------

    def note(self, mistake: str) -> None:
        if mistake not in self.mistakes:
            self.mistakes.append(mistake)

    def _find_mistakes(self, dtype: Any) -> None:
        for where, x, g in zip(self.where, self.inputs, self.gradients, strict=True):
            if g is None:
                continue
            expected = getattr(x, "dtype", np.dtype(complex if is_complex(x) else float))
            if not moves(x):
                name = getattr(x, "dtype", type(x).__name__)
                self.note(f"{where} is {name} and has no derivative: give None, or make it a floating-point array")
            elif np.shape(g) != np.shape(x):
                self.note(f"{where}: the gradient has shape {np.shape(g)}, the input {np.shape(x)}")
            elif hasattr(g, "dtype") and g.dtype not in (expected, np.result_type(expected, dtype)):
                self.note(f"{where}: the gradient is {g.dtype}, although the input went in as {expected}")
            elif not bool(self.xp.all(self.xp.isfinite(self.xp.asarray(g)))):
                self.note(f"{where}: the gradient is not finite")
        for y in self.values:
            if not bool(self.xp.all(self.xp.isfinite(y))):
                self.note("the function's value is not finite")
            elif moves(y) and y.dtype.itemsize < dtype.itemsize * (2 if is_complex(y) else 1):
                self.note(
                    f"the function's value is {y.dtype} although everything that went in is {dtype}: differences of it "
                    "hold too few digits; compute in the type of the inputs, or check with dtype=np.float32"
                )

    def check_memory(self) -> None:
        """Gradients must be arrays of their own."""
        went_in, came_out = self.memory
        if any(self.xp.may_share_memory(g, x) for g in came_out for x in went_in):
            self.note("a gradient shares memory with an input or a cotangent")

    def check_repeats(self, rtol: float) -> None:
        """The same inputs again, with gaps where the caller's have some, give the same numbers."""
        gaps = " (now with the gaps that the input has in memory)" if any(map(arrays.is_strided, self.given)) else ""
        values = self._leaves_of(self._call("function", self.function, self.inputs, gaps=True))
        gradients = self.gradients_at(self.inputs, self.cotangents, gaps=True)
        for what, before, now in (
            ("function gives another value", self.values, values),
            ("backward gives another gradient", self.gradients, gradients),
        ):
            most = max((change(a, b) for a, b in zip(before, now, strict=True)), default=0.0)
            if most > rtol:
                self.note(
                    f"the {what} for the same inputs{gaps}: changed by {most:.1e} of its size, tolerance {rtol:.0e}"
                )

    def check_subsets(self, rtol: float) -> None:
        """Gradients asked for alone are those that are asked for together: backward(..., wanted=(True, False))."""
        active = sorted({self.number[i] for i in self.active})
        sizes = range(1, len(active)) if len(active) <= 4 else sorted({1, len(active) - 1})
        for subset in (chosen for size in sizes for chosen in combinations(active, size)):
            wanted = tuple(i in subset for i in range(len(self.tree)))
            found = self.gradients_at(self.inputs, self.cotangents, wanted=wanted)
            for i in (i for i in self.active if wanted[self.number[i]]):
                most = change(self.gradients[i], found[i])
                if most > rtol:
                    now = "None" if found[i] is None else f"another one: {most:.1e} of its size"
                    self.note(f"{self.where[i]}: with wanted={wanted}, which asks for it, the gradient is {now}")

    # --- lines through the inputs -----------------------------------------------------------------------------------

    @cached_property
    def ends(self) -> list[int]:
        """Where each active leaf's real coordinates end in a vector of all; a complex number has two."""
        sizes = [size_of(self.inputs[i]) * (2 if is_complex(self.inputs[i]) else 1) for i in self.active]
        return [int(end) for end in np.cumsum(sizes)]

    @property
    def size(self) -> int:
        return self.ends[-1] if self.ends else 0

    @cached_property
    def rounding(self) -> float:
        """eps sum |w||f|: what the rounding of the values can do to <w, f>."""
        pairs = zip(self.cotangents, self.values, strict=True)
        sizes = (self.xp.abs(c) * self.xp.abs(y) for c, y in pairs if c is not None)
        return self.precision.eps * sum(float(self.xp.sum(size)) for size in sizes)

    @cached_property
    def displaced(self) -> float:
        """eps ||g * x||: what the rounding of the moved inputs can do to <w, f>."""
        return self.precision.eps * magnitude(self.xp, self.gradients, self.inputs)

    @cached_property
    def typical(self) -> float:
        """||gradient|| / sqrt(n) in units of the inputs' scales: the size of a derivative along a random direction."""
        norms = [
            float(self.xp.linalg.norm(self.xp.asarray(self.gradients[i]).ravel())) * self.scales[i] for i in self.active
        ]
        return float(np.linalg.norm(norms) / np.sqrt(max(self.size, 1)))

    def direction(self, v: Any) -> Direction:
        """A host vector over all real coordinates, in units of each input's scale, projected."""
        found: Direction = [None] * len(self.inputs)
        for i, part in zip(self.active, np.split(v, self.ends[:-1]), strict=True):
            x = self.inputs[i]
            part = part[0::2] + 1j * part[1::2] if is_complex(x) else part
            part = self.xp.asarray(part.reshape(np.shape(x)) * self.scales[i])
            project = self.project.get(self.number[i])
            found[i] = part if project is None else project(part)
        return found

    def random_vector(self, stream: int) -> Any:
        return arrays.unit_vector(arrays.generator(self.seed, stream), self.size)

    def directions(self, count: int) -> Iterator[Direction]:
        """Random ones; none if there is no coordinate."""
        rng = arrays.generator(self.seed, 1)
        for _ in range(count if self.size else 0):
            yield self.direction(arrays.unit_vector(rng, self.size))

    def moved(self, direction: Direction, t: float) -> list[Array]:
        def beside(x: Array, v: Array) -> Array:
            y = x + t * v
            return self.xp.asarray(y, dtype=x.dtype) if hasattr(x, "dtype") else type(x)(y)

        return [x if v is None else beside(x, v) for x, v in zip(self.inputs, direction, strict=True)]

    def analytic(self, direction: Direction) -> float:
        return dot(self.xp, self.gradients, direction)

    def coordinate(self, c: int) -> tuple[int, str]:
        """The leaf of a real coordinate, and its name."""
        k = int(np.searchsorted(self.ends, c, side="right"))
        i, flat, part = self.active[k], c - (self.ends[k - 1] if k else 0), ""
        if is_complex(self.inputs[i]):
            flat, part = flat // 2, (", real part", ", imaginary part")[flat % 2]
        index = tuple(int(j) for j in np.unravel_index(flat, np.shape(self.inputs[i])))
        place = f", coordinate {index}" if index else ""
        projected = ", projected" if self.number[i] in self.project else ""
        return i, f"{self.where[i]}{place}{part}{projected}"


class Line:
    """phi(t) = <w, f(x + t v) - f(x)>, each value computed once; nan beyond the edge of f's domain."""

    def __init__(self, problem: Problem, direction: Direction) -> None:
        self.problem, self.direction, self.known = problem, direction, {0.0: 0.0}
        self.outside = ""  # what the function says there

    def __call__(self, t: float) -> float:
        if t not in self.known:
            p, self.known[t] = self.problem, math.nan
            try:
                with np.errstate(all="ignore"):
                    values = p.values_at(p.moved(self.direction, t))
            except (ArithmeticError, ValueError) as error:  # LinAlgError is a ValueError
                self.outside = f"{type(error).__name__}: {error}"
                return math.nan
            pairs = zip(p.cotangents, values, p.values, strict=True)
            change = [None if c is None else y - y0 for c, y, y0 in pairs]
            self.known[t] = dot(p.xp, p.cotangents, change)
        return self.known[t]

    def inside(self, t: float) -> bool:
        """Whether the function has values on both sides."""
        return math.isfinite(self(t)) and math.isfinite(self(-t))
