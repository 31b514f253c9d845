"""How much memory this machine has left; asked without JAX, also by the process that reads files."""

from __future__ import annotations

import os
from pathlib import Path

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


def _number(path: str) -> int | None:
    """Return the file's number; None where there is no such file, or it says "max"."""
    file = Path(path)
    text = file.read_text(encoding="ascii").strip() if file.exists() else ""
    return int(text) if text.isdigit() else None
