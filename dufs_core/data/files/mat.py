"""MATLAB files of versions 5 to 7. They are read here: one wrong bit can lead scipy.io.loadmat outside its arrays.

A file is a header of 128 bytes and elements, each a tag (type, bytes) and its data, padded to 8 bytes. A variable is
an element of elements: flags, dimensions, name, values. In a compressed file it is a stream of zlib.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from dufs_core.backend import Array
from dufs_core.backend.memory import check_room
from dufs_core.data.files.headers import MOST_INFLATED

_MATRIX, _COMPRESSED = 14, 15
# of elements; the last three are UTF-8, 16 and 32
# fmt: off
_DTYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8",
           16: "u1", 17: "u2", 18: "u4"}
# fmt: on
_CODECS = {1: "latin-1", 2: "latin-1", 4: "utf-16-{}", 16: "utf-8", 17: "utf-16-{}", 18: "utf-32-{}"}  # of text
_CELL, _CHAR, _SPARSE, _NUMBERS = 1, 4, 5, range(6, 16)  # classes of variables; all others are kinds of records
_COMPLEX = 0x0800


class Variable(NamedTuple):
    """One variable of a file, whose values have not been looked at."""

    name: str
    kind: int
    is_complex: bool
    shape: tuple[int, ...]
    parts: Iterator[tuple[int, memoryview]]  # type and data of the elements that follow
    order: str

    def value(self) -> Any:
        """Numbers as they are stored, a sparse matrix, text, an array of text for cells of it.

        What is no table and no labels is not read: zeros that are complex, or records.
        """
        if self.is_complex:
            return np.broadcast_to(np.zeros((), complex), self.shape)
        if self.kind in _NUMBERS:
            return self._array().reshape(self.shape, order="F")
        if self.kind == _SPARSE:
            rows, starts = self._array(), self._array()[: self.shape[1] + 1]
            stored = int(starts[-1])
            values = self._array(stored)
            return sparse.csc_array((values[:stored], rows[:stored], starts), shape=self.shape)
        if self.kind == _CHAR:
            return self._text()
        if self.kind == _CELL:
            cells = [_variable(data, self.order) for _, data in self.parts]
            texts = [str(np.squeeze(cell.value())) if cell.kind in (_CHAR, *_NUMBERS) else "" for cell in cells]
            return np.array(texts, dtype=object).reshape(self.shape, order="F")
        return np.broadcast_to(np.zeros((), dtype=[("record", "u1")]), self.shape)

    def _array(self, count: int = -1) -> Array:
        """The numbers of an element; as float64 are marked, too, `count` truth values of one byte."""
        kind, data = next(self.parts)
        are_bytes = kind == 9 and 0 < count == len(data)
        return np.frombuffer(data, "?" if are_bytes else self.order + _DTYPES[kind])

    def _text(self) -> Array:
        """The rows of a table of characters, as texts."""
        kind, data = next(self.parts)
        codec = _CODECS[kind].format("le" if self.order == "<" else "be")
        characters = np.array(list(bytes(data).decode(codec, "replace")), dtype="U1")
        rows = characters.reshape(self.shape, order="F")
        return np.array(["".join(row) for row in rows if len(row)], dtype=str)


def variables(path: Path) -> dict[str, Variable]:
    """The named variables of a file."""
    data = memoryview(path.read_bytes())
    order = {b"IM": "<", b"MI": ">"}[bytes(data[126:128])]
    found = {}
    for kind, part in _elements(data[128:], order):
        if kind == _COMPRESSED:
            ((kind, part),) = _elements(_inflated(part, order), order)
        if kind != _MATRIX:
            raise ValueError(f"an element of type {kind} where a variable should be")
        if len(part) and (variable := _variable(part, order)).name:  # one without is MATLAB's own
            found[variable.name] = variable
    return found


def _variable(data: memoryview, order: str) -> Variable:
    parts = _elements(data, order)
    (_, flags), (_, dimensions), (_, name) = next(parts), next(parts), next(parts)
    word, shape = struct.unpack_from(f"{order}I", flags)[0], np.frombuffer(dimensions, f"{order}i4").tolist()
    if min(shape) < 0:
        raise ValueError(f"a variable of shape {shape}")
    return Variable(bytes(name).decode("latin-1"), word & 0xFF, bool(word & _COMPLEX), tuple(shape), parts, order)


def _elements(data: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    """Type and data of every element; what is small stands within its tag."""
    at = 0
    while at + 8 <= len(data):
        kind, count = struct.unpack_from(f"{order}II", data, at)
        small = kind >> 16
        if small:
            kind, count, start, after = kind & 0xFFFF, small, at + 4, at + 8
        else:
            start = at + 8
            after = start + count + (0 if kind == _COMPRESSED else -count % 8)
        if (small and count > 4) or start + count > len(data):
            raise ValueError(f"an element of {count:,} bytes where {len(data) - start:,} are left")
        yield kind, data[start : start + count]
        at = after


def _inflated(data: memoryview, order: str) -> memoryview:
    """What a compressed element holds; the tag at its start says how much that is."""
    stream = zlib.decompressobj()
    tag = stream.decompress(data, 8)
    _, count = struct.unpack(f"{order}II", tag)
    if count > MOST_INFLATED * len(data):
        raise ValueError(f"{len(data):,} compressed bytes cannot hold {count:,}")
    check_room("a variable", count)
    rest = stream.decompress(stream.unconsumed_tail, count + 1)
    if len(rest) != count or not stream.eof:
        raise ValueError(f"a compressed variable of {count:,} bytes is cut, or goes on")
    return memoryview(tag + rest)
