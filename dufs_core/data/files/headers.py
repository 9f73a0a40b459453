"""What .npy files and archives of them promise, compared with what they hold, before anything is allocated."""

from __future__ import annotations

import math
import zipfile
from typing import Any

import numpy as np

from dufs_core.backend.memory import byte_text, check_room

_MOST_INFLATED = 1032  # bytes that deflate makes of one, at most


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
        if not 0 <= member.compress_size <= size or member.file_size > _MOST_INFLATED * member.compress_size:
            raise ValueError(
                f"{member.filename} cannot hold {byte_text(member.file_size)} in {byte_text(member.compress_size)}"
            )
        if member.filename.endswith(".npy"):
            with archive.open(member) as file:
                check_npy(file, member.file_size)
