"""Memory that there is, and sentences about what does not fit."""

from __future__ import annotations

from mmap import PAGESIZE
from pathlib import Path

from dufs_core.backend import Backend, get_backend
from dufs_core.errors import MemoryLimitError


def available_bytes(bk: Backend) -> int | None:
    """Bytes that can still be allocated where the backend computes; None where that cannot be told."""
    if bk.name == "cupy":
        free, _ = bk.xp.cuda.runtime.memGetInfo()
        return int(free) + int(bk.xp.get_default_memory_pool().free_bytes())
    limits = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                limits.append(int(line.split()[1]) * 1024)
        group = Path("/sys/fs/cgroup")  # a container's limit
        most = (group / "memory.max").read_text().strip()
        if most != "max":
            limits.append(int(most) - int((group / "memory.current").read_text()))
    except (OSError, ValueError):
        pass
    try:
        for line in Path("/proc/self/limits").read_text().splitlines():
            if line.startswith("Max address space") and "unlimited" not in line.split()[3]:  # ulimit -v
                limits.append(int(line.split()[3]) - int(Path("/proc/self/statm").read_text().split()[0]) * PAGESIZE)
    except (OSError, ValueError):
        pass
    return min(limits, default=None)


def check_room(what: str, needed: int) -> None:
    """Raise MemoryLimitError, with the numbers, if `needed` bytes of `what` exceed what the host has available."""
    available = available_bytes(get_backend("numpy"))
    if available is not None and needed > available:
        raise MemoryLimitError(f"{what} would take {byte_text(needed)}; {byte_text(max(available, 0))} are available")


def check_squares(bk: Backend, method: str, n: int, count: int) -> None:
    """Raise MemoryLimitError, with the numbers, if `count` arrays (n, n) of float64 exceed what is available."""
    available, needed = available_bytes(bk), 8 * count * n * n
    if available is not None and needed > available:
        raise MemoryLimitError(
            f"{method} holds {count} arrays of {n:,} x {n:,} numbers, {byte_text(needed)}; {byte_text(available)} are "
            f"available. Use at most {int((available / (8 * count)) ** 0.5):,} rows, or a method that holds none: "
            f"LaplacianScore (variant='laplacian'), SRCFS, or DUFS."
        )


def byte_text(count: float) -> str:
    """A number of bytes with three digits and its unit."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} TB"
