"""One process per run directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kmifqe.data.atomic import disk_sentence
from kmifqe.errors import InputError

try:
    import fcntl
except ImportError:  # Windows: no lock, documented in docs/runs.md
    fcntl = None  # type: ignore[assignment]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold `path` as this process's lock, or refuse with the process that holds it.

    The system releases the lock when its process ends, however it ends; the file may stay.
    """
    with disk_sentence(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if not _taken(descriptor, path):
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            raise InputError(
                f"{path.parent}: another process (id {holder}) is writing to this run directory; "
                "wait for it, stop it, or choose another --out"
            )
        with disk_sentence(path):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _taken(descriptor: int, path: Path) -> bool:
    """Return whether the lock is ours now; a file that its holder has removed meanwhile does not count."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except (BlockingIOError, FileNotFoundError):
        return False
