"""What files promise, compared with what they hold, before anything is allocated or given to compiled code."""

from __future__ import annotations

import math
import mmap
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from dufs_core.backend.memory import byte_text, check_room

_HEAP = b"GCOL\1\0\0\0"
MOST_INFLATED = 1032  # bytes that deflate makes of one, at most


def check_npy(file: Any, size: int, in_memory: bool = True) -> None:
    """Raise ValueError if an .npy file of `size` bytes is shorter than its header says, MemoryLimitError if too large.

    file: open for reading at its start; read up to the end of the header.
    """
    version = np.lib.format.read_magic(file)
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = header(file)
    if dtype.hasobject:
        return  # numpy.load refuses it, or the table is another one
    needed, follow = math.prod(shape) * dtype.itemsize, size - file.tell()
    if min(shape, default=0) < 0 or needed > follow:
        raise ValueError(
            f"its header says {byte_text(needed)} ({dtype}, shape {shape}), and {byte_text(follow)} follow it"
        )
    if in_memory:
        check_room(f"an array of shape {shape}", needed)


def check_members(archive: zipfile.ZipFile, size: int) -> None:
    """`check_npy` of every member of an archive of `size` bytes."""
    for member in archive.infolist():
        if not 0 <= member.compress_size <= size or member.file_size > MOST_INFLATED * member.compress_size:
            raise ValueError(
                f"{member.filename} cannot hold {byte_text(member.file_size)} in {byte_text(member.compress_size)}"
            )
        if member.filename.endswith(".npy"):
            with archive.open(member) as file:
                check_npy(file, member.file_size)


def check_heaps(path: Path) -> None:
    """Raise ValueError for an HDF5 file that HDF5 would read for ever: text of any length lies in heaps of objects.

    A heap is its signature, its size (8 bytes) and objects: number (2), 6 other bytes, size (8), and what it holds. The
    object 0 is what is left, with its head: of no size, it is followed by itself.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        start = data.find(_HEAP)
        while start >= 0:
            at, end = start + 16, min(len(data), start + int.from_bytes(data[start + 8 : start + 16], "little"))
            while end - at >= 16:
                number, size = struct.unpack_from("<H6xQ", data, at)
                if number == size == 0:
                    raise ValueError(f"an object of no size at byte {at:,}, in the heap of its texts")
                at += 16 + size + -size % 8 if number else size
            start = data.find(_HEAP, start + 8)
