"""Files that are whole on the disk, or not there: also after a kill, a full disk or lost power."""

from __future__ import annotations

import os
from pathlib import Path

from kmifqe.data.atomic import disk_sentence, flush_directory

PART = ".part"  # ends the name of a file that is still being written; a kill may leave one behind


def write_durably(path: Path, data: bytes) -> None:
    """Put `data` into `path`: write beside it, flush to the disk, rename, flush the directory.

    Whatever interrupts this, `path` holds all of the old content or all of the new.
    """
    partial = path.with_name(f".{path.name}{PART}")
    with disk_sentence(path):
        try:
            with open(partial, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
        flush_directory(path.parent)


def make_directory(path: Path) -> None:
    """Make the directory `path` if it is missing, and flush its parent."""
    with disk_sentence(path):
        if not path.is_dir():
            path.mkdir()
            flush_directory(path.parent)


def remove_leftovers(folder: Path) -> None:
    """Remove files that a killed process was still writing."""
    for partial in folder.glob(f".*{PART}"):
        partial.unlink(missing_ok=True)
