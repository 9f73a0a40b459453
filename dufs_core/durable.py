"""Files that are whole or not there: written beside their place, flushed to the disk, then renamed.

Archives are plain .npz files, readable with ``numpy.load(path, allow_pickle=False)``, whose last 64 bytes (of the zip
format's comment) are the SHA-256 of all bytes before them: a file that was cut anywhere, or has one wrong bit, is found
out, and nothing is ever unpickled.
"""

from __future__ import annotations

import errno
import io
import os
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from dufs_core.errors import DamagedFileError

_DIGEST = 64  # hexadecimal digits
_COMMENT = b"sha256 of all bytes before this: "


def write_bytes(path: Path, data: bytes, previous: Path | None = None) -> None:
    """Put `data` at `path`, so that after a crash at any moment the old or the new file is there, complete.

    The file that was there is kept as `previous`, if given; between the two renames it is there alone.
    Raises OSError (a full disk, ...) with the old file in its place and nothing left behind.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if previous is not None:
            with suppress(FileNotFoundError):
                path.replace(previous)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)  # a rename is on the disk when its directory is
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def disk_is_full(error: BaseException) -> bool:
    """Whether no more can be written: a full disk, a quota, a limit on the size of files."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def remove_temporaries(path: Path) -> None:
    """Remove what writers of `path` that were killed have left beside it."""
    for left in path.parent.glob(f".{path.name}.*.tmp"):
        left.unlink(missing_ok=True)


def packed(arrays: Mapping[str, Any]) -> bytes:
    """The bytes of an archive of named arrays. The same arrays give the same bytes."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.comment = _COMMENT + b"0" * _DIGEST
    data = buffer.getvalue()[:-_DIGEST]
    return data + sha256(data).hexdigest().encode()


def unpacked(data: bytes, name: object) -> dict[str, Any]:
    """The arrays of `packed`. Raises DamagedFileError, with the file's `name`, unless every byte is as it was."""
    if len(data) <= _DIGEST or sha256(data[:-_DIGEST]).hexdigest().encode() != data[-_DIGEST:]:
        raise DamagedFileError(
            f"{name} is damaged: its {len(data):,} bytes do not match the checksum that they end with (it was cut, or "
            f"changed on the disk)"
        )
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        return dict(archive)
