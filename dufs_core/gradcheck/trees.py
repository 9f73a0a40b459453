"""Nested inputs, values and gradients: tuples, lists and dicts, whose leaves are arrays and numbers; None has none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def as_tuple(values: Any) -> tuple[Any, ...]:
    return tuple(values) if isinstance(values, (tuple, list)) else (values,)


def _parts(tree: Any) -> Mapping[Any, Any]:
    return tree if isinstance(tree, dict) else dict(enumerate(tree))


def leaves(tree: Any, where: str = "") -> list[tuple[str, Any]]:
    """(place, leaf) of every leaf, in order; the place is `where` and the indices and keys that lead to it."""
    if tree is None:
        return []
    if isinstance(tree, (dict, tuple, list)):
        return [leaf for key, part in _parts(tree).items() for leaf in leaves(part, f"{where}[{key!r}]")]
    return [(where, tree)]


def rebuilt(tree: Any, new: Iterator[Any]) -> Any:
    """The same tree with other leaves."""
    if tree is None:
        return None
    if isinstance(tree, dict):
        return {key: rebuilt(part, new) for key, part in tree.items()}
    if isinstance(tree, (tuple, list)):
        parts = [rebuilt(part, new) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return next(new)


def matched(tree: Any, other: Any, where: str) -> list[Any]:
    """For each leaf of `tree` what `other` has in its place, None where it has None, or nothing, there or above.

    Raises ValueError where the two are not nested alike.
    """
    if tree is None or other is None:
        return [None] * len(leaves(tree))
    if not isinstance(tree, (dict, tuple, list)):
        return [other]
    if not isinstance(other, dict if isinstance(tree, dict) else (tuple, list)):
        raise ValueError(f"{where}: a {type(other).__name__} in the place of a {type(tree).__name__}")
    mine, theirs = _parts(tree), _parts(other)
    unknown = theirs.keys() - mine.keys()
    if unknown:
        raise ValueError(f"{where}: {sorted(map(repr, unknown))} is not in the tree it belongs to")
    return [leaf for key, part in mine.items() for leaf in matched(part, theirs.get(key), f"{where}[{key!r}]")]
