"""One job at a time in a directory."""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dufs_core.cli.sweep.job_file import JobError


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file at `path`, or raise JobError, which names the owner.

    The file says who holds it: pid, host, and when that process started (a pid is given again after its owner's death).
    An owner on this host is dead if no such process runs; one on another host, which cannot be asked, if it was an
    earlier run of the same Slurm job (requeued jobs keep their number, and count their restarts).
    The operating system's own lock on the file,
    which dies with its owner, keeps two processes from taking over at once, where the file system has such locks.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise JobError(f"{path} cannot be written: {(error.strerror or str(error)).lower()}") from error
    try:
        try:
            free = _flocked(descriptor)
            owner = _owner(os.pread(descriptor, 1 << 16, 0))
        except OSError as error:
            raise JobError(f"{path} cannot be locked: {(error.strerror or str(error)).lower()}") from error
        if not free or (owner is not None and _alive(owner)):
            raise JobError(_refusal(path, owner))
        try:
            _write(descriptor, json.dumps(_this_process()).encode())
        except OSError as error:
            raise JobError(f"{path} cannot be written: {(error.strerror or str(error)).lower()}") from error
        try:
            yield
        finally:
            with suppress(OSError):  # what remains names a process that is over
                _write(descriptor, b"")
    finally:
        os.close(descriptor)


def _flocked(descriptor: int) -> bool:
    """Whether the operating system's lock was free, or there is none (some network file systems)."""
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN):
            return False
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP):
            raise
    return True


def _write(descriptor: int, text: bytes) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, text, 0)


def _this_process() -> dict[str, Any]:
    return {
        "pid": os.getpid(), "host": socket.gethostname(), "started": started(os.getpid()),
        "slurm_job": os.environ.get("SLURM_JOB_ID"), "slurm_restart": _restarts(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }  # fmt: skip


def _restarts() -> int:
    """How often Slurm has requeued this job."""
    return int(os.environ.get("SLURM_RESTART_COUNT", 0))


def started(pid: int) -> str | None:
    """When a process of this host started, in a form that is the same each time it is asked; None if there is none.

    Ticks since the machine started, and which start of the machine that was (Linux); elsewhere only that it runs.
    """
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if after_name[0] in "ZX":  # dead, and not yet waited for
            return None
        return f"{after_name[19]} {Path('/proc/sys/kernel/random/boot_id').read_text().strip()}"
    except OSError:
        if Path("/proc/self/stat").exists():
            return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return "running"


def _owner(text: bytes) -> dict[str, Any] | None:
    """What the lock file says; None if nobody holds it (or died while writing to it, before doing anything else)."""
    try:
        owner = json.loads(text)
    except ValueError:
        return None
    return owner if isinstance(owner, dict) and "pid" in owner else None


def _alive(owner: dict[str, Any]) -> bool:
    """Whether the owner may be running, although the operating system's lock was free (some file systems have none)."""
    if owner.get("host") == socket.gethostname():
        return owner["pid"] != os.getpid() and started(owner["pid"]) == owner.get("started") is not None
    job = owner.get("slurm_job")
    return job is None or job != os.environ.get("SLURM_JOB_ID") or owner.get("slurm_restart", 0) >= _restarts()


def _refusal(path: Path, owner: dict[str, Any] | None) -> str:
    if owner is None:
        return f"another process is starting a job in {path.parent}"
    who = f"process {owner['pid']} on {owner.get('host')}, since {owner.get('since')}"
    advice = "wait for it, or take another directory"
    if owner.get("host") != socket.gethostname():
        advice += f"; if it is dead, which cannot be told from here, delete {path}"
    return f"another job is working in {path.parent} ({who}): {advice}"
