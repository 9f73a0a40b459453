"""Files that are whole or not there: written beside their place, flushed to the disk, then renamed.

Archives are plain .npz files, readable with ``numpy.load(path, allow_pickle=False)``, whose last 64 bytes (of the zip
format's comment) are the SHA-256 of all bytes before them: a file that was cut anywhere, or has one wrong bit, is found
out, and nothing is ever unpickled.
"""

from __future__ import annotations

import errno
import glob
import io
import json
import math
import os
import re
import shutil
import zipfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from dufs_core.data.files.headers import check_members
from dufs_core.errors import DamagedFileError

_DIGEST = 64  # hexadecimal digits
_COMMENT = b"sha256 of all bytes before this: "
# some file systems, and some rights, do not let a directory be flushed
_NOT_FOR_DIRECTORIES = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EACCES, errno.EPERM)


def write_bytes(path: Path, data: bytes, previous: Path | None = None) -> None:
    """Put `data` at `path`, so that after a crash at any moment the old or the new file is there, complete.

    The file that was there is kept as `previous`, if given.
    Raises OSError (a full disk, ...) with the old file in its place and nothing left behind.
    """
    # names that `remove_temporaries` knows
    temporary, second_name = (path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp") for _ in range(2))
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if previous is not None and path.exists():
            try:
                os.link(path, second_name)
            except OSError:  # no hard links here
                shutil.copyfile(path, second_name)
            second_name.replace(previous)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
        second_name.unlink(missing_ok=True)
    try:  # a rename is on the disk when its directory is
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _NOT_FOR_DIRECTORIES:
            raise


def disk_is_full(error: BaseException) -> bool:
    """Whether no more can be written: a full disk, a quota, a limit on the size of files."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def os_reason(error: OSError) -> str:
    """What the operating system says about a failure, in lower case."""
    return (error.strerror or str(error)).lower()


def remove_temporaries(path: Path) -> None:
    """Remove what writers of `path` that were killed have left beside it."""
    ours = re.compile(rf"\.{re.escape(path.name)}\.\d+\.[0-9a-f]{{8}}\.tmp")
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        if ours.fullmatch(left.name):  # and not that of a file whose name begins alike
            left.unlink(missing_ok=True)


def pack_npz(arrays: Mapping[str, Any]) -> bytes:
    """The bytes of an archive of named arrays. The same arrays give the same bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:  # dated 1980
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
        archive.comment = _COMMENT + b"0" * _DIGEST
    data = buffer.getvalue()[:-_DIGEST]
    return data + sha256(data).hexdigest().encode()


def unpack_npz(data: bytes, name: object) -> dict[str, Any]:
    """The arrays of `pack_npz`. Raises DamagedFileError, with the file's `name`, unless every byte is as it was."""
    if len(data) <= _DIGEST or sha256(data[:-_DIGEST]).hexdigest().encode() != data[-_DIGEST:]:
        raise DamagedFileError(
            f"{name} is damaged: its {len(data):,} bytes do not match the checksum that they end with (it was cut, or "
            f"changed on the disk)"
        )
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            check_members(archive.zip, len(data))
            return dict(archive)
    except Exception as error:  # whatever led the readers astray
        reason = f"{type(error).__name__}: {error}"
        raise DamagedFileError(
            f"{name} ends with the right checksum, and is no archive of arrays ({reason})"
        ) from error


def json_of(array: Any) -> Any:
    """What an array that holds one text of JSON says. Raises ValueError, for characters that are none as well."""
    little = np.asarray(array, array.dtype.newbyteorder("<"))
    return json.loads(little.tobytes().decode("utf-32-le").rstrip("\0"))


def json_value(value: Any) -> Any:
    """The value in the types of strict JSON; NaN and infinities become None."""
    if isinstance(value, (np.ndarray, np.generic)):
        return json_value(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)
