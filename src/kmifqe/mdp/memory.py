"""How much memory this machine has left, and arrays that need none. JAX is not imported: the child asks here too."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from kmifqe.errors import InputError

LARGE = 0.25  # of the free memory: arrays that together take more are put on the disk

_CGROUP_FILES = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def free_host_bytes() -> int:
    """Return the machine's memory that a process can still take, within a container's limit if there is one."""
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    info = Path("/proc/meminfo")
    if info.exists():
        lines = (line.split(":", 1) for line in info.read_text(encoding="ascii").splitlines())
        stated = {name: value.split()[0] for name, value in lines}
        available = 1024 * int(stated.get("MemAvailable", available // 1024))
    for limit_file, usage_file in _CGROUP_FILES:
        limit, usage = _number(limit_file), _number(usage_file)
        if limit is not None and usage is not None:
            available = min(available, max(0, limit - usage))
    return available


def is_large(nbytes: int) -> bool:
    """Return whether arrays of so many bytes should lie on the disk and not in memory."""
    return nbytes > LARGE * free_host_bytes()


def mapped_empty(shape: tuple[int, ...], dtype: DTypeLike = np.float32) -> np.ndarray:
    """Return zeros that lie in a file without a name: the system takes their pages from memory when it needs room.

    The file is gone with the array. It lies in $TMPDIR, by default in /var/tmp, which is rarely a disk of memory as
    /tmp may be.
    """
    folder = os.environ.get("TMPDIR") or ("/var/tmp" if os.access("/var/tmp", os.W_OK) else None)
    length = int(np.prod(shape)) * np.dtype(dtype).itemsize
    try:
        with tempfile.TemporaryFile(dir=folder, prefix="kmifqe-") as file:
            if hasattr(os, "posix_fallocate"):  # a page that finds no room later would end the process
                os.posix_fallocate(file.fileno(), 0, max(length, 1))
            else:
                file.truncate(max(length, 1))
            return np.asarray(np.memmap(file, dtype, "r+", shape=shape))
    except OSError as error:
        raise InputError(
            f"{folder or tempfile.gettempdir()}: has no room for {length / 2**30:.1f} GiB of a log larger than "
            f"memory ({error.strerror or error}); set TMPDIR to a folder on a disk that has"
        ) from error


def _number(path: str) -> int | None:
    """Return the file's number; None where there is no such file, or it says "max"."""
    file = Path(path)
    text = file.read_text(encoding="ascii").strip() if file.exists() else ""
    return int(text) if text.isdigit() else None
